//! The engine with a real model on the CPU. Needs `stories260K`, see `METALLIC_SHARED`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use metallic::generate::{Engine, EngineConfig, FinishReason, Generation, Request, Sampling, greedy, logits};
use metallic::model::Model;
use metallic::text::Tokenizer;
use metallic_core::{BackendError, Blocks, DType, Program, ProgramMemory, RunStats, Step};
use metallic_cpu::{Cpu, CpuOptions};

fn folder() -> Option<PathBuf> {
    let shared = std::env::var_os("METALLIC_SHARED").map(PathBuf::from);
    let shared = shared.unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared"));
    let folder = shared.join("models/stories260K");
    if folder.exists() {
        return Some(folder);
    }
    eprintln!("NOT RUN: {} is missing, set METALLIC_SHARED", folder.display());
    None
}

struct Loaded {
    program: Box<dyn Program>,
    tokenizer: Tokenizer,
    config: EngineConfig,
}

fn load(folder: &std::path::Path) -> Loaded {
    let model = Model::open(&folder.join("stories260K-f32.gguf")).expect("a model");
    let cpu = Cpu::new(CpuOptions::default().threads(2)).expect("a CPU");
    let program = model.compile(&cpu, DType::F32).expect("a program");
    let layout = model.states(DType::F32).expect("a layout");
    let tokenizer = model.tokenizer().expect("a readable tokenizer").expect("a tokenizer");
    let config = EngineConfig::new(model.config().context, model.config().vocab, layout)
        .end_tokens(tokenizer.end_of_generation().collect());
    Loaded { program, tokenizer, config }
}

fn ask(tokenizer: &Tokenizer, text: &str, n: usize) -> Request {
    let prompt = tokenizer.encode(text, true, false).expect("tokens");
    Request::new(prompt).max_tokens(n).sampling(Sampling::greedy())
}

#[test]
fn a_real_model_tells_its_story_token_by_token() {
    let Some(folder) = folder() else { return };
    let Loaded { program, tokenizer, config } = load(&folder);
    let expected = std::fs::read_to_string(folder.join("expected.txt")).expect("the story");
    let tokenizer = Arc::new(tokenizer);
    let engine = Engine::with_text(program, config, tokenizer.clone()).expect("an engine");
    let story = engine
        .submit(ask(&tokenizer, "Once upon a time", 150))
        .and_then(Generation::complete)
        .expect("a story");
    let told = format!("Once upon a time{}", story.text);
    assert!(told.len() > 300);
    assert!(expected.trim_end().starts_with(told.trim_end()), "{told}\nshould begin\n{expected}");
    assert!(story.stats.dispatches > 0 && story.stats.bytes_read > 0);

    let stop = ask(&tokenizer, "Once upon a time", 150).stop(vec!["She loved".to_owned()]);
    let cut = engine.submit(stop).and_then(Generation::complete).expect("a story");
    assert_eq!(cut.reason, FinishReason::Stop);
    assert_eq!(cut.text, ", there was a little girl named Lily. ");
}

/// A program whose first step waits for a word.
struct Waiting(Box<dyn Program>, Option<Receiver<()>>);

impl Program for Waiting {
    fn reserve(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        self.0.reserve(blocks)
    }

    fn reserved(&self) -> Blocks {
        self.0.reserved()
    }

    fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
        self.0.reserve_slots(slots)
    }

    fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        self.0.copy_slot(from, to)
    }

    fn submit(&mut self, step: &Step<'_>) -> Result<(), BackendError> {
        if let Some(word) = self.1.take() {
            word.recv().expect("a word");
        }
        self.0.submit(step)
    }

    fn finish(&mut self) -> Result<RunStats, BackendError> {
        self.0.finish()
    }

    fn ids(&self, index: usize) -> &[u32] {
        self.0.ids(index)
    }

    fn output(&self, index: usize) -> &[f32] {
        self.0.output(index)
    }

    fn memory(&self) -> ProgramMemory {
        self.0.memory()
    }
}

#[test]
fn a_crowd_on_a_small_cache_gets_the_answers_each_gets_alone() {
    let Some(folder) = folder() else { return };
    let Loaded { mut program, tokenizer, config } = load(&folder);
    let texts = ["Once upon a time", "Lily and Tom went", "The big dog", "One day, a bird", "In the park"];
    let requests = texts.map(|text| ask(&tokenizer, text, 80));
    let alone = requests.each_ref().map(|r| greedy(program.as_mut(), &r.prompt, 80).expect("an answer"));
    let kv_budget_bytes = 7 * config.states.block_bytes();
    let small = config.kv_budget_bytes(kv_budget_bytes).step_tokens(9).max_sequences(5);
    let (word, receiver) = channel();
    let engine = Engine::new(Box::new(Waiting(program, Some(receiver))), small).expect("an engine");
    let answers = requests.map(|r| engine.submit(r.ignore_eos(true)).expect("it fits"));
    word.send(()).expect("an engine that waits");
    for (answer, alone) in answers.into_iter().zip(alone) {
        assert_eq!(answer.complete().expect("an answer").tokens, alone);
    }
    let stats = engine.stats().expect("stats");
    assert!(stats.preemptions > 0, "{stats:?}");
    assert_eq!(stats.held_blocks, 0);
}

#[test]
fn prefill_in_pieces_gives_the_same_logits() {
    let Some(folder) = folder() else { return };
    let Loaded { mut program, tokenizer, .. } = load(&folder);
    let story = std::fs::read_to_string(folder.join("expected.txt")).expect("the story");
    let tokens = tokenizer.encode(&story, true, false).expect("tokens");
    let whole = logits(program.as_mut(), &tokens, 512, true).expect("logits");
    for chunk in [1, 7, 64] {
        let pieces = logits(program.as_mut(), &tokens, chunk, true).expect("logits");
        let worst = whole
            .iter()
            .flatten()
            .zip(pieces.iter().flatten())
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst < 1e-4, "pieces of {chunk}: {worst}");
        let last = logits(program.as_mut(), &tokens, chunk, false).expect("logits");
        assert_eq!(last.as_slice(), &pieces[pieces.len() - 1..], "steps without a result change nothing");
    }
}
