//! Several models: loaded on demand, within a budget, with adapters.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use metallic::formats::{GgufWriter, Tensor};
use metallic::{AdapterOptions, Device, LoadOptions, Needs};
use metallic_core::DType;
use metallic_server::{ModelSpec, Models, Server, ServerError, ServerOptions, router};
use metallic_testkit::data;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::support::{Asked, llm, post, runtime};

const PATH: &str = "/v1/completions";
const CACHE: u64 = 1 << 20;

fn file() -> PathBuf {
    data::own().join("stories260K/stories260K-f32.gguf")
}

fn options() -> LoadOptions {
    LoadOptions::default().device(Device::Cpu).threads(1).kv_budget(CACHE)
}

fn spec() -> ModelSpec {
    ModelSpec::new(file()).options(options())
}

/// Bytes of one model with its cache.
fn size() -> u64 {
    let needs = Needs::of(file(), &options()).unwrap();
    assert_eq!(needs.cache, CACHE);
    needs.weights + CACHE
}

fn asked(models: Models) -> Asked {
    Asked { router: router(Server::new(models, ServerOptions::default()).unwrap()) }
}

/// Models of these names, for so many of which there is room.
fn registered(names: &[&str], room: u64) -> Models {
    let models = Models::new().memory_budget(room * size() + size() / 2);
    names.iter().fold(models, |models, name| models.register(*name, spec()).unwrap())
}

fn request(model: &str, with: Value) -> Value {
    let mut body = json!({"model": model, "prompt": "Once upon a time", "max_tokens": 4, "temperature": 0});
    body.as_object_mut().unwrap().extend(with.as_object().cloned().unwrap());
    body
}

