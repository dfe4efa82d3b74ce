//! Reads any bytes as a safetensors file; every tensor accepted must have the bytes its shape needs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use metallic_formats::SafeTensors;

fuzz_target!(|bytes: &[u8]| {
    match SafeTensors::parse("fuzz.safetensors", bytes.to_vec().into()) {
        Ok(file) => {
            for tensor in file.tensors() {
                assert_eq!(tensor.dtype.bytes_for(tensor.elements()), Some(tensor.data.len()));
                std::hint::black_box(tensor.data.iter().fold(0_u8, |sum, byte| sum ^ byte));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n')),
    }
});
