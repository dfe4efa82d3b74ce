//! Chat templates on the command line: other ones, their variables, tools, thoughts, and conversations that fill the context.

use std::{fs, io::Write, time::Duration};

use serde_json::Value;

use crate::support::{Machine, Ran, edited, start, stories, wait};

/// Thinks aloud unless told not to, and may call tools.
const THINKS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
    {% if tools %}tools: {{ tools | map(attribute='function') | map(attribute='name') | join(',') }}\n{% endif %}\
    {% if add_generation_prompt %}assistant:{% if enable_thinking is undefined or enable_thinking %}<think>\n\
    {% else %}<think>\n\n</think>\n{% endif %}{% endif %}";

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "weather"}}]"#;

fn model(machine: &Machine, template: &str) -> String {
    edited(&machine.folder().join("chat.gguf"), |writer| {
        writer.insert("tokenizer.chat_template", template);
    })
}

fn chat(machine: &Machine, args: &[&str], script: &str) -> Ran {
    let mut child = start(machine.command(&[&["chat", "--temp", "0"][..], args].concat()));
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    wait(child, Duration::from_secs(20))
}

#[test]
fn thoughts_are_told_from_answers_and_hidden_on_demand() {
    let machine = Machine::without_hub();
    let model = model(&machine, THINKS);
    let run = |more: &[&str]| {
        let args = ["run", "-m", &model, "--temp", "0", "-n", "8", "Tell me of a dog"];
        machine.run(&[&args[..], more].concat()).ok()
    };
    let thinking = run(&["--json"]).json();
    assert_eq!(thinking["text"], "");
    let thoughts = thinking["reasoning"].as_str().unwrap();
    assert!(!thoughts.is_empty());
    let shown = run(&[]);
    assert_eq!(shown.out, "\n");
    assert!(shown.err.starts_with(thoughts), "{shown:?}");
    assert!(!run(&["--hide-thinking"]).err.contains(thoughts));
    assert!(!run(&["-q"]).err.contains(thoughts));

    let answer = run(&["--json", "--set", "enable_thinking=false"]).json();
    assert_eq!(answer["reasoning"], "");
    assert!(!answer["text"].as_str().unwrap().is_empty());

    let saved = machine.folder().join("talk.json");
    chat(&machine, &["-m", &model, "-n", "8"], &format!("A dog\n/save {}\n", saved.display())).ok();
    let talk: Value = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    assert_eq!(talk[1]["content"], "");
    assert!(talk[1]["reasoning_content"].as_str().is_some_and(|thoughts| !thoughts.is_empty()), "{talk}");
    // The next turn has them under that name, for templates that ask, and not in the answer.
    let asks = "{% if messages | length > 2 %}{{ raise_exception('[' ~ messages[1].content ~ ']' ~ \
        messages[1].reasoning_content) }}{% endif %}assistant:<think>\n{# </think> #}";
    fs::write(machine.folder().join("asks.jinja"), asks).unwrap();
    let ran = chat(&machine, &["-m", &model, "-n", "8", "--template", "asks.jinja"], "A dog\nAnd?\n").ok();
    let thought = ran.err.lines().next().unwrap();
    assert!(!thought.is_empty() && ran.err.contains(&format!("(line 1): []{thought}")), "{}", ran.err);
}

