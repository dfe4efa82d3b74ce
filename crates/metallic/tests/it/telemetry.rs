//! What the engine tells: every kind of event, where it happens.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use metallic::core::{Backend, DType, RunStats};
use metallic::generate::{Engine, EngineConfig, Generation, Request, Sampling};
use metallic::telemetry::{CompileSource, Event, Phase, Record, Telemetry, TelemetryError, tracing};
use metallic::{Device, Llm, LoadOptions, Model, Options};
use metallic_gpu::fault::{Fault, Faulty};
use metallic_gpu::{GpuBackend, GpuOptions, Null};
use metallic_testkit::data;

use crate::generate_support::{self, Handle, config, fake_with_room, greedy_request, prompt};

fn stories() -> PathBuf {
    data::own().join("stories260K/stories260K-f32.gguf")
}

/// What is told while something is done, and by the engines that it makes.
fn watch<T>(work: impl FnOnce() -> T) -> (T, Vec<Event>) {
    let telemetry = Telemetry::new("a test", "0");
    let records = telemetry.channel(1 << 16);
    let done = tracing::subscriber::with_default(telemetry.subscriber(), work);
    (done, records.try_iter().map(|record| record.event).collect())
}

fn kinds(events: &[Event]) -> BTreeSet<&'static str> {
    events.iter().map(Event::kind).collect()
}

/// Those of one kind.
macro_rules! of {
    ($events:expr, $kind:ident) => {
        $events.iter().filter_map(|event| match event {
            Event::$kind(found) => Some(found),
            _ => None,
        })
    };
}

fn answer(device: Device, tokens: usize) -> Vec<Event> {
    let (_, events) = watch(|| {
        let options = LoadOptions::default().device(device).threads(2);
        let llm = Llm::load_with(stories(), &options).unwrap();
        let options = Options::default().max_tokens(tokens).sampling(Sampling::greedy());
        llm.generate("Once upon a time there was a", options).unwrap().complete().unwrap()
    });
    events
}

#[test]
fn a_run_on_the_processor_tells_its_steps_operations_and_requests() {
    let events = answer(Device::Cpu, 12);
    let needed = ["start", "load", "memory", "request", "step", "ops", "queue", "cache"];
    assert!(needed.iter().all(|kind| kinds(&events).contains(kind)), "{:?}", kinds(&events));
    let load = of!(events, Load).next().unwrap();
    assert_eq!((&*load.model, &*load.family, load.layers), ("stories260K-f32.gguf", "llama", 5));
    assert_eq!((&*load.weights, &*load.device, &*load.kv_type), ("F32", "cpu", "F16"));
    assert!(load.seconds >= load.compile_seconds && load.compile_seconds > 0.0);

    let phases: Vec<Phase> = of!(events, Request).map(|request| request.phase).collect();
    assert_eq!(phases, [Phase::Queued, Phase::Started, Phase::FirstToken, Phase::Ended]);
    let ended = of!(events, Request).last().unwrap();
    assert_eq!((ended.generated_tokens, &*ended.reason), (12, "length"));
    assert!(ended.ttft_seconds > 0.0 && ended.decode_tps > 0.0);

    let steps: Vec<_> = of!(events, Step).collect();
    assert_eq!(steps.len(), 12, "a prompt and eleven tokens");
    assert_eq!((steps[0].decode_tokens, steps[0].tokens), (0, ended.prompt_tokens));
    assert!(steps[1..].iter().all(|step| (step.tokens, step.decode_tokens, step.sequences) == (1, 1, 1)));
    for pair in steps.windows(2) {
        assert!(pair[1].step > pair[0].step && pair[1].begin >= pair[0].begin + pair[0].seconds);
        assert!(pair[0].seconds > 0.0 && pair[0].bytes_read > 0 && pair[0].dispatches > 0);
    }

    // The first step is timed, and some of the others; each layer has the same operations, whose times and bytes are parts of the
    // step's.
    let ops: Vec<_> = of!(events, Ops).collect();
    assert_eq!(ops[0].step, steps[0].step);
    assert!(ops.windows(2).all(|pair| pair[1].step > pair[0].step), "each once");
    for ops in ops {
        let step = steps.iter().find(|step| step.step == ops.step).unwrap();
        assert_eq!((ops.begin, ops.tokens), (step.begin, step.tokens));
        let of_layer =
            |layer| ops.ops.iter().filter(move |op| op.layer == layer).map(|op| (&op.op, &op.part));
        let first: Vec<_> = of_layer(Some(0)).collect();
        assert!(first.len() >= 4, "{first:?}");
        // After the last one rows are picked of what it gives.
        assert!((1..5).all(|layer| of_layer(Some(layer)).take(first.len()).eq(first.iter().copied())));
        assert!(of_layer(None).any(|(op, _)| op == "embed"));
        let sum: f64 = ops.ops.iter().map(|op| op.seconds).sum();
        assert!(sum > 0.0 && sum <= step.seconds, "{sum} of {}", step.seconds);
        assert_eq!(ops.ops.len() as u64, step.dispatches);
    }
    let queues: Vec<_> = of!(events, Queue).collect();
    assert!(queues.iter().any(|queue| queue.running == 1 && queue.held_blocks > 0), "{queues:?}");
    assert_eq!(queues.last().unwrap().running, 0);
    let memory = of!(events, Memory).last().unwrap();
    let owned = |name: &str| memory.owners.iter().find(|owner| owner.owner == name).unwrap().bytes;
    assert!(owned("weights") > 0 && owned("arena") > 0 && owned("kv") > 0, "{memory:?}");
}

