//! `MTLTexture`: images in the memory of a buffer.

use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use softmetal::texture::Region;
use softmetal::{Format, Shape, Texture as Image, TextureKind};

use super::buffer::{self, Buffer, Options, StorageMode};
use super::descriptor::{Properties, properties};
use super::device::Device;
use super::labels;
use crate::foundation::NS_OBJECT;
use crate::objc::{
    Id, InBytes, Method, MtlRegion, OutBytes, Strong, This, class, lend, methods, none, raw_methods,
};
use crate::problem::{Rule, refuse};

class!(static TEXTURE = c"MTLSoftTexture", &NS_OBJECT, all, none);
class!(pub(crate) static DESCRIPTOR = c"MTLTextureDescriptor", &NS_OBJECT, properties, descriptors);

fn properties() -> Vec<Method> {
    let mut all = properties! {
        c"textureType" c"setTextureType:" usize;
        c"pixelFormat" c"setPixelFormat:" usize;
        c"width" c"setWidth:" usize;
        c"height" c"setHeight:" usize;
        c"depth" c"setDepth:" usize;
        c"mipmapLevelCount" c"setMipmapLevelCount:" usize;
        c"sampleCount" c"setSampleCount:" usize;
        c"arrayLength" c"setArrayLength:" usize;
        c"resourceOptions" c"setResourceOptions:" usize;
        c"cpuCacheMode" c"setCpuCacheMode:" usize;
        c"storageMode" c"setStorageMode:" usize;
        c"hazardTrackingMode" c"setHazardTrackingMode:" usize;
        c"usage" c"setUsage:" usize;
        c"allowGPUOptimizedContents" c"setAllowGPUOptimizedContents:" bool;
    };
    all.extend(raw_methods! {
        c"init"(this) -> Id { this.initialise(Properties::of(&DEFAULTS)) }
    });
    all
}

/// Textures that a kernel can have.
pub(crate) const SLOTS: usize = 128;
/// `MTLTextureUsageShaderRead` and `MTLTextureUsageShaderWrite`.
const READ: usize = 1;
const WRITE: usize = 2;
/// Rows of textures in buffers begin at multiples of this.
pub(crate) const ROW_ALIGNMENT: usize = 16;

/// What an `MTLTexture` holds.
pub(crate) struct Texture {
    pub(crate) device: This<Device>,
    /// The buffer that has its texels: one of its own, or the one it was made of.
    memory: Strong,
    pub(crate) image: Image,
    kind: usize,
    usage: usize,
    /// Made of a buffer: where it begins there, and how long its rows are.
    linear: Option<(usize, usize)>,
    options: usize,
    purgeable: AtomicUsize,
}

impl Texture {
    pub(crate) fn buffer(&self) -> Arc<Buffer> {
        self.memory.id().this::<Buffer>().share()
    }

    /// The same texels in other memory, which has those of its buffer from `start` on.
    pub(crate) fn on(&self, memory: &Arc<softmetal::Buffer>, start: usize) -> softmetal::Result<Image> {
        let shape = *self.image.shape();
        let (offset, row) = self.linear.unwrap_or((0, shape.row_bytes()));
        Image::of_buffer(shape, memory.clone(), start + offset, row)
    }

    /// Refuses a kernel that uses it otherwise than its descriptor said.
    pub(crate) fn check_usage(&self, writes: bool, what: &str) {
        let (needed, name) = if writes { (WRITE, "ShaderWrite") } else { (READ, "ShaderRead") };
        if self.usage != 0 && self.usage & needed == 0 {
            refuse(
                Rule::Descriptor,
                format!("{what}: its usage lacks MTLTextureUsage{name}: Metal asserts that it has"),
            );
        }
    }

