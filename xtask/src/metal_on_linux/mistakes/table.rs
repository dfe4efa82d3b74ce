//! Mistakes that one could make in the driver, and what of its tests sees each.

use super::{Mistake, Place};

const COPIES: &str = "tests::copies_and_fills_take_any_place_and_length_and_run_in_order";
const SCALE: &str = "tests::dependent_dispatches_with_constants_run_in_order";
const NEW: &str = "tests::new_buffers_are_zero_and_keep_what_the_host_writes";
const MAPPED: &str = "tests::mapped_pages_are_read_in_place_and_shared";
const GIVEN: &str = "tests::buffers_that_are_given_back_live_until_the_work_is_done";
const CODE: &str = "tests::machine_code_is_found_again_by_the_next_run";
const CHECKED: &str = "on_linux::no_kernel_leaves_the_memory_that_it_is_given";
const GONE: &str = "on_linux::memory_that_is_given_back_is_gone_while_the_driver_lives";
const ORDER: &str = "tests::submissions_that_share_a_buffer_run_in_order";
const TIMES: &str = "tests::the_time_of_each_command_is_a_part_of_the_whole";
const LIE: &str = "tests::buffers_lie_where_they_were_asked_for";
const MATH: &str = "tests::mathematics_are_safe_and_precise";
const NAMED: &str = "on_linux::dispatches_are_named_where_captures_are_wanted";
const FAILS: &str = "on_linux::what_fails_is_an_error_of_its_own_kind_and_the_next_submission_runs";
const OLD: &str = "on_linux::a_system_without_residency_sets_and_safe_mathematics_serves_too";
const ONLY: &str = "on_linux::only_gpus_of_apple_silicon_are_used_and_they_say_what_they_are";

/// A piece that stands once in its file.
const fn at(file: &'static str, right: &'static str, mistakes: &'static [Mistake]) -> Place {
    Place { file, after: "", right, mistakes }
}

const fn wrong(name: &'static str, wrong: &'static str, test: &'static str, seen: &'static str) -> Mistake {
    Mistake { name, wrong, test, seen }
}

