//! Models of several families that guess ahead: the same tokens as without, alone and in a crowd.

use std::path::Path;

use metallic::core::{Backend, DType};
use metallic::generate::{
    Draft, DraftOptions, Engine, EngineConfig, Generation, LookupOptions, Request, Sampling, Speculation,
};
use metallic::model::Model;
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::data;

const CONTEXT: usize = 256;

/// An engine on a model with room for so many blocks, and how it guesses.
fn engine(model: &Model, backend: &dyn Backend, speculation: Speculation, blocks: usize) -> Engine {
    let compile = || model.compile(backend, DType::F32).unwrap_or_else(|e| panic!("{e}"));
    let states = model.states(DType::F32).unwrap();
    let budget = blocks * states.block_bytes();
    let config = EngineConfig::new(CONTEXT, model.config().vocab, states).kv_budget_bytes(budget);
    let guesses = config.clone().speculation(speculation).max_sequences(4).step_tokens(64);
    match &guesses.speculation {
        Speculation::Draft(_) => {
            let draft = Draft::new(compile(), config).unwrap_or_else(|e| panic!("{e}"));
            Engine::with_draft(compile(), guesses, None, draft).unwrap()
        }
        _ => Engine::new(compile(), guesses).unwrap(),
    }
}

/// Prompts that repeat themselves in part, and settings that choose by chance, by rank and by what came before.
fn requests(vocab: usize) -> Vec<Request> {
    let prompt = |kind: u32, len: u32| -> Vec<u32> {
        (0..len).map(|i| 3 + (i % 11 * 7 + kind * 31 + i / 40) % (vocab as u32 - 3)).collect()
    };
    let plain = || Sampling::plain().temperature(0.4).seed(5);
    let settings = [
        Sampling::greedy(),
        plain(),
        plain().repetition_penalty(1.05).frequency_penalty(0.02),
        Sampling::greedy().presence_penalty(0.1),
        plain().top_k(20).top_p(0.9),
    ];
    let request = |(kind, sampling): (usize, Sampling)| {
        let prompt = prompt(kind as u32, 20 + 13 * kind as u32);
        Request::new(prompt).max_tokens(60).ignore_eos(true).sampling(sampling)
    };
    settings.into_iter().enumerate().map(request).collect()
}

fn tokens(answer: Generation) -> Vec<u32> {
    answer.complete().unwrap_or_else(|e| panic!("{e}")).tokens
}

/// Checks a model on a device; gives how many guesses were right.
fn check(path: &Path, backend: &dyn Backend) -> u64 {
    let model = Model::open(path).unwrap_or_else(|e| panic!("{e}"));
    let vocab = model.config().vocab;
    let again = |r: &Request| Request::new(r.prompt.clone()).options(r.options.clone());
    let asked = requests(vocab);
    let plain = engine(&model, backend, Speculation::Off, 64);
    let expected: Vec<Vec<u32>> =
        asked.iter().map(|r| tokens(plain.submit(again(r)).expect("it fits"))).collect();
    let mut right = 0;
    for speculation in [
        Speculation::Lookup(LookupOptions::default().adaptive(false)),
        Speculation::lookup(),
        Speculation::Draft(DraftOptions::default().tokens(4).adaptive(false)),
    ] {
        // All of them do not fit at once: some are set aside.
        let engine = engine(&model, backend, speculation.clone(), 12);
        let answers: Vec<Generation> =
            asked.iter().map(|r| engine.submit(again(r)).expect("it fits")).collect();
        for ((answer, expected), request) in answers.into_iter().zip(&expected).zip(&asked) {
            let sampling = &request.options.sampling;
            assert_eq!(&tokens(answer), expected, "{}: {speculation:?} {sampling:?}", path.display());
        }
        let stats = engine.stats().expect("stats");
        assert_eq!((stats.held_blocks, stats.draft_blocks), (0, 0));
        right += stats.accepted_tokens;
    }
    right
}

#[test]
fn models_of_many_families_answer_the_same_on_the_processor() {
    let cpu = Cpu::new(CpuOptions::default().threads(2)).unwrap();
    for family in ["llama_yarn", "olmo3", "qwen2_sliding", "gemma", "granitemoe", "deepseek_v3", "cohere"] {
        let right = check(&data::own().join("families").join(family), &cpu);
        // How many depends on who is set aside when.
        assert!(right > 20, "{family}: {right} guesses were right");
    }
    check(&data::own().join("stories260K/stories260K-f32.gguf"), &cpu);
}

#[test]
fn models_with_recurrent_layers_answer_without_guesses() {
    let cpu = Cpu::new(CpuOptions::default().threads(2)).unwrap();
    for family in ["mamba2", "falcon_h1"] {
        let model = Model::open(&data::own().join("families").join(family)).unwrap();
        let engine = engine(&model, &cpu, Speculation::lookup(), 12);
        assert_eq!(engine.config().speculation, Speculation::Off);
        let request = requests(model.config().vocab).remove(0);
        assert_eq!(engine.submit(request).unwrap().complete().unwrap().stats.drafted_tokens, 0);
    }
}

#[cfg(feature = "soft")]
#[test]
fn models_answer_the_same_through_the_metal_kernels() {
    use metallic_gpu::{GpuBackend, GpuOptions, Soft, SoftOptions};
    use std::sync::Arc;

    let soft = Soft::new(SoftOptions::default().threads(2));
    let Some(soft) = metallic_testkit::needed(soft) else { return };
    let backend = GpuBackend::new(Arc::new(soft), GpuOptions::default());
    for family in ["llama_yarn", "olmo3"] {
        let right = check(&data::own().join("families").join(family), &backend);
        assert!(right > 10, "{family}: {right} guesses were right");
    }
}
