//! Views and rules.

use std::sync::Arc;

use super::*;
use crate::reference::Reference;
use crate::{Backend, Binary, DType, Mask, StateId};

fn view(shape: &[usize]) -> View {
    View::contiguous(DType::F32, shape).unwrap()
}

#[test]
fn a_slice_begins_where_its_elements_do() {
    let v = view(&[4, 5]).slice(0, 1..3).unwrap().slice(1, 2..5).unwrap();
    assert_eq!((v.shape(), v.strides(), v.offset()), (&[2, 3][..], &[5, 1][..], 7));
    assert_eq!(v.offsets().collect::<Vec<_>>(), [7, 8, 9, 12, 13, 14]);
    assert_eq!(v.byte_range(), 28..60);
    assert!(!v.is_contiguous());
    assert!(view(&[4, 5]).slice(0, 1..3).unwrap().is_contiguous());
}

#[test]
fn steps_and_selections_stay_inside() {
    let v = view(&[7, 3]).step(0, 3).unwrap();
    assert_eq!((v.shape(), v.strides()), (&[3, 3][..], &[9, 1][..]));
    let row = v.select(0, 2).unwrap();
    assert_eq!((row.shape(), row.offset()), (&[3][..], 18));
    assert!(matches!(v.select(0, 3), Err(TensorError::Slice { .. })));
    assert!(matches!(v.select(0, usize::MAX), Err(TensorError::Slice { .. })));
    assert!(matches!(v.step(0, 0), Err(TensorError::Slice { .. })));
    assert!(matches!(v.step(2, 1), Err(TensorError::Axis { axis: 2, .. })));
}

#[test]
fn a_reshape_keeps_the_order_or_is_refused() {
    let v = view(&[2, 6]).reshape(&[3, 1, 4]).unwrap();
    assert_eq!(v.strides()[0], 4);
    let turned = view(&[2, 6]).transpose(0, 1).unwrap();
    let error = turned.reshape(&[12]).unwrap_err();
    assert!(error.to_string().contains("make it contiguous"), "{error}");
    // The long axis splits even where the other one lies across it.
    let split = turned.reshape(&[2, 3, 2]).unwrap();
    assert_eq!(split.offsets().collect::<Vec<_>>(), turned.offsets().collect::<Vec<_>>());
    let error = view(&[2, 6]).reshape(&[5]).unwrap_err();
    assert!(error.to_string().contains("number of elements"), "{error}");
    assert_eq!(view(&[0, 3]).reshape(&[5, 0]).unwrap().shape(), [5, 0]);
    assert_eq!(view(&[]).reshape(&[1, 1]).unwrap().elements(), 1);
}

#[test]
fn every_reshape_that_is_allowed_names_the_same_elements() {
    let shapes: &[&[usize]] = &[&[24], &[2, 12], &[4, 6], &[2, 3, 4], &[1, 24, 1], &[2, 2, 2, 3]];
    let bases = [
        view(&[24]),
        view(&[4, 6]),
        view(&[4, 8]).slice(1, 1..7).unwrap(),
        view(&[3, 2, 4]).permute(&[1, 2, 0]).unwrap(),
        view(&[2, 12]).transpose(0, 1).unwrap(),
        view(&[1, 6]).broadcast(&[4, 6]).unwrap(),
        view(&[48]).step(0, 2).unwrap(),
    ];
    let mut allowed = 0;
    for base in bases {
        for shape in shapes {
            let Ok(reshaped) = base.reshape(shape) else { continue };
            allowed += 1;
            assert!(reshaped.offsets().eq(base.offsets()), "{base} as {shape:?}");
        }
    }
    assert!(allowed > 15, "{allowed}");
}

#[test]
fn a_broadcast_repeats_without_a_copy() {
    let v = view(&[3, 1]).broadcast(&[2, 3, 4]).unwrap();
    assert_eq!(v.strides(), [0, 1, 0]);
    assert!(v.repeats() && !view(&[3, 4]).repeats());
    assert!(matches!(view(&[3]).broadcast(&[4]), Err(TensorError::Shape { .. })));
    assert!(matches!(view(&[1, 3]).broadcast(&[3]), Err(TensorError::Shape { .. })));
    assert!(matches!(view(&[3]).broadcast(&[1; 5]), Err(TensorError::Rank { .. })));
    // Overlapping windows repeat elements too.
    assert!(View::strided(DType::F32, 0, &[4, 3], &[1, 1]).unwrap().repeats());
}

