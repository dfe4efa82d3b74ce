//! Programs that do everything right: nothing is refused, the numbers are right, and nothing is left.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use block2::RcBlock;
use objc2::rc::autoreleasepool;
use objc2::runtime::{NSObjectProtocol as _, ProtocolObject};
use objc2::sel;
use objc2_foundation::{NSRange, NSString};
use objc2_metal::*;
use softmetal_framework::{blocks, leaks, problems, set_macos};

use super::{
    BYTES, Bench, N, SOURCE, THREADS, alone, buffer, dispatch, encoder_of, fill, scaled, size, words,
};

/// Runs a program, after which nothing may be left of it.
fn clean(program: impl FnOnce(&Bench)) {
    let _alone = alone();
    autoreleasepool(|_| {
        let bench = Bench::new();
        program(&bench);
    });
    let (problems, leaks) = (problems(), leaks());
    assert!(problems.is_empty(), "{problems:?}");
    assert!(leaks.is_empty(), "{leaks:?}");
    assert_eq!(blocks(), 0);
}

#[test]
fn a_dispatch_gives_what_its_kernel_says() {
    clean(|bench| {
        bench.run();
        assert_eq!(words(&bench.y), scaled());
    });
}

#[test]
fn dispatches_that_a_barrier_orders_may_share_memory() {
    clean(|bench| {
        let command_buffer = bench.command_buffer();
        let made = command_buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent);
        let encoder = made.expect("an encoder");
        bench.bind(&encoder);
        dispatch(&encoder);
        encoder.memoryBarrierWithScope(MTLBarrierScope::Buffers);
        buffer(&encoder, &bench.y, 0, 1);
        buffer(&encoder, &bench.x, 0, 2);
        dispatch(&encoder);
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        let expected: Vec<u32> = scaled().into_iter().map(|y| y * 3 + 1).collect();
        assert_eq!(words(&bench.x), expected);
    });
}

