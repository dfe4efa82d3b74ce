//! Rotary position embedding, and the way of keys and values into the cache.

use metallic_core::tensor::View;
use metallic_core::{DType, KvLayout, Rope, RopePairs};

use super::sdpa::word;
use super::{Arg, COMMON, Constants, Family, Kernel, Launch, Slot, Stage, Stages, StepTable, reads, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// One thread per element of `[tokens, cols]`. Strides are in elements: from a token to the next, from a head, from a column.
    RopeParams {
        cols: u32, pairs: u32, magnitude: f32, position: u32, freq: u32,
        x_token: u32, x_head: u32, x_col: u32, out_token: u32, out_head: u32, out_col: u32,
    }
}

kernel_params! {
    /// One simdgroup per token and head.
    KvWriteParams { tokens: u32, kv_heads: u32 }
}

kernel_params! {
    /// One simdgroup per token and head of `q | k | v`.
    RopeKvParams { tokens: u32, heads: u32, kv_heads: u32, pairs: u32, magnitude: f32, eps: f32 }
}

/// How keys and values lie in the cache, for every family that touches it.
pub(crate) const KV: (&str, &str) = ("kv.metal", include_str!("kv.metal"));
/// Bytes the cache of a layer begins at a multiple of, so that rows can be read four elements at a time.
pub(crate) const KV_ALIGN: usize = 16;

/// Rotations, see the file.
pub(crate) const ROTATE: (&str, &str) = ("rotate.metal", include_str!("rotate.metal"));

pub(crate) const FAMILY: Family = Family {
    name: "rope",
    params: &[RopeParams::MSL, KvWriteParams::MSL, RopeKvParams::MSL],
    uses: &[COMMON, KV, ROTATE],
    text: include_str!("rope.metal"),
    kernels: &[
        ("rope_f32", ROPE4),
        ("rope_f16", ROPE2),
        ("rope_bf16", ROPE2),
        ("kv_write", KV_WRITE),
        ("rope_kv_write", ROPE_KV_WRITE),
    ],
};

const ROPE4: &[Arg] = &[reads("x", 4), reads("positions", 4), reads("freqs", 4), writes("out", 4)];
const ROPE2: &[Arg] = &[reads("x", 2), reads("positions", 4), reads("freqs", 4), writes("out", 2)];
const KV_WRITE: &[Arg] = &[
    reads("k", 4),
    reads("v", 4),
    reads("rows", 8),
    reads("blocks", 4),
    writes("keys", KV_ALIGN),
    writes("values", KV_ALIGN),
];
const ROPE_KV_WRITE: &[Arg] = &[
    reads("qkv", 4),
    reads("positions", 4),
    reads("freqs", 4),
    reads("q_norm", 4),
    reads("k_norm", 4),
    reads("rows", 8),
    reads("blocks", 4),
    writes("out", 4),
    writes("keys", KV_ALIGN),
    writes("values", KV_ALIGN),
];

/// The number kernels know a cache's element type by.
pub(crate) fn kv_type(op: &'static str, dtype: DType, head_dim: usize) -> Result<u32, GpuError> {
    if !KvLayout::supports(dtype, head_dim) || head_dim == 0 {
        let reason =
            format!("a cache of {dtype} with heads of {head_dim}; F32, F16, BF16 or Q8_0 in whole blocks");
        return Err(GpuError::Unsupported { op, reason });
    }
    Ok(match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        _ => 3,
    })
}

pub(crate) fn interleaved(rope: &Rope) -> u32 {
    u32::from(rope.pairs == RopePairs::Interleaved)
}

fn check(op: &'static str, rope: &Rope, pairs: u32) -> Result<(), GpuError> {
    if rope.head_dim == 0 || 2 * pairs as usize > rope.head_dim {
        let reason = format!("{pairs} frequencies for heads of {}; at most half as many", rope.head_dim);
        return Err(GpuError::Unsupported { op, reason });
    }
    Ok(())
}

