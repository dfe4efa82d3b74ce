//! What it takes at best to hand work over from kernel to kernel: see `relay.metal`. [`crate::peaks`] measures with it.

use super::cells::UNITS;
use super::peaks::VECTOR;
use super::{COMMON, Constants, EARLY, Kernel, Launch, family};
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// Vectors of 16 bytes that all threadgroups copy, and that each has of its own, the first of them from this place on.
    RelayParams { common: u32, own: u32, first: u32 }
}

family! {
    "relay" (RelayParams) uses COMMON, EARLY, UNITS;
    "relay" { reads common: 16, own: 16; writes out: 4 }
}

const THREADS: u32 = 512;

pub(crate) fn kernel() -> Kernel {
    FAMILY.kernel("relay", Constants::NONE)
}

/// One of them, on so many cores: `(common, own, out)`. Those that follow each other have memory of their own, as far as there is some:
/// `turns` of it.
pub(crate) fn launch(
    cores: u32,
    common: usize,
    own: usize,
    turn: u32,
    turns: u32,
    limits: &Limits,
) -> Launch {
    let [common, own] = [common, own].map(|bytes| (bytes / VECTOR) as u32);
    let params = RelayParams { common, own, first: turn % turns.max(1) * cores * own };
    Launch {
        threadgroup_bytes: (common + own).max(1) * VECTOR as u32,
        ..kernel().launch(params.params(), [cores, 1, 1], [THREADS.min(limits.max_threads), 1, 1])
    }
}

#[cfg(test)]
mod tests {
    use super::super::harness::{Data, as_u32s, run, u32s};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    #[test]
    fn every_core_has_what_all_read_and_its_own() {
        let words = |from: u32, count: u32| u32s(&(from..from + count).collect::<Vec<u32>>());
        for (common, own, expected) in [
            (32, 48, [1000 * 3 + 2 * 12 + 11, 1000 * 3 + 3 * 12 + 11]),
            (16, 0, [3, 3]),
            (0, 16, [2 * (3000 + 8) + 3, 2 * (3000 + 12) + 3]),
            (0, 0, [0, 1]),
        ] {
            // The second turn of two cores.
            let launch = launch(2, common, own, 3, 2, &LIMITS);
            let Some(found) = run(&launch, &[words(0, 8), words(3000, 48), Data::Room(8)]) else { return };
            assert_eq!(as_u32s(&found[2]), expected, "{common}, {own}");
        }
    }
}
