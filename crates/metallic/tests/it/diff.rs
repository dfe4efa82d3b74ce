//! Where two ways of computing part: clean ways pass, planted faults are named.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use metallic::Model;
use metallic::diff::{
    DiffError, Explanation, Finding, Report, Run, SaveOptions, SavedError, SavedRun, Side, Verdict, Way,
    What, diff, diff_saved, save, saved_bytes,
};
use metallic_core::reference::ProductInputs;
use metallic_core::tensor::TensorDevice;
use metallic_core::{Backend, BackendError, CompileOptions, DType, DeviceInfo, Graph, Program};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::{data, golden};

fn prompt() -> Run {
    Run { tokens: vec![1, 5, 3, 9, 2, 7, 4], steps: 1 }
}

fn stories() -> PathBuf {
    data::own().join("stories260K/stories260K-f32.gguf")
}

#[track_caller]
fn compare(model: &Path, a: &str, b: &str) -> Report {
    compare_on(model, a, b, &prompt())
}

#[track_caller]
fn compare_on(model: &Path, a: &str, b: &str, run: &Run) -> Report {
    let model = Model::open(model).unwrap();
    let ways = [a, b].map(|way| way.parse::<Way>().unwrap().open().unwrap());
    diff(&ways[0].side(&model), &ways[1].side(&model), run).unwrap_or_else(|e| panic!("{a} {b}: {e}"))
}

#[track_caller]
fn finding(report: &Report) -> &Finding {
    match &report.verdict {
        Verdict::Differs(finding) => finding,
        other => panic!("{other}"),
    }
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions::default().threads(2).exact(true)).unwrap()
}

fn side<'a>(name: &str, model: &'a Model, backend: &'a dyn Backend, options: CompileOptions) -> Side<'a> {
    Side { name: name.to_owned(), model, backend, options, products: ProductInputs::Exact }
}

#[test]
fn the_same_way_twice_is_equal_to_the_bit() {
    let report = compare(&stories(), "cpu", "cpu");
    assert_eq!(report.verdict, Verdict::Equal);
    assert!(report.compared > 20 && report.same_choice == [true, true], "{report:?}");
    assert_eq!(report.tokens[0], prompt().tokens);
}

#[test]
fn every_family_is_within_rounding_of_the_reference_fused_or_not() {
    for (index, folder) in golden::folders().into_iter().enumerate() {
        let way = ["cpu,exact", "cpu,exact,unfused"][index % 2];
        let report = compare(&folder, "reference", way);
        let verdict = &report.verdict;
        assert!(matches!(verdict, Verdict::Rounding | Verdict::Equal), "{}: {verdict}", folder.display());
    }
}

#[test]
fn rounding_by_design_is_named() {
    let (path, _) = golden::gguf("llama256.Q4_K_M");
    let report = compare(&path, "cpu", "cpu,exact");
    let Verdict::Explained(by) = &report.verdict else { panic!("{}", report.verdict) };
    let [Explanation::Products { side, op, layer, .. }] = &by[..] else { panic!("{by:?}") };
    assert_eq!((&**side, &**op, *layer), ("cpu", "qkv", Some(0)));
    assert!(report.verdict.to_string().contains("to 8 bits"), "{}", report.verdict);

    for (a, b, word) in [
        ("cpu,exact", "cpu,exact,kv=f32", "F16 and F32"),
        ("cpu,exact,kv=q8_0", "cpu,exact,kv=f32", "Q8_0 and F32"),
        ("cpu,exact", "cpu,exact,activations=f16", "activations are F32 and F16"),
        ("cpu,exact", "reference,activations=bf16", "activations are F32 and BF16"),
    ] {
        let report = compare(&path, a, b);
        let text = report.verdict.to_string();
        assert!(report.verdict.is_clean() && text.contains(word), "{a} {b}: {text}");
    }
}

/// A processor that keeps keys and values in another type than it is asked for.
struct OtherCache(Cpu, DType);

impl Backend for OtherCache {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn compile(&self, graph: &Graph, options: CompileOptions) -> Result<Box<dyn Program>, BackendError> {
        self.0.compile(graph, CompileOptions { kv: self.1, ..options })
    }

