//! Texels as kernels read, write and sample them.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, Ordering::Relaxed};

use super::{abi, worker::Worker};
use crate::texture::{Encoding, Filter, Format, Sampler, Shape, Texture, TextureKind};

/// A texture that is bound to a slot of a dispatch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    shape: Shape,
    address: usize,
    row: usize,
    slice: usize,
    writable: bool,
}

impl View {
    /// The texels of a texture at an address: those of its buffer or of a copy of them, which the dispatch holds while it runs, as
    /// the job's other memory. They can be written if `writable`.
    pub(crate) fn of(texture: &Texture, address: usize, writable: bool) -> Self {
        let (row, slice) = (texture.row_stride(), texture.slice_stride());
        Self { shape: *texture.shape(), address, row, slice, writable }
    }

    /// Where a texel lies, if it is one of the texture.
    fn place(&self, at: [u32; 3], layer: u32) -> Option<usize> {
        let inside = (0..3).all(|axis| at[axis] < self.shape.size[axis]) && layer < self.shape.layers;
        let [x, y, z] = at.map(|n| n as usize);
        let column = x * self.shape.format.texel_bytes();
        inside.then(|| self.address + (z + layer as usize) * self.slice + y * self.row + column)
    }

    /// What a kernel sees of the texel at an address of [`View::place`].
    fn load(&self, place: usize) -> [u32; 4] {
        let format = self.shape.format;
        let (count, unit) = (format.components(), format.component_bytes());
        let mut stored = [0; 4];
        for (n, stored) in stored.iter_mut().enumerate().take(count) {
            let component = place + n * unit;
            // SAFETY: `place` is in the texture, which is held for this job; `Texture` sees to its size and alignment. Other threads may write the
            // same texel, as on a GPU, so it is read as an atomic.
            *stored = unsafe {
                match unit {
                    1 => u32::from((*(component as *const AtomicU8)).load(Relaxed)),
                    2 => u32::from((*(component as *const AtomicU16)).load(Relaxed)),
                    _ => (*(component as *const AtomicU32)).load(Relaxed),
                }
            };
        }
        format.decode(stored)
    }

    /// Writes the texel at an address of [`View::place`].
    fn store(&self, place: usize, value: [u32; 4]) {
        if !self.writable {
            return;
        }
        let format = self.shape.format;
        let (count, unit) = (format.components(), format.component_bytes());
        for (n, stored) in format.encode(value).into_iter().enumerate().take(count) {
            let component = place + n * unit;
            // SAFETY: as in `load`; it may be written (above).
            unsafe {
                match unit {
                    1 => (*(component as *const AtomicU8)).store(stored as u8, Relaxed),
                    2 => (*(component as *const AtomicU16)).store(stored as u16, Relaxed),
                    _ => (*(component as *const AtomicU32)).store(stored, Relaxed),
                }
            }
        }
    }
}

/// What a kernel did with a texture that it should not have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Misuse {
    /// Nothing is bound, or a texture of another kind.
    Unbound,
    /// No sampler is bound.
    UnboundSampler { slot: u32 },
    /// A texel that is not there.
    Outside { at: [u32; 3], layer: u32, level: u32, shape: Shape },
    /// A mixture of integers.
    Filter { format: Format },
}

/// One use of a texture, understood.
pub(crate) struct Use {
    pub(crate) slot: u32,
    view: Option<View>,
    pub(crate) misuse: Option<Misuse>,
    kind: Kind,
    /// The texels it looks at; nothing beyond an edge.
    texels: [Option<usize>; 8],
    count: usize,
    /// What each counts.
    weights: [f32; 8],
    sampler: Sampler,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Read,
    Write,
    Sample,
    Gather { component: usize },
    Nothing,
}

impl Use {
    /// The addresses of its texels, the bytes of each, and whether they are written.
    pub(crate) fn accesses(&self) -> (impl Iterator<Item = usize> + '_, usize, bool) {
        let bytes = self.view.map_or(0, |view| view.shape.format.texel_bytes());
        (self.texels[..self.count].iter().flatten().copied(), bytes, self.kind == Kind::Write)
    }

    fn nothing(slot: u32, misuse: Misuse) -> Self {
        Self {
            slot,
            view: None,
            misuse: Some(misuse),
            kind: Kind::Nothing,
            texels: [None; 8],
            count: 0,
            weights: [0.0; 8],
            sampler: Sampler::default(),
        }
    }

    /// What the kernel asks for.
    pub(crate) fn of(worker: &Worker<'_>, texel: &abi::Texel) -> Self {
        let slot = texel.handle.wrapping_sub(1);
        let view = worker.job.textures.get(slot as usize).copied().flatten();
        let is = |view: &View| view.shape.kind as u32 + 1 == texel.kind && of_type(view, texel.component);
        let Some(view) = view.filter(is) else { return Self::nothing(slot, Misuse::Unbound) };
        let empty = Self { view: Some(view), misuse: None, ..Self::nothing(slot, Misuse::Unbound) };
        match texel.op {
            abi::TEXTURE_READ => empty.at(Kind::Read, texel, view),
            abi::TEXTURE_WRITE => empty.at(Kind::Write, texel, view),
            _ => match sampler(worker, texel.sampler) {
                Ok(sampler) => empty.sampled(texel, view, sampler),
                Err(misuse) => Self { misuse: Some(misuse), ..empty },
            },
        }
    }

