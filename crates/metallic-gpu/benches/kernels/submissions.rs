//! Attention of several sequences at once: one submission for each of them, or one for all.

use metallic_core::{
    BLOCK_TOKENS, Backend, CompileOptions, DType, Program, RunStats, SequenceSpan, Step, Wanted,
};
use metallic_gpu::Providers;

use crate::device::Device;
use crate::graphs;

/// Sequences of the batch, and tokens each has in its cache.
const BATCH: usize = 8;
const PAST: usize = 255;
/// Runs of which the best counts.
const REPEATS: usize = 10;

struct Batch {
    program: Box<dyn Program>,
    blocks: Vec<Vec<u32>>,
}

impl Batch {
    fn new(device: &Device) -> Batch {
        let line = graphs::attention(&device.sizes, DType::F16, 1, PAST);
        let backend = device.backend(&Providers::new(), false);
        let mut program =
            backend.compile(&(line.build)(1), CompileOptions::kv(line.kv)).expect("the graph compiles");
        let each = (PAST + 1).div_ceil(BLOCK_TOKENS);
        program.reserve_blocks(BATCH * each).expect("memory");
        let blocks = (0..BATCH).map(|i| (0..each).map(|b| (i * each + b) as u32).collect()).collect();
        let mut batch = Batch { program, blocks };
        for sequence in 0..BATCH {
            batch.run(&[sequence], 0, PAST);
        }
        batch
    }

    /// `count` tokens of each of these sequences, in one step.
    fn run(&mut self, members: &[usize], past: usize, count: usize) -> RunStats {
        let n = members.len() * count;
        let tokens: Vec<u32> = (0..n).map(|i| (i % graphs::VOCAB) as u32).collect();
        let positions: Vec<u32> =
            members.iter().flat_map(|_| (past..past + count).map(|p| p as u32)).collect();
        let spans = members.iter().enumerate().map(|(i, member)| SequenceSpan {
            tokens: i * count..(i + 1) * count,
            past,
            blocks: &self.blocks[*member],
            near: &[],
            slot: 0,
        });
        let sequences: Vec<SequenceSpan<'_>> = spans.collect();
        let outputs: Vec<u32> = (1..=members.len()).map(|i| (i * count - 1) as u32).collect();
        let step = Step {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
            wanted: Wanted::only(0),
            ..Step::default()
        };
        self.program.run(&step).expect("a step")
    }

    fn one_for_all(&mut self) -> RunStats {
        self.run(&(0..BATCH).collect::<Vec<_>>(), PAST, 1)
    }

    fn one_for_each(&mut self) -> RunStats {
        let mut sum = RunStats::default();
        for sequence in 0..BATCH {
            sum.add(&self.run(&[sequence], PAST, 1));
        }
        sum
    }
}

pub(crate) fn strategies(device: &Device, wanted: &dyn Fn(&str) -> bool) {
    let name = format!("batched_attention/{BATCH}x{}", PAST + 1);
    if !wanted(&name) {
        return;
    }
    let mut batch = Batch::new(device);
    for (what, run) in [
        ("one submission for all", Batch::one_for_all as fn(&mut Batch) -> RunStats),
        ("one for each", Batch::one_for_each),
    ] {
        let stats = run(&mut batch);
        let best = (0..REPEATS).map(|_| run(&mut batch).time).min().unwrap_or_default();
        println!(
            "{name}, {what}: {:.2} µs, {} submissions, {} dispatches, {} bytes read",
            best.as_secs_f64() * 1e6,
            stats.submissions,
            stats.dispatches,
            stats.bytes_read
        );
    }
}
