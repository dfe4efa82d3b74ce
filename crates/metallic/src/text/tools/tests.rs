//! Every family reads what it writes, wherever the text is cut.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::families::Family;
use super::table::{FAMILIES, GENERIC, PROMPTED};
use super::{ToolAnswer, ToolFormat, ToolPiece};

fn families() -> impl Iterator<Item = ToolFormat> {
    let all = FAMILIES.iter().chain([&GENERIC, &PROMPTED]);
    all.map(|family| ToolFormat { family, tokens: [].into() })
}

fn format(name: &str) -> ToolFormat {
    families().find(|format| format.name() == name).unwrap()
}

fn tools() -> Vec<Value> {
    let weather = json!({"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    }}});
    let note = json!({"name": "note", "input_schema": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "pin": {"type": "boolean"},
            "place": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": ["number", "null"]}}},
            "kind": {"enum": ["a", "b"]},
        },
        "required": ["text"],
    }});
    vec![weather, note, json!({"name": "now"})]
}

/// Names and arguments.
type Calls = Vec<(String, Map<String, Value>)>;

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("{other}"),
    }
}

fn calls() -> Calls {
    let note = json!({
        "text": "line one\n  <b>\"two\"</b> {é日🦀} \\ end", "tags": ["a b", "c, d"], "pin": true,
        "place": {"x": -1.5, "y": 2}, "kind": "b",
    });
    vec![
        ("get_weather".into(), object(json!({"city": "Köln \"a\"", "days": 3}))),
        ("note".into(), object(note)),
        ("now".into(), Map::new()),
    ]
}

/// The calls of an answer with their arguments read.
fn read(answer: &ToolAnswer) -> Calls {
    let arguments =
        |json: &str| serde_json::from_str(json).unwrap_or_else(|e| panic!("{json:?} is no JSON object: {e}"));
    answer.calls.iter().map(|call| (call.name.clone(), arguments(&call.arguments))).collect()
}

