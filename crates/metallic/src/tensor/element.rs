//! The Rust types of elements.

use metallic_core::DType;
use metallic_core::quant::dequantize;

use super::Error;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
}

/// A Rust type that elements are written from and read as: `f32`, `u32` or `i32`.
pub trait Element: Copy + sealed::Sealed {
    /// The type of a tensor made of these.
    const DTYPE: DType;

    /// Appends little-endian bytes, one element after another.
    #[doc(hidden)]
    fn encode(values: &[Self], bytes: &mut Vec<u8>);

    /// Appends elements of a tensor of type `dtype` from their bytes.
    #[doc(hidden)]
    fn decode(dtype: DType, bytes: &[u8], values: &mut Vec<Self>) -> Result<(), Error>;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    fn encode(values: &[f32], bytes: &mut Vec<u8>) {
        bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    }

    fn decode(dtype: DType, bytes: &[u8], values: &mut Vec<f32>) -> Result<(), Error> {
        let from = values.len();
        values.resize(from + bytes.len() / dtype.block_bytes() * dtype.block_len(), 0.0);
        dequantize(dtype, bytes, &mut values[from..])
            .map_err(|_| Error::Element { found: dtype, asked: "f32" })
    }
}

macro_rules! integer {
    ($type:ident, $dtype:expr) => {
        impl Element for $type {
            const DTYPE: DType = $dtype;

            fn encode(values: &[$type], bytes: &mut Vec<u8>) {
                bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
            }

            fn decode(dtype: DType, bytes: &[u8], values: &mut Vec<$type>) -> Result<(), Error> {
                if dtype != $dtype {
                    return Err(Error::Element { found: dtype, asked: stringify!($type) });
                }
                values.extend(bytes.as_chunks().0.iter().map(|word| $type::from_le_bytes(*word)));
                Ok(())
            }
        }
    };
}

integer!(u32, DType::U32);
integer!(i32, DType::I32);
