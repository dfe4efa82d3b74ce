//! NVIDIA's assembler takes every kernel that models ask for, and keeps their numbers in registers: what it puts into memory
//! instead ("spills") costs a kernel its time, and nothing else shows it.
#![cfg(all(feature = "cuda", feature = "soft"))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use metallic::Model;
use metallic::core::{CompileOptions, DType};
use metallic::device::ptx::{Asked, rehearsals, translate};
use metallic_testkit::{data, golden, needed};

/// Multiprocessors of an H100 and an H200.
const UNITS: u32 = 132;
/// What is translated for which compute capability (times ten): models by their types of weights, with the types of their caches.
/// Steps of one token, of a few and of many are planned for each. Translation takes nearly all of this test's time, so there is one
/// model for each capability, and exact steps (caches of `F32`) are left out.
const RUNS: [(u32, &[(&str, DType)]); 2] =
    [(80, &[("llama256.Q8_0", DType::F16)]), (90, &[("llama256.Q4_K_M", DType::F16)])];
/// The capabilities that kernels are assembled for: what was made for one runs on all that came after.
const ASSEMBLED_FOR: [u32; 2] = [80, 90];
/// Kernels that are known to spill, with the most bytes of spill stores that any of their specialisations may have. A threadgroup's
/// threads share 65,536 registers: 512 threads have 128 each, and 256 the 255 that a thread can have at most. These are short of
/// eight registers or fewer there; more registers would mean fewer threads. What that would gain or cost was not measured.
const KNOWN: [(&str, u64); 2] = [("cell_matmul_128", 32), ("cell_qkv_8", 4)];

/// `ptxas`: where the variable says, or beside the test models, or on the path.
fn ptxas() -> Option<PathBuf> {
    let named = std::env::var_os("SOFTMETAL_PTXAS").filter(|name| !name.is_empty()).map(PathBuf::from);
    let found = named.or_else(|| data::model("ptxas")).unwrap_or_else(|| "ptxas".into());
    Command::new(&found).arg("--version").output().is_ok_and(|out| out.status.success()).then_some(found)
}

/// Runs `work` on all items, on two threads.
fn each<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let (items, results) = (Mutex::new(items.into_iter()), Mutex::new(Vec::new()));
    let next = || items.lock().unwrap().next();
    let run = || {
        while let Some(item) = next() {
            let result = work(item);
            results.lock().unwrap().push(result);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(run);
        run();
    });
    results.into_inner().unwrap()
}

/// Puts the kernels of models into `folder`, as PTX for one capability.
fn rehearse(folder: &Path, capability: u32, models: &[(&str, DType)]) -> Result<(), String> {
    let asked = Asked::new();
    for backend in rehearsals(&asked, capability, UNITS).map_err(|error| error.to_string())? {
        for &(name, kv) in models {
            let model = Model::open(&golden::gguf(name).0).unwrap();
            model
                .compile(backend.as_ref(), CompileOptions::kv(kv))
                .unwrap_or_else(|error| panic!("{name} with a cache of {kv} for sm_{capability}: {error}"));
        }
    }
    let made = translate(&asked, folder, &[capability], 2, &|_, _| {}).map_err(|error| error.to_string())?;
    assert_eq!((made.made, made.found), (asked.len(), 0));
    Ok(())
}

/// What the assembler said of a kernel.
struct Assembled {
    kernel: String,
    /// The kernel, its function constants and the capability.
    what: String,
    /// Bytes of spill stores, or why it was refused.
    spilled: Result<u64, String>,
}

fn assemble(ptxas: &Path, file: &Path, capability: u32) -> Assembled {
    let written = fs::read_to_string(file).unwrap();
    let (head, text) = written.split_once("\n\n").unwrap();
    let lines: Vec<&str> = head.lines().collect();
    let (kernel, constants) = (lines[1].to_owned(), lines[3]);
    let source = file.with_extension(format!("{capability}.s"));
    fs::write(&source, text).unwrap();
    let mut command = Command::new(ptxas);
    command.arg(format!("-arch=sm_{capability}")).arg("-v").arg(&source);
    let out = command.arg("-o").arg(source.with_extension("cubin")).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let spilled = if out.status.success() { spill_stores(&said) } else { None };
    Assembled {
        what: format!("{kernel} ({constants}) for sm_{capability}"),
        kernel,
        spilled: spilled.ok_or_else(|| said.trim().to_owned()),
    }
}