fn cut(format: &ToolFormat, text: &str, cuts: &[usize]) -> ToolAnswer {
    let tools = tools();
    let mut parser = format.parser(&tools);
    let mut answer = ToolAnswer::default();
    let mut start = 0;
    for &end in cuts.iter().chain([&text.len()]) {
        let mut end = end.clamp(start, text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        answer.extend(parser.push(&text[start..end]));
        start = end;
    }
    answer.extend(parser.finish());
    answer
}

/// What a model of this family would write: its calls in one go if it can, else the first of them. The prompt may have written the
/// beginning.
fn sample(format: &ToolFormat) -> (String, Calls) {
    let mut calls = calls();
    if !format.family.parallel {
        calls.truncate(2);
        calls.remove(0);
    }
    let text = format.write(&calls);
    let text = if format.family.primed {
        text.strip_prefix(format.family.frame.head).unwrap().to_owned()
    } else {
        text
    };
    (text, calls)
}

#[test]
fn every_family_reads_what_it_writes() {
    for format in families() {
        let (text, calls) = sample(&format);
        let answer = format.parse(&text, &tools());
        assert_eq!(read(&answer), calls, "{}: {text}", format.name());
        assert_eq!(answer.text, "", "{}: {text}", format.name());
        assert!(answer.calls.iter().all(|call| call.complete), "{}: {text}", format.name());
    }
}

#[test]
fn cuts_at_any_place_change_nothing() {
    for format in families() {
        let (text, _) = sample(&format);
        let text = if format.family.primed { text } else { format!("Let me see. {{}} <x>\n\n{text}\nDone.") };
        let whole = format.parse(&text, &tools());
        for at in 0..=text.len() {
            assert_eq!(cut(&format, &text, &[at]), whole, "{} cut at {at}: {text}", format.name());
        }
        let single: Vec<usize> = (0..text.len()).collect();
        assert_eq!(cut(&format, &text, &single), whole, "{} letter by letter", format.name());
    }
}

#[test]
fn text_around_calls_is_kept_and_whitespace_beside_marks_is_not() {
    for format in families().filter(|f| !f.family.primed && f.name() != "llama" && f.name() != "harmony") {
        let (text, calls) = sample(&format);
        let answer = format.parse(&format!(" Let me\nsee. \n\n{text}\n\nDone. "), &tools());
        assert_eq!(read(&answer), calls, "{}: {text}", format.name());
        assert_eq!(answer.text, " Let me\nsee.Done. ", "{}: {text}", format.name());
    }
}

#[test]
fn text_without_calls_comes_through_as_it_is() {
    let text = " 1 < 2, {\"a\": [1]} <tool> [TOOL] ```rust\nfn f() {}\n``` \"name\": <|x|> to=you ｜ <functi on=>  \n";
    for format in families().filter(|f| !f.family.primed) {
        assert_eq!(format.parse(text, &tools()).text, text, "{}", format.name());
        let single: Vec<usize> = (0..text.len()).collect();
        assert_eq!(cut(&format, text, &single).text, text, "{}", format.name());
    }
}

#[test]
fn a_beginning_of_a_call_loses_nothing_and_has_no_end() {
    for format in families() {
        let (text, calls) = sample(&format);
        let places: Vec<usize> = (0..text.len()).filter(|&at| text.is_char_boundary(at)).collect();
        for at in places {
            let answer = format.parse(&text[..at], &tools());
            let complete = answer.calls.iter().filter(|call| call.complete).count();
            assert!(answer.calls.len() <= calls.len() && complete <= calls.len(), "{}", format.name());
            for (call, (name, arguments)) in answer.calls.iter().zip(&calls) {
                assert_eq!(&call.name, name);
                if call.complete {
                    let found: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap();
                    assert_eq!(&found, arguments, "{} at {at}", format.name());
                }
            }
            if answer.calls.is_empty() && !format.family.primed && format.name() != "harmony" {
                let quiet = format.family.quiet.iter().any(|mark| text[..at].contains(mark));
                assert!(quiet || answer.text == text[..at], "{} at {at}: {:?}", format.name(), answer.text);
            }
        }
    }
}

#[test]
fn names_and_arguments_come_while_they_are_written() {
    let tools = tools();
    for format in families() {
        let calls = [("note".to_owned(), object(json!({"text": "one two three four", "pin": true})))];
        let text = format.write(&calls);
        let text = text.strip_prefix(">>>").unwrap_or(&text);
        let mut parser = format.parser(&tools);
        let mut pieces = Vec::new();
        let until = text.find("three").unwrap();
        pieces.extend(parser.push(&text[..until]));
        let begun = matches!(pieces.first(), Some(ToolPiece::Begin { index: 0, name }) if name == "note");
        assert!(begun, "{}: {pieces:?}", format.name());
        let early: ToolAnswer = pieces.into_iter().collect();
        let arguments = early.calls[0].arguments.trim_end();
        // Elements inside elements come one at a time.
        if format.name() != "minimax-m3" {
            assert!(arguments.ends_with("one two"), "{}: {arguments:?}", format.name());
        }
    }
}

#[test]
fn special_tokens_that_the_decoder_left_out_are_put_back() {
    let format = ToolFormat {
        tokens: [(7, "[TOOL_CALLS]".to_owned()), (8, "[ARGS]".to_owned())].into(),
        ..format("mistral")
    };
    let mut parser = format.parser(&[]);
    let mut answer = ToolAnswer::default();
    for (id, text) in
        [(1, "Well. "), (7, ""), (2, "now"), (8, ""), (3, "{}"), (7, ""), (2, "now"), (8, ""), (3, "{}")]
    {
        answer.extend(parser.push_token(id, text));
    }
    answer.extend(parser.finish());
    assert_eq!(answer.text, "Well.");
    assert_eq!(answer.calls.len(), 2);
    assert!(answer.calls.iter().all(|call| call.name == "now" && call.arguments == "{}" && call.complete));
}

#[test]
fn calls_in_harmony_survive_the_splitting_of_thoughts() {
    use crate::text::{HfFiles, ReasoningFormat, Tokenizer};
    let marks = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>"];
    let added: Vec<Value> =
        (0..).zip(marks).map(|(i, mark)| json!({"id": 100 + i, "content": mark, "special": true})).collect();
    let json = json!({
        "model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "added_tokens": added,
    });
    let json = json.to_string();
    let files = HfFiles { tokenizer: json.as_bytes(), ..HfFiles::default() };
    let tokenizer = Tokenizer::from_hf_files(files).unwrap();
    let template = "{{ tools }} <|channel|> to=functions.f <|message|> <|call|>";
    let format = ToolFormat::of(Some(template), &tokenizer).unwrap();
    assert_eq!(format.name(), "harmony");
    let reasoning = ReasoningFormat::of(Some(template), &tokenizer).unwrap();
    let thinks = ["<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "<|start|>", "assistant"];
    let answers = [
        &[
            "<|channel|>",
            "commentary",
            " to=functions",
            ".now ",
            "<|constrain|>",
            "json",
            "<|message|>",
            "{\"a\"",
            ": 1}",
        ][..],
        &[" to=functions.now", "<|channel|>", "commentary json", "<|message|>", "{\"a\": 1}"],
    ];
    for (answer, thought) in
        [(answers[0], true), (answers[1], true), (answers[0], false), (answers[1], false)]
    {
        let thinks = if thought { &thinks[..] } else { &[] };
        let mut splitter = reasoning.splitter("<|start|>assistant").keep_calls(true);
        let mut parser = format.parser(&[]);
        let (mut found, mut thoughts) = (ToolAnswer::default(), String::new());
        for token in thinks.iter().chain(answer) {
            let id = tokenizer.token_to_id(token).unwrap_or(0);
            let text = if id == 0 { token } else { "" };
            let piece = splitter.push_token(id, text);
            thoughts += &piece.reasoning;
            found.extend(parser.push_token(id, &piece.answer));
        }
        found.extend(parser.push(&splitter.finish().answer));
        found.extend(parser.finish());
        assert_eq!(thoughts, if thought { "Hm." } else { "" });
        assert_eq!(found.text, "");
        assert_eq!(found.calls.len(), 1, "{found:?}");
        let call = &found.calls[0];
        assert_eq!((&*call.name, &*call.arguments, call.complete), ("now", "{\"a\": 1}", true));
    }
}

/// Format, text, the text that is left, names and arguments of calls.
type Case = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const CASES: &[Case] = &[
    // Ways of writing that templates do not show and models have.
    (
        "hermes",
        "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>",
        "",
        &[("f", "{\"a\": 1}")],
    ),
    (
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": \\\"\\u00e9\\\"}\"}",
        "",
        &[("f", "{\"a\": \"é\"}")],
    ),
    (
        // Two halves of a character, a half without the other, one before another pair, and the second half alone.
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"\\ud83e\\udd80 \\ud800x \\ud800\\u0041 \\ud800\\ud83e\\udd80 \\udc00\"}</tool_call>",
        "",
        &[("f", "🦀 \u{fffd}x \u{fffd}A \u{fffd}🦀 \u{fffd}")],
    ),
    ("hermes", "<tool_call>\n{\"name\": \"f\"}\n</tool_call>", "", &[("f", "{}")]),
    ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "", &[("f", "{}")]),
    ("hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"\"}</tool_call>", "", &[("f", "{}")]),
    (
        "hermes",
        "<tool_call>{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {}}}</tool_call>",
        "",
        &[("f", "{}")],
    ),
    (
        "hermes",
        "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]</tool_call>",
        "",
        &[("f", "{}"), ("g", "{}")],
    ),
    ("hermes", "{\"name\": \"now\", \"arguments\": {}}", "", &[("now", "{}")]),
    (
        "llama",
        "{\"name\": \"now\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {\"a\": 1}}",
        "",
        &[("now", "{}"), ("now", "{\"a\": 1}")],
    ),
    ("llama", "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "", &[("f", "{}")]),
    (
        "llama",
        "<|python_tag|>brave_search.call(query=\"rust\")",
        "",
        &[("brave_search", "{\"query\": \"rust\"}")],
    ),
    ("mistral", "[TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{\"a\": 1}", "", &[("f", "{\"a\": 1}")]),
    (
        "mistral-list",
        "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}, \"id\": \"abcdef123\"}]",
        "",
        &[("f", "{}")],
    ),
    (
        "deepseek-v3.1",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        &[("f", "{}")],
    ),
    (
        "glm",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>3</arg_value></tool_call>",
        "",
        &[("get_weather", "{\"city\": \"3\"}")],
    ),
    (
        "glm",
        "<tool_call>get_weather\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        "",
        &[("get_weather", "{\"days\": 3}")],
    ),
    (
        "qwen-xml",
        "<function=note>\n<parameter=pin>\nTrue\n</parameter>\n<parameter=tags>\n['a', 'b']\n</parameter>\n</function>",
        "",
        &[("note", "{\"pin\": true, \"tags\": [\"a\", \"b\"]}")],
    ),
    (
        "qwen-xml",
        "<tool_call>\n<function=unknown>\n<parameter=a>\n{\"b\": [1]}\n</parameter>\n</function>\n</tool_call>",
        "",
        &[("unknown", "{\"a\": {\"b\": [1]}}")],
    ),
    (
        "minicpm",
        "<function name=\"note\"><param name=\"text\"><![CDATA[a < b]]></param></function>",
        "",
        &[("note", "{\"text\": \"a < b\"}")],
    ),
    (
        "kimi-k3",
        "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>json type=\"object\"<|sep|>{\"a\": 1}<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
        "",
        &[("f", "{\"a\": 1}")],
    ),
    (
        "lfm2",
        "<|tool_call_start|>[get_weather('Oslo', days=1_000), now()]<|tool_call_end|>Done",
        "Done",
        &[("get_weather", "{\"city\": \"Oslo\", \"days\": 1000.0}"), ("now", "{}")],
    ),
    ("functionary-3.2", "all\nHello there", "Hello there", &[]),
    ("functionary-3.2", "all\nOne moment.\n>>>now\n{}", "One moment.", &[("now", "{}")]),
    (
        "harmony",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>",
        "",
        &[("f", "{\"a\": 1}")],
    ),
    ("harmony", "<|channel|>final<|message|>Hello to=you<|return|>", "Hello to=you", &[]),
    (
        "harmony",
        "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}",
        "Let me see.",
        &[("f", "{}")],
    ),
    ("generic", "```json\n{\"name\": \"now\", \"arguments\": {}}\n```", "", &[("now", "{}")]),
    ("prompted", "```json\n{\"a\": 1}\n```", "```json\n{\"a\": 1}\n```", &[]),
    // No calls.
    ("llama", "{\"name\": \"Bob\", \"age\": 5}", "{\"name\": \"Bob\", \"age\": 5}", &[]),
    ("llama", "{\"name\": \"now\", \"age\": 5}", "{\"name\": \"now\", \"age\": 5}", &[]),
    (
        "llama",
        "Well {\"name\": \"now\", \"parameters\": {}}",
        "Well {\"name\": \"now\", \"parameters\": {}}",
        &[],
    ),
    ("hermes", "<tool_call>oops</tool_call> x", "<tool_call>oops</tool_call> x", &[]),
    (
        "hermes",
        "a <tool_call>\n{\"arguments\": {}}\n</tool_call>",
        "a <tool_call>\n{\"arguments\": {}}\n</tool_call>",
        &[],
    ),
    ("hermes", "<tool_call>x<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>x", &[("f", "{}")]),
    // Malformed after the name was told: nothing is lost.
    (
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": Paris}}</tool_call>ok",
        "ok",
        &[("f", "{\"a\": Paris}}")],
    ),
    ("mistral", "[TOOL_CALLS]f[ARGS]no json", "", &[("f", "no json")]),
    (
        "hermes",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x\ny\"}}</tool_call>",
        "",
        &[("f", "{\"a\": \"x\\ny\"}")],
    ),
];

#[test]
fn what_models_write_beside_their_templates_is_understood() {
    for (name, text, rest, calls) in CASES {
        let format = format(name);
        let answer = format.parse(text, &tools());
        let found: Vec<(&str, &str)> = answer.calls.iter().map(|c| (&*c.name, &*c.arguments)).collect();
        assert_eq!((&*answer.text, &*found), (*rest, *calls), "{name}: {text}");
        for at in 0..text.len() {
            assert_eq!(cut(&format, text, &[at]), answer, "{name} cut at {at}: {text}");
        }
    }
}

#[test]
fn marks_of_a_family_include_those_inside_longer_texts() {
    let marks = super::families::marks(format("kimi-k2").family);
    for mark in ["<|tool_call_begin|>", "<|tool_calls_section_end|>", "<|tool_call_argument_begin|>"] {
        assert!(marks.contains(&mark), "{mark} is not in {marks:?}");
    }
    let names: Vec<&str> = FAMILIES.iter().map(|family: &Family| family.name).collect();
    let mut once = names.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), names.len(), "two families of one name");
}

