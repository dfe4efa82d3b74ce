//! One host thread at work, as the callbacks of kernels see it.

use std::{
    cell::{Cell, RefCell},
    ffi::c_void,
    ptr,
    sync::atomic::AtomicBool,
};

use super::{
    Job, Stats, abi,
    arena::Arena,
    fibers::Fibers,
    image::text,
    log::{self, Level, Message},
    memory::Noted,
    schedule::{self, Simdgroup},
    switch::Context,
    thread::{Call, State, Thread},
    trap::{self, Cause, Trap},
};
use crate::check::{Checker, Event, Site, Who};

/// What a host thread needs for any dispatch, kept from one to the next.
#[derive(Default)]
pub(crate) struct Space {
    pub(super) threads: Vec<Thread>,
    pub(super) fibers: Fibers,
    pub(super) arena: RefCell<Arena>,
    /// Room for the simdgroups of a threadgroup and the order they run in.
    pub(super) simdgroups: Cell<Vec<Simdgroup>>,
    pub(super) order: Cell<Vec<usize>>,
}

// SAFETY: between dispatches nothing looks at the addresses in it, and no fiber is suspended.
unsafe impl Send for Space {}

impl Space {
    /// Makes room for threadgroups of `most` threads.
    pub(super) fn fit(&mut self, most: usize) {
        if self.threads.len() < most {
            self.threads.resize_with(most, Thread::default);
        }
    }
}

/// The state of one host thread during a dispatch. Callbacks reach it through a thread-local while a fiber runs, so all that
/// changes is in cells.
pub(crate) struct Worker<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) threads: &'a [Thread],
    pub(super) space: &'a Space,
    pub(super) entry: abi::Entry,
    /// Set when the dispatch must end.
    pub(super) stop: &'a AtomicBool,
    /// The code that goes on when no thread of the simdgroup can.
    pub(super) scheduler: Context,
    /// Why the running thread was ended, should it have been.
    pub(super) trap: Cell<Option<Trap>>,
    pub(super) current: Cell<usize>,
    /// Threads of the current threadgroup, per axis and in all.
    pub(super) size: Cell<[u32; 3]>,
    pub(super) total: Cell<usize>,
    pub(super) live: Cell<usize>,
    pub(super) group: Cell<[u32; 3]>,
    /// The current simdgroup: its first thread, the order of its lanes, and how many of them have had their turn.
    pub(super) first: Cell<usize>,
    pub(super) order: Cell<[u8; abi::SIMD_WIDTH]>,
    pub(super) lanes: Cell<usize>,
    pub(super) turn: Cell<usize>,
    /// The threadgroup barrier that lanes wait at has opened.
    pub(super) released: Cell<bool>,
    /// Some lane waits for a collective.
    pub(super) pending: Cell<bool>,
    /// The schedule is not random.
    pub(super) in_order: bool,
    /// Lanes go from access to access together; some lane waits for the others to catch up.
    pub(super) lockstep: bool,
    pub(super) stepping: Cell<bool>,
    pub(super) tgmem: RefCell<[*mut c_void; abi::MAX_THREADGROUP_ARGS]>,
    pub(super) checker: RefCell<Option<&'a mut Checker>>,
    /// Found without instrumentation too.
    pub(super) events: RefCell<Vec<(Event, Who)>>,
    /// What kernels had to say.
    pub(super) messages: RefCell<Vec<(Message, Who)>>,
    pub(super) checked: bool,
    /// Checked only: what lay where a write that raced goes.
    pub(super) noted: RefCell<Noted>,
    /// Checked only: the running thread needs room above this address of its stack to call the checker.
    pub(super) floor: Cell<usize>,
    /// Threads at the threadgroup barrier: how many, the first to come, and one that waits at another.
    pub(super) waiting: Cell<usize>,
    pub(super) barrier: Cell<usize>,
    pub(super) elsewhere: Cell<Option<usize>>,
    /// Threads of this threadgroup that the checker ended.
    pub(super) stopped: Cell<usize>,
    pub(super) stats: Cell<Stats>,
}

thread_local! {
    pub(super) static CURRENT: Cell<*const Worker<'static>> = const { Cell::new(ptr::null()) };
}

/// While it lives, kernels on this host thread find their worker. However the scheduler leaves, also by a panic, they find none
/// afterwards: the worker may be gone.
pub(super) struct Current(());

impl Current {
    pub(super) fn set(worker: *const Worker<'static>) -> Self {
        CURRENT.set(worker);
        Self(())
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        trap::in_kernel(false);
        CURRENT.set(ptr::null());
    }
}

