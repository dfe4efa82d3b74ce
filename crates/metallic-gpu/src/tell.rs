//! What this crate tells while it works: kernels that are made ready, and who serves what.

use std::time::Instant;

use metallic_telemetry::tracing::debug_span;
use metallic_telemetry::{
    Compile, CompileSource, Event, ProviderChoice, SPANS, Warning, emit, emit_lasting, is_on,
};

use crate::error::GpuError;
use crate::gpu::Gpu;
use crate::kernels::Call;
use crate::provider::{Selection, Why};

/// Makes something ready and tells how long that took, and whether it lay on disk: the number of compilations is then the same
/// before and after.
pub(crate) fn compiled<T>(
    what: &'static str,
    name: &str,
    compilations: impl Fn() -> Option<u64>,
    make: impl FnOnce() -> Result<T, GpuError>,
) -> Result<T, GpuError> {
    let _span = debug_span!(target: SPANS, "compile", what, name).entered();
    if !is_on() {
        return make();
    }
    let (before, start) = (compilations(), Instant::now());
    let made = make();
    let is_known = before.is_some() && before == compilations();
    let source = if is_known { CompileSource::Disk } else { CompileSource::Compiled };
    tell_compile(what, name, source, start, made.as_ref().err());
    made
}

/// Makes ready what a library of the maker's does, and tells it where that had to be made.
pub(crate) fn prepared(gpu: &dyn Gpu, call: &Call) -> Result<(), GpuError> {
    let (what, name) = match call {
        Call::Product(_) => ("product", "gemm"),
        Call::Graph(_) => ("graph", "attention"),
    };
    let _span = debug_span!(target: SPANS, "compile", what, name).entered();
    if !is_on() {
        return gpu.prepare(call);
    }
    let made = || {
        let metrics = gpu.library_metrics();
        metrics.products.misses + metrics.graphs.misses
    };
    let (before, start) = (made(), Instant::now());
    let ready = gpu.prepare(call);
    if made() > before || ready.is_err() {
        tell_compile(what, name, CompileSource::Compiled, start, ready.as_ref().err());
    }
    ready
}

fn tell_compile(
    what: &'static str,
    name: &str,
    source: CompileSource,
    start: Instant,
    error: Option<&GpuError>,
) {
    let seconds = start.elapsed().as_secs_f64();
    let error = error.map(ToString::to_string);
    emit(|| Event::Compile(Compile { what: what.into(), name: name.to_owned(), source, seconds, error }));
}

/// Tells who serves an operation, and that this is not who should.
pub(crate) fn selected(Selection { op, provider, why, .. }: &Selection) {
    let (name, instead_of, error) = match why {
        Why::Default => ("default", None, None),
        Why::Override => ("override", None, None),
        Why::Environment => ("environment", None, None),
        Why::Fallback { from, error } => ("fallback", Some(*from), Some(error)),
    };
    emit_lasting(|| {
        Event::Provider(ProviderChoice {
            op: op.name().into(),
            provider: provider.name().into(),
            why: name.into(),
            instead_of: instead_of.map(|from| from.name().into()),
            error: error.map(ToString::to_string),
        })
    });
    if let (Some(from), Some(error)) = (instead_of, error) {
        warn("provider", || format!("{op}: `{provider}` serves in place of `{from}`: {error}"));
    }
}

/// Tells that something is slower, or other, than was asked for.
pub(crate) fn warn(about: &'static str, text: impl FnOnce() -> String) {
    emit_lasting(|| Event::Warning(Warning { about: about.into(), text: text() }));
}
