//! Chat templates, against what Python's jinja2 makes of them.

use std::path::{Path, PathBuf};

use metallic::text::{ChatTemplate, Message, TemplateSources, TextError};
use metallic_formats::{Metadata, Value as Meta};
use serde_json::{Map, Value, json};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text/templates").join(name)
}

fn read(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

#[test]
fn well_known_templates_render_as_jinja2_renders_them() {
    let file = read("chat_template_cases.json");
    let messages: Vec<Message> = serde_json::from_value(file["conversation"].clone()).unwrap();
    let mut checked = 0;
    for case in file["cases"].as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap_or_default();
        let template = ChatTemplate::new(text("template_str"), text("bos_token"), text("eos_token")).unwrap();
        if case["jinja2_matches"] != true {
            continue;
        }
        let jinja = text("expected_output_jinja");
        let expected = if jinja.is_empty() { text("expected_output") } else { jinja };
        let extra: Vec<Message> =
            serde_json::from_value(case["extra_conversation"].clone()).unwrap_or_default();
        let messages = [&messages[..], &extra].concat();
        assert_eq!(template.render(&messages, None, true).unwrap(), expected, "{}", text("name"));
        checked += 1;
    }
    assert!(checked >= 20, "only {checked} cases");
}

#[test]
fn real_templates_with_tools_and_thoughts_render_as_python_renders_them() {
    let file = read("python_cases.json");
    let (mut rendered, mut refused) = (0, 0);
    for case in file["cases"].as_array().unwrap() {
        let name = case["template"].as_str().unwrap();
        let source = std::fs::read_to_string(data(name)).unwrap();
        let template = ChatTemplate::new(&source, "<s>", "</s>").unwrap();
        let conversation = &file["conversations"][case["conversation"].as_str().unwrap()];
        let tools = Some(&conversation["tools"]).filter(|t| !t.is_null());
        let prompt = case["add_generation_prompt"] == true;
        let variables = case["variables"].as_object().unwrap();
        let result = template.render_values(&conversation["messages"], tools, prompt, variables);
        if let Some(expected) = case.get("expected") {
            assert_eq!(&result.unwrap(), expected, "{name} {}", case["conversation"]);
            rendered += 1;
            continue;
        }
        let error = result.unwrap_err();
        if let Some(raised) = case["error"].as_str().unwrap().strip_prefix("TemplateError: ") {
            assert!(
                matches!(&error, TextError::TemplateRaised { message, line } if message == raised && *line > 0),
                "{name} {}: {error:?}, expected {raised}",
                case["conversation"]
            );
            refused += 1;
        }
    }
    assert!(rendered > 100 && refused > 5, "{rendered} rendered, {refused} refused");
}

#[test]
fn every_template_of_the_shared_folder_compiles() {
    let root = std::env::var_os("METALLIC_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared"), PathBuf::from);
    let Ok(folder) = std::fs::read_dir(root.join("templates")) else {
        eprintln!("NOT RUN: {} has no templates; set METALLIC_SHARED", root.display());
        return;
    };
    let mut count = 0;
    for path in folder.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "jinja")) {
        let source = std::fs::read_to_string(&path).unwrap();
        let template =
            ChatTemplate::new(&source, "<s>", "</s>").unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let messages = [Message::user("Hello"), Message::assistant("Hi!"), Message::user("Who are you?")];
        match template.render(&messages, None, true) {
            Ok(text) => assert!(text.contains("Who are you?"), "{}: {text}", path.display()),
            Err(error) => eprintln!("{}: {error}", path.display()),
        }
        count += 1;
    }
    assert!(count > 60, "only {count} templates");
}

#[test]
fn what_goes_wrong_is_said_with_its_line() {
    let render = |source: &str| {
        ChatTemplate::new(source, "", "").and_then(|t| t.render(&[Message::user("x")], None, true))
    };
    let error =
        render("line one\n{% for m in messages %}{{ raise_exception('Only ' ~ m.role) }}{% endfor %}");
    assert!(
        matches!(&error, Err(TextError::TemplateRaised { line: 2, message }) if message == "Only user"),
        "{error:?}"
    );
    let error = render("a\nb\n{% if %}");
    assert!(matches!(error, Err(TextError::TemplateSyntax { line: 3, .. })), "{error:?}");
    let error = render("a\n{{ nothing.at.all }}");
    assert!(matches!(error, Err(TextError::TemplateFailed { line: 2, .. })), "{error:?}");
    let error = render("{{ messages.explode() }}").unwrap_err().to_string();
    assert!(error.contains("explode"), "{error}");
}

