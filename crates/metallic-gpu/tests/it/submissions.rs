//! How work is handed over: one submission a step, however many sequences it carries, and no memory once it runs.
#![cfg(feature = "soft")]

use std::sync::Arc;

use metallic_core::sample::{Choice, Choices};
use metallic_core::{
    Attention, BLOCK_TOKENS, Backend, CompileOptions, DType, Fed, Graph, GraphBuilder, Program, RunStats,
    SequenceSpan, Shape, StateId, Step, TensorType, Var, Wanted, Weight,
};
use metallic_gpu::fault::Faulty;
use metallic_gpu::{GpuBackend, GpuOptions, Soft, SoftOptions};

const BATCH: usize = 4;
const VOCAB: usize = 8;
const HEAD_DIM: usize = 32;

/// `[VOCAB, head_dim]`, a sine of its own.
fn weight<'g>(g: &'g GraphBuilder, name: &str, step: f32) -> Var<'g> {
    let values = (0..VOCAB * HEAD_DIM).flat_map(|i| ((i as f32 * step).sin()).to_le_bytes());
    let ty = TensorType::new(DType::F32, Shape::matrix(VOCAB, HEAD_DIM));
    let data = values.collect::<Vec<u8>>().into();
    g.weight(Weight { name: name.to_owned(), ty, data })
}

fn rows<'g>(g: &'g GraphBuilder, name: &str, step: f32) -> Var<'g> {
    weight(g, name, step).embed(g.tokens())
}

fn graph() -> Graph {
    let g = GraphBuilder::new();
    let receipt = rows(&g, "k", 0.31).kv_write(rows(&g, "v", 0.53), StateId(0), 1);
    let spec = Attention {
        state: StateId(0),
        heads: 1,
        kv_heads: 1,
        head_dim: HEAD_DIM,
        value_dim: HEAD_DIM,
        scale: 0.2,
        window: None,
        softcap: None,
        sinks: false,
    };
    let logits = rows(&g, "q", 1.7).attention(receipt, spec, None).linear(weight(&g, "head", 0.37));
    let wanted = logits.select_rows(g.output_rows());
    g.finish(&[wanted, wanted.sample()]).unwrap()
}

/// `None`, said aloud, where there is no clang.
fn device(seed: u64) -> Option<Arc<Faulty>> {
    let soft = metallic_testkit::needed(Soft::new(SoftOptions::default().threads(2).seed(seed)))?;
    Some(Arc::new(Faulty::new(Arc::new(soft))))
}

fn program() -> Option<Box<dyn Program>> {
    device(0).map(program_on)
}

fn program_on(gpu: Arc<Faulty>) -> Box<dyn Program> {
    let backend = GpuBackend::new(gpu, GpuOptions::default());
    let mut program = backend.compile(&graph(), CompileOptions::kv(DType::F16)).unwrap();
    program.reserve_blocks(BATCH).unwrap();
    program
}

/// The next token of each of these sequences, in one step.
fn step(program: &mut dyn Program, members: &[usize], past: usize) -> (RunStats, Vec<f32>) {
    let tokens: Vec<u32> = members.iter().map(|m| ((m + past) % VOCAB) as u32).collect();
    let positions = vec![past as u32; members.len()];
    let blocks: Vec<[u32; 1]> = members.iter().map(|m| [*m as u32]).collect();
    let spans = blocks.iter().enumerate();
    let sequences: Vec<SequenceSpan<'_>> = spans
        .map(|(i, blocks)| SequenceSpan { tokens: i..i + 1, past, blocks, near: &[], slot: 0 })
        .collect();
    let outputs: Vec<u32> = (0..members.len() as u32).collect();
    let (tokens, positions, wanted) = (&tokens, &positions, Wanted::only(0));
    let step =
        Step { tokens, positions, sequences: &sequences, outputs: &outputs, wanted, ..Step::default() };
    (program.run(&step).unwrap(), program.output(0).to_vec())
}

#[test]
fn a_batch_is_one_submission_and_as_many_dispatches_as_one_sequence() {
    let (Some(mut together), Some(mut apart)) = (program(), program()) else { return };
    for past in 0..3 {
        let (all, found) = step(together.as_mut(), &[0, 1, 2, 3], past);
        let mut each = RunStats::default();
        let mut expected = Vec::new();
        for member in 0..BATCH {
            let (stats, out) = step(apart.as_mut(), &[member], past);
            each.add(&stats);
            expected.extend(out);
        }
        assert_eq!((all.submissions, each.submissions), (1, BATCH as u64));
        assert_eq!(all.dispatches * BATCH as u64, each.dispatches);
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {expected:?}");
    }
}

