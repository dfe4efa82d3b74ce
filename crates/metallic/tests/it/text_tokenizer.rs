//! Tokenizers that come with the repository, against the ids of the reference implementations.

use std::path::{Path, PathBuf};

use metallic::text::{HfFiles, TextError, Tokenizer};
use metallic_formats::{Array, Metadata, Value as Meta};
use serde_json::{Value, json};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text").join(name)
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Metadata with the keys and values of a JSON object.
fn metadata(object: &Value) -> Metadata {
    let mut metadata = Metadata::empty("test.gguf");
    for (key, value) in object.as_object().unwrap() {
        let value = match value {
            Value::Bool(b) => Meta::Bool(*b),
            Value::Number(n) => Meta::U32(n.as_u64().unwrap() as u32),
            Value::String(s) => Meta::String(s.clone()),
            Value::Array(list) if list.iter().all(Value::is_string) => {
                Meta::Array(Array::Strings(list.iter().map(|s| s.as_str().unwrap().to_owned()).collect()))
            }
            Value::Array(list) if key.ends_with("scores") => {
                Meta::Array(Array::F32(list.iter().map(|x| x.as_f64().unwrap() as f32).collect()))
            }
            Value::Array(list) => {
                Meta::Array(Array::I32(list.iter().map(|x| x.as_i64().unwrap() as i32).collect()))
            }
            other => panic!("{key}: {other}"),
        };
        metadata.insert(key.as_str(), value);
    }
    metadata
}

/// A small byte-level vocabulary as GGUF metadata: 256 bytes, `he`, `<|im_end|>` and `<tool>`.
fn byte_level() -> Value {
    let file = read_json(&data("bpe/tokenizer.json"));
    let mut tokens: Vec<(String, u64)> = (file["model"]["vocab"].as_object().unwrap().iter())
        .map(|(text, id)| (text.clone(), id.as_u64().unwrap()))
        .collect();
    tokens.sort_by_key(|t| t.1);
    let tokens: Vec<String> = tokens.into_iter().map(|t| t.0).collect();
    let merges: Vec<String> = (file["model"]["merges"].as_array().unwrap().iter())
        .map(|m| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap()))
        .collect();
    let types: Vec<i32> = tokens.iter().map(|t| if t.starts_with("<|") { 3 } else { 1 }).collect();
    json!({
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    })
}

fn check(tokenizer: &Tokenizer, folder: &str) {
    let expected = read_json(&data(folder).join("tokenizer_expected.json"));
    for case in expected["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        assert_eq!(tokenizer.encode(text, false, true).unwrap(), ids(&case["ids"]), "{folder} {text:?}");
        let with_special = tokenizer.encode(text, true, true).unwrap();
        assert_eq!(with_special, ids(&case["ids_with_special"]), "{folder} {text:?}");
        assert_eq!(tokenizer.decode(&ids(&case["ids"]), false), case["decoded"], "{folder} {text:?}");
        assert_eq!(tokenizer.decode(&with_special, true), case["decoded"], "{folder} {text:?}");
    }
}

#[test]
fn every_kind_of_tokenizer_gives_the_ids_of_the_reference() {
    for folder in ["bpe", "spm_prefix", "spm_plain"] {
        check(&Tokenizer::from_hf(&data(folder)).unwrap(), folder);
    }
    check(&Tokenizer::from_gguf(&metadata(&byte_level())).unwrap(), "bpe");
    let spm = read_json(&data("spm_prefix/gguf_metadata.json"));
    check(&Tokenizer::from_gguf(&metadata(&spm)).unwrap(), "spm_prefix");
}

#[test]
fn a_chat_begins_with_one_first_token() {
    let tokenizer = Tokenizer::from_hf(&data("spm_prefix")).unwrap();
    let plain = tokenizer.encode_chat("hello").unwrap();
    assert_eq!(plain[0], tokenizer.bos().unwrap());
    assert_eq!(tokenizer.encode_chat("<s>hello").unwrap(), plain);
    let without = Tokenizer::from_hf(&data("bpe")).unwrap();
    assert_eq!(without.encode_chat("hello").unwrap(), without.encode("hello", false, true).unwrap());
}

#[test]
fn a_tokenizer_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<metallic::text::ChatTemplate>();
}

