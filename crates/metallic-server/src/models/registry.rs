//! Models by name while the server runs: which are loaded, which are in use, and which make room for others.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metallic::device::available_memory;
use metallic::{AdapterShare, Llm, LoadOptions};

use super::load::LoadError;
use super::spec::{Entry, ModelSpec, Models, Source, adapter_name};
use super::{Served, unix_time};
use crate::error::{ApiError, ServerError, Trouble};

/// The part of the budget that the cache of one model has where nothing is said: one of so many. Others are to fit beside it.
const CACHE_PART: u64 = 4;

/// All models of a server.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(super) slots: Vec<Slot>,
    /// By slot. Models are handed out under this lock alone.
    states: Mutex<Vec<Loaded>>,
    aliases: BTreeMap<String, String>,
    budget: u64,
    pub(super) load_time: Duration,
    /// Who has it may load: one at a time.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    pub(super) loads: AtomicU64,
    evictions: AtomicU64,
}

/// What is known of a model whether it is loaded or not.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: String,
    adapters: Vec<AdapterShare>,
    /// When it came, in seconds since 1970.
    created: u64,
    context: usize,
    /// Of weights and cache.
    pub(super) bytes: u64,
    /// Where it is loaded from; `None` where it was handed over loaded.
    pub(super) file: Option<(PathBuf, LoadOptions)>,
    preload: bool,
    pinned: bool,
}

/// Whether a model is there.
#[derive(Debug)]
pub(super) enum Loaded {
    No,
    Underway,
    /// The model alone, then with each of its adapters; and when it was asked for last.
    Yes(Vec<Arc<Served>>, Instant),
}

/// Whether a model is there, as it is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unloaded,
    Loading,
    Loaded,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
        }
    }
}

/// What is told of a model.
#[derive(Debug)]
pub(crate) struct Described<'a> {
    /// The model's own name, with the adapter's where it has one.
    pub(crate) root: String,
    /// The model that an adapter changes.
    pub(crate) parent: Option<&'a str>,
    pub(crate) created: u64,
    pub(crate) context: usize,
    pub(crate) bytes: u64,
    pub(crate) state: State,
}

/// Which of the models a slot has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) slot: usize,
    /// 0: the model alone.
    variant: usize,
}

impl Registry {
    /// The models of a server; those that are to be there from the start are loaded.
    pub(crate) fn new(models: Models) -> Result<Arc<Self>, ServerError> {
        let Models { entries, aliases, memory_budget, load_time } = models;
        let held: u64 = entries.iter().map(held_bytes).sum();
        // What is loaded already is not part of what is left.
        let left = || available_memory().map(|left| left.saturating_add(held));
        let budget = memory_budget.or_else(left).unwrap_or(u64::MAX);
        let (mut slots, mut states) = (Vec::new(), Vec::new());
        for entry in entries {
            let (slot, llm) = Slot::new(entry, budget);
            states.push(llm.map_or(Loaded::No, |llm| slot.loaded(llm)));
            slots.push(slot);
        }
        let (states, turn) = (Mutex::new(states), Arc::default());
        let (loads, evictions) = (AtomicU64::new(0), AtomicU64::new(0));
        let registry = Self { slots, states, aliases, budget, load_time, turn, loads, evictions };
        let registry = Arc::new(registry);
        for slot in 0..registry.slots.len() {
            if registry.slots[slot].preload {
                let name = registry.slots[slot].name.clone();
                registry.load(slot).map_err(|error| match error {
                    LoadError::Broken(Some(source)) => ServerError::Load { name, source: Box::new(source) },
                    LoadError::Broken(None) | LoadError::Room(_) => ServerError::NoRoom { name },
                })?;
            }
        }
        Ok(registry)
    }

