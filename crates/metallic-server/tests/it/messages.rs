//! `/v1/messages`.

use axum::body::Body;
use axum::http::Request;
use metallic_server::ServerOptions;
use serde_json::{Map, Value, json};

use crate::chat::{CHAT, chat};
use crate::support::{Asked, Got, MODEL};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// A request with some fields set otherwise.
fn request(with: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Once upon a time"}]);
    let mut body = json!({"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0});
    body.as_object_mut().unwrap().extend(with.as_object().cloned().unwrap_or_else(Map::new));
    body
}

/// The kind of an error and its message.
#[track_caller]
fn refused(got: &Got, status: u16) -> (String, String) {
    assert_eq!(got.status.as_u16(), status, "{}", got.text);
    let body = got.json();
    assert_eq!(body["type"], "error", "{body}");
    let id = got.headers["request-id"].to_str().unwrap();
    assert!(id.starts_with("req_") && body["request_id"] == id, "{body}");
    let field = |name: &str| body["error"][name].as_str().unwrap().to_owned();
    (field("type"), field("message"))
}

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
fn a_message_says_what_a_chat_completion_says() {
    let asked = Asked::shared();
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi.\nOnce upon a time"},
    ]);
    let chat = asked.post(CHAT, &chat(json!({"messages": messages, "max_tokens": 8, "temperature": 0}))).ok();
    let blocks = json!([{"type": "text", "text": "Hi."}, {"type": "text", "text": "Once upon a time"}]);
    let system = json!([{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]);
    let with = json!({"system": system, "messages": [{"role": "user", "content": blocks}]});
    let got = asked.post(PATH, &request(with));
    let message = got.ok();
    assert_eq!(
        message["content"],
        json!([{"type": "text", "text": chat["choices"][0]["message"]["content"]}])
    );
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("max_tokens"), &Value::Null));
    let usage = &message["usage"];
    let read = usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(json!(usage["input_tokens"].as_u64().unwrap() + read), chat["usage"]["prompt_tokens"]);
    assert_eq!(usage["output_tokens"], 8);
    assert_eq!(got.headers["request-id"], got.headers["x-request-id"]);
}

#[test]
fn a_stream_tells_the_same_block_by_block() {
    let asked = Asked::shared();
    let whole = asked.post(PATH, &request(json!({}))).ok();
    let events = events(&asked.post(PATH, &request(json!({"stream": true}))));
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let expected = [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds, expected);
    let message = &events[0]["message"];
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let all = |usage: &Value| {
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!(all(&message["usage"]), all(&whole["usage"]));
    let text: String = events.iter().filter_map(|event| event.pointer("/delta/text")?.as_str()).collect();
    assert_eq!(text, whole["content"][0]["text"]);
    let end = &events[events.len() - 2];
    assert_eq!(
        (&end["delta"]["stop_reason"], &end["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(8))
    );
}

#[test]
fn a_stop_sequence_ends_an_answer_and_is_told() {
    let asked = Asked::shared();
    let whole = asked.post(PATH, &request(json!({}))).ok();
    let text = whole["content"][0]["text"].as_str().unwrap();
    let word = text.split_whitespace().nth(2).unwrap();
    let stopped = asked.post(PATH, &request(json!({"stop_sequences": ["zzz", word]}))).ok();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(word)));
    assert_eq!(stopped["content"][0]["text"].as_str(), text.split(word).next());
}

#[test]
fn a_form_is_kept_to_by_its_old_name_as_well() {
    let schema = json!({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]});
    let format = json!({"type": "json_schema", "schema": schema});
    let said = |with: Value| {
        let message = Asked::shared().post(PATH, &request(with)).ok();
        message["content"][0]["text"].as_str().unwrap().to_owned()
    };
    let old = said(json!({"output_format": format, "max_tokens": 40}));
    assert!([1, 2].contains(&serde_json::from_str::<Value>(&old).unwrap()["a"].as_i64().unwrap()), "{old}");
    assert_eq!(old, said(json!({"output_config": {"format": format}, "max_tokens": 40})));
}

