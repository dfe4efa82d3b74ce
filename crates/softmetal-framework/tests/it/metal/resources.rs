//! What kernels reach, and how: arguments that constants leave out, addresses in buffers, textures beside each other, room in
//! heaps, and what a capture writes down.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSString, NSURL};
use objc2_metal::*;
use softmetal_framework::{Rule, leaks, problems, set_captures};

use super::{BYTES, Bench, Buffer, Encoder, Pipeline, alone, buffer, pipeline_of, rules, size, words};

const SOURCE: &str = "#include <metal_stdlib>
using namespace metal;
constant bool WITH [[function_constant(0)]];
kernel void plus(device uint* y [[buffer(0)]], device const uint* more [[buffer(1), function_constant(WITH)]],
                 uint i [[thread_position_in_grid]]) {
    if (WITH) y[i] = more[i] + 1; else y[i] = 7;
}
struct Table { device uint* to; uint add; };
kernel void reach(constant Table& t [[buffer(0)]], uint i [[thread_position_in_grid]]) { t.to[i] = i + t.add; }
kernel void paint(texture2d<uint, access::write> to [[texture(0)]], constant uint& v [[buffer(0)]],
                  uint2 at [[thread_position_in_grid]]) {
    to.write(uint4(v), at);
}
";

fn bench(test: impl FnOnce(&Bench)) {
    let _alone = alone();
    problems();
    autoreleasepool(|_| test(&Bench::new()));
    assert!(leaks().is_empty(), "{:?}", leaks());
}

/// One encoder, run to its end; the rules that were broken.
fn run(bench: &Bench, concurrent: bool, encode: impl FnOnce(&Encoder)) -> Vec<Rule> {
    let commands = bench.command_buffer();
    let kind = if concurrent { MTLDispatchType::Concurrent } else { MTLDispatchType::Serial };
    let encoder = commands.computeCommandEncoderWithDispatchType(kind).expect("an encoder");
    let outcome = catch_unwind(AssertUnwindSafe(|| encode(&encoder)));
    encoder.endEncoding();
    if outcome.is_ok() {
        commands.commit();
        commands.waitUntilCompleted();
    }
    rules(&problems())
}

fn plus(bench: &Bench, with: bool) -> Pipeline {
    let library = bench.device.newLibraryWithSource_options_error(&NSString::from_str(SOURCE), None);
    let values = MTLFunctionConstantValues::new();
    // SAFETY: the value is a bool, as its type says.
    unsafe {
        let value = NonNull::from(&with).cast::<c_void>();
        values.setConstantValue_type_atIndex(value, MTLDataType::Bool, 0);
    }
    let function = library
        .expect("it compiles")
        .newFunctionWithName_constantValues_error(&NSString::from_str("plus"), &values);
    bench
        .device
        .newComputePipelineStateWithFunction_error(&function.expect("it is there"))
        .expect("a pipeline")
}

#[test]
fn an_argument_is_needed_exactly_where_its_constant_says_so() {
    bench(|bench| {
        for (with, bound, broken, first) in
            [(false, false, &[][..], 7), (true, true, &[], 1), (true, false, &[Rule::MissingBinding], 1)]
        {
            let pipeline = plus(bench, with);
            let found = run(bench, false, |encoder| {
                encoder.setComputePipelineState(&pipeline);
                buffer(encoder, &bench.y, 0, 0);
                if bound {
                    buffer(encoder, &bench.x, 0, 1);
                }
                encoder.dispatchThreads_threadsPerThreadgroup(size(32), size(32));
            });
            assert_eq!(found, broken, "with: {with}, bound: {bound}");
            assert_eq!(words(&bench.y)[0], first, "with: {with}, bound: {bound}");
        }
    });
}

/// The kernel writes where an address in its argument says; `told` says that the address is used.
fn reach(bench: &Bench, target: &Buffer, told: impl FnOnce(&Encoder)) -> Vec<Rule> {
    let pipeline = pipeline_of(&bench.device, SOURCE, "reach");
    let table: [u64; 2] = [target.gpuAddress(), 5];
    run(bench, false, |encoder| {
        encoder.setComputePipelineState(&pipeline);
        // SAFETY: sixteen bytes, as the structure has.
        unsafe { encoder.setBytes_length_atIndex(NonNull::from(&table).cast(), 16, 0) };
        told(encoder);
        encoder.dispatchThreads_threadsPerThreadgroup(size(8), size(8));
    })
}

#[test]
fn what_a_kernel_reaches_by_an_address_must_have_been_made_resident() {
    bench(|bench| {
        assert_eq!(reach(bench, &bench.y, |_| {}), [Rule::Residency]);
        let resource: &ProtocolObject<dyn MTLResource> = ProtocolObject::from_ref(&*bench.y);
        let used = reach(bench, &bench.y, |encoder| {
            encoder.useResource_usage(resource, MTLResourceUsage::Write);
        });
        assert_eq!((used, words(&bench.y)[..3].to_vec()), (vec![], vec![5, 6, 7]));
        let descriptor = MTLHeapDescriptor::new();
        descriptor.setSize(4 * BYTES);
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeTracked;
        descriptor.setResourceOptions(options);
        let heap = bench.device.newHeapWithDescriptor(&descriptor).expect("a heap");
        let inside =
            heap.newBufferWithLength_options(BYTES, MTLResourceOptions::StorageModeShared).expect("room");
        assert_eq!(reach(bench, &inside, |_| {}), [Rule::Residency]);
        assert_eq!(reach(bench, &inside, |encoder| encoder.useHeap(&heap)), []);
        // A set of the queue serves every command buffer, from its commit on.
        let made = bench.device.newResidencySetWithDescriptor_error(&MTLResidencySetDescriptor::new());
        let set = made.expect("a set");
        let allocation: &ProtocolObject<dyn MTLAllocation> = ProtocolObject::from_ref(&*bench.y);
        set.addAllocation(allocation);
        bench.queue.addResidencySet(&set);
        assert_eq!(reach(bench, &bench.y, |_| {}), [Rule::Residency], "it is not committed");
        set.commit();
        assert_eq!(reach(bench, &bench.y, |_| {}), []);
        bench.queue.removeResidencySet(&set);
    });
}

