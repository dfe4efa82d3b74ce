//! The random numbers of sampling, alike on every platform.

/// xoshiro256++ by Blackman and Vigna, seeded through splitmix64 as its authors advise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The sequence of a seed; every seed is good.
    pub fn new(seed: u64) -> Self {
        let mut mixed = seed;
        Self { state: std::array::from_fn(|_| splitmix64(&mut mixed)) }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `[0, 1)`: the upper 53 bits.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn splitmix64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        let mut random = Random { state: [1, 2, 3, 4] };
        let found: [u64; 5] = std::array::from_fn(|_| random.next_u64());
        assert_eq!(
            found,
            [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386, 9_228_616_714_210_784_205]
        );
    }

    #[test]
    fn the_seeding_gives_the_published_numbers() {
        let mut state = 1_234_567;
        let found: [u64; 3] = std::array::from_fn(|_| splitmix64(&mut state));
        assert_eq!(found, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    #[test]
    fn uniform_numbers_stay_below_one_and_fill_the_range() {
        let mut random = Random::new(7);
        let mut tenths = [0u32; 10];
        for _ in 0..10_000 {
            let x = random.next_f64();
            assert!((0.0..1.0).contains(&x));
            tenths[(x * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|&n| (850..1150).contains(&n)), "{tenths:?}");
    }
}
