//! Products with matrices: alone, fused with what surrounds them, and of experts.

use metallic_core::quant::dequantize;
use metallic_core::{BackendError, DType, Project, Qkv, Unary};

use crate::exec::{Args, Now, Value, Work, grow};
use crate::kept::{KvRows, Rows};
use crate::ops::{self, Norm};
use crate::simd::{
    self, Activations, Grain, Matmul, PackedMatrix, QuantizedRows, SharedOut, dot_f32, floats, matmul,
};
use crate::weights::matrix_shape;
use crate::{Processor, unsupported};

/// With fewer rows than this, packing a matrix that is used once costs more than it saves.
pub(crate) const FEW_ROWS: usize = 5;
/// Columns of a result that a task of few rows makes.
const COLUMNS: usize = 64;
/// Matrices whose products may stand side by side.
const MOST_PARTS: usize = 3;
/// Tokens of a task that rotates heads.
const HEADS_TOKENS: usize = 4;
/// Experts whose products are one fork.
const TOGETHER: usize = 8;

/// The left side of a product in the forms matrices want, in buffers that are kept.
#[derive(Default)]
pub(crate) struct Activated {
    /// Normalised or gathered rows.
    pub(crate) values: Vec<f32>,
    quantized: QuantizedRows,
}

impl Activated {
    /// Rows of `cols`, normalised where `norm` says so and quantised where one of the `matrices` wants it.
    fn rows<'a>(
        &'a mut self,
        p: Processor<'_>,
        x: &'a [f32],
        norm: Option<Norm<'_>>,
        matrices: &[&PackedMatrix],
    ) -> Result<Sides<'a>, BackendError> {
        let cols = matrices[0].cols();
        let quantized = || matrices.iter().filter(|w| w.is_quantized());
        let halves = quantized().all(|w| w.takes() == Grain::Half);
        let grain = if halves { Grain::Half } else { Grain::Group };
        let quantizes = quantized().next().is_some();
        let values = if let Some(norm) = norm {
            grow(&mut self.values, x.len())?;
            let values = &mut self.values[..x.len()];
            if quantizes {
                let make = |row: usize, out: &mut [f32]| norm.row(p, &x[row * cols..][..cols], out);
                self.quantized.quantize_made(p.isa, p.team, (values, cols), grain, make);
            } else {
                norm.rows(p, cols, x, values);
            }
            &self.values[..x.len()]
        } else {
            if quantizes {
                self.quantized.quantize(p.isa, p.team, x, cols, grain);
            }
            x
        };
        Ok(Sides { floats: Activations::F32 { values, cols }, quantized: self.quantized.all() })
    }
}

/// One left side in the forms different matrices want.
#[derive(Clone, Copy)]
struct Sides<'a> {
    floats: Activations<'a>,
    quantized: Activations<'a>,
}

impl<'a> Sides<'a> {
    fn matching(&self, w: &PackedMatrix) -> Activations<'a> {
        if w.is_quantized() { self.quantized } else { self.floats }
    }
}

/// `x · Wᵀ`
fn plain<'a>(w: &'a PackedMatrix, x: Activations<'a>, out: SharedOut<'a>) -> Matmul<'a> {
    Matmul { weights: simd::Factors::Plain(w), x, bias: None, residual: None, out }
}

impl Work {
    /// `(x [.., m, k], w [n, k])`, or a matrix for each of the outer axes.
    pub(crate) fn linear(&mut self, args: &Args<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        let p = Processor { isa: self.isa, team: &self.team };
        let shape = matrix_shape(args.shape(1));
        let x = args.floats(0);
        let [x_len, out_len] = [x.len(), out.len()].map(|len| (len / shape.count.max(1)).max(1));
        let batches = x.chunks_exact(x_len).zip(out.chunks_exact_mut(out_len));
        if let Value::Encoded(dtype, bytes) = args.value(1) {
            let row_bytes = dtype.bytes_for(shape.k).unwrap_or(0).max(1);
            for ((x, out), bytes) in batches.zip(bytes.chunks_exact(row_bytes * shape.n.max(1))) {
                few(p, x, &AsItLies { dtype, bytes, row_bytes, k: shape.k }, out);
            }
            return Ok(());
        }
        for ((x, out), w) in batches.zip(args.matrices(1)) {
            let side = self.activated.rows(p, x, None, &[w])?;
            matmul(p.isa, p.team, &mut [plain(w, side.matching(w), SharedOut::new(out, w.rows()))]);
            self.read += w.bytes() as u64;
            self.multiplied += (x.len() * w.rows()) as u64;
        }
        Ok(())
    }

