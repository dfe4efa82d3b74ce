//! The cache of all sequences: blocks of layers that look back as far as there is, and of layers with a window, which are let
//! go one by one.

use metallic_core::{BLOCK_TOKENS, BackendError, Blocks, CacheUse, Program, StateLayout};

use super::pool::{BlockPool, Chain, Kind, Prefix, blocks_for};

/// A sequence's blocks, by position. Of the first `freed` those with a window are no longer its own: no layer looks back so far.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) far: Vec<u32>,
    /// Empty where all layers share blocks.
    pub(super) near: Vec<u32>,
    freed: usize,
}

impl Table {
    /// Blocks' worth of tokens it has room for.
    pub(super) fn len(&self) -> usize {
        self.far.len()
    }
}

/// Hands out blocks of both kinds, and keeps full ones for prompts that begin the same way.
#[derive(Debug)]
pub(super) struct KvCache {
    far: BlockPool<Prefix>,
    /// Where some layers have a window and others none.
    near: Option<BlockPool<Chain>>,
    /// How far back layers look whose blocks are let go.
    window: Option<usize>,
    /// Most blocks with a window that one sequence has at once.
    near_most: usize,
    /// How often blocks were given back: as long as that is the same there is no more room than before.
    releases: u64,
}

impl KvCache {
    pub(super) fn new(states: &StateLayout, limits: Blocks, near_most: usize) -> KvCache {
        KvCache {
            far: BlockPool::new(Kind::Far, limits.far),
            near: states.is_mixed().then(|| BlockPool::new(Kind::Near, limits.near)),
            window: states.near_window(),
            near_most,
            releases: 0,
        }
    }

    /// Something that is the same as long as there is no more room than there was.
    pub(super) fn room_mark(&self) -> (u64, Blocks) {
        (self.releases, self.reserved())
    }

    /// Blocks held by sequences.
    pub(super) fn held(&self) -> Blocks {
        Blocks { far: self.far.held(), near: self.near.as_ref().map_or(0, BlockPool::held) }
    }

    /// Blocks nobody holds that are kept for their contents.
    pub(super) fn idle(&self) -> Blocks {
        Blocks { far: self.far.idle(), near: self.near.as_ref().map_or(0, BlockPool::idle) }
    }

    /// Blocks the program has been asked to reserve.
    pub(super) fn reserved(&self) -> Blocks {
        Blocks { far: self.far.reserved(), near: self.near.as_ref().map_or(0, BlockPool::reserved) }
    }

    /// What became of those who looked for a prefix.
    pub(super) fn usage(&self) -> CacheUse {
        self.far.usage()
    }

    /// Why the program could not reserve more, the last time it could not.
    pub(super) fn growth_error(&self) -> Option<&BackendError> {
        let near = self.near.as_ref().and_then(|near| near.growth_error.as_ref());
        self.far.growth_error.as_ref().or(near)
    }

    /// Where the prefixes of sequences begin that take so much of each adapter.
    pub(super) fn root(&mut self, mix: &[f32]) -> Chain {
        self.far.root(mix)
    }

    /// Whether there is room for a sequence of `tokens` tokens beside what the others have and still need, one block of each
    /// more.
    pub(super) fn has_room<'t>(
        &self,
        table: &Table,
        tokens: usize,
        others: impl Iterator<Item = (&'t Table, usize)> + Clone,
    ) -> bool {
        let wanted = |table: &Table, tokens: usize, spare: usize| {
            (blocks_for(tokens) + spare).saturating_sub(table.len())
        };
        let promised: usize = others.clone().map(|(table, tokens)| wanted(table, tokens, 1)).sum();
        if self.far.available() < wanted(table, tokens, 0) + promised {
            return false;
        }
        let Some(near) = &self.near else { return true };
        let wanted = |table: &Table, tokens: usize, spare: usize| {
            let most = (blocks_for(tokens) + spare).min(self.near_most);
            most.saturating_sub(table.near.len() - table.freed.min(table.near.len()))
        };
        let promised: usize = others.map(|(table, tokens)| wanted(table, tokens, 1)).sum();
        near.available() >= wanted(table, tokens, 0) + promised
    }

    /// Gives a sequence room for so many tokens; `None` where there is none left, and what it has got stays its own.
    pub(super) fn extend(
        &mut self,
        table: &mut Table,
        tokens: usize,
        program: &mut dyn Program,
    ) -> Option<()> {
        let needed = blocks_for(tokens);
        while table.far.len() < needed {
            table.far.push(self.far.take(program)?);
        }
        if let Some(near) = &mut self.near {
            while table.near.len() < needed {
                table.near.push(near.take(program)?);
            }
        }
        Some(())
    }

