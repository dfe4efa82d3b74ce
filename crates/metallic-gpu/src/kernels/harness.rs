//! Runs single kernels in tests: in order, under random schedules, and in the checked build.
//!
//! `METALLIC_TEST_DEVICE=metal` or `cuda` runs them on a GPU instead. `METALLIC_TEST_PTX=FOLDER` puts what `cuda` needs into a folder on
//! the way, for a machine that has this test program and nothing else.

#[cfg(feature = "cuda")]
mod translated;

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use metallic_testkit::needed;

use super::{Family, Launch, Slot, SlotUse, Stages};
use crate::command::{Access, Binding, Command, CommandList, Dispatch, Region};
use crate::gpu::{Gpu, LibraryId, Storage};
use crate::soft::{Soft, SoftOptions};

/// Random schedules every kernel is run under.
const SEEDS: u64 = 5;

/// What memory holds that nobody wrote.
const FILL: u8 = 0xCD;

/// What is bound to an argument.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// Bytes the kernel finds there.
    Bytes(Vec<u8>),
    /// Room of so many bytes, filled with a pattern that is no sensible number.
    Room(usize),
    /// Nothing.
    Unused,
}

impl Data {
    /// What there is from this byte on.
    fn from(&self, start: usize) -> Data {
        match self {
            Data::Bytes(bytes) => Data::Bytes(bytes[start..].to_vec()),
            Data::Room(len) => Data::Room(len - start),
            Data::Unused => Data::Unused,
        }
    }

    /// Has these bytes from this one on.
    fn put(&mut self, start: usize, found: &[u8]) {
        let mut all = match self {
            Data::Bytes(bytes) => std::mem::take(bytes),
            Data::Room(len) => vec![FILL; *len],
            Data::Unused => return,
        };
        all[start..].copy_from_slice(found);
        *self = Data::Bytes(all);
    }
}

/// Numbers as bytes.
pub(crate) fn f32s(values: &[f32]) -> Data {
    Data::Bytes(values.iter().flat_map(|v| v.to_ne_bytes()).collect())
}

/// Words as bytes.
pub(crate) fn u32s(values: &[u32]) -> Data {
    Data::Bytes(values.iter().flat_map(|v| v.to_ne_bytes()).collect())
}

/// Bytes as numbers.
pub(crate) fn as_f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Bytes as words.
pub(crate) fn as_u32s(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Runs a launch in order, under random schedules and checked; all must agree bit by bit. Returns what each argument
/// holds afterwards. `None` where there is no clang, which is said aloud.
pub(crate) fn run(launch: &Launch, args: &[Data]) -> Option<Vec<Vec<u8>>> {
    run_comparing(launch, args, &(0..args.len()).collect::<Vec<_>>())
}

/// The same for a kernel that leaves scratch in any order: these arguments are compared and returned.
pub(crate) fn run_comparing(launch: &Launch, args: &[Data], which: &[usize]) -> Option<Vec<Vec<u8>>> {
    if let Some(gpu) = gpu() {
        let all = run_on(gpu, launch, args);
        return Some(which.iter().map(|index| all[*index].clone()).collect());
    }
    #[cfg(feature = "cuda")]
    translated::note(launch);
    compile_both(launch.kernel.family)?;
    let mut first: Option<Vec<Vec<u8>>> = None;
    let runs = (0..=SEEDS).map(|seed| (seed, false)).chain([(0, true)]);
    for (seed, checked) in runs {
        let soft = device(seed, checked)?;
        let all = run_on(soft, launch, args);
        let found: Vec<Vec<u8>> = which.iter().map(|index| all[*index].clone()).collect();
        match &first {
            None => first = Some(found),
            Some(expected) => assert!(
                *expected == found,
                "{}: seed {seed}, checked {checked} gives other results than the run in order",
                launch.kernel.function
            ),
        }
    }
    first
}

/// What lies behind the slots of an operation.
pub(crate) type Memory = Vec<(Slot, Data)>;

/// Runs the stages of an operation one after another over `memory`, which has afterwards what they left there. `None` where
/// there is no clang.
pub(crate) fn run_stages(stages: &Stages, memory: &mut Memory) -> Option<()> {
    let scratch = stages.scratch.iter().enumerate();
    memory.extend(scratch.map(|(index, bytes)| (Slot::Scratch(index), Data::Room(*bytes))));
    for stage in &stages.stages {
        let find = |slot: Slot| memory.iter().position(|(known, _)| *known == slot);
        let places: Vec<Option<usize>> = stage.slots().iter().map(|bound| find(bound.slot)).collect();
        for (SlotUse { slot, .. }, place) in stage.slots().iter().zip(&places) {
            assert!(place.is_some() || *slot == Slot::Unused, "nothing behind {slot:?}");
        }
        let starts = stage.slots().iter().map(|used| used.start);
        let data: Vec<Data> = (places.iter().zip(starts.clone()))
            .map(|(place, start)| place.map_or(Data::Unused, |index| memory[index].1.from(start)))
            .collect();
        let found = run(&stage.launch, &data)?;
        for ((place, start), bytes) in places.into_iter().zip(starts).zip(found) {
            if let Some(index) = place {
                memory[index].1.put(start, &bytes);
            }
        }
    }
    Some(())
}

/// The bytes behind a slot.
pub(crate) fn bytes_of(memory: &Memory, slot: Slot) -> Vec<u8> {
    match memory.iter().find(|(known, _)| *known == slot) {
        Some((_, Data::Bytes(bytes))) => bytes.clone(),
        other => panic!("nothing wrote {slot:?}: {other:?}"),
    }
}

/// A device that keeps what it compiled: tests run a family many times.
struct Bench {
    gpu: Box<dyn Gpu>,
    libraries: Mutex<HashMap<&'static str, LibraryId>>,
}

impl Bench {
    fn library(&self, family: &Family) -> LibraryId {
        let mut made = self.libraries.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || self.gpu.library(family.name, &family.source()).expect("compiles");
        *made.entry(family.name).or_insert_with(make)
    }
}

fn device(seed: u64, checked: bool) -> Option<&'static Bench> {
    static DEVICES: [OnceLock<Option<Bench>>; 2 * (SEEDS as usize + 1)] = [const { OnceLock::new() }; 12];
    let slot = &DEVICES[usize::from(checked) * (SEEDS as usize + 1) + seed as usize];
    let made = slot.get_or_init(|| {
        let soft = needed(Soft::new(SoftOptions { threads: 2, checked, seed, ..SoftOptions::default() }))?;
        Some(Bench { gpu: Box::new(soft), libraries: Mutex::default() })
    });
    made.as_ref()
}

