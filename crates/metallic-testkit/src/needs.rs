//! What tests need of the machine beside Rust.

use std::env;
use std::fmt::Display;

/// What a test needs, if this machine has it. Where it has not, the test says so and proves nothing; where every test must
/// run, which `METALLIC_TEST_ALL=1` asks for and `cargo xtask test` does, it fails.
pub fn needed<T, E: Display>(found: Result<T, E>) -> Option<T> {
    found.map_err(|error| missing(&error)).ok()
}

/// As [`needed`], of something that is not there.
pub fn missing(error: &dyn Display) {
    let all = env::var_os("METALLIC_TEST_ALL").is_some_and(|value| !value.is_empty() && value != "0");
    assert!(!all, "METALLIC_TEST_ALL is set, and this test cannot run: {error}");
    eprintln!("NOT TESTED: {error}");
}
