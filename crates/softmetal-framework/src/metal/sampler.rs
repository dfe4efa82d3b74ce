//! `MTLSamplerState`.

use softmetal::Sampler;
use softmetal::texture::{Address, BorderColor, Coordinates, Filter};

use super::descriptor::{Properties, properties};
use super::device::Device;
use super::labels;
use crate::foundation::NS_OBJECT;
use crate::objc::{Id, Method, Strong, This, class, lend, methods, none, raw_methods};
use crate::problem::{Rule, refuse};

class!(static SAMPLER = c"MTLSoftSamplerState", &NS_OBJECT, all, none);
class!(pub(crate) static DESCRIPTOR = c"MTLSamplerDescriptor", &NS_OBJECT, properties, none);

/// Samplers that a kernel can have.
pub(crate) const SLOTS: usize = 16;

fn properties() -> Vec<Method> {
    let mut all = properties! {
        c"minFilter" c"setMinFilter:" usize;
        c"magFilter" c"setMagFilter:" usize;
        c"mipFilter" c"setMipFilter:" usize;
        c"maxAnisotropy" c"setMaxAnisotropy:" usize;
        c"sAddressMode" c"setSAddressMode:" usize;
        c"tAddressMode" c"setTAddressMode:" usize;
        c"rAddressMode" c"setRAddressMode:" usize;
        c"borderColor" c"setBorderColor:" usize;
        c"normalizedCoordinates" c"setNormalizedCoordinates:" bool;
        c"lodAverage" c"setLodAverage:" bool;
        c"compareFunction" c"setCompareFunction:" usize;
        c"supportArgumentBuffers" c"setSupportArgumentBuffers:" bool;
        c"label" c"setLabel:" object;
    };
    // Textures here have one level, whatever the clamps say.
    all.extend(methods! { Properties;
        c"lodMinClamp"(this) -> f32 { f32::from_bits(this.number(c"lodMinClamp") as u32) }
        c"setLodMinClamp:"(this, value: f32) { this.set(c"lodMinClamp", value.to_bits() as usize); }
        c"lodMaxClamp"(this) -> f32 { f32::from_bits(this.number(c"lodMaxClamp") as u32) }
        c"setLodMaxClamp:"(this, value: f32) { this.set(c"lodMaxClamp", value.to_bits() as usize); }
    });
    all.extend(raw_methods! {
        c"init"(this) -> Id {
            this.initialise(Properties::of(&[
                (c"maxAnisotropy", 1), (c"normalizedCoordinates", 1), (c"lodMaxClamp", f32::MAX.to_bits() as usize)
            ]))
        }
    });
    all
}

/// What an `MTLSamplerState` holds.
pub(crate) struct State {
    pub(crate) device: This<Device>,
    pub(crate) sampler: Sampler,
}

fn all() -> Vec<Method> {
    let mut all = methods! { State;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
    };
    all.extend(labels());
    all
}

/// `newSamplerStateWithDescriptor:`.
pub(crate) fn new(device: &This<Device>, descriptor: Id) -> Option<Strong> {
    let properties = descriptor.this::<Properties>();
    let sampler = Sampler {
        coordinates: match properties.number(c"normalizedCoordinates") {
            0 => Coordinates::Pixel,
            _ => Coordinates::Normalized,
        },
        address: [
            address(properties.number(c"sAddressMode"))?,
            address(properties.number(c"tAddressMode"))?,
            address(properties.number(c"rAddressMode"))?,
        ],
        mag_filter: filter(properties.number(c"magFilter")),
        min_filter: filter(properties.number(c"minFilter")),
        border: match properties.number(c"borderColor") {
            1 => BorderColor::OpaqueBlack,
            2 => BorderColor::OpaqueWhite,
            _ => BorderColor::TransparentBlack,
        },
    };
    if !sampler.is_valid() {
        refuse(
            Rule::Descriptor,
            "a sampler that repeats, with coordinates in texels: Metal asserts that those clamp".to_owned(),
        );
    }
    let made = Strong::new(&SAMPLER, State { device: device.again(), sampler });
    let label = properties.object(c"label");
    made.id().set_label(label.map(|label| crate::foundation::text(label.id())));
    Some(made)
}

fn filter(number: usize) -> Filter {
    if number == 0 { Filter::Nearest } else { Filter::Linear }
}

/// By the numbers of `MTLSamplerAddressMode`.
fn address(number: usize) -> Option<Address> {
    Some(match number {
        0 => Address::ClampToEdge,
        2 => Address::Repeat,
        3 => Address::MirroredRepeat,
        4 => Address::ClampToZero,
        5 => Address::ClampToBorder,
        other => {
            refuse(
                Rule::Descriptor,
                format!(
                    "a sampler of MTLSamplerAddressMode {other}, which is not among those that are run here"
                ),
            );
            return None;
        }
    })
}
