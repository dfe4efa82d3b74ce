//! Compiling and running the kernels of these tests.

use softmetal::{Compiler, Device, Library, Source};

use crate::front::needed;

/// Compiles a source, where there is a clang.
pub(crate) fn compile(name: &str, text: &str) -> Option<Library> {
    let compiler = needed(Compiler::new())?;
    Some(
        compiler
            .compile(&Source::new(format!("{name}.metal"), text))
            .unwrap_or_else(|error| panic!("{name}: {error}")),
    )
}

/// Runs `threads` threads of a kernel over inputs at buffers 0.., and gives the outputs that follow them.
pub(crate) fn run(
    library: &Library,
    kernel: &str,
    threads: u32,
    inputs: &[Vec<u8>],
    outputs: &[usize],
) -> Vec<Vec<u8>> {
    run_in_groups(library, kernel, (threads, threads.min(64)), inputs, outputs)
}

/// As [`run`], with threads and threads per threadgroup.
pub(crate) fn run_in_groups(
    library: &Library,
    kernel: &str,
    (threads, group): (u32, u32),
    inputs: &[Vec<u8>],
    outputs: &[usize],
) -> Vec<Vec<u8>> {
    let device = Device::new();
    let mut results: Vec<Vec<u8>> = outputs.iter().map(|bytes| vec![0xa5; *bytes]).collect();
    let mut dispatch = device.dispatch(library, kernel).unwrap().threads([threads, 1, 1], [group, 1, 1]);
    for (index, input) in inputs.iter().enumerate() {
        dispatch = dispatch.buffer(index as u32, input);
    }
    for (index, result) in results.iter_mut().enumerate() {
        dispatch = dispatch.buffer_mut((inputs.len() + index) as u32, result);
    }
    let outcome = dispatch.run().unwrap();
    assert!(outcome.is_clean(), "{kernel}: {:?}", outcome.reports);
    results
}

/// Little-endian bytes of numbers, and back.
pub(crate) trait Bytes: Sized + Copy {
    const SIZE: usize;
    fn append(self, out: &mut Vec<u8>);
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! bytes {
    ($($t:ty),*) => {$(
        impl Bytes for $t {
            const SIZE: usize = size_of::<$t>();
            fn append(self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}
bytes!(u8, i8, u16, i16, u32, i32, u64, i64, f32);

pub(crate) fn bytes<T: Bytes>(values: &[T]) -> Vec<u8> {
    let mut out = Vec::new();
    for value in values {
        value.append(&mut out);
    }
    out
}

pub(crate) fn numbers<T: Bytes>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(T::SIZE).map(T::read).collect()
}

/// xorshift: the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f32 {
        (low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64) as f32
    }
}

/// A binary floating-point format: bits of fraction, of exponent.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    pub(crate) fraction: u32,
    pub(crate) exponent: u32,
}

pub(crate) const HALF: Format = Format { fraction: 10, exponent: 5 };
pub(crate) const BFLOAT: Format = Format { fraction: 7, exponent: 8 };
pub(crate) const FLOAT: Format = Format { fraction: 23, exponent: 8 };

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The value of a bit pattern.
    pub(crate) fn decode(self, bits: u32) -> f64 {
        let fraction = f64::from(bits & ((1 << self.fraction) - 1));
        let exponent = (bits >> self.fraction) & ((1 << self.exponent) - 1);
        let sign = if bits >> (self.fraction + self.exponent) == 0 { 1.0 } else { -1.0 };
        let unit = 2f64.powi(-(self.fraction as i32));
        match exponent {
            0 => sign * fraction * unit * 2f64.powi(1 - self.bias()),
            e if e == (1 << self.exponent) - 1 => {
                if fraction == 0.0 {
                    sign * f64::INFINITY
                } else {
                    f64::NAN
                }
            }
            e => sign * (1.0 + fraction * unit) * 2f64.powi(e as i32 - self.bias()),
        }
    }

    /// The nearest value, ties to even: by scaling to an integer, which `f64` rounds exactly.
    pub(crate) fn round(self, x: f64) -> f64 {
        if x == 0.0 || !x.is_finite() {
            return x;
        }
        let exponent = (x.abs().log2().floor() as i32).max(1 - self.bias());
        // log2 may be off by one next to a power of two.
        let exponent = if x.abs() >= 2f64.powi(exponent + 1) { exponent + 1 } else { exponent };
        let exponent =
            if exponent > 1 - self.bias() && x.abs() < 2f64.powi(exponent) { exponent - 1 } else { exponent };
        let unit = 2f64.powi(exponent - self.fraction as i32);
        let rounded = (x / unit).round_ties_even() * unit;
        let largest = (2.0 - 2f64.powi(-(self.fraction as i32))) * 2f64.powi(self.bias());
        if rounded.abs() > largest { f64::INFINITY.copysign(x) } else { rounded }
    }

    /// The distance of neighbours at x.
    pub(crate) fn ulp(self, x: f64) -> f64 {
        let exponent = if x == 0.0 { i32::MIN } else { x.abs().log2().floor() as i32 };
        2f64.powi(exponent.max(1 - self.bias()) - self.fraction as i32)
    }

    /// The bit pattern of a value that the format has.
    pub(crate) fn encode(self, x: f64) -> u16 {
        assert!(self.fraction < 16);
        let all = 1u32 << (self.fraction + self.exponent + 1);
        if x.is_nan() {
            return (((1 << self.exponent) - 1) << self.fraction | 1 << (self.fraction - 1)) as u16;
        }
        // Patterns of positive numbers are in order.
        let (mut low, mut high) = (0, all / 2 - 1);
        while low < high {
            let middle = u32::midpoint(low, high);
            let value = self.decode(middle);
            if value.is_nan() || value >= x.abs() { high = middle } else { low = middle + 1 }
        }
        (low | if x.is_sign_negative() { all / 2 } else { 0 }) as u16
    }
}

pub(crate) fn close(found: f64, wanted: f64, tolerance: f64) -> bool {
    found == wanted || (found.is_nan() && wanted.is_nan()) || (found - wanted).abs() <= tolerance
}