#[test]
fn a_step_that_the_driver_cuts_counts_what_was_handed_over() {
    let Some(gpu) = device(0) else { return };
    let mut program = program_on(gpu.clone());
    assert_eq!(step(program.as_mut(), &[0, 1], 0).0.submissions, 1);
    gpu.cut(3);
    assert_eq!(step(program.as_mut(), &[0, 1], 1).0.submissions, 3);
}

/// What two sequences say in steps of which each is submitted while the one before is under way; how much the host did
/// meanwhile is counted.
fn chosen_ahead(seed: u64) -> Option<Vec<u32>> {
    let mut program = program_on(device(seed)?);
    assert_eq!(program.depth(), 2);
    let mut choices = Choices::default();
    for _ in 0..2 {
        choices.push(&Choice::greedy(), &[]).unwrap();
    }
    let choices = choices.words().to_vec();
    let (mut chosen, mut stats) = (Vec::new(), RunStats::default());
    for past in 0..8 {
        let span = |i: usize, blocks| SequenceSpan { tokens: i..i + 1, past, blocks, near: &[], slot: 0 };
        let fed = [Fed { token: 0, row: 0 }, Fed { token: 1, row: 1 }];
        let step = Step {
            tokens: if past == 0 { &[1, 6] } else { &[u32::MAX; 2] },
            fed: if past == 0 { &[] } else { &fed },
            positions: &[past as u32; 2],
            sequences: &[span(0, &[0]), span(1, &[1])],
            outputs: &[0, 1],
            choices: &choices,
            adapters: &[],
            wanted: Wanted::only(1),
        };
        program.submit(&step).unwrap();
        if past > 0 {
            stats.add(&program.finish().unwrap());
            chosen.extend_from_slice(program.ids(1));
        }
        assert!(program.output(0).is_empty(), "logits stay on the device");
    }
    stats.add(&program.finish().unwrap());
    chosen.extend_from_slice(program.ids(1));
    assert_eq!((stats.submissions, stats.plan_hits + stats.plan_misses), (8, 8));
    assert!(stats.overlap > std::time::Duration::ZERO, "{stats:?}");
    Some(chosen)
}

#[test]
fn steps_that_go_together_wait_for_each_other_whatever_order_a_device_takes_commands_in() {
    let Some(expected) = chosen_ahead(0) else { return };
    let mut different = expected.clone();
    different.sort_unstable();
    different.dedup();
    assert!(expected.len() == 16 && different.len() > 3, "{expected:?}");
    for seed in 1..=10 {
        assert_eq!(chosen_ahead(seed).as_ref(), Some(&expected), "seed {seed}");
    }
}

#[test]
fn a_step_whose_results_are_in_the_way_is_refused_until_they_are_read() {
    let Some(mut program) = program() else { return };
    let sequences = [SequenceSpan { tokens: 0..1, past: 0, blocks: &[0], near: &[], slot: 0 }];
    let wanted = Wanted::only(0);
    let step = Step {
        tokens: &[1],
        positions: &[0],
        sequences: &sequences,
        outputs: &[0],
        wanted,
        ..Step::default()
    };
    program.submit(&step).unwrap();
    let error = program.submit(&step).unwrap_err().to_string();
    assert!(error.contains("read first"), "{error}");
    program.finish().unwrap();
    assert_eq!(program.output(0).len(), VOCAB);
    assert!(program.finish().is_err(), "none is under way");
}

#[test]
fn a_shape_that_was_seen_is_planned_once() {
    let Some(mut program) = program() else { return };
    let planned: Vec<u64> = (0..4).map(|past| step(program.as_mut(), &[0, 1], past).0.plan_misses).collect();
    // Steps take turns at two sets of tables.
    assert_eq!(planned, [1, 1, 0, 0]);
    program.reserve_blocks(200).unwrap();
    assert_eq!(step(program.as_mut(), &[0, 1], 4).0.plan_misses, 1, "the cache has moved");
}

#[test]
fn once_it_runs_a_step_allocates_nothing() {
    let Some(mut program) = program() else { return };
    let first = step(program.as_mut(), &[0], 0).0;
    assert!(first.arena_bytes > 0, "{first:?}");
    for past in 1..BLOCK_TOKENS {
        let stats = step(program.as_mut(), &[0], past).0;
        assert_eq!((stats.allocations, stats.submissions), (0, 1), "token {past}");
        assert_eq!(stats.dispatches, first.dispatches, "token {past}");
    }
}
