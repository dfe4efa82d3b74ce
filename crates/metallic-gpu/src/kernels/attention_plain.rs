//! Attention in three steps: scores, softmax, weighted sum. Slower than the fused form and easier to trust: the second
//! provider, and what the first is compared with.

use super::attention::{ATTEND, AttentionSpec, blocks_of};
use super::rope::{KV, KV_ALIGN};
use super::{COMMON, Launch, Slot, Stage, Stages, family};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::params::kernel_params;
use crate::threadgroup;

kernel_params! {
    /// Rows `(head, token)` of `stride` scores. No window: `window` is the largest number.
    PlainParams {
        heads: u32, kv_heads: u32, tokens: u32, window: u32, stride: u32, scale: f32, softcap: f32, value_dim: u32,
    }
}

family! {
    "attention_plain" (PlainParams) uses COMMON, KV, ATTEND;
    "attention_plain_scores" { reads q: 4, keys: KV_ALIGN, rows: 8, blocks: 4; writes scores: 4 }
    "attention_plain_softmax" { reads rows: 8, sinks: 4; updates scores: 4 }
    "attention_plain_values" { reads weights: 4, values: KV_ALIGN, rows: 8, blocks: 4; writes out: 4 }
}

/// Plans attention: `(q [tokens, heads * head_dim], receipt) -> [tokens, heads * value_dim]`.
pub(crate) fn plan(spec: &AttentionSpec, limits: &Limits) -> Result<Stages, GpuError> {
    let constants = spec.constants()?;
    let a = &spec.attention;
    let (heads, kv_heads, tokens) = (a.heads as u32, a.kv_heads as u32, spec.shape.tokens as u32);
    let value_dim = a.value_dim as u32;
    let blocks = blocks_of(spec.reach(), a.window.is_some()).max(1);
    let stride = blocks * 32;
    let rows = a.heads * spec.shape.tokens;
    let bytes = rows.checked_mul(stride as usize * 4).filter(|bytes| *bytes <= limits.max_buffer);
    let Some(bytes) = bytes else {
        let needed = rows.saturating_mul(stride as usize * 4);
        return Err(GpuError::no_room("attention scores", needed, limits.max_buffer as u64));
    };
    let (window, scale, softcap) = spec.numbers();
    let params = PlainParams { heads, kv_heads, tokens, window, stride, scale, softcap, value_dim };
    let simdgroups = blocks.min(4).min(limits.max_threads / 32).max(1);
    let launch = |function, groups, threads| {
        FAMILY.kernel(function, constants).launch(params.params(), groups, [threads, 1, 1])
    };
    let groups = [kv_heads, tokens, blocks.div_ceil(simdgroups)];
    let scores = Launch {
        work: spec.half_work(a.head_dim),
        ..launch("attention_plain_scores", groups, simdgroups * 32)
    };
    let rows = [heads, tokens, 1];
    let softmax = launch("attention_plain_softmax", rows, threadgroup::row_threads(stride, limits));
    let values = Launch {
        work: spec.half_work(a.value_dim),
        ..launch("attention_plain_values", rows, value_dim.next_multiple_of(32).min(limits.max_threads))
    };
    let weights = Slot::Scratch(0);
    Ok(Stages {
        stages: vec![
            Stage::new(scores, [Slot::Input(0), Slot::Keys, Slot::ROWS, Slot::BLOCKS, weights])
                .moving(1, spec.seen(a.head_dim, 1, false)),
            Stage::new(softmax, [Slot::ROWS, spec.sinks(), weights]),
            Stage::new(values, [weights, Slot::Values, Slot::ROWS, Slot::BLOCKS, Slot::Output])
                .moving(1, spec.seen(a.value_dim, a.heads / a.kv_heads, false)),
        ],
        scratch: vec![bytes],
    })
}

#[cfg(test)]
mod tests {
    use metallic_core::{Attention, DType};

    use super::super::attention::scene::{GROUPED, Scene};
    use super::*;
    use crate::threadgroup::tests::LIMITS;

