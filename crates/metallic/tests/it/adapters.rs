//! Adapters: beside the model and in it, several at once, each request its own, and what is said of those that do not fit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use metallic::core::reference::Reference;
use metallic::core::{Backend, DType};
use metallic::formats::{Gguf, GgufWriter, SafeTensors, Tensor};
use metallic::generate::{Engine, EngineConfig};
use metallic::model::{FAMILIES, Model, ModelOptions};
use metallic::{AdapterOptions, AdapterShare, Request, Sampling};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::{data, golden};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    base: String,
    token_ids: Vec<u32>,
    cases: Vec<Mixed>,
}

#[derive(Deserialize)]
struct Mixed {
    mix: BTreeMap<String, f32>,
    logits: Vec<f32>,
}

impl Mixed {
    fn shares(&self) -> Vec<AdapterShare> {
        self.mix.iter().map(|(name, scale)| AdapterShare::new(name, *scale)).collect()
    }
}

fn folder(name: &str) -> PathBuf {
    data::own().join("adapters").join(name)
}

/// What PEFT computes, the model's folder and those of its adapters; nothing where the model is not here.
fn case(name: &str) -> Option<(Case, PathBuf, Vec<AdapterOptions>)> {
    let text = fs::read_to_string(folder(name).join("expected.json")).unwrap();
    let case: Case = serde_json::from_str(&text).unwrap();
    let roots = [Some(data::own()), data::shared()];
    let base = roots.into_iter().flatten().map(|root| root.join(&case.base)).find(|path| path.is_dir());
    if base.is_none() {
        data::not_run("adapters", &case.base);
    }
    let mut adapters: Vec<PathBuf> = fs::read_dir(folder(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|p| p.is_dir())
        .collect();
    adapters.sort();
    Some((case, base?, adapters.into_iter().map(AdapterOptions::new).collect()))
}

fn open(base: &Path, adapters: &[AdapterOptions], merged: bool) -> Result<Model, String> {
    let options = ModelOptions::default().adapters(adapters).merge_adapters(merged);
    Model::open_with(base, FAMILIES, &options).map_err(|error| error.to_string())
}

fn engine(model: &Model, backend: &dyn Backend) -> Engine {
    let program = model.compile(backend, DType::F32).unwrap();
    let config = EngineConfig::new(96, model.config().vocab, model.states(DType::F32).unwrap());
    let budget = 8 * config.kv_budget_bytes;
    Engine::new(program, config.adapters(model.adapters().to_vec()).kv_budget_bytes(budget)).unwrap()
}

/// Logits after a prompt, by whatever the request says of adapters.
fn logits(engine: &Engine, request: Request) -> Vec<f32> {
    let (sender, rows) = channel();
    let request = request.max_tokens(1).hook(move |_, row| sender.send(row.to_vec()).unwrap());
    engine.submit(request).unwrap().complete().unwrap();
    rows.try_iter().last().unwrap()
}

fn backends() -> Vec<Box<dyn Backend>> {
    let cpu = Cpu::new(CpuOptions::default().exact(true).threads(1)).unwrap();
    let all: Vec<Box<dyn Backend>> = vec![Box::new(Reference::new()), Box::new(cpu)];
    all.into_iter().chain(soft()).collect()
}

#[cfg(feature = "soft")]
fn soft() -> Option<Box<dyn Backend>> {
    use metallic_gpu::{GpuBackend, GpuOptions, Soft, SoftOptions};
    let soft = metallic_testkit::needed(Soft::new(SoftOptions::default().threads(2)))?;
    Some(Box::new(GpuBackend::new(std::sync::Arc::new(soft), GpuOptions::default())))
}

#[cfg(not(feature = "soft"))]
fn soft() -> Option<Box<dyn Backend>> {
    None
}

fn assert_close(found: &[f32], expected: &[f32], bound: f32, what: &str) {
    let off = golden::max_diff(found, expected);
    assert!(off <= bound, "{what}: off by {off}, {bound} is allowed");
}

#[test]
fn logits_are_those_of_peft_whatever_each_request_takes() {
    for name in ["llama", "phi3", "gpt2"] {
        let Some((case, base, adapters)) = case(name) else { continue };
        let model = open(&base, &adapters, false).unwrap();
        for backend in backends() {
            let engine = engine(&model, backend.as_ref());
            for mixed in &case.cases {
                let request = Request::new(case.token_ids.clone()).adapters(mixed.shares());
                let what = format!("{name} on {} with {:?}", backend.info().kind, mixed.mix);
                assert_close(&logits(&engine, request), &mixed.logits, 2e-3, &what);
            }
        }
    }
}

#[test]
fn a_request_that_says_nothing_takes_what_was_loaded() {
    let (case, base, adapters) = case("llama").unwrap();
    let mixed = case.cases.last().unwrap();
    let scaled: Vec<AdapterOptions> =
        adapters.into_iter().zip([0.5, -0.75]).map(|(adapter, scale)| adapter.scale(scale)).collect();
    let cpu = Cpu::new(CpuOptions::default().exact(true).threads(1)).unwrap();
    for merged in [false, true] {
        let model = open(&base, &scaled, merged).unwrap();
        assert_eq!(model.adapters().len(), if merged { 0 } else { 2 });
        let found = logits(&engine(&model, &cpu), Request::new(case.token_ids.clone()));
        assert_close(&found, &mixed.logits, 2e-3, if merged { "merged" } else { "beside" });
    }
}

#[test]
fn merging_adds_to_every_kind_of_matrix() {
    let cpu = Cpu::new(CpuOptions::default().exact(true).threads(1)).unwrap();
    for name in ["phi3", "gpt2"] {
        let Some((case, base, adapters)) = case(name) else { continue };
        let model = open(&base, &adapters, true).unwrap();
        let found = logits(&engine(&model, &cpu), Request::new(case.token_ids.clone()));
        // The folder's matrices are halves, and so are the sums.
        assert_close(&found, &case.cases[0].logits, 0.1, name);
    }
}

/// An adapter of a folder as a GGUF file has it, where rows of a head that rotate together stand side by side.
fn as_gguf(adapter: &Path, alpha: f32, head: usize, out: &Path) {
    let mut writer = GgufWriter::new();
    writer.insert("general.architecture", "llama");
    writer.insert("general.type", "adapter");
    writer.insert("adapter.type", "lora");
    if alpha > 0.0 {
        writer.insert("adapter.lora.alpha", alpha);
    }
    let names = [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("lm_head", "output"),
    ];
    for tensor in SafeTensors::open(&adapter.join("adapter_model.safetensors")).unwrap().tensors() {
        let (hf, gguf) = names.iter().find(|(hf, _)| tensor.name.contains(hf)).unwrap();
        let layer = tensor.name.split("layers.").nth(1).map(|rest| rest.split('.').next().unwrap());
        let half = if tensor.name.contains("lora_A") { "lora_a" } else { "lora_b" };
        let prefix = layer.map_or_else(String::new, |layer| format!("blk.{layer}."));
        let mut data = tensor.data.to_vec();
        if half == "lora_b" && ["self_attn.q_proj", "self_attn.k_proj"].contains(hf) {
            let row = data.len() / tensor.shape[0];
            let source: Vec<u8> = data.clone();
            for (to, bytes) in data.chunks_mut(row).enumerate() {
                let from = to / head * head + to % 2 * (head / 2) + to % head / 2;
                bytes.copy_from_slice(&source[from * row..(from + 1) * row]);
            }
        }
        let name = format!("{prefix}{gguf}.weight.{half}");
        writer.add(Tensor { name, data: data.into(), ..tensor.clone() }).unwrap();
    }
    writer.write(out).unwrap();
}

#[test]
fn adapters_of_either_kind_fit_models_of_either_kind() {
    let temp = tempfile::tempdir().unwrap();
    let (case, base, adapters) = case("llama").unwrap();
    let one = case.cases.iter().find(|mixed| mixed.mix.contains_key("one")).unwrap();
    let file = temp.path().join("one.gguf");
    as_gguf(&adapters[0].path, 8.0, 24, &file);
    let cpu = Cpu::new(CpuOptions::default().exact(true).threads(1)).unwrap();
    let gguf = golden::gguf("llama_odd.F16").0;
    // Without an alpha the factors count as they are, and alpha 8 of rank 4 doubles them.
    let bare = temp.path().join("bare.gguf");
    as_gguf(&adapters[0].path, 0.0, 24, &bare);
    for (base, adapter, bound) in [
        (&gguf, AdapterOptions::new(&file), 0.03),
        (&gguf, AdapterOptions::new(&bare).scale(2.0), 0.03),
        (&gguf, adapters[0].clone(), 0.03),
        (&base, AdapterOptions::new(&file), 2e-3),
    ] {
        for merged in [false, true] {
            let what = format!("{} on {}, merged: {merged}", adapter.path.display(), base.display());
            let model = open(base, std::slice::from_ref(&adapter), merged).unwrap();
            let found = logits(&engine(&model, &cpu), Request::new(case.token_ids.clone()));
            assert_close(&found, &one.logits, bound, &what);
        }
    }
}

#[test]
fn requests_with_different_adapters_share_steps_but_no_prefix() {
    let (case, base, adapters) = case("llama").unwrap();
    let model = open(&base, &adapters, false).unwrap();
    let cpu = Cpu::new(CpuOptions::default().exact(true).threads(1)).unwrap();
    let prompt: Vec<u32> = case.token_ids.iter().cycle().take(70).copied().collect();
    let request = |mix: &[(&str, f32)]| {
        let shares = mix.iter().map(|(name, scale)| AdapterShare::new(*name, *scale)).collect::<Vec<_>>();
        Request::new(prompt.clone())
            .adapters(shares)
            .max_tokens(12)
            .ignore_eos(true)
            .sampling(Sampling::greedy())
    };
    let mixes: [&[(&str, f32)]; 5] =
        [&[], &[("one", 1.0)], &[("two", 1.0)], &[("one", 0.5), ("two", 1.0)], &[("one", 0.5)]];
    let alone: Vec<Vec<u32>> = mixes
        .iter()
        .map(|mix| engine(&model, &cpu).submit(request(mix)).unwrap().complete().unwrap().tokens)
        .collect();
    assert!(alone.windows(2).all(|pair| pair[0] != pair[1]), "they differ: {alone:?}");
    let engine = engine(&model, &cpu);
    for round in 0..2 {
        let running: Vec<_> = mixes.iter().map(|mix| engine.submit(request(mix)).unwrap()).collect();
        for (generation, expected) in running.into_iter().zip(&alone) {
            let found = generation.complete().unwrap();
            assert_eq!(found.tokens, *expected);
            assert_eq!(
                found.stats.cached_tokens,
                64 * round,
                "a prefix is shared by those of one mixture alone"
            );
        }
    }
}

/// A copy of an adapter with its configuration changed.
fn changed(adapter: &Path, key: &str, value: serde_json::Value) -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(adapter.join(file), temp.path().join(file)).unwrap();
    }
    let path = temp.path().join("adapter_config.json");
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    config[key] = value;
    fs::write(path, config.to_string()).unwrap();
    temp
}