/// Plans [`metallic_core::tensor::TensorOp::Rope`]: `(x [tokens, heads, head_dim], positions [tokens], freqs [pairs])`, each
/// bound at its view's first element. The output may not lie on the input: every element reads its partner.
pub(crate) fn rope_view(
    rope: &Rope,
    [x, positions, freqs, out]: [&View; 4],
    limits: &Limits,
) -> Result<Launch, GpuError> {
    let unsupported = |reason: String| GpuError::Unsupported { op: "rope", reason };
    let (function, args) = match x.dtype() {
        DType::F32 => ("rope_f32", ROPE4),
        DType::F16 => ("rope_f16", ROPE2),
        DType::BF16 => ("rope_bf16", ROPE2),
        other => return Err(unsupported(format!("rows of {other}; F32, F16 or BF16 are needed"))),
    };
    let count = |n| word("rope", n);
    let (&[tokens, heads, head_dim], &[x_token, x_head, x_col]) = (x.shape(), x.strides()) else {
        return Err(unsupported(format!(
            "a tensor of rank {}; [tokens, heads, head_dim] is needed",
            x.rank()
        )));
    };
    let &[out_token, out_head, out_col] = out.strides() else {
        return Err(unsupported(format!(
            "a result of rank {}; [tokens, heads, head_dim] is needed",
            out.rank()
        )));
    };
    let stride = |view: &View| count(view.strides().first().copied().unwrap_or(0));
    let pairs = count(freqs.elements())?;
    check("rope", rope, pairs)?;
    if head_dim != rope.head_dim {
        return Err(unsupported(format!("heads of {head_dim} where {} is said", rope.head_dim)));
    }
    let cols = count(heads.saturating_mul(head_dim))?;
    let (groups, threads) = threadgroup::linear(cols, limits);
    let params = RopeParams {
        cols,
        pairs,
        magnitude: rope.magnitude,
        position: stride(positions)?,
        freq: stride(freqs)?,
        x_token: count(x_token)?,
        x_head: count(x_head)?,
        x_col: count(x_col)?,
        out_token: count(out_token)?,
        out_head: count(out_head)?,
        out_col: count(out_col)?,
    };
    Ok(Launch {
        kernel: Kernel {
            family: &FAMILY,
            function,
            constants: Constants::of([0, count(head_dim)?, interleaved(rope), 0]),
            args,
        },
        params: params.params(),
        groups: [groups, count(tokens)?, 1],
        threads: [threads, 1, 1],
        threadgroup_bytes: 0,
        work: 0,
    })
}

/// The graph's rotation: `(x [tokens, cols], positions, freqs [pairs])`.
pub(crate) fn rope(
    rope: &Rope,
    (tokens, cols): (u32, u32),
    pairs: u32,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    let unsupported = |reason: String| GpuError::Unsupported { op: "rope", reason };
    let (head_dim, tokens, cols) = (rope.head_dim.max(1), tokens as usize, cols as usize);
    if !cols.is_multiple_of(head_dim) {
        return Err(unsupported(format!("rows of {cols} with heads of {head_dim}")));
    }
    let dense =
        |dtype, shape: &[usize]| View::contiguous(dtype, shape).map_err(|e| unsupported(e.to_string()));
    let x = dense(DType::F32, &[tokens, cols / head_dim, head_dim])?;
    let positions = dense(DType::U32, &[tokens])?;
    let freqs = dense(DType::F32, &[pairs as usize])?;
    let launch = rope_view(rope, [&x, &positions, &freqs, &x], limits)?;
    let positions = Slot::Step(StepTable::Positions);
    Ok(Stage::new(launch, [Slot::Input(0), positions, Slot::Input(2), Slot::Output]).into())
}

/// Threadgroups and threads for so many simdgroups that work alone.
fn simdgroups(count: u64, limits: &Limits) -> Result<([u32; 3], [u32; 3]), GpuError> {
    let width = limits.simd_width.max(1);
    let each = (limits.max_threads / width).clamp(1, 8).min(count.max(1) as u32);
    let groups = u32::try_from(count.div_ceil(u64::from(each))).map_err(|_| GpuError::Unsupported {
        op: "kv_write",
        reason: format!("{count} rows; kernels count to {}", u32::MAX),
    })?;
    Ok(([groups, 1, 1], [each * width, 1, 1]))
}

/// Stores the keys and values of the step's tokens: `(k, v [tokens, kv_heads * head_dim])`.
pub(crate) fn kv_write(kv: &KvLayout, tokens: u32, limits: &Limits) -> Result<Stages, GpuError> {
    let constants = Constants::of([kv_type("kv_write", kv.dtype, kv.head_dim)?, kv.head_dim as u32, 0, 0]);
    let (groups, threads) = simdgroups(u64::from(tokens) * 2 * kv.kv_heads as u64, limits)?;
    let launch = Launch {
        kernel: Kernel { family: &FAMILY, function: "kv_write", constants, args: KV_WRITE },
        params: KvWriteParams { tokens, kv_heads: kv.kv_heads as u32 }.params(),
        groups,
        threads,
        threadgroup_bytes: 0,
        work: 0,
    };
    let slots = [
        Slot::Input(0),
        Slot::Input(1),
        Slot::Step(StepTable::Rows),
        Slot::Step(StepTable::Blocks),
        Slot::Keys,
        Slot::Values,
    ];
    let (stored, tables) = written(kv, tokens);
    Ok(Stage::new(launch, slots).touching(3, tables).touching(4, stored).touching(5, stored).into())
}

