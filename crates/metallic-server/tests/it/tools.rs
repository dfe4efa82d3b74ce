//! Calls of tools.

use serde_json::{Value, json};

use crate::chat::{CHAT, chat};
use crate::support::Asked;

fn tool(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name, "description": "Tells something", "parameters": {
        "type": "object",
        "properties": {"unit": {"enum": ["day", "hour"]}, "count": {"type": "integer", "minimum": 1, "maximum": 99}},
        "required": ["unit", "count"],
        "additionalProperties": false,
    }}})
}

fn ask(more: Value) -> Value {
    let mut body = chat(json!({"tools": [tool("clock"), tool("weather")], "max_tokens": 120}));
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn check_arguments(arguments: &Value) {
    let arguments: Value = serde_json::from_str(arguments.as_str().unwrap()).unwrap();
    assert!(["day", "hour"].contains(&arguments["unit"].as_str().unwrap()), "{arguments}");
    assert!((1..=99).contains(&arguments["count"].as_i64().unwrap()), "{arguments}");
}

#[test]
fn a_call_that_is_required_is_made_with_arguments_that_keep_to_their_schema() {
    let asked = Asked::shared();
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for (choice, names) in [(json!("required"), &["clock", "weather"][..]), (named, &["weather"])] {
        let body = ask(json!({"tool_choice": choice, "parallel_tool_calls": false}));
        let answer = asked.post(CHAT, &body).ok();
        let message = &answer["choices"][0]["message"];
        let calls = message["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &answer["choices"][0]["finish_reason"]), (1, &json!("tool_calls")));
        assert!(message["content"].is_null() && calls[0]["type"] == "function", "{message}");
        assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));
        assert!(names.contains(&calls[0]["function"]["name"].as_str().unwrap()), "{message}");
        check_arguments(&calls[0]["function"]["arguments"]);
    }
}

#[test]
fn a_function_that_is_named_is_called_once() {
    let named = json!({"type": "function", "function": {"name": "weather"}});
    for seed in 0..4 {
        let body = ask(json!({"tool_choice": named, "temperature": 1, "seed": seed, "max_tokens": 200}));
        let answer = Asked::shared().post(CHAT, &body).ok();
        let choice = &answer["choices"][0];
        assert_eq!(choice["message"]["tool_calls"].as_array().unwrap().len(), 1, "{choice}");
        assert_eq!(choice["finish_reason"], "tool_calls");
    }
}

#[test]
fn what_nobody_can_enforce_of_arguments_is_left_to_the_model_unless_it_is_to_be_strict() {
    let asked = Asked::shared();
    let with = |strict: Value| {
        let mut tool = tool("clock");
        tool["function"]["strict"] = strict;
        let properties = &mut tool["function"]["parameters"]["properties"];
        properties["tags"] = json!({"type": "array", "items": {"type": "string"}, "uniqueItems": true});
        properties["odd"] = json!({"not": {"type": "null"}});
        ask(json!({"tools": [tool], "tool_choice": "required", "parallel_tool_calls": false}))
    };
    for strict in [json!(null), json!(false)] {
        let answer = asked.post(CHAT, &with(strict)).ok();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        check_arguments(&call["arguments"]);
    }
    let message = asked.post(CHAT, &with(json!(true))).refused(400, Some("/tools"));
    assert!(message.contains("`clock`") && message.contains("/properties/"), "{message}");
    // A call that is not forced is held to nothing.
    let mut free = with(json!(true));
    free["tool_choice"] = json!("auto");
    asked.post(CHAT, &free).ok();
}

#[test]
fn a_stream_of_a_call_adds_up_to_the_call() {
    let asked = Asked::shared();
    let body = ask(json!({"tool_choice": "required", "parallel_tool_calls": false}));
    let whole = asked.post(CHAT, &body).ok();
    let expected = &whole["choices"][0]["message"]["tool_calls"][0]["function"];
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let events = asked.post(CHAT, &streamed).events();
    assert!(events[0]["choices"][0]["delta"]["content"].is_null(), "a call has no text, not an empty one");
    let calls: Vec<&Value> = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["tool_calls"][0])
        .filter(|c| !c.is_null())
        .collect();
    assert_eq!((&calls[0]["function"]["name"], &calls[0]["type"]), (&expected["name"], &json!("function")));
    assert!(calls[1..].iter().all(|call| call.get("id").is_none() && call["index"] == 0));
    let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, expected["arguments"].as_str().unwrap());
    assert!(calls.len() > 3, "arguments come as they are written");
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn a_call_that_had_no_room_is_called_cut() {
    for max_tokens in [1, 4, 12, 20] {
        let body = ask(json!({"tool_choice": "required", "max_tokens": max_tokens}));
        let answer = Asked::shared().post(CHAT, &body).ok();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "length", "{max_tokens}: {choice}");
        let text = choice["message"]["content"].as_str().unwrap_or_default();
        assert_eq!(text, "", "{max_tokens}: the beginning of a mark is no text");
        for call in choice["message"]["tool_calls"].as_array().into_iter().flatten() {
            let arguments = call["function"]["arguments"].as_str().unwrap();
            let whole = serde_json::from_str::<Value>(arguments);
            assert!(whole.is_err() || arguments.ends_with('}'), "{arguments}");
        }
    }
}

