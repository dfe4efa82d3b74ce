//! What clang is asked to do.

use super::{Flavour, Target};

fn strings(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

pub(super) fn preprocess() -> Vec<String> {
    strings(
        "-E -x c++ -std=c++17 -fsigned-char -nostdinc -Wno-everything -fno-caret-diagnostics -fno-color-diagnostics \
         -D__METAL_VERSION__=320 -D__METAL__=1 -D__METAL_MACOS__=1 -D__HAVE_BFLOAT__=1",
    )
}

fn common() -> Vec<String> {
    // Endless loops stay loops, and a large frame touches the guard below its stack: both are reported, not undefined.
    let flags = strings(
        "-std=c++17 -fsigned-char -fdeclspec -fPIC -fvisibility=hidden -fno-strict-aliasing -fno-exceptions -fno-rtti -fno-math-errno \
         -fno-threadsafe-statics -fno-finite-loops -fstack-clash-protection -ffp-contract=off -Xclang -ffloat16-excess-precision=none -Wno-everything \
         -ferror-limit=20 -fno-caret-diagnostics -fno-color-diagnostics",
    );
    flags.into_iter().chain(processor().map(Into::into)).collect()
}

/// The instruction set to compile for, where the compiler's default is behind this machine.
fn processor() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let modern = std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c");
    #[cfg(not(target_arch = "x86_64"))]
    let modern = false;
    modern.then_some("-march=x86-64-v3")
}

/// From rewritten C++ to an object file.
pub(super) fn compile(flavour: Flavour, target: &Target) -> Vec<String> {
    let mut flags = common();
    flags.extend(match (target, flavour) {
        (Target::Reflection, _) => strings("-O0 -g0"),
        (_, Flavour::Plain) => strings("-O2 -g1"),
        // Vectorisers are off because the instrumentation skips accesses of 32 bytes.
        (_, Flavour::Checked) => strings(
            "-O1 -g -fno-vectorize -fno-slp-vectorize \
             -fsanitize=thread,alignment,bounds,shift,integer-divide-by-zero,null,bool \
             -mllvm -tsan-instrument-func-entry-exit=0 -mllvm -tsan-instrument-read-before-write=1",
        ),
    });
    flags
}

/// The runtime's own files are never instrumented.
pub(super) fn runtime(flavour: Flavour) -> Vec<String> {
    let mut flags = common();
    flags.extend(strings("-shared -O2 -g1 -lm"));
    if flavour == Flavour::Checked {
        flags.push("-DMSL_CHECK=1".into());
    }
    flags
}

pub(super) fn runtime_files(flavour: Flavour) -> impl Iterator<Item = &'static str> {
    ["rt/glue.cpp", "rt/bf16.cpp"].into_iter().chain((flavour == Flavour::Checked).then_some("rt/hooks.cpp"))
}
