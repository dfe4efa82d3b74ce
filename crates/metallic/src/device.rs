//! The only place that chooses a backend.

use std::str::FromStr;

use metallic_core::reference::Reference;
use metallic_core::{Backend, BackendError};
use metallic_cpu::Cpu;

pub use metallic_cpu::CpuOptions;

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The best device of this machine.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The naive interpreter: the executable specification, slow, for comparisons.
    Reference,
}

/// A device name nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device `{0}` is unknown; there are auto, cpu and reference")]
pub struct UnknownDevice(pub String);

impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Device, UnknownDevice> {
        match name {
            "auto" => Ok(Device::Auto),
            "cpu" => Ok(Device::Cpu),
            "reference" => Ok(Device::Reference),
            other => Err(UnknownDevice(other.to_owned())),
        }
    }
}

impl Device {
    /// Opens the device. `threads` is for devices that compute on the processor; 0: one for each core.
    pub fn open(self, threads: usize) -> Result<Box<dyn Backend>, BackendError> {
        self.open_with(CpuOptions { threads, ..CpuOptions::default() })
    }

    /// Opens the device with all options of the CPU backend.
    pub fn open_with(self, options: CpuOptions) -> Result<Box<dyn Backend>, BackendError> {
        match self {
            Device::Auto | Device::Cpu => Ok(Box::new(Cpu::new(options)?)),
            Device::Reference => Ok(Box::new(Reference::new())),
        }
    }
}

/// Bytes of memory this process can still get, where the system says so: what the machine has left, and no more than
/// the process's control group allows.
pub fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let machine = kib.checked_mul(1024)?;
    Some(control_group().map_or(machine, |left| left.min(machine)))
}

/// What a limit on this control group leaves; `None` where there is none.
fn control_group() -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok()
    };
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_or_refused_by_name() {
        assert_eq!("cpu".parse(), Ok(Device::Cpu));
        let error = "tpu".parse::<Device>().unwrap_err();
        assert!(error.to_string().contains("`tpu`"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_says_how_much_memory_is_left() {
        assert!(available_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
