//! Work on its way, as whoever waits for it sees it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::api::Event;
use super::work::named;
use crate::error::GpuError;
use crate::gpu::Submission;

/// Work on its way.
pub(super) struct Running {
    pub(super) label: String,
    pub(super) start: Event,
    pub(super) end: Arc<Event>,
}

/// How long a wait asks without pause before it lets other threads run.
const EAGER: Duration = Duration::from_micros(500);

impl Submission for Running {
    fn command_buffers(&self) -> u64 {
        1
    }

    fn poll(&mut self) -> bool {
        self.end.is_past().unwrap_or(true)
    }

    fn wait(&mut self, bound: Duration) -> Result<Option<Duration>, GpuError> {
        let begun = Instant::now();
        while !self.end.is_past().map_err(|error| named(error, &self.label))? {
            let waited = begun.elapsed();
            if waited > bound {
                return Err(GpuError::Timeout { after: bound });
            }
            if waited < EAGER { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        let seconds = self.end.seconds_since(&self.start)?;
        Ok(Some(Duration::from_secs_f64(seconds.max(0.0))))
    }
}
