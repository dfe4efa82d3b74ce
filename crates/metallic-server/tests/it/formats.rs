//! Answers that have a form.

use serde_json::{Value, json};

use crate::chat::{CHAT, chat};
use crate::support::Asked;

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

fn schema(schema: Value) -> Value {
    let format =
        json!({"type": "json_schema", "json_schema": {"name": "it", "strict": true, "schema": schema}});
    json!({"response_format": format, "max_tokens": 120})
}

#[test]
fn json_that_was_asked_for_always_parses() {
    let asked = Asked::shared();
    for temperature in [0.0, 1.0, 2.0] {
        let more = json!({"response_format": {"type": "json_object"}, "temperature": temperature, "seed": 3, "max_tokens": 60});
        let text = content(&asked.post(CHAT, &chat(more)).ok());
        assert!(serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_object()), "{text}");
    }
    let person = json!({
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": false,
    });
    let answer = asked.post(CHAT, &chat(schema(person.clone()))).ok();
    let value: Value = serde_json::from_str(&content(&answer)).unwrap();
    assert!(value["name"].is_string() && (0..=150).contains(&value["age"].as_i64().unwrap()), "{value}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let mut streamed = schema(person);
    streamed["stream"] = json!(true);
    let events = asked.post(CHAT, &chat(streamed)).events();
    let text: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, content(&answer));
}

#[test]
fn an_answer_that_had_no_room_for_its_form_is_called_cut() {
    let asked = Asked::shared();
    let long = json!({"type": "string", "minLength": 200});
    let wide: Vec<String> = (0..40).map(|i| format!("property_{i}")).collect();
    let wide = json!({"type": "object", "required": wide, "additionalProperties": {"type": "integer"}});
    for (form, max_tokens) in [(long, 12), (wide, 24), (json!({"const": "a b c d e f g h"}), 2)] {
        for stream in [false, true] {
            let mut more = schema(form.clone());
            more["max_tokens"] = json!(max_tokens);
            more["stream"] = json!(stream);
            let got = asked.post(CHAT, &chat(more));
            let reason = if stream {
                got.events().last().unwrap()["choices"][0]["finish_reason"].clone()
            } else {
                got.ok()["choices"][0]["finish_reason"].clone()
            };
            assert_eq!(reason, "length", "{form}");
        }
    }
}

#[test]
fn expressions_and_grammars_are_kept_to() {
    let asked = Asked::shared();
    let answer = asked.post(CHAT, &chat(json!({"regex": "(yes|no)[!?]{2}"}))).ok();
    let text = content(&answer);
    assert!(["yes", "no"].iter().any(|word| text.starts_with(word)) && text.len() <= 5, "{text}");
    let answer =
        asked.post(CHAT, &chat(json!({"grammar": "start: \"a\" \"b\"+ \"c\"", "max_tokens": 9}))).ok();
    assert!(content(&answer).starts_with("ab"), "{answer}");
}

#[test]
fn forms_that_cannot_be_kept_to_are_refused_by_what_is_wrong_with_them() {
    let at = "/response_format/json_schema/schema";
    let cases = [
        (schema(json!({"type": "object", "unevaluatedItems": false})), format!("{at}/unevaluatedItems")),
        (schema(json!({"type": "number", "minimum": "low"})), format!("{at}/minimum")),
        (schema(json!(5)), at.to_owned()),
        (json!({"regex": "("}), "/regex".to_owned()),
        (json!({"grammar": "start: nothing"}), "/grammar".to_owned()),
        (json!({"regex": "a", "grammar": "start: \"a\""}), "/response_format".to_owned()),
    ];
    for (more, pointer) in cases {
        let got = Asked::shared().post(CHAT, &chat(more.clone()));
        assert_eq!(got.status, 400, "{more}: {}", got.text);
        got.refused(400, Some(&pointer));
    }
}
