//! What is kept between steps: keys and values in blocks, and recurrent states.

use std::ops::Range;

use metallic_core::{
    BLOCK_TOKENS, BackendError, Blocks, KvState, Recurrence, SequenceSpan, State, StateId, StateLayout, Step,
};

use crate::exec::{Args, grow};
use crate::simd::{KvBlock, KvType, Lines, ask, axpy, load_row, scale, store_key, store_value};
use crate::{Processor, failed, no_room};

/// Blocks are made room for this many at a time.
const SLAB_BLOCKS: usize = 16;

/// Tokens of a step from which on threads store its blocks together.
const FORK_TOKENS: usize = 16;

/// Everything a graph keeps.
pub(crate) struct Kept {
    layout: StateLayout,
    pub(crate) kind: KvType,
    /// By state; of no blocks for others than keys and values.
    caches: Vec<KvBlocks>,
    /// Memory of [`SLAB_BLOCKS`] blocks of all layers each: of those that see far, and of those with a window. Layers lie one after another.
    slabs: [Vec<Lines>; 2],
    /// Bytes of one of each.
    slab_bytes: [usize; 2],
    /// By state: slots × numbers; empty for keys and values.
    numbers: Vec<Vec<f32>>,
    pub(crate) blocks: Blocks,
    slots: usize,
    /// Results of a recurrence by head, before they are put in rows.
    results: Vec<f32>,
    /// What a step writes, by block.
    pieces: Vec<Piece>,
}

/// The keys and values of a layer; a head's keys of a block lie together, and so do its values.
struct KvBlocks {
    shape: KvState,
    /// They lie in the blocks of layers with a window.
    near: bool,
    /// Bytes of one head's keys, and values, in a block.
    key_bytes: usize,
    value_bytes: usize,
    /// Where its blocks begin in a slab: blocks × kv heads × (keys, values), each as `simd` lays them out.
    at: usize,
}

impl KvBlocks {
    fn new(
        state: Option<&State>,
        layout: &StateLayout,
        kind: KvType,
        slab_bytes: &mut [usize; 2],
    ) -> Result<KvBlocks, BackendError> {
        let shape = state.and_then(State::kv).copied().unwrap_or_default();
        let near = layout.is_near(&shape);
        // A slab that can be counted has parts that can.
        let sizes = [shape.key_dim, shape.value_dim].map(|dim| kind.checked_block_bytes(dim));
        let whole = |keys: usize, values: usize| {
            let heads = keys.checked_add(values)?.checked_mul(shape.kv_heads)?;
            heads.checked_mul(SLAB_BLOCKS).filter(|len| isize::try_from(*len).is_ok())
        };
        if let [Some(key_bytes), Some(value_bytes)] = sizes
            && let Some(own) = whole(key_bytes, value_bytes)
        {
            // Of all layers they may be more than can be counted, and then cannot be had.
            let bytes = &mut slab_bytes[usize::from(near)];
            let at = *bytes;
            *bytes = at.saturating_add(own);
            return Ok(KvBlocks { shape, near, key_bytes, value_bytes, at });
        }
        Err(failed(format!(
            "{} heads with keys of {} and values of {} in {kind:?} are more than {SLAB_BLOCKS} blocks can hold",
            shape.kv_heads, shape.key_dim, shape.value_dim
        )))
    }

    fn head_bytes(&self) -> usize {
        self.key_bytes + self.value_bytes
    }

    fn block_bytes(&self) -> usize {
        self.shape.kv_heads * self.head_bytes()
    }

    /// Where a block begins in its slab.
    fn place(&self, block: u32) -> usize {
        self.at + block as usize % SLAB_BLOCKS * self.block_bytes()
    }
}

/// A row for each token: that of token `t` begins at `t * stride + at`.
pub(crate) struct Rows<'a> {
    pub(crate) data: &'a [f32],
    pub(crate) stride: usize,
    pub(crate) at: usize,
}

impl Rows<'_> {
    /// One head of a token.
    fn head(&self, token: usize, head: usize, dim: usize) -> &[f32] {
        &self.data[token * self.stride + self.at + head * dim..][..dim]
    }
}

/// Keys `[tokens, kv_heads * key_dim]` and values `[tokens, kv_heads * value_dim]` of a step.
pub(crate) struct KvRows<'a> {
    pub(crate) keys: Rows<'a>,
    pub(crate) values: Rows<'a>,
}

