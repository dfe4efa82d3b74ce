//! Fields that several endpoints have in common.

use std::collections::BTreeMap;

use metallic::{AdapterShare, Options};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, as_integer, as_list, as_number, as_string, child};
use crate::options::ServerOptions;
use crate::task::Usage;

/// Most stop texts of a request, and most characters of each.
pub(crate) const STOPS: usize = 16;
pub(crate) const STOP_CHARACTERS: usize = 4096;
/// Most entries of `logit_bias`.
pub(crate) const BIASES: usize = 1024;
/// Most tokens that may be asked for; more than any context.
pub(crate) const MOST_TOKENS: usize = 1 << 31;

/// The highest priority, and the lowest.
pub(crate) const PRIORITY: i64 = 100;

/// How much a model may be asked to think.
pub(crate) const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// How long what is before a mark for the cache is to be kept at least: a hint.
pub(crate) const BREAKPOINT_LIVES: &[&str] = &["30m", "12h"];

/// What the API calls the version of a server.
pub(crate) const FINGERPRINT: &str = concat!("metallic-", env!("CARGO_PKG_VERSION"));

/// The one tier of service there is.
pub(crate) const TIER: &str = "default";

/// Reads how tokens are chosen and where an answer ends. `max_tokens` is read by the endpoint: each calls it otherwise.
pub(crate) fn read_options(fields: &mut Fields, server: &ServerOptions) -> Result<Options, ApiError> {
    let mut sampling = server.sampling.clone();
    // Penalties look at all of the text so far.
    sampling.penalty_window = usize::MAX;
    let mut number = |name: &str, low: f64, high: f64, place: &mut f32| -> Result<(), ApiError> {
        if let Some(found) = fields.number(name, low..=high)? {
            *place = found as f32;
        }
        Ok(())
    };
    number("temperature", 0.0, 2.0, &mut sampling.temperature)?;
    number("top_p", 0.0, 1.0, &mut sampling.top_p)?;
    number("min_p", 0.0, 1.0, &mut sampling.min_p)?;
    number("typical_p", 0.0, 1.0, &mut sampling.typical)?;
    number("presence_penalty", -2.0, 2.0, &mut sampling.presence_penalty)?;
    number("frequency_penalty", -2.0, 2.0, &mut sampling.frequency_penalty)?;
    number("repetition_penalty", 0.01, 100.0, &mut sampling.repetition_penalty)?;
    // Of nothing the best token is left.
    sampling.top_p = sampling.top_p.max(f32::MIN_POSITIVE);
    sampling.typical = sampling.typical.max(f32::MIN_POSITIVE);
    // Without a limit: 0 here, -1 elsewhere.
    if let Some(k) = fields.integer("top_k", -1..=MOST_TOKENS as i64)? {
        sampling.top_k = usize::try_from(k).unwrap_or(0);
    }
    // A seed is a pattern of bits: negative ones are as good.
    sampling.seed = fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64);
    if let Some(bias) = fields.object("logit_bias")? {
        sampling.logit_bias = read_bias(bias)?;
    }
    let priority = fields.integer("priority", -PRIORITY..=PRIORITY)?.unwrap_or(0);
    let ignore_eos = fields.bool("ignore_eos")?.unwrap_or(false);
    let stop = read_stop(fields, "stop")?;
    let adapters = read_adapters(fields)?;
    let options = Options::default().sampling(sampling).stop(stop).ignore_eos(ignore_eos).adapters(adapters);
    Ok(options.priority(priority as i32))
}

fn read_bias(fields: Fields) -> Result<BTreeMap<u32, f32>, ApiError> {
    let pointer = "/logit_bias";
    let entries = fields.rest();
    if entries.len() > BIASES {
        let message = format!("`{pointer}` has {} entries, at most {BIASES} are allowed", entries.len());
        return Err(ApiError::invalid(pointer, message));
    }
    let mut biases = BTreeMap::new();
    for (id, bias) in entries {
        let at = child(pointer, &id);
        let is_plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_digit());
        let Some(token) = id.parse().ok().filter(|_| is_plain) else {
            return Err(ApiError::invalid(&at, format!("`{id:.40}` is not the id of a token")));
        };
        biases.insert(token, as_number(&bias, &at, -100.0..=100.0)? as f32);
    }
    Ok(biases)
}

/// Texts that end an answer: one, or a list.
pub(crate) fn read_stop(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    let pointer = fields.pointer(name);
    let read = |(at, stop): (String, Value)| {
        let stop = as_string(stop, &at)?;
        if stop.is_empty() || stop.chars().count() > STOP_CHARACTERS {
            let message = format!("`{at}` must have between 1 and {STOP_CHARACTERS} characters");
            return Err(ApiError::invalid(at, message));
        }
        Ok(stop)
    };
    match fields.take(name) {
        None => Ok(Vec::new()),
        Some(list @ Value::Array(_)) => {
            let stops = as_list(list, &pointer)?;
            if stops.len() > STOPS {
                let message = format!("`{pointer}` has {} texts, at most {STOPS} are allowed", stops.len());
                return Err(ApiError::invalid(pointer, message));
            }
            stops.map(read).collect()
        }
        Some(one) => Ok(vec![read((pointer, one))?]),
    }
}

