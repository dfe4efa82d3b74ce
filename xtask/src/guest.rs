//! `cargo xtask guest NAME[@VERSION]`: the tests of a crate of somebody else's that talks to Metal through objc2-metal, on
//! Linux, against Metal.framework over softmetal.
//!
//! The crate comes from the registry by cargo's own means. A copy of it in `target/guests` is built with the bindings of
//! `metal-on-linux copies`, compiled as if Linux were a Mac, and each of its tests runs in a process of its own.

mod known;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::known::{GUESTS, Guest};
use crate::metal_on_linux::{Changes, bindings, write_if_new};
use crate::process::{cargo, in_parallel, limited, output, root, run as run_command};

/// What is asked for.
struct Wanted {
    name: String,
    version: Option<String>,
    /// Features of the crate, separated by commas.
    features: Option<String>,
    /// Tests whose names contain one of these; all, if there are none.
    tests: Vec<String>,
    /// For each test.
    limit: Duration,
}

impl Wanted {
    fn parse(args: &[String]) -> Result<Wanted> {
        let (mut name, mut features, mut tests, mut limit) = (None, None, Vec::new(), 300);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("`{arg}` needs a value"));
            match arg.as_str() {
                "--test" => tests.push(value()?.clone()),
                "--features" => features = Some(value()?.clone()),
                "--limit" => {
                    let text = value()?;
                    limit = text.parse().with_context(|| format!("`{text}` is no number of seconds"))?;
                }
                option if option.starts_with('-') => {
                    bail!(
                        "`{option}` is no option of it; there are --features LIST, --test WORD and --limit SECONDS"
                    )
                }
                crate_name => {
                    ensure!(name.is_none(), "one guest at a time, not `{crate_name}` too");
                    name = Some(crate_name.to_owned());
                }
            }
        }
        let name = name.context("which crate? cargo xtask guest NAME[@VERSION]")?;
        let (name, version) = match name.split_once('@') {
            Some((name, version)) => (name.to_owned(), Some(version.to_owned())),
            None => (name, None),
        };
        Ok(Wanted { name, version, features, tests, limit: Duration::from_secs(limit) })
    }
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    ensure!(cfg!(target_os = "linux"), "a Mac has Metal itself: run the crate's tests there");
    let wanted = Wanted::parse(args)?;
    let known = GUESTS.iter().find(|guest| guest.name == wanted.name);
    let guests = root().join("target/guests");
    let bindings_folder = guests.join("bindings");
    let patches = bindings(&bindings_folder)?;
    let (source, version) = fetch(&guests.join("fetch"), &wanted)?;
    let folder = guests.join(format!("{}-{version}", wanted.name));
    eprintln!("{} {version} from {}", wanted.name, source.display());
    adapt(&source, &folder, &bindings_folder, &patches, known)?;
    use_bindings(&folder, &bindings_folder, &patches, wanted.features.as_deref())?;
    let programs = build(&folder, wanted.features.as_deref())?;
    let mut tests = Vec::new();
    for program in &programs {
        tests.extend(list(program, &folder)?.into_iter().map(|test| (program, test)));
    }
    let all = tests.len();
    tests.retain(|(_, name)| wanted.tests.is_empty() || wanted.tests.iter().any(|word| name.contains(word)));
    ensure!(!tests.is_empty(), "none of the {all} tests is called `{}`", wanted.tests.join(" "));
    let begun = Instant::now();
    let outcomes = in_parallel(&tests, |(program, test)| Outcome::of(program, test, &folder, wanted.limit))?;
    let unexpected = report(known, &tests, &outcomes);
    let passed = outcomes.iter().filter(|outcome| outcome.why.is_none()).count();
    println!(
        "{} {version}: {passed} of {} tests pass, in {:.0} s{}",
        wanted.name,
        tests.len(),
        begun.elapsed().as_secs_f64(),
        if all > tests.len() { format!("; {} were not asked for", all - tests.len()) } else { String::new() }
    );
    ensure!(unexpected == 0, "{unexpected} tests did not end as this chore knows them to");
    Ok(())
}

