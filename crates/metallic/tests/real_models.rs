//! Real models end to end: the tokens llama.cpp gives, as far as it is sure of them.

use std::path::Path;
use std::sync::Arc;

use metallic::model::Model;
use metallic::{Llm, LoadOptions, Message, Options, Sampling};
use metallic_core::reference::Reference;
use metallic_core::{BLOCK_TOKENS, DType, Op, Program, SequenceSpan, Step, WeightUse};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_gpu::{GpuBackend, GpuOptions, Soft, SoftOptions};
use metallic_testkit::{data, golden, needed};
use serde_json::Value;

const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const QWEN: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Tokens before the first step whose best two logits are closer than 0.1.
fn sure(top5: &Value) -> usize {
    let margin = |step: &Value| step[0][1].as_f64().unwrap() - step[1][1].as_f64().unwrap();
    top5.as_array().unwrap().iter().take_while(|step| margin(step) >= 0.1).count()
}

/// Logits after the last token, by the reference.
fn exact(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let mut program = model.compile(&Reference::new(), DType::F32).unwrap();
    golden::logits(program.as_mut(), tokens, tokens.len()).unwrap().pop().unwrap()
}

/// Compares greedy tokens, tokenization and the rendering of a conversation with what llama.cpp recorded.
fn agrees_with_oracle(model: &Path, oracle: &str) {
    let text = std::fs::read_to_string(data::shared().unwrap().join("models/oracle").join(oracle)).unwrap();
    let oracle: Value = serde_json::from_str(&text).unwrap();
    let llm = Llm::load_with(model, &LoadOptions { threads: 2, ..LoadOptions::default() }).unwrap();
    for case in oracle["tokenize"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(llm.tokenizer().encode(text, false, true).unwrap(), ids(&case["ids"]), "{text:?}");
    }
    let chat = &oracle["chat"];
    let messages: Vec<Message> = serde_json::from_value(chat["messages"].clone()).unwrap();
    assert_eq!(llm.render(&messages).unwrap(), chat["prompt"].as_str().unwrap());
    drop(llm);

    let model = Model::open(model).unwrap();
    let cpu = Cpu::new(CpuOptions { threads: 2, ..CpuOptions::default() }).unwrap();
    let mut program = model.compile(&cpu, DType::F16).unwrap();
    let mut compared = 0;
    for case in oracle["greedy"].as_array().unwrap() {
        let (prompt, expected) = (ids(&case["prompt_ids_with_special"]), ids(&case["ids"]));
        let sure = sure(&case["top5"]).min(expected.len());
        let found = golden::greedy(program.as_mut(), &prompt, expected.len()).unwrap();
        let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        if same < sure {
            // 8-bit activations move logits by some tenths, llama.cpp's as well as ours: where both differ, exact
            // arithmetic decides.
            let start = [&prompt[..], &found[..same]].concat();
            let exact = exact(&model, &start);
            let (ours, theirs) = (exact[found[same] as usize], exact[expected[same] as usize]);
            assert!(
                ours > theirs - 0.1,
                "after {:?} and {same} tokens: {ours} against {theirs}",
                case["prompt"]
            );
        }
        compared += same.min(sure);
    }
    assert!(compared >= 8, "only {compared} tokens were sure enough to compare");
}

#[test]
fn smollm2_gives_the_tokens_of_llama_cpp() {
    match (data::model(SMOLLM2), data::shared()) {
        (Some(model), Some(_)) => agrees_with_oracle(&model, "smollm2-135m-instruct-q4_1.json"),
        _ => data::not_run("smollm2_gives_the_tokens_of_llama_cpp", "SmolLM2 or the shared data"),
    }
}

#[test]
fn qwen_gives_the_tokens_of_llama_cpp() {
    match (data::model(QWEN), data::shared()) {
        (Some(model), Some(_)) => agrees_with_oracle(&model, "qwen2.5-coder-0.5b-instruct-q4_k_m.json"),
        _ => data::not_run("qwen_gives_the_tokens_of_llama_cpp", "Qwen2.5-Coder-0.5B or the shared data"),
    }
}

#[test]
fn smollm2_answers_a_question() {
    let Some(model) = data::model(SMOLLM2) else {
        return data::not_run("smollm2_answers_a_question", SMOLLM2);
    };
    let llm = Llm::load(model).unwrap();
    let options = Options { max_tokens: Some(16), sampling: Sampling::greedy(), ..Options::default() };
    let answer = llm.chat(&[Message::user("Why is the sky blue?")], options).unwrap().complete().unwrap();
    let sensible = ["light", "scatter"].iter().any(|word| answer.text.contains(word));
    assert!(sensible, "{}", answer.text);
    assert_eq!(answer.stats.generated_tokens, 16);
    assert!(answer.stats.dispatches > 0);
}

#[test]
fn the_smallest_real_llama_tells_its_story() {
    let folder = data::own().join("stories260K");
    let text = std::fs::read_to_string(folder.join("greedy.json")).unwrap();
    let greedy: Value = serde_json::from_str(&text).unwrap();
    let expected = ids(&greedy["greedy_ids"]);
    let model = Model::open(&folder.join("stories260K-f32.gguf")).unwrap();
    let cpu = Cpu::new(CpuOptions::default()).unwrap();
    let mut program = model.compile(&cpu, DType::F32).unwrap();
    let found = golden::greedy(program.as_mut(), &ids(&greedy["prompt_ids"]), expected.len()).unwrap();
    assert_eq!(found, expected);
    let tokenizer = model.tokenizer().unwrap().unwrap();
    let story = std::fs::read_to_string(folder.join("expected.txt")).unwrap();
    let told = tokenizer.decode(&found, true);
    assert!(story.trim().starts_with(told.trim()) || told.trim().starts_with(story.trim()), "{told}");
}

/// The Metal kernels, run by softmetal: tokens and logits of the CPU in 32 bits, and what a step costs. The CPU's default
/// rounds activations to 8 bits, which decides for itself where two tokens are close.
fn agrees_on_soft(path: &Path, prompts: &[&str], steps: usize, kv: DType) {
    let Some(soft) = needed(Soft::new(SoftOptions { threads: 2, ..SoftOptions::default() })) else { return };
    let soft = GpuBackend::new(Arc::new(soft), GpuOptions::default());
    let model = Model::open(path).unwrap();
    let tokenizer = model.tokenizer().unwrap().unwrap();
    let cpu = Cpu::new(CpuOptions { threads: 2, exact: true, ..CpuOptions::default() }).unwrap();
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
        let sequences = [SequenceSpan { tokens: 0..1, past, blocks: &blocks }];
        let (tokens, positions) = ([found[found.len() - 1]], [past as u32]);
        let step = Step { tokens: &tokens, positions: &positions, sequences: &sequences, outputs: &[0] };
        let stats = program.run(&step).unwrap();
        rows.push(program.output(0).to_vec());
        found.push(golden::argmax(program.output(0)));
        let layers = model.config().layers as u64;
        assert_eq!(stats.dispatches, 5 * layers + 2, "{layers} layers");
        assert_eq!(stats.submissions, 1);
        assert!(found.len() == 2 || stats.allocations == 0, "allocated after {past} tokens");
        // The embedding serves as the head too where a model has no other; then its bytes are the head's.
        let needed = matrix_bytes(model) + (model.kv_layout(kv).unwrap().token_bytes() * (past + 1)) as u64;
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