/// What a recurrent operation has besides its state.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) p: Processor<'a>,
    pub(crate) step: &'a Step<'a>,
    pub(crate) args: &'a Args<'a>,
}

impl Kept {
    pub(crate) fn new(layout: StateLayout) -> Result<Kept, BackendError> {
        // Of another type there are no keys and values: the layout has refused them.
        let kind = KvType::of(layout.dtype()).unwrap_or(KvType::F32);
        let mut slab_bytes = [0; 2];
        let caches = layout.states().iter();
        let caches = caches.map(|state| KvBlocks::new(state.as_ref(), &layout, kind, &mut slab_bytes));
        let caches = caches.collect::<Result<_, _>>()?;
        let numbers = vec![Vec::new(); layout.states().len()];
        Ok(Kept {
            layout,
            kind,
            caches,
            slabs: Default::default(),
            slab_bytes,
            numbers,
            blocks: Blocks::default(),
            slots: 0,
            results: Vec::new(),
            pieces: Vec::new(),
        })
    }

    /// Recurrent states reserved; `None` where there are none to keep.
    pub(crate) fn slots(&self) -> Option<usize> {
        self.layout.is_recurrent().then_some(self.slots)
    }

    pub(crate) fn bytes(&self) -> usize {
        let recurrent = self.slots.saturating_mul(self.layout.sequence_bytes());
        self.layout.bytes_of(self.blocks).saturating_add(recurrent)
    }

    /// Bytes of a token's keys and values in one layer.
    pub(crate) fn token_bytes(&self, id: StateId) -> u64 {
        self.layout.kv(id).map_or(0, |kv| self.layout.layer_token_bytes(kv)) as u64
    }

    pub(crate) fn reserve_blocks(&mut self, blocks: Blocks) -> Result<(), BackendError> {
        let slabs = |blocks: usize| blocks.div_ceil(SLAB_BLOCKS);
        // A block is named by 32 bits, and its slab must be countable.
        let most = blocks.far.max(blocks.near);
        if u32::try_from(most).is_err() || most.checked_next_multiple_of(SLAB_BLOCKS).is_none() {
            return Err(failed(format!(
                "{most} blocks of keys and values: a table can name {} of them",
                u32::MAX
            )));
        }
        let wanted = [blocks.far, blocks.near].map(slabs);
        for ((own, len), wanted) in self.slabs.iter_mut().zip(self.slab_bytes).zip(wanted) {
            if len == 0 {
                continue;
            }
            let all = len.saturating_mul(wanted);
            if isize::try_from(all).is_err() {
                return Err(no_room("keys and values", all));
            }
            // Memory is taken by those who first write to it.
            while own.len() < wanted {
                own.push(Lines::little_by_little(len).ok_or_else(|| no_room("keys and values", len))?);
            }
        }
        let [far, near] = [blocks.far, blocks.near].map(|blocks| slabs(blocks) * SLAB_BLOCKS);
        self.blocks = self.layout.settled(self.blocks.max(Blocks { far, near }));
        Ok(())
    }

