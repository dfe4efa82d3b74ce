//! Mistakes that one could make where steps become command buffers.

use super::Place;
use super::table::{CHECKED, COPIES, FAILS, GIVEN, GONE, NAMED, SCALE, TIMES, at, wrong};

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
        "handler(progress.clone(), until, index)",
        &[
            wrong(
                "nothing keeps the buffers",
                "let kept = Kept::default();\n                let work = Work { kept, about: work.about.clone(), begun: work.begun };\n                handler(progress.clone(), Until { work: Arc::new(work), ..until }, index)",
                GIVEN,
                "ReleasedInFlight",
            ),
            wrong(
                "a block that is never released",
                "let block = handler(progress.clone(), until, index);\n                std::mem::forget(block.clone());\n                block",
                NAMED,
                "blocks",
            ),
        ],
    ),
    at(
        "submit.rs",
        "lock(&until).take().map(|until| until.outcome(command_buffer))",
        &[wrong(
            "memory that goes after the end is told",
            "let kept = lock(&until).take();\n                let told = kept.as_ref().map(|until| until.outcome(command_buffer));\n                std::thread::spawn(move || {\n                    std::thread::sleep(std::time::Duration::from_millis(300));\n                    drop(kept);\n                });\n                told",
            GONE,
            "MTLSoftBuffer",
        )],
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
];
