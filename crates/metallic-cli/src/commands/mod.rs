//! The commands: each file holds its arguments and what it does with them.

pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod devices;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod imatrix;
pub(crate) mod inspect;
pub(crate) mod list;
pub(crate) mod options;
pub(crate) mod pull;
pub(crate) mod quantize;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod serve;
mod speculation;
pub(crate) mod structure;
pub(crate) mod templating;
pub(crate) mod tool;
pub(crate) mod top;
pub(crate) mod tune;

use clap::{Parser, Subcommand};

/// Runs language models on your own machine.
#[derive(Debug, Parser)]
#[command(name = "metallic", version, propagate_version = true, after_help = EXAMPLES)]
pub(crate) struct Cli {
    /// No notes and no progress on stderr; errors still show
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer one prompt
    Run(run::RunArgs),
    /// Talk with a model
    Chat(chat::ChatArgs),
    /// Serve models to clients of the OpenAI API
    Serve(serve::ServeArgs),
    /// Measure the speed of a model
    Bench(bench::BenchArgs),
    /// Show what a running metallic does, or a recorded run
    Top(top::TopArgs),
    /// Measure what makes a model fastest on this GPU, and keep it
    Tune(tune::TuneArgs),
    /// List what can compute on this machine
    Devices(devices::DevicesArgs),
    /// Find out what is wrong with this machine, and what to do about it
    Doctor(doctor::DoctorArgs),
    /// Show what is in a model file
    Inspect(inspect::InspectArgs),
    /// Make a model smaller: a GGUF file with its weights in another type
    Quantize(quantize::QuantizeArgs),
    /// Find out which columns of a model's matrices matter, for `quantize --imatrix`
    Imatrix(imatrix::ImatrixArgs),
    /// Find the first operation where two ways of computing part
    Diff(diff::DiffArgs),
    /// Use the parts of the engine one by one
    Tool(tool::ToolArgs),
    /// Fetch a model into the cache
    Pull(pull::PullArgs),
    /// List the models in the cache
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Remove a model from the cache
    Rm(rm::RmArgs),
    /// Print a completion script for a shell
    Completions(completions::CompletionsArgs),
}

/// What may stand for MODEL; part of each help text that takes one.
pub(crate) const MODEL_HELP: &str = "\
MODEL is one of
  smollm2                    an alias (`metallic list --aliases` shows all)
  OWNER/REPO                 a Hugging Face repository: the GGUF file that suits this machine, or its safetensors
  OWNER/REPO:Q4_K_M          the GGUF file of that quantisation
  OWNER/REPO:FILE.gguf       that very file
  OWNER/REPO:safetensors     its safetensors weights, even where there are GGUF files
  ./FILE.gguf, ./FOLDER      a file, or a folder with config.json and safetensors

Environment
  METALLIC_HOME              the cache folder (default: the cache folder of the platform)
  HF_ENDPOINT, HF_TOKEN      another hub; the token for gated or private models
  HF_HUB_DOWNLOAD_TIMEOUT    seconds that the hub may say next to nothing (30)
  METALLIC_FORCE_SDPA_BACKEND, METALLIC_FORCE_MATMUL_BACKEND
                             kernels of a GPU, as `--provider`, which goes before them
  METALLIC_KERNEL_CACHE      the folder of kernels compiled for Metal; `off`: none
  METALLIC_DUMP_GRAPH_PLAN   1: `tool plan` of a token goes to stderr; a path: into that file, as its ending says (.json, .svg)
  METALLIC_TUNING            numbers that plans of a GPU go by: `off` for those built in, or a file of `metallic tune`
  METALLIC_TELEMETRY, METALLIC_TRACE
                             files to write, as `--telemetry` and `--trace`, which go before them
  METALLIC_RUNTIME_DIR       the folder of sockets that show what runs (default: that of the session, or one in the
                             folder for temporary files)
  METALLIC_CPU_ISA           portable, avx2 or avx512: less than the processor has
  SOFTMETAL_CLANG            the clang that compiles kernels for `--device soft`
  SOFTMETAL_CACHE            the folder of kernels it has compiled";

const EXAMPLES: &str = "\
Examples:
  metallic run \"Why is the sky blue?\"                    answer with the default model
  metallic chat -m qwen2.5-0.5b                          talk
  metallic serve -m qwen2.5-0.5b                         answer clients of the OpenAI API on port 8080
  metallic pull                                          fetch the default model (SmolLM2-135M)
  metallic pull qwen2.5-0.5b                             fetch a model by its alias
  metallic pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0
  metallic list                                          show what is in the cache
  metallic devices                                       show what can compute here";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_argument_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
