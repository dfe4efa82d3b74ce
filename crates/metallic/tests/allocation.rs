//! A step of a kind that has run before allocates nothing.
//!
//! A binary of its own: it counts the allocations of the whole process, and other tests would allocate beside it.

use std::alloc::System;

use metallic::model::Model;
use metallic_core::{DType, Program, SequenceSpan, Step, Wanted};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::data;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// A prefill of 40 tokens, then decode steps of two sequences.
fn serve(program: &mut dyn Program) {
    let (a, b) = ([0u32, 1, 2], [3u32, 4, 5]);
    let tokens = [7u32; 40];
    let positions: [u32; 40] = std::array::from_fn(|i| i as u32);
    let sequences = [SequenceSpan { tokens: 0..40, past: 0, blocks: &a, near: &[], slot: 0 }];
    program
        .run(&Step {
            tokens: &tokens,
            positions: &positions,
            sequences: &sequences,
            outputs: &[39],
            wanted: Wanted::only(0),
            ..Step::default()
        })
        .unwrap();
    for past in 0..20usize {
        let sequences = [
            SequenceSpan { tokens: 0..1, past: 40 + past, blocks: &a, near: &[], slot: 0 },
            SequenceSpan { tokens: 1..2, past, blocks: &b, near: &[], slot: 0 },
        ];
        let positions = [40 + past as u32, past as u32];
        program
            .run(&Step {
                tokens: &[5, 6],
                positions: &positions,
                sequences: &sequences,
                outputs: &[0, 1],
                wanted: Wanted::only(0),
                ..Step::default()
            })
            .unwrap();
    }
}

#[test]
fn a_steady_step_allocates_nothing() {
    for name in ["llama256.Q4_0", "llama256.Q4_K_M", "llama_odd.F16"] {
        let model = Model::open(&data::own().join(format!("golden/gguf/{name}.gguf"))).unwrap();
        let cpu = Cpu::new(CpuOptions::default().threads(2)).unwrap();
        let mut program = model.compile(&cpu, DType::F16).unwrap();
        program.reserve_blocks(6).unwrap();
        serve(program.as_mut());
        // On a busy machine a worker may only now begin, or end, and allocates its name; a step would each time.
        let least = (0..20).map(|_| {
            let region = Region::new(ALLOCATOR);
            serve(program.as_mut());
            let change = region.change();
            change.allocations + change.reallocations
        });
        assert_eq!(least.min(), Some(0), "{name}");
    }
}
