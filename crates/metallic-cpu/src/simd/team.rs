//! A team of threads that computes one thing together: fork, share tasks by a counter, join.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long an idle worker spins before it sleeps: longer than the gaps inside a step, shorter than a person notices.
const SPIN: Duration = Duration::from_micros(100);
/// How long it spins before it lets others have its core meanwhile: longer than the gap between two operations.
const ALONE: Duration = Duration::from_micros(8);

/// In `state`: workers inside the current job, whether it takes more, and its number above.
const JOINED: u64 = 0xffff;
const OPEN: u64 = 1 << 16;
const EPOCH: u64 = 1 << 17;

/// A fork-join of tasks, borrowed from the stack of the caller of `run`.
#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

struct Shared {
    state: AtomicU64,
    /// Written by the owner of `busy` while the job is closed and nobody is in it; read by those who joined.
    job: UnsafeCell<Option<Job>>,
    next: AtomicUsize,
    busy: AtomicBool,
    stop: AtomicBool,
    parked: Box<[AtomicBool]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the one field that is not `Sync`; the rule at its declaration keeps writes and reads apart,
// and `run` does not return while anyone may still use the borrowed body.
unsafe impl Sync for Shared {}
// SAFETY: the body behind the pointer is `Sync`, and see above for its lifetime.
unsafe impl Send for Shared {}

/// A fixed set of threads; the thread that calls takes part, so a team of one has no workers.
pub struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Team {
    /// A team of `threads` threads, the caller among them (0 counts as 1). Fails where the system refuses a thread.
    pub fn new(threads: usize) -> io::Result<Team> {
        // `state` counts workers in 16 bits.
        let count = threads.clamp(1, JOINED as usize) - 1;
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            parked: (0..count).map(|_| AtomicBool::new(false)).collect(),
            panic: Mutex::new(None),
        });
        // Dropped, and so stopped, where a later thread cannot be had.
        let mut team = Team { shared, workers: Vec::with_capacity(count) };
        for index in 0..count {
            let shared = Arc::clone(&team.shared);
            let name = format!("metallic-cpu-{}", index + 1);
            team.workers.push(thread::Builder::new().name(name).spawn(move || work(&shared, index))?);
        }
        Ok(team)
    }

    /// Threads in the team, the caller among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(0)` to `body(tasks - 1)`, each once, shared among the threads in no particular order, and
    /// returns when all are done. Called while the team is already running (from a task, or from another
    /// thread), it runs the tasks on the calling thread. Allocates nothing.
    ///
    /// # Panics
    /// With the payload of a task that panicked; tasks not yet begun are then left out.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        let alone = tasks <= 1 || self.workers.is_empty();
        if alone || shared.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(body);
            return;
        }
        // SAFETY: only the lifetime is erased. No worker uses `body` after the last one has left the job,
        // and this function waits for that below whatever the tasks do (they cannot unwind out of `share`).
        let body =
            unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(body) };
        let job = Job { body, tasks };
        shared.next.store(0, Ordering::Relaxed);
        // SAFETY: `busy` is ours, and the last job was closed and left by all before `busy` was given back.
        unsafe { *shared.job.get() = Some(job) };
        let closed = shared.state.load(Ordering::Relaxed);
        shared.state.store((closed & !OPEN).wrapping_add(EPOCH) | OPEN, Ordering::SeqCst);
        for (parked, worker) in shared.parked.iter().zip(&self.workers).take(tasks - 1) {
            if parked.load(Ordering::SeqCst) && parked.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
        share(shared, job);
        shared.state.fetch_and(!OPEN, Ordering::Relaxed);
        let mut spins = 0u32;
        // Acquire: what the workers wrote is seen by whoever called `run`.
        while shared.state.load(Ordering::Acquire) & JOINED != 0 {
            spins += 1;
            if spins.is_multiple_of(1024) { thread::yield_now() } else { std::hint::spin_loop() }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        shared.busy.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Runs `body(i, chunk)` for every chunk of `chunk_len` elements (the last may be shorter), as [`Team::run`].
    pub fn for_chunks<T: Send>(
        &self,
        data: &mut [T],
        chunk_len: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(chunk_len > 0, "chunks of no elements");
        let data = SharedSlice::new(data);
        self.run(data.len.div_ceil(chunk_len), &|i| {
            // SAFETY: chunks do not overlap, each task runs once, and `data` is borrowed until `run` returns.
            body(i, unsafe { data.chunk(i, chunk_len) });
        });
    }

    /// Runs `body(i, a's i-th chunk, b's i-th chunk)` for every chunk of both, of `lens` elements each, as [`Team::run`].
    pub fn for_both<T: Send, U: Send>(
        &self,
        a: &mut [T],
        b: &mut [U],
        lens: [usize; 2],
        body: impl Fn(usize, &mut [T], &mut [U]) + Sync,
    ) {
        assert!(lens[0] > 0 && lens[1] > 0, "chunks of no elements");
        let (a, b) = (SharedSlice::new(a), SharedSlice::new(b));
        let count = a.len.div_ceil(lens[0]);
        assert_eq!(count, b.len.div_ceil(lens[1]), "chunks of two slices");
        self.run(count, &|i| {
            // SAFETY: chunks do not overlap, each task runs once, and both slices are borrowed until `run` returns.
            let (a, b) = unsafe { (a.chunk(i, lens[0]), b.chunk(i, lens[1])) };
            body(i, a, b);
        });
    }

    /// Runs `body(i, piece)` for pieces of `data` one after another, the `i`-th ending at `ends[i]`, as [`Team::run`].
    pub fn for_pieces<T: Send>(&self, data: &mut [T], ends: &[usize], body: impl Fn(usize, &mut [T]) + Sync) {
        assert!(
            ends.is_sorted() && ends.last().is_none_or(|end| *end <= data.len()),
            "pieces beyond the data"
        );
        let data = SharedSlice::new(data);
        self.run(ends.len(), &|i| {
            let from = i.checked_sub(1).map_or(0, |before| ends[before]);
            // SAFETY: pieces do not overlap (above), each task runs once, and `data` is borrowed until `run` returns.
            body(i, unsafe { data.part(from, ends[i]) });
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its tasks throw; there is nothing to hear from it.
            let _ = worker.join();
        }
    }
}

/// A slice that tasks share; each use says why it is sound.
struct SharedSlice<T> {
    data: *mut T,
    len: usize,
}

#[allow(clippy::mut_from_ref, reason = "parts of different tasks do not overlap")]
impl<T> SharedSlice<T> {
    fn new(data: &mut [T]) -> SharedSlice<T> {
        SharedSlice { data: data.as_mut_ptr(), len: data.len() }
    }

    /// # Safety
    /// The slice is still borrowed, and nobody else has any of this part.
    unsafe fn part(&self, from: usize, to: usize) -> &mut [T] {
        assert!(from <= to && to <= self.len, "a part beyond the data");
        // SAFETY: inside the slice (above), and by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(from), to - from) }
    }

    /// The `i`-th of its chunks of `len`.
    ///
    /// # Safety
    /// As [`SharedSlice::part`].
    unsafe fn chunk(&self, i: usize, len: usize) -> &mut [T] {
        // SAFETY: by the caller.
        unsafe { self.part(i * len, self.len.min((i + 1) * len)) }
    }
}

// SAFETY: the pointer is only an address; dereferencing it is unsafe and justified where it happens.
unsafe impl<T: Send> Sync for SharedSlice<T> {}

/// Takes tasks until none is left. Never unwinds.
fn share(shared: &Shared, job: Job) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        loop {
            let task = shared.next.fetch_add(1, Ordering::Relaxed);
            if task >= job.tasks {
                break;
            }
            // SAFETY: `run` keeps the body alive until everyone who joined has left.
            unsafe { (*job.body)(task) };
        }
    }));
    if let Err(payload) = result {
        shared.next.store(job.tasks, Ordering::Relaxed);
        let mut panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner);
        // Only the first is kept; dropping a payload may itself panic, so later ones are leaked.
        match &*panic {
            None => *panic = Some(payload),
            Some(_) => std::mem::forget(payload),
        }
    }
}

