//! Each rule on the smallest file that breaks it, and on one that only looks as if it did.

use super::*;

fn file(path: &str, text: &str) -> File {
    File { path: path.into(), text: Some(text.into()) }
}

/// `line rule` of each finding in one file.
fn found(path: &str, text: &str) -> Vec<String> {
    check(&[file(path, text)]).iter().map(|finding| format!("{} {}", finding.line, finding.rule)).collect()
}

const LIB: &str = "crates/metallic-core/src/graph.rs";
const NONE: [&str; 0] = [];

#[test]
fn a_panic_in_library_code_is_found_where_it_stands() {
    let text = "fn f() {\n    a.unwrap();\n    b.expect(\"x\");\n    panic!(\"y\");\n}\n";
    assert_eq!(found(LIB, text), ["2 panic", "3 panic", "4 panic"]);
}

#[test]
fn a_panic_is_fine_in_tests_tools_comments_and_strings() {
    assert_eq!(found(LIB, "#[cfg(test)]\nmod tests {\n    fn f() { a.unwrap(); }\n}\n"), NONE);
    assert_eq!(found(LIB, "/// ```\n/// a.unwrap();\n/// ```\nfn f() { g(\".unwrap()\"); }\n"), NONE);
    for path in [
        "crates/metallic-core/tests/a.rs",
        "crates/metallic-core/src/graph/tests.rs",
        "crates/metallic-testkit/src/lib.rs",
        "xtask/src/main.rs",
    ] {
        assert_eq!(found(path, "fn f() { a.unwrap(); }\n"), NONE, "{path}");
    }
}

#[test]
fn methods_that_only_resemble_unwrap_are_fine() {
    assert_eq!(found(LIB, "a.unwrap_or(1); b.unwrap_or_default(); c.expect_err(2); my_panic!(3);\n"), NONE);
}

#[test]
fn a_stated_invariant_excuses_the_statement_below_it_and_no_other() {
    assert_eq!(found(LIB, "a.unwrap(); // INVARIANT: a is set above\n"), NONE);
    assert_eq!(found(LIB, "// INVARIANT: a is set above,\n// always.\nlet x = a.unwrap();\n"), NONE);
    assert_eq!(found(LIB, "// INVARIANT: a is set above\nlet x = a\n    .b()\n    .unwrap();\n"), NONE);
    assert_eq!(
        found(LIB, "// INVARIANT: a is set above\nlet x = a.unwrap();\nlet y = b.unwrap();\n"),
        ["3 panic"]
    );
}

#[test]
fn the_file_of_a_test_module_is_test_code() {
    let files = [
        file("crates/metallic-core/src/lib.rs", "#[cfg(test)]\nmod cases;\nmod real;\n"),
        file("crates/metallic-core/src/cases.rs", "fn f() { a.unwrap(); }\n"),
        file("crates/metallic-core/src/real.rs", "fn f() { a.unwrap(); }\n"),
    ];
    let paths: Vec<String> = check(&files).into_iter().map(|finding| finding.path).collect();
    assert_eq!(paths, ["crates/metallic-core/src/real.rs"]);
}

#[test]
fn leftovers_and_ignored_tests_are_found_everywhere() {
    let leftovers: String = LEFTOVERS.iter().flat_map(|word| [word, ");\n"]).collect();
    assert_eq!(
        found("crates/metallic-core/tests/a.rs", &leftovers),
        ["1 leftover", "2 leftover", "3 leftover"]
    );
    assert_eq!(
        found("crates/metallic-core/tests/a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n"),
        ["2 ignored-test"]
    );
}

