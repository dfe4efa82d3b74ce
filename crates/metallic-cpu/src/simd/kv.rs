//! Rows of the KV cache: dot products with K, weighted sums of V, stores; in f32, f16, bf16 or q8_0.
//!
//! A row of `len` values takes [`KvType::row_bytes`]; bytes need no alignment. q8_0 rows are the blocks of
//! GGUF (f16 scale, 32 × i8), the last one filled up with zeros.

use half::bf16;
use metallic_core::DType;

use super::isa::{Isa, dispatch};
use super::lanes::{Lanes, widen};

/// The type of a cached row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// 4 bytes a value.
    F32,
    /// 2 bytes a value.
    F16,
    /// 2 bytes a value.
    BF16,
    /// 34 bytes for 32 values.
    Q8_0,
}

const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 34;

impl KvType {
    /// Every type of the cache.
    pub const ALL: [KvType; 4] = [KvType::F32, KvType::F16, KvType::BF16, KvType::Q8_0];

    /// The cache type for `dtype`, where there is one.
    pub fn of(dtype: DType) -> Option<KvType> {
        match dtype {
            DType::F32 => Some(KvType::F32),
            DType::F16 => Some(KvType::F16),
            DType::BF16 => Some(KvType::BF16),
            DType::Q8_0 => Some(KvType::Q8_0),
            _ => None,
        }
    }

    /// Bytes of a row of `len` values.
    pub fn row_bytes(self, len: usize) -> usize {
        match self {
            KvType::F32 => len * 4,
            KvType::F16 | KvType::BF16 => len * 2,
            KvType::Q8_0 => len.div_ceil(BLOCK) * BLOCK_BYTES,
        }
    }
}

/// Rows of one type in memory: row `i` begins at `i * stride` bytes.
#[derive(Clone, Copy)]
struct Rows<'a> {
    kind: KvType,
    bytes: &'a [u8],
    stride: usize,
}

impl Rows<'_> {
    fn check(&self, rows: usize, len: usize) {
        let row = self.kind.row_bytes(len);
        let needed =
            rows.checked_sub(1).map_or(Some(0), |last| last.checked_mul(self.stride)?.checked_add(row));
        let fits = needed.is_some_and(|needed| needed <= self.bytes.len());
        assert!(
            fits,
            "{rows} cache rows of {row} bytes at a stride of {} in {} bytes",
            self.stride,
            self.bytes.len()
        );
    }
}

/// `Σ row[i] * q[i]`.
///
/// # Panics
/// Where `row` is shorter than `q.len()` values.
pub fn dot(isa: Isa, kind: KvType, row: &[u8], q: &[f32]) -> f32 {
    let mut out = [0.0];
    dot_rows(isa, kind, (row, 0), q, &mut out);
    out[0]
}

