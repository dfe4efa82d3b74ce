//! Golden models through the driver for Metal: on a Mac, and on Linux where Metal.framework is `softmetal-framework`.
#![cfg(any(target_os = "macos", metal_on_linux))]

use metallic::Device;
use metallic::model::Model;
use metallic_core::DType;
use metallic_gpu::{GpuBackend, GpuOptions, Provider, Providers};
use metallic_testkit::golden;

#[test]
fn golden_models_match_on_the_device_that_metal_drives() {
    let backend = Device::Metal(None).open(2).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(backend.info().kind, "metal");
    for (name, kv, close) in [
        ("llama256.Q4_K_M", DType::F32, None),
        ("llama256.Q4_0", DType::F16, Some(golden::HALF)),
        ("llama_odd.F16", DType::F32, None),
    ] {
        let (path, expected) = golden::gguf(name);
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let mut program = model.compile(&*backend, kv).unwrap_or_else(|error| panic!("{name}: {error}"));
        let close = close.unwrap_or_else(|| golden::exact(&path));
        golden::check_close(program.as_mut(), &expected, close, &[1, 7, 512])
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// Products and attention by Apple's own kernels, where they serve; a single token's products are ours.
#[test]
fn golden_models_match_by_apples_own_kernels() {
    let gpu = metallic_gpu::metal::open(None).unwrap_or_else(|error| panic!("{error}"));
    let providers = Providers::new();
    providers.set_by_flag("matmul=mps").expect("a provider");
    providers.set_by_flag("sdpa=mpsgraph").expect("a provider");
    let backend =
        GpuBackend::new(std::sync::Arc::new(gpu), GpuOptions::default().providers(providers.clone()));
    for (name, kv) in [("llama256.Q4_0", DType::F16), ("llama_odd.F16", DType::F32)] {
        let (path, expected) = golden::gguf(name);
        let model = Model::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let mut program = model.compile(&backend, kv).unwrap_or_else(|error| panic!("{name}: {error}"));
        let close = if kv == DType::F16 { golden::HALF } else { golden::exact(&path) };
        golden::check_close(program.as_mut(), &expected, close, &[7, 512])
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let chosen = providers.selections();
    for apples in [Provider::MatmulMps, Provider::SdpaMpsGraph] {
        assert!(chosen.iter().any(|choice| choice.provider == apples), "{apples}: {chosen:?}");
    }
    // Steps of several sequences are planned when a program is made, and attention of them is not MPSGraph's.
    let told = providers.stood_in();
    assert!(
        told.iter().any(|s| s.provider == Provider::SdpaFlash && s.why.to_string().contains("sequences")),
        "{told:?}"
    );
}
