//! Kernels in `cargo test`: what goes in, what must come out, and everything that is checked on the way.
//!
//! ```no_run
//! use softmetal::test::KernelTest;
//!
//! let x: Vec<f32> = (0..192).map(|n| n as f32).collect();
//! let sums: Vec<f32> = x.chunks(64).map(|row| row.iter().sum()).collect();
//! KernelTest::file("kernels/sum.metal", "block_sum")
//!     .input(0, &x)
//!     .output(1, &sums, 1e-5)
//!     .value(2, 64_u32)
//!     .threadgroup_memory(0, 8)
//!     .threadgroups([3, 1, 1], [64, 1, 1])
//!     .passes();
//! ```
//!
//! A test runs the kernel checked, in order and in random schedules, then with the lanes of simdgroups in lockstep, and plain at
//! last. What fails is told as the command line does, with the place in the `.metal` file.

use std::{fmt::Write as _, path::PathBuf};

use half::f16;

use crate::{
    compiler::{Compiler, Flavour, Source},
    device::{ConstantId, Device, Outcome, Pipeline, Scalar},
    error::Result,
    runtime::bytes::{Element, as_bytes, as_bytes_mut},
    texture::{Sampler, Shape, Texture},
};

/// A number that results can be compared by.
pub trait Number: Element {
    /// Its value, as exactly as a double can tell.
    fn value(self) -> f64;
}

macro_rules! numbers {
    ($($number:ident)+) => {
        $(impl Number for $number {
            fn value(self) -> f64 {
                self as f64
            }
        })+
    };
}
numbers!(f32 i8 u8 i16 u16 i32 u32 i64 u64);

/// What a buffer must hold at the end.
#[derive(Debug, Clone)]
struct Expected {
    values: Vec<f64>,
    decode: fn(&[u8]) -> Vec<f64>,
    tolerance: f64,
}

#[derive(Debug, Clone)]
struct BoundBuffer {
    index: u32,
    bytes: Vec<u8>,
    /// Nothing where the kernel only reads it.
    expected: Option<Expected>,
}

#[derive(Debug, Clone)]
struct BoundTexture {
    index: u32,
    shape: Shape,
    bytes: Vec<u8>,
    expected: Option<Vec<u8>>,
}

/// A kernel, what it is given, and what must come of it.
#[derive(Debug, Clone)]
#[must_use = "a test does nothing until `passes` or `verdict`"]
pub struct KernelTest {
    source: Result<Source, String>,
    kernel: String,
    defines: Vec<String>,
    includes: Vec<PathBuf>,
    buffers: Vec<BoundBuffer>,
    textures: Vec<BoundTexture>,
    samplers: Vec<(u32, Sampler)>,
    threadgroup_memory: Vec<(u32, u32)>,
    constants: Vec<(ConstantId, Vec<u8>)>,
    threads: [u32; 3],
    threadgroup: [u32; 3],
    whole: bool,
    seeds: u64,
}

/// One way to run a kernel.
#[derive(Debug, Clone, Copy)]
enum Way {
    Checked { seed: u64 },
    Lockstep,
    Plain,
}

impl Way {
    fn name(self) -> String {
        match self {
            Self::Checked { seed: 0 } => "checked, in order".to_owned(),
            Self::Checked { seed } => format!("checked, in the order of seed {seed}"),
            Self::Lockstep => "checked, lanes in lockstep".to_owned(),
            Self::Plain => "plain".to_owned(),
        }
    }
}

impl KernelTest {
    /// A kernel of a `.metal` file.
    pub fn file(path: impl Into<PathBuf>, kernel: &str) -> Self {
        Self::of(Source::from_file(path.into()).map_err(|error| error.to_string()), kernel)
    }

    /// A kernel of a source.
    pub fn source(source: Source, kernel: &str) -> Self {
        Self::of(Ok(source), kernel)
    }

    fn of(source: Result<Source, String>, kernel: &str) -> Self {
        Self {
            source,
            kernel: kernel.to_owned(),
            defines: Vec::new(),
            includes: Vec::new(),
            buffers: Vec::new(),
            textures: Vec::new(),
            samplers: Vec::new(),
            threadgroup_memory: Vec::new(),
            constants: Vec::new(),
            threads: [1; 3],
            threadgroup: [1; 3],
            whole: false,
            seeds: 8,
        }
    }

    /// Defines a macro: `NAME` or `NAME=VALUE`.
    pub fn define(mut self, definition: &str) -> Self {
        self.defines.push(definition.to_owned());
        self
    }

    /// Adds a folder to look for included files in.
    pub fn include(mut self, folder: impl Into<PathBuf>) -> Self {
        self.includes.push(folder.into());
        self
    }

    /// Binds numbers that the kernel reads.
    pub fn input<T: Element>(self, index: u32, numbers: &[T]) -> Self {
        self.bound(index, as_bytes(numbers).to_vec(), None)
    }

    /// Binds numbers that the kernel reads, as halfs.
    pub fn input_half(self, index: u32, numbers: &[f32]) -> Self {
        self.bound(index, halfs(numbers), None)
    }

