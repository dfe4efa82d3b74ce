//! What a plan costs, kernel by kernel: launches, threads, threadgroup memory, bytes and multiply-adds. Counted, never
//! measured.

use metallic_core::KernelCount;

use crate::command::Dispatch;
use crate::kernels::{Moved, SlotUse, Stage, declared};
use crate::step::StepCounts;

/// The kernels of the steps of one shape.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelCounts {
    kernels: Vec<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    count: KernelCount,
    seen: Vec<Seen>,
}

/// Reads that the step alone knows, by so many launches.
#[derive(Clone, Copy, Debug)]
struct Seen {
    moved: Moved,
    times: u64,
}

impl KernelCounts {
    /// Counts a launch.
    pub(crate) fn add(&mut self, dispatch: &Dispatch, stage: &Stage) {
        let launch = &dispatch.launch;
        let function = launch.kernel.function;
        let mut count = KernelCount {
            op: dispatch.label,
            kernel: function,
            launches: 1,
            groups: launch.groups.iter().map(|n| u64::from(*n)).product(),
            threads: launch.threads.iter().product(),
            threadgroup_bytes: launch.threadgroup_bytes.saturating_add(declared::bytes(function)),
            moved: 0,
            distinct: 0,
            vectors_again: stage.vectors_again,
            multiply_adds: launch.work,
        };
        let mut seen = Vec::new();
        for ((_, binding), SlotUse { moved, .. }) in dispatch.bindings().zip(stage.slots()) {
            let (read, written) = binding.traffic();
            let (len, bytes) = (binding.region.len() as u64, read + written);
            if let Moved::Seen { .. } = moved {
                seen.push(Seen { moved: *moved, times: 1 });
                continue;
            }
            // What is read and written counts both ways.
            let once = if read > 0 && written > 0 { len.saturating_mul(2) } else { len };
            count.moved += bytes;
            count.distinct += bytes.min(once);
        }
        match self.kernels.iter_mut().find(|known| known.count.is_like(&count)) {
            Some(known) => {
                known.count.add(&count);
                for more in &seen {
                    known.see(more);
                }
            }
            None => self.kernels.push(Counted { count, seen }),
        }
    }

    /// The same in a step that looks at so much.
    pub(crate) fn in_step(&self, step: &StepCounts) -> Vec<KernelCount> {
        let of = |Counted { count, seen }: &Counted| {
            let mut count = *count;
            for Seen { moved, times } in seen {
                let bytes = moved.bytes(step).unwrap_or_default();
                let distinct = moved.distinct(step).map_or(bytes, |distinct| distinct.min(bytes));
                let all = |bytes: usize| times.saturating_mul(bytes as u64);
                count.moved = count.moved.saturating_add(all(bytes));
                count.distinct = count.distinct.saturating_add(all(distinct));
            }
            count
        };
        self.kernels.iter().map(of).collect()
    }
}

impl Counted {
    fn see(&mut self, more: &Seen) {
        match self.seen.iter_mut().find(|known| known.moved == more.moved) {
            Some(known) => known.times += more.times,
            None => self.seen.push(*more),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use metallic_core::{
        Attention, Backend, CompileOptions, DType, Graph, GraphBuilder, KernelCount, RunStats, SequenceSpan,
        Shape, StateId, Step, TensorType, Var, Wanted, Weight,
    };

    use crate::{GpuBackend, GpuOptions, Limits, Null};

    const VOCAB: usize = 8;
    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const HEAD_DIM: usize = 32;
    /// Bytes of a token's keys, or values, in the cache.
    const ROW: u64 = (KV_HEADS * HEAD_DIM * 2) as u64;

    fn weight<'g>(g: &'g GraphBuilder, name: &str, cols: usize) -> Var<'g> {
        let ty = TensorType::new(DType::F32, Shape::matrix(VOCAB, cols));
        g.weight(Weight { name: name.to_owned(), ty, data: vec![0; VOCAB * cols * 4].into() })
    }

