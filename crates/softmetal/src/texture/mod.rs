//! Textures: images that kernels read, write and sample.
//!
//! A texture is a part of a [`Buffer`], row after row. There are no mipmaps, cube maps, depth textures or samples.

mod format;
mod sampler;

use std::{fmt, ops::Range, sync::Arc};

pub use format::{Encoding, Format};
pub use sampler::{Address, BorderColor, Coordinates, Filter, Sampler};
use serde::Serialize;

use crate::{
    error::{Error, Result},
    runtime::Buffer,
};

/// The most texels of an axis; a `texture_buffer` can have more.
pub const MAX_EXTENT: u32 = 16384;
/// The most texels of an axis of a `texture3d`, and the most layers.
pub const MAX_DEPTH: u32 = 2048;
/// The most texels of a `texture_buffer`.
pub const MAX_BUFFER_TEXELS: u32 = 1 << 28;

/// The shapes of textures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of the Metal Shading Language")]
pub enum TextureKind {
    Texture1d,
    Texture1dArray,
    Texture2d,
    Texture2dArray,
    Texture3d,
    TextureBuffer,
}

impl TextureKind {
    /// Each, in the order of `msl_abi.h`, where they count from one.
    pub const ALL: [Self; 6] = [
        Self::Texture1d,
        Self::Texture1dArray,
        Self::Texture2d,
        Self::Texture2dArray,
        Self::Texture3d,
        Self::TextureBuffer,
    ];

    /// As the language spells it: `texture2d_array`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Texture1d => "texture1d",
            Self::Texture1dArray => "texture1d_array",
            Self::Texture2d => "texture2d",
            Self::Texture2dArray => "texture2d_array",
            Self::Texture3d => "texture3d",
            Self::TextureBuffer => "texture_buffer",
        }
    }

    /// Axes that coordinates have.
    pub fn axes(self) -> usize {
        match self {
            Self::Texture1d | Self::Texture1dArray | Self::TextureBuffer => 1,
            Self::Texture2d | Self::Texture2dArray => 2,
            Self::Texture3d => 3,
        }
    }

    /// Whether it has layers.
    pub fn is_array(self) -> bool {
        matches!(self, Self::Texture1dArray | Self::Texture2dArray)
    }
}

impl fmt::Display for TextureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a texture is: `height`, `depth` and `layers` are 1 where its kind has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Shape {
    /// Its axes.
    pub kind: TextureKind,
    /// Its texels.
    pub format: Format,
    /// Texels of each axis.
    pub size: [u32; 3],
    /// Layers of an array.
    pub layers: u32,
}

impl Shape {
    /// A `texture2d`.
    pub fn two(format: Format, width: u32, height: u32) -> Self {
        Self { kind: TextureKind::Texture2d, format, size: [width, height, 1], layers: 1 }
    }

    /// Refuses what Metal has no texture of.
    pub fn check(&self) -> Result<()> {
        let most = |axis: usize| match self.kind {
            _ if axis >= self.kind.axes() => 1,
            TextureKind::TextureBuffer => MAX_BUFFER_TEXELS,
            TextureKind::Texture3d => MAX_DEPTH,
            TextureKind::Texture1d
            | TextureKind::Texture1dArray
            | TextureKind::Texture2d
            | TextureKind::Texture2dArray => MAX_EXTENT,
        };
        let wrong = (0..3).find(|&axis| self.size[axis] == 0 || self.size[axis] > most(axis));
        let layers = if self.kind.is_array() { MAX_DEPTH } else { 1 };
        let reason = match wrong {
            Some(axis) => {
                let name = ["width", "height", "depth"][axis];
                format!("a {name} of {}, which is from 1 to {}", self.size[axis], most(axis))
            }
            None if self.layers == 0 || self.layers > layers => {
                format!("{} layers, of which there are from 1 to {layers}", self.layers)
            }
            None => return Ok(()),
        };
        Err(Error::Texture { kind: self.kind.name(), reason })
    }

    /// Bytes of a row without gaps.
    pub fn row_bytes(&self) -> usize {
        self.size[0] as usize * self.format.texel_bytes()
    }

    /// Rows of a slice: of a layer, or of one step in depth.
    fn rows(&self) -> usize {
        self.size[1] as usize
    }

    /// Slices: layers, or steps in depth.
    pub(crate) fn slices(&self) -> usize {
        (self.size[2] * self.layers) as usize
    }

    /// Bytes of all texels without gaps.
    pub fn bytes(&self) -> usize {
        self.row_bytes() * self.rows() * self.slices()
    }
}

/// A box of texels: for arrays one layer, for 3D textures `origin[2]` and `size[2]` are depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// The first texel of each axis.
    pub origin: [u32; 3],
    /// Texels of each axis.
    pub size: [u32; 3],
    /// The layer.
    pub layer: u32,
}

/// An image in memory that kernels and the host share.
#[derive(Debug, Clone)]
pub struct Texture {
    shape: Shape,
    buffer: Arc<Buffer>,
    offset: usize,
    row_bytes: usize,
}

impl Texture {
    /// A texture of zeros in memory of its own.
    pub fn new(shape: Shape) -> Result<Self> {
        shape.check()?;
        let buffer = Arc::new(Buffer::new(shape.bytes())?);
        Ok(Self { shape, buffer, offset: 0, row_bytes: shape.row_bytes() })
    }

