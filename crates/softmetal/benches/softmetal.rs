//! What things cost: barriers, collectives, a quantised matvec in both flavours, compiling, scaling over host threads.
//!
//! Each line states the best of several runs and, where there is one, the target. Results are checked before they are timed.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use softmetal::{
    Buffer, Cache, Compiler, Device, Flavour, Library, Source, Toolchain, as_bytes, as_bytes_mut,
};

fn source(name: &str) -> Source {
    Source::from_file(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(name))
        .expect("the kernel is in the repository")
}

fn library(name: &str, flavour: Flavour) -> Library {
    Compiler::new()
        .expect("clang 17 or newer is needed")
        .flavour(flavour)
        .compile(&source(name))
        .expect("it compiles")
}

/// Enough for the processor's time to be known to a percent.
const ROUNDS: i32 = 20_000;

/// The best of `n` runs.
fn best(n: usize, mut f: impl FnMut() -> Duration) -> Duration {
    (0..n).map(|_| f()).min().unwrap_or_default()
}

/// Time this thread has spent on a processor, so that other work on the machine does not count; the clock where that is unknown.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    match stat.split_whitespace().next().and_then(|ns| ns.parse().ok()) {
        Some(ns) => Duration::from_nanos(ns),
        None => START.with(Instant::elapsed),
    }
}

thread_local! {
    static START: Instant = Instant::now();
}

/// `target` in the unit of `value`; infinite if there is none.
fn line(name: &str, value: f64, unit: &str, target: f64) {
    let verdict = match target {
        t if t.is_infinite() => String::new(),
        t if value <= t => format!("target {t} {unit}: met"),
        t => format!("target {t} {unit}: MISSED"),
    };
    println!("{name:<48} {value:>10.2} {unit:<12} {verdict}");
}

fn looped(library: &Library, kernel: &str, threads: u32, rounds: i32) -> Duration {
    let mut out = vec![0_f32; threads as usize];
    let device = Device::with_workers(1);
    best(5, || {
        let dispatch = device
            .dispatch(library, kernel)
            .expect("it is there")
            .buffer_mut(0, as_bytes_mut(&mut out))
            .value(1, rounds);
        let start = cpu();
        let outcome = dispatch.threads([threads, 1, 1], [threads, 1, 1]).run().expect("it runs");
        assert!(outcome.is_clean());
        cpu().saturating_sub(start)
    })
}

fn barriers() {
    let plain = &library("bench.metal", Flavour::Plain);
    for (threads, target) in [(32, f64::INFINITY), (256, 30.0), (1024, f64::INFINITY)] {
        let ns = looped(plain, "barriers", threads, ROUNDS).as_secs_f64() * 1e9
            / f64::from(threads)
            / f64::from(ROUNDS);
        line(&format!("threadgroup_barrier, {threads} threads"), ns, "ns/thread", target);
    }
    let ns = looped(plain, "sums", 256, ROUNDS).as_secs_f64() * 1e9 / 256.0 / f64::from(ROUNDS);
    line("simd_sum, 256 threads", ns, "ns/lane", f64::INFINITY);
}

/// One dispatch after another, as a model's layers are, of a kernel that does next to nothing.
fn dispatches() {
    let plain = &library("bench.metal", Flavour::Plain);
    let device = Device::with_workers(2);
    let out = Buffer::new(1 << 16).expect("memory");
    for (groups, target) in [(1, 15.0), (2, f64::INFINITY), (16, f64::INFINITY)] {
        let n = 200;
        let time = best(20, || {
            let start = Instant::now();
            for _ in 0..n {
                let dispatch = device.dispatch(plain, "nothing").expect("it is there");
                let dispatch = dispatch.bind(0, &out, 0..1 << 16).threadgroups([groups, 1, 1], [32, 1, 1]);
                assert!(dispatch.run().expect("it runs").is_clean());
            }
            start.elapsed() / n
        });
        let name = format!("a dispatch of {groups} x 32 threads, 2 host threads");
        line(&name, time.as_secs_f64() * 1e6, "us", target);
    }
}

