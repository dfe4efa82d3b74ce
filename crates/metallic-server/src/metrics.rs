//! Figures of a server, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use metallic::diff::VerifyCounts;
use metallic::generate::{EngineStats, RequestStats};

/// Upper bounds of the classes of times, in seconds.
const BOUNDS: [f64; 16] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 600.0];

/// How many times lay below each bound.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    classes: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    pub(crate) fn note(&self, time: Duration) {
        let class = BOUNDS.partition_point(|bound| *bound < time.as_secs_f64());
        if let Some(class) = self.classes.get(class) {
            class.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        for (bound, class) in BOUNDS.iter().zip(&self.classes) {
            below += class.load(Ordering::Relaxed);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        // Never less than the classes together, though others count meanwhile.
        let count = self.count.load(Ordering::Relaxed).max(below);
        let seconds = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ =
            writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {seconds}\n{name}_count {count}");
    }
}

/// What a model does.
#[derive(Debug)]
pub(crate) struct Doing {
    pub(crate) model: String,
    pub(crate) engine: EngineStats,
    /// What looking over its steps has found, where that was asked for.
    pub(crate) looked_over: Option<VerifyCounts>,
}

/// A figure of a model: name, kind, meaning, and where it is read; `None` where the model has no such figure.
type Figure = (&'static str, &'static str, &'static str, fn(&Doing) -> Option<u64>);

const FIGURES: [Figure; 11] = [
    ("running", "gauge", "Sequences that take part in steps.", |d| Some(d.engine.running as u64)),
    ("waiting", "gauge", "Requests that wait for room: the queue.", |d| Some(d.engine.waiting as u64)),
    ("cache_blocks_held", "gauge", "Cache blocks of running sequences.", |d| {
        Some(d.engine.held_blocks as u64)
    }),
    ("cache_blocks_kept", "gauge", "Cache blocks kept for prompts to come.", |d| {
        Some(d.engine.cached_blocks as u64)
    }),
    ("cache_blocks_limit", "gauge", "Most cache blocks there may be.", |d| Some(d.engine.block_limit as u64)),
    ("steps_total", "counter", "Steps of the engine.", |d| Some(d.engine.steps)),
    ("computed_tokens_total", "counter", "Tokens computed in steps.", |d| Some(d.engine.computed_tokens)),
    ("guessed_tokens_total", "counter", "Tokens guessed ahead.", |d| Some(d.engine.drafted_tokens)),
    ("right_guesses_total", "counter", "Tokens guessed ahead that were right.", |d| {
        Some(d.engine.accepted_tokens)
    }),
    ("verified_operations_total", "counter", "Operations that were computed again by the reference.", |d| {
        d.looked_over.as_ref().map(|found| found.checked)
    }),
    ("wrong_operations_total", "counter", "Operations whose results rounding does not explain.", |d| {
        d.looked_over.as_ref().map(|found| found.failed)
    }),
];

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    /// By route and status.
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    pub(crate) in_flight: AtomicUsize,
    pub(crate) disconnected: AtomicU64,
    pub(crate) first_token: Histogram,
    pub(crate) token_gap: Histogram,
    pub(crate) duration: Histogram,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    preemptions: AtomicU64,
}

impl Metrics {
    pub(crate) fn count_request(&self, route: &'static str, status: u16, took: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((route, status)).or_default() += 1;
        self.duration.note(took);
    }

    /// Counts what an answer has cost.
    pub(crate) fn count_answer(&self, stats: &RequestStats) {
        for (counter, count) in [
            (&self.prompt_tokens, stats.prompt_tokens),
            (&self.cached_tokens, stats.cached_tokens),
            (&self.preemptions, stats.preemptions),
        ] {
            counter.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_token(&self) {
        self.generated_tokens.fetch_add(1, Ordering::Relaxed);
    }

    /// All of it as text, with what these models are doing.
    pub(crate) fn text(&self, models: &[Doing]) -> String {
        let mut out = String::new();
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        };
        head(
            &mut out,
            "metallic_requests_total",
            "counter",
            "Requests that have ended, by route and status.",
        );
        for ((route, status), count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "metallic_requests_total{{route=\"{route}\",status=\"{status}\"}} {count}");
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, kind, help, value) in [
            (
                "requests_in_flight",
                "gauge",
                "Requests in work.",
                self.in_flight.load(Ordering::Relaxed) as u64,
            ),
            ("disconnects_total", "counter", "Clients that left before the end.", load(&self.disconnected)),
            ("prompt_tokens_total", "counter", "Tokens of prompts.", load(&self.prompt_tokens)),
            (
                "cached_tokens_total",
                "counter",
                "Tokens of prompts that were in the cache.",
                load(&self.cached_tokens),
            ),
            ("generated_tokens_total", "counter", "Tokens generated.", load(&self.generated_tokens)),
            (
                "preemptions_total",
                "counter",
                "Times that an answer was set aside for lack of cache.",
                load(&self.preemptions),
            ),
        ] {
            head(&mut out, &format!("metallic_{name}"), kind, help);
            let _ = writeln!(out, "metallic_{name} {value}");
        }
        self.first_token.write(
            &mut out,
            "metallic_time_to_first_token_seconds",
            "From arrival to the first token.",
        );
        self.token_gap.write(
            &mut out,
            "metallic_time_between_tokens_seconds",
            "Between two tokens of an answer.",
        );
        self.duration.write(&mut out, "metallic_request_seconds", "From arrival to the end of the response.");
        for (name, kind, help, value) in FIGURES {
            let values: Vec<(&str, u64)> =
                models.iter().filter_map(|doing| Some((doing.model.as_str(), value(doing)?))).collect();
            if values.is_empty() && !models.is_empty() {
                continue;
            }
            head(&mut out, &format!("metallic_engine_{name}"), kind, help);
            for (model, value) in values {
                let model = model.replace('\\', "\\\\").replace('"', "\\\"");
                let _ = writeln!(out, "metallic_engine_{name}{{model=\"{model}\"}} {value}");
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_of_a_histogram_add_up() {
        let times = Histogram::default();
        for millis in [1, 5, 6, 700, 5_000_000] {
            times.note(Duration::from_millis(millis));
        }
        let mut text = String::new();
        times.write(&mut text, "t", "Times.");
        for line in ["t_bucket{le=\"0.005\"} 2", "t_bucket{le=\"0.01\"} 3", "t_bucket{le=\"1\"} 4"] {
            assert!(text.contains(line), "{text}");
        }
        assert!(text.contains("t_bucket{le=\"600\"} 4\nt_bucket{le=\"+Inf\"} 5\n"), "{text}");
        assert!(text.contains("t_sum 5000.712\nt_count 5"), "{text}");
    }
}
