//! Work on its way, as the threads see it that wait for it and the ones that report its end.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::batch;
use super::fault::{self, About, Fault};
use crate::error::GpuError;
use crate::gpu::Submission;

/// How a command buffer ended: GPU time as (begin, end) in seconds, or the code and the text of an error.
pub(crate) type Outcome = Result<(f64, f64), (Option<isize>, String)>;

/// What is known of a submission. Each of its command buffers reports once.
pub(crate) struct Progress {
    status: Mutex<Status>,
    done: Condvar,
    begun: Instant,
    about: About,
}

struct Status {
    /// Command buffers on their way.
    pending: usize,
    spans: Vec<(f64, f64)>,
    /// The first one that failed. Those behind it fail because of it.
    fault: Option<(usize, Fault)>,
}

impl Progress {
    /// A submission of so many command buffers.
    pub(crate) fn new(pending: usize, about: About) -> Arc<Progress> {
        let status = Mutex::new(Status { pending, spans: Vec::with_capacity(pending), fault: None });
        Arc::new(Progress { status, done: Condvar::new(), begun: Instant::now(), about })
    }

    /// Notes the end of the command buffer at `index`.
    pub(crate) fn finish(&self, index: usize, outcome: Outcome) {
        let mut status = self.status();
        match outcome {
            Ok(span) => status.spans.push(span),
            Err((code, text)) if status.fault.as_ref().is_none_or(|(first, _)| index < *first) => {
                status.fault = Some((index, Fault { code, text, after: self.begun.elapsed() }));
            }
            Err(_) => {}
        }
        status.pending = status.pending.saturating_sub(1);
        if status.pending == 0 {
            self.done.notify_all();
        }
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The caller's end of a submission. Letting go of it leaves the work running.
pub(crate) struct Running(pub(crate) Arc<Progress>);

impl Submission for Running {
    fn poll(&mut self) -> bool {
        self.0.status().pending == 0
    }

    fn wait(&mut self, bound: Duration) -> Result<Option<Duration>, GpuError> {
        let status = self.0.status();
        let waited = self.0.done.wait_timeout_while(status, bound, |status| status.pending > 0);
        let (status, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if status.pending > 0 {
            return Err(GpuError::Timeout { after: bound });
        }
        match &status.fault {
            Some((_, fault)) => Err(fault::error(fault, &self.0.about)),
            None => Ok(batch::busy(status.spans.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    fn started(pending: usize) -> (Arc<Progress>, Running) {
        let about = About { label: "work".to_owned(), bytes: 1, budget: None };
        let progress = Progress::new(pending, about);
        (progress.clone(), Running(progress))
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
        progress.finish(2, Err((Some(4), "ignored because of an earlier one".to_owned())));
        progress.finish(1, Err((Some(3), "page fault".to_owned())));
        assert!(matches!(running.wait(SOON), Err(GpuError::Timeout { .. })), "one is still on its way");
        progress.finish(0, Ok((1.0, 2.0)));
        let error = running.wait(SOON).unwrap_err();
        assert!(error.to_string().contains("page fault"), "{error}");
        assert_eq!(running.wait(SOON), Err(error), "an error stays");
    }

    #[test]
    fn nothing_to_do_is_done() {
        let (_, mut running) = started(0);
        assert!(running.poll());
        assert_eq!(running.wait(Duration::ZERO), Ok(None));
    }
}