    pub(crate) fn project(
        &mut self,
        spec: &Project,
        args: &Args<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let (at, parts) = (spec.inputs(), spec.parts);
        if parts > MOST_PARTS {
            return Err(unsupported(
                "project",
                format!("{parts} matrices side by side; at most {MOST_PARTS}"),
            ));
        }
        let p = Processor { isa: self.isa, team: &self.team };
        let (mut matrices, mut widths) = ([args.matrix(at.weights)?; MOST_PARTS], [0; MOST_PARTS]);
        for i in 0..parts {
            matrices[i] = args.matrix(at.weights + i)?;
            widths[i] = matrices[i].rows();
            self.read += matrices[i].bytes() as u64;
            self.multiplied += (args.floats(0).len() * widths[i]) as u64;
        }
        let norm = spec.norm.map(|eps| Norm { w: args.floats(1), eps, part: args.cols(0) });
        let side = self.activated.rows(p, args.floats(0), norm, &matrices[..parts])?;
        let residual = at.residual.map(|index| args.floats(index));
        let mut index = 0;
        let mut products = SharedOut::side_by_side(out, widths).map(|out| {
            let w = matrices[index];
            let bias = at.biases.map(|first| args.floats(first + index));
            index += 1;
            Matmul { bias, residual: residual.filter(|_| parts == 1), ..plain(w, side.matching(w), out) }
        });
        // All in one fork.
        matmul(p.isa, p.team, &mut products[..parts]);
        if let Some(residual) = residual.filter(|_| parts > 1) {
            simd::add(p.isa, residual, out);
        }
        Ok(())
    }

    /// The product, then its queries to `out` and its keys and values to what is kept.
    pub(crate) fn qkv(
        &mut self,
        spec: &Qkv,
        args: &Args<'_>,
        Now { step, kept }: Now<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let [q_cols, kv_cols, _] = spec.cols();
        let (tokens, cols) = (step.tokens.len(), q_cols + 2 * kv_cols);
        grow(&mut self.qkv, tokens * cols)?;
        let mut product = std::mem::take(&mut self.qkv);
        let projected = self.project(&spec.project(), args, &mut product[..tokens * cols]);
        self.qkv = product;
        projected?;
        let pairs = self.turn(&spec.rope, args, spec.positions());
        let p = Processor { isa: self.isa, team: &self.team };
        let (angles, qkv) = (&self.angles, &self.qkv);
        // Heads of `x`, normalised by the weight at `which` of the head norms and rotated.
        let heads = |which: usize, token: usize, x: &[f32], out: &mut [f32]| {
            let norm = spec.head_norm.zip(spec.head_norms()).map(|(eps, first)| Norm {
                w: args.floats(first + which),
                eps,
                part: spec.rope.head_dim,
            });
            match &norm {
                Some(norm) => {
                    norm.row(p, x, out);
                    angles.rotate(&spec.rope, pairs, token, out);
                }
                None => angles.rotated(p, &spec.rope, (pairs, token), x, out),
            }
        };
        grow(&mut self.activated.values, tokens * kv_cols)?;
        let keys = &mut self.activated.values[..tokens * kv_cols];
        let lens = [q_cols, kv_cols].map(|cols| HEADS_TOKENS * cols.max(1));
        p.team.for_both(out, keys, lens, |part, out, keys| {
            let rows = out.chunks_exact_mut(q_cols.max(1)).zip(keys.chunks_exact_mut(kv_cols.max(1)));
            for (i, (q, k)) in rows.enumerate() {
                let token = part * HEADS_TOKENS + i;
                let (own_q, rest) = qkv[token * cols..][..cols].split_at(q_cols);
                heads(0, token, own_q, q);
                heads(1, token, &rest[..kv_cols], k);
            }
        });
        let rows = KvRows {
            keys: Rows { data: keys, stride: kv_cols, at: 0 },
            values: Rows { data: qkv, stride: cols, at: q_cols + kv_cols },
        };
        self.written += kept.store(p, spec.state, step, &rows);
        Ok(())
    }

    /// `(x, norm_w?, G, U)`
    pub(crate) fn gated(
        &mut self,
        norm: Option<f32>,
        act: Unary,
        args: &Args<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let first = 1 + usize::from(norm.is_some());
        let (gate, up) = (args.matrix(first)?, args.matrix(first + 1)?);
        let p = Processor { isa: self.isa, team: &self.team };
        let norm = norm.map(|eps| Norm { w: args.floats(1), eps, part: args.cols(0) });
        let side = self.activated.rows(p, args.floats(0), norm, &[gate, up])?;
        self.read += (gate.bytes() + up.bytes()) as u64;
        self.multiplied += (args.floats(0).len() * (gate.rows() + up.rows())) as u64;
        let cols = gate.rows();
        if let (Some(act), true) = (ops::gate_of(act), gate.is_quantized() == up.is_quantized()) {
            let weights = simd::Factors::Gated { gate, up, act };
            let product = plain(gate, side.matching(gate), SharedOut::new(out, cols));
            matmul(p.isa, p.team, &mut [Matmul { weights, ..product }]);
            return Ok(());
        }
        grow(&mut self.gate, out.len())?;
        let gates = &mut self.gate[..out.len()];
        let mut products = [
            plain(gate, side.matching(gate), SharedOut::new(gates, cols)),
            plain(up, side.matching(up), SharedOut::new(out, cols)),
        ];
        matmul(p.isa, p.team, &mut products);
        ops::apply(p, act, gates);
        out.iter_mut().zip(&*gates).for_each(|(out, gate)| *out *= gate);
        Ok(())
    }

