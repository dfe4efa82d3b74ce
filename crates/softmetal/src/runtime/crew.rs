//! Host threads that stay for the next dispatch.
//!
//! A dispatch posts its work and begins with it; whoever is free comes and helps. When the one that posted it finds nothing
//! more to do, it takes the post down and waits for those that came. A helper that comes too late costs nobody anything.

use std::{
    any::Any,
    fmt,
    hint::spin_loop,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::worker::Space;

/// How long a helper looks for more work before it sleeps, and the one that posted looks whether the helpers are done: to wake
/// a thread takes about as long.
const PATIENCE: Duration = Duration::from_micros(20);
/// No dispatch gets more helpers.
const MOST: usize = 255;

/// The host threads of a device, and what they work with.
#[derive(Default)]
pub(crate) struct Crew {
    board: Arc<Board>,
    helpers: Mutex<Vec<JoinHandle<()>>>,
    #[allow(clippy::vec_box)] // they change hands with every dispatch
    spaces: Mutex<Vec<Box<Space>>>,
}

/// Where work is posted.
#[derive(Default)]
struct Board {
    state: Mutex<State>,
    /// Helpers wanted, to be seen without the lock.
    wanted: AtomicUsize,
    posted: Condvar,
    left: Condvar,
}

#[derive(Default)]
struct State {
    tasks: Vec<Posted>,
    sleeping: usize,
    closing: bool,
}

struct Posted {
    task: *const Task<'static>,
    wanted: usize,
}

// SAFETY: a task is shared by design (`Sync`), and alive while it is posted or helpers are at it.
unsafe impl Send for Posted {}

struct Task<'a> {
    work: &'a (dyn Fn() + Sync),
    helpers: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks again and again, for a short while.
fn soon(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..32 {
            if done() {
                return true;
            }
            spin_loop();
        }
        if start.elapsed() > PATIENCE {
            return false;
        }
    }
}

impl Crew {
    /// What a host thread works with, as the last one left it.
    pub(super) fn space(&self) -> Box<Space> {
        lock(&self.spaces).pop().unwrap_or_default()
    }

    pub(super) fn keep(&self, space: Box<Space>) {
        lock(&self.spaces).push(space);
    }

    /// Does `work` on this host thread and on up to `hands - 1` others.
    pub(super) fn run(&self, hands: usize, work: &(dyn Fn() + Sync)) {
        let helpers = (hands - 1).min(MOST);
        self.hire(helpers);
        let task = Task { work, helpers: AtomicUsize::new(0), panic: Mutex::new(None) };
        let posted = self.board.post(&task, helpers);
        work();
        drop(posted);
        if let Some(panic) = lock(&task.panic).take() {
            panic::resume_unwind(panic);
        }
    }

    /// Brings the number of helpers up to `count`. Without them everything is done, only later.
    fn hire(&self, count: usize) {
        let mut helpers = lock(&self.helpers);
        while helpers.len() < count {
            let board = self.board.clone();
            let hired = thread::Builder::new().name("softmetal worker".into()).spawn(move || board.help());
            let Ok(hired) = hired else { return };
            helpers.push(hired);
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        lock(&self.board.state).closing = true;
        self.board.posted.notify_all();
        for helper in lock(&self.helpers).drain(..) {
            let _ = helper.join();
        }
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("helpers", &lock(&self.helpers).len()).finish_non_exhaustive()
    }
}

impl Board {
    /// The work of a helper.
    fn help(&self) {
        loop {
            soon(|| self.wanted.load(Ordering::Relaxed) > 0);
            let mut state = lock(&self.state);
            let task = loop {
                if state.closing {
                    return;
                }
                if let Some(posted) = state.tasks.iter_mut().find(|t| t.wanted > 0) {
                    posted.wanted -= 1;
                    self.wanted.fetch_sub(1, Ordering::Relaxed);
                    // SAFETY: posted, so alive; from now on it counts this helper and stays until it has left.
                    let task = unsafe { &*posted.task };
                    task.helpers.fetch_add(1, Ordering::Relaxed);
                    break task;
                }
                state.sleeping += 1;
                state = self.posted.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping -= 1;
            };
            drop(state);
            if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(task.work)) {
                *lock(&task.panic) = Some(panic);
            }
            // Under the lock, without which the one that posted does not go on.
            let _state = lock(&self.state);
            if task.helpers.fetch_sub(1, Ordering::Release) == 1 {
                self.left.notify_all();
            }
        }
    }

    fn post<'t>(&'t self, task: &'t Task<'t>, wanted: usize) -> Post<'t> {
        let mut state = lock(&self.state);
        // The lifetime ends here for the compiler only: `Post` waits for all that use it.
        state.tasks.push(Posted { task: std::ptr::from_ref(task).cast(), wanted });
        self.wanted.fetch_add(wanted, Ordering::Relaxed);
        let sleeping = state.sleeping;
        drop(state);
        for _ in 0..sleeping.min(wanted) {
            self.posted.notify_one();
        }
        Post { board: self, task }
    }
}

/// Work that helpers may come to; when it is dropped, none is at it.
struct Post<'t> {
    board: &'t Board,
    task: &'t Task<'t>,
}

impl Drop for Post<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.board.state);
        let this = std::ptr::from_ref(self.task).cast();
        if let Some(at) = state.tasks.iter().position(|t| std::ptr::eq(t.task, this)) {
            let posted = state.tasks.swap_remove(at);
            self.board.wanted.fetch_sub(posted.wanted, Ordering::Relaxed);
        }
        drop(state);
        soon(|| self.task.helpers.load(Ordering::Acquire) == 0);
        let mut state = lock(&self.board.state);
        while self.task.helpers.load(Ordering::Acquire) > 0 {
            state = self.board.left.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{self, AssertUnwindSafe},
        sync::atomic::{AtomicUsize, Ordering},
        thread,
        time::{Duration, Instant},
    };

    use super::Crew;

    #[test]
    fn everything_that_is_posted_is_done_when_run_returns() {
        let crew = Crew::default();
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for round in 0..200 {
                        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
                        crew.run(4, &|| {
                            while next.fetch_add(1, Ordering::Relaxed) < round {
                                done.fetch_add(1, Ordering::Relaxed);
                            }
                        });
                        assert_eq!(done.into_inner(), round);
                    }
                });
            }
        });
    }

    #[test]
    fn helpers_come_to_work_that_waits_for_them() {
        let crew = Crew::default();
        for hands in [2, 4, 3] {
            let here = AtomicUsize::new(0);
            let start = Instant::now();
            crew.run(hands, &|| {
                here.fetch_add(1, Ordering::Relaxed);
                while here.load(Ordering::Relaxed) < hands && start.elapsed() < Duration::from_secs(20) {
                    thread::yield_now();
                }
            });
            assert_eq!(here.into_inner(), hands);
        }
    }

    #[test]
    fn a_panic_of_any_hand_reaches_the_one_that_posted_and_the_crew_goes_on() {
        let crew = Crew::default();
        for _ in 0..20 {
            let first = AtomicUsize::new(0);
            let result = panic::catch_unwind(AssertUnwindSafe(|| {
                crew.run(2, &|| assert!(first.fetch_add(1, Ordering::Relaxed) > 0, "planted"));
            }));
            assert!(result.is_err());
        }
        crew.run(2, &|| {});
    }
}
