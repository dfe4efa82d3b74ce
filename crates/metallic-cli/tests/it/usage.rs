//! Help, completions, names, exit codes.

use std::io;

use metallic::device::{OpKind, Provider};

use crate::{
    hub::{Hub, noise},
    support::{Machine, Ran},
};

#[test]
fn every_help_text_has_examples() {
    let machine = Machine::without_hub();
    let text = ["tokenize", "detokenize", "template", "logits", "generate", "perplexity"];
    let tools = text.into_iter().chain(["plan", "cache-dump", "ptx"]);
    let tools: Vec<String> = tools.map(|tool| format!("tool {tool}")).collect();
    let commands = [
        "run",
        "chat",
        "serve",
        "bench",
        "top",
        "devices",
        "inspect",
        "quantize",
        "imatrix",
        "tool",
        "pull",
        "list",
        "rm",
        "completions",
    ];
    for command in commands.into_iter().chain(tools.iter().map(String::as_str)) {
        for flag in ["-h", "--help"] {
            let args: Vec<&str> = command.split(' ').chain([flag]).collect();
            let help = machine.run(&args).ok().out;
            assert!(help.contains("Examples:") && help.contains(&format!("metallic {command}")), "{help}");
        }
    }
    let help = machine.run(&["--help"]).ok().out;
    assert!(help.contains("Examples:"), "{help}");
    let forms = machine.run(&["pull", "--help"]).ok().out;
    assert!(forms.contains("OWNER/REPO:Q4_K_M") && forms.contains("METALLIC_HOME"), "{forms}");
    let help = machine.run(&["run", "--help"]).ok().out;
    for op in OpKind::ALL {
        // Every provider, by its flag and by its variable.
        let choices = op.providers().map(Provider::name).collect::<Vec<_>>().join("|");
        assert!(help.contains(&format!("`{op}={choices}`")) && help.contains(&op.variable()), "{help}");
    }
    for variable in ["SOFTMETAL_CLANG", "SOFTMETAL_CACHE", "METALLIC_KERNEL_CACHE", "METALLIC_CPU_ISA"] {
        assert!(help.contains(variable), "{help}");
    }
    assert!(help.contains("METALLIC_DUMP_GRAPH_PLAN"), "{help}");
}

#[test]
fn completions_are_made_for_every_shell() {
    let machine = Machine::without_hub();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = machine.run(&["completions", shell]).ok().out;
        for word in ["metallic", "pull", "run", "chat", "devices", "provider", "perplexity", "quantize"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn wrong_usage_is_exit_code_two() {
    let machine = Machine::without_hub();
    for args in [&["nonsense"][..], &["pull", "--nonsense"], &["rm"], &["completions", "tcl"], &[]] {
        assert_eq!(machine.run(args).code, Some(2), "{args:?}");
    }
    assert_eq!(machine.run(&["--version"]).ok().out, format!("metallic {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn names_that_mean_nothing_get_a_suggestion() {
    let machine = Machine::without_hub();
    machine.run(&["pull", "smolm2"]).failed(1, "no model `smolm2`", "did you mean `smollm2`?");
    machine.run(&["pull", "xyzzy"]).failed(1, "no model `xyzzy`", "metallic list");
    machine.run(&["pull", "a/b/c"]).failed(1, "`a/b/c` is not a model name", "OWNER/REPO");
    machine.run(&["pull", "./no.gguf"]).failed(1, "no file or folder `./no.gguf`", "check the path");
    machine.run(&["pull", ""]).failed(1, "it is empty", "OWNER/REPO");
}

#[test]
fn a_hub_that_is_not_there_is_an_error_at_once() {
    let machine = Machine::without_hub();
    machine.run(&["pull", "owner/repo"]).failed(1, "cannot reach 127.0.0.1", "HTTPS_PROXY");
    let mut command = machine.command(&["pull", "owner/repo"]);
    let ran = Ran::from(command.env("HF_ENDPOINT", "hub.example").output().unwrap());
    ran.failed(1, "HF_ENDPOINT is `hub.example`", "correct or unset");
    let mut command = machine.command(&["pull", "owner/repo"]);
    let ran = Ran::from(command.env("SSL_CERT_FILE", "/nothing").output().unwrap());
    ran.failed(1, "SSL_CERT_FILE is `/nothing`", "correct or unset");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let machine = Machine::without_hub();
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let mut command = machine.command(&["completions", "bash"]);
    let output = command.stdout(writer).output().unwrap();
    let ran = Ran::from(output).ok();
    assert_eq!(ran.err, "");
}

#[test]
fn off_a_terminal_there_are_no_escapes_and_quiet_is_silent() {
    let hub = Hub::start();
    hub.add("m-Q8_0.gguf", noise(1000));
    let machine = Machine::new(&hub);
    let ran = machine.run(&["pull", "owner/repo"]).ok();
    assert!(!ran.err.contains('\x1b') && !ran.err.contains('\r'), "{:?}", ran.err);
    assert!(ran.err.contains("m-Q8_0.gguf (1.0 kB)"), "{:?}", ran.err);
    machine.run(&["rm", "-y", "owner/repo"]).ok();
    let ran = machine.run(&["-q", "pull", "owner/repo"]).ok();
    assert_eq!(ran.err, "");
}

#[test]
fn the_aliases_are_listed_for_people_and_programs() {
    let machine = Machine::without_hub();
    let text = machine.run(&["list", "--aliases"]).ok().out;
    assert!(text.contains("smollm2") && text.contains("mistral-7b"), "{text}");
    let rows = machine.run(&["list", "--aliases", "--json"]).ok().json();
    assert!(rows.as_array().unwrap().iter().any(|row| row["alias"] == "llama3.2-1b"));
}
