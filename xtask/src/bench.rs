//! `cargo xtask bench`: tokens per second, and beside those of a peer measured in turns in the same run.

mod compare;
mod history;
mod page;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::models::{self, SMOLLM2};
use crate::process::{cargo, command, output, root, run as run_command, works};

const PROMPTS: &str = "128,512";
const GENERATIONS: &str = "64";
const REPS_PER_ROUND: &str = "3";

#[derive(Debug, PartialEq)]
struct Options {
    peers: bool,
    json: bool,
    models: Vec<PathBuf>,
    threads: usize,
    rounds: usize,
    history: Option<PathBuf>,
    /// The figures are kept.
    save: bool,
    /// The page is made of what is kept, and nothing is measured; or only compared.
    page: Option<Page>,
    /// Two commits that are built and measured in turns.
    compare: Option<(String, String)>,
    /// Two commits whose kept figures are compared.
    kept: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Write,
    Check,
}

/// Tokens per second by test (`pp128`, `tg64`).
type Speeds = Vec<(String, f64)>;

pub(crate) fn run(args: &[String]) -> Result<()> {
    let options = Options::parse(args)?;
    let path = options.history.clone().unwrap_or_else(history::file);
    if let Some(page) = options.page {
        return page::write(&root().join("docs"), &history::read(&path)?, page == Page::Check);
    }
    if let Some((a, b)) = &options.kept {
        return compare::kept(a, b, &history::read(&path)?);
    }
    let metallic = build()?;
    let models = if options.models.is_empty() { smollm2_files(&metallic)? } else { options.models.clone() };
    let busy = warn_if_busy();
    if let Some((a, b)) = &options.compare {
        return compare::commits(a, b, &models, &options);
    }
    let peer = if options.peers { Some(llamacpp()?) } else { None };
    let mut rows = Vec::new();
    for model in &models {
        rows.extend(measure(model, &metallic, peer.as_deref(), &options)?);
    }
    if options.json {
        let rows: Vec<Value> = rows.iter().map(Row::to_json).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("{}", table(&rows));
        println!("tokens per second: median of {} rounds; {} threads", options.rounds, options.threads);
    }
    if options.save {
        history::append(&path, &history::Entry::of(&rows, &options, busy)?)?;
        eprintln!("kept in {}; `cargo xtask bench --page` makes the page of it", path.display());
    }
    Ok(())
}

/// Says where others compute beside what is measured, and how much.
pub(crate) fn warn_if_busy() -> Option<f64> {
    let load = fs::read_to_string("/proc/loadavg").ok().and_then(|text| busy(&text))?;
    eprintln!("THE MACHINE IS BUSY (load {load}): these figures, and the ratios, will mean nothing");
    Some(load)
}

impl Options {
    fn parse(args: &[String]) -> Result<Options> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let mut options = Options {
            peers: false,
            json: false,
            models: Vec::new(),
            threads,
            rounds: 3,
            history: None,
            save: false,
            page: None,
            compare: None,
            kept: None,
        };
        let mut args = args.iter().peekable();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--peers" => options.peers = true,
                "--json" => options.json = true,
                "--save" => options.save = true,
                "--page" => options.page = Some(Page::Write),
                "--check-page" => options.page = Some(Page::Check),
                "--compare" => options.compare = Some(two("--compare", &mut args)?),
                "--compare-kept" => options.kept = Some(two("--compare-kept", &mut args)?),
                "--history" => {
                    let file = args.next().context("--history needs a file")?;
                    options.history = Some(std::path::absolute(file)?);
                }
                "--models" => {
                    while let Some(file) = args.next_if(|next| !next.starts_with("--")) {
                        // The peer and our program run at the root of the workspace.
                        options.models.push(std::path::absolute(file)?);
                    }
                    ensure!(!options.models.is_empty(), "--models needs at least one file");
                }
                "--threads" => options.threads = count("--threads", args.next())?,
                "--rounds" => options.rounds = count("--rounds", args.next())?,
                other => bail!("bench does not know `{other}`; see `cargo xtask help`"),
            }
        }
        Ok(options)
    }
}

/// Two commits.
fn two<'a>(name: &str, args: &mut impl Iterator<Item = &'a String>) -> Result<(String, String)> {
    match (args.next(), args.next()) {
        (Some(a), Some(b)) if !a.starts_with("--") && !b.starts_with("--") => Ok((a.clone(), b.clone())),
        _ => bail!("{name} needs two commits"),
    }
}

/// The load of the last minute, where others would take part of a core from what is measured. Programs whose
/// threads wait for each other by spinning lose far more than that part, so a ratio does not save the figures.
pub(crate) fn busy(loadavg: &str) -> Option<f64> {
    let load = loadavg.split_whitespace().next()?.parse().ok()?;
    (load > 0.5).then_some(load)
}