#[test]
fn special_tokens_are_parsed_only_on_request() {
    for tokenizer in
        [Tokenizer::from_hf(&data("bpe")).unwrap(), Tokenizer::from_gguf(&metadata(&byte_level())).unwrap()]
    {
        let end = tokenizer.token_to_id("<|im_end|>").unwrap();
        assert!(tokenizer.is_special(end) && tokenizer.is_end_of_generation(end));
        assert_eq!(tokenizer.encode("<|im_end|>", false, true).unwrap(), [end]);
        let spelled = tokenizer.encode("<|im_end|>", false, false).unwrap();
        assert!(!spelled.contains(&end));
        assert_eq!(tokenizer.decode(&spelled, true), "<|im_end|>");
        assert_eq!(tokenizer.decode(&[end], true), "");
        assert_eq!(tokenizer.decode(&[end], false), "<|im_end|>");
        assert_eq!(&*tokenizer.token_bytes(end).unwrap(), b"<|im_end|>");
        assert_eq!(tokenizer.token_bytes(u32::MAX), None);
        assert_eq!(tokenizer.eos(), Some(end));
    }
}

#[test]
fn the_generation_config_lists_what_ends_a_generation() {
    let tokenizer = std::fs::read(data("bpe/tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_hf_files(HfFiles {
        tokenizer: &tokenizer,
        generation_config: Some(br#"{"eos_token_id": [7, 9, 1000000, -1], "bos_token_id": 3}"#),
        ..HfFiles::default()
    })
    .unwrap();
    assert!(tokenizer.is_end_of_generation(7) && tokenizer.is_end_of_generation(9));
    assert!(!tokenizer.is_end_of_generation(8) && !tokenizer.is_end_of_generation(1000000));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(3), Some(7)));
}

#[test]
fn a_piece_of_text_that_looks_like_an_end_is_a_piece_of_text() {
    let mut object = byte_level();
    let tokens = object["tokenizer.ggml.tokens"].as_array_mut().unwrap();
    let html = tokens.len() as u32;
    tokens.extend([json!("</s>"), json!("<|eot_id|>")]);
    object["tokenizer.ggml.token_type"].as_array_mut().unwrap().extend([json!(1), json!(1)]);
    let tokenizer = Tokenizer::from_gguf(&metadata(&object)).unwrap();
    assert!(!tokenizer.is_end_of_generation(html) && !tokenizer.is_special(html));
    assert!(!tokenizer.encode("a</s>", false, true).unwrap().contains(&html));
    // A mark that the file forgot to mark is one all the same.
    assert!(tokenizer.is_end_of_generation(html + 1) && tokenizer.is_special(html + 1));
    assert_eq!(tokenizer.encode("<|eot_id|>", false, true).unwrap(), [html + 1]);
}

