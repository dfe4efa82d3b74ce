//! Real templates: which family each belongs to, that nothing of tools is lost in them, and that their own calls are understood.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::{ToolFormat, render};
use crate::text::{ChatTemplate, HfFiles, Message, TextError, Tokenizer};

/// Templates by the beginning of their names, and their families.
const TABLE: &[(&str, &str)] = &[
    ("Apertus-8B", "apertus"),
    ("Apriel-1.6", "apriel"),
    ("Bielik-11B", "hermes"),
    ("ByteDance-Seed-OSS", "seed"),
    ("Cohere2MoE", "cohere"),
    ("CohereForAI-c4ai-command-r-plus", "command-r"),
    ("CohereForAI-c4ai-command-r7b", "cohere"),
    ("GLM-4.6", "glm"),
    ("GLM-4.7", "glm"),
    ("GigaChat3-10B", "gigachat-3"),
    ("GigaChat3.1", "gigachat-3.1"),
    ("HuggingFaceTB-SmolLM3", "prompted"),
    ("Kimi-K2-Instruct", "kimi-k2"),
    ("Kimi-K2-Thinking", "kimi-k2"),
    ("Kimi-K3", "kimi-k3"),
    ("LFM2-8B", "lfm2"),
    ("LFM2.5-8B", "lfm2"),
    ("LFM2.5-Instruct", "lfm2"),
    ("MiMo-VL", "hermes"),
    ("MiniMax-M1", "minimax-m1"),
    ("MiniMax-M2", "minimax-m2"),
    ("MiniMax-M3", "minimax-m3"),
    ("Mistral-Small-3.2", "mistral"),
    ("NVIDIA-Nemotron-3", "qwen-xml"),
    ("NVIDIA-Nemotron-Nano-v2", "nemotron"),
    ("NousResearch-Hermes-2", "hermes"),
    ("NousResearch-Hermes-3", "hermes"),
    ("Qwen-QwQ", "hermes"),
    ("Qwen-Qwen2.5", "hermes"),
    ("Qwen-Qwen3", "hermes"),
    ("Qwen3-Coder", "qwen-xml"),
    ("Qwen3.5", "qwen-xml"),
    ("Reka-Edge", "hermes"),
    ("Spark2.5", "glm"),
    ("StepFun3.5", "qwen-xml"),
    ("deepseek-ai-DeepSeek-R1-Distill-Llama", "deepseek-r1"),
    ("deepseek-ai-DeepSeek-R1-Distill-Qwen", "deepseek-r1"),
    ("deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1"),
    ("deepseek-ai-DeepSeek-V3.2", "deepseek-v3.2"),
    ("deepseek-ai-DeepSeek-V4", "deepseek-v4"),
    ("fireworks-ai-llama-3-firefunction", "functools"),
    ("google-gemma-2", "prompted"),
    ("google-gemma-4", "gemma-4"),
    ("ibm-granite-granite-3.3", "granite-3"),
    ("ibm-granite-granite-4", "hermes"),
    ("inclusionai-ling-3.0", "glm"),
    ("llama-cpp-deepseek-r1", "deepseek-r1"),
    ("llama-cpp-rwkv-world", "prompted"),
    ("meetkai-functionary-medium-v3.1", "functionary-3.1"),
    ("meetkai-functionary-medium-v3.2", "functionary-3.2"),
    ("meta-llama-Llama-3", "llama"),
    ("microsoft-Phi-3.5", "prompted"),
    ("mistralai-Ministral-3", "mistral"),
    ("mistralai-Mistral-Nemo", "mistral-list"),
    ("moonshotai-Kimi-K2", "kimi-k2"),
    ("muse-glimmer", "atem"),
    ("openai-gpt-oss", "harmony"),
    ("openbmb-MiniCPM5", "minicpm"),
    ("poolside-Laguna", "glm"),
    ("tencent-Hy3", "hunyuan"),
    ("unsloth-Apriel-1.5", "apriel"),
    ("unsloth-mistral-Devstral", "mistral"),
    ("upstage-Solar-Open", "solar"),
];

fn tokenizer() -> Tokenizer {
    let json = br#"{"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}"#;
    Tokenizer::from_hf_files(HfFiles { tokenizer: json, ..HfFiles::default() }).unwrap()
}

