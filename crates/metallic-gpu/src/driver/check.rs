//! Commands against the objects they name, before anything is encoded: a device does not check, it faults.

use crate::command::{Access, Binding, Dispatch};
use crate::error::GpuError;
use crate::gpu::{BufferId, Limits};
use crate::kernels::{Gemm, Launch};

/// What counts about a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BufferFacts {
    pub(crate) len: usize,
    /// Whether anyone may write it: pages of a file are read only.
    pub(crate) writable: bool,
    pub(crate) host: bool,
}

/// What counts about a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PipelineFacts {
    pub(crate) max_threads: u32,
    /// Bytes of threadgroup memory that the kernel declares itself.
    pub(crate) threadgroup_bytes: u32,
}

/// Threads that run in step on every GPU the kernels are written for.
const SIMD_WIDTH: usize = 32;

/// What the compiler made of a kernel.
pub(crate) fn pipeline(
    function: &str,
    (max_threads, simd_width, threadgroup_bytes): (usize, usize, usize),
) -> Result<PipelineFacts, GpuError> {
    if simd_width != SIMD_WIDTH {
        let message = format!("{simd_width} of its threads run in step, {SIMD_WIDTH} are needed");
        return Err(GpuError::compile(function, message));
    }
    let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(PipelineFacts { max_threads: narrow(max_threads), threadgroup_bytes: narrow(threadgroup_bytes) })
}

pub(crate) fn launch(
    dispatch: &Dispatch,
    pipeline: Option<&PipelineFacts>,
    limits: &Limits,
) -> Result<(), GpuError> {
    let Some(pipeline) = pipeline else {
        return Err(GpuError::execution(dispatch.name(), "its pipeline was given back"));
    };
    let threadgroup_bytes = threadgroup_memory(dispatch.launch.threadgroup_bytes);
    let threadgroup_bytes = threadgroup_bytes.saturating_add(pipeline.threadgroup_bytes);
    let limits = Limits { max_threads: pipeline.max_threads.min(limits.max_threads), ..*limits };
    Launch { threadgroup_bytes, ..dispatch.launch }.check(&limits)
}

/// Bytes of threadgroup memory as a device takes them: in steps of 16.
pub(crate) fn threadgroup_memory(bytes: u32) -> u32 {
    bytes.checked_next_multiple_of(16).unwrap_or(u32::MAX)
}

/// A binding against its buffer. `index` is the argument's buffer index.
pub(crate) fn binding(
    dispatch: &Dispatch,
    index: u32,
    binding: &Binding,
    buffer: Option<&BufferFacts>,
) -> Result<(), GpuError> {
    let region = &binding.region;
    let problem = |problem: String| GpuError::Binding {
        kernel: dispatch.launch.kernel.function,
        index: index as usize,
        argument: dispatch.label,
        problem,
    };
    let Some(facts) = buffer else {
        return Err(problem(format!("its buffer {} was given back", region.buffer().0)));
    };
    let (offset, len, all) = (region.offset(), region.len(), facts.len);
    if offset.checked_add(len).is_none_or(|end| end > all) {
        return Err(problem(format!("{len} bytes from {offset} on of a buffer of {all}")));
    }
    if matches!(binding.access, Access::Write | Access::ReadWrite) && !facts.writable {
        return Err(problem(
            "it is written, and its buffer is a file's pages, which are read only".to_owned(),
        ));
    }
    Ok(())
}

/// A product against the matrices it is bound to.
#[cfg_attr(not(any(feature = "cuda", target_os = "macos", metal_on_linux)), allow(dead_code))]
pub(crate) fn product(dispatch: &Dispatch, product: &Gemm) -> Result<(), GpuError> {
    for ((index, binding), needed) in dispatch.bindings().zip(product.bytes()) {
        let found = binding.region.len();
        if found < needed {
            return Err(GpuError::Binding {
                kernel: dispatch.launch.kernel.function,
                index: index as usize,
                argument: dispatch.label,
                problem: format!("{found} bytes, the product has {needed}"),
            });
        }
    }
    Ok(())
}

