//! Options that several commands share, checked while they are read.

use std::{ffi::OsStr, num::NonZeroUsize, ops::RangeInclusive, str::FromStr};

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use metallic::{
    AdapterOptions, Device, Options, Sampling,
    core::DType,
    device::{self, OpenOptions, Providers},
    model::Access,
};

use crate::{commands::speculation::SpeculationOptions, hub::DEFAULT_MODEL};

/// Which model, and where and how it runs.
#[derive(Debug, Args)]
pub(crate) struct ModelOptions {
    /// Alias, OWNER/REPO[:FILE|:QUANT], GGUF file or folder
    #[arg(short, long, default_value = DEFAULT_MODEL)]
    pub(crate) model: String,
    /// An adapter of the model, a folder of PEFT or a GGUF file, and how much of it is taken [default: 1]; may be given several
    /// times. `run` and `chat` compute it beside the model, everything else adds it to the matrices
    #[arg(long, value_name = "PATH[=SCALE]", value_parser = parse_adapter)]
    pub(crate) lora: Vec<AdapterOptions>,
    /// Add the adapters to the matrices while the model is loaded: faster, but quantised matrices become F16
    #[arg(long, requires = "lora")]
    pub(crate) merge_lora: bool,
    #[command(flatten)]
    pub(crate) device: DeviceOptions,
}

/// Reads `PATH` and `PATH=SCALE`.
pub(crate) fn parse_adapter(text: &str) -> Result<AdapterOptions, String> {
    let scaled = text.rsplit_once('=').and_then(|(path, scale)| Some((path, scale.parse::<f32>().ok()?)));
    match scaled {
        Some((path, scale)) if scale.is_finite() => Ok(AdapterOptions::new(path).scale(scale)),
        Some((_, scale)) => Err(format!("its scale is {scale}, it must be a number")),
        None => Ok(AdapterOptions::new(text)),
    }
}

/// Where a model runs.
#[derive(Debug, Args)]
pub(crate) struct DeviceOptions {
    /// What computes; `metal:1`, `cuda:1` and `metal:NAME` pick a GPU, `metallic devices` lists them
    #[arg(long, value_name = "DEVICE", value_parser = DeviceParser, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// Which kernels of a GPU serve an operation: `sdpa=flash|plain|mpsgraph|mpsgraph+project`, `matmul=library|tensor|tiles|rows|mps`; may be given several times
    #[arg(long, value_name = "OP=NAME", value_parser = parse_provider)]
    pub(crate) provider: Vec<String>,
    /// Threads of the CPU, up to 4 per core (16 on small machines) [default: one per core]
    #[arg(short, long, value_parser = parse_threads)]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Compute in 32 bits throughout on the CPU, which else rounds activations to 8 bits where weights are quantised:
    /// slower, larger, for comparisons
    #[arg(long)]
    pub(crate) exact: bool,
    /// Read the model's files into memory instead of mapping them: for files that may change while they are in use, and for disks
    /// on a network
    #[arg(long)]
    pub(crate) no_mmap: bool,
    /// Type of the cached keys and values
    #[arg(long, value_parser = one_of(&KV_TYPES), ignore_case = true, default_value = "f16")]
    pub(crate) kv_type: DType,
}

/// Reads any device, and knows the names that help and shells offer.
#[derive(Debug, Clone, Copy)]
struct DeviceParser;