#[test]
fn a_call_has_an_id_as_this_api_writes_them() {
    let tool = json!({"name": "f", "input_schema": {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"]}});
    let choice = json!({"type": "any", "disable_parallel_tool_use": true});
    let with = json!({"tools": [tool], "tool_choice": choice, "max_tokens": 80});
    let message = Asked::shared().post(PATH, &request(with)).ok();
    assert!(message["content"][0]["id"].as_str().unwrap().starts_with("toolu_"), "{message}");
}

#[test]
fn tokens_are_counted_as_they_are_used() {
    let asked = Asked::shared();
    let with = json!({"system": "Be brief.", "messages": [{"role": "user", "content": "Hello there."}]});
    let usage = &asked.post(PATH, &request(with.clone())).ok()["usage"];
    let used = usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap();
    let mut body = with;
    body["model"] = json!(MODEL);
    assert_eq!(asked.post(COUNT, &body).ok(), json!({"input_tokens": used}));
    body["max_tokens"] = json!(5);
    let (kind, message) = refused(&asked.post(COUNT, &body), 400);
    assert!(kind == "invalid_request_error" && message.starts_with("/max_tokens: "), "{message}");
}

#[test]
fn calls_of_tools_and_their_results_go_into_the_conversation() {
    let asked = Asked::shared();
    let call = json!({"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}});
    let result =
        json!({"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "rain"}]});
    let messages = |result: &Value| {
        json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm", "signature": ""}, call]},
            {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
        ])
    };
    asked.post(PATH, &request(json!({"messages": messages(&result)}))).ok();
    let count = |result: &Value| {
        asked.post(COUNT, &json!({"model": MODEL, "messages": messages(result)})).ok()["input_tokens"]
            .as_u64()
    };
    let mut failed = result.clone();
    failed["is_error"] = json!(true);
    assert!(count(&failed) > count(&result), "the model is told of an error");
    let mut stray = result;
    stray["tool_use_id"] = json!("t2");
    let (_, message) = refused(&asked.post(PATH, &request(json!({"messages": messages(&stray)}))), 400);
    assert!(message.starts_with("/messages/2/content/0/tool_use_id: "), "{message}");
}

#[test]
fn what_fails_before_the_endpoint_has_the_shape_of_this_api_too() {
    let options = ServerOptions::default().api_keys(["k".to_owned()]);
    let asked = Asked::new(options.body_bytes(1024));
    let send = |method: &str, path: &str, key: &str, body: String| {
        let request = Request::builder().method(method).uri(path).header("x-api-key", key);
        asked.send(request.header("content-type", "application/json").body(Body::from(body)).unwrap())
    };
    let body = || request(json!({})).to_string();
    let long = " ".repeat(2048);
    for (got, status, kind) in [
        (send("POST", PATH, "other", body()), 401, "authentication_error"),
        (send("POST", "/v1/messages/nothing", "k", body()), 404, "not_found_error"),
        (send("GET", PATH, "k", String::new()), 405, "invalid_request_error"),
        (send("POST", PATH, "k", long), 413, "request_too_large"),
        (send("POST", PATH, "k", "{".into()), 400, "invalid_request_error"),
    ] {
        assert_eq!(refused(&got, status).0, kind);
    }
    let good = send("POST", PATH, "k", body());
    good.ok();
    assert_eq!(good.headers["request-id"], good.headers["x-request-id"]);
}

#[test]
fn what_clients_send_to_every_model_changes_nothing_where_it_holds() {
    let asked = Asked::shared();
    let plain = asked.post(PATH, &request(json!({}))).ok();
    for with in [
        json!({"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}),
        json!({"context_management": {"edits": []}, "mcp_servers": []}),
        json!({"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}}),
        json!({"thread": {"type": "create"}}),
    ] {
        let answer = asked.post(PATH, &request(with.clone())).ok();
        assert_eq!(answer["content"], plain["content"], "{with}");
    }
}

#[test]
fn who_goes_on_with_a_thread_is_told_to_send_everything_again() {
    let thread = json!({"type": "continue", "previous_message_id": "msg_1"});
    let got = Asked::shared().post(PATH, &request(json!({"thread": thread})));
    assert_eq!(refused(&got, 404).0, "not_found_error");
    assert_eq!(got.json()["error"]["details"]["error_code"], "thread_not_found");
}

#[test]
fn prompts_that_are_too_long_are_refused_in_the_words_that_clients_know() {
    let long = "Once upon a time ".repeat(4000);
    let got = Asked::shared().post(PATH, &request(json!({"messages": [{"role": "user", "content": long}]})));
    let (kind, message) = refused(&got, 400);
    assert_eq!(kind, "invalid_request_error");
    for words in ["prompt is too long: ", " tokens > ", "this model's maximum context length is "] {
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn fields_that_are_wrong_or_not_supported_are_named() {
    let says = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let tool = json!({"name": "weather", "input_schema": {"type": "object"}});
    let cases = [
        (json!({"messages": null}), "/messages"),
        (json!({"messages": []}), "/messages"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "/messages/0/role"),
        (json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}), "/messages/0/mood"),
        (json!({"messages": [{"role": "assistant", "content": "Once"}]}), "/messages/0/role"),
        (says(json!(5)), "/messages/0/content"),
        (says(json!([])), "/messages/0/content"),
        (says(json!([{"type": "image", "source": {}}])), "/messages/0/content/0/type"),
        (
            says(json!([{"type": "tool_use", "id": "1", "name": "f", "input": {}}])),
            "/messages/0/content/0/type",
        ),
        (says(json!([{"type": "text", "text": "x", "size": 1}])), "/messages/0/content/0/size"),
        (
            says(json!([{"type": "text", "text": "x", "cache_control": {"type": "?"}}])),
            "/messages/0/content/0/cache_control/type",
        ),
        (json!({"max_tokens": null}), "/max_tokens"),
        (json!({"max_tokens": 0}), "/max_tokens"),
        (json!({"temperature": 1.5}), "/temperature"),
        (json!({"stop": "x"}), "/stop"),
        (json!({"stop_sequences": [""]}), "/stop_sequences/0"),
        (json!({"system": [{"type": "image"}]}), "/system/0/type"),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), "/tools/0/type"),
        (json!({"tools": [{"name": "weather"}]}), "/tools/0/input_schema"),
        (
            json!({"tools": [{"name": "weather", "input_schema": {"type": "array"}}]}),
            "/tools/0/input_schema/type",
        ),
        (json!({"tools": [tool, tool]}), "/tools/1/name"),
        (json!({"tool_choice": {"type": "any"}}), "/tool_choice"),
        (json!({"tools": [tool], "tool_choice": {"type": "tool", "name": "no"}}), "/tool_choice/name"),
        (json!({"tools": [tool], "tool_choice": {"type": "some"}}), "/tool_choice/type"),
        (json!({"thinking": {"type": "enabled"}}), "/thinking/budget_tokens"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 2000}}), "/thinking/budget_tokens"),
        (json!({"output_config": {"effort": "so-so"}}), "/output_config/effort"),
        (
            json!({"context_management": {"edits": [{"type": "clear_tool_uses"}]}}),
            "/context_management/edits/0",
        ),
        (json!({"context_management": {"size": 5}}), "/context_management/size"),
        (json!({"thread": {"type": "split"}}), "/thread/type"),
        (json!({"mcp_servers": [{}]}), "/mcp_servers"),
        (json!({"output_config": {"format": {"type": "xml"}}}), "/output_config/format/type"),
        (json!({"output_format": {"type": "xml"}}), "/output_format/type"),
        (
            json!({"output_format": {"type": "json_schema", "schema": {}}, "output_config": {"format": {"type": "json_schema", "schema": {}}}}),
            "/output_format",
        ),
        (
            json!({"tools": [{"name": "weather", "input_schema": {}, "defer_loading": true}]}),
            "/tools/0/defer_loading",
        ),
        (json!({"metadata": {"name": "x"}}), "/metadata/name"),
        (json!({"container": "c"}), "/container"),
        (json!({"speed": "fast"}), "/speed"),
        (json!({"inference_geo": "eu"}), "/inference_geo"),
        (json!({"surprise": 1}), "/surprise"),
    ];
    for (with, pointer) in cases {
        let (kind, message) = refused(&Asked::shared().post(PATH, &request(with.clone())), 400);
        assert_eq!(kind, "invalid_request_error");
        assert!(message.starts_with(&format!("{pointer}: ")), "{with}: {message}");
    }
    let unknown = Asked::shared().post(PATH, &request(json!({"model": "no"})));
    assert_eq!(refused(&unknown, 404).0, "not_found_error");
    let no_route = Asked::shared().post("/v1/messages/batches", &json!({}));
    assert_eq!(refused(&no_route, 404).0, "not_found_error");
}

#[test]
fn keys_come_in_the_header_of_this_api() {
    let asked = Asked::new(ServerOptions::default().api_keys(["secret".to_owned()]));
    let send = |key: &str| {
        let builder = Request::post(PATH).header("content-type", "application/json").header("x-api-key", key);
        asked.send(builder.body(Body::from(request(json!({})).to_string())).unwrap())
    };
    send("secret").ok();
    assert_eq!(refused(&send("wrong"), 401).0, "authentication_error");
}
