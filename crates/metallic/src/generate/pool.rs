//! The blocks of the cache: who holds them, and which prefixes they contain.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;

use metallic_core::{BLOCK_TOKENS, BackendError, Blocks, CacheUse, Program};

/// Blocks that hold `tokens` tokens.
pub(super) fn blocks_for(tokens: usize) -> usize {
    tokens.div_ceil(BLOCK_TOKENS)
}

/// Mixtures of adapters whose prefixes are kept apart; of more the oldest are computed again.
const ROOTS: usize = 256;

/// What a full block contains: its tokens, after the prefix that ends in its parent. As a key of the index it makes a
/// match exact, with no hash to trust.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Prefix {
    parent: Chain,
    tokens: [u32; BLOCK_TOKENS],
}

/// Names a prefix of full blocks. A name is never given twice, so a block that was put to another use cannot be mistaken
/// for the parent it once was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Chain(u64);

/// Which layers' blocks a pool has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Those that look back as far as there is, or all.
    Far,
    /// Those with a window, where others have none.
    Near,
}

#[derive(Debug)]
struct Block<K> {
    /// Sequences that hold it.
    holders: u32,
    /// Its place in the index, once its contents are complete and known, and the prefix it ends.
    shared: Option<(K, Chain)>,
    /// Key in `idle`; meaningful while nobody holds a shared block.
    idle_since: u64,
}

impl<K> Default for Block<K> {
    fn default() -> Block<K> {
        Block { holders: 0, shared: None, idle_since: 0 }
    }
}

/// Hands out blocks under a budget and keeps full ones for reuse until the room is needed.
///
/// A sequence holds all blocks of its prefix and gives them back last block first. So a parent always goes idle after
/// its children, and eviction, oldest first, never takes a parent before its children.
#[derive(Debug)]
pub(super) struct BlockPool<K> {
    kind: Kind,
    /// Most blocks there may ever be.
    limit: usize,
    blocks: Vec<Block<K>>,
    free: Vec<u32>,
    index: HashMap<K, u32>,
    idle: BTreeMap<u64, u32>,
    /// Where the prefixes of sequences begin that take so much of the adapters, by the bits of it; the latest last.
    roots: VecDeque<(Vec<u32>, Chain)>,
    clock: u64,
    chains: u64,
    /// Blocks of prompts that were found, and that were not, and those that went for others.
    uses: CacheUse,
    /// Why the program could not reserve more, the last time it could not.
    pub(super) growth_error: Option<BackendError>,
}

impl<K: Clone + Eq + Hash> BlockPool<K> {
    pub(super) fn new(kind: Kind, limit: usize) -> Self {
        Self {
            kind,
            limit,
            blocks: Vec::new(),
            free: Vec::new(),
            index: HashMap::new(),
            idle: BTreeMap::new(),
            roots: VecDeque::new(),
            clock: 0,
            chains: 0,
            uses: CacheUse::default(),
            growth_error: None,
        }
    }

    /// Blocks held by sequences.
    pub(super) fn held(&self) -> usize {
        self.blocks.len() - self.free.len() - self.idle.len()
    }

