//! Steps that are looked over while a model answers.

use std::path::Path;

use metallic::Model;
use metallic::diff::{Verification, VerifyCounts, VerifyOptions, verified};
use metallic::generate::{Engine, EngineConfig, Request, Sampling};
use metallic_core::reference::ProductInputs;
use metallic_core::{Backend, CompileOptions, DType};
use metallic_cpu::{Cpu, CpuOptions};
#[cfg(feature = "soft")]
use metallic_testkit::data;
use metallic_testkit::golden;

/// An engine on a program that is looked over.
fn engine(
    model: &Model,
    backend: &dyn Backend,
    every: usize,
    products: ProductInputs,
) -> (Engine, Verification) {
    let compile = CompileOptions { taps: true, ..CompileOptions::kv(DType::F16) };
    let program = model.compile(backend, compile).unwrap();
    let (program, log) = verified(program, model, VerifyOptions { every, compile, products }).unwrap();
    let config = model.config();
    let config = EngineConfig::new(config.context, config.vocab, model.states(DType::F16).unwrap());
    (Engine::new(program, config.prefix_cache(false)).unwrap(), log)
}

#[cfg(feature = "soft")]
fn ask(engine: &Engine, prompt: &[u32], tokens: usize) -> Vec<u32> {
    let request = Request::new(prompt.to_vec()).max_tokens(tokens).sampling(Sampling::greedy());
    engine.submit(request).and_then(metallic::generate::Generation::complete).unwrap().tokens
}

fn is_clean(name: &Path, backend: &dyn Backend, products: ProductInputs) {
    let model = Model::open(name).unwrap();
    let (engine, log) = engine(&model, backend, 1, products);
    // Several at once, of several lengths.
    let requests = [&[1, 5, 3, 9, 2, 7][..], &[4, 2], &[3; 40]].map(|prompt| {
        let request = Request::new(prompt.to_vec()).max_tokens(20).sampling(Sampling::greedy());
        engine.submit(request).unwrap()
    });
    for generation in requests {
        generation.complete().unwrap();
    }
    let VerifyCounts { checked, failed, warnings } = log.found();
    assert!(checked >= 20 && failed == 0 && warnings.is_empty(), "{}: {:?}", name.display(), log.found());
}

#[test]
fn what_the_processor_computes_is_found_right() {
    let rounding = Cpu::new(CpuOptions::default().threads(2)).unwrap();
    is_clean(&golden::gguf("llama256.Q4_K_M").0, &rounding, ProductInputs::Bytes);
    let exact = Cpu::new(CpuOptions::default().threads(2).exact(true)).unwrap();
    for folder in golden::folders().into_iter().step_by(4) {
        is_clean(&folder, &exact, ProductInputs::Exact);
    }
}

#[cfg(feature = "soft")]
mod soft {
    use std::sync::Arc;

    use metallic_gpu::fault::{Distortion, Faulty};
    use metallic_gpu::{GpuBackend, GpuOptions, Provider, Providers, Soft, SoftOptions};
    use metallic_testkit::needed;

    use super::*;

    fn stories() -> (Model, Vec<u32>, Vec<u32>) {
        let folder = data::own().join("stories260K");
        let greedy = std::fs::read_to_string(folder.join("greedy.json")).unwrap();
        let greedy: serde_json::Value = serde_json::from_str(&greedy).unwrap();
        let ids: Vec<u32> = serde_json::from_value(greedy["greedy_ids"].clone()).unwrap();
        let prompt = [1].into_iter().chain(ids[..4].iter().copied()).collect();
        (Model::open(&folder.join("stories260K-f32.gguf")).unwrap(), prompt, ids[4..16].to_vec())
    }

    /// Attention over few tokens by its preferred kernels is wrong.
    fn faulty(providers: &Providers) -> Option<GpuBackend> {
        let soft = needed(Soft::new(SoftOptions::default().threads(2)))?;
        let gpu = Faulty::new(Arc::new(soft));
        let of = "attention_decode".to_owned();
        gpu.distort(Some(Distortion { of, nth: None, factor: 1.5 }));
        Some(GpuBackend::new(Arc::new(gpu), GpuOptions::default().providers(providers.clone())))
    }

    #[test]
    fn kernels_are_found_right_with_steps_under_way_together() {
        let Some(soft) = needed(Soft::new(SoftOptions::default().threads(2))) else { return };
        let backend = GpuBackend::new(Arc::new(soft), GpuOptions::default().depth(2));
        let (model, prompt, story) = stories();
        for every in [1, 3] {
            let (engine, log) = engine(&model, &backend, every, ProductInputs::Exact);
            assert_eq!(ask(&engine, &prompt, story.len()), story);
            let VerifyCounts { checked, failed, .. } = log.found();
            assert!(checked >= 12 / every as u64 && failed == 0, "{:?}", log.found());
        }
    }

    #[test]
    fn a_faulty_provider_is_set_aside_and_what_follows_is_right() {
        let providers = Providers::new();
        let Some(backend) = faulty(&providers) else { return };
        let (model, prompt, story) = stories();
        let (engine, log) = engine(&model, &backend, 1, ProductInputs::Exact);
        let wrong = ask(&engine, &prompt, story.len());
        assert_eq!(wrong.len(), story.len(), "generation goes on");
        let found = log.found();
        assert!(found.failed == 1 && found.warnings.len() == 1, "{found:?}");
        let warning = &found.warnings[0];
        assert!(
            warning.contains("`attention` of layer 0") && warning.contains("`sdpa=flash` is set aside"),
            "{warning}"
        );
        let aside: Vec<Provider> = providers.quarantined().iter().map(|known| known.provider).collect();
        assert_eq!(aside, [Provider::SdpaFlash]);
        assert_eq!(ask(&engine, &prompt, story.len()), story);
        assert_eq!(log.found().failed, 1, "{:?}", log.found());
    }

    #[test]
    fn a_faulty_provider_that_was_asked_for_stays_and_that_is_said() {
        let providers = Providers::new();
        providers.set("sdpa", "flash").unwrap();
        let Some(backend) = faulty(&providers) else { return };
        let (model, prompt, story) = stories();
        let (engine, log) = engine(&model, &backend, 1, ProductInputs::Exact);
        assert_eq!(ask(&engine, &prompt, story.len()).len(), story.len());
        let found = log.found();
        assert!(found.failed >= 1 && found.warnings[0].contains("asked for by name"), "{found:?}");
        assert!(providers.quarantined().is_empty());
    }
}
