//! The command line, as a user meets it.
#![cfg(feature = "cli")]

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

const SUM: &str = r#"#include <metal_stdlib>
using namespace metal;
#include "bias.h"
constant float gain [[function_constant(0)]];
kernel void block_sum(device const float* x [[buffer(0)]], device float* out [[buffer(1)]], constant uint& n [[buffer(2)]],
                      threadgroup float* part [[threadgroup(0)]], uint row [[threadgroup_position_in_grid]],
                      uint i [[thread_position_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]], uint group [[simdgroup_index_in_threadgroup]]) {
    float s = 0;
    for (uint k = i; k < n; k += threads) s += x[row * n + k];
    s = simd_sum(s);
    if (lane == 0) part[group] = s;
    BARRIER
    if (i == 0) {
        float total = BIAS;
        for (uint g = 0; g < threads / 32; g++) total += part[g];
        out[row] = total * gain;
    }
}
"#;

/// A folder with a source and the header it includes, found by `-I`.
fn folder(barrier: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("include")).expect("a folder");
    std::fs::write(folder.path().join("include/bias.h"), "#define BIAS 1.0\n").expect("written");
    std::fs::write(folder.path().join("sum.metal"), SUM.replace("BARRIER", barrier)).expect("written");
    folder
}

const BARRIER: &str = "threadgroup_barrier(mem_flags::mem_threadgroup);";

fn softmetal(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softmetal"));
    command
        .current_dir(folder)
        .args(arguments)
        .env("SOFTMETAL_CACHE", env!("CARGO_TARGET_TMPDIR").to_owned() + "/softmetal");
    command.env_remove("CLICOLOR_FORCE").output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", text(&output.stdout), text(&output.stderr)))
}

const RUN: [&str; 17] = [
    "run",
    "sum.metal",
    "block_sum",
    "-I",
    "include",
    "--groups",
    "3",
    "--threadgroup",
    "64",
    "--buffer",
    "0=f32:seq:300",
    "--out",
    "1=f32:3",
    "--buffer",
    "2=u32:100",
    "--threadgroup-memory=0=8",
    "--set=gain=2",
];

#[test]
fn list_shows_kernels_and_arguments() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(BARRIER);
    let output = softmetal(folder.path(), &["list", "sum.metal", "-Iinclude"]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for line in [
        "block_sum",
        "buffer 1          device float* out",
        "threadgroup 0     threadgroup float* part",
        "float gain",
        "1 kernel",
    ] {
        assert!(shown.contains(line), "{line}:\n{shown}");
    }
    let listed = json(&softmetal(folder.path(), &["list", "sum.metal", "-Iinclude", "--json"]));
    assert_eq!(listed["kernels"][0]["arguments"][2]["kind"]["buffer"], 2);
    assert_eq!(listed["kernels"][0]["arguments"][2]["read_only"], true);
    assert_eq!(listed["constants"][0]["name"], "gain");
}

#[test]
fn run_computes_and_prints() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(BARRIER);
    let output = softmetal(folder.path(), &RUN);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // Sums of 0..100, 100..200, 200..300, plus the bias, times the gain.
    let shown = text(&output.stdout);
    assert!(shown.contains("buffer 1  9902 29902 49902"), "{shown}");
    let checked = softmetal(
        folder.path(),
        &[&RUN[..], &["--check", "--seeds", "5", "--json", "--save", "1=out.bin"]].concat(),
    );
    let seen = json(&checked);
    assert!(checked.status.success(), "{seen}");
    assert_eq!(seen["outputs"]["1"], serde_json::json!([9902.0, 29902.0, 49902.0]));
    assert_eq!(seen["reports"], serde_json::json!([]));
    let saved = std::fs::read(folder.path().join("out.bin")).expect("saved");
    assert_eq!(saved, [9902_f32, 29902.0, 49902.0].map(f32::to_le_bytes).concat());
}

