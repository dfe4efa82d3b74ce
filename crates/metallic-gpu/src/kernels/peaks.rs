//! What a device reaches at best: see `peaks.metal`. [`crate::peaks`] measures with them.

use super::cells::UNITS;
use super::{COMMON, Constants, Kernel, Launch, family, relay, work};
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// Vectors of 16 bytes, and threads in all.
    PeakMemoryParams { vectors: u32, threads: u32 }
    /// How often each pair of blocks is multiplied.
    PeakProductParams { rounds: u32 }
}

family! {
    "peaks" (PeakMemoryParams, PeakProductParams) uses COMMON, UNITS;
    "peak_read" { reads x: 16; writes sums: 4 }
    "peak_copy" { reads from: 16; writes to: 16 }
    "peak_units" { reads left: 16, right: 8; writes sums: 4 }
    "peak_matrices" { reads left: 2, right: 2; writes out: 4 }
}

/// Bytes of a vector.
pub(crate) const VECTOR: usize = 16;
/// Most vectors of a launch: their numbers, and those just past them, fit 32 bits.
const MOST_VECTORS: usize = 1 << 28;
/// Blocks of either side of a product: `BLOCKS` in the MSL.
const BLOCKS: usize = 4;
const THREADS: u32 = 256;
/// Threadgroups of memory kernels for each that the device needs to be busy: what waits makes room for what loads.
const MORE: u32 = 2;

fn of(name: &str) -> Kernel {
    FAMILY.kernel(name, Constants::NONE)
}

/// Every kernel that a device is measured with.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub(crate) fn kernels(limits: &Limits) -> [Kernel; 4] {
    [of("peak_read"), of("peak_copy"), product(1, limits).launch.kernel, relay::kernel()]
}

/// Threads of a threadgroup, and threadgroups that keep the device busy.
fn busy(limits: &Limits) -> (u32, u32) {
    let threads = THREADS.min(limits.max_threads) / limits.simd_width.max(1) * limits.simd_width;
    let threads = threads.max(limits.simd_width);
    (threads, (limits.busy_simdgroups * limits.simd_width).div_ceil(threads).max(1))
}

fn memory(name: &str, bytes: usize, limits: &Limits) -> Launch {
    let (threads, groups) = busy(limits);
    let groups = groups * MORE;
    let vectors = (bytes / VECTOR).min(MOST_VECTORS) as u32;
    let params = PeakMemoryParams { vectors, threads: threads * groups };
    of(name).launch(params.params(), [groups, 1, 1], [threads, 1, 1])
}

/// Reads so many bytes, as far as they are whole vectors: `(x, sums)`, a word of the sums for each simdgroup.
pub(crate) fn read(bytes: usize, limits: &Limits) -> Launch {
    memory("peak_read", bytes, limits)
}

/// Copies so many bytes, as far as they are whole vectors: `(from, to)`.
pub(crate) fn copy(bytes: usize, limits: &Limits) -> Launch {
    memory("peak_copy", bytes, limits)
}

/// Products in registers, `(left, right, out)`, and what they take.
pub(crate) struct Product {
    pub(crate) launch: Launch,
    /// Bytes of either side, and of what is written.
    pub(crate) bytes: [usize; 3],
    /// What multiplies, in words.
    pub(crate) by: &'static str,
}

/// Multiplies all pairs of blocks so many times, with the units the device has.
pub(crate) fn product(rounds: u32, limits: &Limits) -> Product {
    let (threads, groups) = busy(limits);
    let simdgroups = (groups * threads / limits.simd_width.max(1)) as usize;
    // Rows, columns and depth of a block's product, and numbers that a simdgroup writes.
    let (name, by, [rows, cols, depth], numbers) = if limits.matrix_units.is_some() {
        ("peak_units", "matrix units, halfs into floats", [16, 8, 16], 1)
    } else {
        ("peak_matrices", "matrices of simdgroups, halfs into floats", [8, 8, 8], BLOCKS * BLOCKS * 64)
    };
    let params = PeakProductParams { rounds }.params();
    let launch = Launch {
        work: work([simdgroups, rounds as usize, BLOCKS * BLOCKS, rows * cols * depth]),
        ..of(name).launch(params, [groups, 1, 1], [threads, 1, 1])
    };
    let bytes = [BLOCKS * rows * depth * 2, BLOCKS * depth * cols * 2, simdgroups * numbers * 4];
    Product { launch, bytes, by }
}

/// Simdgroups of a launch.
pub(crate) fn simdgroups(launch: &Launch, limits: &Limits) -> usize {
    let threads: u32 = launch.threads.iter().chain(&launch.groups).product();
    (threads / limits.simd_width.max(1)) as usize
}

#[cfg(test)]
mod tests {
    use metallic_core::DType;

