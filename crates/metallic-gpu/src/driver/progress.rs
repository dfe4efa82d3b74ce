//! Work on its way, as the threads see it that wait for it and the ones that report its end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::batch;
use crate::error::GpuError;
use crate::gpu::Submission;
use crate::lock;

/// What is known of a submission. Each of its command buffers reports once.
pub(crate) struct Progress {
    /// Command buffers in all.
    count: usize,
    status: Mutex<Status>,
    done: Condvar,
}

struct Status {
    /// Command buffers on their way.
    pending: usize,
    spans: Vec<(f64, f64)>,
    /// The first one that failed. Those behind it fail because of it.
    fault: Option<(usize, GpuError)>,
}

impl Status {
    fn fail(&mut self, index: usize, error: GpuError) {
        if self.fault.as_ref().is_none_or(|(first, _)| index < *first) {
            self.fault = Some((index, error));
        }
    }
}

impl Progress {
    fn new(count: usize) -> Arc<Progress> {
        let status = Mutex::new(Status { pending: count, spans: Vec::with_capacity(count), fault: None });
        Arc::new(Progress { count, status, done: Condvar::new() })
    }

    /// Notes the end of the command buffer at `index`: its GPU time as (begin, end) in seconds, or how it failed.
    pub(crate) fn finish(&self, index: usize, outcome: Result<(f64, f64), GpuError>) {
        let mut status = lock(&self.status);
        match outcome {
            Ok(span) => status.spans.push(span),
            Err(error) => status.fail(index, error),
        }
        self.ended(status, 1);
    }

    /// Notes that the command buffers from `index` on never came to be.
    fn give_up(&self, index: usize, error: GpuError) {
        let mut status = lock(&self.status);
        status.fail(index, error);
        self.ended(status, self.count.saturating_sub(index));
    }

    fn ended(&self, mut status: MutexGuard<'_, Status>, count: usize) {
        status.pending = status.pending.saturating_sub(count);
        if status.pending == 0 {
            self.done.notify_all();
        }
    }
}

/// The caller's end of a submission. Letting go of it leaves the work running.
pub(crate) struct Running(Arc<Progress>);

impl Running {
    /// Hands over `count` command buffers, each by one call of `commit` with its index. An error with the first means
    /// that nothing runs. After that something does, on memory of the caller, so an error waits until it has ended.
    pub(crate) fn start(
        count: usize,
        mut commit: impl FnMut(usize, &Arc<Progress>) -> Result<(), GpuError>,
    ) -> Result<Running, GpuError> {
        let progress = Progress::new(count);
        for index in 0..count {
            match commit(index, &progress) {
                Ok(()) => {}
                Err(error) if index == 0 => return Err(error),
                Err(error) => {
                    progress.give_up(index, error);
                    break;
                }
            }
        }
        Ok(Running(progress))
    }
}

impl Submission for Running {
    fn command_buffers(&self) -> u64 {
        self.0.count as u64
    }

    fn poll(&mut self) -> bool {
        lock(&self.0.status).pending == 0
    }

    fn wait(&mut self, bound: Duration) -> Result<Option<Duration>, GpuError> {
        let status = lock(&self.0.status);
        let waited = self.0.done.wait_timeout_while(status, bound, |status| status.pending > 0);
        let (status, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if status.pending > 0 {
            return Err(GpuError::Timeout { after: bound });
        }
        match &status.fault {
            Some((_, error)) => Err(error.clone()),
            None => Ok(batch::busy(status.spans.clone())),
        }
    }
}

/// The times of the commands of a list, as they become known.
pub(crate) struct Times(Mutex<Vec<Duration>>);

impl Times {
    /// Of so many commands.
    pub(crate) fn of(commands: usize) -> Arc<Times> {
        Arc::new(Times(Mutex::new(vec![Duration::ZERO; commands])))
    }

    /// Adds time to that of the command at `index`: one may take several launches.
    pub(crate) fn add(&self, index: usize, time: Duration) {
        if let Some(sum) = lock(&self.0).get_mut(index) {
            *sum += time;
        }
    }
}

/// Where the times of commands are read once all are done.
pub(crate) trait Clock: Send {
    fn read(&self) -> Result<Vec<Duration>, GpuError>;
}

impl Clock for Arc<Times> {
    fn read(&self) -> Result<Vec<Duration>, GpuError> {
        Ok(lock(&self.0).clone())
    }
}

/// A submission of which each command is timed.
pub(crate) struct Timed<R, C> {
    pub(crate) running: R,
    pub(crate) times: C,
}

impl<R: Submission, C: Clock> Submission for Timed<R, C> {
    fn command_buffers(&self) -> u64 {
        self.running.command_buffers()
    }

