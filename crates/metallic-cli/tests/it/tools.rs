//! `tool`, `bench` and `inspect` against what others computed.

use std::{fs, path::Path};

use metallic::formats::GgufWriter;
use metallic_testkit::{
    data,
    golden::{EXACT, Expected, max_diff},
};
use serde_json::{Value, json};

use crate::support::{Machine, list, stories};

fn golden(name: &str) -> (String, Expected) {
    let path = data::own().join("golden").join(name);
    let expected =
        if path.is_dir() { path.join("expected.json") } else { path.with_extension("expected.json") };
    (path.to_str().unwrap().to_owned(), Expected::read(&expected).unwrap())
}

#[test]
fn a_tokenizer_that_was_guessed_is_told() {
    let machine = Machine::without_hub();
    let path = machine.folder().join("bpe.gguf");
    let mut writer = GgufWriter::new();
    writer.insert("tokenizer.ggml.model", "gpt2");
    writer.insert("tokenizer.ggml.tokens", ["a", "b", "ab"].map(str::to_owned).to_vec());
    writer.insert("tokenizer.ggml.merges", vec!["a b".to_owned()]);
    writer.write(&path).unwrap();
    let model = path.to_str().unwrap();
    let ran = machine.run(&["tool", "tokenize", "-m", model, "abba"]).ok();
    assert_eq!(ran.out, "[2,1,0]\n");
    assert!(ran.err.contains("note: tokenizer.ggml.pre is missing"), "{}", ran.err);
    assert_eq!(machine.run(&["-q", "tool", "tokenize", "-m", model, "ab"]).ok().err, "");
}

#[test]
fn an_adapter_changes_logits_as_peft_says() {
    let adapters = data::own().join("adapters/llama");
    let expected: Value = serde_json::from_slice(&fs::read(adapters.join("expected.json")).unwrap()).unwrap();
    let expected_logits: Vec<f32> = serde_json::from_value(expected["cases"][1]["logits"].clone()).unwrap();
    let ids: Vec<u32> = serde_json::from_value(expected["token_ids"].clone()).unwrap();
    let tokens = list(&ids);
    let model = data::own().join("golden/arch/llama_odd").display().to_string();
    let machine = Machine::without_hub();
    let run = |adapter: &str| {
        let lora = format!("{}{adapter}", adapters.display());
        let args = ["tool", "logits", "-m", &model, "--kv-type", "f32", "--json", "--tokens", &tokens];
        machine.run(&[&args[..], &["--lora", &lora]].concat())
    };
    let found: Vec<f32> = serde_json::from_value(run("/one=1.0").ok().json()["logits"].clone()).unwrap();
    assert!(max_diff(&found, &expected_logits) < 2e-3);
    run("/none").failed(1, "is no adapter: it cannot be opened", "folder that PEFT wrote");
    let odd = run("/one=nan");
    assert!(odd.code == Some(2) && odd.err.contains("its scale is NaN, it must be a number"), "{odd:?}");
}

#[test]
fn logits_of_golden_models_are_those_of_transformers() {
    let machine = Machine::without_hub();
    for name in ["arch/qwen2", "arch/mistral", "arch/llama_rope3"] {
        let (path, expected) = golden(name);
        let prompt = &expected.prompts[1];
        let tokens = list(&prompt.token_ids);
        let args = ["tool", "logits", "-m", &path, "--kv-type", "f32", "--json", "--tokens", &tokens];
        let last = machine.run(&args).ok().json();
        let last: Vec<f32> = serde_json::from_value(last["logits"].clone()).unwrap();
        assert!(max_diff(&last, &prompt.last_logits) < EXACT.max_abs, "{name}");
        let all = machine.run(&[&args[..], &["--all"]].concat()).ok().json();
        let all: Vec<Vec<f32>> = serde_json::from_value(all["logits"].clone()).unwrap();
        assert_eq!(all.len(), prompt.token_ids.len());
        assert!(max_diff(&all[all.len() - 1], &last) < EXACT.max_abs, "{name}");
    }
}

