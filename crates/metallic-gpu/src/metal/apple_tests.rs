//! Apple's own kernels against ours, each on the same memory: shapes, strides, offsets, caches and failures, on Linux, where
//! Apple's frameworks are `softmetal-framework`.

use metallic_core::{Attention, DType, StateId};
use softmetal_framework::faults::{self, Fault};
use softmetal_framework::{Profile, set_devices, set_graph_commits, set_macos};

use super::on_linux::{WAIT, alone, assert_clean, gpu, with_devices};
use super::*;
use crate::command::{Command, Dispatch, Region};
use crate::gpu::AppleKernels;
use crate::kernels::attention::AttentionSpec;
use crate::kernels::project::{Part, Projection};
use crate::kernels::{Call, Gemm, Launch, Slot, Stage, attention_staged};
use crate::step::StepShape;

/// Three query heads to each of two key/value heads.
const GROUPED: Attention = Attention {
    state: StateId(0),
    heads: 6,
    kv_heads: 2,
    head_dim: 16,
    value_dim: 16,
    scale: 0.125,
    window: None,
    softcap: None,
    sinks: false,
};

/// Bytes before each argument, which its region begins after.
const BEFORE: usize = 64;

/// Numbers between -1 and 1, the same for the same seed.
fn waves(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| (((i * 7 + seed * 13) % 101) as f32 - 50.0) / 50.0).collect()
}

fn bytes(dtype: DType, numbers: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; numbers.len() * dtype.block_bytes()];
    metallic_core::quant::quantize(dtype, numbers, &mut bytes).expect("floats");
    bytes
}

/// A launch with its arguments, the last of which is the result.
struct Bench<'g> {
    gpu: &'g Metal,
    launch: Launch,
    call: Call,
    regions: Vec<Region>,
    pipeline: PipelineId,
}

impl<'g> Bench<'g> {
    fn new(gpu: &'g Metal, stage: &Stage, data: &[Vec<u8>]) -> Bench<'g> {
        let launch = stage.launch;
        let region = |bytes: &Vec<u8>| {
            let len = BEFORE + bytes.len().max(4);
            let buffer = gpu.allocate(len, Storage::Shared).expect("memory");
            gpu.write(buffer, BEFORE, bytes).expect("inside");
            Region::whole(buffer, len).slice(BEFORE, len - BEFORE).expect("inside")
        };
        let kernel = &launch.kernel;
        let library = gpu.library(kernel.family.name, &kernel.family.source()).expect("compiles");
        let pipeline = gpu.pipeline(library, kernel.function, &kernel.constants).expect("compiles").id;
        let call = stage.call().expect("a library may do it");
        Bench { gpu, launch, call, regions: data.iter().map(region).collect(), pipeline }
    }

    fn dispatch(&self) -> Dispatch {
        let bound =
            self.regions.iter().zip(self.launch.kernel.args).map(|(region, arg)| region.bind(arg.access));
        Dispatch::new("t", self.pipeline, &self.launch, &bound.collect::<Vec<_>>()).expect("as declared")
    }

    /// The result, by Apple's kernel or by ours, over what was there.
    fn run(&self, by_apple: bool, there: &[u8]) -> Result<Vec<f32>, GpuError> {
        let out = self.regions.last().expect("a result");
        self.gpu.write(out.buffer(), out.offset(), there)?;
        let mut list = CommandList::new();
        list.push(Command::of(self.dispatch(), by_apple.then_some(self.call)));
        self.gpu.submit(&list)?.wait(WAIT)?;
        let mut found = vec![0; there.len()];
        self.gpu.read(out.buffer(), out.offset(), &mut found)?;
        Ok(found.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect())
    }

    fn agrees(&self, there: &[u8], within: f32, what: &str) {
        let [ours, apples] = [false, true].map(|by_apple| self.run(by_apple, there).expect("it runs"));
        assert_eq!(ours.len(), apples.len());
        for (index, (a, b)) in ours.iter().zip(&apples).enumerate() {
            assert!((a - b).abs() <= within * a.abs().max(1.0), "{what}, element {index}: {a} and {b}");
        }
        assert!(ours.iter().any(|x| *x != 0.0), "{what}");
    }
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        self.regions.iter().for_each(|region| self.gpu.free(region.buffer()));
    }
}

const GEMM: Gemm = Gemm { m: 9, n: 20, k: 32, pitch: 20, dtype: DType::F16, batches: 1, adds: false };

fn product(gpu: &Metal, gemm: Gemm) -> (Bench<'_>, Vec<u8>) {
    let stage = gemm.stage([Slot::Input(0), Slot::Input(1), Slot::Output], gpu.limits()).expect("a stage");
    let [x, w, out] = gemm.bytes();
    let size = gemm.dtype.block_bytes();
    let there = bytes(DType::F32, &waves(out / 4, 3));
    let data =
        [bytes(gemm.dtype, &waves(x / size, 1)), bytes(gemm.dtype, &waves(w / size, 2)), there.clone()];
    (Bench::new(gpu, &stage, &data), there)
}

