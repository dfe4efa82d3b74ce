//! What tensors do when the device fails.

use std::sync::Arc;

use metallic_core::tensor::{Evaluated, Operand, TensorMemory, View};
use metallic_core::{Backend, BackendError, Binary, DType, Mask, Op, Sdpa};
use metallic_testkit::needed;

use crate::backend::{GpuBackend, GpuOptions};
use crate::fault::{Fault, Faulty};
use crate::gpu::Gpu;
use crate::soft::{Soft, SoftOptions};

fn soft(options: SoftOptions) -> Option<Arc<dyn Gpu>> {
    Some(Arc::new(needed(Soft::new(options))?))
}

#[test]
fn heads_no_threadgroup_holds_are_refused_before_anything_runs() {
    let Some(gpu) = soft(SoftOptions::default()) else { return };
    let tensors = GpuBackend::new(gpu, GpuOptions::default()).tensors();
    let view = View::contiguous(DType::F32, &[1, 1, 9000]).unwrap();
    let memory = tensors.allocate(36_000).unwrap();
    let at = Operand { memory: &memory, view: &view };
    let op = Op::Sdpa(Sdpa { scale: 0.1, mask: Mask::Full, softcap: None });
    let error = tensors.eval(&op, &[at, at, at]).map(drop).unwrap_err();
    assert!(matches!(error, BackendError::Unsupported { device: "soft", .. }), "{error}");
    assert!(error.to_string().contains("threadgroup memory"), "{error}");
}

#[test]
fn memory_of_another_device_is_refused() {
    let Some(gpu) = soft(SoftOptions::default()) else { return };
    let backend = GpuBackend::new(gpu, GpuOptions::default());
    let other = GpuBackend::new(soft(SoftOptions::default()).unwrap(), GpuOptions::default());
    let view = View::contiguous(DType::F32, &[4]).unwrap();
    let (here, there) = (backend.tensors().allocate(16).unwrap(), other.tensors().allocate(16).unwrap());
    let at = |memory| Operand { memory, view: &view };
    let error = backend.tensors().copy(at(&there), at(&here)).unwrap_err();
    assert!(matches!(error, BackendError::ForeignMemory { .. }), "{error}");
}

/// A device that fails on demand, and a memory of four numbers on it.
struct Failing {
    gpu: Arc<Faulty>,
    backend: GpuBackend,
    x: Arc<dyn TensorMemory>,
}

impl Failing {
    fn new() -> Option<Failing> {
        let gpu = Arc::new(Faulty::new(soft(SoftOptions::default())?));
        let backend = GpuBackend::new(gpu.clone(), GpuOptions::default());
        let x = backend.tensors().allocate(16).unwrap();
        write(&x, [1.0, 2.0, 3.0, 4.0]);
        Some(Failing { gpu, backend, x })
    }

    /// `x + x` in a memory of its own; whether it could be taken.
    fn twice(&self) -> Result<Arc<dyn TensorMemory>, BackendError> {
        self.add(&self.x).map(|sum| sum.memory)
    }

    fn add(&self, x: &Arc<dyn TensorMemory>) -> Result<Evaluated, BackendError> {
        let view = View::contiguous(DType::F32, &[4]).unwrap();
        let at = Operand { memory: x, view: &view };
        self.backend.tensors().eval(&Op::Binary(Binary::Add), &[at, at])
    }

    fn works(&self) {
        assert_eq!(read(&self.twice().unwrap()).unwrap(), [2.0, 4.0, 6.0, 8.0]);
    }
}

fn write(memory: &Arc<dyn TensorMemory>, values: [f32; 4]) {
    memory.write(0, &values.map(f32::to_ne_bytes).concat()).unwrap();
}

fn read(memory: &Arc<dyn TensorMemory>) -> Result<Vec<f32>, BackendError> {
    let mut bytes = [0; 16];
    memory.read(0, &mut bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect())
}

#[test]
fn operations_go_to_the_device_together_when_a_result_is_read() {
    let Some(device) = Failing::new() else { return };
    let results: Vec<_> = (0..10).map(|_| device.twice().unwrap()).collect();
    assert_eq!(device.gpu.calls(Fault::Submit), 0);
    for result in &results {
        assert_eq!(read(result).unwrap(), [2.0, 4.0, 6.0, 8.0]);
    }
    assert_eq!(device.gpu.calls(Fault::Submit), 1);
    // Nobody reads, and yet work does not pile up.
    let submissions: u64 = (0..100).map(|_| device.add(&device.x).unwrap().stats.submissions).sum();
    assert_eq!(submissions, 1);
    device.gpu.cut(3);
    let submissions: u64 = (0..100).map(|_| device.add(&device.x).unwrap().stats.submissions).sum();
    assert_eq!(submissions, 6, "two, each cut into three");
    // What is written has to wait for what still reads.
    let before = device.twice().unwrap();
    write(&device.x, [0.0; 4]);
    assert_eq!(read(&before).unwrap(), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn a_failed_submission_stays_with_its_results_alone() {
    let Some(device) = Failing::new() else { return };
    for fault in [Fault::Submit, Fault::Execute, Fault::Wait] {
        device.gpu.fail(fault, 1);
        let lost = device.twice().unwrap();
        let error = read(&lost).unwrap_err();
        let timeout = matches!(error, BackendError::Timeout { .. });
        assert!(
            timeout == (fault == Fault::Wait) && (timeout || matches!(error, BackendError::Failed { .. })),
            "{error}"
        );
        device.works();
        assert_eq!(read(&device.x).unwrap(), [1.0, 2.0, 3.0, 4.0]);
        assert!(device.add(&lost).is_err(), "what was to be added never came");
        assert!(read(&lost).is_err(), "and it does not come later");
        write(&lost, [1.0; 4]);
        assert_eq!(read(&device.add(&lost).unwrap().memory).unwrap(), [2.0; 4]);
    }
    let gpu = device.gpu.clone();
    drop(device);
    assert_eq!((gpu.counts().buffers, gpu.counts().submissions), (0, 0), "late work was let go");
}

#[test]
fn no_memory_and_no_kernel_are_said_at_once_and_leave_nothing_behind() {
    let Some(device) = Failing::new() else { return };
    let gpu = device.gpu.clone();
    gpu.refuse("softmax");
    let (view, out) = (View::contiguous(DType::F32, &[4]).unwrap(), device.twice().unwrap());
    let at = |memory| Operand { memory, view: &view };
    let error = device.backend.tensors().eval(&Op::Softmax, &[at(&device.x)]).map(drop).unwrap_err();
    assert!(matches!(error, BackendError::Compile { .. }), "{error}");
    assert_eq!(read(&out).unwrap(), [2.0, 4.0, 6.0, 8.0], "nothing of it was begun");
    device.works();
    gpu.fail_always(Fault::Allocate);
    let error = device.backend.tensors().allocate(1 << 20).err().map(|e| e.to_string());
    assert!(error.is_some_and(|e| e.contains("1048576") && e.contains("a tensor")));
    gpu.heal();
    device.works();
    device.twice().unwrap();
    drop((device, out));
    let counts = gpu.counts();
    assert_eq!(
        (counts.buffers, counts.pipelines, counts.libraries, counts.submissions, counts.strays),
        (0, 0, 0, 0, 0)
    );
}
