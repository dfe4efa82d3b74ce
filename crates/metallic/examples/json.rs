//! An answer that is valid by a schema, and what that costs: the same prompt with a schema and without, one after the other.
//!
//! `cargo run --release -p metallic --features constrain --example json -- model.gguf 5 --device cpu`

mod common;

use std::io::Write;

use metallic::constrain::Format;
use metallic::generate::Completion;
use metallic::{Llm, LoadOptions, Message, Sampling};

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "name": { "type": "string", "minLength": 1 },
        "born": { "type": "string", "format": "date" },
        "fields": { "type": "array", "items": { "enum": ["physics", "chemistry", "mathematics"] }, "minItems": 1, "maxItems": 3 },
        "prizes": { "type": "integer", "minimum": 0, "maximum": 9 },
        "biography": { "type": "string", "minLength": 80, "maxLength": 2000 }
    },
    "required": ["name", "born", "fields", "prizes", "biography"]
}"#;
const PROMPT: &str =
    "Who was Marie Curie? Answer in JSON with name, born, fields, prizes and a long biography.";

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let (device, rest) = common::arguments(args)?;
    let mut rest = rest.into_iter();
    let path = rest.next().ok_or("usage: json MODEL [TIMES] [--device NAME]")?;
    let times = rest.next().map_or(Ok(1), |times| times.parse::<usize>())?.max(1);
    let llm = Llm::load_with(&path, &LoadOptions::default().device(device))?;
    let format = Format::json_schema(SCHEMA)?;

    // A request with the format, and the same without: as many tokens, so that the two can be compared.
    let ask = |constrained: bool| -> Result<Completion, common::Failure> {
        let request = match llm.template() {
            Some(_) => llm.chat_request([Message::user(PROMPT)])?,
            None => llm.request(PROMPT)?,
        };
        let request = request.sampling(Sampling::greedy()).max_tokens(256);
        let request = if constrained {
            request.constraint(llm.constrainer()?.constraint(&format)?)
        } else {
            request.ignore_eos(true)
        };
        Ok(llm.submit(request)?.complete()?)
    };
    writeln!(out, "{}", ask(true)?.text)?;
    ask(false)?;
    let (mut held, mut free) = (Vec::new(), Vec::new());
    for _ in 0..times {
        held.push(ask(true)?.stats.decode_tps);
        free.push(ask(false)?.stats.decode_tps);
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    };
    let (held, free) = (median(&mut held), median(&mut free));
    writeln!(out, "with the schema {held:.1} tok/s, without {free:.1} tok/s: {:.0} %", 100.0 * held / free)?;
    Ok(())
}
