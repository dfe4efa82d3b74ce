//! Plans: what they say is what a step does, and looks as the files of `tests/plans` have it.

use std::path::PathBuf;

use metallic::device::caches::in_memory;
use metallic::device::{KnownDevice, OpenOptions};
use metallic::model::Model;
use metallic::plan::{Plan, Shown, StepSpec};
use metallic::{Device, core::Backend};
use metallic_core::plan::{Outcome, PlanTotals};
use metallic_core::{BLOCK_TOKENS, DType, NodeId, RunStats};
#[cfg(feature = "soft")]
use metallic_testkit::needed;
use metallic_testkit::{data, golden};
use serde_json::Value;

fn stories() -> Model {
    Model::open(&data::own().join("stories260K/stories260K-f32.gguf")).unwrap()
}

fn as_of(name: &str) -> Box<dyn Backend> {
    KnownDevice::named(name).unwrap().open(&OpenOptions::default()).unwrap()
}

fn planned(model: &Model, backend: &dyn Backend, tokens: usize, depth: usize) -> Plan {
    Plan::of(model, backend, DType::F16, StepSpec::on(backend, tokens, depth)).unwrap()
}

/// JSON with a line for each thing of the outermost lists.
fn lines(value: &Value, depth: usize) -> String {
    let each: Vec<String> = match value {
        Value::Object(fields) if depth < 2 => fields
            .iter()
            .map(|(name, value)| format!("{name:?}: {}", lines(value, depth + 1).trim_end()))
            .collect(),
        Value::Array(items) if depth < 3 => items.iter().map(ToString::to_string).collect(),
        Value::Object(_)
        | Value::Array(_)
        | Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_) => {
            return format!("{value}\n");
        }
    };
    let [open, close] = if value.is_array() { ["[", "]"] } else { ["{", "}"] };
    format!("{open}\n{}\n{close}\n", each.join(",\n"))
}

/// Compares with a file of `tests/plans`; `UPDATE=1` writes it anew.
fn like_file(name: &str, found: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/plans").join(name);
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, found).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for (line, (kept, found)) in (1..).zip(kept.lines().zip(found.lines())) {
        assert_eq!(found, kept, "line {line} of {name}; UPDATE=1 writes it anew");
    }
    assert_eq!(found.lines().count(), kept.lines().count(), "lines of {name}; UPDATE=1 writes it anew");
}

#[test]
fn a_plan_looks_as_it_did() {
    let model = stories();
    let plan = |name: &str, tokens| {
        let mut plan = planned(&model, as_of(name).as_ref(), tokens, 40).planned_as(name);
        plan.model = "stories260K".to_owned();
        plan
    };
    like_file("m4.txt", &plan("M4", 1).text(Shown::default()));
    let json = plan("M4", 1).json(Shown { layer: Some(1), all: false });
    like_file("m4-layer-1.json", &lines(&json, 0));
    #[cfg(feature = "cuda")]
    like_file("h200-64-tokens.txt", &plan("H200", 64).text(Shown { layer: Some(0), all: false }));
    let cpu = Device::Cpu.open(1).unwrap();
    let mut plan = planned(&model, cpu.as_ref(), 1, 0);
    (plan.model, plan.device.name) = ("stories260K".to_owned(), "1 thread".to_owned());
    // How activations are grouped depends on the processor; what fuses and where values lie does not.
    plan.program.weights.clear();
    like_file("cpu.txt", &plan.text(Shown::default()));
}

/// Runs the step that a plan is of.
fn run(model: &Model, backend: &dyn Backend, step: StepSpec) -> RunStats {
    let states = model.states(DType::F16).unwrap();
    let mut program = model.compile(backend, DType::F16).unwrap();
    program.reserve_blocks((step.tokens + step.depth).div_ceil(BLOCK_TOKENS)).unwrap();
    program.reserve_slots(1).unwrap();
    step.with(&states, model.graph().adapters(), |step| program.run(step)).unwrap()
}