/// Joins the open job if it is not `last`; its number if it was joined.
fn join(shared: &Shared, last: u64) -> Option<u64> {
    let mut state = shared.state.load(Ordering::Relaxed);
    loop {
        let epoch = state / EPOCH;
        if state & OPEN == 0 || epoch == last {
            return None;
        }
        match shared.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(epoch),
            Err(now) => state = now,
        }
    }
}

fn work(shared: &Shared, index: usize) {
    let mut last = 0;
    let mut idle_since = None;
    let mut spins = 0u32;
    while !shared.stop.load(Ordering::Relaxed) {
        if let Some(epoch) = join(shared, last) {
            last = epoch;
            // SAFETY: joined: the job was written before it was opened, and stays until this worker leaves.
            if let Some(job) = unsafe { *shared.job.get() } {
                share(shared, job);
            }
            // Release: the tasks' writes come before the leave.
            shared.state.fetch_sub(1, Ordering::Release);
            idle_since = None;
            continue;
        }
        std::hint::spin_loop();
        spins = spins.wrapping_add(1);
        if !spins.is_multiple_of(64) {
            continue;
        }
        let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
        if idle < SPIN {
            if idle > ALONE {
                thread::yield_now();
            }
            continue;
        }
        shared.parked[index].store(true, Ordering::SeqCst);
        // A job opened before the store above may have missed it: look once more, then sleep.
        let state = shared.state.load(Ordering::SeqCst);
        let missed = state & OPEN != 0 && state / EPOCH != last;
        if !missed && !shared.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        shared.parked[index].store(false, Ordering::SeqCst);
        idle_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fewer of them under an interpreter, which watches every access.
    const fn rounds(many: usize) -> usize {
        if cfg!(miri) { many.div_ceil(50) } else { many }
    }

    fn team(threads: usize) -> Team {
        Team::new(threads).expect("threads for a test")
    }

    #[test]
    fn every_task_runs_once_over_many_small_runs() {
        for threads in [1, 2, 3, 5] {
            let team = team(threads);
            for tasks in (0..rounds(2000)).map(|i| i % 37) {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                team.run(tasks, &|i| {
                    counts[i].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn sleeping_workers_wake_for_the_next_run() {
        let team = team(3);
        for _ in 0..5 {
            thread::sleep(SPIN * 20);
            // Every task waits for the others: it cannot end unless all three threads take one.
            let arrived = AtomicUsize::new(0);
            team.run(3, &|_| {
                arrived.fetch_add(1, Ordering::SeqCst);
                while arrived.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn chunks_are_disjoint_and_cover_everything() {
        let team = team(3);
        for len in [0, 1, 7, 64, 1000] {
            let mut data = vec![0usize; len];
            team.for_chunks(&mut data, 7, |i, chunk| {
                for (j, v) in chunk.iter_mut().enumerate() {
                    *v += i * 7 + j + 1;
                }
            });
            assert!(data.iter().enumerate().all(|(i, v)| *v == i + 1));
        }
    }

    #[test]
    fn chunks_of_two_slices_go_together_or_are_refused() {
        let team = team(3);
        let (mut a, mut b) = (vec![0; 10], vec![0; 20]);
        team.for_both(&mut a, &mut b, [3, 6], |i, a, b| {
            a.fill(i);
            b.fill(a.len());
        });
        assert_eq!(a, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]);
        assert_eq!(b[..18], [3; 18]);
        assert_eq!(b[18..], [1; 2]);
        let uneven = || team.for_both(&mut a.clone(), &mut b.clone(), [3, 5], |_, _, _| {});
        assert!(catch_unwind(AssertUnwindSafe(uneven)).is_ok());
        let uneven = || team.for_both(&mut a.clone(), &mut b.clone(), [3, 2], |_, _, _| {});
        assert!(catch_unwind(AssertUnwindSafe(uneven)).is_err());
    }

    #[test]
    fn pieces_are_disjoint_and_may_be_empty_but_not_go_back() {
        let team = team(3);
        let mut data = vec![0usize; 20];
        team.for_pieces(&mut data, &[3, 3, 10, 19], |i, piece| piece.iter_mut().for_each(|v| *v += i + 1));
        let expected: Vec<usize> = [(1, 3), (3, 7), (4, 9), (0, 1)].map(|(v, n)| vec![v; n]).concat();
        assert_eq!(data, expected);
        for ends in [&[3, 2][..], &[21]] {
            let run = || team.for_pieces(&mut data.clone(), ends, |_, _| {});
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_team_lives_on() {
        let team = team(3);
        for round in 0..rounds(50) {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(20, &|i| assert!(i != round % 20, "task {i} fails"));
            }));
            let payload = result.expect_err("the panic is raised again");
            let message = payload.downcast_ref::<String>().expect("a message");
            assert!(message.contains("fails"));
            let sum = AtomicUsize::new(0);
            team.run(10, &|i| {
                sum.fetch_add(i, Ordering::Relaxed);
            });
            assert_eq!(sum.into_inner(), 45);
        }
    }

    #[test]
    fn nested_and_concurrent_runs_complete() {
        let team = team(3);
        let sum = AtomicUsize::new(0);
        let add = |i: usize| {
            sum.fetch_add(i, Ordering::Relaxed);
        };
        thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..rounds(100) {
                        team.run(4, &|_| team.run(5, &add));
                    }
                });
            }
        });
        assert_eq!(sum.into_inner(), 3 * rounds(100) * 4 * 10);
    }
}
