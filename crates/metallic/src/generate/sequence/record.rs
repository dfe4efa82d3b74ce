//! When things happened to a request and what they cost.

use std::time::Instant;

use metallic_core::RunStats;
use metallic_telemetry::{Phase, emit};

use super::super::{FinishReason, RequestStats};
use super::{Outcome, Sequence};
use crate::telemetry::tell;

/// When things happened and what they cost.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) submitted: Instant,
    pub(super) admitted: Option<Instant>,
    pub(super) first_token: Option<Instant>,
    pub(super) last_token: Option<Instant>,
    /// Tokens chosen, the one that ended the answer included.
    pub(super) chosen: usize,
    pub(super) cached_tokens: usize,
    pub(super) cost: RunStats,
    pub(super) preemptions: usize,
}

impl Record {
    pub(super) fn new(submitted: Instant) -> Self {
        Self {
            submitted,
            admitted: None,
            first_token: None,
            last_token: None,
            chosen: 0,
            cached_tokens: 0,
            cost: RunStats::default(),
            preemptions: 0,
        }
    }
}

impl Sequence<'_> {
    /// Tells how far it is, or why it is over.
    pub(in crate::generate) fn tell(&self, phase: Phase, reason: &'static str) {
        emit(|| {
            let stats = self.stats();
            metallic_telemetry::Event::Request(metallic_telemetry::Request {
                id: self.serial,
                phase,
                prompt_tokens: stats.prompt_tokens as u64,
                cached_tokens: stats.cached_tokens as u64,
                generated_tokens: stats.generated_tokens as u64,
                queued_seconds: stats.queued_s,
                ttft_seconds: stats.ttft_s,
                decode_tps: stats.decode_tps,
                reason: reason.into(),
            })
        });
    }

    /// Tells that it is over.
    pub(in crate::generate) fn tell_end(&self, outcome: &Outcome) {
        let reason = match outcome {
            Ok(FinishReason::Stop) => "stop",
            Ok(FinishReason::Length) => "length",
            Ok(FinishReason::Cancelled) => "cancelled",
            Ok(FinishReason::Deadline) => "deadline",
            Err(error) => {
                tell::fault("request", error);
                "failed"
            }
        };
        self.tell(Phase::Ended, reason);
    }

    pub(super) fn stats(&self) -> RequestStats {
        let record = &self.record;
        let seconds = |from: Option<Instant>, to: Option<Instant>| match (from, to) {
            (Some(from), Some(to)) => (to - from).as_secs_f64(),
            _ => 0.0,
        };
        let rate = |count: usize, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let submitted = Some(record.submitted);
        let prefill_s = seconds(record.admitted, record.first_token);
        let decode_s = seconds(record.first_token, record.last_token);
        RequestStats {
            queued_s: seconds(submitted, record.admitted),
            ttft_s: seconds(submitted, record.first_token),
            prompt_tokens: self.prompt_len,
            cached_tokens: record.cached_tokens,
            prefill_s,
            prefill_tps: rate(self.prompt_len - record.cached_tokens, prefill_s),
            generated_tokens: self.tokens.len() - self.prompt_len,
            decode_s,
            decode_tps: rate(record.chosen.saturating_sub(1), decode_s),
            dispatches: record.cost.dispatches,
            submissions: record.cost.submissions,
            allocations: record.cost.allocations,
            arena_bytes: record.cost.arena_bytes,
            bytes_read: record.cost.bytes_read,
            bytes_written: record.cost.bytes_written,
            cache_hits: record.cost.cache_hits,
            cache_misses: record.cost.cache_misses,
            preemptions: record.preemptions,
            drafted_tokens: self.guess.as_ref().map_or(0, |guess| guess.drafted),
            accepted_tokens: self.guess.as_ref().map_or(0, |guess| guess.accepted),
            seed: self.sampler.seed(),
        }
    }
}
