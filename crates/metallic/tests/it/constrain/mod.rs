//! Answers held to formats, by a model that has never seen any: stories260K.

mod formats;
mod generated;
mod matrix;
mod strict;
mod suite;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;

use metallic::constrain::{Constrainer, Constraint, Format};
use metallic::generate::Completion;
use metallic::{Device, FinishReason, Generation, Llm, LoadOptions, Sampling};
use metallic_testkit::data;
use serde_json::{Value, json};

/// The model, once for all tests of a process.
pub(crate) fn stories() -> &'static Llm {
    static MODEL: OnceLock<Llm> = OnceLock::new();
    MODEL.get_or_init(|| {
        let path = data::own().join("stories260K/stories260K-f32.gguf");
        let options = LoadOptions::default().device(Device::Cpu).threads(1).max_sequences(16);
        Llm::load_with(path, &options).expect("the model loads")
    })
}

pub(crate) fn constrainer() -> &'static Constrainer {
    stories().constrainer().expect("a tree of tokens")
}

pub(crate) fn constraint(format: &Format) -> Constraint {
    constrainer().constraint(format).expect("a format that can be enforced")
}

pub(crate) fn schema(text: &str) -> Format {
    Format::json_schema(text).expect("JSON")
}

/// How an answer is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) max_tokens: usize,
    /// `None`: always the likeliest token.
    pub(crate) seed: Option<u64>,
}

pub(crate) fn ask(constraint: Constraint, asked: Asked) -> Generation {
    let llm = stories();
    let sampling = asked.seed.map_or_else(Sampling::greedy, |seed| Sampling::default().seed(seed));
    let request = llm.request("Once upon a time").expect("tokens").max_tokens(asked.max_tokens);
    llm.submit(request.sampling(sampling).constraint(constraint)).expect("it fits")
}

pub(crate) fn answer(format: &Format, asked: Asked) -> Completion {
    ask(constraint(format), asked).complete().expect("an answer")
}

/// What a validator of another make says about answers.
pub(crate) fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::options().should_validate_formats(true).build(schema).expect("a schema")
}

/// Asks for answers by each schema, several ways each and many at a time, and has all of them judged.
pub(crate) fn all_are_valid(schemas: &[Value], ways: &[Asked]) {
    let mut wrong = Vec::new();
    for group in schemas.chunks(8) {
        let mut under_way = Vec::new();
        for schema in group {
            match constrainer().constraint(&Format::JsonSchema(schema.clone())) {
                Ok(constraint) => {
                    under_way.extend(ways.iter().map(|way| (schema, *way, ask(constraint.clone(), *way))));
                }
                Err(error) => wrong.push(format!("{schema}: {error}")),
            }
        }
        for (schema, way, generation) in under_way {
            if let Err(why) = judge(schema, way, generation) {
                wrong.push(format!("{schema} in {} tokens: {why}", way.max_tokens));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong of {} schemas:\n{}", wrong.len(), schemas.len(), wrong.join("\n"));
}

fn judge(schema: &Value, way: Asked, generation: Generation) -> Result<(), String> {
    let done = generation.complete().map_err(|error| error.to_string())?;
    note(schema, &done);
    let text = &done.text;
    if done.reason != FinishReason::Stop || done.tokens.len() > way.max_tokens {
        return Err(format!("{:?} after {} tokens: {text}", done.reason, done.tokens.len()));
    }
    if text.trim_end() != text {
        return Err(format!("white space after the end: {text:?}"));
    }
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{error}: {text}"))?;
    validator(schema).validate(&value).map_err(|error| format!("{error}: {text}"))
}

/// For judges that are no crates: `METALLIC_TEST_ANSWERS` names a file to which schemas and answers are appended, a line each.
fn note(schema: &Value, done: &Completion) {
    let Some(path) = std::env::var_os("METALLIC_TEST_ANSWERS") else { return };
    let line = json!({ "schema": schema, "text": done.text, "reason": format!("{:?}", done.reason) });
    let mut file = File::options().append(true).create(true).open(path).expect("a file");
    file.write_all(format!("{line}\n").as_bytes()).expect("it is written");
}

#[test]
fn there_are_more_than_five_hundred_schemas() {
    let suite = suite::enforced().0.into_iter().map(|case| case.schema);
    let all = generated::schemas().into_iter().chain(matrix::schemas()).chain(suite).chain(suite::real());
    let distinct: BTreeSet<String> = all.map(|schema| schema.to_string()).collect();
    println!("{} schemas", distinct.len());
    assert!(distinct.len() >= 700, "{} schemas", distinct.len());
}
