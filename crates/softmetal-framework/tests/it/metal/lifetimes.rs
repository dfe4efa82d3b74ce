//! Who holds what, and what happens to those who wait where a block panics.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use block2::RcBlock;
use objc2::rc::autoreleasepool;
use objc2::runtime::ProtocolObject;
use objc2_metal::*;
use softmetal_framework::{Rule, leaks, problems};

use super::{BYTES, Bench, Buffer, CommandBuffer, alone, buffer, dispatch, encoder_of, rules};

type Handler = RcBlock<dyn Fn(NonNull<ProtocolObject<dyn MTLCommandBuffer>>)>;

/// In one pool, without the panics that are planted; nothing may be left.
fn bench(test: impl FnOnce(&Bench)) {
    let _alone = alone();
    problems();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let outcome = catch_unwind(AssertUnwindSafe(|| autoreleasepool(|_| test(&Bench::new()))));
    std::panic::set_hook(hook);
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    let left = leaks();
    assert!(left.is_empty(), "{left:?}");
}

fn own(bench: &Bench) -> Buffer {
    bench.device.newBufferWithLength_options(BYTES, MTLResourceOptions::StorageModeShared).expect("memory")
}

/// One dispatch that writes `to`.
fn encode(bench: &Bench, command_buffer: &CommandBuffer, to: &Buffer) {
    let encoder = encoder_of(command_buffer);
    bench.bind(&encoder);
    buffer(&encoder, to, 0, 2);
    dispatch(&encoder);
    encoder.endEncoding();
}

fn unretained(bench: &Bench) -> CommandBuffer {
    bench.queue.commandBufferWithUnretainedReferences().expect("a command buffer")
}

fn handler(f: impl Fn() + 'static) -> Handler {
    RcBlock::new(move |_: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| f())
}

#[test]
fn handlers_that_panic_are_told_and_nobody_waits_for_ever() {
    bench(|bench| {
        let command_buffer = bench.command_buffer();
        let (scheduled, completed) =
            (handler(|| panic!("planted, scheduled")), handler(|| panic!("planted, completed")));
        // SAFETY: the blocks live for the calls.
        unsafe {
            command_buffer.addScheduledHandler(RcBlock::as_ptr(&scheduled));
            command_buffer.addCompletedHandler(RcBlock::as_ptr(&completed));
        }
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        let found = problems();
        assert_eq!(rules(&found), [Rule::Handler, Rule::Handler]);
        for (problem, said) in found.iter().zip(["planted, scheduled", "planted, completed"]) {
            assert!(problem.text.contains(said), "{problem}");
        }
        // The threads are still there.
        bench.run();
    });
}

#[test]
fn what_a_command_buffer_ends_while_another_uses_it_is_told_and_nobody_waits_for_ever() {
    bench(|bench| {
        let event = bench.device.newSharedEvent().expect("an event");
        let own = own(bench);
        let (holds, borrows) = (bench.command_buffer(), unretained(bench));
        for (place, command_buffer) in [&holds, &borrows].into_iter().enumerate() {
            command_buffer.encodeWaitForEvent_value(ProtocolObject::from_ref(&*event), place as u64 + 1);
            encode(bench, command_buffer, &own);
            command_buffer.commit();
        }
        drop(own);
        event.setSignaledValue(1);
        holds.waitUntilCompleted();
        assert_eq!(rules(&problems()), [Rule::ReleasedInFlight]);
        event.setSignaledValue(2);
        borrows.waitUntilCompleted();
        assert_eq!(rules(&problems()), []);
    });
}

#[test]
fn what_goes_between_encoding_and_commit_is_missed() {
    bench(|bench| {
        let (command_buffer, own) = (unretained(bench), own(bench));
        encode(bench, &command_buffer, &own);
        drop(own);
        let committed = catch_unwind(AssertUnwindSafe(|| command_buffer.commit()));
        assert!(committed.is_err());
        let found = problems();
        assert_eq!(rules(&found), [Rule::ReleasedInFlight]);
        assert!(found[0].text.contains("before the commit"), "{}", found[0]);
    });
    // A command buffer that is given up never uses what it names.
    bench(|bench| {
        let (command_buffer, own) = (unretained(bench), own(bench));
        encode(bench, &command_buffer, &own);
        drop(own);
        drop(command_buffer);
    });
    assert_eq!(rules(&problems()), []);
}

#[test]
fn what_is_completed_can_be_released_before_its_handlers_ran() {
    bench(|bench| {
        // Handlers of the one before keep the thread that calls them.
        let slow = handler(|| std::thread::sleep(Duration::from_millis(150)));
        let (first, second, own) = (bench.command_buffer(), unretained(bench), own(bench));
        // SAFETY: the block lives for the call.
        unsafe { first.addCompletedHandler(RcBlock::as_ptr(&slow)) };
        encode(bench, &second, &own);
        first.commit();
        second.commit();
        let begun = Instant::now();
        while second.status() != MTLCommandBufferStatus::Completed {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", second.status());
            std::thread::yield_now();
        }
        drop(own);
        second.waitUntilCompleted();
        assert_eq!(rules(&problems()), []);
    });
}

#[test]
fn a_block_that_is_released_too_often_is_told() {
    bench(|_| {
        let block = handler(|| ());
        let raw = RcBlock::as_ptr(&block).cast();
        // SAFETY: that it is one too many is what is tested; the count of a released block stays where it is.
        unsafe { block2::ffi::_Block_release(raw) };
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(block)));
        assert!(dropped.is_err());
        assert_eq!(rules(&problems()), [Rule::OverRelease]);
    });
}
