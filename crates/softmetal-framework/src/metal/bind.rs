//! What commands are made of, and whether a dispatch has all that its kernel needs.

use std::collections::BTreeMap;
use std::sync::Arc;

use softmetal::{Argument, ArgumentKind, Kernel, Sampler, TextureArgument};

use super::buffer::Buffer;
use super::counters::Samples;
use super::pipeline::State;
use super::texture::Texture;
use crate::objc::{Id, MtlSize, Strong, This};
use crate::problem::{Rule, refuse};

/// Buffers that a kernel can have.
pub(crate) const SLOTS: usize = 31;
/// Bytes that `setBytes` takes.
pub(crate) const MOST_BYTES: usize = 4096;
/// Threadgroup arguments that a kernel can have.
pub(crate) const THREADGROUP_SLOTS: usize = 31;
const THREADGROUP_ALIGNMENT: usize = 16;

/// An object that a command uses, held or not as its command buffer does.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) id: Id,
    _strong: Option<Strong>,
}

impl Held {
    pub(crate) fn new(id: Id, retained: bool) -> Held {
        Held { id, _strong: retained.then(|| Strong::retained(id)).flatten() }
    }
}

/// What is bound to an index.
#[derive(Clone)]
pub(crate) enum Slot {
    Buffer { held: Held, buffer: Arc<Buffer>, offset: usize },
    Bytes(Vec<u8>),
    Texture { held: Held, texture: Arc<Texture>, buffer: Arc<Buffer> },
    Sampler { held: Held, sampler: Sampler },
}

impl Slot {
    /// Bytes that a kernel sees.
    fn len(&self) -> usize {
        match self {
            Slot::Buffer { buffer, offset, .. } => buffer.len().saturating_sub(*offset),
            Slot::Bytes(bytes) => bytes.len(),
            Slot::Texture { .. } | Slot::Sampler { .. } => 0,
        }
    }
}

/// How many threads run.
#[derive(Clone)]
pub(crate) enum Grid {
    Groups(MtlSize),
    Threads(MtlSize),
    /// Groups, as a buffer says when the command runs.
    Indirect {
        held: Held,
        buffer: Arc<Buffer>,
        offset: usize,
    },
}

pub(crate) struct Dispatch {
    pub(crate) pipeline: Held,
    pub(crate) state: Arc<State>,
    pub(crate) slots: BTreeMap<u32, Slot>,
    pub(crate) threadgroup: BTreeMap<u32, u32>,
    pub(crate) grid: Grid,
    pub(crate) threads: MtlSize,
    /// Buffers and heaps that the encoder was told of, for kernels that reach them by addresses.
    pub(crate) resident: Vec<Id>,
}

impl Dispatch {
    pub(crate) fn name(&self) -> &str {
        &self.state.pipeline.kernel().name
    }

    /// Buffers that the kernel uses, and whether it may write them.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (&Arc<Buffer>, Id, bool)> {
        let kernel = self.state.pipeline.kernel();
        let bound = self.slots.iter().filter_map(|(index, slot)| match slot {
            Slot::Buffer { held, buffer, .. } => {
                let mut own =
                    kernel.arguments.iter().filter(|a| a.kind == ArgumentKind::Buffer(*index)).peekable();
                own.peek()?;
                Some((buffer, held.id, own.any(Argument::writes)))
            }
            Slot::Texture { held, buffer, .. } => {
                let mut own = texture_arguments(kernel, *index).peekable();
                own.peek()?;
                Some((buffer, held.id, own.any(|(_, texture)| texture.writes())))
            }
            Slot::Bytes(_) | Slot::Sampler { .. } => None,
        });
        let indirect = match &self.grid {
            Grid::Indirect { held, buffer, .. } => Some((buffer, held.id, false)),
            Grid::Groups(_) | Grid::Threads(_) => None,
        };
        bound.chain(indirect)
    }
}

