//! The rewriter: each construct of Metal keeps its meaning, its line and its column.

use std::path::Path;

use softmetal::{
    ArgumentKind, BuiltIn, Compiler, Device, Library, Source, as_bytes, as_bytes_mut,
    rewrite::{Rewritten, Selection, Semantic, Target, rewrite},
};

fn cpp(source: &str) -> Rewritten {
    let preprocessed = format!("# 1 \"k.metal\"\n{source}");
    rewrite(&preprocessed, "/shim", &Target::Cpu, &Selection::All).expect("well-formed")
}

fn constructs() -> Option<(Compiler, Source)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/constructs.metal");
    Some((crate::front::compiler()?, Source::from_file(path).expect("the test's source")))
}

/// Columns of each word of `words` in the line that holds them all, before and after.
fn columns(text: &str, words: &[&str]) -> Vec<usize> {
    words.iter().map(|word| text.lines().find_map(|line| line.find(word)).unwrap_or(usize::MAX)).collect()
}

#[test]
fn tokens_that_stay_keep_their_columns() {
    let cases: [(&str, &[&str]); 5] = [
        (
            "kernel void f(device const float* first [[buffer(0)]], constant uint& second [[buffer(1)]]) { body(); }",
            &["first", "second", "body"],
        ),
        ("float g(thread float& only) { return only * 0.5 + last; }", &["only", "last"]),
        ("kernel void f(device int* out) { threadgroup float a[32]; after(a); }", &["after"]),
        ("constant bool flag [[function_constant(3)]]; int following;", &["following"]),
        ("device coherent(system) int* one; int two;", &["one", "two"]),
    ];
    for (source, words) in cases {
        assert_eq!(
            columns(&cpp(source).text, words),
            columns(source, words),
            "{source}\n{}",
            cpp(source).text
        );
    }
}

#[test]
fn kernels_get_an_entry_with_one_semantic_per_parameter() {
    let found = cpp(
        "kernel void f(device float* a, constant uint& n [[buffer(0)]], threadgroup float* t, device int* b, uint i [[thread_position_in_grid]]) {}",
    );
    let semantics: Vec<_> = found.kernels[0].parameters.iter().map(|p| p.semantic.clone()).collect();
    let buffer = |index: &str| Semantic::Buffer { index: index.into(), optional: false };
    let threadgroup = Semantic::Threadgroup { index: "0".into() };
    let position = Semantic::BuiltIn(BuiltIn::ThreadPositionInGrid);
    assert_eq!(semantics, [buffer("1"), buffer("0"), threadgroup, buffer("2"), position]);
    let parameter = &found.kernels[0].parameters[1];
    assert_eq!((parameter.name.as_str(), parameter.type_text.as_str()), ("n", "constant uint&"));
}

#[test]
fn instantiations_are_named_by_their_host_names() {
    let source = "template <typename T, int N> kernel void f(device T* x) {}\n\
                  typedef decltype(f<float, 1>) f_t;\n\
                  template [[host_name(\"a\" \"_1\")]] kernel f_t f<float, 1>;\n\
                  template [[host_name(\"b\")]] [[kernel]] decltype(f<half, (2 > 1) ? 4 : 8>) f<half, (2 > 1) ? 4 : 8>;\n\
                  template [[host_name(\"c\")]] kernel void f<vec<float, 2>, 3>(device vec<float, 2>*);\n";
    let kernels = cpp(source).kernels;
    let names: Vec<_> = kernels.iter().map(|kernel| kernel.host_name.as_str()).collect();
    assert_eq!(names, ["a_1", "b", "c"]);
    assert_eq!(kernels[2].function.replace(' ', ""), "f<vec<float,2>,3>");
}

