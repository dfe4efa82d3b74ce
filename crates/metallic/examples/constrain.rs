//! A program's own rule between logits and token: a text without a letter. Also what the model would say next.
//!
//! `cargo run --release -p metallic --example constrain -- model.gguf e --device cpu`

mod common;

use std::io::Write;

use metallic::{Llm, LoadOptions, Sampling};

fn main() -> Result<(), common::Failure> {
    run(std::env::args().skip(1), &mut std::io::stdout())
}

/// The example itself.
pub(crate) fn run(args: impl Iterator<Item = String>, out: &mut impl Write) -> Result<(), common::Failure> {
    let (device, rest) = common::arguments(args)?;
    let mut rest = rest.into_iter();
    let path = rest.next().ok_or("usage: constrain MODEL [LETTER] [--device NAME]")?;
    let letter = rest.next().unwrap_or_else(|| "e".to_owned());
    let llm = Llm::load_with(&path, &LoadOptions::default().device(device))?;
    let prompt = "Once upon a time";

    // Logits are plain numbers: here the best token and its probability.
    let logits = llm.logits(prompt)?;
    let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0);
    let chance = 1.0 / logits.iter().map(|logit| (logit - logits[best]).exp()).sum::<f32>();
    writeln!(out, "likely next: {:?} {:.1} %", llm.tokenizer().decode(&[best as u32], true), 100.0 * chance)?;

    // Which tokens have the letter is known beforehand; the hook runs before each choice.
    let has_letter = |id: &usize| {
        let text = llm.tokenizer().decode(&[*id as u32], true).to_lowercase();
        text.contains(&letter.to_lowercase())
    };
    let banned: Vec<usize> = (0..logits.len()).filter(has_letter).collect();
    let request = llm.request(prompt)?.max_tokens(32).sampling(Sampling::greedy()).hook(move |_, logits| {
        for id in &banned {
            logits[*id] = f32::NEG_INFINITY;
        }
    });
    let answer = llm.submit(request)?.complete()?;
    writeln!(out, "without `{letter}`: {}", answer.text.replace('\n', " "))?;
    Ok(())
}
