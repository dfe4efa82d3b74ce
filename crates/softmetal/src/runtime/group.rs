//! One host thread at work: the fibers of a threadgroup, its collectives, barriers and memory.

use std::{
    cell::{Cell, RefCell},
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use corosensei::{CoroutineResult, Yielder};

use super::{
    Job, Stats, abi,
    arena::Arena,
    fibers::{Fiber, Fibers, Slot},
    memory::{self, FiberStack},
    thread::{Call, State, Thread},
    trap::{self, Exit, Running, Trap},
};
use crate::check::{Checker, Event, Who};

/// The order in which the lanes of a simdgroup run, as offsets from its first thread.
struct Simdgroup {
    order: [u8; abi::SIMD_WIDTH],
    lanes: usize,
    /// Some lane can run or waits for a collective.
    busy: bool,
    /// Some lane waits for a collective.
    pending: bool,
    /// The threadgroup barrier that lanes wait at has opened.
    released: bool,
}

/// The state of one host thread during a dispatch. Callbacks reach it through a thread-local while a fiber runs, so all that
/// changes is in cells.
pub(crate) struct Worker<'a> {
    pub(super) job: &'a Job<'a>,
    pub(super) entry: abi::Entry,
    pub(super) threads: Vec<Thread>,
    pub(super) current: Cell<usize>,
    /// Threads of the current threadgroup, per axis and in all.
    pub(super) size: Cell<[u32; 3]>,
    pub(super) total: Cell<usize>,
    pub(super) live: Cell<usize>,
    pub(super) group: Cell<[u32; 3]>,
    /// The lanes of the current simdgroup and how many have had their turn, for threads that finish without ever parking.
    pub(super) first: Cell<usize>,
    pub(super) order: Cell<[u8; abi::SIMD_WIDTH]>,
    pub(super) lanes: Cell<usize>,
    pub(super) turn: Cell<usize>,
    pub(super) arena: RefCell<Arena>,
    pub(super) tgmem: RefCell<[*mut c_void; abi::MAX_THREADGROUP_ARGS]>,
    pub(super) checker: RefCell<Option<&'a mut Checker>>,
    /// Found without instrumentation too.
    pub(super) events: RefCell<Vec<(Event, Who)>>,
    pub(super) checked: bool,
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

/// A zero page for references that nothing is bound to.
#[repr(align(64))]
struct Zeros(#[allow(dead_code)] [u8; 65536]);
static ZEROS: Zeros = Zeros([0; 65536]);

fn shuffle<T>(items: &mut [T], rng: &mut u64) {
    for i in (1..items.len()).rev() {
        items.swap(i, (next(rng) % (i as u64 + 1)) as usize);
    }
}

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Spreads seeds that differ in few bits; never zero.
pub(crate) fn mix(seed: u64, n: u64) -> u64 {
    let mut z =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ n.wrapping_add(1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) | 1
}

// ---- what callbacks use --------------------------------------------------------------------------------------------------------

impl Worker<'_> {
    /// Runs `f` on the worker whose fiber is running on this host thread; nothing if none is.
    #[inline]
    pub(crate) fn with<R>(f: impl FnOnce(&Worker<'static>) -> R) -> Option<R> {
        let p = CURRENT.get();
        // SAFETY: set by `run_group` while threads of that worker run, on this host thread.
        unsafe { p.as_ref() }.map(f)
    }

    fn me(&self) -> &Thread {
        &self.threads[self.current.get()]
    }

    pub(crate) fn lane(&self) -> u32 {
        (self.current.get() % abi::SIMD_WIDTH) as u32
    }

    fn who(&self) -> Who {
        Who { thread: self.current.get() as u32, group: self.group.get() }
    }

    /// Gives control back to the scheduler until the barrier opens.
    #[inline]
    pub(crate) fn wait(&self, state: State, flags: i32, call: Call) {
        let me = self.me();
        // Collectives leave an address on the thread's stack too: it tells the scheduler what to fetch before its turn.
        let here = 0_u8;
        me.input.set((&raw const here).cast_mut().cast());
        me.flags.set(flags);
        Self::park(me, state, call);
    }

    /// Gives control back to the scheduler until the collective has run.
    #[inline]
    pub(crate) fn collect(&self, run: abi::SimdFn, input: *mut c_void, output: *mut c_void, call: Call) {
        let me = self.me();
        me.run.set(Some(run));
        me.input.set(input);
        me.output.set(output);
        Self::park(me, State::Simd, call);
    }

    /// Ends the running thread: its fiber is not resumed again.
    pub(crate) fn stop_thread(&self) {
        Self::park(self.me(), State::Stopped, Call { file: ptr::null(), line: 0, pc: 0 });
    }

    #[inline]
    fn park(me: &Thread, state: State, call: Call) {
        trap::in_kernel(false);
        me.file.set(call.file);
        me.line.set(call.line);
        me.pc.set(call.pc);
        me.state.set(state);
        // SAFETY: the yielder of the fiber this very code runs on.
        unsafe { (*me.yielder.get()).suspend(()) };
        trap::in_kernel(true);
    }

    /// Consults the checker about the running thread; nothing in the plain flavour.
    #[inline]
    pub(crate) fn check<R>(&self, f: impl FnOnce(&mut Checker, Who) -> R) -> Option<R> {
        self.checker.borrow_mut().as_deref_mut().map(|c| f(c, self.who()))
    }

    pub(crate) fn variable(&self, key: usize, size: usize, align: usize, zeroed: bool) -> Option<usize> {
        let (address, new) = self.arena.borrow_mut().variable(key, size, align, zeroed)?;
        if new && let Some(c) = self.checker.borrow_mut().as_deref_mut() {
            c.threadgroup_memory(address..address + size, None, zeroed);
        }
        Some(address)
    }

    pub(crate) fn report_threadgroup_memory(&self, size: usize) {
        self.events
            .borrow_mut()
            .push((Event::ThreadgroupMemory { size, used: self.arena.borrow().used() }, self.who()));
    }
}

// ---- the scheduler -------------------------------------------------------------------------------------------------------------

/// What a host thread brings back.
pub(crate) struct Done {
    pub(crate) stats: Stats,
    pub(crate) events: Vec<(Event, Who)>,
    pub(crate) stacks: Vec<FiberStack>,
}

/// Runs threadgroups until `next` has no more or the dispatch is stopped.
pub(crate) fn work<'a>(
    job: &'a Job<'a>,
    checker: Option<&'a mut Checker>,
    stacks: Vec<FiberStack>,
    stop: &AtomicBool,
    mut next_group: impl FnMut() -> Option<u64>,
) -> Done {
    job.image.set_constants(&job.constants);
    let most = job.threadgroup.iter().product::<u32>() as usize;
    let worker = Worker {
        job,
        entry: job.image.entry(job.kernel),
        threads: (0..most).map(|_| Thread::new()).collect(),
        current: Cell::new(0),
        size: Cell::new([0; 3]),
        total: Cell::new(0),
        live: Cell::new(0),
        group: Cell::new([0; 3]),
        first: Cell::new(0),
        order: Cell::new([0; 32]),
        lanes: Cell::new(0),
        turn: Cell::new(0),
        arena: RefCell::new(Arena::new()),
        tgmem: RefCell::new([ptr::null_mut(); abi::MAX_THREADGROUP_ARGS]),
        checked: checker.is_some(),
        checker: RefCell::new(checker),
        waiting: Cell::new(0),
        barrier: Cell::new(0),
        elsewhere: Cell::new(None),
        events: RefCell::default(),
        stopped: Cell::new(0),
        stats: Cell::default(),
    };
    worker.allow_own_memory();
    let mut fibers = Fibers { made: stacks.len(), stacks, slots: Vec::new(), size: job.stack_size };
    fibers.slots.resize_with(most, || None);
    while let Some(n) = next_group() {
        worker.run_group(n, &mut fibers, stop);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Done {
        stats: worker.stats.get(),
        events: worker.events.take(),
        stacks: std::mem::take(&mut fibers.stacks),
    }
}

impl Worker<'_> {
    /// Entry points read the tables of buffers and the zero page, which are not the kernel's.
    fn allow_own_memory(&self) {
        if let Some(c) = self.checker.borrow_mut().as_deref_mut() {
            for (start, len) in [
                (self.job.buffers.as_ptr() as usize, size_of_val(&self.job.buffers)),
                (self.tgmem.as_ptr() as usize, size_of_val(&*self.tgmem.borrow())),
                (&raw const ZEROS as usize, size_of::<Zeros>()),
            ] {
                c.allow(start..start + len);
            }
        }
    }

    pub(super) fn count(&self, f: impl FnOnce(&mut Stats)) {
        let mut stats = self.stats.get();
        f(&mut stats);
        self.stats.set(stats);
    }

    fn run_group(&self, n: u64, fibers: &mut Fibers, stop: &AtomicBool) {
        let mut rng = if self.job.seed == 0 { 0 } else { mix(self.job.seed, n) };
        let (mut groups, mut order) = self.begin_group(n, &mut rng);
        self.count(|s| s.threadgroups += 1);
        CURRENT.set(ptr::from_ref(self).cast());
        'group: loop {
            let mut busy = true;
            while busy {
                busy = false;
                for &s in &order {
                    if !groups[s].busy {
                        continue;
                    }
                    if stop.load(Ordering::Relaxed)
                        || self.run_simdgroup(s, &mut groups[s], fibers, &mut rng).is_none()
                    {
                        stop.store(true, Ordering::Relaxed);
                        break 'group;
                    }
                    busy |= groups[s].busy;
                }
                if rng != 0 {
                    shuffle(&mut order, &mut rng);
                }
            }
            if self.live.get() == 0 {
                break;
            }
            self.release_barrier();
            for g in &mut groups {
                g.busy = true;
                g.released = true;
                if rng != 0 {
                    shuffle(&mut g.order[..g.lanes], &mut rng);
                }
            }
        }
        CURRENT.set(ptr::null());
        trap::running(ptr::null());
        fibers.clear();
    }

    /// Sets up threads, memory and order of threadgroup `n` of the grid.
    fn begin_group(&self, n: u64, rng: &mut u64) -> (Vec<Simdgroup>, Vec<usize>) {
        let job = self.job;
        let [gx, gy, _] = job.groups.map(u64::from);
        let group = [(n % gx) as u32, (n / gx % gy) as u32, (n / gx / gy) as u32];
        let mut size = [0; 3];
        for axis in 0..3 {
            size[axis] = job.threadgroup[axis].min(job.threads[axis] - group[axis] * job.threadgroup[axis]);
        }
        let total = size.iter().product::<u32>() as usize;
        self.group.set(group);
        self.size.set(size);
        self.total.set(total);
        self.live.set(total);
        self.stopped.set(0);
        self.waiting.set(0);
        self.elsewhere.set(None);
        for t in &self.threads[..total] {
            t.state.set(State::New);
        }
        if let Some(c) = self.checker.borrow_mut().as_deref_mut() {
            c.begin_group(n, group, size);
        }
        self.begin_memory();
        let count = total.div_ceil(abi::SIMD_WIDTH);
        let mut order: Vec<usize> = (0..count).collect();
        let groups = (0..count)
            .map(|s| {
                let lanes = (total - s * abi::SIMD_WIDTH).min(abi::SIMD_WIDTH);
                let mut order = std::array::from_fn(|i| i as u8);
                if *rng != 0 {
                    shuffle(&mut order[..lanes], rng);
                }
                Simdgroup { order, lanes, busy: true, pending: false, released: false }
            })
            .collect();
        if *rng != 0 {
            shuffle(&mut order, rng);
        }
        (groups, order)
    }

    fn begin_memory(&self) {
        let mut arena = self.arena.borrow_mut();
        arena.clear();
        for (index, &len) in self.job.threadgroup_memory.iter().enumerate() {
            let address = if len == 0 { None } else { arena.argument(len as usize) };
            self.tgmem.borrow_mut()[index] = address.unwrap_or(0) as *mut c_void;
            let Some(address) = address else { continue };
            if let Some(c) = self.checker.borrow_mut().as_deref_mut() {
                c.threadgroup_memory(address..address + len as usize, Some(index as u32), false);
            }
        }
    }

    /// Runs simdgroup `s` until all its lanes wait at a threadgroup barrier or are done, or, in a random schedule, until it is
    /// another's turn. Nothing if the dispatch must stop.
    fn run_simdgroup(&self, s: usize, g: &mut Simdgroup, fibers: &mut Fibers, rng: &mut u64) -> Option<()> {
        self.first.set(s * abi::SIMD_WIDTH);
        self.lanes.set(g.lanes);
        loop {
            let released = std::mem::take(&mut g.released);
            self.order.set(g.order);
            self.turn.set(0);
            while let Some(i) = self.take_turn(|_| true) {
                self.fetch_next(fibers);
                let runnable = match self.threads[i].state.get() {
                    State::New | State::Ready => true,
                    State::Barrier => released,
                    _ => false,
                };
                if runnable {
                    g.pending |= self.resume(i, fibers)?;
                }
            }
            g.pending = g.pending && self.resolve(s, g.lanes);
            if !g.pending {
                g.busy = false;
                return Some(());
            }
            if *rng != 0 {
                shuffle(&mut g.order[..g.lanes], rng);
                if next(rng) & 1 == 0 {
                    return Some(());
                }
            }
        }
    }

    #[inline]
    fn order_at(&self, turn: usize) -> u8 {
        let order: &Cell<[u8]> = &self.order;
        order.as_slice_of_cells()[turn].get()
    }

    /// Brings the stack of the thread after this one into the cache: with many threads it has gone since its last turn.
    #[inline]
    fn fetch_next(&self, fibers: &Fibers) {
        if self.turn.get() < self.lanes.get() {
            let next = &self.threads[self.first.get() + usize::from(self.order_at(self.turn.get()))];
            fibers.fetch(next.fiber.get() as usize);
            for line in 0..4 {
                memory::prefetch((next.input.get() as usize).wrapping_sub(64).wrapping_add(64 * line));
            }
        }
    }

    /// The thread whose turn is next in the current simdgroup, if it is as wanted.
    #[inline]
    fn take_turn(&self, wanted: impl FnOnce(&Thread) -> bool) -> Option<usize> {
        let turn = self.turn.get();
        if turn == self.lanes.get() {
            return None;
        }
        let i = self.first.get() + usize::from(self.order_at(turn));
        if !wanted(&self.threads[i]) {
            return None;
        }
        self.turn.set(turn + 1);
        Some(i)
    }

    /// Lets thread `i` run until it, or a thread that took over its fiber, parks; true if at a collective.
    #[inline]
    fn resume(&self, i: usize, fibers: &mut Fibers) -> Option<bool> {
        let thread = &self.threads[i];
        if thread.state.get() == State::New {
            let Ok(slot) = self.new_fiber(i, fibers) else {
                self.events.borrow_mut().push((Event::NoMemory, self.who()));
                return None;
            };
            fibers.slots[i] = Some(slot);
            thread.fiber.set(i as u32);
        }
        self.current.set(i);
        thread.state.set(State::Ready);
        let slot = &mut fibers.slots[thread.fiber.get() as usize];
        let Slot { fiber, running, stack } = slot.as_mut()?;
        if self.checked {
            self.check(|c, _| c.stack(stack.clone()));
        }
        trap::running(running);
        let result = fiber.resume(());
        match result {
            CoroutineResult::Yield(()) => {
                let me = self.me();
                match me.state.get() {
                    State::Barrier => self.arrived(me),
                    State::Stopped => {
                        me.state.set(State::Done);
                        self.live.set(self.live.get() - 1);
                        self.stopped.set(self.stopped.get() + 1);
                        self.count(|s| s.stopped += 1);
                        fibers.recycle(me.fiber.get() as usize);
                    }
                    _ => return Some(true),
                }
                Some(false)
            }
            CoroutineResult::Return(Exit::Finished) => {
                fibers.recycle(self.me().fiber.get() as usize);
                Some(false)
            }
            CoroutineResult::Return(Exit::Trapped(trap)) => {
                self.crashed(trap);
                fibers.recycle(self.me().fiber.get() as usize);
                None
            }
        }
    }

    fn crashed(&self, trap: Trap) {
        self.me().state.set(State::Done);
        self.live.set(self.live.get() - 1);
        self.events.borrow_mut().push((Event::Trap { cause: trap.cause, pc: trap.pc }, self.who()));
    }

    fn new_fiber(&self, i: usize, fibers: &mut Fibers) -> std::io::Result<Slot> {
        let stack = if let Some(stack) = fibers.stacks.pop() {
            stack
        } else {
            fibers.made += 1;
            FiberStack::new(fibers.size, fibers.made)?
        };
        let range = stack.range();
        let me = ptr::from_ref(self).cast::<Worker<'static>>();
        let fiber = Fiber::with_stack(stack, move |yielder, ()| {
            // SAFETY: the worker outlives its fibers: `run_group` clears them before it returns.
            unsafe { &*me }.run_threads(i, yielder);
            Exit::Finished
        });
        let running = Running { handler: fiber.trap_handler(), guard_end: range.start };
        Ok(Slot { fiber, running, stack: range })
    }

    /// The body of a fiber: thread `i`, then unstarted threads of the same simdgroup, as long as the next in order is one.
    fn run_threads(&self, mut i: usize, yielder: &Yielder<(), ()>) {
        let fiber = i as u32;
        loop {
            let thread = &self.threads[i];
            thread.yielder.set(yielder);
            let ctx = self.ctx(i);
            trap::in_kernel(true);
            // SAFETY: a kernel's entry with a complete context. What the kernel does to memory is its source's business: the
            // checked flavour asks before each access, crashes end the fiber only.
            unsafe { (self.entry)(&raw const ctx) };
            trap::in_kernel(false);
            self.threads[self.current.get()].state.set(State::Done);
            self.live.set(self.live.get() - 1);
            let Some(then) = self.take_turn(|t| t.state.get() == State::New) else { return };
            self.threads[then].fiber.set(fiber);
            self.threads[then].state.set(State::Ready);
            self.current.set(then);
            i = then;
        }
    }

    fn ctx(&self, i: usize) -> abi::Ctx {
        let (size, group, job) = (self.size.get(), self.group.get(), self.job);
        let i = i as u32;
        let at = if size[0] == self.total.get() as u32 {
            [i, 0, 0]
        } else {
            [i % size[0], i / size[0] % size[1], i / size[0] / size[1]]
        };
        let in_grid = std::array::from_fn(|a| group[a] * job.threadgroup[a] + at[a]);
        abi::Ctx {
            buffers: job.buffers.as_ptr(),
            tgmem: self.tgmem.as_ptr().cast(),
            zero: (&raw const ZEROS).cast_mut().cast(),
            thread_in_grid: abi::Uint3::from(in_grid),
            threadgroup_in_grid: group.into(),
            thread_in_threadgroup: at.into(),
            threads_per_threadgroup: size.into(),
            threadgroups_per_grid: job.groups.into(),
            threads_per_grid: job.threads.into(),
            dispatch_threads_per_threadgroup: job.threadgroup.into(),
            index_in_threadgroup: i,
            lane: i % abi::SIMD_WIDTH as u32,
            simdgroup: i / abi::SIMD_WIDTH as u32,
            simdgroups: (self.total.get() as u32).div_ceil(abi::SIMD_WIDTH as u32),
        }
    }
}