#[test]
fn twins_by_address_space_go_but_true_duplicates_stay_for_the_compiler_to_refuse() {
    let twins = cpp("int f(device int* a) { return 1; }\nint f(threadgroup int* b) { return 2; }\n").text;
    assert!(twins.contains("return 1") && !twins.contains("return 2"), "{twins}");
    let duplicates = cpp("int f(device int* a) { return 1; }\nint f(device int* b) { return 2; }\n").text;
    assert!(duplicates.contains("return 1") && duplicates.contains("return 2"), "{duplicates}");
}

#[test]
fn unbalanced_brackets_are_errors_at_their_line() {
    let cases = [
        ("int a;\nint f( {\n", "k.metal:2:"),
        ("int a;\n\n}", "k.metal:3:1"),
        ("f(]", "k.metal:1:3"),
        ("int x [[buffer(0)];", "k.metal:1:"),
    ];
    for (source, place) in cases {
        let preprocessed = format!("# 1 \"k.metal\"\n{source}");
        let error = rewrite(&preprocessed, "", &Target::Cpu, &Selection::All).expect_err(source).to_string();
        assert!(error.starts_with(place), "{source}: {error}");
    }
}

#[test]
fn a_value_without_attribute_is_refused_by_name() {
    let preprocessed = "# 1 \"k.metal\"\n\nkernel void f(device int* x, uint tid) {}";
    let error =
        rewrite(preprocessed, "", &Target::Cpu, &Selection::All).expect_err("no attribute").to_string();
    assert!(error.starts_with("k.metal:2:30: error: parameter `uint tid` of kernel `f`"), "{error}");
}

#[test]
fn only_selected_kernels_keep_their_bodies() {
    let preprocessed = "# 1 \"k.metal\"\nkernel void a(device int* x) { first(); }\nkernel void b(device int* x) { second(); }\n";
    let only = Selection::Only(vec!["b".into()]);
    let found = rewrite(preprocessed, "", &Target::Cpu, &only).expect("b is there");
    assert!(!found.text.contains("first") && found.text.contains("second"));
    let error = rewrite(preprocessed, "", &Target::Cpu, &Selection::Only(vec!["c".into()]))
        .expect_err("no c")
        .to_string();
    assert_eq!(error, "no kernel `c` in k.metal; the nearest are a, b");
}

#[test]
fn reflection_lists_arguments_constants_and_limits() {
    let Some((compiler, source)) = constructs() else { return };
    let interface = compiler.reflect(&source).expect("compiles");
    let kernel = |name: &str| interface.kernels.iter().find(|kernel| kernel.name == name).expect(name);
    assert_eq!(kernel("rotate_2").max_threads, Some(64));
    assert_eq!(kernel("reverse_float").max_threads, None);
    let kinds: Vec<_> = kernel("rotate_2").arguments.iter().map(|argument| argument.kind).collect();
    assert_eq!(
        kinds,
        [
            ArgumentKind::Buffer(0),
            ArgumentKind::Buffer(1),
            ArgumentKind::Threadgroup(0),
            ArgumentKind::Threadgroup(1),
            ArgumentKind::BuiltIn(BuiltIn::ThreadIndexInThreadgroup)
        ]
    );
    let extra = &kernel("optional_buffer").arguments[2];
    assert!(extra.optional && extra.read_only && extra.pointer && extra.kind == ArgumentKind::Buffer(5));
    let by_value = &kernel("structs").arguments[2];
    assert!(!by_value.pointer && by_value.element_size == 40 && by_value.name == "by_value");
    assert_eq!(kernel("reverse_half").arguments[0].element_size, 2);
    let spelled = |name: &str, index: usize| kernel(name).arguments[index].type_text.clone();
    assert_eq!(spelled("reverse_float", 0), "device const float*"); // T is known by now
    assert_eq!(spelled("reverse_half", 1), "device half*");
    assert_eq!(spelled("rotate_2", 3), "threadgroup int*");
    let constants: Vec<_> = interface.constants.iter().map(|c| (c.name.as_str(), c.index, c.size)).collect();
    assert_eq!(constants, [("wide", 0, 1), ("offset", 1, 4), ("scale", 2, 4), ("base", 7, 4)]);
    assert!(interface.kernels.iter().all(|kernel| kernel.name != "with_cube"));
    let image = &kernel("with_texture").arguments[0];
    assert_eq!(image.kind, ArgumentKind::Texture(0));
    assert!(image.texture.is_some_and(|texture| !texture.writes() && texture.count == 1));
    let warnings: Vec<_> = interface.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.iter().any(|w| w.contains("`not_compute` is a graphics function")), "{warnings:?}");
    assert!(warnings.iter().any(|w| w.contains("`with_cube` is left out")), "{warnings:?}");
}