/// What a library of Apple's does on the GPU, and the host does here.
pub(crate) struct Work {
    pub(crate) name: String,
    /// Buffers, and whether they are written.
    pub(crate) uses: Vec<(Held, Arc<Buffer>, bool)>,
    pub(crate) run: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// One command of an encoder.
pub(crate) enum Step {
    Dispatch(Box<Dispatch>),
    Work(Work),
    /// What follows waits for what came before.
    Barrier,
    Copy {
        from: (Held, Arc<Buffer>, usize),
        to: (Held, Arc<Buffer>, usize),
        len: usize,
    },
    Fill {
        to: (Held, Arc<Buffer>, usize),
        len: usize,
        value: u8,
    },
    Sample {
        held: Held,
        samples: Arc<Samples>,
        index: usize,
    },
    UpdateFence(Held),
    WaitForFence(Held),
}

impl Step {
    /// Whether a kernel of it takes textures.
    pub(crate) fn has_textures(&self) -> bool {
        let Step::Dispatch(dispatch) = self else { return false };
        dispatch.slots.values().any(|slot| matches!(slot, Slot::Texture { .. }))
    }

    fn objects(&self) -> Vec<Id> {
        match self {
            Step::Dispatch(dispatch) => {
                let slots = dispatch.slots.values().filter_map(|slot| match slot {
                    Slot::Buffer { held, .. } | Slot::Texture { held, .. } | Slot::Sampler { held, .. } => {
                        Some(held.id)
                    }
                    Slot::Bytes(_) => None,
                });
                let indirect = match &dispatch.grid {
                    Grid::Indirect { held, .. } => Some(held.id),
                    Grid::Groups(_) | Grid::Threads(_) => None,
                };
                slots.chain(indirect).chain([dispatch.pipeline.id]).collect()
            }
            Step::Work(work) => work.uses.iter().map(|(held, ..)| held.id).collect(),
            Step::Barrier => Vec::new(),
            Step::Copy { from, to, .. } => vec![from.0.id, to.0.id],
            Step::Fill { to, .. } => vec![to.0.id],
            Step::Sample { held, .. } | Step::UpdateFence(held) | Step::WaitForFence(held) => vec![held.id],
        }
    }

    /// Buffers that it uses, and whether it may write them.
    pub(crate) fn uses(&self) -> Vec<(Arc<Buffer>, Id, bool)> {
        match self {
            Step::Dispatch(dispatch) => dispatch.uses().map(|(b, id, w)| (b.clone(), id, w)).collect(),
            Step::Work(work) => work.uses.iter().map(|(held, b, w)| (b.clone(), held.id, *w)).collect(),
            Step::Copy { from, to, .. } => {
                vec![(from.1.clone(), from.0.id, false), (to.1.clone(), to.0.id, true)]
            }
            Step::Fill { to, .. } => vec![(to.1.clone(), to.0.id, true)],
            Step::Barrier | Step::Sample { .. } | Step::UpdateFence(_) | Step::WaitForFence(_) => Vec::new(),
        }
    }
}

pub(crate) enum PassKind {
    Encoder { label: String, concurrent: bool, steps: Vec<Step> },
    Wait(Held, u64),
    Signal(Held, u64),
}

/// Where the times of a pass's ends go: a buffer of samples and two places in it.
pub(crate) struct PassSampling {
    pub(crate) held: Held,
    pub(crate) samples: Arc<Samples>,
    pub(crate) places: [usize; 2],
}

/// What one encoder left.
pub(crate) struct Pass {
    pub(crate) kind: PassKind,
    pub(crate) sampling: Vec<PassSampling>,
}

impl Pass {
    pub(crate) fn new(kind: PassKind) -> Pass {
        Pass { kind, sampling: Vec::new() }
    }

