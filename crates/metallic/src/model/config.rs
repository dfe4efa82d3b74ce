//! What every decoder has, in numbers, and what families read alike.

use metallic_core::{Attention, StateId, Unary};

use super::{Key, Meta, ModelError, Naming};

/// The numbers the rest of the program needs of any model. What else a family has, it keeps to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The family's name as the file gives it: `llama`, `mistral`, `qwen2`.
    pub architecture: String,
    /// Transformer layers.
    pub layers: usize,
    /// Length of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Ids in the vocabulary.
    pub vocab: usize,
    /// The longest sequence the model was made for.
    pub context: usize,
}

// Sizes beyond which a file is lying or cannot run anywhere.
const MAX_LAYERS: usize = 4096;
const MAX_HEADS: usize = 65_536;
const MAX_HEAD_DIM: usize = 8192;
/// The longest row of anything.
pub const MAX_WIDTH: usize = 1 << 24;

pub(super) const LAYERS: Key = Key::new("block_count", "num_hidden_layers|n_layer");
const HIDDEN: Key = Key::new("embedding_length", "hidden_size|n_embd");
const HEADS: Key = Key::new("attention.head_count", "num_attention_heads|n_head");
const KV_HEADS: Key = Key::new("attention.head_count_kv", "num_key_value_heads");
const HEAD_DIM: Key = Key::new("attention.key_length", "head_dim");
const VALUE_DIM: Key = Key::new("attention.value_length", "");
const CONTEXT: Key = Key::new("context_length", "max_position_embeddings|n_positions");
const VOCAB: Key = Key::new("vocab_size", "vocab_size");
const TOKENIZER: Key = Key::new("tokenizer.ggml.model", "");
const TOKENS: Key = Key::new("tokenizer.ggml.tokens", "");
const WINDOW: Key = Key::new("attention.sliding_window", "sliding_window");
const LAYER_TYPES: Key = Key::new("", "layer_types");
const ACTIVATION: Key = Key::new("", "hidden_act|hidden_activation|activation_function");
const TIED: Key = Key::new("", "tie_word_embeddings");

impl Config {
    /// Reads the numbers under their usual keys, and refuses those no model can have.
    pub fn read(meta: &Meta<'_>) -> Result<Config, ModelError> {
        let hidden = meta.count(HIDDEN, MAX_WIDTH)?;
        let head_dim = meta.get_or(HEAD_DIM, hidden / meta.count(HEADS, MAX_HEADS)?)?;
        let head_dim = meta.checked(HEAD_DIM, head_dim, MAX_HEAD_DIM)?;
        let value_dim = meta.get_or(VALUE_DIM, head_dim)?;
        if value_dim != head_dim {
            return Err(meta.bad(VALUE_DIM, value_dim, format!("{head_dim}, as the keys")));
        }
        Config::with_heads(meta, head_dim)
    }

    /// The same with heads of a size that is known.
    pub fn with_heads(meta: &Meta<'_>, head_dim: usize) -> Result<Config, ModelError> {
        let heads = meta.count(HEADS, MAX_HEADS)?;
        let kv_heads = meta.opt_count(KV_HEADS, MAX_HEADS)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(meta.bad(KV_HEADS, kv_heads, format!("a divisor of the {heads} heads")));
        }
        Ok(Config {
            architecture: meta.architecture().to_owned(),
            layers: meta.count(LAYERS, MAX_LAYERS)?,
            hidden: meta.count(HIDDEN, MAX_WIDTH)?,
            heads,
            kv_heads,
            head_dim,
            vocab: vocab(meta)?,
            context: meta.opt_count(CONTEXT, u32::MAX as usize)?.unwrap_or(2048),
        })
    }

    /// The numbers of a model that has no attention: one head stands for all.
    pub fn without_heads(meta: &Meta<'_>) -> Result<Config, ModelError> {
        let hidden = meta.count(HIDDEN, MAX_WIDTH)?;
        Ok(Config {
            architecture: meta.architecture().to_owned(),
            layers: meta.count(LAYERS, MAX_LAYERS)?,
            hidden,
            heads: 1,
            kv_heads: 1,
            head_dim: hidden,
            vocab: vocab(meta)?,
            // It keeps no more of a long sequence than of a short one.
            context: meta.opt_count(CONTEXT, u32::MAX as usize)?.unwrap_or(1 << 20),
        })
    }

    /// Attention of a layer over all it may see: `softmax(q · Kᵀ / sqrt(head_dim)) · V`.
    pub fn attention(&self, layer: usize) -> Attention {
        let Config { heads, kv_heads, head_dim, .. } = *self;
        let scale = (head_dim as f32).sqrt().recip();
        Attention {
            state: StateId(layer),
            heads,
            kv_heads,
            head_dim,
            value_dim: head_dim,
            scale,
            window: None,
            softcap: None,
            sinks: false,
        }
    }
}