    fn tensors(&self) -> Arc<dyn TensorDevice> {
        self.0.tensors()
    }
}

#[test]
fn a_cache_type_that_was_not_applied_is_found_in_the_first_write() {
    let (path, _) = golden::gguf("llama256.F16");
    let model = Model::open(&path).unwrap();
    let right = cpu();
    for (asked, found, word) in [
        (DType::Q8_0, DType::F32, "no number of Q8_0"),
        (DType::F16, DType::F32, "no number of F16"),
        (DType::F32, DType::F16, "times what rounding explains"),
    ] {
        let wrong = OtherCache(cpu(), found);
        let options = CompileOptions::kv(asked);
        let (a, b) = (side("right", &model, &right, options), side("wrong", &model, &wrong, options));
        let report = diff(&a, &b, &prompt()).unwrap();
        let finding = finding(&report);
        assert_eq!((&*finding.side, &*finding.op, finding.layer), ("wrong", "qkv", Some(0)), "{finding}");
        assert_eq!(finding.what, What::Keys, "{finding}");
        assert!(finding.to_string().contains(word), "{asked} {found}: {finding}");
    }
}

/// A copy of a file in which one tensor is damaged.
fn damaged(path: &Path, tensor: &str, folder: &Path) -> PathBuf {
    let model = Model::open(path).unwrap();
    let weight = model.graph().weights().iter().find(|weight| weight.name == tensor).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    let start = &weight.data[..64];
    let at = bytes.windows(64).position(|window| window == start).unwrap();
    for byte in &mut bytes[at + 1024..at + 1026] {
        *byte ^= 0x41;
    }
    let copy = folder.join("damaged.gguf");
    std::fs::write(&copy, bytes).unwrap();
    copy
}

#[test]
fn a_damaged_tensor_is_named_with_its_op_and_layer() {
    let folder = tempfile::tempdir().unwrap();
    let other = damaged(&stories(), "blk.2.ffn_down.weight", folder.path());
    let (a, b) = (Model::open(&stories()).unwrap(), Model::open(&other).unwrap());
    let cpu = cpu();
    let options = CompileOptions::default();
    let report = diff(&side("a", &a, &cpu, options), &side("b", &b, &cpu, options), &prompt()).unwrap();
    let finding = finding(&report);
    assert_eq!(
        (&*finding.side, finding.layer, &*finding.part),
        ("weights", Some(2), "ffn_down"),
        "{finding}"
    );
    assert_eq!(finding.tensors, ["blk.2.ffn_down.weight"]);
}

#[test]
fn files_of_other_types_are_explained_and_other_architectures_refused() {
    let open = |name: &str| Model::open(&golden::gguf(name).0).unwrap();
    let (a, b, c) = (open("llama256.Q8_0"), open("llama256.F16"), open("qwen2.F16"));
    let cpu = cpu();
    let options = CompileOptions::default();
    let report = diff(&side("a", &a, &cpu, options), &side("b", &b, &cpu, options), &prompt()).unwrap();
    let text = report.verdict.to_string();
    assert!(text.starts_with("explained") && text.contains("Q8_0 and F16"), "{text}");
    let error = diff(&side("a", &a, &cpu, options), &side("c", &c, &cpu, options), &prompt()).unwrap_err();
    assert!(matches!(error, DiffError::Models { .. }), "{error}");
}

