//! What devices this machine has.

use metallic_gpu::Limits;

use super::tuning::{self, Found, Origin, TunedDevice};
use super::{Device, available_memory};

/// A device of this machine, or one it could have.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// The device; its [`Display`](std::fmt::Display) is what a command line takes.
    pub device: Device,
    /// Its kind: `cpu`, `metal`, `cuda`, `soft`, `reference`, `null`.
    pub kind: &'static str,
    /// What it is, in words.
    pub name: String,
    /// Threads, or compute units, where known.
    pub units: Option<usize>,
    /// Memory a program may use, where known.
    pub memory_bytes: Option<u64>,
    /// What its kernels may use; only GPUs have such limits.
    pub limits: Option<Limits>,
    /// What compiles its kernels.
    pub compiler: Option<String>,
    /// The library of its maker's that makes products of many tokens, where it may have one; or why it is not there.
    pub library: Option<Result<String, String>>,
    /// What its plans go by, or why that cannot be read; only GPUs have such numbers.
    pub tuning: Option<Result<Found, String>>,
    /// Where those that are built in come from.
    pub origin: Option<Origin>,
    /// Why it cannot be used, and what would help.
    pub unavailable: Option<String>,
    /// Whether [`Device::Auto`] means it.
    pub auto: bool,
}

impl Listed {
    #[cfg_attr(
        not(any(feature = "soft", feature = "cuda", target_os = "macos", metal_on_linux)),
        allow(dead_code)
    )]
    fn tuned(mut self, device: &TunedDevice) -> Listed {
        self.tuning = Some(tuning::find(device).map_err(|error| error.to_string()));
        self.origin = Some(device.origin);
        self
    }
}

/// Every device this machine has, and those it lacks with the reason.
pub fn list() -> Vec<Listed> {
    let mut all = metal();
    all.extend(cuda());
    all.extend([processor(&Device::Cpu), soft(), processor(&Device::Reference), processor(&Device::Null)]);
    let auto = Device::Auto.resolve();
    for listed in &mut all {
        listed.auto |= listed.device == auto;
    }
    all
}

/// What it is called where it cannot be opened.
const SOFT_NAME: &str = "Metal in software";

fn missing(device: Device, kind: &'static str, name: &str, reason: String) -> Listed {
    Listed {
        device,
        kind,
        name: name.to_owned(),
        units: None,
        memory_bytes: None,
        limits: None,
        compiler: None,
        library: None,
        tuning: None,
        origin: None,
        unavailable: Some(reason),
        auto: false,
    }
}

/// A device that computes on the processor.
fn processor(device: &Device) -> Listed {
    match device.open(0) {
        Err(error) => missing(device.clone(), "cpu", "the processor", error.to_string()),
        Ok(backend) => {
            let info = backend.info();
            Listed {
                device: device.clone(),
                kind: info.kind,
                name: info.name.clone(),
                units: Some(info.units),
                memory_bytes: info.memory_bytes.or_else(available_memory),
                limits: None,
                compiler: None,
                library: None,
                tuning: None,
                origin: None,
                unavailable: None,
                auto: false,
            }
        }
    }
}

#[cfg(not(feature = "soft"))]
fn soft() -> Listed {
    missing(Device::Soft, "soft", SOFT_NAME, super::NO_SOFT.to_owned())
}

#[cfg(feature = "soft")]
fn soft() -> Listed {
    use metallic_gpu::{Gpu, Soft, SoftOptions};
    match Soft::new(SoftOptions::default()) {
        Err(error) => missing(Device::Soft, "soft", SOFT_NAME, error.to_string()),
        Ok(soft) => {
            let listed = Listed {
                device: Device::Soft,
                kind: "soft",
                name: soft.info().name.clone(),
                units: Some(soft.info().units),
                memory_bytes: available_memory(),
                limits: Some(*soft.limits()),
                compiler: Some(soft.compiler()),
                library: None,
                tuning: None,
                origin: None,
                unavailable: None,
                auto: false,
            };
            listed.tuned(&TunedDevice::new(soft.info(), soft.limits(), soft.system()))
        }
    }
}

