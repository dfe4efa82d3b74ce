//! Every number that plans may go by gives the same results, and changes a plan somewhere.
#![cfg(feature = "soft")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use metallic::bench::{Kind, Test, measure};
use metallic::device::tuning::{Tuned, Tuning};
use metallic::tune::{OnDevice, TunePlan, tune};
use metallic::{Model, device::Providers};
use metallic_core::{DType, Program};
use metallic_gpu::{Gpu, GpuBackend, GpuOptions, Limits, MatrixUnits, Null, Soft, SoftOptions};
use metallic_testkit::{golden, needed};

/// Steps of one token, of eight sequences, of a prompt, and deep in a context.
const TESTS: [Test; 4] = [
    Test { kind: Kind::Decode, tokens: 1, depth: 0, sequences: 1 },
    Test { kind: Kind::Decode, tokens: 1, depth: 0, sequences: 8 },
    Test { kind: Kind::Prefill, tokens: 48, depth: 0, sequences: 1 },
    Test { kind: Kind::Decode, tokens: 1, depth: 2000, sequences: 1 },
];

fn program(gpu: Arc<dyn Gpu>, tuned: &Tuned, model: &Model, kv: DType) -> Box<dyn Program> {
    let backend = GpuBackend::new(gpu, GpuOptions::default().tuned(tuned.clone()));
    model.compile(&backend, kv).unwrap()
}

/// How the kernels of each test are launched.
fn plans(program: &mut dyn Program, tuned: &Tuned, tuning: Tuning) -> Vec<u64> {
    let look = |test: &Test| {
        tuned.set(tuning).unwrap();
        measure(program, 64, *test, 0).unwrap();
        tuned.plans()
    };
    TESTS.iter().map(look).collect()
}

/// GPUs that plan as those of a Mac do, or those of NVIDIA's, with so many simdgroups that keep them busy, and so many cores.
const DEVICES: [(u32, Option<u32>); 4] = [(96, None), (32, None), (96, Some(8)), (96, Some(1))];

fn limits((busy_simdgroups, cores): (u32, Option<u32>)) -> Limits {
    let matrix_units = cores.map(|cores| MatrixUnits { cores, threadgroup_memory: 99 << 10 });
    // One of them has a library of products.
    Limits { busy_simdgroups, matrix_units, library: cores == Some(8), ..*Null::new().limits() }
}

#[test]
fn every_field_changes_plans_and_the_same_numbers_plan_alike() {
    let model = Model::open(&golden::gguf("llama256.Q4_0").0).unwrap();
    let mut changing = BTreeSet::new();
    for device in DEVICES {
        let tuned = Tuned::new();
        let mut program = program(Arc::new(Null::with(limits(device))), &tuned, &model, DType::F16);
        let usual = plans(program.as_mut(), &tuned, Tuning::DEFAULT);
        assert_eq!(plans(program.as_mut(), &tuned, Tuning::DEFAULT), usual);
        assert_eq!(usual.iter().collect::<BTreeSet<_>>().len(), TESTS.len(), "each test has its own");
        for field in Tuning::FIELDS {
            for value in field.values {
                let tuning = field.with(&Tuning::DEFAULT, *value).unwrap();
                if plans(program.as_mut(), &tuned, tuning) != usual {
                    changing.insert(field.name);
                }
            }
        }
    }
    // Matrices of this model have too few rows for one of them, which a test of its kernels shows.
    let fields = Tuning::FIELDS.iter().map(|field| field.name).filter(|name| *name != "matvec_sharing");
    assert_eq!(changing, fields.collect());
}

/// All values of all fields, as few tables as have them.
fn covering() -> Vec<Tuning> {
    let most = Tuning::FIELDS.iter().map(|field| field.values.len()).max().unwrap_or(0);
    let table = |number: usize| {
        let mut tuning = Tuning::DEFAULT;
        for (place, field) in Tuning::FIELDS.iter().enumerate() {
            // Not all at their smallest, or at their largest, at once.
            tuning = field.with(&tuning, field.values[(number + place) % field.values.len()]).unwrap();
        }
        tuning
    };
    let tables: Vec<Tuning> = (0..most).map(table).collect();
    let mut seen: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (tuning, field) in tables.iter().flat_map(|t| Tuning::FIELDS.iter().map(move |field| (t, field))) {
        seen.entry(field.name).or_default().insert(field.of(tuning));
    }
    for field in Tuning::FIELDS {
        assert_eq!(seen[field.name].len(), field.values.len(), "{}", field.name);
    }
    tables
}

#[test]
fn every_value_of_every_field_computes_the_same() {
    // So many cores that the largest tiles are never taken: they have more threadgroup memory than there is in software.
    let units = MatrixUnits { cores: 16, threadgroup_memory: 32 << 10 };
    for (options, kv) in [
        (SoftOptions::default().threads(2), DType::F32),
        (SoftOptions::default().threads(2).matrix_units(units), DType::F16),
    ] {
        let Some(soft) = needed(Soft::new(options)) else { return };
        let (path, expected) = golden::gguf("llama256.Q4_0");
        let tuned = Tuned::new();
        let mut program = program(Arc::new(soft), &tuned, &Model::open(&path).unwrap(), kv);
        let close = if kv == DType::F32 { golden::exact(&path) } else { golden::HALF };
        for tuning in covering() {
            tuned.set(tuning).unwrap();
            golden::check_close(program.as_mut(), &expected, close, &[7, 512])
                .unwrap_or_else(|error| panic!("{tuning}: {error}"));
        }
    }
}

#[test]
fn a_program_is_tuned_where_it_stands() {
    let Some(soft) = needed(Soft::new(SoftOptions::default().threads(2))) else { return };
    let model = Model::open(&golden::gguf("llama256.Q4_0").0).unwrap();
    let (tuned, providers) = (Tuned::new(), Providers::new());
    let mut program = program(Arc::new(soft), &tuned, &model, DType::F16);
    let built_in = tuned.in_use().unwrap();
    let (vocab, context) = (model.config().vocab, model.config().context);
    let plan = TunePlan { tests: vec![TESTS[0], TESTS[2]], rounds: 1, quick: true };
    let mut on = OnDevice { program: program.as_mut(), vocab, context, tuned: tuned.clone(), providers };
    let found = tune(&mut on, built_in, &plan, &mut |_| {}).unwrap();
    assert_eq!((found.before, tuned.get()), (built_in, Some(found.after)));
    let trials = || found.fields.iter().flat_map(|tried| &tried.trials);
    assert!(trials().any(|trial| matches!(&trial.outcome, metallic::tune::Outcome::Ratios(_))));
    let failed = trials().find(|trial| matches!(&trial.outcome, metallic::tune::Outcome::Failed(_)));
    assert!(failed.is_none(), "{failed:?}");
    // Nothing here has matrix units.
    let cells = found.fields.iter().filter(|tried| tried.field.name.starts_with("cell_"));
    assert!(
        cells.flat_map(|tried| &tried.trials).all(|trial| trial.outcome == metallic::tune::Outcome::Same)
    );
}
