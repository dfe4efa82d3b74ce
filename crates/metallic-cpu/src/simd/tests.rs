//! Kernels against the file's own meaning of the weights, in f64.

use half::{bf16, f16};
use metallic_core::{DType, quant};

use super::*;

/// A small generator: tests need the same numbers each time, not good ones.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    /// In [-1, 1).
    pub(super) fn unit(&mut self) -> f32 {
        self.next() as f32 / (1u32 << 30) as f32 - 1.0
    }

    pub(super) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    /// A matrix in which every bit pattern of values and sub-scales may occur, with tame f16 scales.
    fn weights(&mut self, dtype: DType, count: usize) -> Vec<u8> {
        let half_at: &[usize] = match dtype {
            DType::F32 => return self.floats(count).iter().flat_map(|x| x.to_le_bytes()).collect(),
            DType::F16 => {
                return self.floats(count).iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
            }
            DType::BF16 => {
                return self.floats(count).iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect();
            }
            DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
            DType::Q2K => &[80, 82],
            DType::Q3K => &[108],
            DType::Q6K => &[208],
            _ => &[0],
        };
        let mut bytes: Vec<u8> =
            (0..dtype.bytes_for(count).expect("whole blocks")).map(|_| self.next() as u8).collect();
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            if dtype == DType::MXFP4 {
                block[0] = 118 + block[0] % 8;
                continue;
            }
            for at in half_at {
                block[*at..at + 2].copy_from_slice(&f16::from_f32(self.unit() * 0.1).to_le_bytes());
            }
        }
        bytes
    }
}

/// A value as the kernels see it.
fn value(rows: &QuantizedRows, row: usize, col: usize) -> f32 {
    let Activations::Q8 { groups, cols, .. } = rows.all() else { return f32::NAN };
    let group = &groups[row * (cols / GROUP) + col / GROUP];
    group.scales[col % GROUP / 16] * f32::from(group.values[col % GROUP])
}

fn weight_types() -> impl Iterator<Item = DType> {
    DType::all().filter(|t| t.is_float() || t.is_quantized())
}

/// Ragged rows; short, odd and long columns.
fn shapes(dtype: DType) -> Vec<(usize, usize)> {
    match dtype.block_len() {
        1 => vec![(1, 1), (16, 64), (33, 67), (5, 130)],
        32 => vec![(1, 32), (16, 64), (35, 96), (48, 576)],
        _ => vec![(1, 256), (16, 512), (35, 768)],
    }
}

fn team(threads: usize) -> Team {
    Team::new(threads).expect("threads for a test")
}

const GRAINS: [Grain; 2] = [Grain::Group, Grain::Half];

struct Case {
    matrix: PackedMatrix,
    /// Dequantised, `[rows, cols]`.
    dense: Vec<f32>,
    x: Vec<f32>,
    quantized: QuantizedRows,
}

impl Case {
    fn new(dtype: DType, (rows, cols): (usize, usize), tokens: usize, seed: u64) -> Case {
        let mut random = Random(seed);
        let bytes = random.weights(dtype, rows * cols);
        let mut dense = vec![0.0; rows * cols];
        quant::dequantize(dtype, &bytes, &mut dense).expect("a valid matrix");
        let matrix = PackedMatrix::pack(&team(2), dtype, (rows, cols), &bytes).expect("a valid matrix");
        let x = random.floats(tokens * cols);
        let mut quantized = QuantizedRows::default();
        if dtype.is_quantized() {
            quantized.quantize(Isa::Portable, &team(1), &x, cols, Grain::Group);
        }
        Case { matrix, dense, x, quantized }
    }

    /// With activations of this grain.
    fn with(mut self, grain: Grain) -> Case {
        if grain == Grain::Half {
            self.matrix.take_halves();
        }
        if self.matrix.is_quantized() {
            self.quantized.quantize(Isa::Portable, &team(1), &self.x, self.matrix.cols(), grain);
        }
        self
    }