#[test]
fn a_saved_run_is_compared_with_and_damage_and_strangers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&stories()).unwrap();
    let way = "cpu,exact".parse::<Way>().unwrap().open().unwrap();
    let other = "reference".parse::<Way>().unwrap().open().unwrap();
    for (name, options) in [("half", SaveOptions::HALF), ("full", SaveOptions::FULL)] {
        let at = folder.path().join(name);
        let told = saved_bytes(&model, &way.way, &prompt(), options).unwrap();
        let written = save(&way, &model, &prompt(), options, &at).unwrap();
        assert!(written <= told && told < written + written / 4, "{told} were told, {written} written");
        let report = diff_saved(&other.side(&model), &mut SavedRun::open(&at).unwrap()).unwrap();
        assert!(report.verdict.is_clean() && report.compared > 20, "{name}: {}", report.verdict);
        let again = diff_saved(&way.side(&model), &mut SavedRun::open(&at).unwrap()).unwrap();
        assert_eq!(again.verdict == Verdict::Equal, name == "full", "{name}: {}", again.verdict);
    }
    let at = folder.path().join("full");
    let refused = |error: SavedError, word: &str| {
        let error = error.to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(SavedRun::open(&at).unwrap().check_tokens(&[1, 2]).unwrap_err(), "[1, 2]");
    let taken = save(&way, &model, &prompt(), SaveOptions::FULL, &at).unwrap_err();
    assert!(taken.to_string().contains("not empty"), "{taken}");
    let stranger = Model::open(&golden::gguf("llama256.F16").0).unwrap();
    let error = diff_saved(&way.side(&stranger), &mut SavedRun::open(&at).unwrap()).unwrap_err();
    assert!(error.to_string().contains("stories260K-f32.gguf"), "{error}");

    let values = at.join("values.bin");
    let whole = std::fs::read(&values).unwrap();
    let mut bytes = whole.clone();
    bytes[whole.len() / 2] ^= 1;
    std::fs::write(&values, &bytes).unwrap();
    let error = diff_saved(&way.side(&model), &mut SavedRun::open(&at).unwrap()).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    std::fs::write(&values, &whole[..whole.len() - 4]).unwrap();
    refused(SavedRun::open(&at).unwrap_err(), "damaged");
    let index = std::fs::read_to_string(at.join("diff.json")).unwrap();
    std::fs::write(at.join("diff.json"), index.replacen("\"version\":1", "\"version\":9", 1)).unwrap();
    refused(SavedRun::open(&at).unwrap_err(), "version 9");
    std::fs::write(at.join("diff.json"), "{}").unwrap();
    refused(SavedRun::open(&at).unwrap_err(), "format");
    refused(SavedRun::open(&folder.path().join("none")).unwrap_err(), "diff.json");
}

