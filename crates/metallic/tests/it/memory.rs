//! What a model takes of memory while it is loaded and runs.
#![cfg(target_os = "linux")]

use std::process::Command;

use metallic::device::peak_memory;
use metallic::model::{Access, FAMILIES, ModelOptions};
use metallic::{Device, Llm, LoadOptions, Model, Options};
use metallic_core::DType;
use metallic_testkit::{data, golden};

const QWEN: &str = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf";
/// Names the model in the process that is measured.
const MEASURED: &str = "METALLIC_MEASURED_MODEL";

/// Where the file is read.
const READ: &str = "METALLIC_MEASURED_READ";

/// Packed weights beside the file's own would be twice their bytes. The table of embeddings stays in a mapped file: 0.96 of
/// them is usual, but how much of a file a system maps around a page that is read, and keeps, differs.
const MAPPED: f64 = 1.3;
/// With the table in memory; the tokenizer, the program itself and all else are some 80 MB: 1.16 is usual.
const IN_MEMORY: f64 = 1.4;

#[test]
fn tables_that_are_matrices_as_well_are_counted_and_others_are_not() {
    let open = |name: &str| Model::open(&data::own().join("families").join(name)).unwrap();
    let (tied, apart) = (open("gemma"), open("arcee"));
    let table = (tied.config().vocab * tied.config().hidden) as u64;
    assert!(tied.tied_bytes().is_multiple_of(table) && tied.tied_bytes() > 0, "{}", tied.tied_bytes());
    assert!(tied.tied_bytes() < tied.weight_bytes());
    assert_eq!(apart.tied_bytes(), 0);
}

#[test]
fn a_model_takes_little_more_memory_than_its_weights() {
    if let Some(path) = std::env::var_os(MEASURED) {
        let access = if std::env::var_os(READ).is_some() { Access::Read } else { Access::Map };
        let llm = Llm::load_with(path, &LoadOptions::default().threads(2).access(access)).unwrap();
        llm.generate("Hello", Options::default().max_tokens(2)).unwrap().complete().unwrap();
        println!("peak {}", peak_memory().unwrap());
        println!("{}", std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        return;
    }
    let Some(path) = data::model(QWEN) else { return data::not_run("memory", QWEN) };
    let weights = Model::open(&path).unwrap().weight_bytes();
    // A process of its own: what else this one does is not counted.
    let test = "memory::a_model_takes_little_more_memory_than_its_weights";
    for (access, most) in [(Access::Map, MAPPED), (Access::Read, IN_MEMORY)] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", test, "--nocapture"]).env(MEASURED, &path);
        if access == Access::Read {
            child.env(READ, "1");
        }
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let peak = text.lines().find_map(|line| line.split_once("peak ")?.1.trim().parse::<f64>().ok());
        let peak = peak.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)));
        assert!(
            peak < most * weights as f64,
            "{access:?}: {peak} bytes for {weights} of weights; at the end {}",
            text.lines().filter(|line| line.contains("Rss")).collect::<Vec<_>>().join(", ")
        );
    }
}

#[test]
fn a_model_whose_file_is_cut_short_is_an_error_and_not_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let whole = golden::gguf("llama256.Q4_0").0;
    let cut = |len: u64| std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(len).unwrap();
    let told = |error: String| {
        assert!(error.contains("model.gguf") && error.contains("cut short"), "{error}");
    };
    for access in [Access::Map, Access::Read] {
        // Between the header and the weights.
        std::fs::copy(&whole, &path).unwrap();
        let model = Model::open_with(&path, FAMILIES, &ModelOptions::default().access(access)).unwrap();
        cut(4096);
        for device in [Device::Cpu, Device::Reference, Device::Null] {
            let backend = device.open(2).unwrap();
            let compiled = model.compile(backend.as_ref(), DType::F16);
            // A device that computes nothing reads nothing of a file that is mapped.
            match compiled.err() {
                Some(error) => told(error.to_string()),
                None => assert!(device == Device::Null && access == Access::Map, "{device} {access:?}"),
            }
        }
    }
    // After the weights were packed: what was read of the file is enough, but for a table that is left there.
    std::fs::copy(&whole, &path).unwrap();
    let model = Model::open(&path).unwrap();
    let mut program = model.compile(Device::Cpu.open(2).unwrap().as_ref(), DType::F16).unwrap();
    cut(4096);
    match golden::greedy(program.as_mut(), &[1, 2, 3], 4) {
        Ok(_) => assert!(!has_table(&model), "a table of the file was read"),
        Err(error) => told(error.to_string()),
    }
}

/// Whether tokens are looked up in a table that is not the head as well.
fn has_table(model: &Model) -> bool {
    model.tensors().any(|tensor| tensor.name == "output.weight")
}
