//! What a model takes of memory while it is loaded and runs.
#![cfg(target_os = "linux")]

use std::process::Command;

use metallic::device::peak_memory;
use metallic::{Llm, LoadOptions, Model, Options};
use metallic_testkit::data;

const QWEN: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
/// Names the model in the process that is measured.
const MEASURED: &str = "METALLIC_MEASURED_MODEL";

/// Packed weights beside the file's own would be twice their bytes; the tokenizer and all else are within the rest.
const MOST: f64 = 1.1;

#[test]
fn a_model_takes_little_more_memory_than_its_weights() {
    if let Some(path) = std::env::var_os(MEASURED) {
        let llm = Llm::load_with(path, &LoadOptions::default().threads(2)).unwrap();
        llm.generate("Hello", Options::default().max_tokens(2)).unwrap().complete().unwrap();
        println!("peak {}", peak_memory().unwrap());
        return;
    }
    let Some(path) = data::model(QWEN) else { return data::not_run("memory", QWEN) };
    let weights = Model::open(&path).unwrap().weight_bytes();
    // A process of its own: what else this one does is not counted.
    let test = "memory::a_model_takes_little_more_memory_than_its_weights";
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", test, "--nocapture"]).env(MEASURED, &path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let peak = text.lines().find_map(|line| line.split_once("peak ")?.1.trim().parse::<f64>().ok());
    let peak = peak.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
    assert!(peak < MOST * weights as f64, "{peak} bytes for {weights} of weights");
}
