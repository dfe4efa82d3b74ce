//! What tests of eager tensors share.

use metallic::Device;
use metallic::tensor::{OpenDevice, Tensor};
use metallic_testkit::needed;

/// The CPU, the reference, and the Metal kernels in software where there is a clang.
pub(crate) fn devices() -> Vec<OpenDevice> {
    let always = [Device::Cpu, Device::Reference].map(|device| OpenDevice::open(device).unwrap());
    let soft = cfg!(feature = "soft").then(|| needed(OpenDevice::open(Device::Soft))).flatten();
    always.into_iter().chain(soft).collect()
}

pub(crate) fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.to_vec().unwrap()
}

pub(crate) fn close(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance, "element {index}: {a} and {b}");
    }
}

pub(crate) fn from(device: &OpenDevice, values: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(device, values, shape).unwrap()
}
