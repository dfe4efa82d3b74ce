//! Formats of several answers, looked after side by side.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread;

use super::super::flight::Flight;
use super::super::sequence::{FormatWork, Sequence};
use super::Scheduler;
use crate::model::LOGITS;

/// Tokens, of all formats together, that are worth a thread.
const WORTH_A_THREAD: usize = 1 << 16;
/// Threads that look after formats at the same time.
static THREADS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, usize::from).min(8));

impl Scheduler<'_> {
    /// Has formats look ahead while the device computes what is chosen by them. A device that has computed it by now would only
    /// wait for them.
    pub(super) fn prepare_formats(&mut self, flight: &Flight) {
        if self.program.depth() > 1 {
            let works = self.running.iter_mut().filter(|s| flight.row_of(s.serial).is_some());
            let works: Vec<_> = works.filter_map(Sequence::format_work).collect();
            side_by_side(threads(works.len(), self.config.vocab_size), works, FormatWork::prepare);
        }
    }

    /// Has formats ban what may not come next. With one alone that is done where its token is chosen.
    pub(super) fn restrict_rows(&mut self, flight: &Flight) {
        if flight.chooses || flight.members.len() < 2 {
            return;
        }
        let (vocab, logits) = (self.config.vocab_size, self.program.output(LOGITS));
        let works = self.running.iter_mut().filter_map(|sequence| {
            let row = flight.row_of(sequence.serial)?;
            let logits = logits.get(row * vocab..(row + 1) * vocab)?;
            Some((sequence.format_work()?, logits))
        });
        let works: Vec<_> = works.collect();
        side_by_side(threads(works.len(), vocab), works, |(work, logits)| work.restrict(logits));
    }
}

/// How many threads so many formats are worth.
fn threads(works: usize, vocab: usize) -> usize {
    works.min(*THREADS).min(works * vocab / WORTH_A_THREAD + 1)
}

/// Does all of the works, on so many threads.
fn side_by_side<T: Send>(threads: usize, works: Vec<T>, run: impl Fn(T) + Sync) {
    let works = Mutex::new(works);
    let next = || works.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let share = || {
        while let Some(work) = next() {
            run(work);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let builder = thread::Builder::new().name("metallic-formats".to_owned());
            // Without a thread, the others do its part.
            if builder.spawn_scoped(scope, share).is_err() {
                break;
            }
        }
        share();
    });
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::side_by_side;

    #[test]
    fn every_work_is_done_once() {
        for count in [0, 1, 2, 7, 100] {
            let done: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            side_by_side(1 + count % 3, done.iter().collect(), |work| {
                work.fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|work| work.load(Ordering::Relaxed) == 1), "{count}");
        }
    }
}
