//! Making tensors and reading them.

use std::sync::Arc;

use metallic_core::quant::quantize;
use metallic_core::tensor::{TensorMemory, TensorOp, philox};

use super::{DType, Element, Error, OpenDevice, Tensor, TensorError, View};

impl Tensor {
    /// Zeros, of any type but the quantised ones.
    pub fn zeros(device: &OpenDevice, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor, Error> {
        if matches!(dtype, DType::U32 | DType::I32) {
            let view = View::contiguous(dtype, shape.as_ref())?;
            return Tensor::from_bytes(device, dtype, shape, &vec![0; view.byte_range().end]);
        }
        Tensor::full(device, dtype, shape, 0.0)
    }

    /// Ones, of a float type.
    pub fn ones(device: &OpenDevice, dtype: DType, shape: impl AsRef<[usize]>) -> Result<Tensor, Error> {
        Tensor::full(device, dtype, shape, 1.0)
    }

    /// One number in every place, of a float type.
    pub fn full(
        device: &OpenDevice,
        dtype: DType,
        shape: impl AsRef<[usize]>,
        value: f32,
    ) -> Result<Tensor, Error> {
        let tensor = Tensor::empty(device, View::contiguous(dtype, shape.as_ref())?)?;
        device.run(&TensorOp::Fill(value), &[], &[tensor.operand()])?;
        Ok(tensor)
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
        Tensor::upload(device, view, &T::to_bytes(values))
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
        Tensor::upload(device, view, bytes)
    }

    /// A tensor that lies in memory which exists already, at any offset and strides. It shares the memory with whoever
    /// else uses it.
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
        let view = View::contiguous(dtype, shape)?;
        let values: Vec<f32> = (0..view.elements()).map(value).collect();
        let mut bytes = vec![0; view.byte_range().end];
        quantize(dtype, &values, &mut bytes).map_err(|_| Error::Element { found: dtype, asked: "f32" })?;
        Tensor::upload(device, view, &bytes)
    }

    fn upload(device: &OpenDevice, view: View, bytes: &[u8]) -> Result<Tensor, Error> {
        let tensor = Tensor::empty(device, view)?;
        tensor.memory.write(0, bytes)?;
        Ok(tensor)
    }

    /// All elements in row-major order. Floats of every width, and quantised types, are read as `f32`; integers as themselves.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, Error> {
        if !self.view.is_contiguous() {
            return self.contiguous()?.to_vec();
        }
        let range = self.view.byte_range();
        let mut bytes = vec![0; range.len()];
        self.memory.read(range.start, &mut bytes)?;
        T::from_bytes(self.dtype(), &bytes)
    }

    /// The number of a tensor that holds one.
    pub fn item<T: Element>(&self) -> Result<T, Error> {
        count(&self.view, 1)?;
        let values = self.to_vec()?;
        values.first().copied().ok_or(Error::Element { found: self.dtype(), asked: "a number" })
    }
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
