//! `quantize` and `imatrix`: what they write, what they say, what they refuse.

use std::{fs, path::Path};

use metallic_testkit::{
    data,
    golden::{Expected, exact, max_diff},
};
use serde_json::Value;

use crate::support::{Machine, files, list, stories};

fn golden(name: &str) -> String {
    data::own().join("golden").join(name).to_str().unwrap().to_owned()
}

/// The types of a file's tensors.
fn types(machine: &Machine, path: &str) -> Vec<(String, String)> {
    let report = machine.run(&["inspect", path, "--json"]).ok().json();
    let text = |tensor: &Value, key: &str| tensor[key].as_str().unwrap().to_owned();
    let tensors = report["tensors"].as_array().unwrap().iter();
    let mut types: Vec<_> = tensors.map(|tensor| (text(tensor, "name"), text(tensor, "type"))).collect();
    types.sort();
    types
}

fn logits(machine: &Machine, model: &str, tokens: &str) -> Vec<f32> {
    let args = ["tool", "logits", "-m", model, "--kv-type", "f32", "--exact", "--json", "--tokens", tokens];
    serde_json::from_value(machine.run(&args).ok().json()["logits"].clone()).unwrap()
}

#[test]
fn a_folder_becomes_a_file_that_gives_the_same_answers() {
    let machine = Machine::without_hub();
    let out = machine.folder().join("out.gguf");
    let out = out.to_str().unwrap();
    let sets = ["golden/arch", "families"].map(|set| fs::read_dir(data::own().join(set)).unwrap());
    let folders = sets.into_iter().flatten().map(|entry| entry.unwrap().path());
    let mut converted = 0;
    for folder in folders {
        let ran = machine.run(&["quantize", folder.to_str().unwrap(), out, "--type", "f32", "--force"]);
        if ran.code != Some(0) {
            // By its name, or by what GGUF has no place for.
            assert!(ran.err.contains("GGUF"), "{ran:?}");
            continue;
        }
        let expected = Expected::read(&folder.join("expected.json")).unwrap();
        let report = machine.run(&["inspect", out, "--json"]).ok().json();
        let context = report["config"]["context"].as_u64().unwrap();
        for prompt in expected.prompts.iter().filter(|prompt| prompt.token_ids.len() <= context as usize) {
            let found = logits(&machine, out, &list(&prompt.token_ids));
            let off = max_diff(&found, &prompt.last_logits);
            assert!(off < exact(&folder).max_abs, "{}: {off}", folder.display());
        }
        converted += 1;
    }
    assert!(converted >= 20, "{converted} folders");
}

#[test]
fn mixtures_are_those_that_others_make_and_run() {
    let machine = Machine::without_hub();
    let source = golden("gguf/llama256.Q8_0.gguf");
    let tokens = "1,5,9,20,33,47";
    let exact = logits(&machine, &source, tokens);
    for (kind, most) in
        [("Q8_0", 0.1), ("Q6_K", 2.0), ("Q5_K_M", 3.0), ("Q4_K_M", 5.0), ("IQ4_XS", 5.0), ("Q2_K", 15.0)]
    {
        let out = machine.folder().join(format!("{kind}.gguf"));
        let out = out.to_str().unwrap();
        machine.run(&["quantize", &source, out, "--type", kind, "-t", "2"]).ok();
        let theirs = golden(&format!("gguf/llama256.{kind}.gguf"));
        if kind.ends_with("_M") && Path::new(&theirs).exists() {
            assert_eq!(types(&machine, out), types(&machine, &theirs), "{kind}");
        }
        let off = max_diff(&logits(&machine, out, tokens), &exact);
        assert!(off < most, "{kind}: {off}");
    }
}

#[test]
fn what_is_done_is_said() {
    let machine = Machine::without_hub();
    let (model, out) = (stories(), machine.folder().join("out.gguf"));
    let out = out.to_str().unwrap();
    // Rows of 64 fill no blocks of 256.
    let ran = machine.run(&["quantize", &model, out, "--type", "q4_k_m"]).ok();
    assert!(ran.err.contains("rows of 64 do not fill blocks of Q4_K"), "{ran:?}");
    assert!(ran.err.contains("bits per weight") && ran.err.contains("Q5_0"), "{ran:?}");
    assert_eq!(ran.out, format!("{out}\n"));
    let ran = machine.run(&["quantize", out, "again.gguf", "--type", "q8_0", "--json"]).ok();
    assert!(ran.err.contains("requantising"), "{ran:?}");
    assert!(ran.json()["requantized"].as_u64().unwrap() > 0, "{ran:?}");
    let plan = machine.run(&[
        "quantize",
        &model,
        "none.gguf",
        "--type",
        "q8_0",
        "--embedding-type",
        "f16",
        "--dry-run",
    ]);
    let plan = plan.ok();
    assert!(plan.out.contains("token_embd.weight") && plan.out.contains("F32 → F16"), "{plan:?}");
    assert!(!machine.folder().join("none.gguf").exists());
    machine.run(&["quantize", &model, out, "--type", "q8_0"]).failed(1, "is there already", "--force");
    assert!(machine.run(&["-q", "quantize", &model, out, "--type", "q8_0", "--force"]).ok().err.is_empty());
    let left: Vec<String> = files(machine.folder());
    assert!(left.iter().all(|name| !name.contains(".part")), "{left:?}");
}

#[test]
fn importance_is_gathered_and_used() {
    let machine = Machine::without_hub();
    let text = machine.folder().join("text.txt");
    let story = fs::read_to_string(data::own().join("stories260K/expected.txt")).unwrap();
    fs::write(&text, story.repeat(3)).unwrap();
    let (model, text) = (stories(), text.to_str().unwrap().to_owned());
    let args = ["imatrix", &model, &text, "-o", "s.imatrix", "--ctx", "128"];
    let report = machine.run(&[&args[..], &["--json"]].concat()).ok().json();
    assert_eq!(report["matrices"], 35, "seven matrices in each of five layers");
    machine.run(&args).failed(1, "is there already", "--force");
    let plain = machine.run(&["quantize", &model, "p.gguf", "--type", "q4_0", "--pure"]).ok();
    let weighed = ["quantize", &model, "i.gguf", "--type", "q4_0", "--pure", "--imatrix", "s.imatrix"];
    machine.run(&weighed).ok();
    let value = |model: &str| {
        let args = ["tool", "perplexity", "-m", model, "--file", &text, "--ctx", "128", "--json"];
        machine.run(&args).ok().json()["ppl"].as_f64().unwrap()
    };
    assert!(value("./i.gguf") < value("./p.gguf"), "{plain:?}");
    let other = golden("arch/qwen2");
    let args = ["quantize", &other, "o.gguf", "--type", "q4_0", "--imatrix", "s.imatrix"];
    machine.run(&args).failed(1, "s.imatrix", "metallic imatrix");
    machine.run(&["imatrix", &other, &text, "-o", "x.imatrix"]).failed(1, "is a folder", "--type F16");
}
