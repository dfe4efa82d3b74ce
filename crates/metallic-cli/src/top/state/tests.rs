use metallic_telemetry::{Fault, Lost, OpTime, Ops, Record, VERSION, Verify, Warning};

use super::*;
use crate::top::moment::Digester;

fn state(events: impl IntoIterator<Item = (f64, Event)>) -> State {
    let (mut state, mut digester) = (State::default(), Digester::default());
    for (t, event) in events {
        state.apply(&digester.digest(Record { v: VERSION, t, event }));
    }
    state
}

fn step(begin: f64, seconds: f64, tokens: u64, decode_tokens: u64) -> (f64, Event) {
    (begin + seconds, Event::Step(Step { begin, seconds, tokens, decode_tokens, ..Step::default() }))
}

#[test]
fn rates_are_of_the_window_and_fall_to_nothing_when_work_ends() {
    // Two tokens each 0.1 s, for ten seconds.
    let mut state = state((0..100).map(|i| step(f64::from(i) * 0.1, 0.1, 2, 2)));
    let rate = state.rate(Tokens::Decode, 5.0).unwrap();
    for figure in [rate.current, rate.median, rate.p95] {
        assert!((figure - 20.0).abs() < 1e-6, "{rate:?}");
    }
    assert_eq!(state.rate(Tokens::Prefill, 5.0), None);
    // A step may be under way: for a moment the last rate holds.
    state.pass(11.0);
    assert!((state.rate(Tokens::Decode, 5.0).unwrap().current - 20.0).abs() < 1e-6);
    state.pass(14.0);
    assert_eq!(state.rate(Tokens::Decode, 5.0).unwrap().current, 0.0);
    assert_eq!(state.rates(Tokens::Decode, 5.0, 5)[1..], [0.0; 4]);
    state.pass(20.0);
    assert_eq!((state.rate(Tokens::Decode, 5.0), state.latency(5.0)), (None, None));
    assert_eq!(state.totals.decode_tokens, 200);
}

#[test]
fn prompts_and_answers_of_one_step_are_told_apart() {
    let state = state([step(0.0, 1.0, 10, 3)]);
    assert_eq!(state.rate(Tokens::Decode, 5.0).unwrap().current, 3.0);
    assert_eq!(state.rate(Tokens::Prefill, 5.0).unwrap().current, 7.0);
    // More tokens of answers than tokens: a file may say so.
    let state =
        super::tests::state([step(0.0, 1.0, 1, u64::MAX), step(1.0, 1.0, u64::MAX, 0), step(2.0, 1.0, 9, 0)]);
    assert_eq!((state.totals.decode_tokens, state.totals.prefill_tokens), (1, u64::MAX));
}

#[test]
fn operations_leave_the_window_by_the_second() {
    let ops = |t: f64, name: &'static str, layer, seconds| {
        let op = OpTime { op: name.into(), layer, seconds, bytes: 100, ..OpTime::default() };
        (t, Event::Ops(Ops { ops: vec![op], ..Ops::default() }))
    };
    let state = state([
        ops(1.0, "old", Some(0), 9.0),
        ops(10.2, "linear", Some(1), 1.0),
        ops(10.9, "linear", None, 1.0),
        ops(12.0, "attention", Some(0), 3.0),
    ]);
    let names: Vec<_> =
        state.by_op(5.0).iter().map(|(name, cost)| (name.to_string(), cost.seconds)).collect();
    assert_eq!(names, [("attention".to_owned(), 3.0), ("linear".to_owned(), 2.0)]);
    let layers: Vec<_> = state.by_layer(5.0).into_iter().map(|(layer, _)| layer).collect();
    assert_eq!(layers, [Some(0), Some(1), None]);
    assert_eq!((state.timed_steps(5.0), state.timed_steps(60.0), state.by_op(60.0).len()), (3, 4, 3));
}

#[test]
fn first_tokens_and_requests_are_counted() {
    let request = |t, phase, reason: &'static str, ttft_seconds| {
        (t, Event::Request(Request { phase, ttft_seconds, reason: reason.into(), ..Request::default() }))
    };
    let state = state([
        request(0.0, Phase::Queued, "", 0.0),
        request(0.1, Phase::Started, "", 0.0),
        request(0.5, Phase::FirstToken, "", 0.5),
        request(2.0, Phase::Ended, "stop", 0.5),
        request(2.0, Phase::Queued, "", 0.0),
        request(3.0, Phase::Ended, "failed", 0.0),
    ]);
    assert_eq!(state.first_tokens(60.0), [0.5]);
    assert_eq!((state.totals.requests, state.totals.ended, state.totals.failed), (2, 2, 1));
    assert_eq!((state.faults, state.log().len()), (1, 1));
}

#[test]
fn the_log_has_what_degraded_and_what_failed_and_counts_what_repeats() {
    let warning = || Event::Warning(Warning { about: "copy".into(), text: "weights were copied".into() });
    let fallback = ProviderChoice {
        op: "sdpa".into(),
        provider: "plain".into(),
        why: "fallback".into(),
        instead_of: Some("flash".into()),
        error: Some("no kernel".into()),
    };
    let state = state([
        (1.0, warning()),
        (2.0, warning()),
        (3.0, Event::Provider(fallback.clone())),
        (3.5, Event::Provider(fallback)),
        (4.0, Event::Verify(Verify { op: "linear".into(), passed: true, ..Verify::default() })),
        (5.0, Event::Verify(Verify { op: "linear".into(), layer: Some(3), ..Verify::default() })),
        (6.0, Event::Fault(Fault { at: "step".into(), error: "device lost".into() })),
        (7.0, Event::Lost(Lost { records: 4 })),
    ]);
    let log: Vec<_> = state.log().map(|entry| (entry.level, &*entry.about, entry.times)).collect();
    assert_eq!(
        log,
        [
            (Level::Warning, "telemetry", 1),
            (Level::Fault, "step", 1),
            (Level::Fault, "verify", 1),
            (Level::Warning, "provider", 1),
            (Level::Warning, "copy", 2),
        ]
    );
    assert_eq!((state.warnings, state.faults, state.providers.len()), (4, 2, 1));
    assert_eq!(state.verified, Verified { passed: 1, failed: 1 });
    let text = &state.log().nth(3).unwrap().text;
    assert_eq!(text, "sdpa is by plain instead of flash: no kernel");
}

#[test]
fn what_is_kept_has_an_end() {
    let fault = |i: u32| (f64::from(i), Event::Fault(Fault { at: "step".into(), error: i.to_string() }));
    let state = state((0..2100).map(fault));
    assert_eq!((state.log().len(), state.forgotten, state.faults), (MOST_ENTRIES, 100, 2100));
    let cache =
        |i: u32| (0.0, Event::Cache(CacheSummary { cache: i.to_string().into(), ..CacheSummary::default() }));
    assert_eq!(super::tests::state((0..600).map(cache)).caches.len(), MOST_NAMES);
}

#[test]
fn a_process_that_begins_forgets_the_one_before() {
    let start = |pid| Event::Start(Start { pid, ..Start::default() });
    let state = state([(0.0, start(1)), step(1.0, 1.0, 1, 1), (0.5, start(2))]);
    assert_eq!(state.start.as_ref().map(|start| start.pid), Some(2));
    assert_eq!((state.totals.steps, state.now(), state.uptime()), (0, 0.5, 0.0));
}
