//! Vector helpers: sums, scaled adds, norms, and functions made of an exponential.

use super::isa::{Isa, dispatch};
use super::lanes::Lanes;
use super::matmul::Gate;

/// Calls `$f(from)` for whole vectors of 16 of `$len`, then `$rest(from)` if elements remain.
macro_rules! by_16 {
    ($len:expr, |$i:ident| $whole:expr, |$j:ident| $rest:expr) => {{
        let whole = $len / 16 * 16;
        let mut $i = 0;
        while $i < whole {
            $whole;
            $i += 16;
        }
        if whole < $len {
            let $j = whole;
            $rest;
        }
    }};
}

/// `Σ a[i] * b[i]`.
pub fn dot_f32(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "vectors of a dot product");
    dispatch!(isa, fn<L>(a: &[f32], b: &[f32]) -> f32 {
        // SAFETY: features by the caller; 64 and 16 elements are within both slices, of equal lengths, where they are read.
        unsafe {
            let mut sums = [L::splat(0.0); 4];
            let blocks = a.len() / 64 * 64;
            let mut i = 0;
            while i < blocks {
                for c in 0..4 {
                    let (a, b) = (a.as_ptr().add(i + 16 * c), b.as_ptr().add(i + 16 * c));
                    sums[c] = L::fma(L::load(a), L::load(b), sums[c]);
                }
                i += 64;
            }
            let (a, b) = (&a[blocks..], &b[blocks..]);
            by_16!(
                a.len(),
                |i| sums[0] = L::fma(L::load(a.as_ptr().add(i)), L::load(b.as_ptr().add(i)), sums[0]),
                |i| {
                    let (a, b) = (padded(&a[i..]), padded(&b[i..]));
                    sums[1] = L::fma(L::load(a.as_ptr()), L::load(b.as_ptr()), sums[1]);
                }
            );
            L::sum(L::add(L::add(sums[0], sums[1]), L::add(sums[2], sums[3])))
        }
    })
}

/// `y[i] += a * x[i]`.
pub fn axpy(isa: Isa, a: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "vectors of a scaled add");
    dispatch!(isa, fn<L>(a: f32, x: &[f32], y: &mut [f32]) {
        // SAFETY: features by the caller; 16 elements are within both slices, of equal lengths, where they are used.
        unsafe {
            let a = L::splat(a);
            by_16!(
                x.len(),
                |i| {
                    let out = y.as_mut_ptr().add(i);
                    L::store(L::fma(a, L::load(x.as_ptr().add(i)), L::load(out)), out);
                },
                |i| {
                    let (x, mut out) = (padded(&x[i..]), padded(&y[i..]));
                    L::store(L::fma(a, L::load(x.as_ptr()), L::load(out.as_ptr())), out.as_mut_ptr());
                    let rest = y.len() - i;
                    y[i..].copy_from_slice(&out[..rest]);
                }
            );
        }
    });
}

/// `y[i] += x[i]`.
pub fn add(isa: Isa, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "vectors of an add");
    dispatch!(isa, fn<L>(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            *y += x;
        }
    });
}

/// `x[i] *= a`.
pub fn scale(isa: Isa, a: f32, x: &mut [f32]) {
    dispatch!(isa, fn<L>(a: f32, x: &mut [f32]) {
        for x in x {
            *x *= a;
        }
    });
}

/// `Σ x[i]²`, in f64 across lanes so that long rows of large values neither overflow nor drift.
pub fn sum_of_squares(isa: Isa, x: &[f32]) -> f64 {
    dispatch!(isa, fn<L>(x: &[f32]) -> f64 {
        let mut sums = [0.0f64; 16];
        let (whole, rest) = x.as_chunks::<16>();
        for x in whole {
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum += f64::from(*x) * f64::from(*x);
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *sum += f64::from(*x) * f64::from(*x);
        }
        sums.iter().sum()
    })
}

/// `out = x / sqrt(mean(x²) + eps) * w`.
pub fn rms_norm(isa: Isa, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    assert!(x.len() == w.len() && x.len() == out.len(), "vectors of a norm");
    let mean = sum_of_squares(isa, x) / x.len().max(1) as f64;
    let factor = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
    dispatch!(isa, fn<L>(x: &[f32], w: &[f32], factor: f32, out: &mut [f32]) {
        for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
            *out = x * factor * w;
        }
    });
}

/// Asks the memory for these bytes.
pub fn ask(isa: Isa, bytes: &[u8]) {
    dispatch!(isa, fn<L>(bytes: &[u8]) {
        for line in bytes.chunks(64) {
            // SAFETY: features by the caller.
            unsafe { L::prefetch(line.as_ptr()) };
        }
    });
}

