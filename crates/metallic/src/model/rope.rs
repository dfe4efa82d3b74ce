//! Rotary embedding as families define it and files spell it.

use metallic_core::RopePairs;

use super::{Key, Meta, ModelError, Naming};

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
    /// The longest sequence it serves, where that is less than the model's.
    pub limit: Option<usize>,
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
    /// YaRN: pairs that turn often in the original context stay, those that hardly turn are divided, those between are blended.
    Yarn {
        /// Divisor of the low frequencies.
        factor: f32,
        /// The pairs between which is blended.
        ramp: [f32; 2],
        /// Factor on sine and cosine.
        magnitude: f32,
    },
    /// Each pair divided by a factor of its own.
    Long {
        /// One for each pair; none where they are tensors of the file.
        factors: Vec<f32>,
        /// Factor on sine and cosine.
        magnitude: f32,
        /// They are those for contexts longer than the original one.
        long: bool,
    },
}

/// Where `config.json` keeps what is about the rotation; transformers 4 has some of it outside.
const OBJECT: &str = "rope_parameters.full_attention|rope_parameters|rope_scaling";
const LOCAL_OBJECT: &str = "rope_parameters.sliding_attention";
const THETA: Key = Key::new("rope.freq_base", "rope_theta");
const LOCAL_THETA: Key = Key::new("rope.freq_base_swa", "rope_local_base_freq");
const DIMS: Key = Key::new("rope.dimension_count", "rotary_dim");
const PARTIAL: Key = Key::new("", "partial_rotary_factor");
const TYPE: Key = Key::new("rope.scaling.type", "rope_type|type");
const FACTOR: Key = Key::new("rope.scaling.factor", "factor");
const OLD_FACTOR: Key = Key::new("rope.scale_linear", "");
const LOW: Key = Key::new("", "low_freq_factor");
const HIGH: Key = Key::new("", "high_freq_factor");
const ORIGINAL: Key = Key::new("rope.scaling.original_context_length", "original_max_position_embeddings");
const CONTEXT: Key = Key::new("context_length", "max_position_embeddings");
const FAST: Key = Key::new("rope.scaling.yarn_beta_fast", "beta_fast");
const SLOW: Key = Key::new("rope.scaling.yarn_beta_slow", "beta_slow");
const TRUNCATE: Key = Key::new("", "truncate");
const MAGNITUDE: Key = Key::new("rope.scaling.attn_factor", "attention_factor");
const MSCALE: Key = Key::new("", "mscale");
const MSCALE_ALL: Key = Key::new("", "mscale_all_dim");
const LOG_MULTIPLIER: Key = Key::new("rope.scaling.yarn_log_multiplier", "");
const SHORT: Key = Key::new("", "short_factor");
const LONG: Key = Key::new("", "long_factor");

impl RopeConfig {
    /// Whether it is stretched by factors for contexts longer than the original one.
    pub(crate) fn is_long(&self) -> bool {
        matches!(self.scaling, RopeScaling::Long { long: true, .. })
    }

    /// Whether its factors are tensors of the file, without which the rotation would be another one.
    pub(crate) fn needs_factors(&self) -> bool {
        matches!(&self.scaling, RopeScaling::Long { factors, .. } if factors.is_empty())
    }

    /// Reads the rotation of heads of `head_dim` elements; pairs lie in halves, as nearly everywhere.
    pub fn read(meta: &Meta<'_>, head_dim: usize) -> Result<RopeConfig, ModelError> {
        let inner = meta.within(OBJECT)?;
        let at = |key| if inner.has(key) { &inner } else { meta };
        let theta = positive_or(at(THETA), THETA, 10_000.0)?;
        let (key, dims) = match at(PARTIAL).opt::<f32>(PARTIAL)? {
            Some(part) => (PARTIAL, (head_dim as f32 * part) as usize),
            None => (DIMS, meta.get_or(DIMS, head_dim)?),
        };
        if dims == 0 || !dims.is_multiple_of(2) || dims > head_dim {
            let needed = format!("an even number up to {head_dim}");
            return Err(at(key).bad(key, format!("{dims} elements"), needed));
        }
        let said = at(ORIGINAL).opt::<usize>(ORIGINAL)?;
        let context = meta.get_or(CONTEXT, said.unwrap_or(2048))? as f32;
        let original = said.map_or(context, |original| original as f32);
        let (scaling, limit) = RopeScaling::read(&inner, Turns { theta, dims, original, context })?;
        Ok(RopeConfig { theta, dims, pairs: RopePairs::Halves, scaling, limit })
    }

