//! The folder of compiled kernels stays within its limit.

use std::{
    fs,
    path::{Path, PathBuf},
};

use softmetal::{Cache, Compiler, Device, Library, Source, Toolchain, as_bytes_mut};

fn compiler(folder: &Path, limit: u64) -> Compiler {
    let toolchain = Toolchain::find().expect("clang 17 or newer is needed");
    Compiler::with(toolchain, Cache::at(folder).unwrap().limit(limit)).unwrap()
}

fn compile(compiler: &Compiler, value: u32) -> Library {
    let text = format!("kernel void fill(device uint* out [[buffer(0)]]) {{ out[0] = {value}; }}");
    compiler.compile(&Source::new("fill.metal", text)).unwrap_or_else(|error| panic!("{error}"))
}

fn path_of(library: &Library) -> PathBuf {
    library.objects().remove(0)
}

fn run(library: &Library) -> u32 {
    let mut out = [0_u32];
    let device = Device::with_workers(1);
    device.dispatch(library, "fill").unwrap().buffer_mut(0, as_bytes_mut(&mut out)).run().unwrap();
    out[0]
}

fn size(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.map(|path| if path.is_dir() { size(&path) } else { fs::metadata(path).unwrap().len() }).sum()
}

fn notes(folder: &Path) -> usize {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "json")).count()
}

fn objects(folder: &Path) -> usize {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|e| e == "so")).count()
}

#[test]
fn a_text_that_says_it_is_from_a_file_that_is_not_there_is_known_again_until_there_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = compiler(folder.path(), u64::MAX);
    let claimed = folder.path().join("claimed.metal");
    let text = format!(
        "#line 1 \"{}\"\nkernel void fill(device uint* out [[buffer(0)]]) {{ out[0] = 7; }}",
        claimed.display()
    );
    let compile = || compiler.compile(&Source::new("whole.metal", text.clone())).unwrap();
    assert_eq!((run(&compile()), notes(folder.path())), (7, 1));
    // Without a clang only what is known can be had.
    let mut without = Toolchain::find().expect("clang 17 or newer is needed");
    without.limit = std::time::Duration::ZERO;
    let without = Compiler::with(without, Cache::at(folder.path()).unwrap()).unwrap();
    assert_eq!(run(&without.compile(&Source::new("whole.metal", text.clone())).unwrap()), 7);
    fs::write(&claimed, "another text").unwrap();
    assert!(without.compile(&Source::new("whole.metal", text.clone())).is_err(), "it may have changed");
}

#[test]
fn what_several_want_at_once_is_made_once() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = compiler(folder.path(), u64::MAX);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(run(&compile(&compiler, 9)), 9));
        }
    });
    assert_eq!((objects(folder.path()), notes(folder.path())), (1, 1));
    let left = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("build-")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_was_used_least_recently_makes_room_and_what_is_in_use_never_does() {
    let folder = tempfile::tempdir().unwrap();
    let roomy = compiler(folder.path(), u64::MAX);
    let used = compile(&roomy, 1);
    let [first, second] = [2, 3].map(|value| path_of(&compile(&roomy, value)));
    // The first is used once more, so the second has waited longest but for the one that is in use.
    assert_eq!(path_of(&compile(&roomy, 2)), first);
    let object = fs::metadata(&first).unwrap().len();
    let limit = size(folder.path()) + object / 2;
    let tight = compiler(folder.path(), limit);
    let new = path_of(&compile(&tight, 4));
    assert!(size(folder.path()) <= limit);
    assert_eq!(
        [&path_of(&used), &first, &second, &new].map(|path| path.is_file()),
        [true, true, false, true]
    );
    assert_eq!(notes(folder.path()), 3);

    // With no room at all only what is in use is left, and the last one made.
    let last = compile(&compiler(folder.path(), 0), 5);
    assert_eq!([&path_of(&used), &first, &new].map(|path| path.is_file()), [true, false, false]);
    assert_eq!((run(&used), run(&last), notes(folder.path())), (1, 5, 2));
    // What had to go is made again.
    assert_eq!(run(&compile(&roomy, 3)), 3);
}

#[test]
fn headers_of_other_versions_go_too_and_those_in_use_stay() {
    let folder = tempfile::tempdir().unwrap();
    let compiler = compiler(folder.path(), 0);
    let old = folder.path().join("shim-0123456789abcdef");
    fs::create_dir(&old).unwrap();
    fs::write(old.join("metal_stdlib"), "").unwrap();
    fs::write(old.join("complete"), "").unwrap();
    assert_eq!(run(&compile(&compiler, 1)), 1);
    assert!(!old.exists());
    assert!(compiler.shim_folder().join("metal_stdlib").is_file());
}

#[test]
fn a_file_that_changes_while_it_is_compiled_is_compiled_again() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let (header, script) = (folder.path().join("value.h"), folder.path().join("clang"));
    fs::write(&header, "#define VALUE 1\n").unwrap();
    let mut toolchain = Toolchain::find().expect("clang 17 or newer is needed");
    // Between the preprocessor and the compiler somebody saves the file.
    let text = format!(
        "#!/bin/sh\ncase \" $* \" in *\" -c \"*) echo '#define VALUE 2' >'{}';; esac\nexec '{}' \"$@\"\n",
        header.display(),
        toolchain.clang.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    toolchain.clang = script;
    let compiler = Compiler::with(toolchain, Cache::at(folder.path().join("cache")).unwrap()).unwrap();
    let source = Source::new(
        folder.path().join("fill.metal"),
        "#include \"value.h\"\nkernel void fill(device uint* out [[buffer(0)]]) { out[0] = VALUE; }",
    );
    let value = || run(&compiler.compile(&source).unwrap_or_else(|error| panic!("{error}")));
    assert_eq!((value(), value(), value()), (1, 2, 2));
}
