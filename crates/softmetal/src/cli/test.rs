//! `softmetal test`: runs that a source asks for in its comments.
//!
//! ```text
//! // softmetal: run block_sum --groups 3 --threadgroup 64 --buffer 0=f32:ones:192 --out 1=f32:3 --expect 1=f32:64,64,64
//! ```

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Parser;
use serde_json::json;

use super::{
    Failure, Printer, SourceOptions,
    junit::{self, Case},
    run, style,
};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The `.metal` files.
    #[arg(required = true)]
    pub(super) files: Vec<PathBuf>,
    /// Write the results as JUnit XML, as CI services read it.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    #[command(flatten)]
    pub(super) source: SourceOptions,
}

/// A run that a comment asks for.
#[derive(Debug)]
struct Request {
    line: usize,
    words: Vec<String>,
}

/// The words before what is to be run.
const MARK: &str = "softmetal:";

pub(super) fn test(arguments: &Arguments, printer: Printer) -> Result<ExitCode, Failure> {
    let (mut cases, mut failed, mut shown) = (Vec::new(), 0, Vec::new());
    for file in &arguments.files {
        for (case, words) in of_file(file, &arguments.source)? {
            let verdict = case.verdict.clone();
            failed += usize::from(!verdict.is_empty());
            if printer.json {
                shown.push(json!({ "file": file, "line": case.line, "run": words, "failures": verdict }));
            } else {
                print(printer, file, &case, &words);
            }
            cases.push(case.junit);
        }
    }
    if let Some(path) = &arguments.junit {
        junit::write(path, "softmetal", &cases)?;
    }
    let total = cases.len();
    if printer.json {
        Printer::json(&json!({ "tests": shown, "failed": failed }));
    } else {
        style::print(&summary(printer, total, failed));
    }
    if total == 0 {
        let files: Vec<String> = arguments.files.iter().map(|file| file.display().to_string()).collect();
        return Err(Failure::Argument(format!(
            "nothing to run in {}: a comment says what, like `// softmetal: run KERNEL --threads 32 --check`",
            files.join(", ")
        )));
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What came of a request.
pub(super) struct Done {
    pub(super) line: usize,
    /// What is wrong; nothing if nothing is.
    pub(super) verdict: Vec<String>,
    junit: Case,
}

/// Runs what a file asks for, each with the words that ask.
pub(super) fn of_file(file: &Path, source: &SourceOptions) -> Result<Vec<(Done, String)>, Failure> {
    let bytes = fs::read(file).map_err(softmetal::Error::io("read", file))?;
    let requests = requests(&String::from_utf8_lossy(&bytes));
    let each = requests.into_iter().map(|request| {
        let words = request.words.join(" ");
        let place = format!("{}:{}", file.display(), request.line);
        Ok((
            one(file, &request, source).map_err(|failure| match failure {
                Failure::Argument(text) => Failure::Argument(format!("{place}: {text}")),
                Failure::Softmetal(error) => Failure::Softmetal(error),
            })?,
            words,
        ))
    });
    each.collect()
}

fn one(file: &Path, request: &Request, source: &SourceOptions) -> Result<Done, Failure> {
    let parsed = run_arguments(file, request, source)?;
    let executed = run::execute(&parsed);
    let junit = Case::of_run(&parsed, &executed).named(format!("line {}: {}", request.line, parsed.kernel));
    let verdict = match &executed {
        Ok(executed) => executed.failures(parsed.seeds),
        Err(Failure::Softmetal(error)) => vec![error.to_string()],
        Err(Failure::Argument(text)) => return Err(Failure::Argument(text.clone())),
    };
    Ok(Done { line: request.line, verdict, junit })
}

/// `run KERNEL …` as `softmetal run` reads it, the file put in.
fn run_arguments(file: &Path, request: &Request, source: &SourceOptions) -> Result<run::Arguments, Failure> {
    let [first, kernel, rest @ ..] = &request.words[..] else {
        return Err(Failure::Argument(format!("`{MARK}` needs `run KERNEL` and how")));
    };
    if first != "run" {
        return Err(Failure::Argument(format!("`{MARK} {first}` is no command here: `run` is")));
    }
    let mut words: Vec<String> =
        vec!["softmetal".into(), "run".into(), file.display().to_string(), kernel.clone()];
    words.extend_from_slice(rest);
    words.extend(source.include.iter().map(|folder| format!("-I{}", folder.display())));
    words.extend(source.define.iter().map(|define| format!("-D{define}")));
    match super::Arguments::try_parse_from(words) {
        Ok(super::Arguments { command: super::Command::Run(parsed), .. }) => Ok(*parsed),
        Ok(_) => Err(Failure::Argument("it is no run".to_owned())),
        Err(error) => Err(Failure::Argument(error.render().to_string().trim_end().to_owned())),
    }
}

/// The requests in the comments of a source.
fn requests(text: &str) -> Vec<Request> {
    let lines = text.lines().enumerate();
    let found = lines.filter_map(|(number, line)| {
        let comment = line.trim_start().strip_prefix("//")?.trim_start();
        let asked = comment.strip_prefix(MARK)?;
        Some(Request { line: number + 1, words: words(asked) })
    });
    found.collect()
}

/// Words between spaces; quotes hold several together.
pub(super) fn words(text: &str) -> Vec<String> {
    let (mut found, mut word, mut quote): (Vec<String>, Option<String>, _) = (Vec::new(), None, None);
    for sign in text.chars() {
        match (quote, sign) {
            (Some(open), sign) if open == sign => quote = None,
            (None, '"' | '\'') => {
                quote = Some(sign);
                word.get_or_insert_default();
            }
            (None, sign) if sign.is_whitespace() => found.extend(word.take()),
            (_, sign) => word.get_or_insert_default().push(sign),
        }
    }
    found.extend(word);
    found
}

pub(super) fn print(printer: Printer, file: &Path, done: &Done, words: &str) {
    let paint = printer.style;
    let place = paint.bold(&format!("{}:{}", file.display(), done.line));
    let verdict = if done.verdict.is_empty() { paint.green("ok") } else { paint.red("FAILED") };
    style::print(&format!("{verdict} {place} {words}"));
    for text in &done.verdict {
        style::print(text);
        style::print("");
    }
}

pub(super) fn summary(printer: Printer, total: usize, failed: usize) -> String {
    let text = format!("{}, {failed} failed", style::count(total, "run"));
    if failed == 0 { printer.style.green(&text) } else { printer.style.red(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stand_in_comments_of_their_own() {
        let found = requests(
            "int a; // softmetal: run no\n  // softmetal: run k --threads 4 --set 'a = 1'\n//softmetal: run\n",
        );
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].line, &found[0].words[..]),
            (2, &["run", "k", "--threads", "4", "--set", "a = 1"].map(String::from)[..])
        );
        assert_eq!(words(" 'a b'c \"\" "), ["a bc", ""]);
    }
}
