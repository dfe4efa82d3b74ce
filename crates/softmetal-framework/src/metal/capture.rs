//! `MTLCaptureManager`: what was committed between `startCapture…` and `stopCapture`, as a document of JSON. As with Metal, only where
//! `MTL_CAPTURE_ENABLED` is 1, or a test has said so.

use std::path::PathBuf;
use std::sync::Mutex;

use serde_json::{Value, json};

use super::bind::{Dispatch, Grid, Pass, PassKind, Slot, Step};
use super::descriptor::{Properties, descriptor};
use crate::foundation::{Domain, NS_OBJECT, error, path};
use crate::lock;
use crate::objc::{Id, Method, MtlSize, OutObject, Strong, class, methods, raw_methods};
use crate::problem::{Rule, note};
use crate::settings::captures;

class!(pub(crate) static MANAGER = c"MTLCaptureManager", &NS_OBJECT, all, own);
descriptor!(pub(crate) static DESCRIPTOR = c"MTLCaptureDescriptor", [c"destination" = 1],
    c"captureObject" c"setCaptureObject:" object;
    c"destination" c"setDestination:" isize;
    c"outputURL" c"setOutputURL:" object;
);

struct Manager;

/// By the numbers of `MTLCaptureError`.
const NOT_SUPPORTED: isize = 1;
const ALREADY_CAPTURING: isize = 2;
const INVALID_DESCRIPTOR: isize = 3;
/// `MTLCaptureDestinationGPUTraceDocument`.
const DOCUMENT: usize = 2;

/// What is captured.
struct Capture {
    path: PathBuf,
    /// The device or the queue.
    of: Strong,
    command_buffers: Vec<Value>,
}

static UNDER_WAY: Mutex<Option<Capture>> = Mutex::new(None);

fn all() -> Vec<Method> {
    methods! { Manager;
        c"isCapturing"(_) -> bool { lock(&UNDER_WAY).is_some() }
        c"supportsDestination:"(_, destination: isize) -> bool { destination == DOCUMENT as isize && captures() }
        c"startCaptureWithDescriptor:error:"(_, descriptor: Id, out: OutObject) -> bool {
            match begin(descriptor) {
                Ok(()) => true,
                Err((code, reason)) => {
                    out.put(error(Domain::Capture, code, reason));
                    false
                }
            }
        }
        c"stopCapture"(_) { end(); }
    }
}

fn own() -> Vec<Method> {
    raw_methods! {
        c"sharedCaptureManager"(_) -> Id { Strong::new(&MANAGER, Manager).lend() }
    }
}

fn begin(descriptor: Id) -> Result<(), (isize, String)> {
    let properties = descriptor.this::<Properties>();
    if !captures() || properties.number(c"destination") != DOCUMENT {
        let reason = "Capturing is not supported: MTL_CAPTURE_ENABLED=1 and a GPU trace document are needed.";
        return Err((NOT_SUPPORTED, reason.to_owned()));
    }
    let invalid = |reason: &str| (INVALID_DESCRIPTOR, reason.to_owned());
    let of = properties.object(c"captureObject").ok_or_else(|| invalid("there is no object to capture"))?;
    let url = properties.object(c"outputURL").map_or(Id::NULL, |url| url.id());
    let path = path(url).ok_or_else(|| invalid("a document needs an outputURL"))?;
    if path.exists() {
        return Err(invalid(&format!("{} is there already", path.display())));
    }
    let mut under_way = lock(&UNDER_WAY);
    if under_way.is_some() {
        return Err((ALREADY_CAPTURING, "there is a capture under way".to_owned()));
    }
    *under_way = Some(Capture { path, of, command_buffers: Vec::new() });
    Ok(())
}

