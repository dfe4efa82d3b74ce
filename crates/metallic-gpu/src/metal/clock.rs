//! The moments when dispatches begin and end, as the GPU notes them: each has an encoder of its own, at whose ends Apple's GPUs
//! can note the time, and inside of which they cannot.

use std::sync::Arc;
use std::time::Duration;

use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSRange, NSString};
use objc2_metal::{
    MTLCommandBuffer, MTLCommonCounterSetTimestamp, MTLComputeCommandEncoder, MTLComputePassDescriptor,
    MTLCounterSampleBuffer, MTLCounterSampleBufferDescriptor, MTLCounterSamplingPoint, MTLCounterSet,
    MTLDevice as _, MTLDispatchType, MTLStorageMode,
};

use super::device::RawDevice;
use crate::driver::progress::Times;
use crate::driver::ticks;
use crate::error::GpuError;

/// What notes times on a GPU, and where they go.
pub(super) struct Clock {
    device: RawDevice,
    counters: Retained<ProtocolObject<dyn MTLCounterSet>>,
    pub(super) times: Arc<Times>,
}

impl Clock {
    /// For a list of so many commands; an error where the GPU cannot note times.
    pub(super) fn new(device: &RawDevice, commands: usize) -> Result<Clock, GpuError> {
        let cannot = |what: &str| GpuError::unsupported("time of each operation", format!("the GPU {what}"));
        if !device.supportsCounterSampling(MTLCounterSamplingPoint::AtStageBoundary) {
            return Err(cannot("notes no times between encoders"));
        }
        // SAFETY: it is a constant of the framework.
        let name: &NSString = unsafe { MTLCommonCounterSetTimestamp };
        let sets = device.counterSets().map(|sets| sets.to_vec()).unwrap_or_default();
        let counters = sets.into_iter().find(|set| *set.name() == *name);
        let counters = counters.ok_or_else(|| cannot("has no counter of time"))?;
        Ok(Clock { device: device.clone(), counters, times: Times::of(commands) })
    }

    /// Room for the moments of the steps of a run, by their commands.
    pub(super) fn samples(&self, label: &NSString, commands: Vec<usize>) -> Result<Samples, GpuError> {
        let descriptor = MTLCounterSampleBufferDescriptor::new();
        descriptor.setCounterSet(Some(&self.counters));
        descriptor.setLabel(label);
        descriptor.setStorageMode(MTLStorageMode::Shared);
        // SAFETY: runs were cut so that it is no more than a buffer holds.
        unsafe { descriptor.setSampleCount(2 * commands.len()) };
        let made = self.device.newCounterSampleBufferWithDescriptor_error(&descriptor);
        let raw = made.map_err(|error| {
            GpuError::execution(label.to_string(), error.localizedDescription().to_string())
        })?;
        Ok(Samples { raw: Some(raw), commands, times: self.times.clone() })
    }

    /// For a run of one step whose time is that of the run: a library of Apple's has encoders of its own, whose ends nobody notes.
    pub(super) fn whole(&self, command: usize) -> Samples {
        Samples { raw: None, commands: vec![command], times: self.times.clone() }
    }
}

/// The moments of the steps of a run.
pub(super) struct Samples {
    /// `None` where the run is one step, which takes as long as the run.
    raw: Option<Retained<ProtocolObject<dyn MTLCounterSampleBuffer>>>,
    commands: Vec<usize>,
    times: Arc<Times>,
}

// SAFETY: Metal lets any thread use it; it is read once, after the GPU is done.
unsafe impl Send for Samples {}
// SAFETY: as above.
unsafe impl Sync for Samples {}

impl Samples {
    /// Whether the ends of encoders are noted.
    pub(super) fn notes_steps(&self) -> bool {
        self.raw.is_some()
    }

    /// An encoder for the step at `index`, whose ends are noted.
    pub(super) fn encoder(
        &self,
        command_buffer: &ProtocolObject<dyn MTLCommandBuffer>,
        index: usize,
    ) -> Option<Retained<ProtocolObject<dyn MTLComputeCommandEncoder>>> {
        let pass = MTLComputePassDescriptor::computePassDescriptor();
        pass.setDispatchType(MTLDispatchType::Serial);
        // SAFETY: a pass has several attachments; both places are inside the buffer, which has two for each step.
        unsafe {
            let attachment = pass.sampleBufferAttachments().objectAtIndexedSubscript(0);
            attachment.setSampleBuffer(self.raw.as_deref());
            attachment.setStartOfEncoderSampleIndex(2 * index);
            attachment.setEndOfEncoderSampleIndex(2 * index + 1);
        }
        command_buffer.computeCommandEncoderWithDescriptor(&pass)
    }

    /// Tells the times of the steps, which took `span` seconds together; whether they were noted.
    pub(super) fn tell(&self, span: f64) -> bool {
        let span = Duration::try_from_secs_f64(span).unwrap_or_default();
        let Some(raw) = &self.raw else {
            self.commands.iter().for_each(|command| self.times.add(*command, span));
            return true;
        };
        let range = NSRange { location: 0, length: 2 * self.commands.len() };
        // SAFETY: the range is all of the buffer, and the GPU is done with it.
        let bytes = unsafe { raw.resolveCounterRange(range) }.map(|data| data.to_vec());
        let moments = bytes.map(|bytes| ticks::moments(&bytes)).unwrap_or_default();
        let Some(durations) = ticks::durations(&moments, span) else { return false };
        for (command, time) in self.commands.iter().zip(durations) {
            self.times.add(*command, time);
        }
        true
    }
}
