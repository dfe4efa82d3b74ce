//! What a program keeps between steps: keys and values in blocks, recurrent states in slots.

use metallic_core::{BLOCK_TOKENS, Blocks, State, StateId, StateLayout};

use crate::backend::Shared;
use crate::command::{Command, CommandList, Region};
use crate::error::GpuError;
use crate::gpu::{BufferId, Storage};
use crate::pool::Allocation;

/// Blocks are had by so many at a time.
const SLAB: usize = 16;

/// How much would be reserved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Imagined {
    pub(crate) blocks: usize,
    pub(crate) slots: usize,
}

/// Buffers of imagined states have numbers from here on.
const IMAGINED: u32 = 1 << 30;

pub(crate) struct States {
    pub(crate) layout: StateLayout,
    held: Vec<KeptState>,
    /// Blocks, and slots, that every state has.
    pub(crate) blocks: Blocks,
    slots: usize,
}

/// What is reserved together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Far,
    Near,
    Recurrent,
}

/// One state: parts that lie one after another, each with room for so many items.
#[derive(Default)]
struct KeptState {
    memory: Option<Allocation>,
    items: usize,
    /// Bytes of an item in each part: keys and values of a block, or the numbers of a sequence.
    parts: Vec<usize>,
}

impl KeptState {
    fn region(&self, part: usize) -> Option<Region> {
        let bytes = *self.parts.get(part)?;
        let before: usize = self.parts.iter().take(part).sum();
        self.memory.as_ref()?.region().slice(before * self.items, bytes * self.items).ok()
    }

    /// Makes room for `items` items; what was there moves to the larger buffer on the device.
    fn grow(&mut self, shared: &Shared, roomy: usize, exact: usize) -> Result<(), GpuError> {
        let item: usize = self.parts.iter().sum();
        let ask =
            |items: usize| shared.pool.allocate("what is kept between steps", item * items, Storage::Private);
        let (memory, items) = match ask(roomy) {
            Ok(memory) => (memory, roomy),
            Err(_) if roomy > exact => (ask(exact)?, exact),
            Err(error) => return Err(error),
        };
        let new = KeptState { memory: Some(memory), items, parts: self.parts.clone() };
        let mut list = CommandList::new();
        for part in 0..self.parts.len() {
            if let (Some(from), Some(to)) = (self.region(part), new.region(part)) {
                list.push(Command::Copy { from, to: to.slice(0, from.len())? });
            }
        }
        if !list.is_empty() {
            shared.gpu.submit(&list)?.wait(shared.options.timeout)?;
        }
        *self = new;
        Ok(())
    }
}

impl States {
    pub(crate) fn new(layout: StateLayout) -> States {
        let held = |state: &Option<State>| KeptState {
            parts: match state {
                Some(State::Kv(kv)) => [kv.key_dim, kv.value_dim]
                    .map(|dim| BLOCK_TOKENS * kv.kv_heads * layout.row_bytes(dim))
                    .to_vec(),
                Some(State::Recurrent(elements)) => vec![elements * size_of::<f32>()],
                None => Vec::new(),
            },
            ..KeptState::default()
        };
        let held = layout.states().iter().map(held).collect();
        States { layout, held, blocks: Blocks::default(), slots: 0 }
    }

    /// Slots that are reserved; `None` where nothing is kept in slots.
    pub(crate) fn slots(&self) -> Option<usize> {
        self.layout.is_recurrent().then_some(self.slots)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.held.iter().filter_map(|h| h.memory.as_ref()).map(|m| m.region().len()).sum()
    }

    fn of_kind(&mut self, kind: Kind) -> impl Iterator<Item = &mut KeptState> {
        let layout = &self.layout;
        let of_kind = move |state: &Option<State>| match state {
            Some(State::Recurrent(_)) => kind == Kind::Recurrent,
            Some(State::Kv(kv)) if layout.is_near(kv) => kind == Kind::Near,
            Some(State::Kv(_)) => kind == Kind::Far,
            None => false,
        };
        let kinds = layout.states().iter();
        self.held.iter_mut().zip(kinds).filter(move |(_, state)| of_kind(state)).map(|(held, _)| held)
    }

