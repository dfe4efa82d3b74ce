//! The numbers in use on one device, which may change while programs run.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::{Origin, Tuning, built_in};
use metallic_core::DeviceInfo;

use crate::error::GpuError;
use crate::gpu::Limits;
use crate::lock;

/// Plans that are told apart at most.
const WATCHED: usize = 1024;

/// Who has set the numbers of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TuningSource {
    /// Nobody: they are those of the device's limits.
    #[default]
    BuiltIn,
    /// A file of measured ones.
    File(PathBuf),
    /// A caller.
    Caller,
}

/// A device whose numbers can be measured: they hold for it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TunedDevice {
    /// Its kind: `metal`, `cuda`, `soft`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// What drives it and compiles its kernels, with versions.
    pub system: String,
    /// What plans go by where nobody says otherwise.
    pub built_in: Tuning,
    /// Where that comes from.
    pub origin: Origin,
}

impl TunedDevice {
    /// The device of this description.
    pub fn new(info: &DeviceInfo, limits: &Limits, system: String) -> TunedDevice {
        let (kind, name) = (info.kind, info.name.clone());
        let cores = limits.matrix_units.map_or(0, |units| units.cores);
        let origin = built_in(kind, &name, cores).1;
        TunedDevice { kind, name, system, built_in: limits.tuning, origin }
    }
}

/// The numbers that plans of one device go by. Clones share them: whoever keeps one can change them while programs are there, whose
/// next steps are planned anew.
#[derive(Clone, Debug, Default)]
pub struct Tuned {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Goes up with each change.
    version: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    device: Option<TunedDevice>,
    set: Option<Tuning>,
    source: TuningSource,
    notes: Vec<String>,
    /// Of all steps that were planned since the last change, each once; of the first [`WATCHED`].
    plans: BTreeSet<u64>,
}

impl Tuned {
    /// The device's own numbers.
    pub fn new() -> Tuned {
        Tuned::default()
    }

    /// Plans go by these numbers from now on.
    pub fn set(&self, tuning: Tuning) -> Result<(), GpuError> {
        self.set_from(tuning, TuningSource::Caller)
    }

    /// Plans go by these numbers from now on, which come from there.
    pub fn set_from(&self, tuning: Tuning, source: TuningSource) -> Result<(), GpuError> {
        tuning.check()?;
        self.change(Some(tuning), source);
        Ok(())
    }

    /// Plans go by the device's own numbers again.
    pub fn clear(&self) {
        self.change(None, TuningSource::BuiltIn);
    }

    fn change(&self, set: Option<Tuning>, source: TuningSource) {
        let mut state = lock(&self.shared.state);
        (state.set, state.source, state.plans) = (set, source, BTreeSet::new());
        self.shared.version.fetch_add(1, Ordering::Release);
    }

    /// The device they are of, once it is open.
    pub fn device(&self) -> Option<TunedDevice> {
        lock(&self.shared.state).device.clone()
    }

    pub(crate) fn attach(&self, device: TunedDevice) {
        lock(&self.shared.state).device = Some(device);
    }

    /// What plans go by now: what was set, else what the device has of its own; `None` before it is open.
    pub fn in_use(&self) -> Option<Tuning> {
        let state = lock(&self.shared.state);
        state.set.or_else(|| state.device.as_ref().map(|device| device.built_in))
    }

    /// What was set, and not what the device has of its own.
    pub fn get(&self) -> Option<Tuning> {
        lock(&self.shared.state).set
    }

    /// Who has set them.
    pub fn source(&self) -> TuningSource {
        lock(&self.shared.state).source.clone()
    }

    /// Keeps something that whoever opened the device should be told.
    pub fn note(&self, text: String) {
        lock(&self.shared.state).notes.push(text);
    }

    /// What whoever opened the device should be told.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.shared.state).notes.clone()
    }

    /// A number for everything that was planned since the last change: steps of the same shapes whose kernels are launched in the
    /// same way have the same one.
    pub fn plans(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        lock(&self.shared.state).plans.hash(&mut hasher);
        hasher.finish()
    }

    pub(crate) fn version(&self) -> u64 {
        self.shared.version.load(Ordering::Acquire)
    }

    /// Counts a plan in. Neither their order matters nor how often one was made: memory that grows lets plans go.
    pub(crate) fn planned(&self, plan: u64) {
        let mut state = lock(&self.shared.state);
        if state.plans.len() < WATCHED {
            state.plans.insert(plan);
        }
    }
}

/// Equal where the same was set.
impl PartialEq for Tuned {
    fn eq(&self, other: &Tuned) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) || self.get() == other.get()
    }
}