    /// Gives back all blocks of a sequence.
    pub(super) fn give_back(&mut self, table: &mut Table) {
        self.releases += 1;
        let freed = std::mem::take(&mut table.freed);
        let limited = if self.near.is_some() { &mut table.near } else { &mut table.far };
        limited.drain(..freed.min(limited.len()));
        self.far.give_back(&mut table.far);
        if let Some(near) = &mut self.near {
            near.give_back(&mut table.near);
        }
    }

    /// Gives back the blocks that no token after the first `computed` looks at. In their place stands one that it still has.
    pub(super) fn free_unseen(&mut self, table: &mut Table, computed: usize) {
        let Some(window) = self.window else { return };
        let unseen = first_seen(window, computed);
        let limited = if self.near.is_some() { &mut table.near } else { &mut table.far };
        let Some(own) = limited.last().copied() else { return };
        for block in limited.iter_mut().take(unseen).skip(table.freed) {
            let block = std::mem::replace(block, own);
            self.releases += 1;
            match &mut self.near {
                Some(near) => near.release(block),
                None => self.far.release(block),
            }
        }
        table.freed = table.freed.max(unseen);
    }

    /// Takes hold of the blocks that contain a beginning of `tokens` after `root`, always leaving one token to compute. It must
    /// be one that a sequence may go on from: what layers with a window look back at is there, and by `usable`.
    pub(super) fn take_prefix(
        &mut self,
        root: Chain,
        tokens: &[u32],
        usable: impl Fn(Chain) -> bool,
    ) -> (Table, Chain) {
        let (near, window) = (&self.near, self.window.unwrap_or(0));
        let (far, chains) = self.far.take_prefix(root, tokens, |chains: &[Chain]| {
            let seen = first_seen(window, chains.len() * BLOCK_TOKENS)..;
            let there = near.as_ref().is_none_or(|near| chains[seen].iter().all(|chain| near.has(*chain)));
            there && chains.last().is_some_and(|chain| usable(*chain))
        });
        let mut table = Table { far, ..Table::default() };
        if let Some(near) = &mut self.near {
            table.freed = first_seen(window, chains.len() * BLOCK_TOKENS);
            // No layer reads those before: any block stands for them.
            table.near = vec![0; table.freed];
            table.near.extend(chains[table.freed..].iter().filter_map(|chain| near.take_known(*chain)));
        }
        (table, chains.last().copied().unwrap_or(root))
    }

    /// Makes known that the block at `index` of a table contains `tokens` after the prefix `parent`, and gives the prefix that
    /// it ends.
    pub(super) fn share(
        &mut self,
        table: &mut Table,
        index: usize,
        parent: Chain,
        tokens: [u32; BLOCK_TOKENS],
    ) -> Chain {
        let own = table.far[index];
        let (far, chain) = self.far.share(own, parent, tokens);
        table.far[index] = far;
        if let Some(near) = self.near.as_mut().filter(|_| index >= table.freed) {
            table.near[index] = near.share(table.near[index], chain);
        }
        // One that was there already gives back its own.
        self.releases += u64::from(far != own);
        chain
    }
}

/// The first block that a token after so many looks at.
fn first_seen(window: usize, tokens: usize) -> usize {
    (tokens + 1).saturating_sub(window.max(1)) / BLOCK_TOKENS
}

#[cfg(test)]
mod schedules;

#[cfg(test)]
mod tests {
    use metallic_core::{DType, KvState, State};

    use super::super::budget::blocks_at_once;
    use super::super::pool::tests::Memory;
    use super::*;

    /// A layer that sees all, and one that sees 40 tokens.
    fn mixed() -> StateLayout {
        let kv = KvState { kv_heads: 1, key_dim: 8, value_dim: 8, window: None };
        let near = KvState { window: Some(40), ..kv };
        StateLayout::new(DType::F32, vec![Some(State::Kv(kv)), Some(State::Kv(near))])
    }

    fn cache() -> (KvCache, Memory) {
        let near = blocks_at_once(&mixed(), 4096, 64).near;
        assert_eq!(near, 5, "104 tokens, and one block for where they begin");
        let limits = Blocks { far: 64, near: 12 };
        (KvCache::new(&mixed(), limits, near), Memory { room: 1000, ..Memory::default() })
    }

    /// Computes the tokens of a sequence in steps, from where its table ends, and makes them known.
    fn compute(
        cache: &mut KvCache,
        memory: &mut Memory,
        table: &mut Table,
        tokens: &[u32],
        chain: Chain,
    ) -> Chain {
        let (mut done, mut chain) = (table.len() * BLOCK_TOKENS, chain);
        while done < tokens.len() {
            let end = (done + 64).min(tokens.len());
            cache.extend(table, end, memory).expect("room");
            for index in done / BLOCK_TOKENS..end / BLOCK_TOKENS {
                chain = cache.share(table, index, chain, tokens.as_chunks().0[index]);
            }
            cache.free_unseen(table, end);
            done = end;
        }
        chain
    }

