//! A conversation with a tool the model may call, and a variable of its template.
//!
//! `cargo run --release -p metallic --example tools -- model.gguf --device cpu`

mod common;

use std::io::Write;

use metallic::{Chat, Llm, LoadOptions, Message, Options, Sampling};
use serde_json::json;

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

    // Whether the answer is a call, and how it is written, is up to the model.
    let options = Options::default().max_tokens(64).sampling(Sampling::greedy());
    writeln!(out, "{}", llm.chat(chat, options)?.complete()?.text)?;
    Ok(())
}