#[test]
fn a_missing_barrier_is_reported_and_fails_the_command() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder("");
    let output = softmetal(folder.path(), &[&RUN[..], &["--check", "--json", "--seeds", "10"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let reports = json(&output)["reports"].as_array().cloned().unwrap_or_default();
    let report = reports.iter().find(|report| report["kind"] == "data_race").expect("a race");
    assert_eq!(report["severity"], "error");
    let places: Vec<_> = ["at", "other"].iter().map(|place| report[place]["line"].as_u64()).collect();
    assert!(places.contains(&Some(12)) && places.contains(&Some(16)), "{report:#}");
    let output = softmetal(folder.path(), &[&RUN[..], &["--check", "--seeds", "10"]].concat());
    assert!(
        text(&output.stdout).contains("error: data race in kernel `block_sum`"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn random_schedules_show_the_race_without_checks() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder("");
    let output = softmetal(folder.path(), &[&RUN[..], &["--seeds", "30"]].concat());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("depends on the schedule"), "{}", text(&output.stdout));
}

#[test]
fn wrong_arguments_are_refused_by_name() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(BARRIER);
    let cases: [(&[&str], i32, &str); 8] = [
        (
            &["run", "sum.metal", "block_summ", "-Iinclude", "--threads", "1"],
            1,
            "no kernel `block_summ` in sum.metal; the nearest are block_sum",
        ),
        (&["run", "sum.metal", "block_sum", "--threads", "0"], 2, "positive numbers"),
        (&["run", "sum.metal", "block_sum", "--threads", "1", "--buffer", "0=f33:rand:1"], 2, "buffer 0"),
        (
            &["run", "sum.metal", "block_sum", "--threads", "1", "--buffer", "0=f32:1", "--out", "0=f32:1"],
            2,
            "buffer 0 is given twice",
        ),
        (
            &["run", "sum.metal", "block_sum", "-Iinclude", "--threads", "1", "--set", "loss=1"],
            2,
            "no function constant `loss`; the source has gain",
        ),
        (
            &["run", "sum.metal", "block_sum", "-Iinclude", "--threads", "1", "--set", "gain=much"],
            2,
            "`much` is no f32 value",
        ),
        (&["list", "none.metal"], 1, "cannot read none.metal"),
        (&["list", "sum.metal"], 1, "sum.metal:3:10: error: 'bias.h' file not found"),
    ];
    for (arguments, code, message) in cases {
        let output = softmetal(folder.path(), arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
    let output = softmetal(folder.path(), &["list", "sum.metal", "--json"]);
    assert_eq!(json(&output)["diagnostics"][0]["at"]["line"], 3);
}

#[test]
fn an_unbound_buffer_is_named() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(BARRIER);
    let output = softmetal(
        folder.path(),
        &[
            "run",
            "sum.metal",
            "block_sum",
            "-Iinclude",
            "--threads",
            "32",
            "--threadgroup-memory",
            "0=8",
            "--check",
            "--json",
        ],
    );
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    assert!(said.contains("unbound"), "{said}");
}

#[test]
fn lint_finds_what_running_does_not() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(BARRIER);
    let output = softmetal(folder.path(), &["lint", "sum.metal", "-Iinclude"]);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    let wrong = "#include <metal_stdlib>\nusing namespace metal;\nkernel void f(device float* x, threadgroup float* t) {\n    device float* y = t;\n    x[0] = y[0];\n}\n";
    std::fs::write(folder.path().join("wrong.metal"), wrong).expect("written");
    let output = softmetal(folder.path(), &["lint", "wrong.metal", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(json(&output)["diagnostics"][0]["at"]["line"], 4, "{}", text(&output.stdout));
}

#[test]
fn ptx_is_written_with_constants_baked_in() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(BARRIER);
    let output =
        softmetal(folder.path(), &["ptx", "sum.metal", "-Iinclude", "-o", "sum.ptx", "--set", "gain=3.0f"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written = std::fs::read_to_string(folder.path().join("sum.ptx")).expect("written");
    assert!(written.contains(".visible .entry block_sum(") && written.contains("0f40400000"), "{written}");
    let seen = json(&softmetal(folder.path(), &["ptx", "sum.metal", "-Iinclude", "--json"]));
    assert_eq!(seen["kernels"][0]["buffers"], 3);
}

#[test]
fn a_machine_without_a_fit_clang_is_told_what_to_install() {
    let folder = folder(BARRIER);
    let run = |clang: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softmetal"));
        command.current_dir(folder.path()).args(["list", "sum.metal"]).env("SOFTMETAL_CLANG", clang);
        let output = command.output().expect("the binary runs");
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    let said = run(Path::new("/no/such/clang"));
    assert!(
        said.contains("no clang found (looked for SOFTMETAL_CLANG=/no/such/clang); install one"),
        "{said}"
    );
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let old = folder.path().join("clang-14");
        std::fs::write(&old, "#!/bin/sh\necho 'Debian clang version 14.0.6'\n").expect("written");
        std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755)).expect("executable");
        let said = run(&old);
        assert!(
            said.contains("is `Debian clang version 14.0.6`, softmetal needs clang 17 or newer; install one"),
            "{said}"
        );
    }
}

const SHIFT: &str = r"#include <metal_stdlib>
using namespace metal;
kernel void add(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    y[i] = x[i] + 100;
}
kernel void turn(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float line[64];
    line[i] = x[i];
    y[i] = line[i ^ 31];
}
kernel void mirror(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_threadgroup]]) {
    threadgroup float line[64];
    line[i] = x[i];
    y[i] = line[63 - i];
}
kernel void wild(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], device float* z [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    if (i == 1) z[i] = 1;
    if (i == 2) y[3] = 7 / (int)x[0];
    y[i] = 1;
}
";

