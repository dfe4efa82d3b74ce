//! Cases that choose: argmax, top-k and sampling, which must agree to the bit.

use metallic_core::tensor::{Sample, TensorOp};

use super::table::{FLOATS, Maker};
use super::{Layout, TensorCase, Tolerance};

/// Best elements, and the best few.
pub(super) fn choices() -> Vec<TensorCase> {
    let mut cases = Vec::new();
    for dtype in FLOATS {
        for (shape, layout) in [
            (&[1][..], Layout::Plain),
            (&[5, 31], Layout::Turned),
            (&[2, 3, 33], Layout::Sliced),
            (&[3, 257], Layout::Offset),
            (&[2, 1025], Layout::Stepped),
            (&[1, 32003], Layout::Plain),
        ] {
            let made =
                || Maker::new(format!("argmax {dtype} {shape:?} {layout:?}")).x(dtype, shape, layout, 5.0);
            cases.push(made().case(TensorOp::Argmax, Layout::Offset, Tolerance::EXACT));
            let n = shape[shape.len() - 1];
            for k in [1, 5, 33, 40].into_iter().filter(|k| *k <= n) {
                let mut case = made().case(TensorOp::TopK { k }, layout, Tolerance::EXACT);
                case.name = format!("top {k} {dtype} {shape:?} {layout:?}");
                cases.push(case);
            }
        }
        // Equal numbers, no numbers, infinities; and a row of nothing but -inf.
        let odd = |i: usize| match (i / 40, i % 40) {
            (1, _) => f32::NEG_INFINITY,
            (2, 7) => f32::INFINITY,
            (_, j) if j % 5 == 0 => f32::NAN,
            (_, j) => (j % 4) as f32,
        };
        for (name, op) in [
            ("argmax", TensorOp::Argmax),
            ("top 9", TensorOp::TopK { k: 9 }),
            ("top 40", TensorOp::TopK { k: 40 }),
        ] {
            let made = Maker::new(format!("{name} {dtype} of equals and no numbers"));
            let made = made.by(dtype, &[4, 40], Layout::Plain, odd);
            cases.push(made.case(op, Layout::Plain, Tolerance::EXACT));
        }
    }
    cases
}

/// Draws of tokens.
pub(super) fn samples() -> Vec<TensorCase> {
    let mut cases = Vec::new();
    let plain = Sample::default();
    let penalties = Sample { repetition: 1.3, presence: 0.4, frequency: 0.2, ..plain };
    for dtype in FLOATS {
        for (index, (rows, n, sample)) in [
            (1, 1, plain),
            (5, 31, Sample { seed: 7, ..plain }),
            (3, 257, Sample { temperature: 0.7, seed: u64::MAX, draw: 9, ..plain }),
            (40, 33, Sample { temperature: 1.5, top_k: 10, seed: 1 << 33, ..plain }),
            (2, 1025, Sample { top_k: 1, seed: 3, ..plain }),
            (2, 32003, Sample { temperature: 0.9, top_k: 40, seed: 99, draw: u32::MAX, ..plain }),
            (3, 1025, Sample { temperature: 0.0, ..penalties }),
            (33, 257, Sample { temperature: 0.8, seed: 12, ..penalties }),
            (4, 1025, Sample { temperature: 1e-6, top_k: 50, seed: 5, ..penalties }),
            (2, 31, Sample { top_k: 500, seed: 6, repetition: 0.8, ..penalties }),
        ]
        .into_iter()
        .enumerate()
        {
            let layout = Layout::OUTPUTS[index % Layout::OUTPUTS.len()];
            let mut made = Maker::new(format!("sample {dtype} [{rows}, {n}] {layout:?} {sample:?}"));
            made = made.x(dtype, &[rows, n], layout, 6.0);
            if sample.has_penalties() {
                made = made.ids(&[rows, n], Layout::Turned, |i| {
                    if i.is_multiple_of(3) { (i % 7) as u32 } else { 0 }
                });
            }
            cases.push(made.case(TensorOp::Sample(sample), Layout::Stepped, Tolerance::EXACT));
        }
        let odd = |i: usize| {
            if i.is_multiple_of(3) {
                f32::NAN
            } else {
                [f32::NEG_INFINITY, 1.0, f32::INFINITY][i % 2 + i / 30]
            }
        };
        let made = Maker::new(format!("sample {dtype} of no numbers and infinities"));
        let made = made.by(dtype, &[2, 30], Layout::Plain, odd);
        cases.push(made.case(TensorOp::Sample(Sample { seed: 4, ..plain }), Layout::Plain, Tolerance::EXACT));
    }
    cases
}