    pub(crate) fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
        for (numbers, state) in self.numbers.iter_mut().zip(self.layout.states()) {
            if let Some(State::Recurrent(elements)) = state {
                grow(numbers, slots.saturating_mul(*elements))?;
            }
        }
        self.slots = self.slots.max(slots);
        Ok(())
    }

    pub(crate) fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
        let Some(reserved) = self.slots() else { return Ok(()) };
        if from.max(to) as usize >= reserved {
            return Err(failed(format!("recurrent state {} of {reserved}", from.max(to))));
        }
        for (numbers, state) in self.numbers.iter_mut().zip(self.layout.states()) {
            if let Some(State::Recurrent(elements)) = state {
                let start = from as usize * elements;
                numbers.copy_within(start..start + elements, to as usize * elements);
            }
        }
        Ok(())
    }

    /// Whether a layer's keys and values lie in the blocks of layers with a window.
    pub(crate) fn is_near(&self, id: StateId) -> bool {
        self.caches[id.0].near
    }

    /// One head's keys and values in one block of a layer.
    pub(crate) fn head(&self, id: StateId, block: u32, head: usize) -> KvBlock<'_> {
        let cache = &self.caches[id.0];
        let at = cache.place(block) + head * cache.head_bytes();
        let slab = self.slabs[usize::from(cache.near)][block as usize / SLAB_BLOCKS].tile(0);
        let rows = &slab[at..at + cache.head_bytes()];
        let (keys, values) = rows.split_at(cache.key_bytes);
        KvBlock { keys, values }
    }

    /// What the cache holds of these positions of a sequence with this block table, as numbers.
    pub(crate) fn rows(
        &self,
        id: StateId,
        table: &[u32],
        positions: Range<usize>,
    ) -> Result<metallic_core::KvRows, BackendError> {
        let kv = self.layout.kv(id).ok_or_else(|| failed(format!("state {} holds no keys", id.0)))?;
        let reserved = if self.is_near(id) { self.blocks.near } else { self.blocks.far };
        let mut rows = metallic_core::KvRows::default();
        let (mut key, mut value) = (vec![0.0; kv.key_dim], vec![0.0; kv.value_dim]);
        for position in positions {
            let block = table.get(position / BLOCK_TOKENS).copied().filter(|b| (*b as usize) < reserved);
            let missing = || failed(format!("position {position} of state {} was never reserved", id.0));
            let (block, position) = (block.ok_or_else(missing)?, position % BLOCK_TOKENS);
            for head in 0..kv.kv_heads {
                let KvBlock { keys, values } = self.head(id, block, head);
                load_row(self.kind, position, true, keys, &mut key);
                load_row(self.kind, position, false, values, &mut value);
                rows.keys.extend_from_slice(&key);
                rows.values.extend_from_slice(&value);
            }
        }
        Ok(rows)
    }

    /// Stores the keys and values of a step; returns the bytes they take.
    pub(crate) fn store(&mut self, p: Processor<'_>, id: StateId, step: &Step<'_>, rows: &KvRows<'_>) -> u64 {
        let (kind, cache) = (self.kind, &self.caches[id.0]);
        let slabs = &mut self.slabs[usize::from(cache.near)];
        let KvState { key_dim, value_dim, .. } = cache.shape;
        let near = cache.near;
        let pieces_of = |span| pieces(span, near);
        let (head_bytes, key_bytes, block_bytes) = (cache.head_bytes(), cache.key_bytes, cache.block_bytes());
        if block_bytes == 0 {
            return 0;
        }
        let write = |piece: &Piece, block: &mut [u8]| {
            for (head, kv) in block.chunks_exact_mut(head_bytes).enumerate() {
                let (keys, values) = kv.split_at_mut(key_bytes);
                for i in 0..piece.len {
                    let (token, position) = (piece.token + i, piece.position + i);
                    store_key(p.isa, kind, rows.keys.head(token, head, key_dim), position, keys);
                    store_value(p.isa, kind, rows.values.head(token, head, value_dim), position, values);
                }
            }
        };
        if step.tokens.len() < FORK_TOKENS {
            for piece in step.sequences.iter().flat_map(pieces_of) {
                let at = cache.place(piece.block);
                let slab = slabs[piece.block as usize / SLAB_BLOCKS].tiles_mut(0..1);
                write(&piece, &mut slab[at..at + block_bytes]);
            }
            return self.token_bytes(id) * step.tokens.len() as u64;
        }
        self.pieces.clear();
        self.pieces.extend(step.sequences.iter().flat_map(pieces_of));
        self.pieces.sort_unstable_by_key(|piece| (piece.block, piece.token));
        let all = &self.pieces[..];
        let of_blocks = |blocks: Range<usize>| {
            let from = |block: usize| all.partition_point(|piece| (piece.block as usize) < block);
            &all[from(blocks.start)..from(blocks.end)]
        };
        let slab_of = |piece: &Piece| piece.block as usize / SLAB_BLOCKS;
        let touched = all.chunk_by(|a, b| slab_of(a) == slab_of(b));
        if touched.clone().count() >= 2 * p.team.threads() {
            // Slabs are shared out, in one fork.
            p.team.for_chunks(slabs, 1, |index, slab| {
                let slab = slab[0].tiles_mut(0..1);
                let mut own = of_blocks(index * SLAB_BLOCKS..(index + 1) * SLAB_BLOCKS).iter().peekable();
                while let Some(piece) = own.next() {
                    if let Some(next) = own.peek() {
                        // Keys lie turned over: a line for each column.
                        let heads = slab[cache.place(next.block)..][..block_bytes].chunks_exact(head_bytes);
                        heads.for_each(|head| ask(p.isa, &head[..key_bytes]));
                    }
                    write(piece, &mut slab[cache.place(piece.block)..][..block_bytes]);
                }
            });
        } else {
            for pieces in touched {
                let index = slab_of(&pieces[0]);
                let own = &mut slabs[index].tiles_mut(0..1)[cache.at..][..SLAB_BLOCKS * block_bytes];
                p.team.for_chunks(own, block_bytes, |i, block| {
                    let i = index * SLAB_BLOCKS + i;
                    for piece in of_blocks(i..i + 1) {
                        write(piece, block);
                    }
                });
            }
        }
        self.token_bytes(id) * step.tokens.len() as u64
    }

    /// `(x [tokens, d], w [d, width])`
    pub(crate) fn short_conv(&mut self, id: StateId, call: &Call<'_>, out: &mut [f32]) {
        let Call { p, step, args } = *call;
        let (x, w, d, width) = (args.floats(0), args.floats(1), args.cols(0), args.cols(1));
        let kept_rows = width - 1;
        for span in step.sequences {
            let kept = of_sequence(&mut self.numbers[id.0], kept_rows * d, span);
            let range = span.tokens.start * d..span.tokens.end * d;
            let (x, before) = (&x[range.clone()], &*kept);
            p.team.for_chunks(&mut out[range], d, |token, out| {
                out.fill(0.0);
                for j in 0..width {
                    // Counted from the oldest row that is kept.
                    let row = token + j;
                    let from = if row < kept_rows { &before[row * d..] } else { &x[(row - kept_rows) * d..] };
                    let taps = w[j..].iter().step_by(width);
                    out.iter_mut().zip(from).zip(taps).for_each(|((out, x), w)| *out += w * x);
                }
            });
            let (old, new) = (kept.len(), x.len());
            if new < old {
                kept.copy_within(new.., 0);
                kept[old - new..].copy_from_slice(x);
            } else {
                kept.copy_from_slice(&x[new - old..]);
            }
        }
    }

    /// `(q, k, v, decay, β)`; heads side by side, tokens one after another.
    pub(crate) fn recurrence(
        &mut self,
        r: &Recurrence,
        call: &Call<'_>,
        out: &mut [f32],
    ) -> Result<(), BackendError> {
        let Call { p, step, args } = *call;
        for span in step.sequences {
            let (first, tokens, dv) = (span.tokens.start, span.tokens.len(), r.value_dim);
            let state = of_sequence(&mut self.numbers[r.state.0], r.elements(), span);
            // By head the results of its tokens, and a place to work in.
            let part = (tokens + 1) * dv;
            grow(&mut self.results, r.heads * part)?;
            let results = &mut self.results[..r.heads * part];
            p.team.for_both(state, results, [r.key_dim * dv, part], |head, state, results| {
                let (update, results) = results.split_at_mut(dv);
                for (i, y) in results.chunks_exact_mut(dv).enumerate() {
                    Turn { r, args, at: (first + i) * r.heads + head }.run(p, state, update, y);
                }
            });
            for (head, results) in results.chunks_exact(part).enumerate() {
                for (i, y) in results[dv..].chunks_exact(dv).enumerate() {
                    out[((first + i) * r.heads + head) * dv..][..dv].copy_from_slice(y);
                }
            }
        }
        Ok(())
    }
}

