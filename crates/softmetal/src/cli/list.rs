//! `softmetal list`.

use std::{path::PathBuf, process::ExitCode};

use softmetal::{Argument, ArgumentKind, Interface, Source};

use super::{Failure, Printer, SourceOptions, style};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The `.metal` file.
    file: PathBuf,
    /// Only kernels whose name contains this.
    #[arg(value_name = "NAME")]
    filter: Option<String>,
    #[command(flatten)]
    source: SourceOptions,
}

pub(super) fn list(arguments: &Arguments, printer: Printer) -> Result<ExitCode, Failure> {
    let source = Source::from_file(&arguments.file)?;
    let mut interface = arguments.source.compiler()?.reflect(&source)?;
    if let Some(filter) = &arguments.filter {
        interface.kernels.retain(|kernel| kernel.name.contains(filter));
    }
    if printer.json {
        Printer::json(&interface);
    } else {
        show(&interface, printer);
    }
    Ok(ExitCode::SUCCESS)
}

fn show(interface: &Interface, printer: Printer) {
    let paint = printer.style;
    for kernel in &interface.kernels {
        let limit = kernel.max_threads.map(|most| format!("  at most {most} threads per threadgroup"));
        style::print(&format!("{}{}", paint.bold(&kernel.name), paint.dim(&limit.unwrap_or_default())));
        for argument in &kernel.arguments {
            let (place, note) = describe(argument);
            let declaration = format!("{} {}", argument.type_text, argument.name);
            style::print(&format!(
                "  {}  {declaration:<44} {}",
                paint.cyan(&format!("{place:<16}")),
                paint.dim(&note)
            ));
        }
    }
    if !interface.constants.is_empty() {
        style::print(&paint.bold("function constants"));
        for constant in &interface.constants {
            let place = paint.cyan(&format!("{:<16}", constant.index));
            style::print(&format!("  {place}  {} {}", constant.type_text, constant.name));
        }
    }
    for warning in &interface.warnings {
        eprintln!("{}", style::Style::of_stderr().diagnostic(warning));
    }
    style::print(&paint.dim(&style::count(interface.kernels.len(), "kernel")));
}

fn describe(argument: &Argument) -> (String, String) {
    let size = match (argument.element_size, argument.pointer) {
        (0, _) => "bytes".to_owned(),
        (size, true) => format!("{size} bytes each"),
        (size, false) => format!("{size} bytes"),
    };
    let access = if argument.read_only { "read" } else { "read, write" };
    let optional = if argument.optional { ", may be unbound" } else { "" };
    match argument.kind {
        ArgumentKind::Buffer(index) => (format!("buffer {index}"), format!("{size}, {access}{optional}")),
        ArgumentKind::Threadgroup(index) => (format!("threadgroup {index}"), size),
        ArgumentKind::Texture(index) => {
            let several = argument.texture.map(|texture| texture.count).filter(|count| *count > 1);
            let last = several.map(|count| format!("..{}", index + count - 1)).unwrap_or_default();
            (format!("texture {index}{last}"), optional.trim_start_matches(", ").to_owned())
        }
        ArgumentKind::Sampler(index) => {
            (format!("sampler {index}"), optional.trim_start_matches(", ").to_owned())
        }
        ArgumentKind::BuiltIn(built_in) => {
            let name =
                serde_json::to_value(built_in).ok().and_then(|value| value.as_str().map(str::to_owned));
            ("built-in".to_owned(), name.unwrap_or_default())
        }
    }
}