#[test]
fn products_by_mps_are_those_of_our_kernel() {
    let _alone = alone();
    with_devices(&["m1"]);
    let gpu = gpu();
    assert!(gpu.limits().apple.mps && gpu.limits().apple.graph);
    let cases = [
        GEMM,
        Gemm { adds: true, ..GEMM },
        Gemm { pitch: 33, ..GEMM },
        Gemm { dtype: DType::F32, ..GEMM },
        Gemm { dtype: DType::F32, batches: 3, pitch: 24, adds: true, ..GEMM },
        Gemm { m: 1, n: 3, k: 8, pitch: 3, batches: 2, ..GEMM },
    ];
    for gemm in cases {
        let (bench, there) = product(&gpu, gemm);
        bench.agrees(&there, 1e-5, &format!("{gemm:?}"));
    }
    let metrics = gpu.library_metrics().products;
    // Rows' pitches and types of numbers need no kernel of their own.
    assert_eq!((metrics.misses, metrics.hits), (3, 3), "{metrics:?}");
    drop(gpu);
    assert_clean();
}

/// Attention of 3 tokens after a past of 40.
fn spec(attention: Attention, kv: DType) -> AttentionSpec {
    let shape = StepShape { tokens: 3, sequences: 1, tiles: 1, visible: 43, ..StepShape::default() };
    AttentionSpec { attention, shape, kv, sinks: attention.sinks.then_some(Slot::Input(2)) }
}

fn attention<'g>(gpu: &'g Metal, spec: &AttentionSpec) -> (Bench<'g>, Vec<u8>) {
    let stages = attention_staged::plan(spec, gpu.limits()).expect("a plan");
    let a = &spec.attention;
    let staged = if spec.kv == DType::F16 { DType::F16 } else { DType::F32 };
    let cache = |dim: usize, seed| bytes(staged, &waves(a.kv_heads * 64 * dim, seed));
    let rows: Vec<u8> = [0u32, 41, 0, 42, 0, 43].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let there = vec![0; 3 * a.heads * a.value_dim * 4];
    let data = [
        bytes(DType::F32, &waves(3 * a.heads * a.head_dim, 1)),
        cache(a.head_dim, 2),
        cache(a.value_dim, 3),
        rows,
        bytes(DType::F32, &waves(a.heads, 4)),
        there.clone(),
    ];
    (Bench::new(gpu, &stages.stages[2], &data), there)
}

#[test]
fn attention_by_a_graph_is_that_of_our_kernel() {
    let _alone = alone();
    with_devices(&["m4"]);
    let gpu = gpu();
    let small = Attention { scale: 0.25, ..GROUPED };
    let cases = [
        (small, DType::F16),
        (small, DType::F32),
        (Attention { window: Some(5), ..small }, DType::F16),
        (Attention { softcap: Some(0.7), sinks: true, window: Some(33), value_dim: 9, ..small }, DType::BF16),
    ];
    for commits in [false, true] {
        set_graph_commits(commits);
        for (attention, kv) in cases {
            let (bench, there) = self::attention(&gpu, &spec(attention, kv));
            bench.agrees(&there, 1e-5, &format!("{attention:?} {kv}"));
        }
    }
    set_graph_commits(false);
    let metrics = gpu.library_metrics().graphs;
    assert_eq!((metrics.entries, metrics.misses, metrics.hits), (4, 4, 4), "{metrics:?}");
    drop(gpu);
    assert_clean();
}

/// The same with a matrix of 24 rows after it, of which the launch that both are done by is the last but one.
fn projected<'g>(gpu: &'g Metal, spec: &AttentionSpec, dtype: DType) -> (Bench<'g>, Vec<u8>) {
    let a = &spec.attention;
    let cols = a.heads * a.value_dim;
    let part = Part { dtype, rows: 24, weight: Slot::Input(1), bias: None };
    let projection = Projection {
        op: "linear",
        tokens: 3,
        cols: cols as u32,
        parts: [Some(part), None, None],
        x: Slot::Input(0),
        norm: None,
        residual: None,
        gate: None,
        fine: spec.kv == DType::F32,
    };
    let stages = attention_staged::plan_projected(spec, &projection, gpu.limits()).expect("a plan");
    let (staged, ours) =
        (stages.stages[3], if dtype == DType::F32 || projection.fine { DType::F32 } else { DType::F16 });
    let cache = |dim: usize, seed| {
        let kept = if spec.kv == DType::F16 { DType::F16 } else { DType::F32 };
        bytes(kept, &waves(a.kv_heads * 64 * dim, seed))
    };
    let rows: Vec<u8> = [0u32, 41, 0, 42, 0, 43].iter().flat_map(|n| n.to_ne_bytes()).collect();
    let there = vec![0; 3 * 24 * 4];
    let data = [
        bytes(DType::F32, &waves(3 * a.heads * a.head_dim, 1)),
        cache(a.head_dim, 2),
        cache(a.value_dim, 3),
        rows,
        bytes(DType::F32, &waves(a.heads, 4)),
        bytes(ours, &waves(24 * cols, 5)),
        there.clone(),
    ];
    (Bench::new(gpu, &staged, &data), there)
}