    fn region(&self, region: MtlRegion, level: usize, slice: usize, what: &str) -> Region {
        if matches!(StorageMode::of(self.options >> 4 & 0xF), StorageMode::Private | StorageMode::Memoryless)
        {
            refuse(
                Rule::StorageMode,
                format!("{what} of a texture that the host does not reach: Metal asserts shared or managed"),
            );
        }
        if level != 0 {
            refuse(Rule::Range, format!("{what} of level {level}: the texture has one level"));
        }
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Region {
            origin: region.origin.axes().map(number),
            size: region.size.axes().map(number),
            layer: number(slice),
        }
    }

    /// How far apart rows and images are, and the bytes of all of a region.
    fn pitch(&self, region: &Region, row: usize, image: usize) -> (usize, usize, usize) {
        let width = region.size[0] as usize * self.image.shape().format.texel_bytes();
        // Of a single row or image the distance to the next may be left out.
        let (row, rows) = (if row == 0 { width } else { row }, region.size[1] as usize);
        let image = if image == 0 { row * rows } else { image };
        let images = region.size[2] as usize;
        let len = images.saturating_sub(1) * image + rows.saturating_sub(1) * row + width;
        (row, image, len)
    }

    fn replace(&self, region: &Region, bytes: InBytes, (row, image): (usize, usize)) {
        let (row, image, len) = self.pitch(region, row, image);
        if let Err(error) = self.image.replace(*region, &bytes.copy(len), row, image) {
            refuse(Rule::Range, format!("replaceRegion: {error}"));
        }
    }

    fn get(&self, region: &Region, out: OutBytes, (row, image): (usize, usize)) {
        let (row, image, _) = self.pitch(region, row, image);
        let width = region.size[0] as usize * self.image.shape().format.texel_bytes();
        let (rows, images) = (region.size[1] as usize, region.size[2] as usize);
        let mut bytes = vec![0; width * rows * images];
        if let Err(error) = self.image.read(*region, &mut bytes, width, width * rows) {
            refuse(Rule::Range, format!("getBytes: {error}"));
            return;
        }
        // What lies between rows is the caller's.
        for (n, texels) in bytes.chunks_exact(width.max(1)).enumerate() {
            out.after(n / rows * image + n % rows * row).fill(texels);
        }
    }
}

/// Whether an object is a texture.
pub(crate) fn is_texture(id: Id) -> bool {
    id.try_this::<Texture>().is_some()
}

fn all() -> Vec<Method> {
    let mut all = facts();
    all.extend(transfers());
    all.extend(labels());
    all
}

fn facts() -> Vec<Method> {
    methods! { Texture;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"textureType"(this) -> usize { this.kind }
        c"pixelFormat"(this) -> usize { this.image.shape().format.number() as usize }
        c"width"(this) -> usize { this.image.shape().size[0] as usize }
        c"height"(this) -> usize { this.image.shape().size[1] as usize }
        c"depth"(this) -> usize { this.image.shape().size[2] as usize }
        c"arrayLength"(this) -> usize { this.image.shape().layers as usize }
        c"mipmapLevelCount"(_) -> usize { 1 }
        c"sampleCount"(_) -> usize { 1 }
        c"usage"(this) -> usize { this.usage }
        c"isFramebufferOnly"(_) -> bool { false }
        c"isShareable"(_) -> bool { false }
        c"isSparse"(_) -> bool { false }
        c"allowGPUOptimizedContents"(this) -> bool { this.linear.is_none() }
        c"parentTexture"(_) -> Id { Id::NULL }
        c"buffer"(this) -> Id { lend(this.linear.and_then(|_| Strong::retained(this.memory.id()))) }
        c"bufferOffset"(this) -> usize { this.linear.map_or(0, |(offset, _)| offset) }
        c"bufferBytesPerRow"(this) -> usize { this.linear.map_or(0, |(_, row)| row) }
        c"storageMode"(this) -> usize { this.options >> 4 & 0xF }
        c"cpuCacheMode"(this) -> usize { this.options & 0xF }
        c"hazardTrackingMode"(this) -> usize { if this.buffer().tracked { 2 } else { 1 } }
        c"resourceOptions"(this) -> usize { this.options }
        c"allocatedSize"(this) -> usize { this.buffer().len().next_multiple_of(16 << 10) }
        c"heap"(_) -> Id { Id::NULL }
        c"heapOffset"(_) -> usize { 0 }
        c"isAliasable"(_) -> bool { false }
        c"setPurgeableState:"(this, state: usize) -> usize {
            let old = this.purgeable.load(Ordering::Relaxed);
            if state != 1 { this.purgeable.store(state, Ordering::Relaxed); }
            old
        }
    }
}

