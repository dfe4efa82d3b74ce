//! A loaded model as a program meets it: conversations with tools, hooks, logits.

use std::fs;
use std::path::{Path, PathBuf};

#[cfg(feature = "constrain")]
use metallic::Event;
use metallic::formats::{Gguf, GgufWriter, Metadata};
use metallic::generate::StopMatch;
use metallic::{Chat, Device, Error, FinishReason, Llm, LoadOptions, Message, Model, Options, Sampling};
use metallic_testkit::{data, golden};
use serde_json::{Value, json};

/// A tiny model with a template for chat and one for chat with tools; `name` keeps tests that run at once apart.
pub(crate) fn folder_with_templates(name: &str) -> PathBuf {
    const TURNS: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let source = data::own().join("golden/arch/qwen2");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("templates-{name}"));
    fs::create_dir_all(&folder).unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(source.join(file), folder.join(file)).unwrap();
    }
    let config = fs::read_to_string(source.join("tokenizer_config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    let thinks = "{% if thinks is defined %}thinks: {{ 'yes' if thinks else 'no' }}\n{% endif %}";
    let tools = "tools:{% for t in tools %} {{ t.function.name }}{% endfor %};\n";
    config["chat_template"] = json!([
        {"name": "default", "template": format!("{TURNS}{thinks}")},
        {"name": "tool_use", "template": format!("{tools}{TURNS}{thinks}")},
    ]);
    fs::write(folder.join("tokenizer_config.json"), config.to_string()).unwrap();
    folder
}

fn load(path: &Path) -> Llm {
    Llm::load_with(path, &LoadOptions::default().device(Device::Cpu).threads(2).exact(true)).unwrap()
}

fn stories() -> Llm {
    load(&data::own().join("stories260K/stories260K-f32.gguf"))
}

#[test]
fn tools_and_variables_reach_the_template_that_is_made_for_them() {
    let llm = load(&folder_with_templates("render"));
    let messages = [Message::user("Hello")];
    assert_eq!(llm.render(&messages).unwrap(), "user: Hello\n");
    assert_eq!(llm.render(messages.to_vec()).unwrap(), "user: Hello\n");
    let tool = json!({"type": "function", "function": {"name": "clock"}});
    let chat = Chat::new(messages).variable("thinks", true);
    assert_eq!(llm.render(chat.clone()).unwrap(), "user: Hello\nthinks: yes\n");
    let chat = chat.tools([tool]);
    let rendered = llm.render(chat.clone()).unwrap();
    assert_eq!(rendered, "tools: clock;\nuser: Hello\nthinks: yes\n");
    let request = llm.chat_request(chat.clone()).unwrap();
    assert_eq!(request.prompt, llm.tokenizer().encode_chat(&rendered).unwrap());
    let answer = llm.chat(chat, Options::default().max_tokens(2)).unwrap().complete().unwrap();
    assert_eq!(answer.stats.prompt_tokens, request.prompt.len());
}

#[test]
fn tools_reach_a_model_whose_template_does_not_know_them() {
    let folder = folder_with_templates("prompted");
    let path = folder.join("mine.jinja");
    fs::write(&path, "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>").unwrap();
    let options = LoadOptions::default().device(Device::Cpu).threads(2).template(path);
    let llm = Llm::load_with(&folder, &options).unwrap();
    assert_eq!(llm.tools().unwrap().name(), "prompted");
    let tool = json!({"type": "function", "function": {"name": "clock"}});
    let text = llm.render(Chat::new([Message::user("Hello")]).tools([tool.clone()])).unwrap();
    assert!(text.starts_with("<system>") && text.ends_with("<user>Hello<assistant>"), "{text}");
    assert!(text.contains(&metallic::text::tool_system_prompt(&[tool])) && text.contains("clock"), "{text}");
    assert!(stories().tools().is_none());
}

#[cfg(feature = "constrain")]
#[test]
fn a_call_that_is_required_comes_whatever_the_model_would_say() {
    use metallic::constrain::Format;
    use metallic::text::{ToolAnswer, ToolChoice};

    let llm = load(&folder_with_templates("required"));
    let color = json!({"type": "string", "enum": ["red", "blue"]});
    let tools = [json!({"type": "function", "function": {"name": "paint", "parameters": {
        "type": "object", "properties": {"color": color}, "required": ["color"], "additionalProperties": false,
    }}})];
    let format = llm.tools().unwrap();
    let grammar = format.grammar(&tools, &ToolChoice::Required, false).unwrap().unwrap();
    let constraint = llm.constrainer().unwrap().constraint(&Format::Lark(grammar)).unwrap();
    let chat = Chat::new([Message::user("Hello")]).tools(tools.clone());
    let request = llm.chat_request(chat).unwrap().constraint(constraint).max_tokens(200);
    let mut parser = format.parser(&tools);
    let mut answer = ToolAnswer::default();
    for event in llm.submit(request.sampling(Sampling::greedy())).unwrap() {
        match event.unwrap() {
            Event::Token(token) => answer.extend(parser.push_token(token.id, &token.text)),
            Event::Finished(finished) => answer.extend(parser.push(&finished.text)),
            _ => {}
        }
    }
    answer.extend(parser.finish());
    assert_eq!((answer.text.as_str(), answer.calls.len()), ("", 1), "{answer:?}");
    let arguments: Value = serde_json::from_str(&answer.calls[0].arguments).unwrap();
    assert!(arguments["color"] == "red" || arguments["color"] == "blue", "{answer:?}");
    assert!(answer.calls[0].complete && answer.calls[0].name == "paint", "{answer:?}");
}

#[test]
fn a_model_without_a_template_says_so() {
    let refused = stories().chat(&[Message::user("Hello")], Options::default()).map(|_| ());
    assert!(matches!(refused, Err(Error::NoTemplate { .. })), "{refused:?}");
}

#[test]
fn text_and_its_tokens_are_the_same_prompt() {
    let llm = stories();
    let tokens = llm.tokenizer().encode("Once upon a time", true, true).unwrap();
    let options = Options::default().max_tokens(12).sampling(Sampling::greedy());
    let of_text = llm.generate("Once upon a time", options.clone()).unwrap().complete().unwrap();
    let of_tokens = llm.generate(&tokens, options).unwrap().complete().unwrap();
    assert_eq!(of_text.tokens, of_tokens.tokens);
    assert_eq!(llm.logits(&tokens).unwrap(), llm.logits("Once upon a time").unwrap());
}

#[test]
fn logits_are_those_of_the_program_while_others_are_answered() {
    let llm = stories();
    let tokens = llm.tokenizer().encode("Once upon a time, there was a little girl", true, true).unwrap();
    let program = llm.model().compile(Device::Cpu.open(1).unwrap().as_ref(), metallic::core::DType::F16);
    let expected = golden::logits(program.unwrap().as_mut(), &tokens, 512).unwrap();
    let beside = llm.generate("The dog", Options::default().max_tokens(60)).unwrap();
    let all = llm.all_logits(&tokens).unwrap();
    assert_eq!(all.len(), tokens.len());
    for (i, (found, expected)) in all.iter().zip(&expected).enumerate() {
        assert!(golden::max_diff(found, expected) < 1e-3, "after token {i}");
    }
    assert_eq!(llm.logits(&tokens).unwrap(), all[tokens.len() - 1]);
    beside.complete().unwrap();
}

#[test]
fn hidden_states_are_what_logits_are_made_of_while_others_answer() {
    let llm = stories();
    let tokens = llm.tokenizer().encode("Once upon a time there was", true, true).unwrap();
    let beside = llm.generate("The dog", Options::default().max_tokens(60)).unwrap();
    let (hidden, logits) = (llm.hidden(&tokens).unwrap(), llm.all_logits(&tokens).unwrap());
    assert_eq!((hidden.len(), hidden[0].len()), (tokens.len(), llm.model().config().hidden));
    let table =
        llm.model().tensors().find(|t| t.name == "token_embd.weight" || t.name == "output.weight").unwrap();
    let table: Vec<f32> = table.data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    for (hidden, logits) in hidden.iter().zip(&logits) {
        let made: Vec<f32> =
            table.chunks(hidden.len()).map(|w| w.iter().zip(hidden).map(|(a, b)| a * b).sum()).collect();
        assert!(golden::max_diff(&made, logits) < 1e-3);
    }
    beside.complete().unwrap();
    let length = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>().sqrt();
    let [a, b, c] = ["a little girl", "a little boy", "xylophone 77"].map(|text| llm.embed(text).unwrap());
    assert!((length(&a) - 1.0).abs() < 1e-5);
    let near = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(a, b)| a * b).sum::<f32>();
    assert!(near(&a, &b) > near(&a, &c), "{} {}", near(&a, &b), near(&a, &c));
}

