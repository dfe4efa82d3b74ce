//! Machine code of kernels on disk, so that it is made once. Nothing here may fail a caller: without an archive a kernel
//! is compiled, which takes longer.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSString, NSURL};
use objc2_metal::{MTLBinaryArchive, MTLBinaryArchiveDescriptor, MTLDevice as _, MTLFunction};

use super::device::RawDevice;
use super::library::describe;
use crate::driver::archive as plan;

/// Kernels come in bursts: the archive is written when none came for so long.
const QUIET: Duration = Duration::from_millis(500);

/// An archive that was read from disk.
pub(super) struct Archive {
    pub(super) raw: Retained<ProtocolObject<dyn MTLBinaryArchive>>,
}

// SAFETY: it is never changed after it was opened; making pipelines, which alone reads it, may happen on any thread.
unsafe impl Send for Archive {}
// SAFETY: as above.
unsafe impl Sync for Archive {}

/// The archive of a file, where there is a sound one.
pub(super) fn open(device: &RawDevice, file: &Path) -> Option<Archive> {
    let raw = file.is_file().then(|| archive(device, Some(file)))??;
    Some(Archive { raw })
}

fn archive(
    device: &RawDevice,
    file: Option<&Path>,
) -> Option<Retained<ProtocolObject<dyn MTLBinaryArchive>>> {
    let descriptor = MTLBinaryArchiveDescriptor::new();
    if let Some(file) = file {
        descriptor.setUrl(Some(&*url(file)?));
    }
    device.newBinaryArchiveWithDescriptor_error(&descriptor).ok()
}

fn url(file: &Path) -> Option<Retained<NSURL>> {
    Some(NSURL::fileURLWithPath_isDirectory(&NSString::from_str(file.to_str()?), false))
}

/// A kernel that the archive of its library lacks.
pub(super) struct Job {
    pub(super) file: PathBuf,
    pub(super) function: Retained<ProtocolObject<dyn MTLFunction>>,
    pub(super) name: String,
}

/// Puts kernels into archives on a thread of its own: doing so compiles them once more.
pub(super) struct Archivist {
    jobs: Option<Sender<Job>>,
    leave: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Archivist {
    pub(super) fn new(device: RawDevice) -> Archivist {
        let (jobs, receiver) = mpsc::channel();
        let leave = Arc::new(AtomicBool::new(false));
        let leaving = leave.clone();
        let work = move || keep(&device, &receiver, &leaving);
        let thread = thread::Builder::new().name("metallic-archive".to_owned()).spawn(work).ok();
        Archivist { jobs: Some(jobs), leave, thread }
    }

    pub(super) fn add(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // Without a thread nothing is kept.
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Archivist {
    fn drop(&mut self) {
        self.leave.store(true, Ordering::Relaxed);
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It had its say; a panic there costs an archive.
            let _ = thread.join();
        }
    }
}

struct Growing {
    raw: Retained<ProtocolObject<dyn MTLBinaryArchive>>,
    changed: bool,
}

fn keep(device: &RawDevice, jobs: &Receiver<Job>, leave: &AtomicBool) {
    let mut growing: HashMap<PathBuf, Growing> = HashMap::new();
    loop {
        let unsaved = growing.values().any(|archive| archive.changed);
        let next = if unsaved {
            jobs.recv_timeout(QUIET)
        } else {
            jobs.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match next {
            Ok(_) if leave.load(Ordering::Relaxed) => {}
            Ok(job) => autoreleasepool(|_| add(device, &mut growing, &job)),
            Err(RecvTimeoutError::Timeout) => autoreleasepool(|_| save(&mut growing)),
            Err(RecvTimeoutError::Disconnected) => {
                autoreleasepool(|_| save(&mut growing));
                return;
            }
        }
    }
}

fn add(device: &RawDevice, growing: &mut HashMap<PathBuf, Growing>, job: &Job) {
    if !growing.contains_key(&job.file) {
        let kept = Some(job.file.as_path()).filter(|file| file.is_file());
        // One that cannot be read is replaced.
        let Some(raw) = kept.and_then(|file| archive(device, Some(file))).or_else(|| archive(device, None))
        else {
            return;
        };
        growing.insert(job.file.clone(), Growing { raw, changed: false });
    }
    if let Some(archive) = growing.get_mut(&job.file) {
        let descriptor = describe(&job.function, &job.name);
        archive.changed |= archive.raw.addComputePipelineFunctionsWithDescriptor_error(&descriptor).is_ok();
    }
}

fn save(growing: &mut HashMap<PathBuf, Growing>) {
    for (file, archive) in growing.iter_mut().filter(|(_, archive)| archive.changed) {
        // Once: what fails now fails again.
        archive.changed = false;
        let draft = plan::draft(file, std::process::id());
        let folder = file.parent().is_some_and(|folder| fs::create_dir_all(folder).is_ok());
        let written = folder && url(&draft).is_some_and(|url| archive.raw.serializeToURL_error(&url).is_ok());
        if !written || fs::rename(&draft, file).is_err() {
            let _ = fs::remove_file(&draft);
        }
    }
    let folders = growing.keys().filter_map(|file| file.parent());
    for folder in folders.take(1) {
        prune(folder);
    }
}

fn prune(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let files = entries.flatten().filter_map(|entry| {
        let changed = entry.metadata().and_then(|data| data.modified()).ok()?;
        Some((entry.path(), changed))
    });
    for file in plan::surplus(files.collect()) {
        let _ = fs::remove_file(file);
    }
}
