//! Real models through the Metal kernels, run by softmetal: the tokens and logits of the CPU, and what a step costs.
#![cfg(feature = "soft")]

use std::path::Path;
use std::sync::Arc;

use metallic::model::Model;
use metallic_core::{BLOCK_TOKENS, DType, Op, Program, SequenceSpan, Step, Wanted, WeightUse};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_gpu::{GpuBackend, GpuOptions, Soft, SoftOptions};
use metallic_testkit::{data, golden, needed};

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const QWEN: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

/// Tokens and logits of the CPU in 32 bits: its default rounds activations to 8 bits, which decides for itself where two
/// tokens are close.
fn agrees_on_soft(path: &Path, prompts: &[&str], steps: usize, kv: DType) {
    let Some(soft) = needed(Soft::new(SoftOptions::default().threads(2))) else { return };
    let soft = GpuBackend::new(Arc::new(soft), GpuOptions::default());
    let model = Model::open(path).unwrap();
    let tokenizer = model.tokenizer().unwrap().unwrap();
    let cpu = Cpu::new(CpuOptions::default().threads(2).exact(true)).unwrap();
    let mut exact = model.compile(&cpu, kv).unwrap();
    let mut program = model.compile(&soft, kv).unwrap();
    for prompt in prompts {
        let ids = tokenizer.encode(prompt, true, true).unwrap();
        let expected = golden::greedy(exact.as_mut(), &ids, steps).unwrap();
        let (found, rows) = greedy_at_its_cost(&model, program.as_mut(), (&ids, steps), kv);
        assert_eq!(found, expected, "{prompt:?}");
        let all = [&ids[..], &expected[..]].concat();
        let exact = golden::logits(exact.as_mut(), &all[..all.len() - 1], 512).unwrap();
        assert_eq!(rows.len(), exact.len());
        let worst = rows.iter().zip(&exact).map(|(a, b)| golden::max_diff(a, b)).fold(0.0, f32::max);
        assert!(worst < 2e-2, "{prompt:?}: logits are off by {worst}");
    }
}

/// Greedy tokens and the logits of every token but the last, with an eye on what each step of decode costs.
fn greedy_at_its_cost(
    model: &Model,
    program: &mut dyn Program,
    (prompt, steps): (&[u32], usize),
    kv: DType,
) -> (Vec<u32>, Vec<Vec<f32>>) {
    let len = prompt.len() + steps;
    let mut sequence = golden::Sequence::new(program, 0, len).unwrap();
    let mut rows = sequence.feed(program, prompt).unwrap();
    let mut found = vec![golden::argmax(&rows[prompt.len() - 1])];
    let blocks: Vec<u32> = (0..len.div_ceil(BLOCK_TOKENS) as u32).rev().collect();
    for past in prompt.len()..len - 1 {
        // What the tests' own sequence would do.
        let sequences = [SequenceSpan { tokens: 0..1, past, blocks: &blocks, near: &[], slot: 0 }];
        let (tokens, positions) = ([found[found.len() - 1]], [past as u32]);
        let step = Step {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &[0],
            wanted: Wanted::only(0),
            ..Step::default()
        };
        let stats = program.run(&step).unwrap();
        rows.push(program.output(0).to_vec());
        found.push(golden::argmax(program.output(0)));
        let layers = model.config().layers as u64;
        assert_eq!(stats.dispatches, 5 * layers + 2, "{layers} layers");
        assert_eq!(stats.submissions, 1);
        assert!(found.len() == 2 || stats.allocations == 0, "allocated after {past} tokens");
        // The embedding serves as the head too where a model has no other; then its bytes are the head's.
        let needed = matrix_bytes(model) + (model.states(kv).unwrap().token_bytes() * (past + 1)) as u64;
        let share = stats.bytes_read as f64 / needed as f64;
        assert!((1.0..=1.05).contains(&share), "a step reads {share:.3} times its weights and cache");
    }
    (found, rows)
}

/// Bytes of all matrices a step multiplies by.
fn matrix_bytes(model: &Model) -> u64 {
    let graph = model.graph();
    let mut seen = Vec::new();
    for node in graph.nodes() {
        for (index, input) in node.inputs.iter().enumerate() {
            if let Op::Weight(id) = graph.node(*input).op
                && node.op.weight_use(index) == WeightUse::Matrix
                && !seen.contains(&id)
            {
                seen.push(id);
            }
        }
    }
    seen.iter().map(|id| graph.weights()[id.0].data.len() as u64).sum()
}

#[test]
fn the_smallest_real_llama_tells_its_story_through_the_metal_kernels() {
    let stories = data::own().join("stories260K/stories260K-f32.gguf");
    agrees_on_soft(&stories, &["Once upon a time", "Lily"], 40, DType::F32);
}

#[test]
fn smollm2_gives_the_tokens_of_the_cpu_through_the_metal_kernels() {
    let prompts = [
        "The sky is blue because",
        "Why is the sky blue?",
        "What is the capital of France?",
        "Name a colour.",
        "Write a haiku about rust.",
    ];
    match data::model(SMOLLM2) {
        Some(model) => agrees_on_soft(&model, &prompts, 12, DType::F16),
        None => data::not_run("smollm2_gives_the_tokens_of_the_cpu_through_the_metal_kernels", SMOLLM2),
    }
}

#[test]
fn qwen_gives_the_tokens_of_the_cpu_through_the_metal_kernels() {
    match data::model(QWEN) {
        Some(model) => agrees_on_soft(&model, &["fn main() {", "def quicksort("], 4, DType::F16),
        None => data::not_run("qwen_gives_the_tokens_of_the_cpu_through_the_metal_kernels", QWEN),
    }
}
