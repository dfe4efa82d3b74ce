//! Several kernels may serve one operation. The registry knows which, picks one, says why, and goes on to the next where
//! one does not compile.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::error::GpuError;
use crate::{lock, tell};

/// Selections kept at most; the oldest go first.
const EVENTS: usize = 256;
/// Providers that stand in for others, with their reasons, kept at most.
const STOOD_IN: usize = 16;

/// An operation that has more than one provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum OpKind {
    /// Attention over the KV cache.
    Sdpa,
    /// Products of several tokens with a weight.
    Matmul,
}

/// What can serve an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Provider {
    /// Attention in one pass over keys and values.
    SdpaFlash,
    /// Attention as scores, softmax and weighted sum one after another.
    SdpaPlain,
    /// Attention by a graph of Apple's MPSGraph.
    SdpaMpsGraph,
    /// Attention and the projection of its result by one graph of Apple's MPSGraph.
    SdpaMpsGraphProject,
    /// Products by a library of the device's maker.
    MatmulLibrary,
    /// Products by Apple's MetalPerformanceShaders.
    MatmulMps,
    /// Products by tiles of simdgroup matrices.
    MatmulTiles,
    /// Products by the matrix–vector kernels, a few tokens at a time.
    MatmulRows,
    /// Products by the tensor operations of Metal 4; preferred where a device has them.
    MatmulTensor,
}

impl Provider {
    /// All of them; of one operation the preferred one first.
    pub const ALL: &'static [Provider] = &[
        Provider::SdpaFlash,
        Provider::SdpaPlain,
        Provider::SdpaMpsGraph,
        Provider::SdpaMpsGraphProject,
        Provider::MatmulLibrary,
        Provider::MatmulTensor,
        Provider::MatmulTiles,
        Provider::MatmulRows,
        Provider::MatmulMps,
    ];

    /// What it serves.
    pub fn op(self) -> OpKind {
        match self {
            Provider::SdpaFlash
            | Provider::SdpaPlain
            | Provider::SdpaMpsGraph
            | Provider::SdpaMpsGraphProject => OpKind::Sdpa,
            Provider::MatmulLibrary
            | Provider::MatmulMps
            | Provider::MatmulTensor
            | Provider::MatmulTiles
            | Provider::MatmulRows => OpKind::Matmul,
        }
    }

    /// Its name in flags and in the environment.
    pub fn name(self) -> &'static str {
        match self {
            Provider::SdpaFlash => "flash",
            Provider::SdpaPlain => "plain",
            Provider::SdpaMpsGraph => "mpsgraph",
            Provider::SdpaMpsGraphProject => "mpsgraph+project",
            Provider::MatmulLibrary => "library",
            Provider::MatmulMps => "mps",
            Provider::MatmulTiles => "tiles",
            Provider::MatmulRows => "rows",
            Provider::MatmulTensor => "tensor",
        }
    }

    /// Whether it is one of Apple's own: it serves only where it is asked for, as no Mac has shown yet that it is faster, and where it
    /// cannot, the others do.
    pub fn is_apples(self) -> bool {
        matches!(self, Provider::SdpaMpsGraph | Provider::SdpaMpsGraphProject | Provider::MatmulMps)
    }

    /// The one of Apple's own that does a part of what this one does, and is tried next where it cannot serve.
    fn lesser(self) -> Option<Provider> {
        (self == Provider::SdpaMpsGraphProject).then_some(Provider::SdpaMpsGraph)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl OpKind {
    /// All of them.
    pub const ALL: &'static [OpKind] = &[OpKind::Sdpa, OpKind::Matmul];

    /// Its name in flags; in capitals in `METALLIC_FORCE_<OP>_BACKEND`.
    pub fn name(self) -> &'static str {
        match self {
            OpKind::Sdpa => "sdpa",
            OpKind::Matmul => "matmul",
        }
    }

    /// Its providers, the preferred one first.
    pub fn providers(self) -> impl Iterator<Item = Provider> {
        Provider::ALL.iter().copied().filter(move |provider| provider.op() == self)
    }

    /// The environment variable that names its provider.
    pub fn variable(self) -> String {
        format!("METALLIC_FORCE_{}_BACKEND", self.name().to_uppercase())
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a provider was picked.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Why {
    /// Nobody asked for another.
    Default,
    /// A caller, or a flag, asked for it.
    Override,
    /// The environment asked for it.
    Environment,
    /// One that comes before it cannot serve.
    Fallback {
        /// That one.
        from: Provider,
        /// What it failed with.
        error: GpuError,
    },
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Default => f.write_str("the default"),
            Why::Override => f.write_str("asked for"),
            Why::Environment => f.write_str("asked for by the environment"),
            Why::Fallback { from, error } => write!(f, "in place of `{from}`: {error}"),
        }
    }
}

