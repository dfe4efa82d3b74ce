//! GGUF files: what is written is read back, in both versions, and appears whole or not at all.

use metallic_core::{Bytes, DType};
use metallic_formats::{
    Array, FormatError, Gguf, GgufStream, GgufWriter, Metadata, Tensor, TensorSpec, Value,
};
use proptest::prelude::*;

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> Tensor {
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let len = dtype.bytes_for(shape[shape.len() - 1]).unwrap() * rows;
    let data: Vec<u8> = (0..len).map(|i| (i * 31 + name.len()) as u8).collect();
    Tensor { name: name.into(), dtype, shape: shape.into(), data: data.into() }
}

fn sample() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.insert("general.architecture", "llama").insert("llama.block_count", 2_u32);
    writer.add(tensor("a", DType::F16, &[3, 5])).unwrap();
    writer.add(tensor("b", DType::Q4K, &[2, 512])).unwrap();
    writer
}

fn values() -> impl Strategy<Value = Value> {
    let text = "\\PC{0,12}";
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        text.prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
        prop_oneof![
            any::<Vec<u8>>().prop_map(Array::U8),
            any::<Vec<i8>>().prop_map(Array::I8),
            any::<Vec<u16>>().prop_map(Array::U16),
            any::<Vec<i16>>().prop_map(Array::I16),
            any::<Vec<u32>>().prop_map(Array::U32),
            any::<Vec<i32>>().prop_map(Array::I32),
            any::<Vec<f32>>().prop_map(Array::F32),
            any::<Vec<bool>>().prop_map(Array::Bool),
            prop::collection::vec(text, 0..20).prop_map(Array::Strings),
            any::<Vec<u64>>().prop_map(Array::U64),
            any::<Vec<i64>>().prop_map(Array::I64),
            any::<Vec<f64>>().prop_map(Array::F64),
        ]
        .prop_map(Value::Array),
    ]
}

fn shapes() -> impl Strategy<Value = (DType, Vec<usize>)> {
    let dtypes: Vec<_> = DType::all().filter(|dtype| dtype.ggml_id().is_some()).collect();
    (prop::sample::select(dtypes), prop::collection::vec(1_usize..5, 1..5)).prop_map(|(dtype, mut shape)| {
        let last = shape.len() - 1;
        shape[last] *= dtype.block_len();
        (dtype, shape)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn what_is_written_is_read_back(
        keys in prop::collection::btree_map("[a-z.]{1,20}", values(), 0..8),
        tensors in prop::collection::btree_map("\\PC{1,12}", shapes(), 0..6),
        alignment in prop::sample::select(vec![8_u32, 32, 64, 4096]),
    ) {
        let mut writer = GgufWriter::new();
        writer.insert("general.alignment", alignment);
        for (key, value) in &keys {
            writer.insert(key, value.clone());
        }
        for (name, (dtype, shape)) in &tensors {
            writer.add(tensor(name, *dtype, shape)).unwrap();
        }
        let bytes = Bytes::from(writer.to_vec().unwrap());
        let file = Gguf::parse("round.gguf", bytes.clone()).unwrap();

        prop_assert_eq!(file.version(), 3);
        prop_assert_eq!(file.alignment(), alignment as usize);
        prop_assert_eq!(file.metadata.len(), keys.len() + 1);
        for (key, value) in &keys {
            prop_assert_eq!(file.metadata.get(key), Some(value));
        }
        prop_assert_eq!(file.tensors().count(), tensors.len());
        for (name, (dtype, shape)) in &tensors {
            let (found, expected) = (file.require(name).unwrap(), tensor(name, *dtype, shape));
            prop_assert_eq!((&found.dtype, &found.shape), (dtype, shape));
            prop_assert_eq!(&found.data[..], &expected.data[..]);
            let place = found.data.as_ptr().addr() - bytes.as_ptr().addr();
            prop_assert!(place.is_multiple_of(alignment as usize));
        }
    }
}

#[test]
fn a_written_file_opens_and_leaves_nothing_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    sample().write(&path).unwrap();
    sample().write(&path).unwrap(); // over an older one
    let file = Gguf::open(&path).unwrap();
    assert_eq!(file.metadata.str("general.architecture").unwrap(), "llama");
    assert_eq!(file.require("b").unwrap().elements(), 1024);
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["m.gguf"]);
}

#[test]
fn a_failed_write_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::create_dir(&path).unwrap(); // a rename onto a folder fails after everything was written
    let error = sample().write(&path).unwrap_err();
    assert!(matches!(error, FormatError::Io { action: "write", .. }), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);

    let error = sample().write(&folder.path().join("no/such/folder.gguf")).unwrap_err();
    assert!(error.to_string().contains("folder.gguf`: cannot write: "), "{error}");
}

#[test]
fn a_stream_is_a_file_when_all_that_was_announced_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.gguf");
    let parts = [tensor("a", DType::F16, &[3, 5]), tensor("b", DType::Q4K, &[2, 512])];
    let begin = || {
        let specs = parts.iter().map(|t| TensorSpec { name: &t.name, dtype: t.dtype, shape: &t.shape });
        GgufStream::create(&path, &Metadata::empty("s"), specs).unwrap()
    };
    let mut stream = begin();
    assert!(stream.write(&[0; 7]).unwrap_err().to_string().contains("announced with 30"));
    assert!(begin().finish().unwrap_err().to_string().contains("2 of its tensors"));
    drop(stream);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let mut stream = begin();
    for part in &parts {
        stream.write(&part.data).unwrap();
    }
    stream.finish().unwrap();
    let file = Gguf::open(&path).unwrap();
    for part in &parts {
        assert_eq!(file.require(&part.name).unwrap().data[..], part.data[..]);
    }
}

