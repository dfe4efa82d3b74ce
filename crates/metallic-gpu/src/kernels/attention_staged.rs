//! Attention by a graph of the maker's library: keys and values of the one sequence of a step are laid side by side, which is a
//! copy of what it sees, then the graph reads them. See `attention_staged.metal`, whose second kernel says what the graph means.

use metallic_core::{BLOCK_TOKENS, DType};

use super::attention::{ATTEND, AttentionSpec};
use super::project::Projection;
use super::rope::{KV, KV_ALIGN};
use super::{COMMON, Call, Constants, Launch, Slot, Stage, Stages, count, family, library};
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::graph::{AttentionGraph, MOST_ELEMENTS, ProjectGraph};
use crate::params::kernel_params;

kernel_params! {
    /// A thread for each element of `[kv_heads, keys, dim]`. No window: `window` is the largest number.
    StageParams { kv_heads: u32, tokens: u32, keys: u32, dim: u32, window: u32 }
    /// A simdgroup for each head and token; with a matrix of so many `rows`, for each token.
    StagedParams {
        heads: u32, kv_heads: u32, keys: u32, value_dim: u32, window: u32, scale: f32, softcap: f32, rows: u32,
    }
    /// A thread for each element of `[tokens, rows]`.
    FinishParams { tokens: u32, rows: u32 }
}

family! {
    "attention_staged" (StageParams, StagedParams, FinishParams) uses COMMON, KV, ATTEND;
    "attention_stage" { reads cache: KV_ALIGN, rows: 8, blocks: 4; writes out: 4 }
    "attention_staged" { reads q: 4, keys: 4, values: 4, rows: 8, sinks: 4; writes out: 4 }
    "attention_projected" { reads q: 4, keys: 4, values: 4, rows: 8, sinks: 4, weights: 4; writes out: 4 }
    "attention_finish" { reads products: 4, bias: 4, residual: 4; writes out: 4 }
}

const KEYS: Slot = Slot::Scratch(0);
const VALUES: Slot = Slot::Scratch(1);
const WEIGHTS: Slot = Slot::Scratch(2);
const PRODUCTS: Slot = Slot::Scratch(3);

/// Plans attention: `(q [tokens, heads * head_dim], receipt) -> [tokens, heads * value_dim]`.
pub(crate) fn plan(spec: &AttentionSpec, limits: &Limits) -> Result<Stages, GpuError> {
    let Staged { mut stages, graph, constants, params } = staged(spec, limits)?;
    let a = &spec.attention;
    let kernel = FAMILY.kernel("attention_staged", constants);
    let launch = Launch {
        threadgroup_bytes: threadgroup_bytes(graph.value_dim),
        work: spec.half_work(a.head_dim).saturating_add(spec.half_work(a.value_dim)),
        ..kernel.launch(params.params(), [graph.heads, graph.tokens, 1], [32, 1, 1])
    };
    launch.check(limits)?;
    let slots = [Slot::Input(0), KEYS, VALUES, Slot::ROWS, spec.sinks(), Slot::Output];
    stages.stages.push(Stage::new(launch, slots).by_library(Call::Graph(graph)));
    Ok(stages)
}

