//! Devices that compute nothing and note every kernel that programs ask them for: what machines with an NVIDIA GPU and without a
//! compiler need is made on one that has a compiler, all of it at once.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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
/// Bytes of threadgroup memory that GPUs with matrix units give a threadgroup which asks for much: those of compute capability 8.6,
/// 8.9 and 12.0, of 8.0 and 8.7, and of 9.0 and 10.0. Plans take other kernels where there is room for them.
const MOST_SHARED: [u32; 3] = [99 << 10, 163 << 10, 227 << 10];
/// GPUs that have numbers of their own for plans to go by, with their threadgroup memory; all others have those of the nameless.
const NAMED: [(&str, u32); 1] = [("NVIDIA H200", 227 << 10)];

/// A source by its name.
#[derive(Debug)]
struct Source {
    name: String,
    text: String,
}

/// Kernels by the name of their source, their own and their constants: each stands once, in an order that is always the same.
type Kernels = BTreeMap<(String, String, Vec<(usize, u32)>), (Arc<Source>, Constants)>;

/// Every kernel that was asked for. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Asked(Arc<Mutex<Kernels>>);

/// What became of a bundle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Translated {
    /// Files that were made.
    pub made: usize,
    /// Files that were there already.
    pub found: usize,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Asked {
    /// Nothing yet.
    pub fn new() -> Asked {
        Asked::default()
    }

    /// Kernels, each with its constants, there are.
    pub fn len(&self) -> usize {
        lock(&self.0).len()
    }

    /// Whether nothing was asked for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn add(&self, source: &Arc<Source>, function: &str, constants: &Constants) {
        let key = (source.name.clone(), function.to_owned(), constants.values().collect());
        lock(&self.0).entry(key).or_insert_with(|| (source.clone(), *constants));
    }

    /// Asks for one, of a source that is not compiled for it.
    #[cfg(test)]
    pub(crate) fn note(&self, name: &str, text: &str, (function, constants): (&str, &Constants)) {
        self.add(&Arc::new(Source { name: name.to_owned(), text: text.to_owned() }), function, constants);
    }

    /// Puts the PTX of all of them into `folder`, for each of these compute capabilities (times ten), by so many threads. What lies
    /// there already stays. `progress` is told how many of how many are there.
    pub fn translate(
        &self,
        folder: &Path,
        capabilities: &[u32],
        threads: usize,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> Result<Translated, GpuError> {
        let translator = Translator::into_folder(folder);
        translator.compiler().map_err(GpuError::Missing)?;
        let asked = lock(&self.0).clone();
        let every = asked.iter().flat_map(|((_, function, _), (source, constants))| {
            let wanted = move |capability: &u32| Wanted {
                library: &source.name,
                source: &source.text,
                function,
                constants,
                capability: *capability,
            };
            capabilities.iter().map(wanted)
        });
        let every: Vec<Wanted<'_>> = every.collect();
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Ok(Translated::default())));
        let work = || {
            while let Some(wanted) = every.get(next.fetch_add(1, Ordering::Relaxed)) {
                let made = translator.put(wanted);
                let mut done = lock(&done);
                let Ok(so_far) = &mut *done else { return };
                match made {
                    Ok((new, bytes)) => {
                        so_far.made += usize::from(new);
                        so_far.found += usize::from(!new);
                        so_far.bytes += bytes;
                        progress(so_far.made + so_far.found, every.len());
                    }
                    Err(error) => *done = Err(error),
                }
            }
        };
        std::thread::scope(|scope| {
            let more = (1..threads.min(every.len())).map(|_| {
                // One that cannot be had leaves the work to the others.
                std::thread::Builder::new().spawn_scoped(scope, work).is_ok()
            });
            more.take_while(|started| *started).for_each(drop);
            work();
        });
        done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Notes every kernel that is asked for.
#[derive(Debug)]
pub struct Rehearsal {
    null: Null,
    asked: Asked,
    sources: Mutex<HashMap<LibraryId, Arc<Source>>>,
}