#[test]
fn a_gpu_tells_what_it_compiles_who_serves_and_what_its_caches_and_pools_do() {
    let events = answer(Device::Null, 70);
    for kind in ["provider", "compile", "cache", "pool", "memory", "ops"] {
        assert!(kinds(&events).contains(kind), "no {kind}");
    }
    let compiled = |what: &str| of!(events, Compile).filter(|compile| compile.what == what).count();
    assert!(compiled("library") > 0 && compiled("pipeline") > compiled("library"));
    assert!(of!(events, Compile).all(|compile| compile.error.is_none()));
    assert!(of!(events, Compile).all(|compile| compile.source == CompileSource::Compiled));
    let choices: Vec<_> = of!(events, Provider).collect();
    let of_sdpa = choices.iter().filter(|choice| choice.op == "sdpa");
    assert_eq!(
        of_sdpa.map(|choice| (&*choice.provider, &*choice.why)).collect::<Vec<_>>(),
        [("flash", "default")]
    );
    assert!((0..choices.len()).all(|i| !choices[..i].contains(&choices[i])), "each once: {choices:?}");

    let caches: BTreeSet<&str> = of!(events, Cache).map(|cache| &*cache.cache).collect();
    assert_eq!(caches, ["libraries", "pipelines", "plans", "prefixes"].into());
    let plans = of!(events, Cache).rfind(|cache| cache.cache == "plans");
    let plans = plans.unwrap();
    let steps = of!(events, Step).count() as u64;
    assert!(plans.misses > 0 && plans.hits > plans.misses && plans.hits + plans.misses >= steps, "{plans:?}");
    let planned = of!(events, Step).filter(|step| step.planned).count() as u64;
    assert_eq!(planned, plans.misses);
    assert!(of!(events, Pool).last().unwrap().live_bytes > 0);

    // At most one step in 64 is timed, the first among them.
    let timed: BTreeSet<u64> = of!(events, Ops).map(|ops| ops.step).collect();
    let places = of!(events, Step).enumerate().filter(|(_, step)| timed.contains(&step.step));
    let places: Vec<usize> = places.map(|(place, _)| place).collect();
    assert!(places[0] == 0 && places.windows(2).all(|pair| pair[1] >= pair[0] + 64), "{places:?} of {steps}");
    assert!(of!(events, Ops).all(|ops| ops.ops.iter().all(|op| !op.kernel.is_empty())));
    assert!(of!(events, Ops).all(|ops| ops.ops.iter().any(|op| op.layer == Some(4))));
}

