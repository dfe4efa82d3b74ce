//! Whose turn it is.
//!
//! A thread that parks hands over to the next lane of its simdgroup itself: one switch. The scheduler, on the host thread's own
//! stack, starts threads, goes from simdgroup to simdgroup and opens barriers.

use std::{
    cell::Cell,
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{
    Finished, Job, abi,
    memory::prefetch,
    switch::Context,
    thread::{State, Thread},
    trap,
    worker::{CURRENT, Current, Space, Worker},
};
use crate::check::{Checker, Event};

/// A simdgroup between its turns.
#[derive(Debug)]
pub(super) struct Simdgroup {
    /// The order in which its lanes run, as offsets from its first thread.
    order: [u8; abi::SIMD_WIDTH],
    lanes: usize,
    /// Some lane can run or waits for a collective.
    busy: bool,
    pending: bool,
    released: bool,
}

/// Who goes on in the current simdgroup.
#[derive(Clone, Copy)]
enum Next {
    /// A thread that waits on a fiber of its own; it is the current one now.
    Waiting(usize),
    /// A thread without a fiber. Its turn is not over yet.
    New(usize),
    /// Nobody, as things are.
    Nobody,
}

/// A zero page for references that nothing is bound to.
#[repr(align(64))]
struct Zeros(#[allow(dead_code)] [u8; 65536]);
static ZEROS: Zeros = Zeros([0; 65536]);

/// The stack of a GPU thread.
const STACK: usize = 256 << 10;
/// Stack that callbacks into the runtime may need.
const ROOM: usize = 16 << 10;

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

/// Runs threadgroups until `next` has no more or the dispatch is stopped.
pub(crate) fn work<'a>(
    job: &'a Job<'a>,
    checker: Option<&'a mut Checker>,
    space: &'a mut Space,
    stop: &'a AtomicBool,
    mut next_group: impl FnMut() -> Option<u64>,
) -> Finished {
    job.image.set_constants(&job.constants);
    space.fit(job.threadgroup.iter().product::<u32>() as usize);
    let worker = Worker::new(job, checker, space, stop);
    worker.allow_own_memory();
    while let Some(n) = next_group() {
        worker.run_group(n);
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Finished { stats: worker.stats.get(), events: worker.events.take(), messages: worker.messages.take() }
}

impl Worker<'_> {
    /// Entry points read the tables of buffers and the zero page, which are not the kernel's.
    fn allow_own_memory(&self) {
        for (start, len) in [
            (self.job.buffers.as_ptr() as usize, size_of_val(&self.job.buffers)),
            (self.tgmem.as_ptr() as usize, size_of_val(&*self.tgmem.borrow())),
            (&raw const ZEROS as usize, size_of::<Zeros>()),
        ] {
            self.check(|c, _| c.allow_reads(start..start + len));
        }
    }

    fn run_group(&self, n: u64) {
        let mut rng = if self.in_order { 0 } else { mix(self.job.seed, n) };
        let (mut groups, mut order) = (self.space.simdgroups.take(), self.space.order.take());
        self.begin_group(n, &mut groups, &mut order, &mut rng);
        self.count(|s| s.threadgroups += 1);
        let current = Current::set(ptr::from_ref(self).cast());
        'group: loop {
            let mut busy = true;
            while busy {
                busy = false;
                for &s in &order {
                    if !groups[s].busy {
                        continue;
                    }
                    if self.stop.load(Ordering::Relaxed)
                        || self.run_simdgroup(s, &mut groups[s], &mut rng).is_none()
                    {
                        self.stop.store(true, Ordering::Relaxed);
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
        drop(current);
        self.settle();
        self.space.fibers.reclaim();
        self.space.simdgroups.set(groups);
        self.space.order.set(order);
    }

    /// Sets up threads, memory and order of threadgroup `n` of the grid.
    fn begin_group(&self, n: u64, groups: &mut Vec<Simdgroup>, order: &mut Vec<usize>, rng: &mut u64) {
        let job = self.job;
        let [gx, gy, _] = job.groups.map(u64::from);
        let group = [(n % gx) as u32, (n / gx % gy) as u32, (n / gx / gy) as u32];
        let size: [u32; 3] =
            std::array::from_fn(|a| job.threadgroup[a].min(job.threads[a] - group[a] * job.threadgroup[a]));
        let total = size.iter().product::<u32>() as usize;
        self.group.set(group);
        self.size.set(size);
        self.total.set(total);
        self.live.set(total);
        self.stopped.set(0);
        self.waiting.set(0);
        self.elsewhere.set(None);
        self.stepping.set(false);
        for t in &self.threads[..total] {
            t.state.set(State::New);
        }
        self.check(|c, _| c.begin_group(n, total));
        self.begin_memory();
        let count = total.div_ceil(abi::SIMD_WIDTH);
        order.clear();
        order.extend(0..count);
        groups.clear();
        groups.extend((0..count).map(|s| {
            let lanes = (total - s * abi::SIMD_WIDTH).min(abi::SIMD_WIDTH);
            let mut order = std::array::from_fn(|i| i as u8);
            if *rng != 0 {
                shuffle(&mut order[..lanes], rng);
            }
            Simdgroup { order, lanes, busy: true, pending: false, released: false }
        }));
        if *rng != 0 {
            shuffle(order, rng);
        }
    }

    fn begin_memory(&self) {
        let mut arena = self.space.arena.borrow_mut();
        arena.clear(self.job.threadgroup_limit);
        for (index, &len) in self.job.threadgroup_memory.iter().enumerate() {
            // Of no bytes it has an address all the same, which nothing may be done with.
            let address = len.and_then(|len| arena.argument(len as usize));
            self.tgmem.borrow_mut()[index] = address.unwrap_or(0) as *mut c_void;
            let (Some(address), Some(len)) = (address, len) else { continue };
            let bytes = address..address + len as usize;
            self.check(|c, _| c.threadgroup_memory(bytes, Some(index as u32), false));
        }
    }

    /// Runs simdgroup `s` until all its lanes wait at a threadgroup barrier or are done, or, in a random schedule, until it is
    /// another's turn. Nothing if the dispatch must stop.
    fn run_simdgroup(&self, s: usize, g: &mut Simdgroup, rng: &mut u64) -> Option<()> {
        self.first.set(s * abi::SIMD_WIDTH);
        self.lanes.set(g.lanes);
        self.pending.set(g.pending);
        loop {
            self.released.set(std::mem::take(&mut g.released));
            self.order.set(g.order);
            self.turn.set(0);
            self.run_lanes()?;
            let pending = self.pending.get() && self.resolve();
            (g.pending, g.busy) = (pending, pending);
            if !pending {
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

    /// Lets the lanes of the current simdgroup run until none can.
    fn run_lanes(&self) -> Option<()> {
        loop {
            let i = match self.next() {
                Next::Waiting(i) => i,
                Next::New(i) => {
                    self.start(i)?;
                    i
                }
                Next::Nobody => return Some(()),
            };
            // SAFETY: thread `i` waits on a fiber or begins on a free one; every fiber comes back here sooner or later, or is
            // brought back by the handler of a signal.
            unsafe { self.scheduler.switch(&self.threads[i].context) };
            if let Some(trap) = self.trap.take() {
                let me = self.me();
                self.ended(me);
                if !self.job.keep_going || self.stop.load(Ordering::Relaxed) {
                    self.events.borrow_mut().push((Event::Trap(trap), self.who()));
                    return None;
                }
                self.event(Event::Trap(trap), self.who());
                self.space.fibers.give(me.fiber.get());
                self.stopped.set(self.stopped.get() + 1);
                self.count(|s| s.stopped += 1);
            }
        }
    }

    /// Gives thread `i` a fiber of its own; its turn has come.
    fn start(&self, i: usize) -> Option<()> {
        let thread = &self.threads[i];
        let Ok((fiber, top)) = self.space.fibers.take(STACK) else {
            self.events.borrow_mut().push((Event::NoMemory, self.who()));
            return None;
        };
        thread.fiber.set(fiber);
        self.take_turn(i);
        // SAFETY: the stack is free, so nothing on it is in use.
        unsafe { thread.context.begin(top, run_threads) };
        Some(())
    }

    pub(super) fn ended(&self, thread: &Thread) {
        thread.state.set(State::Done);
        self.live.set(self.live.get() - 1);
    }

    #[inline]
    fn order_at(&self, turn: usize) -> usize {
        let order: &Cell<[u8]> = &self.order;
        usize::from(order.as_slice_of_cells()[turn].get())
    }

    /// Makes the thread whose turn has come, `i`, the current one.
    #[inline]
    fn take_turn(&self, i: usize) {
        self.turn.set(self.turn.get() + 1);
        self.threads[i].state.set(State::Ready);
        self.current.set(i);
        if self.checked {
            self.settle();
            let stack = self.space.fibers.range(self.threads[i].fiber.get());
            self.floor.set(stack.start + ROOM);
            self.check(|c, _| c.stack = stack);
        }
    }

    /// Who goes on in the current simdgroup. In order, collectives run as soon as all lanes have come; in a random schedule
    /// that is for the scheduler to do.
    #[inline]
    fn next(&self) -> Next {
        loop {
            while self.turn.get() < self.lanes.get() {
                let i = self.first.get() + self.order_at(self.turn.get());
                let runs = match self.threads[i].state.get() {
                    State::New => return Next::New(i),
                    State::Ready | State::Step => true,
                    State::Barrier => self.released.get(),
                    State::Simd | State::SimdBarrier | State::Done => false,
                };
                if runs {
                    self.take_turn(i);
                    self.fetch_next();
                    return Next::Waiting(i);
                }
                self.turn.set(self.turn.get() + 1);
            }
            if self.stepping.take() {
                // All have caught up, and do what comes next. Only then it shows who waits.
                self.turn.set(0);
                self.released.set(false);
            } else if !self.pending.get() || !self.begin_round() {
                return Next::Nobody;
            }
        }
    }

    /// After the last lane's turn, in order: runs the collective that lanes wait for, so that they can go on. False where that
    /// is for the scheduler to do, or there is none.
    #[inline(never)]
    fn begin_round(&self) -> bool {
        let stays = self.in_order && !self.stop.load(Ordering::Relaxed) && !self.short_of_stack();
        if stays && self.resolve() {
            self.released.set(false);
            self.turn.set(0);
            return true;
        }
        false
    }

    /// Whether the running fiber, if one is, has no room for a collective.
    pub(super) fn short_of_stack(&self) -> bool {
        let here = 0_u8;
        let stack = self.space.fibers.range(self.me().fiber.get());
        (stack.start..stack.start + ROOM).contains(&(&raw const here as usize))
    }

    /// Brings the stack of the thread after this one into the cache, and the record of the one after that: with many threads
    /// they have gone since their last turn.
    #[inline]
    fn fetch_next(&self) {
        let turn = self.turn.get();
        if turn < self.lanes.get() {
            let next = self.first.get() + self.order_at(turn);
            let stack = self.threads[next].context.stack_pointer();
            for line in 0..3 {
                prefetch(stack + 64 * line);
            }
            prefetch(self.threads.as_ptr().wrapping_add(next + 1) as usize);
        }
    }

    /// Who gets the processor: that thread, or else the scheduler.
    #[inline]
    fn context_of(&self, next: Next) -> &Context {
        match next {
            Next::Waiting(i) => &self.threads[i].context,
            Next::New(_) | Next::Nobody => &self.scheduler,
        }
    }

    /// Suspends `me`, whose fiber is running, and lets the next thread or the scheduler go on.
    #[inline]
    pub(super) fn hand_over(&self, me: &Thread) {
        let to = self.context_of(self.next());
        // SAFETY: thread `i` waits on its fiber, or is this one; the scheduler waits while a fiber runs.
        unsafe { me.context.switch(to) };
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

/// The body of a fiber: the current thread, then unstarted threads of the same simdgroup, as long as the next in order is one.
extern "C" fn run_threads() -> ! {
    // SAFETY: fibers run only while `run_group` of their worker does, which has set it.
    let worker = unsafe { &*CURRENT.get() };
    loop {
        let ctx = worker.ctx(worker.current.get());
        trap::in_kernel(true);
        // SAFETY: a kernel's entry with a complete context. What the kernel does to memory is its source's business: the checked
        // flavour asks before each access, crashes end the fiber only.
        unsafe { (worker.entry)(&raw const ctx) };
        trap::in_kernel(false);
        let me = worker.me();
        worker.ended(me);
        match worker.next() {
            Next::New(then) => {
                worker.threads[then].fiber.set(me.fiber.get());
                worker.take_turn(then);
            }
            next => {
                worker.space.fibers.give(me.fiber.get());
                // SAFETY: as in `hand_over`. Nobody comes back: the thread is done.
                unsafe { me.context.switch(worker.context_of(next)) };
                unreachable!("a thread that has ended does not go on");
            }
        }
    }
}
