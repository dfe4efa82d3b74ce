use metallic_core::{Attention, DType};

use super::scene::{GROUPED, Scene};
use super::*;
use crate::kernels::attention_plain;
use crate::threadgroup::tests::LIMITS;
use crate::tuning::built_in;

const KV_TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];
/// Heads of one size, small enough for many cases.
const SMALL: Attention = Attention { heads: 2, kv_heads: 1, head_dim: 16, scale: 0.25, ..GROUPED };
const TOLERANCE: f32 = 1e-5;

fn by_rows(scene: &Scene) -> Stages {
    rows(&scene.spec(), &LIMITS).unwrap()
}

fn by_tiles(scene: &Scene) -> Stages {
    attention_tiles::plan(&scene.spec(), &LIMITS).unwrap()
}

#[test]
fn one_token_sees_a_past_that_ends_anywhere_in_a_block() {
    for length in [1, 2, 31, 32, 33, 64, 65, 257] {
        let scene = Scene::new(GROUPED, DType::F32, &[(length - 1, 1)]);
        scene.check(&by_rows(&scene), TOLERANCE);
    }
}

#[test]
fn rows_of_several_sequences_keep_to_their_own_blocks() {
    let scene = Scene::new(SMALL, DType::F32, &[(40, 1), (0, 3), (95, 2), (7, 1)]);
    scene.check(&by_rows(&scene), TOLERANCE);
}

#[test]
fn rows_read_every_type_of_cache() {
    for kv in KV_TYPES {
        let scene = Scene::new(GROUPED, kv, &[(44, 1), (2, 2)]);
        scene.check(&by_rows(&scene), TOLERANCE);
    }
}

#[test]
fn rows_have_heads_of_every_size() {
    for head_dim in [8, 16, 26, 30, 40, 48, 72, 80, 96, 128, 136, 192, 250, 256] {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let attention = Attention { heads: 3, kv_heads: 3, head_dim, scale, ..GROUPED };
        let scene = Scene::new(attention, DType::F32, &[(34, 1)]);
        scene.check(&by_rows(&scene), TOLERANCE);
    }
    for (kv, head_dim) in
        [(DType::F16, 80), (DType::BF16, 26), (DType::F16, 26), (DType::Q8_0, 96), (DType::Q8_0, 256)]
    {
        let attention = Attention { heads: 5, kv_heads: 1, head_dim, scale: 0.1, ..GROUPED };
        let scene = Scene::new(attention, kv, &[(36, 2)]);
        scene.check(&by_rows(&scene), TOLERANCE);
    }
}

#[test]
fn any_number_of_query_heads_shares_a_key() {
    for per_kv in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17] {
        let attention = Attention { heads: 2 * per_kv, kv_heads: 2, head_dim: 32, scale: 0.2, ..GROUPED };
        let scene = Scene::new(attention, DType::F16, &[(40, 1)]);
        scene.check(&by_rows(&scene), TOLERANCE);
    }
    for per_kv in [1, 3, 6] {
        let attention = Attention { heads: per_kv, kv_heads: 1, head_dim: 26, scale: 0.2, ..GROUPED };
        let scene = Scene::new(attention, DType::F32, &[(40, 1)]);
        scene.check(&by_rows(&scene), TOLERANCE);
    }
}

#[test]
fn rows_look_no_further_back_than_their_window() {
    for window in [1, 5, 33] {
        let attention = Attention { window: Some(window), ..SMALL };
        let scene = Scene::new(attention, DType::F32, &[(70, 1), (3, 2), (31, 2), (300, 1)]);
        scene.check(&by_rows(&scene), TOLERANCE);
    }
}

#[test]
fn rows_are_capped_and_sinks_take_their_share() {
    for (softcap, sinks) in
        [(Some(0.7), None), (None, Some(vec![2.0, -30.0])), (Some(3.0), Some(vec![200.0, -1.0]))]
    {
        let scene =
            Scene { sinks, ..Scene::new(Attention { softcap, ..SMALL }, DType::F32, &[(40, 1), (0, 2)]) };
        scene.check(&by_rows(&scene), TOLERANCE);
    }
}

