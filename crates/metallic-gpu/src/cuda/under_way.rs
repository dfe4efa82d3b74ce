//! What work uses, kept until it is done.

use std::collections::VecDeque;
use std::sync::Arc;

use super::api::{Event, Stream};
use super::replay::Recorded;
use super::{Buffer, Ready};
use crate::error::GpuError;

/// Everything that work uses until it is done.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) buffers: Vec<Arc<Buffer>>,
    pub(super) pipelines: Vec<Arc<Ready>>,
    #[expect(dead_code, reason = "held until the work is done")]
    pub(super) recorded: Option<Arc<Recorded>>,
}

/// What is under way, oldest first, each with the moment it is done.
#[derive(Debug, Default)]
pub(super) struct UnderWay(VecDeque<(Arc<Event>, Kept)>);

impl UnderWay {
    /// Keeps what the work uses that was just handed to the stream, and says when it is done. Where that cannot be told all of the
    /// stream is waited for: nothing may be under way to what goes.
    pub(super) fn keep(&mut self, stream: &Stream, kept: Kept) -> Result<Arc<Event>, GpuError> {
        match Event::after(stream) {
            Ok(end) => {
                let end = Arc::new(end);
                self.0.push_back((end.clone(), kept));
                Ok(end)
            }
            Err(error) => stream.wait().and(Err(error)),
        }
    }

    /// Lets go of what is done.
    pub(super) fn sweep(&mut self) {
        // What cannot be asked any more has ended with its device.
        while self.0.front().is_some_and(|(end, _)| end.is_past().unwrap_or(true)) {
            self.0.pop_front();
        }
    }

    /// Waits for all there is, and lets go of it; whether there was any.
    pub(super) fn finish(&mut self, stream: &Stream) -> Result<bool, GpuError> {
        let any = !self.0.is_empty();
        if any {
            stream.wait()?;
            self.sweep();
        }
        Ok(any)
    }
}