impl TypedValueParser for DeviceParser {
    type Value = Device;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<Device, clap::Error> {
        TypedValueParser::parse_ref(&Device::from_str, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue>>> {
        let names = [
            ("auto", "The GPU of a Mac or of NVIDIA's, else the processor"),
            ("cpu", "The processor"),
            ("metal", "A GPU through Metal"),
            ("cuda", "A GPU of NVIDIA's, by the same kernels"),
            ("soft", "The Metal kernels on the processor: needs clang; for comparisons"),
            ("reference", "The naive interpreter: slow, for comparisons"),
            ("null", "Computes nothing: for measuring the host"),
        ];
        Some(Box::new(names.into_iter().map(|(name, help)| PossibleValue::new(name).help(help))))
    }
}

pub(crate) const KV_TYPES: [(&str, DType); 4] =
    [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::BF16), ("q8_0", DType::Q8_0)];

/// Reads a name of a table as what stands beside it.
pub(crate) fn one_of<T: Copy + Send + Sync + 'static>(
    table: &'static [(&'static str, T)],
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(table.iter().map(|(name, _)| *name)).try_map(|given| {
        let found = table.iter().find(|(name, _)| given.eq_ignore_ascii_case(name));
        found.map(|(_, value)| *value).ok_or("it is not in the list")
    })
}

impl DeviceOptions {
    /// How the model's files are read.
    pub(crate) fn read(&self) -> metallic::model::ModelOptions {
        metallic::model::ModelOptions::default().access(if self.no_mmap { Access::Read } else { Access::Map })
    }

    /// How the device is to be used.
    pub(crate) fn open(&self) -> anyhow::Result<OpenOptions> {
        let providers = Providers::new();
        for flag in &self.provider {
            providers.set_by_flag(flag)?;
        }
        // 0 threads: as many as the library likes.
        let threads = self.threads.map_or(0, NonZeroUsize::get);
        Ok(OpenOptions::default().threads(threads).exact(self.exact).providers(providers))
    }
}

/// How tokens are chosen; what is not given stays at the engine's default, which the help names.
#[derive(Debug, Args)]
pub(crate) struct SamplingOptions {
    /// 0 takes the best token each time; higher is more varied [default: 0.8]
    #[arg(long, value_name = "T", value_parser = within(0.0..=f32::MAX, "0 or more"), allow_negative_numbers = true)]
    pub(crate) temp: Option<f32>,
    /// Only the K best tokens; 0 for all [default: 40]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<usize>,
    /// Only the best tokens that together have this probability [default: 0.95]
    #[arg(long, value_name = "P", value_parser = within(f32::MIN_POSITIVE..=1.0, "above 0 and at most 1"), allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Only tokens at least this share as probable as the best [default: 0.05]
    #[arg(long, value_name = "P", value_parser = within(0.0..=1.0, "from 0 to 1"), allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Only the most typical tokens that together have this probability
    #[arg(long, value_name = "P", value_parser = within(f32::MIN_POSITIVE..=1.0, "above 0 and at most 1"), allow_negative_numbers = true)]
    pub(crate) typical: Option<f32>,
    /// Above 1 makes repetition less likely
    #[arg(long, value_name = "R", value_parser = within(f32::MIN_POSITIVE..=f32::MAX, "above 0"), allow_negative_numbers = true)]
    pub(crate) repeat_penalty: Option<f32>,
    /// Taken from the logit of each token that came before
    #[arg(long, value_name = "X", value_parser = within(f32::MIN..=f32::MAX, "a finite number"), allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Taken from a token's logit for each time it came before
    #[arg(long, value_name = "X", value_parser = within(f32::MIN..=f32::MAX, "a finite number"), allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Added to the logit of a token, `ID=BIAS`; may be given several times; `-inf` bans it
    #[arg(long, value_name = "ID=BIAS", value_parser = parse_bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Same seed, same answer [default: another one each time]
    #[arg(long, value_name = "S")]
    pub(crate) seed: Option<u64>,
}

impl SamplingOptions {
    pub(crate) fn sampling(&self) -> Sampling {
        let mut sampling = Sampling::default().seed(self.seed);
        for (given, value) in [
            (self.temp, &mut sampling.temperature),
            (self.typical, &mut sampling.typical),
            (self.top_p, &mut sampling.top_p),
            (self.min_p, &mut sampling.min_p),
            (self.repeat_penalty, &mut sampling.repetition_penalty),
            (self.presence_penalty, &mut sampling.presence_penalty),
            (self.frequency_penalty, &mut sampling.frequency_penalty),
        ] {
            *value = given.unwrap_or(*value);
        }
        sampling.top_k = self.top_k.unwrap_or(sampling.top_k);
        sampling.logit_bias.extend(self.logit_bias.iter().copied());
        sampling
    }
}

