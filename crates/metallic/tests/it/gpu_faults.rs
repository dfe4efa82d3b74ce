//! A GPU that fails under the engine: the caller gets a typed error, the next request is served, nothing leaks.
#![cfg(feature = "soft")]

use std::fs;
use std::sync::Arc;

use metallic::generate::{Engine, EngineConfig, EngineError, Generation, Request, Sampling};
use metallic::model::{Model, ModelError};
use metallic_core::{BackendError, DType};
use metallic_gpu::fault::{Counts, Fault, Faulty};
use metallic_gpu::{GpuBackend, GpuOptions, OpKind, Provider, Providers, Soft, SoftOptions, Why};
use metallic_testkit::{data, needed};

/// A model on a device that fails when told to.
struct Rig {
    gpu: Arc<Faulty>,
    model: Model,
    /// The prompt, and the tokens that follow it on every device.
    story: (Vec<u32>, Vec<u32>),
}

/// `None`, said aloud, where there is no clang.
fn rig() -> Option<Rig> {
    let soft = needed(Soft::new(SoftOptions::default().threads(2)))?;
    let folder = data::own().join("stories260K");
    let greedy = fs::read_to_string(folder.join("greedy.json")).unwrap();
    let greedy: serde_json::Value = serde_json::from_str(&greedy).unwrap();
    let ids: Vec<u32> = serde_json::from_value(greedy["greedy_ids"].clone()).unwrap();
    let prompt = [1].into_iter().chain(ids[..4].iter().copied()).collect();
    Some(Rig {
        gpu: Arc::new(Faulty::new(Arc::new(soft))),
        model: Model::open(&folder.join("stories260K-f32.gguf")).unwrap(),
        story: (prompt, ids[4..16].to_vec()),
    })
}

impl Rig {
    fn backend(&self, options: GpuOptions) -> GpuBackend {
        GpuBackend::new(self.gpu.clone(), options)
    }

    fn engine(&self, backend: &GpuBackend) -> Result<Engine, ModelError> {
        let program = self.model.compile(backend, DType::F16)?;
        let config = self.model.config();
        let config = EngineConfig::new(config.context, config.vocab, self.model.states(DType::F16)?);
        Ok(Engine::new(program, config).unwrap())
    }

    fn request(&self) -> Request {
        Request::new(self.story.0.clone()).max_tokens(self.story.1.len()).sampling(Sampling::greedy())
    }

    fn ask(&self, engine: &Engine) -> Result<Vec<u32>, EngineError> {
        engine.submit(self.request()).and_then(Generation::complete).map(|answer| answer.tokens)
    }

    #[track_caller]
    fn answers(&self, engine: &Engine) {
        assert_eq!(self.ask(engine).as_ref(), Ok(&self.story.1));
    }

    #[track_caller]
    fn holds_nothing(&self) {
        assert_eq!(self.gpu.counts(), Counts::default());
    }
}

/// Memory that a device still holds, apart from kernels.
fn memory(gpu: &Faulty) -> (usize, usize, usize) {
    let counts = gpu.counts();
    (counts.buffers, counts.bytes, counts.submissions)
}

#[test]
fn an_engine_gives_everything_back_when_it_ends() {
    let Some(rig) = rig() else { return };
    let backend = rig.backend(GpuOptions::default());
    let engine = rig.engine(&backend).unwrap();
    rig.answers(&engine);
    let held = memory(&rig.gpu);
    rig.answers(&engine);
    assert_eq!(memory(&rig.gpu), held, "a second answer takes no more memory");
    assert_eq!(held.2, 0, "no submission is kept");
    drop(engine);
    drop(backend);
    rig.holds_nothing();
}

#[test]
fn a_submission_that_fails_ends_its_request_and_not_the_engine() {
    let Some(rig) = rig() else { return };
    let backend = rig.backend(GpuOptions::default());
    let engine = rig.engine(&backend).unwrap();
    rig.answers(&engine);
    let held = memory(&rig.gpu);
    for fault in [Fault::Submit, Fault::Execute, Fault::Wait] {
        // In the prompt, and in the middle of the answer.
        for after in [1, 5] {
            rig.gpu.fail(fault, after);
            if (fault, after) == (Fault::Submit, 5) {
                // What was handed over early and refused is handed over again in its turn.
                rig.answers(&engine);
                continue;
            }
            let error = rig.ask(&engine).unwrap_err();
            match (fault, &error) {
                (Fault::Wait, EngineError::Backend(BackendError::Timeout { device: "soft", .. })) => {}
                (
                    Fault::Submit | Fault::Execute,
                    EngineError::Backend(BackendError::Failed { reason, .. }),
                ) => {
                    assert!(reason.contains("injected"), "{error}");
                }
                _ => panic!("{fault:?}: {error:?}"),
            }
            rig.answers(&engine);
            assert_eq!(memory(&rig.gpu), held, "{fault:?}");
        }
    }
    drop((engine, backend));
    rig.holds_nothing();
}

#[test]
fn a_request_that_shares_a_failing_step_is_not_lost() {
    let Some(rig) = rig() else { return };
    let backend = rig.backend(GpuOptions::default());
    let engine = rig.engine(&backend).unwrap();
    rig.answers(&engine);
    for fault in [Fault::Submit, Fault::Wait] {
        rig.gpu.fail(fault, 4);
        let together: Vec<Generation> = (0..3).map(|_| engine.submit(rig.request()).unwrap()).collect();
        let outcomes: Vec<_> = together.into_iter().map(Generation::complete).collect();
        // A step that fails once is run again, sequence by sequence; alone, a sequence ends with the error.
        for outcome in &outcomes {
            match outcome {
                Ok(answer) => assert_eq!(answer.tokens, rig.story.1),
                Err(error) => assert!(matches!(error, EngineError::Backend(_)), "{error:?}"),
            }
        }
        assert!(outcomes.iter().filter(|outcome| outcome.is_ok()).count() >= 2, "{outcomes:?}");
        rig.answers(&engine);
    }
}

