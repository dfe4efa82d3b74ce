//! Operations that keep a state of fixed size for each sequence: a short convolution, and linear attention.

use metallic_core::Recurrence;

use super::typed::count;
use super::{COMMON, Constants, Launch, Slot, Stage, Stages, StepTable, family, work};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::step::StepShape;
use crate::threadgroup;

kernel_params! {
    /// A convolution of `width` rows of `cols` elements.
    ConvParams { sequences: u32, cols: u32, width: u32 }
    /// A matrix `[key_dim, value_dim]` for each head of values and sequence.
    RecurrenceParams { heads: u32, key_heads: u32, key_dim: u32, value_dim: u32 }
}

family! {
    "recurrent" (ConvParams, RecurrenceParams) uses COMMON;
    "short_conv" { reads x: 4, w: 4, sequences: 16; updates state: 4; writes out: 4 }
    "recurrence" { reads q: 4, k: 4, v: 4, decay: 4, beta: 4, sequences: 16; updates state: 4; writes out: 4 }
}

/// `y[t] = Σ_j w[.., j] * x[t - (width - 1) + j]`: `(x: F32 [tokens, cols], w: F32 [cols, width]) -> F32 [tokens, cols]`.
/// Keeps the last `width - 1` rows of every sequence, the oldest first.
pub(crate) fn short_conv(
    shape: &StepShape,
    (cols, width): (u32, u32),
    limits: &Limits,
) -> Result<Stages, GpuError> {
    if width == 0 {
        return Err(GpuError::unsupported("short_conv", "a convolution over no rows"));
    }
    let sequences = count("short_conv", shape.sequences)?;
    let (across, threads) = threadgroup::linear(cols, limits);
    let params = ConvParams { sequences, cols, width }.params();
    let kernel = FAMILY.kernel("short_conv", Constants::of([0, 0, 0]));
    let launch = Launch {
        work: work([shape.tokens, cols as usize, width as usize]),
        ..kernel.launch(params, [across, sequences, 1], [threads, 1, 1])
    };
    let past = (width - 1) as usize;
    let state = if past == 0 { Slot::Unused } else { Slot::Recurrent };
    let slots = [Slot::Input(0), Slot::Input(1), Slot::Step(StepTable::Sequences), state, Slot::Output];
    let kept = shape.sequences.saturating_mul(past).saturating_mul(cols as usize * size_of::<f32>());
    Ok(Stage::new(launch, slots).touching(3, kept).into())
}

/// `S = decay * S`; `u = β * v`, or `β * (v - Sᵀ k)` by the delta rule; `S = S + k uᵀ`; `y = Sᵀ q`, of each head and token:
/// `(q, k: F32 [tokens, key_heads * key_dim], v: F32 [tokens, heads * value_dim], decay, β: F32 [tokens, heads]) ->
/// F32 [tokens, heads * value_dim]`.
pub(crate) fn recurrence(r: &Recurrence, shape: &StepShape, limits: &Limits) -> Result<Stages, GpuError> {
    let count = |n| count("recurrence", n);
    let (heads, key_dim, value_dim) = (count(r.heads)?, count(r.key_dim)?, count(r.value_dim)?);
    // Places in a matrix are counted too.
    count(r.key_dim.saturating_mul(r.value_dim.max(64)))?;
    let width = limits.simd_width;
    let bytes = |columns: u32| (4 * key_dim * (2 + columns)).next_multiple_of(16);
    let held = bytes(width) <= limits.threadgroup_memory;
    let constants = Constants::of([u32::from(r.delta), u32::from(held), u32::from(r.tiled)]);
    let passes = if r.delta { 3 } else { 2 };
    let params = RecurrenceParams { heads, key_heads: count(r.key_heads)?, key_dim, value_dim }.params();
    let groups = [value_dim.div_ceil(width), heads, count(shape.sequences)?];
    let launch = Launch {
        threadgroup_bytes: bytes(if held { width } else { 0 }),
        work: work([shape.tokens, r.heads, r.key_dim, r.value_dim, passes]),
        ..FAMILY.kernel("recurrence", constants).launch(params, groups, [width, 1, 1])
    };
    launch.check(limits)?;
    let [q, k, v, decay, beta] = [0, 1, 2, 3, 4].map(Slot::Input);
    let sequences = Slot::Step(StepTable::Sequences);
    let slots = [q, k, v, decay, beta, sequences, Slot::Recurrent, Slot::Output];
    let kept = shape.sequences.saturating_mul(r.elements()).saturating_mul(size_of::<f32>());
    Ok(Stage::new(launch, slots).touching(6, kept).into())
}

#[cfg(test)]
mod tests {
    use metallic_core::StateId;