    /// Everything it uses.
    pub(crate) fn objects(&self) -> Vec<Id> {
        let mut all = match &self.kind {
            PassKind::Encoder { steps, .. } => steps.iter().flat_map(Step::objects).collect(),
            PassKind::Wait(held, _) | PassKind::Signal(held, _) => vec![held.id],
        };
        all.extend(self.sampling.iter().map(|sampling| sampling.held.id));
        all
    }
}

/// Refuses a dispatch that Metal's validation layer would.
pub(crate) fn check(dispatch: &Dispatch, label: &str) {
    let kernel = dispatch.state.pipeline.kernel();
    let who = format!("kernel `{}`{label}", kernel.name);
    check_threads(dispatch, &who);
    let mut threadgroup_bytes = 0;
    for argument in &kernel.arguments {
        match argument.kind {
            ArgumentKind::Buffer(index) => match dispatch.slots.get(&index) {
                None if dispatch.state.leaves_out(argument) => {}
                None => refuse(
                    Rule::MissingBinding,
                    format!(
                        "{who}: nothing is bound to buffer {index}, argument `{}`: Metal asserts that something is, \
                             and a GPU without validation reads address 0",
                        argument.name
                    ),
                ),
                Some(slot) => check_slot(argument, index, slot, dispatch, &who),
            },
            ArgumentKind::Threadgroup(index) => match dispatch.threadgroup.get(&index) {
                None | Some(0) => refuse(
                    Rule::MissingBinding,
                    format!(
                        "{who}: threadgroup argument {index}, `{}`, has no length: Metal asserts one",
                        argument.name
                    ),
                ),
                Some(bytes) => threadgroup_bytes += *bytes as usize,
            },
            ArgumentKind::Texture(_) | ArgumentKind::Sampler(_) => check_image(argument, dispatch, &who),
            ArgumentKind::BuiltIn(_) => {}
        }
    }
    let most = dispatch.state.device.profile.threadgroup_memory;
    if threadgroup_bytes > most {
        refuse(
            Rule::Threadgroup,
            format!(
                "{who}: {threadgroup_bytes} bytes of threadgroup memory; the device has {most}, and Metal asserts it"
            ),
        );
    }
}

/// Textures and samplers lie among the slots, after the buffers.
pub(crate) fn texture_slot(index: u32) -> u32 {
    index.saturating_add(SLOTS as u32)
}

pub(crate) fn sampler_slot(index: u32) -> u32 {
    texture_slot(index.saturating_add(super::texture::SLOTS as u32))
}

/// The parameters that see a texture, by its place among the slots.
pub(crate) fn texture_arguments(
    kernel: &Kernel,
    slot: u32,
) -> impl Iterator<Item = (&Argument, TextureArgument)> {
    kernel.arguments.iter().filter_map(move |argument| match (argument.kind, argument.texture) {
        (ArgumentKind::Texture(first), Some(texture)) => {
            let (first, last) = (texture_slot(first), texture_slot(first + texture.count));
            (first..last).contains(&slot).then_some((argument, texture))
        }
        _ => None,
    })
}

/// Textures and samplers: each must be there, of the device, and used as it said.
fn check_image(argument: &Argument, dispatch: &Dispatch, who: &str) {
    let (what, indices) = match (argument.kind, argument.texture) {
        (ArgumentKind::Texture(first), Some(texture)) => ("texture", first..first + texture.count),
        (ArgumentKind::Sampler(index), _) => ("sampler", index..index + 1),
        _ => return,
    };
    for index in indices {
        let slot = if what == "texture" { texture_slot(index) } else { sampler_slot(index) };
        match dispatch.slots.get(&slot) {
            None if dispatch.state.leaves_out(argument) => {}
            None => refuse(
                Rule::MissingBinding,
                format!(
                    "{who}: nothing is bound to {what} {index}, argument `{}`: Metal asserts that something is",
                    argument.name
                ),
            ),
            Some(Slot::Texture { texture, .. }) => {
                let writes = argument.texture.is_some_and(|texture| texture.writes());
                texture.check_usage(writes, &format!("{who}: texture {index}, argument `{}`", argument.name));
            }
            Some(Slot::Sampler { .. } | Slot::Buffer { .. } | Slot::Bytes(_)) => {}
        }
    }
}

fn check_slot(argument: &Argument, index: u32, slot: &Slot, dispatch: &Dispatch, who: &str) {
    let needed = argument.element_size as usize;
    if !argument.pointer && slot.len() < needed {
        refuse(
            Rule::Range,
            format!(
                "{who}: buffer {index} has {} bytes behind its offset, argument `{}` needs {needed}: Metal asserts \
                     that it has",
                slot.len(),
                argument.name
            ),
        );
    }
    let Slot::Buffer { buffer, offset, held } = slot else { return };
    if buffer.device.id != dispatch.state.device.id {
        refuse(Rule::Device, format!("{who}: {} at {index} is of another device", held.id.describe()));
    }
    let mut align = (argument.alignment as usize).max(1);
    let mut words = argument.type_text.split(|c: char| !c.is_alphanumeric() && c != '_');
    if words.any(|word| word == "constant") {
        align = align.max(dispatch.state.device.profile.constant_alignment);
    }
    if !offset.is_multiple_of(align) {
        refuse(
            Rule::Alignment,
            format!(
                "{who}: offset {offset} of buffer {index}, argument `{}`, is no multiple of {align}: a GPU reads \
                     from another place than was meant",
                argument.name
            ),
        );
    }
    if argument.writes() && buffer.memory.read_only() {
        refuse(
            Rule::StorageMode,
            format!(
                "{who}: argument `{}` may write {}, whose pages can only be read: the GPU would fault",
                argument.name,
                held.id.describe()
            ),
        );
    }
}

fn check_threads(dispatch: &Dispatch, who: &str) {
    let threads = dispatch.threads.axes();
    let total = threads.iter().try_fold(1_usize, |n, axis| n.checked_mul(*axis));
    let state = &dispatch.state;
    let device = &state.device.profile;
    if threads.contains(&0) {
        refuse(
            Rule::Threadgroup,
            format!("{who}: threadgroups of {threads:?} threads: Metal asserts at least one on each axis"),
        );
    }
    if total.is_none_or(|total| total > state.max_threads)
        || threads.iter().any(|axis| *axis > device.max_threads)
    {
        refuse(
            Rule::Threadgroup,
            format!(
                "{who}: threadgroups of {threads:?} threads: the pipeline allows {}, and Metal asserts it",
                state.max_threads
            ),
        );
    }
    if state.whole_simdgroups && total.is_some_and(|total| !total.is_multiple_of(device.simd_width)) {
        refuse(
            Rule::Threadgroup,
            format!(
                "{who}: threadgroups of {threads:?} threads are no whole simdgroups, as the pipeline was promised"
            ),
        );
    }
    let (Grid::Groups(grid) | Grid::Threads(grid)) = &dispatch.grid else { return };
    if grid.axes().contains(&0) {
        refuse(
            Rule::Threadgroup,
            format!("{who}: a grid of {:?}: Metal asserts at least one on each axis", grid.axes()),
        );
    }
    if grid.axes().iter().any(|axis| u32::try_from(*axis).is_err()) {
        refuse(
            Rule::Threadgroup,
            format!("{who}: a grid of {:?}: kernels count up to 2^32 - 1 on an axis", grid.axes()),
        );
    }
}

/// Refuses a length of threadgroup memory that cannot be.
pub(crate) fn check_threadgroup_length(length: usize, index: usize) {
    if !length.is_multiple_of(THREADGROUP_ALIGNMENT) {
        refuse(
            Rule::Alignment,
            format!(
                "{length} bytes of threadgroup memory: Metal asserts a multiple of {THREADGROUP_ALIGNMENT}"
            ),
        );
    }
    if index >= THREADGROUP_SLOTS {
        refuse(Rule::Range, format!("threadgroup argument {index}: there are {THREADGROUP_SLOTS}"));
    }
}

/// A buffer that a command names: it must be one, and of the device.
pub(crate) fn buffer(id: Id, device: Id, what: &str) -> This<Buffer> {
    let buffer = id.this::<Buffer>();
    if buffer.device.id != device {
        refuse(Rule::Device, format!("{what}: {} is of another device than the encoder", id.describe()));
    }
    buffer
}