#[test]
fn greedy_ids_of_golden_models_are_those_of_transformers() {
    let machine = Machine::without_hub();
    let (path, expected) = golden("arch/qwen2");
    let greedy = &expected.greedy;
    let prompt = expected.prompts.iter().find(|prompt| prompt.name == greedy.prompt).unwrap();
    let (tokens, n) = (list(&prompt.token_ids), greedy.token_ids.len().to_string());
    for device in ["cpu", "reference"] {
        let args = ["tool", "generate", "-m", &path, "--device", device, "--kv-type", "F32", "-n", &n];
        let args = [&args[..], &["--tokens", &tokens]].concat();
        let ids = machine.run(&[&args[..], &["--json"]].concat()).ok().json();
        assert_eq!(ids["tokens"], json!(greedy.token_ids), "{device}");
        assert_eq!(machine.run(&args).ok().out.trim_end(), list(&greedy.token_ids));
    }
}

#[test]
fn text_becomes_tokens_and_tokens_text() {
    let machine = Machine::without_hub();
    let model = stories();
    let tokenize =
        |args: &[&str]| machine.run(&[&["tool", "tokenize", "-m", &model], args].concat()).ok().json();
    assert_eq!(tokenize(&["Once upon a time"]), json!([1, 403, 407, 261, 378]));
    assert_eq!(tokenize(&["--no-special", "Once upon a time"]), json!([403, 407, 261, 378]));
    assert_eq!(tokenize(&["--no-special", "<s>"]), json!([1]));
    assert_ne!(tokenize(&["--no-special", "--no-parse-special", "<s>"]), json!([1]));
    let file = machine.folder().join("text.txt");
    fs::write(&file, "Once upon a time").unwrap();
    assert_eq!(tokenize(&["--no-special", "--file", file.to_str().unwrap()]), json!([403, 407, 261, 378]));

    let detokenize = |args: &[&str]| machine.run(&[&["tool", "detokenize", "-m", &model], args].concat());
    assert_eq!(detokenize(&["403,407,261,378"]).ok().out, "Once upon a time");
    assert_eq!(detokenize(&["--no-special", "--tokens", "1,403"]).ok().out, "Once");
    assert_eq!(detokenize(&["--json", "[403, 407]"]).ok().json(), json!({"text": "Once upon"}));
    detokenize(&["512"]).failed(1, "token 512", "tool tokenize");
    detokenize(&["1;2"]).failed(1, "`1;2` is not a token id", "tool tokenize");
}

#[test]
fn tokenizers_are_read_from_folders_and_files() {
    let machine = Machine::without_hub();
    let folder = data::own().join("golden/arch/qwen2");
    let expected: Value =
        serde_json::from_slice(&fs::read(folder.join("tokenizer_expected.json")).unwrap()).unwrap();
    let case = expected.as_array().or_else(|| expected["cases"].as_array()).unwrap();
    let case = case.iter().find(|case| case["text"].as_str().is_some_and(|text| text.len() > 5)).unwrap();
    let text = case["text"].as_str().unwrap();
    let tokens = |path: &Path| {
        let args = ["tool", "tokenize", "-m", path.to_str().unwrap(), "--no-special", "--", text];
        machine.run(&args).ok().json()
    };
    assert_eq!(tokens(&folder), tokens(&folder.join("tokenizer.json")));
    assert!(case.as_object().unwrap().values().any(|ids| *ids == tokens(&folder)), "{case}");
}

fn perplexity(machine: &Machine, model: &str, file: &Path, more: &[&str]) -> Value {
    let args =
        ["tool", "perplexity", "-m", model, "--file", file.to_str().unwrap(), "--ctx", "128", "--json"];
    machine.run(&[&args[..], more].concat()).ok().json()
}

