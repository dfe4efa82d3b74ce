//! Bad requests: each is told what is wrong, and where.

use axum::body::Body;
use axum::http::Request;
use metallic_server::ServerOptions;
use serde_json::{Value, json};

use crate::chat::{CHAT, chat};
use crate::support::{Asked, MODEL};

#[test]
fn a_field_that_is_wrong_or_unknown_is_named_by_its_pointer() {
    let text = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
    let calls = |call: Value| json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
    let tool = |tool: Value| json!({"tools": [tool]});
    let named = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
    let cases = [
        (json!({"model": 5}), "/model"),
        (json!({"model": null}), "/model"),
        (json!({"messages": null}), "/messages"),
        (json!({"messages": []}), "/messages"),
        (json!({"messages": "hi"}), "/messages"),
        (json!({"messages": ["hi"]}), "/messages/0"),
        (json!({"messages": [{"content": "hi"}]}), "/messages/0/role"),
        (json!({"messages": [{"role": "robot", "content": "hi"}]}), "/messages/0/role"),
        (json!({"messages": [{"role": "function", "content": "hi", "name": "f"}]}), "/messages/0/role"),
        (json!({"messages": [{"role": "user"}]}), "/messages/0/content"),
        (json!({"messages": [{"role": "assistant"}]}), "/messages/0/content"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "/messages/0/tool_call_id"),
        (
            json!({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}),
            "/messages/0/tool_call_id",
        ),
        (json!({"messages": [{"role": "user", "content": "x", "type": "image"}]}), "/messages/0/type"),
        (json!({"messages": [{"role": "user", "content": "x", "mood": 1}]}), "/messages/0/mood"),
        (text(json!(5)), "/messages/0/content"),
        (text(json!([])), "/messages/0/content"),
        (text(json!([{"type": "image_url", "image_url": {"url": "x"}}])), "/messages/0/content/0/type"),
        (text(json!([{"type": "text", "text": 5}])), "/messages/0/content/0/text"),
        (text(json!([{"type": "text", "text": "", "size": 5}])), "/messages/0/content/0/size"),
        (calls(json!({"id": "1", "type": "custom"})), "/messages/0/tool_calls/0/type"),
        (
            calls(json!({"id": "1", "type": "function", "function": {"name": "f"}})),
            "/messages/0/tool_calls/0/function/arguments",
        ),
        (json!({"temperature": 2.1}), "/temperature"),
        (json!({"temperature": "hot"}), "/temperature"),
        (json!({"temperature": true}), "/temperature"),
        (json!({"top_p": -0.1}), "/top_p"),
        (json!({"min_p": 1.1}), "/min_p"),
        (json!({"typical_p": 2}), "/typical_p"),
        (json!({"top_k": -2}), "/top_k"),
        (json!({"repetition_penalty": 0}), "/repetition_penalty"),
        (json!({"presence_penalty": 3}), "/presence_penalty"),
        (json!({"frequency_penalty": -3}), "/frequency_penalty"),
        (json!({"seed": 1.5}), "/seed"),
        (json!({"seed": 1e300}), "/seed"),
        (json!({"n": 0}), "/n"),
        (json!({"n": 1000}), "/n"),
        (json!({"max_tokens": 0}), "/max_tokens"),
        (json!({"max_tokens": "many"}), "/max_tokens"),
        (json!({"max_completion_tokens": -1}), "/max_completion_tokens"),
        (json!({"max_completion_tokens": 5}), "/max_tokens"),
        (json!({"logprobs": 5}), "/logprobs"),
        (json!({"top_logprobs": 2}), "/top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "/top_logprobs"),
        (json!({"stop": 5}), "/stop"),
        (json!({"stop": ""}), "/stop"),
        (json!({"stop": ["a", ""]}), "/stop/1"),
        (json!({"stop": vec!["a"; 17]}), "/stop"),
        (json!({"logit_bias": {"x": 1}}), "/logit_bias/x"),
        (json!({"logit_bias": {"+1": 1}}), "/logit_bias/+1"),
        (json!({"logit_bias": {"5": 101}}), "/logit_bias/5"),
        (json!({"logit_bias": {"4000000": 1}}), "/logit_bias"),
        (json!({"logit_bias": [1]}), "/logit_bias"),
        (json!({"adapters": {"poet": 1}}), "/adapters"),
        (json!({"stream": "yes"}), "/stream"),
        (json!({"stream_options": {"include_usage": true}}), "/stream_options"),
        (json!({"stream": true, "stream_options": {"x": 1}}), "/stream_options/x"),
        (
            json!({"stream": true, "stream_options": {"continuous_usage_stats": true}}),
            "/stream_options/continuous_usage_stats",
        ),
        (
            json!({"stream": true, "stream_options": {"include_obfuscation": true}}),
            "/stream_options/include_obfuscation",
        ),
        (json!({"response_format": {}}), "/response_format/type"),
        (json!({"response_format": {"type": "xml"}}), "/response_format/type"),
        (json!({"response_format": {"type": "json_schema"}}), "/response_format/json_schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}}),
            "/response_format/json_schema/name",
        ),
        (tool(json!({"type": "web_search"})), "/tools/0/type"),
        (tool(json!({"type": "function", "function": {"name": "a b"}})), "/tools/0/function/name"),
        (
            tool(json!({"type": "function", "function": {"name": "a", "parameters": []}})),
            "/tools/0/function/parameters",
        ),
        (
            tool(json!({"type": "function", "function": {"name": "a", "parameters": {"type": "string"}}})),
            "/tools/0/function/parameters/type",
        ),
        (json!({"tools": [named, named]}), "/tools/1/function/name"),
        (json!({"tool_choice": "required"}), "/tool_choice"),
        (json!({"tool_choice": "maybe"}), "/tool_choice"),
        (
            json!({"tools": [named], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "/tool_choice",
        ),
        (
            json!({"tools": [named], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}),
            "/tool_choice/allowed_tools/tools",
        ),
        (json!({"functions": []}), "/functions"),
        (json!({"modalities": ["text", "audio"]}), "/modalities"),
        (json!({"store": true}), "/store"),
        (json!({"service_tier": "flex"}), "/service_tier"),
        (json!({"metadata": {"a": 1}}), "/metadata/a"),
        (json!({"prediction": {"type": "content", "content": "x"}}), "/prediction"),
        (json!({"web_search_options": {}}), "/web_search_options"),
        (json!({"moderation": {"model": "m"}}), "/moderation"),
        (json!({"prompt_cache_options": {"mode": "explicit"}}), "/prompt_cache_options"),
        (
            text(json!([{"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "late"}}])),
            "/messages/0/content/0/prompt_cache_breakpoint/mode",
        ),
        (json!({"reasoning_effort": "high"}), "/reasoning_effort"),
        (json!({"reasoning_effort": "much"}), "/reasoning_effort"),
        (json!({"chat_template_kwargs": {"enable_thinking": true}}), "/chat_template_kwargs/enable_thinking"),
        (json!({"chat_template_kwargs": {"messages": []}}), "/chat_template_kwargs/messages"),
        (json!({"unheard/of": 1}), "/unheard~1of"),
        (json!({"messages": [{"role": "user", "content": "word ".repeat(2000)}]}), "/messages"),
    ];
    for (more, pointer) in cases {
        let got = Asked::shared().post(CHAT, &chat(more.clone()));
        assert_eq!(got.status, 400, "{more}: {}", got.text);
        let message = got.refused(400, Some(pointer));
        assert!(!message.is_empty() && !message.contains("/src/"), "{message}");
    }
}

#[test]
fn other_endpoints_name_what_is_wrong_as_well() {
    let cases = [
        ("/v1/completions", json!({"model": MODEL}), "/prompt"),
        ("/v1/completions", json!({"model": MODEL, "prompt": ""}), "/prompt"),
        ("/v1/completions", json!({"model": MODEL, "prompt": []}), "/prompt"),
        ("/v1/completions", json!({"model": MODEL, "prompt": [1, "a"]}), "/prompt/1"),
        ("/v1/completions", json!({"model": MODEL, "prompt": [["a"]]}), "/prompt/0/0"),
        ("/v1/completions", json!({"model": MODEL, "prompt": [70000]}), "/prompt"),
        ("/v1/completions", json!({"model": MODEL, "prompt": "a", "best_of": 2}), "/best_of"),
        ("/v1/completions", json!({"model": MODEL, "prompt": "a", "suffix": "b"}), "/suffix"),
        ("/v1/completions", json!({"model": MODEL, "prompt": "a", "logprobs": 6}), "/logprobs"),
        ("/v1/completions", json!({"model": MODEL, "prompt": "a", "messages": []}), "/messages"),
        ("/v1/completions", json!({"model": MODEL, "prompt": vec!["a"; 40], "n": 2}), "/prompt"),
        ("/v1/embeddings", json!({"model": MODEL, "input": {}}), "/input"),
        (
            "/v1/embeddings",
            json!({"model": MODEL, "input": "a", "encoding_format": "hex"}),
            "/encoding_format",
        ),
        ("/v1/embeddings", json!({"input": "a"}), "/model"),
        ("/tokenize", json!({"model": MODEL}), "/content"),
        ("/tokenize", json!({"model": MODEL, "content": "a", "messages": []}), "/messages"),
        ("/tokenize", json!({"model": MODEL, "content": "a", "depth": 1}), "/depth"),
        ("/detokenize", json!({"model": MODEL, "tokens": [-1]}), "/tokens/0"),
        ("/detokenize", json!({"model": MODEL, "tokens": "1"}), "/tokens"),
    ];
    for (path, body, pointer) in cases {
        let got = Asked::shared().post(path, &body);
        assert_eq!(got.status, 400, "{path} {body}: {}", got.text);
        got.refused(400, Some(pointer));
    }
    Asked::shared().post(CHAT, &chat(json!({"model": "gpt-9"}))).refused(404, Some("/model"));
}

#[test]
fn what_is_no_json_is_refused_before_anything_is_read() {
    let asked = Asked::new(ServerOptions::default().body_bytes(1000));
    let send = |kind: Option<&str>, body: &[u8]| {
        let mut request = Request::post(CHAT);
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        asked.send(request.body(Body::from(body.to_vec())).unwrap())
    };
    let json = Some("application/json");
    assert!(send(json, b"{\"model\": \"x\",}").refused(400, None).contains("line 1 column 15"));
    assert!(send(json, b"{\"model\": \"\xff\"}").refused(400, None).contains("byte 11"));
    assert!(send(json, b"").refused(400, None).contains("not JSON"));
    assert!(send(json, b"[]").refused(400, None).contains("an array"));
    send(json, b"{\"a\": \"\\ud800\"}").refused(400, None);
    send(json, b"{\"a\": 1e999}").refused(400, None);
    send(json, b"{\"messages\": [{\"role\": \"user\", \"role\": \"system\"}]}")
        .refused(400, Some("/messages/0/role"));
    send(json, "[".repeat(900).as_bytes()).refused(400, None);
    send(json, &[b' '; 1001]).refused(413, None);
    send(json, &vec![b' '; 100_000]).refused(413, None);
    send(None, b"{}").refused(415, None);
    send(Some("text/plain"), b"{}").refused(415, None);
    send(Some("application/x-www-form-urlencoded"), b"{}").refused(415, None);
    send(Some("Application/JSON; charset=utf-8"), b"{}").refused(400, Some("/model"));
    let encoded = |encoding: &str| {
        let request = Request::post(CHAT).header("content-type", "application/json");
        asked.send(request.header("content-encoding", encoding).body(Body::from("{}")).unwrap())
    };
    assert!(encoded("gzip").refused(415, None).contains("`gzip`"));
    encoded("identity").refused(400, Some("/model"));
}

#[test]
fn paths_and_methods_that_are_not_there_are_told_so_in_json() {
    let asked = Asked::shared();
    asked.get("/v1/nothing").refused(404, None);
    asked.post("/v1/assistants", &json!({})).refused(404, None);
    let wrong = asked.get(CHAT);
    wrong.refused(405, None);
    assert_eq!(wrong.headers["allow"], "POST");
    let wrong = asked.post("/v1/models", &json!({}));
    wrong.refused(405, None);
    assert_eq!(wrong.headers["allow"], "GET,HEAD");
}

#[test]
fn a_limit_on_tokens_holds_for_those_who_ask_and_those_who_do_not() {
    let asked = Asked::new(ServerOptions::default().max_tokens(5));
    asked.post(CHAT, &chat(json!({"max_tokens": 6}))).refused(400, Some("/max_tokens"));
    let mut body = chat(json!({}));
    body.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(asked.post(CHAT, &body).ok()["usage"]["completion_tokens"], 5);
}