#[test]
fn a_template_that_does_not_end_is_stopped() {
    let source =
        "{% for a in range(90000) %}{% for b in range(90000) %}{% set c = a * b %}{% endfor %}{% endfor %}";
    let error = ChatTemplate::new(source, "", "").unwrap().render(&[], None, true).unwrap_err();
    assert!(matches!(error, TextError::TemplateEndless { .. } | TextError::TemplateTooMuch), "{error:?}");
    let source = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    let error = ChatTemplate::new(source, "", "").unwrap().render(&[], None, true).unwrap_err();
    assert!(
        matches!(error, TextError::TemplateFailed { .. } | TextError::TemplateEndless { .. }),
        "{error:?}"
    );
}

#[test]
fn odd_slices_are_errors_or_texts_but_no_panics() {
    for source in ["{{ messages[::-1] }}", "{{ [][::-1][0] }}", "{{ [1, 2][0:1:-1] }}", "{{ 'ab'[5:9:-3] }}"]
    {
        let _ = ChatTemplate::new(source, "", "").unwrap().render(&[], None, true);
    }
    let template = ChatTemplate::new("{% for m in messages[::-1] %}x{% endfor %}.", "", "").unwrap();
    assert_eq!(template.render(&[], None, true).unwrap(), ".");
}

#[test]
fn messages_keep_the_fields_they_came_with() {
    let message: Message = serde_json::from_value(
        json!({"role": "assistant", "content": null, "tool_calls": [{"z": 1, "a": 2}]}),
    )
    .unwrap();
    assert_eq!(message.content, Some(Value::Null));
    let template = "{% for m in messages %}{{ m.content is none }} {{ m.tool_calls | tojson }} \
                    {{ m.name is defined }}{% endfor %}";
    let template = ChatTemplate::new(template, "", "").unwrap();
    assert_eq!(template.render(&[message], None, true).unwrap(), r#"True [{"z": 1, "a": 2}] False"#);
    let bare: Message = serde_json::from_value(json!({"role": "assistant"})).unwrap();
    assert_eq!(serde_json::to_value(&bare).unwrap(), json!({"role": "assistant"}));
}

#[test]
fn the_template_for_tools_is_chosen_when_there_are_tools() {
    let list = json!([{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]);
    let sources = TemplateSources::from_config(&list).unwrap();
    assert_eq!((sources.choose(false), sources.choose(true)), (Some("d"), Some("t")));
    let one = TemplateSources::from_config(&json!("x")).unwrap();
    assert_eq!((one.choose(false), one.choose(true)), (Some("x"), Some("x")));
    assert_eq!(TemplateSources::from_config(&Value::Null).unwrap().choose(true), None);
    assert!(TemplateSources::from_config(&json!(7)).is_err());

    let mut metadata = Metadata::empty("test.gguf");
    metadata.insert("tokenizer.chat_template", Meta::String("d".into()));
    metadata.insert("tokenizer.chat_template.tool_use", Meta::String("t".into()));
    assert_eq!(TemplateSources::from_gguf(&metadata).unwrap(), sources);

    let folder = std::env::temp_dir().join(format!("metallic-template-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("tokenizer_config.json"), json!({"chat_template": list}).to_string()).unwrap();
    assert_eq!(TemplateSources::from_hf(&folder).unwrap(), sources);
    std::fs::write(folder.join("chat_template.jinja"), "beside").unwrap();
    assert_eq!(TemplateSources::from_hf(&folder).unwrap().choose(false), Some("beside"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn variables_reach_the_template() {
    let template =
        ChatTemplate::new("{{ enable_thinking }} {{ strftime_now('%Y') | length }}", "", "").unwrap();
    let mut variables = Map::new();
    variables.insert("enable_thinking".into(), json!(false));
    assert_eq!(template.render_values(&json!([]), None, true, &variables).unwrap(), "False 4");
}

/// Small programs over one context, made with jinja2 3.1.6 as `transformers` sets it up.
#[test]
fn small_programs_give_what_jinja2_gives() {
    let file = read("jinja2_cases.json");
    let context = file["context"].as_object().unwrap();
    let (mut failures, mut checked) = (Vec::new(), 0);
    for case in file["cases"].as_array().unwrap() {
        let source = case["template"].as_str().unwrap();
        let result = ChatTemplate::new(source, "", "").and_then(|template| {
            template.render_values(&context["messages"], Some(&context["tools"]), false, context)
        });
        checked += 1;
        match (&case["expected"], result) {
            (Value::String(expected), Ok(found)) if *expected == found => {}
            (Value::Null, Err(_)) => {}
            (expected, found) => {
                let found = found.map_err(|e| e.to_string());
                failures.push(format!("{source:?}: {found:?}, expected {expected} {}", case["error"]));
            }
        }
    }
    assert!(checked > 700, "only {checked} cases");
    assert!(failures.is_empty(), "{} of {checked}:\n{}", failures.len(), failures.join("\n"));
}
