//! Textures and samplers of a program, and what Metal refuses about them.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_foundation::NSString;
use objc2_metal::*;
use softmetal_framework::{Rule, leaks, problems};

use super::{Device, Encoder, Pipeline, alone};

const SHADE: &str = "#include <metal_stdlib>
using namespace metal;
kernel void shade(texture2d<float> from [[texture(0)]], texture2d<float, access::write> to [[texture(1)]],
                  sampler how [[sampler(0)]], uint2 at [[thread_position_in_grid]]) {
    to.write(from.sample(how, (float2(at) + 1) / float2(from.get_width(), from.get_height())), at);
}
";

type Texture = Retained<ProtocolObject<dyn MTLTexture>>;

fn pipeline(device: &Device) -> Pipeline {
    let library =
        device.newLibraryWithSource_options_error(&NSString::from_str(SHADE), None).expect("compiles");
    let function = library.newFunctionWithName(&NSString::from_str("shade")).expect("is there");
    device.newComputePipelineStateWithFunction_error(&function).expect("a pipeline")
}

fn descriptor(format: MTLPixelFormat, usage: MTLTextureUsage) -> Retained<MTLTextureDescriptor> {
    // SAFETY: the sizes are those of a texture.
    let made = unsafe {
        MTLTextureDescriptor::texture2DDescriptorWithPixelFormat_width_height_mipmapped(format, 2, 2, false)
    };
    made.setUsage(usage);
    made
}

fn whole() -> MTLRegion {
    MTLRegion { origin: MTLOrigin { x: 0, y: 0, z: 0 }, size: MTLSize { width: 2, height: 2, depth: 1 } }
}

fn bytes_of(texture: &Texture) -> [u8; 4] {
    let mut bytes = [0xEE_u8; 12];
    let pointer = NonNull::from(&mut bytes).cast::<c_void>();
    // SAFETY: two rows of two bytes, eight apart, lie in twelve.
    unsafe { texture.getBytes_bytesPerRow_fromRegion_mipmapLevel(pointer, 8, whole(), 0) };
    assert_eq!(bytes[2..8], [0xEE; 6], "what lies between rows is the caller's");
    [bytes[0], bytes[1], bytes[8], bytes[9]]
}

/// Shades one texture by another.
fn shade(device: &Device, bind: impl FnOnce(&Encoder)) {
    let queue = device.newCommandQueue().expect("a queue");
    let commands = queue.commandBuffer().expect("a command buffer");
    let encoder = commands.computeCommandEncoder().expect("an encoder");
    encoder.setComputePipelineState(&pipeline(device));
    bind(&encoder);
    let size = MTLSize { width: 2, height: 2, depth: 1 };
    let dispatched =
        catch_unwind(AssertUnwindSafe(|| encoder.dispatchThreads_threadsPerThreadgroup(size, size)));
    encoder.endEncoding();
    if let Err(panic) = dispatched {
        std::panic::resume_unwind(panic);
    }
    commands.commit();
    commands.waitUntilCompleted();
    assert_eq!(commands.status(), MTLCommandBufferStatus::Completed);
}

fn sampler(device: &Device) -> Retained<ProtocolObject<dyn MTLSamplerState>> {
    let descriptor = MTLSamplerDescriptor::new();
    descriptor.setMagFilter(MTLSamplerMinMagFilter::Linear);
    descriptor.setSAddressMode(MTLSamplerAddressMode::Repeat);
    assert!(descriptor.normalizedCoordinates() && descriptor.lodMaxClamp() > 1e30);
    device.newSamplerStateWithDescriptor(&descriptor).expect("a sampler")
}