/// The templates in the repository, and those of the shared folder where there is one.
fn templates() -> BTreeMap<String, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared =
        std::env::var_os("METALLIC_SHARED").map_or_else(|| root.join("../../../shared"), PathBuf::from);
    let mut out = BTreeMap::new();
    for folder in [root.join("tests/data/text/templates"), shared.join("templates")] {
        let Ok(entries) = std::fs::read_dir(&folder) else {
            eprintln!("NOT RUN: {} does not exist; set METALLIC_SHARED", folder.display());
            continue;
        };
        for path in entries.map(|e| e.unwrap().path()) {
            if path.extension().is_some_and(|e| e == "jinja") {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                out.insert(name, std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    assert!(out.len() >= 20, "only {} templates", out.len());
    out
}

fn format_of(source: &str) -> ToolFormat {
    ToolFormat::of(Some(source), &tokenizer()).unwrap()
}

#[test]
fn every_template_is_of_the_family_that_the_table_says() {
    for (name, source) in templates() {
        let row =
            TABLE.iter().filter(|(start, _)| name.starts_with(start)).max_by_key(|(start, _)| start.len());
        let (_, family) = row.unwrap_or_else(|| panic!("{name} is not in the table"));
        assert_eq!(format_of(&source).name(), *family, "{name}");
    }
}

#[test]
fn families_without_a_template_here_are_known_by_their_marks() {
    let of = |source: &str| format_of(source).name();
    assert_eq!(of("{{ tools }} <|tool_call|> … <|/tool_call|>"), "phi-4");
    assert_eq!(of("{{ tools }} <start_function_call>call:"), "function-gemma");
    assert_eq!(of("{{ tools }} <function_calls>"), "olmo-3");
    assert_eq!(of("{% if tools %}{{ tools | tojson }}{% endif %}"), "generic");
    assert_eq!(of("{{ messages }} use your toolset"), "prompted");
    assert_eq!(ToolFormat::of(None, &tokenizer()), None);
}

fn tools() -> Vec<Value> {
    let weather = json!({"type": "function", "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Its name"},
                "days": {"type": "integer", "description": "How many"},
            },
            "required": ["city"],
        },
    }});
    let note = json!({"type": "function", "function": {
        "name": "take_note",
        "description": "Keeps a note",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "What to keep"},
                "tags": {"type": "array", "items": {"type": "string"}, "description": "Words"},
                "pin": {"type": "boolean", "description": "At the top"},
            },
            "required": ["text"],
        },
    }});
    vec![weather, note]
}

/// Calls in the order they are made.
fn calls() -> [(&'static str, Value); 2] {
    [
        ("get_weather", json!({"city": "Oslo", "days": 3})),
        ("take_note", json!({"text": "a note", "tags": ["blue", "red"], "pin": true})),
    ]
}

/// A conversation as a client of the OpenAI API sends it: arguments are text, content is null or a list of parts.
fn conversation() -> Vec<Message> {
    let calls = calls();
    let call = |i: usize| {
        json!({"id": format!("call_abcdefgh{i}"), "type": "function", "function": {
            "name": calls[i].0, "arguments": calls[i].1.to_string(),
        }})
    };
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "Will it"}, {"type": "text", "text": "rain? QUESTION"}]},
        {"role": "assistant", "content": null, "tool_calls": [call(0), call(1)]},
        {"role": "tool", "tool_call_id": "call_abcdefgh0", "content": [{"type": "text", "text": "FIRST RESULT"}]},
        {"role": "tool", "tool_call_id": "call_abcdefgh1", "content": "SECOND RESULT"},
    ]);
    serde_json::from_value(messages).unwrap()
}

fn rendered(source: &str, messages: &[Message], tools: &[Value]) -> Result<String, TextError> {
    let template = ChatTemplate::new(source, "<s>", "</s>").unwrap();
    render(&template, Some(&format_of(source)), messages, tools, &Map::new())
}

