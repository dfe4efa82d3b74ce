use metallic_core::{BLOCK_TOKENS, Rope, RopePairs};

use super::super::cell_matvec::tests::{WITH_UNITS, packed};
use super::super::harness::{Data, Memory, as_f32s, bytes_of, f32s, run_stages, u32s};
use super::super::project::Part;
use super::super::quant::tests::{Numbers, weights};
use super::super::rope::KvRows;
use super::super::rope::tests::kv_rows;
use super::super::{Moved, cell_matvec, cell_qkv, cell_rows};
use super::*;
use crate::gpu::MatrixUnits;
use crate::threadgroup::tests::LIMITS;

/// Blocks of the cache.
const BLOCKS: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Case {
    tokens: usize,
    cols: usize,
    types: [DType; 3],
    heads: usize,
    kv: KvRows,
    rope: Rope,
    pairs: usize,
    norm: bool,
    bias: bool,
}

fn case(tokens: usize, (heads, kv_heads, head_dim): (usize, usize, usize), kv: DType) -> Case {
    Case {
        tokens,
        cols: 75,
        types: [DType::F32; 3],
        heads,
        kv: kv_rows(kv, kv_heads, head_dim, tokens as u32),
        rope: Rope { head_dim, pairs: RopePairs::Halves, magnitude: 1.0 },
        pairs: head_dim / 2,
        norm: true,
        bias: false,
    }
}

/// A case's projection, the way of its result, and what lies behind the slots of both.
fn make(case: &Case) -> (Projection, Memory) {
    let mut numbers = Numbers(case.tokens as u64 + 7);
    let mut memory = Memory::new();
    let mut add = |data: Data| {
        let slot = Slot::Input(memory.len());
        memory.push((slot, data));
        slot
    };
    let x = add(f32s(&numbers.units(case.tokens * case.cols)));
    let norm = case.norm.then(|| (1e-5, add(f32s(&numbers.units(case.cols)))));
    let heads = [case.heads, case.kv.kv_heads, case.kv.kv_heads];
    let parts = [0, 1, 2].map(|i| {
        let rows = heads[i] * case.kv.head_dim;
        let weight = add(Data::Bytes(weights(case.types[i], rows * case.cols, 1.0, 3 + i as u64)));
        let bias = case.bias.then(|| add(f32s(&numbers.units(rows))));
        Some(Part { dtype: case.types[i], rows: rows as u32, weight, bias })
    });
    let freqs: Vec<f32> = (0..case.pairs).map(|i| 0.83f32.powi(i as i32)).collect();
    memory.push((FREQS, f32s(&freqs)));
    // A sequence that passes from block 3 to block 1, and the last token in another one.
    let last = case.tokens as u32 - 1;
    let rows = (0..last).flat_map(|t| [0, 31 + t]).chain([2, 1]);
    memory.push((Slot::ROWS, u32s(&rows.collect::<Vec<_>>())));
    memory.push((Slot::BLOCKS, u32s(&[3, 1, 0])));
    let positions: Vec<u32> = (0..last).map(|t| 1000 + t).chain([0]).collect();
    memory.push((POSITIONS, u32s(&positions)));
    let row = case.kv.dtype.bytes_for(case.kv.head_dim).unwrap();
    let cache = BLOCKS * BLOCK_TOKENS * case.kv.kv_heads * row;
    memory.push((Slot::Keys, Data::Room(cache)));
    memory.push((Slot::Values, Data::Room(cache)));
    memory.push((Slot::Output, Data::Room(case.tokens * case.heads * case.kv.head_dim * 4)));
    let projection = Projection {
        op: "qkv",
        tokens: case.tokens as u32,
        cols: case.cols as u32,
        parts,
        x,
        norm,
        residual: None,
        gate: None,
        fine: false,
    };
    (projection, memory)
}

const POSITIONS: Slot = Slot::Input(98);
const FREQS: Slot = Slot::Input(99);

fn way(case: &Case) -> RopeKv<'_> {
    RopeKv {
        rope: &case.rope,
        kv: KvRows { tokens: case.tokens as u32, ..case.kv },
        heads: case.heads as u32,
        pairs: case.pairs as u32,
        positions: POSITIONS,
        freqs: FREQS,
        norm: None,
    }
}

/// The one launch against the product and its way into the cache, each of which is held to its formula elsewhere.
fn agrees(case: &Case) {
    agrees_within(case, &LIMITS);
}

fn agrees_within(case: &Case, limits: &Limits) {
    let (projection, memory) = make(case);
    let way = way(case);
    let fused = vectors(&projection, &way, limits).unwrap();
    assert_eq!((fused.stages.len(), fused.scratch.len()), (1, 0), "{case:?}");
    let apart = after(plan_vectors(&projection, limits).unwrap(), &projection, &way, limits).unwrap();
    agree(case, &memory, [fused, apart]);
}