fn value() -> impl Strategy<Value = Value> {
    let text = prop_oneof!["[ -~é\n]{0,12}", Just("</parameter>x".to_owned()), Just("a\"b\\".to_owned())];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z]{1,6}", inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Families that write JSON give back whatever arguments there are.
    #[test]
    fn any_arguments_in_json_come_back(pairs in prop::collection::vec(("[a-z_]{1,8}", value()), 0..4)) {
        let arguments: Map<String, Value> = pairs.into_iter().collect();
        let calls = vec![("note".to_owned(), arguments)];
        for name in ["hermes", "llama", "mistral", "mistral-list", "deepseek-r1", "kimi-k2", "cohere", "apertus", "lfm2", "generic"] {
            let format = format(name);
            let text = format.write(&calls);
            prop_assert_eq!(read(&format.parse(&text, &tools())), calls.clone(), "{}: {}", name, text);
        }
    }

    /// Whatever comes, in whatever pieces: no panic, the same result, and no text out of nothing.
    #[test]
    fn any_text_gives_the_same_in_any_pieces(
        parts in prop::collection::vec((0_usize..64, "[ -~é\n]{0,6}"), 0..12),
        cuts in prop::collection::vec(0_usize..400, 0..8),
    ) {
        let mut cuts = cuts;
        cuts.sort_unstable();
        for format in families() {
            let (text, _) = sample(&format);
            let chars: Vec<char> = text.chars().collect();
            // Pieces of a real call, out of order, with other text between them.
            let mixed: String = parts.iter().flat_map(|(at, noise)| {
                let start = at * chars.len() / 64;
                let end = (start + 24).min(chars.len());
                chars[start..end].iter().copied().chain(noise.chars()).collect::<Vec<char>>()
            }).collect();
            let whole = format.parse(&mixed, &tools());
            prop_assert_eq!(&cut(&format, &mixed, &cuts), &whole, "{}: {:?}", format.name(), mixed);
            for call in &whole.calls {
                prop_assert!(!call.name.is_empty());
            }
        }
    }
}
