//! The table of tensor cases on the software device, and what happens when the device fails.

use std::sync::Arc;

use metallic_core::tensor::{Operand, TensorMemory, TensorOp, View};
use metallic_core::{Backend, BackendError, Binary, DType};
use metallic_testkit::tensor_cases::{self, TensorCase};

use crate::backend::{GpuBackend, GpuOptions};
use crate::fault::{Fault, Faulty};
use crate::gpu::Gpu;
use crate::soft::{Soft, SoftOptions};

fn soft(options: SoftOptions) -> Option<Arc<dyn Gpu>> {
    match Soft::new(options) {
        Ok(soft) => Some(Arc::new(soft)),
        Err(error) => {
            eprintln!("NOT TESTED: {error}");
            None
        }
    }
}

/// Runs the cases that `wanted` picks by index.
fn table(options: SoftOptions, wanted: impl Fn(usize, &TensorCase) -> bool) {
    let Some(gpu) = soft(options) else { return };
    let backend = GpuBackend::new(gpu, GpuOptions::default());
    let mut failures = Vec::new();
    for (index, case) in tensor_cases::all().iter().enumerate() {
        if wanted(index, case)
            && let Err(problem) = tensor_cases::check(&backend, case)
        {
            failures.push(format!("{}: {problem}", case.name));
        }
    }
    assert!(
        failures.is_empty(),
        "{} cases, among them\n{}",
        failures.len(),
        failures[..failures.len().min(20)].join("\n")
    );
}

#[test]
fn the_table_holds_in_order() {
    table(SoftOptions { threads: 2, checked: false, seed: 0 }, |_, _| true);
}

#[test]
fn the_table_holds_under_random_schedules() {
    for seed in 1..=5 {
        table(SoftOptions { threads: 2, checked: false, seed }, |_, _| true);
    }
}

#[test]
fn the_table_holds_with_every_access_watched() {
    table(SoftOptions { threads: 2, checked: true, seed: 0 }, |_, _| true);
}
