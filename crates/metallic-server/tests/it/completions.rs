//! Plain text that is continued.

use serde_json::{Value, json};

use crate::support::{Asked, MODEL};

const COMPLETIONS: &str = "/v1/completions";

fn complete(more: Value) -> Value {
    let mut body = json!({"model": MODEL, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 8});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn text_and_its_tokens_are_continued_alike() {
    let asked = Asked::shared();
    let of_text = asked.post(COMPLETIONS, &complete(json!({}))).ok();
    let tokens = asked.post("/tokenize", &json!({"model": MODEL, "content": "Once upon a time"})).ok();
    let of_tokens = asked.post(COMPLETIONS, &complete(json!({"prompt": tokens["tokens"]}))).ok();
    assert_eq!(of_text["choices"], of_tokens["choices"]);
    assert_eq!(
        (&of_text["object"], &of_text["usage"]["completion_tokens"]),
        (&json!("text_completion"), &json!(8))
    );
    let mut default = complete(json!({}));
    default.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(asked.post(COMPLETIONS, &default).ok()["usage"]["completion_tokens"], 16);
}

#[test]
fn several_prompts_have_their_answers_in_order() {
    let asked = Asked::shared();
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let prompts = ["Once upon a time", "The dog", "Lily"];
    let both = asked.post(COMPLETIONS, &complete(json!({"prompt": prompts, "n": 2, "echo": true}))).ok();
    let found = texts(&both);
    assert_eq!(found.len(), 6);
    for (i, prompt) in prompts.iter().enumerate() {
        let alone = texts(&asked.post(COMPLETIONS, &complete(json!({"prompt": prompt}))).ok());
        assert_eq!(found[2 * i], format!("{prompt}{}", alone[0]));
        assert_eq!(found[2 * i + 1], found[2 * i]);
    }
    let mut streamed = vec![String::new(); 6];
    let body = complete(json!({"prompt": prompts, "n": 2, "echo": true, "stream": true}));
    for event in asked.post(COMPLETIONS, &body).events() {
        let choice = &event["choices"][0];
        streamed[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    assert_eq!(streamed, found);
}

#[test]
fn log_probabilities_say_where_each_token_stands() {
    let answer = Asked::shared().post(COMPLETIONS, &complete(json!({"logprobs": 2}))).ok();
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 8);
    let mut offset = 0;
    for (i, token) in tokens.iter().enumerate() {
        assert_eq!(logprobs["text_offset"][i], offset);
        offset += token.as_str().unwrap().chars().count();
        assert_eq!(logprobs["top_logprobs"][i].as_object().unwrap().len(), 2);
    }
    // A token that is none of the best is told beside them.
    let by_chance = json!({"logprobs": 1, "temperature": 2, "seed": 1, "max_tokens": 16});
    let answer = Asked::shared().post(COMPLETIONS, &complete(by_chance)).ok();
    let logprobs = &answer["choices"][0]["logprobs"];
    let tops = logprobs["top_logprobs"].as_array().unwrap();
    for (token, top) in logprobs["tokens"].as_array().unwrap().iter().zip(tops) {
        assert!(top.get(token.as_str().unwrap()).is_some(), "{token}: {top}");
    }
    assert!(tops.iter().any(|top| top.as_object().unwrap().len() == 2), "{tops:?}");
}

#[test]
fn the_prompt_is_said_again_with_its_log_probabilities_where_that_is_asked_for() {
    let asked = Asked::shared();
    let plain = asked.post(COMPLETIONS, &complete(json!({"logprobs": 1}))).ok();
    let echo = complete(json!({"logprobs": 1, "echo": true}));
    let echoed = asked.post(COMPLETIONS, &echo).ok();
    let choice = &echoed["choices"][0];
    let text = choice["text"].as_str().unwrap();
    assert_eq!(text, format!("Once upon a time{}", plain["choices"][0]["text"].as_str().unwrap()));
    let (all, own) =
        (&choice["logprobs"]["token_logprobs"], &plain["choices"][0]["logprobs"]["token_logprobs"]);
    let (all, own) = (all.as_array().unwrap(), own.as_array().unwrap());
    assert_eq!(all.len(), own.len() + echoed["usage"]["prompt_tokens"].as_u64().unwrap() as usize);
    assert!(all[0].is_null() && all[1..].iter().all(Value::is_f64));
    // The first token follows nothing, so none stands beside it either.
    let top = choice["logprobs"]["top_logprobs"].as_array().unwrap();
    assert!(top[0].is_null() && top[1..].iter().all(Value::is_object), "{top:?}");
    let nothing = complete(json!({"logprobs": 0, "echo": true, "max_tokens": 0}));
    let nothing = asked.post(COMPLETIONS, &nothing).ok();
    assert_eq!(nothing["choices"][0]["text"], "Once upon a time");
    assert_eq!(nothing["usage"]["completion_tokens"], 0);
    let logprobs = &nothing["choices"][0]["logprobs"]["token_logprobs"];
    assert_eq!(logprobs.as_array().unwrap().len(), all.len() - own.len());
}

#[test]
fn tokens_that_are_no_text_alone_are_told_apart_by_their_bytes() {
    let body = complete(json!({"prompt": "a 🦄", "logprobs": 5, "echo": true, "max_tokens": 0}));
    let answer = Asked::shared().post(COMPLETIONS, &body).ok();
    let logprobs = &answer["choices"][0]["logprobs"];
    let tokens: Vec<&str> =
        logprobs["tokens"].as_array().unwrap().iter().map(|token| token.as_str().unwrap()).collect();
    let bytes = ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\xa6", "bytes:\\x84"];
    assert!(tokens.ends_with(&bytes), "{tokens:?}");
    // Of the best five there are five, and the token itself where it is none of them.
    for (token, top) in tokens.iter().zip(logprobs["top_logprobs"].as_array().unwrap()).skip(1) {
        let top = top.as_object().unwrap();
        assert!((5..=6).contains(&top.len()) && top.contains_key(*token), "{token}: {top:?}");
    }
}
