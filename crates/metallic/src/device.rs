//! The only place that chooses a backend.

pub mod caches;
mod list;
#[cfg(feature = "cuda")]
pub mod ptx;
mod rehearsal;
pub mod tuning;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use metallic_core::reference::Reference;
use metallic_core::{Backend, BackendError};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_gpu::tuning::TunedDevice;
use metallic_gpu::{Gpu, GpuBackend, GpuError, GpuOptions, Null};

pub use list::{Listed, list};
pub use metallic_gpu::Tuned;
pub use metallic_gpu::{Limits, OpKind, Provider, Providers, Quarantined, Selection, Why};
pub use rehearsal::KnownDevice;

/// Where a model runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The best device of this machine: the GPU of a Mac, else one of NVIDIA's, else the processor.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// A GPU through Metal: by index, by name or by a part of its name; `None`: the system's choice.
    Metal(Option<String>),
    /// A GPU of NVIDIA's, by the same kernels: by index, by name or by a part of its name; `None`: the first one. Opens in builds
    /// with the feature `cuda`.
    Cuda(Option<String>),
    /// The Metal kernels on the processor, compiled by clang: slow, for tests and comparisons. Opens in builds with the
    /// feature `soft`.
    Soft,
    /// The naive interpreter: the executable specification, slower still, for comparisons.
    Reference,
    /// A GPU that computes nothing: its results are zeros. For measuring what the host does.
    Null,
}

/// A device name nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "device `{0}` is unknown; there are auto, cpu, metal and cuda (metal:1 and metal:NAME pick a GPU), soft, reference and null"
)]
pub struct UnknownDevice(pub String);

impl FromStr for Device {
    type Err = UnknownDevice;

    fn from_str(name: &str) -> Result<Device, UnknownDevice> {
        let (kind, which) = name.split_once(':').map_or((name, None), |(kind, which)| (kind, Some(which)));
        match (kind.to_ascii_lowercase().as_str(), which) {
            ("auto", None) => Ok(Device::Auto),
            ("cpu", None) => Ok(Device::Cpu),
            ("metal", None) => Ok(Device::Metal(None)),
            ("metal", Some(which)) if !which.trim().is_empty() => {
                Ok(Device::Metal(Some(which.trim().to_owned())))
            }
            ("cuda", None) => Ok(Device::Cuda(None)),
            ("cuda", Some(which)) if !which.trim().is_empty() => {
                Ok(Device::Cuda(Some(which.trim().to_owned())))
            }
            ("soft", None) => Ok(Device::Soft),
            ("reference", None) => Ok(Device::Reference),
            ("null", None) => Ok(Device::Null),
            _ => Err(UnknownDevice(name.to_owned())),
        }
    }
}

/// The name that [`FromStr`] reads.
impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Auto => f.write_str("auto"),
            Device::Cpu => f.write_str("cpu"),
            Device::Metal(None) => f.write_str("metal"),
            Device::Metal(Some(which)) => write!(f, "metal:{which}"),
            Device::Cuda(None) => f.write_str("cuda"),
            Device::Cuda(Some(which)) => write!(f, "cuda:{which}"),
            Device::Soft => f.write_str("soft"),
            Device::Reference => f.write_str("reference"),
            Device::Null => f.write_str("null"),
        }
    }
}

/// How a device is used.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Threads of devices that compute on the processor, up to [`most_threads`]; 0: one for each core.
    pub threads: usize,
    /// Measure the time of every kind of operation, which costs some speed: a GPU notes the time after each.
    pub profile: bool,
    /// Compute in 32 bits throughout on the CPU, for comparisons.
    pub exact: bool,
    /// Which provider serves which operation on a GPU; goes before the environment. A clone that is kept tells what was
    /// chosen and what did not compile. Each device wants its own.
    pub providers: Providers,
    /// What plans of a GPU go by; goes before the environment and the file of measured numbers. A clone that is kept tells what is in
    /// use, and can change it. Each device wants its own.
    pub tuned: Tuned,
}

metallic_core::setters!(OpenOptions {
    threads: usize,
    profile: bool,
    exact: bool,
    providers: Providers,
    tuned: Tuned
});