/// Whether the host may reach so many bytes of a buffer.
pub(crate) fn host(
    id: BufferId,
    facts: &BufferFacts,
    (offset, len): (usize, usize),
    writes: bool,
) -> Result<(), GpuError> {
    let failed = |reason: &str| Err(GpuError::execution(format!("buffer {}", id.0), reason));
    if !facts.host {
        return failed("the GPU alone reaches it: copy through a shared buffer");
    }
    if writes && !facts.writable {
        return failed("it is a file's pages, which are read only");
    }
    match offset.checked_add(len) {
        Some(end) if end <= facts.len => Ok(()),
        _ => Err(GpuError::OutOfBounds { start: offset, end: offset.saturating_add(len), len: facts.len }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Region;
    use crate::gpu::PipelineId;
    use crate::kernels::{Arg, Constants, Family, Kernel, Params, writes};
    use crate::threadgroup::tests::LIMITS;

    const FAMILY: Family = Family { name: "t", params: &[], uses: &[], text: "", kernels: &[] };
    const ARGS: &[Arg] = &[writes("out", 4)];
    const READY: PipelineFacts = PipelineFacts { max_threads: 512, threadgroup_bytes: 32000 };
    const SHARED: BufferFacts = BufferFacts { len: 64, writable: true, host: true };

    fn dispatch(groups: [u32; 3], threads: [u32; 3], threadgroup_bytes: u32) -> Dispatch {
        let kernel = Kernel { family: &FAMILY, function: "f", constants: Constants::NONE, args: ARGS };
        let launch = Launch {
            kernel,
            params: Params::of_words([0]),
            groups,
            threads,
            threadgroup_bytes,
            work: 0,
            bytewise: false,
        };
        Dispatch::new("op", PipelineId(0), &launch, &[Region::whole(BufferId(3), 64).write()]).unwrap()
    }

    #[test]
    fn a_launch_keeps_to_its_pipeline_and_the_device() {
        let ok = |d: &Dispatch| launch(d, Some(&READY), &LIMITS);
        assert_eq!(ok(&dispatch([1, 1, 1], [512, 1, 1], 768)), Ok(()));
        for (d, part) in [
            (dispatch([1, 1, 1], [513, 1, 1], 0), "513 threads in a threadgroup, the device allows 512"),
            (dispatch([1, 1, 1], [32, 32, 1], 0), "1024 threads"),
            (dispatch([1, 1, 1], [0, 1, 1], 0), "0 threads"),
            (dispatch([1, 0, 1], [1, 1, 1], 0), "0 threadgroups"),
            (dispatch([1, 1, 1], [1, 1, 1], 769), "32784 bytes of threadgroup memory"),
            (dispatch([1, 1, 1], [1, 1, 1], u32::MAX), "bytes of threadgroup memory"),
        ] {
            let text = ok(&d).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        }
        let few = Limits { max_groups: [u32::MAX, 65535, 65535], ..LIMITS };
        let on_few = |groups| launch(&dispatch(groups, [1; 3], 0), Some(&READY), &few);
        assert_eq!(on_few([65536, 65535, 1]), Ok(()));
        for (groups, axis) in [([1, 65536, 1], "y"), ([2, 1, 65536], "z")] {
            let text = on_few(groups).unwrap_err().to_string();
            let expected = format!("`f` asks for 65536 threadgroups along {axis}, the device allows 65535");
            assert_eq!(text, expected);
        }
        let gone = launch(&dispatch([1; 3], [1; 3], 0), None, &LIMITS).unwrap_err();
        assert!(gone.to_string().contains("given back"), "{gone}");
    }

    #[test]
    fn a_binding_lies_in_a_living_buffer_that_may_be_written() {
        let d = dispatch([1; 3], [1; 3], 0);
        let (index, bound) = d.bindings().next().unwrap();
        let found = |facts: Option<&BufferFacts>| binding(&d, index, bound, facts).map_err(|e| e.to_string());
        assert_eq!(found(Some(&SHARED)), Ok(()));
        assert!(found(None).unwrap_err().contains("buffer 3 was given back"));
        let short = BufferFacts { len: 63, ..SHARED };
        assert!(found(Some(&short)).unwrap_err().contains("64 bytes from 0 on of a buffer of 63"));
        let file = BufferFacts { writable: false, ..SHARED };
        assert!(found(Some(&file)).unwrap_err().contains("read only"));
        let read = Binding { access: Access::Read, ..*bound };
        assert_eq!(binding(&d, index, &read, Some(&file)), Ok(()));
    }

    #[test]
    fn the_host_stays_out_of_private_buffers_and_does_not_write_files() {
        let found = |facts: &BufferFacts, range, writes| {
            host(BufferId(3), facts, range, writes).map_err(|e| e.to_string())
        };
        assert_eq!(found(&SHARED, (60, 4), true), Ok(()));
        assert!(found(&SHARED, (61, 4), false).unwrap_err().contains("61..65"));
        assert!(found(&SHARED, (usize::MAX, 4), false).is_err());
        let private = BufferFacts { host: false, ..SHARED };
        assert!(found(&private, (0, 4), false).unwrap_err().contains("GPU alone"));
        let file = BufferFacts { writable: false, ..SHARED };
        assert_eq!(found(&file, (0, 4), false), Ok(()));
        assert!(found(&file, (0, 4), true).unwrap_err().contains("read only"));
    }

    #[test]
    fn a_device_of_another_simd_width_is_refused() {
        assert_eq!(pipeline("f", (512, 32, 32000)), Ok(READY));
        let text = pipeline("f", (512, 64, 0)).unwrap_err().to_string();
        assert!(text.contains("64 of its threads run in step, 32 are needed"), "{text}");
    }
}
