//! Every operation of the one table of cases on the CPU backend.

use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::cases::Exactness;
use metallic_testkit::{Plan, run_all};

fn run_table(exact: bool, exactness: Exactness) {
    let cpu = Cpu::new(CpuOptions::default().threads(3).exact(exact)).unwrap();
    run_all(&cpu, &Plan { exactness, ..Plan::default() }).expect();
}

#[test]
fn every_operation_matches_the_reference() {
    run_table(false, Exactness::Rounded);
}

#[test]
fn the_exact_mode_rounds_no_activations() {
    run_table(true, Exactness::Exact);
}