/// Turns pairs, those of `x` and `y` at one place, by the angle whose cosine and sine stand there.
pub fn rotate(
    isa: Isa,
    turns: &[(f32, f32)],
    (x, y): (&[f32], &[f32]),
    (x_out, y_out): (&mut [f32], &mut [f32]),
) {
    assert!([x.len(), y.len(), x_out.len(), y_out.len()] == [turns.len(); 4], "vectors of a rotation");
    dispatch!(isa, fn<L>(turns: &[(f32, f32)], x: &[f32], y: &[f32], x_out: &mut [f32], y_out: &mut [f32]) {
        let pairs = x.iter().zip(y).zip(turns);
        for ((x_out, y_out), ((x, y), (cos, sin))) in x_out.iter_mut().zip(y_out).zip(pairs) {
            (*x_out, *y_out) = (*x * cos - *y * sin, *x * sin + *y * cos);
        }
    });
}

/// `x[i] = exp(x[i])`.
pub fn exp_in_place(isa: Isa, x: &mut [f32]) {
    dispatch!(isa, fn<L>(x: &mut [f32]) {
        for x in x {
            *x = exp::<L>(*x);
        }
    });
}

/// `x[i] = x[i] / (1 + exp(-x[i]))`.
pub fn silu_in_place(isa: Isa, x: &mut [f32]) {
    dispatch!(isa, fn<L>(x: &mut [f32]) {
        for x in x {
            *x = silu::<L>(*x);
        }
    });
}

/// `y[i] = act(gate[i]) * y[i]`.
pub fn gated(isa: Isa, act: Gate, gate: &[f32], y: &mut [f32]) {
    assert_eq!(gate.len(), y.len(), "vectors of a gate");
    dispatch!(isa, fn<L>(act: Gate, gate: &[f32], y: &mut [f32]) {
        match act {
            Gate::Silu => {
                for (y, gate) in y.iter_mut().zip(gate) {
                    *y *= silu::<L>(*gate);
                }
            }
            Gate::GeluTanh => {
                for (y, gate) in y.iter_mut().zip(gate) {
                    *y *= gelu::<L>(*gate);
                }
            }
        }
    });
}

/// `x = exp(x - max) / Σ exp(x - max)`. A row without a finite or greater maximum (all `-inf`, or empty) becomes zeros.
pub fn softmax(isa: Isa, x: &mut [f32]) {
    dispatch!(isa, fn<L>(x: &mut [f32]) {
        let mut tops = [f32::NEG_INFINITY; 16];
        let (whole, rest) = x.as_chunks::<16>();
        for x in whole {
            for (top, x) in tops.iter_mut().zip(x) {
                *top = if *x > *top { *x } else { *top };
            }
        }
        for (top, x) in tops.iter_mut().zip(rest) {
            *top = if *x > *top { *x } else { *top };
        }
        let top = tops.into_iter().fold(f32::NEG_INFINITY, f32::max);
        if top == f32::NEG_INFINITY {
            // Nothing to attend to, unless a NaN hid from the comparisons.
            for x in x {
                *x = if x.is_nan() { *x } else { 0.0 };
            }
            return;
        }
        let mut sums = [0.0f32; 16];
        let (whole, rest) = x.as_chunks_mut::<16>();
        for x in whole {
            for (sum, x) in sums.iter_mut().zip(x) {
                *x = exp::<L>(*x - top);
                *sum += *x;
            }
        }
        for (sum, x) in sums.iter_mut().zip(rest) {
            *x = exp::<L>(*x - top);
            *sum += *x;
        }
        let sum: f32 = sums.iter().sum();
        let factor = 1.0 / sum;
        for x in x {
            *x *= factor;
        }
    });
}

/// 1.5 × 2²³: adding it rounds a small float to the nearest integer (ties to even) in its low bits.
pub(super) const ROUND: f32 = 12_582_912.0;

/// `exp(x)` within 2 units in the last place; 0 below the normal numbers, infinity above, NaN for NaN.
#[inline(always)]
pub(super) fn exp<L: Lanes>(x: f32) -> f32 {
    let fma = |a: f32, b: f32, c: f32| if L::FMA { a.mul_add(b, c) } else { a * b + c };
    // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts, the first with zeros at its end.
    let shifted = fma(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fma(n, -0.693_145_75, x);
    let r = fma(n, -1.428_606_8e-6, r);
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = fma(p, r, c);
    }
    // The low bits of `shifted` are n; two factors, since 2¹²⁸ alone is no number.
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let half = n >> 1;
    let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
    let y = p * power(half) * power(n.wrapping_sub(half));
    let y = if x > 88.722_83 { f32::INFINITY } else { y };
    // Written so that NaN takes the last branch and stays.
    let y = if x < -87.336_54 { 0.0 } else { y };
    if x.is_nan() { x } else { y }
}

#[inline(always)]
fn sigmoid<L: Lanes>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<L>(-x))
}

#[inline(always)]
fn silu<L: Lanes>(x: f32) -> f32 {
    x * sigmoid::<L>(x)
}

/// `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`, with `1 + tanh u = 2 sigmoid(2u)`.
#[inline(always)]
fn gelu<L: Lanes>(x: f32) -> f32 {
    let u = x * (1.595_769 + 0.071_354_816 * x * x);
    x * sigmoid::<L>(u)
}

/// The last fewer than 16 elements, padded with zeros.
#[inline(always)]
fn padded(x: &[f32]) -> [f32; 16] {
    let mut out = [0.0; 16];
    out[..x.len()].copy_from_slice(x);
    out
}
