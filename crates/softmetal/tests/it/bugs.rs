//! Planted bugs: each is found at its line, and its corrected twin stays silent under fifty random schedules.
//!
//! A line of `bugs/*.metal` marked `BUG` is where the report must point, `OTHER` where its second place must.

use std::{fs, path::PathBuf, sync::OnceLock};

use softmetal::{
    CheckOptions, Compiler, Device, Flavour, Kind, Library, Outcome, Severity, Source, as_bytes, as_bytes_mut,
};

/// A dispatch that shows the bug: `n` is what the kernel is told, the buffers have as many floats as it says here.
struct Case {
    file: &'static str,
    kind: Kind,
    threads: u32,
    threadgroup: u32,
    input: usize,
    output: usize,
    n: u32,
}

const fn case(file: &'static str, kind: Kind, threads: (u32, u32), sizes: (usize, usize), n: u32) -> Case {
    Case { file, kind, threads: threads.0, threadgroup: threads.1, input: sizes.0, output: sizes.1, n }
}

const CASES: &[Case] = &[
    case("missing_barrier", Kind::DataRace, (512, 128), (4 * 200, 4), 200),
    case("hidden_race", Kind::DataRace, (256, 128), (256, 2), 0),
    case("write_after_read", Kind::DataRace, (128, 128), (128, 128), 0),
    case("simdgroup_race", Kind::DataRace, (128, 128), (128, 128), 0),
    case("wrong_flags", Kind::WrongMemFlags, (64, 64), (1, 64), 0),
    case("mem_none", Kind::MemNoneOrdering, (128, 128), (128, 128), 0),
    case("group_overlap", Kind::ThreadgroupRace, (128, 32), (32, 128), 0),
    case("group_read", Kind::ThreadgroupRace, (128, 32), (1, 256), 0),
    case("atomic_mixed", Kind::DataRace, (64, 64), (1, 64), 0),
    case("device_overrun", Kind::OutOfBounds, (96, 32), (1, 64), 64),
    case("last_threadgroup", Kind::OutOfBounds, (128, 32), (100, 100), 100),
    case("odd_size", Kind::OutOfBounds, (64, 32), (101, 101), 101),
    case("vector_load", Kind::OutOfBounds, (32, 32), (102, 102), 102),
    case("negative_index", Kind::OutOfBounds, (32, 32), (32, 32), 0),
    case("threadgroup_overrun", Kind::OutOfBounds, (128, 128), (128, 128), 0),
    case("struct_pointer", Kind::OutOfBounds, (8, 8), (8 * 16, 8), 16),
    case("template_instance", Kind::OutOfBounds, (64, 32), (128, 64), 128),
    case("uninitialised", Kind::UninitialisedThreadgroupMemory, (64, 64), (64, 1), 0),
    case("divergent_barrier", Kind::BarrierDivergence, (64, 64), (64, 64), 0),
    case("same_line_barrier", Kind::BarrierDivergence, (64, 64), (64, 64), 0),
    case("absent_lane", Kind::AbsentLane, (64, 64), (64, 64), 0),
    case("absent_index", Kind::AbsentLane, (64, 64), (64, 64), 0),
    case("same_value", Kind::SameValueRace, (64, 64), (64, 64), 0),
    case("early_return", Kind::BarrierDivergence, (64, 64), (50, 50), 50),
    case("simdgroup_divergence", Kind::SimdgroupDivergence, (64, 64), (64, 64), 0),
    case("matmul_divergence", Kind::BarrierDivergence, (64, 64), (512, 256), 0),
    case("matmul_scope", Kind::ExecutionScope, (64, 64), (512, 256), 0),
    case("matmul_race", Kind::DataRace, (64, 64), (512, 256), 0),
    case("matmul_reuse", Kind::DataRace, (64, 64), (512, 256), 0),
    case("matmul_elements", Kind::OutOfBounds, (64, 64), (512, 256), 0),
    case("misaligned", Kind::MisalignedAccess, (32, 32), (64, 32), 0),
    case("union_misaligned", Kind::MisalignedAccess, (32, 32), (64, 32), 0),
    case("union_copied", Kind::MisalignedAccess, (32, 32), (64, 32), 0),
    case("unbound", Kind::UnboundBuffer, (32, 32), (32, 32), 0),
    case("too_small", Kind::BufferTooSmall, (32, 32), (1, 32), 32),
    case("constant_write", Kind::WriteToConstant, (32, 32), (32, 32), 0),
    case("non_finite", Kind::NonFinite, (32, 32), (32, 32), 0),
    case("array_index", Kind::ArrayIndex, (32, 32), (32, 32), 7),
    case("division", Kind::DivisionByZero, (32, 32), (32, 32), 7),
    case("shift", Kind::ShiftRange, (64, 32), (1, 64), 7),
    case("local_memory", Kind::ThreadgroupMemory, (32, 32), (1, 32), 0),
];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/bugs")
}