/// `out[i] = Σ row_i[j] * q[j]` for `out.len()` rows that begin `stride` bytes apart in `(bytes, stride)`.
///
/// # Panics
/// Where the bytes do not hold that many rows.
pub fn dot_rows(isa: Isa, kind: KvType, (bytes, stride): (&[u8], usize), q: &[f32], out: &mut [f32]) {
    let rows = Rows { kind, bytes, stride };
    rows.check(out.len(), q.len());
    dispatch!(isa, dot_rows_body(rows: Rows<'_>, q: &[f32], out: &mut [f32]));
}

/// `out[j] += weight * row[j]`.
///
/// # Panics
/// Where `row` is shorter than `out.len()` values.
pub fn accumulate(isa: Isa, kind: KvType, row: &[u8], weight: f32, out: &mut [f32]) {
    accumulate_rows(isa, kind, (row, 0), &[weight], out);
}

/// `out[j] += Σ weights[i] * row_i[j]`, rows in order, `stride` bytes apart in `(bytes, stride)`.
///
/// # Panics
/// Where the bytes do not hold `weights.len()` rows.
pub fn accumulate_rows(
    isa: Isa,
    kind: KvType,
    (bytes, stride): (&[u8], usize),
    weights: &[f32],
    out: &mut [f32],
) {
    let rows = Rows { kind, bytes, stride };
    rows.check(weights.len(), out.len());
    dispatch!(isa, accumulate_rows_body(rows: Rows<'_>, weights: &[f32], out: &mut [f32]));
}

/// Writes `src` as a row.
///
/// # Panics
/// Where `dst` is not exactly the row's bytes.
pub fn store_row(isa: Isa, kind: KvType, src: &[f32], dst: &mut [u8]) {
    assert_eq!(dst.len(), kind.row_bytes(src.len()), "bytes of a cache row of {} values", src.len());
    dispatch!(isa, store_body(kind: KvType, src: &[f32], dst: &mut [u8]));
}

/// How 16 values of a row are read.
trait Element {
    /// Bytes of a value, headers of blocks apart.
    const SIZE: usize;
    /// # Safety
    /// The caller has the features of `L`; 16 values can be read at `p`.
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F;
    /// Products of a row with `q`, summed into 16 lanes.
    ///
    /// # Safety
    /// The caller has the features of `L`; a row of `q.len()` values can be read at `row`.
    unsafe fn lanes<L: Lanes>(row: *const u8, q: &[f32]) -> L::F;
}

macro_rules! elements {
    ($($name:ident $size:literal |$p:ident| $load:expr, $lanes:expr;)*) => {$(
        struct $name;
        impl Element for $name {
            const SIZE: usize = $size;
            #[inline(always)]
            unsafe fn load<L: Lanes>($p: *const u8) -> L::F {
                // SAFETY: by the caller.
                unsafe { $load }
            }
            #[inline(always)]
            unsafe fn lanes<L: Lanes>(row: *const u8, q: &[f32]) -> L::F {
                // SAFETY: by the caller.
                unsafe { $lanes(row, q) }
            }
        }
    )*};
}

elements! {
    F32 4 |p| L::load(p.cast()), lanes_plain::<L, F32>;
    F16 2 |p| L::load_f16(p), lanes_plain::<L, F16>;
    BF16 2 |p| L::load_bf16(p), lanes_plain::<L, BF16>;
    I8 1 |p| L::load_i8(p), lanes_q8::<L>;
}

/// # Safety
/// The caller has the features of `L`; `rows` was checked for `out.len()` rows of `q.len()` values.
#[inline(always)]
unsafe fn dot_rows_body<L: Lanes>(rows: Rows<'_>, q: &[f32], out: &mut [f32]) {
    // SAFETY: features and rows by the caller.
    unsafe {
        match rows.kind {
            KvType::F32 => dot_each::<L, F32>(rows, q, out),
            KvType::F16 => dot_each::<L, F16>(rows, q, out),
            KvType::BF16 => dot_each::<L, BF16>(rows, q, out),
            KvType::Q8_0 => dot_each::<L, I8>(rows, q, out),
        }
    }
}

/// Lanes are summed for four rows at a time, in the order they are summed for one.
///
/// # Safety
/// As [`dot_rows_body`], for rows of `E`.
#[inline(always)]
unsafe fn dot_each<L: Lanes, E: Element>(rows: Rows<'_>, q: &[f32], out: &mut [f32]) {
    let (base, stride) = (rows.bytes.as_ptr(), rows.stride);
    let (fours, rest) = out.as_chunks_mut::<4>();
    let mut row = base;
    // No closures here: they would not have the features of the function around them.
    // SAFETY: as many rows lie in the bytes as there are outputs (caller).
    unsafe {
        for out in fours {
            let mut four = [L::splat(0.0); 4];
            for i in 0..4 {
                four[i] = E::lanes::<L>(row, q);
                row = row.wrapping_add(stride);
            }
            *out = L::sums(four);
        }
        for out in rest {
            *out = L::sum(E::lanes::<L>(row, q));
            row = row.wrapping_add(stride);
        }
    }
}

/// # Safety
/// The caller has the features of `L`; `row` has `q.len()` values.
#[inline(always)]
unsafe fn lanes_plain<L: Lanes, E: Element>(row: *const u8, q: &[f32]) -> L::F {
    // SAFETY: whole vectors of 16 are read within both; the rest is padded.
    unsafe {
        let mut sums = [L::splat(0.0); 2];
        let whole = q.len() / 16;
        let mut v = 0;
        while v + 2 <= whole {
            for c in 0..2 {
                let x = E::load::<L>(row.add((v + c) * 16 * E::SIZE));
                sums[c] = L::fma(x, L::load(q.as_ptr().add((v + c) * 16)), sums[c]);
            }
            v += 2;
        }
        if v < whole {
            let x = E::load::<L>(row.add(v * 16 * E::SIZE));
            sums[0] = L::fma(x, L::load(q.as_ptr().add(v * 16)), sums[0]);
        }
        if whole * 16 < q.len() {
            let q = &q[whole * 16..];
            let rest = std::slice::from_raw_parts(row.add(whole * 16 * E::SIZE), q.len() * E::SIZE);
            let (x, q) = (pad_row(rest), pad(q));
            sums[1] = L::fma(E::load::<L>(x.as_ptr()), L::load(q.as_ptr()), sums[1]);
        }
        L::add(sums[0], sums[1])
    }
}

#[inline(always)]
fn pad(x: &[f32]) -> [f32; 16] {
    let mut out = [0.0; 16];
    out[..x.len()].copy_from_slice(x);
    out
}

/// The last fewer than 16 values of a row, zeros behind them.
#[inline(always)]
fn pad_row(rest: &[u8]) -> [u8; 64] {
    let mut out = [0; 64];
    out[..rest.len()].copy_from_slice(rest);
    out
}

/// # Safety
/// The caller has the features of `L`; `row` has the blocks of `q.len()` values.
#[inline(always)]
unsafe fn lanes_q8<L: Lanes>(row: *const u8, q: &[f32]) -> L::F {
    // SAFETY: a block holds 32 values behind its 2 bytes of scale; `q` is read in whole halves or padded.
    unsafe {
        let mut sum = L::splat(0.0);
        for (b, q) in q.chunks(BLOCK).enumerate() {
            let block = row.add(b * BLOCK_BYTES);
            let scale = widen(u16::from_le_bytes(block.cast::<[u8; 2]>().read()));
            let mut part = L::splat(0.0);
            for (h, q) in q.chunks(16).enumerate() {
                let q = if q.len() == 16 { L::load(q.as_ptr()) } else { L::load(pad(q).as_ptr()) };
                part = L::fma(I8::load::<L>(block.add(2 + 16 * h)), q, part);
            }
            sum = L::fma(part, L::splat(scale), sum);
        }
        sum
    }
}

/// # Safety
/// The caller has the features of `L`; `rows` was checked for `weights.len()` rows of `out.len()` values.
#[inline(always)]
unsafe fn accumulate_rows_body<L: Lanes>(rows: Rows<'_>, weights: &[f32], out: &mut [f32]) {
    // SAFETY: features and rows by the caller.
    unsafe {
        match rows.kind {
            KvType::F32 => accumulate_plain::<L, F32>(rows, weights, out),
            KvType::F16 => accumulate_plain::<L, F16>(rows, weights, out),
            KvType::BF16 => accumulate_plain::<L, BF16>(rows, weights, out),
            KvType::Q8_0 => accumulate_q8::<L>(rows, weights, out),
        }
    }
}

/// # Safety
/// As [`accumulate_rows_body`].
#[inline(always)]
unsafe fn accumulate_plain<L: Lanes, E: Element>(rows: Rows<'_>, weights: &[f32], out: &mut [f32]) {
    // SAFETY: column blocks of 64 and 16 lie within each row and `out`; the rest is padded.
    unsafe {
        let base = rows.bytes.as_ptr();
        let mut at = 0;
        // 64 columns stay in registers while the rows pass.
        while at + 64 <= out.len() {
            let p = out.as_mut_ptr().add(at);
            let mut sums = [L::load(p), L::load(p.add(16)), L::load(p.add(32)), L::load(p.add(48))];
            for (i, weight) in weights.iter().enumerate() {
                let row = base.add(i * rows.stride + at * E::SIZE);
                for c in 0..4 {
                    sums[c] = L::fma(E::load::<L>(row.add(16 * c * E::SIZE)), L::splat(*weight), sums[c]);
                }
            }
            for c in 0..4 {
                L::store(sums[c], p.add(16 * c));
            }
            at += 64;
        }
        while at + 16 <= out.len() {
            let p = out.as_mut_ptr().add(at);
            let mut sum = L::load(p);
            for (i, weight) in weights.iter().enumerate() {
                let row = base.add(i * rows.stride + at * E::SIZE);
                sum = L::fma(E::load::<L>(row), L::splat(*weight), sum);
            }
            L::store(sum, p);
            at += 16;
        }
        if at < out.len() {
            let rest = out.len() - at;
            let mut lanes = pad(&out[at..]);
            let mut sum = L::load(lanes.as_ptr());
            for (i, weight) in weights.iter().enumerate() {
                let row = pad_row(&rows.bytes[i * rows.stride + at * E::SIZE..][..rest * E::SIZE]);
                sum = L::fma(E::load::<L>(row.as_ptr()), L::splat(*weight), sum);
            }
            L::store(sum, lanes.as_mut_ptr());
            out[at..].copy_from_slice(&lanes[..rest]);
        }
    }
}

/// # Safety
/// As [`accumulate_rows_body`].
#[inline(always)]
unsafe fn accumulate_q8<L: Lanes>(rows: Rows<'_>, weights: &[f32], out: &mut [f32]) {
    // SAFETY: block `b` of every row holds the 32 columns from `32 b` on behind its 2 bytes of scale.
    unsafe {
        for (b, out) in out.chunks_mut(BLOCK).enumerate() {
            let mut lanes = [0.0; BLOCK];
            lanes[..out.len()].copy_from_slice(out);
            let mut sums = [L::load(lanes.as_ptr()), L::load(lanes.as_ptr().add(16))];
            for (i, weight) in weights.iter().enumerate() {
                let block = rows.bytes.as_ptr().add(i * rows.stride + b * BLOCK_BYTES);
                let scale = widen(u16::from_le_bytes(block.cast::<[u8; 2]>().read()));
                let factor = L::splat(scale * weight);
                sums[0] = L::fma(I8::load::<L>(block.add(2)), factor, sums[0]);
                sums[1] = L::fma(I8::load::<L>(block.add(18)), factor, sums[1]);
            }
            L::store(sums[0], lanes.as_mut_ptr());
            L::store(sums[1], lanes.as_mut_ptr().add(16));
            out.copy_from_slice(&lanes[..out.len()]);
        }
    }
}

/// # Safety
/// The caller has the features of `L`; `dst` is one row of `src.len()` values.
#[inline(always)]
unsafe fn store_body<L: Lanes>(kind: KvType, src: &[f32], dst: &mut [u8]) {
    match kind {
        KvType::F32 => {
            for (x, out) in src.iter().zip(dst.as_chunks_mut::<4>().0) {
                *out = x.to_le_bytes();
            }
        }
        KvType::F16 => {
            for (x, out) in src.chunks(16).zip(dst.chunks_mut(32)) {
                let mut bytes = [0; 32];
                // SAFETY: features by the caller; both buffers hold 16 values.
                unsafe { L::store_f16(L::load(pad(x).as_ptr()), bytes.as_mut_ptr()) };
                out.copy_from_slice(&bytes[..out.len()]);
            }
        }
        KvType::BF16 => {
            for (x, out) in src.iter().zip(dst.as_chunks_mut::<2>().0) {
                *out = bf16::from_f32(*x).to_le_bytes();
            }
        }
        KvType::Q8_0 => {
            for (x, out) in src.chunks(BLOCK).zip(dst.chunks_exact_mut(BLOCK_BYTES)) {
                store_q8(x, out);
            }
        }
    }
}

/// GGUF's rounding: scale absmax / 127 kept as f16, values rounded with the scale before that.
#[inline(always)]
fn store_q8(x: &[f32], out: &mut [u8]) {
    // As integers, magnitudes order the same way, with infinities and NaNs above all numbers.
    let top = x.iter().fold(0, |top, v| (v.to_bits() & 0x7fff_ffff).max(top));
    let absmax = f32::from_bits(top);
    let scale = absmax / 127.0;
    let inverse = if absmax.is_finite() && scale > 0.0 { 1.0 / scale } else { 0.0 };
    out[..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
    out[2..].fill(0);
    for (x, q) in x.iter().zip(&mut out[2..]) {
        *q = (x * inverse).round_ties_even() as i8 as u8;
    }
}
