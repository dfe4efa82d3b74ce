//! Mistakes that drivers make: each must be caught, and by the rule that it breaks.

use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use block2::RcBlock;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::{AnyObject, ProtocolObject};
use objc2::{ffi, msg_send};
use objc2_foundation::{NSRange, NSString};
use objc2_metal::*;
use softmetal_framework::{Leak as Leaked, Profile, Rule, leaks, problems, set_devices};

use super::{BYTES, Bench, Buffer, THREADS, alone, buffer, bytes, dispatch, encoder_of, size, threadgroup};

/// What shows a mistake.
#[derive(Clone, Copy, Debug)]
enum Shows {
    Broken(Rule),
    /// objc2 compares the types of a message with those that the class declares.
    Panic(&'static str),
    Leak,
}
use Shows::{Broken, Leak, Panic};

type Mistake = (&'static str, Shows, fn(&Bench));

const MISTAKES: &[Mistake] = &[
    ("an offset past the end", Broken(Rule::Range), |b| with(b, |e| buffer(e, &b.x, BYTES, 1))),
    ("an offset that is no multiple of the element", Broken(Rule::Alignment), |b| {
        with(b, |e| buffer(e, &b.x, 2, 1));
    }),
    ("a buffer that nobody holds while the GPU reads it", Broken(Rule::ReleasedInFlight), missing_retain),
    ("a release too many", Broken(Rule::OverRelease), extra_release),
    ("a message to an object that is gone", Broken(Rule::UseAfterRelease), use_after_release),
    ("a dispatch that needs the last one, without a barrier", Broken(Rule::Hazard), missing_barrier),
    ("contents of private memory", Broken(Rule::StorageMode), private_contents),
    ("an argument of another width", Panic("expected argument at index 0"), |b| {
        // SAFETY: objc2 refuses it before it is sent.
        let _: *mut AnyObject = unsafe { msg_send![&*b.device, newBufferWithLength: 16u32, options: 0usize] };
    }),
    ("a message that nobody knows", Panic("method not found"), |b| {
        // SAFETY: objc2 refuses it before it is sent.
        let _: usize = unsafe { msg_send![&*b.device, maxBufferLenght] };
    }),
    ("another result than the message has", Panic("expected return"), |b| {
        // SAFETY: objc2 refuses it before it is sent.
        let _: u32 = unsafe { msg_send![&*b.device, maxBufferLength] };
    }),
    ("a commit while an encoder is open", Broken(Rule::EncoderState), |b| {
        let command_buffer = b.command_buffer();
        let encoder = encoder_of(&command_buffer);
        end_after(&encoder, || command_buffer.commit());
    }),
    ("an encoder that goes without its end", Broken(Rule::EncoderState), |b| {
        let command_buffer = b.command_buffer();
        drop(encoder_of(&command_buffer));
    }),
    ("two encoders at once", Broken(Rule::EncoderState), |b| {
        let command_buffer = b.command_buffer();
        let encoder = encoder_of(&command_buffer);
        end_after(&encoder, || drop(encoder_of(&command_buffer)));
    }),
    ("a command after the end", Broken(Rule::EncoderState), |b| {
        let command_buffer = b.command_buffer();
        let encoder = encoder_of(&command_buffer);
        encoder.endEncoding();
        encoder.setComputePipelineState(&b.pipeline);
    }),
    ("a commit twice", Broken(Rule::CommandBufferState), |b| {
        let command_buffer = b.command_buffer();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        command_buffer.commit();
    }),
    ("a handler after the commit", Broken(Rule::CommandBufferState), late_handler),
    ("waiting for what was not committed", Broken(Rule::CommandBufferState), |b| {
        b.command_buffer().waitUntilCompleted();
    }),
    ("an argument without a buffer", Broken(Rule::MissingBinding), |b| {
        // SAFETY: nothing is a thing that can be bound.
        with(b, |e| unsafe { e.setBuffer_offset_atIndex(None, 0, 2) });
    }),
    ("a dispatch without a pipeline", Broken(Rule::MissingBinding), |b| {
        let command_buffer = b.command_buffer();
        let encoder = encoder_of(&command_buffer);
        end_after(&encoder, || dispatch(&encoder));
    }),
    ("parameters that are too short", Broken(Rule::Range), |b| with(b, |e| bytes(e, &[3]))),
    ("parameters that are too long", Broken(Rule::Range), |b| with(b, |e| bytes(e, &[3; 1025]))),
    ("a threadgroup that is too large", Broken(Rule::Threadgroup), |b| {
        with(b, |e| e.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(2048)));
    }),
    ("no threadgroups at all", Broken(Rule::Threadgroup), |b| {
        with(b, |e| e.dispatchThreadgroups_threadsPerThreadgroup(size(0), size(THREADS)));
    }),
    ("threadgroup memory of an odd length", Broken(Rule::Alignment), |b| with(b, |e| threadgroup(e, 100))),
    ("threadgroup memory that was forgotten", Broken(Rule::MissingBinding), |b| {
        with(b, |e| threadgroup(e, 0));
    }),
    ("more threadgroup memory than there is", Broken(Rule::Threadgroup), |b| {
        with(b, |e| threadgroup(e, 48 << 10));
    }),
    ("pages that are no pages", Broken(Rule::Alignment), odd_pages),
    ("a kernel that writes pages of a constant", Broken(Rule::StorageMode), read_only_pages),
    ("an untracked buffer without a fence", Broken(Rule::Untracked), untracked),
    ("a residency set that was not committed", Broken(Rule::Residency), uncommitted_set),
    ("a buffer of another device", Broken(Rule::Device), other_device),
    ("a copy past the end", Broken(Rule::Range), |b| {
        let command_buffer = b.command_buffer();
        let blit = command_buffer.blitCommandEncoder().expect("an encoder");
        let range = NSRange { location: 4, length: BYTES };
        let filled = catch_unwind(AssertUnwindSafe(|| blit.fillBuffer_range_value(&b.y, range, 1)));
        blit.endEncoding();
        filled.expect("it is refused");
    }),
    ("a sample past the last", Broken(Rule::Range), late_sample),
    ("a language that the system does not know", Broken(Rule::Descriptor), |b| {
        let options = MTLCompileOptions::new();
        options.setLanguageVersion(MTLLanguageVersion(9 << 16));
        let _ =
            b.device.newLibraryWithSource_options_error(&NSString::from_str(super::SOURCE), Some(&options));
    }),
    ("a debug group that stays open", Broken(Rule::EncoderState), |b| {
        let command_buffer = b.command_buffer();
        let encoder = encoder_of(&command_buffer);
        encoder.pushDebugGroup(&NSString::from_str("open"));
        encoder.endEncoding();
    }),
    ("more command buffers than the queue has", Broken(Rule::CommandBufferState), |b| {
        let queue = b.device.newCommandQueueWithMaxCommandBufferCount(2).expect("a queue");
        let _all = [(); 3].map(|()| queue.commandBuffer());
    }),
    ("an object that is never released", Leak, |b| {
        let lost = b.device.newBufferWithLength_options(16, MTLResourceOptions::StorageModeShared);
        LOST.set(lost);
    }),
];

thread_local! {
    /// What is released once the leak was seen.
    static LOST: Cell<Option<Buffer>> = const { Cell::new(None) };
}

/// A right dispatch in which `change` does one thing wrong.
fn with(bench: &Bench, change: impl FnOnce(&super::Encoder)) {
    let command_buffer = bench.command_buffer();
    let encoder = encoder_of(&command_buffer);
    end_after(&encoder, || {
        bench.bind(&encoder);
        change(&encoder);
        dispatch(&encoder);
    });
    command_buffer.commit();
    command_buffer.waitUntilCompleted();
}

/// The encoder ends whatever comes of it: one mistake at a time.
fn end_after(encoder: &super::Encoder, f: impl FnOnce()) {
    let outcome = catch_unwind(AssertUnwindSafe(f));
    encoder.endEncoding();
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

fn missing_retain(bench: &Bench) {
    let command_buffer = bench.queue.commandBufferWithUnretainedReferences().expect("a command buffer");
    let event = bench.device.newSharedEvent().expect("an event");
    let own = bench
        .device
        .newBufferWithLength_options(BYTES, MTLResourceOptions::StorageModeShared)
        .expect("memory");
    // The GPU waits, so that the buffer goes before its turn.
    command_buffer.encodeWaitForEvent_value(ProtocolObject::from_ref(&*event), 1);
    let encoder = encoder_of(&command_buffer);
    bench.bind(&encoder);
    buffer(&encoder, &own, 0, 2);
    dispatch(&encoder);
    encoder.endEncoding();
    command_buffer.commit();
    let gone = catch_unwind(AssertUnwindSafe(|| drop(own)));
    event.setSignaledValue(1);
    command_buffer.waitUntilCompleted();
    assert!(gone.is_ok(), "it is refused");
}

fn shared(bench: &Bench) -> Buffer {
    bench.device.newBufferWithLength_options(BYTES, MTLResourceOptions::StorageModeShared).expect("memory")
}

fn extra_release(bench: &Bench) {
    let raw = Retained::into_raw(shared(bench)).cast::<AnyObject>();
    // SAFETY: the object's memory is never given back here, so that the second one can be refused.
    unsafe {
        ffi::objc_release(raw);
        ffi::objc_release(raw);
    }
}

fn use_after_release(bench: &Bench) {
    let raw = Retained::into_raw(shared(bench));
    // SAFETY: as above.
    unsafe {
        ffi::objc_release(raw.cast::<AnyObject>());
        let _ = (*raw).length();
    }
}

fn missing_barrier(bench: &Bench) {
    let command_buffer = bench.command_buffer();
    let made = command_buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
    let encoder = made.expect("an encoder");
    bench.bind(&encoder);
    dispatch(&encoder);
    // What the first wrote, the second reads.
    buffer(&encoder, &bench.y, 0, 1);
    buffer(&encoder, &bench.x, 0, 2);
    dispatch(&encoder);
    encoder.endEncoding();
    command_buffer.commit();
    command_buffer.waitUntilCompleted();
}

fn private_contents(bench: &Bench) {
    let private = bench.device.newBufferWithLength_options(16, MTLResourceOptions::StorageModePrivate);
    let _ = private.expect("memory").contents();
}

fn late_handler(bench: &Bench) {
    let command_buffer = bench.command_buffer();
    command_buffer.commit();
    command_buffer.waitUntilCompleted();
    let block = RcBlock::new(|_: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {});
    // SAFETY: the block lives for the call.
    unsafe { command_buffer.addCompletedHandler(RcBlock::as_ptr(&block)) };
}

fn odd_pages(bench: &Bench) {
    let mut bytes = vec![0u8; 3 * 4096];
    let place = NonNull::from(&mut bytes[100]).cast::<c_void>();
    // SAFETY: it is refused.
    let _ = unsafe {
        bench.device.newBufferWithBytesNoCopy_length_options_deallocator(
            place,
            4096,
            MTLResourceOptions::StorageModeShared,
            None,
        )
    };
}

#[repr(align(4096))]
struct Page([u8; 4096]);
static CONSTANT: Page = Page([1; 4096]);

fn read_only_pages(bench: &Bench) {
    // SAFETY: the pages stay; that they are not written is what is tested.
    let pages = unsafe {
        bench.device.newBufferWithBytesNoCopy_length_options_deallocator(
            NonNull::from(&CONSTANT.0).cast(),
            4096,
            MTLResourceOptions::StorageModeShared,
            None,
        )
    };
    let pages = pages.expect("a buffer");
    with(bench, |e| buffer(e, &pages, 0, 2));
}

fn untracked(bench: &Bench) {
    let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
    let between = bench.device.newBufferWithLength_options(BYTES, options).expect("memory");
    let command_buffer = bench.command_buffer();
    for (index, other) in [(2, 1), (1, 2)] {
        let encoder = encoder_of(&command_buffer);
        bench.bind(&encoder);
        buffer(&encoder, &between, 0, index);
        buffer(&encoder, if other == 1 { &bench.x } else { &bench.y }, 0, other);
        dispatch(&encoder);
        encoder.endEncoding();
    }
    command_buffer.commit();
}

fn uncommitted_set(bench: &Bench) {
    let descriptor = MTLResidencySetDescriptor::new();
    let set = bench.device.newResidencySetWithDescriptor_error(&descriptor).expect("a set");
    let queue = bench.device.newCommandQueue().expect("a queue");
    queue.addResidencySet(&set);
    set.addAllocation(ProtocolObject::from_ref(&*bench.x));
    let command_buffer = queue.commandBuffer().expect("a command buffer");
    let encoder = encoder_of(&command_buffer);
    bench.bind(&encoder);
    dispatch(&encoder);
    encoder.endEncoding();
    command_buffer.commit();
}

fn other_device(bench: &Bench) {
    let other = MTLCopyAllDevices()
        .to_vec()
        .into_iter()
        .find(|device| device.registryID() != bench.device.registryID());
    let other = other.expect("a second device");
    let foreign =
        other.newBufferWithLength_options(BYTES, MTLResourceOptions::StorageModeShared).expect("memory");
    with(bench, |e| buffer(e, &foreign, 0, 1));
}

fn late_sample(bench: &Bench) {
    let descriptor = MTLCounterSampleBufferDescriptor::new();
    let sets = bench.device.counterSets().expect("sets").to_vec();
    descriptor.setCounterSet(Some(&sets[0]));
    // SAFETY: a buffer has room for so many.
    unsafe { descriptor.setSampleCount(2) };
    let samples = bench.device.newCounterSampleBufferWithDescriptor_error(&descriptor).expect("samples");
    let pass = MTLComputePassDescriptor::computePassDescriptor();
    // SAFETY: there is such an attachment; that the place is too far is what is tested.
    unsafe {
        let attachment = pass.sampleBufferAttachments().objectAtIndexedSubscript(0);
        attachment.setSampleBuffer(Some(&samples));
        attachment.setStartOfEncoderSampleIndex(1);
        attachment.setEndOfEncoderSampleIndex(2);
    }
    let _ = bench.command_buffer().computeCommandEncoderWithDescriptor(&pass);
}

/// Whether the mistake showed as it should, and if not, what did.
fn caught((name, shows, make): &Mistake, bench: &Bench) -> Result<(), String> {
    let before = leaks().len();
    let outcome = catch_unwind(AssertUnwindSafe(|| autoreleasepool(|_| make(bench))));
    let panic = outcome.err().map(|panic| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(other) => other.downcast_ref::<&str>().map_or(String::new(), |text| (*text).to_owned()),
    });
    let found = problems();
    let left = leaks();
    LOST.take();
    let shown = match shows {
        Broken(rule) => found.iter().any(|problem| problem.rule == *rule),
        Panic(text) => panic.as_ref().is_some_and(|said| said.contains(text)),
        // By the function that made it, as `Bench::new` made the others.
        Leak => {
            let by_us =
                |leak: &Leaked| leak.made_by.as_ref().is_some_and(|place| place.contains("mistakes.rs"));
            left.len() == before + 1 && left.iter().any(by_us) && found.is_empty()
        }
    };
    if shown {
        Ok(())
    } else {
        Err(format!("{name}: expected {shows:?}, found {found:?}, {panic:?}, {left:?}"))
    }
}

#[test]
fn every_planted_mistake_is_caught() {
    let _alone = alone();
    let profile = |name| Profile::named(name).expect("a profile");
    set_devices(vec![profile("m4"), profile("m1")]);
    // What is planted panics by the dozen; each is looked at below.
    std::panic::set_hook(Box::new(|_| ()));
    let outcomes: Vec<Result<(), String>> = autoreleasepool(|_| {
        let bench = Bench::new();
        let outcomes = MISTAKES.iter().map(|mistake| caught(mistake, &bench)).collect();
        bench.run();
        outcomes
    });
    let after = problems();
    drop(std::panic::take_hook());
    assert!(MISTAKES.len() >= 20, "{}", MISTAKES.len());
    let missed: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    assert!(missed.is_empty(), "{} of {} mistakes:\n{}", missed.len(), MISTAKES.len(), missed.join("\n"));
    assert!(after.is_empty(), "the right driver is refused after the wrong ones: {after:?}");
    println!("{} mistakes, all caught", MISTAKES.len());
}