    /// Reads the rotation of layers with a window, where it is another than [`RopeConfig::read`]'s: never stretched.
    pub fn read_local(meta: &Meta<'_>, head_dim: usize) -> Result<RopeConfig, ModelError> {
        let inner = meta.within(LOCAL_OBJECT)?;
        let nested = meta.naming() == Naming::HuggingFace && inner.has(THETA);
        let (at, key) = if nested { (&inner, THETA) } else { (meta, LOCAL_THETA) };
        let theta = positive_or(at, key, 10_000.0)?;
        Ok(RopeConfig { theta, scaling: RopeScaling::None, limit: None, ..RopeConfig::read(meta, head_dim)? })
    }

    /// Factor on sine and cosine.
    pub fn magnitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::None | RopeScaling::Linear(_) | RopeScaling::Llama3 { .. } => 1.0,
            RopeScaling::Yarn { magnitude, .. } | RopeScaling::Long { magnitude, .. } => magnitude,
        }
    }

    /// Radians a position turns each pair.
    pub fn frequencies(&self) -> Vec<f32> {
        let theta = f64::from(self.theta);
        let pairs = self.dims / 2;
        let plain = |i: usize| theta.powf(-(2.0 * i as f64) / self.dims as f64);
        (0..pairs).map(|i| self.scaling.of(i, plain(i)) as f32).collect()
    }
}

/// What stretching is reckoned from.
#[derive(Clone, Copy)]
struct Turns {
    theta: f32,
    dims: usize,
    original: f32,
    context: f32,
}

impl Turns {
    /// The pair that turns so often in the original context.
    fn pair(self, turns: f32) -> f32 {
        let wavelength = f64::from(self.original) / (f64::from(turns) * std::f64::consts::TAU);
        (self.dims as f64 * wavelength.ln() / (2.0 * f64::from(self.theta).ln())) as f32
    }
}

fn positive_or(meta: &Meta<'_>, key: Key, default: f32) -> Result<f32, ModelError> {
    let found = meta.get_or(key, default)?;
    if found.is_finite() && found > 0.0 { Ok(found) } else { Err(meta.bad(key, found, "a positive number")) }
}

/// What models that are told so multiply `q · k` by beside YaRN.
pub(super) fn yarn_sharpening(meta: &Meta<'_>) -> Result<f32, ModelError> {
    let inner = meta.within(OBJECT)?;
    let factor = inner.get_or(FACTOR, 1.0)?;
    // GGUF files have a tenth of it.
    let by = match meta.naming() {
        Naming::HuggingFace => inner.get_or(MSCALE_ALL, 0.0)?,
        Naming::Gguf => 10.0 * meta.get_or::<f32>(LOG_MULTIPLIER, 0.0)?,
    };
    Ok(yarn_magnitude(factor, by).powi(2))
}

/// What YaRN multiplies attention by, for contexts of so many times the original.
pub(crate) fn yarn_magnitude(factor: f32, by: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 }
}

impl RopeScaling {
    /// Reads it, and the longest sequence it serves where that is less than the model's.
    fn read(meta: &Meta<'_>, turns: Turns) -> Result<(RopeScaling, Option<usize>), ModelError> {
        let positive = |key| {
            let found = meta.get(key)?;
            positive_or(meta, key, found)
        };
        let scaling = match meta.opt(TYPE)? {
            None if meta.has(OLD_FACTOR) => RopeScaling::Linear(positive(OLD_FACTOR)?),
            // The usual GGUF files of Phi-3 and Phi-4 do not name the kind: they have its magnitude and its factors.
            None if meta.naming() == Naming::Gguf && meta.has(MAGNITUDE) => {
                return RopeScaling::long(meta, turns);
            }
            // What is dynamic begins past the model's context.
            None | Some("default" | "none" | "dynamic") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear(positive(FACTOR)?),
            Some("llama3") => {
                let (low, high) = (positive(LOW)?, positive(HIGH)?);
                if high <= low {
                    return Err(meta.bad(HIGH, high, format!("more than the {low} of the low frequencies")));
                }
                let (factor, original) = (positive(FACTOR)?, positive(ORIGINAL)?);
                RopeScaling::Llama3 { factor, low, high, original }
            }
            Some("yarn") => RopeScaling::yarn(meta, turns)?,
            Some("longrope" | "su") => return RopeScaling::long(meta, turns),
            Some(other) => {
                let needed = "default, none, linear, dynamic, llama3, yarn or longrope";
                return Err(meta.bad(TYPE, format!("`{other}`"), needed));
            }
        };
        Ok((scaling, None))
    }