#[test]
fn unsafe_stays_behind_its_fences() {
    let text = "fn f() { unsafe { g() } }\n";
    assert_eq!(found(LIB, text), ["1 unsafe-fence"]);
    assert_eq!(found("crates/metallic-cpu/src/simd/avx2.rs", text), NONE);
    assert_eq!(found("crates/metallic-formats/src/mmap.rs", text), NONE);
    assert_eq!(found("crates/metallic-gpu/src/metal/buffer.rs", text), NONE);
    assert_eq!(found("crates/metallic-gpu/src/driver/import.rs", text), ["1 unsafe-fence"]);
    assert_eq!(found("crates/metallic-formats/src/gguf.rs", text), ["1 unsafe-fence"]);
    assert_eq!(found(LIB, "#![forbid(unsafe_code)] // no unsafe here\n"), NONE);
}

#[test]
fn long_files_and_a_long_readme_are_found() {
    assert_eq!(found(LIB, &"fn f() {}\n".repeat(600)), NONE);
    assert_eq!(found(LIB, &"fn f() {}\n".repeat(601)), ["1 long-file"]);
    assert_eq!(found("README.md", &"line\n".repeat(150)), NONE);
    assert_eq!(found("README.md", &"line\n".repeat(151)), ["0 long-readme"]);
    assert_eq!(found("docs/README.md", &"line\n".repeat(151)), NONE);
}

#[test]
fn white_space_is_checked_in_what_people_write_and_not_in_data() {
    assert_eq!(found("a.toml", "x \n\ty\n"), ["1 white-space", "2 white-space"]);
    assert_eq!(found(".ci/run", "x \n"), ["1 white-space"]);
    assert_eq!(found("Cargo.lock", "x \n"), NONE);
}

#[test]
fn paths_of_one_machine_are_found_and_relative_ones_are_not() {
    let [work, root] = [MACHINE_PATHS[0], MACHINE_PATHS[1]];
    assert_eq!(found("a.md", &format!("see {work}x\n`{root}x`\n")), ["1 machine-path", "2 machine-path"]);
    assert_eq!(found("a.md", &format!("see frame{work}x, ..{root}x, $HOME{work}x\n")), NONE);
}

#[test]
fn registry_hosts_are_found_but_in_lock_files() {
    let text = format!("https://{}/simple\n", REGISTRY_HOSTS[1]);
    assert_eq!(found("a.py", &text), ["1 registry-host"]);
    assert_eq!(found("Cargo.lock", &text), NONE);
}

#[test]
fn a_folder_of_data_needs_a_licence_note() {
    let blob = || File { path: "crates/a/tests/data/deep/x.bin".into(), text: None };
    let rules = |files: &[File]| {
        check(files).iter().map(|finding| format!("{} {}", finding.path, finding.rule)).collect::<Vec<_>>()
    };
    let note = |folder: &str, text: &str| file(&format!("{folder}/README.md"), text);
    let bare = ["crates/a/tests/data/deep data-licence"];
    assert_eq!(rules(&[blob()]), bare);
    assert_eq!(rules(&[blob(), note("crates/a/tests/data/deep", "made by hand\n")]), bare);
    assert_eq!(rules(&[blob(), note("crates/a/tests", "Licence: MIT\n")]), bare);
    assert_eq!(rules(&[blob(), note("crates/a/tests/data", "Licence: MIT\n")]), NONE);
    assert_eq!(rules(&[blob(), note("crates/a/tests/data/deep", "Licence: MIT\n")]), NONE);
    assert_eq!(rules(&[file("crates/a/src/data/x.rs", "fn f() {}\n")]), NONE);
}

#[test]
fn the_architecture_names_every_crate_once_it_exists() {
    let crates = || [file("crates/a/Cargo.toml", ""), file("crates/b/Cargo.toml", "")];
    assert!(check(&crates()).is_empty());
    let mut files = Vec::from(crates());
    files.push(file("ARCHITECTURE.md", "`a` is here\n"));
    let findings: Vec<String> = check(&files).into_iter().map(|finding| finding.what).collect();
    assert_eq!(findings, ["does not name the crate `b`"]);
}

#[test]
fn a_finding_prints_as_a_place_an_editor_can_open() {
    let finding = Finding { path: "a.rs".into(), line: 7, rule: "panic", what: "x".into() };
    assert_eq!(finding.to_string(), "a.rs:7: panic: x");
}
