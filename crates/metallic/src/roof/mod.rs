//! What a chip would allow: the time of counted kernels at a share of its memory bandwidth and of its rate of arithmetic. An
//! estimate from counts and public figures, never a measurement.

mod chips;

use metallic_core::KernelCount;

pub use chips::{CHIPS, Chip, Figure};

/// Threads that run in step.
const SIMD: u64 = 32;
/// Simdgroups that a core needs to hide its memory: what plans for Apple's GPUs count with as well.
pub const BUSY_SIMDGROUPS: f64 = 48.0;
/// Simdgroups that a core holds at most, and bytes of its threadgroup memory. Their maker publishes neither: they are what
/// others have measured on M1 and M2 (`metal-benchmarks`), and taken for all.
pub const MOST_SIMDGROUPS: u64 = 96;
/// See [`MOST_SIMDGROUPS`].
pub const CORE_MEMORY: u64 = 64 << 10;

/// How much of a chip kernels are taken to reach, and what a launch costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reached {
    /// Share of the memory bandwidth.
    pub bandwidth: f64,
    /// Share of the rate of arithmetic.
    pub rate: f64,
    /// Seconds of a launch that waits for the one before.
    pub launch: f64,
}

impl Reached {
    /// What this project states its estimates at. Assumed: nobody has measured them for these kernels.
    pub const STATED: Reached = Reached { bandwidth: 0.7, rate: 0.5, launch: 2e-6 };
}

/// What bounds a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Its bytes.
    Bytes,
    /// Its arithmetic.
    Arithmetic,
    /// That it has to be launched.
    Launch,
}

impl Chip {
    /// Seconds of all launches: each as long as its bytes or its arithmetic take, whichever is longer, and what it costs to
    /// be launched.
    pub fn seconds(&self, kernel: &KernelCount, reached: &Reached) -> f64 {
        let [bytes, arithmetic, launches] = self.parts(kernel, reached);
        bytes.max(arithmetic) + launches
    }

    /// What takes most of that time.
    pub fn bound(&self, kernel: &KernelCount, reached: &Reached) -> Bound {
        let [bytes, arithmetic, launches] = self.parts(kernel, reached);
        if launches > bytes.max(arithmetic) {
            Bound::Launch
        } else if arithmetic > bytes {
            Bound::Arithmetic
        } else {
            Bound::Bytes
        }
    }

    /// Seconds of a whole step.
    pub fn step_seconds(&self, kernels: &[KernelCount], reached: &Reached) -> f64 {
        kernels.iter().map(|kernel| self.seconds(kernel, reached)).sum()
    }

    /// Simdgroups of a launch that stand on a core at a time: those there are, evenly spread, and no more than its threadgroup
    /// memory and its slots hold. Registers are not counted: only a compiler for the chip knows them.
    pub fn resident(&self, kernel: &KernelCount) -> f64 {
        let each = u64::from(kernel.threads).div_ceil(SIMD).max(1);
        let there = (kernel.groups * each) as f64 / f64::from(self.cores);
        let by_memory = CORE_MEMORY.checked_div(u64::from(kernel.threadgroup_bytes)).unwrap_or(u64::MAX);
        let groups = by_memory.min(MOST_SIMDGROUPS / each).max(1);
        there.min((groups * each) as f64)
    }

    /// How busy that keeps its cores, of 1.
    pub fn busy(&self, kernel: &KernelCount) -> f64 {
        (self.resident(kernel) / BUSY_SIMDGROUPS).min(1.0)
    }

    fn parts(&self, kernel: &KernelCount, reached: &Reached) -> [f64; 3] {
        let bytes = kernel.moved as f64 / (self.bandwidth.value * 1e9 * reached.bandwidth);
        let arithmetic = 2.0 * kernel.multiply_adds as f64 / (self.flops() * reached.rate);
        [bytes, arithmetic, kernel.launches as f64 * reached.launch]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: KernelCount = KernelCount {
        op: "project",
        kernel: "matvec_1",
        launches: 2,
        groups: 100,
        threads: 128,
        threadgroup_bytes: 4096,
        moved: 100_000_000,
        distinct: 100_000_000,
        vectors_again: 0,
        multiply_adds: 1000,
    };

    fn chip() -> Chip {
        Chip {
            name: "T",
            cores: 10,
            bandwidth: Figure { value: 100.0, published: true },
            clock: 1.0,
            memory: 16,
        }
    }

    #[test]
    fn the_longer_of_bytes_and_arithmetic_counts_and_launches_come_on_top() {
        let reached = Reached { bandwidth: 0.5, rate: 0.25, launch: 1e-6 };
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        near(chip().seconds(&KERNEL, &reached), 2e-3 + 2e-6);
        assert_eq!(chip().bound(&KERNEL, &reached), Bound::Bytes);
        // 10 cores of 128 multiply-adds a cycle at 1 GHz.
        let heavy = KernelCount { multiply_adds: 1_280_000_000_000, ..KERNEL };
        near(chip().seconds(&heavy, &reached), 4.0 + 2e-6);
        assert_eq!(chip().bound(&heavy, &reached), Bound::Arithmetic);
        let light = KernelCount { moved: 1, ..KERNEL };
        assert_eq!(chip().bound(&light, &reached), Bound::Launch);
        near(chip().step_seconds(&[KERNEL, KERNEL], &reached), 2.0 * chip().seconds(&KERNEL, &reached));
    }

    #[test]
    fn a_core_holds_what_there_is_and_what_its_memory_and_slots_take() {
        // 100 threadgroups of 4 simdgroups on 10 cores.
        assert_eq!(chip().resident(&KERNEL), 40.0);
        let of = |groups, threads, threadgroup_bytes| {
            chip().resident(&KernelCount { groups, threads, threadgroup_bytes, ..KERNEL })
        };
        assert_eq!(of(10_000, 128, 0), 96.0);
        assert_eq!(of(10_000, 128, 24 << 10), 8.0);
        assert_eq!(of(10_000, 1024, 0), 96.0);
        assert_eq!(of(10_000, 128, 100 << 10), 4.0, "one threadgroup stands there in any case");
        assert_eq!(of(1, 33, 0), 0.2);
        assert_eq!(chip().busy(&KernelCount { groups: 60, ..KERNEL }), 0.5);
        assert_eq!(chip().busy(&KernelCount { groups: 10_000, threadgroup_bytes: 0, ..KERNEL }), 1.0);
    }
}