#[cfg(feature = "soft")]
#[test]
fn kernels_that_lie_on_disk_are_told_from_those_that_are_compiled() {
    let Some(_) = metallic_testkit::needed(metallic_gpu::Soft::new(metallic_gpu::SoftOptions::default()))
    else {
        return;
    };
    let model = Model::open(&stories()).unwrap();
    // Whatever the first one finds, it leaves all of it.
    let compile =
        || watch(|| model.compile(Device::Soft.open(2).unwrap().as_ref(), DType::F16).map(drop).unwrap()).1;
    compile();
    let events = compile();
    let libraries: Vec<_> = of!(events, Compile).filter(|compile| compile.what == "library").collect();
    assert!(
        libraries.len() > 3 && libraries.iter().all(|library| library.source == CompileSource::Disk),
        "{libraries:?}"
    );
}

/// An engine on a device that fails when it is told to and computes nothing.
fn engine(gpu: &Arc<Faulty>, blocks: usize) -> Engine {
    let backend = GpuBackend::new(gpu.clone(), GpuOptions::default());
    engine_on(&backend, blocks)
}

fn engine_on(backend: &dyn Backend, blocks: usize) -> Engine {
    let model = Model::open(&stories()).unwrap();
    let program = model.compile(backend, DType::F16).unwrap();
    let states = model.states(DType::F16).unwrap();
    let budget = states.block_bytes() * blocks;
    let config = EngineConfig::new(model.config().context, model.config().vocab, states);
    Engine::new(program, config.kv_budget_bytes(budget)).unwrap()
}

fn request(tokens: usize) -> Request {
    Request::new([1, 2, 3, 4, 5]).max_tokens(tokens).sampling(Sampling::greedy())
}

#[test]
fn what_fails_is_a_fault_and_the_request_ends_as_failed() {
    let gpu = Arc::new(Faulty::new(Arc::new(Null::new())));
    let ((), events) = watch(|| {
        let engine = engine(&gpu, 8);
        gpu.fail(Fault::Execute, 2);
        engine.submit(request(20)).and_then(Generation::complete).unwrap_err();
        Llm::load("nowhere.gguf").map(|_| ()).unwrap_err();
        gpu.refuse("norm");
        let backend = GpuBackend::new(gpu.clone(), GpuOptions::default());
        Model::open(&stories()).unwrap().compile(&backend, DType::F16).map(|_| ()).unwrap_err();
    });
    let faults: Vec<(&str, &str)> = of!(events, Fault).map(|fault| (&*fault.at, &*fault.error)).collect();
    let at: Vec<&str> = faults.iter().map(|(at, _)| *at).collect();
    assert_eq!(at, ["step", "request", "load", "compile"], "{faults:?}");
    assert!(faults[0].1.contains("injected") && faults[2].1.contains("nowhere.gguf"), "{faults:?}");
    assert_eq!(of!(events, Request).last().unwrap().reason, "failed");
    let failed = of!(events, Compile).find(|compile| compile.error.is_some()).unwrap();
    assert_eq!((&*failed.what, &*failed.name), ("library", "norm"));
}

#[test]
fn a_provider_that_falls_back_is_a_warning_with_the_reason() {
    let gpu = Arc::new(Faulty::new(Arc::new(Null::new())));
    gpu.refuse("attention");
    let (_, events) = watch(|| engine(&gpu, 8));
    let fallback = of!(events, Provider).find(|choice| choice.why == "fallback").unwrap();
    assert_eq!((&*fallback.provider, fallback.instead_of.as_deref()), ("plain", Some("flash")));
    let error = fallback.error.as_deref().unwrap();
    let warning = of!(events, Warning).find(|warning| warning.about == "provider").unwrap();
    assert!(error.contains("injected") && warning.text.contains(error), "{warning:?}");
}

/// Requests at once, for whose answers the cache has no room together; how often one of them was set aside.
fn crowd(engine: &Engine, handle: &Handle) -> usize {
    let hold = handle.hold_steps();
    let all = [1, 2, 3, 4].map(|kind| engine.submit(greedy_request(prompt(kind, 20), 60)).unwrap());
    drop(hold);
    all.map(|generation| generation.complete().unwrap().stats.preemptions).iter().sum()
}