#[test]
fn a_template_from_a_file_takes_the_place_of_the_models_own() {
    let folder = folder_with_templates("override");
    let path = folder.join("mine.jinja");
    fs::write(&path, "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ tools is defined and tools }}")
        .unwrap();
    let options = LoadOptions::default().device(Device::Cpu).threads(2).template(path.clone());
    let llm = Llm::load_with(&folder, &options).unwrap();
    let chat = Chat::new([Message::user("Hello")]);
    assert_eq!(llm.render(chat.clone()).unwrap(), "[Hello]None");
    assert_eq!(llm.render(chat.clone().tools([json!("t")])).unwrap(), "[Hello]['t']");
    let other = metallic::ChatTemplate::new("other", "", "").unwrap();
    assert_eq!(llm.with_template(other).render(chat).unwrap(), "other");
    let missing = LoadOptions::default().device(Device::Cpu).template(folder.join("no-such.jinja"));
    let error = Llm::load_with(&folder, &missing).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no-such.jinja"), "{error}");
}

#[test]
fn marks_in_messages_are_text_unless_the_caller_says_otherwise() {
    let llm = load(&folder_with_templates("marks"));
    let special =
        (0..llm.tokenizer().vocab_size() as u32).find(|&id| llm.tokenizer().is_special(id)).unwrap();
    let mark = llm.tokenizer().token_text(special).unwrap().to_owned();
    let chat = Chat::new([Message::user(format!("a {mark} b"))]);
    let spelled = llm.chat_request(chat.clone()).unwrap().prompt;
    assert!(!spelled.contains(&special), "{mark}");
    assert_eq!(llm.tokenizer().decode(&spelled, false), llm.render(chat.clone()).unwrap());
    assert!(llm.chat_request(chat.parse_marks(true)).unwrap().prompt.contains(&special));
}