/// Compiles a family in both builds at the same time: with one after the other the second core has nothing to do, and tests of the
/// same family that run beside this one wait for the very same.
fn compile_both(family: &Family) -> Option<()> {
    let (plain, checked) = (device(0, false)?, device(0, true)?);
    std::thread::scope(|scope| {
        scope.spawn(|| checked.library(family));
        plain.library(family);
    });
    Some(())
}

/// The GPU that `METALLIC_TEST_DEVICE` asks for, where it does: every test of a kernel then runs there.
fn gpu() -> Option<&'static Bench> {
    static GPU: OnceLock<Option<Bench>> = OnceLock::new();
    let open = || {
        let asked = std::env::var("METALLIC_TEST_DEVICE").ok().filter(|device| !device.is_empty())?;
        let gpu = named_gpu(&asked).unwrap_or_else(|error| panic!("METALLIC_TEST_DEVICE={asked}: {error}"));
        Some(Bench { gpu, libraries: Mutex::default() })
    };
    GPU.get_or_init(open).as_ref()
}

fn named_gpu(name: &str) -> Result<Box<dyn Gpu>, String> {
    match name {
        #[cfg(any(target_os = "macos", metal_on_linux))]
        "metal" => Ok(Box::new(crate::metal::open(None).map_err(|error| error.to_string())?)),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Box::new(crate::cuda::open(None).map_err(|error| error.to_string())?)),
        _ => Err("this test program knows `metal` on a Mac, and `cuda` where it was built with that feature"
            .to_owned()),
    }
}

/// Every argument lies in one buffer at an odd place, so that a kernel that forgets an offset is seen.
fn run_on(bench: &Bench, launch: &Launch, args: &[Data]) -> Vec<Vec<u8>> {
    let gpu = &*bench.gpu;
    launch.check(gpu.limits()).expect("the launch fits");
    let kernel = &launch.kernel;
    assert!(kernel.family.declares(kernel.function, kernel.args), "`{}` is not declared", kernel.function);
    let mut places = Vec::new();
    let mut end = 0usize;
    for (data, arg) in args.iter().zip(launch.kernel.args) {
        let len = match data {
            Data::Bytes(bytes) => bytes.len(),
            Data::Room(len) => *len,
            Data::Unused => 4,
        };
        // A multiple of the alignment that is no multiple of twice it.
        let start = end.next_multiple_of(2 * arg.align) + arg.align;
        places.push((start, len));
        end = start + len;
    }
    let buffer = gpu.allocate(end, Storage::Shared).expect("memory");
    let whole = Region::whole(buffer, end);
    let mut bindings: Vec<Binding> = Vec::new();
    for ((data, arg), (start, len)) in args.iter().zip(launch.kernel.args).zip(&places) {
        let region = whole.slice(*start, *len).expect("inside");
        let fill = vec![FILL; *len];
        let bytes = if let Data::Bytes(bytes) = data { bytes } else { &fill };
        gpu.write(buffer, *start, bytes).expect("inside");
        let used = if matches!(data, Data::Unused) { Access::Unused } else { arg.access };
        bindings.push(region.bind(used));
    }
    let library = bench.library(launch.kernel.family);
    let pipeline = gpu.pipeline(library, launch.kernel.function, &launch.kernel.constants).expect("exists");
    let mut list = CommandList::new();
    list.push(Command::Dispatch(Dispatch::new("test", pipeline.id, launch, &bindings).expect("fits")));
    let mut submission = gpu.submit(&list).expect("submitted");
    if let Err(error) = submission.wait(Duration::from_secs(60)) {
        panic!("{error}");
    }
    let read = places.iter().map(|(start, len)| {
        let mut bytes = vec![0; *len];
        gpu.read(buffer, *start, &mut bytes).expect("inside");
        bytes
    });
    let found = read.collect();
    gpu.free(buffer);
    gpu.drop_pipeline(pipeline.id);
    found
}
