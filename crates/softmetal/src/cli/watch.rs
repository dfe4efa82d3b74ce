//! `softmetal watch`: lint and runs again whenever a file changes.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    thread,
    time::{Duration, Instant, SystemTime},
};

use softmetal::{Compiler, Severity, Source, lint::lint};

use super::{Failure, Printer, SourceOptions, style, test};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The `.metal` files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Milliseconds from look to look.
    #[arg(long, default_value_t = 200, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(10..=60_000))]
    interval: u64,
    #[command(flatten)]
    source: SourceOptions,
}

/// What a file was when it was looked at: length and time of its last change.
type Stamp = (u64, Option<SystemTime>);

/// Goes on until it is interrupted.
pub(super) fn watch(arguments: &Arguments, printer: Printer) -> Result<ExitCode, Failure> {
    let compiler = arguments.source.compiler()?;
    let mut seen = BTreeMap::new();
    loop {
        let now = stamps(arguments);
        if now != seen {
            let headers = now
                .iter()
                .any(|(path, stamp)| !arguments.files.contains(path) && seen.get(path) != Some(stamp))
                || seen.keys().any(|path| !now.contains_key(path));
            for file in &arguments.files {
                // What includes what is for the compiler to know: a changed header concerns every file.
                if headers || seen.get(file) != now.get(file) {
                    look(file, &compiler, arguments, printer);
                }
            }
            seen = now;
        }
        thread::sleep(Duration::from_millis(arguments.interval));
    }
}

/// The files, and what they may include: headers beside them and in the folders to look in.
fn stamps(arguments: &Arguments) -> BTreeMap<PathBuf, Stamp> {
    let beside = arguments.files.iter().filter_map(|file| {
        let folder = file.parent()?;
        Some(if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder.to_owned() })
    });
    let folders = beside.chain(arguments.source.include.iter().cloned());
    let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
    let headers = entries.map(|entry| entry.path()).filter(|path| is_header(path));
    let all = arguments.files.iter().cloned().chain(headers);
    all.filter_map(|path| {
        let meta = fs::metadata(&path).ok()?;
        Some((path, (meta.len(), meta.modified().ok())))
    })
    .collect()
}

fn is_header(path: &Path) -> bool {
    let known = ["h", "hpp", "metalh", "inc"];
    path.extension().and_then(|extension| extension.to_str()).is_some_and(|e| known.contains(&e))
}

/// Lints a file and runs what it asks for. Whatever is wrong is shown: the next change may mend it.
fn look(file: &Path, compiler: &Compiler, arguments: &Arguments, printer: Printer) {
    let begun = Instant::now();
    let (mut errors, mut runs, mut failed) = (0, 0, 0);
    match Source::from_file(file).and_then(|source| lint(compiler, &source)) {
        Ok(found) => {
            errors += found.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
            for diagnostic in &found {
                style::print(&printer.style.diagnostic(diagnostic));
            }
        }
        Err(error) => {
            errors += 1;
            printer.failure(&Failure::Softmetal(error));
        }
    }
    match test::of_file(file, &arguments.source) {
        Ok(all) => {
            for (done, words) in &all {
                runs += 1;
                failed += usize::from(!done.verdict.is_empty());
                test::print(printer, file, done, words);
            }
        }
        Err(failure) => {
            errors += 1;
            printer.failure(&failure);
        }
    }
    let paint = printer.style;
    let verdict = format!("{}, {}", style::count(errors, "error"), test::summary(printer, runs, failed));
    let seconds = begun.elapsed().as_secs_f32();
    style::print(&format!(
        "{}: {verdict} {}",
        paint.bold(&file.display().to_string()),
        paint.dim(&format!("({seconds:.2} s)"))
    ));
}
