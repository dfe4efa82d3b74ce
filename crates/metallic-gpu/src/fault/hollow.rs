//! A device without a compiler: memory is real, kernels are names, nothing runs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metallic_core::{Bytes, DeviceInfo};

use crate::command::CommandList;
use crate::error::GpuError;
use crate::gpu::{BufferId, Gpu, Imported, LibraryId, Limits, Pipeline, PipelineId, Storage, Submission};
use crate::kernels::Constants;
use crate::threadgroup::tests::LIMITS;

/// Serves tests of caches and pools on machines without clang.
#[derive(Debug)]
pub(crate) struct Hollow {
    info: DeviceInfo,
    limits: Limits,
    state: Mutex<(u32, HashMap<BufferId, Vec<u8>>)>,
}

impl Hollow {
    pub(crate) fn new() -> Hollow {
        Hollow::with(LIMITS)
    }

    pub(crate) fn with(limits: Limits) -> Hollow {
        let info = DeviceInfo { kind: "hollow", name: "hollow".to_owned(), units: 1, memory_bytes: None };
        Hollow { info, limits, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, (u32, HashMap<BufferId, Vec<u8>>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> u32 {
        let mut state = self.state();
        state.0 += 1;
        state.0
    }

    fn keep(&self, bytes: Vec<u8>) -> BufferId {
        let id = BufferId(self.next());
        self.state().1.insert(id, bytes);
        id
    }
}

impl Gpu for Hollow {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn allocate(&self, bytes: usize, _: Storage) -> Result<BufferId, GpuError> {
        Ok(self.keep(vec![0; bytes]))
    }

    fn import(&self, bytes: &Bytes) -> Result<Imported, GpuError> {
        // What is mapped counts as read where it lies.
        let copied = if bytes.mapping().is_some() { 0 } else { bytes.len() };
        Ok(Imported { buffer: self.keep(bytes.to_vec()), offset: 0, copied })
    }

    fn free(&self, buffer: BufferId) {
        self.state().1.remove(&buffer);
    }

    fn write(&self, buffer: BufferId, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        self.state().1.get_mut(&buffer).expect("live")[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self, buffer: BufferId, offset: usize, out: &mut [u8]) -> Result<(), GpuError> {
        out.copy_from_slice(&self.state().1[&buffer][offset..offset + out.len()]);
        Ok(())
    }

    fn library(&self, _: &str, _: &str) -> Result<LibraryId, GpuError> {
        Ok(LibraryId(self.next()))
    }

    fn pipeline(&self, _: LibraryId, _: &str, _: &Constants) -> Result<Pipeline, GpuError> {
        Ok(Pipeline { id: PipelineId(self.next()), max_threads: self.limits.max_threads })
    }

    fn drop_pipeline(&self, _: PipelineId) {}

    fn drop_library(&self, _: LibraryId) {}

    fn submit(&self, _: &CommandList) -> Result<Box<dyn Submission>, GpuError> {
        Ok(Box::new(Done))
    }
}

struct Done;

impl Submission for Done {
    fn command_buffers(&self) -> u64 {
        1
    }

    fn poll(&mut self) -> bool {
        true
    }

    fn wait(&mut self, _: Duration) -> Result<Option<Duration>, GpuError> {
        Ok(None)
    }
}