fn transfers() -> Vec<Method> {
    methods! { Texture;
        c"replaceRegion:mipmapLevel:withBytes:bytesPerRow:"(
            this, region: MtlRegion, level: usize, bytes: InBytes, row: usize
        ) {
            this.replace(&this.region(region, level, 0, "replaceRegion:"), bytes, (row, 0));
        }
        c"replaceRegion:mipmapLevel:slice:withBytes:bytesPerRow:bytesPerImage:"(
            this, region: MtlRegion, level: usize, slice: usize, bytes: InBytes, row: usize, image: usize
        ) {
            this.replace(&this.region(region, level, slice, "replaceRegion:"), bytes, (row, image));
        }
        c"getBytes:bytesPerRow:fromRegion:mipmapLevel:"(
            this, bytes: OutBytes, row: usize, region: MtlRegion, level: usize
        ) {
            this.get(&this.region(region, level, 0, "getBytes:"), bytes, (row, 0));
        }
        c"getBytes:bytesPerRow:bytesPerImage:fromRegion:mipmapLevel:slice:"(
            this, bytes: OutBytes, row: usize, image: usize, region: MtlRegion, level: usize, slice: usize
        ) {
            this.get(&this.region(region, level, slice, "getBytes:"), bytes, (row, image));
        }
    }
}

fn descriptors() -> Vec<Method> {
    raw_methods! {
        c"texture2DDescriptorWithPixelFormat:width:height:mipmapped:"(
            _, format: usize, width: usize, height: usize, mipmapped: bool
        ) -> Id {
            let levels = if mipmapped { (width.max(height).max(1).ilog2() + 1) as usize } else { 1 };
            described(&[
                (c"pixelFormat", format), (c"width", width), (c"height", height), (c"mipmapLevelCount", levels)
            ])
        }
        c"textureBufferDescriptorWithPixelFormat:width:resourceOptions:usage:"(
            _, format: usize, width: usize, options: usize, usage: usize
        ) -> Id {
            described(&[
                (c"textureType", 9), (c"pixelFormat", format), (c"width", width), (c"resourceOptions", options),
                (c"usage", usage)
            ])
        }
    }
}

/// What a descriptor begins with.
const DEFAULTS: [(&CStr, usize); 10] = [
    (c"textureType", 2),
    (c"pixelFormat", 70),
    (c"width", 1),
    (c"height", 1),
    (c"depth", 1),
    (c"mipmapLevelCount", 1),
    (c"sampleCount", 1),
    (c"arrayLength", 1),
    (c"usage", 1),
    (c"allowGPUOptimizedContents", 1),
];

