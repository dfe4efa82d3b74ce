//! Every operation on tensors of the case table on the CPU backend.

use metallic_core::reference::Reference;
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::tensor_cases;

#[test]
fn every_tensor_operation_matches_the_reference() {
    let cpu = Cpu::new(CpuOptions { threads: 3, ..CpuOptions::default() }).unwrap();
    let cases = tensor_cases::all();
    let failures: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            tensor_cases::check(&cpu, case).err().map(|error| format!("{}: {error}", case.name))
        })
        .collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

#[test]
fn operations_by_chance_on_operands_that_lie_anyhow_match_the_reference() {
    let cpu = Cpu::new(CpuOptions { threads: 3, ..CpuOptions::default() }).unwrap();
    for seed in 0..1000 {
        let case = tensor_cases::random(seed);
        tensor_cases::check(&cpu, &case).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
}

#[test]
fn the_reference_passes_its_own_table() {
    let reference = Reference::new();
    for case in tensor_cases::all() {
        tensor_cases::check(&reference, &case).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
    tensor_cases::check_refusals(&reference).unwrap();
}

#[test]
fn wrong_operands_and_foreign_memory_are_refused() {
    tensor_cases::check_refusals(&Cpu::new(CpuOptions::default()).unwrap()).unwrap();
}

#[test]
fn the_table_knows_every_tensor_operation() {
    let names = [
        "add_layer_norm",
        "add_rms_norm",
        "argmax",
        "binary",
        "copy",
        "fill",
        "gated",
        "layer_norm",
        "matmul",
        "rms_norm",
        "rope",
        "sample",
        "scalar",
        "sdpa",
        "softcap",
        "softmax",
        "top_k",
        "unary",
    ];
    assert_eq!(tensor_cases::covered(), names);
}