    use super::super::harness::{Data, as_f32s, as_u32s, run, u32s};
    use super::super::typed::tests::data;
    use super::*;
    use crate::gpu::MatrixUnits;
    use crate::threadgroup::tests::LIMITS;

    const FEW: Limits = Limits { busy_simdgroups: 8, ..LIMITS };
    const UNITS: Limits =
        Limits { matrix_units: Some(MatrixUnits { cores: 1, threadgroup_memory: 99 << 10 }), ..FEW };

    #[test]
    fn every_word_is_read_and_copied_once_whatever_their_number() {
        let threads = 2 * 8 * 32;
        // Fewer than threads; as many loads as are under way; some more; many rounds and a ragged end.
        for vectors in [1, threads - 1, 8 * threads, 8 * threads + 3, 20 * threads + 77] {
            let words: Vec<u32> = (0..4 * vectors as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
            let launch = read(vectors * VECTOR, &FEW);
            assert_eq!(launch.groups[0] * launch.threads[0], threads as u32);
            let sums = 4 * simdgroups(&launch, &FEW);
            let Some(found) = run(&launch, &[u32s(&words), Data::Room(sums)]) else { return };
            let sum = |words: &[u32]| words.iter().fold(0u32, |sum, word| sum.wrapping_add(*word));
            assert_eq!(sum(&as_u32s(&found[1])), sum(&words), "{vectors}");
            let launch = copy(vectors * VECTOR, &FEW);
            let Some(found) = run(&launch, &[u32s(&words), Data::Room(words.len() * 4)]) else { return };
            assert!(as_u32s(&found[1]) == words, "{vectors}");
        }
    }

    /// Whole numbers as halfs, which products and sums do not round.
    fn whole(len: usize, seed: usize) -> (Vec<f32>, Data) {
        let numbers: Vec<f32> = (0..len).map(|i| ((i * 7 + seed) % 5) as f32 - 1.0).collect();
        let halfs = data(DType::F16, &numbers);
        (numbers, halfs)
    }

    #[test]
    fn products_are_those_of_all_pairs_of_blocks_as_often_as_asked() {
        const ROUNDS: u32 = 3;
        for limits in [FEW, UNITS] {
            let Product { launch, bytes, .. } = product(ROUNDS, &limits);
            let [(left, a), (right, b)] = [whole(bytes[0] / 2, 1), whole(bytes[1] / 2, 3)];
            let Some(found) = run(&launch, &[a, b, Data::Room(bytes[2])]) else { return };
            let found = as_f32s(&found[2]);
            // What all results add up to is the sum over k of a column's sum times a row's sum: which lane has what of a block
            // decides which of its columns it is.
            let expected = if limits.matrix_units.is_some() {
                let (left, right) = (depth_sums(&left, 8), depth_sums(&right, 4));
                left.iter().zip(&right).map(|(left, right)| left * right).sum::<f32>()
            } else {
                let column = |k: usize| left.iter().skip(k).step_by(8).sum::<f32>();
                let row = |k: usize| right.chunks_exact(8).skip(k).step_by(8).flatten().sum::<f32>();
                (0..8).map(|k| column(k) * row(k)).sum()
            };
            let simdgroups = simdgroups(&launch, &limits);
            for (index, results) in found.chunks_exact(found.len() / simdgroups).enumerate() {
                assert_eq!(results.iter().sum::<f32>(), ROUNDS as f32 * expected, "simdgroup {index}");
            }
            let block: u64 = if limits.matrix_units.is_some() { 16 * 8 * 16 } else { 8 * 8 * 8 };
            assert_eq!(launch.work, simdgroups as u64 * u64::from(ROUNDS) * 16 * block);
        }
    }

    /// Of fragments of `per_lane` halfs for each lane of a unit, the sums by their place in the depth of 16: lane 4 g + t has 2 t and
    /// 2 t + 1, and 8 more; the left side has the two rows of each one after another.
    fn depth_sums(halfs: &[f32], per_lane: usize) -> [f32; 16] {
        let mut sums = [0.0; 16];
        for (lane, own) in halfs.chunks_exact(per_lane).enumerate() {
            for (word, pair) in own.chunks_exact(2).enumerate() {
                let far = if per_lane == 8 { word / 2 } else { word };
                for (i, number) in pair.iter().enumerate() {
                    sums[2 * (lane % 4) + 8 * far + i] += number;
                }
            }
        }
        sums
    }

    #[test]
    fn launches_fit_small_devices_and_large_buffers() {
        let narrow = Limits { max_threads: 64, busy_simdgroups: 1, ..LIMITS };
        for launch in [read(1 << 40, &narrow), copy(15, &narrow), product(1, &narrow).launch] {
            launch.check(&narrow).unwrap();
        }
        assert_eq!(kernels(&UNITS)[2].function, "peak_units");
        assert_eq!(kernels(&LIMITS)[2].function, "peak_matrices");
    }
}
