//! Threadgroup memory that kernels declare themselves, for counting what fits on a core.

use super::{attention_merge, attention_tiles, attention_units, matmul};

/// Bytes that a kernel declares in its own body; 0: its launches name all it has.
pub(crate) fn bytes(function: &str) -> u32 {
    let tiles_of_cells = |n: u32| 2 * n * 64 * 16;
    match function {
        "matmul_project" => matmul::TILE_BYTES,
        "attention_tiles_8" | "attention_tiles_16" | "attention_tiles_32" => attention_tiles::MEMORY,
        "attention_units" => attention_units::MEMORY,
        "attention_merge" => attention_merge::MOST_MERGING * 4,
        "cell_matmul_32" => tiles_of_cells(4),
        "cell_matmul_64" => tiles_of_cells(8),
        "cell_matmul_128" => tiles_of_cells(16),
        "choose" => (32 + 32 + 4 + 256 + 256) * 4,
        "choose_parts" => (32 + 32) * 4,
        "attention_plain_softmax" | "cell_columns" | "library_rows" | "tensor_vectors" => 32 * 4,
        name if name.starts_with("turn_f32_") || name.starts_with("turn_u32_") => 32 * 33 * 4,
        name if name.starts_with("turn_") => 32 * 33 * 2,
        name if name.starts_with("argmax_") => (32 + 32) * 4,
        name if name.starts_with("top_k_") => (256 + 256 + 1 + 4) * 4,
        // `FIND_ROW` of rows.metal.
        name if ["rms_norm_", "layer_norm_", "softmax_"].iter().any(|row| name.starts_with(row)) => 64 * 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::FAMILIES;

    /// Whether a text has memory of its own: `threadgroup TYPE name[…]`, and nothing that points to it.
    fn declares(text: &str) -> bool {
        let own = |line: &str| {
            let rest = line.trim().strip_prefix("threadgroup ").unwrap_or_default();
            rest.contains('[') && !rest.split('[').next().unwrap_or_default().contains(['*', '&', '('])
        };
        text.lines().any(own) || text.contains("FIND_ROW;")
    }

    #[test]
    fn every_family_that_declares_memory_is_counted_with_it_and_no_other() {
        for family in FAMILIES {
            let counted = family.functions().any(|(function, _)| bytes(function) > 0);
            assert_eq!(counted, declares(family.text), "{}", family.name);
        }
    }
}
