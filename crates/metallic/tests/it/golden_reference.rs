//! The models, on the reference: every golden family in every spelling gives the logits other engines computed.

use metallic::model::Model;
use metallic_core::reference::Reference;
use metallic_core::{Backend, DType};
use metallic_testkit::{data, golden};

#[test]
fn gguf_models_match_on_the_reference() {
    for name in ["llama_odd.F16", "llama256.Q4_0", "llama256.Q4_K_M", "llama256.Q2_K"] {
        let folder = data::golden().join("gguf");
        let expected = golden::Expected::read(&folder.join(format!("{name}.expected.json"))).unwrap();
        let model = Model::open(&folder.join(format!("{name}.gguf"))).unwrap();
        let mut program = model.compile(&Reference::new() as &dyn Backend, DType::F32).unwrap();
        golden::check_close(program.as_mut(), &expected, golden::EXACT, &[512])
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn folders_match_on_the_reference() {
    for name in ["llama_odd", "llama_rope3", "mistral", "qwen2"] {
        let folder = data::golden().join("arch").join(name);
        let expected = golden::Expected::read(&folder.join("expected.json")).unwrap();
        let model = Model::open(&folder).unwrap();
        let mut program = model.compile(&Reference::new() as &dyn Backend, DType::F32).unwrap();
        golden::check_close(program.as_mut(), &expected, golden::EXACT, &[512, 7])
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}
