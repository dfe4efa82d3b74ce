//! What guessing ahead gains: the same answers with it and without, in turn.

use std::fmt::Write;

use metallic::{Llm, Options, Sampling, bench::Measurement, generate::RequestStats};
use serde_json::{Value, json};

use super::{BenchArgs, Counts};
use crate::{
    fail::Failure,
    load,
    term::{self, Ui},
};

/// An answer that repeats its prompt, and one that repeats nothing.
const PROMPTS: [(&str, &str, bool); 2] = [
    (
        "copy",
        "Text:\n\nThe lighthouse keeper's ledger of 1887 lists every ship that passed the point: the brig Alma with salt from \
         Setubal, the schooner Petrel bound for Riga with timber, the steamer Ottilie carrying mail, and two nameless fishing boats \
         from Hirtshals. On the ninth of March he wrote that fog had hidden the reef for eleven hours, that the bell was rung every \
         four minutes, and that nobody was lost. His daughter Marit copied the page by candle light and sent it to the harbour \
         office in Kristiansand, where it was stamped, numbered and forgotten in a drawer of oak.\n\nThe same text once more, \
         word for word:\n\nThe lighthouse keeper's ledger of 1887 lists every ship that passed the point: the brig Alma with",
        true,
    ),
    ("free", "A list of unusual things that nobody has ever seen together, each named once:", false),
];

/// What came of one prompt.
struct Row {
    name: &'static str,
    on: Measurement,
    off: Measurement,
    drafted: usize,
    accepted: usize,
}

impl Row {
    fn gain(&self) -> f64 {
        self.on.median() / self.off.median().max(1e-9)
    }
}

pub(super) fn run(args: &BenchArgs, ui: Ui) -> anyhow::Result<()> {
    let others = [
        ("--prompt", args.prompt.is_some()),
        ("--depth", args.depth > 0),
        ("--sequences", args.sequences.get() > 1),
        ("--ops", args.ops),
        ("--no-limits", args.no_limits),
        ("--dashboard", args.dashboard.dashboard),
    ];
    if let Some((name, _)) = others.iter().find(|(_, given)| *given) {
        let reason = format!("`{name}` has no meaning where answers with guesses and without are compared");
        return Err(Failure::new(reason, "leave it out, or leave out `--speculate` and `--draft`").into());
    }
    let speculation = args.speculation.resolve(ui)?;
    let llm = load::llm_with(&args.model, None, |options| options.speculation(speculation), ui)?;
    let lengths = args.generate.as_ref().map_or_else(|| vec![128], |Counts(counts)| counts.clone());
    let mut rows = Vec::new();
    for tokens in lengths {
        for (name, prompt, is_greedy) in PROMPTS {
            let _spinner = ui.spinner(&format!("{name}{tokens}"));
            let sampling = if is_greedy { Sampling::greedy() } else { Sampling::plain().seed(1) };
            let options = Options::default().max_tokens(tokens).ignore_eos(true).sampling(sampling);
            rows.push((tokens, measure(&llm, (name, prompt), &options, args.repetitions.get())?));
        }
    }
    if args.json {
        return term::print_json(&rows.iter().map(|row| report(args, &llm, row)).collect::<Vec<_>>());
    }
    let mut text = format!(
        "{} on {}\n\n{:10} {:>10} {:>10} {:>7} {:>9} {:>7}\n",
        args.model.model,
        llm.device(),
        "ANSWER",
        "WITHOUT",
        "WITH t/s",
        "GAIN",
        "GUESSED",
        "RIGHT"
    );
    for (tokens, row) in &rows {
        let Row { name, on, off, drafted, accepted } = row;
        let (label, gain) = (format!("{name}{tokens}"), row.gain());
        let (without, with) = (off.median(), on.median());
        let _ =
            writeln!(text, "{label:10} {without:>10.2} {with:>10.2} {gain:>6.2}x {drafted:>9} {accepted:>7}");
    }
    Ok(term::print_lines(&text)?)
}

/// Answers a prompt with guesses and without, in turn, after once of each to warm up.
fn measure(
    llm: &Llm,
    (name, prompt): (&'static str, &str),
    options: &Options,
    repetitions: usize,
) -> anyhow::Result<Row> {
    let mut row =
        Row { name, on: Measurement::default(), off: Measurement::default(), drafted: 0, accepted: 0 };
    for repetition in 0..=repetitions {
        let mut answers = Vec::new();
        // Who comes first has a colder machine, so they take turns at that as well.
        let order = if repetition % 2 == 0 { [true, false] } else { [false, true] };
        for guesses in order {
            let answer = llm.generate(prompt, options.clone().speculation(guesses))?.complete()?;
            answers.push(answer.tokens);
            let RequestStats { decode_tps, drafted_tokens, accepted_tokens, .. } = answer.stats;
            if repetition > 0 {
                let measured = if guesses { &mut row.on } else { &mut row.off };
                measured.samples.push(decode_tps);
                row.drafted += drafted_tokens;
                row.accepted += accepted_tokens;
            }
        }
        if answers[0] != answers[1] {
            let reason = "an answer with guesses is not the one without: the device computes other numbers for \
                          tokens side by side than one by one";
            return Err(Failure::new(reason, "its times would not compare; try `--exact`").into());
        }
    }
    Ok(row)
}

fn report(args: &BenchArgs, llm: &Llm, (tokens, row): &(usize, Row)) -> Value {
    json!({
        "test": format!("{}{tokens}", row.name),
        "model": args.model.model,
        "device": llm.device(),
        "n": tokens,
        "without": { "median": row.off.median(), "samples": row.off.samples },
        "with": { "median": row.on.median(), "samples": row.on.samples },
        "gain": row.gain(),
        "drafted_tokens": row.drafted,
        "accepted_tokens": row.accepted,
    })
}
