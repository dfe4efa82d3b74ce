//! Kernels as a part of somebody's work: tests in comments, results for CI, files that are watched.
#![cfg(feature = "cli")]

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
    sync::mpsc,
    time::Duration,
};

const SCALE: &str = "#include <metal_stdlib>
using namespace metal;
// softmetal: run scale --threads 4 --threadgroup 4 --buffer 0=f32:1,2,3,4 --out 1=f32:4 --expect 1=f32:2,4,6,8 --check --seeds 3
// softmetal: run shade --threads 2,2 --threadgroup 2,2 --texture 0=texels.raw:2x2:r8Unorm --texture 1=zeros:2x2:rg8Unorm --sampler 0=linear,repeat --check
kernel void scale(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    y[i] = 2 * x[i];
}
kernel void shade(texture2d<float> from [[texture(0)]], texture2d<float, access::write> to [[texture(1)]], sampler s [[sampler(0)]],
                  uint2 at [[thread_position_in_grid]]) {
    to.write(float4(from.read(at).x, from.sample(s, (float2(at) + 0.5) / 2).x, 0, 0), at);
}
";

fn folder(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("scale.metal"), text).expect("written");
    fs::write(folder.path().join("texels.raw"), [0, 51, 102, 255]).expect("written");
    folder
}

fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_softmetal"));
    command.current_dir(folder).args(arguments).env_remove("CLICOLOR_FORCE");
    command.env("SOFTMETAL_CACHE", env!("CARGO_TARGET_TMPDIR").to_owned() + "/softmetal");
    command
}