/// A choice to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// For which operation.
    pub op: OpKind,
    /// Providers that are not tried where nobody asks for them: they would not do well.
    pub without: Vec<Provider>,
}

impl From<OpKind> for Choice {
    fn from(op: OpKind) -> Choice {
        Choice { op, without: Vec::new() }
    }
}

/// A choice that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// For which operation.
    pub op: OpKind,
    /// Who serves it.
    pub provider: Provider,
    /// Why.
    pub why: Why,
    /// How often it was made in a row: every layer of a model makes the same one.
    pub times: u64,
}

/// A provider that serves no more.
#[derive(Clone, Debug, PartialEq)]
pub struct Quarantined {
    /// The operation.
    pub op: OpKind,
    /// The provider.
    pub provider: Provider,
    /// What it failed with.
    pub error: GpuError,
}

/// Who serves which operation on one device. Clones share it, so that whoever asked can read what was chosen.
#[derive(Clone, Debug, Default)]
pub struct Providers {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    forced: BTreeMap<OpKind, (Provider, Why)>,
    quarantined: Vec<Quarantined>,
    passed_over: Vec<GpuError>,
    events: VecDeque<Selection>,
    stood_in: Vec<Selection>,
    notes: Vec<String>,
    /// Choices that were told, each once; no more than [`EVENTS`].
    told: Vec<Selection>,
}

impl Providers {
    /// Every operation is served by its preferred provider.
    pub fn new() -> Providers {
        Providers::default()
    }

