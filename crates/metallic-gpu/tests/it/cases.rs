//! Every operation of the case table through the Metal kernels, run by softmetal.
#![cfg(feature = "soft")]

use std::sync::Arc;

use metallic_gpu::fault::Faulty;
use metallic_gpu::{
    AppleKernels, GpuBackend, GpuOptions, MatrixUnits, Provider, Providers, Selection, Soft, SoftOptions,
};
use metallic_testkit::cases::Exactness;
use metallic_testkit::{Plan, cases, graphs, needed, run_all};

/// A backend over the software device; `None`, said aloud, where there is no clang.
fn backend(soft: SoftOptions, options: GpuOptions) -> Option<GpuBackend> {
    Some(GpuBackend::new(Arc::new(needed(Soft::new(soft))?), options))
}

fn run_table(soft: SoftOptions, plan: &Plan<'_>) {
    if let Some(backend) = backend(soft.threads(2), GpuOptions::default()) {
        run_all(&backend, plan).expect();
    }
}

fn plain_attention() -> GpuOptions {
    let providers = Providers::new();
    providers.set("sdpa", "plain").unwrap();
    GpuOptions::default().providers(providers)
}

#[test]
fn every_operation_matches_the_reference() {
    run_table(SoftOptions::default(), &Plan::default());
}

/// Programs alone: what single operations add is the way to them, which no seed changes.
fn check_programs(soft: SoftOptions, options: GpuOptions, plan: &Plan<'_>) {
    if let Some(backend) = backend(soft.threads(2), options) {
        graphs::run(&backend, plan).expect();
    }
}

#[test]
fn programs_whose_operations_are_not_fused_match_the_reference() {
    let plan = Plan { walks: &[1, 3], ..Plan::default() };
    check_programs(SoftOptions::default().seed(1), GpuOptions::default().fuse(false), &plan);
}

/// As an NVIDIA GPU plans them, whose matrices lie in cells and whose long products a library makes, for which kernels stand here.
#[test]
fn programs_of_a_device_with_matrix_units_match_the_reference() {
    let units = MatrixUnits { cores: 16, threadgroup_memory: 32 << 10 };
    let soft = SoftOptions::default().matrix_units(units).library(true);
    let plan = Plan { exactness: Exactness::Units, walks: &[1, 2], ..Plan::default() };
    check_programs(soft, GpuOptions::default(), &plan);
}

#[test]
fn the_order_of_threads_changes_nothing() {
    for (seed, walks) in [(1, &[0, 1][..]), (2, &[2]), (3, &[3])] {
        let plan = Plan { walks, ..Plan::default() };
        check_programs(SoftOptions::default().seed(seed), GpuOptions::default(), &plan);
    }
}

#[test]
fn the_checked_build_finds_nothing() {
    // A token and many, then a border between blocks in small steps.
    run_table(SoftOptions::default().checked(true), &Plan { walks: &[1, 2], ..Plan::default() });
}

#[test]
fn contexts_that_are_split_over_threadgroups_match_the_reference() {
    for (seed, checked) in [(0, false), (2, false), (0, true)] {
        // So many threads that a row over 1024 tokens is split.
        let options = SoftOptions::default().threads(8).seed(seed).checked(checked);
        let Some(soft) = needed(Soft::new(options)) else { return };
        let soft = Arc::new(Faulty::new(Arc::new(soft)));
        let backend = GpuBackend::new(soft.clone(), GpuOptions::default());
        for case in cases::long() {
            graphs::check_long(&backend, &case, Exactness::Exact)
                .unwrap_or_else(|e| panic!("{}, seed {seed}: {e:?}", case.name));
            assert!(soft.labels().ends_with(&["attention"; 2]), "{}: {:?}", case.name, soft.labels());
        }
    }
}

#[test]
fn attention_in_three_steps_matches_the_reference_too() {
    let plan = Plan { only: "attention", ..Plan::default() };
    for (seed, walks) in [(0, &[0, 1, 2, 3][..]), (1, &[0, 1]), (2, &[2]), (3, &[3])] {
        check_programs(SoftOptions::default().seed(seed), plain_attention(), &Plan { walks, ..plan });
    }
    check_programs(SoftOptions::default().checked(true), plain_attention(), &plan);
}

/// What MPSGraph does, by the kernel that says what it means.
#[test]
fn attention_by_a_graph_takes_the_projection_along_and_matches_the_reference() {
    for (seed, checked, walks) in [(1, false, &[1, 2][..]), (0, true, &[1])] {
        let soft = SoftOptions::default().apple(AppleKernels::ALL).seed(seed).checked(checked);
        let providers = Providers::new();
        providers.set("sdpa", "mpsgraph+project").unwrap();
        let options = GpuOptions::default().providers(providers.clone());
        let plan = Plan { exactness: Exactness::Units, only: "attention, linear", walks, ..Plan::default() };
        check_programs(soft, options, &plan);
        let chosen = providers.selections();
        let fused = chosen.iter().any(|choice| choice.provider == Provider::SdpaMpsGraphProject);
        assert!(chosen.is_empty() || fused, "{chosen:?}");
    }
}

/// What has no projection after it goes by a graph of attention alone, and that is told.
#[test]
fn attention_without_a_projection_after_it_goes_by_the_smaller_graph_with_a_reason() {
    let providers = Providers::new();
    providers.set("sdpa", "mpsgraph+project").unwrap();
    let soft = SoftOptions::default().apple(AppleKernels::ALL);
    let options = GpuOptions::default().providers(providers.clone());
    let plan = Plan { only: "attention grouped F16", walks: &[1], ..Plan::default() };
    check_programs(soft, options, &plan);
    let told = providers.stood_in();
    let named = |choice: &Selection| {
        choice.provider == Provider::SdpaMpsGraph
            && choice.why.to_string().contains("not into a projection alone")
    };
    assert!(providers.selections().is_empty() || told.iter().any(named), "{told:?}");
}

/// Tensor operations take halfs, so only what writes to a cache of halfs goes by them; layouts change with the seed.
#[test]
fn the_way_into_attention_by_tensor_operations_matches_the_reference() {
    for (seed, checked) in [(0, false), (1, false), (0, true)] {
        let soft = SoftOptions::default().tensor_ops(true).seed(seed).checked(checked);
        let providers = Providers::new();
        let options = GpuOptions::default().providers(providers.clone());
        check_programs(soft, options, &Plan { only: "qkv halves F16", walks: &[0, 2], ..Plan::default() });
        let chosen = providers.selections();
        let by_tensors = chosen.iter().any(|choice| choice.provider == Provider::MatmulTensor);
        assert!(chosen.is_empty() || by_tensors, "seed {seed}: {chosen:?}");
    }
}

#[test]
fn kernels_with_few_threads_are_planned_again() {
    let Some(soft) = needed(Soft::new(SoftOptions::default().threads(2))) else { return };
    let soft = Faulty::new(Arc::new(soft));
    // Fewer than a row of 577 elements would get, or a tile of matrices.
    soft.narrow(64);
    let plan = Plan { walks: &[0, 1], ..Plan::default() };
    run_all(&GpuBackend::new(Arc::new(soft), GpuOptions::default()), &plan).expect();
}