/// Plans attention and the projection of its result, whose slots are those of [the next operation](Slot::NextInput): the matrix is
/// laid out as rows of numbers, one graph does both, and what comes after the product is added last. That is a launch of its own, as
/// the next operation's value may lie where the queries do.
pub(crate) fn plan_projected(
    spec: &AttentionSpec,
    projection: &Projection,
    limits: &Limits,
) -> Result<Stages, GpuError> {
    projection.check()?;
    let refuse = |reason: String| Err(GpuError::unsupported("attention", reason));
    let [Some(part), None, None] = projection.parts else {
        return refuse("several matrices after it in a graph of MPSGraph: one is needed".to_owned());
    };
    if projection.norm.is_some() || projection.gate.is_some() {
        return refuse("a norm or a gate after it in a graph of MPSGraph".to_owned());
    }
    let Staged { mut stages, graph, constants, params } = staged(spec, limits)?;
    let cols = graph.heads.saturating_mul(graph.value_dim);
    if (projection.tokens, projection.cols) != (graph.tokens, cols) {
        return refuse(format!(
            "a projection of [{}, {}] after [{}, {cols}] in a graph of MPSGraph",
            projection.tokens, projection.cols, graph.tokens
        ));
    }
    let halfs = !projection.fine && !matches!(part.dtype, DType::F32 | DType::BF16);
    let dtype = if halfs { DType::F16 } else { DType::F32 };
    let (elements, results) =
        (part.rows as usize * cols as usize, graph.tokens as usize * part.rows as usize);
    stages.scratch.extend([elements.saturating_mul(dtype.block_bytes()), results.saturating_mul(4)]);
    let mut rows = library::from_blocks(&part, (cols, dtype), limits)?.of_next();
    rows.replace(Slot::NextOutput, WEIGHTS);
    let kernel = FAMILY.kernel("attention_projected", with(constants, 5, u32::from(halfs)));
    let a = &spec.attention;
    let attended = spec.half_work(a.head_dim).saturating_add(spec.half_work(a.value_dim));
    let params = StagedParams { rows: part.rows, ..params };
    let launch = Launch {
        threadgroup_bytes: threadgroup_bytes(graph.value_dim),
        work: attended.saturating_add(elements as u64 * u64::from(graph.tokens)),
        ..kernel.launch(params.params(), [graph.tokens, 1, 1], [32, 1, 1])
    };
    launch.check(limits)?;
    let project = Some(ProjectGraph { rows: part.rows, halfs });
    let slots = [Slot::Input(0), KEYS, VALUES, Slot::ROWS, spec.sinks(), WEIGHTS, PRODUCTS];
    let both = Stage::new(launch, slots).by_library(Call::Graph(AttentionGraph { project, ..graph }));
    stages.stages.extend([rows, both, finish(projection, part.rows, limits)?.of_next()]);
    Ok(stages)
}

/// What comes after a product.
fn finish(projection: &Projection, rows: u32, limits: &Limits) -> Result<Stage, GpuError> {
    let [bias, ..] = projection.biases();
    let residual = projection.residual_slot();
    let [with_bias, with_residual] = [bias, residual].map(|slot| u32::from(slot != Slot::Unused));
    let kernel =
        FAMILY.kernel("attention_finish", Constants::of([0, 0, 0, 0, 0, 0, with_bias, with_residual]));
    let tokens = projection.tokens;
    let launch = kernel.plane(FinishParams { tokens, rows }.params(), (rows, tokens), limits);
    launch.check(limits)?;
    Ok(Stage::new(launch, [PRODUCTS, bias, residual, Slot::Output]))
}

fn threadgroup_bytes(value_dim: u32) -> u32 {
    4 * (value_dim.next_multiple_of(4) + 32)
}

/// Keys and values side by side, and what is done with them.
struct Staged {
    stages: Stages,
    graph: AttentionGraph,
    constants: Constants,
    params: StagedParams,
}

fn staged(spec: &AttentionSpec, limits: &Limits) -> Result<Staged, GpuError> {
    let refuse = |reason: String| Err(GpuError::unsupported("attention", reason));
    if !limits.apple.graph {
        return refuse(
            "a graph of MPSGraph: the system has none for this device (macOS 15 is needed)".to_owned(),
        );
    }
    if spec.shape.sequences > 1 {
        return refuse(format!(
            "{} sequences in a step by MPSGraph: the tokens of one are needed",
            spec.shape.sequences
        ));
    }
    let shared = spec.constants()?;
    let a = &spec.attention;
    let number = |n: usize| count("attention", n);
    let keys = number(spec.shape.visible.max(1).next_multiple_of(BLOCK_TOKENS))?;
    let [tokens, heads, kv_heads] = [number(spec.shape.tokens)?, number(a.heads)?, number(a.kv_heads)?];
    let [head_dim, value_dim] = [number(a.head_dim)?, number(a.value_dim)?];
    let scores = [tokens, heads, keys].iter().fold(1usize, |n, axis| n.saturating_mul(*axis as usize));
    if scores >= MOST_ELEMENTS {
        return refuse(format!(
            "{tokens} tokens of {heads} heads over {keys} keys by MPSGraph: its tensors have fewer than 2^31 elements"
        ));
    }
    let halfs = spec.kv == DType::F16;
    let (window, scale, softcap) = spec.numbers();
    let constants = with(shared, 4, u32::from(halfs));
    let graph = AttentionGraph {
        tokens,
        keys,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        halfs,
        window,
        scale: scale.to_bits(),
        softcap: a.softcap.map(f32::to_bits),
        sinks: spec.sinks.is_some(),
        project: None,
    };
    let size = if halfs { 2 } else { 4 };
    let bytes =
        |dim: u32| (kv_heads as usize).saturating_mul(keys as usize).saturating_mul(dim as usize * size);
    let stage = |(from, to): (Slot, Slot), dim: u32| -> Result<Stage, GpuError> {
        let params = StageParams { kv_heads, tokens, keys, dim, window }.params();
        let kernel = FAMILY.kernel("attention_stage", constants);
        let launch = kernel.plane(params, (dim, kv_heads.saturating_mul(keys)), limits);
        launch.check(limits)?;
        Ok(Stage::new(launch, [from, Slot::ROWS, Slot::BLOCKS, to])
            .moving(0, spec.seen(dim as usize, 1, true)))
    };
    let stages = Stages {
        stages: vec![stage((Slot::Keys, KEYS), head_dim)?, stage((Slot::Values, VALUES), value_dim)?],
        scratch: vec![bytes(head_dim), bytes(value_dim)],
    };
    let params = StagedParams { heads, kv_heads, keys, value_dim, window, scale, softcap, rows: 0 };
    Ok(Staged { stages, graph, constants, params })
}

