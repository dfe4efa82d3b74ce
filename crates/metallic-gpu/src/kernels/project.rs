//! Projections: up to three matrices of any weight types side by side, with norm, bias, residual and gate.

use metallic_core::{DType, Unary};

use super::norm::{NormSpec, rms_norm};
use super::typed::unary_code;
use super::{Slot, Stage, Stages, matmul, matvec, row_bytes, weight_type};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// `x [tokens, cols]` times up to three matrices of so many rows, side by side. Where they are spread by
    /// [`matvec::Spread`], a simdgroup has `blocks` times [`matvec::ROWS`] rows of one; on the way into the cache, `pairs`
    /// elements of each head are rotated with a partner. Of vectors for weights in cells, `blocks` cells lie in threadgroup memory at
    /// a time, and a threadgroup has `split` pairs of tiles at a time; `fine`: what is left of a number is one more, 0 or 1.
    ProjectParams {
        cols: u32, tokens: u32, rows0: u32, rows1: u32, rows2: u32, blocks: u32, eps: f32, pairs: u32, magnitude: f32,
        split: u32, fine: u32,
    }
}

/// Matrices side by side, see the file.
pub(crate) const PROJECT: (&str, &str) = ("project.metal", include_str!("project.metal"));

pub(crate) const MAX_PARTS: usize = 3;

/// One matrix of a projection: `[rows, cols]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) dtype: DType,
    /// Its rows: columns of the result.
    pub(crate) rows: u32,
    pub(crate) weight: Slot,
    /// A vector that is added: `F32 [rows]`.
    pub(crate) bias: Option<Slot>,
}

/// `concat_i(W_i · norm(x) + b_i) + residual`, or `act(W_0 · norm(x) + b_0) * (W_1 · norm(x) + b_1) + residual` with a
/// gate. Activations are `F32`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Projection {
    pub(crate) op: &'static str,
    /// Rows of `x` and of the result.
    pub(crate) tokens: u32,
    /// Columns of `x` and of every matrix.
    pub(crate) cols: u32,
    /// The matrices, the first ones present.
    pub(crate) parts: [Option<Part>; MAX_PARTS],
    /// `[tokens, cols]`
    pub(crate) x: Slot,
    /// Normalise `x` first: epsilon and weight `[cols]`.
    pub(crate) norm: Option<(f32, Slot)>,
    /// A tensor of the result's shape that is added.
    pub(crate) residual: Option<Slot>,
    /// Activation of the first matrix's result, which then multiplies the second's.
    pub(crate) gate: Option<Unary>,
    /// Whether `x` is taken as exactly as floats are, where kernels would else take less of it.
    pub(crate) fine: bool,
}

impl Projection {
    /// Columns of the result.
    pub(crate) fn width(&self) -> u32 {
        let [first, second, third] = self.part_rows();
        if self.gate.is_some() { first } else { first + second + third }
    }

    /// Rows of each matrix, 0 where there is none.
    pub(crate) fn part_rows(&self) -> [u32; MAX_PARTS] {
        self.parts.map(|part| part.map_or(0, |part| part.rows))
    }

    /// The numbers of its kernels; nothing is rotated.
    pub(crate) fn params(&self) -> ProjectParams {
        let [rows0, rows1, rows2] = self.part_rows();
        let eps = self.norm.map_or(0.0, |(eps, _)| eps);
        let (cols, tokens) = (self.cols, self.tokens);
        ProjectParams {
            cols,
            tokens,
            rows0,
            rows1,
            rows2,
            blocks: 0,
            eps,
            pairs: 0,
            magnitude: 0.0,
            split: 0,
            fine: 0,
        }
    }

    /// The function constants of `project.metal`: types, then what is done with vectors and products.
    pub(crate) fn constants(&self) -> Result<[u32; 8], GpuError> {
        let [first, second, third] = self.types()?;
        let with = [self.norm.is_some(), self.has_bias(), self.residual.is_some(), self.gate.is_some()];
        let [norm, bias, residual, gate] = with.map(u32::from);
        Ok([first, second, third, norm, bias, residual, gate, self.gate.map_or(0, unary_code)])
    }

    pub(crate) fn norm_slot(&self) -> Slot {
        self.norm.map_or(Slot::Unused, |(_, slot)| slot)
    }

    pub(crate) fn residual_slot(&self) -> Slot {
        self.residual.unwrap_or(Slot::Unused)
    }

    fn has_bias(&self) -> bool {
        self.parts.iter().flatten().any(|part| part.bias.is_some())
    }

