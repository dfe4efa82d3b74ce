//! Commands are data: what runs, on which bytes, and what must wait for what.

use std::iter;
use std::sync::{Arc, OnceLock};

use crate::error::GpuError;
use crate::gpu::{BufferId, PipelineId};
use crate::graph::AttentionGraph;
use crate::kernels::{Call, Gemm, Launch, MAX_ARGS};

/// The alignment of weights in blocks of an even number of bytes.
const WEIGHT_ALIGN: usize = 2;

/// What a command does with bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads them.
    Read,
    /// Writes them, or some of them; what was there does not matter.
    Write,
    /// Reads and writes them.
    ReadWrite,
    /// Nothing: the argument is there, the kernel's constants leave it unused.
    Unused,
}

impl Access {
    fn reads(self) -> bool {
        matches!(self, Access::Read | Access::ReadWrite)
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Access::Write | Access::ReadWrite)
    }

    /// What is wrong with binding an argument this way that a kernel uses in its own: an access that is not told of is a
    /// barrier that is not there.
    fn unlike(self, kernel: Access) -> Option<&'static str> {
        match (self.writes(), kernel.writes()) {
            (true, false) => Some("bound for writing, the kernel only reads it"),
            (false, true) => Some("bound for reading, the kernel writes it"),
            _ if kernel.reads() && !self.reads() => Some("bound for writing alone, the kernel reads it too"),
            _ => None,
        }
    }
}

/// A range of bytes of a buffer that is known to lie inside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    buffer: BufferId,
    offset: usize,
    len: usize,
}

impl Region {
    /// All `len` bytes of a buffer. Only what made the buffer knows its length.
    pub(crate) fn whole(buffer: BufferId, len: usize) -> Region {
        Region { buffer, offset: 0, len }
    }

    /// The buffer.
    pub fn buffer(&self) -> BufferId {
        self.buffer
    }

    /// First byte.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A part of these bytes.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Region, GpuError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(Region { offset: self.offset + offset, len, ..*self }),
            _ => Err(GpuError::OutOfBounds { start: offset, end: offset.saturating_add(len), len: self.len }),
        }
    }

    /// To be read.
    pub fn read(self) -> Binding {
        self.bind(Access::Read)
    }

    /// To be written.
    pub fn write(self) -> Binding {
        self.bind(Access::Write)
    }

    /// To be used in this way; what is unused moves no bytes.
    pub fn bind(self, access: Access) -> Binding {
        Binding { region: self, access, footprint: if access == Access::Unused { 0 } else { self.len } }
    }

    fn overlaps(&self, other: &Region) -> bool {
        self.buffer == other.buffer
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

/// A region and what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The bytes that may be touched.
    pub region: Region,
    /// What is done with them.
    pub access: Access,
    /// Bytes that are moved: those of a part that is touched, or more than all where they are read several times.
    pub footprint: usize,
}

impl Binding {
    /// A gather or a scatter moves only some of the region, a kernel that goes over it several times more than all of it.
    #[must_use]
    pub fn touching(self, bytes: usize) -> Binding {
        Binding { footprint: bytes, ..self }
    }

    /// Bytes read and written.
    pub fn traffic(&self) -> (u64, u64) {
        let bytes = self.footprint as u64;
        (if self.access.reads() { bytes } else { 0 }, if self.access.writes() { bytes } else { 0 })
    }
}

/// A kernel on its way: everything a driver has to encode.
#[derive(Clone, Copy, Debug)]
pub struct Dispatch {
    /// The operation this is part of, for captures, errors and telemetry.
    pub label: &'static str,
    /// The kernel, made ready.
    pub pipeline: PipelineId,
    /// How it is launched; its params are at buffer index 0.
    pub launch: Launch,
    bindings: [Option<Binding>; MAX_ARGS],
}

impl Dispatch {
    /// Checks bindings against what the kernel declares: their number, access and alignment.
    pub fn new(
        label: &'static str,
        pipeline: PipelineId,
        launch: &Launch,
        bindings: &[Binding],
    ) -> Result<Dispatch, GpuError> {
        let kernel = &launch.kernel;
        let problem = |index: usize, problem: String| {
            let argument = kernel.args.get(index).map_or("none", |a| a.name);
            GpuError::Binding { kernel: kernel.function, index: index + 1, argument, problem }
        };
        if bindings.len() != kernel.args.len() || bindings.len() > MAX_ARGS {
            let text = format!("{} bindings, the kernel takes {}", bindings.len(), kernel.args.len());
            return Err(problem(bindings.len().min(kernel.args.len()), text));
        }
        let mut all = [None; MAX_ARGS];
        for (index, (binding, arg)) in bindings.iter().zip(kernel.args).enumerate() {
            if binding.access != Access::Unused {
                if let Some(text) = binding.access.unlike(arg.access) {
                    return Err(problem(index, text.to_owned()));
                }
                let align = if launch.bytewise && arg.align == WEIGHT_ALIGN { 1 } else { arg.align };
                if !binding.region.offset.is_multiple_of(align) {
                    let text = format!("byte offset {}, {align} is needed", binding.region.offset);
                    return Err(problem(index, text));
                }
            }
            all[index] = Some(*binding);
        }
        Ok(Dispatch { label, pipeline, launch: *launch, bindings: all })
    }

    /// The operation and its kernel, for errors.
    pub fn name(&self) -> String {
        format!("{} ({})", self.label, self.launch.kernel.function)
    }

    /// The bindings with their buffer indices, which begin at 1: the params are at 0.
    pub fn bindings(&self) -> impl Iterator<Item = (u32, &Binding)> {
        (1..).zip(self.bindings.iter().flatten())
    }
}