#[test]
fn data_that_is_left_out_reads_as_zeros_and_what_follows_stands_in_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("holes.gguf");
    let parts =
        [tensor("a", DType::F16, &[3, 5]), tensor("b", DType::Q4K, &[2, 512]), tensor("c", DType::F32, &[7])];
    let specs = parts.iter().map(|t| TensorSpec { name: &t.name, dtype: t.dtype, shape: &t.shape });
    let mut stream = GgufStream::create(&path, &Metadata::empty("s"), specs).unwrap();
    stream.skip().unwrap();
    stream.write(&parts[1].data).unwrap();
    stream.skip().unwrap();
    assert!(stream.skip().unwrap_err().to_string().contains("there already"));
    stream.finish().unwrap();
    let file = Gguf::open(&path).unwrap();
    assert_eq!(file.require("a").unwrap().data[..], [0; 30]);
    assert_eq!(file.require("b").unwrap().data[..], parts[1].data[..]);
    assert_eq!(file.require("c").unwrap().data[..], [0; 28]);
}

#[test]
fn tensors_outlive_the_file_they_came_from() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    sample().write(&path).unwrap();
    let kept = Gguf::open(&path).unwrap().require("a").unwrap().clone();
    assert_eq!(kept.data[..], tensor("a", DType::F16, &[3, 5]).data[..]);
}

#[test]
fn version_2_is_read_and_others_are_refused_by_name() {
    let bytes = sample().to_vec().unwrap();
    let with_version = |version: [u8; 4]| {
        let mut bytes = bytes.clone();
        bytes[4..8].copy_from_slice(&version);
        Gguf::parse("v.gguf", bytes.into())
    };
    assert_eq!(with_version([2, 0, 0, 0]).unwrap().version(), 2);
    for (version, part) in [
        ([1, 0, 0, 0], "is 1, an early form"),
        ([4, 0, 0, 0], "is 4, needed 2 or 3"),
        ([0, 0, 0, 3], "is 3, big-endian, needed 2 or 3, little-endian"),
    ] {
        let error = with_version(version).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = sample().to_vec().unwrap();
    // The last tensor's padding is no part of it.
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    for len in 0..=end {
        assert!(Gguf::parse("cut.gguf", bytes[..len].to_vec().into()).is_err(), "{len} of {}", bytes.len());
    }
}

#[test]
fn the_writer_refuses_what_the_reader_would() {
    let mut writer = sample();
    let wrong = |name: &str, dtype, shape: &[usize], len| Tensor {
        name: name.into(),
        dtype,
        shape: shape.into(),
        data: vec![0; len].into(),
    };
    for (tensor, part) in [
        (wrong("", DType::F32, &[1], 4), "the name is empty"),
        (wrong("a", DType::F32, &[1], 4), "tensor `a` is there twice"),
        (wrong("u", DType::U32, &[1], 4), "the dtype is U32"),
        (wrong("z", DType::F32, &[2, 0], 0), "the shape is [2, 0]"),
        (wrong("r", DType::F32, &[1, 1, 1, 1, 1], 4), "needed 1 to 4 axes"),
        (wrong("s", DType::F32, &[2, 3], 23), "the data is 23 bytes, needed 24 bytes"),
        (wrong("q", DType::Q8_0, &[2, 16], 34), "the shape is [2, 16], needed rows in blocks of 32"),
        (wrong("o", DType::F32, &[usize::MAX, 2], 8), "that can be addressed"),
    ] {
        let error = writer.add(tensor).unwrap_err().to_string();
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
    writer.insert("general.alignment", 48_u32);
    let error = writer.to_vec().unwrap_err().to_string();
    assert!(error.contains("`general.alignment` is u32 48, needed a power of two"), "{error}");
}

/// Part `number` of `count` of a model, with one tensor of this name.
fn part(folder: &std::path::Path, number: u16, count: u16, name: &str) {
    let mut writer = GgufWriter::new();
    writer.insert("general.architecture", "llama");
    writer.insert("split.count", count).insert("split.no", number);
    writer.add(tensor(name, DType::F16, &[2, 3])).unwrap();
    writer.write(&folder.join(format!("m-{:05}-of-{count:05}.gguf", number + 1))).unwrap();
}

#[test]
fn the_files_of_a_split_model_are_one() {
    let folder = tempfile::tempdir().unwrap();
    for (number, name) in [(0, "a"), (1, "b"), (2, "c")] {
        part(folder.path(), number, 3, name);
    }
    let first = folder.path().join("m-00001-of-00003.gguf");
    let names = |file: &Gguf| file.tensors().map(|t| t.name.clone()).collect::<Vec<_>>().concat();
    let file = Gguf::open(&first).unwrap();
    assert_eq!(names(&file), "abc");
    assert_eq!(file.require("c").unwrap().shape, [2, 3]);
    let complain = |path: &std::path::Path| Gguf::open(path).unwrap_err().to_string();
    let error = complain(&folder.path().join("m-00002-of-00003.gguf"));
    assert!(error.contains("file 2 of 3") && error.contains("the first one"), "{error}");
    part(folder.path(), 2, 3, "a");
    assert!(complain(&first).contains("`a` is there twice"), "{}", complain(&first));
    std::fs::remove_file(folder.path().join("m-00002-of-00003.gguf")).unwrap();
    assert!(complain(&first).contains("m-00002-of-00003.gguf"), "{}", complain(&first));
    std::fs::rename(&first, folder.path().join("model.gguf")).unwrap();
    let error = complain(&folder.path().join("model.gguf"));
    assert!(error.contains("ends with `-00001-of-00003.gguf`"), "{error}");
}
