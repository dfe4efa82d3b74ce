//! The encoders that search. Each block is encoded by itself, with a weight for each of its numbers.

use half::f16;

use super::MXFP4_LEVELS;
use super::fit::{Even, Grid, Uneven, between, inverse, round, scale, scale_min, sums};

/// How much the error of each number counts. Large numbers count more, for what they are multiplied by is not known;
/// where it is known how large the inputs are on the whole (`importance`, one for each number), that counts as well.
pub(super) fn weights<const N: usize>(x: &[f32; N], importance: Option<&[f32; N]>) -> [f32; N] {
    let mean = x.iter().map(|v| v * v).sum::<f32>() / N as f32;
    let Some(importance) = importance else {
        let rms = mean.sqrt();
        return std::array::from_fn(|i| rms + x[i].abs());
    };
    let average = importance.iter().sum::<f32>() / N as f32;
    // An input that was never seen may come yet.
    let floor = if average > 0.0 { 1e-4 * average } else { 1.0 };
    std::array::from_fn(|i| importance[i].max(floor) * (2.0 * mean + x[i] * x[i]).sqrt())
}

fn halved(v: f32) -> f32 {
    f16::from_f32(v).to_f32()
}

fn put(block: &mut [u8], at: usize, d: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
}

/// Passes over the scales of a super-block.
const PASSES: usize = 2;
/// What is tried beside a scale and a min.
const NEIGHBOURS: [(f32, f32); 8] =
    [(-1.0, -1.0), (-1.0, 0.0), (-1.0, 1.0), (0.0, -1.0), (0.0, 1.0), (1.0, -1.0), (1.0, 0.0), (1.0, 1.0)];

/// A super-block of `S` sub-blocks of `N` numbers, `d * scale * level - dmin * min`.
#[derive(Clone, Copy)]
struct Affine<const S: usize> {
    d: f32,
    dmin: f32,
    scales: [f32; S],
    mins: [f32; S],
}

impl<const S: usize> Affine<S> {
    /// With levels from 0 to `top`, and scales and mins from 0 to `scale_top`.
    fn of<const N: usize>(x: &[f32; 256], w: &[f32; 256], top: f32, scale_top: f32) -> Affine<S> {
        let (xs, ws) = (x.as_chunks::<N>().0, w.as_chunks::<N>().0);
        let fits: [(f32, f32); S] = std::array::from_fn(|s| scale_min(&xs[s], &ws[s], top, false));
        let most = |of: fn(&(f32, f32)) -> f32| fits.iter().map(of).fold(0.0, f32::max);
        let (d, dmin) = (halved(most(|f| f.0) / scale_top), halved(most(|f| f.1) / scale_top));
        let part = |v: f32, of: f32| round(between(v * inverse(of), 0.0, scale_top));
        let (scales, mins) = (fits.map(|f| part(f.0, d)), fits.map(|f| part(f.1, dmin)));
        let mut block = Affine { d, dmin, scales, mins };
        let mut best = (f32::MAX, block);
        for _ in 0..PASSES {
            let mut error = 0.0;
            for s in 0..S {
                error += block.improve(s, (&xs[s], &ws[s]), top, scale_top);
            }
            if error < best.0 {
                best = (error, block);
            }
            block.refit::<N>(xs, ws, top);
        }
        let error: f32 = (0..S).map(|s| block.error(s, (&xs[s], &ws[s]), top)).sum();
        if error < best.0 { block } else { best.1 }
    }

    fn level(scale: f32, min: f32, top: f32) -> impl Fn(f32) -> f32 {
        let inverse = inverse(scale);
        move |x| round(between((x + min) * inverse, 0.0, top))
    }

    fn error<const N: usize>(&self, s: usize, (x, w): (&[f32; N], &[f32; N]), top: f32) -> f32 {
        let (scale, min) = (self.d * self.scales[s], self.dmin * self.mins[s]);
        let level = Self::level(scale, min, top);
        let [error] = sums::<N, 1>(|i| {
            let off = x[i] - (scale * level(x[i]) - min);
            [w[i] * off * off]
        });
        error
    }

