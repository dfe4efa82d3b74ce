//! Schemas that others wrote.

use std::collections::BTreeMap;

use super::*;
use metallic::constrain::ConstrainError;
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Case {
    from: String,
    pub(super) schema: Value,
    valid: Vec<Value>,
    invalid: Vec<Value>,
}

fn read<T: for<'de> Deserialize<'de>>(name: &str) -> Vec<T> {
    let path = format!("{}/tests/data/schemas/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).expect("the schemas are here")).expect("JSON")
}

/// The cases that can be enforced, and how many schemas of each file cannot.
pub(super) fn enforced() -> (Vec<Case>, BTreeMap<String, usize>) {
    let mut refused = BTreeMap::new();
    let mut cases: Vec<Case> = read("suite.json");
    cases.retain(|case| match constrainer().constraint(&Format::JsonSchema(case.schema.clone())) {
        Ok(_) => true,
        // No value is valid by some.
        Err(ConstrainError::Grammar { reason, .. }) if case.valid.is_empty() => {
            assert!(!reason.is_empty());
            false
        }
        Err(ConstrainError::Unsupported { .. } | ConstrainError::Invalid { .. }) => {
            *refused.entry(case.from.clone()).or_default() += 1;
            false
        }
        // Two patterns of names that may both match one.
        Err(ConstrainError::Grammar { reason, .. }) if reason.contains("patternProperty") => {
            *refused.entry(case.from.clone()).or_default() += 1;
            false
        }
        Err(error) => panic!("{} ({}) is refused by no name: {error}", case.schema, case.from),
    });
    (cases, refused)
}

#[test]
fn answers_by_schemas_of_the_public_suite_are_valid() {
    let (cases, refused) = enforced();
    println!("{} schemas enforced, refused: {refused:?}", cases.len());
    assert!(cases.len() >= 150, "{} schemas, refused: {refused:?}", cases.len());
    let schemas: Vec<Value> = cases.into_iter().map(|case| case.schema).collect();
    all_are_valid(
        &schemas,
        &[Asked { max_tokens: 300, seed: None }, Asked { max_tokens: 80, seed: Some(1) }],
    );
}

#[test]
fn no_value_that_the_public_suite_calls_invalid_can_be_written() {
    let (cases, _) = enforced();
    let (mut tried, mut valid, mut written) = (0, 0, 0);
    for case in cases {
        let constraint = constraint(&Format::JsonSchema(case.schema.clone()));
        for value in &case.invalid {
            let accepted = constraint.accepts(&value.to_string()).expect("an answer");
            assert!(!accepted, "{} ({}) lets {value} through", case.schema, case.from);
            tried += 1;
        }
        for value in &case.valid {
            valid += 1;
            written += usize::from(constraint.accepts(&value.to_string()).expect("an answer"));
        }
    }
    println!("{tried} invalid values refused, {written} of {valid} valid ones can be written");
    assert!(tried > 250 && 2 * written > valid, "{tried} tried, {written} of {valid}");
}

/// Schemas as programs send them.
pub(super) fn real() -> Vec<Value> {
    read("real.json")
}

#[test]
fn answers_by_schemas_as_programs_send_them_are_valid() {
    all_are_valid(
        &real(),
        &[
            Asked { max_tokens: 400, seed: None },
            Asked { max_tokens: 400, seed: Some(1) },
            Asked { max_tokens: 250, seed: Some(2) },
        ],
    );
}