#[test]
fn tokens_that_cannot_be_run_are_refused() {
    let model = Model::open(&stories()).unwrap();
    let cpu = cpu();
    let side = side("a", &model, &cpu, CompileOptions::default());
    for (run, word) in [
        (Run { tokens: Vec::new(), steps: 0 }, "0 tokens"),
        (Run { tokens: vec![1], steps: 1 << 40 }, "steps after"),
        (Run { tokens: vec![1, 99_999], steps: 0 }, "99999"),
    ] {
        let error = diff(&side, &side, &run).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[cfg(feature = "soft")]
mod soft {
    use metallic_gpu::fault::{Distortion, Faulty};
    use metallic_gpu::{GpuBackend, GpuOptions, Providers, Soft, SoftOptions};
    use metallic_testkit::needed;

    use super::*;

    fn faulty(distortion: Distortion, providers: &Providers) -> Option<GpuBackend> {
        let soft = needed(Soft::new(SoftOptions::default().threads(2)))?;
        let gpu = Faulty::new(Arc::new(soft));
        gpu.distort(Some(distortion));
        Some(GpuBackend::new(Arc::new(gpu), GpuOptions::default().providers(providers.clone())))
    }

    fn distorted(of: &str, nth: Option<usize>, factor: f32) -> Distortion {
        Distortion { of: of.to_owned(), nth, factor }
    }

    #[test]
    fn kernels_agree_with_the_processor_in_every_kind_of_model() {
        if needed(Soft::new(SoftOptions::default())).is_none() {
            return;
        }
        // Attention, experts, states, windows, norms of heads: what travels with the repository has some of each.
        for folder in golden::folders().into_iter().step_by(5) {
            let report = compare(&folder, "cpu,exact", "soft");
            assert!(report.verdict.is_clean(), "{}: {}", folder.display(), report.verdict);
            assert!(!matches!(report.verdict, Verdict::Explained(_)), "{}", report.verdict);
        }
        let (path, _) = golden::gguf("llama256.Q4_K_M");
        for (a, b) in [
            ("cpu,exact,kv=q8_0", "soft,kv=q8_0"),
            ("cpu,exact,activations=f16", "soft,activations=f16"),
            ("soft,unfused", "soft,provider=sdpa=plain"),
            ("soft,tuning=vector_tokens=4", "soft"),
        ] {
            let report = compare(&path, a, b);
            assert!(report.verdict.is_clean(), "{a} {b}: {}", report.verdict);
        }
    }

    #[test]
    fn a_kernel_that_is_wrong_by_a_hundredth_is_named_with_its_layer_and_its_part() {
        let model = Model::open(&stories()).unwrap();
        let right = cpu();
        let options = CompileOptions::default();
        for (of, nth, op, layer, part) in [
            ("embed", 0, "embed", None, "token_embd"),
            ("qkv", 1, "qkv", Some(1), "attn_q"),
            ("attention", 2, "attention", Some(2), ""),
            ("project", 0, "project", Some(0), "attn_output"),
            ("project", 7, "project", Some(3), "ffn_down"),
            ("gated_project", 4, "gated_project", Some(4), "ffn_gate"),
        ] {
            let Some(wrong) = faulty(distorted(of, Some(nth), 1.01), &Providers::new()) else { return };
            let (a, b) = (side("right", &model, &right, options), side("wrong", &model, &wrong, options));
            // One token: every operation is one dispatch.
            let report = diff(&a, &b, &Run { tokens: vec![1], steps: 0 }).unwrap();
            let found = finding(&report);
            assert_eq!((&*found.side, &*found.op, found.layer), ("wrong", op, layer), "{of} {nth}: {found}");
            assert_eq!(found.part, part, "{found}");
            let gain = found.error.as_ref().map_or(0.0, |error| error.gain);
            assert!(part == "ffn_down" || part == "attn_output" || (gain - 1.01).abs() < 1e-3, "{found}");
            assert_eq!(found.bisected.is_some(), found.parts.len() > 1, "{found}");
            if let Some(bisected) = &found.bisected {
                assert!(bisected.contains("fused kernel is at fault"), "{bisected}");
            }
        }
    }

    #[test]
    fn a_part_that_is_wrong_in_a_fused_operation_is_found_where_parts_run_one_by_one() {
        let model = Model::open(&stories()).unwrap();
        let right = cpu();
        // Unfused or not, products go by these kernels.
        let Some(wrong) = faulty(distorted("matvec", None, 1.01), &Providers::new()) else { return };
        let options = CompileOptions::default();
        let (a, b) = (side("right", &model, &right, options), side("wrong", &model, &wrong, options));
        let report = diff(&a, &b, &Run { tokens: vec![1], steps: 0 }).unwrap();
        let found = finding(&report);
        let bisected = found.bisected.as_deref().unwrap_or_default();
        assert!(bisected.contains("`linear` of `blk.0."), "{found}");
    }

    #[test]
    fn a_provider_that_differs_is_found() {
        let model = Model::open(&stories()).unwrap();
        let providers = Providers::new();
        providers.set("sdpa", "plain").unwrap();
        let distortion = distorted("attention_plain_values", None, 1.01);
        let Some(plain) = faulty(distortion.clone(), &providers) else { return };
        let Some(flash) = faulty(distortion, &Providers::new()) else { return };
        let options = CompileOptions::default();
        let (a, b) = (side("flash", &model, &flash, options), side("plain", &model, &plain, options));
        let report = diff(&a, &b, &prompt()).unwrap();
        let found = finding(&report);
        assert_eq!((&*found.side, &*found.op, found.layer), ("plain", "attention", Some(0)), "{found}");
    }

    #[test]
    fn a_real_model_is_clean_and_its_rounding_of_activations_named() {
        let Some(path) = data::model("SmolLM2-135M-Instruct.Q4_1.gguf") else {
            data::not_run("a real model is clean", "SmolLM2 (METALLIC_TEST_MODELS)");
            return;
        };
        if needed(Soft::new(SoftOptions::default())).is_none() {
            return;
        }
        // The reference takes its time for each token of such a model.
        let run = Run { tokens: vec![504, 1, 9690], steps: 0 };
        let exact = compare_on(&path, "cpu,exact", "soft", &run);
        assert_eq!(exact.verdict, Verdict::Rounding, "{}", exact.verdict);
        let plain = compare_on(&path, "cpu", "soft", &run);
        let text = plain.verdict.to_string();
        assert!(plain.verdict.is_clean() && text.contains("`cpu` rounds the activations"), "{text}");
    }
}