    fn activations(&self) -> Activations<'_> {
        if self.matrix.is_quantized() {
            self.quantized.all()
        } else {
            Activations::F32 { values: &self.x, cols: self.matrix.cols() }
        }
    }

    fn tokens(&self) -> usize {
        self.x.len() / self.matrix.cols()
    }

    /// The product in f64, and the sum of the magnitudes of its terms.
    fn expected(&self, token: usize, row: usize) -> (f64, f64) {
        let cols = self.matrix.cols();
        (0..cols).fold((0.0, 0.0), |(sum, size), k| {
            let x = if self.matrix.is_quantized() {
                value(&self.quantized, token, k)
            } else {
                self.x[token * cols + k]
            };
            let term = f64::from(self.dense[row * cols + k]) * f64::from(x);
            (sum + term, size + term.abs())
        })
    }

    fn run(&self, isa: Isa, threads: usize) -> Vec<f32> {
        let rows = self.matrix.rows();
        let mut out = vec![f32::NAN; self.tokens() * rows];
        let product = Matmul {
            weights: Factors::Plain(&self.matrix),
            x: self.activations(),
            bias: None,
            residual: None,
            out: SharedOut::new(&mut out, rows),
        };
        matmul(isa, &team(threads), &mut [product]);
        out
    }
}

#[test]
fn packed_rows_are_the_rows_of_the_file_bit_for_bit() {
    for dtype in weight_types() {
        for shape in shapes(dtype) {
            let case = Case::new(dtype, shape, 1, 1);
            let mut row = vec![0.0; shape.1];
            for r in 0..shape.0 {
                case.matrix.row(r, &mut row);
                assert_eq!(row, case.dense[r * shape.1..][..shape.1], "{dtype} {shape:?} row {r}");
            }
        }
    }
}

