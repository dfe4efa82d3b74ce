//! Kernels that work row by row.

use super::{Kernel, Launch, Params};
use crate::gpu::Limits;
use crate::threadgroup;

/// Where threads stand in rows, see the file.
pub(crate) const ROWS: (&str, &str) = ("rows.metal", include_str!("rows.metal"));

/// How rows are spread over threadgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowGrid {
    /// Rows of one threadgroup: one simdgroup each, or a single row for all of them.
    pub(crate) per_group: u32,
    groups: u32,
    threads: u32,
}

/// Threads a threadgroup of several rows should have.
const SHARED_THREADS: u32 = 256;

impl RowGrid {
    /// Short rows share a threadgroup; a long one has its own.
    pub(crate) fn new((rows, cols): (u32, u32), limits: &Limits) -> RowGrid {
        let threads = threadgroup::row_threads(cols, limits);
        if threads > limits.simd_width {
            return RowGrid { per_group: 1, groups: rows, threads };
        }
        let most = (SHARED_THREADS.min(limits.max_threads) / threads).max(1);
        let per_group = most.min(rows.max(1));
        RowGrid { per_group, groups: rows.div_ceil(per_group), threads: threads * per_group }
    }

    pub(crate) fn launch(self, kernel: Kernel, params: Params) -> Launch {
        kernel.launch(params, [self.groups, 1, 1], [self.threads, 1, 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    #[test]
    fn short_rows_share_a_threadgroup_and_long_ones_do_not() {
        for (rows, cols, per_group, groups, threads) in [
            (1, 64, 1, 1, 32),
            (3, 64, 3, 1, 96),
            (100, 128, 8, 13, 256),
            (5, 129, 1, 5, 64),
            (2, 9000, 1, 2, 1024),
        ] {
            let expected = RowGrid { per_group, groups, threads };
            assert_eq!(RowGrid::new((rows, cols), &LIMITS), expected, "{rows} × {cols}");
        }
    }
}
