//! GPUs in figures, for planning without one: multiprocessors, compute capability and shared memory as NVIDIA publishes them (its
//! papers on the Ampere, Ada and Hopper architectures, and the table of compute capabilities in the CUDA programming guide).

use crate::gpu::Limits;

/// A GPU by what plans depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownGpu {
    /// Its name as the driver gives it.
    pub name: &'static str,
    /// Compute capability times ten.
    pub capability: u32,
    /// Multiprocessors.
    pub units: u32,
    /// KiB of shared memory that a threadgroup may ask for.
    shared_kib: u32,
    /// Bytes of memory, in 10⁹.
    gigabytes: u64,
}

const fn gpu(name: &'static str, capability: u32, units: u32, shared_kib: u32, gigabytes: u64) -> KnownGpu {
    KnownGpu { name, capability, units, shared_kib, gigabytes }
}

/// Every one that can be named.
pub const KNOWN: &[KnownGpu] = &[
    gpu("NVIDIA A100", 80, 108, 163, 80),
    gpu("NVIDIA GeForce RTX 3090", 86, 82, 99, 24),
    gpu("NVIDIA GeForce RTX 4090", 89, 128, 99, 24),
    gpu("NVIDIA H100", 90, 132, 227, 80),
    gpu("NVIDIA H200", 90, 132, 227, 141),
];

impl KnownGpu {
    /// The one that a name (`NVIDIA H200`, `h200`, `rtx 4090`) means.
    pub fn named(name: &str) -> Option<&'static KnownGpu> {
        let wanted = name.trim().to_lowercase();
        let fits = |gpu: &&KnownGpu| {
            let own = gpu.name.to_lowercase();
            own == wanted || own.strip_suffix(&*wanted).is_some_and(|before| before.ends_with(' '))
        };
        KNOWN.iter().find(fits)
    }

    /// Its name in short: `H200`.
    pub fn short_name(&self) -> &'static str {
        let short = self.name.strip_prefix("NVIDIA ").unwrap_or(self.name);
        short.strip_prefix("GeForce ").unwrap_or(short)
    }

    /// What it allows, with NVIDIA's library of products, or without.
    pub fn limits(&self, library: bool) -> Limits {
        let units = super::matrix_units(self.capability, self.units, self.shared_kib << 10);
        let memory = self.gigabytes * 1_000_000_000;
        Limits { library, ..super::limits(self.name, self.units, 1024, memory, units) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_be_short_and_parts_of_them_may_not() {
        for (name, found) in [
            ("h200", Some("NVIDIA H200")),
            ("NVIDIA H100", Some("NVIDIA H100")),
            ("RTX 4090", Some("NVIDIA GeForce RTX 4090")),
            ("4090", Some("NVIDIA GeForce RTX 4090")),
            ("00", None),
            ("", None),
        ] {
            assert_eq!(KnownGpu::named(name).map(|gpu| gpu.name), found, "{name}");
        }
        assert_eq!(KNOWN.iter().map(KnownGpu::short_name).collect::<Vec<_>>()[1], "RTX 3090");
        assert!(KnownGpu::named("h200").unwrap().limits(true).library);
    }
}
