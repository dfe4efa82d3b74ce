//! Samplers: from coordinates to texels and what each counts.

use serde::Serialize;

/// What coordinates count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Coordinates {
    /// Parts of the whole: 0 to 1.
    #[default]
    Normalized,
    /// Texels.
    Pixel,
}

/// What lies beyond the edges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// Zeros.
    ClampToZero,
    /// The texels at the edges.
    #[default]
    ClampToEdge,
    /// The border colour.
    ClampToBorder,
    /// The texture once more.
    Repeat,
    /// The texture in a mirror.
    MirroredRepeat,
}

/// How a value between texels is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// The texel it lies in.
    #[default]
    Nearest,
    /// Of those around it, by how near they are.
    Linear,
}

/// What [`Address::ClampToBorder`] gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are Metal's")]
pub enum BorderColor {
    #[default]
    TransparentBlack,
    OpaqueBlack,
    OpaqueWhite,
}

/// How a texture is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
pub struct Sampler {
    /// What coordinates count.
    pub coordinates: Coordinates,
    /// What lies beyond the edges of each axis.
    pub address: [Address; 3],
    /// How a value between texels is made at level 0 and below.
    pub mag_filter: Filter,
    /// And above.
    pub min_filter: Filter,
    /// What lies beyond the edges where `address` says so.
    pub border: BorderColor,
}

/// Where the parts of a sampler are in what kernels have of it (`msl_abi.h`).
mod bits {
    pub(super) const ADDRESSES: [u32; 3] = [1, 4, 7];
    pub(super) const MAG: u32 = 10;
    pub(super) const MIN: u32 = 11;
    pub(super) const BORDER: u32 = 12;
}

impl Sampler {
    /// Both filters linear.
    #[must_use]
    pub fn linear(mut self) -> Self {
        (self.mag_filter, self.min_filter) = (Filter::Linear, Filter::Linear);
        self
    }

    /// What lies beyond the edges of all axes.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.address = [address; 3];
        self
    }

    /// Whether Metal has such a sampler: coordinates in texels do not repeat.
    pub fn is_valid(self) -> bool {
        let repeats = |address: &Address| matches!(address, Address::Repeat | Address::MirroredRepeat);
        self.coordinates == Coordinates::Normalized || !self.address.iter().any(repeats)
    }

    /// The sampler that a kernel has written down. Bits that say nothing count as the default.
    pub(crate) fn of_bits(bits: u32) -> Self {
        let address = |shift: u32| match bits >> shift & 7 {
            0 => Address::ClampToZero,
            2 => Address::ClampToBorder,
            3 => Address::Repeat,
            4 => Address::MirroredRepeat,
            _ => Address::ClampToEdge,
        };
        let filter = |shift: u32| if bits >> shift & 1 == 0 { Filter::Nearest } else { Filter::Linear };
        Self {
            coordinates: if bits & 1 == 0 { Coordinates::Normalized } else { Coordinates::Pixel },
            address: bits::ADDRESSES.map(address),
            mag_filter: filter(bits::MAG),
            min_filter: filter(bits::MIN),
            border: match bits >> bits::BORDER & 3 {
                1 => BorderColor::OpaqueBlack,
                2 => BorderColor::OpaqueWhite,
                _ => BorderColor::TransparentBlack,
            },
        }
    }

    /// The filter for a level of detail.
    pub(crate) fn filter(self, level: f32) -> Filter {
        if level > 0.0 { self.min_filter } else { self.mag_filter }
    }

    /// The texels of one axis of `size` that `at` asks for, and what the second of two counts.
    pub(crate) fn axis(self, axis: usize, size: u32, at: f32, offset: i32, filter: Filter) -> Axis {
        let scale = if self.coordinates == Coordinates::Normalized { size as f32 } else { 1.0 };
        // Farther out is as good as here, and can be counted.
        let position = (at * scale + offset as f32).clamp(-1e9, 1e9);
        let wrapped = |index: i64| self.wrapped(axis, size, index);
        match filter {
            Filter::Nearest => {
                let texel = wrapped(position.floor() as i64);
                Axis { texels: [texel, texel], second: 0.0 }
            }
            Filter::Linear => {
                let first = (position - 0.5).floor();
                let texels = [wrapped(first as i64), wrapped(first as i64 + 1)];
                Axis { texels, second: position - 0.5 - first }
            }
        }
    }

    /// The texel of an axis that an index stands for; nothing beyond an edge that has a colour of its own.
    fn wrapped(self, axis: usize, size: u32, index: i64) -> Option<u32> {
        let size = i64::from(size.max(1));
        let inside = (0..size).contains(&index);
        Some(match self.address[axis] {
            Address::ClampToZero | Address::ClampToBorder => inside.then_some(index)?,
            Address::ClampToEdge => index.clamp(0, size - 1),
            Address::Repeat => index.rem_euclid(size),
            Address::MirroredRepeat => {
                let turn = index.rem_euclid(2 * size);
                if turn < size { turn } else { 2 * size - 1 - turn }
            }
        } as u32)
    }

    /// What lies beyond the edges: `alpha` says whether the format has a fourth component.
    pub(crate) fn beyond(self, alpha: bool) -> [f32; 4] {
        // Which axis left the texture does not matter: a sampler of several has one colour.
        let border = self.address.contains(&Address::ClampToBorder).then_some(self.border);
        match border {
            Some(BorderColor::TransparentBlack) => [0.0; 4],
            Some(BorderColor::OpaqueBlack) => [0.0, 0.0, 0.0, 1.0],
            Some(BorderColor::OpaqueWhite) => [1.0; 4],
            // Without an alpha channel zero is opaque.
            None => [0.0, 0.0, 0.0, if alpha { 0.0 } else { 1.0 }],
        }
    }
}

/// Two texels of an axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Axis {
    pub(crate) texels: [Option<u32>; 2],
    /// What the second counts; the first counts the rest.
    pub(crate) second: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_beyond_the_edges_are_what_the_address_says() {
        use Address as A;
        for (address, index, texel) in [
            (A::ClampToEdge, -3, Some(0)),
            (A::ClampToEdge, 7, Some(3)),
            (A::ClampToZero, 4, None),
            (A::ClampToBorder, 3, Some(3)),
            (A::Repeat, -1, Some(3)),
            (A::Repeat, 9, Some(1)),
            (A::MirroredRepeat, -1, Some(0)),
            (A::MirroredRepeat, 4, Some(3)),
            (A::MirroredRepeat, 7, Some(0)),
            (A::MirroredRepeat, 8, Some(0)),
        ] {
            assert_eq!(
                Sampler::default().address(address).wrapped(0, 4, index),
                texel,
                "{address:?} {index}"
            );
        }
    }

    #[test]
    fn a_point_between_two_texels_counts_both() {
        let axis = Sampler::default().axis(0, 4, 0.5, 0, Filter::Linear);
        assert_eq!(axis, Axis { texels: [Some(1), Some(2)], second: 0.5 });
        let nan = Sampler::default().axis(0, 4, f32::NAN, 0, Filter::Linear);
        assert!(nan.texels[0].is_some());
        let pixel = Sampler { coordinates: Coordinates::Pixel, ..Sampler::default() };
        assert_eq!(pixel.axis(0, 4, 2.75, -1, Filter::Nearest).texels[0], Some(1));
        assert!(!pixel.address(Address::Repeat).is_valid());
    }
}
