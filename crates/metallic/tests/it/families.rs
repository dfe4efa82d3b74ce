//! A family from outside: Phi-3, in this one file, with the parts any family is made of. Its files hold queries, keys and
//! values in one matrix, and the gate above the up projection in another.

use std::ops::Range;
use std::path::Path;

use metallic::core::{Shape, Unary};
use metallic::formats::{GgufWriter, SafeTensors, Tensor};
use metallic::model::config::{MAX_WIDTH, activation, epsilon, tied};
use metallic::model::{
    Config, Decoder, Family, Key, Meta, Model, ModelError, ModelOptions, Results, RopeConfig,
};
use metallic::nn::{Dims, Ffn, Linear, Norm, Rotary, SelfAttention};
use metallic::weights::WeightSource;
use metallic_core::DType;
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::{data, golden};
use serde_json::Value;

const PHI3: Family = Family { gguf: &["phi3"], hf: &["phi3"], read };

const FFN_LENGTH: Key = Key::new("feed_forward_length", "intermediate_size");
const EPSILON: Key = Key::new("attention.layer_norm_rms_epsilon", "rms_norm_eps");

const EMBED: Key = Key::new("token_embd", "model.embed_tokens");
const LAYERS: Key = Key::new("blk", "model.layers");
const ATTN_NORM: Key = Key::new("attn_norm", "input_layernorm");
const QKV: Key = Key::new("attn_qkv", "self_attn.qkv_proj");
const O: Key = Key::new("attn_output", "self_attn.o_proj");
const FFN_NORM: Key = Key::new("ffn_norm", "post_attention_layernorm");
const GATE_UP: Key = Key::new("ffn_up", "mlp.gate_up_proj");
const DOWN: Key = Key::new("ffn_down", "mlp.down_proj");
const NORM: Key = Key::new("output_norm", "model.norm");
const HEAD: Key = Key::new("output", "lm_head");

struct Phi3 {
    config: Config,
    ffn: usize,
    eps: f32,
    act: Unary,
    rope: RopeConfig,
    tied: Option<bool>,
}

fn read(meta: &Meta<'_>) -> Result<Box<dyn Decoder>, ModelError> {
    let config = Config::read(meta)?;
    Ok(Box::new(Phi3 {
        ffn: meta.count(FFN_LENGTH, MAX_WIDTH)?,
        eps: epsilon(meta, EPSILON)?,
        act: activation(meta, Unary::Silu)?,
        rope: RopeConfig::read(meta, config.head_dim)?,
        tied: tied(meta, false)?,
        config,
    }))
}

impl Phi3 {
    fn attention<'g>(&self, w: &WeightSource<'_, 'g>, i: usize, rotary: Rotary<'g>) -> SelfAttention<'g> {
        let Config { hidden, heads, kv_heads, head_dim, .. } = self.config;
        let (q, kv) = (heads * head_dim, kv_heads * head_dim);
        let [q_rows, k_rows, v_rows] = [0..q, q..q + kv, q + kv..q + 2 * kv].map(|r| rows(w, QKV, r, hidden));
        let o = Linear::new(w, O, Dims { rows: hidden, cols: q }, false);
        let plain = SelfAttention::new([q_rows, k_rows, v_rows, o], self.config.attention(i));
        SelfAttention { rotary: Some(rotary), ..plain }
    }

    fn ffn<'g>(&self, w: &WeightSource<'_, 'g>) -> Ffn<'g> {
        let (hidden, ffn) = (self.config.hidden, self.ffn);
        Ffn::Gated {
            gate: rows(w, GATE_UP, 0..ffn, hidden),
            up: rows(w, GATE_UP, ffn..2 * ffn, hidden),
            down: Linear::new(w, DOWN, Dims { rows: hidden, cols: ffn }, false),
            act: self.act,
        }
    }
}

fn rows<'g>(w: &WeightSource<'_, 'g>, name: Key, rows: Range<usize>, cols: usize) -> Linear<'g> {
    Linear::made(w, Dims { rows: rows.len(), cols }, name.weight().rows(rows), None)
}

impl Decoder for Phi3 {
    fn config(&self) -> &Config {
        &self.config
    }

    fn forward<'g>(&self, w: &WeightSource<'_, 'g>) -> Results<'g> {
        let Config { layers, hidden, vocab, head_dim, .. } = self.config;
        let rotary = Rotary::new(w, &self.rope, head_dim);
        let embed = w.weight(EMBED.weight(), Shape::matrix(vocab, hidden));
        let norm = |w: &WeightSource<'_, 'g>, name: Key| Norm::rms(w, name.weight(), hidden, self.eps);
        let mut x = embed.embed(w.graph().tokens());
        for i in 0..layers {
            let w = &w.item(LAYERS, i);
            let h = x + self.attention(w, i, rotary).forward(norm(w, ATTN_NORM).forward(x));
            x = h + self.ffn(w).forward(norm(w, FFN_NORM).forward(h));
        }
        let (norm, head) = (norm(w, NORM), Linear::head(w, HEAD, embed, self.tied));
        Results::new(x, |last| norm.forward(last), |last| head.forward(last))
    }
}