#[test]
fn a_row_that_sees_nothing_gives_zeros() {
    for sinks in [None, Some(vec![1.0, -1.0])] {
        for head_dim in [16, 26] {
            let attention = Attention { head_dim, ..SMALL };
            let scene =
                Scene { blind: true, sinks: sinks.clone(), ..Scene::new(attention, DType::F32, &[(5, 2)]) };
            scene.check(&by_rows(&scene), TOLERANCE);
        }
    }
}

#[test]
fn huge_scores_pick_one_value_and_tiny_ones_all_alike() {
    for strength in [1e-30, 1e6, 1e30] {
        let scene = Scene { strength, ..Scene::new(SMALL, DType::F32, &[(40, 9)]) };
        scene.check(&by_rows(&scene), TOLERANCE);
        scene.check(&by_tiles(&scene), TOLERANCE);
    }
}

/// Holds a scene whose rows are split to the formula.
fn check_split(scene: &Scene) {
    let stages = by_rows(scene);
    assert_eq!(stages.stages.len(), 2, "{scene:?}");
    scene.check(&stages, TOLERANCE);
}

#[test]
fn long_rows_are_split_and_brought_together_for_heads_and_caches_of_every_kind() {
    for head_dim in [26, 32, 64, 128, 256] {
        for kv in KV_TYPES.into_iter().filter(|kv| head_dim % kv.block_len() == 0) {
            let scale = 1.0 / (head_dim as f32).sqrt();
            let attention = Attention { heads: 3, kv_heads: 1, head_dim, scale, ..GROUPED };
            check_split(&Scene::new(attention, kv, &[(1060, 1), (20, 2)]));
        }
    }
    // A second threadgroup for the ninth query head of each key/value head.
    for head_dim in [16, 26] {
        let attention = Attention { heads: 18, kv_heads: 2, head_dim, scale: 0.2, ..GROUPED };
        check_split(&Scene::new(attention, DType::F16, &[(1040, 1)]));
    }
}

#[test]
fn split_rows_keep_to_windows_caps_and_sinks() {
    let sinks = || Some(vec![1.0, 4.0]);
    for (head_dim, kv) in [(26, DType::F32), (32, DType::Q8_0), (64, DType::BF16)] {
        for (window, softcap, sinks) in [
            (None, Some(0.5), None),
            (None, None, sinks()),
            (None, None, Some(vec![200.0, -1.0])),
            (Some(1100), Some(0.7), sinks()),
            (Some(1025), None, None),
        ] {
            let attention = Attention { head_dim, window, softcap, ..SMALL };
            let scene = Scene::new(attention, kv, &[(1500, 2), (20, 2)]);
            check_split(&Scene { sinks, blind: head_dim == 26, ..scene });
        }
    }
    for strength in [1e-30, 1e6, 1e30] {
        check_split(&Scene { strength, ..Scene::new(SMALL, DType::F32, &[(1200, 2)]) });
    }
}

#[test]
fn tokens_around_the_border_of_a_split_see_what_they_may() {
    // Splits of 7 blocks of 32 tokens and more.
    for past in [1024, 1055, 1056, 1087, 1151, 1152, 1153] {
        check_split(&Scene::new(SMALL, DType::F32, &[(past, 3)]));
    }
    // Splits of eight blocks, of which the second sequence fills a third.
    check_split(&Scene::new(SMALL, DType::F16, &[(4400, 1), (1500, 1)]));
}

#[test]
fn tiles_of_every_length_see_what_they_may() {
    for tokens in [1, 2, 8, 31, 32, 33, 65] {
        let scene = Scene::new(SMALL, DType::F32, &[(0, tokens)]);
        scene.check(&by_tiles(&scene), TOLERANCE);
    }
    for past in [1, 31, 32, 33, 257, 1100] {
        let scene = Scene::new(SMALL, DType::F32, &[(past, 9)]);
        scene.check(&by_tiles(&scene), TOLERANCE);
    }
}

#[test]
fn tiles_of_several_sequences_and_types_of_cache_agree_with_the_formula() {
    for kv in KV_TYPES {
        for (heads, kv_heads) in [(3, 1), (4, 2)] {
            let attention = Attention { heads, kv_heads, ..GROUPED };
            let scene = Scene::new(attention, kv, &[(0, 35), (40, 1), (9, 12)]);
            scene.check(&by_tiles(&scene), TOLERANCE);
        }
    }
}