/// One head of one token of a recurrence.
struct Turn<'a> {
    r: &'a Recurrence,
    args: &'a Args<'a>,
    /// Counted over tokens and heads.
    at: usize,
}

impl Turn<'_> {
    /// `S = decay * S`; `u = β * v` or `β * (v - Sᵀ k)`; `S = S + k uᵀ`; `y = Sᵀ q`, in two passes over `S`.
    fn run(&self, p: Processor<'_>, state: &mut [f32], update: &mut [f32], y: &mut [f32]) {
        let Recurrence { key_dim, value_dim, delta, .. } = *self.r;
        let head = |index: usize, at: usize, dim: usize| &self.args.floats(index)[at * dim..][..dim];
        let key = self.r.key_head(self.at);
        let (q, k, v) = (head(0, key, key_dim), head(1, key, key_dim), head(2, self.at, value_dim));
        let [decay, beta] = [3, 4].map(|index| self.args.floats(index)[self.at]);
        update.fill(0.0);
        for (row, k) in state.chunks_exact_mut(value_dim).zip(k) {
            scale(p.isa, decay, row);
            if delta {
                axpy(p.isa, *k, row, update);
            }
        }
        update.iter_mut().zip(v).for_each(|(u, v)| *u = beta * (v - *u));
        y.fill(0.0);
        for ((row, k), q) in state.chunks_exact_mut(value_dim).zip(k).zip(q) {
            axpy(p.isa, *k, update, row);
            axpy(p.isa, *q, row, y);
        }
    }
}

