//! The inner loops: one tile of 16 rows against up to eight tokens.

use metallic_core::DType;

use super::activations::{Activations, GROUP, Grain, QGroup};
use super::format::{BF16, Element, F16, F32, Fine, Format, with_format};
use super::isa::{Isa, compile};
#[cfg(target_arch = "x86_64")]
use super::lanes::{Avx2, Avx512};
use super::lanes::{Lanes, Portable};
use super::pack::{PackedMatrix, TILE};

/// The most tokens any instruction set computes together.
pub(super) const MAX_BLOCK: usize = 8;

/// How far ahead of a tile's first products weights are asked for: past the page the processor itself
/// looks ahead in.
const AHEAD: usize = 4096;

/// Products of a tile: `[tokens, 16]`.
pub(super) type Block = [[f32; TILE]; MAX_BLOCK];

/// A tile of quantised weights.
struct IntTile<'a> {
    values: &'a [u8],
    scales: &'a [u8],
    groups: usize,
    /// What lies behind is asked for.
    ahead: bool,
}

/// A tile of numbers, `[k][16]`.
struct FloatTile<'a> {
    values: &'a [u8],
    ahead: bool,
}

/// What a kernel computes at a time: a tile's products with some tokens.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) tile: usize,
    /// The first token,
    pub(super) token: usize,
    /// and how many [`Kernel::fitting`] said.
    pub(super) count: usize,
    /// Whether the weights that follow are to be asked for meanwhile.
    pub(super) ahead: bool,
}