fn compile(case: &Case) -> Library {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    let compiler = COMPILER
        .get_or_init(|| Compiler::new().expect("clang 17 or newer is needed").flavour(Flavour::Checked));
    compiler
        .compile(&Source::from_file(folder().join(case.file).with_extension("metal")).unwrap())
        .unwrap_or_else(|e| panic!("{}: {e}", case.file))
}

fn run(case: &Case, library: &Library, kernel: &str, seed: u64) -> (Outcome, Vec<f32>) {
    let input: Vec<f32> = (0..case.input).map(|i| (i % 13) as f32).collect();
    let mut output = vec![0_f32; case.output];
    let device = Device::with_workers(1);
    let mut options = CheckOptions::default();
    options.non_finite = case.kind == Kind::NonFinite;
    let mut dispatch = device
        .dispatch(library, kernel)
        .unwrap()
        .buffer(0, as_bytes(&input))
        .buffer_mut(1, as_bytes_mut(&mut output))
        .value(2, case.n)
        .value(4, 0_u32)
        .threads([case.threads, 1, 1], [case.threadgroup, 1, 1])
        .seed(seed)
        .checks(options);
    if ["missing_barrier", "threadgroup_overrun"].contains(&case.file) {
        dispatch = dispatch.threadgroup_memory(0, 4 * 128.min(case.threadgroup.max(32)));
    }
    let outcome = dispatch.run().unwrap_or_else(|e| panic!("{}: {e}", case.file));
    (outcome, output)
}

/// Lines of the file that carry a mark, from one.
fn marked(case: &Case, mark: &str) -> Vec<u32> {
    let text = fs::read_to_string(folder().join(case.file).with_extension("metal")).unwrap();
    (1..)
        .zip(text.lines())
        .filter(|(_, l)| l.split_once("//").is_some_and(|(_, c)| c.contains(mark)))
        .map(|(n, _)| n)
        .collect()
}