/// Ids in the vocabulary: of a GGUF file its list of tokens, where it has a tokenizer.
fn vocab(meta: &Meta<'_>) -> Result<usize, ModelError> {
    let listed = match meta.naming() {
        Naming::Gguf => meta.opt(TOKENIZER)? != Some("no_vocab"),
        Naming::HuggingFace => false,
    };
    if !listed {
        return meta.count(VOCAB, MAX_WIDTH);
    }
    meta.checked(TOKENS, meta.get::<Vec<&str>>(TOKENS)?.len(), MAX_WIDTH)
}

/// The epsilon of a norm; a GGUF file must give it, transformers takes 1e-6 where `config.json` does not.
pub fn epsilon(meta: &Meta<'_>, key: Key) -> Result<f32, ModelError> {
    let eps: f32 = match meta.naming() {
        Naming::Gguf => meta.get(key)?,
        Naming::HuggingFace => meta.get_or(key, 1e-6)?,
    };
    let fits = eps.is_finite() && eps >= 0.0;
    if fits { Ok(eps) } else { Err(meta.bad(key, eps, "a small positive number")) }
}

/// The activation that `config.json` names, or the family's.
pub fn activation(meta: &Meta<'_>, family: Unary) -> Result<Unary, ModelError> {
    Ok(match meta.opt(ACTIVATION)? {
        None => family,
        Some("silu" | "swish") => Unary::Silu,
        Some("gelu") => Unary::Gelu,
        Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_tanh") => Unary::GeluTanh,
        // Families whose inner numbers are squared do that themselves.
        Some("relu" | "relu2") => Unary::Relu,
        Some(other) => {
            let needed = "silu, gelu, gelu_pytorch_tanh or relu";
            return Err(meta.bad(ACTIVATION, format!("`{other}`"), needed));
        }
    })
}

/// How far back each layer may look; `None`: as far as there is. Where the file does not list the layers that have a
/// window, `slides` tells them.
pub fn windows(
    meta: &Meta<'_>,
    layers: usize,
    slides: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    // Some files say 0 where there is none.
    let Some(window) = meta.opt(WINDOW)?.filter(|window| *window > 0) else { return Ok(vec![None; layers]) };
    let listed = meta.per_layer::<&str>(LAYER_TYPES, layers)?;
    let slides =
        |i: usize| listed.as_ref().map_or_else(|| slides(i), |types| types[i].starts_with("sliding"));
    Ok((0..layers).map(|i| slides(i).then_some(window)).collect())
}

/// Whether the output matrix is the embedding table. `None`, where the file has no matrix of its own: GGUF does not say.
pub fn tied(meta: &Meta<'_>, family: bool) -> Result<Option<bool>, ModelError> {
    Ok(match meta.naming() {
        Naming::Gguf => None,
        Naming::HuggingFace => Some(meta.get_or(TIED, family)?),
    })
}