/// Bytes that the assembler says it puts into memory for want of registers, of all functions; `None` where it says nothing of it.
fn spill_stores(said: &str) -> Option<u64> {
    let parts = said.split(['\n', ',']).filter_map(|part| part.trim().strip_suffix(" bytes spill stores"));
    parts.map(|bytes| bytes.parse::<u64>().ok()).reduce(|all, bytes| Some(all? + bytes?)).flatten()
}

/// Every kernel that spills more than is known of it, and what is known and not so.
fn complaints(assembled: &[Assembled], known: &[(&str, u64)]) -> Vec<String> {
    let mut found = Vec::new();
    for Assembled { kernel, what, spilled } in assembled {
        let allowed = known.iter().find(|(name, _)| name == kernel).map_or(0, |(_, bytes)| *bytes);
        match spilled {
            Err(said) => found.push(format!("{what} is refused: {said}")),
            Ok(bytes) if *bytes > allowed => {
                found.push(format!("{what} spills {bytes} bytes, {allowed} are known"));
            }
            Ok(_) => {}
        }
    }
    for (name, bytes) in known {
        let of_it = assembled.iter().filter(|one| one.kernel == *name);
        if of_it.filter_map(|one| one.spilled.as_ref().ok()).all(|bytes| *bytes == 0) {
            found.push(format!("{name} is known to spill up to {bytes} bytes, and does not spill"));
        }
    }
    found.sort();
    found
}

#[test]
fn an_assemblers_words_are_understood() {
    let said = "ptxas info    : Function properties for f\n    232 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
        ptxas info    : Used 255 registers\n    0 bytes stack frame, 376 bytes spill stores, 300 bytes spill loads\n";
    assert_eq!(spill_stores(said), Some(384));
    assert_eq!(spill_stores("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"), Some(0));
    assert_eq!(spill_stores("ptxas info    : Used 255 registers"), None);
}

#[test]
fn what_spills_more_than_is_known_or_not_at_all_is_named() {
    let one = |kernel: &str, spilled: Result<u64, &str>| Assembled {
        kernel: kernel.to_owned(),
        what: format!("{kernel} (0=1) for sm_80"),
        spilled: spilled.map_err(str::to_owned),
    };
    let assembled = [one("a", Ok(0)), one("b", Ok(8)), one("b", Ok(16)), one("c", Err("no"))];
    let refused = "c (0=1) for sm_80 is refused: no";
    assert_eq!(complaints(&assembled, &[("b", 16)]), [refused]);
    assert_eq!(
        complaints(&assembled, &[("b", 12)]),
        ["b (0=1) for sm_80 spills 16 bytes, 12 are known", refused]
    );
    assert_eq!(
        complaints(&assembled, &[("a", 4), ("b", 16), ("gone", 8)]),
        [
            "a is known to spill up to 4 bytes, and does not spill",
            refused,
            "gone is known to spill up to 8 bytes, and does not spill"
        ]
    );
}

#[test]
fn kernels_are_assembled_and_keep_their_numbers_in_registers() {
    let Some(ptxas) = ptxas() else {
        return data::not_run("kernels_are_assembled_and_keep_their_numbers_in_registers", "ptxas");
    };
    let folder = tempfile::tempdir().unwrap();
    let folder_of = |capability: u32| folder.path().join(capability.to_string());
    let rehearsed = RUNS.map(|(sm, models)| rehearse(&folder_of(sm), sm, models));
    if needed(rehearsed.into_iter().collect::<Result<Vec<()>, String>>()).is_none() {
        return;
    }
    let mut jobs = Vec::new();
    for (made_for, _) in RUNS {
        let files = fs::read_dir(folder_of(made_for)).unwrap().map(|file| file.unwrap().path());
        let targets = || ASSEMBLED_FOR.into_iter().filter(|sm| *sm >= made_for);
        jobs.extend(files.flat_map(|file| targets().map(move |sm| (sm, file.clone()))));
    }
    let assembled = each(jobs, |(sm, file)| assemble(&ptxas, &file, sm));
    let wrong = complaints(&assembled, &KNOWN);
    assert!(assembled.len() > 100, "{} kernels", assembled.len());
    assert!(wrong.is_empty(), "of {} kernels:\n{}", assembled.len(), wrong.join("\n"));
}
