//! What recipes make, and what is said of a file that does not have it.

use metallic_core::quant;

use super::*;

const QKV: Key = Key::new("attn_qkv", "qkv_proj");
const W1: Key = Key::new("ffn_gate_exps", "experts.{}.w1");

fn tensor(name: &str, shape: &[usize], numbers: &[f32], dtype: DType) -> Tensor {
    let mut data = vec![0; dtype.bytes_for(numbers.len()).unwrap()];
    quant::quantize(dtype, numbers, &mut data).unwrap();
    Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), data: data.into() }
}

fn counting(n: usize) -> Vec<f32> {
    (0..n).map(|i| i as f32).collect()
}

/// The weights that recipes give, and what is said at the end.
fn take(
    naming: Naming,
    tensors: &[Tensor],
    wanted: &[(Recipe, &[usize])],
) -> (Vec<Weight>, Result<(), String>) {
    let builder = GraphBuilder::new();
    let ledger = Ledger::new(naming, "m".to_owned(), tensors.iter());
    let source = ledger.source(&builder);
    let mut last = builder.tokens();
    for (recipe, shape) in wanted {
        let dims: Vec<Dim> = shape.iter().map(|n| Dim::Fixed(*n)).collect();
        last = source.weight(recipe.clone(), Shape::new(&dims).unwrap());
    }
    let said = ledger.finish().map_err(|error| error.to_string());
    // Where a weight is missing there is no graph.
    let weights = builder.finish(&[last]).map_or(Vec::new(), |graph| graph.weights().to_vec());
    (weights, said)
}

fn numbers(weight: &Weight) -> Vec<f32> {
    let mut out = vec![0.0; weight.ty.shape.elements(metallic_core::Sizes::default())];
    quant::dequantize(weight.ty.dtype, &weight.data, &mut out).unwrap();
    out
}

#[test]
fn rows_of_a_fused_matrix_are_windows_into_its_bytes_quantised_or_not() {
    for dtype in [DType::Q8_0, DType::F16] {
        let file = [tensor("attn_qkv.weight", &[6, 32], &counting(192), dtype)];
        let part = |rows: Range<usize>| QKV.weight().rows(rows);
        let (weights, said) = take(
            Naming::Gguf,
            &file,
            &[(part(0..4), &[4, 32]), (part(4..5), &[1, 32]), (part(5..6), &[1, 32])],
        );
        assert_eq!(said, Ok(()));
        let whole = file[0].data.as_ptr_range();
        for weight in &weights {
            assert!(whole.start <= weight.data.as_ptr() && weight.data.as_ptr_range().end <= whole.end);
            assert_eq!(weight.ty.dtype, dtype);
        }
        assert_eq!(weights[2].data.as_ptr_range().end, whole.end);
        assert_eq!(weights[1].name, "attn_qkv.weight[4..5]");
    }
}

#[test]
fn a_fused_tensor_is_read_when_all_its_rows_are() {
    let file = [tensor("attn_qkv.weight", &[6, 2], &counting(12), DType::F32)];
    let part = |rows: Range<usize>| QKV.weight().rows(rows);
    let (_, said) = take(Naming::Gguf, &file, &[(part(0..2), &[2, 2]), (part(3..6), &[3, 2])]);
    assert!(said.unwrap_err().contains("`attn_qkv.weight[2..3]` and 0 others are not part"));
    let (_, said) = take(Naming::Gguf, &file, &[(part(0..5), &[5, 2])]);
    assert!(said.unwrap_err().contains("`attn_qkv.weight[5..6]`"));
    let (_, said) = take(Naming::Gguf, &file, &[(part(4..7), &[3, 2])]);
    assert!(said.unwrap_err().contains("is F32 [6, 2], the model needs rows 4 to 7"));
}

#[test]
fn rows_are_taken_of_vectors_and_of_each_matrix_of_a_stack() {
    let file = [
        tensor("attn_qkv.bias", &[4], &counting(4), DType::F32),
        tensor("attn_qkv.weight", &[2, 2, 2], &counting(8), DType::F16),
    ];
    let wanted: &[(Recipe, &[usize])] = &[
        (QKV.bias().rows(0..1), &[1]),
        (QKV.bias().rows(1..4), &[3]),
        (QKV.weight().rows(0..1), &[2, 1, 2]),
        (QKV.weight().rows(1..2), &[2, 1, 2]),
    ];
    let (weights, said) = take(Naming::Gguf, &file, wanted);
    assert_eq!(said, Ok(()));
    assert_eq!(numbers(&weights[1]), [1.0, 2.0, 3.0]);
    assert_eq!(numbers(&weights[3]), [2.0, 3.0, 6.0, 7.0]);
}