#[test]
fn a_stop_string_that_is_a_special_token_ends_the_answer() {
    let llm = load(&folder_with_templates("stops"));
    let tokenizer = llm.tokenizer();
    let is_plain_mark = |id: &u32| tokenizer.is_special(*id) && !tokenizer.is_end_of_generation(*id);
    let special = (0..tokenizer.vocab_size() as u32).find(is_plain_mark).unwrap();
    let mark = tokenizer.token_text(special).unwrap().to_owned();
    // A model that would say nothing else.
    let sampling = Sampling::greedy().logit_bias([(special, 1e6)]);
    let options = Options::default().max_tokens(5).sampling(sampling);
    let on = llm.generate("Once", options.clone()).unwrap().complete().unwrap();
    assert_eq!((on.tokens, on.text.as_str()), (vec![special; 5], ""), "it is no text");
    for stop in [mark.clone(), format!("{mark}{mark}")] {
        let options = options.clone().stop(["zz".to_owned(), stop.clone()]);
        let done = llm.generate("Once", options).unwrap().complete().unwrap();
        assert_eq!((done.reason, done.text.as_str()), (FinishReason::Stop, ""));
        assert_eq!((done.tokens.len(), done.stop), (stop.len() / mark.len(), Some(StopMatch::Text(stop))));
    }
    // One with which the model ends its answers as well is told by the name that was asked for.
    let end = tokenizer.end_of_generation().next().unwrap();
    let name = tokenizer.token_text(end).unwrap().to_owned();
    let options = options.sampling(Sampling::greedy().logit_bias([(end, 1e6)]));
    for (stop, told) in [(vec![name.clone()], StopMatch::Text(name)), (Vec::new(), StopMatch::Token(end))] {
        let done = llm.generate("Once", options.clone().stop(stop)).unwrap().complete().unwrap();
        assert_eq!((done.tokens.len(), done.stop), (0, Some(told)));
    }
}

#[test]
fn limits_of_the_engine_are_set_where_a_model_is_loaded() {
    let options = LoadOptions::default().device(Device::Cpu).threads(1);
    let options = options.max_sequences(3).step_tokens(48).max_waiting(7);
    let llm = Llm::load_with(folder_with_templates("limits"), &options).unwrap();
    let config = llm.engine().config();
    assert_eq!((config.max_sequences, config.step_tokens, config.max_waiting), (3, 48, 7));
}

#[test]
fn thoughts_are_told_from_the_answer_when_asked_for() {
    let folder = folder_with_templates("thoughts");
    let path = folder.join("thinks.jinja");
    fs::write(&path, "{{ messages[0].content }}</think>{% if thinks %}<think>\n{% endif %}").unwrap();
    let options = LoadOptions::default().device(Device::Cpu).threads(2).exact(true).template(path);
    let llm = Llm::load_with(&folder, &options).unwrap();
    let chat = Chat::new([Message::user("Hello")]).variable("thinks", true);
    let options = Options::default().max_tokens(12).sampling(Sampling::greedy()).stop(Vec::new());
    let whole = llm.chat(chat.clone(), options.clone()).unwrap().complete().unwrap();
    let split = llm.chat(chat.clone().split_reasoning(true), options.clone()).unwrap().complete().unwrap();
    assert_eq!(split.tokens, whole.tokens);
    // The prompt opened the thoughts, and a tiny model does not close them.
    assert_eq!((split.text, split.reasoning.trim()), (String::new(), whole.text.trim()));
    let answer = llm.chat(chat.variable("thinks", false).split_reasoning(true), options).unwrap();
    let answer = answer.complete().unwrap();
    assert!(answer.reasoning.is_empty() && !answer.text.is_empty());
}

#[test]
fn a_file_with_half_a_tokenizer_is_refused_by_what_it_lacks() {
    let source = Gguf::open(&data::own().join("stories260K/stories260K-f32.gguf")).unwrap();
    let mut metadata = Metadata::empty("half.gguf");
    for (key, value) in source.metadata.iter().filter(|(key, _)| *key != "tokenizer.ggml.model") {
        metadata.insert(key, value.clone());
    }
    let mut writer = GgufWriter::with_metadata(metadata);
    for tensor in source.tensors() {
        writer.add(tensor.clone()).unwrap();
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("half.gguf");
    writer.write(&path).unwrap();
    let error = Model::open(&path).unwrap().tokenizer().unwrap_err().to_string();
    assert!(error.contains("tokenizer.ggml.model") && error.contains("half.gguf"), "{error}");
}