fn check(path: &Path, expected: &golden::Expected) {
    let model = Model::open_with(path, &[&PHI3], &ModelOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let cpu = Cpu::new(CpuOptions::default().threads(2)).unwrap();
    let mut program = model.compile(&cpu, DType::F32).unwrap();
    golden::check_close(program.as_mut(), expected, golden::EXACT, &[1, 512])
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

#[test]
fn a_family_of_one_file_runs_both_kinds_of_files() {
    let folder = data::golden().join("arch/phi3");
    if !folder.is_dir() {
        return data::not_run("a family from outside", "the golden set");
    }
    check(&folder, &golden::Expected::read(&folder.join("expected.json")).unwrap());
    let (path, expected) = golden::gguf("phi3.F16");
    check(&path, &expected);
}

#[test]
fn a_family_that_was_not_given_is_refused_with_those_that_were() {
    let error = Model::open_with(&golden::gguf("llama256.Q4_0").0, &[&PHI3], &ModelOptions::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("holds a `llama` model; supported are phi3"), "{error}");
}

#[test]
fn a_longer_context_than_the_original_takes_the_long_factors() {
    let folder = data::own().join("families/phi3_longrope");
    let text = std::fs::read_to_string(folder.join("long.json")).unwrap();
    let expected: Value = serde_json::from_str(&text).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(expected["token_ids"].clone()).unwrap();
    let logits: Vec<f32> = serde_json::from_value(expected["last_logits"].clone()).unwrap();
    let open = |context: Option<usize>| {
        Model::open_with(&folder, metallic::model::FAMILIES, &ModelOptions::default().context(context))
            .unwrap()
    };
    assert_eq!([None, Some(96), Some(97)].map(|context| open(context).config().context), [96, 96, 128]);
    let cpu = Cpu::new(CpuOptions::default().exact(true)).unwrap();
    let mut program = open(Some(128)).compile(&cpu, DType::F32).unwrap();
    let found = golden::logits(program.as_mut(), &tokens, 50).unwrap();
    assert!(golden::max_diff(found.last().unwrap(), &logits) < 1e-3);
}

/// The folder of small Phi-3 as a GGUF file, its factors in tensors as such files have them; those named are left out. `kind`:
/// whether it names the kind of rotation, which few do.
fn as_gguf(folder: &Path, kind: bool, without: &str, out: &Path) {
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&text).unwrap();
    let mut writer = GgufWriter::new();
    writer.insert("general.architecture", "phi3");
    writer.insert("tokenizer.ggml.model", "no_vocab");
    for (key, from) in [
        ("context_length", "max_position_embeddings"),
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("block_count", "num_hidden_layers"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("rope.dimension_count", "head_dim"),
        ("vocab_size", "vocab_size"),
    ] {
        writer.insert(format!("phi3.{key}"), config[from].as_u64().unwrap() as u32);
    }
    writer.insert("phi3.attention.layer_norm_rms_epsilon", 1e-5_f32);
    if kind {
        writer.insert("phi3.rope.scaling.type", "longrope");
    } else {
        // As the folder's numbers make it.
        let magnitude = (1.0 + (128_f32 / 96.0).ln() / 96_f32.ln()).sqrt();
        writer.insert("phi3.rope.scaling.attn_factor", magnitude);
    }
    for tensor in SafeTensors::open(&folder.join("model.safetensors")).unwrap().tensors() {
        let pairs = [EMBED, NORM, HEAD, ATTN_NORM, QKV, O, FFN_NORM, GATE_UP, DOWN];
        let Key { gguf, .. } = pairs.iter().find(|key| tensor.name.contains(key.hf)).unwrap();
        let layer = tensor.name.split("layers.").nth(1).map(|rest| rest.split('.').next().unwrap());
        let prefix = layer.map_or_else(String::new, |layer| format!("blk.{layer}."));
        writer.add(Tensor { name: format!("{prefix}{gguf}.weight"), ..tensor.clone() }).unwrap();
    }
    for (name, from) in [("rope_factors_short", "short_factor"), ("rope_factors_long", "long_factor")] {
        let factors: Vec<f32> = serde_json::from_value(config["rope_parameters"][from].clone()).unwrap();
        let data: Vec<u8> = factors.iter().flat_map(|x| x.to_le_bytes()).collect();
        let (name, shape) = (format!("{name}.weight"), vec![factors.len()]);
        if !name.contains(without) {
            writer.add(Tensor { name, dtype: DType::F32, shape, data: data.into() }).unwrap();
        }
    }
    writer.write(out).unwrap();
}

#[test]
fn a_gguf_file_takes_the_factors_of_the_context_it_is_opened_for() {
    let folder = data::own().join("families/phi3_longrope");
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("phi3.gguf");
    let open = |path: &Path, context: usize| {
        Model::open_with(path, metallic::model::FAMILIES, &ModelOptions::default().context(context))
    };
    let cpu = Cpu::new(CpuOptions::default().exact(true)).unwrap();
    let tokens: Vec<u32> = (0..90).map(|i| 3 + i * i % 150).collect();
    let logits = |path: &Path, context: usize| {
        let model = open(path, context).unwrap_or_else(|error| panic!("{error}"));
        golden::logits(model.compile(&cpu, DType::F32).unwrap().as_mut(), &tokens, 50).unwrap().pop().unwrap()
    };
    for kind in [true, false] {
        as_gguf(&folder, kind, "nothing", &file);
        assert_eq!([96, 97].map(|context| open(&file, context).unwrap().config().context), [96, 128]);
        for context in [96, 128] {
            let off = golden::max_diff(&logits(&file, context), &logits(&folder, context));
            assert!(off < 1e-3, "{context} tokens, kind named: {kind}: off by {off}");
        }
    }
    assert!(golden::max_diff(&logits(&file, 96), &logits(&file, 128)) > 0.01, "the factors differ");

    // Without those that are needed there would be another rotation.
    for (without, context) in [("short", 96), ("long", 128), ("rope_factors", 96), ("rope_factors", 128)] {
        as_gguf(&folder, context == 96, without, &file);
        let said = open(&file, context).map(drop).unwrap_err().to_string();
        assert!(said.contains("rope_factors_"), "without {without}, {context} tokens: {said}");
    }
}
