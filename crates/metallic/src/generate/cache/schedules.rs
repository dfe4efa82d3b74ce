//! Random schedules of several sequences on one cache, against what each block contains by whoever wrote to it last.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use metallic_core::{DType, KvState, State};

use super::super::budget::blocks_at_once;
use super::super::pool::tests::Memory;
use super::*;

/// Most tokens of one step.
const STEP: usize = 70;
/// Most tokens of a sequence.
const LONGEST: usize = 11 * BLOCK_TOKENS + 5;

/// A stream of numbers that look random.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// A sequence: its tokens, and what tells each of its prefixes from all others.
struct Tale {
    mix: Vec<f32>,
    tokens: Vec<u32>,
    prefixes: Vec<u64>,
    computed: usize,
    shared: (usize, Chain),
    table: Table,
}

impl Tale {
    /// One of few beginnings, and one of few ways on at each block; with one of two mixtures of adapters.
    fn new(dice: &mut Dice) -> Tale {
        let mix = vec![[0.0_f32, 0.5][dice.below(2)]];
        let len = 2 + dice.below(LONGEST - 2);
        let ways: Vec<u32> = (0..=len / BLOCK_TOKENS).map(|_| u32::from(dice.below(4) == 0)).collect();
        let tokens: Vec<u32> = (0..len).map(|i| ways[i / BLOCK_TOKENS] * 100 + i as u32 % 7).collect();
        let mut state = u64::from(mix[0].to_bits());
        let prefixes = tokens.iter().map(|token| {
            state = (state ^ u64::from(*token) ^ 0x51).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
            state
        });
        let prefixes = prefixes.collect();
        Tale { mix, tokens, prefixes, computed: 0, shared: (0, Chain::default()), table: Table::default() }
    }
}

/// A cache, what its memory contains, and who uses it.
struct World {
    cache: KvCache,
    memory: Memory,
    /// By kind, block and place: the prefix that ends in the token written there last.
    written: [BTreeMap<(u32, usize), u64>; 2],
    tales: Vec<Tale>,
    window: Option<usize>,
    mixed: bool,
    near_most: usize,
    /// Prefixes that may be gone on from, where not all may.
    kept: Option<HashSet<Chain>>,
    reused: usize,
}

/// The layers of a model: how far each looks back.
fn layout(windows: &[Option<usize>]) -> StateLayout {
    let kv = KvState { kv_heads: 1, key_dim: 4, value_dim: 4, window: None };
    StateLayout::new(
        DType::F32,
        windows.iter().map(|w| Some(State::Kv(KvState { window: *w, ..kv }))).collect(),
    )
}

impl World {
    fn new(windows: &[Option<usize>], limits: Blocks, room: usize, keeps: bool) -> World {
        let states = layout(windows);
        let near_most = blocks_at_once(&states, LONGEST, STEP).near;
        let mixed = windows.iter().any(Option::is_some) && windows.iter().any(Option::is_none);
        let window = if mixed || windows.iter().all(Option::is_some) {
            windows.iter().flatten().max().copied()
        } else {
            None
        };
        World {
            cache: KvCache::new(&states, limits, near_most),
            memory: Memory { room, ..Memory::default() },
            written: [BTreeMap::new(), BTreeMap::new()],
            tales: Vec::new(),
            window,
            mixed,
            near_most,
            kept: keeps.then(HashSet::new),
            reused: 0,
        }
    }

    /// The first position that a token after the first `computed` looks at, in layers of this kind.
    fn first(&self, near: bool, computed: usize) -> usize {
        match self.window {
            Some(window) if near || !self.mixed => (computed + 1).saturating_sub(window),
            Some(_) | None => 0,
        }
    }

    fn begin(&mut self, dice: &mut Dice) {
        let mut tale = Tale::new(dice);
        let root = self.cache.root(&tale.mix);
        let usable = |chain| self.kept.as_ref().is_none_or(|kept| kept.contains(&chain));
        let (table, chain) = self.cache.take_prefix(root, &tale.tokens, usable);
        assert!(table.len() * BLOCK_TOKENS < tale.tokens.len(), "a token is left to compute");
        assert!(table.len() == 0 || usable(chain));
        assert!(table.len() > 0 || chain == root);
        self.reused += table.len();
        tale.computed = table.len() * BLOCK_TOKENS;
        tale.shared = (table.len(), chain);
        tale.table = table;
        self.tales.push(tale);
    }

