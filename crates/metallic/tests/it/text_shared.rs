//! Tokenizers against the answers of the reference implementations, for the large vocabularies and models that lie
//! outside the repository (`METALLIC_SHARED`, by default `../shared` beside it).

use std::path::{Path, PathBuf};

use metallic::text::{ChatTemplate, Message, TemplateSources, TextError, Tokenizer};
use metallic_formats::Gguf;
use serde_json::Value;

/// The folder with the shared data, or a loud line that the test did not run.
fn shared(what: &str) -> Option<PathBuf> {
    let root = std::env::var_os("METALLIC_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    let path = root.join(what);
    if path.exists() {
        return Some(path);
    }
    eprintln!("NOT RUN: {} does not exist; set METALLIC_SHARED", path.display());
    None
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

fn from_gguf(path: &Path) -> Result<Tokenizer, String> {
    let file = Gguf::open(path).map_err(|e| e.to_string())?;
    Tokenizer::from_gguf(&file.metadata).map_err(|e| e.to_string())
}

fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut out: Vec<_> = entries.filter(|p| p.to_string_lossy().ends_with(end)).collect();
    out.sort();
    out
}

#[test]
fn hugging_face_folders_tokenize_as_the_reference() {
    let Some(root) = shared("golden/arch") else { return };
    let mut checked = 0;
    for folder in files(&root, "") {
        let expected = json(&folder.join("tokenizer_expected.json"));
        let tokenizer = Tokenizer::from_hf(&folder).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let name = folder.display();
            assert_eq!(tokenizer.encode(text, false, true).unwrap(), ids(&case["ids"]), "{name} {text:?}");
            let with_special = tokenizer.encode(text, true, true).unwrap();
            assert_eq!(with_special, ids(&case["ids_with_special"]), "{name} {text:?}");
            assert_eq!(tokenizer.decode(&ids(&case["ids"]), true), case["decoded"], "{name} {text:?}");
            checked += 1;
        }
    }
    assert!(checked >= 200, "only {checked} cases were found");
}

#[test]
fn gguf_files_tokenize_as_the_reference() {
    let Some(root) = shared("golden/gguf") else { return };
    let expected = json(&root.join("TOKENIZER_EXPECTED.json"));
    for (file, expected) in expected["files"].as_object().unwrap() {
        let tokenizer = from_gguf(&root.join(file)).unwrap();
        for case in expected["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, false, false).unwrap(), ids(&case["ids"]), "{file} {text:?}");
            let with_special = tokenizer.encode(text, true, false).unwrap();
            assert_eq!(with_special, ids(&case["ids_with_special"]), "{file} {text:?}");
            assert_eq!(tokenizer.decode(&with_special, true), text, "{file}");
        }
    }
}

/// Texts and ids of a vocabulary's `.inp` and `.out` files.
fn vectors(path: &Path) -> Vec<(String, Vec<u32>)> {
    let read = |end: &str| std::fs::read_to_string(format!("{}{end}", path.display())).unwrap();
    let texts = read(".inp");
    let texts = texts.split("\n__ggml_vocab_test__\n");
    let lines = read(".out");
    let ids = lines.lines().map(|l| l.split_whitespace().map(|id| id.parse().unwrap()).collect());
    texts.map(str::to_owned).zip(ids).collect()
}

#[test]
fn real_vocabularies_tokenize_as_the_reference() {
    let Some(root) = shared("vocab") else { return };
    for path in files(&root, ".gguf") {
        let tokenizer = from_gguf(&path).unwrap();
        let vectors = vectors(&path);
        assert!(vectors.len() > 40, "{}", path.display());
        for (text, ids) in vectors {
            let found = tokenizer.encode(&text, false, false).unwrap();
            assert_eq!(found, ids, "{} {text:?}", path.display());
            assert_eq!(tokenizer.decode(&found, false), text, "{}", path.display());
        }
    }
}

#[test]
fn real_tokenizer_json_files_agree_with_the_same_vocabulary_in_gguf() {
    let Some(root) = shared("vocab") else { return };
    for (folder, vocab) in [("qwen2_5", "qwen2"), ("llama3_2", "llama-bpe"), ("gpt2", "gpt-2")] {
        let path = root.join(format!("ggml-vocab-{vocab}.gguf"));
        let tokenizer = Tokenizer::from_hf(&root.join("tokenizer_json").join(folder)).unwrap();
        let gguf = from_gguf(&path).unwrap();
        for text in ["Cafe\u{301} A\u{30a}ngstro\u{308}m", "\u{1112}\u{1161}\u{11ab}", "ﬁ ½ \u{212b}"] {
            let expected = tokenizer.encode(text, false, true).unwrap();
            assert_eq!(gguf.encode(text, false, true).unwrap(), expected, "{folder} {text:?}");
        }
        for (text, ids) in vectors(&path) {
            assert_eq!(tokenizer.encode(&text, false, true).unwrap(), ids, "{folder} {text:?}");
            assert_eq!(tokenizer.decode(&ids, false), text, "{folder}");
        }
    }
}

