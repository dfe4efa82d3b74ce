//! MPS and MPSGraph: a product and a graph as they should be, and mistakes that must be caught.

use std::panic::{AssertUnwindSafe, catch_unwind};

use objc2::AnyThread;
use objc2::rc::{Retained, autoreleasepool};
use objc2_foundation::{NSArray, NSDictionary, NSNumber};
use objc2_metal::*;
use objc2_metal_performance_shaders::*;
use objc2_metal_performance_shaders_graph::*;
use softmetal_framework::{Rule, leaks, problems};

use super::{Bench, Buffer, CommandBuffer, alone, encoder_of};

fn floats(b: &Bench, numbers: &[f32]) -> Buffer {
    let made = b.device.newBufferWithLength_options(numbers.len() * 4, MTLResourceOptions::StorageModeShared);
    let buffer = made.expect("memory");
    // SAFETY: the buffer has so many bytes, and nothing runs.
    unsafe {
        buffer
            .contents()
            .cast::<f32>()
            .copy_from_nonoverlapping(std::ptr::NonNull::from(numbers).cast(), numbers.len());
    }
    buffer
}

fn read(buffer: &Buffer) -> Vec<f32> {
    super::words(buffer).into_iter().map(f32::from_bits).collect()
}

fn finish(command_buffer: &CommandBuffer) {
    command_buffer.commit();
    command_buffer.waitUntilCompleted();
    assert_eq!(command_buffer.status(), MTLCommandBufferStatus::Completed);
}

/// `rows` by `columns` floats, `pitch` of them from row to row.
fn matrix(buffer: &Buffer, [rows, columns, pitch]: [usize; 3]) -> Retained<MPSMatrix> {
    // SAFETY: what is wrong with it is refused.
    unsafe {
        let descriptor = MPSMatrixDescriptor::matrixDescriptorWithRows_columns_rowBytes_dataType(
            rows,
            columns,
            pitch,
            MPSDataType::Float32,
        );
        MPSMatrix::initWithBuffer_descriptor(MPSMatrix::alloc(), buffer, &descriptor)
    }
}

fn kernel(b: &Bench, [rows, columns, interior]: [usize; 3]) -> Retained<MPSMatrixMultiplication> {
    // SAFETY: what is wrong with it is refused.
    unsafe {
        MPSMatrixMultiplication::initWithDevice_resultRows_resultColumns_interiorColumns(
            MPSMatrixMultiplication::alloc(),
            &b.device,
            rows,
            columns,
            interior,
        )
    }
}

fn multiply(
    kernel: &MPSMatrixMultiplication,
    command_buffer: &CommandBuffer,
    [left, right, result]: [&MPSMatrix; 3],
) {
    // SAFETY: what is wrong with it is refused.
    unsafe {
        kernel.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix(command_buffer, left, right, result);
    }
}

fn shape(axes: &[usize]) -> Retained<NSArray<NSNumber>> {
    NSArray::from_retained_slice(&axes.iter().map(|n| NSNumber::new_usize(*n)).collect::<Vec<_>>())
}

fn data(buffer: &Buffer, axes: &[usize], packed: bool) -> Retained<MPSGraphTensorData> {
    // SAFETY: what is wrong with it is refused.
    unsafe {
        let descriptor =
            MPSNDArrayDescriptor::descriptorWithDataType_shape(MPSDataType::Float32, &shape(axes));
        descriptor.setPreferPackedRows(packed);
        let array = MPSNDArray::initWithBuffer_offset_descriptor(MPSNDArray::alloc(), buffer, 0, &descriptor);
        MPSGraphTensorData::initWithMPSNDArray(MPSGraphTensorData::alloc(), &array)
    }
}

/// `softmax(a [2, 3] · b [3, 2])` over the last axis; `feeds` says which of the two are named.
fn executable(b: &Bench, feeds: [bool; 2]) -> (Retained<MPSGraphExecutable>, Vec<bool>) {
    // SAFETY: what is wrong with it is refused.
    unsafe {
        let graph = MPSGraph::new();
        let given = |axes: &[usize]| {
            graph.placeholderWithShape_dataType_name(Some(&shape(axes)), MPSDataType::Float32, None)
        };
        let (a, b_) = (given(&[2, 3]), given(&[3, 2]));
        let product = graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name(&a, &b_, None);
        let out = graph.softMaxWithTensor_axis_name(&product, -1, None);
        let typed = |axes: &[usize]| {
            MPSGraphShapedType::initWithShape_dataType(
                MPSGraphShapedType::alloc(),
                Some(&shape(axes)),
                MPSDataType::Float32,
            )
        };
        let all = [(&*a, typed(&[2, 3])), (&*b_, typed(&[3, 2]))];
        let (keys, types): (Vec<&MPSGraphTensor>, Vec<_>) =
            all.into_iter().zip(feeds).filter(|(_, named)| *named).map(|(feed, _)| feed).unzip();
        let feeds = NSDictionary::from_retained_objects(&keys, &types);
        let device = MPSGraphDevice::deviceWithMTLDevice(&b.device);
        let made = graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor(
            Some(&device),
            &feeds,
            &NSArray::from_slice(&[&*out]),
            None,
            None,
        );
        let order = made.feedTensors().expect("feeds").to_vec().iter().map(|fed| **fed == *a).collect();
        (made, order)
    }
}

