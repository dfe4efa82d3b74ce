//! Conversations: whole answers and streams.

use serde_json::{Value, json};

use crate::support::{Asked, MODEL};

pub(crate) const CHAT: &str = "/v1/chat/completions";

/// A short conversation, with more fields.
pub(crate) fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL,
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "temperature": 0,
        "max_tokens": 12,
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[test]
fn an_answer_has_the_shape_of_the_api() {
    let answer = Asked::shared().post(CHAT, &chat(json!({}))).ok();
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&answer["object"], &answer["model"]), (&json!("chat.completion"), &json!(MODEL)));
    let choice = &answer["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!((&choice["message"]["role"], &choice["logprobs"]), (&json!("assistant"), &Value::Null));
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    let usage = &answer["usage"];
    assert_eq!(usage["completion_tokens"], 12);
    let sum = usage["prompt_tokens"].as_u64().unwrap() + 12;
    assert_eq!(usage["total_tokens"], sum);
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let asked = Asked::shared();
    let whole = asked.post(CHAT, &chat(json!({}))).ok();
    let options = json!({"stream": true, "stream_options": {"include_usage": true}});
    let events = asked.post(CHAT, &chat(options)).events();
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": "", "refusal": null})
    );
    let (last, rest) = events.split_last().unwrap();
    assert_eq!((&last["choices"], &last["usage"]["completion_tokens"]), (&json!([]), &json!(12)));
    let mut text = String::new();
    for event in rest {
        assert_eq!((&event["id"], &event["object"]), (&events[0]["id"], &json!("chat.completion.chunk")));
        assert_eq!(event.get("usage"), Some(&Value::Null));
        text += event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(text, whole["choices"][0]["message"]["content"].as_str().unwrap());
    assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], "length");
    let reasons = rest.iter().filter(|event| !event["choices"][0]["finish_reason"].is_null());
    assert_eq!(reasons.count(), 1);
    let plain = asked.post(CHAT, &chat(json!({"stream": true}))).events();
    assert!(plain.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn each_chunk_says_what_its_answer_has_cost_so_far_where_that_is_asked_for() {
    let asked = Asked::shared();
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    for (path, mut body) in [
        (CHAT, chat(json!({"n": 2}))),
        (
            "/v1/completions",
            json!({"model": MODEL, "prompt": ["Once", "Once upon a time"], "max_tokens": 12}),
        ),
    ] {
        (body["stream"], body["stream_options"]) = (json!(true), options.clone());
        let events = asked.post(path, &body).events();
        let (last, rest) = events.split_last().unwrap();
        let mut so_far = [0; 2];
        for event in rest {
            let index = event["choices"][0]["index"].as_u64().unwrap() as usize;
            let generated = event["usage"]["completion_tokens"].as_u64().unwrap();
            assert!(
                generated >= so_far[index] && event["usage"]["prompt_tokens"].as_u64() > Some(0),
                "{event}"
            );
            so_far[index] = generated;
        }
        assert_eq!(last["usage"]["completion_tokens"], so_far[0] + so_far[1]);
    }
}

#[test]
fn several_choices_are_answers_of_their_own_to_one_prompt() {
    let asked = Asked::shared();
    let more = json!({"n": 3, "temperature": 1.5, "seed": 7});
    let answer = asked.post(CHAT, &chat(more.clone())).ok();
    let texts = |answer: &Value| -> Vec<String> {
        let choices = answer["choices"].as_array().unwrap().iter();
        choices.map(|choice| choice["message"]["content"].as_str().unwrap().to_owned()).collect()
    };
    let found = texts(&answer);
    assert_eq!(found.len(), 3);
    assert!(found[0] != found[1] && found[1] != found[2], "{found:?}");
    assert_eq!(
        texts(&asked.post(CHAT, &chat(more.clone())).ok()),
        found,
        "the same seed gives the same answers"
    );
    let one = asked.post(CHAT, &chat(json!({}))).ok();
    assert_eq!(answer["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]);
    assert_eq!(answer["usage"]["completion_tokens"], 36);
    let mut streamed = vec![String::new(); 3];
    let mut stream = more;
    stream["stream"] = json!(true);
    for event in asked.post(CHAT, &chat(stream)).events() {
        let choice = &event["choices"][0];
        streamed[choice["index"].as_u64().unwrap() as usize] +=
            choice["delta"]["content"].as_str().unwrap_or_default();
    }
    assert_eq!(streamed, found);
}

#[test]
fn a_stop_text_ends_an_answer_and_is_no_part_of_it() {
    let asked = Asked::shared();
    let whole = asked.post(CHAT, &chat(json!({}))).ok();
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let stop = text.split_whitespace().nth(3).unwrap();
    let before = &text[..text.find(stop).unwrap()];
    for stop in [json!(stop), json!([stop, "never said"])] {
        let answer = asked.post(CHAT, &chat(json!({"stop": stop}))).ok();
        assert_eq!(answer["choices"][0]["message"]["content"], before);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn log_probabilities_come_with_bytes_and_the_best_at_each_place() {
    let asked = Asked::shared();
    let more = json!({"logprobs": true, "top_logprobs": 3});
    let answer = asked.post(CHAT, &chat(more.clone())).ok();
    let tokens = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len(), 12);
    let mut bytes = Vec::new();
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Of the greedy answer, each token is the best at its place.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&token["token"], &token["logprob"]));
        assert!(
            top[0]["logprob"].as_f64() >= top[1]["logprob"].as_f64()
                && token["logprob"].as_f64() <= Some(0.0)
        );
        bytes.extend(token["bytes"].as_array().unwrap().iter().map(|byte| byte.as_u64().unwrap() as u8));
    }
    let text = String::from_utf8(bytes).unwrap();
    assert_eq!(text.trim(), answer["choices"][0]["message"]["content"].as_str().unwrap().trim());
    let mut stream = more;
    stream["stream"] = json!(true);
    let events = asked.post(CHAT, &chat(stream)).events();
    let streamed = events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    assert_eq!(streamed.flatten().cloned().collect::<Vec<_>>(), tokens);
}

#[test]
fn a_bias_bans_a_token_and_forces_another() {
    let asked = Asked::shared();
    let tokens = asked.post("/tokenize", &json!({"model": MODEL, "content": "x", "add_special": false})).ok();
    let id = tokens["tokens"].as_array().unwrap().last().unwrap().to_string();
    let answer = asked.post(CHAT, &chat(json!({"logit_bias": {&id: 100}, "max_tokens": 4}))).ok();
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.contains('x') && text.chars().all(|c| c == 'x' || c == ' '), "{text}");
}