/// Everything that shapes an answer.
#[derive(Debug, Args)]
pub(crate) struct AnswerOptions {
    /// Most tokens of an answer [default: until the model ends it]
    #[arg(short = 'n', long, value_name = "MAX", value_parser = parse_count)]
    max_tokens: Option<NonZeroUsize>,
    /// Ends the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = parse_stop)]
    stop: Vec<String>,
    #[command(flatten)]
    sampling: SamplingOptions,
    /// Most tokens of prompt and answer together [default: what the model was made for]
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub(crate) ctx: Option<NonZeroUsize>,
    #[command(flatten)]
    pub(crate) speculation: SpeculationOptions,
}

impl AnswerOptions {
    pub(crate) fn options(&self) -> Options {
        Options::default()
            .max_tokens(self.max_tokens.map(NonZeroUsize::get))
            .sampling(self.sampling.sampling())
            .stop(self.stop.clone())
    }
}

/// A list of token ids, `1,2,3`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ids(pub(crate) Vec<u32>);

/// A list of positive counts, `128,512`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts(pub(crate) Vec<usize>);

impl FromStr for Ids {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A JSON list, as `tool tokenize` prints it, will do.
        let text = text.trim();
        let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        match inner.unwrap_or(text).trim() {
            "" => Err("it has no token ids; a list is written 1,2,3".to_owned()),
            ids => list(ids, "a token id").map(Self),
        }
    }
}

impl FromStr for Counts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let counts: Vec<usize> = list(text, "a number")?;
        if counts.contains(&0) { Err("a count is 1 or more".to_owned()) } else { Ok(Self(counts)) }
    }
}

fn list<T: FromStr>(text: &str, what: &str) -> Result<Vec<T>, String> {
    let items = text.split(',').map(|item| {
        let item = item.trim();
        item.parse().map_err(|_| format!("`{item}` is not {what}; a list is written 1,2,3"))
    });
    items.collect()
}

pub(crate) fn parse_count(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| format!("it must be a whole number from 1 to {}", usize::MAX))
}

fn parse_threads(text: &str) -> Result<NonZeroUsize, String> {
    let (cores, most) = (device::cores(), device::most_threads());
    let given = text.parse().ok().filter(|given: &NonZeroUsize| given.get() <= most);
    given.ok_or_else(|| {
        format!("it must be a whole number from 1 to {most}, as this machine has {}", cores_in_words(cores))
    })
}

fn cores_in_words(cores: usize) -> String {
    if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") }
}

fn number(text: &str) -> Result<f32, String> {
    text.parse().map_err(|_| format!("`{text}` is not a number"))
}