/// Lets cargo find and unpack the crate; where its sources lie, and its version.
fn fetch(folder: &Path, wanted: &Wanted) -> Result<(PathBuf, String)> {
    let version = wanted.version.as_ref().map_or("*".to_owned(), |version| format!("={version}"));
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/lib.rs"), "")?;
    let manifest = format!(
        "[package]\nname = \"fetch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[dependencies]\n{} = \"{version}\"\n\n[workspace]\n",
        wanted.name
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    let _ = fs::remove_file(folder.join("Cargo.lock"));
    let found = packages(folder, None)?;
    let found = found.into_iter().find(|package| package.name == wanted.name);
    let found = found.with_context(|| format!("cargo did not bring `{}`", wanted.name))?;
    Ok((found.folder, found.version))
}

struct Package {
    name: String,
    version: String,
    folder: PathBuf,
}

/// All packages that a workspace needs with some features.
fn packages(folder: &Path, features: Option<&str>) -> Result<Vec<Package>> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1"]).current_dir(folder);
    if let Some(features) = features {
        command.args(["--features", features]);
    }
    let text = output(&mut command)?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let package = |package: &Value| {
        Some(Package {
            name: package["name"].as_str()?.to_owned(),
            version: package["version"].as_str()?.to_owned(),
            folder: Path::new(package["manifest_path"].as_str()?).parent()?.to_owned(),
        })
    };
    Ok(packages.iter().filter_map(package).collect())
}

/// Copies the crate and makes it one for Linux.
fn adapt(
    source: &Path,
    folder: &Path,
    bindings: &Path,
    patches: &[&str],
    known: Option<&Guest>,
) -> Result<()> {
    let mut changes = Changes::new(known.map_or(&[], |guest| guest.changes));
    copy(source, folder, Path::new(""), &mut |path, text| {
        let text = changes.apply(path, text);
        let kept = known.is_some_and(|guest| guest.kept.iter().any(|file| Path::new(file) == path));
        let text = if kept { text } else { for_linux(path, &text) };
        if path == Path::new("Cargo.toml") { with_bindings(&text, bindings, patches) } else { text }
    })?;
    changes.all_made(source)?;
    fs::create_dir_all(folder.join(".cargo"))?;
    let config = format!(
        "[target.x86_64-unknown-linux-gnu]\nrustflags = [\"-L\", \"native={}\"]\n",
        bindings.join("lib").display()
    );
    write_if_new(&folder.join(".cargo/config.toml"), &config)
}

/// A manifest that names our bindings, and the framework for tests.
fn with_bindings(manifest: &str, bindings: &Path, patches: &[&str]) -> String {
    let patches: Vec<String> = patches
        .iter()
        .map(|name| format!("{name} = {{ path = \"{}\" }}", bindings.join(name).display()))
        .collect();
    format!(
        "{manifest}\n[workspace]\n\n[target.'cfg(target_os = \"linux\")'.dev-dependencies.softmetal-framework]\npath = \"{}\"\n\n\
         [patch.crates-io]\n{}\n\n[profile.dev.package.softmetal]\nopt-level = 3\n",
        root().join("crates/softmetal-framework").display(),
        patches.join("\n")
    )
}

/// What a file of a crate for Macs must say on Linux.
fn for_linux(path: &Path, text: &str) -> String {
    let rust = path.extension().is_some_and(|ending| ending == "rs");
    if !rust && path != Path::new("Cargo.toml") {
        return text.to_owned();
    }
    let mut text = text.to_owned();
    for apple in ["target_os = \"macos\"", "target_vendor = \"apple\""] {
        text = text.replace(apple, &format!("any({apple}, target_os = \"linux\")"));
        // As manifests in double quotes have it.
        let quoted = apple.replace('"', "\\\"");
        text = text.replace(&quoted, &format!("any({quoted}, target_os = \\\"linux\\\")"));
    }
    if !rust {
        return text;
    }
    let lines = text.lines().filter(|line| {
        let line = line.trim();
        !(line.starts_with("#[link(") && line.contains("kind = \"framework\"") && line.ends_with(")]"))
    });
    let mut text = lines.collect::<Vec<_>>().join("\n") + "\n";
    // What links the framework into the tests.
    let inside = path.parent().unwrap_or(Path::new(""));
    if path == Path::new("src/lib.rs") {
        text.push_str("\n#[cfg(test)]\nuse softmetal_framework as _;\n");
    } else if inside == Path::new("tests") {
        text.push_str("\nuse softmetal_framework as _;\n");
    }
    text
}

