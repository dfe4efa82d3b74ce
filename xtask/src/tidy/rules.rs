//! The rules. Each looks at the files as they are and returns what breaks it.

mod links;

use std::collections::BTreeSet;
use std::path::Path;

use super::source::{Line, Source};
use super::{File, Finding};

const RUST_FILE_LINES: usize = 600;
const README_LINES: usize = 150;
/// Files of these kinds are written by hand.
const HAND_WRITTEN: &[&str] =
    &[".rs", ".toml", ".md", ".py", ".sh", ".metal", ".h", ".yml", ".yaml", ".ci/run"];
/// Folders of test data: their contents came from elsewhere and are left as they are.
const DATA_FOLDERS: &[&str] = &["data", "testdata", "fixtures", "golden"];
/// Where `unsafe` may stand: a folder, or the start of a file's name.
const UNSAFE_FENCES: &[&str] = &[
    "crates/metallic-cpu/src/simd/",
    "crates/metallic-cpu/src/simd.rs",
    "crates/metallic-formats/src/map.rs",
    "crates/metallic-formats/src/mmap",
    "crates/metallic-gpu/src/cuda/api/",
    "crates/metallic-gpu/src/metal/",
    "crates/softmetal/src/runtime/",
    "crates/softmetal-framework/src/metal/memory.rs",
    "crates/softmetal-framework/src/objc/",
    "crates/softmetal-framework/tests/",
];
/// Crates whose code may panic: a failure there is a test's failure or ends a program of ours.
const NOT_LIBRARIES: &[&str] = &["metallic-testkit", "metallic-cli", "softmetal-framework"];

// In two pieces each, so that this file keeps its own rules.
const LEFTOVERS: &[&str] = &[concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
const PANICS: &[&str] = &[concat!(".unwrap", "()"), concat!(".expect", "("), concat!("panic", "!(")];
const MACHINE_PATHS: &[&str] = &[concat!("/work", "/"), concat!("/root", "/")];
const REGISTRY_HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
];

/// Every finding, in the order of the files.
pub(crate) fn check(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let sources: Vec<(&File, Source)> = files
        .iter()
        .filter(|file| has_extension(&file.path, "rs"))
        .filter_map(|file| Some((file, Source::new(file.text.as_deref()?))))
        .collect();
    let test_files = test_files(&sources);
    for (file, source) in &sources {
        let library =
            is_library(&file.path) && !is_test_path(&file.path) && !test_files.contains(file.path.as_str());
        check_rust(&file.path, source, library, &mut findings);
    }
    for file in files {
        if let Some(text) = &file.text {
            check_text(&file.path, text, &mut findings);
        }
    }
    check_data_licences(files, &mut findings);
    check_architecture(files, &mut findings);
    links::check(files, &mut findings);
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    findings
}

fn check_rust(path: &str, source: &Source, library: bool, findings: &mut Vec<Finding>) {
    let mut report = |index: usize, rule, what: String| {
        findings.push(Finding { path: path.into(), line: index + 1, rule, what });
    };
    let fenced = UNSAFE_FENCES.iter().any(|fence| path.starts_with(fence));
    for (index, line) in source.lines.iter().enumerate() {
        if let Some(word) = LEFTOVERS.iter().find(|word| starts_word(&line.code, word)) {
            report(index, "leftover", format!("`{word}…)` has no place in finished code"));
        }
        if line.code.contains("#[ignore") {
            report(index, "ignored-test", "a test that does not run proves nothing".into());
        }
        if !fenced && has_word(&line.code, "unsafe") {
            report(index, "unsafe-fence", format!("`unsafe` may stand only in {}", UNSAFE_FENCES.join(", ")));
        }
        let panics = library && !line.test && !is_excused(&source.lines, index);
        if let Some(word) = PANICS.iter().find(|word| panics && starts_word(&line.code, word)) {
            let hint = "return an error, or say above it why it cannot happen: `// INVARIANT: …`";
            report(index, "panic", format!("`{word}` in library code: {hint}"));
        }
    }
    if source.lines.len() > RUST_FILE_LINES {
        report(
            0,
            "long-file",
            format!("{} lines, {RUST_FILE_LINES} are allowed: split it by idea", source.lines.len()),
        );
    }
}

fn check_text(path: &str, text: &str, findings: &mut Vec<Finding>) {
    let mut report =
        |line, rule, what: String| findings.push(Finding { path: path.into(), line, rule, what });
    let data = data_folder(path).is_some();
    let hand_written = !data && HAND_WRITTEN.iter().any(|end| path.ends_with(end));
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if hand_written && line.ends_with([' ', '\t']) {
            report(number, "white-space", "ends in white space".into());
        }
        if hand_written && line.contains('\t') {
            report(number, "white-space", "has a tab".into());
        }
        if let Some(found) = MACHINE_PATHS.iter().find(|found| starts_path(line, found)) {
            report(number, "machine-path", format!("names a path of one machine, `{found}`"));
        }
        let host = REGISTRY_HOSTS.iter().find(|host| line.contains(*host));
        if let (Some(host), true) = (host, hand_written) {
            report(
                number,
                "registry-host",
                format!("names a package registry's host, `{host}`: go through its client"),
            );
        }
    }
    if path == "README.md" && text.lines().count() > README_LINES {
        report(0, "long-readme", format!("{} lines, {README_LINES} are allowed", text.lines().count()));
    }
}

