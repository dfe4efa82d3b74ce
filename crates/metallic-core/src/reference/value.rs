//! Numbers of a tensor, as the reference works with them.

use crate::quant::{dequantize, quantize};
use crate::{BackendError, DType, Tapped};

/// The elements of a tensor in row-major order; floats hold what their type can.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Floats(Vec<f32>),
    Words(Vec<u32>),
}

impl Value {
    pub(super) fn floats(&self) -> &[f32] {
        if let Value::Floats(values) = self { values } else { &[] }
    }

    pub(super) fn words(&self) -> &[u32] {
        if let Value::Words(values) = self { values } else { &[] }
    }

    pub(super) fn tapped(self) -> Tapped {
        match self {
            Value::Floats(values) => Tapped::Floats(values),
            Value::Words(words) => Tapped::Words(words),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        4 * (self.floats().len() + self.words().len())
    }

    /// What stands in these bytes.
    pub(super) fn load(dtype: DType, bytes: &[u8]) -> Result<Value, BackendError> {
        if matches!(dtype, DType::U32 | DType::I32) {
            return Ok(Value::Words(bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect()));
        }
        let mut numbers = vec![0.0; bytes.len() / dtype.block_bytes() * dtype.block_len()];
        dequantize(dtype, bytes, &mut numbers).map_err(failed)?;
        Ok(Value::Floats(numbers))
    }

    /// The bytes that hold it as `dtype`.
    pub(super) fn store(&self, dtype: DType) -> Result<Vec<u8>, BackendError> {
        match self {
            Value::Words(words) => Ok(words.iter().flat_map(|w| w.to_le_bytes()).collect()),
            Value::Floats(values) => {
                let len = dtype
                    .bytes_for(values.len())
                    .ok_or_else(|| failed(format!("part of a block of {dtype}")))?;
                let mut bytes = vec![0; len];
                quantize(dtype, values, &mut bytes).map_err(failed)?;
                Ok(bytes)
            }
        }
    }

    /// What storing it as `dtype` makes of it.
    pub(super) fn rounded(self, dtype: DType) -> Result<Value, BackendError> {
        match self {
            Value::Floats(_) if dtype != DType::F32 => Value::load(dtype, &self.store(dtype)?),
            exact => Ok(exact),
        }
    }
}

impl From<Tapped> for Value {
    fn from(tapped: Tapped) -> Value {
        match tapped {
            Tapped::Floats(values) => Value::Floats(values),
            Tapped::Words(words) => Value::Words(words),
        }
    }
}

pub(super) fn failed(error: impl std::fmt::Display) -> BackendError {
    BackendError::Failed { device: super::DEVICE, reason: error.to_string() }
}
