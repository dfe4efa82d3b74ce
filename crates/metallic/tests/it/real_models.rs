//! Real models end to end: the tokens llama.cpp gives, as far as it is sure of them.

use std::path::Path;

use metallic::model::Model;
use metallic::{Llm, LoadOptions, Message, Options, Sampling};
use metallic_core::DType;
use metallic_core::reference::Reference;
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::{data, golden};
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
    let llm = Llm::load_with(model, &LoadOptions::default().threads(2)).unwrap();
    for case in oracle["tokenize"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(llm.tokenizer().encode(text, false, true).unwrap(), ids(&case["ids"]), "{text:?}");
    }
    let chat = &oracle["chat"];
    let messages: Vec<Message> = serde_json::from_value(chat["messages"].clone()).unwrap();
    assert_eq!(llm.render(&messages).unwrap(), chat["prompt"].as_str().unwrap());
    drop(llm);

    let model = Model::open(model).unwrap();
    let cpu = Cpu::new(CpuOptions::default().threads(2)).unwrap();
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
    let options = Options::default().max_tokens(16).sampling(Sampling::greedy());
    let answer = llm.chat(&[Message::user("Why is the sky blue?")], options).unwrap().complete().unwrap();
    let sensible = ["light", "scatter"].iter().any(|word| answer.text.to_lowercase().contains(word));
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
