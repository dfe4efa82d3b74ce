//! A family from outside: Phi-3, in this one file, with the parts any family is made of. Its files hold queries, keys and
//! values in one matrix, and the gate above the up projection in another.

use std::ops::Range;
use std::path::Path;

use metallic::core::{Shape, Unary};
use metallic::model::config::{MAX_WIDTH, activation, epsilon, tied};
use metallic::model::{
    Config, Decoder, Family, Key, Meta, Model, ModelError, ModelOptions, Results, RopeConfig,
};
use metallic::nn::{Dims, Ffn, Linear, Norm, Rotary, SelfAttention};
use metallic::weights::WeightSource;
use metallic_core::DType;
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::{data, golden};

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