    const SMALL: Attention = Attention { heads: 2, kv_heads: 1, head_dim: 16, scale: 0.25, ..GROUPED };

    fn check(scene: &Scene) {
        scene.check(&plan(&scene.spec(), &LIMITS).unwrap(), 1e-5);
    }

    #[test]
    fn three_steps_agree_with_the_formula_at_every_border() {
        for length in [1, 2, 31, 32, 33, 64, 65, 257] {
            check(&Scene::new(SMALL, DType::F32, &[(length - 1, 1)]));
        }
        for head_dim in [16, 26] {
            check(&Scene::new(Attention { head_dim, ..SMALL }, DType::F16, &[(1100, 2), (2060, 1)]));
        }
        for tokens in [2, 33] {
            check(&Scene::new(SMALL, DType::F32, &[(30, tokens), (0, 3)]));
        }
        for kv in [DType::F32, DType::F16, DType::BF16, DType::Q8_0] {
            check(&Scene::new(GROUPED, kv, &[(44, 1), (2, 2)]));
        }
        for head_dim in [26, 80, 256] {
            let attention = Attention { heads: 5, kv_heads: 1, head_dim, scale: 0.1, ..GROUPED };
            check(&Scene::new(attention, DType::F16, &[(36, 2)]));
        }
    }

    #[test]
    fn values_may_be_of_another_size_than_keys() {
        for (kv, head_dim, value_dim) in [
            (DType::F32, 24, 16),
            (DType::F16, 26, 33),
            (DType::BF16, 16, 100),
            (DType::Q8_0, 96, 64),
            (DType::F16, 576, 512),
            (DType::F32, 8, 1100),
        ] {
            let scene = Scene::new(Attention { head_dim, ..SMALL }, kv, &[(40, 2), (0, 3)]);
            let attention = Attention { value_dim, kv_heads: 2, heads: 4, ..scene.attention };
            let scene = Scene { attention, ..scene };
            check(&scene);
            let stages = plan(&scene.spec(), &LIMITS).unwrap();
            let bytes = |dim: usize| 2 * dim / kv.block_len() * kv.block_bytes();
            let seen = |stage: usize| stages.stages[stage].slots()[1].moved.bytes(&scene.counts());
            let tokens = scene.counts().seen;
            assert_eq!(seen(0), Some(bytes(head_dim) * tokens), "keys");
            assert_eq!(seen(2), Some(2 * bytes(value_dim) * tokens), "values, by each of two heads");
            assert!(super::super::attention::plan(&scene.spec(), &LIMITS).is_err(), "they are not fused");
        }
    }

    #[test]
    fn windows_caps_sinks_blind_rows_and_extreme_scores_give_what_the_formula_gives() {
        for window in [1, 5, 33] {
            let attention = Attention { window: Some(window), ..SMALL };
            check(&Scene::new(attention, DType::F32, &[(70, 1), (3, 2), (31, 2)]));
        }
        check(&Scene::new(Attention { window: Some(1100), ..SMALL }, DType::F32, &[(1500, 2), (20, 1)]));
        for (softcap, sinks) in [(Some(0.7), None), (Some(3.0), Some(vec![-1.0, 50.0]))] {
            let attention = Attention { softcap, ..SMALL };
            check(&Scene { sinks, blind: true, ..Scene::new(attention, DType::F32, &[(40, 1), (0, 2)]) });
        }
        for strength in [1e-30, 1e6, 1e30] {
            check(&Scene { strength, ..Scene::new(SMALL, DType::F32, &[(40, 3)]) });
        }
    }

    #[test]
    fn scores_that_no_buffer_holds_are_refused_with_their_size() {
        let spec = Scene::new(GROUPED, DType::F16, &[(100, 300)]).spec();
        let limits = Limits { max_buffer: 1 << 20, ..LIMITS };
        let error = plan(&spec, &limits).unwrap_err();
        let needed = 6 * 300 * 416 * 4;
        assert!(matches!(error, GpuError::OutOfMemory { needed: n, .. } if n == needed), "{error}");
    }
}
