//! Sixteen lanes of f32 and i32: the little machine every kernel is written for, once per instruction set.

use super::activations::QGroup;
use super::format::Format;
use super::math::ROUND;

/// Functions of [`Lanes`], written without the frame they have in common.
macro_rules! inlined {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $result:ty)? { $($body:tt)* })*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe, reason = "plain arrays need none")]
        unsafe fn $name($($arg: $ty),*) $(-> $result)? {
            // SAFETY: the caller has the features, and pointers are valid for what the trait says of the function.
            unsafe { $($body)* }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(super) use avx512::Avx512;
pub(super) use portable::Portable;
pub(super) use portable::widen;

/// Sixteen lanes; a lane is a row of a weight tile or an element of a vector.
///
/// # Safety
/// Every function must be called from code compiled with the instruction set's target features, and
/// is `#[inline(always)]` so that it becomes part of that code. Pointers need no alignment; what each
/// one must be valid for is said at the function.
pub(super) trait Lanes {
    /// 16 × f32.
    type F: Copy;
    /// 16 × i32.
    type I: Copy;
    /// Tokens computed together by the integer kernels: what the registers hold.
    const INT_BLOCK: usize;
    /// Tokens computed together by the float kernels: 1, 3 or 4.
    const FLOAT_BLOCK: usize;
    /// Chains of sums over k of the float kernels: 2 or 4, enough to hide the latency of one addition.
    const CHAINS: usize;
    /// Queries attended to together, at most 6, and whether two vectors at a time.
    const PANEL_ROWS: usize;
    const PANEL_WIDE: bool;
    /// Whether `fma` rounds once.
    const FMA: bool;
    /// Whether `dot` takes values of 8 bits less their `OFFSET` as they are unpacked.
    const SIGNED: bool;

    unsafe fn splat(x: f32) -> Self::F;
    /// Reads 16 f32.
    unsafe fn load(p: *const f32) -> Self::F;
    /// Reads 16 little-endian f16.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// Reads 16 little-endian bf16.
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// Reads 16 i8.
    unsafe fn load_i8(p: *const u8) -> Self::F;
    /// Writes 16 f32.
    unsafe fn store(x: Self::F, p: *mut f32);
    /// Writes 16 little-endian f16, rounded to nearest even.
    unsafe fn store_f16(x: Self::F, p: *mut u8);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The sums of all lanes of each, every one in the same order: halves to halves down to four, then
    /// `(0 + 1) + (2 + 3)`.
    unsafe fn sums(x: [Self::F; 4]) -> [f32; 4];
    /// The sum of all lanes, in the order of `sums`.
    #[inline(always)]
    unsafe fn sum(x: Self::F) -> f32 {
        // SAFETY: features by the caller.
        unsafe { Self::sums([x; 4])[0] }
    }
    unsafe fn to_float(x: Self::I) -> Self::F;
    /// Asks for the cache line at `p`, which need not be readable.
    unsafe fn prefetch(p: *const u8);

    /// The largest magnitudes of twice 16 values, as bits: they order as the magnitudes do, infinities and NaNs above
    /// all numbers.
    #[inline(always)]
    unsafe fn tops(x: *const f32) -> [u32; 2] {
        // SAFETY: 32 readable f32 by the caller.
        let x = unsafe { x.cast::<[[f32; 16]; 2]>().read_unaligned() };
        x.map(|x| x.iter().fold(0, |top, v| top.max(v.to_bits() & 0x7fff_ffff)))
    }

    /// Writes 16 values times `inverse`, rounded to even, as i8; their sum. What does not fit is any number.
    #[inline(always)]
    unsafe fn quantize16(x: *const f32, inverse: f32, out: *mut i8) -> i32 {
        // SAFETY: 16 readable f32 by the caller.
        let x = unsafe { x.cast::<[f32; 16]>().read_unaligned() };
        let q =
            x.map(|x| ((x * inverse + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32) as i8);
        // SAFETY: 16 writable i8 by the caller.
        unsafe { out.cast::<[i8; 16]>().write(q) };
        q.iter().map(|q| i32::from(*q)).sum()
    }

    /// Whether `dot` leaves `OFFSET` to be taken off afterwards, for all tokens by one operation each: where halves of
    /// activations have scales of their own, their scaled sum is at hand.
    #[inline(always)]
    fn leaves_offset<Q: Format>() -> bool {
        Q::FINE && Q::OFFSET != 0 && !(Self::SIGNED && Q::OFFSET == 128)
    }

    /// For each of `T` tokens the sums over a group of `(q - OFFSET) * x` for 16 rows: one sum, or two
    /// where halves are apart (`SPLIT`); of `q * x` where [`leaves_offset`](Lanes::leaves_offset). Exact.
    ///
    /// Reads `Q::GROUP_BYTES` at `w` and one record at each `x`.
    unsafe fn dot<Q: Format, const T: usize>(w: *const u8, x: &[*const QGroup; T]) -> [[Self::I; 2]; T];
}

/// Four activations as the 32-bit word that is broadcast.
///
/// # Safety
/// `x` points to a record; `j < 8`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quad(x: *const QGroup, j: usize) -> i32 {
    // SAFETY: 4 j + 4 <= 32, within `values`, the first field.
    unsafe { x.cast::<i32>().add(j).read() }
}

/// The two half sums as one 32-bit word.
///
/// # Safety
/// `x` points to a record.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sums(x: *const QGroup) -> i32 {
    // SAFETY: the record is valid (caller), and reading `sums` as one word stays inside it.
    unsafe { (&raw const (*x).sums).cast::<i32>().read_unaligned() }
}
