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

    /// Little-endian bytes, one element after another.
    #[doc(hidden)]
    fn to_bytes(values: &[Self]) -> Vec<u8>;

    /// Elements of a tensor of type `dtype` from its bytes.
    #[doc(hidden)]
    fn from_bytes(dtype: DType, bytes: &[u8]) -> Result<Vec<Self>, Error>;
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;

    fn to_bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    fn from_bytes(dtype: DType, bytes: &[u8]) -> Result<Vec<f32>, Error> {
        let mut out = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
        dequantize(dtype, bytes, &mut out).map_err(|_| Error::Element { found: dtype, asked: "f32" })?;
        Ok(out)
    }
}

macro_rules! integer {
    ($type:ident, $dtype:expr) => {
        impl Element for $type {
            const DTYPE: DType = $dtype;

            fn to_bytes(values: &[$type]) -> Vec<u8> {
                values.iter().flat_map(|x| x.to_le_bytes()).collect()
            }

            fn from_bytes(dtype: DType, bytes: &[u8]) -> Result<Vec<$type>, Error> {
                if dtype != $dtype {
                    return Err(Error::Element { found: dtype, asked: stringify!($type) });
                }
                Ok(bytes.as_chunks().0.iter().map(|word| $type::from_le_bytes(*word)).collect())
            }
        }
    };
}

integer!(u32, DType::U32);
integer!(i32, DType::I32);