impl Device {
    /// Opens the device. `threads` is for devices that compute on the processor; 0: one for each core.
    pub fn open(&self, threads: usize) -> Result<Box<dyn Backend>, BackendError> {
        self.open_with(&OpenOptions::default().threads(threads))
    }

    /// Opens the device with options. An option the device cannot follow is an error.
    pub fn open_with(&self, options: &OpenOptions) -> Result<Box<dyn Backend>, BackendError> {
        check_threads(options.threads)?;
        match self.resolve() {
            Device::Soft => tuned(soft(options.threads).map_err(|error| error.on("soft"))?, options),
            Device::Metal(which) => {
                tuned(metal(which.as_deref()).map_err(|error| error.on("metal"))?, options)
            }
            Device::Cuda(which) => tuned(cuda(which.as_deref()).map_err(|error| error.on("cuda"))?, options),
            Device::Null => gpu(Arc::new(Null::new()), options),
            Device::Reference => {
                without_providers("reference", options)?;
                Ok(Box::new(if options.profile { Reference::profiling() } else { Reference::new() }))
            }
            Device::Auto | Device::Cpu => {
                without_providers("cpu", options)?;
                let &OpenOptions { threads, profile, exact, .. } = options;
                Ok(Box::new(Cpu::new(CpuOptions::default().threads(threads).profile(profile).exact(exact))?))
            }
        }
    }

    /// The device that is meant: [`Device::Auto`] becomes what this machine has.
    #[must_use]
    pub fn resolve(&self) -> Device {
        match self {
            Device::Auto if has_metal() => Device::Metal(None),
            Device::Auto if has_cuda() => Device::Cuda(None),
            Device::Auto => Device::Cpu,
            other => other.clone(),
        }
    }
}

/// A GPU whose plans go by what was measured on it.
fn tuned(device: Arc<dyn Gpu>, options: &OpenOptions) -> Result<Box<dyn Backend>, BackendError> {
    let described = TunedDevice::new(device.info(), device.limits(), device.system());
    tuning::follow(&options.tuned, &described)?;
    gpu(device, options)
}

fn gpu(gpu: Arc<dyn Gpu>, options: &OpenOptions) -> Result<Box<dyn Backend>, BackendError> {
    let kind = gpu.info().kind;
    let providers = options.providers.clone();
    providers.follow_environment().map_err(|error| error.on(kind))?;
    let tuned = options.tuned.clone();
    let options = GpuOptions::default().providers(providers).tuned(tuned).profile(options.profile);
    Ok(Box::new(GpuBackend::new(gpu, options)))
}

/// Threads that this process can run at the same time.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get)
}

/// Most threads a device may be opened with. More than one a core is good for comparisons only; a team of thousands would
/// take the machine down.
pub fn most_threads() -> usize {
    cores().saturating_mul(4).max(16)
}

fn check_threads(threads: usize) -> Result<(), BackendError> {
    let (cores, most) = (cores(), most_threads());
    if threads <= most {
        return Ok(());
    }
    Err(BackendError::Setting {
        device: "the processor",
        setting: format!("{threads} threads"),
        reason: format!("it has {cores} cores, and at most {most} threads are allowed"),
    })
}

fn without_providers(device: &'static str, options: &OpenOptions) -> Result<(), BackendError> {
    match options.providers.asked().first() {
        None => Ok(()),
        Some((op, provider)) => Err(BackendError::Setting {
            device,
            setting: format!("{op}={provider}"),
            reason: "providers are kernels of a GPU".to_owned(),
        }),
    }
}

#[cfg(feature = "soft")]
fn soft(threads: usize) -> Result<Arc<dyn Gpu>, GpuError> {
    use metallic_gpu::{Soft, SoftOptions};
    Ok(Arc::new(Soft::new(SoftOptions::default().threads(threads))?))
}

#[cfg(not(feature = "soft"))]
fn soft(_: usize) -> Result<Arc<dyn Gpu>, GpuError> {
    Err(GpuError::Missing(NO_SOFT.to_owned()))
}

#[cfg(any(test, not(feature = "soft")))]
const NO_SOFT: &str =
    "this build has no `soft` feature; build with `metallic/soft` to run Metal kernels in software";