fn run(
    executable: &MPSGraphExecutable,
    command_buffer: &CommandBuffer,
    inputs: &[&MPSGraphTensorData],
    result: &MPSGraphTensorData,
) -> CommandBuffer {
    // SAFETY: what is wrong with it is refused.
    unsafe {
        let wrapped = MPSCommandBuffer::commandBufferWithCommandBuffer(command_buffer);
        executable.encodeToCommandBuffer_inputsArray_resultsArray_executionDescriptor(
            &wrapped,
            &NSArray::from_slice(inputs),
            Some(&NSArray::from_slice(&[result])),
            None,
        );
        wrapped.rootCommandBuffer()
    }
}

#[test]
fn products_and_graphs_compute_what_their_headers_say() {
    let _alone = alone();
    autoreleasepool(|_| {
        let b = Bench::new();
        let (x, y, out) = (
            floats(&b, &[1., 2., 3., 4., 5., 6.]),
            floats(&b, &[1., 0., 0., 1., 1., 1.]),
            floats(&b, &[7.; 4]),
        );
        let command_buffer = b.command_buffer();
        let matrices = [matrix(&x, [2, 3, 12]), matrix(&y, [3, 2, 8]), matrix(&out, [2, 2, 8])];
        multiply(&kernel(&b, [2, 2, 3]), &command_buffer, [&matrices[0], &matrices[1], &matrices[2]]);
        finish(&command_buffer);
        assert_eq!(read(&out), [4., 5., 10., 11.]);
        let (made, order) = executable(&b, [true; 2]);
        assert_eq!(order, [false, true], "feeds come in an order of their own");
        let data = [data(&y, &[3, 2], true), data(&x, &[2, 3], true), data(&out, &[2, 2], true)];
        let command_buffer = run(&made, &b.command_buffer(), &[&data[0], &data[1]], &data[2]);
        finish(&command_buffer);
        let low = 1.0 / (1.0 + 1f32.exp());
        assert!(read(&out).iter().zip([low, 1.0 - low, low, 1.0 - low]).all(|(a, b)| (a - b).abs() < 1e-6));
    });
    assert!(problems().is_empty() && leaks().is_empty(), "{:?}", leaks());
}

type Mistake = (&'static str, Rule, fn(&Bench));

const MISTAKES: &[Mistake] = &[
    ("rows that do not hold their columns", Rule::Descriptor, |b| drop(matrix(&b.x, [2, 3, 8]))),
    ("rows of half an element", Rule::Descriptor, |b| drop(matrix(&b.x, [2, 3, 14]))),
    ("a matrix longer than its buffer", Rule::Range, |b| drop(matrix(&floats(b, &[0.; 5]), [2, 3, 12]))),
    ("a matrix smaller than the product", Rule::Range, |b| {
        let small = matrix(&b.x, [2, 2, 8]);
        multiply(&kernel(b, [2, 2, 3]), &b.command_buffer(), [&small, &small, &small]);
    }),
    ("a product while an encoder is open", Rule::EncoderState, |b| {
        let square = matrix(&b.x, [2, 2, 8]);
        let (command_buffer, kernel) = (b.command_buffer(), kernel(b, [2, 2, 2]));
        let encoder = encoder_of(&command_buffer);
        let multiplied = catch_unwind(AssertUnwindSafe(|| {
            multiply(&kernel, &command_buffer, [&square, &square, &square])
        }));
        encoder.endEncoding();
        multiplied.expect("it is refused");
    }),
    ("a product of nothing", Rule::Descriptor, |b| drop(kernel(b, [2, 0, 3]))),
    ("a placeholder without a feed", Rule::MissingBinding, |b| drop(executable(b, [true, false]))),
    ("rows that are thought of as padded", Rule::Range, |b| drop(data(&floats(b, &[0.; 6]), &[2, 3], false))),
    ("feeds in the order in which they were named", Rule::Descriptor, |b| {
        let (made, _) = executable(b, [true; 2]);
        let data = [data(&b.x, &[2, 3], true), data(&b.x, &[3, 2], true), data(&b.y, &[2, 2], true)];
        run(&made, &b.command_buffer(), &[&data[0], &data[1]], &data[2]);
    }),
    ("a result of another shape", Rule::Descriptor, |b| {
        let (made, _) = executable(b, [true; 2]);
        let data = [data(&b.x, &[3, 2], true), data(&b.x, &[2, 3], true), data(&b.y, &[4], true)];
        run(&made, &b.command_buffer(), &[&data[0], &data[1]], &data[2]);
    }),
    ("axes that do not meet", Rule::Descriptor, |_| {
        // SAFETY: what is wrong with it is refused.
        unsafe {
            let graph = MPSGraph::new();
            let a =
                graph.placeholderWithShape_dataType_name(Some(&shape(&[2, 3])), MPSDataType::Float32, None);
            graph.matrixMultiplicationWithPrimaryTensor_secondaryTensor_name(&a, &a, None);
        }
    }),
];

#[test]
fn every_mistake_is_caught_by_the_rule_that_it_breaks() {
    let _alone = alone();
    for (what, rule, mistake) in MISTAKES {
        let outcome = autoreleasepool(|_| {
            let b = Bench::new();
            catch_unwind(AssertUnwindSafe(|| mistake(&b))).is_err()
        });
        let found: Vec<Rule> = problems().into_iter().map(|problem| problem.rule).collect();
        assert!(outcome && found.contains(rule), "{what}: {found:?}");
    }
}
