//! Rotary position embedding, and the way of keys and values into the cache.

use metallic_core::{DType, Rope, RopePairs, StateLayout};

use super::{COMMON, Constants, Kernel, Launch, Params, Slot, Stage, Stages, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// One thread per element of `[tokens, cols]`.
    RopeParams { cols: u32, pairs: u32, magnitude: f32 }
    /// One simdgroup per token and head.
    KvWriteParams { tokens: u32, kv_heads: u32, value_dim: u32 }
    /// One simdgroup per token and head of `q | k | v`.
    RopeKvParams { tokens: u32, heads: u32, kv_heads: u32, pairs: u32, magnitude: f32, eps: f32 }
}

/// How keys and values lie in the cache, for every family that touches it.
pub(crate) const KV: (&str, &str) = ("kv.metal", include_str!("kv.metal"));
/// Bytes the cache of a layer begins at a multiple of, so that rows can be read four elements at a time.
pub(crate) const KV_ALIGN: usize = 16;

/// Rotations, see the file.
pub(crate) const ROTATE: (&str, &str) = ("rotate.metal", include_str!("rotate.metal"));

family! {
    "rope" (RopeParams, KvWriteParams, RopeKvParams) uses COMMON, KV, ROTATE;
    "rope" each float of size { reads x: size, positions: 4, freqs: 4; writes out: size }
    "kv_write" { reads k: 4, v: 4, rows: 8, blocks: 4; writes keys: KV_ALIGN, values: KV_ALIGN }
    "rope_kv_write" {
        reads qkv: 4, positions: 4, freqs: 4, q_norm: 4, k_norm: 4, rows: 8, blocks: 4;
        writes out: 4, keys: KV_ALIGN, values: KV_ALIGN
    }
}

/// The number kernels know a cache's element type by.
pub(crate) fn kv_type(op: &'static str, dtype: DType, head_dim: usize) -> Result<u32, GpuError> {
    if !StateLayout::supports(dtype, head_dim) || head_dim == 0 {
        let reason =
            format!("a cache of {dtype} with heads of {head_dim}; F32, F16, BF16 or Q8_0 in whole blocks");
        return Err(GpuError::unsupported(op, reason));
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
        return Err(GpuError::unsupported(op, reason));
    }
    Ok(())
}

/// Rotates heads: `(x [tokens, cols], positions [tokens], freqs [pairs]) -> out [tokens, cols]`. Every element reads its
/// partner, so the output may not lie on the input.
pub(crate) fn rope(
    dtype: DType,
    rope: &Rope,
    (tokens, cols): (u32, u32),
    pairs: u32,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    check("rope", rope, pairs)?;
    let (groups, threads) = threadgroup::linear(cols, limits);
    let constants = Constants::of([0, rope.head_dim as u32, interleaved(rope), 0]);
    let params = RopeParams { cols, pairs, magnitude: rope.magnitude }.params();
    let kernel = FAMILY.of_float("rope", dtype, constants)?;
    let launch = kernel.launch(params, [groups, tokens, 1], [threads, 1, 1]);
    Ok(Stage::new(launch, [Slot::Input(0), Slot::Input(1), Slot::Input(2), Slot::Output]).into())
}

/// A kernel in so many simdgroups that work alone.
fn simdgroups(kernel: Kernel, params: Params, count: u64, limits: &Limits) -> Result<Launch, GpuError> {
    let width = limits.simd_width.max(1);
    let each = (limits.max_threads / width).clamp(1, 8).min(count.max(1) as u32);
    let too_many =
        |_| GpuError::unsupported("kv_write", format!("{count} rows; kernels count to {}", u32::MAX));
    let groups = u32::try_from(count.div_ceil(u64::from(each))).map_err(too_many)?;
    Ok(kernel.launch(params, [groups, 1, 1], [each * width, 1, 1]))
}

/// Keys and values of a step's tokens on their way into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvRows {
    pub(crate) dtype: DType,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) value_dim: usize,
    pub(crate) tokens: u32,
}

impl KvRows {
    /// What a stage moves that has the block table, the keys and the values at these arguments.
    #[allow(clippy::large_types_passed_by_value)] // It is moved through.
    pub(crate) fn moving(&self, stage: Stage, [blocks, keys, values]: [usize; 3]) -> Stage {
        let tokens = self.tokens as usize;
        let row = |dim: usize| dim / self.dtype.block_len() * self.dtype.block_bytes();
        let [k, v] = [self.head_dim, self.value_dim].map(|dim| tokens * self.kv_heads * row(dim));
        stage.touching(blocks, tokens * 4).touching(keys, k).touching(values, v)
    }
}