#[cfg(feature = "cuda")]
fn cuda(which: Option<&str>) -> Result<Arc<dyn Gpu>, GpuError> {
    Ok(Arc::new(metallic_gpu::cuda::open(which)?))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_: Option<&str>) -> Result<Arc<dyn Gpu>, GpuError> {
    Err(GpuError::Missing(NO_CUDA.to_owned()))
}

#[cfg(any(test, not(feature = "cuda")))]
const NO_CUDA: &str = "this build has no `cuda` feature; build with `metallic/cuda` for NVIDIA GPUs";

/// A device that computes nothing and plans as for the GPU of this Apple chip (`Apple M2 Max`): for counting what its kernels
/// would do.
pub fn apple_rehearsal(name: &str, options: &OpenOptions) -> Result<Box<dyn Backend>, BackendError> {
    gpu(Arc::new(Null::with(Limits::of_apple(name))), options)
}

/// Whether there is a GPU of NVIDIA's, and kernels for it.
#[cfg(feature = "cuda")]
fn has_cuda() -> bool {
    use metallic_gpu::cuda;
    let usable = |found: Vec<cuda::CudaDevice>| found.first().is_some_and(|gpu| gpu.unusable.is_none());
    cuda::devices().is_ok_and(usable) && cuda::has_kernels()
}

#[cfg(not(feature = "cuda"))]
fn has_cuda() -> bool {
    false
}

#[cfg(any(target_os = "macos", metal_on_linux))]
fn metal(which: Option<&str>) -> Result<Arc<dyn Gpu>, GpuError> {
    Ok(Arc::new(metallic_gpu::metal::open(which)?))
}

#[cfg(not(any(target_os = "macos", metal_on_linux)))]
fn metal(_: Option<&str>) -> Result<Arc<dyn Gpu>, GpuError> {
    Err(GpuError::Missing(NO_METAL.to_owned()))
}

#[cfg(any(target_os = "macos", metal_on_linux))]
fn has_metal() -> bool {
    metallic_gpu::metal::devices().iter().any(|device| device.default && device.usable)
}

#[cfg(not(any(target_os = "macos", metal_on_linux)))]
fn has_metal() -> bool {
    false
}

#[cfg(not(any(target_os = "macos", metal_on_linux)))]
const NO_METAL: &str = "Metal is part of macOS; `soft` runs the same kernels on the processor";

/// Bytes of memory this process can still get, where the system says so: what the machine has left, and no more than
/// the process's control group allows.
pub fn available_memory() -> Option<u64> {
    let machine = memory_line("MemAvailable:")?;
    Some(control_group().map_or(machine, |left| left.min(machine)))
}

/// Bytes of memory this machine has, where the system says so, and no more than the process's control group allows.
pub fn total_memory() -> Option<u64> {
    let machine = memory_line("MemTotal:")?;
    Some(control_group_number("memory.max").map_or(machine, |most| most.min(machine)))
}

/// The most bytes of memory this process has had at once so far, mapped files included, where the system says so.
pub fn peak_memory() -> Option<u64> {
    line_of("/proc/self/status", "VmHWM:")
}

fn memory_line(name: &str) -> Option<u64> {
    line_of("/proc/meminfo", name)
}

