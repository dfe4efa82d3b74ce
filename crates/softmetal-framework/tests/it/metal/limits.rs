//! Sizes, options and devices: what is asked for is what there is, or is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::{NSArray, NSRange, NSString, NSURL};
use objc2_metal::*;
use softmetal_framework::faults::{self, Fault};
use softmetal_framework::{Profile, Rule, problems, set_devices};

use super::{BYTES, Bench, THREADS, alone, dispatch, encoder_of, rules, scaled, size, threadgroup, words};

/// On a device of a profile, in one pool.
fn bench(profile: &str, test: impl FnOnce(&Bench)) {
    let _alone = alone();
    problems();
    set_devices(vec![Profile::named(profile).expect("a profile")]);
    autoreleasepool(|_| test(&Bench::new()));
}

/// What breaks a rule: which.
fn refused(f: impl FnOnce()) -> Vec<Rule> {
    let outcome = catch_unwind(AssertUnwindSafe(f));
    let found = rules(&problems());
    assert_eq!(outcome.is_err(), !found.is_empty(), "{found:?}");
    found
}

#[test]
fn heaps_refuse_what_buffers_do_and_count_as_memory() {
    bench("m4", |bench| {
        let before = bench.device.currentAllocatedSize();
        let descriptor = MTLHeapDescriptor::new();
        descriptor.setSize(4 * BYTES);
        let options = MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeTracked;
        descriptor.setResourceOptions(options);
        assert_eq!(descriptor.storageMode(), MTLStorageMode::Shared);
        assert_eq!(descriptor.hazardTrackingMode(), MTLHazardTrackingMode::Tracked);
        let heap = bench.device.newHeapWithDescriptor(&descriptor).expect("a heap");
        assert_eq!(bench.device.currentAllocatedSize(), before + 4 * BYTES);
        assert_eq!(
            (heap.hazardTrackingMode(), heap.resourceOptions()),
            (MTLHazardTrackingMode::Tracked, options)
        );
        let shared = MTLResourceOptions::StorageModeShared;
        let piece = |length| heap.newBufferWithLength_options(length, shared);
        // As the heap does, unless it is told otherwise.
        let tracking = |options| {
            let made = heap.newBufferWithLength_options(16, options).expect("room");
            made.hazardTrackingMode()
        };
        assert_eq!(tracking(shared), MTLHazardTrackingMode::Tracked);
        let untracked = shared | MTLResourceOptions::HazardTrackingModeUntracked;
        assert_eq!(tracking(untracked), MTLHazardTrackingMode::Untracked);
        for (length, rule) in [(0, Rule::Range), (usize::MAX, Rule::Range), (usize::MAX - 255, Rule::Range)] {
            assert_eq!(refused(|| drop(piece(length))), [rule], "{length}");
        }
        let combined = shared | MTLResourceOptions::CPUCacheModeWriteCombined;
        assert_eq!(refused(|| drop(heap.newBufferWithLength_options(16, combined))), [Rule::StorageMode]);
        faults::plan(Fault::Allocation, 1);
        assert!(piece(16).is_none(), "on request");
        assert!(piece(4 * BYTES).is_some(), "what was refused took no room");
        drop(heap);
        assert_eq!(bench.device.currentAllocatedSize(), before);
        descriptor.setType(MTLHeapType::Placement);
        assert_eq!(refused(|| drop(bench.device.newHeapWithDescriptor(&descriptor))), [Rule::Descriptor]);
        descriptor.setType(MTLHeapType::Automatic);
        // Untracked is what heaps are by default, and buffers in them.
        descriptor.setHazardTrackingMode(MTLHazardTrackingMode::Default);
        let heap = bench.device.newHeapWithDescriptor(&descriptor).expect("a heap");
        let made = heap.newBufferWithLength_options(16, shared).expect("room");
        assert_eq!(made.hazardTrackingMode(), MTLHazardTrackingMode::Untracked);
    });
}

#[test]
fn a_device_gives_the_threadgroup_memory_that_it_says_it_has() {
    bench("intel", |bench| {
        let command_buffer = bench.command_buffer();
        let encoder = encoder_of(&command_buffer);
        bench.bind(&encoder);
        threadgroup(&encoder, bench.device.maxThreadgroupMemoryLength());
        dispatch(&encoder);
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        assert_eq!(command_buffer.status(), MTLCommandBufferStatus::Completed);
        assert_eq!((words(&bench.y), rules(&problems())), (scaled(), vec![]));
    });
}

#[test]
fn a_grid_that_kernels_cannot_count_is_refused_as_it_was_asked_for() {
    bench("m4", |bench| {
        let command_buffer = bench.command_buffer();
        let encoder = encoder_of(&command_buffer);
        bench.bind(&encoder);
        let many = MTLSize { width: 1, height: 1 << 33, depth: 1 };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            encoder.dispatchThreadgroups_threadsPerThreadgroup(many, size(THREADS));
        }));
        encoder.endEncoding();
        let found = problems();
        assert!(outcome.is_err());
        assert_eq!(rules(&found), [Rule::Threadgroup]);
        assert!(found[0].text.contains("8589934592"), "{}", found[0]);
    });
}