    fn yarn(meta: &Meta<'_>, turns: Turns) -> Result<RopeScaling, ModelError> {
        let factor = positive_or(meta, FACTOR, turns.context / turns.original)?;
        let (fast, slow) = (positive_or(meta, FAST, 32.0)?, positive_or(meta, SLOW, 1.0)?);
        let (mut low, mut high) = (turns.pair(fast), turns.pair(slow));
        if meta.get_or(TRUNCATE, true)? {
            (low, high) = (low.floor(), high.ceil());
        }
        let ramp = [low.max(0.0), high.min(turns.dims as f32 - 1.0)];
        let mscales = (meta.opt::<f32>(MSCALE)?, meta.opt::<f32>(MSCALE_ALL)?);
        let magnitude = match (meta.opt(MAGNITUDE)?, meta.naming(), mscales) {
            (Some(said), Naming::HuggingFace, _) => said,
            // Models that sharpen attention instead have no factor here.
            (_, Naming::Gguf, _) if meta.has(LOG_MULTIPLIER) => 1.0,
            // GGUF's factor is on top.
            (Some(more), Naming::Gguf, _) => more * yarn_magnitude(factor, 1.0),
            (None, _, (Some(one), Some(all))) if one != 0.0 && all != 0.0 => {
                yarn_magnitude(factor, one) / yarn_magnitude(factor, all)
            }
            (None, _, _) => yarn_magnitude(factor, 1.0),
        };
        Ok(RopeScaling::Yarn { factor, ramp, magnitude })
    }

    /// The factors for contexts up to the original one, or for longer ones where such a context is asked for: what is in the cache
    /// cannot change from one to the other.
    fn long(meta: &Meta<'_>, turns: Turns) -> Result<(RopeScaling, Option<usize>), ModelError> {
        let long = meta.context().is_some_and(|context| context > turns.original as usize);
        let key = if long { LONG } else { SHORT };
        let factors: Vec<f32> = match meta.naming() {
            Naming::HuggingFace => meta.get(key)?,
            // They are tensors of the file.
            Naming::Gguf => Vec::new(),
        };
        let known = meta.naming() == Naming::HuggingFace;
        if known && (factors.len() != turns.dims / 2 || !factors.iter().all(|f| f.is_finite() && *f > 0.0)) {
            let needed = format!("{} positive numbers", turns.dims / 2);
            return Err(meta.bad(key, format!("{} numbers", factors.len()), needed));
        }
        let factor = turns.context / turns.original;
        let unsaid = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / turns.original.ln()).sqrt() };
        let magnitude = positive_or(meta, MAGNITUDE, unsaid)?;
        let limit = (factor > 1.0 && !long).then_some(turns.original as usize);
        Ok((RopeScaling::Long { factors, magnitude, long }, limit))
    }

    /// The frequency of a pair that would be `freq` without.
    fn of(&self, pair: usize, freq: f64) -> f64 {
        match self {
            RopeScaling::None => freq,
            RopeScaling::Linear(factor) => freq / f64::from(*factor),
            RopeScaling::Llama3 { factor, low, high, original } => {
                let [factor, low, high, original] = [factor, low, high, original].map(|x| f64::from(*x));
                let turns = original * freq / std::f64::consts::TAU;
                let blend = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                freq * blend + freq / factor * (1.0 - blend)
            }
            RopeScaling::Yarn { factor, ramp: [low, high], .. } => {
                let (low, high) = (f64::from(*low), f64::from(*high));
                let width = if high == low { 0.001 } else { high - low };
                let divided = ((pair as f64 - low) / width).clamp(0.0, 1.0);
                freq / f64::from(*factor) * divided + freq * (1.0 - divided)
            }
            RopeScaling::Long { factors, .. } => freq / f64::from(factors.get(pair).copied().unwrap_or(1.0)),
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
        let plain = RopeConfig {
            theta: 500.0,
            dims: 32,
            pairs: RopePairs::Halves,
            scaling: RopeScaling::None,
            limit: None,
        };
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
            (json!({"rope_parameters": {"rope_type": "spun"}}), "rope_parameters.rope_type is `spun`"),
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
