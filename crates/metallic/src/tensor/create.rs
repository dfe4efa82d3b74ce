//! Making tensors and reading them.

use std::ops::Range;
use std::sync::Arc;

use metallic_core::BackendError;
use metallic_core::quant::quantize;
use metallic_core::sample::philox;
use metallic_core::tensor::TensorMemory;

use super::{DType, Element, Error, OpenDevice, Tensor, TensorError, View};

/// Elements that are made on the host at a time: whole blocks of every type.
const PIECE: usize = 1 << 16;

impl Tensor {
    /// Zeros, of any type.
    pub fn zeros(device: &OpenDevice, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor, Error> {
        let tensor = Tensor::empty(device, View::contiguous(dtype, shape.as_ref())?)?;
        // No bits are a zero in every type.
        tensor.write_elements(|elements, bytes| {
            bytes.resize(elements.len() / dtype.block_len() * dtype.block_bytes(), 0);
            Ok(())
        })
    }

    /// Ones, of a type of numbers that can be made.
    pub fn ones(device: &OpenDevice, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor, Error> {
        Tensor::full(device, dtype, shape, 1.0)
    }

    /// One number in every place, of a type of numbers that can be made: floats, and quantised ones but for the K types.
    pub fn full(
        device: &OpenDevice,
        dtype: DType,
        shape: impl AsRef<[usize]>,
        value: f32,
    ) -> Result<Tensor, Error> {
        Tensor::generate(device, dtype, shape.as_ref(), |_| value)
    }

    /// Zeros of this tensor's type, shape and device.
    pub fn zeros_like(&self) -> Result<Tensor, Error> {
        Tensor::zeros(&self.device, self.dtype(), self.shape())
    }

    /// Ones of this tensor's type, shape and device.
    pub fn ones_like(&self) -> Result<Tensor, Error> {
        self.full_like(1.0)
    }

    /// One number in every place, of this tensor's type, shape and device.
    pub fn full_like(&self, value: f32) -> Result<Tensor, Error> {
        Tensor::full(&self.device, self.dtype(), self.shape(), value)
    }

    /// Numbers in row-major order.
    ///
    /// ```
    /// # use metallic::{Device, tensor::{DType, OpenDevice, Tensor}};
    /// # let device = OpenDevice::open(Device::Cpu)?;
    /// let ids = Tensor::from_slice(&device, &[7u32, 8, 9], [3, 1])?;
    /// assert_eq!((ids.dtype(), ids.shape()), (DType::U32, &[3, 1][..]));
    /// let error = Tensor::from_slice(&device, &[1.0f32; 5], [2, 3]).unwrap_err();
    /// assert_eq!(error.to_string(), "5 numbers were given for [2, 3], which holds 6");
    /// # Ok::<(), metallic::tensor::Error>(())
    /// ```
    pub fn from_slice<T: Element>(
        device: &OpenDevice,
        values: &[T],
        shape: impl AsRef<[usize]>,
    ) -> Result<Tensor, Error> {
        let view = View::contiguous(T::DTYPE, shape.as_ref())?;
        count(&view, values.len())?;
        let tensor = Tensor::empty(device, view)?;
        tensor.write_elements(|elements, bytes| {
            T::encode(&values[elements], bytes);
            Ok(())
        })
    }

    /// Elements of any type, quantised ones too, from their bytes: little-endian, row-major.
    pub fn from_bytes(
        device: &OpenDevice,
        dtype: DType,
        shape: impl AsRef<[usize]>,
        bytes: &[u8],
    ) -> Result<Tensor, Error> {
        let view = View::contiguous(dtype, shape.as_ref())?;
        count(&view, bytes.len() / dtype.block_bytes() * dtype.block_len())?;
        if view.byte_range().len() != bytes.len() {
            let (op, found) = ("from_bytes", format!("{} bytes", bytes.len()));
            let needed = format!("{} bytes for {view}", view.byte_range().len());
            return Err(TensorError::Operand { op, operand: "the data".to_owned(), found, needed }.into());
        }
        let tensor = Tensor::empty(device, view)?;
        tensor.memory.write(0, bytes)?;
        Ok(tensor)
    }

    /// A tensor that lies in memory of this device which exists already, at any offset and strides. It shares the memory
    /// with whoever else uses it.
    ///
    /// ```
    /// # use metallic::{Device, tensor::{DType, OpenDevice, Tensor, View}};
    /// # let device = OpenDevice::open(Device::Cpu)?;
    /// let memory = device.allocate(64)?;
    /// let second_row = View::strided(DType::F32, 4, &[4], &[1])?;
    /// let row = Tensor::from_region(&device, memory.clone(), second_row)?;
    /// row.copy_from(&Tensor::ones(&device, DType::F32, [4])?)?;
    /// let all = Tensor::from_region(&device, memory, View::contiguous(DType::F32, &[4, 4])?)?;
    /// assert_eq!(all.select(0, 1)?.to_vec::<f32>()?, [1.0; 4]);
    /// # Ok::<(), metallic::tensor::Error>(())
    /// ```
    pub fn from_region(
        device: &OpenDevice,
        memory: Arc<dyn TensorMemory>,
        view: View,
    ) -> Result<Tensor, Error> {
        device.own(memory.as_ref())?;
        let (needed, found) = (view.byte_range().end, memory.len());
        if needed > found {
            let (op, operand) = ("from_region", view.to_string());
            return Err(TensorError::Bounds { op, operand, needed, found }.into());
        }
        Ok(Tensor { device: device.clone(), memory, view })
    }

    /// Random numbers between 0 and 1, both excluded. The same seed gives the same numbers on every device.
    pub fn rand(
        device: &OpenDevice,
        dtype: DType,
        shape: impl AsRef<[usize]>,
        seed: u64,
    ) -> Result<Tensor, Error> {
        Tensor::generate(device, dtype, shape.as_ref(), |i| unit(random_words(i, seed)[0]) as f32)
    }

    /// Random numbers of the normal distribution with mean 0 and deviation 1. The same seed gives the same numbers on
    /// every device.
    pub fn randn(
        device: &OpenDevice,
        dtype: DType,
        shape: impl AsRef<[usize]>,
        seed: u64,
    ) -> Result<Tensor, Error> {
        Tensor::generate(device, dtype, shape.as_ref(), |i| {
            // Box and Muller: a radius and an angle.
            let [a, b, ..] = random_words(i, seed);
            let angle = 2.0 * std::f64::consts::PI * unit(b);
            ((-2.0 * unit(a).ln()).sqrt() * angle.cos()) as f32
        })
    }

    fn generate(
        device: &OpenDevice,
        dtype: DType,
        shape: &[usize],
        value: impl Fn(usize) -> f32,
    ) -> Result<Tensor, Error> {
        let encode = |values: &[f32], bytes: &mut [u8]| {
            quantize(dtype, values, bytes).map_err(|_| Error::Element { found: dtype, asked: "f32" })
        };
        let view = View::contiguous(dtype, shape)?;
        // Also where there is no number to encode.
        encode(&[], &mut [])?;
        let tensor = Tensor::empty(device, view)?;
        let mut values = Vec::new();
        tensor.write_elements(|elements, bytes| {
            values.clear();
            values.extend(elements.map(&value));
            bytes.resize(values.len() / dtype.block_len() * dtype.block_bytes(), 0);
            encode(&values, bytes)
        })
    }

    /// Fills a tensor that was just made, a piece at a time: the host holds no second copy of it. `encode` appends the
    /// bytes of a range of elements.
    fn write_elements(
        self,
        mut encode: impl FnMut(Range<usize>, &mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<Tensor, Error> {
        let elements = self.elements();
        let (mut bytes, mut at) = (Vec::new(), 0);
        for start in (0..elements).step_by(PIECE) {
            bytes.clear();
            encode(start..elements.min(start + PIECE), &mut bytes)?;
            self.memory.write(at, &bytes)?;
            at += bytes.len();
        }
        Ok(self)
    }

    /// All elements in row-major order. Floats of every width, and quantised types, are read as `f32`; integers as themselves.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        if !self.view.is_contiguous() {
            return self.contiguous()?.to_vec();
        }
        let range = self.view.byte_range();
        let mut values = Vec::new();
        T::decode(self.dtype(), &[], &mut values)?;
        let mut bytes = Vec::new();
        reserve(&mut bytes, range.len())?;
        reserve(&mut values, self.elements())?;
        // In one piece: nobody writes between two halves of it.
        bytes.resize(range.len(), 0);
        self.memory.read(range.start, &mut bytes)?;
        T::decode(self.dtype(), &bytes, &mut values)?;
        Ok(values)
    }

    /// The number of a tensor that holds one.
    pub fn item<T: Element>(&self) -> Result<T, Error> {
        count(&self.view, 1)?;
        let values = self.to_vec()?;
        values.first().copied().ok_or(Error::Element { found: self.dtype(), asked: "a number" })
    }
}

/// Room for elements on the host.
fn reserve<T>(values: &mut Vec<T>, count: usize) -> Result<(), BackendError> {
    let needed = count.saturating_mul(size_of::<T>());
    let full = BackendError::OutOfMemory { device: "host", what: "the numbers of a tensor", needed };
    values.try_reserve_exact(count).map_err(|_| full)
}

fn count(view: &View, found: usize) -> Result<(), TensorError> {
    if view.elements() == found {
        return Ok(());
    }
    Err(TensorError::Count { found, shape: format!("{:?}", view.shape()), needed: view.elements() })
}

/// Random bits of element `index`.
fn random_words(index: usize, seed: u64) -> [u32; 4] {
    let index = index as u64;
    philox([index as u32, (index >> 32) as u32, 0, 0], [seed as u32, (seed >> 32) as u32])
}

/// Strictly between 0 and 1.
fn unit(bits: u32) -> f64 {
    // As an f32 the last few would round to 1.
    ((f64::from(bits) + 0.5) / 4_294_967_296.0).min(1.0 - 1.0 / 16_777_216.0)
}