    /// Takes the neighbours of scale and min of sub-block `s` where they are better; returns the error.
    fn improve<const N: usize>(
        &mut self,
        s: usize,
        numbers: (&[f32; N], &[f32; N]),
        top: f32,
        scale_top: f32,
    ) -> f32 {
        let (scale, min) = (self.scales[s], self.mins[s]);
        let mut best = (self.error(s, numbers, top), scale, min);
        for (more, shift) in NEIGHBOURS {
            let (scale, min) = (scale + more, min + shift);
            if !(0.0..=scale_top).contains(&scale) || !(0.0..=scale_top).contains(&min) {
                continue;
            }
            (self.scales[s], self.mins[s]) = (scale, min);
            let error = self.error(s, numbers, top);
            if error < best.0 {
                best = (error, scale, min);
            }
        }
        (self.scales[s], self.mins[s]) = (best.1, best.2);
        best.0
    }

    /// The best `d` and `dmin` for the levels, scales and mins there are.
    fn refit<const N: usize>(&mut self, xs: &[[f32; N]], ws: &[[f32; N]], top: f32) {
        let mut all = [0.0; 5];
        for (s, (x, w)) in xs.iter().zip(ws).enumerate() {
            let level = Self::level(self.d * self.scales[s], self.dmin * self.mins[s], top);
            let (scale, min) = (self.scales[s], self.mins[s]);
            let part = sums::<N, 5>(|i| {
                let a = scale * level(x[i]);
                [w[i] * a * a, w[i] * a * min, w[i] * min * min, w[i] * a * x[i], w[i] * min * x[i]]
            });
            all.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        let [aa, ab, bb, ax, bx] = all;
        let determinant = aa * bb - ab * ab;
        let (d, dmin) = ((ax * bb - bx * ab) / determinant, (ax * ab - bx * aa) / determinant);
        if bb == 0.0 && aa > 0.0 {
            self.d = halved(ax / aa);
        } else if d > 0.0 && dmin >= 0.0 && d.is_finite() && dmin.is_finite() {
            (self.d, self.dmin) = (halved(d), halved(dmin));
        }
    }

    fn levels<const N: usize>(&self, x: &[f32; 256], top: f32) -> [u8; 256] {
        std::array::from_fn(|i| {
            let (scale, min) = (self.d * self.scales[i / N], self.dmin * self.mins[i / N]);
            Self::level(scale, min, top)(x[i]) as u8
        })
    }
}

/// A super-block of `S` sub-blocks of `N` numbers, `d * scale * level`.
#[derive(Clone, Copy)]
struct Symmetric<const S: usize> {
    d: f32,
    scales: [f32; S],
}

impl<const S: usize> Symmetric<S> {
    /// With scales from `-half` to `half - 1`.
    fn of<const N: usize>(x: &[f32; 256], w: &[f32; 256], grid: impl Grid, half: f32) -> Symmetric<S> {
        let (xs, ws) = (x.as_chunks::<N>().0, w.as_chunks::<N>().0);
        let fits: [f32; S] = std::array::from_fn(|s| scale(&xs[s], &ws[s], grid));
        let most = fits.iter().fold(0.0, |most: f32, d| if d.abs() > most.abs() { *d } else { most });
        let d = halved(most / -half);
        let scales = fits.map(|fit| round(between(fit * inverse(d), -half, half - 1.0)));
        let mut block = Symmetric { d, scales };
        let mut best = (f32::MAX, block);
        for _ in 0..PASSES {
            let mut error = 0.0;
            for s in 0..S {
                error += block.improve(s, (&xs[s], &ws[s]), grid, half);
            }
            if error < best.0 {
                best = (error, block);
            }
            block.refit::<N>(xs, ws, grid);
        }
        let error: f32 = (0..S).map(|s| block.error(s, (&xs[s], &ws[s]), grid)).sum();
        if error < best.0 { block } else { best.1 }
    }