#[test]
fn every_planted_bug_is_found_at_its_line() {
    let mut wrong = Vec::new();
    for case in CASES {
        let library = compile(case);
        for seed in [0, 1, 2] {
            let (outcome, _) = run(case, &library, "buggy", seed);
            let (bug, other) = (marked(case, "BUG"), marked(case, "OTHER"));
            let matches = |r: &softmetal::Report| {
                let places = [Some(r.at.line), r.other.as_ref().map(|o| o.line)];
                // A race may be met from either side.
                r.kind == case.kind
                    && bug.iter().all(|line| places.contains(&Some(*line)))
                    && other.iter().all(|line| places.contains(&Some(*line)))
                    && (bug.is_empty() || r.at.column > 0)
                    && r.at.file.ends_with(&format!("{}.metal", case.file))
            };
            if !outcome.reports.iter().any(matches) {
                wrong.push(format!(
                    "{} with seed {seed}: wanted {:?} at {bug:?} and {other:?}, got {:#?}",
                    case.file, case.kind, outcome.reports
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn corrected_twins_stay_silent_under_fifty_schedules() {
    let mut wrong = Vec::new();
    for case in CASES {
        let library = compile(case);
        for seed in 0..=50 {
            let (outcome, _) = run(case, &library, "fixed", seed);
            if let Some(report) = outcome.reports.first() {
                wrong.push(format!("{} with seed {seed}:\n{report}", case.file));
                break;
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_race_that_the_order_of_execution_hides_is_found_although_the_answer_is_right() {
    let case = CASES.iter().find(|c| c.file == "hidden_race").unwrap();
    let library = compile(case);
    let (outcome, output) = run(case, &library, "buggy", 0);
    let right: Vec<f32> = (0..2).map(|row| (0..128).map(|i| ((row * 128 + i) % 13) as f32).sum()).collect();
    assert_eq!(output, right);
    assert_eq!(outcome.reports[0].kind, Kind::DataRace);
}

#[test]
fn mem_none_as_ordering_weighs_what_the_caller_says() {
    let case = CASES.iter().find(|c| c.file == "mem_none").unwrap();
    let library = compile(case);
    for severity in [Some(softmetal::Severity::Error), Some(softmetal::Severity::Warning), None] {
        let mut options = CheckOptions::default();
        options.mem_none = severity;
        let (input, mut output) = (vec![0_f32; 128], vec![0_f32; 128]);
        let device = Device::with_workers(1);
        let outcome = device
            .dispatch(&library, "buggy")
            .unwrap()
            .buffer(0, as_bytes(&input))
            .buffer_mut(1, as_bytes_mut(&mut output))
            .threads([128, 1, 1], [128, 1, 1])
            .checks(options)
            .run()
            .unwrap();
        assert_eq!(outcome.reports.first().map(|r| r.severity), severity);
    }
}

#[test]
fn reports_name_thread_threadgroup_and_buffer() {
    let case = CASES.iter().find(|c| c.file == "last_threadgroup").unwrap();
    let library = compile(case);
    let (outcome, _) = run(case, &library, "buggy", 0);
    let report = &outcome.reports[0];
    assert_eq!((report.thread, report.threadgroup, report.buffer), ([4, 0, 0], [3, 0, 0], Some(0)));
    assert!(
        report.explanation.contains("0 bytes past the end of buffer 0 (400 bytes)"),
        "{}",
        report.explanation
    );
    let shown = report.to_string();
    assert!(shown.contains("const float x = in[i];") && shown.contains('^'), "{shown}");
}

/// Runs a kernel of text on 64 threads in threadgroups of 64, in lockstep or not: what it reports and what comes out.
fn run_text(library: &Library, kernel: &str, seed: u64, lockstep: bool) -> (Outcome, Vec<f32>) {
    let input: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let mut output = vec![0_f32; 64];
    let device = Device::with_workers(1);
    let dispatch = device.dispatch(library, kernel).unwrap().buffer(0, as_bytes(&input));
    let dispatch =
        dispatch.buffer_mut(1, as_bytes_mut(&mut output)).threads([64, 1, 1], [64, 1, 1]).seed(seed);
    let outcome = if lockstep { dispatch.lockstep() } else { dispatch }.run().unwrap();
    (outcome, output)
}

fn compile_text(body: &str) -> Library {
    let source =
        Source::new("text.metal", format!("#include <metal_stdlib>\nusing namespace metal;\n{body}"));
    let compiler = Compiler::new().expect("clang 17 or newer is needed").flavour(Flavour::Checked);
    compiler.compile(&source).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn writes_that_race_are_equal_only_if_the_memory_stays_as_it_was() {
    let library = compile_text(
        "kernel void same(device const float* in, device float* out, uint i [[thread_position_in_grid]]) {
            out[0] = in[5];
        }
        kernel void other(device const float* in, device float* out, uint i [[thread_position_in_grid]]) {
            out[0] = i == 63 ? in[6] : in[5];
        }
        kernel void last(device const float* in, device float* out, uint i [[thread_position_in_grid]]) {
            ((device float4*)out)[i / 4] = float4(in[i & 60], 0, 0, in[i & ~3u]);
        }
        kernel void read(device const float* in, device float* out, uint i [[thread_position_in_grid]]) {
            if (i % 32 == 7) out[i] = out[0];
            else out[0] = in[5];
        }",
    );
    for seed in 0..4 {
        let kinds = |kernel| {
            let (outcome, _) = run_text(&library, kernel, seed, false);
            outcome.reports.iter().map(|r| (r.kind, r.severity)).collect::<Vec<_>>()
        };
        let (equal, race) = ((Kind::SameValueRace, Severity::Warning), (Kind::DataRace, Severity::Error));
        assert_eq!(kinds("same"), [equal], "seed {seed}");
        assert!(kinds("other").contains(&race), "seed {seed}");
        assert_eq!(kinds("last"), [equal], "seed {seed}");
        assert!(kinds("read").contains(&race), "seed {seed}");
    }
    let mut options = CheckOptions::default();
    options.same_value = None;
    let (input, mut output) = ([1_f32; 64], [0_f32; 64]);
    let device = Device::new();
    let dispatch = device.dispatch(&library, "same").unwrap().buffer(0, as_bytes(&input));
    let dispatch = dispatch.buffer_mut(1, as_bytes_mut(&mut output)).threads([64, 1, 1], [64, 1, 1]);
    assert!(dispatch.checks(options).run().unwrap().is_clean());
}

#[test]
fn what_works_only_in_lockstep_is_told_from_what_is_broken() {
    let library = compile_text(
        "kernel void lanes(device const float* in, device float* out, uint i [[thread_position_in_threadgroup]]) {
            threadgroup float line[64];
            line[i] = in[i];
            out[i] = line[i ^ 31];
            line[i ^ 1] = out[i] + 1;
            out[i] += line[i];
        }
        kernel void broken(device const float* in, device float* out, uint i [[thread_position_in_threadgroup]]) {
            threadgroup float line[64];
            line[i] = in[i];
            out[i] = line[63 - i];
        }
        kernel void right(device const float* in, device float* out, uint i [[thread_position_in_threadgroup]]) {
            threadgroup float line[64];
            line[i] = in[i];
            threadgroup_barrier(mem_flags::mem_threadgroup);
            float x = simd_sum(line[63 - i]);
            if (i % 3 == 0) { out[i] = x; x = line[i]; } else { out[i] = line[i] - x; }
            simdgroup_barrier(mem_flags::mem_none);
            out[i] += simd_shuffle_xor(x, 1);
        }",
    );
    let results = |kernel: &str, lockstep: bool| -> Vec<Vec<u32>> {
        (0..12)
            .map(|seed| run_text(&library, kernel, seed, lockstep).1.iter().map(|x| x.to_bits()).collect())
            .collect()
    };
    let agree = |all: &[Vec<u32>]| all.iter().all(|one| *one == all[0]);
    let in_step = results("lanes", true);
    assert!(agree(&in_step) && !agree(&results("lanes", false)));
    let expected: Vec<u32> = (0..64_u32).map(|i| (((i ^ 31) + (i ^ 1 ^ 31) + 1) as f32).to_bits()).collect();
    assert_eq!(in_step[0], expected);
    assert!(!agree(&results("broken", true)), "no schedule of lanes helps here");
    let right = results("right", false);
    assert!(agree(&right) && results("right", true) == right);
    assert!(run_text(&library, "right", 3, true).0.is_clean());
}

#[test]
fn divergence_weighs_what_the_caller_says() {
    for file in ["early_return", "same_line_barrier", "absent_lane", "simdgroup_divergence"] {
        let case = CASES.iter().find(|c| c.file == file).unwrap();
        let library = compile(case);
        for severity in [Some(Severity::Error), Some(Severity::Warning), None] {
            let mut options = CheckOptions::default();
            options.divergence = severity;
            let (input, mut output) = ([0_f32; 64], [0_f32; 64]);
            let device = Device::with_workers(1);
            let dispatch = device.dispatch(&library, "buggy").unwrap().buffer(0, as_bytes(&input));
            let dispatch = dispatch.buffer_mut(1, as_bytes_mut(&mut output)).value(2, 50_u32);
            let outcome = dispatch.threads([64, 1, 1], [64, 1, 1]).checks(options).run().unwrap();
            assert_eq!(outcome.reports.first().map(|r| r.severity), severity, "{file}");
        }
    }
}
