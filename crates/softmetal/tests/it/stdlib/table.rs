//! docs/msl-functions.md and these tests say the same.

use std::collections::BTreeSet;

use super::{atomic, integer, math, matrix, pack, relational, scalars, simd, types};

const TABLE: &str = include_str!("../../../docs/msl-functions.md");

/// Every kernel source that a test of this folder compiles and checks.
fn tested() -> String {
    let mut text: String = (1..=3).map(math::source).collect();
    text += math::SPECIAL;
    text += &integer::source();
    text += relational::SOURCE;
    text += &pack::source();
    text += scalars::SOURCE;
    text += &types::source();
    text += &simd::source();
    text += matrix::source();
    text + &atomic::source()
}

/// The names that are called: an identifier before `(` or before template arguments and `(`.
fn calls(text: &str) -> BTreeSet<&str> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names = BTreeSet::new();
    let mut rest = text;
    while let Some(start) = rest.find(word) {
        rest = &rest[start..];
        let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if after.starts_with('(')
            || (after.starts_with('<') && after.find('>').is_some_and(|at| after[at + 1..].starts_with('(')))
        {
            names.insert(name);
        }
        rest = after;
    }
    names
}

fn listed() -> BTreeSet<&'static str> {
    let rows = TABLE.lines().filter(|line| line.ends_with("| yes |"));
    rows.map(|row| row.split('`').nth(1).unwrap_or_else(|| panic!("no name in {row}"))).collect()
}

#[test]
fn every_function_of_the_table_is_called_by_a_tested_kernel() {
    let text = tested();
    let calls = calls(&text);
    let missing: Vec<&str> = listed().into_iter().filter(|name| !calls.contains(name)).collect();
    assert!(listed().len() > 170, "the table lists only {} functions", listed().len());
    assert!(missing.is_empty(), "in docs/msl-functions.md but in no test: {missing:?}");
}

#[test]
fn every_collective_or_packing_function_of_the_tests_is_in_the_table() {
    let text = tested();
    let families = ["simd_", "quad_", "simdgroup_", "atomic_", "pack_", "unpack_", "make_"];
    let own = [
        "simd_vote",
        "quad_vote",
        "simdgroup_matrix",
        "simdgroup_float8x8",
        "simdgroup_half8x8",
        "simd_int",
        "simd_float",
        "quad_int",
        "quad_float",
    ];
    let unlisted: Vec<&str> = calls(&text)
        .into_iter()
        .filter(|name| families.iter().any(|family| name.starts_with(family)))
        .filter(|name| !own.contains(name) && !listed().contains(name))
        .collect();
    assert!(unlisted.is_empty(), "tested but not in docs/msl-functions.md: {unlisted:?}");
}