/// `adapters`: how much of each is taken, by name.
fn read_adapters(fields: &mut Fields) -> Result<Option<Vec<AdapterShare>>, ApiError> {
    let Some(adapters) = fields.object("adapters")? else { return Ok(None) };
    let shares = adapters.rest().into_iter().map(|(name, scale)| {
        let at = child("/adapters", &name);
        Ok(AdapterShare::new(name, as_number(&scale, &at, -100.0..=100.0)? as f32))
    });
    shares.collect::<Result<_, ApiError>>().map(Some)
}

/// Most tokens of an answer: what was asked for, held against the server's limit.
pub(crate) fn limit_tokens(
    asked: Option<usize>,
    pointer: &str,
    server: &ServerOptions,
) -> Result<Option<usize>, ApiError> {
    match (asked, server.limits.max_tokens) {
        (Some(asked), Some(limit)) if asked > limit => {
            let message = format!("`{pointer}` is {asked}, this server gives at most {limit}");
            Err(ApiError::invalid(pointer, message))
        }
        (asked, limit) => Ok(asked.or(limit)),
    }
}

/// Fields that say who asks, for whom, and how it is to be filed: nothing that an answer could depend on.
pub(crate) fn read_formalities(fields: &mut Fields) -> Result<(), ApiError> {
    for name in ["user", "safety_identifier", "prompt_cache_key"] {
        fields.string(name)?;
    }
    if let Some(metadata) = fields.object("metadata")? {
        let pointer = fields.pointer("metadata");
        for (name, value) in metadata.rest() {
            as_string(value, &child(&pointer, &name))?;
        }
    }
    fields.one_of("service_tier", &["auto", "default"])?;
    fields.refuse("store", &[json!(false)], "nothing is kept here")
}

/// Fields of OpenAI's conversations and responses that this server has no answer to.
pub(crate) fn refuse_what_is_elsewhere(fields: &mut Fields) -> Result<(), ApiError> {
    fields.refuse("moderation", &[], "this server judges no texts")?;
    fields.refuse("prompt_cache_retention", &[json!("in_memory")], "the cache lives in memory")?;
    let holds = [json!({}), json!({"mode": "implicit"})];
    fields.refuse(
        "prompt_cache_options",
        &holds,
        "prompts that begin alike are computed once, as long as there is room",
    )
}

/// A mark up to which a prompt is to be cached: all of it is, whether asked for or not.
pub(crate) fn read_breakpoint(part: &mut Fields) -> Result<(), ApiError> {
    if let Some(mut mark) = part.object("prompt_cache_breakpoint")? {
        mark.one_of("mode", &["explicit"])?.ok_or_else(|| mark.missing("mode"))?;
        mark.one_of("ttl", BREAKPOINT_LIVES)?;
        mark.finish()?;
    }
    Ok(())
}

/// Whether the answer is streamed, and whether the stream ends with its cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Streaming {
    pub(crate) on: bool,
    pub(crate) usage: bool,
    /// Whether each chunk has what its answer has cost so far.
    pub(crate) running_usage: bool,
}

pub(crate) fn read_streaming(fields: &mut Fields) -> Result<Streaming, ApiError> {
    let on = fields.bool("stream")?.unwrap_or(false);
    let Some(mut options) = fields.object("stream_options")? else {
        return Ok(Streaming { on, ..Streaming::default() });
    };
    let usage = options.bool("include_usage")?.unwrap_or(false);
    let running_usage = options.bool("continuous_usage_stats")?.unwrap_or(false);
    options.refuse("include_obfuscation", &[json!(false)], "streams are as long as their text")?;
    options.finish()?;
    if !on {
        let message = "`/stream_options` is for streams: set `stream` to true, or leave it out";
        return Err(ApiError::invalid("/stream_options", message));
    }
    if running_usage && !usage {
        let message = "`/stream_options/continuous_usage_stats` needs `include_usage` to be true";
        return Err(ApiError::invalid("/stream_options/continuous_usage_stats", message));
    }
    Ok(Streaming { on, usage, running_usage })
}

/// A list of token ids.
pub(crate) fn as_tokens(value: Value, pointer: &str) -> Result<Vec<u32>, ApiError> {
    let ids = as_list(value, pointer)?;
    ids.map(|(at, id)| as_integer(&id, &at, 0..=i64::from(u32::MAX)).map(|id| id as u32)).collect()
}

/// What a request has cost, in the words of the OpenAI API.
pub(crate) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.generated,
        "total_tokens": usage.prompt + usage.generated,
        "prompt_tokens_details": {"cached_tokens": usage.cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    })
}