fn within(
    range: RangeInclusive<f32>,
    needed: &'static str,
) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync {
    move |text| match number(text)? {
        value if range.contains(&value) => Ok(value),
        _ => Err(format!("it must be {needed}")),
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let (id, bias) = text.split_once('=').ok_or("it is written ID=BIAS")?;
    let id = id.parse().map_err(|_| format!("`{id}` is not a token id"))?;
    let bias = number(bias)?;
    if bias.is_nan() { Err("a bias is a number or -inf".to_owned()) } else { Ok((id, bias)) }
}

fn parse_provider(text: &str) -> Result<String, String> {
    Providers::check_flag(text).map(|()| text.to_owned()).map_err(|error| error.to_string())
}

fn parse_stop(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("a stop text is not empty".to_owned()) } else { Ok(text.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct All {
        #[command(flatten)]
        model: ModelOptions,
        #[command(flatten)]
        answer: AnswerOptions,
        #[arg(long)]
        tokens: Option<Ids>,
        #[arg(short)]
        prompt: Option<Counts>,
    }

    fn parse(line: &str) -> Result<All, clap::Error> {
        All::try_parse_from(format!("metallic {line}").split_whitespace())
    }

    #[test]
    fn good_values_are_taken() {
        let all = parse(
            "-m x -t 4 --no-mmap --device cpu --provider sdpa=plain --kv-type q8_0 --temp 0 --top-p 0.9 --logit-bias 5=-inf --logit-bias 6=1.5 \
             --presence-penalty -0.5 -n 24 --tokens 1,2,3 -p 128,512 --seed 7",
        )
        .unwrap();
        assert_eq!((&all.model.device.device, all.model.device.kv_type), (&Device::Cpu, DType::Q8_0));
        assert_eq!(all.model.device.provider, ["sdpa=plain"]);
        assert_eq!(all.model.device.read().access, Access::Read);
        assert_eq!(parse("").unwrap().model.device.read().access, Access::Map);
        assert_eq!(
            parse("--device metal:1").unwrap().model.device.device,
            Device::Metal(Some("1".to_owned()))
        );
        assert_eq!(parse("--device Soft").unwrap().model.device.device, Device::Soft);
        assert_eq!(all.answer.sampling.temp, Some(0.0));
        assert_eq!(all.answer.sampling.presence_penalty, Some(-0.5));
        assert_eq!(all.answer.sampling.logit_bias, [(5, f32::NEG_INFINITY), (6, 1.5)]);
        assert_eq!(all.tokens, Some(Ids(vec![1, 2, 3])));
        assert_eq!(all.prompt, Some(Counts(vec![128, 512])));
        assert_eq!(parse("--tokens [1,2,3]").unwrap().tokens, Some(Ids(vec![1, 2, 3])));
        assert_eq!(parse("--kv-type Q8_0").unwrap().model.device.kv_type, DType::Q8_0);
        assert_eq!(parse("").unwrap().model.model, DEFAULT_MODEL);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        for (line, option) in [
            ("--temp -1", "--temp"),
            ("--temp nan", "--temp"),
            ("--temp inf", "--temp"),
            ("--top-p 0", "--top-p"),
            ("--top-p 1.1", "--top-p"),
            ("--min-p -0.1", "--min-p"),
            ("--repeat-penalty 0", "--repeat-penalty"),
            ("-n 0", "--max-tokens"),
            ("-t 0", "--threads"),
            ("--stop=", "--stop"),
            ("--logit-bias 5", "--logit-bias"),
            ("--tokens 1,,2", "--tokens"),
            ("--tokens []", "--tokens"),
            ("--tokens 1,-2", "--tokens"),
            ("-p 128,0", "-p"),
            ("--device toaster", "--device"),
            ("--device metal:", "--device"),
            ("--provider sdpa", "--provider"),
            ("--provider sdpa=slow", "--provider"),
            ("--provider spda=plain", "--provider"),
            ("--kv-type q4_0", "--kv-type"),
        ] {
            let message = parse(line).unwrap_err().to_string();
            let first = message.lines().next().unwrap_or_default();
            assert!(first.contains(option) && first.contains("invalid value"), "{line}: {message}");
        }
    }

    #[test]
    fn a_count_that_is_none_is_told_what_it_must_be() {
        for line in ["-n x", "-n 1.5", "-n 0", "-n 99999999999999999999", "--ctx 0"] {
            let message = parse(line).unwrap_err().to_string();
            assert!(
                message.contains("it must be a whole number from 1 to 18446744073709551615"),
                "{message}"
            );
        }
    }

    #[test]
    fn threads_are_held_to_what_the_machine_has() {
        let (cores, most) = (device::cores(), device::most_threads());
        assert!(parse(&format!("-t {most}")).is_ok());
        for count in ["0".to_owned(), "x".to_owned(), "100000".to_owned(), (most + 1).to_string()] {
            let message = parse(&format!("-t {count}")).unwrap_err().to_string();
            let needed = format!("from 1 to {most}, as this machine has {cores} core");
            assert!(message.contains(&needed) && message.contains("--threads"), "{message}");
        }
    }
}