pub(crate) fn count(name: &str, value: Option<&String>) -> Result<usize> {
    let value = value.with_context(|| format!("{name} needs a number"))?;
    match value.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => bail!("{name} needs a number from 1 up, found `{value}`"),
    }
}

/// Builds the command line with optimisation; returns where it is.
pub(crate) fn build() -> Result<PathBuf> {
    build_with(&[])
}

/// The same with more options of cargo.
pub(crate) fn build_with(more: &[&str]) -> Result<PathBuf> {
    let args =
        ["build", "--release", "--package", "metallic-cli", "--message-format", "json-render-diagnostics"];
    let messages = output(cargo().args(args).args(more))?;
    let executable =
        |line: &str| Some(serde_json::from_str::<Value>(line).ok()?.get("executable")?.as_str()?.to_string());
    let path = messages.lines().filter_map(executable).next_back();
    path.map(PathBuf::from).context("cargo did not say where it put the `metallic` program")
}

/// SmolLM2 in three formats; those that are not downloaded are made from the one that is.
fn smollm2_files(metallic: &Path) -> Result<Vec<PathBuf>> {
    SMOLLM2.fetch(&models::python()?, 1800)?;
    let mut files = vec![SMOLLM2.path()];
    for format in ["q4_0", "q8_0"] {
        let name = SMOLLM2.file.replace("Q4_1", &format.to_uppercase());
        let path = models::folder().join(name);
        if !path.exists() {
            let part = path.with_extension("gguf.part");
            run_command(
                command(metallic)
                    .arg("quantize")
                    .arg(SMOLLM2.path())
                    .arg(&part)
                    .args(["--pure", "--type", format]),
            )?;
            fs::rename(&part, &path).with_context(|| format!("cannot name {}", path.display()))?;
        }
        files.push(path);
    }
    Ok(files)
}

/// The Python of a virtual environment that has llama.cpp, built for this machine.
fn llamacpp() -> Result<PathBuf> {
    let venv = root().join("target").join("peers").join("venv");
    let ready = |python: &PathBuf| works(python, &["-c", "import llama_cpp"]);
    if let Some(python) = models::venv_python(&venv).filter(ready) {
        return Ok(python);
    }
    ensure!(
        works("cc", &["--version"]),
        "building llama.cpp needs a C and C++ compiler, and there is no `cc`"
    );
    eprintln!("building llama.cpp for this machine in {} (once; several minutes)", venv.display());
    models::make_venv(models::python()?, &venv)?;
    let python = models::venv_python(&venv).context("the new virtual environment has no working pip")?;
    let install = [
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "--no-binary",
        "llama-cpp-python",
        "llama-cpp-python",
    ];
    run_command(command(&python).args(install).stdin(Stdio::null()))?;
    ensure!(ready(&python), "llama-cpp-python was installed and cannot be imported");
    Ok(python)
}

struct Row {
    model: String,
    test: String,
    metallic: f64,
    /// Ours, one for each round.
    samples: Vec<f64>,
    llamacpp: Option<f64>,
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        self.llamacpp.map(|peer| self.metallic / peer)
    }

    fn to_json(&self) -> Value {
        json!({
            "model": self.model,
            "test": self.test,
            "metallic_tps": self.metallic,
            "llamacpp_tps": self.llamacpp,
            "ratio": self.ratio(),
        })
    }
}

/// What one of our programs makes of a model.
fn ours(metallic: &Path, model: &Path, options: &Options) -> Result<Speeds> {
    let threads = options.threads.to_string();
    let bench = ["-t", &threads, "-p", PROMPTS, "-n", GENERATIONS, "-r", REPS_PER_ROUND, "--json"];
    let mut command = command(metallic);
    parse_speeds(&output(command.args(["bench", "-m"]).arg(model).args(["--device", "cpu"]).args(bench))?)
}

