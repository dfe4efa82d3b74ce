//! Answers held to formats, by a model that has never seen any: stories260K.

mod formats;
mod generated;
mod strict;
mod suite;

use std::sync::OnceLock;

use metallic::constrain::{Constrainer, Constraint, Format};
use metallic::generate::Completion;
use metallic::{Device, FinishReason, Generation, Llm, LoadOptions, Sampling};
use metallic_testkit::data;
use serde_json::Value;

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
    for group in schemas.chunks(8) {
        let mut under_way = Vec::new();
        for schema in group {
            let constraint = constraint(&Format::JsonSchema(schema.clone()));
            for &way in ways {
                under_way.push((schema, way, ask(constraint.clone(), way)));
            }
        }
        for (schema, way, generation) in under_way {
            let done = generation.complete().unwrap_or_else(|error| panic!("{error} with {schema}"));
            let text = &done.text;
            assert_eq!(done.reason, FinishReason::Stop, "{} tokens, {schema} gave {text}", way.max_tokens);
            let value: Value =
                serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {schema} gave {text}"));
            assert!(validator(schema).is_valid(&value), "{schema} gave {text}");
        }
    }
}