#[test]
fn tiles_have_heads_of_every_size() {
    for head_dim in [8, 24, 72, 80, 128, 136, 256] {
        let scale = 1.0 / (head_dim as f32).sqrt();
        let attention = Attention { heads: 2, kv_heads: 2, head_dim, scale, ..GROUPED };
        let scene = Scene::new(attention, DType::F16, &[(20, 14)]);
        scene.check(&by_tiles(&scene), TOLERANCE);
    }
}

#[test]
fn tiles_keep_to_windows_caps_and_sinks() {
    for (window, softcap, sinks) in [
        (Some(1), None, None),
        (Some(5), Some(0.7), None),
        (Some(33), None, Some(vec![3.0, -2.0])),
        (None, Some(2.0), Some(vec![200.0, -1.0])),
    ] {
        let attention = Attention { window, softcap, ..SMALL };
        let scene = Scene { sinks, ..Scene::new(attention, DType::F32, &[(70, 20), (0, 34)]) };
        scene.check(&by_tiles(&scene), TOLERANCE);
    }
}

#[test]
fn a_step_goes_by_tiles_where_its_sequences_bring_many_tokens() {
    let uses = |scene: &Scene| plan(&scene.spec(), &LIMITS).unwrap().stages[0].launch.kernel.function;
    assert_eq!(uses(&Scene::new(GROUPED, DType::F16, &[(100, 1)])), "attention_decode_3");
    assert_eq!(uses(&Scene::new(GROUPED, DType::F16, &[(100, 7), (3, 2)])), "attention_decode_3");
    assert_eq!(uses(&Scene::new(GROUPED, DType::F16, &[(0, 33)])), "attention_tiles_8");
    assert_eq!(uses(&Scene::new(GROUPED, DType::F16, &[(0, 100), (3, 1), (9, 1)])), "attention_tiles_8");
    let odd = Attention { head_dim: 26, ..GROUPED };
    assert_eq!(uses(&Scene::new(odd, DType::F16, &[(0, 33)])), "attention_decode_odd_4");
}

#[test]
fn a_row_within_reach_is_one_dispatch_and_a_longer_one_is_split_while_the_gpu_is_idle() {
    for blocks in 1..=LIMITS.tuning.attention_reach {
        assert_eq!(split(blocks, 1, &LIMITS).splits, 1, "{blocks}");
    }
    for (blocks, groups) in [(33, 1), (128, 3), (4096, 2), (4096, 60), (33, 1000), (100, 7)] {
        let s = split(blocks, groups, &LIMITS);
        assert!(s.splits * s.span >= blocks && (s.splits - 1) * s.span < blocks, "{blocks} {groups}: {s:?}");
        assert!(
            s.splits == 1 || s.splits * groups * LIMITS.tuning.attention_simdgroups <= LIMITS.busy_simdgroups,
            "{s:?}"
        );
    }
    assert_eq!(split(1, 1, &LIMITS).simdgroups, 1);
    assert!(split(128, 3, &LIMITS).splits > 4);
    assert_eq!(split(4096, 1000, &LIMITS).splits, 1);
    // 4,608 tokens over four key/value heads: a block for every simdgroup where there are cores enough.
    for (chip, expected) in
        [("Apple M4", (15, 10, 8)), ("Apple M4 Max", (18, 8, 8)), ("Apple M3 Ultra", (36, 4, 4))]
    {
        let Split { simdgroups, span, splits } = split(144, 4, &Limits::of_apple(chip));
        assert_eq!((splits, span, simdgroups), expected, "{chip}");
    }
}

#[test]
fn query_heads_are_shared_out_evenly() {
    let found = |per_kv| {
        let (parts, part, room) = parts(per_kv, false, WIDE.1);
        assert!(parts * part >= per_kv && (parts - 1) * part < per_kv && part <= room);
        (parts, room)
    };
    assert_eq!(
        [1, 3, 5, 7, 8, 9, 16, 71].map(found),
        [(1, 1), (1, 3), (1, 6), (1, 8), (1, 8), (2, 6), (2, 8), (9, 8)]
    );
}

