//! Models, tokens, embeddings, probes, figures, keys.

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use metallic_server::ServerOptions;
use serde_json::{Value, json};

use crate::chat::{CHAT, chat};
use crate::support::{Asked, MODEL, post};

#[test]
fn models_are_listed_with_their_other_names() {
    let asked = Asked::shared();
    let list = asked.get("/v1/models").ok();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|model| &model["id"]).collect();
    assert_eq!(ids, ["stories", "tiny"]);
    assert_eq!(asked.get("/v1/models/tiny").ok()["root"], MODEL);
    asked.get("/v1/models/no/such%20one").refused(404, Some("/model"));
    let answer = asked.post(CHAT, &chat(json!({"model": "tiny"}))).ok();
    assert_eq!(answer["model"], MODEL);
}

#[test]
fn clients_of_anthropic_get_models_and_errors_in_the_shape_of_that_api() {
    let asked = Asked::shared();
    let get = |path: &str| {
        let request = Request::get(path).header("anthropic-version", "2023-06-01");
        asked.send(request.body(Body::empty()).unwrap())
    };
    let list = get("/v1/models");
    assert!(list.headers["request-id"].to_str().unwrap().starts_with("req_"));
    let list = list.ok();
    assert_eq!(
        (&list["first_id"], &list["last_id"], &list["has_more"]),
        (&json!("stories"), &json!("tiny"), &json!(false))
    );
    let tiny = get("/v1/models/tiny").ok();
    assert_eq!(list["data"], json!([get("/v1/models/stories").ok(), tiny]));
    assert_eq!(
        (&tiny["type"], &tiny["id"], &tiny["display_name"]),
        (&json!("model"), &json!("tiny"), &json!("tiny"))
    );
    assert!(tiny["created_at"].as_str().unwrap().ends_with('Z'), "{tiny}");
    let nobody = get("/v1/models/nobody");
    let error = nobody.json();
    assert_eq!((nobody.status.as_u16(), &error["type"]), (404, &json!("error")), "{error}");
    assert_eq!(error["error"]["type"], "not_found_error");
    assert_eq!(error["request_id"], nobody.headers["request-id"].to_str().unwrap());
    // Others are not told of a name that their API has not.
    assert_eq!(asked.get("/v1/models").headers.get("request-id"), None);
    get("/v1/responses/resp_0").refused(404, None);
}

#[test]
fn tokens_and_text_go_both_ways() {
    let asked = Asked::shared();
    let text = "Once upon a time";
    let body = json!({"model": MODEL, "content": text, "add_special": false, "with_pieces": true});
    let found = asked.post("/tokenize", &body).ok();
    assert_eq!(found["count"], found["tokens"].as_array().unwrap().len());
    assert_eq!(found["count"], found["pieces"].as_array().unwrap().len());
    let back = asked.post("/detokenize", &json!({"model": MODEL, "tokens": found["tokens"]})).ok();
    assert_eq!(back["content"].as_str().unwrap().trim(), text);
    asked.post("/detokenize", &json!({"model": MODEL, "tokens": [1, 99999]})).refused(400, Some("/tokens/1"));
}

