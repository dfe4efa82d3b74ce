//! What only a Mac can show. `METALLIC_TEST_DEVICE=metal` runs the tests of all kernels there too.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use metallic_core::{ByteSource, Bytes};
use objc2_metal::{
    MTLHazardTrackingMode, MTLMathFloatingPointFunctions, MTLMathMode, MTLResource as _, MTLStorageMode,
};

use super::*;
use crate::command::{Access, Command, Dispatch, Region};
use crate::driver::language::Language;
use crate::kernels::{Arg, FAMILIES, Family, Launch, Params, updates};

const WAIT: Duration = Duration::from_secs(30);

fn gpu() -> Metal {
    open(None).expect("a GPU of Apple Silicon")
}

fn run(gpu: &Metal, commands: &[Command]) -> Option<Duration> {
    let mut list = CommandList::new();
    for command in commands {
        list.push(*command);
    }
    gpu.submit(&list).expect("encoded").wait(WAIT).expect("done")
}

fn read(gpu: &Metal, buffer: BufferId, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xEE; len];
    gpu.read(buffer, 0, &mut bytes).expect("inside");
    bytes
}

/// Bytes of a private buffer, through a shared one.
fn fetch(gpu: &Metal, from: Region) -> Vec<u8> {
    let shared = gpu.allocate(from.len(), Storage::Shared).expect("memory");
    run(gpu, &[Command::Copy { from, to: Region::whole(shared, from.len()) }]);
    let bytes = read(gpu, shared, from.len());
    gpu.free(shared);
    bytes
}

#[test]
fn the_default_gpu_is_listed_with_its_limits() {
    let found = devices();
    let default = found.iter().find(|device| device.default).expect("a default GPU");
    assert!(default.usable && default.limits.max_threads >= 1024, "{default:?}");
    assert!(default.limits.threadgroup_memory >= 32 << 10 && default.limits.budget > Some(1 << 30));
    let gpu = open(Some(&default.index.to_string())).expect("by its index");
    assert_eq!((gpu.info(), gpu.limits()), (&default.info, &default.limits));
    let error = open(Some("no such GPU")).expect_err("no such GPU").to_string();
    assert!(error.contains(&default.info.name), "{error}");
}