    /// Blocks nobody holds that are kept for their contents.
    pub(super) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// Blocks in use, idle or free: what the program has been asked to reserve.
    pub(super) fn reserved(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that are known by their contents, and what became of those who looked for some.
    pub(super) fn usage(&self) -> CacheUse {
        CacheUse { name: "prefixes", entries: self.index.len(), limit: Some(self.limit), ..self.uses }
    }

    /// Blocks that can still be handed out, as far as is known: the budget's, or those there are if the program could
    /// not reserve more when it was last asked.
    pub(super) fn available(&self) -> usize {
        let most = if self.growth_error.is_some() { self.reserved() } else { self.limit };
        most - self.held()
    }

    /// A block for one holder; `None` when the budget is spent or the program has no more memory.
    pub(super) fn take(&mut self, program: &mut dyn Program) -> Option<u32> {
        if self.free.is_empty() && self.blocks.len() < self.limit {
            self.grow(program);
        }
        let id = self.free.pop().or_else(|| self.evict())?;
        self.blocks[id as usize].holders = 1;
        Some(id)
    }

    /// Adds half as many blocks as there are, at least 16; only one where the program has no room for more.
    fn grow(&mut self, program: &mut dyn Program) {
        let reserved = self.blocks.len();
        let wanted = (reserved + (reserved / 2).max(16)).min(self.limit);
        for blocks in [wanted, reserved + 1] {
            let asked = match self.kind {
                Kind::Far => Blocks { far: blocks, near: 0 },
                Kind::Near => Blocks { far: 0, near: blocks },
            };
            match program.reserve(asked) {
                Ok(()) => {
                    self.blocks.resize_with(blocks, Block::default);
                    self.free.extend((reserved as u32..blocks as u32).rev());
                    self.growth_error = None;
                    return;
                }
                Err(error) => self.growth_error = Some(error),
            }
        }
    }

    fn evict(&mut self) -> Option<u32> {
        let (_, id) = self.idle.pop_first()?;
        self.uses.evictions += 1;
        if let Some((prefix, _)) = self.blocks[id as usize].shared.take() {
            self.index.remove(&prefix);
        }
        Some(id)
    }

    /// Gives back all blocks of a sequence.
    pub(super) fn give_back(&mut self, blocks: &mut Vec<u32>) {
        for id in blocks.drain(..).rev() {
            self.release(id);
        }
    }

    /// Gives back one block.
    pub(super) fn release(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        block.holders -= 1;
        if block.holders > 0 {
            return;
        }
        if block.shared.is_some() {
            self.clock += 1;
            block.idle_since = self.clock;
            self.idle.insert(self.clock, id);
        } else {
            self.free.push(id);
        }
    }

    fn hold(&mut self, id: u32) {
        let block = &mut self.blocks[id as usize];
        if block.holders == 0 {
            self.idle.remove(&block.idle_since);
        }
        block.holders += 1;
    }
}

impl BlockPool<Prefix> {
    /// Where the prefixes of sequences begin that take so much of each adapter: what is kept of the same tokens differs.
    pub(super) fn root(&mut self, mix: &[f32]) -> Chain {
        if mix.iter().all(|share| *share == 0.0) {
            return Chain::default();
        }
        let same = |(bits, _): &&(Vec<u32>, Chain)| bits.iter().copied().eq(mix.iter().map(|x| x.to_bits()));
        if let Some((_, root)) = self.roots.iter().find(same) {
            return *root;
        }
        if self.roots.len() == ROOTS {
            self.roots.pop_front();
        }
        self.chains += 1;
        self.roots.push_back((mix.iter().map(|share| share.to_bits()).collect(), Chain(self.chains)));
        Chain(self.chains)
    }

    /// Takes hold of the blocks that contain a beginning of `tokens` after `root`, always leaving one token to compute, and gives
    /// the prefix that each of them ends. It must be one that a sequence may go on from, by `usable`.
    pub(super) fn take_prefix(
        &mut self,
        root: Chain,
        tokens: &[u32],
        usable: impl Fn(&[Chain]) -> bool,
    ) -> (Vec<u32>, Vec<Chain>) {
        let (mut blocks, mut chains, mut good) = (Vec::new(), Vec::new(), 0);
        let reusable = tokens.len().saturating_sub(1) / BLOCK_TOKENS;
        for tokens in tokens.as_chunks().0.iter().take(reusable) {
            let parent = chains.last().copied().unwrap_or(root);
            let Some(&id) = self.index.get(&Prefix { parent, tokens: *tokens }) else {
                self.uses.misses += 1;
                break;
            };
            let Some((_, chain)) = self.blocks[id as usize].shared else { break };
            self.hold(id);
            self.uses.hits += 1;
            blocks.push(id);
            chains.push(chain);
            if usable(&chains) {
                good = blocks.len();
            }
        }
        self.give_back(&mut blocks.split_off(good));
        chains.truncate(good);
        (blocks, chains)
    }

    /// Makes known that the block `id`, held by one sequence, contains `tokens` after the prefix `parent`.
    /// Where another block contains the same, the sequence changes over to that one and `id` is freed.
    pub(super) fn share(&mut self, id: u32, parent: Chain, tokens: [u32; BLOCK_TOKENS]) -> (u32, Chain) {
        let prefix = Prefix { parent, tokens };
        if let Some(&same) = self.index.get(&prefix)
            && let Some((_, chain)) = self.blocks[same as usize].shared
        {
            self.hold(same);
            self.release(id);
            return (same, chain);
        }
        self.chains += 1;
        let chain = Chain(self.chains);
        self.index.insert(prefix.clone(), id);
        self.blocks[id as usize].shared = Some((prefix, chain));
        (id, chain)
    }
}

impl BlockPool<Chain> {
    /// Whether the block that ends a prefix is here.
    pub(super) fn has(&self, chain: Chain) -> bool {
        self.index.contains_key(&chain)
    }

    /// Takes hold of the block that ends a prefix.
    pub(super) fn take_known(&mut self, chain: Chain) -> Option<u32> {
        let id = *self.index.get(&chain)?;
        self.hold(id);
        Some(id)
    }