#[test]
fn handlers_run_on_another_thread_before_waiting_ends() {
    clean(|bench| {
        let calls = Arc::new(AtomicUsize::new(0));
        let (here, count) = (std::thread::current().id(), calls.clone());
        let block = RcBlock::new(move |buffer: NonNull<ProtocolObject<dyn MTLCommandBuffer>>| {
            assert_ne!(std::thread::current().id(), here);
            // SAFETY: it lives for the call.
            let buffer = unsafe { buffer.as_ref() };
            assert_eq!(buffer.status(), MTLCommandBufferStatus::Completed);
            assert!(buffer.GPUEndTime() >= buffer.GPUStartTime() && buffer.GPUStartTime() > 0.0);
            count.fetch_add(1, Ordering::SeqCst);
        });
        let command_buffer = bench.command_buffer();
        // SAFETY: the block lives for the call, and its closure may run anywhere.
        unsafe { command_buffer.addCompletedHandler(RcBlock::as_ptr(&block)) };
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        assert_eq!(calls.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn copies_fills_events_and_fences_order_what_they_should() {
    clean(|bench| {
        let private = bench
            .device
            .newBufferWithLength_options(BYTES, MTLResourceOptions::StorageModePrivate)
            .expect("memory");
        let event = bench.device.newSharedEvent().expect("an event");
        let fence = bench.device.newFence().expect("a fence");
        let first = bench.command_buffer();
        let blit = first.blitCommandEncoder().expect("an encoder");
        // SAFETY: both buffers have so many bytes.
        unsafe {
            blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(&bench.x, 0, &private, 0, BYTES);
        }
        blit.fillBuffer_range_value(&bench.x, NSRange { location: 0, length: 8 }, 0xFF);
        blit.updateFence(&fence);
        blit.endEncoding();
        first.encodeSignalEvent_value(ProtocolObject::from_ref(&*event), 5);
        let second = bench.queue.commandBuffer().expect("a command buffer");
        second.encodeWaitForEvent_value(ProtocolObject::from_ref(&*event), 5);
        let blit = second.blitCommandEncoder().expect("an encoder");
        blit.waitForFence(&fence);
        // SAFETY: as above.
        unsafe {
            blit.copyFromBuffer_sourceOffset_toBuffer_destinationOffset_size(&private, 0, &bench.y, 0, BYTES);
        }
        blit.endEncoding();
        first.commit();
        second.commit();
        second.waitUntilCompleted();
        assert_eq!(event.signaledValue(), 5);
        assert_eq!(words(&bench.y), (0..N as u32).collect::<Vec<_>>());
        assert_eq!(words(&bench.x)[..3], [u32::MAX, u32::MAX, 2]);
    });
}

#[test]
fn heaps_give_pieces_and_take_them_back() {
    clean(|bench| {
        let descriptor = MTLHeapDescriptor::new();
        descriptor.setSize(4 * BYTES);
        descriptor.setStorageMode(MTLStorageMode::Shared);
        let heap = bench.device.newHeapWithDescriptor(&descriptor).expect("a heap");
        let piece = || heap.newBufferWithLength_options(2 * BYTES, MTLResourceOptions::StorageModeShared);
        let (one, two) = (piece().expect("room"), piece().expect("room"));
        assert!(piece().is_none(), "it is full");
        assert_eq!((one.heapOffset(), two.heapOffset()), (0, 2 * BYTES));
        fill(&one);
        drop(two);
        assert!(piece().is_some(), "there is room again");
        assert_eq!(words(&one)[5], 5);
    });
}

#[test]
fn a_grid_can_come_from_a_buffer_and_need_not_be_whole_threadgroups() {
    clean(|bench| {
        let groups = [(N / THREADS) as u32, 1, 1];
        // SAFETY: the pointer is to so many bytes.
        let indirect = unsafe {
            bench.device.newBufferWithBytes_length_options(
                NonNull::from(&groups).cast(),
                12,
                MTLResourceOptions::StorageModeShared,
            )
        };
        let indirect = indirect.expect("memory");
        let command_buffer = bench.command_buffer();
        let encoder = encoder_of(&command_buffer);
        bench.bind(&encoder);
        // SAFETY: twelve bytes from 0 on are inside.
        unsafe {
            encoder.dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup(
                &indirect,
                0,
                size(THREADS),
            );
        }
        encoder.dispatchThreads_threadsPerThreadgroup(size(10), size(THREADS));
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        assert_eq!(words(&bench.y), scaled());
    });
}

#[test]
fn memory_of_the_program_is_seen_in_place_and_given_back() {
    clean(|bench| {
        #[repr(align(4096))]
        struct Page([u32; 1024]);
        let mut page = Box::new(Page([7; 1024]));
        let returned = Arc::new(AtomicUsize::new(0));
        let count = returned.clone();
        let release = RcBlock::new(move |_: NonNull<c_void>, len: usize| {
            count.fetch_add(len, Ordering::SeqCst);
        });
        // SAFETY: the page lives longer than the buffer.
        let lent = unsafe {
            bench.device.newBufferWithBytesNoCopy_length_options_deallocator(
                NonNull::from(&mut page.0).cast(),
                4096,
                MTLResourceOptions::StorageModeShared,
                Some(&release),
            )
        };
        let lent = lent.expect("a buffer");
        let command_buffer = bench.command_buffer();
        let encoder = encoder_of(&command_buffer);
        bench.bind(&encoder);
        buffer(&encoder, &lent, 0, 2);
        dispatch(&encoder);
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        drop((command_buffer, encoder));
        assert_eq!((page.0[1], page.0[N]), (4, 7));
        assert_eq!(returned.load(Ordering::SeqCst), 0);
        drop(lent);
        assert_eq!(returned.load(Ordering::SeqCst), 4096);
    });
}

#[test]
fn what_does_not_compile_says_where() {
    clean(|bench| {
        let wrong = SOURCE.replace("x[i] *", "nothing[i] *");
        let made = bench.device.newLibraryWithSource_options_error(&NSString::from_str(&wrong), None);
        let error = made.expect_err("it does not compile");
        let text = error.localizedDescription().to_string();
        assert!(text.contains("program_source:7") && text.contains("nothing"), "{text}");
        assert_eq!((error.domain().to_string().as_str(), error.code()), ("MTLLibraryErrorDomain", 3));
    });
}

#[test]
fn a_lane_that_asks_for_one_that_is_not_there_is_told_of_and_the_others_go_on() {
    const SHUFFLE: &str = "#include <metal_stdlib>
using namespace metal;
kernel void shuffle(device const uint* x [[buffer(1)]], device uint* y [[buffer(2)]],
                    uint i [[thread_position_in_grid]]) {
    y[i] = simd_shuffle_down(x[i], 2);
}
";
    clean(|bench| {
        let made = bench.device.newLibraryWithSource_options_error(&NSString::from_str(SHUFFLE), None);
        let function = made.expect("it compiles").newFunctionWithName(&NSString::from_str("shuffle"));
        let function = function.expect("it is there");
        let pipeline = bench.device.newComputePipelineStateWithFunction_error(&function).expect("a pipeline");
        let command_buffer = bench.command_buffer();
        let encoder = encoder_of(&command_buffer);
        encoder.setComputePipelineState(&pipeline);
        buffer(&encoder, &bench.x, 0, 1);
        buffer(&encoder, &bench.y, 0, 2);
        encoder.dispatchThreadgroups_threadsPerThreadgroup(size(1), size(4));
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        assert_eq!(command_buffer.status(), MTLCommandBufferStatus::Completed);
        assert_eq!(words(&bench.y)[..2], [2, 3]);
        let told = problems();
        assert!(told.len() == 1 && told[0].text.contains("lane"), "{told:?}");
    });
}

#[test]
fn a_message_of_a_newer_system_is_not_answered() {
    clean(|_| {
        let options = MTLCompileOptions::new();
        set_macos((14, 5, 0));
        assert!(!options.respondsToSelector(sel!(setMathMode:)));
        set_macos((26, 2, 0));
        assert!(options.respondsToSelector(sel!(setMathMode:)));
    });
}

#[test]
fn a_pipeline_tells_what_its_kernel_is_bound_to() {
    clean(|bench| {
        let made = bench.device.newLibraryWithSource_options_error(&NSString::from_str(SOURCE), None);
        let function = made.expect("it compiles").newFunctionWithName(&NSString::from_str("scale"));
        let function = function.expect("it is there");
        let mut told = None;
        // SAFETY: the function is one of the device.
        let made = unsafe {
            bench.device.newComputePipelineStateWithFunction_options_reflection_error(
                &function,
                MTLPipelineOption::BindingInfo,
                Some(&mut told),
            )
        };
        made.expect("a pipeline");
        let bindings = told.expect("it was asked for").bindings().to_vec();
        let facts: Vec<_> =
            bindings.iter().map(|b| (b.name().to_string(), b.r#type(), b.index(), b.access())).collect();
        let read = MTLBindingAccess::ReadOnly;
        let expected = [
            ("p", MTLBindingType::Buffer, 0, read),
            ("x", MTLBindingType::Buffer, 1, read),
            ("y", MTLBindingType::Buffer, 2, MTLBindingAccess::ReadWrite),
            ("t", MTLBindingType::ThreadgroupMemory, 0, MTLBindingAccess::ReadWrite),
        ];
        assert_eq!(facts, expected.map(|(name, kind, index, access)| (name.to_owned(), kind, index, access)));
    });
}
