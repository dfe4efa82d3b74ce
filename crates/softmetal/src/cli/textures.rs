//! Textures and samplers described on the command line.

use std::fs;

use half::f16;
use softmetal::{
    ArgumentKind, Format, Kernel, Sampler, Shape, Texture, TextureKind,
    texture::{Address, BorderColor, Coordinates, Encoding},
};

use super::{Failure, data::indexed, run::named};

/// A texture and its texels.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) index: u32,
    shape: Shape,
    pub(super) bytes: Vec<u8>,
    /// The kernel may write it.
    pub(super) written: bool,
}

impl Given {
    pub(super) fn texture(&self) -> Result<Texture, Failure> {
        Ok(Texture::with_bytes(self.shape, &self.bytes)?)
    }

    /// Its components as numbers, as they lie in memory; those that stand for parts of one as such.
    pub(super) fn values(&self) -> Vec<f64> {
        let format = self.shape.format;
        let bits = format.component_bytes() as u32 * 8;
        let each = self.bytes.chunks_exact(format.component_bytes()).map(|chunk| {
            let mut wide = [0; 4];
            wide[..chunk.len()].copy_from_slice(chunk);
            let unsigned = u32::from_le_bytes(wide);
            let signed = (unsigned << (32 - bits)) as i32 >> (32 - bits);
            let largest = f64::from(u32::MAX >> (32 - bits));
            match format.encoding() {
                Encoding::Unorm => f64::from(unsigned) / largest,
                Encoding::Snorm => (f64::from(signed) / (largest / 2.0).floor()).max(-1.0),
                Encoding::Float if bits == 16 => f16::from_bits(unsigned as u16).to_f64(),
                Encoding::Float => f64::from(f32::from_bits(unsigned)),
                Encoding::Uint => f64::from(unsigned),
                Encoding::Sint => f64::from(signed),
            }
        });
        each.collect()
    }
}

/// `0=image.raw:640x480:rgba8Unorm` for textures of `kernel`.
pub(super) fn given(texts: &[String], kernel: &Kernel) -> Result<Vec<Given>, Failure> {
    let mut found: Vec<Given> = Vec::new();
    for text in texts {
        let given = named("--texture", text, one(text, kernel))?;
        if found.iter().any(|other| other.index == given.index) {
            return Err(Failure::Argument(format!("texture {} is given twice", given.index)));
        }
        found.push(given);
    }
    Ok(found)
}

fn one(text: &str, kernel: &Kernel) -> Result<Given, Failure> {
    let wrong = |message: String| Failure::Argument(message);
    let (index, rest) = indexed(text).map_err(|_| wrong("need INDEX=TEXELS:SIZE:FORMAT".to_owned()))?;
    let parts = rest.rsplit_once(':').and_then(|(rest, format)| {
        let (texels, size) = rest.rsplit_once(':')?;
        Some((texels, size, format))
    });
    let (texels, size, format) = parts
        .ok_or_else(|| wrong("need INDEX=TEXELS:SIZE:FORMAT, like 0=zeros:64x64:rgba8Unorm".to_owned()))?;
    let format = Format::named(format).ok_or_else(|| {
        let known: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
        wrong(format!("`{format}` is no format; there are {}", known.join(", ")))
    })?;
    let taken = kernel.arguments.iter().find_map(|argument| match (argument.kind, argument.texture) {
        (ArgumentKind::Texture(first), Some(taken)) => {
            (first..first + taken.count).contains(&index).then_some(taken)
        }
        _ => None,
    });
    let taken = taken.ok_or_else(|| wrong(format!("kernel `{}` has no texture {index}", kernel.name)))?;
    let shape = shape(taken.kind, format, size)?;
    shape.check()?;
    let bytes = content(texels, &shape, u64::from(index))?;
    Ok(Given { index, shape, bytes, written: taken.writes() })
}

/// `640x480` as the axes and layers of a kind.
fn shape(kind: TextureKind, format: Format, text: &str) -> Result<Shape, Failure> {
    let numbers: Option<Vec<u32>> = text.split('x').map(|part| part.trim().parse().ok()).collect();
    let needed = kind.axes() + usize::from(kind.is_array());
    let numbers = numbers.filter(|numbers| numbers.len() == needed).ok_or_else(|| {
        Failure::Argument(format!("`{text}` is no size of a {kind}, which has {needed} numbers, like 64x64"))
    })?;
    let (axes, layers) = numbers.split_at(kind.axes());
    let mut size = [1; 3];
    size[..axes.len()].copy_from_slice(axes);
    Ok(Shape { kind, format, size, layers: layers.first().copied().unwrap_or(1) })
}

fn content(texels: &str, shape: &Shape, seed: u64) -> Result<Vec<u8>, Failure> {
    let len = shape.bytes();
    match texels {
        "zeros" => Ok(vec![0; len]),
        "rand" => Ok(random(shape, seed)),
        path => {
            let bytes = fs::read(path).map_err(|error| {
                Failure::Argument(format!("`{path}` is neither zeros nor rand, and as a file: {error}"))
            })?;
            if bytes.len() != len {
                let found = bytes.len();
                return Err(Failure::Argument(format!("{path} has {found} bytes, the texels have {len}")));
            }
            Ok(bytes)
        }
    }
}

/// Any bits, but floats from 0 to 1; the same every time.
fn random(shape: &Shape, seed: u64) -> Vec<u8> {
    let (format, mut state) = (shape.format, seed ^ 0x5851_F42D_4C95_7F2D);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let bits = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (bits >> 32) as u32
    };
    let each = (0..shape.bytes() / format.component_bytes()).flat_map(|_| {
        let bits = next();
        let unit = (bits >> 8) as f32 / (1 << 24) as f32;
        let stored = match (format.encoding(), format.component_bytes()) {
            (Encoding::Float, 2) => u32::from(f16::from_f32(unit).to_bits()),
            (Encoding::Float, _) => unit.to_bits(),
            (Encoding::Unorm | Encoding::Snorm | Encoding::Uint | Encoding::Sint, _) => bits,
        };
        stored.to_le_bytes().into_iter().take(format.component_bytes())
    });
    each.collect()
}

/// `0=linear,repeat` and the like.
pub(super) fn samplers(texts: &[String]) -> Result<Vec<(u32, Sampler)>, Failure> {
    texts.iter().map(|text| named("--sampler", text, sampler(text))).collect()
}

fn sampler(text: &str) -> Result<(u32, Sampler), Failure> {
    let (index, words) = indexed(text)
        .map_err(|_| Failure::Argument("need INDEX=WORD,WORD…, like 0=linear,repeat".to_owned()))?;
    let mut sampler = Sampler::default();
    for word in words.split(',').map(str::trim) {
        sampler = match word {
            "normalized" | "nearest" | "transparent_black" => sampler,
            "pixel" => Sampler { coordinates: Coordinates::Pixel, ..sampler },
            "linear" => sampler.linear(),
            "clamp_to_zero" => sampler.address(Address::ClampToZero),
            "clamp_to_edge" => sampler.address(Address::ClampToEdge),
            "clamp_to_border" => sampler.address(Address::ClampToBorder),
            "repeat" => sampler.address(Address::Repeat),
            "mirrored_repeat" => sampler.address(Address::MirroredRepeat),
            "opaque_black" => Sampler { border: BorderColor::OpaqueBlack, ..sampler },
            "opaque_white" => Sampler { border: BorderColor::OpaqueWhite, ..sampler },
            other => return Err(Failure::Argument(format!("`{other}` is no word of a sampler"))),
        };
    }
    Ok((index, sampler))
}