    /// Makes known that the block `id`, held by one sequence, ends a prefix; where another does, the sequence changes over.
    pub(super) fn share(&mut self, id: u32, chain: Chain) -> u32 {
        if let Some(same) = self.take_known(chain) {
            self.release(id);
            return same;
        }
        self.index.insert(chain, id);
        self.blocks[id as usize].shared = Some((chain, chain));
        id
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use metallic_core::{ProgramMemory, RunStats, Step};

    /// A program that only counts blocks, up to what its memory holds; and slots, which stand for prefixes.
    #[derive(Default)]
    pub(in super::super) struct Memory {
        pub(in super::super) reserved: usize,
        pub(in super::super) room: usize,
        /// Of layers with a window, where it is another.
        pub(in super::super) near_room: Option<usize>,
        pub(in super::super) slots: Vec<u32>,
    }

    /// Names as a pool would give them.
    pub(in super::super) fn chain(name: u64) -> Chain {
        Chain(name)
    }

    impl Program for Memory {
        fn reserve(&mut self, Blocks { far, near }: Blocks) -> Result<(), BackendError> {
            let blocks = far.max(near);
            if far > self.room || near > self.near_room.unwrap_or(self.room) {
                return Err(BackendError::OutOfMemory { device: "fake", what: "cache", needed: blocks });
            }
            self.reserved = self.reserved.max(far);
            Ok(())
        }

        fn reserved(&self) -> Blocks {
            Blocks::both(self.reserved)
        }

        fn reserve_slots(&mut self, slots: usize) -> Result<(), BackendError> {
            if slots > self.room {
                return Err(BackendError::OutOfMemory { device: "fake", what: "states", needed: slots });
            }
            self.slots.resize(slots.max(self.slots.len()), 0);
            Ok(())
        }

        fn copy_slot(&mut self, from: u32, to: u32) -> Result<(), BackendError> {
            self.slots[to as usize] = self.slots[from as usize];
            Ok(())
        }

        fn submit(&mut self, _: &Step<'_>) -> Result<(), BackendError> {
            Ok(())
        }

        fn finish(&mut self) -> Result<RunStats, BackendError> {
            Ok(RunStats::default())
        }

        fn ids(&self, _: usize) -> &[u32] {
            &[]
        }

        fn output(&self, _: usize) -> &[f32] {
            &[]
        }

        fn memory(&self) -> ProgramMemory {
            ProgramMemory::default()
        }
    }

    fn take(pool: &mut BlockPool<Prefix>, memory: &mut Memory, n: usize) -> Vec<u32> {
        (0..n).map_while(|_| pool.take(memory)).collect()
    }

    /// A sequence of full blocks whose every token is its block's number in `contents`.
    fn tokens(contents: &[u32]) -> Vec<u32> {
        contents.iter().flat_map(|&c| [c; BLOCK_TOKENS]).collect()
    }

    fn share(pool: &mut BlockPool<Prefix>, blocks: &mut [u32], contents: &[u32]) {
        let mut chain = Chain::default();
        for (block, &c) in blocks.iter_mut().zip(contents) {
            (*block, chain) = pool.share(*block, chain, [c; BLOCK_TOKENS]);
        }
    }

    #[test]
    fn the_reservation_grows_as_blocks_are_taken_and_stops_at_the_limit() {
        let (mut pool, mut memory) =
            (BlockPool::<Prefix>::new(Kind::Far, 40), Memory { room: 1000, ..Memory::default() });
        let mut seen = Vec::new();
        let mut held = Vec::new();
        while let Some(block) = pool.take(&mut memory) {
            held.push(block);
            seen.push(memory.reserved);
        }
        seen.dedup();
        assert_eq!(seen, [16, 32, 40]);
        held.sort_unstable();
        assert_eq!(held, (0..40).collect::<Vec<_>>());
        assert_eq!((pool.available(), pool.held()), (0, 40));
        pool.give_back(&mut held);
        assert_eq!((pool.available(), pool.held(), pool.idle()), (40, 0, 0));
    }

    #[test]
    fn when_memory_is_short_the_pool_takes_what_there_is_and_keeps_the_reason() {
        let (mut pool, mut memory) =
            (BlockPool::<Prefix>::new(Kind::Far, 100), Memory { room: 18, ..Memory::default() });
        assert_eq!(take(&mut pool, &mut memory, 100).len(), 18);
        assert!(matches!(pool.growth_error, Some(BackendError::OutOfMemory { .. })));
        assert_eq!(pool.available(), 0);
        memory.room = 20;
        assert_eq!(take(&mut pool, &mut memory, 2).len(), 2, "others have freed some");
        assert_eq!((pool.growth_error.is_none(), pool.available()), (true, 80));
    }

    #[test]
    fn of_too_many_mixtures_of_adapters_the_oldest_is_forgotten() {
        let mut pool = BlockPool::<Prefix>::new(Kind::Far, 1);
        let mix = |i: usize| [i as f32, 0.25];
        assert_eq!(pool.root(&[0.0, -0.0]), Chain::default());
        let roots: Vec<Chain> = (0..ROOTS).map(|i| pool.root(&mix(i))).collect();
        assert!((0..ROOTS).all(|i| pool.root(&mix(i)) == roots[i]));
        let new = pool.root(&mix(ROOTS));
        assert!(!roots.contains(&new));
        assert!((1..ROOTS).all(|i| pool.root(&mix(i)) == roots[i]), "those that came later are as they were");
        let again = pool.root(&mix(0));
        assert!(again != new && !roots.contains(&again), "what it had before may be anything");
    }

    #[test]
    fn a_known_prefix_is_found_up_to_the_token_before_the_last() {
        let (mut pool, mut memory) =
            (BlockPool::<Prefix>::new(Kind::Far, 8), Memory { room: 8, ..Memory::default() });
        let mut blocks = take(&mut pool, &mut memory, 3);
        share(&mut pool, &mut blocks, &[1, 2, 3]);
        let original = blocks.clone();
        pool.give_back(&mut blocks);
        assert_eq!((pool.held(), pool.idle()), (0, 3));

        let mut found = pool.take_prefix(Chain::default(), &tokens(&[1, 2, 3]), |_| true).0;
        assert_eq!(found, original[..2], "the last token must be computed for its logits");
        let mut longer = pool.take_prefix(Chain::default(), &tokens(&[1, 2, 3, 9]), |_| true).0;
        assert_eq!(longer, original);
        assert_eq!(pool.take_prefix(Chain::default(), &tokens(&[1, 3, 2, 9]), |_| true).0, original[..1]);
        assert!(
            pool.take_prefix(Chain::default(), &tokens(&[2, 3, 3]), |_| true).0.is_empty(),
            "the same tokens after another prefix differ"
        );
        pool.give_back(&mut found);
        pool.give_back(&mut longer);
    }

    #[test]
    fn equal_blocks_of_two_sequences_become_one() {
        let (mut pool, mut memory) =
            (BlockPool::<Prefix>::new(Kind::Far, 8), Memory { room: 8, ..Memory::default() });
        let mut first = take(&mut pool, &mut memory, 2);
        let mut second = take(&mut pool, &mut memory, 2);
        share(&mut pool, &mut first, &[1, 2]);
        share(&mut pool, &mut second, &[1, 3]);
        assert_eq!(first[0], second[0]);
        assert_ne!(first[1], second[1]);
        assert_eq!(pool.held(), 3);
        pool.give_back(&mut first);
        assert_eq!(pool.held(), 2);
        pool.give_back(&mut second);
        assert_eq!((pool.held(), pool.idle()), (0, 3));
    }

    #[test]
    fn eviction_takes_the_longest_idle_and_children_before_parents() {
        let (mut pool, mut memory) =
            (BlockPool::<Prefix>::new(Kind::Far, 5), Memory { room: 5, ..Memory::default() });
        let mut old = take(&mut pool, &mut memory, 3);
        share(&mut pool, &mut old, &[1, 2, 3]);
        pool.give_back(&mut old);
        let mut new = take(&mut pool, &mut memory, 2);
        share(&mut pool, &mut new, &[7, 8]);
        pool.give_back(&mut new);

        let mut taken = take(&mut pool, &mut memory, 2);
        let (mut found, _) = pool.take_prefix(Chain::default(), &tokens(&[1, 2, 3, 0]), |_| true);
        assert_eq!(found.len(), 1, "blocks 3 and 2 of the old prefix went first");
        assert_eq!(pool.take_prefix(Chain::default(), &tokens(&[7, 8, 0]), |_| true).0.len(), 2);
        pool.give_back(&mut found);
        pool.give_back(&mut taken);
    }

    #[test]
    fn a_block_put_to_another_use_is_no_parent_of_its_former_children() {
        let (mut pool, mut memory) =
            (BlockPool::<Prefix>::new(Kind::Far, 2), Memory { room: 2, ..Memory::default() });
        let mut blocks = take(&mut pool, &mut memory, 2);
        share(&mut pool, &mut blocks, &[1, 2]);
        pool.give_back(&mut blocks);
        let mut reused = take(&mut pool, &mut memory, 2);
        share(&mut pool, &mut reused[..1], &[5]);
        pool.give_back(&mut reused);
        assert_eq!(pool.take_prefix(Chain::default(), &tokens(&[5, 2, 0]), |_| true).0.len(), 1);
    }
}
