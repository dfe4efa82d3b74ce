//! What runs when: dispatches of a concurrent encoder, places in a queue, fences and events.

use std::panic::{AssertUnwindSafe, catch_unwind};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSRange;
use objc2_metal::*;
use softmetal_framework::{Rule, problems};

use super::{
    BYTES, Bench, Buffer, CommandBuffer, alone, buffer, encoder_of, pipeline_of, rules, size, words,
};

type Fence = Retained<ProtocolObject<dyn MTLFence>>;

const SOURCE: &str = "#include <metal_stdlib>
using namespace metal;
kernel void bump(device uint* y [[buffer(1)]], uint i [[thread_position_in_grid]]) { y[i] += 1; }
kernel void same(device uint* y [[buffer(1)]]) { y[0] = 5; }
";

/// In one pool; nothing that was done before counts.
fn bench(test: impl FnOnce(&Bench)) {
    let _alone = alone();
    problems();
    autoreleasepool(|_| test(&Bench::new()));
}

fn memory(bench: &Bench, options: MTLResourceOptions) -> Buffer {
    bench.device.newBufferWithLength_options(BYTES, options).expect("memory")
}

#[test]
fn dispatches_that_run_in_both_orders_change_everything_once() {
    bench(|bench| {
        let bump = pipeline_of(&bench.device, SOURCE, "bump");
        let shared = memory(bench, MTLResourceOptions::StorageModeShared);
        let command_buffer = bench.command_buffer();
        let made = command_buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        let encoder = made.expect("an encoder");
        encoder.setComputePipelineState(&bump);
        // Two have a buffer in common, a half each; the third has its own.
        for (target, offset) in [(&shared, 0), (&shared, BYTES / 2), (&bench.y, 0)] {
            buffer(&encoder, target, offset, 1);
            encoder.dispatchThreads_threadsPerThreadgroup(size(BYTES / 8), size(32));
        }
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        assert_eq!(command_buffer.status(), MTLCommandBufferStatus::Completed);
        assert!(words(&shared).iter().all(|word| *word == 1));
        assert!(words(&bench.y)[..BYTES / 8].iter().all(|word| *word == 1), "{:?}", words(&bench.y));
        assert_eq!(rules(&problems()), []);
    });
}

#[test]
fn a_warning_of_a_kernel_is_written_down_and_fails_nothing() {
    // Warnings are of checked kernels, which a process has from the beginning or not at all.
    if std::env::var_os("SOFTMETAL_CHECKED").is_none() {
        let name = "metal::order::a_warning_of_a_kernel_is_written_down_and_fails_nothing";
        let mut again = std::process::Command::new(std::env::current_exe().expect("a program"));
        let output = again.args([name, "--exact"]).env("SOFTMETAL_CHECKED", "1").output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    bench(|bench| {
        let same = pipeline_of(&bench.device, SOURCE, "same");
        let command_buffer = bench.command_buffer();
        let encoder = encoder_of(&command_buffer);
        encoder.setComputePipelineState(&same);
        buffer(&encoder, &bench.y, 0, 1);
        encoder.dispatchThreads_threadsPerThreadgroup(size(2), size(1));
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        assert_eq!(command_buffer.status(), MTLCommandBufferStatus::Completed);
        assert_eq!(words(&bench.y)[0], 5);
        assert_eq!(rules(&problems()), [Rule::Kernel]);
    });
}

fn copy(command_buffer: &CommandBuffer, from: &Buffer, to: &Buffer) {
    let blit = command_buffer.blitCommandEncoder().expect("an encoder");
    // SAFETY: both buffers have so many bytes.
    unsafe { blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(from, 0, to, 0, BYTES) };
    blit.endEncoding();
}

#[test]
fn enqueue_keeps_a_place() {
    bench(|bench| {
        let (first, second) = (bench.command_buffer(), bench.command_buffer());
        first.enqueue();
        assert_eq!(first.status(), MTLCommandBufferStatus::Enqueued);
        let blit = first.blitCommandEncoder().expect("an encoder");
        blit.fillBuffer_range_value(&bench.x, NSRange { location: 0, length: BYTES }, 1);
        blit.endEncoding();
        copy(&second, &bench.x, &bench.y);
        second.commit();
        first.commit();
        second.waitUntilCompleted();
        assert!(words(&bench.y).iter().all(|word| *word == 0x0101_0101), "{:?}", words(&bench.y));
        let late = catch_unwind(AssertUnwindSafe(|| second.enqueue()));
        assert!(late.is_err());
        assert_eq!(rules(&problems()), [Rule::CommandBufferState]);

        // Who goes without a commit lets the others pass, and that is told.
        let third = bench.command_buffer();
        autoreleasepool(|_| {
            let gone = bench.command_buffer();
            gone.enqueue();
            third.commit();
        });
        third.waitUntilCompleted();
        assert_eq!(rules(&problems()), [Rule::CommandBufferState]);
    });
}

/// One pass of a command buffer: what it waits for, what it reads or writes, what it updates.
#[derive(Default, Clone, Copy)]
struct Step<'s> {
    wait: Option<&'s Fence>,
    writes: bool,
    reads: bool,
    update: Option<&'s Fence>,
}

