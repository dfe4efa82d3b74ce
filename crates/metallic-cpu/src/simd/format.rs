//! What tells packed formats apart, as constants the kernels are compiled for.

use super::lanes::Lanes;

use std::marker::PhantomData;

use metallic_core::{DType, quant};

const fn table(levels: &[i8; 16], offset: i16) -> [u8; 16] {
    let (mut table, mut i) = ([0; 16], 0);
    while i < 16 {
        table[i] = (levels[i] as i16 + offset) as u8;
        i += 1;
    }
    table
}

/// One packed integer format. A group is 32 consecutive k of 16 rows; its values are
/// `scale * (q - OFFSET) + min`, with one or two scales a row.
pub(super) trait Format {
    /// The type in files.
    const DTYPE: DType;
    /// Bits of an unsigned value `q`: 4, 5, 6 or 8. A group takes `BITS * 64` bytes.
    const BITS: usize;
    /// Subtracted from `q`.
    const OFFSET: i16;
    /// Whether scales are `f16 × i8` over 256 k rather than one `f16`.
    const SUPER: bool;
    /// Whether there is a minimum beside each scale.
    const MIN: bool;
    /// Scales in a group: 1 of 32 k, or 2 of 16 k.
    const HALVES: usize;
    /// What 4 bits stand for, plus `OFFSET`, where they are no numbers themselves.
    const TABLE: Option<[u8; 16]>;
    /// Whether a scale is the upper half of an f32 rather than an `f16`.
    const BRAIN: bool;
    /// Whether activations may have a scale for each half of a group, though the weights have one for both.
    const FINE: bool = false;

    /// Whether the halves of a group are summed apart.
    const SPLIT: bool = Self::FINE || Self::HALVES == 2;

    /// Bytes of values in a group of 16 rows.
    const GROUP_BYTES: usize = Self::BITS * 64;
    /// Groups that share one block of scales.
    const SPAN: usize = if Self::SUPER { 8 } else { 1 };
    /// Bytes of a block of scales: `[d f16×16][dmin f16×16]?[scale i8×16]*[min i8×16]*`.
    const SCALE_BYTES: usize = {
        let parts = if Self::MIN { 2 } else { 1 };
        let subs = if Self::SUPER { 16 * 8 * Self::HALVES } else { 0 };
        parts * (32 + subs)
    };
    /// Where the scales of sub-blocks begin in a block of scales.
    const SUBS_AT: usize = if Self::MIN { 64 } else { 32 };
    /// Where the minima of sub-blocks begin.
    const MINS_AT: usize = Self::SUBS_AT + 16 * 8 * Self::HALVES;
}

macro_rules! formats {
    ($($name:ident: $bits:literal bits, offset $offset:literal, super $sup:literal, min $min:literal, halves $halves:literal
        $(, levels $levels:ident)? $(, brain $brain:literal)?;)*) => {
        $(
            pub(super) struct $name;
            impl Format for $name {
                const DTYPE: DType = DType::$name;
                const BITS: usize = $bits;
                const OFFSET: i16 = $offset;
                const SUPER: bool = $sup;
                const MIN: bool = $min;
                const HALVES: usize = $halves;
                const TABLE: Option<[u8; 16]> = [$(Some(table(&quant::$levels, $offset)),)? None][0];
                const BRAIN: bool = [$($brain,)? false][0];
            }
        )*
    };
}

formats! {
    Q4_0: 4 bits, offset 8, super false, min false, halves 1;
    Q4_1: 4 bits, offset 0, super false, min true, halves 1;
    Q5_0: 5 bits, offset 16, super false, min false, halves 1;
    Q5_1: 5 bits, offset 0, super false, min true, halves 1;
    Q8_0: 8 bits, offset 128, super false, min false, halves 1;
    Q2K: 4 bits, offset 0, super true, min true, halves 2;
    Q3K: 4 bits, offset 4, super true, min false, halves 2;
    Q4K: 4 bits, offset 0, super true, min true, halves 1;
    Q5K: 5 bits, offset 0, super true, min true, halves 1;
    Q6K: 6 bits, offset 32, super true, min false, halves 2;
    IQ4NL: 4 bits, offset 128, super false, min false, halves 1, levels IQ4_LEVELS;
    IQ4XS: 4 bits, offset 128, super true, min false, halves 1, levels IQ4_LEVELS;
    MXFP4: 4 bits, offset 12, super false, min false, halves 1, levels MXFP4_LEVELS, brain true;
}

/// The same format for finer activations.
pub(super) struct Fine<Q>(PhantomData<Q>);

impl<Q: Format> Format for Fine<Q> {
    const DTYPE: DType = Q::DTYPE;
    const BITS: usize = Q::BITS;
    const OFFSET: i16 = Q::OFFSET;
    const SUPER: bool = Q::SUPER;
    const MIN: bool = Q::MIN;
    const HALVES: usize = Q::HALVES;
    const TABLE: Option<[u8; 16]> = Q::TABLE;
    const BRAIN: bool = Q::BRAIN;
    const FINE: bool = true;
}

/// `$body` with `$q` the [`Format`] of a quantised type; `$other` for the rest.
macro_rules! with_format {
    ($dtype:expr, |$q:ident| $body:expr, else $other:expr) => {
        with_format!($dtype, |$q| $body, else $other;
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2K Q3K Q4K Q5K Q6K IQ4NL IQ4XS MXFP4)
    };
    ($dtype:expr, |$q:ident| $body:expr, else $other:expr; $($name:ident)*) => {
        match $dtype {
            $(DType::$name => {
                type $q = $crate::simd::format::$name;
                $body
            })*
            DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::U32 | DType::U8 => $other,
        }
    };
}
pub(super) use with_format;

/// How 16 plain numbers are read.
pub(super) trait Element {
    /// Bytes of a number.
    const SIZE: usize;
    /// # Safety
    /// The caller has the features of `L`; 16 numbers can be read at `p`.
    unsafe fn load<L: Lanes>(p: *const u8) -> L::F;
}

macro_rules! elements {
    ($($name:ident $size:literal |$p:ident| $load:expr;)*) => {$(
        pub(super) struct $name;
        impl Element for $name {
            const SIZE: usize = $size;
            #[inline(always)]
            unsafe fn load<L: Lanes>($p: *const u8) -> L::F {
                // SAFETY: by the caller.
                unsafe { $load }
            }
        }
    )*};
}

elements! {
    F32 4 |p| L::load(p.cast());
    F16 2 |p| L::load_f16(p);
    BF16 2 |p| L::load_bf16(p);
    I8 1 |p| L::load_i8(p);
}