#[test]
fn a_template_takes_variables_tools_and_another_place() {
    let machine = Machine::without_hub();
    let (model, plain) = (model(&machine, THINKS), stories());
    let folder = machine.folder();
    fs::write(folder.join("talk.json"), r#"[{"role": "user", "content": "Hi"}]"#).unwrap();
    fs::write(folder.join("tools.json"), TOOLS).unwrap();
    fs::write(folder.join("own.jinja"), "<{{ style }}>{{ messages[-1].content }}").unwrap();
    fs::write(folder.join("bad.jinja"), "{% if %}").unwrap();
    fs::write(folder.join("raises.jinja"), "{{ raise_exception('no \x1b[2J\u{202e}way') }}").unwrap();
    let render =
        |more: &[&str]| machine.run(&[&["tool", "template", "--messages", "talk.json"][..], more].concat());
    let own = ["--template", "own.jinja", "--set", "style={\"a\": 1}"];
    assert_eq!(render(&[&["-m", &plain], &own[..]].concat()).ok().out, "<{'a': 1}>Hi");
    let text = render(&["-m", &model, "--tools", "tools.json", "--set", "enable_thinking=true"]).ok().out;
    assert_eq!(text, "user: Hi\ntools: weather\nassistant:<think>\n");
    // `run` and `chat` take the same: what they were told reaches the template.
    fs::write(folder.join("says.jinja"), "{{ raise_exception(style ~ tools[0].function.name) }}").unwrap();
    let says = ["--template", "says.jinja", "--set", "style=\"S-\"", "--tools", "tools.json"];
    let args = [&["run", "-m", &model, "x"][..], &says].concat();
    machine.run(&args).failed(1, "S-weather", "messages");
    let ran = chat(&machine, &[&["-m", &model][..], &says].concat(), "x\n").ok();
    assert!(ran.err.contains("S-weather"), "{}", ran.err);

    let cases: &[(&[&str], &str, &str)] = &[
        (&["-m", &model, "--set", "nope=1"], "no variable `nope`", "--template"),
        (&["-m", &plain, "--set", "nope=1"], "no chat template", "--template"),
        (
            &["-m", &plain, "--template", "own.jinja", "--tools", "tools.json"],
            "no variable `tools`",
            "inspect",
        ),
        (&["-m", &plain, "--template", "no.jinja"], "cannot read `no.jinja`", "file"),
        (&["-m", &model, "--tools", "no.json"], "cannot read `no.json`", "a list of tools"),
        (&["-m", &plain, "--template", "bad.jinja"], "does not compile: line 1", "--raw"),
        (&["-m", &plain, "--template", "raises.jinja"], "no \\u{1b}[2J\\u{202e}way", "messages"),
        (&["-m", &model, "--tools", "own.jinja"], "`own.jinja` does not fit", "a list of tools"),
    ];
    for (args, reason, hint) in cases {
        machine.run(&[&["run", "x"][..], args].concat()).failed(1, reason, hint);
    }
    for args in [&["--set", "x=y"][..], &["--set", "tools=[]"], &["--raw", "--set", "x=1"]] {
        let ran = machine.run(&[&["run", "-m", &model, "x"][..], args].concat());
        assert!(ran.code == Some(2) && ran.err.contains("--set"), "{ran:?}");
    }
}

#[test]
fn a_conversation_slides_over_a_full_context() {
    let machine = Machine::without_hub();
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:";
    let model = model(&machine, template);
    let saved = machine.folder().join("talk.json");
    let long = "word ".repeat(100);
    let script = format!(
        "One day a dog saw a big red ball.\nThen a cat came to play with it.\nThey went home.\n{long}\nThe end.\n/help\n/save {}\n",
        saved.display()
    );
    let args = ["-m", &model, "--ctx", "128", "-n", "24", "--system", "Tell a story."];
    let ran = chat(&machine, &args, &script).ok();
    assert!(ran.err.contains("(the context is full: the 2 oldest messages are left out"), "{}", ran.err);
    assert!(
        ran.err.contains("error: the message takes ") && ran.err.contains("the context holds 128"),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("its oldest turns are left out"), "{}", ran.err);
    let talk: Vec<Value> = serde_json::from_slice(&fs::read(&saved).unwrap()).unwrap();
    assert_eq!(talk.len(), 9, "the system prompt, four questions and their answers: {talk:?}");
}

#[test]
fn a_model_cannot_steer_the_terminal() {
    let machine = Machine::without_hub();
    // Every token that it may write is the escape that begins a terminal's commands.
    let model = edited(&machine.folder().join("evil.gguf"), |writer| {
        writer.insert("general.name", "evil\x1b]0;title\x07\u{202e}");
    });
    let ids = machine.run(&["tool", "tokenize", "-m", &model, "--no-special", "\x1b"]).ok().json();
    let id = ids.as_array().unwrap().last().unwrap().to_string();
    let bias = format!("{id}=1000");
    let args = ["run", "-q", "-m", &model, "--raw", "-n", "2", "--logit-bias", &bias, "Once"];
    let piped = machine.run(&args).ok();
    assert_eq!(piped.out, "\x1b\x1b\n");
    let seen = crate::support::on_terminal(&machine, &args);
    assert!(seen.out.contains("\\u{1b}\\u{1b}") && !seen.out.contains('\x1b'), "{seen:?}");
    for args in [&["inspect", &model][..], &["inspect", &model, "--json"]] {
        let out = machine.run(args).ok().out;
        assert!(out.contains("evil") && !out.contains(['\x1b', '\x07', '\u{202e}']), "{out}");
    }
}
