//! The tensors of a case.

use std::cell::RefCell;

use metallic_core::quant::quantize;
use metallic_core::{DType, Dim, GraphBuilder, Shape, TensorType, Var, Weight};

use super::VOCAB;
use crate::random::Random;

/// Makes the tensors of one graph; the same name makes the same tensors.
pub struct Maker<'g> {
    /// The graph.
    pub g: &'g GraphBuilder,
    random: RefCell<Random>,
}

impl<'g> Maker<'g> {
    pub(super) fn new(g: &'g GraphBuilder, name: &str) -> Maker<'g> {
        let seed = name.bytes().fold(7u64, |seed, b| seed.wrapping_mul(31).wrapping_add(u64::from(b)));
        Maker { g, random: Random::new(seed).into() }
    }

    fn weight(&self, dtype: DType, shape: &[usize], data: Vec<u8>) -> Var<'g> {
        let dims: Vec<Dim> = shape.iter().map(|len| Dim::Fixed(*len)).collect();
        let ty = TensorType::new(dtype, Shape::new(&dims).expect("few axes"));
        let name = format!("w{}", self.random.borrow_mut().bits());
        self.g.weight(Weight { name, ty, data: data.into() })
    }

    /// Random numbers of `-scale .. scale`, or random blocks.
    pub(super) fn tensor(&self, dtype: DType, shape: &[usize], scale: f32) -> Var<'g> {
        let data = weights(dtype, shape.iter().product(), scale, &mut self.random.borrow_mut());
        self.weight(dtype, shape, data)
    }

    /// Numbers by their index.
    pub(super) fn values(&self, shape: &[usize], value: impl Fn(usize) -> f32) -> Var<'g> {
        let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
        self.weight(DType::F32, shape, encode(DType::F32, &values))
    }

    /// Indices by their place.
    pub(super) fn ids(&self, shape: &[usize], value: impl Fn(usize) -> usize) -> Var<'g> {
        let bytes = (0..shape.iter().product()).flat_map(|i| (value(i) as u32).to_le_bytes()).collect();
        self.weight(DType::U32, shape, bytes)
    }

    pub(super) fn matrix(&self, dtype: DType, rows: usize, cols: usize) -> Var<'g> {
        self.tensor(dtype, &[rows, cols], 0.3)
    }

    pub(super) fn vector(&self, len: usize) -> Var<'g> {
        self.tensor(DType::F32, &[len], 1.0)
    }

    /// Activations `[tokens, cols]` of ±1.5.
    pub(super) fn rows(&self, cols: usize) -> Var<'g> {
        self.tensor(DType::F32, &[VOCAB, cols], 1.5).embed(self.g.tokens())
    }

    /// Activations `[tokens, cols]`: numbers by their index in the table.
    pub(super) fn table(&self, cols: usize, value: impl Fn(usize) -> f32) -> Var<'g> {
        self.values(&[VOCAB, cols], value).embed(self.g.tokens())
    }

    /// Activations `[tokens, cols]` in which no two numbers of a row are equal, in any float type.
    pub(super) fn scores(&self, cols: usize) -> Var<'g> {
        // Seven bits after the point are what a BF16 has.
        let value = |rank: usize| (1.0 + (rank % 128) as f32 / 128.0) * 2f32.powi((rank / 128) as i32 - 4);
        self.table(cols, |i| value((i % cols * 7919 + i / cols * 31) % cols))
    }

    /// Frequencies that fall by `factor` from pair to pair.
    pub(super) fn freqs(&self, pairs: usize, factor: f32) -> Var<'g> {
        self.values(&[pairs], |i| factor.powi(i as i32))
    }
}

/// How much of each adapter each token takes: some of them nothing.
pub(crate) fn shares(tokens: usize, adapters: usize) -> Vec<f32> {
    (0..tokens * adapters).map(|i| (i * 5 % 7) as f32 / 4.0).collect()
}

/// Random weights of any type, around `scale`, or around 0.3 in a K type.
pub(crate) fn weights(dtype: DType, len: usize, scale: f32, random: &mut Random) -> Vec<u8> {
    match dtype {
        DType::Q2K
        | DType::Q3K
        | DType::Q4K
        | DType::Q5K
        | DType::Q6K
        | DType::IQ4NL
        | DType::IQ4XS
        | DType::MXFP4 => blocks(dtype, len, random),
        _ => encode(dtype, &random.floats(len, scale)),
    }
}

pub(crate) fn encode(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.bytes_for(values.len()).unwrap_or(0)];
    quantize(dtype, values, &mut bytes).expect("the test's own numbers fill blocks");
    bytes
}

/// Random blocks of a K type: every bit of every field counts. Scales are positive halves that bring the largest weights
/// of every type to 0.3 or more: results must be large beside the tolerances.
fn blocks(dtype: DType, len: usize, random: &mut Random) -> Vec<u8> {
    let count = len / dtype.block_len();
    let mut bytes: Vec<u8> = (0..count * dtype.block_bytes()).map(|_| random.bits() as u8).collect();
    let (halves, exponent): (&[usize], u16) = match dtype {
        DType::Q2K => (&[80, 82], 8),
        DType::Q3K => (&[108], 6),
        DType::Q4K => (&[0, 2], 3),
        DType::Q5K => (&[0, 2], 2),
        DType::IQ4NL => (&[0], 6),
        DType::IQ4XS => (&[0], 2),
        DType::MXFP4 => (&[], 0),
        _ => (&[208], 1),
    };
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        if dtype == DType::MXFP4 {
            block[0] = 121 + block[0] % 3;
        }
        for at in halves {
            let half = exponent << 10 | (random.bits() as u16 & 0x3ff);
            block[*at..at + 2].copy_from_slice(&half.to_le_bytes());
        }
    }
    bytes
}
