//! Single operations on tensors, which no graph has or not alone: norms, choices, copies, arithmetic, plain attention. Their time is
//! that of the caller, who waits for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use metallic_core::quant::{dequantize, quantize};
use metallic_core::sample::{Choice, Choices, philox, uniform};
use metallic_core::tensor::{Operand, TensorDevice, TensorMemory, View};
use metallic_core::{Backend, Binary, DType, Mask, Op, Sdpa};

use metallic_cpu::Cpu;
use metallic_gpu::Providers;

use crate::device::Device;
use crate::runner::difference;

/// What is timed.
enum Job {
    Eval(Op),
    /// A copy to elements of this type that lie one after another.
    Copy(DType),
}

/// A view, and what its memory begins with.
struct Input {
    view: View,
    bytes: Vec<u8>,
}

/// One line of the table.
struct Line {
    name: &'static str,
    job: Job,
    inputs: Vec<Input>,
}

fn line(name: &'static str, job: Job, inputs: Vec<Input>) -> Line {
    Line { name, job, inputs }
}

fn view(dtype: DType, shape: &[usize]) -> View {
    View::contiguous(dtype, shape).expect("a small view")
}

/// Numbers that differ from seed to seed.
fn numbers(shape: &[usize], seed: u32) -> Input {
    let view = view(DType::F32, shape);
    let number = |i: usize| uniform(philox([i as u32, seed, 0, 0], [7, 7])[0]) - 0.4;
    let values: Vec<f32> = (0..view.elements()).map(number).collect();
    let mut bytes = vec![0; view.byte_range().end];
    quantize(DType::F32, &values, &mut bytes).expect("floats");
    Input { view, bytes }
}

/// The same choice for each of `rows` rows.
fn choices(rows: usize, choice: &Choice) -> Input {
    let mut choices = Choices::default();
    for _ in 0..rows {
        choices.push(choice, &[]).expect("a choice");
    }
    let bytes: Vec<u8> = choices.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    Input { view: view(DType::U32, &[bytes.len() / size_of::<u32>()]), bytes }
}

fn lines() -> Vec<Line> {
    let rows = |seed| numbers(&[256, 1024], seed);
    let row = |seed| numbers(&[1024], seed);
    let mut turned = rows(0);
    turned.view = turned.view.transpose(0, 1).expect("two axes");
    let logits = || numbers(&[4, 50_000], 0);
    let heads = |heads, seed| numbers(&[heads, 128, 64], seed);
    let sdpa = Op::Sdpa(Sdpa { scale: 0.125, mask: Mask::Causal, softcap: None });
    let choice = Choice { temperature: 0.8, top_k: 40, seed: 1, ..Choice::default() };
    let norm = Op::LayerNorm { eps: 1e-5 };
    vec![
        line("layer_norm/f32/256x1024", Job::Eval(norm), vec![rows(0), row(1), row(2)]),
        line("sub/f32/256x1024", Job::Eval(Op::Binary(Binary::Sub)), vec![rows(0), rows(1)]),
        line("div/f32/256x1024", Job::Eval(Op::Binary(Binary::Div)), vec![rows(0), rows(1)]),
        line("copy/f32/256x1024", Job::Copy(DType::F32), vec![rows(0)]),
        line("cast/f32-f16/256x1024", Job::Copy(DType::F16), vec![rows(0)]),
        line("transpose/f32/256x1024", Job::Copy(DType::F32), vec![turned]),
        line("argmax/f32/4x50000", Job::Eval(Op::Argmax), vec![logits()]),
        line("top_k/f32/40 of 4x50000", Job::Eval(Op::TopK { k: 40 }), vec![logits()]),
        line("sample/f32/40 of 4x50000", Job::Eval(Op::Sample), vec![logits(), choices(4, &choice)]),
        line("sdpa/f32/12:4x64/128", Job::Eval(sdpa), vec![heads(12, 0), heads(4, 1), heads(4, 2)]),
    ]
}

/// Elements that are all of a memory.
struct Found {
    dtype: DType,
    memory: Arc<dyn TensorMemory>,
}

impl Found {
    /// Integers as numbers.
    fn values(&self) -> Vec<f32> {
        let mut bytes = vec![0; self.memory.len()];
        self.memory.read(0, &mut bytes).expect("a result");
        if self.dtype == DType::U32 {
            return bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word) as f32).collect();
        }
        let mut values = vec![0.0; bytes.len() / self.dtype.block_bytes()];
        dequantize(self.dtype, &bytes, &mut values).expect("floats");
        values
    }
}

/// The operands of a line on one device.
struct Runner<'a> {
    line: &'a Line,
    device: Arc<dyn TensorDevice>,
    inputs: Vec<Arc<dyn TensorMemory>>,
}

impl<'a> Runner<'a> {
    fn new(backend: &dyn Backend, line: &'a Line) -> Runner<'a> {
        let device = backend.tensors();
        let given = line.inputs.iter().map(|input| {
            let memory = device.allocate(input.bytes.len()).expect("memory");
            memory.write(0, &input.bytes).expect("inside");
            memory
        });
        let inputs = given.collect();
        Runner { line, device, inputs }
    }

    /// Does it and waits for it.
    fn step(&self) -> Found {
        let at = |(memory, input): (_, &'a Input)| Operand { memory, view: &input.view };
        let inputs: Vec<Operand<'_>> = self.inputs.iter().zip(&self.line.inputs).map(at).collect();
        let found = match self.line.job {
            Job::Eval(op) => {
                let done = self.device.eval(&op, &inputs).expect("an operation");
                Found { dtype: done.ty.dtype, memory: done.memory }
            }
            Job::Copy(dtype) => {
                let to = view(dtype, inputs[0].view.shape());
                let memory = self.device.allocate(to.byte_range().end).expect("memory");
                self.device.copy(inputs[0], Operand { memory: &memory, view: &to }).expect("a copy");
                Found { dtype, memory }
            }
        };
        found.memory.read(0, &mut [0]).expect("a result");
        found
    }
}

/// How long a line is measured.
const LONG_ENOUGH: Duration = Duration::from_millis(50);

pub(crate) fn operations(device: &Device, cpu: &Cpu, wanted: &dyn Fn(&str) -> bool) {
    let backend = device.backend(&Providers::new(), false);
    println!("\n{:36} {:>10} {:>9} {:>9}", "OPERATION ON TENSORS", "µs", "GB/s", "TFLOP/s");
    for line in lines().into_iter().filter(|line| wanted(line.name)) {
        let runner = Runner::new(&backend, &line);
        let found = runner.step();
        let off = difference(&Runner::new(cpu, &line).step().values(), &found.values());
        assert!(off < 1e-3, "{}: off by {off}", line.name);
        let (start, mut best) = (Instant::now(), Duration::MAX);
        while start.elapsed() < LONG_ENOUGH {
            let begun = Instant::now();
            runner.step();
            best = best.min(begun.elapsed());
        }
        let seconds = best.as_secs_f64();
        let read: usize = line.inputs.iter().map(|input| input.bytes.len()).sum();
        let flops = if matches!(line.job, Job::Eval(Op::Sdpa(_))) {
            format!("{:.3}", 2.0 * (2 * 12 * 64 * (128 * 129 / 2)) as f64 / seconds / 1e12)
        } else {
            "-".to_owned()
        };
        let bytes = (read + found.memory.len()) as f64 / seconds / 1e9;
        println!("{:36} {:>10.2} {bytes:>9.1} {flops:>9}", line.name, seconds * 1e6);
    }
}