    pub(super) fn states(&self) -> MutexGuard<'_, Vec<Loaded>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn find(&self, name: &str) -> Option<Wanted> {
        let name = self.aliases.get(name).map_or(name, String::as_str);
        self.slots.iter().enumerate().find_map(|(slot, it)| {
            let variant = it.names().position(|other| other == name)?;
            Some(Wanted { slot, variant })
        })
    }

    /// The model that goes by a name, loaded where it was not.
    pub(crate) async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<Served>, ApiError> {
        let missing = || ApiError::NoModel { model: name.chars().take(200).collect() };
        let wanted = self.find(name).ok_or_else(missing)?;
        match self.there(wanted) {
            Some(served) => Ok(served),
            None => self.fetch(wanted).await,
        }
    }

    /// A model, where it is loaded.
    pub(super) fn there(&self, wanted: Wanted) -> Option<Arc<Served>> {
        match &mut self.states()[wanted.slot] {
            Loaded::Yes(variants, used) => {
                *used = Instant::now();
                variants.get(wanted.variant).cloned()
            }
            Loaded::No | Loaded::Underway => None,
        }
    }

    /// Finds room for a model, which counts as being loaded from then on. Gives what has to go first: of the models that nobody uses,
    /// those that were asked for longest ago.
    pub(super) fn make_room(&self, slot: usize) -> Result<Vec<Loaded>, Trouble> {
        let (needed, mut states) = (self.slots[slot].bytes, self.states());
        let pinned: u64 = self.slots.iter().filter(|slot| slot.pinned).map(|slot| slot.bytes).sum();
        let fixed = if self.slots[slot].pinned { pinned } else { pinned.saturating_add(needed) };
        if needed > self.budget || fixed > self.budget {
            tracing::warn!(target: "metallic_server", model = self.slots[slot].name, needed, budget = self.budget, "a model can never fit");
            return Err(Trouble::TooLarge);
        }
        let mut used: u64 = self.bytes_in(&states);
        let mut leaving = Vec::new();
        while used.saturating_add(needed) > self.budget {
            let idle = states
                .iter()
                .enumerate()
                .filter(|(other, _)| !self.slots[*other].pinned && !leaving.contains(other));
            let oldest = idle
                .filter_map(|(other, state)| Some((other, state.idle_since()?)))
                .min_by_key(|(_, used)| *used);
            let Some((oldest, _)) = oldest else { return Err(Trouble::InUse) };
            used -= self.slots[oldest].bytes;
            leaving.push(oldest);
        }
        states[slot] = Loaded::Underway;
        let evicted = leaving.into_iter().map(|other| {
            tracing::info!(target: "metallic_server", model = self.slots[other].name, "a model makes room");
            self.evictions.fetch_add(1, Ordering::Relaxed);
            std::mem::replace(&mut states[other], Loaded::No)
        });
        Ok(evicted.collect())
    }

    fn bytes_in(&self, states: &[Loaded]) -> u64 {
        let held = self.slots.iter().zip(states).filter(|(_, state)| !matches!(state, Loaded::No));
        held.map(|(slot, _)| slot.bytes).sum()
    }

    /// All that are loaded with their names, in the order they were added. Who looks at them does not use them.
    pub(crate) fn loaded(&self) -> Vec<(String, Arc<Llm>)> {
        let states = self.states();
        let first = states.iter().filter_map(|state| match state {
            Loaded::Yes(variants, _) => variants.first(),
            Loaded::No | Loaded::Underway => None,
        });
        first.map(|served| (served.name.clone(), Arc::clone(&served.llm))).collect()
    }

    /// Figures, in the text format of Prometheus.
    pub(crate) fn figures(&self) -> String {
        let states = self.states();
        let loaded = states.iter().filter(|state| matches!(state, Loaded::Yes(..))).count() as u64;
        let bytes = self.bytes_in(&states);
        drop(states);
        let (loads, evictions) = (&self.loads, &self.evictions);
        let rows = [
            ("models_loaded", "gauge", "Models that are loaded.", loaded),
            ("models_bytes", "gauge", "Bytes of their weights, and of their caches at most.", bytes),
            ("model_loads_total", "counter", "Models loaded on demand.", loads.load(Ordering::Relaxed)),
            (
                "model_evictions_total",
                "counter",
                "Models that made room for others.",
                evictions.load(Ordering::Relaxed),
            ),
        ];
        let text = rows.map(|(name, kind, help, value)| {
            format!("# HELP metallic_{name} {help}\n# TYPE metallic_{name} {kind}\nmetallic_{name} {value}\n")
        });
        text.concat()
    }

    /// All names, aliases last.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.slots.iter().flat_map(Slot::names).chain(self.aliases.keys().cloned())
    }

    /// What is known of the model that goes by a name; it is not loaded for that.
    pub(crate) fn describe(&self, name: &str) -> Result<Described<'_>, ApiError> {
        let missing = || ApiError::NoModel { model: name.chars().take(200).collect() };
        let Wanted { slot, variant } = self.find(name).ok_or_else(missing)?;
        let state = match &self.states()[slot] {
            Loaded::No => State::Unloaded,
            Loaded::Underway => State::Loading,
            Loaded::Yes(..) => State::Loaded,
        };
        let slot = &self.slots[slot];
        Ok(Described {
            root: slot.names().nth(variant).unwrap_or_default(),
            parent: (variant > 0).then_some(&slot.name),
            created: slot.created,
            context: slot.context,
            bytes: slot.bytes,
            state,
        })
    }
}

