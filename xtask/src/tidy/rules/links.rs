//! Links of Markdown files lead to files of the repository.

use std::collections::BTreeSet;

use super::{File, Finding, data_folder, has_extension, parent};

pub(super) fn check(files: &[File], findings: &mut Vec<Finding>) {
    // Files, and the folders they lie in.
    let mut there: BTreeSet<&str> = BTreeSet::new();
    for file in files {
        let mut path = file.path.as_str();
        while !path.is_empty() && there.insert(path) {
            path = parent(path).0;
        }
    }
    let written =
        files.iter().filter(|file| has_extension(&file.path, "md") && data_folder(&file.path).is_none());
    for (file, text) in written.filter_map(|file| Some((file, file.text.as_deref()?))) {
        for (line, target) in targets(text) {
            let path = target.split('#').next().unwrap_or_default();
            let elsewhere = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
            if elsewhere || resolve(parent(&file.path).0, path).is_some_and(|path| there.contains(&*path)) {
                continue;
            }
            let what = format!("links to `{target}`, which is not in the repository");
            findings.push(Finding { path: file.path.clone(), line, rule: "broken-link", what });
        }
    }
}

/// What `[text](target)` and `[name]: target` name, with the number of their line. Code is no link.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        if let Some((name, target)) = line.split_once("]: ")
            && name.starts_with('[')
        {
            found.extend(target.split_whitespace().next().map(|target| (index + 1, target)));
        }
        let mut at = 0;
        for (piece, part) in line.split('`').enumerate() {
            // Between an odd and an even backquote stands code.
            if piece % 2 == 0 {
                let ends = part.match_indices("](").map(|(start, _)| at + start + 2);
                let inside = |start: usize| line[start..].split([')', ' ']).next();
                found.extend(ends.filter_map(inside).map(|target| (index + 1, target)));
            }
            at += part.len() + 1;
        }
    }
    found
}

/// A path from the root, where `path` is one from `folder`; nothing where it leads out of the repository.
fn resolve(folder: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    if path.starts_with('/') {
        return None;
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        let other = |path: &str| File { path: path.into(), text: None };
        let markdown = File { path: path.into(), text: Some(text.into()) };
        let mut findings = Vec::new();
        let files = [markdown, other("docs/a.md"), other("crates/x/src/lib.rs"), other("LICENSE")];
        check(&files, &mut findings);
        findings.into_iter().map(|finding| format!("{} {}", finding.line, finding.what)).collect()
    }

    #[test]
    fn a_link_to_what_is_not_there_is_found_where_it_stands() {
        let text = "See [a](a.md)\nand [b](b.md#part), [c](../docs/c.md \"title\").\n\n[d]: ../d.md\n";
        let lost =
            |line: usize, target: &str| format!("{line} links to `{target}`, which is not in the repository");
        let expected = [lost(2, "b.md#part"), lost(2, "../docs/c.md"), lost(4, "../d.md")];
        assert_eq!(found("docs/b2.md", text), expected);
        assert_eq!(found("README.md", "[a](a.md) [out](../README.md) [root](/LICENSE)").len(), 3);
        assert_eq!(found("README.md", "`code` [`lib`](crates/y) `more`").len(), 1);
    }

    #[test]
    fn links_to_files_folders_headings_and_the_web_are_fine() {
        let text = "[a](docs/a.md#b) [x](crates/x) [y](crates/x/src/) ![z](./LICENSE) [here](#more)\n\
            [web](https://example.com/a.md) [mail](mailto:a@example.com)\n[r]: docs/a.md\n";
        assert!(found("README.md", text).is_empty());
        assert!(found("crates/x/docs/x.md", "[a](../../../docs/a.md) [lib](../src/lib.rs)").is_empty());
    }

    #[test]
    fn code_holds_no_links() {
        let text = "`f[i](x)` and\n```rust\nlet y = f[0](z); // [a](b.md)\n```\n";
        assert!(found("README.md", text).is_empty());
        assert_eq!(found("README.md", "```\n```\n[a](b.md)").len(), 1);
    }

    #[test]
    fn data_from_elsewhere_keeps_its_links() {
        assert!(found("crates/x/tests/data/README.md", "[a](b.md)").is_empty());
    }
}