#[track_caller]
fn same_as_run(model: &Model, backend: &dyn Backend, tokens: usize, depth: usize) {
    let plan = planned(model, backend, tokens, depth);
    let ran = run(model, backend, plan.step);
    let what = format!("{}: {tokens} after {depth}", plan.model);
    let totals = plan.program.totals.unwrap();
    let PlanTotals { dispatches, read, written, multiply_adds, arena_bytes, .. } = totals;
    let counted = (ran.dispatches, ran.bytes_read, ran.bytes_written, ran.multiply_adds);
    assert_eq!((dispatches, read, written, multiply_adds), counted, "{what}");
    // Buffers of programs are as large as they must be, and aligned.
    assert!(ran.arena_bytes >= arena_bytes as u64, "{what}: {} and {arena_bytes}", ran.arena_bytes);
    let launches: Vec<_> = plan.program.ops.iter().flat_map(|op| &op.launches).collect();
    let sum = |of: fn(&metallic_core::plan::LaunchPlan) -> u64| launches.iter().map(|l| of(l)).sum::<u64>();
    assert_eq!(launches.len() as u64, dispatches, "{what}");
    assert_eq!((sum(|l| l.read), sum(|l| l.written)), (read, written), "{what}");
    assert_eq!(sum(|l| l.multiply_adds), multiply_adds, "{what}");
    assert_eq!(sum(|l| u64::from(l.barrier)), totals.barriers, "{what}");
    let by_op = plan.by_op();
    assert_eq!(by_op.iter().map(|op| op.dispatches).sum::<u64>(), dispatches);
    assert_eq!(by_op.iter().map(|op| op.bytes).sum::<u64>(), read + written);
}

#[test]
fn a_plan_counts_what_a_run_counts() {
    let model = stories();
    for name in [
        "M4",
        "M2 Ultra",
        #[cfg(feature = "cuda")]
        "H200",
    ] {
        let backend = as_of(name);
        for (tokens, depth) in [(1, 0), (1, 300), (5, 3), (64, 0), (100, 37)] {
            same_as_run(&model, backend.as_ref(), tokens, depth);
        }
    }
    let null = Device::Null.open(1).unwrap();
    for folder in golden::folders() {
        let model = Model::open(&folder).unwrap();
        same_as_run(&model, null.as_ref(), 1, 9);
        same_as_run(&model, null.as_ref(), 9, 0);
    }
}

#[test]
#[cfg(feature = "soft")]
fn a_plan_of_kernels_that_run_counts_what_they_count() {
    let Some(soft) = needed(Device::Soft.open(2)) else { return };
    same_as_run(&stories(), soft.as_ref(), 1, 0);
    same_as_run(&stories(), soft.as_ref(), 12, 5);
}

#[test]
fn every_node_goes_into_one_of_the_fused_graph_or_is_dropped() {
    let null = Device::Null.open(1).unwrap();
    for folder in golden::folders() {
        let plan = planned(&Model::open(&folder).unwrap(), null.as_ref(), 1, 0);
        let (before, fused) = (&plan.program.before, &plan.program.fused);
        let mut times = vec![0; before.nodes().len()];
        fused.origins.iter().flat_map(|origin| &origin.parts).for_each(|part| times[part.0] += 1);
        let dropped = fused.dropped(times.len());
        for id in &dropped {
            times[id.0] += 1;
        }
        assert!(times.iter().all(|times| *times == 1), "{}: {times:?}", folder.display());
        let json = plan.json(Shown::default());
        let nodes = json["graph"]["before"].as_array().unwrap();
        let into: Vec<_> = nodes.iter().filter(|node| node["into"].is_null()).collect();
        assert_eq!((nodes.len(), into.len()), (times.len(), dropped.len()));
        // Every operation that runs has launches, and no other has any.
        for op in &plan.program.ops {
            assert_eq!(op.launches.is_empty(), op.outcome != Outcome::Runs, "{op:?}");
        }
        let computed = fused.graph.nodes().iter().filter(|node| !node.op.is_source()).count();
        assert_eq!(json["ops"].as_array().unwrap().len(), computed);
    }
}

#[test]
fn values_of_a_plan_lie_apart_as_long_as_they_live() {
    let plan = planned(&stories(), as_of("M4").as_ref(), 3, 0);
    let json = plan.json(Shown::default());
    let places: Vec<[u64; 4]> = json["ops"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|op| {
            let place = &op["place"];
            let end = place["until"].as_u64().unwrap_or(u64::MAX);
            Some([place["offset"].as_u64()?, place["bytes"].as_u64()?, place["from"].as_u64()?, end])
        })
        .collect();
    assert!(places.len() > 20);
    for (index, a) in places.iter().enumerate() {
        for b in &places[index + 1..] {
            let together = a[3] >= b[2];
            let overlap = a[0] < b[0] + b[1] && b[0] < a[0] + a[1];
            assert!(!(together && overlap), "{a:?} {b:?}");
        }
    }
}

#[test]
fn layers_that_are_alike_are_told_once_and_others_are_refused() {
    let plan = planned(&stories(), as_of("M4").as_ref(), 1, 0);
    let groups = plan.layer_groups();
    assert_eq!(groups.iter().map(|group| 1 + group.like.len()).sum::<usize>(), plan.layer_count());
    assert_eq!(plan.layer_count(), 5);
    let (some, all) = (plan.text(Shown::default()), plan.text(Shown { all: true, ..Shown::default() }));
    assert!(some.contains("LAYER 0 (× 5: 1-4 ARE LIKE IT)"), "{some}");
    assert!((0..5).all(|layer| all.contains(&format!("LAYER {layer}\n"))), "{all}");
    let error = plan.check_layer(5).unwrap_err().to_string();
    assert!(error.contains("layer 5 is not there") && error.contains("5 layers"), "{error}");
}