/// What it is called where there is none.
const CUDA_NAME: &str = "a GPU of NVIDIA's";

#[cfg(not(feature = "cuda"))]
fn cuda() -> Vec<Listed> {
    vec![missing(Device::Cuda(None), "cuda", CUDA_NAME, super::NO_CUDA.to_owned())]
}

#[cfg(feature = "cuda")]
fn cuda() -> Vec<Listed> {
    use metallic_gpu::cuda;
    let found = match cuda::devices() {
        Ok(found) if !found.is_empty() => found,
        Ok(_) => {
            let reason = "NVIDIA's driver is here and knows no GPU".to_owned();
            return vec![missing(Device::Cuda(None), "cuda", CUDA_NAME, reason)];
        }
        Err(error) => return vec![missing(Device::Cuda(None), "cuda", CUDA_NAME, error.to_string())],
    };
    let auto = Device::Auto.resolve() == Device::Cuda(None);
    let listed = found.into_iter().map(|gpu| {
        let tuned = TunedDevice::new(&gpu.info, &gpu.limits, gpu.system);
        Listed {
            auto: auto && gpu.index == 0,
            device: Device::Cuda(Some(gpu.index.to_string())),
            kind: "cuda",
            name: gpu.info.name,
            units: Some(gpu.info.units),
            memory_bytes: gpu.info.memory_bytes,
            limits: Some(gpu.limits),
            compiler: cuda::compiler().ok(),
            library: Some(cuda::library()),
            tuning: None,
            origin: None,
            unavailable: gpu.unusable,
        }
        .tuned(&tuned)
    });
    listed.collect()
}

#[cfg(not(any(target_os = "macos", metal_on_linux)))]
fn metal() -> Vec<Listed> {
    vec![missing(Device::Metal(None), "metal", "a GPU of a Mac", super::NO_METAL.to_owned())]
}

#[cfg(any(target_os = "macos", metal_on_linux))]
fn metal() -> Vec<Listed> {
    let found = metallic_gpu::metal::devices();
    if found.is_empty() {
        let reason = "this Mac shows no GPU to this process".to_owned();
        return vec![missing(Device::Metal(None), "metal", "a GPU of a Mac", reason)];
    }
    let listed = found.into_iter().map(|gpu| {
        let tuned = TunedDevice::new(&gpu.info, &gpu.limits, gpu.system);
        Listed {
            device: Device::Metal(Some(gpu.index.to_string())),
            kind: "metal",
            name: gpu.info.name,
            units: (gpu.info.units > 0).then_some(gpu.info.units),
            memory_bytes: gpu.info.memory_bytes,
            limits: Some(gpu.limits),
            compiler: None,
            library: None,
            tuning: None,
            origin: None,
            unavailable: (!gpu.usable)
                .then(|| "its kernels need a GPU of Apple Silicon (M1 or later)".to_owned()),
            auto: gpu.default && gpu.usable,
        }
        .tuned(&tuned)
    });
    listed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_is_listed_and_one_is_the_automatic_choice() {
        let all = list();
        for kind in ["cpu", "metal", "cuda", "soft", "reference", "null"] {
            assert!(all.iter().any(|listed| listed.kind == kind), "{kind}");
        }
        let auto: Vec<_> = all.iter().filter(|listed| listed.auto).collect();
        assert_eq!(auto.len(), 1);
        assert_eq!(auto[0].unavailable, None);
    }

    #[test]
    fn what_is_listed_as_available_can_be_opened_by_its_name() {
        for listed in list() {
            let opened = listed.device.to_string().parse::<Device>().unwrap().open(1);
            assert_eq!(opened.is_ok(), listed.unavailable.is_none(), "{}", listed.device);
        }
    }
}