/// Bytes of a model that is loaded already.
fn held_bytes(entry: &Entry) -> u64 {
    match &entry.source {
        Source::Loaded(llm) => loaded_bytes(llm),
        Source::File { .. } => 0,
    }
}

fn loaded_bytes(llm: &Llm) -> u64 {
    llm.model().weight_bytes().saturating_add(llm.engine().config().kv_budget_bytes as u64)
}

impl Slot {
    /// A model, and itself where it is loaded already.
    fn new(entry: Entry, budget: u64) -> (Self, Option<Llm>) {
        let (adapters, created) = (entry.adapters().to_vec(), unix_time());
        match entry.source {
            Source::Loaded(llm) => {
                let (bytes, context) = (loaded_bytes(&llm), llm.engine().config().context_length);
                let (name, pinned) = (entry.name, true);
                let slot =
                    Self { name, adapters, created, context, bytes, file: None, preload: false, pinned };
                (slot, Some(*llm))
            }
            Source::File { spec, needs } => {
                let ModelSpec { path, mut options, preload, pinned } = *spec;
                let cache = options.engine.kv_budget.unwrap_or_else(|| {
                    // A small budget is better used up than not used.
                    let fair = (budget / CACHE_PART).max(needs.least_cache);
                    needs.cache.min(fair).min(budget.saturating_sub(needs.weights).max(needs.least_cache))
                });
                options.engine.kv_budget = Some(cache);
                let bytes = needs.weights.saturating_add(cache);
                let (context, file, preload) = (needs.context, Some((path, options)), preload || pinned);
                (Self { name: entry.name, adapters, created, context, bytes, file, preload, pinned }, None)
            }
        }
    }

    /// What clients call it, and what they call it with each of its adapters.
    fn names(&self) -> impl Iterator<Item = String> {
        let adapters = self.adapters.iter().map(|adapter| adapter_name(&self.name, adapter));
        std::iter::once(self.name.clone()).chain(adapters)
    }

    /// The model as it is handed out.
    pub(super) fn loaded(&self, llm: Llm) -> Loaded {
        let llm = Arc::new(llm);
        let chosen = self.adapters.iter().map(|adapter| {
            // Who asks for an adapter by name wants something of it.
            let scale = if adapter.scale == 0.0 { 1.0 } else { adapter.scale };
            Some(AdapterShare::new(adapter.name.clone(), scale))
        });
        let variants = self
            .names()
            .zip(std::iter::once(None).chain(chosen))
            .map(|(name, adapter)| Arc::new(Served { name, llm: Arc::clone(&llm), adapter }));
        Loaded::Yes(variants.collect(), Instant::now())
    }
}

impl Loaded {
    /// When a model that nobody uses was asked for last. Only the registry hands models out, so nobody can begin to use it meanwhile.
    fn idle_since(&self) -> Option<Instant> {
        match self {
            Self::Yes(variants, used) if variants.iter().all(|served| Arc::strong_count(served) == 1) => {
                Some(*used)
            }
            _ => None,
        }
    }
}