    use super::super::Moved;
    use super::super::harness::{Data, as_f32s, f32s, run, u32s};
    use super::super::quant::tests::Numbers;
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    /// A sequence of a step.
    #[derive(Clone, Copy, Debug)]
    struct Sequence {
        tokens: usize,
        slot: usize,
        fresh: bool,
    }

    const fn sequence(tokens: usize, slot: usize, fresh: bool) -> Sequence {
        Sequence { tokens, slot, fresh }
    }

    /// Steps: a token each, as prefill brings them, shorter than what a convolution keeps, in slots of no order.
    const STEPS: [&[Sequence]; 4] = [
        &[sequence(1, 0, true)],
        &[sequence(1, 2, false), sequence(2, 0, true), sequence(1, 3, true)],
        &[sequence(9, 1, false), sequence(3, 3, false)],
        &[sequence(2, 3, false), sequence(40, 0, true)],
    ];
    const SLOTS: usize = 4;

    fn shape(step: &[Sequence]) -> StepShape {
        let tokens = step.iter().map(|s| s.tokens).sum();
        StepShape { tokens, sequences: step.len(), ..StepShape::default() }
    }

    fn table(step: &[Sequence]) -> Data {
        let mut first = 0;
        let mut words = Vec::new();
        for s in step {
            words.extend([first, s.tokens, s.slot, usize::from(s.fresh)].map(|n| n as u32));
            first += s.tokens;
        }
        u32s(&words)
    }

    /// What slots hold: numbers, and NaN where a fresh sequence is to begin, which must not be read.
    fn slots(step: &[Sequence], elements: usize) -> Vec<f32> {
        let mut numbers = Numbers(3).units(SLOTS * elements);
        for s in step.iter().filter(|s| s.fresh) {
            numbers[s.slot * elements..][..elements].fill(f32::NAN);
        }
        numbers
    }