/// Holds one launch to two, and returns what both give. `None` where there is no clang.
fn agree(case: &Case, memory: &Memory, [fused, apart]: [Stages; 2]) -> Option<[[Vec<u8>; 3]; 2]> {
    assert_eq!(apart.stages.len(), fused.stages.len() + 1, "{case:?}");
    let results = [fused, apart].map(|stages| {
        let mut memory = memory.clone();
        run_stages(&stages, &mut memory)?;
        Some([Slot::Output, Slot::Keys, Slot::Values].map(|slot| bytes_of(&memory, slot)))
    });
    let [Some(found), Some(expected)] = results else { return None };
    for (what, (found, expected)) in ["queries", "keys", "values"].iter().zip(found.iter().zip(&expected)) {
        assert!(found == expected, "{what} of {case:?} are not those of two launches");
    }
    Some([found, expected])
}

#[test]
fn one_launch_gives_every_bit_of_two_for_any_number_of_tokens() {
    for tokens in [1, 2, 3, 4, 5, 8, 11, 33] {
        agrees(&case(tokens, (3, 1, 16), DType::F16));
    }
}

#[test]
fn caches_whose_elements_stand_alone_are_written_in_every_type() {
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        agrees(&case(3, (4, 2, 64), dtype));
    }
}

#[test]
fn pairs_are_found_in_both_layouts_in_partial_rotations_and_in_ragged_heads() {
    for pairs in [RopePairs::Halves, RopePairs::Interleaved] {
        for (head_dim, rotated) in [(26, 13), (26, 4), (80, 40), (80, 10), (6, 0)] {
            let case = case(2, (3, 1, head_dim), DType::F32);
            let rope = Rope { pairs, magnitude: 1.2, ..case.rope };
            agrees(&Case { rope, pairs: rotated, bias: true, ..case });
        }
    }
}

#[test]
fn matrices_of_any_types_stand_side_by_side() {
    for types in [
        [DType::Q4_0, DType::Q4_0, DType::Q4_0],
        [DType::Q4K, DType::Q4K, DType::Q6K],
        [DType::Q5_0, DType::Q8_0, DType::F16],
        [DType::Q4_1, DType::BF16, DType::Q5_1],
        [DType::Q5K, DType::F32, DType::Q5K],
    ] {
        for (norm, bias, tokens) in [(true, false, 1), (false, true, 4)] {
            let case = case(tokens, (2, 1, 32), DType::F16);
            agrees(&Case { types, cols: 512, norm, bias, ..case });
        }
    }
}

/// Lays the matrices out in cells. `None` where there is no clang.
fn in_cells(projection: &Projection, memory: &mut Memory) -> Option<()> {
    for part in projection.parts.iter().flatten() {
        let Some((_, data)) = memory.iter_mut().find(|(slot, _)| *slot == part.weight) else { continue };
        *data = packed(part.dtype, (part.rows, projection.cols), data)?;
    }
    Some(())
}

#[test]
fn matrices_in_cells_go_the_same_way() {
    let limits = &WITH_UNITS;
    for (types, pairs, rotated, tokens) in [
        ([DType::Q4_0; 3], RopePairs::Halves, 32, 1),
        ([DType::Q4K, DType::Q4K, DType::Q6K], RopePairs::Halves, 16, 3),
        ([DType::F16; 3], RopePairs::Interleaved, 20, 6),
        ([DType::Q4_0; 3], RopePairs::Interleaved, 32, 1),
    ] {
        let base = case(tokens, (3, 1, 64), DType::F16);
        let rope = Rope { pairs, magnitude: 1.2, ..base.rope };
        // One token's few pairs are those of so many cores.
        let (cols, cores) = if tokens == 1 { (512, 6) } else { (256, 2) };
        let units = WITH_UNITS.matrix_units.map(|units| MatrixUnits { cores, ..units });
        let limits = &Limits { matrix_units: units, ..WITH_UNITS };
        let case = Case { types, cols, bias: true, rope, pairs: rotated, ..base };
        let (projection, mut memory) = make(&case);
        if in_cells(&projection, &mut memory).is_none() {
            return;
        }
        let way = way(&case);
        // The two halves of a head stand side by side here and apart there, so that simdgroups add up different parts of a row: the
        // bits are the same where there is one of them.
        let one = Limits { max_threads: 32, ..*limits };
        let stages = [&one, limits].map(|limits| {
            let fused = cell_qkv::plan(&projection, &way, limits).unwrap();
            let apart = cell_matvec::plan_vectors(&projection, limits).unwrap();
            let own = fused.stages[0].launch.kernel.function == "cell_qkv_own";
            assert_eq!(own, tokens == 1, "{case:?}");
            [fused, after(apart, &projection, &way, limits).unwrap()]
        });
        let [alone, [shared, _]] = stages;
        let Some([found, _]) = agree(&case, &memory, alone) else { return };
        let mut memory = memory.clone();
        run_stages(&shared, &mut memory).unwrap();
        let queries = as_f32s(&bytes_of(&memory, Slot::Output));
        for (found, expected) in queries.iter().zip(as_f32s(&found[0])) {
            assert!((found - expected).abs() <= 1e-4 * expected.abs().max(1.0), "{found} for {expected}");
        }
    }
    for odd in [case(1, (2, 1, 48), DType::F16), case(1, (2, 1, 64), DType::Q8_0)] {
        let (projection, _) = make(&Case { types: [DType::F16; 3], cols: 256, ..odd });
        assert_eq!(cell_qkv::plan(&projection, &way(&odd), limits).unwrap().stages.len(), 2);
    }
}

