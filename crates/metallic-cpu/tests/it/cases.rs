//! Every operation of the case table on the CPU backend.

use metallic_core::Backend;
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::cases::{self, Case};

#[test]
fn every_operation_matches_the_reference() {
    run_table(false, cases::check);
}

#[test]
fn the_exact_mode_rounds_no_activations() {
    run_table(true, cases::check_exact);
}

fn run_table(exact: bool, check: fn(&dyn Backend, &Case) -> Result<(), String>) {
    let cpu = Cpu::new(CpuOptions { threads: 3, exact, ..CpuOptions::default() }).unwrap();
    let failed = |case: &Case| check(&cpu, case).err().map(|error| format!("{}: {error}", case.name));
    let failures: Vec<String> = cases::all().iter().filter_map(failed).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_table_knows_every_operation() {
    let names = [
        "attention",
        "binary",
        "embed",
        "gated_project",
        "kv_write",
        "linear",
        "project",
        "qkv",
        "rms_norm",
        "rope",
        "scale",
        "select_rows",
        "slice",
        "softcap",
        "softmax",
        "unary",
    ];
    assert_eq!(cases::covered(), names);
}
