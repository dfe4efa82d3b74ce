//! Threadgroup sizes from limits, execution width and the work at hand. Pure, so they are tested on any machine.

use crate::gpu::Limits;

/// Threads for one row of `len` elements: whole simdgroups, no more than there is work for.
pub(crate) fn row_threads(len: u32, limits: &Limits) -> u32 {
    let width = limits.simd_width.max(1);
    let wanted = len.div_ceil(limits.tuning.row_elements.max(1)).div_ceil(width).max(1) * width;
    let most = (limits.max_threads / width).max(1) * width;
    wanted.min(most)
}

/// Threadgroups and threads for `n` independent elements.
pub(crate) fn linear(n: u32, limits: &Limits) -> (u32, u32) {
    let width = limits.simd_width.max(1);
    let threads = (256 / width).max(1) * width;
    let threads =
        threads.min((limits.max_threads / width).max(1) * width).min(n.div_ceil(width).max(1) * width);
    (n.div_ceil(threads).max(1), threads)
}

/// Threadgroups and threads for a plane: a simdgroup along `x`, rows of simdgroups along `y`.
pub(crate) fn plane((width, height): (u32, u32), limits: &Limits) -> ([u32; 2], [u32; 2]) {
    let x = limits.simd_width.max(1);
    let y = (limits.max_threads.min(256) / x).clamp(1, height.max(1));
    ([width.div_ceil(x).max(1), height.div_ceil(y).max(1)], [x, y])
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tuning::Tuning;

    pub(crate) const LIMITS: Limits = Limits {
        max_threads: 1024,
        max_groups: [u32::MAX; 3],
        simd_width: 32,
        busy_simdgroups: 512,
        threadgroup_memory: 32768,
        max_buffer: 1 << 30,
        budget: None,
        depth: 2,
        matrix_units: None,
        library: false,
        apple: crate::gpu::AppleKernels::NONE,
        tuning: Tuning::DEFAULT,
        tensor_ops: false,
    };

    #[test]
    fn a_row_gets_whole_simdgroups_and_no_more_than_it_can_use() {
        for (len, threads) in [(1, 32), (128, 32), (129, 64), (577, 160), (4096, 1024), (1 << 20, 1024)] {
            assert_eq!(row_threads(len, &LIMITS), threads, "{len}");
        }
        assert_eq!(
            row_threads(4096, &Limits { max_threads: 100, ..LIMITS }),
            96,
            "a pipeline with few registers"
        );
    }

    #[test]
    fn a_line_is_covered_once() {
        for n in [1, 31, 32, 33, 255, 256, 257, 100_000] {
            let (groups, threads) = linear(n, &LIMITS);
            assert!(groups * threads >= n && (groups - 1) * threads < n, "{n}: {groups} × {threads}");
            assert_eq!(threads % 32, 0);
        }
    }

    #[test]
    fn a_plane_is_covered_once() {
        for (w, h) in [(1, 1), (33, 7), (64, 9), (1000, 3)] {
            let ([gx, gy], [x, y]) = plane((w, h), &LIMITS);
            assert!(gx * x >= w && (gx - 1) * x < w && gy * y >= h && (gy - 1) * y < h);
            assert!(x * y <= LIMITS.max_threads);
        }
    }
}