#[test]
fn each_kind_of_file_has_its_own_way() {
    let conv1d = || Recipe::by_file(QKV.weight(), QKV.weight().transposed());
    let gguf = [tensor("attn_qkv.weight", &[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0], DType::BF16)];
    let hf = [tensor("qkv_proj.weight", &[2, 3], &counting(6), DType::BF16)];
    for (naming, file) in [(Naming::Gguf, &gguf), (Naming::HuggingFace, &hf)] {
        let wanted: &[(Recipe, &[usize])] = &[(conv1d().rows(0..1), &[1, 2]), (conv1d().rows(1..3), &[2, 2])];
        let (weights, said) = take(naming, file, wanted);
        assert_eq!(said, Ok(()));
        assert_eq!(numbers(&weights[0]), [0.0, 3.0]);
        assert_eq!(numbers(&weights[1]), [1.0, 4.0, 2.0, 5.0]);
        assert_eq!(weights[0].ty.dtype, DType::BF16);
    }
}

#[test]
fn a_name_of_several_spellings_is_the_one_the_file_has() {
    const LAYERS: Key = Key::new("blk", "model.layers|model.language_model.layers");
    let file = [tensor("model.language_model.layers.1.qkv_proj.weight", &[2], &[1.0, 2.0], DType::F32)];
    let ledger = Ledger::new(Naming::HuggingFace, "m".to_owned(), file.iter());
    let builder = GraphBuilder::new();
    let source = ledger.source(&builder);
    assert!(source.item(LAYERS, 1).has(QKV.weight()) && !source.item(LAYERS, 0).has(QKV.weight()));
    assert_eq!(source.item(LAYERS, 1).numbers(QKV.weight(), 2), Some(vec![1.0, 2.0]));
    assert!(ledger.finish().is_ok());
}

#[test]
fn norms_may_be_stored_less_one() {
    let file = [tensor("qkv_proj.weight", &[3], &[-0.5, 0.0, 1.0], DType::F16)];
    let (weights, said) = take(Naming::HuggingFace, &file, &[(QKV.weight().plus_one(), &[3])]);
    assert_eq!((numbers(&weights[0]), said), (vec![0.5, 1.0, 2.0], Ok(())));
}

#[test]
fn experts_are_stacked_where_the_file_has_them_one_by_one() {
    let stacked = [tensor("ffn_gate_exps.weight", &[2, 1, 32], &counting(64), DType::Q8_0)];
    let each: Vec<Tensor> = (0..2)
        .map(|i| {
            tensor(&format!("experts.{i}.w1.weight"), &[1, 32], &counting(64)[i * 32..][..32], DType::Q8_0)
        })
        .collect();
    let wanted: &[(Recipe, &[usize])] = &[(W1.weight().stacked(2), &[2, 1, 32])];
    let (whole, said) = take(Naming::Gguf, &stacked, wanted);
    assert_eq!(said, Ok(()));
    assert_eq!(whole[0].data.as_ptr(), stacked[0].data.as_ptr(), "no copy");
    let (made, said) = take(Naming::HuggingFace, &each, wanted);
    assert_eq!(said, Ok(()));
    assert_eq!(made[0].data[..], whole[0].data[..]);
    let (_, said) = take(Naming::HuggingFace, &each[..1], wanted);
    assert!(said.unwrap_err().contains("no tensor `experts.1.w1.weight`, the model needs it as [2, 1, 32]"));
    let odd = [each[0].clone(), tensor("experts.1.w1.weight", &[1, 32], &counting(32), DType::F16)];
    let (_, said) = take(Naming::HuggingFace, &odd, wanted);
    assert!(
        said.unwrap_err().contains("`experts.1.w1.weight` is F16 [1, 32], the model needs Q8_0 [1, 32] as")
    );
}
