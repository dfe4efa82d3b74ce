//! What checked runs say of textures.

use super::{Checker, Finding, Kind, Verdict, Who};
use crate::{
    diagnostic::Severity,
    runtime::{Misuse, abi},
};

impl Checker {
    /// A use of the texture at `slot` that is not as it should be. Metal goes on, with zeros or without a write.
    pub(crate) fn misuse(
        &mut self,
        who: Who,
        slot: u32,
        misuse: Misuse,
        written: bool,
        pc: usize,
    ) -> Verdict {
        let then = if written { "nothing is written" } else { "zeros are read" };
        let (kind, severity, explanation) = match misuse {
            Misuse::Unbound => {
                let text = format!("no texture that fits is bound to texture {slot}; {then}");
                (Kind::UnboundTexture, Some(Severity::Error), text)
            }
            Misuse::UnboundSampler { slot } => {
                let text = format!("nothing is bound to sampler {slot}; {then}");
                (Kind::UnboundTexture, Some(Severity::Error), text)
            }
            Misuse::Outside { at, layer, level, shape } => {
                let axes = shape.kind.axes();
                let (at, size) = (shown(&at[..axes]), shown(&shape.size[..axes]));
                let layers =
                    |n: u32| if shape.kind.is_array() { format!(" of layer {n}") } else { String::new() };
                let count = if shape.kind.is_array() {
                    format!(" in {} layers", shape.layers)
                } else {
                    String::new()
                };
                let level = if level == 0 { String::new() } else { format!(" of level {level}") };
                let text = format!(
                    "texel {at}{}{level} of texture {slot}, which has {size}{count}; {then}",
                    layers(layer)
                );
                (Kind::TextureBounds, self.options.texture_bounds, text)
            }
            Misuse::Filter { format } => {
                let text = format!("texture {slot} is {}: the nearest texel was taken", format.name());
                (Kind::TextureFilter, Some(Severity::Error), text)
            }
        };
        if let Some(severity) = severity {
            let buffer = Some(abi::texture_key(slot));
            self.push(Finding { severity, buffer, ..Finding::error(kind, who, Some(pc), explanation) });
        }
        Verdict::Go
    }
}

/// `(3, 4)`
fn shown(numbers: &[u32]) -> String {
    let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    format!("({})", texts.join(", "))
}
