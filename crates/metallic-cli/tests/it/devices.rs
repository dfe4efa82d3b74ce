//! `devices`, `--device` and `--provider`: what there is, and what is said where something is missing.

use std::{env, fs, path::PathBuf, process::Command};

use metallic_testkit::missing;
use serde_json::{Value, json};

use crate::support::{Machine, Ran, stories};

/// Where compiled kernels are kept that other tests have made already; `Machine` gives the command another home.
pub(crate) fn kernels() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
    let own = cache.or_else(home).unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into()).join("softmetal");
    env::var_os("SOFTMETAL_CACHE").map_or(own, PathBuf::from)
}

/// The command with a cache of compiled kernels that outlives the test.
fn command(machine: &Machine, args: &[&str]) -> Command {
    let mut command = machine.command(args);
    command.env("SOFTMETAL_CACHE", kernels());
    for name in ["METALLIC_FORCE_SDPA_BACKEND", "METALLIC_FORCE_MATMUL_BACKEND"] {
        command.env_remove(name);
    }
    command
}

fn run(machine: &Machine, args: &[&str]) -> Ran {
    Ran::from(command(machine, args).output().unwrap())
}

fn rows(ran: &Ran) -> Vec<Value> {
    ran.json().as_array().unwrap().clone()
}

fn of<'a>(rows: &'a [Value], kind: &str) -> &'a Value {
    rows.iter().find(|row| row["kind"] == kind).unwrap_or_else(|| panic!("no {kind} in {rows:?}"))
}

/// Whether kernels can be compiled here; where not, says that a test did not run.
fn clang(machine: &Machine) -> bool {
    let listed = rows(&run(machine, &["devices", "--json"]).ok());
    let soft = of(&listed, "soft");
    if soft["available"] == json!(false) {
        missing(&soft["reason"]);
    }
    soft["available"] == json!(true)
}

#[test]
fn devices_are_listed_for_people_and_programs() {
    let machine = Machine::without_hub();
    let ran = run(&machine, &["devices"]).ok();
    let listed = rows(&run(&machine, &["devices", "--json"]).ok());
    for kind in ["cpu", "metal", "soft", "reference"] {
        let row = of(&listed, kind);
        assert!(ran.out.contains(row["device"].as_str().unwrap()), "{}", ran.out);
        // What cannot be used says why.
        assert_ne!(row["available"] == json!(true), row["reason"].is_string(), "{row}");
    }
    assert_eq!(listed.iter().filter(|row| row["auto"] == json!(true)).count(), 1);
    let cpu = of(&listed, "cpu");
    assert!(cpu["available"] == json!(true) && cpu["units"].as_u64() > Some(0), "{cpu}");
    if clang(&machine) {
        let soft = of(&listed, "soft");
        assert!(soft["compiler"].as_str().unwrap().contains("clang"), "{soft}");
        assert_eq!(soft["limits"]["simd_width"], 32);
        assert!(ran.out.contains("1024 threads a group"), "{}", ran.out);
    }
}

#[test]
fn without_clang_soft_says_what_to_install() {
    let machine = Machine::without_hub();
    let without = |args: &[&str]| {
        Ran::from(command(&machine, args).env("SOFTMETAL_CLANG", "/nothing").output().unwrap())
    };
    let listed = rows(&without(&["devices", "--json"]).ok());
    let soft = of(&listed, "soft");
    assert_eq!(soft["available"], false);
    assert!(soft["reason"].as_str().unwrap().contains("apt install clang"), "{soft}");
    assert!(without(&["devices"]).ok().out.contains("apt install clang"));
    without(&["run", "-m", &stories(), "--device", "soft", "x"]).failed(
        1,
        "apt install clang",
        "metallic devices",
    );
}

#[cfg(not(target_os = "macos"))]
#[test]
fn metal_is_refused_where_there_is_none() {
    let machine = Machine::without_hub();
    for device in ["metal", "metal:1", "metal:Apple M2"] {
        let args = ["tool", "logits", "-m", &stories(), "--device", device, "--tokens", "1"];
        run(&machine, &args).failed(1, "Metal is part of macOS", "metallic devices");
    }
}