fn end() {
    let Some(Capture { path, of, command_buffers }) = lock(&UNDER_WAY).take() else { return };
    let document = json!({ "captured": of.id().describe(), "command_buffers": command_buffers });
    let written = serde_json::to_vec_pretty(&document).map_err(std::io::Error::from);
    if let Err(error) = written.and_then(|bytes| std::fs::write(&path, bytes)) {
        note(Rule::Descriptor, format!("a capture cannot be written to {}: {error}", path.display()));
    }
}

/// A command buffer is committed: takes it down where somebody captures its queue or its device.
pub(crate) fn committed(buffer: Id, [queue, device]: [Id; 2], passes: &[Pass]) {
    let mut under_way = lock(&UNDER_WAY);
    let Some(capture) = under_way.as_mut().filter(|capture| [queue, device].contains(&capture.of.id()))
    else {
        return;
    };
    let passes: Vec<Value> = passes.iter().map(pass).collect();
    let document =
        json!({ "command_buffer": buffer.describe(), "queue": queue.describe(), "passes": passes });
    capture.command_buffers.push(document);
}

fn pass(pass: &Pass) -> Value {
    match &pass.kind {
        PassKind::Encoder { label, concurrent, steps } => {
            let commands: Vec<Value> = steps.iter().map(step).collect();
            json!({ "encoder": label, "concurrent": concurrent, "commands": commands })
        }
        PassKind::Wait(event, value) => json!({ "wait": event.id.describe(), "value": value }),
        PassKind::Signal(event, value) => json!({ "signal": event.id.describe(), "value": value }),
    }
}

fn step(step: &Step) -> Value {
    match step {
        Step::Dispatch(dispatch) => dispatched(dispatch),
        Step::Work(work) => {
            let uses = work
                .uses
                .iter()
                .map(|(held, _, writes)| json!({ "object": held.id.describe(), "written": writes }));
            json!({ "library": work.name, "uses": uses.collect::<Vec<_>>() })
        }
        Step::Barrier => json!("barrier"),
        Step::Copy { from, to, len } => json!({
            "copy": len, "from": from.0.id.describe(), "from_offset": from.2, "to": to.0.id.describe(), "to_offset": to.2
        }),
        Step::Fill { to, len, value } => {
            json!({ "fill": len, "value": value, "to": to.0.id.describe(), "to_offset": to.2 })
        }
        Step::Sample { held, index, .. } => json!({ "sample": held.id.describe(), "index": index }),
        Step::UpdateFence(fence) => json!({ "update_fence": fence.id.describe() }),
        Step::WaitForFence(fence) => json!({ "wait_for_fence": fence.id.describe() }),
    }
}

fn dispatched(dispatch: &Dispatch) -> Value {
    let axes = |size: &MtlSize| json!(size.axes());
    let (how, grid) = match &dispatch.grid {
        Grid::Groups(groups) => ("threadgroups", axes(groups)),
        Grid::Threads(threads) => ("threads", axes(threads)),
        Grid::Indirect { held, offset, .. } => {
            ("indirect", json!({ "buffer": held.id.describe(), "offset": offset }))
        }
    };
    let bound = dispatch.slots.iter().map(|(index, slot)| match slot {
        Slot::Buffer { held, buffer, offset } => {
            json!({ "index": index, "buffer": held.id.describe(), "offset": offset, "bytes": buffer.len() })
        }
        Slot::Bytes(bytes) => json!({ "index": index, "bytes": bytes.len(), "value": bytes }),
        Slot::Texture { held, .. } => json!({ "index": index, "texture": held.id.describe() }),
        Slot::Sampler { held, .. } => json!({ "index": index, "sampler": held.id.describe() }),
    });
    json!({
        "dispatch": dispatch.name(),
        "pipeline": dispatch.pipeline.id.describe(),
        how: grid,
        "threads_per_threadgroup": axes(&dispatch.threads),
        "arguments": bound.collect::<Vec<_>>(),
        "threadgroup_memory": dispatch.threadgroup.iter().map(|(index, bytes)| json!({ "index": index, "bytes": bytes })).collect::<Vec<_>>(),
    })
}
