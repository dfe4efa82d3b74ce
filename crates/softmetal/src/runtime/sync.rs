//! Where threads meet: collectives of a simdgroup and barriers.

use std::ptr;

use super::{
    abi,
    thread::{State, Thread},
    worker::{CURRENT, Worker},
};
use crate::check::{Event, Who};

/// A divergent barrier in a loop would say the same thing for ever.
const MAX_EVENTS: usize = 256;

impl Worker<'_> {
    pub(super) fn event(&self, event: Event, who: Who) {
        let mut events = self.events.borrow_mut();
        if events.len() < MAX_EVENTS {
            events.push((event, who));
        }
    }

    /// The current thread waits at a threadgroup barrier; all should wait at the same one.
    #[inline]
    pub(super) fn arrived(&self, me: &Thread) {
        let waiting = self.waiting.get();
        self.waiting.set(waiting + 1);
        if waiting == 0 {
            self.barrier.set(self.current.get());
        } else if !me.beside(&self.threads[self.barrier.get()]) {
            self.elsewhere.set(Some(self.current.get()));
        }
    }

    /// Resolves one collective of the current simdgroup: lanes that wait at the same place form a group. False if no lane waits
    /// for one.
    pub(super) fn resolve(&self) -> bool {
        let first = self.first.get();
        let threads = &self.threads[first..first + self.lanes.get()];
        let (mut input, mut output) =
            ([ptr::null_mut(); abi::SIMD_WIDTH], [ptr::null_mut(); abi::SIMD_WIDTH]);
        let (mut leader, mut barrier, mut mask, mut live) = (None, None, 0_u32, 0_u32);
        for (lane, t) in threads.iter().enumerate() {
            match t.state.get() {
                State::Simd => {
                    let leader = *leader.get_or_insert(t);
                    if t.same_collective(leader) {
                        input[lane] = t.input.get();
                        output[lane] = t.output.get();
                        mask |= 1 << lane;
                        t.state.set(State::Ready);
                    }
                }
                State::SimdBarrier => barrier = barrier.or(Some(lane)),
                State::Done => continue,
                _ => {}
            }
            live |= 1 << lane;
        }
        if let Some(leader) = leader {
            if let Some(run) = leader.run.get() {
                // What it does to the lanes' stacks is no access of any thread.
                CURRENT.set(ptr::null());
                // SAFETY: `run` reads and writes only the lanes in `mask`, whose pointers are on the stacks of fibers that wait.
                let asked = unsafe { run(input.as_mut_ptr(), output.as_mut_ptr(), mask) };
                CURRENT.set(ptr::from_ref(self).cast());
                if asked != 0 {
                    self.absent_lane(leader, asked, mask);
                }
            }
            self.count(|s| {
                s.collectives += 1;
                s.divergent_collectives += u64::from(mask != live);
            });
        } else if let Some(leader) = barrier {
            self.release_simdgroup(first / abi::SIMD_WIDTH, threads, leader, live);
        } else {
            self.pending.set(false);
            return false;
        }
        true
    }

    /// Lanes have asked for the value of one that did not come.
    #[cold]
    fn absent_lane(&self, leader: &Thread, asked: u64, here: u32) {
        let (lanes, wanted) = (asked as u32, (asked >> 32) as u32);
        let thread = (self.first.get() as u32) + lanes.trailing_zeros();
        let event = Event::AbsentLane { site: leader.site(), wanted, here };
        self.event(event, Who { thread, group: self.group.get() });
    }

    fn release_simdgroup(&self, s: usize, threads: &[Thread], leader: usize, live: u32) {
        let first = &threads[leader];
        let (mut mask, mut elsewhere) = (0_u32, None);
        for (lane, t) in threads.iter().enumerate() {
            if t.state.get() != State::SimdBarrier {
                continue;
            }
            if !t.beside(first) {
                elsewhere = Some(t);
            }
            mask |= 1 << lane;
            t.state.set(State::Ready);
        }
        self.count(|st| st.simdgroup_barriers += 1);
        if first.flags.get() != abi::MEM_UNTOUCHED {
            self.check(|c, _| c.clock.simdgroup_barrier(s, first.flags.get()));
        }
        if mask != live || elsewhere.is_some() {
            let who = Who { thread: (s * abi::SIMD_WIDTH + leader) as u32, group: self.group.get() };
            let event = Event::SimdDivergence {
                site: first.site(),
                waiting: mask.count_ones(),
                live: live.count_ones(),
                elsewhere: elsewhere.map(Thread::site),
            };
            self.event(event, who);
        }
    }

    pub(super) fn release_barrier(&self) {
        let (leader, waiting, elsewhere) = (self.barrier.get(), self.waiting.take(), self.elsewhere.take());
        let first = &self.threads[leader];
        self.count(|s| s.barriers += 1);
        if first.flags.get() != abi::MEM_UNTOUCHED {
            self.check(|c, _| c.clock.barrier(first.flags.get()));
        }
        // Threads that the checker stopped are missing through no fault of the barrier.
        let total = self.total.get();
        if elsewhere.is_some() || waiting + self.stopped.get() < total {
            let (site, elsewhere) = (first.site(), elsewhere.map(|i| self.threads[i].site()));
            let event = Event::Divergence { site, waiting, total, elsewhere };
            self.event(event, Who { thread: leader as u32, group: self.group.get() });
        }
    }
}