    /// Asks for what the environment asks for (`METALLIC_FORCE_SDPA_BACKEND=plain`), where no caller has asked.
    pub fn follow_environment(&self) -> Result<(), GpuError> {
        // What is not Unicode cannot name a provider either, but must be said, not skipped.
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        self.follow(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
    }

    /// Others than `METALLIC_FORCE_<OP>_BACKEND`, and empty ones, say nothing.
    fn follow(&self, vars: impl IntoIterator<Item = (String, String)>) -> Result<(), GpuError> {
        for (name, value) in vars {
            let op = name.strip_prefix("METALLIC_FORCE_").and_then(|rest| rest.strip_suffix("_BACKEND"));
            let Some(op) = op.map(str::to_lowercase).filter(|_| !value.is_empty()) else { continue };
            if self.force(&op, &value, Why::Environment).is_ok() {
                continue;
            }
            let kind = OpKind::ALL.iter().find(|kind| kind.name() == op);
            let known = kind.map_or(OpKind::ALL, std::slice::from_ref);
            let choices = |op: OpKind| op.providers().map(move |p| format!("{}={p}", op.variable()));
            let known = known.iter().copied().flat_map(choices).collect();
            let error = GpuError::Variable { variable: format!("{name}={value}"), known };
            let mut state = lock(&self.state);
            // Where a caller has asked, the variable has no say.
            if !kind.is_some_and(|kind| state.is_asked(*kind)) {
                return Err(error);
            }
            if !state.passed_over.contains(&error) {
                state.passed_over.push(error.clone());
                drop(state);
                tell::warn("environment", || format!("{error}; what was asked for goes before it"));
            }
        }
        Ok(())
    }

    /// Variables that name no provider and do no harm: a caller has asked for one.
    pub fn passed_over(&self) -> Vec<GpuError> {
        lock(&self.state).passed_over.clone()
    }

    /// What callers and flags have asked for, by operation.
    pub fn asked(&self) -> Vec<(OpKind, Provider)> {
        let state = lock(&self.state);
        let asked = state.forced.iter().filter(|(_, (_, why))| *why == Why::Override);
        asked.map(|(op, (provider, _))| (*op, *provider)).collect()
    }

    /// Whether somebody has asked for a provider of an operation.
    pub fn is_forced(&self, op: OpKind) -> bool {
        lock(&self.state).forced.contains_key(&op)
    }

    /// Asks for a provider by name; goes before the environment.
    pub fn set(&self, op: &str, provider: &str) -> Result<(), GpuError> {
        self.force(op, provider, Why::Override)
    }

    /// Asks for a provider as a flag does: `sdpa=plain`.
    pub fn set_by_flag(&self, flag: &str) -> Result<(), GpuError> {
        match flag.split_once('=') {
            Some((op, provider)) => self.set(op.trim(), provider.trim()),
            None => Err(unknown(flag.to_owned(), OpKind::ALL)),
        }
    }

    /// Checks a flag without asking for anything.
    pub fn check_flag(flag: &str) -> Result<(), GpuError> {
        Providers::new().set_by_flag(flag)
    }

    /// Lets the providers of an operation try in order until one can; one that was asked for by name is the only one to try, but for
    /// [Apple's own](Provider::is_apples), for which the others stand in.
    /// One that does not compile is quarantined; one that does not know this case (`Unsupported`), or asks for more than the
    /// device has (`Launch`), is passed over. Other failures end the search: they are no fault of a provider.
    pub fn choose<T>(
        &self,
        choice: impl Into<Choice>,
        attempt: impl FnMut(Provider) -> Result<T, GpuError>,
    ) -> Result<T, GpuError> {
        self.choose_telling(choice, attempt).map(|(made, _)| made)
    }

    /// The same, with what was chosen and why.
    pub(crate) fn choose_telling<T>(
        &self,
        choice: impl Into<Choice>,
        mut attempt: impl FnMut(Provider) -> Result<T, GpuError>,
    ) -> Result<(T, Selection), GpuError> {
        let Choice { op, without } = choice.into();
        let forced = lock(&self.state).forced.get(&op).cloned();
        let apples = forced.clone().filter(|(provider, _)| provider.is_apples());
        if let Some((provider, why)) = forced.filter(|_| apples.is_none()) {
            let made = attempt(provider).map_err(|error| {
                if !blames_provider(&error) {
                    return error;
                }
                GpuError::Provider { op: op.name(), provider: provider.name(), error: Box::new(error) }
            })?;
            self.note(op, provider, why.clone());
            return Ok((made, Selection { op, provider, why, times: 1 }));
        }
        let ours = op.providers().filter(|provider| !provider.is_apples() && !without.contains(provider));
        let lesser = apples.as_ref().and_then(|(provider, _)| provider.lesser());
        let tried =
            apples.into_iter().chain(lesser.into_iter().chain(ours).map(|provider| (provider, Why::Default)));
        let mut failed: Option<Why> = None;
        for (provider, why) in tried {
            let known = lock(&self.state).quarantined.iter().find(|q| q.provider == provider).cloned();
            let is_new = known.is_none();
            let error = match known.map_or_else(|| attempt(provider), |known| Err(known.error)) {
                Ok(made) => {
                    let why = failed.unwrap_or(why);
                    self.note(op, provider, why.clone());
                    return Ok((made, Selection { op, provider, why, times: 1 }));
                }
                Err(error) if blames_provider(&error) => error,
                Err(error) => return Err(error),
            };
            if is_new && matches!(error, GpuError::Compile { .. }) {
                lock(&self.state).quarantined.push(Quarantined { op, provider, error: error.clone() });
            }
            // The preferred one's failure explains the choice best.
            failed.get_or_insert(Why::Fallback { from: provider, error });
        }
        match failed {
            Some(Why::Fallback { error, .. }) => Err(error),
            _ => Err(GpuError::unsupported(op.name(), "it has no provider")),
        }
    }

    /// Keeps a choice, and tells it where it is a new one.
    fn note(&self, op: OpKind, provider: Provider, why: Why) {
        let new = lock(&self.state).note(op, provider, why);
        // Outside the lock: whoever listens may ask for what was chosen.
        if let Some(new) = new {
            tell::selected(&new);
        }
    }

    /// The choices that were made, oldest first; the last few hundred.
    pub fn selections(&self) -> Vec<Selection> {
        lock(&self.state).events.iter().cloned().collect()
    }

    /// Who serves in the place of one of [Apple's own](Provider::is_apples) that was asked for and cannot, each reason once; the first
    /// few.
    pub fn stood_in(&self) -> Vec<Selection> {
        lock(&self.state).stood_in.clone()
    }

    /// The providers that serve no more.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        lock(&self.state).quarantined.clone()
    }

