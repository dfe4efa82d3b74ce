//! The scales of a block that lose least: candidates are tried, and each is made the best one for the levels it leads
//! to by weighted least squares.

/// Below this a scale is nothing to a half, and its inverse may be too much for a float.
const TINY: f32 = 1e-30;

/// What the levels of a type stand for before they are scaled.
pub(super) trait Grid: Copy {
    /// What a block's value of largest magnitude is tried as.
    fn targets(self) -> impl Iterator<Item = f32>;
    /// The level nearest to `v`.
    fn nearest(self, v: f32) -> f32;
}

/// Whole numbers from `-half` to `half - 1`.
#[derive(Clone, Copy)]
pub(super) struct Even {
    pub(super) half: f32,
}

impl Grid for Even {
    fn targets(self) -> impl Iterator<Item = f32> {
        (-9..=9_i8).map(move |tenths| -self.half + 0.1 * f32::from(tenths))
    }

    fn nearest(self, v: f32) -> f32 {
        round(between(v, -self.half, self.half - 1.0))
    }
}

/// The levels of `IQ4_NL` and `IQ4_XS`.
#[derive(Clone, Copy)]
pub(super) struct Uneven;

/// Level 0, then for each next one how much it is above the last and where the way between them is half.
const UNEVEN: (f32, [(f32, f32); 15]) = {
    let levels = super::IQ4_LEVELS;
    let mut steps = [(0.0, 0.0); 15];
    let mut i = 0;
    while i < 15 {
        let (low, high) = (levels[i] as f32, levels[i + 1] as f32);
        steps[i] = (high - low, f32::midpoint(low, high));
        i += 1;
    }
    (levels[0] as f32, steps)
};

impl Grid for Uneven {
    fn targets(self) -> impl Iterator<Item = f32> {
        (-7..=7_i8).map(|more| UNEVEN.0 + f32::from(more))
    }

    fn nearest(self, v: f32) -> f32 {
        let (first, steps) = UNEVEN;
        steps.iter().fold(first, |level, (step, half)| if v > *half { level + step } else { level })
    }
}

impl Uneven {
    /// The stored level that stands for what [`Grid::nearest`] gave.
    pub(super) fn code(level: f32) -> u8 {
        super::IQ4_LEVELS.iter().filter(|other| f32::from(**other) < level).count() as u8
    }
}

/// Like `clamp`, which looks at its bounds each time.
pub(super) fn between(v: f32, low: f32, high: f32) -> f32 {
    let v = if v > low { v } else { low };
    if v < high { v } else { high }
}

/// To the nearest whole number, of those below 2²²: beyond 2²³ a float has no fraction.
pub(super) fn round(v: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0;
    (v + SHIFT) - SHIFT
}

/// `Σ f(i)` over `N` elements, in eight sums that are added at the end: those can be made at once.
pub(super) fn sums<const N: usize, const K: usize>(f: impl Fn(usize) -> [f32; K]) -> [f32; K] {
    let mut lanes = [[0.0; 8]; K];
    for start in (0..N).step_by(8) {
        for lane in 0..8 {
            let terms = f(start + lane);
            for (sum, term) in lanes.iter_mut().zip(terms) {
                sum[lane] += term;
            }
        }
    }
    lanes.map(|lanes| lanes.iter().sum())
}

/// `1 / d`, and 0 where that is too much.
pub(super) fn inverse(d: f32) -> f32 {
    if d.abs() < TINY { 0.0 } else { 1.0 / d }
}

/// The value of largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0, |most: f32, v| if v.abs() > most.abs() { *v } else { most })
}

/// `d` that makes `Σ w (x - d * level)²` small.
pub(super) fn scale<const N: usize>(x: &[f32; N], w: &[f32; N], grid: impl Grid) -> f32 {
    let extreme = extreme(x);
    if extreme.abs() < TINY {
        return 0.0;
    }
    let (mut best, mut d) = (0.0, 0.0);
    for target in grid.targets() {
        let inverse = target / extreme;
        let [xl, ll] = sums::<N, 2>(|i| {
            let level = grid.nearest(x[i] * inverse);
            [w[i] * x[i] * level, w[i] * level * level]
        });
        // With the best scale for these levels, so much of `Σ w x²` is gone.
        if ll > 0.0 && xl * xl > best * ll {
            (best, d) = (xl * xl / ll, xl / ll);
        }
    }
    d
}

/// `(d, m)` that make `Σ w (x - d * level + m)²` small, with levels from 0 to `top`. Unless `signed`, `m` is not below 0.
pub(super) fn scale_min<const N: usize>(x: &[f32; N], w: &[f32; N], top: f32, signed: bool) -> (f32, f32) {
    let limit = if signed { f32::MAX } else { 0.0 };
    let low = x.iter().fold(limit, |low, v| if *v < low { *v } else { low });
    let high = x.iter().fold(f32::MIN, |high, v| if *v > high { *v } else { high });
    if high - low < TINY {
        return (0.0, -low);
    }
    let [total, wx] = sums::<N, 2>(|i| [w[i], w[i] * (x[i] - low)]);
    let (mut best, mut fit) = (f32::MIN, ((high - low) / top, -low));
    for tenths in -10..=10_i8 {
        let inverse = (top + 0.1 * f32::from(tenths)) / (high - low);
        let [wl, ll, xl] = sums::<N, 3>(|i| {
            let level = round(between((x[i] - low) * inverse, 0.0, top));
            [w[i] * level, w[i] * level * level, w[i] * level * (x[i] - low)]
        });
        // Of `x - low = d * level + shift`, where `low + shift` must not be above 0.
        let determinant = total * ll - wl * wl;
        let (mut d, mut shift) = ((total * xl - wx * wl) / determinant, (ll * wx - wl * xl) / determinant);
        if determinant.abs() < TINY || !d.is_finite() || d <= 0.0 {
            continue;
        }
        if !signed && low + shift > 0.0 {
            shift = -low;
            d = (xl - shift * wl) / ll;
        }
        let gone = 2.0 * (d * xl + shift * wx) - d * d * ll - shift * shift * total - 2.0 * d * shift * wl;
        if gone > best {
            (best, fit) = (gone, (d, -(low + shift)));
        }
    }
    fit
}