    /// Binds a value, as `setBytes` does.
    pub fn value(self, index: u32, value: impl Scalar) -> Self {
        self.bound(index, value.to_bytes(), None)
    }

    /// Binds zeros, of which the kernel must make `expected`. Each number may be off by `tolerance`, or that part of it where it is
    /// more than 1.
    pub fn output<T: Number>(self, index: u32, expected: &[T], tolerance: f64) -> Self {
        let zeros = vec![0; size_of_val(expected)];
        self.updated_bytes(index, zeros, expected, tolerance)
    }

    /// Binds `start`, of which the kernel must make `expected`.
    pub fn updated<T: Number>(self, index: u32, start: &[T], expected: &[T], tolerance: f64) -> Self {
        self.updated_bytes(index, as_bytes(start).to_vec(), expected, tolerance)
    }

    fn updated_bytes<T: Number>(self, index: u32, start: Vec<u8>, expected: &[T], tolerance: f64) -> Self {
        let values = expected.iter().map(|number| number.value()).collect();
        self.bound(index, start, Some(Expected { values, decode: decode::<T>, tolerance }))
    }

    /// Binds zeros, of which the kernel must make `expected`, as halfs.
    pub fn output_half(self, index: u32, expected: &[f32], tolerance: f64) -> Self {
        let values = expected.iter().map(|number| f64::from(*number)).collect();
        let zeros = vec![0; expected.len() * 2];
        self.bound(index, zeros, Some(Expected { values, decode: decode_halfs, tolerance }))
    }

    fn bound(mut self, index: u32, bytes: Vec<u8>, expected: Option<Expected>) -> Self {
        // As in Metal, the last binding of an index counts.
        self.buffers.retain(|bound| bound.index != index);
        self.buffers.push(BoundBuffer { index, bytes, expected });
        self
    }

    /// Binds a texture that the kernel reads.
    pub fn texture(mut self, index: u32, shape: Shape, bytes: &[u8]) -> Self {
        self.textures.push(BoundTexture { index, shape, bytes: bytes.to_vec(), expected: None });
        self
    }

    /// Binds a texture of zeros, of which the kernel must make `expected`, to the byte.
    pub fn output_texture(mut self, index: u32, shape: Shape, expected: &[u8]) -> Self {
        let (bytes, expected) = (vec![0; shape.bytes()], Some(expected.to_vec()));
        self.textures.push(BoundTexture { index, shape, bytes, expected });
        self
    }

    /// Binds a sampler.
    pub fn sampler(mut self, index: u32, sampler: Sampler) -> Self {
        self.samplers.push((index, sampler));
        self
    }

    /// Sets the length of a `[[threadgroup(index)]]` argument.
    pub fn threadgroup_memory(mut self, index: u32, bytes: u32) -> Self {
        self.threadgroup_memory.push((index, bytes));
        self
    }

    /// Sets a function constant.
    pub fn constant(mut self, id: impl Into<ConstantId>, value: impl Scalar) -> Self {
        self.constants.push((id.into(), value.to_bytes()));
        self
    }

    /// Dispatches `threads`, in threadgroups of at most `threadgroup` threads per axis.
    pub fn threads(mut self, threads: [u32; 3], threadgroup: [u32; 3]) -> Self {
        (self.threads, self.threadgroup, self.whole) = (threads, threadgroup, false);
        self
    }

    /// Dispatches `groups` whole threadgroups.
    pub fn threadgroups(mut self, groups: [u32; 3], threadgroup: [u32; 3]) -> Self {
        (self.threads, self.threadgroup, self.whole) = (groups, threadgroup, true);
        self
    }

