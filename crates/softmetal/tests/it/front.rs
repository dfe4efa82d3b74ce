//! What tests share.

use softmetal::{Cache, Compiler, Error, Result, Toolchain};

/// What needs a clang, or nothing where there is none: then the test says so and proves nothing. Where every test must run,
/// which `METALLIC_TEST_ALL=1` asks for, it fails.
pub(crate) fn needed<T>(found: Result<T>) -> Option<T> {
    let all = std::env::var_os("METALLIC_TEST_ALL").is_some_and(|value| !value.is_empty() && value != "0");
    match found {
        Ok(found) => Some(found),
        Err(error @ (Error::NoClang { .. } | Error::UnfitClang { .. })) if !all => {
            eprintln!("NOT TESTED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A compiler with a cache of its own.
pub(crate) fn compiler() -> Option<Compiler> {
    let toolchain = needed(Toolchain::find())?;
    let cache = Cache::at(env!("CARGO_TARGET_TMPDIR").to_owned() + "/softmetal").expect("a cache folder");
    Some(Compiler::with(toolchain, cache).expect("a compiler"))
}

/// A pseudo-random number generator: the same mutations every time.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) % limit.max(1) as u64) as usize
    }
}