#[test]
fn threadgroup_memory_holds_every_shape_a_kernel_can_have() {
    for head_dim in 1..=256u32 {
        for &room in WIDE.1.iter().filter(|room| head_dim.is_multiple_of(8) || **room <= 4) {
            for simdgroups in 1..=LIMITS.tuning.attention_simdgroups {
                let (round, floats) = memory(simdgroups, room, head_dim, &LIMITS).unwrap();
                assert!(round >= 1 && round <= room && floats * 4 <= LIMITS.threadgroup_memory);
                assert!(floats.is_multiple_of(4), "Metal takes multiples of 16 bytes");
            }
        }
    }
}

#[test]
fn reads_are_counted_as_often_as_they_happen_and_within_the_window() {
    const ROW: usize = 2 * 64 * 2;
    let touched = |scene: &Scene, stages: &Stages| {
        let slots = stages.stages[0].slots();
        assert_eq!(slots[1].moved, slots[2].moved, "keys and values");
        slots[1].moved.bytes(&scene.counts()).unwrap() / ROW
    };
    let scene = |window, sequences: &[(usize, usize)]| {
        Scene::new(Attention { window, ..GROUPED }, DType::F16, sequences)
    };
    let by_rows = |window, sequences: &[(usize, usize)]| {
        let scene = scene(window, sequences);
        touched(&scene, &by_rows(&scene))
    };
    assert_eq!(by_rows(None, &[(99, 1)]), 100);
    assert_eq!(by_rows(Some(10), &[(99, 1)]), 10);
    assert_eq!(by_rows(Some(500), &[(99, 1), (9, 1)]), 110);
    assert_eq!(by_rows(None, &[(99, 5)]), 100 + 101 + 102 + 103 + 104, "every token makes its own pass");
    assert_eq!(by_rows(Some(10), &[(99, 5)]), 50);
    let many = Scene::new(Attention { heads: 34, ..GROUPED }, DType::F16, &[(99, 1)]);
    assert_eq!(touched(&many, &super::tests::by_rows(&many)), 3 * 100);
    // Three query heads share a key/value head, and each tile of 32 tokens reads for itself.
    let by_tiles = |window, sequences: &[(usize, usize)]| {
        let scene = scene(window, sequences);
        touched(&scene, &by_tiles(&scene))
    };
    assert_eq!(by_tiles(None, &[(100, 20)]), 3 * 120);
    assert_eq!(by_tiles(None, &[(100, 40)]), 3 * (132 + 140));
    assert_eq!(by_tiles(Some(10), &[(100, 40)]), 3 * (2 * 9 + 40));
}

#[test]
fn the_work_of_a_step_is_that_of_its_query_heads_at_most() {
    let work = |stages: Stages| stages.stages.iter().map(|stage| stage.launch.work).sum::<u64>();
    let each = 2 * 6 * 64;
    for kv in [DType::F16, DType::Q8_0] {
        let scene = Scene::new(GROUPED, kv, &[(99, 2), (9, 1)]);
        assert_eq!(work(by_rows(&scene)), 3 * 101 * each);
        assert_eq!(work(by_tiles(&scene)), 3 * 101 * each);
        assert_eq!(work(attention_plain::plan(&scene.spec(), &LIMITS).unwrap()), 3 * 101 * each);
    }
    let windowed = Scene::new(Attention { window: Some(7), ..GROUPED }, DType::F16, &[(3000, 2)]);
    assert_eq!(work(by_rows(&windowed)), 14 * each);
    let split = Scene::new(GROUPED, DType::F16, &[(2999, 1)]);
    assert_eq!(by_rows(&split).stages.len(), 2);
    assert_eq!(work(by_rows(&split)), 3000 * each);
}

#[test]
fn what_no_kernel_takes_is_refused_by_name() {
    let refused =
        |attention, kv| plan(&Scene::new(attention, kv, &[(3, 1)]).spec(), &LIMITS).unwrap_err().to_string();
    let text = refused(Attention { head_dim: 264, ..GROUPED }, DType::F32);
    assert!(text.contains("264") && text.contains("256"), "{text}");
    let text = refused(Attention { heads: 5, ..GROUPED }, DType::F32);
    assert!(text.contains("5 query heads"), "{text}");
    let spec = AttentionSpec { kv: DType::Q4_0, ..Scene::new(GROUPED, DType::F32, &[(3, 1)]).spec() };
    let text = plan(&spec, &LIMITS).unwrap_err().to_string();
    assert!(text.contains("Q4_0"), "{text}");
    let spec = AttentionSpec { kv: DType::Q8_0, ..Scene::new(SMALL, DType::F32, &[(3, 1)]).spec() };
    let text = plan(&spec, &LIMITS).unwrap_err().to_string();
    assert!(text.contains("Q8_0") && text.contains("16"), "{text}");
}

