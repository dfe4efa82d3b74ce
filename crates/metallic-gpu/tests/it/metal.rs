//! The tables that softmetal runs anywhere, on the GPU of a Mac: `cargo test -p metallic-gpu --test it metal::`.
#![cfg(target_os = "macos")]

use std::sync::Arc;

use metallic_gpu::{GpuBackend, GpuOptions, Providers, metal};
use metallic_testkit::{cases, tensor_cases};

fn backend(options: GpuOptions) -> GpuBackend {
    let gpu = metal::open(None).unwrap_or_else(|error| panic!("{error}"));
    GpuBackend::new(Arc::new(gpu), options)
}

fn run_table(options: GpuOptions, only: &str) {
    let backend = backend(options);
    let cases: Vec<_> = cases::all().into_iter().filter(|case| case.name.contains(only)).collect();
    assert!(!cases.is_empty(), "no case is called `{only}`");
    let failed = |case: &cases::Case| {
        cases::check_exact(&backend, case).err().map(|error| format!("{}: {error}", case.name))
    };
    let failures: Vec<String> = cases.iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_operation_matches_the_reference() {
    run_table(GpuOptions::default(), "");
}

#[test]
fn every_operation_matches_the_reference_unfused() {
    run_table(GpuOptions { fuse: false, ..GpuOptions::default() }, "");
}

#[test]
fn attention_in_three_steps_matches_the_reference_too() {
    let providers = Providers::new();
    providers.set("sdpa", "plain").expect("the provider is known");
    run_table(GpuOptions { providers, ..GpuOptions::default() }, "attention");
}

#[test]
fn every_tensor_operation_matches_the_reference() {
    let backend = backend(GpuOptions::default());
    let failed = |case: &tensor_cases::TensorCase| {
        tensor_cases::check(&backend, case).err().map(|error| format!("{}: {error}", case.name))
    };
    let failures: Vec<String> = tensor_cases::all().iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    tensor_cases::check_refusals(&backend).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn all_gpus_are_listed_and_one_is_the_default() {
    let found = metal::devices();
    assert_eq!(found.iter().filter(|device| device.default).count(), 1, "{found:?}");
    assert!(found.iter().enumerate().all(|(index, device)| device.index == index));
}