/// Runs both in turns, the other first in every second round: a busy spell of the machine hits both.
fn measure(model: &Path, metallic: &Path, peer: Option<&Path>, options: &Options) -> Result<Vec<Row>> {
    let threads = options.threads.to_string();
    let theirs = |python: &Path| {
        let script = root().join("xtask").join("peers").join("llamacpp.py");
        let bench = ["-t", &threads, "-p", PROMPTS, "-n", GENERATIONS, "-r", REPS_PER_ROUND];
        parse_speeds(&output(command(python).arg(script).arg("-m").arg(model).args(bench))?)
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for round in 0..options.rounds {
        eprintln!("{}: round {} of {}", model.display(), round + 1, options.rounds);
        if round % 2 == 0 {
            a.push(ours(metallic, model, options)?);
        }
        if let Some(python) = peer {
            b.push(theirs(python)?);
        }
        if round % 2 == 1 {
            a.push(ours(metallic, model, options)?);
        }
    }
    let (a, b) = (by_test(&a), by_test(&b));
    let name = model.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let row = |(test, speeds): (&String, &Vec<f64>)| Row {
        model: name.clone(),
        test: test.clone(),
        metallic: median(speeds),
        samples: speeds.clone(),
        llamacpp: b.get(test).map(|speeds| median(speeds)),
    };
    Ok(a.iter().map(row).collect())
}

/// Reads `{"test": "pp128", "median": 301.5, …}` objects, one after the other or in a list.
fn parse_speeds(text: &str) -> Result<Speeds> {
    let mut speeds = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let value = value.context("the benchmark printed something that is not JSON")?;
        let tests = match value {
            Value::Array(tests) => tests,
            test => vec![test],
        };
        for test in tests {
            let name = test.get("test").and_then(Value::as_str);
            let median = test.get("median").and_then(Value::as_f64);
            let (Some(name), Some(median)) = (name, median) else {
                bail!("a benchmark result needs `test` and `median`, found {test}");
            };
            speeds.push((name.to_string(), median));
        }
    }
    ensure!(!speeds.is_empty(), "the benchmark printed no result");
    Ok(speeds)
}

fn by_test(rounds: &[Speeds]) -> BTreeMap<String, Vec<f64>> {
    let mut tests: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (test, speed) in rounds.iter().flatten() {
        tests.entry(test.clone()).or_default().push(*speed);
    }
    tests
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

fn table(rows: &[Row]) -> String {
    let width = rows.iter().map(|row| row.model.len()).max().unwrap_or(0).max("model".len());
    let line = |cells: [&str; 5]| {
        let [model, test, ours, theirs, ratio] = cells;
        format!("{model:width$}  {test:6} {ours:>10} {theirs:>10} {ratio:>7}")
    };
    let mut lines = vec![line(["model", "test", "metallic", "llama.cpp", "ratio"])];
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
    };
    for row in rows {
        let (ours, theirs, ratio) =
            (number(Some(row.metallic), 1), number(row.llamacpp, 1), number(row.ratio(), 2));
        lines.push(line([&row.model, &row.test, &ours, &theirs, &ratio]));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(String::from).collect()
    }

    #[test]
    fn options_are_read_and_bad_ones_are_named() {
        let options =
            Options::parse(&words("--peers --models /a.gguf /b.gguf --threads 2 --rounds 5 --json")).unwrap();
        let expected = Options {
            peers: true,
            json: true,
            models: vec!["/a.gguf".into(), "/b.gguf".into()],
            threads: 2,
            rounds: 5,
            history: None,
            save: false,
            page: None,
            compare: None,
            kept: None,
        };
        assert_eq!(options, expected);
        for (line, part) in [
            ("--rounds 0", "`0`"),
            ("--threads", "--threads"),
            ("--models --json", "--models"),
            ("--compare a", "two commits"),
            ("--compare-kept a --json", "two commits"),
            ("--history", "a file"),
            ("-x", "`-x`"),
        ] {
            let error = Options::parse(&words(line)).unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn results_are_read_from_lines_and_from_a_list() {
        let lines = "{\"test\":\"pp128\",\"median\":10}\n{\"test\":\"tg64\",\"median\":2.5}\n";
        let list = "[{\"test\":\"pp128\",\"median\":10},{\"test\":\"tg64\",\"median\":2.5}]";
        let expected = vec![("pp128".to_string(), 10.0), ("tg64".to_string(), 2.5)];
        assert_eq!(parse_speeds(lines).unwrap(), expected);
        assert_eq!(parse_speeds(list).unwrap(), expected);
        for bad in ["", "{\"median\":1}", "oops"] {
            assert!(parse_speeds(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_busy_machine_is_noticed() {
        assert_eq!(busy("9.60 8.79 7.29 3/210 4711\n"), Some(9.6));
        assert_eq!(busy("0.03 8.79 7.29 1/210 4711\n"), None);
        assert_eq!(busy(""), None);
    }

    #[test]
    fn the_median_of_an_even_count_is_between_the_middle_two() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn the_table_shows_a_ratio_where_there_is_a_peer() {
        let row = |llamacpp| Row {
            model: "m".into(),
            test: "tg64".into(),
            metallic: 150.0,
            samples: vec![150.0],
            llamacpp,
        };
        let text = table(&[row(Some(100.0)), row(None)]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["m", "tg64", "150.0", "100.0", "1.50"]);
        assert_eq!(lines[2], ["m", "tg64", "150.0", "-", "-"]);
    }
}