    /// A single texel.
    fn at(mut self, kind: Kind, texel: &abi::Texel, view: View) -> Self {
        let abi::Texel { at, layer, level, .. } = *texel;
        self.texels[0] = view.place(at, layer).filter(|_| level == 0);
        if self.texels[0].is_none() {
            self.misuse = Some(Misuse::Outside { at, layer, level, shape: view.shape });
        }
        (self.kind, self.count) = (kind, 1);
        self
    }

    /// The texels around a point.
    fn sampled(mut self, texel: &abi::Texel, view: View, sampler: Sampler) -> Self {
        let gather = texel.op == abi::TEXTURE_GATHER;
        let mut filter = if gather { Filter::Linear } else { sampler.filter(f32::from_bits(texel.level)) };
        if filter == Filter::Linear && !gather && !view.shape.format.encoding().is_float() {
            self.misuse = Some(Misuse::Filter { format: view.shape.format });
            filter = Filter::Nearest;
        }
        let axes = view.shape.kind.axes();
        let axis = |n: usize| {
            let offset = if gather && n == 2 { 0 } else { texel.offset[n] };
            sampler.axis(n, view.shape.size[n], f32::from_bits(texel.at[n]), offset, filter)
        };
        let found = [axis(0), axis(1), axis(2)];
        // A layer beyond the last is the last.
        let layer = texel.layer.min(view.shape.layers - 1);
        let corners = if filter == Filter::Linear { 1 << axes } else { 1 };
        for corner in 0..corners {
            let (mut at, mut weight, mut inside) = ([0; 3], 1.0, true);
            for n in 0..axes {
                let side = corner >> n & 1;
                weight *= if side == 0 { 1.0 - found[n].second } else { found[n].second };
                match found[n].texels[side] {
                    Some(texel) => at[n] = texel,
                    None => inside = false,
                }
            }
            self.texels[corner] = view.place(at, layer).filter(|_| inside);
            self.weights[corner] = weight;
        }
        (self.count, self.sampler) = (corners, sampler);
        self.kind = if gather {
            Kind::Gather { component: texel.offset[2].clamp(0, 3) as usize }
        } else {
            Kind::Sample
        };
        self
    }

    /// Does it; what the kernel then sees.
    pub(crate) fn run(&self, value: [u32; 4]) -> [u32; 4] {
        let Some(view) = self.view else { return [0; 4] };
        let load = |texel: usize| self.texels[texel].map(|place| view.load(place));
        match self.kind {
            Kind::Nothing => [0; 4],
            Kind::Read => load(0).unwrap_or_default(),
            Kind::Write => {
                if let Some(place) = self.texels[0] {
                    view.store(place, value);
                }
                value
            }
            // Counter-clockwise, from the lower left.
            Kind::Gather { component } => {
                [2, 3, 1, 0].map(|corner| load(corner).unwrap_or_else(|| self.beyond(&view))[component])
            }
            Kind::Sample if self.count == 1 => load(0).unwrap_or_else(|| self.beyond(&view)),
            Kind::Sample => {
                let mut sum = [0.0; 4];
                for corner in 0..self.count {
                    // What counts nothing is not multiplied: it may be infinite.
                    let weight = self.weights[corner];
                    if weight != 0.0 {
                        let texel = load(corner).unwrap_or_else(|| self.beyond(&view));
                        (0..4).for_each(|n| sum[n] += weight * f32::from_bits(texel[n]));
                    }
                }
                sum.map(f32::to_bits)
            }
        }
    }

    fn beyond(&self, view: &View) -> [u32; 4] {
        let format = view.shape.format;
        let color = self.sampler.beyond(format.components() == 4);
        if format.encoding().is_float() { color.map(f32::to_bits) } else { color.map(|n| n as u32) }
    }
}

/// Whether a kernel may have the texels as this type.
fn of_type(view: &View, component: u32) -> bool {
    match view.shape.format.encoding() {
        Encoding::Unorm | Encoding::Snorm | Encoding::Float => component < 2,
        Encoding::Uint => matches!(component, 3 | 5),
        Encoding::Sint => matches!(component, 2 | 4),
    }
}

fn sampler(worker: &Worker<'_>, bits: u32) -> Result<Sampler, Misuse> {
    if bits & abi::SAMPLER_BOUND == 0 {
        return Ok(Sampler::of_bits(bits));
    }
    let slot = bits & !abi::SAMPLER_BOUND;
    let bound = worker.job.samplers.get(slot as usize).copied().flatten();
    bound.ok_or(Misuse::UnboundSampler { slot })
}

/// Texels of an axis, or layers, of the texture that a kernel knows by `handle`; 0 if there is none.
pub(crate) fn extent(worker: &Worker<'_>, handle: u32, axis: u32) -> u32 {
    let view = worker.job.textures.get(handle.wrapping_sub(1) as usize).copied().flatten();
    view.map_or(0, |view| match axis {
        0..3 => view.shape.size[axis as usize],
        _ => view.shape.layers,
    })
}

const _: () = assert!(TextureKind::Texture1d as u32 == 0 && TextureKind::TextureBuffer as u32 == 5);
