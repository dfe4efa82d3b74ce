//! Every device gives the logits of the reference, however tokens come to it.

use metallic::Device;
use metallic::core::{Backend, CompileOptions, DType, Program};
use metallic::device::OpenOptions;
use metallic::device::ptx::{Asked, rehearsals, translate};
use metallic_testkit::random::Random;
use metallic_testkit::{golden, needed};

use crate::tiny::Tiny;

/// Two blocks of the cache, and a bit of a third.
const TOKENS: usize = 70;
const F32: CompileOptions =
    CompileOptions { kv: DType::F32, activations: DType::F32, fuse: true, taps: false };
const HALF: CompileOptions = CompileOptions { activations: DType::F16, ..F32 };

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Every device that runs here; or the one that `METALLIC_TEST_DEVICE` names, alone, on a machine that may have no compiler.
pub(crate) fn devices() -> impl Iterator<Item = (&'static str, Box<dyn Backend>)> {
    devices_by(variable("METALLIC_TEST_DEVICE"))
}

fn devices_by(named: Option<String>) -> impl Iterator<Item = (&'static str, Box<dyn Backend>)> {
    let options = OpenOptions::default().threads(2);
    let devices = match &named {
        Some(name) => {
            let device = name.parse().unwrap_or_else(|error| panic!("METALLIC_TEST_DEVICE={name}: {error}"));
            vec![("the device asked for", device, options)]
        }
        None => vec![
            ("reference", Device::Reference, options.clone()),
            ("exact cpu", Device::Cpu, options.clone().exact(true)),
            ("cpu", Device::Cpu, options.clone()),
            ("soft", Device::Soft, options),
        ],
    };
    devices.into_iter().filter_map(move |(what, device, options)| {
        let opened = device.open_with(&options);
        let backend = match &named {
            // Who names a device wants it tested: without it nothing would be proved.
            Some(name) => opened.unwrap_or_else(|error| panic!("METALLIC_TEST_DEVICE={name}: {error}")),
            None => needed(opened)?,
        };
        Some((what, backend))
    })
}

#[test]
#[should_panic(expected = "METALLIC_TEST_DEVICE=cuda:no such GPU: ")]
fn a_device_that_is_asked_for_and_cannot_be_had_fails_the_test() {
    let _ = devices_by(Some("cuda:no such GPU".to_owned())).count();
}

/// Ids that every one of these models has.
pub(crate) fn prompt(seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(100) as u32).collect()
}

fn compile(tiny: &Tiny, backend: &dyn Backend, options: CompileOptions) -> Box<dyn Program> {
    let model = tiny.open().unwrap_or_else(|e| panic!("{e}"));
    model.compile(backend, options).unwrap_or_else(|e| panic!("{}: {e}", tiny.name))
}

fn reference(tiny: &Tiny, tokens: &[u32]) -> Vec<Vec<f32>> {
    let reference = Device::Reference.open(1).expect("it is always there");
    let mut program = compile(tiny, reference.as_ref(), F32);
    let rows = golden::logits(program.as_mut(), tokens, tokens.len()).expect("logits");
    let size = rows.iter().flatten().map(|x| x * x).sum::<f32>() / (rows.len() * rows[0].len()) as f32;
    assert!((0.3..3.0).contains(&size.sqrt()), "tolerances are for numbers around 1, not {size}");
    rows
}

#[track_caller]
fn assert_close(what: &str, expected: &[Vec<f32>], found: &[Vec<f32>], tolerance: f32) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (position, (expected, found)) in expected.iter().zip(found).enumerate() {
        let diff = golden::max_diff(expected, found);
        assert!(diff <= tolerance, "{what}: logits of position {position} are off by {diff}");
    }
}

#[test]
fn every_device_gives_the_logits_of_the_reference_however_tokens_are_fed() {
    let tokens = prompt(1, TOKENS);
    for tiny in Tiny::all() {
        let expected = reference(&tiny, &tokens);
        for (name, backend) in devices() {
            let mut program = compile(&tiny, backend.as_ref(), F32);
            for chunk in [TOKENS, 7, 1] {
                let found = golden::logits(program.as_mut(), &tokens, chunk).expect("logits");
                assert_close(&format!("{} on {name} by {chunk}", tiny.name), &expected, &found, 1e-4);
            }
        }
    }
}

