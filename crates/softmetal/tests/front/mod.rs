//! What the tests of the front end share.
#![allow(dead_code, unreachable_pub)] // each test binary uses a part

use softmetal::{Cache, Compiler, Error, Toolchain};

/// A compiler with a cache of its own, or nothing where there is no clang: then the test says so and proves nothing.
pub fn compiler() -> Option<Compiler> {
    let toolchain = match Toolchain::find() {
        Ok(toolchain) => toolchain,
        Err(error @ (Error::NoClang { .. } | Error::UnfitClang { .. })) => {
            eprintln!("NOT TESTED: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let cache = Cache::at(env!("CARGO_TARGET_TMPDIR").to_owned() + "/softmetal").expect("a cache folder");
    Some(Compiler::with(toolchain, cache).expect("a compiler"))
}

/// A pseudo-random number generator: the same mutations every time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) % limit.max(1) as u64) as usize
    }
}
