//! Templates and tokenizers that mean harm, met by the program under a bound on its memory and on its time.

use std::{fs, path::Path, time::Duration};

use serde_json::{Value, json};

use crate::support::{Machine, limited, stories};

/// Far above what each takes, and far below what it would take.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn templates_that_grow_hang_or_nest_are_refused_within_bounds() {
    let machine = Machine::without_hub();
    let talk = machine.folder().join("talk.json");
    fs::write(&talk, r#"[{"role": "user", "content": "Hello"}]"#).unwrap();
    let file = machine.folder().join("hostile.jinja");
    let (model, talk) = (stories(), talk.display().to_string());
    let nested =
        |open: &str, close: &str| format!("{{{{ {}1{} }}}}", open.repeat(100_000), close.repeat(100_000));
    for source in [
        "{{ range(3)|slice(10**10)|list }}".to_owned(),
        "{{ 'a\nb'|indent(10**10) }}".to_owned(),
        "{{ '%1000000000d'|format(1) }}".to_owned(),
        "{% set ns = namespace(s='0123456789') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".to_owned(),
        "{% set s = 'x' * 1000000 %}{% for i in range(100000) %}{{ s }}{% endfor %}".to_owned(),
        "{% for i in [0] * 10**10 %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}\
         {% endfor %}{{ ns.x == ns.y }}"
            .to_owned(),
        nested("[", "]"),
        nested("(", ")"),
    ] {
        fs::write(&file, &source).unwrap();
        let args = ["tool", "template", "-m", &model, "--messages", &talk, "--template", "hostile.jinja"];
        let ran = limited(&machine, &args, LIMIT);
        let shown = &source[..source.len().min(60)];
        assert_eq!(ran.code, Some(1), "{shown}: {ran:?}");
        assert!(ran.err.starts_with("error: ") && ran.err.len() < 2000, "{shown}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{shown}: {ran:?}");
    }
}

#[test]
fn tokenizers_that_explode_are_refused_within_bounds() {
    let machine = Machine::without_hub();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../metallic/tests/data/text/bpe/tokenizer.json");
    let source = fs::read(path).unwrap();
    let own: Value = serde_json::from_slice(&source).unwrap();
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"});
    let doubling = vec![json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}); 60];
    let edits: [(&str, Value); 5] = [
        ("pre_tokenizer", split("(?:(?:a{1,60}){1,60}){1,60}(?=b)")),
        ("pre_tokenizer", split(r"(a+)+\1(?=c)")),
        ("normalizer", json!({"type": "Sequence", "normalizers": doubling})),
        ("normalizer", json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 500]})),
        ("normalizer", json!({"type": "Prepend", "prepend": "x".repeat(1 << 24)})),
    ];
    let text = "a".repeat(1 << 14);
    for (part, value) in edits {
        let mut file = own.clone();
        file[part] = value;
        let path = machine.folder().join("tokenizer.json");
        fs::write(&path, file.to_string()).unwrap();
        let ran = limited(&machine, &["tool", "tokenize", "-m", path.to_str().unwrap(), &text], LIMIT);
        assert_eq!(ran.code, Some(1), "{part}: {ran:?}");
        assert!(ran.err.starts_with("error: ") && !ran.err.contains("panicked"), "{part}: {ran:?}");
    }
}