#[test]
fn tools_that_may_be_called_need_not_be_and_none_means_none() {
    let asked = Asked::shared();
    let plain = asked.post(CHAT, &chat(json!({"max_tokens": 20}))).ok();
    let none = asked.post(CHAT, &ask(json!({"tool_choice": "none", "max_tokens": 20}))).ok();
    assert_eq!(none["choices"], plain["choices"]);
    assert_eq!(none["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);
    let auto = asked.post(CHAT, &ask(json!({"max_tokens": 20}))).ok();
    assert!(auto["usage"]["prompt_tokens"].as_u64() > plain["usage"]["prompt_tokens"].as_u64());
    assert!(!auto["choices"][0]["message"]["content"].as_str().unwrap().is_empty());
}

#[test]
fn an_answer_in_a_format_or_a_call_is_one_of_the_two() {
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "it", "schema": schema}});
    for seed in 0..4 {
        let more =
            json!({"response_format": format, "temperature": 1, "seed": seed, "parallel_tool_calls": false});
        let body = ask(more);
        let answer = Asked::shared().post(CHAT, &body).ok();
        let message = &answer["choices"][0]["message"];
        if let Some(calls) = message["tool_calls"].as_array() {
            for call in calls {
                check_arguments(&call["function"]["arguments"]);
            }
        } else {
            let value: Value = serde_json::from_str(message["content"].as_str().unwrap()).unwrap();
            assert!(value["ok"].is_boolean(), "{value}");
        }
    }
    let regex = Asked::shared().post(CHAT, &ask(json!({"regex": "a+"})));
    regex.refused(400, Some("/regex"));
}

#[test]
fn of_tools_that_are_allowed_one_is_called_and_the_model_hears_of_no_other() {
    let asked = Asked::shared();
    let allowed =
        json!({"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]});
    let choice = json!({"type": "allowed_tools", "allowed_tools": allowed});
    let answer = asked.post(CHAT, &ask(json!({"tool_choice": choice, "parallel_tool_calls": false}))).ok();
    let alone = json!({"tools": [tool("weather")], "tool_choice": "required", "parallel_tool_calls": false});
    let alone = asked.post(CHAT, &ask(alone)).ok();
    let call = |answer: &Value| answer["choices"][0]["message"]["tool_calls"][0]["function"].clone();
    assert_eq!(call(&answer)["name"], "weather");
    assert_eq!(call(&answer), call(&alone));
    assert_eq!(answer["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"]);
}

#[test]
fn tools_that_are_allowed_are_some_of_those_that_there_are() {
    let asked = Asked::shared();
    let choice = |allowed: Value| json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}});
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    // Where one may be called, or none, the model hears of those alone.
    let may = choice(json!({"mode": "auto", "tools": [named("weather")]}));
    let answer = asked.post(CHAT, &ask(may)).ok();
    let alone = asked.post(CHAT, &ask(json!({"tools": [tool("weather")]}))).ok();
    assert_eq!(answer["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"]);
    let at = "/tool_choice/allowed_tools";
    for (allowed, pointer) in [
        (json!({"mode": "auto", "tools": [named("sun")]}), "/tools/0/function/name"),
        (json!({"mode": "none", "tools": [named("weather")]}), "/mode"),
        (json!({"tools": [named("weather")]}), "/mode"),
        (json!({"mode": "auto", "tools": [{"type": "custom", "name": "c"}]}), "/tools/0/type"),
        (json!({"mode": "auto", "tools": [], "more": 1}), "/more"),
    ] {
        asked.post(CHAT, &ask(choice(allowed))).refused(400, Some(&format!("{at}{pointer}")));
    }
    // Of no tools none can be required.
    let none = asked.post(CHAT, &ask(choice(json!({"mode": "required", "tools": []}))));
    none.refused(400, Some("/tool_choice"));
}
