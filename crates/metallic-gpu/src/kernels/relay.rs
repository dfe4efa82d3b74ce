//! What it takes at best to hand work over from kernel to kernel: see `relay.metal`. [`crate::peaks`] measures with it.

use super::cells::UNITS;
use super::peaks::VECTOR;
use super::{COMMON, Constants, EARLY, Kernel, Launch, family};
use crate::gpu::Limits;
use crate::params::kernel_params;

kernel_params! {
    /// Vectors of 16 bytes that all threadgroups copy, and that each has of its own in each round, the first of them from this place on.
    RelayParams { common: u32, own: u32, rounds: u32, first: u32 }
}

family! {
    "relay" (RelayParams) uses COMMON, EARLY, UNITS;
    "relay" { reads common: 16, own: 16; writes out: 4 }
}

const THREADS: u32 = 512;
/// Rounds whose bytes lie in threadgroup memory at a time: `PIECES` in the MSL.
const PIECES: usize = 4;

/// What each threadgroup of such a kernel reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relay {
    /// Bytes that all of them read.
    pub common: usize,
    /// Bytes of its own, in each round.
    pub own: usize,
    /// How often it reads so many, of other memory.
    pub rounds: usize,
}

impl Relay {
    /// Bytes of its own in all.
    pub(crate) fn all_own(&self) -> usize {
        self.own.saturating_mul(self.rounds)
    }

    /// Bytes of threadgroup memory.
    pub(crate) fn memory(&self) -> usize {
        self.common.saturating_add(self.own.saturating_mul(self.rounds.min(PIECES)))
    }
}

pub(crate) fn kernel() -> Kernel {
    FAMILY.kernel("relay", Constants::NONE)
}

/// One of them, on so many cores: `(common, own, out)`. Those that follow each other have memory of their own, as far as there is some:
/// `turns` of it.
pub(crate) fn launch(cores: u32, relay: Relay, (turn, turns): (u32, u32), limits: &Limits) -> Launch {
    let [common, own] = [relay.common, relay.own].map(|bytes| (bytes / VECTOR) as u32);
    let rounds = relay.rounds as u32;
    let params = RelayParams { common, own, rounds, first: turn % turns.max(1) * cores * own * rounds };
    Launch {
        threadgroup_bytes: relay.memory().max(VECTOR) as u32,
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
        for (common, own, rounds, expected) in [
            (32, 48, 1, [1000 * 3 + 2 * 12 + 11, 1000 * 3 + 3 * 12 + 11]),
            (16, 0, 1, [3, 3]),
            (0, 16, 1, [2 * (3000 + 8) + 3, 2 * (3000 + 12) + 3]),
            // Of six pieces the fifth lies where the first was.
            (0, 16, 6, [3080 + 3091, 3084 + 3095]),
            (0, 0, 1, [0, 1]),
        ] {
            // The second turn of two cores.
            let launch = launch(2, Relay { common, own, rounds }, (3, 2), &LIMITS);
            let Some(found) = run(&launch, &[words(0, 8), words(3000, 96), Data::Room(8)]) else { return };
            assert_eq!(as_u32s(&found[2]), expected, "{common}, {own}");
        }
    }
}