#[test]
fn real_models_tokenize_and_chat_as_the_oracle() {
    let Some(root) = shared("models/oracle") else { return };
    for (oracle, model) in [
        ("stories260K-f32", "models/stories260K/stories260K-f32.gguf"),
        ("smollm2-135m-instruct-q4_1", "../models/SmolLM2-135M-Instruct.Q4_1.gguf"),
        ("qwen2.5-coder-0.5b-instruct-q4_k_m", "../models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    ] {
        let Some(model) = shared(model) else { continue };
        let tokenizer = from_gguf(&model).unwrap();
        let expected = json(&root.join(format!("{oracle}.json")));
        for case in expected["tokenize"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, false, false).unwrap(), ids(&case["ids"]), "{oracle} {text:?}");
            assert_eq!(tokenizer.decode(&ids(&case["ids"]), false), text, "{oracle}");
        }
        assert!(tokenizer.eos().is_some_and(|id| tokenizer.is_end_of_generation(id)));
        let chat = &expected["chat"];
        let sources = TemplateSources::from_gguf(&Gguf::open(&model).unwrap().metadata).unwrap();
        let Some(source) = sources.choose(false) else {
            assert!(chat.is_null(), "{oracle} has no template");
            continue;
        };
        let messages: Vec<Message> = serde_json::from_value(chat["messages"].clone()).unwrap();
        let template = ChatTemplate::for_tokenizer(source, &tokenizer).unwrap();
        let prompt = template.render(&messages, None, true).unwrap();
        assert_eq!(prompt, chat["prompt"], "{oracle}");
        assert_eq!(tokenizer.encode_chat(&prompt).unwrap(), ids(&chat["prompt_ids"]), "{oracle}");
        let answer = ids(&chat["ids"]);
        assert_eq!(tokenizer.decode(&answer, true), chat["text"], "{oracle}");
        assert!(tokenizer.is_end_of_generation(*answer.last().unwrap()), "{oracle}");
    }
}

#[test]
fn malformed_tokenizers_are_refused_or_harmless() {
    let Some(root) = shared("golden/bad") else { return };
    for name in ["tok_not_json", "tok_type_unknown", "tok_id_negative", "tok_pretokenizer_unknown"] {
        let error = Tokenizer::from_hf(&root.join(name)).unwrap_err();
        eprintln!("{name}: {error}");
        assert!(matches!(error, TextError::Json { .. } | TextError::Unsupported { .. }), "{name}: {error:?}");
    }
    let error = Tokenizer::from_hf(&root.join("tok_id_huge")).unwrap_err();
    assert!(matches!(error, TextError::Vocabulary { .. }), "{error}");
    let error = from_gguf(&root.join("missing_tokenizer_ggml_tokens.gguf")).unwrap_err();
    assert!(error.contains("tokenizer.ggml.tokens"), "{error}");
    from_gguf(&root.join("tokens_empty.gguf")).unwrap_err();
    for path in files(&root, ".gguf") {
        match from_gguf(&path) {
            Err(error) => assert!(!error.is_empty()),
            Ok(tokenizer) => {
                let ids = tokenizer.encode("Hello <|im_end|> wörld\n\n 123", true, true).unwrap();
                let size = tokenizer.vocab_size() as u32;
                assert!(ids.iter().all(|&id| id < size), "{}", path.display());
                tokenizer.decode(&(0..size + 9).collect::<Vec<_>>(), false);
            }
        }
    }
}

#[test]
fn a_long_text_is_tokenized_quickly_however_it_is_made() {
    let Some(root) = shared("vocab") else { return };
    let wiki = shared("text/wiki.test.raw").map(|p| std::fs::read_to_string(p).unwrap());
    let texts: Vec<String> = wiki
        .into_iter()
        .map(|t| t.chars().take(1 << 20).collect())
        .chain(["a", " ", "日", "\n", "1", "'", "<|"].map(|s| s.repeat((1 << 18) / s.len())))
        .collect();
    for name in ["qwen2", "llama-spm", "deepseek-llm", "gpt-2"] {
        let tokenizer = from_gguf(&root.join(format!("ggml-vocab-{name}.gguf"))).unwrap();
        for text in &texts {
            let start = std::time::Instant::now();
            let ids = tokenizer.encode(text, true, true).unwrap();
            let took = start.elapsed();
            eprintln!(
                "{name} {:?}…: {} tokens in {took:?}",
                &text.chars().take(5).collect::<String>(),
                ids.len()
            );
            assert_eq!(&tokenizer.decode(&ids, true), text);
            assert!(took.as_secs_f32() < 10.0, "{name}: {took:?} for {:?}", text.get(..9));
        }
    }
}