#[test]
fn new_buffers_are_zero_and_keep_what_the_host_writes() {
    let gpu = gpu();
    for len in [0, 1, 5, 4096, 1 << 20] {
        let shared = gpu.allocate(len, Storage::Shared).expect("memory");
        assert!(read(&gpu, shared, len).iter().all(|byte| *byte == 0));
        let private = gpu.allocate(len, Storage::Private).expect("memory");
        assert!(fetch(&gpu, Region::whole(private, len)).iter().all(|byte| *byte == 0));
        if len >= 5 {
            gpu.write(shared, 1, &[1, 2, 3]).expect("inside");
            assert_eq!(read(&gpu, shared, 5), [0, 1, 2, 3, 0]);
            assert!(gpu.read(private, 0, &mut [0]).is_err(), "the host does not reach a private buffer");
        }
        assert!(gpu.write(shared, len, &[1]).is_err());
        gpu.free(shared);
        gpu.free(private);
        assert!(gpu.read(shared, 0, &mut []).is_err(), "it was given back");
    }
    assert_eq!(gpu.memory.held.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn buffers_lie_where_they_were_asked_for() {
    let gpu = gpu();
    let places = [(Storage::Shared, MTLStorageMode::Shared), (Storage::Private, MTLStorageMode::Private)];
    for (asked, expected) in places {
        let id = gpu.allocate(64, asked).expect("memory");
        let buffer = lock(&gpu.objects).buffer(id).expect("it was just made");
        let found = (buffer.raw.storageMode(), buffer.raw.hazardTrackingMode());
        assert_eq!(found, (expected, MTLHazardTrackingMode::Tracked), "{asked:?}");
    }
}

#[test]
fn mathematics_are_safe_and_precise() {
    for language in [Language::Metal3, Language::Metal4] {
        let options = library::options(language);
        let found = (options.mathMode(), options.mathFloatingPointFunctions());
        assert_eq!(found, (MTLMathMode::Safe, MTLMathFloatingPointFunctions::Precise));
    }
}

#[test]
fn copies_and_fills_take_any_place_and_length_and_run_in_order() {
    let gpu = gpu();
    let a = gpu.allocate(4096, Storage::Shared).expect("memory");
    let b = gpu.allocate(4096, Storage::Private).expect("memory");
    let (all_a, all_b) = (Region::whole(a, 4096), Region::whole(b, 4096));
    let part = |region: Region, offset, len| region.slice(offset, len).expect("inside");
    for round in 0..50u8 {
        let time = run(
            &gpu,
            &[
                Command::Fill { to: all_a, value: round },
                Command::Fill { to: part(all_a, 7, 1001), value: round + 1 },
                Command::Copy { from: all_a, to: all_b },
                Command::Fill { to: all_a, value: 0xFF },
                Command::Copy { from: part(all_b, 3, 2000), to: part(all_a, 64, 2000) },
            ],
        );
        assert!(time.is_some_and(|time| time > Duration::ZERO && time < WAIT), "{time:?}");
        let found = read(&gpu, a, 4096);
        let expected: Vec<u8> = (0..4096)
            .map(|i| match i {
                64..2064 if (7..1008).contains(&(i - 61)) => round + 1,
                64..2064 => round,
                _ => 0xFF,
            })
            .collect();
        assert!(found == expected, "round {round}");
    }
}

#[test]
fn mapped_pages_are_read_in_place_and_shared() {
    let gpu = gpu();
    let (_, mapped) = window(&gpu);
    let tensor = mapped.slice(gpu.page + 32..mapped.len()).expect("inside");
    let one = gpu.import(&tensor).expect("imported");
    let two = gpu.import(&tensor).expect("imported");
    assert_eq!((one.copied, one.offset), (0, 32));
    assert_eq!(one, two, "one buffer for the same bytes");
    let whole = Region::whole(one.buffer, 2 * gpu.page);
    let found = fetch(&gpu, whole.slice(one.offset, tensor.len()).expect("inside"));
    assert!(found[..] == tensor[..]);
    let mut list = CommandList::new();
    list.push(Command::Fill { to: whole, value: 1 });
    assert!(gpu.submit(&list).is_err(), "a file's pages are not written");
    gpu.free(one.buffer);
    assert!(gpu.read(two.buffer, 0, &mut [0]).is_ok(), "the other import keeps it");
    gpu.free(two.buffer);
    assert!(gpu.read(two.buffer, 0, &mut [0]).is_err());
    drop((mapped, tensor));
    let (window, mapped) = window(&gpu);
    let kept = gpu.import(&mapped).expect("imported");
    drop(mapped);
    assert!(window.upgrade().is_some(), "the buffer keeps the pages mapped");
    gpu.free(kept.buffer);
    assert!(window.upgrade().is_none(), "and no longer than it lives");
    let copied = gpu.import(&Bytes::from(vec![5; 1001])).expect("copied");
    assert_eq!((copied.copied, copied.offset), (1001, 0));
    assert!(read(&gpu, copied.buffer, 1001).iter().all(|byte| *byte == 5));
}

/// Whole pages, as a mapped file has them: made by hand, for the allocator's own pages are not ours alone.
fn window(gpu: &Metal) -> (Weak<Window>, Bytes) {
    let pages: Vec<u8> = (0..gpu.page * 4).map(|i| (i / 7) as u8).collect();
    let first = pages.as_ptr().align_offset(gpu.page);
    let window = Arc::new(Window(pages, first, gpu.page * 3 - 100));
    (Arc::downgrade(&window), Bytes::mapped(window))
}

struct Window(Vec<u8>, usize, usize);

impl ByteSource for Window {
    fn bytes(&self) -> &[u8] {
        &self.0[self.1..self.1 + self.2]
    }
}

const SCALE: &str = "#include <metal_stdlib>
using namespace metal;
constant uint TIMES [[function_constant(0)]];
constant uint PLUS [[function_constant(1)]];
struct P { uint n; };
kernel void scale(constant P& p [[buffer(0)]], device uint* x [[buffer(1)]], threadgroup uint* t [[threadgroup(0)]],
                  uint g [[threadgroup_position_in_grid]], uint l [[thread_index_in_threadgroup]]) {
    uint i = g * 64 + l;
    t[l] = i < p.n ? x[i] * TIMES + PLUS : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < p.n) x[i] = t[l];
}
";
const SCALE_ARGS: &[Arg] = &[updates("x", 4)];
const SCALE_FAMILY: Family =
    Family { name: "scale", params: &[], uses: &[], text: SCALE, kernels: &[&[("scale", SCALE_ARGS)]] };

fn scale(n: u32) -> Launch {
    Launch {
        kernel: Kernel {
            family: &SCALE_FAMILY,
            function: "scale",
            constants: Constants::of([3, 1]),
            args: SCALE_ARGS,
        },
        params: Params::of_words([n]),
        groups: [n.div_ceil(64), 1, 1],
        threads: [64, 1, 1],
        threadgroup_bytes: 64 * 4,
        work: 0,
        bytewise: false,
    }
}

#[test]
fn dependent_dispatches_with_constants_run_in_order() {
    dependent_dispatches(&gpu());
}

pub(super) fn dependent_dispatches(gpu: &Metal) {
    let library = gpu.library("scale", SCALE).expect("compiles");
    let pipeline = gpu.pipeline(library, "scale", &Constants::of([3, 1])).expect("exists");
    assert!((64..=1024).contains(&pipeline.max_threads));
    gpu.drop_library(library);
    let n = 1000u32;
    let buffer = gpu.allocate(n as usize * 4, Storage::Shared).expect("memory");
    let binding = Region::whole(buffer, n as usize * 4).bind(Access::ReadWrite);
    let dispatch = Dispatch::new("scale", pipeline.id, &scale(n), &[binding]).expect("fits");
    run(gpu, &[Command::Dispatch(dispatch); 12]);
    // x -> 3x + 1, twelve times from 0.
    let expected = (0..12).fold(0u32, |x, _| x * 3 + 1);
    let found = read(gpu, buffer, n as usize * 4);
    gpu.free(buffer);
    assert!(found.chunks_exact(4).all(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]) == expected));
    gpu.drop_pipeline(pipeline.id);
    let mut list = CommandList::new();
    list.push(Command::Dispatch(dispatch));
    assert!(gpu.submit(&list).is_err(), "the pipeline was given back");
}