/// A folder of data, or one above it up to the outermost, says under which licence it is there.
fn check_data_licences(files: &[File], findings: &mut Vec<Finding>) {
    let says = |file: &File| file.text.as_deref().is_some_and(|text| text.to_lowercase().contains("licen"));
    let note = |file: &&File| {
        let name = parent(&file.path).1.to_lowercase();
        ["license", "licence", "notice", "readme"].iter().any(|start| name.starts_with(start)) && says(file)
    };
    let noted: BTreeSet<&str> = files.iter().filter(note).map(|file| parent(&file.path).0).collect();
    let mut bare = BTreeSet::new();
    for file in files {
        let Some(outermost) = data_folder(&file.path) else { continue };
        let folder = parent(&file.path).0;
        let mut above = std::iter::successors(Some(folder), |&at| Some(parent(at).0))
            .take_while(|at| at.len() >= outermost.len());
        if !above.any(|at| noted.contains(at)) {
            bare.insert(folder);
        }
    }
    let inside =
        |folder: &str, other: &str| folder.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
    for &folder in bare.iter().filter(|folder| !bare.iter().any(|other| inside(folder, other))) {
        let what = "data needs a README or LICENSE that says where it is from and under which licence".into();
        findings.push(Finding { path: folder.into(), line: 0, rule: "data-licence", what });
    }
}

fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == extension)
}

/// A path as its folder and its name.
fn parent(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// ARCHITECTURE.md, once there is one, names every crate.
fn check_architecture(files: &[File], findings: &mut Vec<Finding>) {
    let Some(text) =
        files.iter().find(|file| file.path == "ARCHITECTURE.md").and_then(|file| file.text.as_deref())
    else {
        return;
    };
    for file in files {
        let name = file.path.strip_prefix("crates/").and_then(|rest| rest.strip_suffix("/Cargo.toml"));
        if let Some(name) = name.filter(|name| !text.contains(&format!("`{name}`"))) {
            let what = format!("does not name the crate `{name}`");
            findings.push(Finding { path: "ARCHITECTURE.md".into(), line: 0, rule: "code-map", what });
        }
    }
}

/// Files that are modules declared under `#[cfg(test)]`.
fn test_files(sources: &[(&File, Source)]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (file, source) in sources {
        let (folder, name) = parent(&file.path);
        let stem = name.trim_end_matches(".rs");
        let home = if matches!(stem, "mod" | "lib" | "main") {
            folder.to_string()
        } else {
            format!("{folder}/{stem}")
        };
        for module in &source.test_modules {
            found.insert(format!("{home}/{module}.rs"));
            found.insert(format!("{home}/{module}/mod.rs"));
        }
    }
    found
}

fn is_library(path: &str) -> bool {
    let mut parts = path.split('/');
    let (top, name, folder) = (parts.next(), parts.next(), parts.next());
    top == Some("crates") && folder == Some("src") && !NOT_LIBRARIES.iter().any(|&other| name == Some(other))
}

fn is_test_path(path: &str) -> bool {
    path.ends_with("/tests.rs")
        || path.split('/').any(|part| matches!(part, "tests" | "benches" | "examples"))
}

/// The outermost folder of data that holds `path`, if any. Source modules called `data` are code.
fn data_folder(path: &str) -> Option<&str> {
    let mut end = 0;
    for part in path.split('/') {
        if part == "src" {
            return None;
        }
        let last = end + part.len();
        if DATA_FOLDERS.contains(&part) && last < path.len() {
            return Some(&path[..last]);
        }
        end = last + 1;
    }
    None
}

/// Whether a comment on the line, or right above its statement, says why it cannot fail.
fn is_excused(lines: &[Line], index: usize) -> bool {
    let says = |line: &Line| line.comment.contains("INVARIANT:");
    if says(&lines[index]) {
        return true;
    }
    let mut at = index;
    // A method chain broken over lines belongs to the line it starts on.
    while at > 0 && lines[at].code.trim_start().starts_with(['.', '?', ')', '}']) {
        at -= 1;
        if says(&lines[at]) {
            return true;
        }
    }
    let is_comment = |line: &&Line| line.code.trim().is_empty() && !line.comment.trim().is_empty();
    lines[..at].iter().rev().take_while(is_comment).any(says)
}

/// Whether `word` occurs in `code` and does not continue a longer name.
fn starts_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| word.starts_with('.') || !ends_in_name(&code[..at]))
}

fn has_word(code: &str, word: &str) -> bool {
    let continues = |rest: &str| rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    code.match_indices(word).any(|(at, _)| !ends_in_name(&code[..at]) && !continues(&code[at + word.len()..]))
}

/// Whether an absolute path starts with `prefix` somewhere in `line`; `a/work/b` is a relative one.
fn starts_path(line: &str, prefix: &str) -> bool {
    let relative = |before: &str| before.ends_with(|c: char| c.is_alphanumeric() || "_-.~}>)/*$".contains(c));
    line.match_indices(prefix).any(|(at, _)| !relative(&line[..at]))
}

fn ends_in_name(text: &str) -> bool {
    text.ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests;
