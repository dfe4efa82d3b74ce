//! Sources with many kernels: all is checked at once, and code is made of what is asked for.

use std::{fs, time::Duration};

use softmetal::{
    Cache, Compiler, Device, Error, Flavour, Library, Pipeline, Source, Toolchain, as_bytes_mut,
};

const KERNELS: usize = 12;

/// `add_0` … `add_11`, each an instance of a template, and one with what they have besides.
fn many(body: &str) -> String {
    let instances = (0..KERNELS)
        .map(|n| {
            format!("template [[host_name(\"add_{n}\")]] [[kernel]] void add<{n}>(device uint*, uint);\n")
        })
        .collect::<Vec<_>>()
        .concat();
    format!(
        "constant uint factor [[function_constant(3)]];
[[visible]] uint twice(uint x) {{ return 2 * x; }}
template <int N> [[max_total_threads_per_threadgroup(64)]] kernel void add(device uint* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {{
    {body}
}}
{instances}
kernel void through(device uint* out [[buffer(0)]], metal::visible_function_table<uint(uint)> table [[buffer(1)]], uint i [[thread_position_in_grid]]) {{
    out[i] = table[0](i);
}}"
    )
}

const BODY: &str = "out[i] = i * factor + N;";

fn compiler(folder: &std::path::Path) -> Option<Compiler> {
    let toolchain = crate::front::needed(Toolchain::find())?;
    Some(Compiler::with(toolchain, Cache::at(folder).unwrap()).unwrap())
}

fn run(library: &Library, kernel: &str) -> [u32; 4] {
    let mut out = [0; 4];
    let pipeline = Pipeline::new(library, kernel).unwrap().constant("factor", 10_u32).unwrap();
    let device = Device::with_workers(1);
    let outcome =
        device.dispatch_of(&pipeline).buffer_mut(0, as_bytes_mut(&mut out)).threads([4, 1, 1], [4, 1, 1]);
    let outcome = outcome.run().unwrap();
    assert!(outcome.is_clean(), "{:?}", outcome.reports);
    out
}

#[test]
fn of_many_kernels_only_those_are_compiled_that_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(folder.path()) else { return };
    let source = Source::new("many.metal", many(BODY));
    for flavour in [Flavour::Plain, Flavour::Checked] {
        let compiler = compiler.clone().flavour(flavour);
        let library = compiler.compile(&source).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((library.kernels().len(), library.objects().len()), (KERNELS + 1, 0));
        assert_eq!(library.kernel("add_7").unwrap().max_threads, Some(64));
        assert_eq!(library.functions().collect::<Vec<_>>(), ["twice"]);
        // Whoever wants the same kernel meanwhile gets the same code.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert_eq!(run(&library, "add_7"), [7, 17, 27, 37]));
            }
        });
        assert_eq!(library.objects().len(), 1);

        let mut out = [0_u32; 4];
        let device = Device::with_workers(1);
        let dispatch = device.dispatch(&library, "through").unwrap().buffer_mut(0, as_bytes_mut(&mut out));
        let dispatch = dispatch.functions(1, &["twice"]).unwrap().threads([4, 1, 1], [4, 1, 1]);
        assert!(dispatch.run().unwrap().is_clean());
        assert_eq!(out, [0, 2, 4, 6]);

        library.prepare(["add_0", "add_3", "add_7"]).unwrap();
        assert_eq!(library.objects().len(), 4);
        let absent = library.prepare(["add_0", "add_99"]).unwrap_err().to_string();
        assert!(absent.starts_with("no kernel `add_99` in many.metal; the nearest are add_"), "{absent}");

        // Another process needs no compiler for any of them, and has none for the others.
        let mut without = compiler.toolchain().clone();
        without.limit = Duration::ZERO;
        let without = Compiler::with(without, Cache::at(folder.path()).unwrap()).unwrap().flavour(flavour);
        let again = without.compile(&source).unwrap();
        assert_eq!(run(&again, "add_3"), [3, 13, 23, 33]);
        assert!(matches!(Pipeline::new(&again, "add_4"), Err(Error::Io { .. })));
    }
}

#[test]
fn a_mistake_in_any_instance_shows_before_a_kernel_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(folder.path()) else { return };
    for (body, message) in [
        ("out[i] = unknown;", "many.metal:4:14: error: use of undeclared identifier 'unknown'"),
        (
            "static_assert(N != 5, \"not five\"); out[i] = N;",
            "many.metal:4:19: error: static assertion failed due to requirement '5 != 5': not five",
        ),
    ] {
        let failed = compiler.compile(&Source::new("many.metal", many(body))).unwrap_err().to_string();
        assert!(failed.contains(message), "{failed}");
    }
}

#[test]
fn a_kernel_of_a_changed_header_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let Some(compiler) = compiler(&folder.path().join("cache")) else { return };
    let header = folder.path().join("kind.h");
    fs::write(&header, "#define KIND uint\n").unwrap();
    let text = format!(
        "#include \"kind.h\"\n{}",
        many("out[i] = N;").replace("device uint* out", "device KIND* out")
    );
    let source = Source::new(
        folder.path().join("many.metal"),
        text.replace("(device uint*, uint)", "(device KIND*, uint)"),
    );
    let library = compiler.compile(&source).unwrap_or_else(|error| panic!("{error}"));
    assert!(Pipeline::new(&library, "add_1").is_ok());
    fs::write(&header, "#define KIND ushort\n").unwrap();
    let refused = Pipeline::new(&library, "add_2").unwrap_err();
    assert!(matches!(refused, Error::Changed { .. }), "{refused}");
    assert!(Pipeline::new(&library, "add_1").is_ok(), "it is compiled already");
    assert!(Pipeline::new(&compiler.compile(&source).unwrap(), "add_2").is_ok());
}
