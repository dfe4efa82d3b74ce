//! Reads a model's numbers from GGUF metadata.

use metallic_core::{RopePairs, Unary};
use metallic_formats::{FormatError, Gguf, Metadata, Value};

use super::config::{Config, MAX_TABLE, RopeConfig, RopeScaling};
use super::{Family, ModelError};

/// Reads and checks the metadata.
pub(super) fn read(file: &str, gguf: &Gguf) -> Result<(Family, Config), ModelError> {
    let meta = &gguf.metadata;
    let arch = meta.str("general.architecture")?;
    let family = Family::from_name(arch)
        .ok_or_else(|| ModelError::Architecture { file: file.into(), found: arch.into() })?;
    let key = |name: &str| format!("{arch}.{name}");
    let bad = |name: &str, found: String, needed: &str| ModelError::Config {
        file: file.to_owned(),
        key: key(name),
        found,
        needed: needed.to_owned(),
    };
    let hidden = meta.usize(&key("embedding_length"))?;
    let heads = count(meta, &key("attention.head_count"))?;
    if heads == 0 {
        return Err(bad("attention.head_count", "0".to_owned(), "at least 1"));
    }
    let layers = meta.usize(&key("block_count"))?;
    let head_dim = meta.opt_usize(&key("attention.key_length"))?.unwrap_or(hidden / heads);
    let value_dim = meta.opt_usize(&key("attention.value_length"))?.unwrap_or(head_dim);
    if value_dim != head_dim {
        return Err(bad(
            "attention.value_length",
            value_dim.to_string(),
            &format!("{head_dim}, as the keys"),
        ));
    }
    let kv_key = key("attention.head_count_kv");
    let kv_heads = match meta.get(&kv_key) {
        None => heads,
        Some(_) => count(meta, &kv_key)?,
    };
    let has = |name: &str| gguf.tensor(&format!("blk.0.{name}.bias")).is_some();
    let window = meta.opt_usize(&key("attention.sliding_window"))?.filter(|_| family == Family::Mistral);
    let config = Config {
        architecture: arch.to_owned(),
        layers,
        hidden,
        ffn: meta.usize(&key("feed_forward_length"))?,
        heads,
        kv_heads,
        head_dim,
        vocab: vocab(gguf, &key("vocab_size"))?,
        context: meta.opt_usize(&key("context_length"))?.unwrap_or(2048),
        norm_eps: meta.f32(&key("attention.layer_norm_rms_epsilon"))?,
        act: Unary::Silu,
        rope: rope(file, gguf, family, &key, head_dim)?,
        windows: vec![window; layers.min(MAX_TABLE)],
        qkv_bias: family == Family::Qwen2 || has("attn_q"),
        out_bias: has("attn_output"),
        mlp_bias: has("ffn_down"),
        tied: None,
    };
    config.validate(file)?;
    Ok((family, config))
}

/// A count that some files give per layer; layers that differ are not for these families.
fn count(meta: &Metadata, key: &str) -> Result<usize, FormatError> {
    if let Some(Value::Array(_)) = meta.get(key)
        && let Some(counts) = meta.opt_i32s(key)?
        && let [first, rest @ ..] = counts.as_slice()
        && let Ok(first_count) = usize::try_from(*first)
        && rest.iter().all(|n| n == first)
    {
        return Ok(first_count);
    }
    meta.usize(key)
}

/// Ids in the vocabulary: the token list, where there is one.
fn vocab(gguf: &Gguf, key: &str) -> Result<usize, ModelError> {
    let meta = &gguf.metadata;
    if meta.opt_str("tokenizer.ggml.model")? == Some("no_vocab") {
        return Ok(meta.usize(key)?);
    }
    Ok(meta.strings("tokenizer.ggml.tokens")?.len())
}

fn rope(
    file: &str,
    gguf: &Gguf,
    family: Family,
    key: &dyn Fn(&str) -> String,
    head_dim: usize,
) -> Result<RopeConfig, ModelError> {
    let meta = &gguf.metadata;
    // GGUF stores the query and key rows of the Llama family so that pairs lie side by side.
    let pairs = match family {
        Family::Llama | Family::Mistral => RopePairs::Interleaved,
        Family::Qwen2 => RopePairs::Halves,
    };
    let kind_key = key("rope.scaling.type");
    let scaling = match meta.opt_str(&kind_key)? {
        None => match meta.opt_f32(&key("rope.scale_linear"))? {
            Some(factor) if factor != 1.0 => RopeScaling::Linear(factor),
            _ => RopeScaling::None,
        },
        Some("none") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear(meta.f32(&key("rope.scaling.factor"))?),
        Some(other) => {
            let (found, needed) = (format!("`{other}`"), "none or linear".to_owned());
            return Err(ModelError::Config { file: file.to_owned(), key: kind_key, found, needed });
        }
    };
    let theta = meta.opt_f32(&key("rope.freq_base"))?.unwrap_or(10_000.0);
    let dims = meta.opt_usize(&key("rope.dimension_count"))?.unwrap_or(head_dim);
    Ok(RopeConfig { theta, dims, pairs, scaling })
}
