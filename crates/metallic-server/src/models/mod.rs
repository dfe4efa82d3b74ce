//! The models of a server, by name.

mod load;
mod registry;
mod spec;

pub(crate) use registry::Registry;
pub use spec::{ModelSpec, Models};

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use metallic::{AdapterShare, Llm};

/// A model that answers, and what clients call it. As long as somebody has it, it is in use.
pub(crate) struct Served {
    pub(crate) name: String,
    pub(crate) llm: Arc<Llm>,
    /// The adapter that its name asks for.
    pub(crate) adapter: Option<AdapterShare>,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Served").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
