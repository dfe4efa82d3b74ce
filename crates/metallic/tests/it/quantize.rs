//! Files made smaller by the library.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use metallic::core::{DType, quant};
use metallic::formats::{Gguf, GgufWriter, Tensor};
use metallic::quantize::{Gathered, Importance, Input, Mixture, Plan, QuantizeError, QuantizeOptions, Sums};

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + 13) % 1009) as f32 / 504.0 - 1.0).collect()
}

/// A file with a stack of two matrices, a matrix and a norm.
fn source(folder: &Path, broken: bool) -> Input {
    let mut writer = GgufWriter::new();
    writer.insert("general.architecture", "toy");
    let shapes: [(&str, &[usize]); 3] = [
        ("blk.0.ffn_up_exps.weight", &[2, 4, 256]),
        ("blk.0.attn_q.weight", &[8, 256]),
        ("output_norm.weight", &[256]),
    ];
    for (name, shape) in shapes {
        let mut values = numbers(shape.iter().product());
        if broken && name.contains("attn_q") {
            values[300] = f32::NAN;
        }
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (name, shape) = (name.to_owned(), shape.to_vec());
        writer.add(Tensor { name, dtype: DType::F32, shape, data: data.into() }).unwrap();
    }
    let path = folder.join("source.gguf");
    writer.write(&path).unwrap();
    Input::open(&path).unwrap()
}

fn options(mixture: &str) -> QuantizeOptions {
    QuantizeOptions::new(mixture.parse().unwrap(), NonZeroUsize::new(2).unwrap())
}

fn decoded(path: &Path, name: &str) -> Vec<f32> {
    let file = Gguf::open(path).unwrap();
    let tensor = file.require(name).unwrap();
    let mut out = vec![0.0; tensor.elements()];
    quant::dequantize(tensor.dtype, &tensor.data, &mut out).unwrap();
    out
}

#[test]
fn every_mixture_is_written_and_read_and_all_bytes_are_told_of() {
    let folder = tempfile::tempdir().unwrap();
    for mixture in Mixture::all() {
        let (plan, out) = (
            Plan::new(source(folder.path(), false), options(mixture.name)).unwrap(),
            folder.path().join("out.gguf"),
        );
        let done = AtomicU64::new(0);
        plan.write(&out, &|bytes| {
            done.fetch_add(bytes, Ordering::Relaxed);
            true
        })
        .unwrap();
        assert_eq!(done.into_inner(), plan.bytes().0, "{}", mixture.name);
        let file = Gguf::open(&out).unwrap();
        assert_eq!(file.metadata.opt_usize("general.file_type").unwrap(), Some(mixture.file_type as usize));
        assert_eq!(file.require("output_norm.weight").unwrap().dtype, DType::F32);
        assert_eq!(file.tensors().map(|t| t.data.len() as u64).sum::<u64>(), plan.bytes().1);
        let (found, exact) = (decoded(&out, "blk.0.attn_q.weight"), numbers(8 * 256));
        let off = found.iter().zip(&exact).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off < 0.5, "{}: {off}", mixture.name);
    }
}

#[test]
fn a_matrix_with_a_nan_is_refused_by_name_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let plan = Plan::new(source(folder.path(), true), options("Q4_K_M")).unwrap();
    let error = plan.write(&out, &|_| true).unwrap_err();
    assert!(
        matches!(&error, QuantizeError::NotFinite { name, .. } if name == "blk.0.attn_q.weight"),
        "{error}"
    );
    let plan = Plan::new(source(folder.path(), true), options("F16")).unwrap();
    plan.write(&out, &|_| true).unwrap();
    assert!(decoded(&out, "blk.0.attn_q.weight")[300].is_nan());
    let plan = Plan::new(source(folder.path(), false), options("Q8_0")).unwrap();
    assert!(matches!(
        plan.write(&folder.path().join("stopped.gguf"), &|_| false),
        Err(QuantizeError::Stopped)
    ));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "the source and the F16 file");
}

#[test]
fn importance_goes_through_a_file_and_each_matrix_of_a_stack_has_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let (path, out) = (folder.path().join("i.imatrix"), folder.path().join("out.gguf"));
    let heavy = |column: usize| (0..256).map(move |i| if i == column { 1e6 } else { 1.0 });
    let sums = Sums { squares: heavy(3).chain(heavy(77)).collect(), counts: vec![4, 2] };
    let sums = [("blk.0.ffn_up_exps.weight".to_owned(), sums)].into();
    Gathered { sums, dataset: "text".to_owned(), chunks: 1, chunk_size: 8 }.write(&path).unwrap();
    let importance = Importance::open(&path).unwrap();
    assert_eq!(importance.of("blk.0.ffn_up_exps.weight").unwrap()[3], 250_000.0);
    let with = QuantizeOptions { importance: Some(importance.clone()), ..options("Q2_K") };
    let plan = Plan::new(source(folder.path(), false), with).unwrap();
    plan.write(&out, &|_| true).unwrap();
    let (found, exact) = (decoded(&out, "blk.0.ffn_up_exps.weight"), numbers(2 * 4 * 256));
    let off = |matrix: usize, column: usize| -> f32 {
        (0..4).map(|row| (matrix * 4 + row) * 256 + column).map(|i| (found[i] - exact[i]).abs()).sum()
    };
    assert!(off(0, 3) < 0.3 * off(1, 3).max(0.2) && off(1, 77) < 0.3 * off(0, 77).max(0.2));
    // Of another model: other names, or other columns.
    let mut other = GgufWriter::new();
    other.insert("general.architecture", "toy");
    let data = vec![0; 4 * 2 * 4 * 32].into();
    let (name, shape) = ("blk.0.ffn_up_exps.weight".to_owned(), vec![2, 4, 32]);
    other.add(Tensor { name, dtype: DType::F32, shape, data }).unwrap();
    let path = folder.path().join("other.gguf");
    other.write(&path).unwrap();
    let with = QuantizeOptions { importance: Some(importance), ..options("Q4_0") };
    let error = Plan::new(Input::open(&path).unwrap(), with).unwrap_err();
    assert!(error.to_string().contains("one for each of its 32 columns"), "{error}");
}
