//! Screens as text, in `snapshots`. `UPDATE_SNAPSHOTS=1` writes them anew.

use std::{env, fs, path::Path};

use metallic_telemetry::{
    CacheSummary, Compile, CompileSource, Event, Fault, Load, Memory, OpTime, Ops, Owned, Phase, PoolSummary,
    Preemption, ProviderChoice, Queue, Record, Request, Start, Step, VERSION, Warning,
};
use ratatui_core::{backend::TestBackend, terminal::Terminal};

use super::*;
use crate::top::{moment::Digester, still};

const LAYERS: u32 = 6;

/// A run of forty seconds with all kinds of events: four requests, one after the other, on a device that reads 40 GB/s.
fn run() -> State {
    let (mut state, mut digester) = (State::default(), Digester::default());
    let mut tell = |t: f64, event| state.apply(&digester.digest(Record { v: VERSION, t, event }));
    for event in beginning() {
        tell(0.1, event);
    }
    for request in 0..4_u64 {
        let begin = 1.0 + request as f64 * 9.5;
        tell(begin, asked(request, Phase::Queued, 0.0));
        tell(begin + 0.8, step(begin + 0.1, 0.7, 96, 0));
        tell(begin + 0.85, asked(request, Phase::FirstToken, 0.8 + 0.1 * request as f64));
        for token in 0..120_u32 {
            let (at, seconds) = (begin + 0.9 + f64::from(token) * 0.06, 0.05 + 0.004 * f64::from(token % 7));
            tell(at + seconds, step(at, seconds, 1, 1));
            if token % 10 == 0 {
                tell(at + seconds, timed(at, seconds));
            }
        }
        tell(begin + 8.2, asked(request, Phase::Ended, 0.8));
    }
    for event in ending() {
        tell(39.0, event);
    }
    state
}

fn asked(id: u64, phase: Phase, ttft_seconds: f64) -> Event {
    Event::Request(Request { id, phase, ttft_seconds, prompt_tokens: 96, ..Request::default() })
}

fn step(begin: f64, seconds: f64, tokens: u64, decode_tokens: u64) -> Event {
    Event::Step(Step { begin, seconds, tokens, decode_tokens, sequences: 1, ..Step::default() })
}

fn timed(begin: f64, seconds: f64) -> Event {
    let op = |op: &'static str, part: &'static str, layer, share: f64, bytes| OpTime {
        op: op.into(),
        part: part.into(),
        layer,
        seconds: seconds * share,
        bytes,
        ..OpTime::default()
    };
    let of_layer = |layer| {
        [
            op("attention_in", "attn_qkv", Some(layer), 0.030, 40_000_000),
            op("attention", "", Some(layer), 0.015, 4_000_000),
            op("linear", "attn_output", Some(layer), 0.020, 24_000_000),
            op("gated", "ffn_gate_up", Some(layer), 0.055 + 0.001 * f64::from(layer), 90_000_000),
            op("linear", "ffn_down", Some(layer), 0.030, 45_000_000),
        ]
    };
    let head =
        [op("linear", "output", None, 0.08, 150_000_000), op("rms_norm", "output_norm", None, 0.002, 0)];
    let ops = (0..LAYERS).flat_map(of_layer).chain(head).collect();
    Event::Ops(Ops { begin, tokens: 1, ops, ..Ops::default() })
}

fn provider(op: &'static str, name: &'static str, why: &'static str) -> ProviderChoice {
    ProviderChoice { op: op.into(), provider: name.into(), why: why.into(), ..ProviderChoice::default() }
}

fn beginning() -> Vec<Event> {
    let fallback = ProviderChoice {
        instead_of: Some("mpsgraph".into()),
        error: Some("graphs of 64 keys are not supported on this device".to_owned()),
        ..provider("sdpa", "flash", "fallback")
    };
    let kernel = |name: &str, source, error| {
        Event::Compile(Compile {
            what: "pipeline".into(),
            name: name.to_owned(),
            source,
            seconds: 0.2,
            error,
        })
    };
    vec![
        Event::Start(Start { program: "metallic run".into(), version: "0.1.0".into(), pid: 4711, unix: 0.0 }),
        Event::Load(Load {
            model: "SmolLM2-135M-\u{1b}[31mInstruct-Q8_0.gguf".to_owned(),
            family: "llama".into(),
            layers: LAYERS,
            weights: "Q8_0".into(),
            device: "metal".into(),
            device_name: "Apple M3 Max".to_owned(),
            kv_type: "F16".into(),
            context: 8192,
            seconds: 0.4,
            compile_seconds: 0.3,
            peak_bytes_per_second: Some(40e9),
        }),
        Event::Provider(provider("matmul", "tiles", "default")),
        Event::Provider(fallback),
        Event::Provider(provider("norm", "rows", "override")),
        kernel("linear_q8", CompileSource::Compiled, None),
        kernel("attention_decode_1", CompileSource::Disk, None),
        kernel("attention_tensor", CompileSource::Compiled, Some("no such function".to_owned())),
    ]
}