    fn error<const N: usize>(&self, s: usize, (x, w): (&[f32; N], &[f32; N]), grid: impl Grid) -> f32 {
        let scale = self.d * self.scales[s];
        let inverse = inverse(scale);
        let [error] = sums::<N, 1>(|i| {
            let off = x[i] - scale * grid.nearest(x[i] * inverse);
            [w[i] * off * off]
        });
        error
    }

    /// Takes a neighbour of the scale of sub-block `s` where it is better; returns the error.
    fn improve<const N: usize>(
        &mut self,
        s: usize,
        numbers: (&[f32; N], &[f32; N]),
        grid: impl Grid,
        half: f32,
    ) -> f32 {
        let scale = self.scales[s];
        let mut best = (self.error(s, numbers, grid), scale);
        for scale in [scale - 1.0, scale + 1.0] {
            if (-half..half).contains(&scale) {
                self.scales[s] = scale;
                let error = self.error(s, numbers, grid);
                if error < best.0 {
                    best = (error, scale);
                }
            }
        }
        self.scales[s] = best.1;
        best.0
    }

    /// The best `d` for the levels and scales there are.
    fn refit<const N: usize>(&mut self, xs: &[[f32; N]], ws: &[[f32; N]], grid: impl Grid) {
        let (mut aa, mut ax) = (0.0, 0.0);
        for ((x, w), scale) in xs.iter().zip(ws).zip(self.scales) {
            let inverse = inverse(self.d * scale);
            let part = sums::<N, 2>(|i| {
                let a = scale * grid.nearest(x[i] * inverse);
                [w[i] * a * a, w[i] * a * x[i]]
            });
            aa += part[0];
            ax += part[1];
        }
        if aa > 0.0 && (ax / aa).is_finite() {
            self.d = halved(ax / aa);
        }
    }