impl<'a> Worker<'a> {
    /// `space` has room for the threadgroups of `job`.
    pub(super) fn new(
        job: &'a Job<'a>,
        checker: Option<&'a mut Checker>,
        space: &'a Space,
        stop: &'a AtomicBool,
    ) -> Self {
        Self {
            job,
            threads: &space.threads,
            space,
            entry: job.image.entries[job.kernel],
            stop,
            scheduler: Context::default(),
            trap: Cell::new(None),
            current: Cell::new(0),
            size: Cell::new([0; 3]),
            total: Cell::new(0),
            live: Cell::new(0),
            group: Cell::new([0; 3]),
            first: Cell::new(0),
            order: Cell::new([0; abi::SIMD_WIDTH]),
            lanes: Cell::new(0),
            turn: Cell::new(0),
            released: Cell::new(false),
            pending: Cell::new(false),
            in_order: job.seed == 0,
            lockstep: job.lockstep,
            stepping: Cell::new(false),
            tgmem: RefCell::new([ptr::null_mut(); abi::MAX_THREADGROUP_ARGS]),
            checked: checker.is_some(),
            checker: RefCell::new(checker),
            noted: RefCell::default(),
            floor: Cell::new(0),
            waiting: Cell::new(0),
            barrier: Cell::new(0),
            elsewhere: Cell::new(None),
            events: RefCell::default(),
            messages: RefCell::default(),
            stopped: Cell::new(0),
            stats: Cell::default(),
        }
    }

