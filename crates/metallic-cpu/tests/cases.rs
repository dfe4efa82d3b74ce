//! Every operation of the case table on the CPU backend.

use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::cases;

#[test]
fn every_operation_matches_the_reference() {
    let cpu = Cpu::new(CpuOptions { threads: 3, profile: false }).unwrap();
    let mut failures = Vec::new();
    for case in cases::all() {
        if let Err(error) = cases::check(&cpu, &case) {
            failures.push(format!("{}: {error}", case.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_table_knows_every_operation_but_the_fused_self_attention() {
    // `project` of three parts and `rope_kv_write` come from whole decoders: the golden models run them.
    let names = [
        "attention",
        "binary",
        "embed",
        "gated_project",
        "kv_write",
        "linear",
        "project",
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
