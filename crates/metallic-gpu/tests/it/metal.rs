//! The tables that softmetal runs anywhere, on the GPU of a Mac: `cargo test -p metallic-gpu --test it metal::`.
#![cfg(any(target_os = "macos", metal_on_linux))]

use std::sync::Arc;

use metallic_gpu::{GpuBackend, GpuOptions, Providers, metal};
use metallic_testkit::{Plan, run_all};

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