/// The numbers of a sequence; zeros where it has no past.
fn of_sequence<'a>(numbers: &'a mut [f32], elements: usize, span: &SequenceSpan<'_>) -> &'a mut [f32] {
    let numbers = &mut numbers[span.slot as usize * elements..][..elements];
    if span.past == 0 {
        numbers.fill(0.0);
    }
    numbers
}

/// Tokens of a step that lie in one block.
struct Piece {
    block: u32,
    /// The first one's place in the block, its index in the step, and how many.
    position: usize,
    token: usize,
    len: usize,
}

fn pieces<'s>(span: &'s SequenceSpan<'_>, near: bool) -> impl Iterator<Item = Piece> + 's {
    let table = span.table(near);
    (span.past / BLOCK_TOKENS..span.kv_len().div_ceil(BLOCK_TOKENS)).map(|index| {
        let from = span.past.max(index * BLOCK_TOKENS);
        let to = span.kv_len().min((index + 1) * BLOCK_TOKENS);
        Piece {
            block: table[index],
            position: from % BLOCK_TOKENS,
            token: span.tokens.start + from - span.past,
            len: to - from,
        }
    })
}

#[cfg(test)]
mod tests {
    use metallic_core::DType;

    use super::*;

    fn kept(kv_heads: usize, key_dim: usize, value_dim: usize) -> Result<Kept, BackendError> {
        let kv = KvState { kv_heads, key_dim, value_dim, window: None };
        Kept::new(StateLayout::new(DType::F32, vec![Some(State::Kv(kv))]))
    }

    #[test]
    fn heads_whose_blocks_cannot_be_counted_are_refused() {
        // Each wraps at another product: bytes of a head, of all heads, of a slab; the last comes out as zero.
        for (heads, key_dim, value_dim) in
            [(1, 1 << 57, 8), (1 << 30, 1 << 28, 8), (1 << 53, 1, 1), (1 << 40, 1 << 13, 1 << 13)]
        {
            let Err(error) = kept(heads, key_dim, value_dim) else { panic!("{heads} heads were taken") };
            assert!(error.to_string().contains(&format!("{heads} heads with keys of {key_dim}")), "{error}");
        }
        assert!(kept(8, 128, 128).is_ok());
    }

    #[test]
    fn more_blocks_than_a_table_names_are_refused_and_change_nothing() {
        let mut none = Kept::new(StateLayout::new(DType::F32, vec![Some(State::Recurrent(4))])).unwrap();
        let mut some = kept(1, 8, 8).unwrap();
        for kept in [&mut none, &mut some] {
            kept.reserve_blocks(Blocks::both(3)).unwrap();
            let before = (kept.blocks, kept.bytes());
            for count in [usize::MAX, usize::MAX - SLAB_BLOCKS, 1 << 32] {
                let error = kept.reserve_blocks(Blocks::both(count)).unwrap_err().to_string();
                assert!(error.contains(&count.to_string()), "{error}");
            }
            assert_eq!((kept.blocks, kept.bytes()), before);
            assert_eq!(kept.blocks.far, SLAB_BLOCKS);
        }
        let mut wide = kept(1 << 20, 1 << 12, 1 << 12).unwrap();
        let error = wide.reserve_blocks(Blocks::both(1 << 31)).unwrap_err();
        assert!(matches!(error, BackendError::OutOfMemory { .. }), "{error}");
    }
}