#[test]
fn buffers_that_are_given_back_live_until_the_work_is_done() {
    let gpu = gpu();
    let len = 64 << 20;
    let buffers = [0; 2].map(|_| gpu.allocate(len, Storage::Private).expect("memory"));
    let [a, b] = buffers.map(|id| Region::whole(id, len));
    let mut list = CommandList::new();
    for _ in 0..20 {
        list.push(Command::Copy { from: a, to: b });
        list.push(Command::Copy { from: b, to: a });
    }
    let mut submission = gpu.submit(&list).expect("encoded");
    for id in buffers {
        gpu.free(id);
    }
    assert!(submission.wait(Duration::ZERO).is_err() || submission.poll());
    submission.wait(WAIT).expect("done");
    drop(gpu.submit(&CommandList::new()).expect("nothing to do"));
}

#[test]
fn submissions_that_share_a_buffer_run_in_order() {
    let gpu = gpu();
    let len = 16 << 20;
    let [a, b] = [0; 2].map(|_| gpu.allocate(len, Storage::Shared).expect("memory"));
    let submit = |command| {
        let mut list = CommandList::new();
        list.push(command);
        gpu.submit(&list).expect("encoded")
    };
    // None is waited for before the next is handed over.
    let mut fill = submit(Command::Fill { to: Region::whole(a, len), value: 9 });
    let mut copy = submit(Command::Copy { from: Region::whole(a, len), to: Region::whole(b, len) });
    let mut again = submit(Command::Fill { to: Region::whole(a, len), value: 1 });
    for submission in [&mut fill, &mut copy, &mut again] {
        submission.wait(WAIT).expect("done");
    }
    assert!(
        read(&gpu, b, len).iter().all(|byte| *byte == 9) && read(&gpu, a, len).iter().all(|byte| *byte == 1)
    );
}