impl<'s> Step<'s> {
    fn updates(self, fence: &'s Fence) -> Step<'s> {
        Step { update: Some(fence), ..self }
    }

    fn after(self, fence: &'s Fence) -> Step<'s> {
        Step { wait: Some(fence), ..self }
    }
}

fn encode(bench: &Bench, command_buffer: &CommandBuffer, untracked: &Buffer, step: Step<'_>) {
    let blit = command_buffer.blitCommandEncoder().expect("an encoder");
    if let Some(fence) = step.wait {
        blit.waitForFence(fence);
    }
    let range = NSRange { location: 0, length: BYTES };
    if step.writes {
        blit.fillBuffer_range_value(untracked, range, 1);
    }
    if step.reads {
        // SAFETY: both buffers have so many bytes.
        unsafe {
            blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(
                untracked, 0, &bench.y, 0, BYTES,
            );
        }
    }
    if let Some(fence) = step.update {
        blit.updateFence(fence);
    }
    blit.endEncoding();
}

/// Whether passes of one command buffer are taken.
fn taken(bench: &Bench, steps: &[Step<'_>]) -> bool {
    let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    let (untracked, command_buffer) = (memory(bench, options), bench.command_buffer());
    for step in steps {
        encode(bench, &command_buffer, &untracked, *step);
    }
    let committed = catch_unwind(AssertUnwindSafe(|| command_buffer.commit())).is_ok();
    if committed {
        command_buffer.waitUntilCompleted();
    }
    let found = rules(&problems());
    assert_eq!(found, if committed { vec![] } else { vec![Rule::Untracked] });
    committed
}

#[test]
fn a_fence_orders_those_that_updated_it_and_nobody_else() {
    bench(|bench| {
        let fence = || bench.device.newFence().expect("a fence");
        let (f, g) = (&fence(), &fence());
        let (write, read, none) = (
            Step { writes: true, ..Step::default() },
            Step { reads: true, ..Step::default() },
            Step::default(),
        );
        let (write_f, read_g) = (write.updates(f), read.after(f).updates(g));
        let cases: &[(&str, &[Step<'_>], bool)] = &[
            ("what was written", &[write_f, read.after(f)], true),
            ("one after another", &[write_f, read_g, write.after(g)], true),
            ("two that read", &[write_f, read.after(f), read.after(f)], true),
            ("both that read", &[read.updates(f), read.updates(f), write.after(f)], true),
            ("a fence that somebody else updated", &[write, none.updates(f), read.after(f)], false),
            ("one of two that read", &[read, read.updates(f), write.after(f)], false),
            ("a read after the write that was waited for", &[write_f, read.after(f), write.after(f)], false),
        ];
        for (name, steps, allowed) in cases {
            assert_eq!(taken(bench, steps), *allowed, "{name}");
        }
    });
}

#[test]
fn an_event_orders_what_came_before_its_signal() {
    bench(|bench| {
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        let other = bench.device.newCommandQueue().expect("a queue");
        let write = Step { writes: true, ..Step::default() };
        let read = Step { reads: true, ..Step::default() };
        // Who signals, if anybody on the GPU; whether the one that waits is committed first.
        for (gpu, waits_first, allowed) in [(true, false, true), (true, true, true), (false, false, false)] {
            let untracked = memory(bench, options);
            let (event, hold) = (
                bench.device.newSharedEvent().expect("an event"),
                bench.device.newSharedEvent().expect("one"),
            );
            let (one, two) = (bench.command_buffer(), other.commandBuffer().expect("a command buffer"));
            // The first does not run before the second is looked at.
            let gate = bench.command_buffer();
            gate.encodeWaitForEvent_value(ProtocolObject::from_ref(&*hold), 1);
            gate.commit();
            encode(bench, &one, &untracked, write);
            if gpu {
                one.encodeSignalEvent_value(ProtocolObject::from_ref(&*event), 3);
            } else {
                event.setSignaledValue(3);
            }
            two.encodeWaitForEvent_value(ProtocolObject::from_ref(&*event), 2);
            encode(bench, &two, &untracked, read);
            let both = if waits_first { [&two, &one] } else { [&one, &two] };
            let committed = both.map(|each| catch_unwind(AssertUnwindSafe(|| each.commit())).is_ok());
            hold.setSignaledValue(1);
            one.waitUntilCompleted();
            if committed[1] {
                two.waitUntilCompleted();
            }
            let expected = if allowed { vec![] } else { vec![Rule::Untracked] };
            assert_eq!((rules(&problems()), committed), (expected, [true, allowed]), "{gpu} {waits_first}");
        }
    });
}
