//! Mistakes that one could make in the rest of the driver, and the tests that see them.

use super::{Mistake, Place};

pub(super) const COPIES: &str = "tests::copies_and_fills_take_any_place_and_length_and_run_in_order";
pub(super) const SCALE: &str = "tests::dependent_dispatches_with_constants_run_in_order";
pub(super) const NEW: &str = "tests::new_buffers_are_zero_and_keep_what_the_host_writes";
pub(super) const MAPPED: &str = "tests::mapped_pages_are_read_in_place_and_shared";
pub(super) const GIVEN: &str = "tests::buffers_that_are_given_back_live_until_the_work_is_done";
pub(super) const CODE: &str = "tests::machine_code_is_found_again_by_the_next_run";
pub(super) const CHECKED: &str = "on_linux::no_kernel_leaves_the_memory_that_it_is_given";
pub(super) const GONE: &str = "on_linux::memory_that_is_given_back_is_gone_while_the_driver_lives";
pub(super) const ORDER: &str = "tests::submissions_that_share_a_buffer_run_in_order";
pub(super) const TIMES: &str = "tests::the_time_of_each_command_is_a_part_of_the_whole";
pub(super) const LIE: &str = "tests::buffers_lie_where_they_were_asked_for";
pub(super) const MATH: &str = "tests::mathematics_are_safe_and_precise";
pub(super) const NAMED: &str = "on_linux::dispatches_are_named_where_captures_are_wanted";
pub(super) const FAILS: &str =
    "on_linux::what_fails_is_an_error_of_its_own_kind_and_the_next_submission_runs";
pub(super) const OLD: &str = "on_linux::a_system_without_residency_sets_and_safe_mathematics_serves_too";
pub(super) const ONLY: &str = "on_linux::only_gpus_of_apple_silicon_are_used_and_they_say_what_they_are";

/// A piece that stands once in its file.
pub(super) const fn at(file: &'static str, right: &'static str, mistakes: &'static [Mistake]) -> Place {
    Place { file, after: "", right, mistakes }
}

pub(super) const fn wrong(
    name: &'static str,
    wrong: &'static str,
    test: &'static str,
    seen: &'static str,
) -> Mistake {
    Mistake { name, wrong, test, seen }
}

pub(super) const PLACES: &[Place] = &[
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
