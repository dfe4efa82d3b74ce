//! A conversation with a tool: the model is asked, calls the tool, gets its result and answers.
//!
//! `cargo run --release -p metallic --example tools -- model.gguf --device cpu`

mod common;

use std::io::Write;

use metallic::text::ToolAnswer;
use metallic::{Chat, Event, Llm, LoadOptions, Message, Options, Sampling};
use serde_json::{Value, json};

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let (device, rest) = common::arguments(args)?;
    let path = rest.first().ok_or("usage: tools MODEL [--device NAME]")?;
    let llm = Llm::load_with(path, &LoadOptions::default().device(device))?;

    let weather = json!({"type": "function", "function": {
        "name": "weather",
        "description": "The weather of a city today",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Its name"}},
            "required": ["city"],
        },
    }});
    let chat = Chat::new([Message::user("Do I need an umbrella in Oslo?")])
        .tools([weather])
        .variable("thinks", false);
    writeln!(out, "{}", llm.render(chat.clone())?)?;

    // Whether the answer is a call is up to the model; how it is written, the parser knows.
    let answer = ask(&llm, &chat)?;
    writeln!(out, "text: {}", answer.text)?;
    for call in &answer.calls {
        writeln!(out, "call: {}({})", call.name, call.arguments)?;
    }
    if !answer.calls.is_empty() {
        let answer = ask(&llm, &with_results(chat, &answer))?;
        writeln!(out, "then: {}", answer.text)?;
    }
    Ok(())
}

/// Streams an answer and takes it apart.
fn ask(llm: &Llm, chat: &Chat) -> Result<ToolAnswer, common::Failure> {
    let format = llm.tools().ok_or("the model has no chat template")?;
    let mut parser = format.parser(&chat.tools);
    let mut answer = ToolAnswer::default();
    let options = Options::default().max_tokens(64).sampling(Sampling::greedy());
    for event in llm.chat(chat.clone(), options)? {
        match event? {
            Event::Token(token) => answer.extend(parser.push_token(token.id, &token.text)),
            Event::Finished(finished) => answer.extend(parser.push(&finished.text)),
            _ => {}
        }
    }
    answer.extend(parser.finish());
    Ok(answer)
}

/// The conversation with the calls of an answer and what the tools said, as the OpenAI API writes them.
fn with_results(mut chat: Chat, answer: &ToolAnswer) -> Chat {
    let calls = answer.calls.iter().enumerate().map(|(i, call)| {
        json!({"id": format!("call_{i}"), "type": "function", "function": {
            "name": call.name, "arguments": call.arguments,
        }})
    });
    let mut message = Message::assistant(answer.text.clone());
    message.extra.insert("tool_calls".into(), calls.collect::<Value>());
    chat.messages.push(message);
    for i in 0..answer.calls.len() {
        let mut result = Message::new("tool", "rain, 8 °C");
        result.extra.insert("tool_call_id".into(), format!("call_{i}").into());
        chat.messages.push(result);
    }
    chat
}