#[test]
fn sequences_that_are_set_aside_are_told_with_what_is_computed_again() {
    let (preempted, events) = watch(|| {
        let (engine, handle) = generate_support::engine(config(6));
        crowd(&engine, &handle)
    });
    let told: Vec<_> = of!(events, Preemption).collect();
    assert!(preempted > 0 && told.len() == preempted, "{preempted}: {told:?}");
    let ids: BTreeSet<u64> = of!(events, Request).map(|request| request.id).collect();
    assert!(told.iter().all(|told| ids.contains(&told.id) && told.tokens > 0), "{told:?}");
    assert_eq!(of!(events, Queue).last().unwrap().preemptions, preempted as u64);
    let started = of!(events, Request).filter(|request| request.phase == Phase::Started).count();
    assert_eq!(started, 4 + preempted, "set aside means started again");
}

#[test]
fn a_cache_that_cannot_grow_is_a_warning() {
    let (preempted, events) = watch(|| {
        let (program, handle) = fake_with_room(6);
        crowd(&Engine::new(program, config(64)).unwrap(), &handle)
    });
    assert!(preempted > 0);
    let warnings: Vec<_> = of!(events, Warning).filter(|warning| warning.about == "memory").collect();
    assert!(!warnings.is_empty() && warnings[0].text.contains("cannot grow"), "{warnings:?}");
}

#[test]
fn programs_note_operations_with_layers_only_while_they_are_asked_to() {
    for device in [Device::Cpu, Device::Reference, Device::Null] {
        let model = Model::open(&stories()).unwrap();
        let mut program = model.compile(device.open(1).unwrap().as_ref(), DType::F16).unwrap();
        let mut run = |on| -> RunStats {
            program.profile(on);
            let test = metallic::bench::Test {
                kind: metallic::bench::Kind::Decode,
                tokens: 1,
                depth: 0,
                sequences: 1,
            };
            let stats = metallic::bench::measure(program.as_mut(), 512, test, 1).unwrap().stats;
            assert!(stats.ops.is_empty(), "sums by kind are for profiles");
            stats
        };
        assert!(run(true).each.is_empty(), "sums have no single operations");
        run(false);
        let mut each = |on| {
            program.profile(on);
            program.reserve_blocks(1).unwrap();
            let sequences =
                [metallic::core::SequenceSpan { tokens: 0..1, past: 0, blocks: &[0], near: &[], slot: 0 }];
            let step = metallic::core::Step {
                tokens: &[1],
                positions: &[0],
                sequences: &sequences,
                outputs: &[0],
                wanted: metallic::core::Wanted::only(0),
                ..metallic::core::Step::default()
            };
            program.run(&step).unwrap().each
        };
        assert!(each(false).is_empty(), "{device}");
        let noted = each(true);
        let layers: BTreeSet<_> = noted.iter().map(|op| op.layer).collect();
        assert_eq!(layers, [None, Some(0), Some(1), Some(2), Some(3), Some(4)].into(), "{device}: {noted:?}");
        assert!(each(false).is_empty(), "{device}");
    }
}

#[test]
fn tools_without_an_engine_tell_their_steps() {
    let ((), events) = watch(|| {
        let model = Model::open(&stories()).unwrap();
        let mut program = model.compile(Device::Cpu.open(1).unwrap().as_ref(), DType::F16).unwrap();
        metallic::generate::greedy(program.as_mut(), &[1, 2, 3], 4).unwrap();
        let test =
            metallic::bench::Test { kind: metallic::bench::Kind::Decode, tokens: 3, depth: 8, sequences: 2 };
        metallic::bench::measure(program.as_mut(), 512, test, 1).unwrap();
    });
    let steps: Vec<_> = of!(events, Step).map(|step| (step.tokens, step.decode_tokens)).collect();
    let expected = [(3, 0), (1, 1), (1, 1), (1, 1), (16, 0), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2), (2, 2)];
    assert_eq!(steps, expected);
    let timed: BTreeSet<u64> = of!(events, Ops).map(|ops| ops.step).collect();
    let first = |tokens| of!(events, Step).find(|step| step.tokens == tokens).unwrap().step;
    assert!([3, 16].iter().all(|tokens| timed.contains(&first(*tokens))), "the first of each are timed");
}

