//! Loads a GGUF file or a Hugging Face folder and continues a text.
//!
//! `cargo run --release -p metallic --example load_and_generate -- model.gguf "Once upon a time" --device cpu`

mod common;

use std::io::Write;

use metallic::{Llm, LoadOptions, Options, Sampling};

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let (device, rest) = common::arguments(args)?;
    let mut rest = rest.into_iter();
    let path = rest.next().ok_or("usage: load_and_generate MODEL [PROMPT] [--device NAME]")?;
    let prompt = rest.next().unwrap_or_else(|| "Once upon a time".to_owned());

    let llm = Llm::load_with(&path, &LoadOptions::default().device(device))?;
    writeln!(out, "loaded onto `{}` in {:.2} s", llm.device(), llm.load_s())?;

    // Temperature 0 takes the best token every time, so the answer is the same on every device.
    let sampling = Sampling::default().temperature(0.0);
    let options = Options::default().max_tokens(48).sampling(sampling);
    let answer = llm.generate(&prompt, options)?.complete()?;
    writeln!(out, "{prompt}{}", answer.text)?;
    Ok(())
}
