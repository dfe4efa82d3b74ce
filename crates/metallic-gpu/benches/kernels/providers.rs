//! The providers of an operation side by side, on a prompt.

use metallic_gpu::{OpKind, Provider, Providers, Why};

use crate::device::Device;
use crate::graphs;
use crate::runner::Runner;

pub(crate) fn compare(device: &Device, wanted: &dyn Fn(&str) -> bool) {
    for op in OpKind::ALL {
        for provider in op.providers() {
            let name = format!("provider/{op}={provider}");
            if wanted(&name) {
                println!("{name}, {}", measured(device, *op, provider));
            }
        }
    }
}

/// What a step by a provider costs, or why it does not serve.
fn measured(device: &Device, op: OpKind, provider: Provider) -> String {
    let Some(line) = graphs::of_prompt(&device.sizes, op) else { return "no line".to_owned() };
    let providers = Providers::new();
    providers.set(op.name(), provider.name()).expect("it is one of the operation's");
    let backend = device.backend(&providers, false);
    let mut runner = match Runner::try_new(&backend, &line, &(line.build)(line.copies)) {
        Ok(runner) => runner,
        Err(error) => return format!("does not serve: {error}"),
    };
    let stats = runner.step();
    let served = providers.selections().into_iter().rfind(|made| made.op == op);
    if let Some(Why::Fallback { error, .. }) = served.map(|made| made.why) {
        return format!("does not serve: {error}");
    }
    let best = runner.best_step();
    let made = backend.cache_metrics().library;
    format!(
        "{}: {:.2} µs, {} submissions, {} dispatches, {} bytes read, {} written; {} kernels and {} graphs of a library made",
        line.name,
        best.as_secs_f64() * 1e6,
        stats.submissions,
        stats.dispatches,
        stats.bytes_read,
        stats.bytes_written,
        made.products.misses,
        made.graphs.misses
    )
}