fn samples(bench: &Bench) -> Retained<ProtocolObject<dyn MTLCounterSampleBuffer>> {
    let descriptor = MTLCounterSampleBufferDescriptor::new();
    let sets = bench.device.counterSets().expect("sets").to_vec();
    descriptor.setCounterSet(Some(&sets[0]));
    // SAFETY: a buffer has room for so many.
    unsafe { descriptor.setSampleCount(2) };
    bench.device.newCounterSampleBufferWithDescriptor_error(&descriptor).expect("samples")
}

fn times(samples: &ProtocolObject<dyn MTLCounterSampleBuffer>) -> Vec<u64> {
    // SAFETY: there are two.
    let data = unsafe { samples.resolveCounterRange(NSRange { location: 0, length: 2 }) }.expect("shared");
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    data.to_vec().chunks_exact(8).map(word).collect()
}

#[test]
fn times_between_copies_are_for_devices_that_note_them() {
    for (profile, expected) in [("m4", vec![Rule::Descriptor]), ("intel", vec![])] {
        bench(profile, |bench| {
            let (samples, command_buffer) = (samples(bench), bench.command_buffer());
            let blit = command_buffer.blitCommandEncoder().expect("an encoder");
            let found = refused(|| {
                // SAFETY: there is such a place; whether the device can is what is tested.
                unsafe { blit.sampleCountersInBuffer_atSampleIndex_withBarrier(&samples, 1, true) };
            });
            blit.endEncoding();
            assert_eq!(found, expected, "{profile}");
            let point = MTLCounterSamplingPoint::AtBlitBoundary;
            assert_eq!(bench.device.supportsCounterSampling(point), expected.is_empty());
        });
    }
}

#[test]
fn every_attachment_of_a_pass_gets_its_times() {
    bench("m4", |bench| {
        let (one, other) = (samples(bench), samples(bench));
        let pass = MTLComputePassDescriptor::computePassDescriptor();
        for (place, samples) in [&one, &other].into_iter().enumerate() {
            // SAFETY: there are four attachments, and two samples each.
            unsafe {
                let attachment = pass.sampleBufferAttachments().objectAtIndexedSubscript(place);
                attachment.setSampleBuffer(Some(samples));
                attachment.setStartOfEncoderSampleIndex(0);
                attachment.setEndOfEncoderSampleIndex(1);
            }
        }
        let command_buffer = bench.command_buffer();
        let encoder = command_buffer.computeCommandEncoderWithDescriptor(&pass).expect("an encoder");
        bench.bind(&encoder);
        dispatch(&encoder);
        encoder.endEncoding();
        command_buffer.commit();
        command_buffer.waitUntilCompleted();
        for samples in [&one, &other] {
            let times = times(samples);
            assert!(times[0] <= times[1] && times[1] != u64::MAX, "{times:?}");
        }
    });
}

#[test]
fn an_archive_has_a_pipeline_of_the_options_it_was_made_with() {
    bench("m4", |bench| {
        let folder = std::env::temp_dir().join(format!("softmetal-archive-{}", std::process::id()));
        let path = folder.display().to_string();
        let url = NSURL::fileURLWithPath(&NSString::from_str(&path));
        let pipeline = |options: Option<&MTLCompileOptions>| {
            let source = NSString::from_str(super::SOURCE);
            let library =
                bench.device.newLibraryWithSource_options_error(&source, options).expect("a library");
            let descriptor = MTLComputePipelineDescriptor::new();
            let function = library.newFunctionWithName(&NSString::from_str("scale"));
            descriptor.setComputeFunction(function.as_deref());
            descriptor
        };
        let made = bench.device.newBinaryArchiveWithDescriptor_error(&MTLBinaryArchiveDescriptor::new());
        let archive = made.expect("an archive");
        archive.addComputePipelineFunctionsWithDescriptor_error(&pipeline(None)).expect("it takes it");
        archive.serializeToURL_error(&url).expect("it is written");
        let descriptor = MTLBinaryArchiveDescriptor::new();
        descriptor.setUrl(Some(&url));
        let archive = bench.device.newBinaryArchiveWithDescriptor_error(&descriptor).expect("it is read");
        std::fs::remove_file(&folder).expect("it is ours");
        let found = |options: Option<&MTLCompileOptions>| {
            let descriptor = pipeline(options);
            descriptor.setBinaryArchives(Some(&NSArray::from_slice(&[&*archive])));
            let options = MTLPipelineOption::FailOnBinaryArchiveMiss;
            bench
                .device
                .newComputePipelineStateWithDescriptor_options_reflection_error(&descriptor, options, None)
                .is_ok()
        };
        let options = MTLCompileOptions::new();
        assert!(found(None) && found(Some(&options)), "no options are the usual ones");
        options.setMathMode(MTLMathMode::Safe);
        assert!(!found(Some(&options)), "another math mode");
        options.setMathMode(MTLMathMode::Fast);
        assert!(found(Some(&options)));
        options.setLanguageVersion(MTLLanguageVersion::Version3_0);
        assert!(!found(Some(&options)), "another language");
    });
}