    /// `(x [tokens, k] or [tokens, c * k], w [experts, n, k], ids [tokens, c])`. Rows are gathered by expert, so that each
    /// expert's matrix is read once; NaN for an expert that is not there.
    pub(crate) fn expert_linear(&mut self, args: &Args<'_>, out: &mut [f32]) -> Result<(), BackendError> {
        let (experts, ids, choices) = (args.matrices(1), args.words(2), args.cols(2));
        let Some(any) = experts.first() else {
            out.fill(f32::NAN);
            return Ok(());
        };
        let (n, k) = (any.rows(), any.cols());
        let p = Processor { isa: self.isa, team: &self.team };
        // A row is a token's choice; those of an expert are neighbours.
        self.order.clear();
        self.order.extend((0..ids.len() as u32).filter(|row| (ids[*row as usize] as usize) < experts.len()));
        self.order.sort_unstable_by_key(|row| (ids[*row as usize], *row));
        let order = &self.order;
        // Choices have rows of their own, or share their token's.
        let shared = if args.cols(0) == k { choices } else { 1 };
        let mut gathered = std::mem::take(&mut self.gate);
        grow(&mut gathered, order.len() * k)?;
        for (row, to) in order.iter().zip(gathered.chunks_exact_mut(k)) {
            to.copy_from_slice(&args.floats(0)[*row as usize / shared * k..][..k]);
        }
        self.multiplied += (order.len() * n * k) as u64;
        let results = &mut self.qkv;
        grow(results, order.len() * n)?;
        let side = self.activated.rows(p, &gathered[..order.len() * k], None, &[any])?;
        let (mut at, mut rest) = (0, &mut results[..order.len() * n]);
        while at < order.len() {
            let mut products: [Matmul<'_>; TOGETHER] = std::array::from_fn(|_| {
                let expert = order.get(at).map_or(0, |row| ids[*row as usize] as usize);
                let same = order[at..].iter().take_while(|row| ids[**row as usize] as usize == expert);
                let rows = at..at + same.count();
                at = rows.end;
                let (own, after) = std::mem::take(&mut rest).split_at_mut(rows.len() * n);
                rest = after;
                self.read += if rows.is_empty() { 0 } else { experts[expert].bytes() as u64 };
                plain(&experts[expert], side.matching(any).part(rows), SharedOut::new(own, n))
            });
            matmul(p.isa, p.team, &mut products);
        }
        if order.len() < ids.len() {
            out.fill(f32::NAN);
        }
        for (row, result) in order.iter().zip(results.chunks_exact(n.max(1))) {
            out[*row as usize * n..][..n].copy_from_slice(result);
        }
        self.gate = gathered;
        Ok(())
    }
}

/// A matrix that is not packed.
struct AsItLies<'a> {
    dtype: DType,
    bytes: &'a [u8],
    row_bytes: usize,
    k: usize,
}

/// `x · Wᵀ` of few rows: each row of the matrix is decoded and meets them one by one.
fn few(p: Processor<'_>, x: &[f32], w: &AsItLies<'_>, out: &mut [f32]) {
    let n = w.bytes.len() / w.row_bytes;
    for (x, out) in x.chunks_exact(w.k).zip(out.chunks_exact_mut(n)) {
        p.team.for_chunks(out, COLUMNS, |i, out| {
            let mut decoded = vec![0.0; if w.dtype == DType::F32 { 0 } else { w.k }];
            for (j, out) in out.iter_mut().enumerate() {
                let bytes = &w.bytes[(i * COLUMNS + j) * w.row_bytes..][..w.row_bytes];
                let row = if w.dtype == DType::F32 {
                    floats(bytes)
                } else {
                    // Rows are whole blocks; were they not to, it must show.
                    if dequantize(w.dtype, bytes, &mut decoded).is_err() {
                        decoded.fill(f32::NAN);
                    }
                    &decoded
                };
                *out = dot_f32(p.isa, x, row);
            }
        });
    }
}