    /// Makes room for at least `blocks`, a state at a time, so that no more than one is held twice. A failure leaves every
    /// state with what it had or more.
    pub(crate) fn reserve_blocks(&mut self, shared: &Shared, blocks: Blocks) -> Result<bool, GpuError> {
        let had = self.blocks;
        self.blocks.far = self.reserve_kind(shared, Kind::Far, had.far, blocks.far)?;
        self.blocks.near = self.reserve_kind(shared, Kind::Near, had.near, blocks.near)?;
        self.blocks = self.layout.settled(self.blocks);
        Ok(self.blocks != had)
    }

    /// The blocks of one kind that are there afterwards.
    fn reserve_kind(
        &mut self,
        shared: &Shared,
        kind: Kind,
        had: usize,
        blocks: usize,
    ) -> Result<usize, GpuError> {
        if blocks <= had {
            return Ok(had);
        }
        let exact = blocks.next_multiple_of(SLAB);
        // Growing by a share keeps the copies of a long context few.
        let roomy = exact.max((had + had / 4).next_multiple_of(SLAB));
        for held in self.of_kind(kind).filter(|held| held.items < blocks) {
            held.grow(shared, roomy, exact)?;
        }
        Ok(self.of_kind(kind).map(|held| held.items).min().unwrap_or(roomy))
    }

    /// Makes room for at least `slots` sequences.
    pub(crate) fn reserve_slots(&mut self, shared: &Shared, slots: usize) -> Result<bool, GpuError> {
        if slots <= self.slots {
            return Ok(false);
        }
        for held in self.of_kind(Kind::Recurrent).filter(|held| held.items < slots) {
            held.grow(shared, slots, slots)?;
        }
        self.slots = slots;
        Ok(true)
    }

    /// The recurrent states of `to` become those of `from`.
    pub(crate) fn copy_slot(&mut self, shared: &Shared, from: u32, to: u32) -> Result<(), GpuError> {
        let mut list = CommandList::new();
        for held in self.of_kind(Kind::Recurrent) {
            let (Some(all), [bytes]) = (held.region(0), &held.parts[..]) else { continue };
            let at = |slot: u32| all.slice(slot as usize * bytes, *bytes);
            list.push(Command::Copy { from: at(from)?, to: at(to)? });
        }
        if from != to && !list.is_empty() {
            shared.gpu.submit(&list)?.wait(shared.options.timeout)?;
        }
        Ok(())
    }

    /// A part of a state: keys (0) and values (1), or a recurrent state (0); where nothing is reserved, as it would lie.
    pub(crate) fn region(
        &self,
        id: StateId,
        part: usize,
        imagined: Option<Imagined>,
    ) -> Result<Region, GpuError> {
        let held = self.held.get(id.0);
        let found = match imagined {
            Some(imagined) => held.and_then(|held| self.imagine(held, id, part, imagined)),
            None => held.and_then(|held| held.region(part)),
        };
        let reason = || format!("state {} of {}, which was not reserved", id.0, self.held.len());
        found.ok_or_else(|| GpuError::unsupported("state", reason()))
    }

    fn imagine(&self, held: &KeptState, id: StateId, part: usize, imagined: Imagined) -> Option<Region> {
        let is_recurrent = matches!(self.layout.states().get(id.0), Some(Some(State::Recurrent(_))));
        let items = if is_recurrent { imagined.slots } else { imagined.blocks };
        let bytes = *held.parts.get(part)?;
        let before: usize = held.parts.iter().take(part).sum();
        let buffer = BufferId(IMAGINED.checked_add(u32::try_from(id.0).ok()?)?);
        let all = Region::whole(buffer, held.parts.iter().sum::<usize>().checked_mul(items)?);
        all.slice(before * items, bytes * items).ok()
    }
}