#[test]
fn products_match_f64_for_every_type_shape_and_instruction_set() {
    for dtype in weight_types() {
        for shape in shapes(dtype) {
            for (isa, grain) in Isa::available().flat_map(|isa| GRAINS.map(|grain| (isa, grain))) {
                let case = Case::new(dtype, shape, 19, 2).with(grain);
                let out = case.run(isa, 2);
                for (i, y) in out.iter().enumerate() {
                    let (expected, size) = case.expected(i / shape.0, i % shape.0);
                    let error = (f64::from(*y) - expected).abs();
                    assert!(
                        error <= 2e-6 * size,
                        "{dtype} {shape:?} {isa:?} {grain:?} at {i}: {y} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_token_gives_the_same_bits_alone_in_a_batch_and_with_any_number_of_threads() {
    for dtype in weight_types() {
        let cols = if dtype.is_float() { 333 } else { 768 };
        let shape = (83, cols);
        // Blocks of every size, at the end of whole ones.
        let sizes = [27, 29, 30, 31].into_iter().flat_map(|tokens| GRAINS.map(|grain| (tokens, grain)));
        for (isa, (tokens, grain)) in
            Isa::available().flat_map(|isa| sizes.clone().map(move |size| (isa, size)))
        {
            let batch = Case::new(dtype, shape, tokens, 3).with(grain);
            let together = batch.run(isa, 1);
            for threads in [2, 3] {
                assert_eq!(together, batch.run(isa, threads), "{dtype} {isa:?} {threads} threads");
            }
            for token in [0, 7, 8, 15, 16, 23, 24, 26, tokens - 2, tokens - 1] {
                let mut alone = Case::new(dtype, shape, tokens, 3);
                alone.x = batch.x[token * cols..][..cols].to_vec();
                let alone = alone.with(grain);
                assert_eq!(alone.run(isa, 2), together[token * 83..][..83], "{dtype} {isa:?} token {token}");
            }
        }
    }
}

#[test]
fn bias_residual_strides_and_gates_are_applied_where_they_belong() {
    let shape = (35, 64);
    for dtype in [DType::Q4_0, DType::Q8_0, DType::F16] {
        let (gate, up) = (Case::new(dtype, shape, 11, 4), Case::new(dtype, shape, 11, 5));
        let mut random = Random(6);
        let (bias, residual) = (random.floats(35), random.floats(11 * 35));
        let stride = 40;
        for isa in Isa::available() {
            let (g, plain) = (gate.run(isa, 1), {
                let mut same_x = Case::new(dtype, shape, 11, 5);
                same_x.x.clone_from(&gate.x);
                if dtype.is_quantized() {
                    same_x.quantized.quantize(Isa::Portable, &team(1), &gate.x, 64, Grain::Group);
                }
                same_x.run(isa, 1)
            });
            let mut first = vec![-1.0; 11 * stride];
            let mut second = vec![-1.0; 11 * 35];
            let mut third = vec![0.0; 11 * 35];
            let weights = Factors::Plain(&gate.matrix);
            let gated = Factors::Gated { gate: &gate.matrix, up: &up.matrix, act: Gate::Silu };
            let product =
                |weights, bias, residual, out| Matmul { weights, x: gate.activations(), bias, residual, out };
            matmul(
                isa,
                &team(2),
                &mut [
                    product(weights, Some(&*bias), Some(&*residual), SharedOut::new(&mut first, stride)),
                    product(weights, None, Some(&*residual), SharedOut::new(&mut second, 35)),
                    product(gated, None, None, SharedOut::new(&mut third, 35)),
                ],
            );
            for (i, g) in g.iter().enumerate() {
                let (t, n) = (i / 35, i % 35);
                assert_eq!(first[t * stride + n], g + bias[n] + residual[i], "{dtype} {isa:?}");
                assert_eq!(second[i], g + residual[i], "{dtype} {isa:?}");
                let silu = f64::from(*g) / (1.0 + (-f64::from(*g)).exp()) * f64::from(plain[i]);
                assert!((f64::from(third[i]) - silu).abs() <= 1e-6 * silu.abs() + 1e-30, "{dtype} {isa:?}");
            }
            let untouched = first.chunks(stride).flat_map(|row| &row[35..]);
            assert!(untouched.into_iter().all(|x| *x == -1.0));
        }
    }
}

#[test]
fn quantised_rows_are_close_the_same_on_every_instruction_set_and_carry_nan() {
    let mut random = Random(7);
    let mut x = random.floats(40 * 96 * 17);
    x[5] = f32::NAN;
    x[100] = f32::INFINITY;
    x[200..256].fill(0.0);
    x[300..330].fill(1e-40);
    let mut rows = QuantizedRows::default();
    let mut first: Option<Vec<u32>> = None;
    for isa in Isa::available() {
        rows.quantize(isa, &team(2), &x, 96, Grain::Group);
        assert_eq!((rows.all().rows(), rows.all().cols()), (40 * 17, 96));
        let values: Vec<f32> = (0..x.len()).map(|i| value(&rows, i / 96, i % 96)).collect();
        for (i, (value, x)) in values.iter().zip(&x).enumerate() {
            match i / 32 {
                0 | 3 => assert!(value.is_nan(), "{i}"),
                _ => assert!((value - x).abs() <= 0.5 / 127.0 + 1e-6, "{i}: {value} for {x}"),
            }
        }
        let bits: Vec<u32> = values.iter().map(|v| if v.is_nan() { 1 } else { v.to_bits() }).collect();
        assert_eq!(*first.get_or_insert_with(|| bits.clone()), bits, "{isa:?}");
    }
    let mut case = Case::new(DType::Q4_0, (20, 96), 2, 8);
    case.x[96 + 50] = f32::NAN;
    case.quantized.quantize(Isa::detect(), &team(1), &case.x, 96, Grain::Group);
    for isa in Isa::available() {
        let out = case.run(isa, 1);
        assert!(out[..20].iter().all(|y| y.is_finite()) && out[20..].iter().all(|y| y.is_nan()), "{isa:?}");
    }
}

#[test]
fn a_matrix_that_cannot_be_is_refused_with_its_sizes() {
    let team = team(1);
    let pack = |dtype, shape, len: usize| PackedMatrix::pack(&team, dtype, shape, &vec![0; len]).map(|_| ());
    let text = |e: Result<(), PackError>| e.expect_err("refused").to_string();
    assert!(text(pack(DType::I32, (1, 1), 4)).contains("I32"));
    assert!(text(pack(DType::Q4K, (2, 100), 0)).contains("blocks of 256"));
    assert!(text(pack(DType::Q8_0, (2, 32), 67)).contains("has 68 bytes, found 67"));
    assert!(text(pack(DType::F32, (usize::MAX, 8), 0)).contains("impossible"));
    assert!(text(pack(DType::F32, (3, 0), 0)).contains("impossible"));
    assert_eq!(pack(DType::F32, (0, 8), 0), Ok(()));
}

#[test]
fn vector_helpers_match_f64_at_every_length() {
    let mut random = Random(10);
    for len in (0..70).chain([127, 128, 129, 1000]) {
        let (a, b) = (random.floats(len), random.floats(len));
        let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
        let (wa, wb) = (wide(&a), wide(&b));
        for isa in Isa::available() {
            let expected: f64 = wa.iter().zip(&wb).map(|(a, b)| a * b).sum();
            assert!((f64::from(dot_f32(isa, &a, &b)) - expected).abs() < 1e-4, "{len} {isa:?}");
            let squares: f64 = wa.iter().map(|a| a * a).sum();
            assert!((sum_of_squares(isa, &a) - squares).abs() <= 1e-12 * squares);
            let mut y = b.clone();
            axpy(isa, 0.3, &a, &mut y);
            add(isa, &a, &mut y);
            scale(isa, 2.0, &mut y);
            let mut norm = vec![0.0; len];
            rms_norm(isa, &a, &b, 1e-5, &mut norm);
            let factor = 1.0 / (squares / len.max(1) as f64 + 1e-5).sqrt();
            for i in 0..len {
                let expected = 2.0 * (wb[i] + (1.0 + f64::from(0.3f32)) * wa[i]);
                assert!((f64::from(y[i]) - expected).abs() < 2e-6);
                assert!((f64::from(norm[i]) - wa[i] * factor * wb[i]).abs() < 1e-6);
            }
            let mut soft: Vec<f32> = a.iter().map(|a| a * 20.0).collect();
            let top = soft.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f64 = soft.iter().map(|x| (f64::from(*x) - f64::from(top)).exp()).sum();
            let before = soft.clone();
            softmax(isa, &mut soft);
            for (x, y) in before.iter().zip(&soft) {
                let expected = (f64::from(*x) - f64::from(top)).exp() / sum;
                assert!((f64::from(*y) - expected).abs() <= 5e-6 * expected + 1e-37, "{len} {isa:?}");
            }
        }
    }
}

#[test]
fn exponentials_are_accurate_over_their_range_and_keep_the_specials() {
    for isa in Isa::available() {
        let x: Vec<f32> = (0..500_000).map(|i| -87.3 + i as f32 * 0.000_351).collect();
        let mut y = x.clone();
        exp_in_place(isa, &mut y);
        let error = |(x, y): (&f32, &f32)| (f64::from(*y) / f64::from(*x).exp() - 1.0).abs();
        let worst = x.iter().zip(&y).map(error).fold(0.0, f64::max);
        assert!(worst < 3e-7, "{isa:?}: {worst}");
        let mut special = [f32::NEG_INFINITY, -1000.0, 0.0, 88.7, 1000.0, f32::INFINITY, f32::NAN, -0.0];
        exp_in_place(isa, &mut special);
        assert_eq!(special[..3], [0.0, 0.0, 1.0]);
        assert!(special[3].is_finite() && special[6].is_nan());
        assert_eq!(special[4..6], [f32::INFINITY, f32::INFINITY]);
        let mut silu = [-200.0, -1.0, 0.0, 1.0, 200.0, f32::NAN];
        silu_in_place(isa, &mut silu);
        assert_eq!(silu[2], 0.0);
        assert_eq!(silu[4], 200.0);
        assert!(silu[0].abs() < 1e-30 && silu[5].is_nan());
        assert!((silu[3] - 0.731_058_6).abs() < 1e-6 && (silu[1] + 0.268_941_43).abs() < 1e-6);
        let mut masked = [f32::NEG_INFINITY; 20];
        softmax(isa, &mut masked);
        assert_eq!(masked, [0.0; 20]);
        masked = [f32::NEG_INFINITY; 20];
        masked[17] = -3.0;
        softmax(isa, &mut masked);
        assert_eq!(masked[17], 1.0);
        assert_eq!(masked.iter().sum::<f32>(), 1.0);
        let mut gelu = [1.0f32];
        gated(isa, Gate::GeluTanh, &[1.0], &mut gelu);
        assert!((gelu[0] - 0.841_192).abs() < 1e-6);
    }
}

#[test]
fn a_value_far_above_the_others_costs_only_its_own_half_precision() {
    let mut x = Random(9).floats(64);
    x[3] = 1000.0;
    let mut rows = QuantizedRows::default();
    for isa in Isa::available() {
        let error = |rows: &QuantizedRows, from: usize| {
            let errors = (from..from + 16).map(|i| (value(rows, 0, i) - x[i]).abs());
            errors.fold(0.0, f32::max)
        };
        rows.quantize(isa, &team(1), &x, 64, Grain::Group);
        assert!(error(&rows, 16) > 0.1 && error(&rows, 32) < 0.005, "{isa:?}");
        rows.quantize(isa, &team(1), &x, 64, Grain::Half);
        assert!(error(&rows, 0) > 0.1 && error(&rows, 16) < 0.005 && error(&rows, 32) < 0.005, "{isa:?}");
    }
}

#[test]
#[should_panic(expected = "activations of halves")]
fn halves_are_refused_by_a_matrix_that_takes_groups() {
    let mut case = Case::new(DType::Q8_0, (16, 32), 1, 10).with(Grain::Half);
    case.matrix = Case::new(DType::Q8_0, (16, 32), 1, 10).matrix;
    case.run(Isa::Portable, 1);
}