    fn poll(&mut self) -> bool {
        self.running.poll()
    }

    fn wait(&mut self, bound: Duration) -> Result<Option<Duration>, GpuError> {
        self.running.wait(bound)
    }

    fn times(&mut self) -> Result<Vec<Duration>, GpuError> {
        self.times.read()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    fn started(count: usize) -> (Arc<Progress>, Running) {
        let running = Running::start(count, |_, _| Ok(())).unwrap();
        (running.0.clone(), running)
    }

    /// `count` command buffers, of which the one at `missing` cannot be made.
    fn cut_short(count: usize, missing: usize) -> (Vec<usize>, Result<Running, GpuError>) {
        let mut committed = Vec::new();
        let running = Running::start(count, |index, _| {
            if index == missing {
                return Err(GpuError::Missing("no command buffer".to_owned()));
            }
            committed.push(index);
            Ok(())
        });
        (committed, running)
    }

    #[test]
    fn a_wait_ends_with_the_last_command_buffer() {
        let (progress, mut running) = started(3);
        assert!(!running.poll());
        assert_eq!(running.wait(SOON), Err(GpuError::Timeout { after: SOON }));
        let reports = thread::spawn(move || {
            for index in [1, 0, 2] {
                thread::sleep(Duration::from_millis(5));
                let begin = 1.0 + index as f64;
                progress.finish(index, Ok((begin, begin + 0.5)));
            }
        });
        assert_eq!(running.wait(LONG), Ok(Some(Duration::from_millis(1500))));
        assert!(running.poll());
        assert_eq!(running.wait(Duration::ZERO), Ok(Some(Duration::from_millis(1500))), "and again");
        reports.join().unwrap();
    }

    #[test]
    fn the_first_command_buffer_that_fails_is_the_error_whoever_reports_first() {
        let (progress, mut running) = started(3);
        progress.finish(2, Err(GpuError::execution("work", "ignored because of an earlier one")));
        progress.finish(1, Err(GpuError::execution("work", "page fault")));
        assert!(matches!(running.wait(SOON), Err(GpuError::Timeout { .. })), "one is still on its way");
        progress.finish(0, Ok((1.0, 2.0)));
        let error = running.wait(SOON).unwrap_err();
        assert!(error.to_string().contains("page fault"), "{error}");
        assert_eq!(running.wait(SOON), Err(error), "an error stays");
    }

    #[test]
    fn what_cannot_be_handed_over_is_told_when_what_was_has_ended() {
        let (committed, running) = cut_short(4, 2);
        assert_eq!(committed, [0, 1], "nothing follows what is missing");
        let mut running = running.unwrap();
        let progress = running.0.clone();
        progress.finish(1, Ok((2.0, 3.0)));
        assert!(!running.poll());
        assert_eq!(running.wait(SOON), Err(GpuError::Timeout { after: SOON }), "the first one still runs");
        progress.finish(0, Ok((1.0, 2.0)));
        assert!(running.poll());
        let error = GpuError::Missing("no command buffer".to_owned());
        assert_eq!(running.wait(Duration::ZERO), Err(error));
    }

    #[test]
    fn a_fault_of_what_was_handed_over_comes_before_what_could_not_be() {
        let mut running = cut_short(3, 1).1.unwrap();
        running.0.finish(0, Err(GpuError::execution("work", "page fault")));
        let error = running.wait(Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("page fault"), "{error}");
    }

    #[test]
    fn an_error_before_anything_runs_is_told_at_once() {
        let (committed, running) = cut_short(3, 0);
        assert!(committed.is_empty());
        assert_eq!(running.err(), Some(GpuError::Missing("no command buffer".to_owned())));
    }

    #[test]
    fn a_submission_knows_its_command_buffers() {
        assert_eq!([0, 1, 7].map(|count| started(count).1.command_buffers()), [0, 1, 7]);
    }

    #[test]
    fn nothing_to_do_is_done() {
        let (_, mut running) = started(0);
        assert!(running.poll());
        assert_eq!(running.wait(Duration::ZERO), Ok(None));
    }
}
