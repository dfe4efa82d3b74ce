//! What kernels of other people use: names of their own, assertions and messages, and reports that lead to the mistake.

use softmetal::{Compiler, Device, Flavour, Kind, Level, Library, Outcome, Source, as_bytes, as_bytes_mut};

const BOTH: [Flavour; 2] = [Flavour::Plain, Flavour::Checked];

fn text(body: &str, flavour: Flavour) -> Library {
    let source = format!("#include <metal_stdlib>\nusing namespace metal;\n{body}");
    let compiler = Compiler::new().expect("clang 17 or newer is needed").flavour(flavour);
    compiler.compile(&Source::new("other.metal", source)).unwrap_or_else(|e| panic!("{e}"))
}

/// Eight threads on 0, 1, 2, …
fn run(library: &Library, kernel: &str) -> (Outcome, [f32; 8]) {
    let (x, mut y) = (std::array::from_fn::<f32, 8, _>(|i| i as f32), [0.0; 8]);
    let device = Device::with_workers(1);
    let dispatch = device.dispatch(library, kernel).unwrap().buffer(0, as_bytes(&x));
    let dispatch = dispatch.buffer_mut(1, as_bytes_mut(&mut y)).threads([8, 1, 1], [8, 1, 1]);
    (dispatch.run().unwrap(), y)
}

const HEAD: &str = "(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]])";

const HEAD_TABLE: &str = "(device float* y [[buffer(1)]], visible_function_table<float(float)> t [[buffer(2)]], uint i [[thread_position_in_grid]])";

#[test]
fn functions_may_have_names_of_the_library_and_kernels_those_of_functions() {
    let body = format!(
        "template <typename T> T forward(T x) {{ return x + 1; }}
        template <typename T> T move(T x) {{ return 2 * x; }}
        template <typename T> void swap(thread T& a, thread T& b) {{ T t = a; a = 10 * b; b = 10 * t; }}
        struct layer {{ float w; float forward(float x) const {{ return w * x; }} }};
        float forward(thread const layer& l, float x) {{ return l.forward(x); }}
        kernel void own{HEAD} {{
            float a = x[i], b = 1;
            swap(a, b);
            y[i] = a + b + move(forward(x[i])) + forward<float>(0) + forward(layer{{3}}, x[i]);
        }}
        kernel void library{HEAD} {{
            float a = x[i], b = 1;
            metal::swap(a, b);
            y[i] = a - metal::move(b) + metal::forward<float>(b);
        }}
        float both(float x) {{ return x + 0.5f; }}
        kernel void both{HEAD} {{ y[i] = both(x[i]); }}
        namespace inner {{
        int both(int x) {{ return x; }}
        kernel void both(constant float (&x)[8] [[buffer(0)]], device float* y [[buffer(1)]], uint i [[thread_position_in_grid]]) {{
            y[i] = x[i] - both(1);
        }}
        }}"
    );
    for flavour in BOTH {
        let library = text(&body, flavour);
        let expect = |kernel: &str, value: fn(f32) -> f32| {
            let (outcome, y) = run(&library, kernel);
            assert!(outcome.is_clean(), "{:?}", outcome.reports);
            assert_eq!(y, std::array::from_fn(|i| value(i as f32)), "{kernel}");
        };
        expect("own", |x| 10.0 + 10.0 * x + 2.0 * (x + 1.0) + 1.0 + 3.0 * x);
        expect("library", |_| 1.0);
        expect("both", |x| x + 0.5);
    }
}

#[test]
fn sequences_of_integers_and_wide_scopes_are_known() {
    let body = format!(
        "template <int... I> float sum(device const float* x, integer_sequence<int, I...>) {{ return (x[I] + ...); }}
        template <size_t... I> float last(device const float* x, index_sequence<I...> s) {{ return x[s.size() - 1]; }}
        kernel void k{HEAD} {{
            y[i] = sum(x, metal::make_integer_sequence<int, 4>{{}}) + last(x, make_index_sequence<3>{{}})
                 + last(x, metal::index_sequence_for<float, int>{{}});
            atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_system);
            threadgroup_barrier(mem_flags::mem_device, thread_scope_system);
            simdgroup_barrier(mem_flags::mem_device, thread_scope_simdgroup);
        }}"
    );
    for flavour in BOTH {
        let (outcome, y) = run(&text(&body, flavour), "k");
        assert!(outcome.is_clean(), "{:?}", outcome.reports);
        assert_eq!(y, [9.0; 8]);
    }
}