    /// Computes some more tokens of a sequence; without room for them it or another ends.
    fn compute(&mut self, dice: &mut Dice) {
        let which = dice.below(self.tales.len());
        let share = (1 + dice.below(STEP)).min(self.tales[which].tokens.len() - self.tales[which].computed);
        let end = self.tales[which].computed + share;
        if self.cache.extend(&mut self.tales[which].table, end, &mut self.memory).is_none() {
            let full = self.cache.far.available() == 0
                || self.cache.near.as_ref().is_some_and(|near| near.available() == 0);
            assert!(full, "there was room: {:?}", self.cache.held());
            return self.end(dice);
        }
        self.write(which, end);
        let (cache, tale) = (&mut self.cache, &mut self.tales[which]);
        tale.computed = end;
        let (done, mut chain) = tale.shared;
        for index in done..end / BLOCK_TOKENS {
            chain = cache.share(&mut tale.table, index, chain, tale.tokens.as_chunks().0[index]);
            if let Some(kept) = self.kept.as_mut().filter(|_| dice.below(3) == 0) {
                kept.insert(chain);
            }
        }
        tale.shared = (end / BLOCK_TOKENS, chain);
        cache.free_unseen(&mut tale.table, end);
        let unseen = self.first(self.mixed, end) / BLOCK_TOKENS;
        assert_eq!(
            self.tales[which].table.freed, unseen,
            "what no layer sees is given back, and nothing else"
        );
        let near = self.cache.near.is_some().then(|| self.tales[which].table.near.len() - unseen);
        assert!(near.is_none_or(|near| near <= self.near_most), "{near:?} of {}", self.near_most);
        if end == self.tales[which].tokens.len() {
            let mut tale = self.tales.swap_remove(which);
            self.cache.give_back(&mut tale.table);
        }
    }

    /// Writes tokens to blocks that nobody else may have.
    fn write(&mut self, which: usize, end: usize) {
        let Tale { table, prefixes, computed, .. } = &self.tales[which];
        let tables = [Some(&table.far), self.mixed.then_some(&table.near)];
        for (kind, table) in tables.into_iter().enumerate() {
            let Some(table) = table else { continue };
            let touched = || *computed / BLOCK_TOKENS..end.div_ceil(BLOCK_TOKENS);
            let others = self.tales.iter().enumerate().filter(|(i, _)| *i != which);
            let theirs: BTreeSet<u32> = others.flat_map(|(_, tale)| self.owned(tale, kind == 1)).collect();
            let free = touched().all(|index| !theirs.contains(&table[index]));
            assert!(free, "a block that is written to has one holder");
            for position in *computed..end {
                let place = (table[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
                self.written[kind].insert(place, prefixes[position]);
            }
        }
    }

    fn end(&mut self, dice: &mut Dice) {
        let which = dice.below(self.tales.len());
        let mut tale = self.tales.swap_remove(which);
        self.cache.give_back(&mut tale.table);
        assert_eq!((tale.table.far.len(), tale.table.near.len(), tale.table.freed), (0, 0, 0));
    }

    /// The blocks of a sequence that are its own, or shared by it.
    fn owned(&self, tale: &Tale, near: bool) -> Vec<u32> {
        let table = if near { &tale.table.near } else { &tale.table.far };
        let freed = if near || !self.mixed { tale.table.freed } else { 0 };
        table[freed..].to_vec()
    }

    fn check(&self) {
        let kinds = if self.mixed { &[false, true][..] } else { &[false][..] };
        for &near in kinds {
            let held: BTreeSet<u32> = self.tales.iter().flat_map(|tale| self.owned(tale, near)).collect();
            let of = |blocks: Blocks| if near { blocks.near } else { blocks.far };
            assert_eq!(held.len(), of(self.cache.held()), "what is held is what sequences have");
            assert!(of(self.cache.held()) + of(self.cache.idle()) <= of(self.cache.reserved()));
            for tale in &self.tales {
                let table = if near { &tale.table.near } else { &tale.table.far };
                assert!(table.len() * BLOCK_TOKENS >= tale.computed);
                assert!(table.iter().all(|block| (*block as usize) < of(self.cache.reserved())));
                for position in self.first(near, tale.computed)..tale.computed {
                    let place = (table[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
                    let found = self.written[usize::from(near)].get(&place);
                    assert_eq!(found, Some(&tale.prefixes[position]), "position {position}, near: {near}");
                }
            }
        }
    }

    fn run(&mut self, dice: &mut Dice, turns: usize) {
        for _ in 0..turns {
            match dice.below(8) {
                0 | 1 if self.tales.len() < 5 => self.begin(dice),
                2 if !self.tales.is_empty() && dice.below(4) == 0 => self.end(dice),
                _ if self.tales.is_empty() => self.begin(dice),
                _ => self.compute(dice),
            }
            self.check();
        }
        while !self.tales.is_empty() {
            self.end(dice);
        }
        assert_eq!(self.cache.held(), Blocks::default(), "all came back");
    }
}

#[test]
fn whatever_sequences_do_each_finds_what_it_wrote_and_all_blocks_come_back() {
    let windows: [&[Option<usize>]; 7] = [
        &[None, None],
        &[Some(40), Some(9)],
        &[None, Some(40)],
        &[Some(1), None],
        &[None, Some(32), Some(33)],
        &[Some(100), None],
        &[None, Some(5000)],
    ];
    for windows in windows {
        let mut reused = 0;
        for seed in 0..6_u64 {
            let mut dice = Dice(seed * 7919 + 1);
            let near = blocks_at_once(&layout(windows), LONGEST, STEP).near;
            // A cache that is short of the one kind, of the other, of memory, or of nothing.
            let limits = [(14, 40), (60, near), (60, 60), (60, 60)][seed as usize % 4];
            let room = if seed % 4 == 2 { near.max(13) } else { 1000 };
            let limits = Blocks { far: limits.0, near: limits.1 };
            let mut world = World::new(windows, limits, room, seed >= 4);
            world.run(&mut dice, 400);
            reused += world.reused;
        }
        assert!(reused > 50, "{windows:?}: {reused} blocks were found again");
    }
}
