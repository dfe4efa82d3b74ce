//! Adapters of families whose matrices are fused, transposed, reordered or shared: the model with adapters computes what the
//! model whose own matrices were changed does.

use std::fs;
use std::path::Path;

use metallic::AdapterOptions;
use metallic::core::{DType, quant};
use metallic::formats::{SafeTensors, Tensor};
use metallic::generate::{Engine, EngineConfig};
use metallic::model::{FAMILIES, Model, ModelOptions};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::{data, golden};
use serde_json::json;

const RANK: usize = 3;
const ALPHA: f32 = 5.0;
/// How much of it is taken.
const SCALE: f32 = 0.75;

/// Matrices that an adapter may change, by the end of their names.
const TARGETS: [&str; 22] = [
    "lm_head",
    "feed_forward.w1",
    "feed_forward.w2",
    "feed_forward.w3",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "qkv_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj",
    "q_a_proj",
    "q_b_proj",
    "kv_a_proj_with_mqa",
    "kv_b_proj",
    "self_attn.out_proj",
    "mamba.in_proj",
    "mamba.out_proj",
    "conv.in_proj",
    "conv.out_proj",
];

/// A tensor of numbers, as both files have it.
struct Numbers {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

fn numbers(tensor: &Tensor) -> Numbers {
    let mut values = vec![0.0; tensor.elements()];
    quant::dequantize(tensor.dtype, &tensor.data, &mut values).unwrap();
    Numbers { name: tensor.name.clone(), shape: tensor.shape.clone(), values }
}

fn write(path: &Path, tensors: &[Numbers]) {
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::new());
    for Numbers { name, shape, values } in tensors {
        let start = bytes.len();
        bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [start, bytes.len()]}),
        );
    }
    let header = serde_json::Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat();
    fs::write(path, file).unwrap();
}

/// Numbers between -0.2 and 0.2 that depend on the name of what they are for.
fn noise(name: &str, count: usize) -> Vec<f32> {
    let mut state =
        name.bytes().fold(7_u64, |state, byte| state.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.2
    };
    (0..count).map(|_| next()).collect()
}

/// Writes the model as it was and changed, and the adapter that changes it; gives how many matrices that are.
fn prepare(family: &Path, folder: &Path) -> usize {
    let [plain, changed, adapter] = ["plain", "changed", "adapter"].map(|name| folder.join(name));
    for path in [&plain, &changed, &adapter] {
        fs::create_dir(path).unwrap();
    }
    let config = fs::read_to_string(family.join("config.json")).unwrap();
    fs::write(plain.join("config.json"), &config).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    let mut model: Vec<Numbers> =
        SafeTensors::open(&family.join("model.safetensors")).unwrap().tensors().map(numbers).collect();
    write(&plain.join("model.safetensors"), &model);
    if config["tie_word_embeddings"] == json!(true) {
        // What adapts a head that is the table of embeddings leaves the table as it is.
        let table = model.iter().find(|tensor| tensor.name == "model.embed_tokens.weight").unwrap();
        let (shape, values) = (table.shape.clone(), table.values.clone());
        model.push(Numbers { name: "lm_head.weight".to_owned(), shape, values });
        config["tie_word_embeddings"] = json!(false);
    }
    fs::write(changed.join("config.json"), config.to_string()).unwrap();
    let mut halves = Vec::new();
    for Numbers { name, shape, values } in &mut model {
        let matrix = name.strip_suffix(".weight").unwrap_or_default();
        let is_target = TARGETS.iter().any(|end| matrix.ends_with(end)) && !matrix.contains(".experts.");
        let &mut [n, k] = shape.as_mut_slice() else { continue };
        if !is_target {
            continue;
        }
        let [a, b] = [("a", RANK * k), ("b", n * RANK)].map(|(half, n)| noise(&format!("{name} {half}"), n));
        for (i, x) in values.iter_mut().enumerate() {
            let sum: f32 = (0..RANK).map(|r| b[i / k * RANK + r] * a[r * k + i % k]).sum();
            *x += SCALE * ALPHA / RANK as f32 * sum;
        }
        let half = |which: &str, shape, values| Numbers {
            name: format!("base_model.model.{matrix}.lora_{which}.weight"),
            shape,
            values,
        };
        halves.extend([half("A", vec![RANK, k], a), half("B", vec![n, RANK], b)]);
    }
    write(&changed.join("model.safetensors"), &model);
    write(&adapter.join("adapter_model.safetensors"), &halves);
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA});
    fs::write(adapter.join("adapter_config.json"), config.to_string()).unwrap();
    halves.len() / 2
}

#[test]
fn a_model_with_an_adapter_is_the_model_whose_matrices_were_changed() {
    let cpu = Cpu::new(CpuOptions::default().exact(true).threads(1)).unwrap();
    let prompt: Vec<u32> = (0..40).map(|i| 3 + i * i % 100).collect();
    for family in ["deepseek_v3", "falcon_h1", "glm", "qwen2_moe", "lfm2_moe", "smollm3"] {
        let folder = tempfile::tempdir().unwrap();
        let targets = prepare(&data::own().join("families").join(family), folder.path());
        assert!(targets >= 8, "{family}: {targets} matrices");
        let logits = |name: &str, options: &ModelOptions| {
            let model = Model::open_with(&folder.path().join(name), FAMILIES, options)
                .unwrap_or_else(|error| panic!("{family}: {error}"));
            let program = model.compile(&cpu, DType::F32).unwrap();
            let config = EngineConfig::new(96, model.config().vocab, model.states(DType::F32).unwrap());
            let engine = Engine::new(program, config.adapters(model.adapters().to_vec())).unwrap();
            engine.all_logits(prompt.as_slice()).unwrap()
        };
        let adapters = [AdapterOptions::new(folder.path().join("adapter")).scale(SCALE)];
        let beside = ModelOptions::default().adapters(adapters);
        let [plain, changed] = ["plain", "changed"].map(|name| logits(name, &ModelOptions::default()));
        let far = |a: &[Vec<f32>], b: &[Vec<f32>]| {
            a.iter().zip(b).map(|(a, b)| golden::max_diff(a, b)).fold(0.0, f32::max)
        };
        assert!(far(&plain, &changed) > 0.05, "{family}: the adapter changes something");
        for merged in [false, true] {
            let off = far(&logits("plain", &beside.clone().merge_adapters(merged)), &changed);
            assert!(off < 1e-3, "{family}, merged: {merged}: off by {off}");
        }
    }
}
