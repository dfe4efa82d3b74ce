//! Single operations by chance.

use metallic_core::{DType, Op};

use super::Case;
use super::rows::{BINARY, UNARY};
use crate::random::Random;

const LENGTHS: [usize; 12] = [1, 2, 3, 4, 5, 7, 8, 15, 17, 31, 33, 40];

/// A case made of a seed: an operation on rows, of any shape.
pub fn random(seed: u64) -> Case {
    let mut random = Random::new(seed);
    let rank = 1 + random.below(4);
    let most = if rank == 4 { 8 } else { 40 };
    let shape: Vec<usize> = (0..rank).map(|_| LENGTHS[random.below(LENGTHS.len())].min(most)).collect();
    let cols = shape[rank - 1];
    let (act, f) = (UNARY[random.below(UNARY.len())], BINARY[random.below(BINARY.len())]);
    let (kind, reversed) = (random.below(9), random.below(2) == 0);
    let mut case = Case::new(format!("by chance {seed}: {kind} of {shape:?}"), 1e-5, move |m| {
        let x = m.tensor(DType::F32, &shape, 1.5);
        // Numbers of ±0.5 to ±2.
        let divisor = |shape: &[usize]| m.values(shape, |i| [0.5, -0.7, 1.9, -2.0, 1.1][i * 7 % 5]);
        match kind {
            0 => x.unary(act),
            1 => x.then(Op::Binary(f), [divisor(&shape)]),
            2 => x.then(Op::Binary(f), [divisor(&[cols])]),
            3 => divisor(&shape).then(Op::Scalar { op: f, value: 1.7, reversed }, []),
            4 => x.gated(act, divisor(&shape)),
            5 => x.softmax(),
            6 => x.rms_norm(m.vector(cols), 1e-3),
            7 => x.layer_norm(m.vector(cols), Some(m.vector(cols)), 1e-3),
            _ => x.softcap(1.3),
        }
    });
    case.exact(3e-5).alone();
    case
}