fn complete(asked: &Asked, model: &str) -> String {
    let answer = asked.post(PATH, &request(model, json!({}))).ok();
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

fn states(asked: &Asked) -> Vec<(String, String)> {
    let list = asked.get("/v1/models").ok();
    let text = |model: &Value, field: &str| model[field].as_str().unwrap().to_owned();
    let models = list["data"].as_array().unwrap().iter();
    models.map(|model| (text(model, "id"), text(model, "state"))).collect()
}

#[track_caller]
fn expect(asked: &Asked, expected: &[(&str, &str)]) {
    let expected: Vec<_> =
        expected.iter().map(|(id, state)| ((*id).to_owned(), (*state).to_owned())).collect();
    assert_eq!(states(asked), expected);
}

#[test]
fn models_are_loaded_when_asked_for_and_the_one_unused_longest_makes_room() {
    let asked = asked(registered(&["a", "b", "c"], 2));
    expect(&asked, &[("a", "unloaded"), ("b", "unloaded"), ("c", "unloaded")]);
    let text = complete(&asked, "a");
    assert_eq!(complete(&asked, "b"), text);
    complete(&asked, "a");
    expect(&asked, &[("a", "loaded"), ("b", "loaded"), ("c", "unloaded")]);
    complete(&asked, "c");
    expect(&asked, &[("a", "loaded"), ("b", "unloaded"), ("c", "loaded")]);
    assert_eq!(complete(&asked, "b"), text);
    expect(&asked, &[("a", "unloaded"), ("b", "loaded"), ("c", "loaded")]);
    assert_eq!(asked.get("/ready").ok()["status"], "ready");
    let figures = asked.get("/metrics").text;
    for line in [
        "metallic_engine_running{model=\"b\"} 0",
        "metallic_models_loaded 2",
        "metallic_model_loads_total 4",
        "metallic_model_evictions_total 2",
    ] {
        assert!(figures.contains(line), "{line}: {figures}");
    }
}

#[test]
fn a_model_that_answers_never_makes_room() {
    let asked = asked(registered(&["a", "b"], 1));
    let long = request("a", json!({"max_tokens": 400, "stream": true, "ignore_eos": true}));
    let answering = runtime().block_on(asked.router.clone().oneshot(post(PATH, &long))).unwrap();
    assert_eq!(answering.status(), 200);
    let refused = asked.post(PATH, &request("b", json!({})));
    let message = refused.refused(503, Some("/model"));
    assert!(message.contains("in use"), "{message}");
    assert!(refused.headers.contains_key("retry-after"));
    expect(&asked, &[("a", "loaded"), ("b", "unloaded")]);
    drop(answering);
    complete(&asked, "b");
    expect(&asked, &[("a", "unloaded"), ("b", "loaded")]);
}

#[test]
fn requests_that_come_together_wait_for_one_load() {
    let asked = asked(registered(&["a"], 1));
    let body = request("a", json!({}));
    let all = runtime().block_on(async {
        futures_util::future::join_all((0..16).map(|_| asked.send_async(post(PATH, &body)))).await
    });
    let texts: Vec<Value> = all.iter().map(|got| got.ok()["choices"][0]["text"].clone()).collect();
    assert!(texts.iter().all(|text| *text == texts[0]));
}

#[test]
fn a_model_that_can_never_fit_is_told_from_one_that_has_to_wait() {
    let models = Models::new().memory_budget(size() - 1);
    let alone = asked(models.register("a", spec()).unwrap());
    let message = alone.post(PATH, &request("a", json!({}))).refused(507, Some("/model"));
    assert!(message.contains("does not fit"), "{message}");
    // Nor beside one that stays.
    let models = Models::new().memory_budget(2 * size() - 1);
    let models = models.register("stays", spec().pinned(true)).unwrap().register("a", spec()).unwrap();
    let beside = asked(models);
    expect(&beside, &[("stays", "loaded"), ("a", "unloaded")]);
    beside.post(PATH, &request("a", json!({}))).refused(507, Some("/model"));
    // Two that are to stay do not fit at all.
    let models = Models::new().memory_budget(2 * size() - 1);
    let models = models.register("a", spec().pinned(true)).unwrap();
    let models = models.register("b", spec().pinned(true)).unwrap();
    assert!(matches!(Server::new(models, ServerOptions::default()), Err(ServerError::NoRoom { .. })));
}

#[test]
fn a_request_does_not_wait_longer_than_it_may_for_its_model() {
    let asked = asked(registered(&["a"], 1).load_time(Duration::ZERO));
    let refused = asked.post(PATH, &request("a", json!({})));
    refused.refused(503, Some("/model"));
    // The load goes on.
    for _ in 0..200 {
        if states(&asked)[0].1 == "loaded" {
            complete(&asked, "a");
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("{:?}", states(&asked));
}

#[test]
fn a_file_that_is_gone_fails_its_own_requests_alone() {
    let folder = std::env::temp_dir().join(format!("metallic-models-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let copy = folder.join("copy.gguf");
    fs::copy(file(), &copy).unwrap();
    let models = registered(&["good"], 2).register("bad", ModelSpec::new(&copy).options(options())).unwrap();
    let asked = asked(models);
    fs::remove_file(&copy).unwrap();
    let message = asked.post(PATH, &request("bad", json!({}))).refused(500, Some("/model"));
    assert!(!message.contains("copy.gguf"), "{message}");
    complete(&asked, "good");
    fs::copy(file(), &copy).unwrap();
    complete(&asked, "bad");
    fs::remove_dir_all(&folder).unwrap();
    let gone = Models::new().register("gone", ModelSpec::new(&copy)).unwrap_err();
    assert!(matches!(gone, ServerError::Load { .. }), "{gone}");
}

#[test]
fn loaded_models_and_files_are_served_side_by_side() {
    let models = Models::new().add("there", llm()).unwrap().register("later", spec()).unwrap();
    let asked = asked(models.alias("other", "later").unwrap());
    expect(&asked, &[("there", "loaded"), ("later", "unloaded"), ("other", "unloaded")]);
    assert_eq!(complete(&asked, "there"), complete(&asked, "other"));
    expect(&asked, &[("there", "loaded"), ("later", "loaded"), ("other", "loaded")]);
}

/// An adapter that changes a matrix of the tiny model.
fn write_adapter(path: &Path) {
    let mut writer = GgufWriter::new();
    writer.insert("general.type", "adapter").insert("general.architecture", "llama");
    writer.insert("adapter.type", "lora").insert("adapter.lora.alpha", 1.0_f32);
    for (half, shape) in [("lora_a", [1, 64]), ("lora_b", [64, 1])] {
        let numbers = (0..64).flat_map(|i: u16| (f32::from(i % 7) - 3.0).to_le_bytes()).collect::<Vec<u8>>();
        let name = format!("blk.0.attn_output.weight.{half}");
        writer.add(Tensor { name, dtype: DType::F32, shape: shape.to_vec(), data: numbers.into() }).unwrap();
    }
    writer.write(path).unwrap();
}

#[test]
fn a_model_with_an_adapter_is_a_model_of_its_own() {
    let folder = std::env::temp_dir().join(format!("metallic-adapters-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let adapter = folder.join("style.gguf");
    write_adapter(&adapter);
    // Taken by those who ask for it alone.
    let adapters = [AdapterOptions::new(&adapter).scale(0.0)];
    let models = Models::new().register("a", ModelSpec::new(file()).options(options().adapters(adapters)));
    let asked = asked(models.unwrap().alias("styled", "a:style").unwrap());
    expect(&asked, &[("a", "unloaded"), ("a:style", "unloaded"), ("styled", "unloaded")]);
    assert_eq!(asked.get("/v1/models/a:style").ok()["parent"], "a");
    let plain = complete(&asked, "a");
    let by_field = asked.post(PATH, &request("a", json!({"adapters": {"style": 1}}))).ok();
    assert_ne!(by_field["choices"][0]["text"], plain);
    for name in ["a:style", "styled"] {
        assert_eq!(by_field["choices"][0]["text"], complete(&asked, name));
    }
    let both = request("a:style", json!({"adapters": {"style": 1}}));
    asked.post(PATH, &both).refused(400, Some("/adapters"));
    let embedding = json!({"model": "a:style", "input": "x"});
    asked.post("/v1/embeddings", &embedding).refused(400, Some("/model"));
    asked.post(PATH, &request("a:other", json!({}))).refused(404, Some("/model"));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn no_two_models_have_one_name() {
    let models = Models::new().register("a", spec()).unwrap();
    assert!(matches!(models.register("a", spec()), Err(ServerError::Name { .. })));
    let models = Models::new().register("a", spec()).unwrap().alias("b", "a").unwrap();
    assert!(matches!(models.alias("b", "a"), Err(ServerError::Name { .. })));
    let models = Models::new().register("a", spec()).unwrap();
    assert!(matches!(models.alias("b", "c"), Err(ServerError::Alias { .. })));
}

#[test]
fn looking_at_models_loads_none() {
    let asked = asked(registered(&["a"], 1));
    asked.get("/v1/models/a").ok();
    asked.get("/health").ok();
    asked.send(Request::get("/metrics").body(Body::empty()).unwrap());
    expect(&asked, &[("a", "unloaded")]);
}
