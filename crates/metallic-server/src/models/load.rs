//! Loading models that somebody asks for, one at a time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use metallic::Llm;

use super::Served;
use super::registry::{Loaded, Registry, Wanted};
use crate::error::{ApiError, Trouble};

/// Why a model is not there.
#[derive(Debug)]
pub(super) enum LoadError {
    /// There is no room.
    Room(Trouble),
    /// Its file cannot be loaded. `None`: loading panicked.
    Broken(Option<metallic::Error>),
}

impl Registry {
    /// Waits until a model is loaded, or loads it.
    pub(super) async fn fetch(self: &Arc<Self>, wanted: Wanted) -> Result<Arc<Served>, ApiError> {
        let loading = tokio::time::timeout(self.load_time, self.load_in_turn(wanted)).await;
        let trouble = |trouble| ApiError::Model { model: self.slots[wanted.slot].name.clone(), trouble };
        loading.unwrap_or(Err(Trouble::Loading)).map_err(trouble)
    }

    async fn load_in_turn(self: &Arc<Self>, wanted: Wanted) -> Result<Arc<Served>, Trouble> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        if let Some(served) = self.there(wanted) {
            return Ok(served);
        }
        let (registry, slot) = (Arc::clone(self), wanted.slot);
        // It goes on when the client leaves: others may wait for it, and nobody else may load meanwhile.
        let loading = tokio::task::spawn_blocking(move || {
            let loaded = registry.load(slot);
            drop(turn);
            loaded
        });
        // While it is held here, no other model takes its place.
        let _held = match loading.await.unwrap_or(Err(LoadError::Broken(None))) {
            Ok(served) => served,
            Err(LoadError::Room(trouble)) => return Err(trouble),
            Err(LoadError::Broken(_)) => return Err(Trouble::Broken),
        };
        self.there(wanted).ok_or(Trouble::Broken)
    }

    /// Loads a model that is not there. Others may have to go first.
    pub(super) fn load(&self, slot: usize) -> Result<Arc<Served>, LoadError> {
        let it = &self.slots[slot];
        // What was handed over loaded never goes.
        let Some((path, options)) = &it.file else { return Err(LoadError::Broken(None)) };
        let evicted = self.make_room(slot).map_err(LoadError::Room)?;
        let underway = Underway { registry: self, slot };
        // Their memory is free before more is taken.
        drop(evicted);
        let started = Instant::now();
        let llm = Llm::load_with(path, options).map_err(|error| {
            tracing::error!(target: "metallic_server", model = it.name, %error, "a model could not be loaded");
            LoadError::Broken(Some(error))
        })?;
        let seconds = started.elapsed().as_secs_f64();
        tracing::info!(target: "metallic_server", model = it.name, seconds, "a model was loaded");
        self.loads.fetch_add(1, Ordering::Relaxed);
        let served = underway.done(llm);
        served.ok_or(LoadError::Broken(None))
    }
}

/// A model that is being loaded; it does not count as such any more once this is dropped.
struct Underway<'a> {
    registry: &'a Registry,
    slot: usize,
}

impl Underway<'_> {
    fn done(self, llm: Llm) -> Option<Arc<Served>> {
        let loaded = self.registry.slots[self.slot].loaded(llm);
        let first = match &loaded {
            Loaded::Yes(variants, _) => variants.first().cloned(),
            Loaded::No | Loaded::Underway => None,
        };
        self.registry.states()[self.slot] = loaded;
        first
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        let state = &mut self.registry.states()[self.slot];
        if matches!(state, Loaded::Underway) {
            *state = Loaded::No;
        }
    }
}