#[test]
fn a_permutation_names_every_axis_once() {
    let v = view(&[2, 3, 4]).permute(&[2, 0, 1]).unwrap();
    assert_eq!((v.shape(), v.strides()), (&[4, 2, 3][..], &[1, 12, 4][..]));
    for order in [&[0, 0][..], &[0], &[0, 2], &[0, 1, 2], &[], &[0, 1, 1]] {
        let error = view(&[2, 3]).permute(order).unwrap_err();
        let needed = format!("a permutation of [2, 3] names each of its 2 axes once; found is {order:?}");
        assert_eq!(error.to_string(), needed);
    }
}

#[test]
fn sizes_beyond_the_address_space_are_refused() {
    for shape in [&[usize::MAX, 2][..], &[1 << 40, 1 << 40], &[1 << 62]] {
        assert!(
            matches!(View::contiguous(DType::F32, shape), Err(TensorError::TooLarge { .. })),
            "{shape:?}"
        );
    }
    let far = View::strided(DType::F32, usize::MAX, &[2], &[1]);
    assert!(matches!(far, Err(TensorError::TooLarge { .. })));
    assert!(matches!(view(&[1]).broadcast(&[usize::MAX, 2]), Err(TensorError::TooLarge { .. })));
}

#[test]
fn views_of_everything_that_can_be_counted_stay_views() {
    // A quantised element takes less than a byte: strides come close to the largest number there is.
    let far = View::strided(DType::Q2K, 0, &[2, 256], &[1 << 63, 1]).unwrap();
    assert_eq!(far.reshape(&[2, 1, 256]).unwrap().strides(), [1 << 63, 256, 1]);
    let all = view(&[1]).broadcast(&[usize::MAX]).unwrap();
    assert_eq!(all.select(0, usize::MAX - 1).unwrap().shape(), [0; 0]);
    assert!(matches!(all.select(0, usize::MAX), Err(TensorError::Slice { .. })));
    assert_eq!(Mask::Causal.visible(usize::MAX - 2, usize::MAX, usize::MAX), 0..usize::MAX - 1);
}

#[test]
fn views_without_elements_take_any_stride_and_any_view() {
    let far = View::strided(DType::F32, 5, &[0, 10], &[1, usize::MAX]).unwrap();
    let part = far.slice(1, 5..7).unwrap().transpose(0, 1).unwrap();
    assert_eq!((part.shape(), part.offsets().count(), part.byte_range()), (&[2, 0][..], 0, 0..0));
    assert!(part.is_contiguous() && !part.repeats());
    assert_eq!(view(&[0, 3]).row_offset(2), 0);
    for shape in [[0, usize::MAX, 2], [usize::MAX, 0, 2]] {
        assert!(matches!(View::contiguous(DType::F32, &shape), Err(TensorError::TooLarge { .. })));
    }
}

/// Follows a view's changes on a list of its elements.
struct Model {
    shape: Vec<usize>,
    elements: Vec<usize>,
}

impl Model {
    fn at(&self, index: &[usize]) -> usize {
        self.elements[index.iter().zip(&self.shape).fold(0, |at, (i, len)| at * len + i)]
    }

    /// The list of a new shape whose elements are found by their indices in the old one.
    fn remade(&self, shape: Vec<usize>, old: impl Fn(&[usize]) -> Vec<usize>) -> Model {
        let mut elements = Vec::new();
        for flat in 0..shape.iter().product() {
            let mut rest = flat;
            let mut index: Vec<usize> = shape.iter().rev().map(|len| (rest % len, rest /= len).0).collect();
            index.reverse();
            elements.push(self.at(&old(&index)));
        }
        Model { shape, elements }
    }
}