fn softmetal(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn comments_say_what_is_run_and_ci_reads_what_came_of_it() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(SCALE);
    let output = softmetal(folder.path(), &["test", "--junit", "out.xml", "scale.metal"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.contains("ok scale.metal:3 run scale") && said.ends_with("2 runs, 0 failed\n"), "{said}");
    let xml = fs::read_to_string(folder.path().join("out.xml")).unwrap();
    assert!(xml.contains("<testsuites tests=\"2\" failures=\"0\" errors=\"0\">"), "{xml}");
    assert!(xml.contains("<testcase classname=\"scale.metal\" name=\"line 3: scale\""), "{xml}");

    // A wrong kernel, one that does not compile, and a wrong request.
    fs::write(folder.path().join("scale.metal"), SCALE.replace("2 * x[i]", "2 * x[i + 1]")).unwrap();
    let output = softmetal(folder.path(), &["test", "--junit", "out.xml", "scale.metal"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("error: out-of-bounds access in kernel `scale`\n --> scale.metal:6:16"), "{said}");
    assert!(
        said.contains("error: element 0 of buffer 1 is 4, expected 2; 3 others are off as well"),
        "{said}"
    );
    let xml = fs::read_to_string(folder.path().join("out.xml")).unwrap();
    assert!(
        xml.contains("failures=\"1\"")
            && xml.contains("<failure message=\"error: out-of-bounds access in kernel `scale`\">"),
        "{xml}"
    );

    let run = ["run", "scale.metal", "scale", "--threads", "4", "--junit", "one.xml"];
    fs::write(folder.path().join("scale.metal"), SCALE.replace("2 * x[i]", "z")).unwrap();
    assert_eq!(softmetal(folder.path(), &run).status.code(), Some(1));
    let xml = fs::read_to_string(folder.path().join("one.xml")).unwrap();
    assert!(
        xml.contains("errors=\"1\"") && xml.contains("scale.metal:6:12: error: use of undeclared identifier"),
        "{xml}"
    );
    let lint = softmetal(folder.path(), &["lint", "--junit", "lint.xml", "scale.metal"]);
    assert!(lint.status.success(), "{}", text(&lint.stdout));
    assert!(fs::read_to_string(folder.path().join("lint.xml")).unwrap().contains("name=\"lint\""));

    fs::write(folder.path().join("scale.metal"), SCALE.replace("--seeds 3", "--sedes 3")).unwrap();
    let output = softmetal(folder.path(), &["test", "scale.metal"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("scale.metal:3: error: unexpected argument '--sedes'"), "{said}");
    let none = softmetal(folder.path(), &["test", "texels.raw"]);
    assert!(text(&none.stderr).contains("nothing to run in texels.raw"), "{}", text(&none.stderr));
}

#[test]
fn textures_are_given_saved_and_shown() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(SCALE);
    let run = |more: &[&str]| {
        let fixed =
            ["run", "scale.metal", "shade", "--threads", "2,2", "--threadgroup", "2,2", "--json", "--check"];
        softmetal(folder.path(), &[&fixed[..], more].concat())
    };
    let given = ["--texture", "0=texels.raw:2x2:r8Unorm", "--texture", "1=zeros:2x2:rg8Unorm"];
    let output = run(&[&given[..], &["--sampler", "0=linear", "--save-texture", "1=out.raw"]].concat());
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    assert_eq!(found["reports"], serde_json::json!([]), "{}{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(found["textures"]["1"][2], 0.2);
    assert_eq!(fs::read(folder.path().join("out.raw")).unwrap(), [0, 0, 51, 51, 102, 102, 255, 255]);
    let listed = text(&softmetal(folder.path(), &["list", "scale.metal", "shade"]).stdout);
    assert!(listed.contains("texture 1") && listed.contains("sampler 0"), "{listed}");
    for (arguments, message) in [
        (&["--texture", "0=texels.raw:2x3:r8Unorm"][..], "texels.raw has 4 bytes, the texels have 6"),
        (&["--texture", "0=zeros:2:r8Unorm"], "`2` is no size of a texture2d, which has 2 numbers"),
        (&["--texture", "0=zeros:2x2:rgb9"], "`rgb9` is no format; there are r8Unorm"),
        (&["--texture", "7=zeros:2x2:r8Unorm"], "kernel `shade` has no texture 7"),
        (
            &["--texture", "0=zeros:2x2:r8Uint", "--texture", "1=zeros:2x2:r8Unorm", "--sampler", "0=linear"],
            "texture 0 is a texture2d of r8Uint, but argument `from` is a texture2d<float>",
        ),
        (&["--sampler", "0=cubic"], "`cubic` is no word of a sampler"),
    ] {
        let said = text(&run(arguments).stdout);
        assert!(said.contains(message), "{arguments:?}: {said}");
    }
}

#[test]
fn a_watched_file_is_looked_at_whenever_it_changes() {
    if crate::front::compiler().is_none() {
        return;
    }
    let folder = folder(SCALE);
    let mut child = command(folder.path(), &["watch", "--interval", "20", "scale.metal"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, lines) = mpsc::channel();
    let stdout = child.stdout.take().unwrap();
    std::thread::spawn(move || {
        BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    let wait_for = |wanted: &str| {
        let mut seen = Vec::new();
        while let Ok(line) = lines.recv_timeout(Duration::from_secs(120)) {
            let found = line.contains(wanted);
            seen.push(line);
            if found {
                return seen;
            }
        }
        panic!("no `{wanted}` among {seen:?}");
    };
    wait_for("scale.metal: 0 errors, 2 runs, 0 failed");
    fs::write(folder.path().join("scale.metal"), SCALE.replace("2 * x[i]", "3 * x[i]")).unwrap();
    let seen = wait_for("scale.metal: 0 errors, 2 runs, 1 failed");
    assert!(seen.iter().any(|line| line.contains("element 0 of buffer 1 is 3, expected 2")), "{seen:?}");
    // A header beside it changes it too.
    fs::write(folder.path().join("new.h"), "").unwrap();
    wait_for("scale.metal: 0 errors, 2 runs, 1 failed");
    fs::write(folder.path().join("scale.metal"), SCALE).unwrap();
    wait_for("scale.metal: 0 errors, 2 runs, 0 failed");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    assert!(!child.wait().unwrap().success(), "it was interrupted");
}