#[test]
fn errors_of_the_compiler_reach_the_caller() {
    let gpu = gpu();
    let error = gpu.library("broken", "kernel void f( {").expect_err("does not compile").to_string();
    assert!(error.contains("broken") && error.contains("error"), "{error}");
    let library = gpu.library("scale", SCALE).expect("compiles");
    let error = gpu.pipeline(library, "nothing", &Constants::NONE).expect_err("no such kernel").to_string();
    assert!(error.contains("nothing"), "{error}");
}

#[test]
fn more_memory_than_the_budget_is_refused_before_it_is_asked_for() {
    let gpu = gpu();
    let error = gpu.allocate(usize::MAX / 2, Storage::Shared).expect_err("too much");
    assert!(matches!(error, GpuError::OutOfMemory { budget: Some(_), .. }), "{error}");
}

#[test]
fn apples_compiler_takes_every_family() {
    let gpu = gpu();
    for family in FAMILIES {
        if let Err(error) = gpu.library(family.name, &family.source()) {
            panic!("{error}");
        }
    }
}

#[test]
fn machine_code_is_found_again_by_the_next_run() {
    let folder = std::env::temp_dir().join(format!("metallic-archive-{}", std::process::id()));
    let with_folder = || Metal { folder: Some(folder.clone()), ..gpu() };
    for known in [false, true] {
        let gpu = with_folder();
        let id = gpu.library("scale", SCALE).expect("compiles");
        let library = lock(&gpu.objects).library(id, "scale").expect("it was just made");
        let (_, job) = library.pipeline(&gpu.memory.device, "scale", &Constants::of([3, 1])).expect("exists");
        assert_eq!(job.is_none(), known, "compiled only once");
        if known {
            let other = Constants::of([5, 1]);
            let other =
                autoreleasepool(|_| library.pipeline(&gpu.memory.device, "scale", &other)).expect("exists");
            assert!(other.1.is_some(), "an archive has what was put into it");
        }
        gpu.pipeline(id, "scale", &Constants::of([3, 1])).expect("exists");
        let written = || std::fs::read_dir(&folder).is_ok_and(|mut files| files.next().is_some());
        let begun = Instant::now();
        while !written() {
            assert!(begun.elapsed() < WAIT, "no archive was written");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    std::fs::remove_dir_all(&folder).expect("it was written");
}

#[test]
fn the_time_of_each_command_is_a_part_of_the_whole() {
    let gpu = gpu();
    let buffers: Vec<BufferId> =
        (0..3).map(|_| gpu.allocate(64 << 20, Storage::Private).expect("memory")).collect();
    let mut list = CommandList::new();
    for buffer in &buffers {
        list.push(Command::Fill { to: Region::whole(*buffer, 64 << 20), value: 7 });
    }
    let mut submission = gpu.submit_timed(&list).expect("a GPU that notes times");
    let all = submission.wait(WAIT).expect("done").expect("told");
    let times = submission.times().expect("told");
    assert_eq!(times.len(), 3);
    assert!(times.iter().all(|time| *time > Duration::ZERO && *time <= all), "{times:?} of {all:?}");
    assert!(fetch(&gpu, Region::whole(buffers[2], 16)).iter().all(|byte| *byte == 7));
}
