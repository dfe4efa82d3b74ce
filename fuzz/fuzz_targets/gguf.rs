//! Reads any bytes as a GGUF file, and writes what was accepted back: the copy must read the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metallic_formats::{Gguf, GgufWriter};

fuzz_target!(|bytes: &[u8]| {
    let file = match Gguf::parse("fuzz.gguf", bytes.to_vec().into()) {
        Ok(file) => file,
        Err(error) => {
            assert!(!error.to_string().contains('\n'));
            return;
        }
    };
    let mut writer = GgufWriter::with_metadata(file.metadata.clone());
    for tensor in file.tensors() {
        writer.add(tensor.clone()).expect("what was read can be written");
    }
    let copy = writer.to_vec().expect("what was read can be written");
    let copy = Gguf::parse("copy.gguf", copy.into()).expect("what was written can be read");
    assert_eq!(copy.metadata.len(), file.metadata.len());
    for (tensor, copied) in file.tensors().zip(copy.tensors()) {
        assert_eq!((&tensor.name, tensor.dtype, &tensor.shape), (&copied.name, copied.dtype, &copied.shape));
        assert_eq!(tensor.data[..], copied.data[..]);
    }
});