    /// A texture with these texels, row after row.
    pub fn with_bytes(shape: Shape, bytes: &[u8]) -> Result<Self> {
        let texture = Self::new(shape)?;
        if bytes.len() != shape.bytes() {
            let reason = format!("{} bytes, where its texels have {}", bytes.len(), shape.bytes());
            return Err(Error::Texture { kind: shape.kind.name(), reason });
        }
        texture.buffer.write(0, bytes)?;
        Ok(texture)
    }

    /// The texels that lie in a buffer from `offset` on, each row `row_bytes` after the one before.
    pub fn of_buffer(shape: Shape, buffer: Arc<Buffer>, offset: usize, row_bytes: usize) -> Result<Self> {
        shape.check()?;
        let wrong = |reason: String| Err(Error::Texture { kind: shape.kind.name(), reason });
        let unit = shape.format.component_bytes();
        if row_bytes < shape.row_bytes() || !row_bytes.is_multiple_of(unit) {
            return wrong(format!(
                "rows of {row_bytes} bytes, which need at least {} and a multiple of {unit}",
                shape.row_bytes()
            ));
        }
        if !(buffer.address().wrapping_add(offset)).is_multiple_of(unit) {
            return wrong(format!("texels at byte {offset} of a buffer, off the alignment of {unit} bytes"));
        }
        let texture = Self { shape, buffer, offset, row_bytes };
        let end = texture.extent().and_then(|bytes| bytes.checked_add(offset));
        match end {
            Some(end) if end <= texture.buffer.len() => Ok(texture),
            _ => wrong(format!(
                "texels past the end of a buffer of {} bytes, from byte {offset} on in rows of {row_bytes}",
                texture.buffer.len()
            )),
        }
    }

    /// What it is.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The memory it lies in.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(crate) fn row_stride(&self) -> usize {
        self.row_bytes
    }

    /// From slice to slice.
    pub(crate) fn slice_stride(&self) -> usize {
        self.row_bytes * self.shape.rows()
    }

    /// The bytes it takes in its buffer.
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.extent().unwrap_or(0)
    }

    /// Bytes from its first texel to its last; nothing where they cannot be counted.
    fn extent(&self) -> Option<usize> {
        let rows = self.shape.rows() * self.shape.slices();
        (rows - 1).checked_mul(self.row_bytes)?.checked_add(self.shape.row_bytes())
    }

    /// All texels, row after row without gaps.
    pub fn bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.shape.bytes()];
        let width = self.shape.row_bytes();
        for (row, out) in bytes.chunks_exact_mut(width.max(1)).enumerate() {
            self.buffer.read(self.offset + row * self.row_bytes, out)?;
        }
        Ok(bytes)
    }

    /// Replaces a box of texels by bytes whose rows and, in depth, images are so many bytes apart.
    pub fn replace(&self, region: Region, bytes: &[u8], row_bytes: usize, image_bytes: usize) -> Result<()> {
        let width = self.region_width(&region)?;
        self.rows_of(&region).try_for_each(|(place, y, z)| {
            let from = z * image_bytes + y * row_bytes;
            let row = from.checked_add(width).and_then(|end| bytes.get(from..end));
            let row = row.ok_or_else(|| self.too_short(bytes.len(), from + width))?;
            self.buffer.write(place, row)
        })
    }

    /// Copies a box of texels to bytes whose rows and, in depth, images are so many bytes apart.
    pub fn read(&self, region: Region, bytes: &mut [u8], row_bytes: usize, image_bytes: usize) -> Result<()> {
        let (width, len) = (self.region_width(&region)?, bytes.len());
        self.rows_of(&region).try_for_each(|(place, y, z)| {
            let from = z * image_bytes + y * row_bytes;
            let row = from.checked_add(width).and_then(|end| bytes.get_mut(from..end));
            self.buffer.read(place, row.ok_or_else(|| self.too_short(len, from + width))?)
        })
    }

    fn too_short(&self, found: usize, needed: usize) -> Error {
        let reason = format!("{found} bytes for a region that needs {needed}");
        Error::Texture { kind: self.shape.kind.name(), reason }
    }

    /// Bytes of a row of a box that lies in the texture.
    fn region_width(&self, region: &Region) -> Result<usize> {
        let inside = (0..3).all(|axis| {
            region.origin[axis].checked_add(region.size[axis]).is_some_and(|end| end <= self.shape.size[axis])
        });
        if !inside || region.layer >= self.shape.layers {
            let Shape { size, layers, kind, .. } = self.shape;
            let Region { origin, size: extent, layer } = region;
            let reason = format!(
                "a region of {extent:?} texels at {origin:?} of layer {layer}, where it has {size:?} in {layers}"
            );
            return Err(Error::Texture { kind: kind.name(), reason });
        }
        Ok(region.size[0] as usize * self.shape.format.texel_bytes())
    }

    /// Where each row of a box lies, with its number and that of its image.
    fn rows_of(&self, region: &Region) -> impl Iterator<Item = (usize, usize, usize)> {
        let Region { origin, size, layer } = *region;
        let first = self.offset + origin[0] as usize * self.shape.format.texel_bytes();
        let (row, slice) = (self.row_bytes, self.slice_stride());
        (0..size[2]).flat_map(move |z| {
            (0..size[1]).map(move |y| {
                let place = first + (layer + origin[2] + z) as usize * slice + (origin[1] + y) as usize * row;
                (place, y as usize, z as usize)
            })
        })
    }
}