fn ending() -> Vec<Event> {
    let owner = |owner: &'static str, bytes| Owned { owner: owner.into(), bytes };
    let owners = vec![owner("arena", 9_000_000), owner("weights", 143_000_000), owner("kv", 47_000_000)];
    let cache = |cache: &'static str, entries, hits, misses, evictions| {
        Event::Cache(CacheSummary {
            cache: cache.into(),
            entries,
            limit: (cache != "libraries").then_some(64),
            hits,
            misses,
            evictions,
            make_seconds: misses as f64 * 0.031,
            oldest_seconds: Some(38.0),
            idle_seconds: (cache != "prefixes").then_some(0.4),
        })
    };
    let pool = PoolSummary {
        pool: "buffers".into(),
        live_bytes: 52_000_000,
        idle_bytes: 8_000_000,
        peak_bytes: 71_000_000,
        budget_bytes: None,
        allocations: 31,
        reuses: 940,
    };
    let copied =
        "weights of `blk.0.ffn_down` were copied: the file has them at an odd place, 32 bytes were needed";
    vec![
        Event::Queue(Queue {
            waiting: 2,
            running: 3,
            held_blocks: 340,
            cached_blocks: 60,
            reserved_blocks: 420,
            block_limit: 512,
            preemptions: 1,
            prefix_tokens: 192,
        }),
        Event::Memory(Memory { owners, budget_bytes: Some(400_000_000) }),
        cache("libraries", 3, 0, 3, 0),
        cache("pipelines", 41, 980, 41, 0),
        cache("plans", 64, 871, 93, 29),
        cache("prefixes", 0, 0, 0, 0),
        Event::Pool(pool),
        Event::Warning(Warning { about: "copy".into(), text: copied.to_owned() }),
        Event::Preemption(Preemption { id: 2, tokens: 140 }),
        Event::Fault(Fault { at: "request".into(), error: "the device took 5 s\nand gave up".to_owned() }),
    ]
}

/// What a case asks for, beside its size.
struct Case {
    name: &'static str,
    size: (u16, u16),
    look: Look,
    theme: Theme,
    feed: Feed<'static>,
}

const PLAIN: Theme = Theme { colour: false, unicode: true };
const REPLAY: Feed<'static> =
    Feed::Replay { at: 39.0, length: 61.0, speed: 2.0, stands: Stands::Moves, bad_lines: 3 };
const LIVE: Feed<'static> = Feed::Live { stands: Stands::Moves, bad_lines: 0 };

fn case(name: &'static str, size: (u16, u16), pane: Pane) -> Case {
    Case { name, size, look: Look { pane, ..Look::default() }, theme: PLAIN, feed: LIVE }
}

fn cases() -> Vec<Case> {
    let answer = "Once upon a time, there was a little girl named Lily.\n\nShe loved to play outside in the park \
                  \u{1b}[2Jwith her friends, and one day she saw a big, red ball: 日本語.";
    let own = Feed::Own { stands: Stands::Ended, answer };
    let help = Look { help: true, ..Look::default() };
    let short = Look { window: 0, ..Look::default() };
    let scrolled = Look { pane: Pane::Log, scroll: 2, ..Look::default() };
    let mut cases = vec![
        Case { feed: REPLAY, ..case("overview-120x40", (120, 40), Pane::Overview) },
        Case {
            theme: Theme { unicode: false, ..PLAIN },
            ..case("overview-ascii-100x30", (100, 30), Pane::Overview)
        },
        Case { feed: own, ..case("overview-answer-110x44", (110, 44), Pane::Overview) },
        Case { feed: REPLAY, look: help, ..case("help-80x24", (80, 24), Pane::Overview) },
        Case { look: short, ..case("overview-5s-80x24", (80, 24), Pane::Overview) },
        Case { look: scrolled, ..case("log-scrolled-60x14", (60, 14), Pane::Log) },
        Case {
            feed: Feed::Live { stands: Stands::Paused, bad_lines: 0 },
            theme: Theme { unicode: false, ..PLAIN },
            ..case("overview-ascii-40x12", (40, 12), Pane::Overview)
        },
        case("overview-too-small-24x6", (24, 6), Pane::Overview),
        case("ops-120x40", (120, 40), Pane::Ops),
    ];
    for (names, size) in [
        (["overview-80x24", "ops-80x24", "caches-80x24", "memory-80x24", "log-80x24"], (80, 24)),
        (["overview-40x12", "ops-40x12", "caches-40x12", "memory-40x12", "log-40x12"], (40, 12)),
    ] {
        cases.extend(names.into_iter().zip(Pane::ALL).map(|(name, pane)| case(name, size, pane)));
    }
    cases
}

