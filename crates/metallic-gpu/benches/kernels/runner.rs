//! A sequence of its own that runs the same step again and again.

use std::time::{Duration, Instant};

use metallic_core::{
    BLOCK_TOKENS, Backend, BackendError, CompileOptions, Graph, OpCost, Program, RunStats, SequenceSpan,
    Step, Wanted,
};

use crate::graphs::{Line, VOCAB};

/// How long a line is measured.
const LONG_ENOUGH: Duration = Duration::from_millis(50);
/// Steps before it, in which a driver sees that they come again.
const WARM_UP: usize = 3;
/// Steps at least.
const LEAST: usize = 3;
/// Tokens of a step that fills the cache.
const PIECE: usize = 512;

pub(crate) struct Runner {
    pub(crate) program: Box<dyn Program>,
    tokens: usize,
    past: usize,
    blocks: Vec<u32>,
}

impl Runner {
    pub(crate) fn new(backend: &dyn Backend, line: &Line, graph: &Graph) -> Runner {
        Runner::try_new(backend, line, graph).expect("the graph compiles")
    }

    /// The same; an error where the device has no kernels for it.
    pub(crate) fn try_new(backend: &dyn Backend, line: &Line, graph: &Graph) -> Result<Runner, BackendError> {
        let mut program = backend.compile(graph, CompileOptions::kv(line.kv))?;
        let blocks = (line.past + line.tokens).div_ceil(BLOCK_TOKENS);
        program.reserve_blocks(blocks)?;
        let blocks = (0..blocks as u32).collect();
        let mut runner = Runner { program, tokens: line.tokens, past: line.past, blocks };
        for past in (0..line.past).step_by(PIECE) {
            runner.run(past, PIECE.min(line.past - past), Wanted::NONE);
        }
        Ok(runner)
    }

    pub(crate) fn step(&mut self) -> RunStats {
        self.run(self.past, self.tokens, Wanted::ALL)
    }

    fn run(&mut self, past: usize, count: usize, wanted: Wanted) -> RunStats {
        let tokens: Vec<u32> = (0..count).map(|i| (i % VOCAB) as u32).collect();
        let positions: Vec<u32> = (past..past + count).map(|p| p as u32).collect();
        let sequences = [SequenceSpan { tokens: 0..count, past, blocks: &self.blocks, near: &[], slot: 0 }];
        let outputs = [count as u32 - 1];
        let step = Step {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: if wanted == Wanted::NONE { &[] } else { &outputs },
            wanted,
            ..Step::default()
        };
        self.program.run(&step).expect("a step")
    }

    /// What the operations of the step with the least time cost.
    pub(crate) fn best_costs(&mut self) -> Vec<OpCost> {
        let whole = |stats: &RunStats| stats.ops.iter().map(|cost| cost.time).sum::<Duration>();
        let mut best = self.step();
        self.repeat(|stats| {
            if whole(&stats) < whole(&best) {
                best = stats;
            }
        });
        best.ops
    }

    /// The least time of a step, as the device tells it.
    pub(crate) fn best_step(&mut self) -> Duration {
        let time =
            |stats: &RunStats| if stats.device_time.is_zero() { stats.time } else { stats.device_time };
        (0..WARM_UP).for_each(|_| drop(self.step()));
        let mut best = Duration::MAX;
        self.repeat(|stats| best = best.min(time(&stats)));
        best
    }

    fn repeat(&mut self, mut each: impl FnMut(RunStats)) {
        let start = Instant::now();
        let mut steps = 0;
        while steps < LEAST || start.elapsed() < LONG_ENOUGH {
            each(self.step());
            steps += 1;
        }
    }
}

/// The largest difference beside the largest value.
pub(crate) fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0, |worst: f32, (a, b)| worst.max((a - b).abs())) / largest
}