#[test]
fn providers_are_refused_where_they_mean_nothing() {
    let machine = Machine::without_hub();
    let model = stories();
    let args = ["run", "-m", &model, "--raw", "-n", "1"];
    let with = |more: &[&str]| run(&machine, &[&args[..], more, &["x"]].concat());
    for device in ["cpu", "reference"] {
        with(&["--device", device, "--provider", "sdpa=plain"]).failed(1, "`sdpa=plain`", "`--device soft`");
    }
    for (flag, part) in [("sdpa=fast", "sdpa=flash, sdpa=plain"), ("spda=plain", "matmul=")] {
        let ran = with(&["--provider", flag]);
        assert!(ran.code == Some(2) && ran.err.contains(part), "{ran:?}");
    }
    if clang(&machine) {
        let forced = |more: &[&str]| {
            let mut command = command(&machine, &[&args[..], &["--device", "soft"], more, &["x"]].concat());
            Ran::from(command.env("METALLIC_FORCE_SDPA_BACKEND", "fast").output().unwrap())
        };
        let wrong = "soft cannot take `METALLIC_FORCE_SDPA_BACKEND=fast`: there are METALLIC_FORCE_SDPA_BACKEND=flash";
        forced(&[]).failed(1, wrong, "correct or unset it");
        // Who asks by a flag is served, and is told that the variable is wrong.
        let ran = forced(&["--provider", "sdpa=flash"]).ok();
        assert!(ran.err.contains("note: `METALLIC_FORCE_SDPA_BACKEND=fast`"), "{}", ran.err);
        // Where there are no providers the variable has nothing to say.
        let mut command = command(&machine, &[&args[..], &["--device", "cpu", "x"]].concat());
        Ran::from(command.env("METALLIC_FORCE_SDPA_BACKEND", "fast").output().unwrap()).ok();
    }
}

#[test]
fn a_profile_tells_the_time_of_each_operation_on_every_device() {
    let machine = Machine::without_hub();
    let devices = if clang(&machine) { &["cpu", "soft", "reference"][..] } else { &["cpu", "reference"] };
    for device in devices {
        let model = stories();
        let args = ["bench", "-m", &model, "--device", device, "-n", "3", "-r", "1", "--json"];
        let ran = run(&machine, &[&args[..], &["--ops"]].concat()).ok();
        let profiled = rows(&ran);
        // What runs on a processor in place of something else has no limits of its own.
        let shares = *device == "cpu";
        assert_eq!(profiled[0]["share_of_bandwidth"].is_f64(), shares, "{device}");
        assert_eq!(ran.err.contains("means nothing"), !shares, "{device}: {}", ran.err);
        let times = profiled[0]["seconds_by_op"].as_object().unwrap();
        assert!(times.contains_key("embed") && times.contains_key("attention"), "{device}: {times:?}");
        assert!(times.values().all(|seconds| seconds.as_f64() > Some(0.0)), "{device}: {times:?}");
        let plain = rows(&run(&machine, &[&args[..], &["--no-limits"]].concat()).ok());
        assert!(plain[0].get("seconds_by_op").is_none());
    }
}

#[test]
fn what_is_counted_stands_beside_what_is_measured() {
    let machine = Machine::without_hub();
    if !clang(&machine) {
        return;
    }
    let model = stories();
    let args =
        ["tool", "counts", "-m", &model, "--device", "soft", "--chip", "M4", "-p", "8", "-n", "2", "-r", "1"];
    let rows = rows(&run(&machine, &[&args[..], &["--json"]].concat()).ok());
    for row in &rows {
        assert!(row["measured_tokens_per_s"].as_f64() > Some(0.0), "{row}");
        let times = row["measured_seconds_by_op"].as_object().unwrap();
        for kernel in row["kernels"].as_array().unwrap() {
            let op = kernel["op"].as_str().unwrap();
            // Where times are taken, logits come back and the host chooses.
            assert!(op == "sample" || times[op].as_f64() > Some(0.0), "{op}: {times:?}");
        }
    }
    let table = run(&machine, &args).ok().out;
    assert!(table.contains("MEASURED µs") && table.contains("% of what was counted"), "{table}");
}

#[test]
fn the_metal_kernels_answer_like_the_processor_with_every_provider() {
    let machine = Machine::without_hub();
    if !clang(&machine) {
        return;
    }
    let greedy = metallic_testkit::data::own().join("stories260K/greedy.json");
    let greedy: Value = serde_json::from_slice(&fs::read(greedy).unwrap()).unwrap();
    let expected = json!(greedy["greedy_ids"].as_array().unwrap()[4..20]);
    let model = stories();
    let args = ["run", "-m", &model, "--raw", "--temp", "0", "-n", "16", "--device", "soft", "--json"];
    for provider in [&[][..], &["--provider", "sdpa=plain"], &["--provider", "matmul=rows"]] {
        let answer = run(&machine, &[&args[..], provider, &["Once upon a time"]].concat()).ok().json();
        assert_eq!(answer["tokens"], expected, "{provider:?}");
        let stats = &answer["stats"];
        assert_eq!(stats["device"], "soft");
        for key in [
            "dispatches",
            "submissions",
            "allocations",
            "arena_bytes",
            "bytes_read",
            "bytes_written",
            "cache_hits",
        ] {
            assert!(stats[key].as_u64() > Some(0), "{key}: {stats}");
        }
        assert_eq!(stats["cache_misses"], 0, "every kernel was ready: {stats}");
        // A prompt, and a step for each of the tokens after the first at most.
        assert!(stats["submissions"].as_u64() <= Some(16), "{stats}");
    }
}
