//! Whoever need not wait for the model does not, and who asks for much does not keep the others waiting.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use metallic::generate::Request as Ask;
use metallic::{Generation, LoadOptions};
use metallic_server::{ServerOptions, router};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::chat::{CHAT, chat};
use crate::support::{Asked, MODEL, llm_with, post, server_with};

/// A server whose model is at a step that lasts until the sender is dropped or told, with the request that is at it.
fn stuck(options: ServerOptions) -> (Asked, Sender<()>, Generation) {
    let llm = llm_with(LoadOptions::default());
    let (go_on, waits) = channel();
    let (begun, has_begun) = channel();
    let request = Ask::new([1, 2, 3]).max_tokens(1).hook(move |_, _| {
        begun.send(()).unwrap();
        let _ = waits.recv();
    });
    let generation = llm.submit(request).unwrap();
    has_begun.recv().unwrap();
    (Asked { router: router(server_with(llm, options)) }, go_on, generation)
}

/// As the program has it: one thread for all events, and few for work beside them.
fn narrow() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(2).build().unwrap()
}

#[test]
fn probes_do_not_wait_for_a_step() {
    let (asked, _go_on, _generation) = stuck(ServerOptions::default());
    let begun = Instant::now();
    for _ in 0..50 {
        assert_eq!(asked.get("/health").ok()["status"], "ok");
        assert_eq!(asked.get("/ready").ok()["status"], "ready");
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let figures = asked.get("/metrics");
    assert!(figures.text.contains("metallic_engine_running{model=\"stories\"}"), "{}", figures.text);
}

#[test]
fn a_model_that_is_longer_at_a_step_than_any_request_may_take_is_not_alive() {
    let limit = Duration::from_millis(1);
    let (asked, go_on, generation) = stuck(ServerOptions::default().request_time(limit));
    std::thread::sleep(Duration::from_millis(20));
    asked.get("/health").refused(503, None);
    asked.get("/ready").refused(503, None);
    drop(go_on);
    generation.complete().unwrap();
    // It says so itself, at the next look.
    while asked.get("/health").status != 200 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn many_embeddings_keep_nobody_from_other_work() {
    let (asked, go_on, _generation) = stuck(ServerOptions::default());
    narrow().block_on(async {
        let texts: Vec<String> = (0..40).map(|i| format!("text number {i}")).collect();
        let body = json!({"model": MODEL, "input": texts});
        let embed = || asked.send_async(post("/v1/embeddings", &body));
        let mut embedding = Box::pin(async { tokio::join!(embed(), embed(), embed(), embed()) });
        let others = async {
            // After the embeddings have begun.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let begun = Instant::now();
            let tokens =
                asked.send_async(post("/tokenize", &json!({"model": MODEL, "content": "a dog"}))).await;
            assert_eq!(tokens.ok()["count"], tokens.json()["tokens"].as_array().unwrap().len());
            begun.elapsed()
        };
        let took = tokio::select! {
            _ = &mut embedding => panic!("the model is busy"),
            took = others => took,
        };
        assert!(took < Duration::from_secs(5), "{took:?}");
        go_on.send(()).unwrap();
        let (first, second, third, fourth) = embedding.await;
        for got in [first, second, third, fourth] {
            assert_eq!(got.ok()["data"].as_array().unwrap().len(), 40);
        }
    });
}

#[test]
fn texts_of_one_request_wait_for_each_other_where_the_queue_is_short() {
    use metallic::EngineOptions;
    let engine = EngineOptions::default().max_sequences(1).max_waiting(1);
    let llm = llm_with(LoadOptions::default().engine(engine));
    let alone = llm.embed("text number 7").unwrap();
    let asked = Asked { router: router(server_with(llm, ServerOptions::default())) };
    let texts: Vec<String> = (0..20).map(|i| format!("text number {i}")).collect();
    let found = asked.post("/v1/embeddings", &json!({"model": MODEL, "input": texts})).ok();
    let row = found["data"][7]["embedding"].as_array().unwrap();
    let row: Vec<f32> = row.iter().map(|x| x.as_f64().unwrap() as f32).collect();
    assert_eq!(row, alone);
}

#[test]
fn long_bodies_are_read_beside_the_events_of_others() {
    let asked = Asked::new(ServerOptions::default());
    narrow().block_on(async {
        let tokens = vec![1; 1 << 21];
        let long = json!({"model": MODEL, "tokens": tokens, "skip_special": true});
        let mut reading = Box::pin(asked.send_async(post("/detokenize", &long)));
        // What the runtime does between two looks at other work.
        let mut longest = Duration::ZERO;
        let got = loop {
            let begun = Instant::now();
            tokio::select! {
                biased;
                got = &mut reading => break got,
                () = tokio::time::sleep(Duration::from_millis(1)) => {}
            }
            longest = longest.max(begun.elapsed());
        };
        got.ok();
        assert!(longest < Duration::from_millis(700), "nobody else was served for {longest:?}");
    });
}

#[test]
fn an_answer_of_usual_length_is_no_longer_than_the_server_allows() {
    let asked = Asked::new(ServerOptions::default().max_tokens(8));
    let answer = asked.post("/v1/completions", &json!({"model": MODEL, "prompt": "Once upon"})).ok();
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    let body = json!({"model": MODEL, "prompt": "Once upon", "max_tokens": 9});
    asked.post("/v1/completions", &body).refused(400, Some("/max_tokens"));
    assert_eq!(asked.post(CHAT, &chat(json!({"max_tokens": null}))).ok()["usage"]["completion_tokens"], 8);
}
