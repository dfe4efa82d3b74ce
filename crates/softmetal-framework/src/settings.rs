//! What the framework stands for and how it runs kernels: from the environment, and from tests.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

use crate::lock;
use crate::metal::profile::Profile;

/// How kernels run. From the environment, once a process:
///
/// | variable | meaning |
/// | --- | --- |
/// | `SOFTMETAL_DEVICES` | profiles of the devices, separated by commas (`m1`, `m2`, `m3`, `m4`, `m5`, `intel`); the first is the default |
/// | `SOFTMETAL_MACOS` | the version of macOS, such as `14.5` (default `26.2`) |
/// | `SOFTMETAL_CHECKED` | `1`: every access of a kernel to memory is watched |
/// | `SOFTMETAL_SEED` | a number other than 0: dispatches that may run together run in an order drawn by it |
/// | `SOFTMETAL_HAZARDS` | `0`: dispatches that may run together are not run in the reverse order for comparison |
/// | `SOFTMETAL_THREADS` | host threads a kernel runs on |
/// | `SOFTMETAL_STRICT` | `1`: a process that ends with living objects, or with problems that nobody took, fails |
/// | `SOFTMETAL_FAULTS` | what fails, such as `allocation:3,timeout:1`: see [`faults`](crate::faults) |
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The devices, the default first.
    pub devices: Vec<Profile>,
    /// `major << 16 | minor << 8 | patch`.
    pub macos: u32,
    /// Kernels are built with checks.
    pub checked: bool,
    /// Draws the order of dispatches that may run together, and of threads; 0: as they were encoded.
    pub seed: u64,
    /// Dispatches that may run together are run in the reverse order too, and must leave the same bytes.
    pub hazards: bool,
    /// Host threads; 0: all.
    pub threads: usize,
    /// Objects that are alive at exit, and problems that nobody took, fail the process.
    pub strict: bool,
}

const MACOS: (u32, u32, u32) = (26, 2, 0);

impl Settings {
    /// Those of this process.
    pub fn get() -> &'static Settings {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Settings::from(|name| std::env::var(name).ok().filter(|v| !v.is_empty())))
    }

    /// # Panics
    /// On a value that means nothing: a test must not run with other settings than were asked for.
    fn from(var: impl Fn(&str) -> Option<String>) -> Settings {
        let devices = var("SOFTMETAL_DEVICES").unwrap_or_else(|| "m4".to_owned());
        let devices = devices.split(',').map(|name| {
            Profile::named(name.trim()).unwrap_or_else(|| {
                panic!("SOFTMETAL_DEVICES: `{name}` is no profile; there are {}", Profile::NAMES.join(", "))
            })
        });
        let macos = var("SOFTMETAL_MACOS").map_or(MACOS, |text| {
            version(&text).unwrap_or_else(|| panic!("SOFTMETAL_MACOS: `{text}` is no version such as 14.5"))
        });
        let number = |name: &str| {
            var(name).map_or(0, |text| {
                text.parse().unwrap_or_else(|_| panic!("{name}: `{text}` is no whole number"))
            })
        };
        Settings {
            devices: devices.collect(),
            macos: macos.0 << 16 | macos.1 << 8 | macos.2,
            checked: number("SOFTMETAL_CHECKED") != 0,
            seed: number("SOFTMETAL_SEED"),
            hazards: var("SOFTMETAL_HAZARDS").is_none() || number("SOFTMETAL_HAZARDS") != 0,
            threads: number("SOFTMETAL_THREADS") as usize,
            strict: number("SOFTMETAL_STRICT") != 0,
        }
    }
}

fn version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.split('.').map(|part| part.parse::<u8>().ok().map(u32::from));
    let version = (parts.next()??, parts.next().unwrap_or(Some(0))?, parts.next().unwrap_or(Some(0))?);
    parts.next().is_none().then_some(version)
}

static MACOS_NOW: Mutex<Option<u32>> = Mutex::new(None);

/// Says which version of macOS programs find from now on: major, minor and patch.
pub fn set_macos((major, minor, patch): (u8, u8, u8)) {
    *lock(&MACOS_NOW) = Some(u32::from(major) << 16 | u32::from(minor) << 8 | u32::from(patch));
}

pub(crate) fn macos_version() -> u32 {
    let set = *lock(&MACOS_NOW);
    set.unwrap_or_else(|| Settings::get().macos)
}

static CHECKED: AtomicBool = AtomicBool::new(false);

/// Says whether devices that are found from now on run kernels with checks, whatever `SOFTMETAL_CHECKED` says.
pub fn set_checked(checked: bool) {
    CHECKED.store(checked, Ordering::Relaxed);
    crate::metal::forget_devices();
}

pub(crate) fn checked() -> bool {
    CHECKED.load(Ordering::Relaxed) || Settings::get().checked
}

static POOLS: AtomicBool = AtomicBool::new(false);

/// Says whether every message that returns an autoreleased object needs an open pool from now on, also where the caller takes
/// the object at once: Apple's runtime then keeps it out of the pool, if the compiler lets it see that.
pub fn set_pools_required(required: bool) {
    POOLS.store(required, Ordering::Relaxed);
}

pub(crate) fn pools_are_required() -> bool {
    POOLS.load(Ordering::Relaxed)
}

static CAPTURES: AtomicBool = AtomicBool::new(false);

/// Says whether captures are allowed from now on, whatever `MTL_CAPTURE_ENABLED` says.
pub fn set_captures(allowed: bool) {
    CAPTURES.store(allowed, Ordering::Relaxed);
}

pub(crate) fn captures() -> bool {
    CAPTURES.load(Ordering::Relaxed) || std::env::var("MTL_CAPTURE_ENABLED").is_ok_and(|value| value == "1")
}

static DEVICES: Mutex<Option<Vec<Profile>>> = Mutex::new(None);

/// Says which devices programs find from now on, the default first; those that were handed out stay.
pub fn set_devices(profiles: Vec<Profile>) {
    *lock(&DEVICES) = Some(profiles);
    crate::metal::forget_devices();
}

pub(crate) fn devices() -> Vec<Profile> {
    lock(&DEVICES).clone().unwrap_or_else(|| Settings::get().devices.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_nonsense_is_refused() {
        let one = |name: &'static str, value: &'static str| {
            Settings::from(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(one("", "").macos, 26 << 16 | 2 << 8);
        assert_eq!(one("SOFTMETAL_MACOS", "14.5.1").macos, 14 << 16 | 5 << 8 | 1);
        let names: Vec<String> =
            one("SOFTMETAL_DEVICES", "m5, intel").devices.into_iter().map(|p| p.name).collect();
        assert_eq!(names, ["Apple M5", "Intel(R) UHD Graphics 630"]);
        assert!(one("", "").hazards && !one("SOFTMETAL_HAZARDS", "0").hazards);
        for (name, value) in [("SOFTMETAL_DEVICES", "m9"), ("SOFTMETAL_MACOS", "x"), ("SOFTMETAL_SEED", "-1")]
        {
            assert!(std::panic::catch_unwind(|| one(name, value)).is_err(), "{name}={value}");
        }
    }
}