#[test]
fn activations_of_half_size_stay_close() {
    let tokens = prompt(1, TOKENS);
    for tiny in Tiny::all() {
        let expected = reference(&tiny, &tokens);
        for (name, backend) in devices() {
            let mut program = compile(&tiny, backend.as_ref(), HALF);
            for chunk in [TOKENS, 1] {
                let found = golden::logits(program.as_mut(), &tokens, chunk).expect("logits");
                assert_close(&format!("{} on {name} by {chunk}", tiny.name), &expected, &found, 2e-2);
            }
        }
    }
}

#[test]
fn a_branch_goes_on_as_the_sequence_it_leaves_would() {
    let (shared, ours, theirs) = (prompt(1, 64), prompt(2, 5), prompt(3, 5));
    let [whole, other] = [&ours, &theirs].map(|more| [&shared[..], more].concat());
    for tiny in Tiny::all() {
        let (expected, other) = (reference(&tiny, &whole), reference(&tiny, &other));
        for (name, backend) in devices() {
            let mut program = compile(&tiny, backend.as_ref(), F32);
            let program = program.as_mut();
            let mut trunk = golden::Sequence::new(program, 0, whole.len()).expect("room");
            trunk.feed(program, &shared).expect("logits");
            let mut branches = [1, 2].map(|slot| trunk.branch(program, slot).expect("room"));
            let [same, apart] = &mut branches;
            let mut parts = [(&mut trunk, &ours[..]), (same, &ours), (apart, &theirs)];
            let found = golden::feed_all(program, &mut parts).expect("logits");
            for (found, expected) in found.iter().zip([&expected, &expected, &other]) {
                assert_close(&format!("{} on {name}", tiny.name), &expected[64..], found, 1e-4);
            }
        }
    }
}

#[test]
fn what_is_too_much_and_what_is_missing_is_refused_by_name() {
    let missing = ["model.layers.2.mixer.conv.weight", "model.layers.1.mlp.experts.3.up_proj.weight"];
    for (mut tiny, missing) in Tiny::all().into_iter().zip(missing) {
        tiny.add("model.layers.1.mixer.extra.weight", &[4]);
        let error = tiny.open().unwrap_err().to_string();
        assert!(error.contains("`model.layers.1.mixer.extra.weight` and 0 others"), "{error}");
        tiny.remove("model.layers.1.mixer.extra.weight");
        tiny.remove(missing);
        let error = tiny.open().unwrap_err().to_string();
        assert!(error.contains(&format!("no tensor `{missing}`, the model needs it as [")), "{error}");
    }
}

/// `METALLIC_TEST_PTX=FOLDER` puts the kernels there that these families need on an NVIDIA GPU of the compute capability (times ten)
/// that `METALLIC_TEST_CAPABILITY` says, else of 9.0, with as many multiprocessors as `METALLIC_TEST_UNITS` says (`132,46`), else 132.
#[test]
fn plans_of_nvidia_gpus_have_kernels_for_every_family() {
    let capability = variable("METALLIC_TEST_CAPABILITY").map_or(90, |text| text.parse().expect("a number"));
    let units = variable("METALLIC_TEST_UNITS").unwrap_or_else(|| "132".to_owned());
    let units: Vec<u32> = units.split(',').map(|text| text.parse().expect("numbers")).collect();
    for tiny in Tiny::all() {
        let asked = Asked::new();
        for units in &units {
            for backend in rehearsals(&asked, capability, *units).expect("a rehearsal") {
                for options in [F32, HALF] {
                    drop(compile(&tiny, backend.as_ref(), options));
                }
            }
        }
        assert!(asked.len() > 20, "{}: {} kernels", tiny.name, asked.len());
        if let Some(folder) = variable("METALLIC_TEST_PTX") {
            let made = translate(&asked, folder.as_ref(), &[capability], 2, &|_, _| {});
            made.unwrap_or_else(|error| panic!("{}: {error}", tiny.name));
        }
    }
}