/// Runs a kernel in one threadgroup of `threads` threads on buffers of ints and gives buffer `out`.
fn run(library: &Library, name: &str, threads: u32, buffers: &mut [Vec<i32>], out: usize) -> Vec<i32> {
    let device = Device::with_workers(1);
    let mut dispatch = device.dispatch(library, name).expect(name).threads([threads, 1, 1], [threads, 1, 1]);
    for (index, buffer) in buffers.iter_mut().enumerate() {
        dispatch = dispatch.buffer_mut(index as u32, as_bytes_mut(buffer));
    }
    for index in 0..2 {
        let takes = library
            .kernel(name)
            .expect(name)
            .arguments
            .iter()
            .any(|a| a.kind == ArgumentKind::Threadgroup(index));
        dispatch = if takes { dispatch.threadgroup_memory(index, 512) } else { dispatch };
    }
    let outcome = dispatch.run().expect(name);
    assert!(outcome.is_clean(), "{name}: {:?}", outcome.reports);
    buffers[out].clone()
}

fn bits(values: &[f32]) -> Vec<i32> {
    values.iter().map(|value| value.to_bits() as i32).collect()
}

#[test]
fn every_construct_computes_what_metal_computes() {
    let Some((compiler, source)) = constructs() else { return };
    let library = compiler.compile(&source).expect("compiles");

    let numbers: Vec<i32> = (0..32).collect();
    let reversed: Vec<i32> = (0..32).rev().collect();
    assert_eq!(run(&library, "reverse_int", 32, &mut [numbers.clone(), vec![0; 32]], 1), reversed);
    let floats: Vec<f32> = (0..32).map(|i| i as f32 * 0.25).collect();
    let backwards: Vec<f32> = floats.iter().rev().copied().collect();
    assert_eq!(run(&library, "reverse_float", 32, &mut [bits(&floats), vec![0; 32]], 1), bits(&backwards));

    let long: Vec<i32> = (0..64).collect();
    let rotated: Vec<i32> = (0..64).map(|i| (i + 1) % 64 + 1).collect();
    assert_eq!(run(&library, "rotate_2", 64, &mut [long, vec![0; 64]], 1), rotated);

    let (input, fixed) = (bits(&[3.0]), bits(&[5.0]));
    assert_eq!(
        run(&library, "overloads", 1, &mut [input, fixed, vec![0]], 2),
        bits(&[3.0 + 3.0 + 5.0 + 6.0 + 6.0 + 0.5])
    );

    let literals = run(&library, "literals", 1, &mut [vec![0; 5]], 0);
    let third = 0.333_251_95; // 1/3 rounded to half
    assert_eq!(literals, bits(&[4.0, 4.0, 8.0 + 100.0 + 0.5 + 1.0, 1.5, third]));

    assert_eq!(run(&library, "macros", 32, &mut [vec![0; 32]], 0), [6 + 6 + 127 + 32 + 8 + 100; 32]);

    // Params: count, gain, then twice { weight, color } of 16 bytes.
    let params = |count: i32, gain: f32, weight: i32, blue: f32| {
        let floats = bits(&[gain, blue]);
        vec![count, floats[0], weight, 0, 0, 0, 0, 0, 0, floats[1]]
    };
    let mut buffers = [params(0, 0.5, 0, 0.0), params(0, 0.0, 0, 0.25), params(7, 0.0, 9, 0.0), vec![0; 2]];
    assert_eq!(run(&library, "structs", 1, &mut buffers, 3), bits(&[0.5 + 0.25 + 7.0 + 9.0, 16.0]));
}

