//! The models through the Metal kernels, run by softmetal: the golden data of other engines, and what a step costs.

use std::path::Path;
use std::sync::Arc;

use metallic::model::Model;
use metallic_core::{BLOCK_TOKENS, DType, NodeId, Program, RunStats, SequenceSpan, Step, rewrite};
use metallic_gpu::fault::Faulty;
use metallic_gpu::{GpuBackend, GpuOptions, Soft, SoftOptions};
use metallic_testkit::golden;

fn soft(threads: usize) -> Option<Arc<Soft>> {
    match Soft::new(SoftOptions { threads, ..SoftOptions::default() }) {
        Ok(soft) => Some(Arc::new(soft)),
        Err(error) => {
            eprintln!("NOT TESTED: {error}");
            None
        }
    }
}

fn backend() -> Option<GpuBackend> {
    Some(GpuBackend::new(soft(2)?, GpuOptions::default()))
}

fn compile(backend: &GpuBackend, path: &Path, kv: DType) -> Box<dyn Program> {
    let model = Model::open(path).unwrap_or_else(|e| panic!("{e}"));
    model.compile(backend, kv).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn folders_match_in_every_chunking() {
    let Some(backend) = backend() else { return };
    for folder in golden::folders() {
        let expected = golden::Expected::read(&folder.join("expected.json")).unwrap();
        let mut program = compile(&backend, &folder, DType::F32);
        golden::check_close(program.as_mut(), &expected, golden::EXACT, &[1, 7, 512])
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    }
}

#[test]
fn ggufs_of_every_type_match_as_32_bit_arithmetic_does() {
    let Some(backend) = backend() else { return };
    for name in golden::ggufs() {
        let (path, expected) = golden::gguf(&name);
        let mut program = compile(&backend, &path, DType::F32);
        golden::check_close(program.as_mut(), &expected, golden::EXACT, &[7, 512])
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn smaller_caches_stay_within_their_tolerance() {
    let Some(backend) = backend() else { return };
    let (path, expected) = golden::gguf("llama_odd.F16");
    for (kv, close) in [(DType::F16, golden::HALF), (DType::BF16, golden::BRAIN)] {
        golden::check_close(compile(&backend, &path, kv).as_mut(), &expected, close, &[7, 512])
            .unwrap_or_else(|e| panic!("{kv}: {e}"));
    }
    let (path, expected) = golden::gguf("llama256.Q8_0");
    golden::check_int8(compile(&backend, &path, DType::Q8_0).as_mut(), &expected).unwrap();
}

/// A model of each family that comes with the repository.
fn families() -> [Model; 2] {
    let llama = golden::ggufs().into_iter().find(|name| name.starts_with("llama256.Q4_K")).unwrap();
    let qwen = golden::folders().into_iter().find(|folder| folder.ends_with("qwen2")).unwrap();
    [golden::gguf(&llama).0, qwen].map(|path| Model::open(&path).unwrap())
}

fn decode(program: &mut dyn Program, past: usize, blocks: &[u32]) -> RunStats {
    let sequences = [SequenceSpan { tokens: 0..1, past, blocks }];
    let step = Step { tokens: &[7], positions: &[past as u32], sequences: &sequences, outputs: &[0] };
    program.run(&step).unwrap()
}

#[test]
fn a_decode_step_is_one_submission_of_few_dispatches_and_allocates_nothing() {
    let Some(backend) = backend() else { return };
    for model in families() {
        let (name, layers) = (&model.config().architecture, model.config().layers as u64);
        let mut program = model.compile(&backend, DType::F16).unwrap();
        program.reserve_blocks(4).unwrap();
        for past in 0..70 {
            let stats = decode(program.as_mut(), past, &[2, 0, 3]);
            // Embedding and head stand outside the layers.
            assert_eq!(stats.dispatches, 5 * layers + 2, "{name}");
            assert_eq!(stats.submissions, 1);
            assert!(past == 0 || stats.allocations == 0, "{name}: an allocation after {past} tokens");
            assert!(stats.bytes_read > 0 && stats.bytes_written > 0 && stats.arena_bytes > 0);
        }
    }
}

#[test]
fn a_context_split_over_threadgroups_costs_one_dispatch_a_layer_more() {
    let Some(soft) = soft(8) else { return };
    let backend = GpuBackend::new(soft, GpuOptions::default());
    let blocks: Vec<u32> = (0..64).collect();
    for model in families() {
        let (name, layers) = (&model.config().architecture, model.config().layers as u64);
        let mut program = model.compile(&backend, DType::F16).unwrap();
        program.reserve_blocks(blocks.len()).unwrap();
        let stats = decode(program.as_mut(), blocks.len() * BLOCK_TOKENS - 1, &blocks);
        assert_eq!(stats.dispatches, 6 * layers + 2, "{name}");
    }
}

#[test]
fn steps_that_go_together_choose_the_tokens_of_steps_one_by_one() {
    let Some(backend) = backend() else { return };
    let (path, expected) = golden::gguf("llama256.Q4_0");
    let prompt = &expected.prompts[1].token_ids;
    let mut program = compile(&backend, &path, DType::F16);
    let alone = golden::greedy(program.as_mut(), prompt, 9).unwrap();
    let (blocks, past) = ([1, 0, 2], prompt.len());
    program.reserve_blocks(3).unwrap();
    let positions: Vec<u32> = (0..past as u32).collect();
    let sequences = [SequenceSpan { tokens: 0..past, past: 0, blocks: &blocks }];
    let step =
        Step { tokens: prompt, positions: &positions, sequences: &sequences, outputs: &[past as u32 - 1] };
    program.run(&step).unwrap();
    assert_eq!(golden::argmax(program.output(0)), alone[0]);
    let sequences = [SequenceSpan { tokens: 0..1, past, blocks: &blocks }];
    let (tokens, positions) = ([alone[0]], [past as u32]);
    let step = Step { tokens: &tokens, positions: &positions, sequences: &sequences, outputs: &[0] };
    let mut chosen = Vec::new();
    let stats = program.run_ahead(&step, 8, &mut chosen).unwrap();
    assert_eq!(chosen, alone[1..]);
    assert_eq!(stats.submissions, 1);
}

#[test]
fn every_operation_of_the_forward_pass_runs_on_the_device_that_was_asked_for() {
    let Some(soft) = soft(2) else { return };
    let watched = Arc::new(Faulty::new(soft));
    let backend = GpuBackend::new(watched.clone(), GpuOptions::default());
    let model = Model::open(&golden::gguf("llama256.Q4_0").0).unwrap();
    let mut program = model.compile(&backend, DType::F16).unwrap();
    program.reserve_blocks(1).unwrap();
    // Two tokens, one result: nothing can be left out.
    let blocks = [0];
    let sequences = [SequenceSpan { tokens: 0..2, past: 0, blocks: &blocks }];
    let step = Step { tokens: &[3, 5], positions: &[0, 1], sequences: &sequences, outputs: &[1] };
    let stats = program.run(&step).unwrap();
    let fused = rewrite::fuse(model.graph()).unwrap();
    let expected: Vec<&str> = (0..fused.nodes().len())
        .map(|index| &fused.node(NodeId(index)).op)
        .filter(|op| !op.is_source())
        .map(metallic_core::Op::name)
        .collect();
    assert_eq!(watched.labels(), expected);
    assert_eq!(stats.dispatches, expected.len() as u64);
}