/// Stores the keys and values of the step's tokens: `(k [tokens, kv_heads * head_dim], v [tokens, kv_heads * value_dim])`.
pub(crate) fn kv_write(kv: &KvRows, limits: &Limits) -> Result<Stages, GpuError> {
    kv_type("kv_write", kv.dtype, kv.value_dim)?;
    let constants = Constants::of([kv_type("kv_write", kv.dtype, kv.head_dim)?, kv.head_dim as u32, 0, 0]);
    let (kv_heads, value_dim) = (kv.kv_heads as u32, kv.value_dim as u32);
    let params = KvWriteParams { tokens: kv.tokens, kv_heads, value_dim }.params();
    let rows = u64::from(kv.tokens) * 2 * kv.kv_heads as u64;
    let launch = simdgroups(FAMILY.kernel("kv_write", constants), params, rows, limits)?;
    let slots = [Slot::Input(0), Slot::Input(1), Slot::ROWS, Slot::BLOCKS, Slot::Keys, Slot::Values];
    Ok(kv.moving(Stage::new(launch, slots), [3, 4, 5]).into())
}

/// What normalises the heads of queries and keys before they are rotated, by [`metallic_core::Op::RmsNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HeadNorm {
    pub(crate) eps: f32,
    /// Weights of the queries' norm: `F32 [head_dim]`.
    pub(crate) q: Slot,
    /// Weights of the keys' norm: `F32 [head_dim]`.
    pub(crate) k: Slot,
}

/// Rows `q | k | v` on their way into the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeKv<'a> {
    pub(crate) rope: &'a Rope,
    /// The keys and values, one of each a row.
    pub(crate) kv: KvRows,
    pub(crate) heads: u32,
    /// Elements of a head that are rotated, with a partner each.
    pub(crate) pairs: u32,
    /// A position for each row: `U32 [tokens]`.
    pub(crate) positions: Slot,
    /// A frequency for each pair: `F32 [pairs]`.
    pub(crate) freqs: Slot,
    /// For the families that have it: a norm of each head.
    pub(crate) norm: Option<HeadNorm>,
}

impl RopeKv<'_> {
    /// Refuses what no kernel takes; returns the number of the cache's type.
    pub(crate) fn check(&self, op: &'static str) -> Result<u32, GpuError> {
        check(op, self.rope, self.pairs)?;
        let KvRows { head_dim, value_dim, .. } = self.kv;
        if [head_dim, value_dim] != [self.rope.head_dim; 2] {
            let reason = format!(
                "heads of {} for a cache of keys of {head_dim} and values of {value_dim}",
                self.rope.head_dim
            );
            return Err(GpuError::unsupported(op, reason));
        }
        kv_type(op, self.kv.dtype, self.kv.head_dim)
    }
}

/// Rotates queries and keys of `qkv [tokens, (heads + 2 kv_heads) * head_dim]`, stores keys and values; the result is
/// `q [tokens, heads * head_dim]`.
pub(crate) fn rope_kv_write(spec: &RopeKv<'_>, qkv: Slot, limits: &Limits) -> Result<Stage, GpuError> {
    const OP: &str = "rope_kv_write";
    let RopeKv { rope, kv, heads, pairs, positions, freqs, norm } = *spec;
    let tokens = kv.tokens;
    let kv_type = spec.check(OP)?;
    let kv_heads = kv.kv_heads as u32;
    let constants =
        Constants::of([kv_type, kv.head_dim as u32, interleaved(rope), u32::from(norm.is_some())]);
    let eps = norm.map_or(0.0, |n| n.eps);
    let params = RopeKvParams { tokens, heads, kv_heads, pairs, magnitude: rope.magnitude, eps }.params();
    let rows = u64::from(tokens) * u64::from(heads + 2 * kv_heads);
    let launch = simdgroups(FAMILY.kernel(OP, constants), params, rows, limits)?;
    let [q_norm, k_norm] = norm.map_or([Slot::Unused; 2], |n| [n.q, n.k]);
    let (out, keys, values) = (Slot::Output, Slot::Keys, Slot::Values);
    let slots = [qkv, positions, freqs, q_norm, k_norm, Slot::ROWS, Slot::BLOCKS, out, keys, values];
    Ok(kv.moving(Stage::new(launch, slots), [6, 8, 9]))
}

#[cfg(test)]
pub(crate) mod tests;
