//! How many blocks of each kind the bytes of a cache pay for, and how many bytes a request would need.

use metallic_core::{Blocks, StateLayout};

use super::pool::blocks_for;
use super::{EngineConfig, EngineError};

/// Blocks that a sequence of so many tokens needs at once, computed in steps of at most `step` tokens.
pub(crate) fn blocks_at_once(states: &StateLayout, tokens: usize, step: usize) -> Blocks {
    let far = blocks_for(tokens);
    let near = states.near_window().filter(|_| states.is_mixed()).map_or(0, |window| {
        // The first and the last may each have a single token.
        blocks_for(window.saturating_add(step)).saturating_add(1).min(far)
    });
    Blocks { far, near }
}

/// Most blocks of a kind: their numbers have 32 bits.
const MOST: usize = u32::MAX as usize;

fn paid(bytes: usize, each: usize) -> usize {
    bytes.checked_div(each).unwrap_or(MOST).min(MOST)
}

impl EngineConfig {
    /// Blocks that a sequence of so many tokens needs at once.
    pub(super) fn at_once(&self, tokens: usize) -> Blocks {
        blocks_at_once(&self.states, tokens.min(self.context_length), self.step_tokens)
    }

    /// Bytes of a block of each kind.
    fn each(&self) -> Blocks {
        let bytes = |far, near| self.states.bytes_of(Blocks { far, near });
        Blocks { far: bytes(1, 0), near: bytes(0, 1) }
    }

    /// Blocks the budget pays for. Where layers with a window have blocks of their own, those of as many sequences as may run,
    /// for no more than half of the budget unless one sequence alone needs more; never so many that there were fewer of the
    /// others than without, or that a full context no longer fits that could.
    pub(super) fn block_limits(&self) -> Blocks {
        let (bytes, each) = (self.kv_budget_bytes, self.each());
        let full = self.at_once(usize::MAX);
        let both = paid(bytes, each.far.saturating_add(each.near));
        if both < full.near {
            // No sequence has more of the one kind than of the other.
            return Blocks::both(both);
        }
        let beside = paid(bytes.saturating_sub(full.far.saturating_mul(each.far)), each.near);
        let most = paid(bytes / 2, each.near).max(full.near).min(both);
        let most = if beside < full.near { most } else { most.min(beside) };
        let near = full.near.saturating_mul(self.max_sequences).min(most);
        Blocks { far: paid(bytes.saturating_sub(near.saturating_mul(each.near)), each.far), near }
    }

    /// The smallest budget whose [limits](Self::block_limits) have room for so many tokens, as far as those of one full context
    /// are enough.
    fn budget_for(&self, tokens: usize) -> usize {
        let (each, full) = (self.each(), self.at_once(usize::MAX));
        let blocks = blocks_for(tokens);
        let [far, whole] = [blocks, full.far].map(|blocks| blocks.saturating_mul(each.far));
        let one = full.near.saturating_mul(each.near);
        let ways = [
            far.saturating_add(blocks.saturating_mul(each.near)),
            far.saturating_add(one.saturating_mul(self.max_sequences)),
            far.saturating_add(far.max(one)),
            whole.max(far).saturating_add(one),
        ];
        ways.into_iter().min().unwrap_or(far)
    }

    pub(super) fn over_budget(&self, tokens: usize) -> EngineError {
        EngineError::KvBudget {
            tokens,
            needed_bytes: self.budget_for(tokens),
            budget_bytes: self.kv_budget_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use metallic_core::{BLOCK_TOKENS, DType, KvState, State};

    use super::*;

    /// So many layers of each kind, with blocks of 1024 bytes each.
    fn config(far: usize, near: usize, context: usize) -> EngineConfig {
        let kv = KvState { kv_heads: 1, key_dim: 4, value_dim: 4, window: None };
        let layer = |window| Some(State::Kv(KvState { window, ..kv }));
        let states = std::iter::repeat_n(layer(None), far).chain(std::iter::repeat_n(layer(Some(40)), near));
        EngineConfig::new(context, 9, StateLayout::new(DType::F32, states.collect())).step_tokens(64)
    }

    #[test]
    fn a_cache_for_one_full_context_holds_one_whatever_the_layers() {
        for (far, near) in [(1, 0), (0, 1), (1, 1), (3, 1), (1, 5), (9, 1), (1, 40)] {
            for context in [33, 160, 1000, 4096, 100_000] {
                let config = config(far, near, context);
                let limits = config.block_limits();
                let what = format!("{far} and {near} layers, {context} tokens: {limits:?}");
                assert!(limits.far >= blocks_for(context), "{what}");
                let full = config.at_once(usize::MAX);
                let exact = config.states.bytes_of(full);
                let limits = config.clone().kv_budget_bytes(exact).block_limits();
                assert!(limits.far >= full.far && limits.near >= full.near, "{what}: {limits:?} of {exact}");
            }
        }
    }

    #[test]
    fn limits_are_paid_for_and_what_a_request_is_said_to_need_is_enough_and_no_more() {
        for (far, near) in [(1, 0), (1, 1), (3, 1), (1, 5), (9, 1)] {
            for context in [160, 1000, 4096] {
                for blocks in (0..300).step_by(7).chain([1, 2, 3, 4]) {
                    let budget = blocks * 1024 + blocks % 3;
                    let config = config(far, near, context).kv_budget_bytes(budget);
                    let limits = config.block_limits();
                    let what =
                        format!("{far} and {near} layers, {context} tokens, {budget} bytes: {limits:?}");
                    assert!(config.states.bytes_of(limits) <= budget, "{what}");
                    assert!(
                        limits.far >= budget / config.states.block_bytes(),
                        "{what}: as many as of one kind"
                    );
                    // Whatever the cache has room for can be computed by itself.
                    let most = (limits.far * BLOCK_TOKENS).min(context);
                    assert!(config.at_once(most).near <= limits.near, "{what}");
                    if limits.far * BLOCK_TOKENS < context {
                        let refused = limits.far * BLOCK_TOKENS + 1;
                        let needed = config.budget_for(refused);
                        assert!(needed > budget, "{what}: {refused} tokens are refused and need {needed}");
                        let enough = config.clone().kv_budget_bytes(needed).block_limits();
                        assert!(enough.far * BLOCK_TOKENS >= refused, "{what}: {needed} give {enough:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn budgets_beyond_all_bounds_are_bounds() {
        for (far, near) in [(1, 0), (1, 1), (0, 1)] {
            let limits = config(far, near, usize::MAX).kv_budget_bytes(usize::MAX).block_limits();
            assert_eq!(limits.far, MOST);
            let config = config(far, near, usize::MAX).kv_budget_bytes(0);
            assert_eq!(config.block_limits(), Blocks::default());
            assert!(config.budget_for(usize::MAX) > 0);
        }
    }
}