#[test]
fn chains_of_views_name_the_elements_that_lists_do() {
    let mut word = 1u32;
    let mut random = |below: usize| {
        word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (word >> 8) as usize % below
    };
    let mut refused = 0;
    for _ in 0..500 {
        let shape = [2 + random(4), 1 + random(5), 2 + random(4)];
        let mut view = view(&shape);
        let mut model = Model { shape: shape.to_vec(), elements: (0..view.elements()).collect() };
        for _ in 0..5 {
            let (axis, other) = (random(view.rank()), random(view.rank()));
            let len = view.shape()[axis];
            let mut shape = model.shape.clone();
            match random(5) {
                0 => {
                    let start = random(len);
                    let end = start + 1 + random(len - start);
                    view = view.slice(axis, start..end).unwrap();
                    shape[axis] = end - start;
                    model = model.remade(shape, |index| {
                        index
                            .iter()
                            .enumerate()
                            .map(|(i, at)| if i == axis { at + start } else { *at })
                            .collect()
                    });
                }
                1 => {
                    view = view.transpose(axis, other).unwrap();
                    shape.swap(axis, other);
                    model = model.remade(shape, |index| {
                        let mut index = index.to_vec();
                        index.swap(axis, other);
                        index
                    });
                }
                2 => {
                    view = view.step(axis, 2).unwrap();
                    shape[axis] = len.div_ceil(2);
                    model = model.remade(shape, |index| {
                        index.iter().enumerate().map(|(i, at)| if i == axis { at * 2 } else { *at }).collect()
                    });
                }
                3 if len == 1 => {
                    shape[axis] = 3;
                    view = view.broadcast(&shape).unwrap();
                    model = model.remade(shape, |index| {
                        index.iter().enumerate().map(|(i, at)| if i == axis { 0 } else { *at }).collect()
                    });
                }
                _ => {
                    let shape = [view.elements() / len, len];
                    let Ok(reshaped) = view.reshape(&shape) else {
                        refused += 1;
                        continue;
                    };
                    view = reshaped;
                    model.shape = shape.to_vec();
                }
            }
            assert_eq!(view.shape(), model.shape);
            assert!(view.offsets().eq(model.elements.iter().copied()), "{view}");
            let mut elements = model.elements.clone();
            elements.sort_unstable();
            elements.dedup();
            assert_eq!(view.repeats(), elements.len() < model.elements.len(), "{view}");
        }
    }
    assert!(refused > 20, "{refused}");
}

#[test]
fn a_view_of_blocks_cuts_none() {
    let v = View::contiguous(DType::Q4_0, &[3, 64]).unwrap();
    assert_eq!(v.byte_range(), 0..3 * 2 * 18);
    assert_eq!(v.slice(0, 1..2).unwrap().byte_range(), 36..72);
    assert_eq!(v.slice(1, 32..64).unwrap().offset(), 32);
    assert_eq!(v.transpose(0, 1).unwrap().shape(), [64, 3]);
    for bad in [v.slice(1, 1..33), v.slice(1, 0..16), v.step(1, 2), View::contiguous(DType::Q4_0, &[3, 33])] {
        let error = bad.unwrap_err();
        assert!(error.to_string().contains("blocks of 32"), "{error}");
    }
}

#[test]
fn a_mask_shows_the_keys_up_to_the_query() {
    assert_eq!(Mask::Full.visible(0, 3, 5), 0..5);
    assert_eq!(Mask::Causal.visible(0, 3, 5), 0..3);
    assert_eq!(Mask::Causal.visible(2, 3, 5), 0..5);
    assert_eq!(Mask::Window(2).visible(2, 3, 5), 3..5);
    assert!(Mask::Causal.visible(0, 5, 3).is_empty());
    assert!(Mask::Window(9).visible(1, 5, 3).is_empty());
    assert_eq!(Mask::Causal.visible(2, 5, 3), 0..1);
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    let f16 = View::contiguous(DType::F16, &[2, 3]).unwrap();
    let ids = View::contiguous(DType::U32, &[2, 3]).unwrap();
    let (m, add) = (view(&[2, 3]), Op::Binary(Binary::Add));
    let norm = |eps| Op::RmsNorm { eps, groups: 1 };
    let table: &[(Op, &[View], &str)] = &[
        (add, &[m], "`binary` takes 2 inputs, it was given 1"),
        (add, &[m, f16], "input 1 of `binary` is F16 [2, 3], it needs F32 [2, 3] or one row of it"),
        (add, &[ids, ids], "input 0 of `binary` is U32 [2, 3], it needs floats"),
        (norm(1e-5), &[m, view(&[2])], "input 1 of `rms_norm` is F32 [2], it needs a float vector [3]"),
        (norm(f32::NAN), &[m, view(&[3])], "`rms_norm` cannot have epsilon NaN"),
        (
            Op::RmsNorm { eps: 0.0, groups: 2 },
            &[m, view(&[3])],
            "`rms_norm` cannot have 2 parts of rows of 3",
        ),
        (Op::Softmax, &[view(&[])], "input 0 of `softmax` is F32 [], it needs floats in rows"),
        (Op::Linear, &[m, view(&[3, 2])], "input 1 of `linear` is F32 [3, 2], it needs a matrix [n, 3]"),
        (Op::Linear, &[view(&[5, 2, 3]), view(&[4, 7, 3])], "one for each of [5, 2, 3]"),
        (Op::TopK { k: 4 }, &[m], "it needs rows of 4 to 4294967295 numbers"),
        (Op::Argmax, &[view(&[2, 0])], "it needs rows of 1 to 4294967295 numbers"),
        (Op::Argmax, &[view(&[1]).broadcast(&[1, 1 << 32]).unwrap()], "it must be contiguous"),
        (Op::Softcap(0.0), &[m], "`softcap` cannot have cap 0"),
        (Op::Gather, &[m, View::contiguous(DType::U32, &[3, 2]).unwrap()], "U32 indices [2, 2]"),
        (Op::ShortConv { state: StateId(0) }, &[m, m], "cannot be carried out alone"),
        (Op::Tokens, &[], "cannot be carried out alone"),
    ];
    let device = Reference::new().tensors();
    for (op, inputs, message) in table {
        let allocate = |v: &View| device.allocate(v.byte_range().end).unwrap();
        let memories: Vec<Arc<dyn TensorMemory>> = inputs.iter().map(allocate).collect();
        let operands: Vec<Operand<'_>> =
            inputs.iter().zip(&memories).map(|(view, memory)| Operand { memory, view }).collect();
        let error = device.eval(op, &operands).map(drop).unwrap_err().to_string();
        assert!(error.contains(message), "{op:?}: {error}");
    }
}