/// One thing for the device to do.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::large_enum_variant)] // Nearly all are dispatches; a box would be an allocation for each.
pub enum Command {
    /// Runs a kernel.
    Dispatch(Dispatch),
    /// A product that a library of the device's maker may make.
    Gemm {
        /// The product.
        product: Gemm,
        /// The same by a kernel of ours: what it reads and writes, what it means, and what a device without such a library runs.
        dispatch: Dispatch,
    },
    /// A graph that a library of the device's maker may run.
    Graph {
        /// The graph.
        graph: AttentionGraph,
        /// The same by a kernel of ours, as with a product.
        dispatch: Dispatch,
    },
    /// Copies bytes; both regions are of one length.
    Copy {
        /// Where from.
        from: Region,
        /// Where to.
        to: Region,
    },
    /// Sets every byte.
    Fill {
        /// The bytes.
        to: Region,
        /// Their value.
        value: u8,
    },
}

impl Command {
    /// A launch, or what it is where a library may do it.
    #[allow(clippy::large_types_passed_by_value)] // It is moved in.
    pub(crate) fn of(dispatch: Dispatch, call: Option<Call>) -> Command {
        match call {
            Some(Call::Product(product)) => Command::Gemm { product, dispatch },
            Some(Call::Graph(graph)) => Command::Graph { graph, dispatch },
            None => Command::Dispatch(dispatch),
        }
    }

    /// What a library may do in the place of the kernel.
    pub fn call(&self) -> Option<Call> {
        match self {
            Command::Gemm { product, .. } => Some(Call::Product(*product)),
            Command::Graph { graph, .. } => Some(Call::Graph(*graph)),
            Command::Dispatch(_) | Command::Copy { .. } | Command::Fill { .. } => None,
        }
    }

    /// The kernel that does it, where one of ours can.
    pub fn dispatch(&self) -> Option<&Dispatch> {
        match self {
            Command::Dispatch(dispatch)
            | Command::Gemm { dispatch, .. }
            | Command::Graph { dispatch, .. } => Some(dispatch),
            Command::Copy { .. } | Command::Fill { .. } => None,
        }
    }

    fn touches(&self) -> impl Iterator<Item = (Region, Access)> {
        let (dispatch, copy) = match self {
            Command::Dispatch(d) | Command::Gemm { dispatch: d, .. } | Command::Graph { dispatch: d, .. } => {
                (Some(d), [None, None])
            }
            Command::Copy { from, to } => (None, [Some((*from, Access::Read)), Some((*to, Access::Write))]),
            Command::Fill { to, .. } => (None, [Some((*to, Access::Write)), None]),
        };
        let bound = dispatch.into_iter().flat_map(|d| d.bindings().map(|(_, b)| (b.region, b.access)));
        bound.chain(copy.into_iter().flatten()).filter(|(_, access)| *access != Access::Unused)
    }

    /// Whether the order of the two matters: they touch the same bytes, and at least one writes them.
    pub fn conflicts(&self, other: &Command) -> bool {
        self.touches().any(|(a, access)| {
            let clashes = |b: Region, other: Access| (access.writes() || other.writes()) && a.overlaps(&b);
            other.touches().any(|(b, other)| clashes(b, other))
        })
    }

    /// Bytes read and written.
    pub fn traffic(&self) -> (u64, u64) {
        match self {
            Command::Dispatch(d) | Command::Gemm { dispatch: d, .. } | Command::Graph { dispatch: d, .. } => {
                d.bindings().map(|(_, b)| b.traffic()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
            }
            Command::Copy { from, to } => (from.len as u64, to.len as u64),
            Command::Fill { to, .. } => (0, to.len as u64),
        }
    }
}

/// Commands of one submission, with the places where a barrier must stand.
#[derive(Clone, Debug, Default)]
pub struct CommandList {
    commands: Vec<Command>,
    barriers: Vec<bool>,
    /// First command after the last barrier.
    open: usize,
    /// What it is known by; another one after each change.
    identity: OnceLock<Arc<()>>,
}

impl CommandList {
    /// An empty list.
    pub fn new() -> CommandList {
        CommandList::default()
    }

    /// Forgets all commands and keeps the memory.
    pub fn clear(&mut self) {
        self.commands.clear();
        self.barriers.clear();
        self.open = 0;
        self.identity = OnceLock::new();
    }

    /// Appends a command; a barrier goes before it where it conflicts with one since the last barrier.
    pub fn push(&mut self, command: Command) {
        let conflict = self.commands[self.open..].iter().any(|c| c.conflicts(&command));
        if conflict {
            self.open = self.commands.len();
        }
        self.barriers.push(conflict);
        self.commands.push(command);
        self.identity = OnceLock::new();
    }

    /// What tells it from every other list there is, as long as it is not changed: a driver may keep what it made of it.
    pub fn identity(&self) -> &Arc<()> {
        self.identity.get_or_init(|| Arc::new(()))
    }

    /// The commands in order, each with whether everything before it must be done first.
    pub fn iter(&self) -> impl Iterator<Item = (bool, &Command)> {
        self.barriers.iter().copied().zip(&self.commands)
    }

    /// The commands between two barriers, group after group. Inside a group any order will do.
    pub fn groups(&self) -> impl Iterator<Item = &[Command]> {
        let barriers = self.barriers.iter().enumerate().filter(|(_, barrier)| **barrier);
        let starts = iter::once(0).chain(barriers.map(|(index, _)| index));
        let ends = starts.clone().skip(1).chain([self.len()]);
        starts.zip(ends).map(|(start, end)| &self.commands[start..end]).filter(|group| !group.is_empty())
    }

    /// The commands in order.
    pub fn commands(&self) -> &[Command] {
        &self.commands
    }

    /// Number of commands.
    pub fn len(&self) -> usize {
        self.commands.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }
}

#[cfg(test)]
mod tests;
