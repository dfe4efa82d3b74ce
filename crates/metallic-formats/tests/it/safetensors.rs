//! safetensors: single files, sharded models, and the rules of the format.

use std::path::Path;

use metallic_core::{Bytes, DType};
use metallic_formats::SafeTensors;

/// A file from its header text and data.
fn file(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

fn parse(header: &str, data: &[u8]) -> Result<SafeTensors, String> {
    SafeTensors::parse("m.safetensors", file(header, data).into()).map_err(|error| error.to_string())
}

const TWO: &str = r#"{"__metadata__":{"format":"pt"},
    "b":{"dtype":"F32","shape":[1,2],"data_offsets":[2,10]},
    "a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}"#;

#[test]
fn tensors_come_by_place_with_their_bytes() {
    let data: Vec<u8> = (0..10).collect();
    let model = parse(TWO, &data).unwrap();
    let names: Vec<_> = model.tensors().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    let b = model.require("b").unwrap();
    assert_eq!((b.dtype, b.shape.as_slice(), &b.data[..]), (DType::F32, &[1, 2][..], &data[2..]));
    assert_eq!(model.require("a").unwrap().elements(), 1);
    assert_eq!(model.metadata().str("format").unwrap(), "pt");
    let error = model.require("c").unwrap_err().to_string();
    assert_eq!(error, "`m.safetensors`: tensor `c` is missing");
}

#[test]
fn tensors_may_begin_at_odd_bytes() {
    let spaces = if TWO.len().is_multiple_of(2) { " " } else { "  " };
    let bytes = Bytes::from(file(&format!("{TWO}{spaces}"), &[7; 10]));
    let model = SafeTensors::parse("odd.safetensors", bytes.clone()).unwrap();
    let b = model.require("b").unwrap();
    assert_eq!((b.data.as_ptr().addr() - bytes.as_ptr().addr()) % 2, 1);
    assert_eq!(b.data[..], [7; 8]);
}

#[test]
fn an_empty_tensor_is_allowed_and_hides_no_overflow() {
    let model = parse(r#"{"a":{"dtype":"F32","shape":[3,0],"data_offsets":[0,0]}}"#, &[]).unwrap();
    assert_eq!(model.require("a").unwrap().elements(), 0);
    let shape = r#"{"a":{"dtype":"F32","shape":[9223372036854775808,4,0],"data_offsets":[0,0]}}"#;
    let error = parse(shape, &[]).unwrap_err();
    assert!(error.contains("tensor `a`: the shape is [9223372036854775808, 4, 0]"), "{error}");
}

#[test]
fn headers_that_break_the_rules_are_refused() {
    let entry = r#"{"dtype":"F32","shape":[1],"data_offsets":[0,4]}"#;
    for (header, part) in [
        (format!(r#"{{"a":{entry},"a":{entry}}}"#), "where the tensor before it ends"),
        (format!(r#"{{"a":{entry}"#), "EOF while parsing"),
        (format!("[{entry}]"), "expected an object with an entry for each tensor"),
        (r#"{"a":7}"#.into(), "`a`: invalid type: integer `7`"),
        (r#"{"a":{"dtype":"F32","dtype":"F16"}}"#.into(), "`a`: duplicate field `dtype`"),
        (r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}}"#.into(), "tensor `a`: the dtype is I64"),
        (r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#.into(), "`a`: "),
        (r#"{"a":{"dtype":"F32","shape":[0.5],"data_offsets":[0,4]}}"#.into(), "`a`: invalid type: floating"),
        (r#"{"__metadata__":{"format":1}}"#.into(), "`__metadata__`: invalid type: integer `1`"),
        (
            r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#.into(),
            "the begin of the data is 4, needed 0",
        ),
    ] {
        let error = parse(&header, &[0; 8]).unwrap_err();
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    let twice = r#"{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    let error = parse(twice, &[]).unwrap_err();
    assert!(error.contains("tensor `a` is there twice"), "{error}");
}

fn shard(folder: &Path, name: &str, tensor: &str, byte: u8) {
    let header = format!(r#"{{"{tensor}":{{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}}}"#);
    std::fs::write(folder.join(name), file(&header, &[byte; 4])).unwrap();
}

fn index(folder: &Path, weights: &str) {
    let text = format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{weights}}}"#);
    std::fs::write(folder.join("model.safetensors.index.json"), text).unwrap();
}

#[test]
fn shards_are_read_through_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    shard(folder, "m1.safetensors", "x", 1);
    shard(folder, "m2.safetensors", "y", 2);
    index(folder, r#"{"x":"m1.safetensors","y":"m2.safetensors"}"#);
    for path in [folder, &folder.join("model.safetensors.index.json")] {
        let model = SafeTensors::open(path).unwrap();
        assert_eq!(model.require("x").unwrap().data[..], [1; 4]);
        assert_eq!(model.require("y").unwrap().data[..], [2; 4]);
    }
}

#[test]
fn a_broken_index_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    shard(folder, "m1.safetensors", "x", 1);
    shard(folder, "m2.safetensors", "x", 2);
    for (weights, part) in [
        (r#"{"x":"m1.safetensors","y":"m2.safetensors"}"#, "m2.safetensors`: tensor `x` is there twice"),
        (r#"{"x":"m1.safetensors","y":"m1.safetensors"}"#, "tensor `y`: the tensor is absent"),
        (r#"{"x":"m3.safetensors"}"#, "m3.safetensors`: cannot open: "),
        (r#"{"x":"/m1.safetensors"}"#, "a file name is `/m1.safetensors`"),
        (r#"{"x":".."}"#, "a file name is `..`"),
        (r#"{"x":"a\\b"}"#, "a file name is `a\\\\b`"),
        (r#"{"x":""}"#, "a file name is ``"),
        (r#"{"x":5}"#, "invalid type: integer `5`"),
        ("[]", "the index is not as needed"),
    ] {
        index(folder, weights);
        let error = SafeTensors::open(folder).unwrap_err().to_string();
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    std::fs::write(folder.join("model.safetensors.index.json"), "{}").unwrap();
    let error = SafeTensors::open(folder).unwrap_err().to_string();
    assert!(error.contains("missing field `weight_map`"), "{error}");
}