#[test]
fn adapters_that_do_not_fit_are_named() {
    let (_, base, adapters) = case("llama").unwrap();
    let one = &adapters[0].path;
    let refused = |key: &str, value: serde_json::Value, said: &str| {
        let folder = changed(one, key, value);
        let found = open(&base, &[AdapterOptions::new(folder.path())], false).unwrap_err();
        assert!(found.contains(said), "{key}: {found}");
    };
    refused("r", 5.into(), "is rank 4, it must be rank 5, which `adapter_config.json` says");
    refused("lora_alpha", "much".into(), "lora_alpha is \"much\", it must be a number above 0");
    refused("use_dora", true.into(), "use_dora is true, it must be false");
    refused("bias", "all".into(), "bias is \"all\", it must be none");
    refused("peft_type", "IA3".into(), "peft_type is \"IA3\", it must be LORA");
    refused("modules_to_save", serde_json::json!(["lm_head"]), "modules_to_save is [\"lm_head\"]");
    refused("init_lora_weights", "pissa".into(), "init_lora_weights is \"pissa\", it must be true");
    refused("alora_invocation_tokens", serde_json::json!([5, 6]), "alora_invocation_tokens is [5,6]");
    for patterns in ["rank_pattern", "alpha_pattern"] {
        let value = serde_json::json!({".*_proj": 4});
        refused(patterns, value, &format!("{patterns} is \".*_proj\", it must be names of matrices"));
    }

    let other = case("phi3").unwrap();
    let separate = data::own().join("families/granite");
    let found = open(&separate, &other.2, false).unwrap_err();
    // The head that was saved with it is not this model's.
    assert!(found.contains("what adapts `lm_head.weight` is a whole tensor, F32 [160, 32]"), "{found}");
    let found = open(&other.1, &adapters[1..], false).unwrap_err();
    assert!(found.contains("adapts `model.layers.0.self_attn.q_proj` and 3 others that this"), "{found}");
    let wide = open(&data::own().join("golden/arch/qwen2"), &adapters[1..], false).unwrap_err();
    assert!(wide.contains("what adapts `model.layers.0.self_attn."), "{wide}");
    assert!(wide.contains("it must be A [3, "), "{wide}");

    let twice = [adapters[0].clone(), adapters[0].clone()];
    assert!(open(&base, &twice, false).unwrap_err().contains("another one is called `one`"));
    let nowhere = open(&base, &[AdapterOptions::new("no/such/folder")], false).unwrap_err();
    assert!(nowhere.contains("`no/such/folder` is no adapter: it cannot be opened"), "{nowhere}");
    assert!(
        open(&base, &[adapters[0].clone().scale(f32::NAN)], false).unwrap_err().contains("its scale is NaN")
    );

    let temp = tempfile::tempdir().unwrap();
    let found = open(&base, &[AdapterOptions::new(temp.path())], false).unwrap_err();
    assert!(found.contains("the folder has no adapter_config.json"), "{found}");
    fs::copy(one.join("adapter_config.json"), temp.path().join("adapter_config.json")).unwrap();
    let found = open(&base, &[AdapterOptions::new(temp.path())], false).unwrap_err();
    assert!(found.contains("the folder has no adapter_model.safetensors"), "{found}");
    fs::write(temp.path().join("adapter_model.bin"), b"PK").unwrap();
    let found = open(&base, &[AdapterOptions::new(temp.path())], false).unwrap_err();
    assert!(found.contains("which may run code when it is read"), "{found}");
}

