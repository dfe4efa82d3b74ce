//! Cases by chance: any operation on operands that lie anyhow.

use metallic_core::tensor::{Mask, Sample, Sdpa, TensorOp, View, outputs};
use metallic_core::{Binary, DType, Rope, RopePairs, Unary};

use super::table::{FLOATS, FUNCTION, Maker, QUOTIENT, ROWS, softmaxed};
use super::{Data, Placement, TensorCase, Tolerance};
use crate::random::Random;

const LENGTHS: [usize; 12] = [1, 2, 3, 4, 5, 7, 8, 15, 17, 31, 33, 40];

/// A view of this shape with axes in any order, gaps between elements, neighbours on both sides, and where `repeats` allows
/// it strides of 0.
fn anyhow(dtype: DType, shape: &[usize], repeats: bool, random: &mut Random) -> View {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    for i in (1..order.len()).rev() {
        order.swap(i, random.below(i + 1));
    }
    let (mut stride, mut offset) = (1, random.below(3));
    let mut strides = vec![0; shape.len()];
    for axis in order {
        if repeats && random.below(6) == 0 {
            continue;
        }
        let step = if random.below(4) == 0 { 2 } else { 1 };
        let (before, after) = if random.below(3) == 0 { (random.below(3), random.below(3)) } else { (0, 0) };
        strides[axis] = stride * step;
        offset += stride * before;
        stride *= before + shape[axis] * step + after;
    }
    View::strided(dtype, offset, shape, &strides).expect("a small view")
}

/// Draws operands of one case.
struct Dice {
    made: Maker,
    dtype: DType,
}

