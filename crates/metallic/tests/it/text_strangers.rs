//! Tokenizers and templates made to do harm: each becomes an error, soon and in little memory.

use std::path::Path;
use std::time::{Duration, Instant};

use metallic::text::{HfFiles, TextError, Tokenizer};
use serde_json::{Value, json};

/// What an attack may take, on a slow machine with other work, compiled without optimization.
const LIMIT: Duration = Duration::from_secs(10);

/// Runs `work` and fails if it takes too long.
fn soon<T>(name: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    eprintln!("{name}: {:?}", start.elapsed());
    assert!(start.elapsed() < LIMIT, "{name} took {:?}", start.elapsed());
    result
}

fn tokenizer(edit: impl FnOnce(&mut Value)) -> Result<Tokenizer, TextError> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text/bpe/tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    edit(&mut file);
    let bytes = serde_json::to_vec(&file).unwrap();
    Tokenizer::from_hf_files(HfFiles { tokenizer: &bytes, ..HfFiles::default() })
}

/// The error of making a tokenizer or, if that succeeds, of encoding `text` with it.
fn refusal(edit: impl FnOnce(&mut Value), text: &str) -> String {
    let result = tokenizer(edit).and_then(|t| t.encode(text, true, true));
    result.map(|ids| ids.len()).unwrap_err().to_string()
}

fn split(regex: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"})
}

#[test]
fn patterns_that_explode_when_compiled_are_refused() {
    for pattern in [
        "(?:(?:a{1,60}){1,60}){1,60}(?=b)",
        "(?:(?:a{1,1000}){1,1000}){1,1000}(?=b)",
        "(?:(?:a{1,60}){1,60}){1,60}",
        r"(?:\p{L}{1,100}){1,100}(?!x)",
        &"(?=a)b".repeat(10_000),
        &"(".repeat(20_000),
    ] {
        let name = &pattern[..pattern.len().min(30)];
        let error = soon(name, || refusal(|f| f["pre_tokenizer"] = split(pattern), "aaaa"));
        assert!(error.contains("pattern") && error.len() < 1000, "{name}: {error}");
    }
}

#[test]
fn patterns_that_explode_when_they_run_are_stopped() {
    for pattern in ["(?:a+)+(?=b)", "(?:a|aa)+(?=b)", "a*a*a*a*a*a*(?=b)", r"(a+)+\1(?=c)"] {
        let tokenizer = tokenizer(|f| f["pre_tokenizer"] = split(pattern)).unwrap();
        // One long word, and many that each stay within the limit of a search.
        for text in ["a".repeat(3000), "aaaaaaaaaaaaaaaaaaaaaaaa ".repeat(2000)] {
            if let Err(error) = soon(pattern, || tokenizer.encode(&text, true, true)) {
                assert!(error.to_string().contains(pattern), "{error}");
            }
        }
    }
}

#[test]
fn normalizers_that_multiply_the_text_are_stopped() {
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let sequence = |list: Vec<Value>| json!({"type": "Sequence", "normalizers": list});
    let doubling = vec![replace("a", "aa"); 60];
    let prepending = vec![json!({"type": "Prepend", "prepend": "x".repeat(100_000)}); 60];
    for (name, normalizer) in [
        ("doubling", sequence(doubling)),
        ("a long replacement", replace("a", &"a".repeat(1 << 20))),
        ("prepending", sequence(prepending)),
    ] {
        let error = soon(name, || refusal(|f| f["normalizer"] = normalizer, &"a".repeat(1 << 16)));
        assert!(error.contains("normalizers"), "{name}: {error}");
    }
    let many = sequence(vec![json!({"type": "NFC"}); 500]);
    let error = soon("many", || refusal(|f| f["normalizer"] = many, "a"));
    assert!(error.contains("64") && error.contains("normalizers"), "{error}");
    let many = json!({"type": "Sequence", "pretokenizers": vec![split("a"); 500]});
    let error = soon("many", || refusal(|f| f["pre_tokenizer"] = many, "a"));
    assert!(error.contains("64") && error.contains("pretokenizers"), "{error}");
}

#[test]
fn unigram_tables_that_lie_are_refused() {
    let model = |vocab: Value| json!({"type": "Unigram", "unk_id": 0, "vocab": vocab});
    let long = model(json!([["<unk>", 0.0], ["a".repeat(5000), -1.0]]));
    let error_of = |model: Value| {
        soon("unigram", || refusal(|f| (f["model"], f["added_tokens"]) = (model, json!([])), "aaa"))
    };
    let error = error_of(long);
    assert!(error.contains("5000") && error.contains("1024"), "{error}");
    let error = error_of(model(json!([["<unk>", 0.0], ["a", "low"]])));
    assert!(error.contains("[token, score]"), "{error}");
    // Every length matches everywhere: the work is bounded by the longest.
    let nested: Vec<Value> = (1..1000).map(|n| json!(["a".repeat(n), -1.0])).collect();
    let all = model(json!([vec![json!(["<unk>", 0.0])], nested].concat()));
    soon("nested tokens", || {
        tokenizer(|f| (f["model"], f["added_tokens"]) = (all, json!([]))).unwrap().encode(
            &"a".repeat(20_000),
            true,
            true,
        )
    })
    .unwrap();
}