const UNITS: crate::gpu::MatrixUnits = crate::gpu::MatrixUnits { cores: 132, threadgroup_memory: 99 << 10 };

#[test]
fn many_cores_share_short_rows_by_heads_and_long_ones_by_blocks() {
    let tuning = built_in("cuda", "NVIDIA H200", 132).0;
    let limits = Limits { matrix_units: Some(UNITS), busy_simdgroups: 132 * 32, tuning, ..LIMITS };
    assert_eq!(parts(7, true, WIDE.1), (7, 1, 1));
    assert_eq!(parts(7, false, WIDE.1), (1, 7, 8));
    assert_eq!(split(8, 28, &limits), Split { simdgroups: 8, span: 8, splits: 1 });
    assert_eq!(split(256, 4, &limits), Split { simdgroups: 4, span: 4, splits: 64 });
    assert_eq!(split(256, 400, &limits).splits, 1);
    let kernel = |tokens: usize, limits: &Limits| {
        let sequences: Vec<_> = (0..tokens).map(|_| (9, 1)).collect();
        plan(&Scene::new(GROUPED, DType::BF16, &sequences).spec(), limits).unwrap().stages[0].launch
    };
    assert_eq!(
        kernel(44, &limits).kernel.function,
        "attention_decode_1",
        "6 heads of 44 tokens on 132 cores"
    );
    assert_eq!(kernel(45, &limits).kernel.function, "attention_decode_3");
    let few = Limits { tuning: Tuning::DEFAULT, ..limits };
    assert_eq!(kernel(1, &few).kernel.function, "attention_decode_3");
    let narrow = Limits { tuning: Tuning { attention_simdgroups: 2, ..Tuning::DEFAULT }, ..limits };
    assert_eq!(split(9, 1, &narrow).simdgroups, 2);
    let shorter = Tuning { attention_reach: 4, attention_span: 2, busy: 25, ..Tuning::DEFAULT };
    let shorter = Limits { tuning: shorter, ..LIMITS };
    assert_eq!(split(5, 1, &shorter), Split { simdgroups: 2, span: 2, splits: 3 });
    assert_eq!(split(5, 16, &shorter).splits, 1, "a quarter of the device is busy with them");
    let rows = Limits { tuning: Tuning { query_rows: 16, ..Tuning::DEFAULT }, ..limits };
    let prompt = Scene::new(GROUPED, DType::F32, &[(0, 15)]);
    assert_eq!(plan(&prompt.spec(), &few).unwrap().stages[0].launch.kernel.function, "attention_tiles_8");
    assert_eq!(plan(&prompt.spec(), &rows).unwrap().stages[0].launch.kernel.function, "attention_decode_3");
}

#[test]
fn few_tokens_on_matrix_units_are_as_exact_as_without() {
    let with = |kilobytes: u32| {
        let units = crate::gpu::MatrixUnits { threadgroup_memory: kilobytes << 10, ..UNITS };
        Limits { matrix_units: Some(units), busy_simdgroups: 132 * 32, ..LIMITS }
    };
    // As much threadgroup memory as the device of the test has.
    let limits = with(32);
    let check = |scene: Scene, stages: usize| {
        let made = plan(&scene.spec(), &limits).unwrap();
        assert_eq!(made.stages[0].launch.kernel.function, "attention_heads", "{scene:?}");
        assert_eq!(made.stages.len(), stages, "{scene:?}");
        scene.check(&made, 2e-6);
    };
    for (heads, kv_heads, head_dim) in [(7, 1, 128), (4, 2, 64), (12, 1, 32), (2, 1, 96)] {
        let attention = Attention { heads, kv_heads, head_dim, value_dim: head_dim, scale: 0.2, ..GROUPED };
        check(Scene::new(attention, DType::F16, &[(300, 1)]), 2);
        check(Scene::new(Attention { window: Some(280), ..attention }, DType::F16, &[(610, 1), (33, 2)]), 2);
    }
    // So many tokens that all of a row is one threadgroup's.
    let attention = Attention { heads: 7, kv_heads: 1, head_dim: 32, value_dim: 32, scale: 0.2, ..GROUPED };
    let crowd = [(40, 1); 70];
    for (softcap, sinks) in [(Some(0.7), None), (None, Some((0..7).map(|h| h as f32 - 2.0).collect()))] {
        let scene = Scene::new(Attention { softcap, ..attention }, DType::F16, &crowd);
        check(Scene { sinks, ..scene }, 1);
    }
    let split = |blocks, groups, limits: Limits| attention_heads::split(blocks, groups, 128, &limits);
    assert_eq!(split(256, 4, with(227)), Split { simdgroups: 8, span: 8, splits: 32 });
    assert_eq!(split(256, 4, with(99)), Split { simdgroups: 6, span: 8, splits: 32 });
    assert_eq!(split(3, 1, with(227)), Split { simdgroups: 3, span: 3, splits: 1 });
}

