//! What a decoder model is, in numbers, whatever file they were read from.

use metallic_core::{RopePairs, Unary};

use super::ModelError;

/// The hyper-parameters of a decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The family's name as the file gives it: `llama`, `mistral`, `qwen2`.
    pub architecture: String,
    /// Transformer layers.
    pub layers: usize,
    /// Length of the residual stream.
    pub hidden: usize,
    /// Length of the feed-forward's inner rows.
    pub ffn: usize,
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
    /// Epsilon of the norms.
    pub norm_eps: f32,
    /// The feed-forward's gate.
    pub act: Unary,
    /// Position embedding.
    pub rope: RopeConfig,
    /// How far back each layer may look; `None`: as far as there is.
    pub windows: Vec<Option<usize>>,
    /// Biases of the query, key and value projections.
    pub qkv_bias: bool,
    /// Bias of the attention's output projection.
    pub out_bias: bool,
    /// Biases of the feed-forward.
    pub mlp_bias: bool,
    /// Whether the output matrix is the embedding table; `None`: where the file has no matrix of its own.
    pub tied: Option<bool>,
}

/// Rotary embedding as a family defines it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of frequencies.
    pub theta: f32,
    /// Elements of a head that are rotated.
    pub dims: usize,
    /// How pairs lie in this file's rows.
    pub pairs: RopePairs,
    /// Stretching of the frequencies for longer contexts.
    pub scaling: RopeScaling,
}

/// How frequencies are stretched.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by a factor.
    Linear(f32),
    /// Llama 3: high frequencies stay, low ones are divided, those between are blended.
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Wavelengths above `original / low` are divided.
        low: f32,
        /// Wavelengths below `original / high` stay.
        high: f32,
        /// The context the model was first trained with.
        original: f32,
    },
}

impl RopeConfig {
    /// Radians a position turns each pair.
    pub fn frequencies(&self) -> Vec<f32> {
        let theta = f64::from(self.theta);
        let pairs = self.dims / 2;
        (0..pairs).map(|i| self.scaled(theta.powf(-(2.0 * i as f64) / self.dims as f64)) as f32).collect()
    }

    fn scaled(&self, freq: f64) -> f64 {
        match self.scaling {
            RopeScaling::None => freq,
            RopeScaling::Linear(factor) => freq / f64::from(factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                let (low, high, original) = (f64::from(low), f64::from(high), f64::from(original));
                let turns = original * freq / std::f64::consts::TAU;
                let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                freq * blend + freq / f64::from(factor) * (1.0 - blend)
            }
        }
    }
}

/// Sizes beyond which a file is lying or cannot run anywhere.
const MAX_LAYERS: usize = MAX_TABLE;
/// The most layers anything is tabled for.
pub(super) const MAX_TABLE: usize = 4096;
const MAX_HEADS: usize = 65_536;
const MAX_HEAD_DIM: usize = 8192;
const MAX_WIDTH: usize = 1 << 24;

impl Config {
    /// Refuses numbers no model can have; `file` is named in the refusal.
    pub fn validate(&self, file: &str) -> Result<(), ModelError> {
        let bad = |key: &str, found: String, needed: &str| {
            Err(ModelError::Config {
                file: file.to_owned(),
                key: key.to_owned(),
                found,
                needed: needed.to_owned(),
            })
        };
        let counts = [
            ("layer count", self.layers, MAX_LAYERS),
            ("hidden size", self.hidden, MAX_WIDTH),
            ("feed-forward size", self.ffn, MAX_WIDTH),
            ("head count", self.heads, MAX_HEADS),
            ("kv head count", self.kv_heads, MAX_HEADS),
            ("head size", self.head_dim, MAX_HEAD_DIM),
            ("vocabulary size", self.vocab, MAX_WIDTH),
            ("context length", self.context, u32::MAX as usize),
        ];
        for (key, found, most) in counts {
            if found == 0 || found > most {
                return bad(key, found.to_string(), &format!("1 to {most}"));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return bad(
                "kv head count",
                self.kv_heads.to_string(),
                &format!("a divisor of the {} heads", self.heads),
            );
        }
        if !(self.norm_eps.is_finite() && self.norm_eps >= 0.0) {
            return bad("norm epsilon", self.norm_eps.to_string(), "a small positive number");
        }
        let rope = &self.rope;
        if !(rope.theta.is_finite() && rope.theta > 0.0) {
            return bad("rope theta", rope.theta.to_string(), "a positive number");
        }
        if rope.dims == 0 || !rope.dims.is_multiple_of(2) || rope.dims > self.head_dim {
            return bad(
                "rope dimensions",
                rope.dims.to_string(),
                &format!("an even number up to {}", self.head_dim),
            );
        }
        let scaling_ok = match rope.scaling {
            RopeScaling::None => true,
            RopeScaling::Linear(factor) => factor.is_finite() && factor > 0.0,
            RopeScaling::Llama3 { factor, low, high, original } => {
                [factor, low, high, original].iter().all(|x| x.is_finite() && *x > 0.0) && high > low
            }
        };
        if !scaling_ok {
            return bad("rope scaling", format!("{:?}", rope.scaling), "positive factors, high above low");
        }
        if self.windows.contains(&Some(0)) {
            return bad("sliding window", "0".to_owned(), "at least 1");
        }
        Ok(())
    }
}

/// The activation a config names.
pub(super) fn activation(file: &str, key: &str, name: &str) -> Result<Unary, ModelError> {
    match name {
        "silu" | "swish" => Ok(Unary::Silu),
        "gelu" => Ok(Unary::Gelu),
        "gelu_pytorch_tanh" | "gelu_new" | "gelu_tanh" => Ok(Unary::GeluTanh),
        "relu" => Ok(Unary::Relu),
        other => Err(ModelError::Config {
            file: file.to_owned(),
            key: key.to_owned(),
            found: format!("`{other}`"),
            needed: "silu, gelu, gelu_pytorch_tanh or relu".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_scaling_keeps_high_and_divides_low_frequencies() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 32.0 };
        let plain =
            RopeConfig { theta: 500.0, dims: 32, pairs: RopePairs::Halves, scaling: RopeScaling::None };
        let scaled = RopeConfig { scaling, ..plain.clone() };
        let (plain, scaled) = (plain.frequencies(), scaled.frequencies());
        assert_eq!(plain[0], scaled[0]);
        let last = plain.len() - 1;
        assert!((plain[last] / scaled[last] - 8.0).abs() < 1e-4);
        assert!(plain.iter().zip(&scaled).any(|(p, s)| p / s > 1.01 && p / s < 7.9), "some are blended");
    }
}
