//! Every operation of the case table through the Metal kernels, run by softmetal.
#![cfg(feature = "soft")]

use std::sync::Arc;

use metallic_gpu::fault::Faulty;
use metallic_gpu::{GpuBackend, GpuOptions, Providers, Soft, SoftOptions};
use metallic_testkit::{cases, needed};

/// A backend over the software device; `None`, said aloud, where there is no clang.
fn backend(soft: SoftOptions, options: GpuOptions) -> Option<GpuBackend> {
    Some(GpuBackend::new(Arc::new(needed(Soft::new(soft))?), options))
}

fn run_table(soft: SoftOptions, options: GpuOptions, only: &str) {
    if let Some(backend) = backend(SoftOptions { threads: 2, ..soft }, options) {
        check_table(&backend, only);
    }
}

fn check_table(backend: &GpuBackend, only: &str) {
    let mut failures = Vec::new();
    let cases: Vec<_> = cases::all().into_iter().filter(|case| case.name.contains(only)).collect();
    assert!(!cases.is_empty(), "no case is called `{only}`");
    for case in &cases {
        if let Err(error) = cases::check_exact(backend, case) {
            failures.push(format!("{}: {error}", case.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn plain_attention() -> GpuOptions {
    let providers = Providers::new();
    providers.set("sdpa", "plain").unwrap();
    GpuOptions { providers, ..GpuOptions::default() }
}

#[test]
fn every_operation_matches_the_reference() {
    run_table(SoftOptions::default(), GpuOptions::default(), "");
}

#[test]
fn every_operation_matches_the_reference_unfused() {
    let unfused = || GpuOptions { fuse: false, ..GpuOptions::default() };
    for seed in [0, 1, 2] {
        run_table(SoftOptions { seed, ..SoftOptions::default() }, unfused(), "");
    }
    run_table(SoftOptions { checked: true, ..SoftOptions::default() }, unfused(), "");
}

#[test]
fn the_order_of_threads_changes_nothing() {
    for seed in 1..=5 {
        run_table(SoftOptions { seed, ..SoftOptions::default() }, GpuOptions::default(), "");
    }
}

#[test]
fn the_checked_build_finds_nothing() {
    run_table(SoftOptions { checked: true, ..SoftOptions::default() }, GpuOptions::default(), "");
}

#[test]
fn contexts_that_are_split_over_threadgroups_match_the_reference() {
    for (seed, checked) in [(0, false), (2, false), (0, true)] {
        // So many threads that a row over 1024 tokens is split.
        let options = SoftOptions { threads: 8, seed, checked, ..SoftOptions::default() };
        let Some(soft) = needed(Soft::new(options)) else { return };
        let soft = Arc::new(Faulty::new(Arc::new(soft)));
        let backend = GpuBackend::new(soft.clone(), GpuOptions::default());
        for case in cases::long() {
            cases::check_long(&backend, &case).unwrap_or_else(|e| panic!("{}, seed {seed}: {e}", case.name));
            assert!(soft.labels().ends_with(&["attention"; 2]), "{}: {:?}", case.name, soft.labels());
        }
    }
}

#[test]
fn attention_in_three_steps_matches_the_reference_too() {
    for seed in 0..=5 {
        run_table(SoftOptions { seed, ..SoftOptions::default() }, plain_attention(), "attention");
    }
    run_table(SoftOptions { checked: true, ..SoftOptions::default() }, plain_attention(), "attention");
}

#[test]
fn kernels_with_few_threads_are_planned_again() {
    for (seed, checked) in [(0, false), (1, false), (2, false), (0, true)] {
        let options = SoftOptions { threads: 2, seed, checked, ..SoftOptions::default() };
        let Some(soft) = needed(Soft::new(options)) else { return };
        let soft = Faulty::new(Arc::new(soft));
        // Fewer than a row of 577 elements would get, or a tile of matrices.
        soft.narrow(64);
        check_table(&GpuBackend::new(Arc::new(soft), GpuOptions::default()), "");
    }
}
