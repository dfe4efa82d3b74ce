//! Weights laid out for matrix units: see `cells.metal`.

use metallic_core::{DType, Dim, Op, TensorType, WeightUse};

use super::{COMMON, Constants, Launch, QUANT, QUANT_TYPES, family, weight_type};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// A matrix `[rows, cols]`, whose tiles have so many words each.
    CellPackParams { rows: u32, cols: u32, words: u32 }
}

/// Products of matrix units.
pub(crate) const UNITS: (&str, &str) = ("units.metal", include_str!("units.metal"));
pub(crate) const CELLS: (&str, &str) = ("cells.metal", include_str!("cells.metal"));

/// Rows and columns of a cell.
pub(crate) const CELL_ROWS: u32 = 16;
pub(crate) const CELL_COLS: u32 = 64;
/// Rows of a pair of tiles.
pub(crate) const PAIR_ROWS: u32 = 32;

/// Declares which types have cells, for Rust and for the MSL: bytes of a cell, and of what stands once for four; bytes of a cell of two
/// tiles as simdgroups copy them, and how many of them each has room for; whether they take vectors as numbers of two bytes.
macro_rules! cell_types {
    ($($dtype:ident $kind:ident $number:literal: $cell:literal + $four:literal, $depth:literal of $slot:literal, $bytes:literal);+ $(;)?) => {
        /// Bytes of 16 rows of so many columns; `None` where the type has no cells.
        pub(crate) fn tile_bytes(dtype: DType, cols: u32) -> Option<usize> {
            let cells = cols.div_ceil(CELL_COLS) as usize;
            match dtype {
                $(DType::$dtype => Some(cells * $cell + cells.div_ceil(4) * $four),)+
                _ => None,
            }
        }

        /// Bytes of threadgroup memory that a simdgroup's cells take on their way: `DEPTH` times `SLOT` in the MSL.
        pub(crate) fn ring_bytes(dtype: DType) -> u32 {
            match dtype {
                $(DType::$dtype => $depth * $slot,)+
                _ => 0,
            }
        }

        /// Whether vectors are numbers of two bytes for such weights: `BYTES` in the MSL. Else they are two bfloats.
        pub(crate) fn takes_bytes(dtype: DType) -> bool {
            match dtype {
                $(DType::$dtype => $bytes,)+
                _ => false,
            }
        }

        /// Every type that has cells.
        #[cfg(test)]
        pub(crate) const CELL_TYPES: &[DType] = &[$(DType::$dtype),+];

        const KINDS: &str = concat!(
            "#define FOR_CELL_TYPE(type, DO) switch (type) {",
            $(" case ", $number, ": DO(", stringify!($kind), ") break;",)+
            " }\n",
            $("constant constexpr uint CELLS_", stringify!($kind), " = ", $number, ";\n",)+
        );
    };
}

cell_types! {
    F16 F16 1: 2048 + 0, 2 of 4096, false;
    BF16 BF16 2: 2048 + 0, 2 of 4096, false;
    Q4_0 Q4_0 3: 576 + 0, 5 of 1152, true;
    Q8_0 Q8_0 7: 1088 + 0, 4 of 2176, true;
    Q4K Q4_K 10: 576 + 64, 6 of 1280, true;
    Q6K Q6_K 12: 832 + 32, 5 of 1792, true;
}

/// The kinds of cells by the numbers of their types.
pub(crate) const CELL_KINDS: (&str, &str) = ("cell_kinds.metal", KINDS);

family! {
    "cell_pack" (CellPackParams) uses COMMON, QUANT_TYPES, QUANT, CELL_KINDS, UNITS, CELLS;
    "cell_pack" { reads raw: 1; writes out: 16 }
}

/// Bytes of a matrix in cells.
pub(crate) fn bytes(dtype: DType, rows: usize, cols: usize) -> Option<usize> {
    let tile = tile_bytes(dtype, u32::try_from(cols).ok()?)?;
    let all = rows.div_ceil(CELL_ROWS as usize).checked_mul(tile)?;
    // Kernels count words with 32 bits within a tile.
    (cols.is_multiple_of(32) && cols > 0 && rows > 0).then_some(all)
}

/// Whether the matrices of an operation lie in cells on such a device: all of them do, or none. `is_weight` says which inputs are
/// weights; what is computed lies as it was written.
pub(crate) fn serve(
    op: &Op,
    inputs: &[TensorType],
    is_weight: impl Fn(usize) -> bool,
    limits: &Limits,
) -> bool {
    if limits.matrix_units.is_none()
        || !matches!(op, Op::Linear | Op::Project(_) | Op::GatedProject { .. } | Op::Qkv(_))
    {
        return false;
    }
    let mut matrices =
        (0..inputs.len()).filter(|index| op.weight_use(*index) == WeightUse::Matrix).peekable();
    let Some(first) = matrices.peek().map(|index| inputs[*index].dtype) else { return false };
    let gated = matches!(op, Op::GatedProject { .. });
    matrices.all(|index| {
        let [rows, cols] = inputs[index].shape.dims() else { return false };
        let (Dim::Fixed(rows), Dim::Fixed(cols)) = (*rows, *cols) else {
            return false;
        };
        let alike = !gated || inputs[index].dtype == first;
        is_weight(index) && alike && bytes(inputs[index].dtype, rows, cols).is_some()
    })
}

/// Lays a matrix out in cells: `(raw, out)`.
pub(crate) fn pack(dtype: DType, (rows, cols): (u32, u32), limits: &Limits) -> Result<Launch, GpuError> {
    const OP: &str = "cell_pack";
    let none = || GpuError::unsupported(OP, format!("cells of {dtype}"));
    let words = u32::try_from(tile_bytes(dtype, cols).ok_or_else(none)? / 4).map_err(|_| none())?;
    let kernel = FAMILY.kernel(OP, Constants::of([weight_type(OP, dtype)?]));
    let params = CellPackParams { rows, cols, words }.params();
    Ok(kernel.plane(params, (words, rows.div_ceil(CELL_ROWS)), limits))
}