    fn graph() -> Graph {
        let g = GraphBuilder::new();
        let rows = |name: &str, heads: usize| weight(&g, name, heads * HEAD_DIM).embed(g.tokens());
        let receipt = rows("k", KV_HEADS).kv_write(rows("v", KV_HEADS), StateId(0), KV_HEADS);
        let spec = Attention {
            state: StateId(0),
            heads: HEADS,
            kv_heads: KV_HEADS,
            head_dim: HEAD_DIM,
            value_dim: HEAD_DIM,
            scale: 0.2,
            window: None,
            softcap: None,
            sinks: false,
        };
        let logits = rows("q", HEADS).attention(receipt, spec, None);
        let logits = logits.linear(weight(&g, "head", HEADS * HEAD_DIM));
        g.finish(&[logits.select_rows(g.output_rows())]).unwrap()
    }

    /// A step of so many tokens of each of two sequences, the first with a past.
    fn counted(tokens: usize, past: usize) -> (RunStats, Vec<KernelCount>) {
        let gpu = Null::with(Limits::of_apple("Apple M4"));
        let backend = GpuBackend::new(Arc::new(gpu), GpuOptions::default());
        let mut program = backend.compile(&graph(), CompileOptions::kv(DType::F16)).unwrap();
        assert!(program.kernels().is_empty(), "nothing has run");
        program.reserve_blocks(500).unwrap();
        let blocks: [Vec<u32>; 2] = [(0..250).collect(), (250..500).collect()];
        let span = |i: usize, past| SequenceSpan {
            tokens: i * tokens..(i + 1) * tokens,
            past,
            blocks: &blocks[i],
            near: &[],
            slot: 0,
        };
        let sequences = [span(0, past), span(1, 0)];
        let (ids, positions) = (vec![1; 2 * tokens], vec![0; 2 * tokens]);
        let step = Step {
            tokens: &ids,
            positions: &positions,
            sequences: &sequences,
            outputs: &[0],
            wanted: Wanted::only(0),
            ..Step::default()
        };
        (program.run(&step).unwrap(), program.kernels())
    }

    fn of<'k>(kernels: &'k [KernelCount], op: &str) -> &'k KernelCount {
        kernels.iter().find(|kernel| kernel.op == op).unwrap()
    }

    #[test]
    fn kernels_come_to_what_the_step_says_it_cost() {
        for (tokens, past) in [(1, 0), (1, 5000), (3, 40), (64, 9)] {
            let (stats, kernels) = counted(tokens, past);
            let sum = |of: fn(&KernelCount) -> u64| kernels.iter().map(of).sum::<u64>();
            assert_eq!(sum(|k| k.launches), stats.dispatches, "{tokens} after {past}: {kernels:?}");
            assert_eq!(sum(|k| k.moved), stats.bytes_read + stats.bytes_written, "{tokens} after {past}");
            assert!(kernels.iter().all(|k| k.distinct <= k.moved && k.distinct > 0), "{kernels:?}");
        }
    }

    #[test]
    fn keys_that_several_threadgroups_read_are_told_from_those_there_are() {
        // One threadgroup a key/value head and token: two tokens see 41 and 1 tokens.
        let (_, kernels) = counted(1, 40);
        let rows = of(&kernels, "attention");
        assert_eq!((rows.launches, rows.groups, rows.moved - rows.distinct), (1, 2 * 2, 0));
        // Two tiles of 32 a sequence, read by each of two query heads; the second sees all that the first does.
        let (_, kernels) = counted(64, 9);
        let tiles = of(&kernels, "attention");
        assert_eq!(tiles.kernel, "attention_tiles_8");
        let (read, held) = (41 + 73 + 32 + 64, 73 + 64);
        assert_eq!(tiles.moved - tiles.distinct, 2 * ROW * (2 * read - held));
        assert!(tiles.threadgroup_bytes > 8 << 10, "what a kernel declares itself counts");
    }

    #[test]
    fn vectors_that_every_block_of_rows_reads_are_counted_apart() {
        let (_, kernels) = counted(1, 0);
        let head = kernels.iter().find(|kernel| kernel.kernel.starts_with("matvec")).unwrap();
        // Two blocks of four rows, of two tokens; all logits are computed, one is selected.
        assert_eq!(head.vectors_again, 2 * (HEADS * HEAD_DIM * 4) as u64, "{head:?}");
        assert_eq!(head.multiply_adds, (2 * VOCAB * HEADS * HEAD_DIM) as u64);
        assert_eq!(head.moved, head.distinct);
    }
}
