//! Tiny models of random numbers, written to a folder of their own.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use metallic::core::{DType, quant};
use metallic::model::{Model, ModelError, ModelOptions};
use metallic_testkit::random::Random;
use serde_json::{Map, Value, json};

/// What a model's files are made of.
pub(crate) struct Tiny {
    pub(crate) name: &'static str,
    config: Value,
    tensors: Vec<(String, Vec<usize>)>,
}

/// Lengths that fill neither a vector register nor a tile.
const VOCAB: usize = 101;
const HIDDEN: usize = 48;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
const FFN: usize = 72;

/// Tensors of `F16`; the others are of `F32`. A stack is of one type, so all its items are.
const HALVES: &[&str] =
    &["embed", "q_proj", "qkv_proj", "k_norm", "conv", "gate_proj", "down_proj", "input_layernorm"];

impl Tiny {
    /// One of every family of these tests.
    pub(crate) fn all() -> Vec<Tiny> {
        vec![Tiny::hybrid(), Tiny::experts()]
    }

    fn new(name: &'static str, layers: usize, more: Value) -> Tiny {
        let mut config = json!({
            "model_type": name, "num_hidden_layers": layers, "hidden_size": HIDDEN, "head_dim": HEAD_DIM,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": FFN,
            "vocab_size": VOCAB, "max_position_embeddings": 256,
        });
        if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
            config.extend(more);
        }
        Tiny { name, config, tensors: Vec::new() }
    }

    /// Two recurrent layers, each before one of attention.
    pub(crate) fn hybrid() -> Tiny {
        let layers = 4;
        let rope = json!({"rope_theta": 1000.0, "rope_type": "default", "partial_rotary_factor": 0.5});
        let mut tiny = Tiny::new("hybrid", layers, json!({"rope_parameters": rope}));
        tiny.add("model.embed_tokens.weight", &[VOCAB, HIDDEN]);
        tiny.add("model.norm.weight", &[HIDDEN]);
        for i in 0..layers {
            let recurrent = i % 2 == 0;
            let keys = if recurrent { HEADS } else { KV_HEADS } * HEAD_DIM;
            let mut add = |name: &str, shape: &[usize]| tiny.add(&format!("model.layers.{i}.{name}"), shape);
            add("input_layernorm.weight", &[HIDDEN]);
            add("mixer.q_proj.weight", &[HEADS * HEAD_DIM, HIDDEN]);
            add("mixer.k_proj.weight", &[keys, HIDDEN]);
            add("mixer.v_proj.weight", &[keys, HIDDEN]);
            add("mixer.o_proj.weight", &[HIDDEN, HEADS * HEAD_DIM]);
            add("mixer.q_norm.weight", &[HEAD_DIM]);
            add("mixer.k_norm.weight", &[HEAD_DIM]);
            if recurrent {
                add("mixer.conv.weight", &[HIDDEN, 4]);
                add("mixer.decay_proj.weight", &[HEADS, HIDDEN]);
                add("mixer.beta_proj.weight", &[HEADS, HIDDEN]);
            }
            add("post_attention_layernorm.weight", &[HIDDEN]);
            add("mlp.gate_proj.weight", &[FFN, HIDDEN]);
            add("mlp.up_proj.weight", &[FFN, HIDDEN]);
            add("mlp.down_proj.weight", &[HIDDEN, FFN]);
        }
        tiny
    }

    /// Layers of five experts, of which a token gets two.
    pub(crate) fn experts() -> Tiny {
        let (layers, experts, width) = (3, 5, HEADS * HEAD_DIM);
        let rope = json!({"rope_theta": 1000.0, "rope_type": "default"});
        let more = json!({"num_experts": experts, "num_experts_per_tok": 2, "rope_parameters": rope});
        let mut tiny = Tiny::new("experts", layers, more);
        tiny.add("model.embed_tokens.weight", &[VOCAB, HIDDEN]);
        tiny.add("lm_head.weight", &[VOCAB, HIDDEN]);
        tiny.add("model.norm.weight", &[HIDDEN]);
        tiny.add("model.norm.bias", &[HIDDEN]);
        for i in 0..layers {
            let mut add = |name: &str, shape: &[usize]| tiny.add(&format!("model.layers.{i}.{name}"), shape);
            for norm in ["input_layernorm", "post_attention_layernorm"] {
                add(&format!("{norm}.weight"), &[HIDDEN]);
                add(&format!("{norm}.bias"), &[HIDDEN]);
            }
            add("self_attn.qkv_proj.weight", &[width + 2 * KV_HEADS * HEAD_DIM, HIDDEN]);
            add("self_attn.qkv_proj.bias", &[width + 2 * KV_HEADS * HEAD_DIM]);
            add("self_attn.o_proj.weight", &[HIDDEN, width]);
            add("self_attn.o_proj.bias", &[HIDDEN]);
            add("self_attn.sinks", &[HEADS]);
            add("mlp.router.weight", &[experts, HIDDEN]);
            add("mlp.router.bias", &[experts]);
            for (name, shape) in
                [("gate_proj", [FFN, HIDDEN]), ("up_proj", [FFN, HIDDEN]), ("down_proj", [HIDDEN, FFN])]
            {
                (0..experts).for_each(|e| add(&format!("mlp.experts.{e}.{name}.weight"), &shape));
            }
        }
        tiny
    }

    /// One tensor more.
    pub(crate) fn add(&mut self, name: &str, shape: &[usize]) {
        self.tensors.push((name.to_owned(), shape.to_vec()));
    }

    /// One tensor less.
    pub(crate) fn remove(&mut self, name: &str) {
        let before = self.tensors.len();
        self.tensors.retain(|(found, _)| found != name);
        assert_eq!(self.tensors.len() + 1, before, "{name}");
    }

    /// Writes the files and opens them as a model.
    pub(crate) fn open(&self) -> Result<Model, ModelError> {
        let folder = Folder::new(self.name);
        fs::write(folder.0.join("config.json"), self.config.to_string()).expect("a folder to write to");
        fs::write(folder.0.join("model.safetensors"), self.bytes()).expect("a folder to write to");
        Model::open_with(&folder.0, crate::FAMILIES, &ModelOptions::default())
    }

    /// The file: the header's length, the header, the numbers.
    fn bytes(&self) -> Vec<u8> {
        let (mut header, mut data, mut random) = (Map::new(), Vec::new(), Random::new(7));
        for (name, shape) in &self.tensors {
            let half = HALVES.iter().any(|part| name.contains(part));
            let dtype = if half { DType::F16 } else { DType::F32 };
            let (len, start) = (shape.iter().product(), data.len());
            let numbers: Vec<f32> = match shape.as_slice() {
                [_] if name.ends_with("bias") => random.floats(len, 0.3),
                [_] => random.floats(len, 0.5).iter().map(|x| x + 1.0).collect(),
                // A product with it keeps the size of what goes in.
                [.., cols] => random.floats(len, (3.0 / *cols as f32).sqrt()),
                [] => Vec::new(),
            };
            data.resize(start + dtype.bytes_for(len).expect("whole numbers"), 0);
            quant::quantize(dtype, &numbers, &mut data[start..]).expect("floats");
            let offsets = [start, data.len()];
            let entry = json!({"dtype": dtype.to_string(), "shape": shape, "data_offsets": offsets});
            header.insert(name.clone(), entry);
        }
        let header = Value::Object(header).to_string();
        let len = (header.len() as u64).to_le_bytes();
        [&len[..], header.as_bytes(), &data].concat()
    }
}

/// A folder that goes when it is no longer needed.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let unique = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(format!("metallic-tiny-{name}-{unique}"));
        fs::create_dir_all(&path).expect("a temporary folder");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Left behind, it harms nobody.
        let _ = fs::remove_dir_all(&self.0);
    }
}
