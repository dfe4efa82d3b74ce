use metallic_core::Shape;

use super::products::LIBRARY_PART;
use super::*;
use crate::threadgroup::tests::LIMITS;

fn fixed(dtype: DType, dims: &[usize]) -> TensorType {
    let dims: Vec<Dim> = dims.iter().copied().map(Dim::Fixed).collect();
    TensorType::new(dtype, Shape::new(&dims).unwrap())
}

fn planned(op: &Op, inputs: &[TensorType], out: TensorType) -> Stages {
    let shape = StepShape::default();
    let site = Site { op, inputs, out, shape: &shape, states: None, cells: false, next: None };
    plan(&site, choice(&site, &LIMITS).map(|_| Provider::MatmulTiles), &LIMITS).unwrap()
}

#[test]
fn halves_of_a_batch_go_through_scratch_part_by_part() {
    let inputs = [fixed(DType::F16, &[2, 3, 5]), fixed(DType::F16, &[2, 4, 5])];
    let stages = planned(&Op::Linear, &inputs, fixed(DType::F16, &[2, 3, 4]));
    let slots = |stage: usize| -> Vec<(Slot, usize, Moved)> {
        stages.stages[stage].slots().iter().map(|bound| (bound.slot, bound.start, bound.moved)).collect()
    };
    let (x, out) = (stages.scratch.len() - 2, stages.scratch.len() - 1);
    assert_eq!(stages.scratch[x..], [2 * 3 * 5 * 4, 2 * 3 * 4 * 4]);
    assert_eq!(slots(0)[..], [(Slot::Input(0), 0, Moved::Once), (Slot::Scratch(x), 0, Moved::Once)]);
    for batch in 0..2 {
        let slots = slots(1 + batch);
        assert_eq!(slots[0], (Slot::Scratch(x), batch * 60, Moved::Bytes(60)));
        assert_eq!(slots[2], (Slot::Input(1), batch * 40, Moved::Bytes(40)));
        assert_eq!(slots[9], (Slot::Scratch(out), batch * 48, Moved::Bytes(48)));
    }
    assert_eq!(slots(3)[..], [(Slot::Scratch(out), 0, Moved::Once), (Slot::Output, 0, Moved::Once)]);
    assert_eq!(stages.stages[1].launch.kernel.function, "matvec_4", "few rows each, many in all");
}

#[test]
fn kernels_that_know_a_type_are_given_it_and_others_floats() {
    let types = |op: Op, inputs: &[TensorType], out: TensorType| -> Vec<&'static str> {
        let stages = planned(&op, inputs, out).stages;
        stages.iter().map(|stage| stage.launch.kernel.function).collect()
    };
    let (x, w, ids) =
        (fixed(DType::F16, &[3, 64]), fixed(DType::Q4_0, &[6, 10, 64]), fixed(DType::U32, &[3, 2]));
    let half = |cols: usize| fixed(DType::F16, &[3, cols]);
    assert_eq!(types(Op::Gather, &[x, ids], half(2)), ["pick_f16"]);
    assert_eq!(types(Op::Combine, &[x, half(2)], half(32)), ["combine_f16"]);
    let wide = ["copy_f16_f32", "expert_linear", "copy_f32_f16"];
    assert_eq!(types(Op::ExpertLinear, &[x, w, ids], half(20)), wide);
    let scale = fixed(DType::BF16, &[64]);
    let norm = types(Op::RmsNorm { eps: 1e-5, groups: 1 }, &[x, scale], x);
    assert_eq!(norm, ["copy_f16_f32", "copy_bf16_f32", "rms_norm_f32", "copy_f32_f16"]);
}

#[test]
fn a_library_serves_where_there_are_tokens_and_memory_enough() {
    let states = StateLayout::new(DType::F16, Vec::new());
    let shape = StepShape::default();
    let without = |tokens: usize, weights: DType, limits: Limits| {
        let inputs = [fixed(DType::F32, &[tokens, 512]), fixed(weights, &[256, 512])];
        let (op, out) = (&Op::Linear, fixed(DType::F32, &[tokens, 256]));
        let site =
            Site { op, inputs: &inputs, out, shape: &shape, states: Some(&states), cells: false, next: None };
        choice(&site, &limits).unwrap().without.contains(&Provider::MatmulLibrary)
    };
    let limits = Limits { library: true, ..LIMITS };
    assert!(!without(33, DType::Q4_0, limits) && without(32, DType::Q4_0, limits));
    assert!(without(64, DType::F32, limits) && without(64, DType::Q4_0, LIMITS));
    // Weights as halfs, products as floats.
    let bytes = (256 * 512 * 2 + 256 * 64 * 4) as u64;
    let enough = |budget: u64| Limits { budget: Some(budget), ..limits };
    assert!(!without(64, DType::Q4_0, enough(LIBRARY_PART * bytes)));
    assert!(without(64, DType::Q4_0, enough(LIBRARY_PART * bytes - 1)));
}