    fn levels<const N: usize>(&self, x: &[f32; 256], grid: impl Grid) -> [f32; 256] {
        std::array::from_fn(|i| grid.nearest(x[i] * inverse(self.d * self.scales[i / N])))
    }
}

pub(super) fn q2_k(x: &[f32; 256], w: &[f32; 256], block: &mut [u8; 84]) {
    let found = Affine::<16>::of::<16>(x, w, 3.0, 15.0);
    let levels = found.levels::<16>(x, 3.0);
    for (byte, (scale, min)) in block.iter_mut().zip(found.scales.iter().zip(found.mins)) {
        *byte = *scale as u8 | (min as u8) << 4;
    }
    crumbs(&levels, &mut block[16..80]);
    put(block, 80, found.d);
    put(block, 82, found.dmin);
}

pub(super) fn q3_k(x: &[f32; 256], w: &[f32; 256], block: &mut [u8; 110]) {
    let found = Symmetric::<16>::of::<16>(x, w, Even { half: 4.0 }, 32.0);
    let levels = found.levels::<16>(x, Even { half: 4.0 }).map(|level| (level + 4.0) as u8);
    bits(&levels.map(|level| level >> 2), &mut block[..32]);
    crumbs(&levels, &mut block[32..96]);
    let scales = &mut block[96..108];
    scales.fill(0);
    for (sub, scale) in found.scales.iter().enumerate() {
        let scale = (scale + 32.0) as u8;
        scales[sub % 8] |= (scale & 15) << (4 * (sub / 8));
        scales[8 + sub % 4] |= scale >> 4 << (2 * (sub / 4));
    }
    put(block, 108, found.d);
}

pub(super) fn q4_k(x: &[f32; 256], w: &[f32; 256], block: &mut [u8; 144]) {
    let found = Affine::<8>::of::<32>(x, w, 15.0, 63.0);
    let levels = found.levels::<32>(x, 15.0);
    put(block, 0, found.d);
    put(block, 2, found.dmin);
    six_bits(&found, &mut block[4..16]);
    nibbles::<32>(&levels, &mut block[16..]);
}

pub(super) fn q5_k(x: &[f32; 256], w: &[f32; 256], block: &mut [u8; 176]) {
    let found = Affine::<8>::of::<32>(x, w, 31.0, 63.0);
    let levels = found.levels::<32>(x, 31.0);
    put(block, 0, found.d);
    put(block, 2, found.dmin);
    six_bits(&found, &mut block[4..16]);
    bits(&levels.map(|level| level >> 4), &mut block[16..48]);
    nibbles::<32>(&levels, &mut block[48..]);
}

pub(super) fn q6_k(x: &[f32; 256], w: &[f32; 256], block: &mut [u8; 210]) {
    let found = Symmetric::<16>::of::<16>(x, w, Even { half: 32.0 }, 128.0);
    let levels = found.levels::<16>(x, Even { half: 32.0 }).map(|level| (level + 32.0) as u8);
    nibbles::<64>(&levels, &mut block[..128]);
    crumbs(&levels.map(|level| level >> 4), &mut block[128..192]);
    for (byte, scale) in block[192..208].iter_mut().zip(found.scales) {
        *byte = scale as i8 as u8;
    }
    put(block, 208, found.d);
}

pub(super) fn iq4_nl(x: &[f32; 32], w: &[f32; 32], block: &mut [u8; 18]) {
    let d = halved(scale(x, w, Uneven));
    put(block, 0, d);
    uneven(x, d, &mut block[2..]);
}

pub(super) fn iq4_xs(x: &[f32; 256], w: &[f32; 256], block: &mut [u8; 136]) {
    let found = Symmetric::<8>::of::<32>(x, w, Uneven, 32.0);
    put(block, 0, found.d);
    block[2..8].fill(0);
    for (sub, scale) in found.scales.iter().enumerate() {
        let code = (scale + 32.0) as u8;
        // The high bits of the scales are one little-endian word of 16 bits.
        block[2 + sub / 4] |= code >> 4 << (2 * (sub % 4));
        block[4 + sub / 2] |= (code & 15) << (4 * (sub % 2));
        uneven(&x[32 * sub..][..32], found.d * scale, &mut block[8 + 16 * sub..][..16]);
    }
}

/// The scale is a power of two: of the few that could serve, the best.
pub(super) fn mxfp4(x: &[f32; 32], w: &[f32; 32], block: &mut [u8; 17]) {
    let most = x.iter().fold(0.0, |most: f32, v| most.max(v.abs()));
    let nearest = |v: f32| {
        let code = |magnitude: f32| {
            // Halfway between two magnitudes the smaller is taken.
            let steps = MXFP4_LEVELS[..8].windows(2);
            steps.filter(|step| magnitude > f32::from(step[0] + step[1]) / 2.0).count() as u8
        };
        code(v.abs()) | u8::from(v < 0.0) << 3
    };
    let encode = |e: u8| {
        let d = super::mxfp4_scale(e);
        let codes = x.map(|v| nearest(v / d));
        let off = |i: usize| x[i] - d * f32::from(MXFP4_LEVELS[usize::from(codes[i])]);
        let error: f32 = (0..32).map(|i| w[i] * off(i) * off(i)).sum();
        (error, codes)
    };
    // The largest level is 12 of `2^(e - 128)`: this exponent holds the largest number with less than twice the room.
    let exponent = (most.to_bits() >> 23) as i32 + 1 - 3;
    let mut best = (f32::INFINITY, [0; 32], 0);
    for e in exponent - 1..=exponent + 1 {
        let e = e.clamp(0, 254) as u8;
        let (error, codes) = encode(e);
        if error < best.0 {
            best = (error, codes, e);
        }
    }
    block[0] = best.2;
    for (i, byte) in block[1..].iter_mut().enumerate() {
        *byte = best.1[i] | best.1[i + 16] << 4;
    }
}

pub(super) fn q4_0(x: &[f32; 32], w: &[f32; 32], block: &mut [u8; 18]) {
    let grid = Even { half: 8.0 };
    let d = halved(scale(x, w, grid));
    let codes = x.map(|v| (grid.nearest(v * inverse(d)) + 8.0) as u8);
    put(block, 0, d);
    super::encode::nibbles(&codes, &mut block[2..]);
}

pub(super) fn q5_0(x: &[f32; 32], w: &[f32; 32], block: &mut [u8; 22]) {
    let grid = Even { half: 16.0 };
    let d = halved(scale(x, w, grid));
    let codes = x.map(|v| (grid.nearest(v * inverse(d)) + 16.0) as u8);
    put(block, 0, d);
    super::encode::five_bits(&codes, &mut block[2..]);
}

pub(super) fn q4_1(x: &[f32; 32], w: &[f32; 32], block: &mut [u8; 20]) {
    let (d, m, codes) = with_min(x, w, 15.0);
    put(block, 0, d);
    put(block, 2, m);
    super::encode::nibbles(&codes, &mut block[4..]);
}

pub(super) fn q5_1(x: &[f32; 32], w: &[f32; 32], block: &mut [u8; 24]) {
    let (d, m, codes) = with_min(x, w, 31.0);
    put(block, 0, d);
    put(block, 2, m);
    super::encode::five_bits(&codes, &mut block[4..]);
}

fn with_min(x: &[f32; 32], w: &[f32; 32], top: f32) -> (f32, f32, [u8; 32]) {
    let (d, m) = scale_min(x, w, top, true);
    let (d, m) = (halved(d), halved(-m));
    (d, m, x.map(|v| round(between((v - m) * inverse(d), 0.0, top)) as u8))
}

/// Nibbles of the uneven levels: byte `i` holds elements `i` and `i + 16`.
fn uneven(x: &[f32], d: f32, out: &mut [u8]) {
    let code = |v: f32| Uneven::code(Uneven.nearest(v * inverse(d)));
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = code(x[i]) | code(x[i + 16]) << 4;
    }
}

