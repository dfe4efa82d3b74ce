//! Rotary embedding as families define it and files spell it.

use metallic_core::RopePairs;

use super::{Key, Meta, ModelError};

/// Which elements of a head are rotated, and how fast.
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

/// Where `config.json` keeps what is about the rotation; transformers 4 has some of it outside.
const OBJECT: &str = "rope_parameters.full_attention|rope_parameters|rope_scaling";
const THETA: Key = Key::new("rope.freq_base", "rope_theta");
const DIMS: Key = Key::new("rope.dimension_count", "rotary_dim");
const PARTIAL: Key = Key::new("", "partial_rotary_factor");
const TYPE: Key = Key::new("rope.scaling.type", "rope_type|type");
const FACTOR: Key = Key::new("rope.scaling.factor", "factor");
const OLD_FACTOR: Key = Key::new("rope.scale_linear", "");
const LOW: Key = Key::new("", "low_freq_factor");
const HIGH: Key = Key::new("", "high_freq_factor");
const ORIGINAL: Key = Key::new("rope.scaling.original_context_length", "original_max_position_embeddings");

impl RopeConfig {
    /// Reads the rotation of heads of `head_dim` elements; pairs lie in halves, as nearly everywhere.
    pub fn read(meta: &Meta<'_>, head_dim: usize) -> Result<RopeConfig, ModelError> {
        let inner = meta.within(OBJECT)?;
        let at = |key| if inner.has(key) { &inner } else { meta };
        let theta = at(THETA).get_or(THETA, 10_000.0)?;
        if !is_positive(theta) {
            return Err(at(THETA).bad(THETA, theta, "a positive number"));
        }
        let (key, dims) = match at(PARTIAL).opt::<f32>(PARTIAL)? {
            Some(part) => (PARTIAL, (head_dim as f32 * part) as usize),
            None => (DIMS, meta.get_or(DIMS, head_dim)?),
        };
        if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
            let needed = format!("an even number up to {head_dim}");
            return Err(at(key).bad(key, format!("{dims} elements"), needed));
        }
        Ok(RopeConfig { theta, dims, pairs: RopePairs::Halves, scaling: RopeScaling::read(&inner)? })
    }

    /// Radians a position turns each pair.
    pub fn frequencies(&self) -> Vec<f32> {
        let theta = f64::from(self.theta);
        let pairs = self.dims / 2;
        (0..pairs).map(|i| self.scaling.of(theta.powf(-(2.0 * i as f64) / self.dims as f64)) as f32).collect()
    }
}

fn is_positive(x: f32) -> bool {
    x.is_finite() && x > 0.0
}

impl RopeScaling {
    fn read(meta: &Meta<'_>) -> Result<RopeScaling, ModelError> {
        let positive = |key| {
            let found = meta.get(key)?;
            if is_positive(found) { Ok(found) } else { Err(meta.bad(key, found, "a positive number")) }
        };
        match meta.opt(TYPE)? {
            None if meta.has(OLD_FACTOR) => Ok(RopeScaling::Linear(positive(OLD_FACTOR)?)),
            None | Some("default" | "none") => Ok(RopeScaling::None),
            Some("linear") => Ok(RopeScaling::Linear(positive(FACTOR)?)),
            Some("llama3") => {
                let (low, high) = (positive(LOW)?, positive(HIGH)?);
                if high <= low {
                    return Err(meta.bad(HIGH, high, format!("more than the {low} of the low frequencies")));
                }
                Ok(RopeScaling::Llama3 {
                    factor: positive(FACTOR)?,
                    low,
                    high,
                    original: positive(ORIGINAL)?,
                })
            }
            Some(other) => Err(meta.bad(TYPE, format!("`{other}`"), "default, none, linear or llama3")),
        }
    }

    fn of(&self, freq: f64) -> f64 {
        match *self {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(mut config: Value) -> Result<RopeConfig, ModelError> {
        config["model_type"] = json!("toy");
        let map = config.as_object().unwrap();
        RopeConfig::read(&Meta::json("config.json", map).unwrap(), 32)
    }

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

    #[test]
    fn transformers_4_and_5_spell_the_same_rotation() {
        let four = json!({"rope_theta": 500.0, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2}});
        let five = json!({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5,
            "rope_type": "linear", "factor": 2.0}});
        let by_type =
            json!({"rope_parameters": {"full_attention": five["rope_parameters"], "sliding_attention": {}}});
        let found = read(four).unwrap();
        assert_eq!((found.theta, found.dims, &found.scaling), (500.0, 16, &RopeScaling::Linear(2.0)));
        assert_eq!(read(five).unwrap(), found);
        assert_eq!(read(by_type).unwrap(), found);
        assert_eq!(read(json!({"rope_scaling": null})).unwrap().dims, 32);
    }

    #[test]
    fn what_is_wrong_in_an_object_is_named_with_its_path() {
        let cases = [
            (json!({"rope_scaling": 7}), "rope_scaling is 7, it must be an object"),
            (json!({"rope_theta": 0}), "rope_theta is 0, it must be a positive number"),
            (json!({"rope_parameters": {"rope_type": "yarn"}}), "rope_parameters.rope_type is `yarn`"),
            (json!({"rope_scaling": {"type": "linear"}}), "rope_scaling.factor is nothing"),
            (
                json!({"rope_parameters": {"partial_rotary_factor": 1.5}}),
                "rope_parameters.partial_rotary_factor is 48",
            ),
            (
                json!({"rope_parameters": {"rope_type": "llama3", "low_freq_factor": 4, "high_freq_factor": 1}}),
                "rope_parameters.high_freq_factor is 1",
            ),
        ];
        for (config, part) in cases {
            let error = read(config).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