#[test]
fn buffers_lie_at_offsets_and_share_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("k.metal"), SHIFT).expect("written");
    let run = |more: &[&str]| {
        let arguments = [&["run", "k.metal", "add", "--threads", "4", "--json"], more].concat();
        let output = softmetal(folder.path(), &arguments);
        assert!(output.status.success(), "{}", text(&output.stdout));
        json(&output)["outputs"].clone()
    };
    let found = run(&["--buffer", "0@8=f32:seq:6", "--out", "1=f32:4"]);
    assert_eq!(found["1"], serde_json::json!([102.0, 103.0, 104.0, 105.0]));
    for check in [&[][..], &["--check"]] {
        let shared = ["--buffer", "0=f32:seq:10", "--buffer", "1@16=alias:0", "--out", "0"];
        let found = run(&[&shared, check].concat());
        assert_eq!(found["0"], serde_json::json!([0.0, 1.0, 2.0, 3.0, 100.0, 101.0, 102.0, 103.0, 8.0, 9.0]));
    }
}

#[test]
fn what_is_wrong_with_an_argument_is_said_with_its_option() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("k.metal"), SHIFT).expect("written");
    for (wrong, message) in [
        (&["--buffer", "zero=f32:1"][..], "--buffer zero=f32:1: `zero` is no index of a buffer"),
        (
            &["--buffer", "0@64=f32:seq:4"],
            "--buffer 0@64=f32:seq:4: it has 16 bytes, and cannot begin at byte 64",
        ),
        (&["--buffer", "0=f32:one"], "--buffer 0=f32:one: `one` is no f32 value"),
        (&["--buffer", "1=alias:0"], "--buffer 1=alias:0: no buffer 0 is given"),
        (&["--buffer", "0=f32:1", "--buffer", "0=alias:0"], "--buffer 0=alias:0: buffer 0 is given twice"),
        (&["--out", "1=f32"], "--out 1=f32: an output is INDEX=TYPE:COUNT"),
        (&["--threadgroup-memory", "0=some"], "--threadgroup-memory 0=some: `some` is no number of bytes"),
        (&["--set", "gain=1"], "--set gain=1: no function constant `gain`"),
        (
            &["--functions", "2=gone"],
            "--functions 2=gone: cannot dispatch kernel `add`: no function `gone` is marked",
        ),
    ] {
        let output =
            softmetal(folder.path(), &[&["run", "k.metal", "add", "--threads", "4"], wrong].concat());
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(text(&output.stderr).contains(message), "{wrong:?}: {}", text(&output.stderr));
    }
}

#[test]
fn schedules_that_differ_are_tried_in_lockstep() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("k.metal"), SHIFT).expect("written");
    let data = ["--threads", "64", "--threadgroup", "64", "--buffer", "0=f32:rand:64", "--out", "1=f32:64"];
    let run = |kernel: &str, more: &[&str]| {
        let output = softmetal(folder.path(), &[&["run", "k.metal", kernel], &data[..], more].concat());
        (output.status.code(), text(&output.stdout))
    };
    let many = ["--check", "--seeds", "8"];
    let (code, said) = run("turn", &many);
    assert!(code == Some(1) && said.contains("barriers are missing within simdgroups"), "{said}");
    let (code, said) = run("mirror", &many);
    assert!(code == Some(1) && said.contains("in lockstep they differ too"), "{said}");
    let (_, said) = run("turn", &["--check", "--seeds", "8", "--lockstep"]);
    assert!(!said.contains("other results"), "{said}");
    let (code, _) = run("turn", &["--lockstep"]);
    assert_eq!(code, Some(2), "without --check nobody sees accesses");
}

#[test]
fn one_crash_hides_no_other_if_the_rest_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("k.metal"), SHIFT).expect("written");
    let run = |more: &[&str]| {
        let data = ["--threads", "4", "--buffer", "0=f32:seq:4", "--out", "1=f32:4", "--json"];
        let output = softmetal(folder.path(), &[&["run", "k.metal", "wild"], &data[..], more].concat());
        let found = json(&output);
        (found["reports"].as_array().map(Vec::len), found["outputs"]["1"].clone())
    };
    assert_eq!(run(&[]).0, Some(1));
    assert_eq!(run(&["--keep-going"]), (Some(2), serde_json::json!([1.0, 0.0, 0.0, 1.0])));
}