/// Bytes of the keys, or of the values, of so many tokens, and of the table that says where they go.
fn written(kv: &KvLayout, tokens: u32) -> (usize, usize) {
    (tokens as usize * kv.kv_heads * kv.row_bytes(), tokens as usize * 4)
}

/// What normalises the heads of queries and keys before they are rotated, by [`metallic_core::Op::RmsNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadNorm {
    /// The norm's epsilon.
    pub(crate) eps: f32,
    /// Weights of the queries' norm: `F32 [head_dim]`.
    pub(crate) q: Slot,
    /// Weights of the keys' norm: `F32 [head_dim]`.
    pub(crate) k: Slot,
}

/// Rows `q | k | v` on their way into the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeKv<'a> {
    /// The rotation of queries and keys.
    pub(crate) rope: &'a Rope,
    /// The cache that keys and values go to.
    pub(crate) kv: &'a KvLayout,
    /// Query heads.
    pub(crate) heads: u32,
    /// Rows.
    pub(crate) tokens: u32,
    /// Elements of a head that are rotated, with a partner each.
    pub(crate) pairs: u32,
    /// A frequency for each pair: `F32 [pairs]`.
    pub(crate) freqs: Slot,
    /// For the families that have it: a norm of each head.
    pub(crate) norm: Option<HeadNorm>,
}

impl RopeKv<'_> {
    /// Refuses what no kernel takes; returns the number of the cache's type.
    pub(crate) fn check(&self, op: &'static str) -> Result<u32, GpuError> {
        check(op, self.rope, self.pairs)?;
        if self.rope.head_dim != self.kv.head_dim {
            let reason =
                format!("heads of {} for a cache of heads of {}", self.rope.head_dim, self.kv.head_dim);
            return Err(GpuError::Unsupported { op, reason });
        }
        kv_type(op, self.kv.dtype, self.kv.head_dim)
    }

    /// Bytes of the keys, or of the values, and of the table that says where they go.
    pub(crate) fn written(&self) -> (usize, usize) {
        written(self.kv, self.tokens)
    }
}

/// Rotates queries and keys of `qkv [tokens, (heads + 2 kv_heads) * head_dim]`, stores keys and values; the result is
/// `q [tokens, heads * head_dim]`.
pub(crate) fn rope_kv_write(spec: &RopeKv<'_>, qkv: Slot, limits: &Limits) -> Result<Stage, GpuError> {
    const OP: &str = "rope_kv_write";
    let RopeKv { rope, kv, heads, tokens, pairs, freqs, norm } = *spec;
    let kv_type = spec.check(OP)?;
    let kv_heads = kv.kv_heads as u32;
    let (groups, threads) = simdgroups(u64::from(tokens) * u64::from(heads + 2 * kv_heads), limits)?;
    let constants =
        Constants::of([kv_type, kv.head_dim as u32, interleaved(rope), u32::from(norm.is_some())]);
    let eps = norm.map_or(0.0, |n| n.eps);
    let launch = Launch {
        kernel: Kernel { family: &FAMILY, function: "rope_kv_write", constants, args: ROPE_KV_WRITE },
        params: RopeKvParams { tokens, heads, kv_heads, pairs, magnitude: rope.magnitude, eps }.params(),
        groups,
        threads,
        threadgroup_bytes: 0,
        work: 0,
    };
    let slots = [
        qkv,
        Slot::Step(StepTable::Positions),
        freqs,
        norm.map_or(Slot::Unused, |n| n.q),
        norm.map_or(Slot::Unused, |n| n.k),
        Slot::Step(StepTable::Rows),
        Slot::Step(StepTable::Blocks),
        Slot::Output,
        Slot::Keys,
        Slot::Values,
    ];
    let (stored, tables) = spec.written();
    Ok(Stage::new(launch, slots).touching(6, tables).touching(8, stored).touching(9, stored))
}

#[cfg(test)]
mod tests;
