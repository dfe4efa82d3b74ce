//! Rotary position embedding, and the way of keys and values into the cache.

use metallic_core::{DType, Rope, RopePairs, StateLayout};

use super::typed::PerFloat;
use super::{Arg, COMMON, Constants, Family, Kernel, Launch, Slot, Stage, Stages, StepTable, reads, writes};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// One thread per element of `[tokens, cols]`.
    RopeParams { cols: u32, pairs: u32, magnitude: f32 }
}

kernel_params! {
    /// One simdgroup per token and head.
    KvWriteParams { tokens: u32, kv_heads: u32, value_dim: u32 }
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
    if !StateLayout::supports(dtype, head_dim) || head_dim == 0 {
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

const ROPE: PerFloat =
    PerFloat { op: "rope", functions: ["rope_f32", "rope_f16", "rope_bf16"], args: [ROPE4, ROPE2] };

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
    let launch = Launch {
        kernel: ROPE.of(&FAMILY, dtype, constants)?,
        params: RopeParams { cols, pairs, magnitude: rope.magnitude }.params(),
        groups: [groups, tokens, 1],
        threads: [threads, 1, 1],
        threadgroup_bytes: 0,
        work: 0,
    };
    Ok(Stage::new(launch, [Slot::Input(0), Slot::Input(1), Slot::Input(2), Slot::Output]).into())
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

/// Keys and values of a step's tokens on their way into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvRows {
    /// How the cache stores them.
    pub(crate) dtype: DType,
    /// Heads of a token.
    pub(crate) kv_heads: usize,
    /// Elements of a key's head.
    pub(crate) head_dim: usize,
    /// Elements of a value's head.
    pub(crate) value_dim: usize,
    /// Tokens.
    pub(crate) tokens: u32,
}

impl KvRows {
    /// Bytes of heads of this many elements of all tokens.
    fn stored(&self, dim: usize) -> usize {
        self.tokens as usize * self.kv_heads * (dim / self.dtype.block_len() * self.dtype.block_bytes())
    }

    /// Bytes of the table that says where they go.
    fn tables(&self) -> usize {
        self.tokens as usize * 4
    }

    /// What a stage moves that has the block table, the keys and the values at these arguments.
    #[allow(clippy::large_types_passed_by_value)] // It is moved through.
    pub(crate) fn moving(&self, stage: Stage, [blocks, keys, values]: [usize; 3]) -> Stage {
        let [k, v] = [self.head_dim, self.value_dim].map(|dim| self.stored(dim));
        stage.touching(blocks, self.tables()).touching(keys, k).touching(values, v)
    }
}

/// Stores the keys and values of the step's tokens: `(k [tokens, kv_heads * head_dim], v [tokens, kv_heads * value_dim])`.
pub(crate) fn kv_write(kv: &KvRows, limits: &Limits) -> Result<Stages, GpuError> {
    kv_type("kv_write", kv.dtype, kv.value_dim)?;
    let constants = Constants::of([kv_type("kv_write", kv.dtype, kv.head_dim)?, kv.head_dim as u32, 0, 0]);
    let (kv_heads, value_dim) = (kv.kv_heads as u32, kv.value_dim as u32);
    let (groups, threads) = simdgroups(u64::from(kv.tokens) * 2 * kv.kv_heads as u64, limits)?;
    let launch = Launch {
        kernel: Kernel { family: &FAMILY, function: "kv_write", constants, args: KV_WRITE },
        params: KvWriteParams { tokens: kv.tokens, kv_heads, value_dim }.params(),
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
    Ok(kv.moving(Stage::new(launch, slots), [3, 4, 5]).into())
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
    /// The keys and values, one of each a row.
    pub(crate) kv: KvRows,
    /// Query heads.
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
            return Err(GpuError::Unsupported { op, reason });
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
        positions,
        freqs,
        norm.map_or(Slot::Unused, |n| n.q),
        norm.map_or(Slot::Unused, |n| n.k),
        Slot::Step(StepTable::Rows),
        Slot::Step(StepTable::Blocks),
        Slot::Output,
        Slot::Keys,
        Slot::Values,
    ];
    Ok(kv.moving(Stage::new(launch, slots), [6, 8, 9]))
}

#[cfg(test)]
pub(crate) mod tests;