    /// Lets a provider serve no more.
    pub(crate) fn set_aside(&self, provider: Provider, error: GpuError) {
        let mut state = lock(&self.state);
        if !state.quarantined.iter().any(|known| known.provider == provider) {
            state.quarantined.push(Quarantined { op: provider.op(), provider, error });
        }
    }

    /// Lets one provider serve again.
    pub(crate) fn take_back(&self, provider: Provider) {
        lock(&self.state).quarantined.retain(|known| known.provider != provider);
    }

    /// Keeps what the device has to say, each thing once.
    pub(crate) fn tell(&self, mut notes: Vec<String>) {
        let mut state = lock(&self.state);
        notes.retain(|note| !state.notes.contains(note));
        state.notes.extend_from_slice(&notes);
        drop(state);
        for note in notes {
            tell::warn("device", || note);
        }
    }

    /// What the device does otherwise, or slower, than it should.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.state).notes.clone()
    }

    /// Lets quarantined providers try again.
    pub fn release(&self) {
        lock(&self.state).quarantined.clear();
    }

    fn force(&self, op: &str, provider: &str, why: Why) -> Result<(), GpuError> {
        let kind = OpKind::ALL.iter().find(|kind| kind.name() == op);
        let kind = *kind.ok_or_else(|| unknown(format!("{op}={provider}"), OpKind::ALL))?;
        let known = kind.providers().find(|known| known.name() == provider);
        let known = known.ok_or_else(|| unknown(format!("{op}={provider}"), &[kind]))?;
        let mut state = lock(&self.state);
        // A caller goes before the environment, whoever comes first.
        if why == Why::Override || !state.is_asked(kind) {
            state.forced.insert(kind, (known, why));
        }
        Ok(())
    }
}

/// Equal where the same was asked for.
impl PartialEq for Providers {
    fn eq(&self, other: &Providers) -> bool {
        Arc::ptr_eq(&self.state, &other.state) || self.asked() == other.asked()
    }
}

impl State {
    fn is_asked(&self, op: OpKind) -> bool {
        self.forced.get(&op).is_some_and(|(_, why)| *why == Why::Override)
    }

    /// Keeps a choice; gives it back where it was not made before.
    fn note(&mut self, op: OpKind, provider: Provider, why: Why) -> Option<Selection> {
        let same = |last: &&mut Selection| last.op == op && last.provider == provider && last.why == why;
        if let Some(last) = self.events.iter_mut().rev().find(|last| last.op == op).filter(same) {
            last.times += 1;
            return None;
        }
        let asked_for = matches!(&why, Why::Fallback { from, .. } if from.is_apples());
        let selection = Selection { op, provider, why, times: 1 };
        let is_same = |known: &Selection| *known == selection;
        if asked_for && self.stood_in.len() < STOOD_IN && !self.stood_in.iter().any(is_same) {
            self.stood_in.push(selection.clone());
        }
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        let is_new = self.told.len() < EVENTS && !self.told.iter().any(is_same);
        self.told.extend(is_new.then(|| selection.clone()));
        self.events.push_back(selection.clone());
        is_new.then_some(selection)
    }
}

/// Whether another provider may do better.
fn blames_provider(error: &GpuError) -> bool {
    matches!(error, GpuError::Compile { .. } | GpuError::Unsupported { .. } | GpuError::Launch { .. })
}

fn unknown(asked: String, ops: &[OpKind]) -> GpuError {
    let names = |op: &OpKind| op.providers().map(|name| format!("{op}={name}")).collect::<Vec<_>>();
    GpuError::NoProvider { asked, known: ops.iter().flat_map(names).collect() }
}

#[cfg(test)]
mod tests;
