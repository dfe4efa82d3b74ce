//! Bad input: a reason, a hint, an exit code, and never a panic.

use std::{fs, time::Duration};

use metallic_testkit::data;
use serde::Deserialize;

use crate::support::{Machine, limited, stories};

#[test]
fn every_bad_input_has_a_reason_and_a_hint() {
    let machine = Machine::without_hub();
    let folder = machine.folder();
    fs::create_dir(folder.join("empty")).unwrap();
    fs::write(folder.join("text.gguf"), "this is no model").unwrap();
    let whole = fs::read(stories()).unwrap();
    fs::write(folder.join("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    fs::write(folder.join("bytes.txt"), b"a\xff").unwrap();
    fs::write(folder.join("short.txt"), "short").unwrap();
    fs::write(folder.join("messages.json"), "{\"role\": \"user\"}").unwrap();
    fs::write(folder.join("list.json"), "[]").unwrap();
    let long = "word ".repeat(600);
    let (model, prompt) = (stories(), long.as_str());
    let cases: &[(&[&str], &str, &str)] = &[
        (&["run", "-m", "./no.gguf", "x"], "no file or folder `./no.gguf`", "check the path"),
        (&["run", "-m", "empty", "x"], "has no config.json", "config.json"),
        (&["run", "-m", "text.gguf", "x"], "not a GGUF file", "GGUF file"),
        (&["run", "-m", "cut.gguf", "x"], "cut.gguf", "download it again"),
        (&["run", "-m", &model, "--raw", prompt], "the context holds 512", "shorten the prompt"),
        (
            &["run", "-m", &model, "--raw", "--ctx", "4", "Once upon a time"],
            "5 tokens, the context holds 4",
            "--ctx",
        ),
        (&["run", "-m", &model, "--raw", "--kv-type", "q8_0", "x"], "cache of Q8_0", "--kv-type"),
        (&["run", "-m", &model, "--raw", "--logit-bias", "600=1", "x"], "logit_bias is 600", "--help"),
        (&["tool", "generate", "-m", &model, "--tokens", "1,512"], "token 512", "tool tokenize"),
        (&["tool", "generate", "-m", &model, "--tokens", "1", "-n", "600"], "context holds 512", "fewer"),
        (&["tool", "logits", "-m", &model, "--tokens", "4294967295"], "token 4294967295", "tool tokenize"),
        (&["tool", "tokenize", "-m", &model, "--file", "bytes.txt"], "byte 1 is wrong", "UTF-8"),
        (&["tool", "perplexity", "-m", &model, "--file", "short.txt"], "one window needs 512", "--ctx"),
        (&["tool", "perplexity", "-m", &model, "--file", "short.txt", "--ctx", "4096"], "holds 512", "fewer"),
        (
            &["tool", "template", "-m", &model, "--messages", "messages.json"],
            "does not fit",
            "a list of messages",
        ),
        (&["tool", "template", "-m", &model, "--messages", "list.json"], "no chat template", "instruct"),
        (&["quantize", "empty", "o.gguf", "--type", "f16"], "has no config.json", "config.json"),
        (&["quantize", &model, "no/o.gguf", "--type", "f16"], "cannot write", "folder"),
        (
            &["quantize", &model, "o.gguf", "--type", "q4_k_m", "--imatrix", &model],
            "it is not an importance matrix",
            "metallic imatrix",
        ),
        (&["bench", "-m", &model, "-p", "600"], "context holds 512", "fewer"),
        (&["inspect", "text.gguf"], "not a GGUF file", "GGUF file"),
        (&["inspect", "cut.gguf"], "cut.gguf", "download it again"),
    ];
    for (args, reason, hint) in cases {
        let ran = machine.run(args).failed(1, reason, hint);
        assert_eq!(ran.out, "", "{args:?}");
    }
    assert!(!folder.join("o.gguf").exists());
}

#[test]
fn options_out_of_range_are_wrong_usage() {
    let machine = Machine::without_hub();
    let model = stories();
    let cases: &[(&[&str], &str)] = &[
        (&["run", "-n", "0", "x"], "--max-tokens"),
        (&["run", "--temp", "-1", "x"], "--temp"),
        (&["run", "--ctx", "0", "x"], "--ctx"),
        (&["run", "--device", "toaster", "x"], "--device"),
        (&["run", "-t", "0", "x"], "--threads"),
        (&["run", "-t", "100000", "x"], "as this machine has"),
        (&["tool", "generate", "--tokens", "1,x"], "`x` is not a token id"),
        (&["tool", "generate", "--tokens", ""], "no token ids"),
        (&["tool", "generate", "--tokens", "1", "-n", "0"], "--max-tokens"),
        (&["tool", "logits"], "--tokens"),
        (&["tool", "tokenize"], "TEXT"),
        (&["bench", "-p", "0"], "--prompt"),
        (&["bench", "-r", "0"], "--repetitions"),
    ];
    for (args, part) in cases {
        let args: Vec<&str> = args.iter().copied().chain(["-m", &model]).collect();
        let ran = machine.run(&args);
        assert!(ran.code == Some(2) && ran.err.contains(part) && ran.out.is_empty(), "{args:?}: {ran:?}");
    }
}

const LIMIT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Bad {
    path: String,
    kind: String,
    expect: String,
}

#[test]
fn malformed_models_are_refused_or_run_but_never_crash() {
    let Some(shared) = data::shared() else {
        return data::not_run("malformed models on the command line", "the golden set");
    };
    let folder = shared.join("golden/bad");
    let cases: Vec<Bad> = serde_json::from_slice(&fs::read(folder.join("MANIFEST.json")).unwrap()).unwrap();
    assert!(cases.len() > 100);
    let machine = Machine::without_hub();
    let mut wrong = Vec::new();
    for case in &cases {
        let path = folder.join(&case.path);
        let path = path.to_str().unwrap();
        let mut runs =
            vec![limited(&machine, &["tool", "generate", "-m", path, "--tokens", "1,2,3", "-n", "3"], LIMIT)];
        let mut expect = vec![case.expect.as_str()];
        if case.kind == "tokenizer" {
            runs.push(limited(&machine, &["tool", "tokenize", "-m", path, "Hello"], LIMIT));
            expect.push(case.expect.as_str());
        }
        for (ran, expect) in runs.iter().zip(expect) {
            let fits = match expect {
                "ok" => ran.code == Some(0),
                "error" => ran.code == Some(1),
                _ => matches!(ran.code, Some(0 | 1)),
            };
            let errors = ran.err.lines().filter(|line| line.starts_with("error: ")).count();
            let told = errors == usize::from(ran.code == Some(1));
            if !fits || !told || ran.err.contains("bug in metallic") {
                wrong.push(format!("{} ({expect}): {ran:?}", case.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
