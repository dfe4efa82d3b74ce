//! A device that computes nothing and has every kernel translated that programs ask it for: what a machine with an NVIDIA GPU
//! and without a compiler needs is made on one that has neither.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;

use metallic_core::{Bytes, DeviceInfo};

use super::ptx::{Translator, Wanted};
use crate::command::CommandList;
use crate::error::GpuError;
use crate::gpu::{BufferId, Gpu, Imported, LibraryId, Limits, Pipeline, PipelineId, Storage, Submission};
use crate::kernels::{Constants, peaks};
use crate::lock;
use crate::null::Null;

/// Memory that limits plans for, where there is no GPU to ask.
const MEMORY: u64 = 1 << 40;

/// Puts the translation of every kernel that is asked for into a folder.
#[derive(Debug)]
pub struct Rehearsal {
    null: Null,
    translator: Translator,
    sources: Mutex<HashMap<LibraryId, (String, String)>>,
    capability: u32,
}

impl Rehearsal {
    /// For GPUs of this compute capability (times ten) with so many multiprocessors, into `folder`.
    pub fn new(folder: &Path, capability: u32, units: u32) -> Result<Rehearsal, GpuError> {
        let translator = Translator::into_folder(folder);
        translator.compiler().map_err(GpuError::Missing)?;
        let matrix_units = super::matrix_units(capability, units, super::MOST_SHARED);
        // There may be a library, or not: programs rehearse both.
        let limits = Limits { library: true, ..super::limits("", units, 1024, MEMORY, matrix_units) };
        let null = Null::with(limits);
        let rehearsal = Rehearsal { null, translator, sources: Mutex::default(), capability };
        // What measures a device belongs to no model.
        for kernel in peaks::kernels(rehearsal.limits()) {
            let library = rehearsal.library(kernel.family.name, &kernel.family.source())?;
            rehearsal.pipeline(library, kernel.function, &kernel.constants)?;
        }
        Ok(rehearsal)
    }
}

impl Gpu for Rehearsal {
    fn info(&self) -> &DeviceInfo {
        self.null.info()
    }

    fn limits(&self) -> &Limits {
        self.null.limits()
    }

    fn allocate(&self, bytes: usize, storage: Storage) -> Result<BufferId, GpuError> {
        self.null.allocate(bytes, storage)
    }

    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError> {
        self.null.import(bytes)
    }

    fn free(&self, buffer: BufferId) {
        self.null.free(buffer);
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        self.null.write(buffer, offset, bytes)
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        self.null.read(buffer, offset, out)
    }

    fn library(&self, name: &str, source: &str) -> Result<LibraryId, GpuError> {
        let id = self.null.library(name, source)?;
        lock(&self.sources).insert(id, (name.to_owned(), source.to_owned()));
        Ok(id)
    }

    fn pipeline(
        &self,
        library: LibraryId,
        function: &str,
        constants: &Constants,
    ) -> Result<Pipeline, GpuError> {
        let (name, source) = lock(&self.sources)
            .get(&library)
            .cloned()
            .ok_or_else(|| GpuError::compile(function, "its library was given back"))?;
        let (library_name, capability) = (&name, self.capability);
        let wanted = Wanted { library: library_name, source: &source, function, constants, capability };
        self.translator.get(&wanted)?;
        self.null.pipeline(library, function, constants)
    }

    fn drop_pipeline(&self, pipeline: PipelineId) {
        self.null.drop_pipeline(pipeline);
    }

    fn drop_library(&self, library: LibraryId) {
        lock(&self.sources).remove(&library);
        self.null.drop_library(library);
    }

    fn submit(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        self.null.submit(commands)
    }

    fn submit_timed(&self, commands: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        self.null.submit_timed(commands)
    }
}