pub(super) const PLACES: &[Place] = &[
    at(
        "submit.rs",
        "encoder.0.memoryBarrierWithScope(MTLBarrierScope::Buffers);",
        &[
            wrong("no barrier", "", COPIES, "Hazard"),
            wrong(
                "a barrier of textures",
                "encoder.0.memoryBarrierWithScope(MTLBarrierScope::Textures);",
                COPIES,
                "Hazard",
            ),
        ],
    ),
    at(
        "submit.rs",
        "binding.region.offset()",
        &[
            wrong("an offset two bytes too far", "binding.region.offset() + 2", SCALE, "Alignment"),
            wrong("an offset left out", "0", COPIES, "round 0"),
        ],
    ),
    at(
        "submit.rs",
        "index as usize",
        &[wrong("an index too high", "index as usize + 1", SCALE, "MissingBinding")],
    ),
    at(
        "submit.rs",
        "self.0.endEncoding();",
        &[
            wrong("an encoder left open", "", COPIES, "EncoderState"),
            wrong(
                "an encoder ended twice",
                "self.0.endEncoding();\n        self.0.endEncoding();",
                COPIES,
                "endEncoding twice",
            ),
        ],
    ),
    at(
        "submit.rs",
        "left.dispatch(&encoder, &step.dispatch);\n                encoder.endEncoding();",
        &[
            wrong(
                "a timed encoder left open",
                "left.dispatch(&encoder, &step.dispatch);",
                TIMES,
                "EncoderState",
            ),
            wrong(
                "a dispatch after the end",
                "encoder.endEncoding();\n                left.dispatch(&encoder, &step.dispatch);",
                TIMES,
                "after endEncoding",
            ),
        ],
    ),
    at(
        "submit.rs",
        "unsafe { command_buffer.addCompletedHandler(RcBlock::as_ptr(&block)) };\n            command_buffer.commit();",
        &[
            wrong(
                "a commit twice",
                "unsafe { command_buffer.addCompletedHandler(RcBlock::as_ptr(&block)) };\n            command_buffer.commit();\n            command_buffer.commit();",
                COPIES,
                "committed twice",
            ),
            wrong(
                "no commit",
                "unsafe { command_buffer.addCompletedHandler(RcBlock::as_ptr(&block)) };",
                COPIES,
                "Timeout",
            ),
            wrong("no handler", "command_buffer.commit();", GIVEN, "ReleasedInFlight"),
            wrong(
                "a handler after the commit",
                "command_buffer.commit();\n            unsafe { command_buffer.addCompletedHandler(RcBlock::as_ptr(&block)) };",
                COPIES,
                "CommandBufferState",
            ),
            wrong(
                "a wait before the commit",
                "command_buffer.waitUntilCompleted();",
                COPIES,
                "CommandBufferState",
            ),
        ],
    ),
    at(
        "submit.rs",
        "handler(progress.clone(), work.clone(), samples, Earlier(earlier), index)",
        &[
            wrong(
                "nothing keeps the buffers",
                "let kept = Kept::default();\n                let work = Work { kept, about: work.about.clone(), begun: work.begun };\n                handler(progress.clone(), Arc::new(work), samples, Earlier(earlier), index)",
                GIVEN,
                "ReleasedInFlight",
            ),
            wrong(
                "a block that is never released",
                "let block = handler(progress.clone(), work.clone(), samples, Earlier(earlier), index);\n                std::mem::forget(block.clone());\n                block",
                NAMED,
                "blocks",
            ),
        ],
    ),
    Place {
        after: "let command_buffer = ",
        ..at(
            "submit.rs",
            "made.ok_or_else(|| none(\"command buffer\"))?",
            &[
                wrong(
                    "a release of a command buffer too many",
                    "let made = made.ok_or_else(|| none(\"command buffer\"))?;\n                drop(unsafe { Retained::from_raw(Retained::as_ptr(&made).cast_mut()) });\n                made",
                    COPIES,
                    "Release",
                ),
                wrong(
                    "a command buffer that is never released",
                    "let made = made.ok_or_else(|| none(\"command buffer\"))?;\n                std::mem::forget(made.clone());\n                made",
                    NAMED,
                    "MTLSoftCommandBuffer",
                ),
            ],
        )
    },
    at(
        "submit.rs",
        "command_buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)",
        &[wrong(
            "two encoders at once",
            "std::mem::forget(command_buffer.computeCommandEncoder());\n                command_buffer.computeCommandEncoderWithDispatchType(MTLDispatchType::Concurrent)",
            COPIES,
            "EncoderState",
        )],
    ),
    at(
        "submit.rs",
        "encoder.0.popDebugGroup();",
        &[
            wrong("a debug group left open", "", NAMED, "EncoderState"),
            wrong(
                "a debug group closed twice",
                "encoder.0.popDebugGroup();\n                encoder.0.popDebugGroup();",
                NAMED,
                "EncoderState",
            ),
        ],
    ),
    at(
        "submit.rs",
        "encoder.setComputePipelineState(&pipeline.raw);",
        &[wrong("no pipeline", "", COPIES, "MissingBinding")],
    ),
    at("submit.rs", "params.len()", &[wrong("params a word too short", "params.len() - 4", COPIES, "Range")]),
    at(
        "submit.rs",
        "launch.threadgroup_bytes > 0",
        &[wrong("no threadgroup memory", "false", SCALE, "MissingBinding")],
    ),
    at(
        "submit.rs",
        "encoder.setThreadgroupMemoryLength_atIndex(bytes, 0)",
        &[
            wrong(
                "threadgroup memory of an odd length",
                "encoder.setThreadgroupMemoryLength_atIndex(bytes + 4, 0)",
                SCALE,
                "Alignment",
            ),
            wrong(
                "half the threadgroup memory",
                "encoder.setThreadgroupMemoryLength_atIndex(bytes / 2, 0)",
                CHECKED,
                "Kernel",
            ),
        ],
    ),
    at(
        "submit.rs",
        "encoder.dispatchThreadgroups_threadsPerThreadgroup(size(launch.groups), size(launch.threads));",
        &[
            wrong(
                "threads and threadgroups exchanged",
                "encoder.dispatchThreadgroups_threadsPerThreadgroup(size(launch.threads), size(launch.groups));",
                SCALE,
                "== expected",
            ),
            wrong(
                "threads in the place of threadgroups",
                "encoder.dispatchThreads_threadsPerThreadgroup(size(launch.groups), size(launch.threads));",
                SCALE,
                "== expected",
            ),
            wrong(
                "threadgroups that are too large",
                "encoder.dispatchThreadgroups_threadsPerThreadgroup(size(launch.groups), size(launch.threads.map(|n| n * 32)));",
                SCALE,
                "Threadgroup",
            ),
        ],
    ),
    at(
        "submit.rs",
        "error.is_none() && command_buffer.status() == MTLCommandBufferStatus::Completed",
        &[wrong("the status is not looked at", "true", FAILS, "a failure on request")],
    ),
    at("mod.rs", "residency.settle();", &[wrong("residency not settled", "", COPIES, "Residency")]),
    Place {
        after: "newCommandQueueWithMaxCommandBufferCount(",
        ..at("mod.rs", "batch::QUEUE", &[wrong("a queue without room", "0", COPIES, "Range")])
    },
    at(
        "mod.rs",
        "let last = lock(&self.objects).buffers.release(buffer);\n            // Not under the lock.\n            drop(last);",
        &[wrong(
            "a buffer that is freed and kept",
            "std::mem::forget(lock(&self.objects).buffers.release(buffer));",
            NEW,
            "left",
        )],
    ),
    at(
        "buffer.rs",
        "match storage {\n            Storage::Shared => MTLResourceOptions::StorageModeShared,\n            Storage::Private => MTLResourceOptions::StorageModePrivate,\n        }",
        &[
            wrong("private memory for shared", "MTLResourceOptions::StorageModePrivate", NEW, "StorageMode"),
            wrong("shared memory for private", "MTLResourceOptions::StorageModeShared", LIE, "left"),
            wrong("managed memory", "MTLResourceOptions::StorageModeManaged", LIE, "left"),
            wrong(
                "buffers that are not tracked",
                "match storage {\n            Storage::Shared => MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked,\n            Storage::Private => MTLResourceOptions::StorageModePrivate | MTLResourceOptions::HazardTrackingModeUntracked,\n        }",
                ORDER,
                "Untracked",
            ),
            wrong("options that there are not", "MTLResourceOptions(0x1000)", NEW, "Descriptor"),
        ],
    ),
    at("buffer.rs", "memory::rounded(bytes)", &[wrong("a buffer of nothing", "bytes", NEW, "0 bytes")]),
    Place {
        after: "pages,\n                ",
        ..at("buffer.rs", "len", &[wrong("a part of a page", "len - 100", MAPPED, "Alignment")])
    },
    at(
        "buffer.rs",
        "Some(&release)",
        &[wrong("nothing keeps the mapping", "None", MAPPED, "keeps the pages mapped")],
    ),
    at(
        "buffer.rs",
        "MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked",
        &[wrong(
            "a mapping as private memory",
            "MTLResourceOptions::StorageModePrivate",
            MAPPED,
            "StorageMode",
        )],
    ),
    at(
        "buffer.rs",
        "BufferFacts { len, writable: false, host: true }",
        &[wrong(
            "a mapping that is written",
            "BufferFacts { len, writable: true, host: true }",
            MAPPED,
            "a file's pages are not written",
        )],
    ),
    at(
        "buffer.rs",
        "Buffer { raw, facts, contents, bytes, set, memory: self.clone() }",
        &[
            wrong(
                "a buffer that is never released",
                "std::mem::forget(raw.clone());\n        Buffer { raw, facts, contents, bytes, set, memory: self.clone() }",
                NAMED,
                "MTLSoftBuffer",
            ),
            wrong(
                "a release of a buffer too many",
                "drop(unsafe { Retained::from_raw(Retained::as_ptr(&raw).cast_mut()) });\n        Buffer { raw, facts, contents, bytes, set, memory: self.clone() }",
                NEW,
                "Release",
            ),
        ],
    ),
    at(
        "buffer.rs",
        "facts.host.then(|| RwLock::new(raw.contents().cast()))",
        &[wrong(
            "contents of private memory",
            "Some(RwLock::new(raw.contents().cast()))",
            NEW,
            "StorageMode",
        )],
    ),
    at(
        "buffer.rs",
        "to.add(offset).as_ptr()",
        &[wrong("a write at another place", "to.as_ptr()", NEW, "left")],
    ),
    at(
        "buffer.rs",
        "residency.remove(&self.raw, self.bytes, set);",
        &[wrong("a residency set that keeps what is gone", "", GONE, "MTLSoftBuffer")],
    ),
    at(
        "buffer.rs",
        "self.memory.held.fetch_sub(self.bytes as u64, Ordering::Relaxed);",
        &[wrong("bytes that are never given back", "", NEW, "left")],
    ),
    at(
        "residency.rs",
        "raw.commit();\n                raw.requestResidency();",
        &[wrong("a residency set that is not committed", "raw.requestResidency();", COPIES, "Residency")],
    ),
    at(
        "residency.rs",
        "self.queue.addResidencySet(&raw);",
        &[wrong("a residency set of no queue", "", NAMED, "Residency")],
    ),
    at(
        "residency.rs",
        "raw.removeAllocation(ProtocolObject::from_ref(buffer));\n            raw.commit();",
        &[
            wrong(
                "a removal that is not committed",
                "raw.removeAllocation(ProtocolObject::from_ref(buffer));",
                GONE,
                "MTLSoftBuffer",
            ),
            wrong(
                "a removal twice",
                "raw.removeAllocation(ProtocolObject::from_ref(buffer));\n            raw.removeAllocation(ProtocolObject::from_ref(buffer));\n            raw.commit();",
                NEW,
                "Residency",
            ),
        ],
    ),
    at(
        "residency.rs",
        "available!(macos = 15.0)",
        &[wrong("residency sets before macOS 15", "true", OLD, "left: true")],
    ),
    at(
        "library.rs",
        "MTLDataType::UInt",
        &[
            wrong("a constant of half the bytes", "MTLDataType::UShort", SCALE, "Compile {"),
            wrong("a constant of another type", "MTLDataType::Float", SCALE, "function constant"),
        ],
    ),
    at(
        "library.rs",
        "MTLPipelineOption::FailOnBinaryArchiveMiss",
        &[wrong(
            "an archive that is said to have everything",
            "MTLPipelineOption::None",
            CODE,
            "what was put into it",
        )],
    ),
    at(
        "library.rs",
        "options.setMathMode(MTLMathMode::Safe);",
        &[wrong("fast mathematics", "", MATH, "left")],
    ),
    at(
        "library.rs",
        "MTLMathFloatingPointFunctions::Precise",
        &[wrong("fast functions", "MTLMathFloatingPointFunctions::Fast", MATH, "left")],
    ),
    at(
        "library.rs",
        "MTLLanguageVersion::Version3_1",
        &[wrong("a language of a newer system", "MTLLanguageVersion::Version3_2", OLD, "Descriptor")],
    ),
    at(
        "library.rs",
        "Ok((Ready { raw, facts }, job))",
        &[wrong(
            "a pipeline that is never released",
            "std::mem::forget(raw.clone());\n        Ok((Ready { raw, facts }, job))",
            NAMED,
            "MTLSoftComputePipelineState",
        )],
    ),
    at(
        "library.rs",
        "available!(macos = 15.0)",
        &[wrong("modes of mathematics before macOS 15", "true", OLD, "method not found")],
    ),
    at("clock.rs", "2 * index + 1", &[wrong("a sample past the last", "2 * index + 2", TIMES, "Range")]),
    at(
        "clock.rs",
        "MTLStorageMode::Shared",
        &[wrong("private samples", "MTLStorageMode::Private", TIMES, "StorageMode")],
    ),
    at(
        "clock.rs",
        "descriptor.setSampleCount(2 * commands.len())",
        &[wrong("half the samples", "descriptor.setSampleCount(commands.len())", TIMES, "Range")],
    ),
    at(
        "clock.rs",
        "descriptor.setCounterSet(Some(&self.counters));",
        &[wrong("samples of no counters", "", TIMES, "Descriptor")],
    ),
    Place {
        after: "length: ",
        ..at(
            "clock.rs",
            "2 * self.commands.len()",
            &[wrong("a sample too many", "2 * self.commands.len() + 1", TIMES, "Range")],
        )
    },
    Place {
        after: "supportsCounterSampling(",
        ..at(
            "clock.rs",
            "MTLCounterSamplingPoint::AtStageBoundary",
            &[wrong(
                "times between dispatches",
                "MTLCounterSamplingPoint::AtDispatchBoundary",
                TIMES,
                "notes no times",
            )],
        )
    },
    at(
        "device.rs",
        "device.maxBufferLength()",
        &[
            wrong(
                "a result of half the width",
                "let most: u32 = unsafe { objc2::msg_send![&**device, maxBufferLength] };\n            most as usize",
                NEW,
                "expected return",
            ),
            wrong(
                "a message that nobody knows",
                "let most: usize = unsafe { objc2::msg_send![&**device, maxBufferLenght] };\n            most",
                NEW,
                "method not found",
            ),
        ],
    ),
    at(
        "device.rs",
        "device.supportsFamily(MTLGPUFamily::Apple7) && device.hasUnifiedMemory()",
        &[wrong("every GPU is taken", "true", ONLY, "left")],
    ),
    at(
        "device.rs",
        "available!(macos = 26.2) && has(MTLGPUFamily::Metal4) && has(MTLGPUFamily::Apple10)",
        &[
            wrong(
                "tensor operations of an older system",
                "has(MTLGPUFamily::Metal4) && has(MTLGPUFamily::Apple10)",
                ONLY,
                "macOS 26.2 brings",
            ),
            wrong(
                "tensor operations of an older GPU",
                "available!(macos = 26.2) && has(MTLGPUFamily::Metal4)",
                ONLY,
                "left",
            ),
        ],
    ),
    at(
        "archive.rs",
        "descriptor.setUrl(Some(&*url(file)?));",
        &[wrong("an archive that is not read", "", CODE, "compiled only once")],
    ),
];