fn drawn(state: &State, case: &Case) -> String {
    let mut terminal = Terminal::new(TestBackend::new(case.size.0, case.size.1)).unwrap();
    let scene = Scene { state, look: &case.look, feed: case.feed.clone(), theme: case.theme };
    terminal.draw(|frame| _ = draw(frame.buffer_mut(), &scene)).unwrap();
    still::lines(terminal.backend().buffer())
}

#[test]
fn screens_look_as_they_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/top/view/snapshots");
    let (run, empty) = (run(), State::default());
    let mut wrong = Vec::new();
    let nothing = ["empty-80x24", "empty-40x12"].into_iter().zip([(80, 24), (40, 12)]);
    let nothing: Vec<_> = nothing.map(|(name, size)| case(name, size, Pane::Overview)).collect();
    let all = cases();
    let screens = all.iter().map(|case| (&run, case)).chain(nothing.iter().map(|case| (&empty, case)));
    for (state, case) in screens {
        let (text, path) = (drawn(state, case), folder.join(format!("{}.txt", case.name)));
        if env::var_os("UPDATE_SNAPSHOTS").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(path, text).unwrap();
        } else if let before = fs::read_to_string(&path).unwrap_or_default()
            && before != text
        {
            wrong.push(format!("{}:\n{text}\nwas:\n{before}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{} screens differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_size_and_pane_can_be_drawn_with_anything_in_it() {
    let mut wild = run();
    let mut digester = Digester::default();
    for (t, event) in [
        (1e300, step(1e299, 1e300, u64::MAX, 7)),
        (
            1e300,
            Event::Memory(Memory {
                owners: vec![Owned { owner: "x".into(), bytes: u64::MAX }; 3],
                budget_bytes: Some(0),
            }),
        ),
        (1e300, Event::Queue(Queue { held_blocks: u64::MAX, block_limit: 1, ..Queue::default() })),
        (1e300, Event::Fault(Fault { at: "日本語".repeat(500).into(), error: "\u{202e}\x1b\0".repeat(500) })),
    ] {
        wild.apply(&digester.digest(Record { v: VERSION, t, event }));
    }
    for state in [&State::default(), &run(), &wild] {
        for (width, height) in [0, 3, 39, 40, 71, 72, 111, 130]
            .into_iter()
            .flat_map(|width| [0, 2, 11, 12, 16, 21, 60].into_iter().map(move |height| (width, height)))
        {
            for (pane, feed) in Pane::ALL.into_iter().zip([REPLAY, LIVE, LIVE, LIVE, LIVE]) {
                for scroll in [0, usize::MAX] {
                    let look = Look { pane, scroll, window: scroll, help: scroll == 0 };
                    let case = Case { look, feed: feed.clone(), ..case("", (width, height), pane) };
                    let text = drawn(state, &case);
                    assert!(!text.contains(['\u{1b}', '\u{202e}', '\0']));
                }
            }
        }
    }
}

#[test]
fn scrolling_ends_at_the_last_line() {
    let state = run();
    let look = |scroll| Look { pane: Pane::Ops, scroll, ..Look::default() };
    let beyond = |look: &Look| {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 40, 12));
        draw(&mut buffer, &Scene { state: &state, look, feed: LIVE, theme: PLAIN })
    };
    // Seven operations and as many layers in five rows with titles each.
    assert_eq!(beyond(&look(0)), 3);
    assert_eq!(beyond(&look(99)), 3);
}
