//! `metallic tool`: the parts of the engine one by one, for scripts and comparisons.

mod cache_dump;
mod counts;
mod generate;
mod logits;
mod ops;
mod perplexity;
mod plan;
mod ptx;
mod template;
mod text;
mod tokenize;

use clap::{Args, Subcommand};

use crate::term::Ui;

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ToolArgs {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Debug, Subcommand)]
enum Tool {
    /// Turn text into token ids
    Tokenize(tokenize::TokenizeArgs),
    /// Turn token ids into text
    Detokenize(tokenize::DetokenizeArgs),
    /// Write a conversation as the text that the model continues
    Template(template::TemplateArgs),
    /// Compute the logits after the last of some tokens, or after each
    #[command(mut_arg("kv_type", exact))]
    Logits(logits::LogitsArgs),
    /// Continue token ids, taking the best token each time
    #[command(mut_arg("kv_type", exact))]
    Generate(generate::GenerateArgs),
    /// Measure how well a model predicts a text
    Perplexity(perplexity::PerplexityArgs),
    /// Count what a step asks of a GPU, kernel by kernel, beside what is measured
    Counts(counts::CountsArgs),
    /// Show what a device would do for a step: fusion, kernels, launches, memory
    Plan(plan::PlanArgs),
    /// List the compiled kernels and measured numbers on disk, and make room
    CacheDump(cache_dump::CacheDumpArgs),
    /// Translate the kernels that models need for NVIDIA GPUs, for machines without a compiler
    Ptx(ptx::PtxArgs),
    /// Check every operation of a device against the reference
    #[command(hide = true)]
    Ops(ops::OpsArgs),
}

/// What compares numbers takes the cache that rounds nothing, unless told otherwise.
fn exact(kv_type: clap::Arg) -> clap::Arg {
    kv_type.default_value("f32")
}

const EXAMPLES: &str = "\
Examples:
  metallic tool tokenize -m smollm2 \"Hello, world\"
  metallic tool generate -m ./model.gguf --tokens 1,2,3 -n 24 --json
  metallic tool perplexity -m smollm2 --file wiki.test.raw";

pub(crate) fn run(args: &ToolArgs, ui: Ui) -> anyhow::Result<()> {
    match &args.tool {
        Tool::Tokenize(args) => tokenize::tokenize(args, ui),
        Tool::Detokenize(args) => tokenize::detokenize(args, ui),
        Tool::Template(args) => template::run(args, ui),
        Tool::Logits(args) => logits::run(args, ui),
        Tool::Generate(args) => generate::run(args, ui),
        Tool::Perplexity(args) => perplexity::run(args, ui),
        Tool::Counts(args) => counts::run(args, ui),
        Tool::Plan(args) => plan::run(args, ui),
        Tool::CacheDump(args) => cache_dump::run(args, ui),
        Tool::Ptx(args) => ptx::run(args, ui),
        Tool::Ops(args) => ops::run(args, ui),
    }
}