#[test]
fn a_quantised_model_is_smaller_and_predicts_almost_as_well() {
    let machine = Machine::without_hub();
    let story = data::own().join("stories260K/expected.txt");
    let text = machine.folder().join("text.txt");
    fs::write(&text, fs::read_to_string(story).unwrap().repeat(3)).unwrap();
    let before = perplexity(&machine, &stories(), &text, &[]);
    assert!(before["chunks"].as_u64().unwrap() >= 2, "{before}");
    assert_eq!(before["tokens"], before["chunks"].as_u64().unwrap() * 63);
    let naive = perplexity(&machine, &stories(), &text, &["--device", "reference", "--kv-type", "f32"]);
    let value = |result: &Value| result["ppl"].as_f64().unwrap();
    assert!((value(&naive) / value(&before) - 1.0).abs() < 1e-3, "{naive} {before}");
    let one = perplexity(&machine, &stories(), &text, &["--max-chunks", "1"]);
    assert_eq!(one["chunks"], 1);

    let size = |path: &Path| fs::metadata(path).unwrap().len();
    for (kind, file_type, most) in [("q8_0", 7, 1.02), ("q4_1", 3, 1.5), ("F16", 1, 1.01), ("bf16", 32, 1.02)]
    {
        let out = machine.folder().join(format!("{kind}.gguf"));
        let path = out.to_str().unwrap();
        let args = ["quantize", &stories(), path, "--pure", "--type", kind];
        machine.run(&args).ok();
        assert!(size(&out) * 10 < size(Path::new(&stories())) * 7, "{kind}");
        let after = perplexity(&machine, path, &text, &[]);
        assert!(value(&after) < value(&before) * most, "{kind}: {before} {after}");
        let report = machine.run(&["inspect", path, "--json"]).ok().json();
        assert_eq!(report["metadata"]["general.file_type"], file_type);
        let kinds = |name: &str| {
            let tensors = report["tensors"].as_array().unwrap();
            tensors.iter().find(|tensor| tensor["name"] == name).unwrap()["type"].clone()
        };
        assert_eq!(kinds("token_embd.weight"), kind.to_uppercase());
        assert_eq!(kinds("output_norm.weight"), "F32");
        machine.run(&["run", "-m", path, "--raw", "--temp", "0", "-n", "5", "Once upon a time"]).ok();
        machine.run(&args).failed(1, "is there already", "--force");
        machine.run(&[&args[..], &["--force"]].concat()).ok();
    }
}