fn described(set: &[(&'static CStr, usize)]) -> Id {
    let all: Vec<_> = DEFAULTS.iter().chain(set).copied().collect();
    Strong::new(&DESCRIPTOR, Properties::of(&all)).lend()
}

/// The shape that a descriptor asks for; what Metal does not have, and what is not run here, is refused.
fn shape(properties: &Properties) -> Option<Shape> {
    let number = |name| u32::try_from(properties.number(name)).unwrap_or(u32::MAX);
    let kind = match properties.number(c"textureType") {
        0 => TextureKind::Texture1d,
        1 => TextureKind::Texture1dArray,
        2 => TextureKind::Texture2d,
        3 => TextureKind::Texture2dArray,
        7 => TextureKind::Texture3d,
        9 => TextureKind::TextureBuffer,
        other => {
            refuse(
                Rule::Descriptor,
                format!("a texture of MTLTextureType {other}: cube maps and samples are not run here"),
            );
            return None;
        }
    };
    let format = number(c"pixelFormat");
    let Some(format) = Format::numbered(format) else {
        refuse(
            Rule::Descriptor,
            format!("a texture of MTLPixelFormat {format}, which is not among those that are run here"),
        );
        return None;
    };
    for (name, what) in [(c"mipmapLevelCount", "levels"), (c"sampleCount", "samples")] {
        let count = number(name);
        if count != 1 {
            refuse(
                Rule::Descriptor,
                format!("a texture of {count} {what}: those that are run here have one"),
            );
        }
    }
    let size = [number(c"width"), number(c"height"), number(c"depth")];
    let shape = Shape { kind, format, size, layers: number(c"arrayLength") };
    if let Err(error) = shape.check() {
        refuse(Rule::Descriptor, format!("{error}: Metal asserts it"));
        return None;
    }
    Some(shape)
}

/// The options of a descriptor: as a whole, or by its parts.
fn options(properties: &Properties) -> usize {
    let parts = properties.number(c"cpuCacheMode")
        | properties.number(c"storageMode") << 4
        | properties.number(c"hazardTrackingMode") << 8;
    properties.number(c"resourceOptions") | parts
}

/// `newTextureWithDescriptor:` of a device.
pub(crate) fn new(device: &This<Device>, descriptor: Id) -> Option<Strong> {
    let properties = descriptor.this::<Properties>();
    let (shape, bits) = (shape(&properties)?, options(&properties));
    if Options::of(bits).storage == StorageMode::Memoryless {
        refuse(Rule::StorageMode, "a memoryless texture: kernels have nothing to read there".to_owned());
    }
    let memory = buffer::new(device, shape.bytes(), bits)?;
    make(device, memory, shape, (0, shape.row_bytes()), None, &properties)
}

/// `newTextureWithDescriptor:offset:bytesPerRow:` of a buffer.
pub(crate) fn of_buffer(buffer: &This<Buffer>, descriptor: Id, offset: usize, row: usize) -> Option<Strong> {
    let properties = descriptor.this::<Properties>();
    let shape = shape(&properties)?;
    if !matches!(shape.kind, TextureKind::Texture2d | TextureKind::TextureBuffer) {
        refuse(
            Rule::Descriptor,
            format!("a {} of a buffer: Metal asserts a texture2d or a texture_buffer", shape.kind),
        );
    }
    for (what, bytes) in [("offset", offset), ("bytesPerRow", row)] {
        if !bytes.is_multiple_of(ROW_ALIGNMENT) {
            refuse(
                Rule::Alignment,
                format!(
                    "a texture of a buffer with {what} {bytes}: Metal asserts a multiple of {ROW_ALIGNMENT}"
                ),
            );
        }
    }
    let memory = Strong::retained(buffer.id)?;
    make(&buffer.device, memory, shape, (offset, row), Some((offset, row)), &properties)
}

fn make(
    device: &This<Device>,
    memory: Strong,
    shape: Shape,
    (offset, row): (usize, usize),
    linear: Option<(usize, usize)>,
    properties: &Properties,
) -> Option<Strong> {
    let bytes = memory.id().this::<Buffer>().memory.clone();
    let image = match Image::of_buffer(shape, bytes, offset, row) {
        Ok(image) => image,
        Err(error) => {
            refuse(Rule::Range, format!("{error}: Metal asserts it"));
            return None;
        }
    };
    let texture = Texture {
        device: device.again(),
        memory,
        image,
        kind: properties.number(c"textureType"),
        usage: properties.number(c"usage"),
        linear,
        options: options(properties),
        purgeable: AtomicUsize::new(2),
    };
    Some(Strong::new(&TEXTURE, texture))
}