#[test]
fn lines_are_written_by_a_thread_and_end_with_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let telemetry = Telemetry::new("a test", "0");
    telemetry.write_lines(&path).unwrap();
    tracing::subscriber::with_default(telemetry.subscriber(), || {
        let model = Model::open(&stories()).unwrap();
        let mut program = model.compile(Device::Cpu.open(1).unwrap().as_ref(), DType::F16).unwrap();
        metallic::generate::greedy(program.as_mut(), &[1, 2, 3], 4).unwrap();
    });
    assert!(telemetry.finish().is_empty());
    let text = std::fs::read_to_string(&path).unwrap();
    let records: Vec<Record> = text.lines().map(|line| Record::parse(line).unwrap()).collect();
    assert!(matches!(&records[0].event, Event::Start(start) if start.pid == std::process::id()));
    assert!(matches!(&records.last().unwrap().event, Event::End(end) if (end.steps, end.lost) == (4, 0)));
    assert!(text.ends_with('\n') && records.windows(2).all(|pair| pair[0].t <= pair[1].t));
    let late = telemetry.write_lines(folder.path().join("late.jsonl")).unwrap_err();
    assert!(matches!(late, TelemetryError::Ended { .. }), "{late}");
    let error = Telemetry::new("a test", "0").write_lines(folder.path()).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot write telemetry to `") && error.contains(folder.path().to_str().unwrap()),
        "{error}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_is_full_is_told_once_and_stops_nothing() {
    let telemetry = Telemetry::new("a test", "0");
    telemetry.write_lines(std::path::Path::new("/dev/full")).unwrap();
    let records = telemetry.channel(1 << 12);
    tracing::subscriber::with_default(telemetry.subscriber(), || {
        let model = Model::open(&stories()).unwrap();
        let mut program = model.compile(Device::Cpu.open(1).unwrap().as_ref(), DType::F16).unwrap();
        metallic::generate::greedy(program.as_mut(), &[1, 2, 3], 20).unwrap();
    });
    let errors = telemetry.finish();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().starts_with("cannot write telemetry to `/dev/full`: "), "{errors:?}");
    let events: Vec<Event> = records.try_iter().map(|record| record.event).collect();
    let warnings: Vec<_> = of!(events, Warning).collect();
    assert!(warnings.len() == 1 && warnings[0].text.contains("/dev/full"), "{warnings:?}");
    assert_eq!(of!(events, Step).count(), 20);
}

#[cfg(unix)]
#[test]
fn a_reader_that_sleeps_loses_records_is_told_how_many_and_holds_nobody_up() {
    use std::io::{BufRead, BufReader};

    use metallic::telemetry::{Queue, emit, processes};

    const TOLD: u64 = 50_000;
    let queue = |waiting| emit(|| Event::Queue(Queue { waiting, ..Queue::default() }));
    let telemetry = Telemetry::new("a test", "0");
    let path = telemetry.listen().unwrap();
    let process = processes().unwrap().into_iter().find(|process| process.socket == path).unwrap();
    assert_eq!(process.pid, std::process::id());
    let stream = process.attach().unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| Record::parse(&line.unwrap()).unwrap().event);
    assert!(matches!(lines.next(), Some(Event::Start(_))), "it is attached");
    let (found, told) = tracing::subscriber::with_default(telemetry.subscriber(), || {
        (0..TOLD).for_each(queue);
        let (wakes, woken) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            let tell = |event: &Event| _ = matches!(event, Event::Lost(_)).then(|| wakes.send(()));
            lines.inspect(tell).collect::<Vec<Event>>()
        });
        // Who reads again is told with the next record there is room for.
        let mut told = TOLD;
        while woken.recv_timeout(Duration::from_millis(1)).is_err() {
            queue(told);
            told += 1;
        }
        telemetry.finish();
        (reader.join().unwrap(), told)
    });
    let seen = of!(found, Queue).count() as u64;
    let lost = |event: &Event| if let Event::Lost(lost) = event { lost.records } else { 0 };
    let (gaps, end) = (found.iter().map(lost).sum::<u64>(), of!(found, End).next().unwrap());
    assert!(
        gaps > 0 && gaps <= end.lost && seen + end.lost == told,
        "{gaps} in {end:?}, {seen} seen of {told}"
    );
    assert!(!path.exists());
}