#[test]
fn the_configuration_decides_about_the_first_token() {
    let tokenizer = std::fs::read(data("spm_prefix/tokenizer.json")).unwrap();
    let with = |config: &str| {
        let files = HfFiles {
            tokenizer: &tokenizer,
            tokenizer_config: Some(config.as_bytes()),
            ..HfFiles::default()
        };
        Tokenizer::from_hf_files(files).unwrap().encode("a", true, true).unwrap()
    };
    let a = with(r#"{"bos_token": "<s>", "add_bos_token": false}"#);
    assert_eq!(a.len(), 1);
    assert_eq!(with(r#"{"bos_token": {"content": "<s>"}}"#), [&[1], &a[..]].concat());
    assert_eq!(with(r#"{"eos_token": "</s>", "add_eos_token": true}"#), [&[1], &a[..], &[2]].concat());
}

fn refused(edit: impl FnOnce(&mut Value)) -> TextError {
    let mut object = byte_level();
    edit(&mut object);
    Tokenizer::from_gguf(&metadata(&object)).unwrap_err()
}

#[test]
fn a_pre_tokenizer_that_is_guessed_is_told() {
    let mut object = byte_level();
    assert!(Tokenizer::from_gguf(&metadata(&object)).unwrap().notes().is_empty());
    object["tokenizer.ggml.pre"] = json!("default");
    let named = Tokenizer::from_gguf(&metadata(&object)).unwrap();
    assert!(named.notes().is_empty());
    object.as_object_mut().unwrap().remove("tokenizer.ggml.pre");
    let guessed = Tokenizer::from_gguf(&metadata(&object)).unwrap();
    assert!(guessed.notes()[0].contains("tokenizer.ggml.pre is missing"), "{:?}", guessed.notes());
    let text = "he said: 1234,5!";
    assert_eq!(guessed.encode(text, true, true).unwrap(), named.encode(text, true, true).unwrap());
}

#[test]
fn malformed_metadata_is_refused_with_the_reason() {
    let error = refused(|o| o["tokenizer.ggml.pre"] = json!("no-such-pre")).to_string();
    assert!(error.contains("no-such-pre") && error.contains("llama-bpe"), "{error}");
    let error = refused(|o| o["tokenizer.ggml.model"] = json!("foobar")).to_string();
    assert!(error.contains("foobar") && error.contains("gpt2"), "{error}");
    let error = refused(|o| o["tokenizer.ggml.bos_token_id"] = json!(1 << 30)).to_string();
    assert!(error.contains("bos_token_id") && error.contains("1073741824"), "{error}");
    let error = refused(|o| o["tokenizer.ggml.tokens"] = json!([])).to_string();
    assert!(error.contains("at least 1"), "{error}");
    let error = refused(|o| o["tokenizer.ggml.token_type"] = json!([1])).to_string();
    assert!(error.contains("token_type"), "{error}");
    let missing = |key: &str| {
        refused(|o| {
            o.as_object_mut().unwrap().remove(key);
        })
    };
    for key in ["tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"] {
        let error = missing(key);
        assert!(matches!(error, TextError::Metadata(_)) && error.to_string().contains(key), "{error}");
    }
    let error = refused(|o| {
        o["tokenizer.ggml.add_bos_token"] = json!(true);
        o.as_object_mut().unwrap().remove("tokenizer.ggml.bos_token_id");
    });
    assert!(matches!(error, TextError::Vocabulary { .. }), "{error}");
}

#[test]
fn a_merge_of_what_is_no_token_is_refused_by_name() {
    for (merge, word) in
        [("", "two tokens"), ("x", "`x`"), ("Ġ zzz", "`zzz`"), ("yyy t", "`yyy`"), ("x q", "`xq`")]
    {
        let error = refused(|o| o["tokenizer.ggml.merges"] = json!(["Ġ t", merge])).to_string();
        assert!(error.contains("merge") && error.contains(word), "{merge:?}: {error}");
        let mut file = read_json(&data("bpe/tokenizer.json"));
        file["model"]["merges"] = json!([merge]);
        let bytes = serde_json::to_vec(&file).unwrap();
        let error =
            Tokenizer::from_hf_files(HfFiles { tokenizer: &bytes, ..HfFiles::default() }).unwrap_err();
        assert!(error.to_string().contains(word), "{merge:?}: {error}");
    }
}

#[test]
fn a_first_token_that_the_vocabulary_lacks_is_refused_by_name() {
    let tokenizer = std::fs::read(data("bpe/tokenizer.json")).unwrap();
    for key in ["bos_token", "eos_token"] {
        let config = json!({key: "<|no such token|>"}).to_string();
        let files = HfFiles {
            tokenizer: &tokenizer,
            tokenizer_config: Some(config.as_bytes()),
            generation_config: Some(br#"{"bos_token_id": 1, "eos_token_id": 1}"#),
            ..HfFiles::default()
        };
        let error = Tokenizer::from_hf_files(files).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("<|no such token|>"), "{error}");
    }
}

#[test]
fn unigram_models_give_the_ids_of_sentencepiece_from_both_formats() {
    let cases = read_json(&data("unigram/expected.json"));
    let hf = Tokenizer::from_hf(&data("unigram")).unwrap();
    let gguf = Tokenizer::from_gguf(&metadata(&read_json(&data("unigram/gguf_metadata.json")))).unwrap();
    for case in cases["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        // Where the two references differ, in a rule for two characters, the original counts.
        let expected = ids(if case["sp"].is_null() { &case["hf"] } else { &case["sp"] });
        for (name, tokenizer) in [("tokenizer.json", &hf), ("gguf", &gguf)] {
            assert_eq!(tokenizer.encode(text, false, true).unwrap(), expected, "{name} {text:?}");
            let with_end = [&expected[..], &[1]].concat();
            assert_eq!(tokenizer.encode(text, true, true).unwrap(), with_end, "{name} {text:?}");
            if expected == ids(&case["hf"]) {
                assert_eq!(tokenizer.decode(&expected, true), case["decoded"], "{name} {text:?}");
            }
        }
    }
    let spelled = hf.encode("</s>", false, false).unwrap();
    assert!(!spelled.contains(&1), "{spelled:?}");
    let bytes = Tokenizer::from_hf(&data("unigram_bytes")).unwrap();
    for case in read_json(&data("unigram_bytes/expected.json"))["cases"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        if !text.contains("①①") {
            assert_eq!(bytes.encode(text, false, true).unwrap(), ids(&case["ids"]), "{text:?}");
        }
    }
}

#[test]
fn gemma_4_is_byte_pair_encoding_over_characters() {
    let mut tokens: Vec<String> = ["<pad>", "<eos>", "<bos>", "<unk>"].map(String::from).to_vec();
    tokens.extend((0..256).map(|b| format!("<0x{b:02X}>")));
    let types: Vec<i32> = (0..tokens.len()).map(|i| if i < 4 { 3 } else { 6 }).collect();
    let pieces = ["▁", "a", "b", "ab", "▁ab", "\n", "\n\n", "\n\n\n", "▁a"];
    tokens.extend(pieces.map(String::from));
    let types: Vec<i32> = types.into_iter().chain(pieces.map(|_| 1)).collect();
    let tokenizer = Tokenizer::from_gguf(&metadata(&json!({
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["a b", "▁ ab", "\n \n", "▁ a"],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
    })))
    .unwrap();
    let text = "ab ab a\n\nbé";
    let ids = tokenizer.encode(text, true, true).unwrap();
    let names: Vec<&str> = ids.iter().map(|&id| tokenizer.token_text(id).unwrap()).collect();
    assert_eq!(names, ["<bos>", "ab", "▁ab", "▁a", "\n\n", "b", "<0xC3>", "<0xA9>"]);
    assert_eq!(tokenizer.decode(&ids, true), text);
}

#[test]
fn malformed_tokenizer_files_are_refused_with_the_reason() {
    let good = read_json(&data("bpe/tokenizer.json"));
    let refused = |edit: &dyn Fn(&mut Value)| {
        let mut file = good.clone();
        edit(&mut file);
        let bytes = serde_json::to_vec(&file).unwrap();
        Tokenizer::from_hf_files(HfFiles { tokenizer: &bytes, ..HfFiles::default() }).unwrap_err().to_string()
    };
    for (word, edit) in [
        ("Foobar", &(|f: &mut Value| f["model"]["type"] = json!("Foobar")) as &dyn Fn(&mut Value)),
        ("WordLevel", &|f| f["model"] = json!({"type": "WordLevel", "vocab": {"a": 0}})),
        ("[token, score]", &|f| f["model"] = json!({"type": "Unigram", "vocab": [["a"]]})),
        ("unk_id", &|f| f["model"] = json!({"type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]})),
        ("dropout", &|f| f["model"]["dropout"] = json!(0.1)),
        ("-1", &|f| f["model"]["vocab"]["zz"] = json!(-1)),
        ("2147483648", &|f| f["model"]["vocab"]["zz"] = json!(1u64 << 31)),
        ("zz", &|f| f["model"]["vocab"]["zz"] = json!("zero")),
        ("merges", &|f| f["model"]["merges"] = json!([1, 2])),
        ("Odd", &|f| f["pre_tokenizer"] = json!({"type": "Odd"})),
        ("precompiled_charsmap", &|f| f["normalizer"] = json!({"type": "Precompiled"})),
        ("charsmap", &|f| {
            f["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "/////w=="});
        }),
        ("RobertaProcessing", &|f| f["post_processor"] = json!({"type": "RobertaProcessing"})),
        ("CTC", &|f| f["decoder"] = json!({"type": "CTC"})),
        ("(", &|f| {
            f["pre_tokenizer"] = json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"});
        }),
        ("Sideways", &|f| {
            f["pre_tokenizer"] = json!({"type": "Split", "pattern": {"String": "a"}, "behavior": "Sideways"});
        }),
        ("expected", &|f| *f = json!([])),
    ] {
        let error = refused(edit);
        assert!(error.contains(word), "{word}: {error}");
    }
    let missing = Tokenizer::from_hf(&data("no-such-folder")).unwrap_err();
    assert!(missing.to_string().contains("no-such-folder"), "{missing}");
}

#[test]
fn a_long_text_without_spaces_is_no_trap() {
    let tokenizer = Tokenizer::from_hf(&data("bpe")).unwrap();
    for piece in ["t", " ", "é", "\n "] {
        let text = piece.repeat(200_000);
        let ids = tokenizer.encode(&text, false, false).unwrap();
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
}
