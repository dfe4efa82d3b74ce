//! The models through the Metal kernels, run by softmetal: the golden data of other engines, and what a step costs.
#![cfg(feature = "soft")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use metallic::model::{CHOSEN, LOGITS, Model};
use metallic_core::sample::{Choice, Choices};
use metallic_core::{
    BLOCK_TOKENS, DType, Fed, NodeId, Op, OpCost, Program, RunStats, SequenceSpan, Step, Wanted, rewrite,
};
use metallic_gpu::fault::Faulty;
use metallic_gpu::{GpuBackend, GpuOptions, MatrixUnits, Provider, Providers, Soft, SoftOptions};
use metallic_testkit::{golden, needed};

fn soft(threads: usize) -> Option<Arc<Soft>> {
    needed(Soft::new(SoftOptions::default().threads(threads))).map(Arc::new)
}

fn backend() -> Option<GpuBackend> {
    backend_with(GpuOptions::default())
}

fn backend_with(options: GpuOptions) -> Option<GpuBackend> {
    Some(GpuBackend::new(soft(2)?, options))
}

fn compile(backend: &GpuBackend, path: &Path, kv: DType) -> Box<dyn Program> {
    let model = Model::open(path).unwrap_or_else(|e| panic!("{e}"));
    model.compile(backend, kv).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn folders_match_in_every_chunking() {
    let Some(backend) = backend() else { return };
    for folder in golden::folders() {
        let expected = golden::Expected::read(&folder.join("expected.json")).unwrap();
        let mut program = compile(&backend, &folder, DType::F32);
        golden::check_close(program.as_mut(), &expected, golden::exact(&folder), &[1, 7, 512])
            .unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    }
}

#[test]
fn ggufs_of_every_type_match_as_32_bit_arithmetic_does() {
    let Some(backend) = backend() else { return };
    for name in golden::ggufs() {
        let (path, expected) = golden::gguf(&name);
        let mut program = compile(&backend, &path, DType::F32);
        golden::check_close(program.as_mut(), &expected, golden::exact(&path), &[7, 512])
            .unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

#[test]
fn smaller_caches_stay_within_their_tolerance() {
    let Some(backend) = backend() else { return };
    let (path, expected) = golden::gguf("llama_odd.F16");
    for (kv, close) in [(DType::F16, golden::HALF), (DType::BF16, golden::BRAIN)] {
        golden::check_close(compile(&backend, &path, kv).as_mut(), &expected, close, &[7, 512])
            .unwrap_or_else(|e| panic!("{kv}: {e}"));
    }
    let (path, expected) = golden::gguf("llama256.Q8_0");
    golden::check_int8(compile(&backend, &path, DType::Q8_0).as_mut(), &expected).unwrap();
}

/// Weights in cells, and every kernel that takes them: as exact as others where the cache is, else no worse than its halfs.
#[test]
fn weights_laid_out_for_matrix_units_give_the_same() {
    let units = MatrixUnits { cores: 132, threadgroup_memory: 32 << 10 };
    let options = SoftOptions::default().threads(2).matrix_units(units);
    let Some(soft) = needed(Soft::new(options)) else { return };
    let providers = Providers::new();
    let backend = GpuBackend::new(Arc::new(soft), GpuOptions::default().providers(providers.clone()));
    let (path, expected) = golden::gguf("llama256.Q4_K_M");
    for (kv, close) in [(DType::F32, golden::exact(&path)), (DType::F16, golden::HALF)] {
        golden::check_close(compile(&backend, &path, kv).as_mut(), &expected, close, &[7, 512])
            .unwrap_or_else(|e| panic!("{kv}: {e}"));
    }
    let chosen = providers.selections();
    assert!(chosen.iter().any(|choice| choice.provider == Provider::MatmulTiles), "{chosen:?}");
    assert!(providers.quarantined().is_empty(), "{:?}", providers.quarantined());
}

/// Where the device's maker has a library of products, it is given matrices in cells and others, and the rest is as before.
#[test]
fn products_by_a_library_give_the_same() {
    let units = MatrixUnits { cores: 132, threadgroup_memory: 32 << 10 };
    for (name, units) in [("llama256.Q4_K_M", Some(units)), ("llama256.Q2_K", None)] {
        let options = SoftOptions::default().threads(2).matrix_units(units).library(true);
        let Some(soft) = needed(Soft::new(options)) else { return };
        let providers = Providers::new();
        providers.set("matmul", "library").unwrap();
        let backend = GpuBackend::new(Arc::new(soft), GpuOptions::default().providers(providers.clone()));
        let (path, expected) = golden::gguf(name);
        golden::check_close(compile(&backend, &path, DType::F16).as_mut(), &expected, golden::HALF, &[512])
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let chosen = providers.selections();
        assert!(chosen.iter().any(|choice| choice.provider == Provider::MatmulLibrary), "{chosen:?}");
    }
}

/// Products by tensor operations: preferred where the device has them and the cache leaves room for halfs, under layouts that nobody
/// knows; refused elsewhere.
#[test]
fn tensor_operations_give_the_same_under_every_layout() {
    let (path, expected) = golden::gguf("llama256.Q4_K_M");
    for seed in 0..3 {
        let options = SoftOptions::default().threads(2).tensor_ops(true).seed(seed);
        let Some(soft) = needed(Soft::new(options)) else { return };
        let providers = Providers::new();
        let backend = GpuBackend::new(Arc::new(soft), GpuOptions::default().providers(providers.clone()));
        golden::check_close(compile(&backend, &path, DType::F16).as_mut(), &expected, golden::HALF, &[512])
            .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let chosen = providers.selections();
        let of = |provider| chosen.iter().filter(|choice| choice.provider == provider).count();
        assert!(of(Provider::MatmulTensor) > 0 && of(Provider::MatmulTiles) == 0, "{chosen:?}");
        assert!(providers.quarantined().is_empty(), "{:?}", providers.quarantined());
    }
}

#[test]
fn tensor_operations_are_refused_where_they_are_not_and_give_way_where_halfs_may_not_be() {
    let (path, expected) = golden::gguf("llama256.Q4_K_M");
    let asked = |providers: &Providers| {
        providers.set_by_flag("matmul=tensor").unwrap();
        GpuOptions::default().providers(providers.clone())
    };
    let refused = |soft: SoftOptions, kv: DType| {
        let soft = needed(Soft::new(soft.threads(2)))?;
        let backend = GpuBackend::new(Arc::new(soft), asked(&Providers::new()));
        Some(Model::open(&path).unwrap().compile(&backend, kv).err().map(|error| error.to_string()))
    };
    let Some(found) = refused(SoftOptions::default(), DType::F16) else { return };
    assert!(
        found.as_ref().is_some_and(|error| error.contains("tensor") && error.contains("M5")),
        "{found:?}"
    );
    let found = refused(SoftOptions::default().tensor_ops(true), DType::F32).flatten();
    assert!(found.as_ref().is_some_and(|error| error.contains("32 bits")), "{found:?}");
    let Some(soft) = needed(Soft::new(SoftOptions::default().threads(2).tensor_ops(true))) else { return };
    let providers = Providers::new();
    let backend = GpuBackend::new(Arc::new(soft), GpuOptions::default().providers(providers.clone()));
    golden::check_close(
        compile(&backend, &path, DType::F32).as_mut(),
        &expected,
        golden::exact(&path),
        &[512],
    )
    .unwrap();
    let chosen = providers.selections();
    assert!(chosen.iter().any(|choice| choice.provider == Provider::MatmulTiles), "{chosen:?}");
}

/// A model of each family that comes with the repository.
fn families() -> [Model; 2] {
    let llama = golden::ggufs().into_iter().find(|name| name.starts_with("llama256.Q4_K")).unwrap();
    let qwen = golden::folders().into_iter().find(|folder| folder.ends_with("qwen2")).unwrap();
    [golden::gguf(&llama).0, qwen].map(|path| Model::open(&path).unwrap())
}

fn decode(program: &mut dyn Program, past: usize, blocks: &[u32]) -> RunStats {
    let sequences = [SequenceSpan { tokens: 0..1, past, blocks, near: &[], slot: 0 }];
    let step = Step {
        tokens: &[7],
        positions: &[past as u32],
        sequences: &sequences,
        outputs: &[0],
        wanted: Wanted::only(0),
        ..Step::default()
    };
    program.run(&step).unwrap()
}

#[test]
fn a_decode_step_is_one_submission_of_few_dispatches_and_allocates_nothing() {
    let Some(backend) = backend() else { return };
    for model in families() {
        let (name, layers) = (&model.config().architecture, model.config().layers as u64);
        let mut program = model.compile(&backend, DType::F16).unwrap();
        program.reserve_blocks(4).unwrap();
        for past in 0..70 {
            let stats = decode(program.as_mut(), past, &[2, 0, 3]);
            // Embedding and head stand outside the layers.
            assert_eq!(stats.dispatches, 5 * layers + 2, "{name}");
            assert_eq!(stats.submissions, 1);
            // Steps take turns at two sets of tables.
            assert!(past < 2 || stats.allocations == 0, "{name}: an allocation after {past} tokens");
            assert!(stats.bytes_read > 0 && stats.bytes_written > 0 && stats.arena_bytes > 0);
        }
    }
}

#[test]
fn a_context_split_over_threadgroups_costs_one_dispatch_a_layer_more() {
    let Some(soft) = soft(8) else { return };
    let backend = GpuBackend::new(soft, GpuOptions::default());
    let blocks: Vec<u32> = (0..64).collect();
    for model in families() {
        let (name, layers) = (&model.config().architecture, model.config().layers as u64);
        let mut program = model.compile(&backend, DType::F16).unwrap();
        program.reserve_blocks(blocks.len()).unwrap();
        let stats = decode(program.as_mut(), blocks.len() * BLOCK_TOKENS - 1, &blocks);
        assert_eq!(stats.dispatches, 6 * layers + 2, "{name}");
    }
}

/// Greedy tokens that the device chooses, each step submitted while the one before is under way.
fn chosen_ahead(program: &mut dyn Program, prompt: &[u32], steps: usize) -> (Vec<u32>, RunStats) {
    let mut choices = Choices::default();
    choices.push(&Choice::greedy(), &[]).unwrap();
    let choices = choices.words().to_vec();
    let blocks: Vec<u32> = (0..(prompt.len() + steps).div_ceil(BLOCK_TOKENS) as u32).rev().collect();
    program.reserve_blocks(blocks.len()).unwrap();
    let (mut chosen, mut sum) = (Vec::new(), RunStats::default());
    for index in 0..steps {
        let (past, tokens) = if index == 0 { (0, prompt) } else { (prompt.len() + index - 1, &[0][..]) };
        let positions: Vec<u32> = (past..past + tokens.len()).map(|p| p as u32).collect();
        let step = Step {
            tokens,
            fed: if index == 0 { &[] } else { &[Fed { token: 0, row: 0 }] },
            positions: &positions,
            sequences: &[SequenceSpan { tokens: 0..tokens.len(), past, blocks: &blocks, near: &[], slot: 0 }],
            outputs: &[tokens.len() as u32 - 1],
            choices: &choices,
            wanted: Wanted::only(CHOSEN),
            ..Step::default()
        };
        program.submit(&step).unwrap();
        if index > 0 {
            sum.add(&program.finish().unwrap());
            chosen.extend_from_slice(program.ids(CHOSEN));
        }
    }
    sum.add(&program.finish().unwrap());
    chosen.extend_from_slice(program.ids(CHOSEN));
    (chosen, sum)
}

#[test]
fn steps_that_go_together_choose_the_tokens_of_steps_one_by_one() {
    let Some(backend) = backend() else { return };
    let (path, expected) = golden::gguf("llama256.Q4_0");
    let prompt = &expected.prompts[1].token_ids;
    let mut program = compile(&backend, &path, DType::F16);
    let alone = golden::greedy(program.as_mut(), prompt, 9).unwrap();
    let (chosen, stats) = chosen_ahead(program.as_mut(), prompt, 9);
    assert_eq!(chosen, alone);
    assert_eq!(stats.submissions, 9);
    assert!(!stats.overlap.is_zero() && program.output(LOGITS).is_empty(), "only ids come back");
}

#[test]
fn every_operation_of_the_forward_pass_runs_on_the_device_that_was_asked_for() {
    let Some(soft) = soft(2) else { return };
    let watched = Arc::new(Faulty::new(soft));
    let backend = GpuBackend::new(watched.clone(), GpuOptions::default());
    let model = Model::open(&golden::gguf("llama256.Q4_0").0).unwrap();
    let mut program = model.compile(&backend, DType::F16).unwrap();
    program.reserve_blocks(1).unwrap();
    // Two tokens, one result: nothing can be left out.
    let blocks = [0];
    let sequences = [SequenceSpan { tokens: 0..2, past: 0, blocks: &blocks, near: &[], slot: 0 }];
    let step = Step {
        tokens: &[3, 5],
        positions: &[0, 1],
        sequences: &sequences,
        outputs: &[1],
        wanted: Wanted::only(0),
        ..Step::default()
    };
    let stats = program.run(&step).unwrap();
    let expected = operations(&model);
    assert_eq!(watched.labels(), expected);
    assert_eq!(stats.dispatches, expected.len() as u64);
}

/// The operations of a model as a GPU runs them, in order.
fn operations(model: &Model) -> Vec<&'static str> {
    let fused = rewrite::fuse(model.graph()).unwrap();
    let needed = fused.needed();
    let ops = (0..fused.nodes().len()).map(|index| (fused.node(NodeId(index)).op, needed[index]));
    let logits = Step { wanted: Wanted::only(LOGITS), ..Step::default() };
    ops.filter(|(op, needed)| logits.computes(op, *needed)).map(|(op, _): (Op, _)| op.name()).collect()
}

/// A prompt of one sequence, with the result of its last token.
fn prefill(program: &mut dyn Program, tokens: usize, blocks: &[u32]) -> RunStats {
    let ids: Vec<u32> = (0..tokens as u32).map(|i| i * 7 % 50).collect();
    let positions: Vec<u32> = (0..tokens as u32).collect();
    let sequences = [SequenceSpan { tokens: 0..tokens, past: 0, blocks, near: &[], slot: 0 }];
    let outputs = [tokens as u32 - 1];
    let step = Step {
        tokens: &ids,
        positions: &positions,
        sequences: &sequences,
        outputs: &outputs,
        wanted: Wanted::only(0),
        ..Step::default()
    };
    program.run(&step).unwrap()
}

#[test]
fn a_profile_has_the_time_of_each_operation_and_the_numbers_of_a_run_without_one() {
    let profile = GpuOptions::default().profile(true);
    let (Some(plain), Some(profiled)) = (backend(), backend_with(profile)) else { return };
    let model = Model::open(&golden::gguf("llama256.Q4_0").0).unwrap();
    let expected = operations(&model);
    let [mut plain, mut profiled] =
        [&plain, &profiled].map(|backend| model.compile(backend, DType::F16).unwrap());
    let cpu = metallic::device::Device::Cpu.open(1).unwrap();
    let mut cpu = model.compile(cpu.as_ref(), DType::F16).unwrap();
    for program in [&mut plain, &mut profiled, &mut cpu] {
        program.reserve_blocks(4).unwrap();
    }
    for tokens in [100, 2] {
        let without = prefill(plain.as_mut(), tokens, &[2, 0, 3, 1]);
        let with = prefill(profiled.as_mut(), tokens, &[2, 0, 3, 1]);
        let on_cpu = prefill(cpu.as_mut(), tokens, &[2, 0, 3, 1]);
        assert_eq!(without.multiply_adds, on_cpu.multiply_adds, "a model takes as many wherever it runs");
        let bits = |program: &dyn Program| program.output(0).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(profiled.as_ref()), bits(plain.as_ref()));
        assert_eq!(without.ops, []);
        let names: Vec<_> = with.ops.iter().map(|cost| cost.op).collect();
        assert!(expected.iter().all(|op| names.contains(op)), "{names:?}");
        assert!(names.iter().all(|op| expected.contains(op)), "{names:?}");
        assert_eq!((without.submissions, with.submissions), (1, 1), "the list stays whole");
        let sum = |count: fn(&OpCost) -> u64| with.ops.iter().map(count).sum::<u64>();
        assert_eq!(sum(|cost| cost.times), with.dispatches);
        assert_eq!(sum(|cost| cost.bytes), with.bytes_read + with.bytes_written);
        assert_eq!(
            (sum(|cost| cost.multiply_adds), without.multiply_adds),
            (with.multiply_adds, with.multiply_adds)
        );
        assert!(with.ops.iter().all(|cost| !cost.kernel.is_empty()), "{:?}", with.ops);
        let weighted = |cost: &&OpCost| ["embed", "qkv", "project", "gated_project"].contains(&cost.op);
        assert!(with.ops.iter().filter(weighted).all(|cost| !cost.part.is_empty()), "{:?}", with.ops);
        assert_eq!(
            (with.dispatches, with.bytes_read, with.bytes_written),
            (without.dispatches, without.bytes_read, without.bytes_written)
        );
        let sum: Duration = with.ops.iter().map(|cost| cost.time).sum();
        // Between two commands there is next to nothing.
        assert!(sum <= with.device_time && 2 * sum >= with.device_time, "{sum:?} of {:?}", with.device_time);
        assert!(with.device_time <= with.time, "{:?} of {:?}", with.device_time, with.time);
    }
    assert_eq!((plain.depth(), profiled.depth()), (2, 2));
}

/// Steps of every kind: prompts, several sequences at once, results of some tokens or of all, a long context.
fn all_kinds(program: &mut dyn Program, blocks: &[u32]) -> RunStats {
    let mut sum = RunStats::default();
    for tokens in [1, 2, 3, 5, 8, 9, 16, 17, 33, 100] {
        sum.add(&prefill(program, tokens, blocks));
        // One token each of as many sequences, and a result for each.
        let ids = vec![7; tokens];
        let positions = vec![5; tokens];
        let sequences: Vec<_> = (0..tokens)
            .map(|t| SequenceSpan {
                tokens: t..t + 1,
                past: 5,
                blocks: &blocks[t % 40..],
                near: &[],
                slot: 0,
            })
            .collect();
        let outputs: Vec<u32> = (0..tokens as u32).collect();
        let step = Step {
            tokens: &ids,
            positions: &positions,
            sequences: &sequences,
            outputs: &outputs,
            wanted: Wanted::only(0),
            ..Step::default()
        };
        sum.add(&program.run(&step).unwrap());
        // A prompt of which every result is wanted.
        let sequences = [SequenceSpan { tokens: 0..tokens, past: 0, blocks, near: &[], slot: 0 }];
        let step = Step { sequences: &sequences, ..step };
        sum.add(&program.run(&step).unwrap());
    }
    sum.add(&decode(program, blocks.len() * BLOCK_TOKENS - 1, blocks));
    sum.add(&chosen_ahead(program, &[7, 5], 3).1);
    sum
}

#[test]
fn a_program_is_made_with_every_kernel_its_steps_will_need() {
    let blocks: Vec<u32> = (0..64).collect();
    for flags in [&[][..], &["sdpa=plain", "matmul=rows"]] {
        for (fuse, kv) in [(true, DType::F16), (true, DType::Q8_0), (false, DType::F16)] {
            // Enough threads to share a long context out.
            let Some(soft) = soft(8) else { return };
            let providers = Providers::new();
            for flag in flags {
                providers.set_by_flag(flag).unwrap();
            }
            let options = GpuOptions::default().providers(providers).fuse(fuse);
            let backend = GpuBackend::new(soft, options);
            for model in families() {
                let name = &model.config().architecture;
                if model.states(kv).is_err() {
                    continue; // Heads that are no whole number of blocks.
                }
                let mut program = model.compile(&backend, kv).unwrap();
                program.reserve_blocks(blocks.len()).unwrap();
                let before = backend.cache_metrics();
                let stats = all_kinds(program.as_mut(), &blocks);
                let after = backend.cache_metrics();
                assert_eq!(stats.cache_misses, 0, "{name}, {flags:?}, fuse {fuse}, {kv}");
                assert!(stats.cache_hits > 0, "{name}");
                assert_eq!(after.pipelines.hits - before.pipelines.hits, stats.cache_hits, "{name}");
                assert_eq!(after.pipelines.misses, after.pipelines.entries as u64, "{name}");
            }
        }
    }
}

#[test]
fn kernels_in_use_stay_where_a_cache_has_no_room_for_them() {
    let Some(plenty) = backend() else { return };
    let few = backend_with(GpuOptions::default().kernels(2)).unwrap();
    let models = families();
    let compile = |backend: &GpuBackend| {
        models.each_ref().map(|model| {
            let mut program = model.compile(backend, DType::F16).unwrap();
            program.reserve_blocks(4).unwrap();
            program
        })
    };
    let (mut expected, mut found) = (compile(&plenty), compile(&few));
    for past in 0..4 {
        for (expected, found) in expected.iter_mut().zip(&mut found) {
            decode(expected.as_mut(), past, &[1]);
            let stats = decode(found.as_mut(), past, &[1]);
            assert_eq!(found.output(0), expected.output(0));
            // Plans hold what they run; the first had to make it.
            assert_eq!(stats.cache_misses > 0, past == 0, "{stats:?}");
        }
    }
    let metrics = few.cache_metrics().pipelines;
    assert!(metrics.capacity == 2 && metrics.evictions > 0, "{metrics:?}");
    // At the same time, too.
    std::thread::scope(|scope| {
        for (expected, found) in expected.into_iter().zip(found) {
            scope.spawn(move || {
                let (mut expected, mut found) = (expected, found);
                for past in 4..20 {
                    decode(expected.as_mut(), past, &[1]);
                    decode(found.as_mut(), past, &[1]);
                    assert_eq!(found.output(0), expected.output(0));
                }
            });
        }
    });
}

#[test]
fn a_backend_tells_what_its_memory_and_its_kernels_are() {
    let Some(backend) = backend() else { return };
    assert_eq!((backend.pool_stats().live_bytes, backend.cache_metrics().pipelines.entries), (0, 0));
    let [model, _] = families();
    let mut program = model.compile(&backend, DType::F16).unwrap();
    program.reserve_blocks(4).unwrap();
    let stats = decode(program.as_mut(), 0, &[0]);
    let (pool, caches) = (backend.pool_stats(), backend.cache_metrics());
    assert!(stats.allocations > 0 && pool.allocations > stats.allocations, "{pool:?}");
    assert!(pool.live_bytes >= program.memory().kv as u64 + stats.arena_bytes, "{pool:?}");
    assert!(
        caches.libraries.entries > 1 && caches.pipelines.entries > caches.libraries.entries,
        "{caches:?}"
    );
    drop(program);
    assert_eq!(backend.pool_stats().live_bytes, 0);
}