type IntFn = unsafe fn(&IntTile<'_>, &[QGroup], usize, &mut Block);
type FloatFn = unsafe fn(&FloatTile<'_>, &[f32], usize, &mut Block);

#[derive(Clone, Copy)]
enum Body {
    /// Tile, rows of groups, tokens, products.
    Int(IntFn),
    /// Tile `[k][16]`, rows of values, tokens, products.
    Float(FloatFn),
}

/// What was compiled for an instruction set, and how many tokens it takes together.
macro_rules! chosen {
    ($isa:expr, $kind:ident, $block:ident) => {
        match $isa.usable() {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => (Body::$kind(avx512), Avx512::$block),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => (Body::$kind(avx2), Avx2::$block),
            _ => (Body::$kind(portable), Portable::$block),
        }
    };
}

macro_rules! float {
    ($isa:expr, $element:ty) => {{
        compile!(float_body::<$element>(w: &FloatTile<'_>, x: &[f32], count: usize, y: &mut Block));
        chosen!($isa, Float, FLOAT_BLOCK)
    }};
}

macro_rules! int {
    ($isa:expr, $format:ty) => {{
        compile!(int_body::<$format>(w: &IntTile<'_>, x: &[QGroup], count: usize, y: &mut Block));
        chosen!($isa, Int, INT_BLOCK)
    }};
}

/// A kernel chosen for an instruction set and a matrix.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    dtype: DType,
    grain: Grain,
    body: Body,
    block: usize,
}

impl Kernel {
    /// The kernel for the type of a matrix and for the activations it takes.
    pub(super) fn of(isa: Isa, w: &PackedMatrix) -> Kernel {
        let (dtype, grain) = (w.dtype(), w.takes());
        let (body, block) = with_format!(dtype, |Q| {
            if grain == Grain::Half && Q::HALVES == 1 { int!(isa, Fine<Q>) } else { int!(isa, Q) }
        }, else match dtype {
            DType::F16 => float!(isa, F16),
            DType::BF16 => float!(isa, BF16),
            // Packing refuses integers.
            _ => float!(isa, F32),
        });
        Kernel { dtype, grain, body, block }
    }

    /// How many of `left` tokens (at least 1) one call takes.
    pub(super) fn fitting(&self, left: usize) -> usize {
        if left >= self.block {
            self.block
        } else if matches!(self.body, Body::Float(_)) {
            1
        } else {
            // One less than a power of two goes as that many, the last of them twice: faster than in parts.
            let whole = (left + 1).next_power_of_two();
            if whole == left + 1 && whole >= 4 && whole <= self.block { left } else { 1 << left.ilog2() }
        }
    }

    /// Products of a tile of `w` with some tokens, to the first rows of `y`.
    pub(super) fn run(&self, w: &PackedMatrix, at: Place, x: &Activations<'_>, y: &mut Block) {
        let Place { tile, token, count, ahead } = at;
        assert!(w.dtype() == self.dtype && w.takes() == self.grain && w.cols() == x.cols());
        assert!((1..=self.block).contains(&count) && token + count <= x.rows());
        let values = w.values.tile(tile);
        match (self.body, x) {
            (Body::Int(body), Activations::Q8 { groups: x, cols, .. }) => {
                let groups = cols / GROUP;
                let x = &x[token * groups..(token + count) * groups];
                let tile = IntTile { values, scales: w.scales.tile(tile), groups, ahead };
                // SAFETY: the processor has the instructions (`of`); the tile has `groups` groups of this
                // type, and `x` has `count` rows of them.
                unsafe { body(&tile, x, count, y) }
            }
            (Body::Float(body), Activations::F32 { values: x, cols }) => {
                let x = &x[token * cols..(token + count) * cols];
                // SAFETY: as above, with `cols` columns.
                unsafe { body(&FloatTile { values, ahead }, x, count, y) }
            }
            // INVARIANT: `Matmul::check` compared the kinds of weights and activations before any tile is computed.
            _ => panic!("activations of the wrong kind for {w:?}"),
        }
    }
}

/// # Safety
/// The caller has the features of `L`; the tile is of format `Q`; `x` is `[count, groups]`.
#[inline(always)]
unsafe fn int_body<L: Lanes, Q: Format>(w: &IntTile<'_>, x: &[QGroup], count: usize, y: &mut Block) {
    // SAFETY: all by the caller.
    unsafe {
        match (count, w.ahead) {
            (7 | 8, true) if L::INT_BLOCK >= 8 => int_block::<L, Q, 8, true>(w, x, y),
            (7 | 8, false) if L::INT_BLOCK >= 8 => int_block::<L, Q, 8, false>(w, x, y),
            (3 | 4, true) if L::INT_BLOCK >= 4 => int_block::<L, Q, 4, true>(w, x, y),
            (3 | 4, false) if L::INT_BLOCK >= 4 => int_block::<L, Q, 4, false>(w, x, y),
            (2, _) if L::INT_BLOCK >= 2 => int_block::<L, Q, 2, true>(w, x, y),
            _ => int_block::<L, Q, 1, true>(w, x, y),
        }
    }
}

/// # Safety
/// As [`int_body`], with `T` tokens, of which the last may be one twice; `ASKS` for the weights that follow.
#[inline(always)]
unsafe fn int_block<L: Lanes, Q: Format, const T: usize, const ASKS: bool>(
    w: &IntTile<'_>,
    x: &[QGroup],
    y: &mut Block,
) {
    debug_assert!(
        w.values.len() >= w.groups * Q::GROUP_BYTES
            && (x.len() == T * w.groups || x.len() + w.groups == T * w.groups)
    );
    debug_assert!(w.scales.len() >= w.groups / Q::SPAN * Q::SCALE_BYTES);
    // SAFETY: groups, blocks of scales and records are visited in order, each within its length (above).
    unsafe {
        let mut values = w.values.as_ptr();
        let mut scales = w.scales.as_ptr();
        let mut rows = [x.as_ptr(); T];
        for t in 0..T {
            rows[t] = rows[t].add((t * w.groups).min(x.len() - w.groups));
        }
        let mut total = [L::splat(0.0); T];
        for _ in 0..w.groups / Q::SPAN {
            let d = if Q::BRAIN { L::load_bf16(scales) } else { L::load_f16(scales) };
            let dmin = if Q::MIN { L::load_f16(scales.add(32)) } else { d };
            for g in 0..Q::SPAN {
                if ASKS {
                    for line in 0..Q::BITS {
                        L::prefetch(values.wrapping_add(AHEAD + 64 * line));
                    }
                }
                let dots = L::dot::<Q, T>(values, &rows);
                if Q::FINE {
                    let scale =
                        if Q::SUPER { L::mul(d, L::load_i8(scales.add(Q::SUBS_AT + 16 * g))) } else { d };
                    for t in 0..T {
                        let [first, second] = (*rows[t]).scales;
                        let half = L::mul(L::to_float(dots[t][0]), L::splat(first));
                        let both = L::fma(L::to_float(dots[t][1]), L::splat(second), half);
                        total[t] = L::fma(both, scale, total[t]);
                    }
                    if L::leaves_offset::<Q>() {
                        let offset = L::mul(scale, L::splat(f32::from(-Q::OFFSET)));
                        for t in 0..T {
                            total[t] = L::fma(offset, L::splat((*rows[t]).scaled_sum), total[t]);
                        }
                    }
                }
                for h in 0..Q::HALVES {
                    let sub = 16 * (g * Q::HALVES + h);
                    let scale =
                        if Q::SUPER { L::mul(d, L::load_i8(scales.add(Q::SUBS_AT + sub))) } else { d };
                    if !Q::FINE {
                        for t in 0..T {
                            let product = L::mul(L::to_float(dots[t][h]), scale);
                            total[t] = L::fma(product, L::splat((*rows[t]).scales[h]), total[t]);
                        }
                    }
                    if Q::MIN {
                        let min = if Q::SUPER {
                            L::mul(dmin, L::load_i8(scales.add(Q::MINS_AT + sub)))
                        } else {
                            dmin
                        };
                        for t in 0..T {
                            let sum = if Q::HALVES == 1 {
                                (*rows[t]).scaled_sum
                            } else {
                                (*rows[t]).scales[h] * f32::from((*rows[t]).sums[h])
                            };
                            total[t] = L::fma(min, L::splat(sum), total[t]);
                        }
                    }
                }
                values = values.add(Q::GROUP_BYTES);
                for t in 0..T {
                    rows[t] = rows[t].add(1);
                }
            }
            scales = scales.add(Q::SCALE_BYTES);
        }
        for t in 0..T {
            L::store(total[t], y[t].as_mut_ptr());
        }
    }
}

/// # Safety
/// The caller has the features of `L`; `x` is `[count, k]`, the tile `[k][16]`.
#[inline(always)]
unsafe fn float_body<L: Lanes, D: Element>(w: &FloatTile<'_>, x: &[f32], count: usize, y: &mut Block) {
    // SAFETY: all by the caller.
    unsafe {
        match count {
            4 if L::FLOAT_BLOCK == 4 => float_block::<L, D, 4>(w, x, y),
            3 if L::FLOAT_BLOCK == 3 => float_block::<L, D, 3>(w, x, y),
            _ => float_block::<L, D, 1>(w, x, y),
        }
    }
}

/// Sums over k in two or four interleaved chains, then `(0 + 1) + (2 + 3)`.
///
/// # Safety
/// As [`float_body`], with `T` tokens.
#[inline(always)]
unsafe fn float_block<L: Lanes, D: Element, const T: usize>(w: &FloatTile<'_>, x: &[f32], y: &mut Block) {
    let cols = x.len() / T;
    debug_assert!(w.values.len() >= cols * TILE * D::SIZE);
    // SAFETY: every k is less than `cols`, for which tile and rows have room (caller).
    unsafe {
        let (ahead, w, x) = (w.ahead, w.values.as_ptr(), x.as_ptr());
        let mut total = [[L::splat(0.0); 4]; T];
        let whole = cols / L::CHAINS * L::CHAINS;
        let mut k = 0;
        while k < whole {
            if T == 1 || ahead {
                for line in 0..L::CHAINS * TILE * D::SIZE / 64 {
                    L::prefetch(w.wrapping_add(AHEAD + k * TILE * D::SIZE + 64 * line));
                }
            }
            for c in 0..L::CHAINS {
                let v = D::load::<L>(w.add((k + c) * TILE * D::SIZE));
                for t in 0..T {
                    total[t][c] = L::fma(v, L::splat(*x.add(t * cols + k + c)), total[t][c]);
                }
            }
            k += L::CHAINS;
        }
        // The rest is added to the first chain, in order.
        while k < cols {
            let v = D::load::<L>(w.add(k * TILE * D::SIZE));
            for t in 0..T {
                total[t][0] = L::fma(v, L::splat(*x.add(t * cols + k)), total[t][0]);
            }
            k += 1;
        }
        for t in 0..T {
            let [a, b, c, d] = total[t];
            let sum = if L::CHAINS == 2 { L::add(a, b) } else { L::add(L::add(a, b), L::add(c, d)) };
            L::store(sum, y[t].as_mut_ptr());
        }
    }
}