/// Copies a folder; texts as `change` makes them. What is there already stays, so that nothing is built again.
fn copy(
    from: &Path,
    to: &Path,
    inside: &Path,
    change: &mut dyn FnMut(&Path, String) -> String,
) -> Result<()> {
    fs::create_dir_all(to.join(inside))?;
    for entry in fs::read_dir(from.join(inside)).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let path = inside.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(from, to, &path, change)?;
        } else if path == Path::new("Cargo.lock") && to.join(&path).is_file() {
            // As the last run left it.
        } else if let Ok(text) = fs::read_to_string(from.join(&path)) {
            write_if_new(&to.join(&path), &change(&path, text))?;
        } else {
            fs::copy(from.join(&path), to.join(&path))?;
        }
    }
    Ok(())
}

/// Sees to it that the crate is built with our bindings, in the versions that they have.
fn use_bindings(folder: &Path, bindings: &Path, patches: &[&str], features: Option<&str>) -> Result<()> {
    let ours = |package: &Package| package.folder.starts_with(bindings);
    let foreign = |found: &[Package]| -> Vec<(String, String)> {
        let named = found.iter().filter(|package| patches.contains(&package.name.as_str()) && !ours(package));
        named.map(|package| (package.name.clone(), package.version.clone())).collect()
    };
    let found = packages(folder, features)?;
    for (name, version) in foreign(&found) {
        let manifest = fs::read_to_string(bindings.join(&name).join("Cargo.toml"))?;
        let own = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
        let own = own.with_context(|| format!("the copy of `{name}` has no version"))?;
        let of = format!("{name}@{version}");
        run_command(cargo().args(["update", "--package", &of, "--precise", own]).current_dir(folder))?;
    }
    let found = packages(folder, features)?;
    if let Some((name, version)) = foreign(&found).first() {
        bail!("it is built with {name} {version}, for which there are no bindings on Linux");
    }
    ensure!(
        found.iter().any(|package| package.name == "objc2-metal"),
        "it does not use objc2-metal, which is what Metal.framework on Linux is for"
    );
    Ok(())
}

/// Builds the tests; the programs.
fn build(folder: &Path, features: Option<&str>) -> Result<Vec<PathBuf>> {
    let mut command = guest_cargo(folder);
    command.args(["test", "--no-run", "--lib", "--tests"]);
    if let Some(features) = features {
        command.args(["--features", features]);
    }
    let said = output(command.args(["--message-format", "json-render-diagnostics"]))?;
    let messages = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let programs = messages.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    let programs: Vec<PathBuf> = programs.collect();
    ensure!(!programs.is_empty(), "cargo made no tests of it");
    Ok(programs)
}

/// Guests share what they are built from.
fn guest_cargo(folder: &Path) -> Command {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    let mut command = cargo();
    command.current_dir(folder).env("CARGO_TARGET_DIR", root().join(target).join("guests"));
    command
}

