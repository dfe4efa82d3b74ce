//! `MTLBinaryArchive`: a file that names the pipelines that were put into it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use super::descriptor::{Properties, descriptor};
use super::device::Device;
use super::labels;
use super::library::Function;
use crate::faults::{self, Fault};
use crate::foundation::{Domain, NS_OBJECT, error, path};
use crate::lock;
use crate::objc::{Id, Method, OutObject, Strong, This, class, lend, methods, none};
use crate::problem::{Rule, refuse};

class!(pub(crate) static ARCHIVE = c"MTLSoftBinaryArchive", &NS_OBJECT, all, none);
descriptor!(pub(crate) static DESCRIPTOR = c"MTLBinaryArchiveDescriptor", [], c"url" c"setUrl:" object;);

const HEADER: &str = "softmetal binary archive 1";
/// `MTLBinaryArchiveErrorInvalidFile` and its like.
const INVALID_FILE: isize = 1;
const COMPILATION_FAILURE: isize = 3;
const INTERNAL: isize = 4;

struct Archive {
    device: This<Device>,
    keys: Mutex<BTreeSet<String>>,
}

/// `newBinaryArchiveWithDescriptor:error:`.
pub(crate) fn new(device: &This<Device>, descriptor: Id, out: OutObject) -> Option<Strong> {
    let url = descriptor.this::<Properties>().object(c"url");
    let keys = match url.and_then(|url| path(url.id())) {
        _ if faults::strikes(Fault::Object) => Err((INTERNAL, "a failure on request".to_owned())),
        None => Ok(BTreeSet::new()),
        Some(file) => read(&file, &device.profile.name).map_err(|reason| (INVALID_FILE, reason)),
    };
    match keys {
        Ok(keys) => Some(Strong::new(&ARCHIVE, Archive { device: device.again(), keys: Mutex::new(keys) })),
        Err((code, reason)) => {
            out.put(error(Domain::BinaryArchive, code, reason));
            None
        }
    }
}

fn read(file: &Path, device: &str) -> Result<BTreeSet<String>, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(format!("{} is no binary archive", file.display()));
    }
    match lines.next() {
        Some(made) if made == device => Ok(lines.map(str::to_owned).collect()),
        made => Err(format!("{} is for {}, this is {device}", file.display(), made.unwrap_or("nothing"))),
    }
}

/// Whether an archive has a pipeline.
pub(crate) fn has(archive: Id, key: &str) -> bool {
    lock(&archive.this::<Archive>().keys).contains(key)
}

fn all() -> Vec<Method> {
    let mut all = methods! { Archive;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"addComputePipelineFunctionsWithDescriptor:error:"(this, descriptor: Id, out: OutObject) -> bool {
            let Some(function) = descriptor.this::<Properties>().object(c"computeFunction") else {
                refuse(Rule::Descriptor, "an archive takes pipelines with a function".to_owned());
                return false;
            };
            if faults::strikes(Fault::Compile) {
                out.put(error(Domain::BinaryArchive, COMPILATION_FAILURE, "a failure on request"));
                return false;
            }
            lock(&this.keys).insert(function.id().this::<Function>().key.clone());
            true
        }
        c"serializeToURL:error:"(this, url: Id, out: OutObject) -> bool {
            let keys: Vec<String> = lock(&this.keys).iter().cloned().collect();
            let Some(file) = path(url) else {
                refuse(Rule::Descriptor, "an archive is written to no file".to_owned());
                return false;
            };
            if keys.is_empty() {
                out.put(error(Domain::BinaryArchive, INTERNAL, "the archive has no pipelines to write"));
                return false;
            }
            let text = format!("{HEADER}\n{}\n{}\n", this.device.profile.name, keys.join("\n"));
            let written = std::fs::write(&file, text);
            if let Err(reason) = &written {
                out.put(error(Domain::BinaryArchive, INTERNAL, format!("{}: {reason}", file.display())));
            }
            written.is_ok()
        }
    };
    all.extend(labels());
    all
}