/// A copy of an adapter with the names of its tensors changed; where a change gives two, it is there twice.
fn renamed(adapter: &Path, change: impl Fn(&str) -> Vec<String>) -> tempfile::TempDir {
    let temp = tempfile::tempdir().unwrap();
    fs::copy(adapter.join("adapter_config.json"), temp.path().join("adapter_config.json")).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in SafeTensors::open(&adapter.join("adapter_model.safetensors")).unwrap().tensors() {
        for name in change(&tensor.name) {
            let (start, dtype) = (data.len(), tensor.dtype.to_string().to_uppercase());
            data.extend_from_slice(&tensor.data);
            let entry = serde_json::json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": [start, data.len()]});
            header.insert(name, entry);
        }
    }
    let header = serde_json::Value::from(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    fs::write(temp.path().join("adapter_model.safetensors"), bytes).unwrap();
    temp
}

#[test]
fn two_adapters_in_one_folder_are_refused_and_one_under_a_name_is_not() {
    let (case, base, adapters) = case("llama").unwrap();
    let one = &adapters[0].path;
    let named = |name: &str, as_: &str| name.replace(".weight", &format!(".{as_}.weight"));
    let folder = renamed(one, |name| vec![named(name, "default")]);
    let model = open(&base, &[AdapterOptions::new(folder.path()).name("one".to_owned())], false).unwrap();
    let expected = case.cases.iter().find(|mixed| mixed.mix.contains_key("one")).unwrap();
    let cpu = Cpu::new(CpuOptions::default().exact(true).threads(1)).unwrap();
    let request = Request::new(case.token_ids.clone()).adapters(expected.shares());
    assert_close(&logits(&engine(&model, &cpu), request), &expected.logits, 2e-3, "under a name");

    let folder = renamed(one, |name| vec![named(name, "left"), named(name, "right")]);
    let found = open(&base, &[AdapterOptions::new(folder.path())], false).unwrap_err();
    assert!(found.contains("lora_A.left.weight` and `") && found.contains("lora_A.right.weight`"), "{found}");
    assert!(found.contains("it must be one adapter"), "{found}");
}

#[test]
fn files_that_are_no_adapter_of_this_model_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let adapter = &case("llama").unwrap().2[0].path;
    let base = golden::gguf("llama_odd.F16").0;
    let file = temp.path().join("one.gguf");
    as_gguf(adapter, 8.0, 24, &file);
    let found = open(&base, &[AdapterOptions::new(&base)], false).unwrap_err();
    assert!(found.contains("general.type is `model`, it must be `adapter`"), "{found}");
    let made = Gguf::open(&file).unwrap();
    let rewritten = |change: &dyn Fn(&mut GgufWriter, &Tensor)| {
        let mut writer = GgufWriter::with_metadata(made.metadata.clone());
        made.tensors().for_each(|tensor| change(&mut writer, tensor));
        let path = temp.path().join("other.gguf");
        writer.write(&path).unwrap();
        open(&base, &[AdapterOptions::new(path)], false).unwrap_err()
    };
    let found = rewritten(&|writer, tensor| {
        writer.insert("general.architecture", "qwen2");
        writer.add(tensor.clone()).unwrap();
    });
    assert!(found.contains("adapts a `qwen2` model, and this is a `llama` model"), "{found}");
    let found = rewritten(&|writer, tensor| {
        if !tensor.name.ends_with("attn_k.weight.lora_b") {
            writer.add(tensor.clone()).unwrap();
        }
    });
    assert!(found.contains("what adapts `blk.0.attn_k` is A alone, it must be both A and B"), "{found}");
    let found = rewritten(&|writer, tensor| {
        let name = tensor.name.replace("attn_k", "attn_kk");
        writer.add(Tensor { name, ..tensor.clone() }).unwrap();
    });
    assert!(found.contains("adapts `blk.0.attn_kk` and 1 others"), "{found}");
}

#[test]
fn a_request_for_an_adapter_that_is_not_there_is_refused_by_name() {
    let (case, base, adapters) = case("llama").unwrap();
    let model = open(&base, &adapters, false).unwrap();
    let engine = engine(&model, &Cpu::new(CpuOptions::default()).unwrap());
    let asked = |name: &str, scale: f32| {
        let shares = vec![AdapterShare::new(name, scale)];
        engine
            .submit(Request::new(case.token_ids.clone()).adapters(shares))
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    assert_eq!(asked("three", 1.0), "no adapter `three` was loaded with the model; there are: one, two");
    let large = vec![AdapterShare::new("one", 3e38), AdapterShare::new("one", 3e38)];
    let sum = engine.submit(Request::new(case.token_ids.clone()).adapters(large)).map(drop).unwrap_err();
    assert!(sum.to_string().contains("the scale of an adapter is inf"), "{sum}");
    assert!(asked("one", f32::INFINITY).contains("the scale of an adapter is inf, it must be a number"));
}