fn list(program: &Path, folder: &Path) -> Result<Vec<String>> {
    let said = output(Command::new(program).arg("--list").current_dir(folder))?;
    Ok(said.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}

/// How a test ended.
struct Outcome {
    /// Why it did not pass.
    why: Option<String>,
    time: Duration,
}

impl Outcome {
    fn of(program: &Path, test: &str, folder: &Path, limit: Duration) -> Outcome {
        let begun = Instant::now();
        let mut command = Command::new(program);
        command.args(["--exact", test, "--nocapture"]).current_dir(folder).env("RUST_BACKTRACE", "0");
        let why = match limited(&mut command, limit) {
            Ok((Some(0), _)) => None,
            Ok((status, said)) => Some(reason(status, &said)),
            Err(error) => Some(format!("{error:#}")),
        };
        Outcome { why, time: begun.elapsed() }
    }
}

/// The line that says most of why a test failed.
fn reason(status: Option<i32>, said: &str) -> String {
    // What is merely noted does not end a test.
    let ends = |line: &&str| line.starts_with("Metal validation") && !line.contains("NoPool");
    let rule = said.lines().find(ends);
    let mut lines = said.lines().skip_while(|line| !line.contains("panicked at"));
    let panic = lines.next().map(|first| {
        let place = first.split_once("panicked at ").map_or(first, |(_, place)| place);
        let words: Vec<&str> =
            lines.take_while(|line| !line.starts_with("note:")).take(3).map(str::trim).collect();
        format!("{place} {}", words.join(" "))
    });
    let late = said.lines().next_back().filter(|line| line.starts_with("ended: "));
    let found = late.or(rule).map(str::to_owned).or(panic);
    found.unwrap_or_else(|| format!("it ended with {status:?}")).chars().take(220).collect()
}

/// Prints the table; how many tests ended otherwise than is known.
fn report(known: Option<&Guest>, tests: &[(&PathBuf, String)], outcomes: &[Outcome]) -> usize {
    let mut unexpected = 0;
    for ((_, test), outcome) in tests.iter().zip(outcomes) {
        let expected = known.and_then(|guest| guest.failing.iter().find(|(name, _)| name == test));
        let (word, why) = match (&outcome.why, expected) {
            (None, None) => ("passed", String::new()),
            (None, Some((_, why))) => ("PASSED", format!(": it was known to fail, {why}")),
            (Some(found), Some((_, why))) => ("failed", format!(": {found}; as it must: {why}")),
            (Some(found), None) => ("FAILED", format!(": {found}")),
        };
        unexpected += usize::from(word.chars().all(char::is_uppercase));
        println!("{word}  {test}, {:.1} s{why}", outcome.time.as_secs_f64());
    }
    unexpected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_asked_for_by_name_version_and_test() {
        let of =
            |words: &[&str]| Wanted::parse(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let wanted = of(&["kernels@0.11.1", "--test", "gelu", "--limit", "9", "--features", "metal"])
            .expect("it is right");
        assert_eq!((wanted.name.as_str(), wanted.version.as_deref()), ("kernels", Some("0.11.1")));
        assert_eq!(wanted.features.as_deref(), Some("metal"));
        assert_eq!((wanted.tests, wanted.limit), (vec!["gelu".to_owned()], Duration::from_secs(9)));
        for wrong in [&["a", "b"][..], &["--tests"], &["a", "--limit", "x"], &["a", "--test"], &[]] {
            assert!(of(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn sources_for_macs_become_ones_for_linux() {
        let lib = "#[cfg(target_os = \"macos\")]\nmod metal;\n#[link(name = \"Metal\", kind = \"framework\")]\nextern {}\n";
        let made = for_linux(Path::new("src/lib.rs"), lib);
        assert!(
            made.contains("#[cfg(any(target_os = \"macos\", target_os = \"linux\"))]\nmod metal;"),
            "{made}"
        );
        assert!(!made.contains("framework\")") && made.contains("use softmetal_framework as _;"), "{made}");
        let manifest =
            for_linux(Path::new("Cargo.toml"), "[target.\"cfg(target_os = \\\"macos\\\")\".dependencies]");
        assert_eq!(
            manifest,
            "[target.\"cfg(any(target_os = \\\"macos\\\", target_os = \\\"linux\\\"))\".dependencies]"
        );
        assert_eq!(for_linux(Path::new("k.metal"), "target_os = \"macos\""), "target_os = \"macos\"");
    }

    #[test]
    fn a_failure_is_told_by_the_line_that_says_most() {
        let rule = "x\nMetal validation, Range: y\nthread 't' panicked at a.rs:1:1:\nz\n";
        assert_eq!(reason(Some(101), rule), "Metal validation, Range: y");
        let panic = "thread 't' panicked at a.rs:1:1:\nassertion failed\n left: 1\nnote: more\n";
        assert_eq!(reason(Some(101), panic), "a.rs:1:1: assertion failed left: 1");
        assert_eq!(reason(None, "begun\nended: it took too long"), "ended: it took too long");
        assert_eq!(reason(Some(3), ""), "it ended with Some(3)");
    }
}
