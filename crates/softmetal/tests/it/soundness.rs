//! What safe code must not be able to do to the host, whatever it binds and whatever surrounds it.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::Command,
    sync::Arc,
};

use softmetal::{
    Buffer, Compiler, Device, Error, Flavour, Kind, Library, Source, as_bytes, as_bytes_mut, device::Problem,
};

const BOTH: [Flavour; 2] = [Flavour::Plain, Flavour::Checked];

fn compiled(text: &str, flavour: Flavour) -> softmetal::Result<Library> {
    let source = format!("#include <metal_stdlib>\nusing namespace metal;\n{text}");
    let compiler = Compiler::new().expect("clang 17 or newer is needed").flavour(flavour);
    compiler.compile(&Source::new("sound.metal", source))
}

/// Aligned as a GPU's buffers are, so that a plain kernel would see this memory itself.
#[repr(align(64))]
struct Fixed([f32; 16]);

#[test]
fn what_was_bound_for_reading_stays_as_it_is_though_an_alias_is_written() {
    let text = "kernel void f(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                              uint i [[thread_position_in_grid]]) { y[i] = x[i] + 1; }";
    for flavour in BOTH {
        let (library, device, fixed) = (compiled(text, flavour).unwrap(), Device::new(), Fixed([7.0; 16]));
        let dispatch = device.dispatch(&library, "f").unwrap();
        let dispatch = dispatch.buffer(0, as_bytes(&fixed.0)).alias(1, 0, 0).threads([16, 1, 1], [16, 1, 1]);
        dispatch.run().unwrap();
        assert_eq!(fixed.0, [7.0; 16], "{flavour:?}");
    }
}

#[test]
fn a_reference_is_one_whatever_its_type_is_called() {
    let text = "typedef device float& place;
                kernel void f(place y [[buffer(0)]]) { y = 1; }";
    for flavour in BOTH {
        let (library, device, fixed) = (compiled(text, flavour).unwrap(), Device::new(), Fixed([7.0; 16]));
        let argument = &library.kernel("f").unwrap().arguments[0];
        assert!(argument.reference && !argument.pointer && !argument.read_only);
        device.dispatch(&library, "f").unwrap().buffer(0, as_bytes(&fixed.0)).run().unwrap();
        assert_eq!(fixed.0, [7.0; 16], "{flavour:?}");
        let lent = Buffer::from_owner(Arc::new(vec![0_u8; 64]));
        let error = device.dispatch(&library, "f").unwrap().bind(0, &lent, 0..64).run().unwrap_err();
        let Error::Dispatch { problem, .. } = error else { panic!("{error}") };
        assert_eq!(problem, Problem::ReadOnly { index: 0, argument: "y".into() });
        let own = Buffer::new(64).unwrap();
        device.dispatch(&library, "f").unwrap().bind(0, &own, 0..64).run().unwrap();
        let mut found = [0.0_f32];
        own.read(0, as_bytes_mut(&mut found)).unwrap();
        assert_eq!(found, [1.0], "{flavour:?}");
    }
}

#[test]
fn what_a_library_lacks_shows_when_it_is_loaded() {
    let text = "float nowhere(float);
                kernel void f(device float* x) { if (x[0] > 1) x[0] = nowhere(x[0]); }";
    for flavour in BOTH {
        let Err(error) = compiled(text, flavour) else { panic!("{flavour:?}: loaded") };
        assert!(matches!(error, Error::Load { .. }) && error.to_string().contains("nowhere"), "{error}");
    }
}

#[test]
fn a_device_that_takes_no_kernel_on_trust_runs_checked_ones_alone() {
    let text = "kernel void f(device float* x, uint i [[thread_position_in_grid]]) { x[i] = 1; }";
    let device = Device::new().checked_only();
    let mut out = [0.0_f32; 4];
    let [plain, checked] = BOTH.map(|flavour| compiled(text, flavour).unwrap());
    let run = |library: &Library, out: &mut [f32]| {
        let dispatch = device.dispatch(library, "f").unwrap().buffer_mut(0, as_bytes_mut(out));
        dispatch.threads([8, 1, 1], [8, 1, 1]).run()
    };
    let error = run(&plain, &mut out).unwrap_err();
    assert!(matches!(error, Error::Dispatch { problem: Problem::Unchecked, .. }), "{error}");
    assert_eq!(out, [0.0; 4]);
    let outcome = run(&checked, &mut out).unwrap();
    assert_eq!((outcome.reports[0].kind, out), (Kind::OutOfBounds, [1.0; 4]));
}

#[test]
fn a_checked_kernel_writes_neither_to_its_own_code_nor_past_its_stack() {
    let text = "constant float table[4] = {1, 2, 3, 4};
        kernel void own(device float* x, uint i [[thread_position_in_grid]]) {
            ((volatile thread float*)(ulong)&table[0])[i & 3] = x[i];
        }
        kernel void stack(device float* x, constant uint& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
            float local[4];
            local[n + i] = x[i];
            x[i] = local[i & 3];
        }";
    let library = compiled(text, Flavour::Checked).unwrap();
    let device = Device::new();
    for (kernel, kind) in [("own", Kind::WriteToConstant), ("stack", Kind::ArrayIndex)] {
        let mut x = [5.0_f32; 4];
        let dispatch = device.dispatch(&library, kernel).unwrap().buffer_mut(0, as_bytes_mut(&mut x));
        let outcome = dispatch.value(1, 1_000_000_u32).threads([4, 1, 1], [4, 1, 1]).run().unwrap();
        assert_eq!(outcome.reports.first().map(|r| r.kind), Some(kind), "{kernel}: {:?}", outcome.reports);
        assert_eq!(outcome.stats.stopped, 4, "{kernel}");
    }
}

#[cfg(feature = "cli")]
#[test]
fn without_a_home_code_is_loaded_from_a_folder_of_this_user_alone() {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("k.metal");
    fs::write(&source, "kernel void f(device float* x) { x[0] = 1; }").unwrap();
    let user = fs::metadata(&source).unwrap().uid();
    let folder = place.path().join(format!("softmetal-{user}"));
    let list = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softmetal"));
        for name in ["HOME", "XDG_CACHE_HOME", "SOFTMETAL_CACHE"] {
            command.env_remove(name);
        }
        let output = command.env("TMPDIR", place.path()).arg("list").arg(&source).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let refused = |reason: &str| {
        let (done, said) = list();
        assert!(!done && said.contains(reason) && said.contains("SOFTMETAL_CACHE"), "{said}");
    };
    let elsewhere = place.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, &folder).unwrap();
    refused("no folder");
    fs::remove_file(&folder).unwrap();
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    refused("others may write to it (mode 777)");
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "something was put there all the same");
    fs::remove_dir(&folder).unwrap();
    let (done, said) = list();
    assert!(done, "{said}");
    assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
    assert!(fs::read_dir(&folder).unwrap().any(|file| is_object(&file.unwrap().path())));
}

#[cfg(feature = "cli")]
fn is_object(path: &Path) -> bool {
    path.extension().is_some_and(|kind| kind == "so")
}