#[test]
fn attention_and_a_projection_by_one_graph_are_those_of_our_kernel() {
    let _alone = alone();
    with_devices(&["m4"]);
    let gpu = gpu();
    let other = Attention { softcap: Some(0.7), sinks: true, window: Some(5), value_dim: 9, ..GROUPED };
    let cases =
        [(GROUPED, DType::F16, DType::F16), (other, DType::F16, DType::F32), (other, DType::F32, DType::F32)];
    for commits in [false, true] {
        set_graph_commits(commits);
        for (attention, kv, dtype) in cases {
            let (bench, there) = projected(&gpu, &spec(attention, kv), dtype);
            bench.agrees(&there, 1e-4, &format!("{attention:?} {kv} {dtype}"));
        }
    }
    set_graph_commits(false);
    let metrics = gpu.library_metrics().graphs;
    assert_eq!((metrics.entries, metrics.misses, metrics.hits), (3, 3, 3), "{metrics:?}");
    drop(gpu);
    assert_clean();
}

#[test]
fn what_a_library_does_stands_between_our_kernels_in_the_order_of_the_list() {
    let _alone = alone();
    with_devices(&["m4"]);
    let gpu = gpu();
    let (bench, there) = product(&gpu, GEMM);
    let out = *bench.regions.last().expect("a result");
    let copy = gpu.allocate(there.len(), Storage::Shared).expect("memory");
    let copied = Region::whole(copy, there.len());
    let mut list = CommandList::new();
    // Ones, of which the product takes no note, then a copy of it, then ones again.
    list.push(Command::Fill { to: out, value: 1 });
    list.push(Command::of(bench.dispatch(), Some(bench.call)));
    list.push(Command::Copy { from: out.slice(0, there.len()).expect("inside"), to: copied });
    list.push(Command::Fill { to: out, value: 1 });
    let expected = bench.run(false, &there).expect("our kernel");
    for timed in [false, true] {
        gpu.write(copy, 0, &vec![0; there.len()]).expect("inside");
        let mut submission =
            if timed { gpu.submit_timed(&list) } else { gpu.submit(&list) }.expect("it starts");
        assert_eq!(submission.command_buffers(), if timed { 3 } else { 1 });
        submission.wait(WAIT).expect("it runs");
        let times = submission.times().expect("told");
        assert_eq!(times.len(), if timed { 4 } else { 0 });
        let mut found = vec![0; there.len()];
        gpu.read(copy, 0, &mut found).expect("inside");
        let found = found.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        assert!(found.zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "timed: {timed}");
    }
    gpu.free(copy);
    drop(bench);
    drop(gpu);
    assert_clean();
}

#[test]
fn what_a_library_cannot_make_is_an_error_before_anything_runs() {
    let _alone = alone();
    with_devices(&["m4"]);
    let gpu = gpu();
    let (bench, there) = product(&gpu, GEMM);
    faults::plan(Fault::Library, 1);
    assert!(matches!(gpu.prepare(&bench.call), Err(GpuError::Compile { .. })), "no kernel");
    gpu.prepare(&bench.call).expect("the next one is there");
    faults::plan(Fault::Library, 1);
    let error = bench.run(true, &there).expect_err("no matrix").to_string();
    assert!(error.contains("no matrix"), "{error}");
    bench.agrees(&there, 1e-5, "the next one runs");
    let small = GROUPED;
    let (graph, there) = attention(&gpu, &spec(small, DType::F16));
    faults::plan(Fault::Library, 1);
    assert!(matches!(gpu.prepare(&graph.call), Err(GpuError::Compile { .. })), "no executable");
    for nth in [1, 2] {
        gpu.prepare(&graph.call).expect("the next one is there");
        faults::plan(Fault::Library, nth);
        let error = graph.run(true, &there).expect_err("no view").to_string();
        assert!(error.contains("no view"), "{error}");
    }
    // What a graph commits and goes on from is asked how it went as well.
    set_graph_commits(true);
    faults::plan(Fault::Timeout, 1);
    assert!(matches!(graph.run(true, &there), Err(GpuError::Timeout { .. })));
    set_graph_commits(false);
    graph.agrees(&there, 1e-5, "the next one runs");
    let bfloats = Call::Product(Gemm { dtype: DType::BF16, ..GEMM });
    let error = gpu.prepare(&bfloats).expect_err("no bfloats").to_string();
    assert!(error.contains("BF16"), "{error}");
    drop((bench, graph));
    drop(gpu);
    assert_clean();
}

#[test]
fn systems_and_devices_without_them_say_so() {
    let _alone = alone();
    let apple = |macos, mps: bool| {
        set_macos(macos);
        let mut profile = Profile::named("m1").expect("a profile");
        profile.mps = mps;
        set_devices(vec![profile]);
        gpu().limits().apple
    };
    assert_eq!(apple((14, 5, 0), true), AppleKernels { mps: true, graph: false });
    assert_eq!(apple((15, 0, 0), true), AppleKernels::ALL);
    assert_eq!(apple((15, 0, 0), false), AppleKernels::NONE);
    assert_clean();
}