#[test]
fn a_device_that_hangs_is_a_timeout_for_each_request_until_it_goes_on() {
    let Some(rig) = rig() else { return };
    let backend = rig.backend(GpuOptions::default());
    let engine = rig.engine(&backend).unwrap();
    rig.answers(&engine);
    rig.gpu.fail_always(Fault::Hang);
    for _ in 0..2 {
        let error = rig.ask(&engine).unwrap_err();
        assert!(matches!(error, EngineError::Backend(BackendError::Timeout { .. })), "{error:?}");
    }
    rig.gpu.heal();
    rig.answers(&engine);
    drop((engine, backend));
    rig.holds_nothing();
}

#[test]
fn memory_that_runs_out_while_serving_is_an_error_and_comes_back() {
    let Some(rig) = rig() else { return };
    let backend = rig.backend(GpuOptions::default());
    let engine = rig.engine(&backend).unwrap();
    rig.gpu.fail_always(Fault::Allocate);
    let error = rig.ask(&engine).unwrap_err();
    assert!(
        matches!(error, EngineError::Backend(BackendError::OutOfMemory { device: "soft", .. })),
        "{error:?}"
    );
    rig.gpu.heal();
    rig.answers(&engine);
    drop((engine, backend));
    rig.holds_nothing();
}

#[test]
fn memory_that_runs_out_while_loading_is_an_error_wherever_it_happens() {
    let Some(rig) = rig() else { return };
    for fault in [Fault::Allocate, Fault::Import] {
        let mut failed = 0;
        for nth in 1.. {
            rig.gpu.fail(fault, nth);
            let backend = rig.backend(GpuOptions::default());
            match rig.engine(&backend) {
                Err(ModelError::Backend(BackendError::OutOfMemory { device: "soft", what, .. })) => {
                    assert!(!what.is_empty());
                    failed += 1;
                }
                Err(other) => panic!("{fault:?} {nth}: {other:?}"),
                Ok(_) => break,
            }
            drop(backend);
            rig.holds_nothing();
            // Imports are many; the first few and one in the middle tell the rest.
            if nth > 6 {
                break;
            }
        }
        assert!(failed > 0, "{fault:?} was never reached");
        rig.gpu.heal();
    }
    let backend = rig.backend(GpuOptions::default());
    rig.answers(&rig.engine(&backend).unwrap());
}

#[test]
fn kernels_that_do_not_compile_are_an_error_of_loading() {
    let Some(rig) = rig() else { return };
    for fault in [Fault::Library, Fault::Pipeline] {
        rig.gpu.fail_always(fault);
        let backend = rig.backend(GpuOptions::default());
        let error = rig.engine(&backend).err().unwrap();
        assert!(
            matches!(&error, ModelError::Backend(BackendError::Compile { device: "soft", .. })),
            "{error:?}"
        );
        drop(backend);
        rig.holds_nothing();
        rig.gpu.heal();
        let backend = rig.backend(GpuOptions::default());
        rig.answers(&rig.engine(&backend).unwrap());
    }
    rig.holds_nothing();
}

#[test]
fn a_provider_that_does_not_compile_is_replaced_and_the_answer_stays_the_same() {
    let Some(rig) = rig() else { return };
    let providers = Providers::new();
    rig.gpu.refuse("attention");
    let backend = rig.backend(GpuOptions::default().providers(providers.clone()));
    let engine = rig.engine(&backend).unwrap();
    rig.answers(&engine);
    let quarantined = providers.quarantined();
    assert!(
        quarantined.iter().any(|q| q.op == OpKind::Sdpa && q.provider == Provider::SdpaFlash),
        "{quarantined:?}"
    );
    let fell_back = |why: &Why| matches!(why, Why::Fallback { from: Provider::SdpaFlash, .. });
    let selections = providers.selections();
    assert!(
        selections.iter().any(|s| s.provider == Provider::SdpaPlain && fell_back(&s.why)),
        "{selections:?}"
    );
}

#[test]
fn a_provider_asked_for_by_name_that_does_not_compile_is_the_error() {
    let Some(rig) = rig() else { return };
    let providers = Providers::new();
    providers.set_by_flag("sdpa=plain").unwrap();
    rig.gpu.refuse("attention_plain");
    let backend = rig.backend(GpuOptions::default().providers(providers.clone()));
    let error = rig.engine(&backend).err().unwrap().to_string();
    assert!(error.contains("`plain`, which was asked for"), "{error}");
    assert!(providers.quarantined().is_empty());
    drop(backend);
    rig.holds_nothing();
}

#[test]
fn a_budget_too_small_for_the_model_is_refused_with_what_it_was_for() {
    let Some(rig) = rig() else { return };
    let backend = rig.backend(GpuOptions::default().budget(100_000));
    let error = rig.engine(&backend).err().unwrap();
    assert!(
        matches!(&error, ModelError::Backend(BackendError::OutOfMemory { device: "soft", .. })),
        "{error:?}"
    );
    drop(backend);
    rig.holds_nothing();
}