/// Constants and one more.
fn with(constants: Constants, index: usize, value: u32) -> Constants {
    let mut all = [0; 6];
    for (index, value) in constants.values().chain([(index, value)]) {
        all[index] = value;
    }
    Constants::of(all)
}

#[cfg(test)]
mod tests {
    use metallic_core::Attention;

    use super::super::attention::scene::{GROUPED, Scene};
    use super::*;
    use crate::gpu::AppleKernels;
    use crate::threadgroup::tests::LIMITS;

    const SMALL: Attention = Attention { heads: 4, kv_heads: 2, head_dim: 16, scale: 0.25, ..GROUPED };
    const WITH_GRAPHS: Limits = Limits { apple: AppleKernels::ALL, ..LIMITS };

    fn check(scene: &Scene) {
        scene.check(&plan(&scene.spec(), &WITH_GRAPHS).unwrap(), 1e-5);
    }

    #[test]
    fn keys_laid_side_by_side_give_what_the_formula_gives() {
        for (past, tokens) in [(0, 1), (31, 1), (32, 2), (0, 33), (40, 7), (257, 1)] {
            check(&Scene::new(SMALL, DType::F32, &[(past, tokens)]));
        }
        for kv in [DType::F16, DType::BF16, DType::Q8_0] {
            check(&Scene::new(GROUPED, kv, &[(44, 3)]));
        }
        let latent = Scene::new(Attention { head_dim: 26, ..SMALL }, DType::F16, &[(40, 2)]);
        check(&Scene { attention: Attention { value_dim: 33, ..latent.attention }, ..latent });
    }

    #[test]
    fn windows_caps_and_sinks_give_what_the_formula_gives() {
        for window in [1, 5, 33] {
            check(&Scene::new(Attention { window: Some(window), ..SMALL }, DType::F32, &[(70, 4)]));
        }
        let sinks = Some(vec![-1.0, 50.0, 0.5, 2.0]);
        check(&Scene {
            sinks,
            ..Scene::new(Attention { softcap: Some(3.0), ..SMALL }, DType::F32, &[(40, 3)])
        });
    }

    #[test]
    fn the_graph_stands_for_the_last_launch_and_copies_are_counted() {
        let spec = Scene::new(GROUPED, DType::F16, &[(44, 3)]).spec();
        let stages = plan(&spec, &WITH_GRAPHS).unwrap();
        let calls: Vec<bool> = stages.stages.iter().map(|stage| stage.call().is_some()).collect();
        assert_eq!(calls, [false, false, true]);
        assert_eq!(stages.scratch, [2 * 64 * 64 * 2; 2], "two heads of 64 keys of 64 halfs");
        let Some(Call::Graph(graph)) = stages.stages[2].call() else { panic!("a graph") };
        assert_eq!((graph.tokens, graph.keys, graph.halfs), (3, 64, true));
    }

    #[test]
    fn what_a_graph_does_not_take_is_refused_with_the_reason() {
        let refused = |spec: &AttentionSpec, limits: &Limits| plan(spec, limits).unwrap_err().to_string();
        let spec = Scene::new(GROUPED, DType::F16, &[(44, 3)]).spec();
        let text = refused(&spec, &LIMITS);
        assert!(text.contains("macOS 15"), "{text}");
        let mut two = spec;
        two.shape.sequences = 2;
        let text = refused(&two, &WITH_GRAPHS);
        assert!(text.contains("2 sequences"), "{text}");
        let mut long = spec;
        (long.shape.tokens, long.shape.visible) = (1 << 13, 1 << 17);
        let text = refused(&long, &WITH_GRAPHS);
        assert!(text.contains("2^31"), "{text}");
    }
}
