//! Kernels one by one: the CPU backend and the Metal kernels on softmetal side by side, each line with its work.
//!
//! `cargo bench -p metallic-gpu --features soft --bench kernels [-- FILTER]`. Light operations stand in chains, so that the embedding every
//! graph begins with does not count. Results are compared before they are timed. `soft` shows what a change does to the
//! number of instructions, not how fast a GPU is.

mod graphs;
mod submissions;
mod tensors;

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput};
use metallic_core::{BLOCK_TOKENS, Backend, CompileOptions, Program, RunStats, SequenceSpan, Step, Wanted};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_gpu::{GpuBackend, GpuOptions, Providers, Soft, SoftOptions};

use graphs::{Line, Work};

const THREADS: usize = 2;

/// Both backends, by name; the GPU's kernels as these providers say.
fn backends(providers: Providers) -> Vec<(&'static str, Box<dyn Backend>)> {
    let cpu = Cpu::new(CpuOptions::default().threads(THREADS)).expect("threads");
    let mut all: Vec<(&str, Box<dyn Backend>)> = vec![("cpu", Box::new(cpu))];
    match soft(providers) {
        Some(gpu) => all.push(("soft", Box::new(gpu))),
        None => eprintln!("NOT MEASURED: soft"),
    }
    all
}

fn soft(providers: Providers) -> Option<GpuBackend> {
    let soft = Soft::new(SoftOptions::default().threads(THREADS));
    let soft = soft.inspect_err(|error| eprintln!("{error}")).ok()?;
    Some(GpuBackend::new(Arc::new(soft), GpuOptions::default().providers(providers)))
}

/// A sequence of its own that runs the same step again and again.
struct Runner {
    program: Box<dyn Program>,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    past: usize,
    blocks: Vec<u32>,
}

impl Runner {
    fn new(backend: &dyn Backend, line: &Line) -> Runner {
        let mut program =
            backend.compile(&line.graph, CompileOptions::kv(line.kv)).expect("the graph compiles");
        let blocks = (line.past + line.tokens).div_ceil(BLOCK_TOKENS);
        program.reserve_blocks(blocks).expect("memory");
        let tokens = |n: usize| (0..n).map(|i| (i % graphs::VOCAB) as u32).collect::<Vec<_>>();
        let mut runner = Runner {
            program,
            tokens: tokens(line.past.max(1)),
            positions: (0..line.past.max(1) as u32).collect(),
            past: 0,
            blocks: (0..blocks as u32).collect(),
        };
        runner.step();
        runner.tokens = tokens(line.tokens);
        runner.positions = (line.past..line.past + line.tokens).map(|p| p as u32).collect();
        runner.past = line.past;
        runner
    }

    fn step(&mut self) -> RunStats {
        let n = self.tokens.len();
        let sequences =
            [SequenceSpan { tokens: 0..n, past: self.past, blocks: &self.blocks, near: &[], slot: 0 }];
        let outputs = [n as u32 - 1];
        let step = Step {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &sequences,
            outputs: &outputs,
            wanted: Wanted::only(0),
            ..Step::default()
        };
        self.program.run(&step).expect("a step")
    }
}

/// The largest difference beside the largest value.
fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0, |worst: f32, (a, b)| worst.max((a - b).abs())) / largest
}

fn kernels(c: &mut Criterion, backends: &[(&str, Box<dyn Backend>)], lines: Vec<Line>) {
    for line in lines {
        let mut group = c.benchmark_group(line.name.clone());
        group.throughput(match line.work {
            Work::Bytes(n) => Throughput::Bytes(n),
            Work::MultiplyAdds(n) => Throughput::Elements(n),
        });
        let mut expected: Option<Vec<f32>> = None;
        for (name, backend) in backends {
            let mut runner = Runner::new(backend.as_ref(), &line);
            runner.step();
            let found = runner.program.output(0).to_vec();
            let off = expected.as_ref().map_or(0.0, |expected| difference(expected, &found));
            assert!(off < 0.05, "{}: {name} is off by {off}", line.name);
            expected.get_or_insert(found);
            group.bench_function(*name, |b| b.iter(|| runner.step()));
        }
        group.finish();
    }
}

fn quick() -> Criterion {
    Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(500))
        .without_plots()
}

fn main() {
    let mut criterion = quick().configure_from_args();
    let backends = backends(Providers::new());
    kernels(&mut criterion, &backends, graphs::lines());
    tensors::operations(&mut criterion, &backends);
    let plain = Providers::new();
    plain.set("sdpa", "plain").expect("a provider");
    kernels(&mut criterion, &self::backends(plain), graphs::plain_attention());
    submissions::strategies(&mut criterion);
    criterion.final_summary();
}