#[test]
fn vectors_that_were_laid_out_before_go_the_same_way() {
    for (types, pairs, tokens, kernel, memory) in [
        ([DType::Q4_0; 3], RopePairs::Halves, 7, "cell_qkv_rows_near", 32 << 10),
        ([DType::Q4K, DType::Q4K, DType::Q6K], RopePairs::Interleaved, 3, "cell_qkv_rows", 11 << 10),
    ] {
        let base = case(tokens, (3, 1, 64), DType::F16);
        let rope = Rope { pairs, magnitude: 1.2, ..base.rope };
        let case = Case { types, cols: 256, bias: true, rope, pairs: 32, ..base };
        let (projection, mut data) = make(&case);
        if in_cells(&projection, &mut data).is_none() {
            return;
        }
        let units = MatrixUnits { cores: 1, threadgroup_memory: memory };
        // With one simdgroup sums have one order.
        let limits = Limits { matrix_units: Some(units), max_threads: 32, ..WITH_UNITS };
        let rows = |by: fn(&Projection, &Limits) -> Result<Stages, GpuError>| {
            after(by(&projection, &limits).unwrap(), &projection, &way(&case), &limits).unwrap()
        };
        let fused = cell_qkv::plan_rows(&projection, &way(&case), &limits).unwrap();
        assert_eq!((fused.stages.len(), fused.stages[1].launch.kernel.function), (2, kernel));
        agree(&case, &data, [fused, rows(cell_rows::plan)]);
    }
    // What does not take bytes, or is written another way, goes in three launches.
    for (types, odd) in [([DType::F16; 3], DType::F16), ([DType::Q4_0; 3], DType::Q8_0)] {
        let case = Case { types, cols: 256, ..case(6, (2, 1, 64), odd) };
        let (projection, _) = make(&case);
        assert_eq!(cell_qkv::plan_rows(&projection, &way(&case), &WITH_UNITS).unwrap().stages.len(), 3);
    }
}

#[test]
fn many_rows_share_simdgroups() {
    // More tiles than the device wants at a time: blocks of rows grow.
    let limits = Limits { busy_simdgroups: 16, ..LIMITS };
    let case = case(2, (9, 3, 26), DType::F16);
    let (projection, _) = make(&case);
    assert!(Spread::of(&projection, &limits).params(&projection).blocks > 1);
    agrees_within(&case, &limits);
}

#[test]
fn blocks_with_a_scale_and_odd_heads_take_two_launches() {
    for case in [case(1, (2, 1, 32), DType::Q8_0), case(2, (2, 1, 7), DType::F32)] {
        let (projection, mut memory) = make(&Case { pairs: 3, ..case });
        let stages = vectors(&projection, &way(&Case { pairs: 3, ..case }), &LIMITS).unwrap();
        assert_eq!((stages.stages.len(), stages.scratch.len()), (2, 1));
        if run_stages(&stages, &mut memory).is_none() {
            return;
        }
        assert!(bytes_of(&memory, Slot::Keys).iter().any(|b| *b != 0xCD));
    }
}

#[test]
fn the_writes_counted_are_those_of_the_step_and_not_the_cache() {
    let case = case(5, (3, 2, 64), DType::F16);
    let (projection, _) = make(&case);
    let stages = vectors(&projection, &way(&case), &LIMITS).unwrap();
    let touched: Vec<Moved> = stages.stages[0].slots().iter().map(|bound| bound.moved).collect();
    let stored = Moved::Bytes(5 * 2 * 128);
    assert_eq!(touched[11..], [Moved::Bytes(20), Moved::Once, stored, stored]);
}

#[test]
fn matrices_that_are_not_those_of_the_heads_are_refused() {
    let case = case(1, (3, 1, 16), DType::F16);
    let (projection, _) = make(&case);
    for wrong in [Case { heads: 2, ..case }, Case { tokens: 2, ..case }] {
        for plan in [vectors, tiles] {
            let error = plan(&projection, &way(&wrong), &LIMITS).unwrap_err().to_string();
            assert!(error.contains("[48, 16, 16]"), "{error}");
        }
    }
}