impl Dice {
    fn len(&mut self) -> usize {
        LENGTHS[self.made.random.below(LENGTHS.len())]
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.made.random.below(all.len())]
    }

    fn shape(&mut self, least: usize) -> Vec<usize> {
        let rank = least + self.made.random.below(5 - least);
        (0..rank).map(|_| self.len()).map(|len| if rank == 4 { len.min(8) } else { len }).collect()
    }

    fn x(&mut self, shape: &[usize]) {
        let view = anyhow(self.dtype, shape, true, &mut self.made.random);
        self.made.inputs.push(Data::random(view, 1.5, &mut self.made.random));
    }

    /// Numbers of ±0.5 to ±2.
    fn divisor(&mut self, shape: &[usize]) {
        let view = anyhow(self.dtype, shape, true, &mut self.made.random);
        let random = &mut self.made.random;
        let value = |_| {
            let x = random.signed();
            x * 1.5 + 0.5f32.copysign(x)
        };
        self.made.inputs.push(Data::floats(view, value));
    }

    fn f32s(&mut self, len: usize) {
        let view = anyhow(DType::F32, &[len], true, &mut self.made.random);
        self.made.inputs.push(Data::random(view, 1.0, &mut self.made.random));
    }

    fn ids(&mut self, shape: &[usize], below: usize) {
        let view = anyhow(DType::U32, shape, true, &mut self.made.random);
        let random = &mut self.made.random;
        self.made.inputs.push(Data::integers(view, |_| random.below(below) as u32));
    }

    fn norm(&mut self, rows: usize, vectors: usize) {
        let shape = self.shape(1);
        (0..rows).for_each(|_| self.x(&shape));
        (0..vectors).for_each(|_| self.x(&shape[shape.len() - 1..]));
    }

    fn matmul(&mut self) -> (TensorOp, Tolerance) {
        let mut shape = self.shape(2);
        let rank = shape.len();
        self.x(&shape);
        (shape[rank - 2], shape[rank - 1]) = (shape[rank - 1], self.len());
        self.x(&shape);
        let summed =
            Tolerance { absolute: 3e-5, relative: 1e-5, reason: "sums of up to 40 products, in f32" };
        (TensorOp::Matmul, summed)
    }

    fn sdpa(&mut self) -> (TensorOp, Tolerance) {
        let (kv_heads, group, d) =
            (self.one_of(&[1, 2, 3]), self.one_of(&[1, 2, 4]), self.one_of(&[8, 26, 32, 64]));
        let (m, n) = (self.len(), self.len());
        self.x(&[kv_heads * group, m, d]);
        self.x(&[kv_heads, n, d]);
        self.x(&[kv_heads, n, d]);
        if self.made.random.below(3) == 0 {
            self.f32s(kv_heads * group);
        }
        let mask = self.one_of(&[Mask::Full, Mask::Causal, Mask::Window(1), Mask::Window(6)]);
        let softcap = self.one_of(&[None, Some(2.0)]);
        (TensorOp::Sdpa(Sdpa { scale: 0.2, mask, softcap }), softmaxed(self.dtype))
    }

    fn rope(&mut self) -> (TensorOp, Tolerance) {
        let (tokens, heads, head_dim) = (self.len(), self.one_of(&[1, 2, 5]), self.one_of(&[2, 9, 32, 64]));
        self.x(&[tokens, heads, head_dim]);
        self.ids(&[tokens], 500);
        let pairs = 1 + self.made.random.below(head_dim / 2);
        self.f32s(pairs);
        let pairs = self.one_of(&[RopePairs::Halves, RopePairs::Interleaved]);
        let turned = Tolerance { absolute: 1e-4, relative: 1e-5, reason: "angles of up to 500, in f32" };
        (TensorOp::Rope(Rope { head_dim, pairs, magnitude: 0.9 }), turned)
    }

    fn choice(&mut self) -> (TensorOp, Tolerance) {
        let shape = [self.len(), self.len()];
        self.x(&shape);
        let k = 1 + self.made.random.below(shape[1]);
        let op = match self.made.random.below(3) {
            0 => TensorOp::Argmax,
            1 => TensorOp::TopK { k },
            _ => {
                self.ids(&shape, 4);
                let temperature = self.one_of(&[0.0, 0.5, 1.0, 2.0]);
                let seed = self.made.random.bits();
                let penalties =
                    Sample { repetition: 1.2, presence: 0.1, frequency: -0.2, ..Sample::default() };
                TensorOp::Sample(Sample { temperature, top_k: k - 1, seed, ..penalties })
            }
        };
        (op, Tolerance::EXACT)
    }

    fn draw(&mut self) -> (TensorOp, Tolerance) {
        let act = self.one_of(&[Unary::Silu, Unary::Gelu, Unary::GeluTanh, Unary::Sigmoid]);
        let f = self.one_of(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Div]);
        let arithmetic = if f == Binary::Div { QUOTIENT } else { Tolerance::EXACT };
        let centred = Tolerance { absolute: 3e-5, relative: 3e-5, ..ROWS };
        match self.made.random.below(15) {
            0 => {
                let shape = self.shape(0);
                self.x(&shape);
                (TensorOp::Copy, Tolerance::EXACT)
            }
            1 => {
                let shape = self.shape(0);
                self.x(&shape);
                (TensorOp::Unary(act), FUNCTION)
            }
            2 | 3 => {
                let shape = self.shape(0);
                self.x(&shape);
                self.divisor(&shape);
                (TensorOp::Binary(f), arithmetic)
            }
            4 => {
                let shape = self.shape(0);
                self.divisor(&shape);
                let reversed = self.one_of(&[false, true]);
                (TensorOp::Scalar { op: f, value: 1.7, reversed }, arithmetic)
            }
            5 => {
                let shape = self.shape(0);
                self.x(&shape);
                self.divisor(&shape);
                (TensorOp::Gated(act), FUNCTION)
            }
            6 => {
                self.norm(1, 1);
                (TensorOp::RmsNorm { eps: 1e-3 }, ROWS)
            }
            7 => {
                self.norm(1, 2);
                (TensorOp::LayerNorm { eps: 1e-3 }, centred)
            }
            8 => {
                self.norm(2, 1);
                (TensorOp::AddRmsNorm { eps: 1e-3 }, ROWS)
            }
            9 => {
                self.norm(2, 2);
                (TensorOp::AddLayerNorm { eps: 1e-3 }, centred)
            }
            10 => {
                let shape = self.shape(1);
                self.x(&shape);
                (TensorOp::Softmax, FUNCTION)
            }
            11 => self.matmul(),
            12 => self.sdpa(),
            13 => self.rope(),
            _ => self.choice(),
        }
    }
}

/// A case made of a seed: any operation, any type, operands that lie anyhow.
pub fn random(seed: u64) -> TensorCase {
    let mut made = Maker::new(format!("by chance {seed}"));
    let dtype = FLOATS[made.random.below(FLOATS.len())];
    let mut dice = Dice { made, dtype };
    let (op, tolerance) = dice.draw();
    let Dice { mut made, .. } = dice;
    let views: Vec<&View> = made.inputs.iter().map(|data| &data.view).collect();
    let results = outputs(&op, &views).unwrap_or_else(|error| panic!("{}: {error}", made.name));
    let random = &mut made.random;
    let results = results.iter().map(|view| anyhow(view.dtype(), view.shape(), false, random)).collect();
    let together = random.below(2) == 0;
    made.name = format!("{}: {} {dtype}", made.name, op.name());
    let mut case = made.into(op, results, tolerance);
    if together {
        case.placement = Placement::Together;
    }
    case
}