#[test]
fn a_kernel_samples_one_texture_and_writes_another_that_lies_in_a_buffer() {
    let _alone = alone();
    autoreleasepool(|_| {
        let device = MTLCreateSystemDefaultDevice().expect("a device");
        let from = device
            .newTextureWithDescriptor(&descriptor(MTLPixelFormat::R8Unorm, MTLTextureUsage::ShaderRead));
        let from = from.expect("a texture");
        let texels = [0_u8, 100, 50, 250];
        // SAFETY: two rows of two bytes.
        unsafe {
            from.replaceRegion_mipmapLevel_withBytes_bytesPerRow(
                whole(),
                0,
                NonNull::from(&texels).cast(),
                2,
            );
        }
        assert_eq!(bytes_of(&from), texels);
        assert_eq!((from.width(), from.height(), from.pixelFormat()), (2, 2, MTLPixelFormat::R8Unorm));

        let buffer =
            device.newBufferWithLength_options(64, MTLResourceOptions::StorageModeShared).expect("a buffer");
        let written = descriptor(MTLPixelFormat::R8Unorm, MTLTextureUsage::ShaderWrite);
        let to = buffer.newTextureWithDescriptor_offset_bytesPerRow(&written, 16, 16).expect("a texture");
        assert_eq!((to.bufferOffset(), to.bufferBytesPerRow()), (16, 16));
        let sampler = sampler(&device);
        shade(&device, |encoder| {
            // SAFETY: indices that the kernel has.
            unsafe {
                encoder.setTexture_atIndex(Some(&from), 0);
                encoder.setTexture_atIndex(Some(&to), 1);
                encoder.setSamplerState_atIndex(Some(&sampler), 0);
            }
        });
        // Half way between columns, of which the first follows the last, and below the last row that row.
        assert_eq!(bytes_of(&to), [100, 100, 150, 150]);
        // SAFETY: nothing writes it any more.
        let raw = unsafe { std::slice::from_raw_parts(buffer.contents().as_ptr().cast::<u8>(), 64) };
        assert_eq!((raw[16..18].to_vec(), raw[32..34].to_vec()), (vec![100, 100], vec![150, 150]));
    });
    assert!(problems().is_empty());
    assert!(leaks().is_empty());
}

#[test]
fn what_metal_asserts_about_textures_is_refused() {
    let _alone = alone();
    let refused = |what: &str, program: &dyn Fn(&Device)| {
        autoreleasepool(|_| {
            let device = MTLCreateSystemDefaultDevice().expect("a device");
            let done = catch_unwind(AssertUnwindSafe(|| program(&device)));
            assert!(done.is_err(), "{what} is refused");
        });
        let found = problems();
        assert!(found.iter().any(|problem| problem.text.contains(what)), "{what}: {found:?}");
        found.first().map(|problem| problem.rule)
    };
    let bound = |device: &Device, read: MTLTextureUsage, write: bool| {
        let made = |usage| {
            device.newTextureWithDescriptor(&descriptor(MTLPixelFormat::R8Unorm, usage)).expect("a texture")
        };
        let (from, to) = (made(read), made(MTLTextureUsage::ShaderWrite));
        let sampler = sampler(device);
        shade(device, |encoder| {
            // SAFETY: indices that the kernel has.
            unsafe {
                encoder.setTexture_atIndex(Some(&from), 0);
                encoder.setTexture_atIndex(write.then_some(&*to), 1);
                encoder.setSamplerState_atIndex(Some(&sampler), 0);
            }
        });
    };
    let missing = refused("nothing is bound to texture 1, argument `to`", &|device| {
        bound(device, MTLTextureUsage::ShaderRead, false);
    });
    assert_eq!(missing, Some(Rule::MissingBinding));
    refused("its usage lacks MTLTextureUsageShaderRead", &|device| {
        bound(device, MTLTextureUsage::RenderTarget, true)
    });
    refused("a texture of 2 levels", &|device| {
        // SAFETY: the sizes are those of a texture.
        let made = unsafe {
            MTLTextureDescriptor::texture2DDescriptorWithPixelFormat_width_height_mipmapped(
                MTLPixelFormat::R8Unorm,
                2,
                2,
                true,
            )
        };
        device.newTextureWithDescriptor(&made);
    });
    refused("a width of 20000", &|device| {
        let made = descriptor(MTLPixelFormat::R8Unorm, MTLTextureUsage::ShaderRead);
        // SAFETY: what Metal refuses is what is tried.
        unsafe { made.setWidth(20_000) };
        device.newTextureWithDescriptor(&made);
    });
    refused("MTLPixelFormat 71", &|device| {
        device.newTextureWithDescriptor(&descriptor(
            MTLPixelFormat::RGBA8Unorm_sRGB,
            MTLTextureUsage::ShaderRead,
        ));
    });
    refused("a sampler that repeats", &|device| {
        let made = MTLSamplerDescriptor::new();
        made.setTAddressMode(MTLSamplerAddressMode::MirrorRepeat);
        made.setNormalizedCoordinates(false);
        device.newSamplerStateWithDescriptor(&made);
    });
}