fn texture(bench: &Bench) -> Retained<ProtocolObject<dyn MTLTexture>> {
    // SAFETY: the sizes are those of a texture.
    let descriptor = unsafe {
        MTLTextureDescriptor::texture2DDescriptorWithPixelFormat_width_height_mipmapped(
            MTLPixelFormat::R32Uint,
            4,
            4,
            false,
        )
    };
    descriptor.setUsage(MTLTextureUsage::ShaderWrite);
    bench.device.newTextureWithDescriptor(&descriptor).expect("a texture")
}

#[test]
fn dispatches_that_paint_one_texture_need_a_barrier_between_them() {
    bench(|bench| {
        let paint = pipeline_of(&bench.device, SOURCE, "paint");
        let (one, other) = (texture(bench), texture(bench));
        for (values, both, barrier, broken) in [
            ([3, 3], true, false, &[][..]),
            ([3, 4], false, false, &[]),
            ([3, 4], true, true, &[]),
            ([3, 4], true, false, &[Rule::Hazard]),
        ] {
            let found = run(bench, true, |encoder| {
                encoder.setComputePipelineState(&paint);
                for (value, to) in values.iter().zip([&one, if both { &one } else { &other }]) {
                    super::bytes(encoder, &[*value]);
                    // SAFETY: an index that the kernel has.
                    unsafe { encoder.setTexture_atIndex(Some(to), 0) };
                    let all = MTLSize { width: 4, height: 4, depth: 1 };
                    encoder.dispatchThreads_threadsPerThreadgroup(all, all);
                    if barrier {
                        encoder.memoryBarrierWithScope(MTLBarrierScope::Textures);
                    }
                }
            });
            assert_eq!(found, broken, "{values:?}, one texture: {both}, a barrier: {barrier}");
        }
    });
}

#[test]
fn a_heap_tells_the_largest_piece_that_is_free() {
    bench(|bench| {
        let descriptor = MTLHeapDescriptor::new();
        descriptor.setSize(4096);
        descriptor.setResourceOptions(MTLResourceOptions::StorageModeShared);
        let heap = bench.device.newHeapWithDescriptor(&descriptor).expect("a heap");
        let piece =
            |len| heap.newBufferWithLength_options(len, MTLResourceOptions::StorageModeShared).expect("room");
        assert_eq!(heap.maxAvailableSizeWithAlignment(16), 4096);
        let [first, second, _third] = [piece(1000), piece(1024), piece(256)];
        assert_eq!(heap.maxAvailableSizeWithAlignment(16), 4096 - 2304);
        drop(second);
        // Two holes, of 1024 and of 1792 bytes, of which the second begins at 2304.
        assert_eq!(heap.maxAvailableSizeWithAlignment(256), 1792);
        assert_eq!(heap.maxAvailableSizeWithAlignment(1024), 1024);
        drop(first);
        assert_eq!(heap.maxAvailableSizeWithAlignment(4096), 2048);
        assert!(catch_unwind(AssertUnwindSafe(|| heap.maxAvailableSizeWithAlignment(48))).is_err());
        assert_eq!(rules(&problems()), [Rule::Alignment]);
    });
}

#[test]
fn a_capture_writes_down_what_its_queue_commits() {
    bench(|bench| {
        let folder = std::env::temp_dir().join(format!("softmetal-capture-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join("trace.gputrace");
        // SAFETY: it is a manager without a state of its own.
        let manager = unsafe { MTLCaptureManager::sharedCaptureManager() };
        let descriptor = MTLCaptureDescriptor::new();
        descriptor.setDestination(MTLCaptureDestination::GPUTraceDocument);
        let url = NSURL::fileURLWithPath(&NSString::from_str(&file.display().to_string()));
        descriptor.setOutputURL(Some(&url));
        let start = || manager.startCaptureWithDescriptor_error(&descriptor).map_err(|error| error.code());
        assert_eq!(start(), Err(1), "it is not allowed");
        set_captures(true);
        assert_eq!(start(), Err(3), "there is nothing to capture");
        // SAFETY: a queue is among what can be captured.
        unsafe { descriptor.setCaptureObject(Some((*bench.queue).as_ref())) };
        assert!(manager.supportsDestination(MTLCaptureDestination::GPUTraceDocument));
        assert_eq!((start(), manager.isCapturing()), (Ok(()), true));
        assert_eq!(start(), Err(2), "one at a time");
        bench.run();
        let other = bench.device.newCommandQueue().expect("a queue");
        other.commandBuffer().expect("a command buffer").commit();
        manager.stopCapture();
        bench.run();
        assert!(!manager.isCapturing());
        let text = std::fs::read_to_string(&file).expect("a document");
        assert_eq!(text.matches("\"command_buffer\":").count(), 1, "{text}");
        for part in ["\"dispatch\": \"scale\"", "\"threadgroups\": [", "\"threadgroup_memory\": ["] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(start(), Err(3), "the file is there");
        // SAFETY: nothing is captured any more.
        unsafe { descriptor.setCaptureObject(None) };
        set_captures(false);
        std::fs::remove_dir_all(&folder).expect("it is there");
        assert_eq!(rules(&problems()), []);
    });
}