fn line_of(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// What a limit on this control group leaves; `None` where there is none.
fn control_group() -> Option<u64> {
    let stat = std::fs::read_to_string("/sys/fs/cgroup/memory.stat").unwrap_or_default();
    let (most, taken) = (control_group_number("memory.max")?, control_group_number("memory.current")?);
    Some(left_of(most, taken, &stat))
}

/// Pages of files that nobody has used for a while count as taken, and are given up as soon as memory is asked for.
fn left_of(most: u64, taken: u64, stat: &str) -> u64 {
    let idle = stat.lines().find_map(|line| line.strip_prefix("inactive_file ")?.trim().parse().ok());
    most.saturating_sub(taken.saturating_sub(idle.unwrap_or(0)))
}

fn control_group_number(name: &str) -> Option<u64> {
    std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_and_print_as_they_are_read() {
        for (name, device) in [
            ("auto", Device::Auto),
            ("cpu", Device::Cpu),
            ("metal", Device::Metal(None)),
            ("metal:1", Device::Metal(Some("1".to_owned()))),
            ("metal:Apple M2 Max", Device::Metal(Some("Apple M2 Max".to_owned()))),
            ("cuda", Device::Cuda(None)),
            ("cuda:H200", Device::Cuda(Some("H200".to_owned()))),
            ("soft", Device::Soft),
            ("reference", Device::Reference),
            ("null", Device::Null),
        ] {
            assert_eq!(name.parse(), Ok(device.clone()));
            assert_eq!(device.to_string(), name);
        }
        assert_eq!("SOFT".parse(), Ok(Device::Soft));
    }

    #[test]
    fn pages_a_container_can_give_up_are_not_taken() {
        let stat = "anon 10\ninactive_file 600\nactive_file 50\n";
        assert_eq!(left_of(1000, 900, stat), 700);
        assert_eq!(left_of(1000, 900, ""), 100);
        assert_eq!(left_of(1000, 500, stat), 1000);
    }

    #[test]
    fn other_names_are_refused_by_name_with_what_there_is() {
        for name in ["tpu", "", "metal:", "metal: ", "cpu:1", "soft:2"] {
            let error = name.parse::<Device>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{name}`")) && error.contains("soft"), "{error}");
        }
    }

    #[test]
    fn more_threads_than_the_machine_can_carry_are_refused_with_what_it_has() {
        for device in [Device::Auto, Device::Cpu, Device::Soft] {
            let error = device.open(100_000).err().unwrap().to_string();
            assert!(
                error.contains("`100000 threads`") && error.contains(&format!("{} cores", cores())),
                "{error}"
            );
            assert!(error.contains(&format!("at most {}", most_threads())), "{error}");
        }
    }

    #[test]
    fn a_provider_is_refused_where_there_are_none() {
        let options = OpenOptions::default();
        options.providers.set_by_flag("sdpa=plain").unwrap();
        for device in [Device::Cpu, Device::Reference] {
            let error = device.open_with(&options).err().unwrap().to_string();
            assert!(error.contains("`sdpa=plain`"), "{error}");
        }
        #[cfg(feature = "soft")]
        if metallic_testkit::needed(soft(1)).is_some() {
            assert!(Device::Soft.open_with(&options).is_ok());
        }
    }

    #[test]
    fn what_a_build_lacks_says_which_feature_it_is() {
        for (reason, feature) in [(NO_SOFT, "soft"), (NO_CUDA, "cuda")] {
            let error = GpuError::Missing(reason.to_owned()).on("soft");
            assert!(matches!(error, BackendError::Unavailable { .. }), "{error:?}");
            let (missing, needed) = (format!("no `{feature}` feature"), format!("`metallic/{feature}`"));
            assert!(error.to_string().contains(&missing) && error.to_string().contains(&needed), "{error}");
        }
    }

    #[cfg(not(feature = "soft"))]
    #[test]
    fn a_build_without_the_software_device_says_so_where_it_is_opened_and_listed() {
        let error = Device::Soft.open(1).err().unwrap();
        assert!(matches!(error, BackendError::Unavailable { device: "soft", .. }), "{error:?}");
        assert!(error.to_string().contains("no `soft` feature"), "{error}");
        let listed = list().into_iter().find(|listed| listed.device == Device::Soft).unwrap();
        assert!(listed.unavailable.is_some_and(|reason| reason.contains("no `soft` feature")));
    }

    #[cfg(not(any(target_os = "macos", metal_on_linux)))]
    #[test]
    fn without_a_mac_metal_is_refused_and_auto_is_the_processor() {
        let error = Device::Metal(None).open(1).err().unwrap().to_string();
        assert!(error.contains("macOS") && error.contains("soft"), "{error}");
        assert_eq!(Device::Auto.open(1).unwrap().info().kind, "cpu");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_says_how_much_memory_is_left_and_how_much_was_taken() {
        let left = available_memory().unwrap();
        assert!(left > 1 << 20 && total_memory().is_some_and(|all| all >= left));
        assert!(peak_memory().is_some_and(|bytes| bytes > 1 << 20));
    }
}