#[test]
fn roles_and_parts_of_text_reach_the_template() {
    let asked = Asked::shared();
    let messages = json!([
        {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}]},
        {"role": "user", "content": "Hi", "name": "ada"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{\"zone\": \"UTC\"}"}},
        ]},
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
    ]);
    let rendered = asked.post("/tokenize", &json!({"model": MODEL, "messages": messages})).ok();
    let text = asked
        .post("/detokenize", &json!({"model": MODEL, "tokens": rendered["tokens"], "skip_special": true}));
    assert_eq!(
        text.ok()["content"].as_str().unwrap().trim(),
        "system: Be\nkind.\nuser: Hi\nassistant:  clock {\"zone\": \"UTC\"}\ntool: noon\nassistant:"
    );
    asked.post(CHAT, &chat(json!({"messages": messages}))).ok();
}

#[test]
fn what_packages_and_caches_add_to_messages_changes_no_prompt() {
    let asked = Asked::shared();
    let call = json!({"name": "clock", "arguments": "{\"zone\": \"UTC\"}"});
    let plain = json!([
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "{\"a\": 1}", "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"role": "tool", "content": "noon", "tool_call_id": "1"},
    ]);
    let mut marked = plain.clone();
    marked[0]["content"][0]["prompt_cache_breakpoint"] = json!({"mode": "explicit"});
    marked[1]["parsed"] = json!({"a": 1});
    marked[1]["refusal"] = Value::Null;
    marked[1]["annotations"] = json!([]);
    marked[1]["tool_calls"][0]["index"] = json!(0);
    marked[1]["tool_calls"][0]["function"]["parsed_arguments"] = json!({"zone": "UTC"});
    let tokens = |messages| {
        asked.post("/tokenize", &json!({"model": MODEL, "messages": messages})).ok()["tokens"].clone()
    };
    assert_eq!(tokens(&marked), tokens(&plain));
    let said = |messages| asked.post(CHAT, &chat(json!({"messages": messages}))).ok()["choices"].clone();
    assert_eq!(said(&marked), said(&plain));
}

#[test]
fn fields_that_change_nothing_are_taken_and_those_of_the_template_reach_it() {
    let asked = Asked::shared();
    let plain = asked.post(CHAT, &chat(json!({}))).ok();
    let formal = chat(json!({
        "user": "u", "metadata": {"a": "b"}, "store": false, "service_tier": "auto", "prompt_cache_key": "k",
        "safety_identifier": "s", "parallel_tool_calls": true, "n": 1, "modalities": ["text"], "seed": -1,
        "response_format": {"type": "text"}, "top_k": null, "tools": null, "reasoning_effort": "none",
        "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "stop": null, "tool_choice": "auto",
        "prompt_cache_options": {"mode": "implicit"}, "moderation": null,
    }));
    let answer = asked.post(CHAT, &formal).ok();
    assert_eq!(answer["choices"], plain["choices"]);
    let other = asked.post(CHAT, &chat(json!({"chat_template_kwargs": {"mood": "merry"}}))).ok();
    let prompt = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt(&other) > prompt(&plain));
}
