//! Devices that compute nothing and plan as others would: for looking at plans without the hardware.

use std::sync::Arc;

use metallic_core::{Backend, BackendError};
use metallic_gpu::{Limits, Null};

use super::{OpenOptions, gpu};
use crate::roof::{CHIPS, Chip};

/// A device whose limits are known without it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownDevice {
    /// Its name as its driver gives it: `Apple M4`, `NVIDIA H200`.
    pub name: String,
    limits: Limits,
}

impl KnownDevice {
    /// The one that a name means: a chip of Apple's (`m4`, `M2 Max`) or a GPU of NVIDIA's (`h200`). The error lists those there are.
    pub fn named(name: &str) -> Result<KnownDevice, String> {
        if let Some(chip) = Chip::named(name).first() {
            let name = format!("Apple {}", chip.name);
            return Ok(KnownDevice { limits: Limits::of_apple(&name), name });
        }
        if let Some(found) = nvidia(name) {
            return Ok(found);
        }
        Err(format!("nothing is known of `{name}`; there are {}", KnownDevice::names().join(", ")))
    }

    /// Every name there is, in short.
    pub fn names() -> Vec<&'static str> {
        let mut names: Vec<&str> = CHIPS.iter().map(|chip| chip.name).collect();
        names.dedup();
        names.extend(nvidia_names());
        names
    }

    /// Whether its maker's library of products is taken to be there.
    pub fn has_library(&self) -> bool {
        self.limits.library
    }

    /// A device that computes nothing and plans as this one.
    pub fn open(&self, options: &OpenOptions) -> Result<Box<dyn Backend>, BackendError> {
        gpu(Arc::new(Null::with(self.limits)), options)
    }
}

#[cfg(feature = "cuda")]
fn nvidia(name: &str) -> Option<KnownDevice> {
    let found = metallic_gpu::cuda::KnownGpu::named(name)?;
    Some(KnownDevice { name: found.name.to_owned(), limits: found.limits(true) })
}

#[cfg(not(feature = "cuda"))]
fn nvidia(_: &str) -> Option<KnownDevice> {
    None
}

#[cfg(feature = "cuda")]
fn nvidia_names() -> Vec<&'static str> {
    metallic_gpu::cuda::KNOWN.iter().map(metallic_gpu::cuda::KnownGpu::short_name).collect()
}

#[cfg(not(feature = "cuda"))]
fn nvidia_names() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_known_by_short_names_and_others_are_refused_with_the_list() {
        assert_eq!(KnownDevice::named("m2 max").unwrap().name, "Apple M2 Max");
        let error = KnownDevice::named("m99").unwrap_err();
        assert!(error.contains("`m99`") && error.contains("M4 Pro"), "{error}");
        for name in KnownDevice::names() {
            KnownDevice::named(name).unwrap();
        }
        #[cfg(feature = "cuda")]
        assert!(KnownDevice::named("H200").unwrap().has_library());
    }
}
