//! Every example runs, on every device that any machine has, and says what it should.
#![allow(clippy::duplicate_mod)] // Each example brings the module they share.

use metallic::Device;

#[allow(dead_code)]
#[path = "../../examples/attention.rs"]
mod attention;
#[allow(dead_code)]
#[path = "../../examples/constrain.rs"]
mod constrain;
#[allow(dead_code)]
#[path = "../../examples/device_info.rs"]
mod device_info;
#[allow(dead_code)]
#[path = "../../examples/elementwise.rs"]
mod elementwise;
#[cfg(feature = "constrain")]
#[allow(dead_code)]
#[path = "../../examples/json.rs"]
mod json;
#[allow(dead_code)]
#[path = "../../examples/load_and_generate.rs"]
mod load_and_generate;
#[allow(dead_code)]
#[path = "../../examples/matmul.rs"]
mod matmul;
#[allow(dead_code)]
#[path = "../../examples/stream.rs"]
mod stream;
#[allow(dead_code)]
#[path = "../../examples/tools.rs"]
mod tools;

/// What an example prints with these arguments.
macro_rules! printed {
    ($example:ident, $($arg:expr),*) => {{
        let args: Vec<String> = vec![$($arg.to_string()),*];
        let mut out = Vec::new();
        $example::run(args.into_iter(), &mut out).map(|()| String::from_utf8(out).unwrap())
    }};
}

/// The CPU, the reference, and the Metal kernels in software where there is a clang.
fn devices() -> impl Iterator<Item = &'static str> {
    let soft = cfg!(feature = "soft").then(|| metallic_testkit::needed(Device::Soft.open(1))).flatten();
    ["cpu", "reference"].into_iter().chain(soft.map(|_| "soft"))
}

fn assert_says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
}

#[test]
fn elementwise_shows_operators_views_and_an_error() {
    for device in devices() {
        let text = printed!(elementwise, "--device", device).unwrap();
        assert_says(
            &text,
            &[
                "= [4.5, 10.0, 15.5, 6.0, 11.5, 17.0]",
                "1 / x       = [1.0, 0.5, 0.33333334, 0.25, 0.2, 0.16666667]",
                "[2.0, 5.0, 3.0, 6.0], seen as F32 [2, 2] with strides [1, 3] from 1",
                "error: input 1 of `binary` is F16 [1, 1025]",
                &format!("ran on `{device}`"),
            ],
        );
    }
}

#[test]
fn matmul_shows_what_precision_costs() {
    for device in devices() {
        let text = printed!(matmul, "--device", device).unwrap();
        assert_says(
            &text,
            &["a · aᵀ = [2, 2] [14.0, 32.0, 32.0, 77.0]", "[4, 33, 256] · [256, 96] = [4, 33, 96]"],
        );
        let off = |name: &str| -> f32 {
            let line = text.lines().find(|line| line.starts_with(&format!("in {name} "))).unwrap();
            let number = line.split("at most ").nth(1).unwrap().split([',', ' ']).next().unwrap();
            number.parse().unwrap()
        };
        assert!(off("F16") > 0.0 && off("F16") < 0.02, "{text}");
        assert!(off("Q8_0") > 0.0 && off("Q8_0") < off("Q4_0") && off("Q4_0") < 0.5, "{text}");
    }
}

#[test]
fn attention_is_the_same_by_hand_and_in_one_pass() {
    for device in devices() {
        let text = printed!(attention, "--device", device).unwrap();
        let off = text.split("differ by ").nth(1).unwrap().split_whitespace().next().unwrap();
        assert!(off.parse::<f32>().unwrap() < 1e-5, "{text}");
        assert_says(
            &text,
            &[
                "causal: the first token sees itself alone: true",
                "window of 4: the first token sees itself alone: true",
                "queries that see nothing give zeros: true",
            ],
        );
    }
}

#[test]
fn device_info_proves_where_the_work_is_done() {
    let text = printed!(device_info, "--device", "cpu").unwrap();
    assert_says(
        &text,
        &["kind    cpu", "128×128 product: 1 dispatch(es)", "131072 bytes read, 65536 written"],
    );
    let mean: f32 = text.split("mean ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    assert!((mean - 32.0).abs() < 1.5, "{text}");
    assert_says(&printed!(device_info,).unwrap(), &["kind    "]);
}

#[test]
fn load_and_generate_continues_a_text() {
    let model = metallic_testkit::data::own().join("stories260K/stories260K-f32.gguf");
    for device in devices() {
        let text = printed!(load_and_generate, model.display(), "--device", device).unwrap();
        let loaded = format!("loaded onto `{device}`");
        assert_says(&text, &[&loaded, "Once upon a time, there was a little girl named Lily."]);
    }
}

#[test]
fn constrain_tells_a_story_without_a_letter() {
    let model = metallic_testkit::data::own().join("stories260K/stories260K-f32.gguf");
    for device in devices() {
        let text = printed!(constrain, model.display(), "e", "--device", device).unwrap();
        let story = text.lines().find_map(|line| line.strip_prefix("without `e`: ")).unwrap();
        assert!(story.len() > 30 && !story.contains(['e', 'E']), "{text}");
        assert_says(&text, &["likely next: \",\" 96."]);
    }
    let error = printed!(constrain,).unwrap_err().to_string();
    assert!(error.contains("usage: constrain MODEL"), "{error}");
}

#[cfg(feature = "constrain")]
#[test]
fn json_is_valid_by_its_schema_and_says_what_that_costs() {
    let model = metallic_testkit::data::own().join("stories260K/stories260K-f32.gguf");
    let text = printed!(json, model.display(), 1, "--device", "cpu").unwrap();
    let (answer, cost) = text.trim_end().rsplit_once('\n').unwrap();
    let value: serde_json::Value = serde_json::from_str(answer).unwrap();
    assert!(value["biography"].as_str().is_some_and(|text| text.chars().count() >= 80), "{text}");
    assert_says(cost, &["with the schema ", " tok/s, without ", " %"]);
    let error = printed!(json,).unwrap_err().to_string();
    assert!(error.contains("usage: json MODEL"), "{error}");
}

#[test]
fn stream_awaits_two_answers_on_one_thread() {
    let model = metallic_testkit::data::own().join("stories260K/stories260K-f32.gguf");
    let text = printed!(stream, model.display(), "--device", "cpu").unwrap();
    assert_says(&text, &["Once upon a time, there was a little girl named Lily.", "The dog "]);
}

#[test]
fn tools_shows_what_the_model_reads() {
    let folder = crate::llm::folder_with_templates("example");
    let text = printed!(tools, folder.display(), "--device", "cpu").unwrap();
    assert_says(&text, &["tools: weather", "user: Do I need an umbrella in Oslo?", "thinks: no", "text: "]);
}

#[test]
fn arguments_that_are_not_understood_are_refused_by_name() {
    let error = printed!(elementwise, "--device").unwrap_err().to_string();
    assert!(error.contains("`--device` needs a name"), "{error}");
    let error = printed!(matmul, "--device", "abacus").unwrap_err().to_string();
    assert!(error.contains("`abacus`"), "{error}");
    let error = printed!(attention, "--fast").unwrap_err().to_string();
    assert!(error.contains("`--fast`"), "{error}");
    let error = printed!(load_and_generate,).unwrap_err().to_string();
    assert!(error.contains("usage: load_and_generate MODEL"), "{error}");
    let error = printed!(load_and_generate, "no-such-file.gguf").unwrap_err().to_string();
    assert!(error.contains("no-such-file.gguf"), "{error}");
}
