//! What a program keeps between steps: keys and values in blocks, recurrent states in slots.

use metallic_core::{BLOCK_TOKENS, State, StateId, StateLayout};

use crate::backend::Shared;
use crate::command::{Command, CommandList, Region};
use crate::error::GpuError;
use crate::gpu::Storage;
use crate::pool::Allocation;

/// Blocks are had by so many at a time.
const SLAB: usize = 16;

pub(crate) struct States {
    pub(crate) layout: StateLayout,
    held: Vec<KeptState>,
    /// Blocks, and slots, that every state has.
    pub(crate) blocks: usize,
    slots: usize,
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
        States { layout, held, blocks: 0, slots: 0 }
    }

    /// Slots that are reserved; `None` where nothing is kept in slots.
    pub(crate) fn slots(&self) -> Option<usize> {
        self.layout.is_recurrent().then_some(self.slots)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.held.iter().filter_map(|h| h.memory.as_ref()).map(|m| m.region().len()).sum()
    }

    fn of_kind(&mut self, recurrent: bool) -> impl Iterator<Item = &mut KeptState> {
        let kinds = self.layout.states().iter();
        let of_kind = move |state: &Option<State>| match state {
            Some(State::Recurrent(_)) => recurrent,
            Some(State::Kv(_)) => !recurrent,
            None => false,
        };
        self.held.iter_mut().zip(kinds).filter(move |(_, state)| of_kind(state)).map(|(held, _)| held)
    }

    /// Makes room for at least `blocks`, a state at a time, so that no more than one is held twice. A failure leaves every
    /// state with what it had or more.
    pub(crate) fn reserve_blocks(&mut self, shared: &Shared, blocks: usize) -> Result<bool, GpuError> {
        if blocks <= self.blocks {
            return Ok(false);
        }
        let exact = blocks.next_multiple_of(SLAB);
        // Growing by a share keeps the copies of a long context few.
        let roomy = exact.max((self.blocks + self.blocks / 4).next_multiple_of(SLAB));
        for held in self.of_kind(false).filter(|held| held.items < blocks) {
            held.grow(shared, roomy, exact)?;
        }
        self.blocks = self.of_kind(false).map(|held| held.items).min().unwrap_or(roomy);
        Ok(true)
    }

    /// Makes room for at least `slots` sequences.
    pub(crate) fn reserve_slots(&mut self, shared: &Shared, slots: usize) -> Result<bool, GpuError> {
        if slots <= self.slots {
            return Ok(false);
        }
        for held in self.of_kind(true).filter(|held| held.items < slots) {
            held.grow(shared, slots, slots)?;
        }
        self.slots = slots;
        Ok(true)
    }

    /// The recurrent states of `to` become those of `from`.
    pub(crate) fn copy_slot(&mut self, shared: &Shared, from: u32, to: u32) -> Result<(), GpuError> {
        let mut list = CommandList::new();
        for held in self.of_kind(true) {
            let (Some(all), [bytes]) = (held.region(0), &held.parts[..]) else { continue };
            let at = |slot: u32| all.slice(slot as usize * bytes, *bytes);
            list.push(Command::Copy { from: at(from)?, to: at(to)? });
        }
        if from != to && !list.is_empty() {
            shared.gpu.submit(&list)?.wait(shared.options.timeout)?;
        }
        Ok(())
    }

    /// A part of a state: keys (0) and values (1), or a recurrent state (0).
    pub(crate) fn region(&self, id: StateId, part: usize) -> Result<Region, GpuError> {
        let found = self.held.get(id.0).and_then(|held| held.region(part));
        let reason = || format!("state {} of {}, which was not reserved", id.0, self.held.len());
        found.ok_or_else(|| GpuError::unsupported("state", reason()))
    }
}