/// The low two bits of each level: element `32 * k + i` of each 128 at bits `2 * k` of byte `i`.
fn crumbs(levels: &[u8; 256], out: &mut [u8]) {
    for (half, out) in levels.chunks_exact(128).zip(out.chunks_exact_mut(32)) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = (0..4).fold(0, |byte, k| byte | (half[32 * k + i] & 3) << (2 * k));
        }
    }
}

/// The lowest bit of each level: of element `32 * k + i` at bit `k` of byte `i`.
fn bits(levels: &[u8; 256], out: &mut [u8]) {
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = (0..8).fold(0, |byte, k| byte | (levels[32 * k + i] & 1) << k);
    }
}

/// The low four bits of each level: byte `i` of `N` holds elements `i` and `i + N` of `2 * N`.
fn nibbles<const N: usize>(levels: &[u8; 256], out: &mut [u8]) {
    for (levels, out) in levels.chunks_exact(2 * N).zip(out.chunks_exact_mut(N)) {
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = levels[i] & 15 | (levels[i + N] & 15) << 4;
        }
    }
}

/// Eight scales and mins of six bits, as `decode` reads them.
fn six_bits(found: &Affine<8>, out: &mut [u8]) {
    for sub in 0..4 {
        let [scale, min] = [found.scales[sub] as u8, found.mins[sub] as u8];
        let [scale_4, min_4] = [found.scales[sub + 4] as u8, found.mins[sub + 4] as u8];
        out[sub] = scale | scale_4 >> 4 << 6;
        out[sub + 4] = min | min_4 >> 4 << 6;
        out[sub + 8] = scale_4 & 15 | (min_4 & 15) << 4;
    }
}
