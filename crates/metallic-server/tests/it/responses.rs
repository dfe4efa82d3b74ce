//! `/v1/responses`.

use axum::body::Body;
use axum::http::Request;
use metallic_server::ServerOptions;
use serde_json::{Map, Value, json};

use crate::chat::{CHAT, chat};
use crate::support::{Asked, Got, MODEL, post};

const PATH: &str = "/v1/responses";

/// A request with some fields set otherwise.
fn request(with: Value) -> Value {
    let mut body =
        json!({"model": MODEL, "input": "Once upon a time", "max_output_tokens": 8, "temperature": 0});
    body.as_object_mut().unwrap().extend(with.as_object().cloned().unwrap_or_else(Map::new));
    body
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

/// The events of a stream that names them.
fn events(got: &Got) -> Vec<Value> {
    assert_eq!(got.status.as_u16(), 200, "{}", got.text);
    let events = got.text.split_terminator("\n\n").map(|event| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    });
    events.collect()
}

#[test]
fn a_response_says_what_a_chat_completion_says() {
    let asked = Asked::shared();
    let messages =
        json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Once upon a time"}]);
    let chat = asked.post(CHAT, &chat(json!({"messages": messages, "max_tokens": 8, "temperature": 0}))).ok();
    let response = asked.post(PATH, &request(json!({"instructions": "Be brief."}))).ok();
    assert_eq!(text(&response), chat["choices"][0]["message"]["content"]);
    assert_eq!(response["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    assert_eq!(response["usage"]["output_tokens"], 8);
    assert_eq!(response["status"], "incomplete");
    assert_eq!(response["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(response["output"][0]["status"], "incomplete");
    assert_eq!((&response["object"], &response["model"]), (&json!("response"), &json!(MODEL)));
}

#[test]
fn marks_for_the_cache_change_no_prompt() {
    let asked = Asked::shared();
    let said = |part: Value| {
        let input = json!([{"role": "user", "content": [part]}]);
        let response = asked.post(PATH, &request(json!({"input": input}))).ok();
        (response["usage"]["input_tokens"].clone(), text(&response).to_owned())
    };
    let mark = json!({"mode": "explicit"});
    let marked = said(json!({"type": "input_text", "text": "Hi", "prompt_cache_breakpoint": mark}));
    assert_eq!(marked, said(json!({"type": "input_text", "text": "Hi"})));
}

#[test]
fn a_response_repeats_what_was_asked() {
    let body = json!({
        "metadata": {"case": "17"}, "user": "me", "instructions": "Be brief.", "temperature": 0.7, "top_p": 0.9,
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": "none"}, "truncation": "disabled",
        "background": false, "service_tier": "auto", "include": [], "store": false, "tools": [], "tool_choice": "auto",
    });
    let response = Asked::shared().post(PATH, &request(body)).ok();
    for (field, value) in [
        ("metadata", json!({"case": "17"})),
        ("user", json!("me")),
        ("instructions", json!("Be brief.")),
        ("temperature", json!(0.7)),
        ("top_p", json!(0.9)),
        ("max_output_tokens", json!(8)),
        ("store", json!(false)),
        ("tool_choice", json!("auto")),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
    ] {
        assert_eq!(response[field], value, "{field}");
    }
    let tool = json!({"type": "function", "name": "f"});
    let asked = json!({"presence_penalty": 0.5, "tools": [tool], "tool_choice": "none"});
    let response = Asked::shared().post(PATH, &request(asked)).ok();
    for (field, value) in [
        ("presence_penalty", json!(0.5)),
        ("frequency_penalty", json!(0.0)),
        ("completed_at", Value::Null),
        ("user", Value::Null),
        ("safety_identifier", Value::Null),
        ("prompt_cache_key", Value::Null),
        ("max_tool_calls", Value::Null),
    ] {
        assert_eq!(response.get(field), Some(&value), "{field}: what nobody said is told too");
    }
    assert_eq!(response["tools"][0].get("description"), Some(&Value::Null));
}

#[test]
fn a_stream_tells_the_same_in_numbered_events() {
    let asked = Asked::shared();
    let whole = asked.post(PATH, &request(json!({}))).ok();
    let events = events(&asked.post(PATH, &request(json!({"stream": true}))));
    let numbers: Vec<u64> = events.iter().map(|event| event["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds, expected);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(deltas.map(|event| event["delta"].as_str().unwrap()).collect::<String>(), text(&whole));
    let last = &events.last().unwrap()["response"];
    assert_eq!(text(last), text(&whole));
    assert_eq!(last["usage"]["output_tokens"], 8);
    assert_eq!(last["output"][0]["id"], events[2]["item"]["id"]);
}

#[test]
fn log_probabilities_come_with_the_text() {
    let body = request(json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2}));
    let asked = Asked::shared();
    let response = asked.post(PATH, &body).ok();
    let tokens = response["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!(tokens.len(), 8);
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
    let mut body = body;
    body["stream"] = json!(true);
    let events = events(&asked.post(PATH, &body));
    let told = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(told.map(|event| event["logprobs"].as_array().unwrap().len()).sum::<usize>(), 8);
}

#[test]
fn a_response_goes_on_from_the_one_before_it() {
    let asked = Asked::shared();
    let first = asked.post(PATH, &request(json!({}))).ok();
    let next = json!({"input": "And then?", "previous_response_id": first["id"]});
    let second = asked.post(PATH, &request(next.clone())).ok();
    let mut items = vec![json!({"role": "user", "content": "Once upon a time"})];
    items.extend(first["output"].as_array().unwrap().clone());
    items.push(
        json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And then?"}]}),
    );
    let alone = asked.post(PATH, &request(json!({"input": items, "store": false}))).ok();
    assert_eq!(text(&second), text(&alone));
    assert_eq!(second["usage"]["input_tokens"], alone["usage"]["input_tokens"]);
    // And on from a stream.
    let streamed =
        events(&asked.post(PATH, &request(json!({"stream": true, "previous_response_id": second["id"]}))));
    let id = streamed[0]["response"]["id"].as_str().unwrap();
    asked.post(PATH, &request(json!({"previous_response_id": id}))).ok();
    // What was not kept cannot be gone on from.
    let unkept = json!({"previous_response_id": alone["id"]});
    asked.post(PATH, &request(unkept)).refused(400, Some("/previous_response_id"));
}

#[test]
fn kept_responses_are_read_and_deleted_by_who_made_them() {
    let asked = Asked::new(ServerOptions::default().api_keys(["a".to_owned(), "b".to_owned()]));
    let send = |method: &str, path: &str, key: &str| {
        let request =
            Request::builder().method(method).uri(path).header("authorization", format!("Bearer {key}"));
        asked.send(request.body(Body::empty()).unwrap())
    };
    let mut create = post(PATH, &request(json!({})));
    create.headers_mut().insert("authorization", "Bearer a".parse().unwrap());
    let made = asked.send(create).ok();
    let path = format!("{PATH}/{}", made["id"].as_str().unwrap());
    assert_eq!(send("GET", &path, "a").ok(), made);
    send("GET", &path, "b").refused(404, None);
    send("DELETE", &path, "b").refused(404, None);
    send("GET", &format!("{path}?stream=true"), "a").refused(400, Some("/stream"));
    assert_eq!(send("DELETE", &path, "a").ok()["deleted"], true);
    send("GET", &path, "a").refused(404, None);
}

#[test]
fn a_server_that_keeps_nothing_says_so() {
    let asked = Asked::new(ServerOptions::default().stored_responses(0));
    assert_eq!(asked.post(PATH, &request(json!({}))).ok()["store"], false);
    asked.post(PATH, &request(json!({"store": true}))).refused(400, Some("/store"));
}

#[test]
fn fields_that_are_wrong_or_not_supported_are_named() {
    let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
    let call = json!({"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"});
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
    let cases = [
        (json!({"input": null}), "/input"),
        (json!({"input": []}), "/input"),
        (json!({"input": 5}), "/input"),
        (json!({"input": ["x"]}), "/input/0"),
        (json!({"input": [{"content": "x"}]}), "/input/0/role"),
        (json!({"input": [{"role": "tool", "content": "x"}]}), "/input/0/role"),
        (json!({"input": [{"role": "user", "content": "x", "mood": 1}]}), "/input/0/mood"),
        (json!({"input": image}), "/input/0/content/0/type"),
        (json!({"input": [{"type": "web_search_call", "id": "x"}]}), "/input/0/type"),
        (
            json!({"input": [call, {"type": "function_call_output", "call_id": "c2", "output": ""}]}),
            "/input/1/call_id",
        ),
        (json!({"input": [{"type": "reasoning", "encrypted_content": "?"}]}), "/input/0/encrypted_content"),
        (json!({"max_output_tokens": 0}), "/max_output_tokens"),
        (json!({"max_tokens": 5}), "/max_tokens"),
        (json!({"messages": []}), "/messages"),
        (json!({"client_metadata": {"client": 5}}), "/client_metadata/client"),
        (json!({"tools": [{"type": "web_search"}]}), "/tools/0/type"),
        (json!({"tools": [{"type": "function", "name": "a b"}]}), "/tools/0/name"),
        (json!({"tools": [tool, tool]}), "/tools/1/name"),
        (json!({"tools": [{"type": "function", "name": "a", "parameters": 5}]}), "/tools/0/parameters"),
        (json!({"tool_choice": "required"}), "/tool_choice"),
        (json!({"tool_choice": "maybe"}), "/tool_choice"),
        (json!({"tools": [tool], "tool_choice": {"type": "function", "name": "no"}}), "/tool_choice/name"),
        (json!({"tools": [tool], "tool_choice": {"type": "mcp"}}), "/tool_choice/type"),
        (json!({"text": {"format": {"type": "xml"}}}), "/text/format/type"),
        (json!({"text": {"format": {"type": "json_schema", "schema": {}}}}), "/text/format/name"),
        (json!({"text": {"verbosity": "low"}}), "/text/verbosity"),
        (json!({"reasoning": {"effort": "high"}}), "/reasoning/effort"),
        (json!({"reasoning": {"summary": "detailed"}}), "/reasoning/summary"),
        (json!({"include": ["file_search_call.results"]}), "/include/0"),
        (json!({"top_logprobs": 3}), "/top_logprobs"),
        (json!({"metadata": {"a": 1}}), "/metadata/a"),
        (json!({"metadata": {"a": "x".repeat(600)}}), "/metadata/a"),
        (json!({"background": true}), "/background"),
        (json!({"conversation": "c"}), "/conversation"),
        (json!({"prompt": {"id": "p"}}), "/prompt"),
        (json!({"truncation": "auto"}), "/truncation"),
        (json!({"stream_options": {}}), "/stream_options"),
        (json!({"previous_response_id": "resp_0"}), "/previous_response_id"),
        (json!({"context_management": [{"type": "compaction"}]}), "/context_management"),
        (json!({"moderation": {"model": "m"}}), "/moderation"),
        (json!({"surprise": 1}), "/surprise"),
    ];
    for (with, param) in cases {
        Asked::shared().post(PATH, &request(with)).refused(400, Some(param));
    }
    Asked::shared().post(PATH, &request(json!({"model": "no"}))).refused(404, Some("/model"));
}

#[test]
fn the_items_of_a_response_are_listed_by_pages() {
    let asked = Asked::shared();
    let first = asked.post(PATH, &request(json!({}))).ok();
    let next =
        json!({"input": [{"role": "user", "content": "And then?"}], "previous_response_id": first["id"]});
    let second = asked.post(PATH, &request(next)).ok();
    let path = format!("{PATH}/{}/input_items", second["id"].as_str().unwrap());
    let list = |query: &str| asked.get(&format!("{path}{query}")).ok();
    let all = list("");
    let texts = |list: &Value| -> Vec<String> {
        let items = list["data"].as_array().unwrap();
        items.iter().map(|item| item["content"][0]["text"].as_str().unwrap().to_owned()).collect()
    };
    // What was said before, without the answer; the latest comes first.
    assert_eq!(texts(&all), ["And then?", text(&first), "Once upon a time"]);
    assert_eq!((&all["object"], &all["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!(all["data"][0]["content"][0]["type"], "input_text");
    let early = list("?order=asc&limit=2");
    assert_eq!((texts(&early).len(), &early["has_more"]), (2, &json!(true)));
    assert_eq!(early["data"][1]["id"], first["output"][0]["id"]);
    let rest = list(&format!("?order=asc&after={}", early["last_id"].as_str().unwrap()));
    assert_eq!(texts(&rest), ["And then?"]);
    for (query, pointer) in [
        ("?limit=0", "/limit"),
        ("?limit=101", "/limit"),
        ("?order=up", "/order"),
        ("?after=x", "/after"),
        ("?include=all", "/include"),
    ] {
        asked.get(&format!("{path}{query}")).refused(400, Some(pointer));
    }
    asked.get(&format!("{PATH}/resp_0/input_items")).refused(404, None);
}

#[test]
fn the_tokens_of_a_prompt_are_counted_without_an_answer() {
    let asked = Asked::shared();
    let body = request(json!({"instructions": "Be brief."}));
    let counted = asked.post(&format!("{PATH}/input_tokens"), &body).ok();
    let made = asked.post(PATH, &body).ok();
    assert_eq!(counted["object"], "response.input_tokens");
    assert_eq!(counted["input_tokens"], made["usage"]["input_tokens"]);
    asked
        .post(&format!("{PATH}/input_tokens"), &request(json!({"surprise": 1})))
        .refused(400, Some("/surprise"));
}
