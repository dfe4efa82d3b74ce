//! Textures and samplers of a dispatch, held against what the kernel takes.

use super::{Problem, bind::Bindings};
use crate::{
    check::{Kind, Report, binding},
    library::{Argument, ArgumentKind, Kernel, TextureArgument},
    runtime::abi::{MAX_SAMPLERS, MAX_TEXTURES, texture_key},
    texture::Sampler,
};

/// The parameters that see a texture slot.
pub(super) fn arguments_of(kernel: &Kernel, slot: u32) -> impl Iterator<Item = (&Argument, TextureArgument)> {
    kernel.arguments.iter().filter_map(move |argument| match (argument.kind, argument.texture) {
        (ArgumentKind::Texture(first), Some(texture)) => {
            (first..first.saturating_add(texture.count)).contains(&slot).then_some((argument, texture))
        }
        _ => None,
    })
}

impl Bindings<'_> {
    /// Refuses slots that no kernel can have, and samplers that Metal has not.
    pub(super) fn verify_slots(&self) -> Result<(), Problem> {
        if let Some(&index) = self.textures.keys().find(|slot| **slot as usize >= MAX_TEXTURES) {
            return Err(Problem::NoTextureSlot { index });
        }
        match self
            .samplers
            .iter()
            .find(|(slot, sampler)| **slot as usize >= MAX_SAMPLERS || !sampler.is_valid())
        {
            Some((&index, sampler)) if sampler.is_valid() => Err(Problem::NoSamplerSlot { index }),
            Some((&index, _)) => Err(Problem::Sampler { index }),
            None => Ok(()),
        }
    }

    /// Refuses textures that do not fit; reports arguments that nothing is bound to.
    pub(super) fn verify_textures(&self, kernel: &Kernel, source: &str) -> Result<Vec<Report>, Problem> {
        for (&index, texture) in &self.textures {
            let shape = texture.shape();
            for (argument, taken) in arguments_of(kernel, index) {
                let encoding = shape.format.encoding();
                if shape.kind != taken.kind || !taken.texel.takes(encoding) {
                    return Err(Problem::Texture {
                        index,
                        argument: argument.name.clone(),
                        found: format!("{} of {}", shape.kind, shape.format.name()),
                        needed: format!("{}<{}>", taken.kind, taken.texel.name()),
                    });
                }
                if taken.writes() && texture.buffer().read_only() {
                    return Err(Problem::ReadOnlyTexture { index, argument: argument.name.clone() });
                }
            }
        }
        let unbound = kernel.arguments.iter().filter(|argument| !argument.optional).flat_map(|argument| {
            let (what, slots) = match (argument.kind, argument.texture) {
                (ArgumentKind::Texture(first), taken) => {
                    ("texture", first..first + taken.map_or(1, |taken| taken.count))
                }
                (ArgumentKind::Sampler(slot), _) => ("sampler", slot..slot + 1),
                (ArgumentKind::Buffer(_) | ArgumentKind::Threadgroup(_) | ArgumentKind::BuiltIn(_), _) => {
                    ("", 0..0)
                }
            };
            slots.map(move |slot| (argument, what, slot))
        });
        let missing = unbound.filter(|(_, what, slot)| match *what {
            "texture" => !self.textures.contains_key(slot),
            _ => !self.samplers.contains_key(slot),
        });
        let reports = missing.map(|(argument, what, slot)| {
            let text =
                format!("nothing is bound to {what} {slot} (`{}`); the kernel was not run", argument.name);
            let report = binding(&kernel.name, source, Kind::UnboundTexture, texture_key(slot), text);
            Report { texture: report.texture.filter(|_| what == "texture"), ..report }
        });
        Ok(reports.collect())
    }

    pub(super) fn sampler_slots(&self) -> Vec<Option<Sampler>> {
        let mut slots = vec![None; self.samplers.keys().max().map_or(0, |slot| *slot as usize + 1)];
        for (&slot, &sampler) in &self.samplers {
            slots[slot as usize] = Some(sampler);
        }
        slots
    }
}