#[test]
fn function_constants_reach_kernels_and_what_is_derived_from_them() {
    let Some((compiler, source)) = constructs() else { return };
    let library = compiler.compile(&source).expect("compiles");
    let device = Device::with_workers(1);
    let mut out = [0_i32; 4];
    let dispatch = device.dispatch(&library, "uses_constants").expect("known").threads([4, 1, 1], [4, 1, 1]);
    let dispatch = dispatch.constant("wide", true).constant(1, 21_i32).constant("scale", 2.0_f32);
    dispatch.buffer_mut(0, as_bytes_mut(&mut out)).run().expect("runs");
    assert_eq!(out, [1052, 1062, 1072, 1082]);

    let mut out = [7_i32; 2];
    let dispatch = device.dispatch(&library, "undefined_constants").expect("known").threads([1; 3], [1; 3]);
    dispatch.buffer_mut(0, as_bytes_mut(&mut out)).run().expect("runs");
    assert_eq!(out, [0, -1]);

    let (mut out, plus, extra) = ([0_i32], [5_i32], [30_i32]);
    for (wide, expected) in [(false, 5), (true, 35)] {
        let dispatch = device.dispatch(&library, "optional_buffer").expect("known").threads([1; 3], [1; 3]);
        let dispatch = dispatch.constant("wide", wide).buffer(1, as_bytes(&plus));
        let dispatch = if wide { dispatch.buffer(5, as_bytes(&extra)) } else { dispatch };
        dispatch.buffer_mut(0, as_bytes_mut(&mut out)).run().expect("runs");
        assert_eq!(out, [expected]);
    }

    let mut out = [0_i32];
    let dispatch = device.dispatch(&library, "namespaced").expect("known").threads([1; 3], [1; 3]);
    dispatch.constant("base", 4_i32).buffer_mut(0, as_bytes_mut(&mut out)).run().expect("runs");
    assert_eq!(out, [6]);

    let mut counter = [0_u32];
    let dispatch = device.dispatch(&library, "qualifiers").expect("known").threads([4, 2, 1], [2, 2, 1]);
    dispatch.buffer_mut(0, as_bytes_mut(&mut counter)).run().expect("runs");
    assert_eq!(counter, [(0..8).sum::<u32>() + 4]);
}

#[test]
fn the_cache_sees_changes_of_included_files() {
    let Some(compiler) = crate::front::compiler() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let header = folder.path().join("value.h");
    let text = "#include \"value.h\"\nkernel void f(device int* out) { out[0] = VALUE; }";
    let source = Source::new(folder.path().join("k.metal"), text);
    for value in [1, 2, 1] {
        std::fs::write(&header, format!("#define VALUE {value}\n")).expect("written");
        let library = compiler.compile(&source).expect("compiles");
        assert_eq!(run(&library, "f", 1, &mut [vec![0]], 0), [value]);
    }
}

#[test]
fn a_host_name_of_two_kernels_is_the_firsts_and_the_second_is_told() {
    let found = cpp("template <typename T> kernel void f(device T* a) {}\n\
         template [[host_name(\"one\")]] kernel void f<float>(device float*);\n\
         template [[host_name(\"one\")]] kernel void f<int>(device int*);\n");
    assert_eq!(found.kernels.len(), 1);
    assert_eq!(found.kernels[0].function, "f < float >");
    let [warning] = &found.warnings[..] else { panic!("{:?}", found.warnings) };
    let text = warning.to_string();
    assert!(text.contains("k.metal:3") && text.contains("`one`") && text.contains("f < int >"), "{text}");
}
