//! Execution: a fiber per GPU thread, threadgroups over host threads. The only unsafe code of the crate lives here.
//!
//! Lanes of a simdgroup run one after another until each is parked (collective, barrier) or done. When all live lanes of a
//! simdgroup are parked, those that wait at the same collective form a group and get its result; when all simdgroups wait at
//! the threadgroup barrier, it opens. A seed other than zero permutes threadgroups, simdgroups and lanes at every turn.
#![allow(unsafe_code)]

pub(crate) mod abi;
mod arena;
mod buffer;
pub mod bytes;
mod callbacks;
mod crew;
mod fibers;
mod image;
mod log;
pub(crate) mod memory;
mod schedule;
mod switch;
mod sync;
mod texel;
mod thread;
pub(crate) mod trap;
pub(crate) mod user;
mod worker;

use std::{
    ffi::c_void,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

pub(crate) use arena::LIMIT as THREADGROUP_MEMORY;
pub use buffer::Buffer;
pub(crate) use buffer::Hold;
pub(crate) use crew::Crew;
use crew::lock;
pub(crate) use image::Constants;
pub use image::Image;
pub use log::Level;
pub(crate) use log::Message;
use serde::Serialize;
pub(crate) use texel::{Misuse, View};
use trap::Watch;

use crate::{
    check::{Checker, Event, Who},
    texture::Sampler,
};

/// What a dispatch did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Threadgroups that were started.
    pub threadgroups: u64,
    /// Threadgroup barriers that opened.
    pub barriers: u64,
    /// Simdgroup barriers that opened.
    pub simdgroup_barriers: u64,
    /// Simd-group and quad-group operations.
    pub collectives: u64,
    /// Those that only some of the live lanes took part in.
    pub divergent_collectives: u64,
    /// Threads the checker ended because they could not go on.
    pub stopped: u64,
    /// Messages of kernels past those that are kept.
    pub lost_messages: u64,
}

impl Stats {
    fn add(&mut self, other: Self) {
        self.threadgroups += other.threadgroups;
        self.barriers += other.barriers;
        self.simdgroup_barriers += other.simdgroup_barriers;
        self.collectives += other.collectives;
        self.divergent_collectives += other.divergent_collectives;
        self.stopped += other.stopped;
        self.lost_messages += other.lost_messages;
    }
}

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(1 << 32);

/// A dispatch that was found valid.
pub(crate) struct Job<'a> {
    pub(crate) image: &'a Image,
    pub(crate) kernel: usize,
    /// Threads of the grid; edge threadgroups may be smaller than the others.
    pub(crate) threads: [u32; 3],
    pub(crate) threadgroup: [u32; 3],
    /// Threadgroups of the grid.
    pub(crate) groups: [u32; 3],
    pub(crate) buffers: [*mut c_void; abi::MAX_BUFFERS],
    pub(crate) threadgroup_memory: [Option<u32>; abi::MAX_THREADGROUP_ARGS],
    /// Bytes of threadgroup memory, arguments and variables together.
    pub(crate) threadgroup_limit: usize,
    /// By slot.
    pub(crate) textures: Vec<Option<View>>,
    pub(crate) samplers: Vec<Option<Sampler>>,
    pub(crate) constants: Constants,
    /// Zero: in order.
    pub(crate) seed: u64,
    /// Lanes of a simdgroup go from access to access together; checked kernels alone.
    pub(crate) lockstep: bool,
    /// A crash ends a thread, not the dispatch.
    pub(crate) keep_going: bool,
    pub(crate) workers: usize,
    pub(crate) time_limit: Duration,
}

// SAFETY: host threads only read the job; what lies behind `buffers` is written by kernels as GPU threads would, and borrowed
// for the whole dispatch by the caller.
unsafe impl Sync for Job<'_> {}

/// What came of a job, besides what it wrote.
#[derive(Default)]
pub(crate) struct Finished {
    pub(crate) stats: Stats,
    pub(crate) events: Vec<(Event, Who)>,
    pub(crate) messages: Vec<(Message, Who)>,
}

/// Runs all threadgroups of a job. With a checker it takes one host thread, so that reports do not depend on timing.
pub(crate) fn run(job: &Job<'_>, checker: Option<&mut Checker>, crew: &Crew) -> Finished {
    let total = job.groups.iter().map(|&g| u64::from(g)).product::<u64>();
    let (stop, next) = (AtomicBool::new(false), AtomicU64::new(0));
    let order = Order::new(job.seed, total);
    let now = Instant::now();
    let deadline = now.checked_add(job.time_limit).unwrap_or(now + FOR_EVER);
    let finished = Mutex::new((Finished::default(), false));
    let work = |checker: Option<&mut Checker>| {
        trap::install();
        let watch = Watch::new(deadline, &stop);
        let mut space = crew.space();
        let done = schedule::work(job, checker, &mut space, &stop, || {
            let n = next.fetch_add(1, Ordering::Relaxed);
            (n < total).then(|| order.at(n))
        });
        crew.keep(space);
        let over = watch.stopped() && Instant::now() >= deadline;
        drop(watch);
        let mut finished = lock(&finished);
        finished.0.stats.add(done.stats);
        finished.0.events.extend(done.events);
        finished.0.messages.extend(done.messages);
        finished.1 |= over;
    };
    let workers = job.workers.clamp(1, usize::try_from(total).unwrap_or(usize::MAX));
    if checker.is_some() || workers == 1 {
        work(checker);
    } else {
        crew.run(workers, &|| work(None));
    }
    let (mut finished, late) = finished.into_inner().unwrap_or_else(PoisonError::into_inner);
    // A kernel that was between two threads at the deadline left no trap.
    if late && !finished.events.iter().any(|(e, _)| matches!(e, Event::Trap(_))) {
        finished.events.push((Event::TimeLimit, Who::default()));
    }
    finished
}

/// The order of threadgroups: all of them once, by `n -> (step * n + start) mod total`.
struct Order {
    total: u64,
    step: u64,
    start: u64,
}

impl Order {
    fn new(seed: u64, total: u64) -> Self {
        if seed == 0 || total < 2 {
            return Self { total, step: 1, start: 0 };
        }
        let r = schedule::mix(seed, u64::MAX);
        let mut step = 1 + (r >> 32) % (total - 1);
        while gcd(step, total) != 1 {
            step += 1;
        }
        Self { total, step, start: (r & 0xFFFF_FFFF) % total }
    }

    fn at(&self, n: u64) -> u64 {
        ((u128::from(self.step) * u128::from(n) + u128::from(self.start)) % u128::from(self.total.max(1)))
            as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