    fn tokens(blocks: u32) -> Vec<u32> {
        (0..blocks * BLOCK_TOKENS as u32).map(|i| i / 7).collect()
    }

    #[test]
    fn layers_with_a_window_let_go_what_the_others_keep() {
        let (mut cache, mut memory) = cache();
        let mut table = Table::default();
        compute(&mut cache, &mut memory, &mut table, &tokens(40), Chain::default());
        assert_eq!(cache.held(), Blocks { far: 40, near: 2 });
        assert_eq!((table.far.len(), table.near.len()), (40, 40));
        assert!(cache.reserved().near <= 12);
        cache.give_back(&mut table);
        assert_eq!(cache.held(), Blocks::default());
    }

    #[test]
    fn a_prefix_is_gone_on_from_where_the_window_is_still_there() {
        let (mut cache, mut memory) = cache();
        let mut table = Table::default();
        let prompt = tokens(10);
        let end = compute(&mut cache, &mut memory, &mut table, &prompt, Chain::default());
        cache.give_back(&mut table);
        let longer: Vec<u32> = prompt.iter().copied().chain([1, 2, 3]).collect();
        let (mut found, chain) = cache.take_prefix(Chain::default(), &longer, |_| true);
        assert_eq!((found.len(), chain), (10, end));
        assert_eq!(cache.held(), Blocks { far: 10, near: 2 }, "the last 40 tokens, and no more");
        assert!(found.near[..8].iter().all(|block| *block == 0));
        cache.give_back(&mut found);

        // Others take the blocks with a window, all but the last of the prompt's.
        let mut others = Table::default();
        cache.extend(&mut others, 11 * BLOCK_TOKENS, &mut memory).expect("room");
        let (mut found, _) = cache.take_prefix(Chain::default(), &longer, |_| true);
        assert_eq!(found.len(), 0, "what it would look back at is gone");
        cache.give_back(&mut found);
        cache.give_back(&mut others);
        assert_eq!(cache.held(), Blocks::default());
    }

    #[test]
    fn two_that_compute_the_same_share_both_kinds_of_blocks() {
        let (mut cache, mut memory) = cache();
        let (mut first, mut second) = (Table::default(), Table::default());
        compute(&mut cache, &mut memory, &mut first, &tokens(3), Chain::default());
        compute(&mut cache, &mut memory, &mut second, &tokens(3), Chain::default());
        assert_eq!((&first.far, &first.near[1..]), (&second.far, &second.near[1..]));
        assert_eq!(cache.held(), Blocks { far: 3, near: 2 });
        cache.give_back(&mut first);
        cache.give_back(&mut second);
        assert_eq!(cache.held(), Blocks::default());
    }

    #[test]
    fn there_is_room_for_what_each_kind_of_layer_needs_at_once() {
        let (mut cache, mut memory) = cache();
        let mut running = Table::default();
        compute(&mut cache, &mut memory, &mut running, &tokens(20), Chain::default());
        let others = || [(&running, 20 * BLOCK_TOKENS)].into_iter();
        let new = Table::default();
        // Seven blocks with a window are left beside the five that are promised.
        assert!(cache.has_room(&new, 43 * BLOCK_TOKENS, others()));
        assert!(!cache.has_room(&new, 44 * BLOCK_TOKENS, others()), "63 blocks of 64");
        let two = || others().chain(others()).chain(others());
        assert!(
            !cache.has_room(&new, 20 * BLOCK_TOKENS, two()),
            "three sequences more than the windows have room for"
        );

        // What others have of their windows counts, and one block more of each.
        let (mut cache, mut memory) = self::cache();
        let mut short = Table::default();
        compute(&mut cache, &mut memory, &mut short, &tokens(2), Chain::default());
        let others = |count: usize| std::iter::repeat_n((&short, 2 * BLOCK_TOKENS), count);
        assert!(cache.has_room(&new, 5 * BLOCK_TOKENS, others(5)), "10 for 5 and 5");
        assert!(!cache.has_room(&new, 5 * BLOCK_TOKENS, others(6)), "10 for 5 and 6");
    }

    #[test]
    fn why_there_is_no_more_memory_is_known_of_either_kind() {
        for near_room in [None, Some(16)] {
            let (mut cache, mut memory) = cache();
            cache.near = Some(BlockPool::new(Kind::Near, 40));
            memory.room = if near_room.is_some() { 1000 } else { 16 };
            memory.near_room = near_room;
            let mut table = Table::default();
            assert_eq!(cache.extend(&mut table, 17 * BLOCK_TOKENS, &mut memory), None);
            assert!(matches!(cache.growth_error(), Some(BackendError::OutOfMemory { .. })), "{near_room:?}");
            cache.give_back(&mut table);
            assert_eq!(cache.held(), Blocks::default());
        }
    }
}