fn matvec(flavour: Flavour) -> Duration {
    let library = library("q4_0_matvec.metal", flavour);
    let (rows, columns) = (2048_u32, 2048_u32);
    let mut weights = Vec::new();
    for block in 0..rows * columns / 32 {
        weights.extend(0x2C00_u16.to_le_bytes()); // 1/16 as a half
        weights.extend((0..16_u32).map(|i| (block.wrapping_mul(31) + i * 7) as u8));
    }
    let x = vec![1.0_f32; columns as usize];
    let mut y = vec![f32::NAN; rows as usize];
    let device = Device::with_workers(1);
    // The processor's time is known to a few milliseconds only, so several runs are timed together.
    let runs = 20;
    let time = best(3, || {
        let start = cpu();
        for _ in 0..runs {
            let dispatch = device.dispatch(&library, "q4_0_matvec").expect("it is there");
            let dispatch =
                dispatch.buffer(0, &weights).buffer(1, as_bytes(&x)).buffer_mut(2, as_bytes_mut(&mut y));
            let dispatch =
                dispatch.value(3, rows).value(4, columns).threadgroups([rows / 16, 1, 1], [128, 1, 1]);
            assert!(dispatch.run().expect("it runs").is_clean());
        }
        cpu().saturating_sub(start) / runs
    });
    let right: f32 = weights[..(columns / 32 * 18) as usize]
        .chunks(18)
        .flat_map(|b| &b[2..])
        .map(|q| (f32::from(q & 15) + f32::from(q >> 4) - 16.0) / 16.0)
        .sum();
    assert!((y[0] - right).abs() < 1e-2, "{} instead of {right}", y[0]);
    time
}

fn scaling() {
    let plain = &library("bench.metal", Flavour::Plain);
    let cores = std::thread::available_parallelism().map_or(1, Into::into);
    let mut one = 0.0;
    for workers in [1, cores] {
        let mut out = vec![0_f32; 256 * 256];
        let device = Device::with_workers(workers);
        let time = best(5, || {
            let dispatch = device
                .dispatch(plain, "spin")
                .expect("it is there")
                .buffer_mut(0, as_bytes_mut(&mut out))
                .value(1, 2000);
            dispatch.threads([256 * 256, 1, 1], [256, 1, 1]).run().expect("it runs").elapsed
        });
        let ms = time.as_secs_f64() * 1e3;
        if workers == 1 {
            one = ms;
        }
        line(&format!("256 threadgroups on {workers} host threads"), ms, "ms", f64::INFINITY);
    }
    println!("{:<48} one host thread took {one:.2} ms", "");
}

fn compiling() {
    let mut text = String::from("#include <metal_stdlib>\nusing namespace metal;\n");
    let body = &source("rms_norm.metal").text;
    // More than 200 lines: the same kernel under several names.
    for copy in 0..10 {
        let body = body.replace("#include <metal_stdlib>\nusing namespace metal;\n", "");
        text += &body
            .replace("rms_norm", &format!("rms_norm_{copy}"))
            .replace("has_w", &format!("has_w_{copy}"))
            .replace("constant(0)", &format!("constant({copy})"));
    }
    let lines = text.lines().count();
    assert!(lines >= 200, "only {lines} lines");
    let source = Source::new("many.metal", text);
    for (flavour, name, target) in
        [(Flavour::Plain, "plain", 3000.0), (Flavour::Checked, "checked", f64::INFINITY)]
    {
        let mut cached = Duration::MAX;
        let empty = best(3, || {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let toolchain = Toolchain::find().expect("clang 17 or newer is needed");
            let cache = Cache::at(folder.path()).expect("a folder");
            let compiler = Compiler::with(toolchain, cache).expect("a cache").flavour(flavour);
            let compile = || {
                let start = Instant::now();
                compiler.compile(&source).unwrap_or_else(|e| panic!("{e}"));
                start.elapsed()
            };
            let empty = compile();
            cached = cached.min(best(5, compile));
            empty
        });
        line(&format!("compile {lines} lines, empty cache, {name}"), empty.as_secs_f64() * 1e3, "ms", target);
        line(&format!("compile {lines} lines, cached, {name}"), cached.as_secs_f64() * 1e3, "ms", 5.0);
    }
}

fn matvecs() {
    let fast = matvec(Flavour::Plain);
    line("q4_0 matvec 2048x2048, one core, plain", fast.as_secs_f64() * 1e3, "ms", 10.0);
    let checked = matvec(Flavour::Checked);
    line("q4_0 matvec 2048x2048, one core, checked", checked.as_secs_f64() * 1e3, "ms", f64::INFINITY);
    line("    checked over plain", checked.as_secs_f64() / fast.as_secs_f64(), "times", 40.0);
}

/// `cargo bench -p softmetal -- barriers` runs one section.
fn main() {
    let sections: [(&str, fn()); 5] = [
        ("barriers", barriers),
        ("dispatch", dispatches),
        ("matvec", matvecs),
        ("scaling", scaling),
        ("compiling", compiling),
    ];
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    for (name, run) in sections {
        if wanted.is_empty() || wanted.iter().any(|w| w == name) {
            run();
        }
    }
}