    /// Runs `f` on the worker whose fiber is running on this host thread; nothing if none is.
    #[inline]
    pub(crate) fn with<R>(f: impl FnOnce(&Worker<'static>) -> R) -> Option<R> {
        let p = CURRENT.get();
        // SAFETY: set by `run_group` while threads of that worker run, on this host thread.
        unsafe { p.as_ref() }.map(f)
    }

    pub(super) fn me(&self) -> &Thread {
        &self.threads[self.current.get()]
    }

    pub(crate) fn lane(&self) -> u32 {
        (self.current.get() % abi::SIMD_WIDTH) as u32
    }

    /// Where the current thread stands, and a seed for what a GPU decides in a way of its own.
    pub(crate) fn scope(&self) -> abi::Scope {
        let (simdgroup, seed) = (self.current.get() / abi::SIMD_WIDTH, self.job.seed);
        // A seed other than zero stays so.
        let seed = if self.in_order { 0 } else { (schedule::mix(seed, 0) >> 32) as u32 | 1 << 31 };
        abi::Scope { lane: self.lane(), simdgroup: simdgroup as u32, seed }
    }

    /// Reports an operation of so many simdgroups in a threadgroup that has others; its first thread does so for all.
    pub(crate) fn hold_to_scope(&self, wanted: u32, call: Call) {
        let found = self.total.get().div_ceil(abi::SIMD_WIDTH) as u32;
        if found == wanted || self.current.get() != 0 {
            return;
        }
        // SAFETY: a string literal of the library, which is never unloaded.
        let file = unsafe { text(call.file) };
        let site = Site::new(file, call.line as u32);
        self.event(Event::Scope { site, wanted, found }, self.who());
    }

    pub(super) fn who(&self) -> Who {
        Who { thread: self.current.get() as u32, group: self.group.get() }
    }

    pub(super) fn count(&self, f: impl FnOnce(&mut Stats)) {
        let mut stats = self.stats.get();
        f(&mut stats);
        self.stats.set(stats);
    }

    /// Lets others run until the barrier that `state` names opens.
    #[inline(always)]
    pub(crate) fn wait(&self, state: State, flags: i32, call: Call) {
        let me = self.me();
        me.flags.set(flags);
        self.park(me, state, call);
    }

    /// Lets others run until the collective has run.
    #[inline]
    pub(crate) fn collect(&self, run: abi::SimdFn, input: *mut c_void, output: *mut c_void, call: Call) {
        let me = self.me();
        me.run.set(Some(run));
        me.input.set(input);
        me.output.set(output);
        self.park(me, State::Simd, call);
    }

    #[inline(always)]
    fn park(&self, me: &Thread, state: State, call: Call) {
        trap::in_kernel(false);
        me.file.set(call.file);
        me.line.set(call.line);
        me.state.set(state);
        if state == State::Barrier {
            self.arrived(me);
        } else {
            self.pending.set(true);
        }
        self.hand_over(me);
        trap::in_kernel(true);
    }

    /// In lockstep: lets the other lanes do what they were about to do before this one does the next thing.
    #[inline]
    pub(crate) fn step(&self, address: usize) {
        if !self.lockstep || self.space.fibers.range(self.me().fiber.get()).contains(&address) {
            return;
        }
        trap::in_kernel(false);
        let me = self.me();
        me.state.set(State::Step);
        self.stepping.set(true);
        self.hand_over(me);
        trap::in_kernel(true);
    }

    /// Ends the running thread.
    pub(crate) fn stop_thread(&self) -> ! {
        trap::in_kernel(false);
        self.stopped.set(self.stopped.get() + 1);
        self.count(|s| s.stopped += 1);
        let me = self.me();
        self.ended(me);
        self.space.fibers.give(me.fiber.get());
        self.hand_over(me);
        unreachable!("a thread that was ended does not go on");
    }

    /// Ends the dispatch if the running thread has too little stack left to call the checker on it. `pc`: where it would go on.
    #[inline]
    pub(crate) fn need_stack(&self, pc: usize) {
        let here = 0_u8;
        if (&raw const here as usize) < self.floor.get() {
            // The call itself, not what comes after it.
            self.trap.set(Some(Trap { cause: Cause::StackOverflow, pc: pc.saturating_sub(1) }));
            // SAFETY: the scheduler waits while a fiber runs.
            unsafe { self.me().context.switch(&self.scheduler) };
        }
    }

    /// Ends the dispatch if the running thread has no stack left for what the host does on it, whatever the flavour.
    pub(crate) fn need_room(&self) {
        if self.short_of_stack() {
            self.trap.set(Some(Trap { cause: Cause::StackOverflow, pc: 0 }));
            // SAFETY: the scheduler waits while a fiber runs.
            unsafe { self.me().context.switch(&self.scheduler) };
        }
    }

    /// A message of the running thread.
    pub(crate) fn log(&self, level: Level, format: &str, values: &[abi::LogValue]) {
        let mut messages = self.messages.borrow_mut();
        if messages.len() < log::MOST {
            messages.push((Message { level, text: log::format(format, values) }, self.who()));
        } else {
            self.count(|s| s.lost_messages += 1);
        }
    }

    /// Consults the checker about the running thread; nothing in the plain flavour.
    #[inline]
    pub(crate) fn check<R>(&self, f: impl FnOnce(&mut Checker, Who) -> R) -> Option<R> {
        self.checker.borrow_mut().as_deref_mut().map(|c| f(c, self.who()))
    }

    /// Notes what lies where the running thread is about to write.
    #[cold]
    pub(crate) fn note(&self) {
        if let Some(bytes) = self.check(|c, _| c.undecided()).flatten() {
            // SAFETY: the checker has found the bytes in a buffer or in threadgroup memory, which outlive the dispatch.
            unsafe { self.noted.borrow_mut().clone_from_bytes(bytes) };
        }
    }

    /// Tells the checker whether the last write that raced has changed anything, before any other thread does something.
    #[inline]
    pub(crate) fn settle(&self) {
        if self.noted.borrow().is_empty() {
            return;
        }
        let mut noted = self.noted.borrow_mut();
        if let Some(bytes) = self.check(|c, _| c.undecided()).flatten() {
            // SAFETY: as in `note`.
            let same = unsafe { noted.equals_bytes(bytes) };
            self.check(|c, _| c.decide(same));
        }
        noted.clear();
    }

    pub(crate) fn variable(&self, key: usize, size: usize, align: usize, zeroed: bool) -> Option<usize> {
        let (address, new) = self.space.arena.borrow_mut().variable(key, size, align, zeroed)?;
        if new {
            self.check(|c, _| c.threadgroup_memory(address..address + size, None, zeroed));
        }
        Some(address)
    }

    pub(crate) fn report_threadgroup_memory(&self, size: usize) {
        let (used, limit) = {
            let arena = self.space.arena.borrow();
            (arena.used, arena.limit)
        };
        self.events.borrow_mut().push((Event::ThreadgroupMemory { size, used, limit }, self.who()));
    }

    /// What ends the thread that runs, if the stack pointer is on its stack: for signal handlers.
    ///
    /// # Safety
    /// A fiber of this worker runs kernel code on this host thread.
    pub(super) unsafe fn interrupted(
        &self,
        sp: usize,
        cause: impl FnOnce(std::ops::Range<usize>) -> Trap,
    ) -> Option<(usize, usize)> {
        let stack = self.space.fibers.range(self.me().fiber.get());
        let guard = stack.start.checked_sub(super::memory::GUARD)?..stack.start;
        if !guard.contains(&sp) && !stack.contains(&sp) {
            return None;
        }
        self.trap.set(Some(cause(guard)));
        // SAFETY: the scheduler waits while a fiber runs.
        Some(unsafe { self.scheduler.resumes_at() })
    }
}

#[cfg(test)]
mod tests {
    use std::{panic, ptr};

    use super::{Current, Worker};

    #[test]
    fn a_panic_of_the_scheduler_leaves_no_worker_behind() {
        let unwound = panic::catch_unwind(|| {
            let _current = Current::set(ptr::without_provenance(64));
            panic!("planted");
        });
        assert!(unwound.is_err());
        assert!(Worker::with(|_| ()).is_none());
    }
}
