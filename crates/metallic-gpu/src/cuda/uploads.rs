//! Weights on their way to the GPU, through pinned memory where that can be had; `driver::staging` says in which pieces.

use std::sync::{Arc, Mutex};
use std::thread;

use super::api::{Context, Memory, Slot, Stream};
use super::{Cuda, UnderWay};
use crate::driver::staging::{self, Lane, PIECE, SLOTS};
use crate::error::GpuError;
use crate::lock;

/// The lanes, made when the first upload needs them. They stay: other models and adapters may come.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    lanes: Option<Vec<[Slot; SLOTS]>>,
    /// What is to be said of them.
    pub(super) note: Option<String>,
}

impl Uploads {
    fn lanes(&mut self, context: &Arc<Context>) -> Result<&mut Vec<[Slot; SLOTS]>, GpuError> {
        if self.lanes.is_none() {
            let slot = || Slot::new(context, PIECE);
            let wanted = staging::worth_having(thread::available_parallelism().map_or(1, usize::from));
            let (lanes, note) = staging::lanes_to_be_had(wanted, || Ok([slot()?, slot()?]))?;
            (self.lanes, self.note) = (Some(lanes), note);
        }
        Ok(self.lanes.get_or_insert_default())
    }
}

/// A lane on its way to one buffer.
struct Sending<'a> {
    slots: &'a mut [Slot; SLOTS],
    work: &'a Mutex<(Stream, UnderWay)>,
    memory: &'a Memory,
}

impl Lane for Sending<'_> {
    fn fill(&mut self, slot: usize, bytes: &[u8]) -> Result<(), GpuError> {
        self.slots[slot].fill(bytes)
    }

    fn send(&mut self, slot: usize, to: usize) -> Result<(), GpuError> {
        self.slots[slot].send(&lock(self.work).0, self.memory, to)
    }
}

/// Copies bytes of the host, which are read before this returns, to the beginning of `memory`. What is submitted afterwards finds
/// them there; the caller keeps `memory` until then.
pub(super) fn upload(cuda: &Cuda, memory: &Memory, bytes: &[u8]) -> Result<(), GpuError> {
    let plain = || lock(&cuda.work).0.upload(memory, 0, bytes);
    if bytes.len() < staging::LEAST {
        return plain();
    }
    let mut uploads = lock(&cuda.uploads);
    let lanes = uploads.lanes(&cuda.context)?;
    let count = staging::lanes(bytes.len(), lanes.len());
    if count == 0 {
        return plain();
    }
    let lanes: Vec<Mutex<&mut [Slot; SLOTS]>> = lanes[..count].iter_mut().map(Mutex::new).collect();
    let send = |number: usize| {
        let mut slots = lock(&lanes[number]);
        let mut sending = Sending { slots: &mut slots, work: &cuda.work, memory };
        staging::send(&mut sending, bytes, (number, count))
    };
    let sent = on_threads(count, &send);
    if sent.is_err() {
        // Nothing may be under way to memory that goes. What this says was said before.
        let _ = lock(&cuda.work).0.wait();
    }
    sent
}

/// Does `work` for each number, all at once; those that no thread can be had for one after another.
fn on_threads(count: usize, work: &(dyn Fn(usize) -> Result<(), GpuError> + Sync)) -> Result<(), GpuError> {
    thread::scope(|scope| {
        let (mut own, mut running) = (vec![0], Vec::new());
        for number in 1..count {
            match thread::Builder::new().spawn_scoped(scope, move || work(number)) {
                Ok(started) => running.push(started),
                Err(_) => own.push(number),
            }
        }
        let mut done = own.into_iter().try_for_each(work);
        for thread in running {
            let broken = |_| Err(GpuError::execution("an upload", "its thread broke off"));
            done = done.and(thread.join().unwrap_or_else(broken));
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_lane_is_served_and_one_that_fails_is_told_after_all_have_ended() {
        let ended = AtomicUsize::new(0);
        let done = on_threads(4, &|number| {
            ended.fetch_add(1, Ordering::Relaxed);
            if number == 2 { Err(GpuError::execution("a copy", "it failed")) } else { Ok(()) }
        });
        assert!(done.unwrap_err().to_string().contains("it failed"));
        assert_eq!(ended.load(Ordering::Relaxed), 4);
        assert_eq!(on_threads(1, &|_| Ok(())), Ok(()));
    }
}