    pub(crate) fn weights(&self) -> [Slot; MAX_PARTS] {
        self.parts.map(|part| part.map_or(Slot::Unused, |part| part.weight))
    }

    pub(crate) fn biases(&self) -> [Slot; MAX_PARTS] {
        self.parts.map(|part| part.and_then(|part| part.bias).unwrap_or(Slot::Unused))
    }

    /// The numbers of the matrices' types. Those that are not there have the first one's: a compiler then sees one type
    /// where there is one, and drops the decoders of all others.
    fn types(&self) -> Result<[u32; MAX_PARTS], GpuError> {
        let first = self.parts[0].map_or(Ok(0), |part| weight_type(self.op, part.dtype))?;
        let mut types = [first; MAX_PARTS];
        for (number, part) in types.iter_mut().zip(self.parts.iter().flatten()) {
            *number = weight_type(self.op, part.dtype)?;
        }
        Ok(types)
    }

    /// A stage that reads every matrix so many times, the first of them at this argument.
    #[allow(clippy::large_types_passed_by_value)] // It is moved through.
    pub(crate) fn reading(&self, mut stage: Stage, first: usize, times: u32) -> Result<Stage, GpuError> {
        for (index, part) in self.parts.iter().flatten().enumerate() {
            let bytes = row_bytes(self.op, part.dtype, self.cols)?.saturating_mul(part.rows as usize);
            stage = stage.touching(first + index, bytes.saturating_mul(times as usize));
        }
        Ok(stage)
    }

    pub(crate) fn check(&self) -> Result<(), GpuError> {
        let refuse = |reason: String| Err(GpuError::unsupported(self.op, reason));
        let parts: Vec<&Part> = self.parts.iter().flatten().collect();
        let leading = self.parts.iter().take_while(|part| part.is_some()).count();
        if parts.is_empty() || leading != parts.len() {
            return refuse(format!("{} matrices, {leading} of them leading", parts.len()));
        }
        let (tokens, cols, rows) = (self.tokens, self.cols, self.part_rows());
        if tokens == 0 || cols == 0 || parts.iter().any(|part| part.rows == 0) {
            return refuse(format!("nothing to do: {tokens} tokens, {cols} columns, rows {rows:?}"));
        }
        if parts.iter().any(|part| part.bias.is_some() != self.has_bias()) {
            return refuse("a bias for some matrices and none for others".to_owned());
        }
        if self.gate.is_some() && (parts.len() != 2 || parts[0].rows != parts[1].rows) {
            return refuse(format!("a gate over matrices of {rows:?} rows, two alike are needed"));
        }
        for part in parts {
            weight_type(self.op, part.dtype)?;
            row_bytes(self.op, part.dtype, cols)?;
        }
        let width = rows.iter().try_fold(0u32, |sum, rows| sum.checked_add(*rows));
        if width.and_then(|width| width.checked_mul(tokens)).is_none() {
            return refuse(format!("{tokens} tokens of {rows:?} results"));
        }
        Ok(())
    }
}

/// One launch for any number of tokens, everything fused; every [`matvec::MAX_TOKENS`] of them read the weights again.
/// A device without matrix units runs many tokens faster like this than by tiles, and a token's numbers are the same
/// whatever comes with it.
pub(crate) fn plan_vectors(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    projection.check()?;
    Ok(matvec::stage(projection, limits)?.into())
}

/// The norm, then the products by tiles, the gate's before those it gates.
pub(crate) fn plan_tiles(projection: &Projection, limits: &Limits) -> Result<Stages, GpuError> {
    projection.check()?;
    let mut stages = Stages::default();
    let mut products = *projection;
    let floats = |cols: u32| projection.tokens as usize * cols as usize * 4;
    if let Some((eps, weight)) = products.norm.take() {
        let launch = rms_norm(&NormSpec::plain(projection.tokens, projection.cols, eps), limits)?;
        products.x = stages.add_scratch(floats(projection.cols));
        stages.stages.push(Stage::new(launch, [projection.x, weight, products.x]));
    }
    let mut gate = Slot::Unused;
    if projection.gate.is_some() {
        gate = stages.add_scratch(floats(projection.width()));
        let side = |part: usize| [projection.parts[part], None, None];
        let first = Projection { parts: side(0), gate: None, residual: None, ..products };
        stages.stages.push(matmul::stage(&first, Slot::Unused, gate, limits)?);
        products.parts = side(1);
    }
    stages.stages.push(matmul::stage(&products, gate, Slot::Output, limits)?);
    Ok(stages)
}
