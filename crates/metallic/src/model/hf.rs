//! Reads the `config.json` of a Hugging Face folder, in the spellings of transformers 4 and 5.

use std::path::Path;

use metallic_core::RopePairs;
use serde_json::{Map, Value};

use super::config::{Config, RopeConfig, RopeScaling, activation};
use super::{Family, ModelError};

/// A JSON object with the name of its file, so that every complaint can say where.
struct Json<'a> {
    file: &'a str,
    prefix: &'static str,
    map: &'a Map<String, Value>,
}

impl Json<'_> {
    fn bad(&self, key: &str, found: impl Into<String>, needed: &str) -> ModelError {
        ModelError::Config {
            file: self.file.to_owned(),
            key: format!("{}{key}", self.prefix),
            found: found.into(),
            needed: needed.to_owned(),
        }
    }

    /// A value that is there and not null.
    fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn opt_usize(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.get(key)
            .map(|v| {
                let number = v.as_u64().and_then(|n| usize::try_from(n).ok());
                number.ok_or_else(|| self.bad(key, v.to_string(), "a whole number"))
            })
            .transpose()
    }

    fn usize(&self, key: &str) -> Result<usize, ModelError> {
        self.opt_usize(key)?.ok_or_else(|| self.bad(key, "nothing", "a whole number"))
    }

    fn opt_f32(&self, key: &str) -> Result<Option<f32>, ModelError> {
        self.get(key)
            .map(|v| v.as_f64().map(|n| n as f32).ok_or_else(|| self.bad(key, v.to_string(), "a number")))
            .transpose()
    }

    fn f32(&self, key: &str) -> Result<f32, ModelError> {
        self.opt_f32(key)?.ok_or_else(|| self.bad(key, "nothing", "a number"))
    }

    fn opt_bool(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.get(key)
            .map(|v| v.as_bool().ok_or_else(|| self.bad(key, v.to_string(), "true or false")))
            .transpose()
    }

    fn opt_str(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.get(key).map(|v| v.as_str().ok_or_else(|| self.bad(key, v.to_string(), "a string"))).transpose()
    }
}

/// Reads and checks `config.json`.
pub(super) fn read(path: &Path) -> Result<(Family, Config), ModelError> {
    let file = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| ModelError::Read { file: file.clone(), error })?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| ModelError::Json { file: file.clone(), reason: error.to_string() })?;
    let Value::Object(map) = value else {
        return Err(ModelError::Json { file, reason: "it holds no object".to_owned() });
    };
    let json = Json { file: &file, prefix: "", map: &map };
    let name =
        json.opt_str("model_type")?.ok_or_else(|| json.bad("model_type", "nothing", "the model's family"))?;
    let family = Family::from_name(name)
        .ok_or_else(|| ModelError::Architecture { file: file.clone(), found: name.to_owned() })?;
    if let Some(quantization) = json.get("quantization_config") {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unknown");
        return Err(json.bad(
            "quantization_config",
            format!("method `{method}`"),
            "plain F32, F16 or BF16 weights",
        ));
    }
    let config = config(family, name, &json)?;
    config.validate(&file)?;
    Ok((family, config))
}

fn config(family: Family, name: &str, json: &Json<'_>) -> Result<Config, ModelError> {
    let (hidden, heads) = (json.usize("hidden_size")?, json.usize("num_attention_heads")?);
    if heads == 0 {
        return Err(json.bad("num_attention_heads", "0", "at least 1"));
    }
    let layers = json.usize("num_hidden_layers")?;
    let head_dim = json.opt_usize("head_dim")?.unwrap_or(hidden / heads);
    let act = json.opt_str("hidden_act")?.unwrap_or("silu");
    let attention_bias = json.opt_bool("attention_bias")?.unwrap_or(false);
    Ok(Config {
        architecture: name.to_owned(),
        layers,
        hidden,
        ffn: json.usize("intermediate_size")?,
        heads,
        kv_heads: json.opt_usize("num_key_value_heads")?.unwrap_or(heads),
        head_dim,
        vocab: json.usize("vocab_size")?,
        context: json.opt_usize("max_position_embeddings")?.unwrap_or(2048),
        norm_eps: json.opt_f32("rms_norm_eps")?.unwrap_or(1e-6),
        act: activation(json.file, "hidden_act", act)?,
        rope: rope(json, head_dim)?,
        windows: windows(family, json, layers)?,
        qkv_bias: family == Family::Qwen2 || attention_bias,
        out_bias: family != Family::Qwen2 && attention_bias,
        mlp_bias: json.opt_bool("mlp_bias")?.unwrap_or(false),
        tied: Some(json.opt_bool("tie_word_embeddings")?.unwrap_or(false)),
    })
}

/// Which layers slide: transformers 5 lists them by name, transformers 4 counts them.
fn windows(family: Family, json: &Json<'_>, layers: usize) -> Result<Vec<Option<usize>>, ModelError> {
    // The caller's check of the layer count has not run yet; do not let it size a table.
    let layers = layers.min(super::config::MAX_TABLE);
    let window = json.opt_usize("sliding_window")?;
    let slides = match family {
        Family::Llama => false,
        Family::Mistral => true,
        Family::Qwen2 => json.opt_bool("use_sliding_window")?.unwrap_or(false),
    };
    let Some(window) = window.filter(|_| slides) else { return Ok(vec![None; layers]) };
    if let Some(Value::Array(types)) = json.get("layer_types") {
        return Ok((0..layers)
            .map(|i| types.get(i).and_then(Value::as_str) == Some("sliding_attention"))
            .map(|slides| slides.then_some(window))
            .collect());
    }
    // 28 is what transformers takes where the key is missing.
    let first = if family == Family::Qwen2 { json.opt_usize("max_window_layers")?.unwrap_or(28) } else { 0 };
    Ok((0..layers).map(|i| (i >= first).then_some(window)).collect())
}

fn rope(json: &Json<'_>, head_dim: usize) -> Result<RopeConfig, ModelError> {
    let nested = ["rope_parameters", "rope_scaling"].into_iter().find_map(|key| Some((key, json.get(key)?)));
    let mut scaling = RopeScaling::None;
    let mut theta = json.opt_f32("rope_theta")?;
    if let Some((key, value)) = nested {
        let Value::Object(map) = value else {
            return Err(json.bad(key, value.to_string(), "an object"));
        };
        let prefix = if key == "rope_parameters" { "rope_parameters." } else { "rope_scaling." };
        let inner = Json { file: json.file, prefix, map };
        theta = inner.opt_f32("rope_theta")?.or(theta);
        let kind = match inner.opt_str("rope_type")? {
            Some(kind) => kind,
            None => inner.opt_str("type")?.unwrap_or("default"),
        };
        scaling = match kind {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear(inner.f32("factor")?),
            "llama3" => RopeScaling::Llama3 {
                factor: inner.f32("factor")?,
                low: inner.f32("low_freq_factor")?,
                high: inner.f32("high_freq_factor")?,
                original: inner.f32("original_max_position_embeddings")?,
            },
            other => return Err(inner.bad("rope_type", format!("`{other}`"), "default, linear or llama3")),
        };
    }
    let rotated = json.opt_f32("partial_rotary_factor")?.unwrap_or(1.0);
    let dims = (head_dim as f32 * rotated) as usize;
    Ok(RopeConfig { theta: theta.unwrap_or(10_000.0), dims, pairs: RopePairs::Halves, scaling })
}
