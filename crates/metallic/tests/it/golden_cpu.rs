//! The models on the CPU backend, held to the golden data of other engines.

use std::path::Path;

use metallic::model::Model;
use metallic_core::{DType, Program};
use metallic_cpu::{Cpu, CpuOptions};
use metallic_testkit::golden;

fn cpu(threads: usize) -> Cpu {
    Cpu::new(CpuOptions::default().threads(threads)).unwrap()
}

fn compile(path: &Path, kv: DType) -> Box<dyn Program> {
    let model = Model::open(path).unwrap_or_else(|e| panic!("{e}"));
    model.compile(&cpu(2), kv).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// In 32-bit arithmetic throughout: some folders have quantised weights.
fn compile_exact(folder: &Path) -> Box<dyn Program> {
    let model = Model::open(folder).unwrap_or_else(|e| panic!("{e}"));
    let cpu = Cpu::new(CpuOptions::default().threads(2).exact(true)).unwrap();
    model.compile(&cpu, DType::F32).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
}

#[test]
fn folders_match_at_every_position_and_in_every_chunking() {
    for folder in golden::folders() {
        let expected = golden::Expected::read(&folder.join("expected.json")).unwrap();
        let mut program = compile_exact(&folder);
        let close = golden::exact(&folder);
        golden::check_close(program.as_mut(), &expected, close, &[1, 7, 64, 512])
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let every = folder.join("expected_logits.safetensors");
        let rows = if every.exists() { golden::all_logits(&every).unwrap() } else { Vec::new() };
        for (name, all) in rows {
            let prompt = expected.prompts.iter().find(|p| p.name == name).unwrap();
            for chunk in [1, 7, 64, 512] {
                let found = golden::logits(program.as_mut(), &prompt.token_ids, chunk).unwrap().concat();
                let diff = golden::max_diff(&found, &all);
                assert!(diff <= close.max_abs, "{} {name} by {chunk}: off by {diff}", folder.display());
            }
        }
    }
}

#[test]
fn both_spellings_of_the_config_mean_the_same() {
    for folder in golden::folders().into_iter().filter(|f| f.join("config_v4.json").is_file()) {
        let copy = std::env::temp_dir().join(format!(
            "metallic-config-{}-{}",
            std::process::id(),
            folder.file_name().unwrap().to_string_lossy()
        ));
        std::fs::create_dir_all(&copy).unwrap();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_owned();
            if name != "config.json" {
                std::fs::copy(&path, copy.join(name)).unwrap();
            }
        }
        std::fs::copy(folder.join("config_v4.json"), copy.join("config.json")).unwrap();
        let expected = golden::Expected::read(&folder.join("expected.json")).unwrap();
        let result =
            golden::check_close(compile_exact(&copy).as_mut(), &expected, golden::exact(&folder), &[512]);
        std::fs::remove_dir_all(&copy).unwrap();
        result.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    }
}

#[test]
fn float_ggufs_match_exactly_and_quantised_ones_as_well_as_llama_cpp() {
    for name in golden::ggufs() {
        let (path, expected) = golden::gguf(&name);
        let mut program = compile(&path, DType::F32);
        let float = [".F32", ".F16", ".BF16"].iter().any(|t| name.ends_with(t));
        let result = if float {
            golden::check_close(program.as_mut(), &expected, golden::exact(&path), &[1, 7, 512])
        } else {
            golden::check_int8(program.as_mut(), &expected)
        };
        result.unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn half_precision_caches_stay_within_their_tolerance() {
    let (path, expected) = golden::gguf("llama_odd.F16");
    for (kv, close) in [(DType::F16, golden::HALF), (DType::BF16, golden::BRAIN)] {
        golden::check_close(compile(&path, kv).as_mut(), &expected, close, &[7, 512])
            .unwrap_or_else(|e| panic!("{kv}: {e}"));
    }
    let (path, expected) = golden::gguf("llama256.Q8_0");
    for kv in [DType::F16, DType::Q8_0] {
        golden::check_int8(compile(&path, kv).as_mut(), &expected).unwrap_or_else(|e| panic!("{kv}: {e}"));
    }
}

#[test]
fn a_sequence_in_a_batch_gives_the_bits_it_gives_alone() {
    for name in ["llama_odd.F16", "llama256.Q4_0", "llama256.Q4_K_M"] {
        let (path, expected) = golden::gguf(name);
        let mut program = compile(&path, DType::F16);
        let program = program.as_mut();
        let (a, b) = (&expected.prompts[2].token_ids, &expected.prompts[1].token_ids);
        let alone = [golden::logits(program, a, 512).unwrap(), golden::logits(program, b, 512).unwrap()];
        let mut first = golden::Sequence::new(program, 0, 96).unwrap();
        let mut second = golden::Sequence::new(program, 1, 96).unwrap();
        // Uneven pieces, so that one prefills while the other decodes.
        let mut rows = [Vec::new(), Vec::new()];
        let (mut at_a, mut at_b) = (a.chunks(a.len().div_ceil(b.len())), b.chunks(1));
        loop {
            let (part_a, part_b) = (at_a.next(), at_b.next());
            let mut parts: Vec<(&mut golden::Sequence, &[u32])> = Vec::new();
            let order = [part_a.map(|p| (0, p)), part_b.map(|p| (1, p))];
            let order: Vec<(usize, &[u32])> = order.into_iter().flatten().collect();
            if order.is_empty() {
                break;
            }
            let (mut one, mut two) = (Some(&mut first), Some(&mut second));
            for (which, part) in &order {
                let sequence = if *which == 0 { one.take() } else { two.take() };
                parts.push((sequence.unwrap(), part));
            }
            let found = golden::feed_all(program, &mut parts).unwrap();
            for ((which, _), found) in order.iter().zip(found) {
                rows[*which].extend(found);
            }
        }
        assert_eq!(rows[0], alone[0], "{name}");
        assert_eq!(rows[1], alone[1], "{name}");
    }
}

#[test]
fn the_number_of_threads_does_not_change_a_bit() {
    let (path, expected) = golden::gguf("llama256.Q4_K_M");
    let model = Model::open(&path).unwrap();
    let run = |threads| {
        let mut program = model.compile(&cpu(threads), DType::F16).unwrap();
        golden::logits(program.as_mut(), &expected.prompts[2].token_ids, 512).unwrap()
    };
    let one = run(1);
    assert_eq!(one, run(2));
    assert_eq!(one, run(5));
}