#[test]
fn an_assertion_that_fails_is_reported_where_it_stands_and_ends_its_thread() {
    let body = format!(
        "#include <metal_assert>
        kernel void k{HEAD} {{
            y[i] = 1;
            assert(x[i] < 6 && \"too large\");
            y[i] = 2;
        }}"
    );
    for flavour in BOTH {
        let (outcome, y) = run(&text(&body, flavour), "k");
        let report = &outcome.reports[0];
        assert_eq!((report.kind, report.at.line, report.thread), (Kind::Assertion, 6, [6, 0, 0]));
        assert!(report.explanation.contains("x[i] < 6 && \"too large\""), "{}", report.explanation);
        assert_eq!((y, outcome.stats.stopped), ([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.0, 1.0], 2));
    }
    let compiler = Compiler::new().unwrap().define("NDEBUG");
    let source =
        Source::new("other.metal", format!("#include <metal_stdlib>\nusing namespace metal;\n{body}"));
    let (outcome, y) = run(&compiler.compile(&source).unwrap(), "k");
    assert!(outcome.is_clean() && y == [2.0; 8], "{:?}", outcome.reports);
}

#[test]
fn messages_come_with_their_values_and_say_who_sent_them() {
    let body = format!(
        "#include <metal_logging>
        constant os_log mine(\"a.b\", \"c\");
        kernel void k{HEAD} {{
            if (i == 3) os_log_default.log(\"x %.1f of %u, %d\", x[i], i, -5);
            if (i == 5) mine.log_error(\"%v2f %hhd\", float2(1.5, -2), (char)7);
            y[i] = 1;
        }}
        kernel void many{HEAD} {{
            for (int n = 0; n < 1000; n++) os_log_default.log_debug(\"%d\", n);
        }}"
    );
    for flavour in BOTH {
        let library = text(&body, flavour);
        let (outcome, y) = run(&library, "k");
        assert!(outcome.is_clean() && y == [1.0; 8], "{:?}", outcome.reports);
        let logs: Vec<_> =
            outcome.logs.iter().map(|log| (log.level, log.text.as_str(), log.thread[0])).collect();
        let expected = [(Level::Default, "x 3.0 of 3, -5", 3), (Level::Error, "1.500000,-2.000000 7", 5)];
        assert_eq!(logs, expected);
        let (outcome, _) = run(&library, "many");
        assert_eq!(outcome.logs.len() as u64 + outcome.stats.lost_messages, 8000);
        assert!(outcome.logs.len() >= 1000);
    }
}

#[test]
fn a_report_leads_from_the_access_to_the_call() {
    let body = "#define TAKE(p, i) ((p)[i] + \\
    (p)[(i) + 100])
METAL_FUNC float inner(device const float* x, uint i) {
    return x[i + 50];
}
METAL_FUNC float outer(device const float* x, uint i) {
    return 1 +
        inner(x, i);
}
kernel void inlined(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {
    y[i] = outer(x, i);
}
kernel void macro(device const float* x, device float* y, uint i [[thread_position_in_grid]]) {
    const float a = 1;
    y[i] = a + TAKE(x, i);
}";
    let library = text(body, Flavour::Checked);
    let (outcome, _) = run(&library, "inlined");
    let report = &outcome.reports[0];
    let lines: Vec<u32> = report.callers.iter().map(|at| at.line).collect();
    assert_eq!((report.at.line, lines), (6, vec![10, 13]), "{report}");
    assert!(report.to_string().contains("called at other.metal:10"), "{report}");
    let (outcome, _) = run(&library, "macro");
    assert_eq!(
        (outcome.reports[0].at.line, outcome.reports[0].callers.len()),
        (17, 0),
        "{}",
        outcome.reports[0]
    );
}

#[test]
fn a_crash_names_what_is_unbound_and_the_other_threads_go_on_if_asked_to() {
    let body = "kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], device float* bias [[buffer(3)]],
                          uint i [[thread_position_in_grid]]) {
            y[i] = 1;
            if (i % 4 == 1) y[i] = bias[i];
            threadgroup_barrier(mem_flags::mem_none);
            y[i] += 1;
        }";
    let library = text(body, Flavour::Plain);
    let (outcome, _) = run(&library, "k");
    let report = &outcome.reports[0];
    assert_eq!((report.kind, report.at.line), (Kind::Crash, 6));
    assert!(report.explanation.contains("nothing is bound to buffer 3 (`bias`)"), "{}", report.explanation);
    let (x, mut y) = ([0.0_f32; 8], [0.0_f32; 8]);
    let device = Device::new();
    let dispatch = device.dispatch(&library, "k").unwrap().buffer(0, as_bytes(&x));
    let dispatch = dispatch.buffer_mut(1, as_bytes_mut(&mut y)).threads([8, 1, 1], [8, 1, 1]);
    let outcome = dispatch.keep_going().run().unwrap();
    assert_eq!((outcome.reports.len(), outcome.stats.stopped), (1, 2), "{:?}", outcome.reports);
    assert_eq!(y, [2.0, 1.0, 2.0, 2.0, 2.0, 1.0, 2.0, 2.0]);
}

#[test]
fn threadgroup_memory_may_have_no_bytes_if_nobody_uses_them() {
    let body = "kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                      threadgroup float* t [[threadgroup(0)]], uint i [[thread_position_in_grid]]) {
            if (y[0] == 7) t[0] = x[i];
            y[i] = 1;
        }";
    for flavour in BOTH {
        let library = text(body, flavour);
        for first in [0.0, 7.0] {
            if first == 7.0 && flavour == Flavour::Plain {
                continue;
            }
            let (x, mut y) = ([0.0_f32; 1], [first; 1]);
            let device = Device::new();
            let dispatch = device.dispatch(&library, "k").unwrap().buffer(0, as_bytes(&x));
            let dispatch = dispatch.buffer_mut(1, as_bytes_mut(&mut y)).threadgroup_memory(0, 0);
            let outcome = dispatch.run().unwrap();
            let kinds: Vec<Kind> = outcome.reports.iter().map(|r| r.kind).collect();
            assert_eq!(kinds, if first == 7.0 { vec![Kind::OutOfBounds] } else { vec![] });
        }
    }
}

#[test]
fn tables_hold_the_functions_that_the_host_puts_there() {
    let body = format!(
        "[[visible]] float twice(float x) {{ return 2 * x; }}
        namespace more {{ [[visible]] float negative(float x) {{ return -x; }} }}
        float hidden(float x) {{ return 0; }}
        using table = visible_function_table<float(float)>;
        kernel void k(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], table t [[buffer(2)]],
                      visible_function_table<float(float)> none [[buffer(3)]], uint i [[thread_position_in_grid]]) {{
            y[i] = t[i % t.size()](x[i]) + (none.empty() ? 100 : 0);
        }}
        kernel void past{HEAD_TABLE} {{ y[i] = t[i + 2] == nullptr ? 1 : 2; }}"
    );
    for flavour in BOTH {
        let library = text(&body, flavour);
        assert_eq!(library.functions().collect::<Vec<_>>(), ["twice", "negative"]);
        let (x, mut y) = ([1.0_f32, 2.0, 3.0, 4.0], [0.0_f32; 4]);
        let device = Device::new();
        let dispatch = |kernel| device.dispatch(&library, kernel).unwrap().buffer(0, as_bytes(&x));
        let error = dispatch("k").functions(2, &["hidden"]).unwrap_err().to_string();
        assert!(error.contains("`hidden`") && error.contains("twice, negative"), "{error}");
        let table = dispatch("k").functions(2, &["twice", "negative"]).unwrap().functions(3, &[]).unwrap();
        let outcome = table.buffer_mut(1, as_bytes_mut(&mut y)).threads([4, 1, 1], [4, 1, 1]).run().unwrap();
        assert!(outcome.is_clean(), "{:?}", outcome.reports);
        assert_eq!(y, [102.0, 98.0, 106.0, 96.0]);
        if flavour == Flavour::Checked {
            let table = dispatch("past").functions(2, &["twice", "negative"]).unwrap();
            let outcome =
                table.buffer_mut(1, as_bytes_mut(&mut y)).threads([4, 1, 1], [4, 1, 1]).run().unwrap();
            assert_eq!((outcome.reports[0].kind, outcome.reports[0].buffer), (Kind::OutOfBounds, Some(2)));
        }
    }
}

#[test]
fn functions_of_one_name_are_told_apart_by_what_they_are_given_to() {
    let body = format!(
        "float twice(float x) {{ return 2 * x; }}
        half twice(half x) {{ return 2 * x; }}
        float apply(float (&f)(float), float x) {{ return f(x); }}
        template <typename F> float call(F f, float x) {{ return f(x); }}
        kernel void k{HEAD} {{
            float (*p)(float) = twice;
            y[i] = apply(twice, x[i]) + call<float (*)(float)>(twice, x[i]) + p(x[i]) + call(static_cast<float (*)(float)>(&twice), x[i]);
        }}"
    );
    for flavour in BOTH {
        let (outcome, y) = run(&text(&body, flavour), "k");
        assert!(outcome.is_clean(), "{:?}", outcome.reports);
        assert_eq!(y, std::array::from_fn(|i| 8.0 * i as f32));
    }
}

#[test]
fn an_access_inside_a_macro_is_reported_where_the_macro_stands() {
    let body = format!(
        "#define AT(p, i) \\\n    p[i]\n#define PUT(p, i, v) AT(p, i) = v\nkernel void k{HEAD} {{\n    PUT(y, i + 8, AT(x, i));\n}}"
    );
    let (outcome, _) = run(&text(&body, Flavour::Checked), "k");
    let found: Vec<_> = outcome.reports.iter().map(|report| (report.kind, report.at.line)).collect();
    assert_eq!(found, [(Kind::OutOfBounds, 7)], "{:?}", outcome.reports);
}