#[test]
fn a_benchmark_measures_each_length_as_often_as_asked() {
    let machine = Machine::without_hub();
    let model = stories();
    let args = ["bench", "-m", &model, "-t", "2", "-p", "16,64", "-n", "8", "-d", "32", "-r", "3"];
    let rows = machine.run(&[&args[..], &["--json", "--ops"]].concat()).ok().json();
    let rows = rows.as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp16@d32", "pp64@d32", "tg8@d32"]);
    for row in rows {
        assert_eq!(row["samples"].as_array().unwrap().len(), 3);
        assert!(
            row["load_s"].as_f64().unwrap() > 0.0
                && row["peak_memory_bytes"].is_u64() == cfg!(target_os = "linux")
        );
        assert!(row["mean"].as_f64().unwrap() > 0.0 && row["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["sd"].as_f64().unwrap() >= 0.0 && row["seconds_by_op"]["attention"].as_f64().is_some());
        assert_eq!((&row["threads"], &row["device"], &row["depth"]), (&json!(2), &json!("cpu"), &json!(32)));
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{row}"));
        for (rate, share, best) in [
            ("gb_per_s", "share_of_bandwidth", "read_gb_per_s"),
            ("tflop_per_s", "share_of_matrix_rate", "tflop_per_s"),
        ] {
            let part = number(&row[rate]) / number(&row["peaks"][best]);
            assert!((part / number(&row[share]) - 1.0).abs() < 1e-9 && part > 0.0, "{row}");
        }
        let ops = row["ops"].as_array().unwrap();
        let down = ops.iter().find(|op| op["part"] == "ffn_down").unwrap();
        assert_eq!(
            (&down["op"], &down["times_per_step"]),
            (&json!("project"), &json!(5.0)),
            "one in each layer"
        );
        assert!(number(&down["us_per_step"]) > 0.0 && number(&down["gb_per_s"]) > 0.0, "{down}");
    }
    assert_eq!((&rows[1]["kind"], &rows[1]["n"], &rows[2]["kind"]), (&json!("pp"), &json!(64), &json!("tg")));
    let table = machine.run(&[&args[..], &["--no-limits", "--ops"]].concat()).ok().out;
    assert!(table.contains("pp64@d32") && table.contains("MEDIAN"), "{table}");
    assert!(table.contains("project ffn_down") && table.contains("µs A STEP"), "{table}");
    assert!(!table.contains("at best"), "{table}");
}

#[test]
fn a_step_is_counted_for_a_chip_and_measured_where_there_is_a_device() {
    let machine = Machine::without_hub();
    let model = stories();
    let args = ["tool", "counts", "-m", &model, "-p", "64", "-n", "4", "-r", "1"];
    let run = |more: &[&str]| machine.run(&[&args[..], more].concat());
    let rows = run(&["--device", "null", "--chip", "m2 max (30)", "--json"]).ok().json();
    let (prompt, answer) = (&rows[0], &rows[1]);
    assert_eq!((&prompt["test"], &answer["test"]), (&json!("pp64"), &json!("tg4")));
    assert_eq!((&answer["chip"], &answer["measured_tokens_per_s"]), (&json!("M2 Max (30)"), &Value::Null));
    let kernels = answer["kernels"].as_array().unwrap();
    let launches: u64 = kernels.iter().map(|kernel| kernel["launches"].as_u64().unwrap()).sum();
    // Five a layer, two outside and one that chooses.
    assert_eq!(launches, 5 * 5 + 3);
    let seconds: f64 = kernels.iter().map(|kernel| kernel["counted_s"].as_f64().unwrap()).sum();
    assert!((seconds * answer["counted_tokens_per_s"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{answer}");
    assert!(seconds >= launches as f64 * 2e-6);

    let table = run(&["--device", "null", "--chip", "M1"]).ok();
    assert!(table.out.contains("68.25 GB/s") && table.out.contains("MEASURED: nothing"), "{}", table.out);
    assert!(
        table.out.contains("tokens/s counted") && !table.out.contains("tokens/s measured"),
        "{}",
        table.out
    );
    let none = run(&["--device", "null"]).ok();
    assert!(none.err.contains("no figures of this device") && !none.out.contains("counted"), "{none:?}");
    run(&["--device", "cpu"]).failed(1, "`cpu` plans no kernels", "--device null");
    let odd = run(&["--chip", "M9"]);
    assert!(odd.code == Some(2) && odd.err.contains("M9") && odd.err.contains("M4 Max (40)"), "{odd:?}");
}

#[test]
fn a_model_is_inspected_without_running() {
    let machine = Machine::without_hub();
    let report = machine.run(&["inspect", &stories(), "--json"]).ok().json();
    assert_eq!((&report["architecture"], &report["parameters"]), (&json!("llama"), &json!(260_032)));
    assert_eq!(report["tensor_bytes"], 260_032 * 4);
    // Tables that the graph needs, such as the angles of the rotary embedding, are counted, too.
    let weights = report["memory_estimate"]["weights"].as_u64().unwrap();
    assert!((260_032 * 4..260_032 * 4 + 1024).contains(&weights), "{weights}");
    // 2 × 5 layers × 4 heads × 8 elements × 2 bytes × 1024 tokens
    assert_eq!(report["memory_estimate"]["kv_per_1k_tokens"], 2 * 5 * 4 * 8 * 2 * 1024);
    assert!(report["memory_estimate"]["arena"].as_u64().unwrap() > 0);
    assert_eq!(report["metadata"]["tokenizer.ggml.tokens"]["len"], 512);
    assert_eq!(report["config"]["layers"], 5);
    let tensor = &report["tensors"][0];
    assert_eq!(
        *tensor,
        json!({"name": "token_embd.weight", "type": "F32", "shape": [512, 64], "bytes": 131_072})
    );
    let text = machine.run(&["inspect", &stories()]).ok().out;
    assert!(text.contains("260 032") && text.contains("512 × string"), "{text}");

    let folder = data::own().join("golden/arch/qwen2");
    let report = machine.run(&["inspect", folder.to_str().unwrap(), "--json"]).ok().json();
    assert_eq!((&report["format"], &report["architecture"]), (&json!("safetensors"), &json!("qwen2")));
    assert!(report["memory_estimate"]["weights"].as_u64().unwrap() > 0);
    machine.run(&["inspect", "smollm2"]).failed(1, "not on this machine", "metallic pull smollm2");
}

#[test]
fn a_model_of_an_unknown_family_is_inspected_and_says_why_it_has_no_estimate() {
    let machine = Machine::without_hub();
    let model = crate::support::edited(&machine.folder().join("x.gguf"), |writer| {
        writer.insert("general.architecture", "walrus");
    });
    let report = machine.run(&["inspect", &model, "--json"]).ok().json();
    assert_eq!((&report["architecture"], &report["memory_estimate"]), (&json!("walrus"), &Value::Null));
    assert!(report["memory_estimate_missing"].as_str().unwrap().contains("`walrus`"), "{report}");
    assert_eq!(report["parameters"], 260_032);
    assert!(machine.run(&["inspect", &model]).ok().out.contains("no estimate"));
    machine.run(&["run", "-m", &model, "Hi"]).failed(1, "`walrus`", "metallic list --aliases");
}