#[test]
fn no_template_loses_tools_calls_or_results() {
    for (name, source) in templates() {
        let text = rendered(&source, &conversation(), &tools()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let needed = [
            "The weather of a place",
            "Keeps a note",
            "city",
            "tags",
            "Will it\nrain? QUESTION",
            "Oslo",
            "a note",
            "blue",
            "FIRST RESULT",
            "SECOND RESULT",
        ];
        for part in needed {
            assert!(text.contains(part), "{name} has no `{part}`:\n{text}");
        }
        let answer = text.rsplit_once("QUESTION").unwrap().1;
        assert!(!answer.contains("None"), "{name}:\n{text}");
    }
}

#[test]
fn calls_are_understood_as_each_template_writes_them() {
    for (name, source) in templates() {
        let text = rendered(&source, &conversation(), &tools()).unwrap();
        let answer = text.rsplit_once("QUESTION").unwrap().1.split("FIRST RESULT").next().unwrap();
        // Calls without a mark begin the answer; what stands before them here is the prompt.
        let format = format_of(&source);
        let prompt = if format.name() == "llama" { answer.find('{').unwrap() } else { 0 };
        let found = format.parse(&answer[prompt..], &tools());
        assert!(!found.calls.is_empty(), "{name}: {answer}");
        for (call, (tool, arguments)) in found.calls.iter().zip(calls()) {
            assert_eq!(call.name, tool, "{name}: {answer}");
            let read: Value = serde_json::from_str(&call.arguments)
                .unwrap_or_else(|e| panic!("{name}: {:?}: {e}", call.arguments));
            assert_eq!(read, arguments, "{name}: {answer}");
        }
    }
}

#[test]
fn a_template_without_tools_is_told_of_them_by_a_system_message() {
    let source =
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}<assistant>";
    let text = rendered(source, &conversation(), &tools()).unwrap();
    assert!(text.starts_with("<system>You may call one or more functions"), "{text}");
    let call = "<assistant><tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}\n</tool_call>\n";
    assert!(text.contains(call), "{text}");

    let system = Message::system("Be brief.");
    let text = rendered(source, &[system, Message::user("Hello")], &tools()).unwrap();
    assert!(text.starts_with("<system>Be brief.\n\nYou may call"), "{text}");

    // Gemma knows no system message and wants roles to alternate.
    let gemma = &templates()["google-gemma-2-2b-it"];
    let text = rendered(gemma, &conversation(), &tools()).unwrap();
    assert!(text.starts_with("<s><start_of_turn>user\nYou may call"), "{text}");
    let results = "<tool_response>\nFIRST RESULT\n</tool_response>\n<tool_response>\nSECOND RESULT\n</tool_response><end_of_turn>";
    assert!(text.contains(results), "{text}");

    // Nothing but text: nothing is added.
    assert_eq!(rendered(source, &[Message::user("Hello")], &[]).unwrap(), "<user>Hello</user>\n<assistant>");
}

#[test]
fn a_template_that_wants_variables_of_its_own_gets_the_tools_it_names() {
    let source = "{{ style ~ tools[0].function.name }}{% for m in messages %}{% if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}\
        {% elif m.role == 'tool' %}[{{ m.content }}]{% endif %}{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let variables = Map::from_iter([("style".to_owned(), Value::from("S-"))]);
    let text = render(&template, None, &conversation(), &tools(), &variables).unwrap();
    assert_eq!(text, "S-get_weatherOslo[FIRST RESULT][SECOND RESULT]");
}

#[test]
fn a_template_that_writes_neither_tools_nor_system_messages_is_refused() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    let error = rendered(source, &[Message::user("Hello")], &tools()).unwrap_err().to_string();
    assert!(error.contains("neither tools nor system messages"), "{error}");
}

#[test]
fn a_template_of_single_calls_gets_one_message_for_each() {
    let llama = &templates()["meta-llama-Llama-3.2-3B-Instruct"];
    let text = rendered(llama, &conversation(), &tools()).unwrap();
    let order: Vec<usize> =
        ["\"get_weather\", \"parameters\"", "FIRST RESULT", "\"take_note\", \"parameters\"", "SECOND RESULT"]
            .iter()
            .map(|part| text.rfind(part).unwrap_or_else(|| panic!("`{part}` is not in {text}")))
            .collect();
    assert!(order.is_sorted(), "{text}");
}

#[test]
fn arguments_that_are_no_object_stand_in_one_as_they_were_written() {
    let qwen = &templates()["Qwen-Qwen3-0.6B"];
    for (written, read) in [
        ("{\"city\": \"Os", r#"{"raw": "{\"city\": \"Os"}"#),
        ("[5]", r#"{"raw": "[5]"}"#),
        ("Oslo", r#"{"raw": "Oslo"}"#),
        ("null", "{}"),
        (" ", "{}"),
    ] {
        let mut messages = conversation();
        messages[1].extra["tool_calls"][0]["function"]["arguments"] = written.into();
        let text = rendered(qwen, &messages, &tools()).unwrap();
        assert!(text.contains(&format!("\"get_weather\", \"arguments\": {read}}}")), "{written}: {text}");
    }
}

#[test]
fn arguments_that_are_neither_text_nor_an_object_are_refused_without_being_told() {
    let mut messages = conversation();
    messages[1].extra["tool_calls"][0]["function"]["arguments"] = json!(["secret"]);
    let qwen = &templates()["Qwen-Qwen3-0.6B"];
    let error = rendered(qwen, &messages, &tools()).unwrap_err().to_string();
    assert!(error.contains("`get_weather`") && error.contains("JSON object"), "{error}");
    assert!(!error.contains("secret"), "{error}");
}
