//! `softmetal ptx`.

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode};

use softmetal::{
    Source,
    ptx::{PtxOptions, ptx as translate},
};

use super::{Failure, Printer, SourceOptions, data::assignment, style};

#[derive(Debug, clap::Args)]
#[allow(clippy::struct_excessive_bools)] // Each is a flag of its own.
pub(super) struct Arguments {
    /// The `.metal` file.
    file: PathBuf,
    /// Where the PTX goes; standard output if not given.
    #[arg(short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Only these kernels.
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// Bake in a function constant; the value is written as in C++.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    constants: Vec<String>,
    /// Compute capability, as in sm_80.
    #[arg(long, default_value_t = 80)]
    sm: u32,
    /// Promise that simd-group functions are called by all 32 lanes.
    #[arg(long)]
    full_simdgroups: bool,
    /// Multiply matrices in float arithmetic instead of on tensor cores.
    #[arg(long)]
    exact: bool,
    /// Let kernels begin before the ones before them are done, from sm_90 on.
    #[arg(long)]
    early: bool,
    /// Take buffer 0 by value where a kernel has it as `constant T&`.
    #[arg(long)]
    by_value: bool,
    #[command(flatten)]
    source: SourceOptions,
}

pub(super) fn ptx(arguments: &Arguments, printer: Printer) -> Result<ExitCode, Failure> {
    let mut constants = BTreeMap::new();
    for text in &arguments.constants {
        let (name, value) = assignment(text)?;
        constants.insert(name.to_owned(), value.to_owned());
    }
    let mut compiler = arguments.source.compiler()?;
    if !arguments.kernels.is_empty() {
        compiler = compiler.only(&arguments.kernels);
    }
    let source = Source::from_file(&arguments.file)?;
    let options = PtxOptions {
        early: arguments.early,
        constants,
        sm: arguments.sm,
        full_simdgroups: arguments.full_simdgroups,
        exact: arguments.exact,
        by_value: arguments.by_value,
    };
    let module = translate(&compiler, &source, &options)?;
    if let Some(path) = &arguments.output {
        std::fs::write(path, &module.text).map_err(softmetal::Error::io("write", path))?;
    }
    if printer.json {
        Printer::json(&module);
        return Ok(ExitCode::SUCCESS);
    }
    for warning in &module.warnings {
        eprintln!("{}", style::Style::of_stderr().diagnostic(warning));
    }
    match &arguments.output {
        None => style::print(module.text.trim_end()),
        Some(path) => {
            style::print(&format!("{}: {}", path.display(), style::count(module.kernels.len(), "kernel")));
        }
    }
    Ok(ExitCode::SUCCESS)
}
