//! Single operations on tensors, which no graph has or not alone: norms, choices, copies, arithmetic, plain attention.

use std::sync::Arc;

use criterion::{Criterion, Throughput};
use metallic_core::quant::{dequantize, quantize};
use metallic_core::sample::{philox, uniform};
use metallic_core::tensor::{
    Mask, Operand, Sample, Sdpa, TensorDevice, TensorMemory, TensorOp, View, outputs,
};
use metallic_core::{Backend, Binary, DType};

use crate::difference;

/// One line of the table.
struct Line {
    name: &'static str,
    op: TensorOp,
    inputs: Vec<View>,
    outputs: Vec<View>,
}

fn view(dtype: DType, shape: &[usize]) -> View {
    View::contiguous(dtype, shape).expect("a small view")
}

fn line(name: &'static str, op: TensorOp, inputs: Vec<View>) -> Line {
    let results = outputs(&op, &inputs.iter().collect::<Vec<_>>()).unwrap_or_else(|e| panic!("{name}: {e}"));
    Line { name, op, inputs, outputs: results }
}

fn lines() -> Vec<Line> {
    let (rows, row) = (view(DType::F32, &[256, 1024]), view(DType::F32, &[1024]));
    let turned = rows.transpose(0, 1).expect("two axes");
    let logits = view(DType::F32, &[4, 50_000]);
    let heads = |heads| view(DType::F32, &[heads, 128, 64]);
    let sdpa = Sdpa { scale: 0.125, mask: Mask::Causal, softcap: None };
    let sample = Sample { temperature: 0.8, top_k: 40, seed: 1, ..Sample::default() };
    let mut cast = line("cast/f32-f16/256x1024", TensorOp::Copy, vec![rows]);
    cast.outputs = vec![view(DType::F16, &[256, 1024])];
    vec![
        line("layer_norm/f32/256x1024", TensorOp::LayerNorm { eps: 1e-5 }, vec![rows, row, row]),
        line("sub/f32/256x1024", TensorOp::Binary(Binary::Sub), vec![rows, rows]),
        line("div/f32/256x1024", TensorOp::Binary(Binary::Div), vec![rows, rows]),
        line("copy/f32/256x1024", TensorOp::Copy, vec![rows]),
        cast,
        line("transpose/f32/256x1024", TensorOp::Copy, vec![turned]),
        line("argmax/f32/4x50000", TensorOp::Argmax, vec![logits]),
        line("top_k/f32/40 of 4x50000", TensorOp::TopK { k: 40 }, vec![logits]),
        line("sample/f32/40 of 4x50000", TensorOp::Sample(sample), vec![logits]),
        line("sdpa/f32/12:4x64/128", TensorOp::Sdpa(sdpa), vec![heads(12), heads(4), heads(4)]),
    ]
}

/// The operands of a line on one device.
struct Runner<'a> {
    line: &'a Line,
    device: Arc<dyn TensorDevice>,
    inputs: Vec<Arc<dyn TensorMemory>>,
    outputs: Vec<Arc<dyn TensorMemory>>,
}

impl<'a> Runner<'a> {
    fn new(backend: &dyn Backend, line: &'a Line) -> Runner<'a> {
        let device = backend.tensors();
        let allocate = |view: &View| device.allocate(view.byte_range().end).expect("memory");
        let (inputs, outputs): (Vec<_>, Vec<_>) =
            (line.inputs.iter().map(allocate).collect(), line.outputs.iter().map(allocate).collect());
        for (index, (view, memory)) in line.inputs.iter().zip(&inputs).enumerate() {
            let number = |i: usize| uniform(philox([i as u32, index as u32, 0, 0], [7, 7])[0]) - 0.4;
            let values: Vec<f32> = (0..view.elements()).map(number).collect();
            let mut bytes = vec![0; view.byte_range().end];
            quantize(view.dtype(), &values, &mut bytes).expect("floats");
            memory.write(0, &bytes).expect("inside");
        }
        Runner { line, device, inputs, outputs }
    }

    /// Runs the operation and waits for it.
    fn step(&self) {
        let at = |(memory, view)| Operand { memory, view };
        let inputs: Vec<Operand<'_>> = self.inputs.iter().zip(&self.line.inputs).map(at).collect();
        let outputs: Vec<Operand<'_>> = self.outputs.iter().zip(&self.line.outputs).map(at).collect();
        self.device.run(&self.line.op, &inputs, &outputs).expect("an operation");
        self.outputs[0].read(0, &mut [0]).expect("a result");
    }

    /// The first result, integers as numbers.
    fn found(&self) -> Vec<f32> {
        let view = &self.line.outputs[0];
        let mut bytes = vec![0; view.byte_range().end];
        self.outputs[0].read(0, &mut bytes).expect("a result");
        if view.dtype() == DType::U32 {
            return bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word) as f32).collect();
        }
        let mut values = vec![0.0; view.elements()];
        dequantize(view.dtype(), &bytes, &mut values).expect("floats");
        values
    }
}

pub(crate) fn operations(c: &mut Criterion, backends: &[(&str, Box<dyn Backend>)]) {
    for line in lines() {
        let mut group = c.benchmark_group(line.name);
        let bytes = |views: &[View]| views.iter().map(|view| view.byte_range().len() as u64).sum::<u64>();
        group.throughput(match line.op {
            TensorOp::Sdpa(_) => Throughput::Elements(2 * 12 * 64 * (128 * 129 / 2)),
            _ => Throughput::Bytes(bytes(&line.inputs) + bytes(&line.outputs)),
        });
        let mut expected: Option<Vec<f32>> = None;
        for (name, backend) in backends {
            let runner = Runner::new(backend.as_ref(), &line);
            runner.step();
            let found = runner.found();
            let off = expected.as_ref().map_or(0.0, |expected| difference(expected, &found));
            assert!(off < 1e-3, "{}: {name} is off by {off}", line.name);
            expected.get_or_insert(found);
            group.bench_function(*name, |b| b.iter(|| runner.step()));
        }
        group.finish();
    }
}