impl Rehearsal {
    /// GPUs of this compute capability (times ten) with so many multiprocessors: one for each size of threadgroup memory and each
    /// table of numbers that plans of such GPUs go by.
    pub fn all(asked: &Asked, capability: u32, units: u32) -> Result<Vec<Rehearsal>, GpuError> {
        let limits = |(name, shared): (&str, u32)| {
            let matrix_units = super::matrix_units(capability, units, shared);
            // There may be a library, or not: programs rehearse both.
            Limits { library: true, ..super::limits(name, units, 1024, MEMORY, matrix_units) }
        };
        // Those without a name first, each size once where the tables are the same.
        let mut kinds: Vec<Limits> = Vec::new();
        for kind in MOST_SHARED.map(|shared| ("", shared)).into_iter().chain(NAMED).map(limits) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds.into_iter().map(|limits| Rehearsal::of(asked, limits)).collect()
    }

    fn of(asked: &Asked, limits: Limits) -> Result<Rehearsal, GpuError> {
        let null = Null::with(limits);
        let rehearsal = Rehearsal { null, asked: asked.clone(), sources: Mutex::default() };
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
        let source = Source { name: name.to_owned(), text: source.to_owned() };
        lock(&self.sources).insert(id, Arc::new(source));
        Ok(id)
    }

    fn pipeline(
        &self,
        library: LibraryId,
        function: &str,
        constants: &Constants,
    ) -> Result<Pipeline, GpuError> {
        let source = lock(&self.sources).get(&library).cloned();
        let source = source.ok_or_else(|| GpuError::compile(function, "its library was given back"))?;
        self.asked.add(&source, function, constants);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use metallic_core::{Backend, CompileOptions, DType, Graph, GraphBuilder, Shape, TensorType, Weight};

    use super::*;
    use crate::backend::{GpuBackend, GpuOptions};
    use crate::cuda::{limits, matrix_units};

    const UNITS: u32 = 132;

    /// Products of rows that are long enough for threadgroup memory to matter.
    fn graph() -> Graph {
        let g = GraphBuilder::new();
        let matrix = |name: &str, dtype: DType, rows: usize, cols: usize| {
            let ty = TensorType::new(dtype, Shape::matrix(rows, cols));
            let bytes = rows * cols / dtype.block_len() * dtype.block_bytes();
            g.weight(Weight { name: name.to_owned(), ty, data: vec![0_u8; bytes].into() })
        };
        let x = matrix("table", DType::F16, 64, 4096).embed(g.tokens());
        let wide = x.linear(matrix("up", DType::Q8_0, 16384, 4096));
        g.finish(&[wide.linear(matrix("down", DType::Q4_0, 64, 16384))]).unwrap()
    }

    fn compile(rehearsal: Rehearsal) {
        let backend = GpuBackend::new(Arc::new(rehearsal), GpuOptions::default());
        drop(backend.compile(&graph(), CompileOptions::kv(DType::F16)).unwrap());
    }

    fn names(asked: &Asked) -> BTreeSet<String> {
        lock(&asked.0).keys().map(|(_, function, constants)| format!("{function} {constants:?}")).collect()
    }

    #[test]
    fn every_size_of_threadgroup_memory_is_rehearsed() {
        let sizes = |capability: u32| {
            let all = Rehearsal::all(&Asked::new(), capability, UNITS).unwrap();
            let size = |one: &Rehearsal| Some(one.limits().matrix_units?.threadgroup_memory >> 10);
            all.iter().map(size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(90), [Some(99), Some(163), Some(227)]);
        assert_eq!(sizes(75), [None], "without matrix units none has more than the others");
    }

    #[test]
    fn a_bundle_has_all_that_gpus_ask_for_whatever_their_threadgroup_memory() {
        let bundle = Asked::new();
        Rehearsal::all(&bundle, 90, UNITS).unwrap().into_iter().for_each(compile);
        let bundle = names(&bundle);
        assert!(bundle.iter().any(|name| name.starts_with("cell_rows")), "{bundle:?}");
        for (name, capability, kib) in [
            ("NVIDIA H200", 90, 227),
            ("NVIDIA A100-SXM4-80GB", 80, 163),
            ("NVIDIA GeForce RTX 4090", 89, 99),
        ] {
            let own = Asked::new();
            let units = matrix_units(capability, UNITS, kib << 10);
            let limits = limits(name, UNITS, 1024, 1 << 36, units);
            compile(Rehearsal::of(&own, limits).unwrap());
            let own = names(&own);
            let missing: Vec<_> = own.difference(&bundle).collect();
            assert!(own.len() > 10 && missing.is_empty(), "{name}: {missing:?} of {}", own.len());
        }
    }
}