    fn near(found: &[f32], expected: &[f64], what: &str) {
        assert_eq!(found.len(), expected.len());
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let off = (f64::from(*found) - expected).abs();
            assert!(off <= 1e-5 * (1.0 + expected.abs()), "{what}, {i}: {found}, not {expected}");
        }
    }

    fn convolves(step: &[Sequence], cols: usize, width: usize) {
        let (shape, past) = (shape(step), width - 1);
        let (x, w) = (Numbers(1).units(shape.tokens * cols), Numbers(2).units(cols * width));
        let state = slots(step, past * cols);
        let stages = short_conv(&shape, (cols as u32, width as u32), &LIMITS).unwrap();
        let kept = if past == 0 { Data::Unused } else { f32s(&state) };
        let args = [f32s(&x), f32s(&w), table(step), kept, Data::Room(x.len() * 4)];
        let Some(found) = run(&stages.stages[0].launch, &args) else { return };
        let (mut out, mut after, mut first) = (Vec::new(), state.clone(), 0);
        for s in step {
            let kept = &mut after[s.slot * past * cols..][..past * cols];
            if s.fresh {
                kept.fill(0.0);
            }
            let rows = [&*kept, &x[first * cols..][..s.tokens * cols]].concat();
            for (t, col) in (0..s.tokens * cols).map(|i| (i / cols, i % cols)) {
                let term = |j: usize| f64::from(w[col * width + j]) * f64::from(rows[(t + j) * cols + col]);
                out.push((0..width).map(term).sum::<f64>());
            }
            kept.copy_from_slice(&rows[s.tokens * cols..]);
            first += s.tokens;
        }
        let what = format!("{cols} columns, width {width}, {step:?}");
        near(&as_f32s(&found[4]), &out, &what);
        if past > 0 {
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&as_f32s(&found[3])), bits(&after), "{what}: what is kept");
        }
    }

    #[test]
    fn a_convolution_goes_on_where_the_sequence_stopped() {
        for step in STEPS {
            for (cols, width) in [(1, 4), (33, 4), (257, 3), (5, 1), (7, 9)] {
                convolves(step, cols, width);
            }
        }
        assert!(short_conv(&shape(STEPS[0]), (4, 0), &LIMITS).is_err());
    }

    fn recurs(step: &[Sequence], r: &Recurrence, limits: &Limits) {
        let Recurrence { heads, key_dim: dk, value_dim: dv, .. } = *r;
        let shape = shape(step);
        let numbers = |cols: usize, seed: u64| Numbers(seed).units(shape.tokens * cols);
        let scaled = |x: Vec<f32>, by: f32| x.iter().map(|x| x * by).collect::<Vec<_>>();
        // Keys of length 1 at most, as models have them: by the delta rule longer ones grow without bound.
        let (q, k, v) = (
            numbers(r.key_heads * dk, 1),
            scaled(numbers(r.key_heads * dk, 2), (dk as f32).powf(-0.5)),
            numbers(heads * dv, 3),
        );
        let unit = |x: Vec<f32>| x.iter().map(|x| x.abs()).collect::<Vec<_>>();
        let (decay, beta) = (unit(numbers(heads, 4)), unit(numbers(heads, 5)));
        let state = slots(step, r.elements());
        let stages = recurrence(r, &shape, limits).unwrap();
        let inputs = [&q, &k, &v, &decay, &beta].map(|x| f32s(x));
        let rest = [table(step), f32s(&state), Data::Room(v.len() * 4)];
        let args: Vec<Data> = inputs.into_iter().chain(rest).collect();
        let Some(found) = run(&stages.stages[0].launch, &args) else { return };
        let mut after: Vec<f64> = state.iter().map(|x| f64::from(*x)).collect();
        let (mut out, mut first) = (Vec::new(), 0);
        for s in step {
            let kept = &mut after[s.slot * r.elements()..][..r.elements()];
            if s.fresh {
                kept.fill(0.0);
            }
            for (token, head) in (0..s.tokens * heads).map(|i| (first + i / heads, i % heads)) {
                let matrix = &mut kept[head * dk * dv..][..dk * dv];
                let at = token * heads + head;
                let key = r.key_head(at);
                for col in 0..dv {
                    let mut column: Vec<f64> =
                        (0..dk).map(|i| matrix[i * dv + col] * f64::from(decay[at])).collect();
                    let dot = |x: &[f32], column: &[f64]| {
                        x[key * dk..][..dk].iter().zip(column).map(|(x, s)| f64::from(*x) * s).sum::<f64>()
                    };
                    let has = if r.delta { dot(&k, &column) } else { 0.0 };
                    let u = f64::from(beta[at]) * (f64::from(v[at * dv + col]) - has);
                    column.iter_mut().zip(&k[key * dk..]).for_each(|(s, k)| *s += f64::from(*k) * u);
                    out.push(dot(&q, &column));
                    (0..dk).for_each(|i| matrix[i * dv + col] = column[i]);
                }
            }
            first += s.tokens;
        }
        let what = format!("{r:?}, {step:?}");
        near(&as_f32s(&found[7]), &out, &what);
        let kept = as_f32s(&found[6]);
        let used = |i: &usize| !after[*i].is_nan() || !kept[*i].is_nan();
        let (found, expected): (Vec<f32>, Vec<f64>) =
            (0..kept.len()).filter(used).map(|i| (kept[i], after[i])).unzip();
        near(&found, &expected, &what);
    }

    #[test]
    fn matrices_fade_take_and_give_in_the_order_of_tokens() {
        let small = Limits { threadgroup_memory: 1024, ..LIMITS };
        for delta in [false, true] {
            for (heads, key_dim, value_dim) in [(1, 1, 1), (3, 5, 33), (2, 16, 7), (2, 32, 64)] {
                let r = Recurrence {
                    state: StateId(0),
                    heads,
                    key_heads: heads,
                    tiled: false,
                    key_dim,
                    value_dim,
                    delta,
                };
                for step in STEPS {
                    recurs(step, &r, &LIMITS);
                    recurs(step, &Recurrence { heads: 3 * heads, ..r }, &LIMITS);
                    recurs(step, &Recurrence { heads: 3 * heads, tiled: true, ..r }, &LIMITS);
                    // Matrices stay where they are kept.
                    recurs(step, &r, &small);
                }
            }
            let r = Recurrence {
                state: StateId(0),
                heads: 1,
                key_heads: 1,
                tiled: false,
                key_dim: 257,
                value_dim: 40,
                delta,
            };
            recurs(&[sequence(3, 1, false)], &r, &LIMITS);
        }
    }

    #[test]
    fn states_are_counted_for_the_sequences_of_the_step_alone() {
        let shape = shape(STEPS[2]);
        let conv = short_conv(&shape, (10, 4), &LIMITS).unwrap();
        assert_eq!(conv.stages[0].slots()[3].moved, Moved::Bytes(2 * 3 * 10 * 4));
        let r = Recurrence {
            state: StateId(0),
            heads: 2,
            key_heads: 2,
            tiled: false,
            key_dim: 8,
            value_dim: 5,
            delta: true,
        };
        let stages = recurrence(&r, &shape, &LIMITS).unwrap();
        assert_eq!(stages.stages[0].slots()[6].moved, Moved::Bytes(2 * 80 * 4));
        assert_eq!(stages.stages[0].launch.work, 12 * 80 * 3);
        let huge = Recurrence { key_dim: 1 << 20, ..r };
        let error = recurrence(&huge, &shape, &LIMITS).unwrap_err().to_string();
        assert!(error.contains("threadgroup memory"), "{error}");
    }
}
