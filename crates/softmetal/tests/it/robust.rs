//! Bad sources are errors: no panic, no hang, and a place in the `.metal` file.

use std::time::{Duration, Instant};

use crate::front::Random;
use softmetal::{
    Error, Source,
    rewrite::{Selection, Target, rewrite},
};

const CONSTRUCTS: &str = include_str!("../kernels/constructs.metal");

/// A small source that uses most of the language, for mutations that are compiled.
const SMALL: &str = r#"#include <metal_stdlib>
using namespace metal;
constant bool flag [[function_constant(0)]];
struct Params { uint n; float gain; };
template <typename T, int N>
kernel void scale(device const T* in [[buffer(0)]], device T* out [[buffer(1)]], constant Params& p [[buffer(2)]],
                  threadgroup float* scratch [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                  uint lane [[thread_index_in_simdgroup]]) {
    threadgroup T shared[N];
    shared[lane] = in[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (flag) { scratch[lane] = simd_sum(float(shared[N - 1 - lane])); }
    out[i] = T(float(shared[lane]) * p.gain * 0.5) + T(p.n);
}
template [[host_name("scale_float")]] kernel void scale<float, 32>(device const float*, device float*, constant Params&, threadgroup float*, uint, uint);
"#;

/// The pieces a mutation moves about.
fn tokens(source: &str) -> Vec<&str> {
    let (mut found, mut start) = (Vec::new(), 0);
    let class = |c: char| match c {
        _ if c.is_alphanumeric() || c == '_' => 0,
        _ if c.is_whitespace() => 1,
        _ => 2,
    };
    let characters: Vec<(usize, char)> = source.char_indices().collect();
    for pair in characters.windows(2) {
        if class(pair[0].1) != class(pair[1].1) || class(pair[0].1) == 2 {
            found.push(&source[start..pair[1].0]);
            start = pair[1].0;
        }
    }
    found.push(&source[start..]);
    found
}

/// One to three small accidents.
fn mutate(source: &str, random: &mut Random) -> String {
    const ODD: [&str; 22] = [
        "(",
        ")",
        "{",
        "}",
        "[[",
        "]]",
        "<",
        ">",
        ";",
        "template",
        "kernel",
        "threadgroup",
        "\"",
        "'",
        "/*",
        "#",
        "\u{fffd}\u{1f600}",
        "[[buffer(",
        "struct",
        "operator",
        "::",
        "\0",
    ];
    let mut pieces: Vec<String> = tokens(source).into_iter().map(str::to_owned).collect();
    for _ in 0..=random.below(3) {
        let at = random.below(pieces.len());
        match random.below(6) {
            0 => drop(pieces.remove(at)),
            1 => pieces.insert(at, pieces[random.below(pieces.len())].clone()),
            2 => pieces.insert(at, ODD[random.below(ODD.len())].to_owned()),
            3 => {
                let other = random.below(pieces.len());
                pieces.swap(at, other);
            }
            4 => pieces.truncate(at.max(1)),
            _ => ODD[random.below(ODD.len())].clone_into(&mut pieces[at]),
        }
    }
    pieces.concat()
}

#[test]
fn the_rewriter_takes_any_text() {
    let mut random = Random(1);
    let begun = Instant::now();
    for case in 0..3000 {
        let source = mutate(if case % 2 == 0 { CONSTRUCTS } else { SMALL }, &mut random);
        let preprocessed = format!("# 1 \"k.metal\"\n{source}");
        for target in [Target::Cpu, Target::Reflection, Target::Ptx { constants: [].into() }] {
            if let Err(error) = rewrite(&preprocessed, "", &target, &Selection::All) {
                assert!(error.to_string().starts_with("k.metal:"), "case {case}: {error}");
            }
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(120), "9000 texts took {:?}", begun.elapsed());
}

#[test]
fn two_hundred_mutated_sources_neither_panic_nor_hang() {
    let Some(compiler) = crate::front::compiler() else { return };
    let compiler = compiler.time_limit(Duration::from_secs(60));
    let refused = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for half in 0..2 {
            let (compiler, refused) = (&compiler, &refused);
            scope.spawn(move || {
                let mut random = Random(100 + half);
                for case in 0..100 {
                    let source = Source::new("mutated.metal", mutate(SMALL, &mut random));
                    match compiler.compile(&source) {
                        Ok(_) => {}
                        Err(Error::Compile { diagnostics }) => {
                            assert!(!diagnostics.is_empty(), "case {case}");
                            refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        Err(Error::Syntax { at, .. }) => {
                            assert_eq!(at.file, "mutated.metal", "case {case}");
                            refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        }
                        Err(other) => {
                            panic!("case {case} is neither right nor refused: {other}\n{}", source.text)
                        }
                    }
                }
            });
        }
    });
    let refused = refused.into_inner();
    assert!(refused > 100, "only {refused} of 200 mutations were refused: they are too tame");
}

#[test]
fn compile_errors_point_at_the_metal_line() {
    let Some(compiler) = crate::front::compiler() else { return };
    let head = "#include <metal_stdlib>\nusing namespace metal;\n";
    let cases = [
        // An undeclared name after a qualifier that the rewriter removes.
        (
            "kernel void f(device float* x [[buffer(0)]]) {\n    x[0] = missing;\n}",
            (4, 12),
            "undeclared identifier 'missing'",
        ),
        // After a threadgroup variable on the same line, and with comments and spaces before it.
        (
            "kernel void f(device float* x) { threadgroup float t[4]; /* c */   x[0] =   t[nowhere]; }",
            (3, 79),
            "'nowhere'",
        ),
        (
            "float g(float x) { return x; }\nkernel void f(device float* x) {\n  x[0] = g(x, 1.0);\n}",
            (5, 10),
            "no matching function",
        ),
        // In a body that only an instantiation compiles.
        (
            "template <typename T> kernel void f(device T* x) {\n  T y = x[0].none;\n}\ntemplate [[host_name(\"f\")]] kernel void f<float>(device float*);",
            (4, 13),
            "float",
        ),
        // Inside our own headers, because of the user's call.
        ("kernel void f(device float* x) {\n  x[0] = simd_sum(\"text\");\n}", (4, 0), ""),
        ("kernel void f(device float* x) {\n  x[0] = 1.0\n}", (4, 0), "';'"),
        (
            "constant uint n [[function_constant(0)]];\nkernel void f(device float* x) { x[undefined_name] = n; }",
            (4, 36),
            "undefined_name",
        ),
    ];
    for (text, (line, column), message) in cases {
        let source = Source::new("wrong.metal", format!("{head}{text}"));
        let Err(error) = compiler.compile(&source) else { panic!("accepted:\n{text}") };
        let Error::Compile { diagnostics } = &error else { panic!("{error}") };
        let at = diagnostics[0].at.as_ref().expect("a place");
        assert_eq!((at.file.as_str(), at.line), ("wrong.metal", line), "{error}\n{text}");
        assert!(column == 0 || at.column == column, "{error}\n{text}");
        assert!(diagnostics[0].message.contains(message), "{error}\n{text}");
    }
}

#[test]
fn errors_in_included_files_name_them() {
    let Some(compiler) = crate::front::compiler() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("part.h"), "\ninline int broken() { return what; }\n")
        .expect("written");
    let source =
        Source::new("main.metal", "#include <part.h>\nkernel void f(device int* x) { x[0] = broken(); }");
    let error = compiler.clone().include(folder.path()).compile(&source).expect_err("broken").to_string();
    assert!(error.contains("part.h:2:30: error: use of undeclared identifier 'what'"), "{error}");
    let error = compiler.compile(&source).expect_err("not found").to_string();
    assert!(error.starts_with("main.metal:1:10: error: 'part.h' file not found"), "{error}");
}

#[test]
fn a_compiler_that_takes_too_long_is_stopped() {
    let Some(compiler) = crate::front::compiler() else { return };
    let text = "template <int N> struct slow { static constexpr int value = slow<N - 1>::value + slow<N - 2>::value; };\n\
                constexpr int spin(int n) { int s = 0; for (int i = 0; i < 1000; i++) for (int j = 0; j < 1000; j++) s ^= i * j + n; return s; }\n\
                template <int N> constexpr int many() { return spin(N) + many<N - 1>(); }\n\
                template <> constexpr int many<0>() { return 0; }\n\
                kernel void f(device int* x) { constexpr int v = many<500>(); x[0] = v; }";
    let source = Source::new("slow.metal", text);
    let begun = Instant::now();
    let done = compiler.time_limit(Duration::from_millis(300)).compile(&source);
    assert!(done.is_err());
    assert!(begun.elapsed() < Duration::from_secs(20), "took {:?}", begun.elapsed());
}
