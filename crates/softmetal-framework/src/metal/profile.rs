//! Devices in figures, as Apple's feature tables and the systems themselves give them.

/// What a device is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What it calls its architecture.
    pub architecture: String,
    /// The highest `MTLGPUFamilyApple` it belongs to, 0 for none.
    pub apple_family: isize,
    /// Whether host and GPU share memory.
    pub unified: bool,
    /// Bytes that the system wants it to use at most.
    pub working_set: u64,
    /// Bytes of one buffer at most.
    pub max_buffer: usize,
    /// Threads of a threadgroup at most.
    pub max_threads: usize,
    /// Bytes of threadgroup memory at most.
    pub threadgroup_memory: usize,
    /// What offsets of buffers in the constant address space must be a multiple of.
    pub constant_alignment: usize,
    /// Threads of a simdgroup.
    pub simd_width: usize,
    /// Where times can be noted.
    pub times: Times,
    /// Whether MetalPerformanceShaders supports it.
    pub mps: bool,
}

/// Where a device notes times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub enum Times {
    /// Nowhere, though it has a counter of time.
    Nowhere,
    /// At the ends of encoders as it says, of a counter that it does not have.
    NoCounter,
    /// At the ends of encoders.
    AtEncoders,
    /// Between dispatches too.
    AtDispatches,
}

const GIB: u64 = 1 << 30;

impl Profile {
    /// What [`Profile::named`] knows.
    pub const NAMES: [&'static str; 6] = ["m1", "m2", "m3", "m4", "m5", "intel"];

    /// A profile of this crate.
    pub fn named(name: &str) -> Option<Profile> {
        let apple = |chip: u64, apple_family: isize, gib: u64| Profile {
            name: format!("Apple M{chip}"),
            architecture: format!("applegpu_g{}g", 12 + chip),
            apple_family,
            unified: true,
            // Two thirds of the memory up to 36 GB, as the systems say.
            working_set: gib * GIB * 2 / 3,
            max_buffer: (gib * GIB / 2) as usize,
            max_threads: 1024,
            threadgroup_memory: 32 << 10,
            constant_alignment: 4,
            simd_width: 32,
            times: Times::AtEncoders,
            mps: true,
        };
        Some(match name {
            "m1" => apple(1, 1007, 16),
            "m2" => apple(2, 1008, 16),
            "m3" => apple(3, 1009, 24),
            "m4" => apple(4, 1009, 24),
            "m5" => apple(5, 1010, 32),
            "intel" => Profile {
                name: "Intel(R) UHD Graphics 630".to_owned(),
                architecture: "intelgpu".to_owned(),
                apple_family: 0,
                unified: true,
                working_set: 3 * GIB / 2,
                max_buffer: (3 * GIB / 4) as usize,
                max_threads: 1024,
                threadgroup_memory: 64 << 10,
                constant_alignment: 32,
                simd_width: 32,
                times: Times::AtDispatches,
                mps: true,
            },
            _ => return None,
        })
    }

    /// Whether the device belongs to a family, by its number in `MTLGPUFamily`, on a system of that version.
    pub(crate) fn supports(&self, family: isize, macos: u32) -> bool {
        match family {
            1001..=1010 => family <= self.apple_family,
            // Mac1 is gone, Mac2 is every GPU of a Mac; Common1 to Common3 are below it.
            2002 | 3001..=3003 => true,
            // Metal 3.
            5001 => macos >= 13 << 16,
            // Metal 4: the M1 and later, from macOS 26 on.
            5002 => macos >= 26 << 16 && self.apple_family >= 1007,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_those_of_apples_table() {
        let supports = |name: &str, family, macos: u32| {
            Profile::named(name).expect("a profile").supports(family, macos << 16)
        };
        assert!(supports("m1", 1007, 14) && !supports("m1", 1008, 14) && supports("m5", 1010, 26));
        assert!(!supports("intel", 1001, 14) && supports("intel", 2002, 14) && supports("intel", 5001, 14));
        assert!(supports("m1", 5002, 26) && !supports("m1", 5002, 15) && !supports("intel", 5002, 26));
        assert!(Profile::NAMES.iter().all(|name| Profile::named(name).is_some()));
    }
}