#[test]
fn embeddings_are_the_same_as_numbers_and_as_base64() {
    let asked = Asked::shared();
    let body = json!({"model": MODEL, "input": ["a little girl", "a dog"]});
    let found = asked.post("/v1/embeddings", &body).ok();
    let row = |value: &Value| -> Vec<f32> {
        value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
    };
    let first = row(&found["data"][0]["embedding"]);
    assert!((first.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-4);
    assert_eq!(found["data"][1]["index"], 1);
    let mut packed = body.clone();
    packed["encoding_format"] = json!("base64");
    packed["dimensions"] = json!(first.len());
    let packed = asked.post("/v1/embeddings", &packed).ok();
    let bytes = BASE64_STANDARD.decode(packed["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let unpacked: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    assert_eq!(unpacked, first);
    let tokens = asked.post("/tokenize", &json!({"model": MODEL, "content": "a dog"})).ok();
    let of_tokens = asked.post("/v1/embeddings", &json!({"model": MODEL, "input": [tokens["tokens"]]})).ok();
    assert_eq!(of_tokens["data"][0]["embedding"], found["data"][1]["embedding"]);
    let wrong = json!({"model": MODEL, "input": "a", "dimensions": 3});
    asked.post("/v1/embeddings", &wrong).refused(400, Some("/dimensions"));
    let long = json!({"model": MODEL, "input": ["a", "a dog ".repeat(600)]});
    let message = asked.post("/v1/embeddings", &long).refused(400, Some("/input"));
    assert!(message.contains("512"), "{message}");
}

#[test]
fn probes_say_that_it_is_alive_and_figures_count() {
    let asked = Asked::new(ServerOptions::default());
    assert_eq!(asked.get("/health").ok()["status"], "ok");
    assert_eq!(asked.get("/ready").ok()["status"], "ready");
    asked.post(CHAT, &chat(json!({"stream": true})));
    asked.post(CHAT, &json!({}));
    asked.get("/no/such/path").refused(404, None);
    let figures = asked.get("/metrics");
    assert_eq!(figures.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    for line in [
        "metallic_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "metallic_requests_total{route=\"/v1/chat/completions\",status=\"400\"} 1",
        "metallic_requests_total{route=\"other\",status=\"404\"} 1",
        "metallic_generated_tokens_total 12",
        "metallic_time_to_first_token_seconds_count 1",
        "metallic_time_between_tokens_seconds_count 11",
        "metallic_engine_waiting{model=\"stories\"} 0",
        "metallic_engine_running{model=\"stories\"} 0",
        // The request for the figures itself.
        "metallic_requests_in_flight 1",
    ] {
        assert!(figures.text.contains(line), "{line}: {}", figures.text);
    }
}

#[test]
fn keys_are_asked_for_everywhere_but_at_the_door() {
    let options = ServerOptions::default().api_keys(["alpha".to_owned(), "beta".to_owned()]);
    let asked = Asked::new(options);
    for path in ["/health", "/ready", "/openapi.json", "/"] {
        assert_eq!(asked.get(path).status, 200, "{path}");
    }
    let wrong = asked.get("/v1/models");
    wrong.refused(401, None);
    assert_eq!(wrong.headers["www-authenticate"], "Bearer");
    asked.post(CHAT, &chat(json!({}))).refused(401, None);
    asked.get("/metrics").refused(401, None);
    asked.get("/no/such/path").refused(401, None);
    for (name, value) in [("authorization", "Bearer beta"), ("x-api-key", "alpha")] {
        let mut request = post(CHAT, &chat(json!({})));
        request.headers_mut().insert(name, value.parse().unwrap());
        asked.send(request).ok();
    }
}

#[test]
fn pages_of_other_origins_are_let_in_only_where_they_were_invited() {
    let ask = |asked: &Asked, method: &str| {
        let request = Request::builder().method(method).uri(CHAT).header("origin", "https://a.example");
        asked.send(request.header("access-control-request-method", "POST").body(Body::empty()).unwrap())
    };
    let closed = ask(Asked::shared(), "OPTIONS");
    assert_eq!((closed.status.as_u16(), closed.headers.get("access-control-allow-origin")), (405, None));
    let key = ["k".to_owned()];
    for origins in ["https://a.example", "*"] {
        let open = ServerOptions::default().cors_origins([origins.to_owned()]).api_keys(key.clone());
        let open = ask(&Asked::new(open), "OPTIONS");
        assert_eq!(open.status, 204);
        assert_eq!(open.headers["access-control-allow-origin"], "https://a.example");
    }
    let other = ServerOptions::default().cors_origins(["https://b.example".to_owned()]);
    assert_eq!(ask(&Asked::new(other), "OPTIONS").headers.get("access-control-allow-origin"), None);
}

#[test]
fn the_document_describes_every_route_and_every_field() {
    let asked = Asked::shared();
    let document = asked.get("/openapi.json").ok();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let Some(content) = operation["requestBody"]["content"]["application/json"].as_object() else {
                // Nothing else that has an id is there.
                let status = if path.contains("{id}") && !path.starts_with("/v1/models") { 404 } else { 200 };
                if method == "get" {
                    assert_eq!(asked.get(&path.replace("{id}", MODEL)).status, status, "{path}");
                }
                continue;
            };
            let example = &content["example"];
            let answer = asked.post(path, example).ok();
            assert!(answer.is_object(), "{path}");
            let schema = &content["schema"];
            let kinds =
                schema["anyOf"].as_array().map_or_else(|| vec![schema], |kinds| kinds.iter().collect());
            for name in kinds[0]["properties"].as_object().unwrap().keys() {
                // What is not given may be null, and what nobody reads is refused even then.
                let mut body = example.clone();
                body.as_object_mut().unwrap().entry(name).or_insert(Value::Null);
                asked.post(path, &body).ok();
            }
            let mut body = example.clone();
            body["unheard_of"] = Value::Null;
            let got = asked.post(path, &body);
            assert!(got.status == 400 && got.text.contains("/unheard_of"), "{path}: {}", got.text);
        }
    }
    assert_eq!(document["components"].get("securitySchemes"), None);
    let keyed = Asked::new(ServerOptions::default().api_keys(["k".to_owned()]));
    let document = keyed.get("/openapi.json").ok();
    assert!(document["components"]["securitySchemes"]["key"].is_object());
}

#[test]
fn names_that_are_not_allowed_are_refused() {
    let asked = Asked::new(ServerOptions::default().allowed_hosts(vec!["api.example".to_owned()]));
    let ask =
        |host: &str| asked.send(Request::get("/health").header("host", host).body(Body::empty()).unwrap());
    ask("API.example:8080").ok();
    ask("evil.example").refused(403, None);
}
