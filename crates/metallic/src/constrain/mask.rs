//! Logits of tokens that are not allowed.

/// Bans every token whose bit is not set: bit `i` of the words, lowest first, is token `i`. Logits past the last word are banned.
pub(super) fn apply(allowed: &[u32], row: &mut [f32]) {
    let (chunks, rest) = row.as_chunks_mut::<32>();
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    let mut words = words;
    for (chunk, word) in chunks.iter_mut().zip(&mut words) {
        match word {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
                }
            }
        }
    }
    let word = words.next().unwrap_or(0);
    for (bit, logit) in rest.iter_mut().enumerate() {
        if word >> bit & 1 == 0 {
            *logit = f32::NEG_INFINITY;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::apply;

    #[test]
    fn every_token_without_its_bit_is_banned() {
        for vocab in [1, 31, 32, 33, 64, 95, 100] {
            let words = [0xdead_beef_u32, u32::MAX];
            let mut row: Vec<f32> = (0..vocab).map(|i| i as f32).collect();
            apply(&words, &mut row);
            for (i, logit) in row.iter().enumerate() {
                let allowed = words.get(i / 32).is_some_and(|word| word >> (i % 32) & 1 == 1);
                assert_eq!(
                    *logit,
                    if allowed { i as f32 } else { f32::NEG_INFINITY },
                    "token {i} of {vocab}"
                );
            }
        }
    }
}