/// The names of elements, each once it is closed; panics where the text is no XML.
fn elements(xml: &str) -> Vec<String> {
    let (mut open, mut closed) = (Vec::new(), Vec::new());
    let mut rest = xml;
    while let Some(at) = rest.find('<') {
        let text = &rest[..at];
        assert!(!text.contains('>'), "{text}");
        for part in text.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;"].iter().any(|known| part.starts_with(known)), "{part}");
        }
        let end = at + rest[at..].find('>').expect("a tag that ends");
        let tag = &rest[at + 1..end];
        assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
        let name = |tag: &str| tag.split([' ', '\n']).next().unwrap().to_owned();
        if let Some(closing) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closing));
            closed.push(closing.to_owned());
        } else if let Some(alone) = tag.strip_suffix('/') {
            closed.push(name(alone));
        } else {
            open.push(name(tag));
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} {rest}");
    closed
}

#[test]
fn a_picture_is_xml_and_names_every_fused_group() {
    for (backend, tokens) in [(as_of("M4"), 1), (Device::Cpu.open(1).unwrap(), 1), (as_of("M4"), 64)] {
        let plan = planned(&stories(), backend.as_ref(), tokens, 0);
        let svg = plan.svg(Some(2)).unwrap();
        let elements = elements(&svg);
        assert_eq!(elements.last().map(String::as_str), Some("svg"));
        for op in plan.ops(Some(2)) {
            let origin = &plan.program.fused.origins[op.node.0];
            assert!(svg.contains(&format!("<g id=\"node-{}\">", op.node.0)), "{op:?}");
            assert!(
                origin.rule.is_none_or(|rule| svg.contains(&format!("fused by {rule} from"))),
                "{origin:?}"
            );
            assert!(op.launches.iter().all(|launch| svg.contains(launch.kernel)), "{op:?}");
        }
        assert!(svg.contains("prefers-color-scheme: dark") && !svg.contains("href"));
    }
    let plan = planned(&stories(), as_of("M4").as_ref(), 1, 0);
    assert!(plan.svg(Some(5)).is_err());
    assert!(plan.svg(None).unwrap().contains("layer 0"));
}

#[test]
fn a_device_that_fuses_nothing_says_so() {
    let reference = Device::Reference.open(1).unwrap();
    let plan = planned(&stories(), reference.as_ref(), 1, 0);
    assert!(plan.program.totals.is_none() && plan.program.fused.origins.iter().all(|o| o.rule.is_none()));
    assert_eq!(plan.program.fused.graph.nodes().len(), plan.program.before.nodes().len());
    let text = plan.text(Shown::default());
    assert!(text.contains("plans no launches"), "{text}");
    assert_eq!(plan.layer(NodeId(usize::MAX)), None);
}

#[test]
fn a_process_knows_which_kernels_it_holds_and_how_often_they_served() {
    let (model, backend) = (stories(), as_of("M4"));
    assert!(in_memory(backend.as_ref()).is_empty());
    let plan = planned(&model, backend.as_ref(), 1, 0);
    let keys = in_memory(backend.as_ref());
    let kernels: Vec<_> = keys.iter().filter(|key| key.cache == "pipeline").collect();
    // One for each kernel with its constants; the layers share them.
    let qkv = kernels.iter().find(|key| key.name.starts_with("qkv/qkv_1 [")).unwrap();
    assert!(qkv.known.hits == 4 && !qkv.known.in_use && !qkv.known.failed, "{qkv:?}");
    let hits: u64 = kernels.iter().map(|key| key.known.hits + 1).sum();
    assert_eq!(hits, plan.program.totals.unwrap().dispatches, "each launch asks for its kernel once");
    assert!(keys.iter().any(|key| key.cache == "library" && key.name == "attention"));
    assert!(in_memory(Device::Cpu.open(1).unwrap().as_ref()).is_empty());
}

#[test]
fn what_the_processor_packs_is_what_it_says() {
    let model = stories();
    let cpu = Device::Cpu.open(1).unwrap();
    let plan = planned(&model, cpu.as_ref(), 1, 0);
    let forms = plan.program.weights.iter().flat_map(|weight| &weight.forms);
    let packed: usize = forms.filter(|(form, _)| *form != "as in its file").map(|(_, bytes)| bytes).sum();
    let program = model.compile(cpu.as_ref(), DType::F16).unwrap();
    assert_eq!(packed, program.memory().weights);
}
