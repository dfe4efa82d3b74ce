//! Golden models through the driver for Metal: on a Mac, and on Linux where Metal.framework is `softmetal-framework`.
#![cfg(any(target_os = "macos", metal_on_linux))]

use metallic::Device;
use metallic::model::Model;
use metallic_core::DType;
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
