//! The tables that softmetal runs anywhere, on the GPU of a Mac: `cargo test -p metallic-gpu --test it metal::`.
#![cfg(any(target_os = "macos", metal_on_linux))]

use std::sync::Arc;

use metallic_gpu::{GpuBackend, GpuOptions, Provider, Providers, metal};
use metallic_testkit::cases::Exactness;
use metallic_testkit::{Plan, eager, graphs, run_all};

fn backend(options: GpuOptions) -> GpuBackend {
    let gpu = metal::open(None).unwrap_or_else(|error| panic!("{error}"));
    GpuBackend::new(Arc::new(gpu), options)
}

fn run_table(options: GpuOptions, only: &str) {
    run_all(&backend(options), &Plan { only, ..Plan::default() }).expect();
}

#[test]
fn every_operation_matches_the_reference() {
    run_table(GpuOptions::default(), "");
}

#[test]
fn every_operation_matches_the_reference_unfused() {
    run_table(GpuOptions::default().fuse(false), "");
}

#[test]
fn attention_in_three_steps_matches_the_reference_too() {
    let providers = Providers::new();
    providers.set("sdpa", "plain").expect("the provider is known");
    run_table(GpuOptions::default().providers(providers), "attention");
}

#[test]
fn all_gpus_are_listed_and_one_is_the_default() {
    let found = metal::devices();
    assert_eq!(found.iter().filter(|device| device.default).count(), 1, "{found:?}");
    assert!(found.iter().enumerate().all(|(index, device)| device.index == index));
}

/// Of products and attention: products are of halfs where the cache is, else of floats; what MPS or MPSGraph does not take goes by our kernels.
#[test]
fn every_operation_by_apples_own_kernels_matches_the_reference() {
    let providers = Providers::new();
    providers.set("matmul", "mps").expect("the provider is known");
    providers.set("sdpa", "mpsgraph").expect("the provider is known");
    let backend = backend(GpuOptions::default().providers(providers.clone()));
    // Steps of 29 tokens, then of 40, and single tokens between them.
    for (only, walks) in [("linear", &[2][..]), ("qkv", &[2]), ("attention", &[1, 2])] {
        graphs::run(&backend, &Plan { exactness: Exactness::Units, only, walks, ..Plan::default() }).expect();
    }
    for only in ["linear F32", "linear batched"] {
        eager::run(&backend, &Plan { exactness: Exactness::Units, only, ..Plan::default() }).expect();
    }
    let chosen = providers.selections();
    for apples in [Provider::MatmulMps, Provider::SdpaMpsGraph] {
        assert!(chosen.iter().any(|choice| choice.provider == apples), "{apples}: {chosen:?}");
    }
    let metrics = backend.cache_metrics().library;
    assert!(metrics.products.misses > 0 && metrics.graphs.misses > 0, "{metrics:?}");
}

/// Attention and the projection after it as one graph of MPSGraph; each shape of step compiles one graph, once.
#[test]
fn attention_and_its_projection_as_one_graph_match_the_reference() {
    let providers = Providers::new();
    providers.set("sdpa", "mpsgraph+project").expect("the provider is known");
    let backend = backend(GpuOptions::default().providers(providers.clone()));
    let plan =
        Plan { exactness: Exactness::Units, only: "attention, linear", walks: &[1, 2], ..Plan::default() };
    graphs::run(&backend, &plan).expect();
    let chosen = providers.selections();
    assert!(chosen.iter().any(|choice| choice.provider == Provider::SdpaMpsGraphProject), "{chosen:?}");
    let graphs = backend.cache_metrics().library.graphs;
    assert!(graphs.misses > 0 && graphs.hits > 0 && graphs.failures == 0, "{graphs:?}");
}