#[test]
fn copies_stay_inside_their_memory_and_apart_from_what_they_read() {
    let device = Reference::new().tensors();
    let memory = device.allocate(4 * 12).unwrap();
    let all = view(&[3, 4]);
    let at = |view| Operand { memory: &memory, view };
    assert_eq!(check_copy(&at(&all), &at(&all)), Ok(()));
    let larger = view(&[13]);
    let error = check_copy(&at(&larger), &at(&larger)).unwrap_err();
    assert_eq!(error.to_string(), "input 0 of `copy` reaches byte 52 of a memory of 48");
    let (top, low) = (all.slice(0, 0..2).unwrap(), all.slice(0, 1..3).unwrap());
    let error = check_copy(&at(&top), &at(&low)).unwrap_err();
    assert!(error.to_string().contains("output 0 of `copy` overlaps input 0"), "{error}");
    let repeated = view(&[1, 4]).broadcast(&[3, 4]).unwrap();
    let error = check_copy(&at(&all), &at(&repeated)).unwrap_err();
    assert!(error.to_string().contains("overlaps itself"), "{error}");
    let words = View::contiguous(DType::U32, &[3, 4]).unwrap();
    let blocks = View::contiguous(DType::Q8_0, &[1, 32]).unwrap();
    for (from, to) in [(&all, &words), (&words, &all), (&blocks, &blocks), (&top, &all)] {
        assert!(matches!(check_copy(&at(from), &at(to)), Err(TensorError::Copy { .. })), "{from} {to}");
    }
}

#[test]
fn sums_without_terms_are_zeros_and_nothing_is_nothing() {
    let device = Reference::new().tensors();
    let memory = device.allocate(64).unwrap();
    let at = |view| Operand { memory: &memory, view };
    let (x, w) = (view(&[2, 0]), view(&[3, 0]));
    let zeros = device.eval(&Op::Linear, &[at(&x), at(&w)]).unwrap();
    let mut bytes = [1; 24];
    zeros.memory.read(0, &mut bytes).unwrap();
    assert_eq!((zeros.ty, bytes), (view(&[2, 3]).ty(), [0; 24]));
    let none = view(&[0, 1 << 50]);
    assert!(device.eval(&Op::Softmax, &[at(&none)]).unwrap().memory.is_empty());
}

#[test]
fn memory_is_read_and_written_inside_its_bounds_only() {
    let memory = Reference::new().tensors().allocate(8).unwrap();
    memory.write(4, &[1, 2, 3, 4]).unwrap();
    let mut out = [0; 2];
    memory.read(5, &mut out).unwrap();
    assert_eq!(out, [2, 3]);
    for offset in [7, 8, usize::MAX] {
        let error = memory.read(offset, &mut out).unwrap_err();
        assert_eq!(error, crate::BackendError::Range { start: offset, len: 2, found: 8 });
        assert!(memory.write(offset, &out).is_err());
    }
}