#[test]
fn heads_of_short_rows_have_threadgroups_of_their_own() {
    let tuning = built_in("cuda", "NVIDIA H200", 132).0;
    let limits = Limits { matrix_units: Some(UNITS), busy_simdgroups: 132 * 32, tuning, ..LIMITS };
    let check = |scene: Scene, limits: &Limits, kernel: &str| {
        let made = plan(&scene.spec(), limits).unwrap();
        assert_eq!(made.stages[0].launch.kernel.function, kernel, "{scene:?}");
        scene.check(&made, 2e-6);
    };
    // Simdgroups have several blocks of a row each.
    let narrow = Limits { max_threads: 64, ..limits };
    for (heads, kv_heads, head_dim, kernel) in
        [(7, 1, 128, "attention_head"), (4, 2, 64, "attention_head"), (2, 1, 96, "attention_decode_1")]
    {
        let attention = Attention { heads, kv_heads, head_dim, value_dim: head_dim, scale: 0.2, ..GROUPED };
        check(Scene::new(attention, DType::F16, &[(0, 1)]), &limits, kernel);
        check(Scene::new(attention, DType::F16, &[(200, 1), (33, 2)]), &narrow, kernel);
        check(
            Scene::new(Attention { window: Some(40), ..attention }, DType::F16, &[(110, 1)]),
            &limits,
            kernel,
        );
        let sinks = (0..heads).map(|h| h as f32 - 2.0).collect();
        let scene = Scene::new(Attention { softcap: Some(0.7), ..attention }, DType::F16, &[(70, 1)]);
        check(Scene { sinks: Some(sinks), ..scene }, &limits, kernel);
    }
}

/// Queries and weights are halfs there.
const OF_HALFS: f32 = 2e-3;

#[test]
fn matrix_units_agree_with_the_formula() {
    let limits = Limits { matrix_units: Some(UNITS), ..LIMITS };
    let check = |scene: Scene| {
        let stages = plan(&scene.spec(), &limits).unwrap();
        assert_eq!(stages.stages[0].launch.kernel.function, "attention_units");
        scene.check(&stages, OF_HALFS);
    };
    for (heads, kv_heads, head_dim) in [(3, 1, 32), (4, 2, 64), (10, 2, 128), (7, 1, 96)] {
        let attention = Attention { heads, kv_heads, head_dim, value_dim: head_dim, scale: 0.2, ..GROUPED };
        check(Scene::new(attention, DType::F16, &[(0, 35), (40, 9), (9, 16)]));
        check(Scene::new(Attention { window: Some(20), ..attention }, DType::F16, &[(70, 33)]));
    }
    let attention = Attention { heads: 2, kv_heads: 1, head_dim: 32, value_dim: 32, ..SMALL };
    for (softcap, sinks) in [(Some(0.7), None), (Some(3.0), Some(vec![2.0, -1.0]))] {
        let scene = Scene::new(Attention { softcap, ..attention }, DType::F16, &[(40, 20)]);
        check(Scene { sinks, ..scene });
    }
    let other = |kv, head_dim| {
        let attention = Attention { head_dim, value_dim: head_dim, ..attention };
        let spec = Scene::new(attention, kv, &[(0, 35)]).spec();
        plan(&spec, &limits).unwrap().stages[0].launch.kernel.function
    };
    assert_eq!(other(DType::F32, 32), "attention_tiles_8", "what is exact stays so");
    assert_eq!(other(DType::F16, 256), "attention_tiles_32");
}