    /// Tries so many schedules, 8 unless set; the first is in order.
    pub fn seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds.max(1);
        self
    }

    /// Fails the test that calls it if anything is wrong.
    ///
    /// # Panics
    /// With what is wrong, as the command line tells it.
    #[track_caller]
    pub fn passes(&self) {
        if let Err(reason) = self.verdict() {
            // INVARIANT: only tests call this, and a test fails by a panic; `verdict` is for everybody else.
            panic!("kernel `{}`:\n{reason}", self.kernel);
        }
    }

    /// What is wrong, as the command line tells it.
    pub fn verdict(&self) -> Result<(), String> {
        let source = self.source.as_ref().map_err(Clone::clone)?;
        let checked = self.pipeline(source, Flavour::Checked)?;
        for seed in 0..self.seeds {
            self.run(&checked, Way::Checked { seed })?;
        }
        self.run(&checked, Way::Lockstep)?;
        // Nothing watches this one, so it comes when the others were right.
        self.run(&self.pipeline(source, Flavour::Plain)?, Way::Plain)
    }

    fn pipeline(&self, source: &Source, flavour: Flavour) -> Result<Pipeline, String> {
        let made = || {
            let mut compiler = Compiler::new()?.flavour(flavour).only([&self.kernel]);
            compiler = self.includes.iter().fold(compiler, Compiler::include);
            compiler = self.defines.iter().fold(compiler, Compiler::define);
            let mut pipeline = Pipeline::new(&compiler.compile(source)?, &self.kernel)?;
            for (id, value) in &self.constants {
                pipeline = pipeline.constant(id.clone(), value.clone())?;
            }
            Ok(pipeline)
        };
        made().map_err(|error: crate::Error| error.to_string())
    }

    fn run(&self, pipeline: &Pipeline, way: Way) -> Result<(), String> {
        let mut buffers = self.buffers.clone();
        let textures: Vec<Texture> = self
            .textures
            .iter()
            .map(|bound| Texture::with_bytes(bound.shape, &bound.bytes))
            .collect::<Result<_>>()
            .map_err(|error| error.to_string())?;
        let outcome = self.dispatch(pipeline, way, &mut buffers, &textures);
        let outcome = outcome.map_err(|error| format!("{}: {error}", way.name()))?;
        let mut wrong = String::new();
        for report in outcome.errors() {
            let _ = writeln!(wrong, "{report}\n");
        }
        for bound in &buffers {
            wrong.extend(bound.expected.as_ref().and_then(|e| e.compare(bound.index, &bound.bytes)));
        }
        for (bound, texture) in self.textures.iter().zip(&textures) {
            let Some(expected) = &bound.expected else { continue };
            let found = texture.bytes().map_err(|error| error.to_string())?;
            wrong.extend(texels_off(bound, &found, expected));
        }
        if wrong.is_empty() { Ok(()) } else { Err(format!("{}:\n{}", way.name(), wrong.trim_end())) }
    }

    fn dispatch(
        &self,
        pipeline: &Pipeline,
        way: Way,
        buffers: &mut [BoundBuffer],
        textures: &[Texture],
    ) -> Result<Outcome> {
        let device = Device::new();
        let mut dispatch = device.dispatch_of(pipeline);
        for bound in buffers {
            dispatch = match bound.expected {
                Some(_) => dispatch.buffer_mut(bound.index, &mut bound.bytes),
                None => dispatch.buffer(bound.index, &bound.bytes),
            };
        }
        for (bound, texture) in self.textures.iter().zip(textures) {
            dispatch = dispatch.texture(bound.index, texture);
        }
        for (index, sampler) in &self.samplers {
            dispatch = dispatch.sampler(*index, *sampler);
        }
        for (index, bytes) in &self.threadgroup_memory {
            dispatch = dispatch.threadgroup_memory(*index, *bytes);
        }
        dispatch = match way {
            Way::Checked { seed } => dispatch.seed(seed),
            Way::Lockstep => dispatch.lockstep(),
            Way::Plain => dispatch,
        };
        if self.whole {
            dispatch.threadgroups(self.threads, self.threadgroup).run()
        } else {
            dispatch.threads(self.threads, self.threadgroup).run()
        }
    }
}

impl Expected {
    /// What is wrong with the bytes of a buffer.
    fn compare(&self, index: u32, bytes: &[u8]) -> Option<String> {
        let found = (self.decode)(bytes);
        let near = |a: f64, b: f64| {
            a == b || (a - b).abs() <= self.tolerance * b.abs().max(1.0) || a.is_nan() && b.is_nan()
        };
        if found.len() != self.values.len() {
            let (found, wanted) = (found.len(), self.values.len());
            return Some(format!("buffer {index} has {found} elements, {wanted} were expected\n"));
        }
        let mut wrong = (0..found.len()).filter(|&n| !near(found[n], self.values[n]));
        let first = wrong.next()?;
        let others = wrong.count();
        Some(format!(
            "element {first} of buffer {index} is {}, expected {} (tolerance {}); {others} others are off as well\n",
            found[first], self.values[first], self.tolerance
        ))
    }
}

/// Says which texel is the first that is wrong.
fn texels_off(bound: &BoundTexture, found: &[u8], expected: &[u8]) -> Option<String> {
    let index = bound.index;
    if found.len() != expected.len() {
        let (found, wanted) = (found.len(), expected.len());
        return Some(format!("texture {index} has {found} bytes, {wanted} were expected\n"));
    }
    let size = bound.shape.format.texel_bytes();
    let mut wrong = found.chunks(size).zip(expected.chunks(size)).enumerate().filter(|(_, (a, b))| a != b);
    let (texel, (a, b)) = wrong.next()?;
    let (x, y) = (texel % bound.shape.size[0] as usize, texel / bound.shape.size[0] as usize);
    let others = wrong.count();
    Some(format!(
        "texel {x} of row {y} of texture {index} is {a:02x?}, expected {b:02x?}; {others} others are off as well\n"
    ))
}

fn decode<T: Number>(bytes: &[u8]) -> Vec<f64> {
    let each = bytes.chunks_exact(size_of::<T>()).map(|chunk| {
        let mut number = [T::default()];
        as_bytes_mut(&mut number).copy_from_slice(chunk);
        number[0].value()
    });
    each.collect()
}

fn decode_halfs(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(2).map(|chunk| f16::from_le_bytes([chunk[0], chunk[1]]).to_f64()).collect()
}

fn halfs(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| f16::from_f32(*number).to_le_bytes()).collect()
}
