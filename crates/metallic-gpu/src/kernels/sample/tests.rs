//! Kernels against the definition, to the bit.

use std::cmp::Reverse;

use metallic_core::sample::{
    Choice, Choices, EXP_SERIES, Edit, HEADER, LEAST_NOISE, LN_SERIES, MOST_NOISE, NO_CANDIDATE, Scratch,
    philox, rank, uniform,
};

use super::super::harness::{Data, as_u32s, bytes_of, f32s, run, run_comparing, run_stages, u32s};
use super::super::typed::tests::{FLOATS, data, rounded, waves};
use super::*;
use crate::threadgroup::tests::LIMITS;

fn ranked(row: &[f32]) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
    all.sort_by_key(|(id, x)| Reverse(rank(*id, *x)));
    all
}

/// Many equals, what is no number, infinities, both zeros.
fn odd(n: u32) -> Vec<f32> {
    (0..n)
        .map(|i| match i % 11 {
            3 => f32::NAN,
            5 => f32::NEG_INFINITY,
            7 => -0.0,
            8 => 0.0,
            j => f32::from(j as u8 % 4) - 2.5,
        })
        .collect()
}

fn best_matches(dtype: DType, x: &[f32], n: u32) {
    let rows = x.len() as u32 / n;
    let launch = argmax(dtype, (rows, n), &LIMITS).unwrap();
    let Some(found) = run(&launch, &[data(dtype, x), Data::Room(rows as usize * 4)]) else { return };
    let expected: Vec<u32> = rounded(dtype, x).chunks(n as usize).map(|row| ranked(row)[0].0).collect();
    assert_eq!(as_u32s(&found[1]), expected, "{dtype} {n}");
}

#[test]
fn the_best_is_found_and_of_equals_the_first() {
    for dtype in FLOATS {
        for n in [1, 31, 33, 257, 1025, 4097] {
            best_matches(dtype, &waves(2 * n, 5.0), n);
            best_matches(dtype, &odd(2 * n), n);
        }
        best_matches(dtype, &[f32::NEG_INFINITY; 300], 300);
        best_matches(dtype, &[f32::NAN; 40], 40);
        best_matches(dtype, &[-0.0, 0.0, -1.0], 3);
    }
}

fn top_matches(dtype: DType, x: &[f32], n: u32, k: u32) {
    let rows = x.len() as u32 / n;
    let size = (rows * k) as usize;
    let launch = top_k(dtype, (rows, n), k, &LIMITS).unwrap();
    let args = [data(dtype, x), Data::Room(top_k_scratch(rows, k)), Data::Room(size * 4)];
    // What was picked lies in any order, so that it may differ from run to run.
    let Some(found) = run_comparing(&launch, &args, &[2]) else { return };
    let ids: Vec<u32> = rounded(dtype, x)
        .chunks(n as usize)
        .flat_map(|row| ranked(row).into_iter().take(k as usize).map(|(id, _)| id))
        .collect();
    assert_eq!(as_u32s(&found[0]), ids, "{dtype}, {k} of {n}");
}

#[test]
fn the_best_few_come_in_order() {
    for dtype in FLOATS {
        for (n, k) in [(1, 1), (31, 5), (33, 33), (257, 40), (1025, 1), (1500, 70)] {
            top_matches(dtype, &waves(2 * n, 5.0), n, k);
            top_matches(dtype, &odd(2 * n), n, k);
        }
        top_matches(dtype, &[1.0; 300], 300, 257);
    }
    assert!(top_k(DType::F32, (1, 4), 5, &LIMITS).is_err());
}

/// A row of one of several sorts: spread, flat, full of equals, without most numbers, extreme, impossible, far below 0.
fn row_of(sort: u32, n: u32, seed: u32) -> Vec<f32> {
    let one = |i: u32| {
        let [a, b, ..] = philox([i, sort, 0, 0], [seed, 9]);
        let spread = uniform(a) - 0.5;
        match sort {
            0 => spread * 30.0,
            1 => spread * 0.1,
            2 => f32::from(a as u8 % 4) - 2.0,
            3 => [f32::NAN, f32::NEG_INFINITY, spread, spread * 9.0][b as usize % 4],
            4 => [f32::MAX, f32::INFINITY, -0.0, 1e-38, f32::MIN, 0.0, f32::NEG_INFINITY][a as usize % 7],
            5 => [f32::NAN, f32::NEG_INFINITY][a as usize % 2],
            6 => f32::from_bits(a),
            _ => spread.abs() * -1e4,
        }
    };
    (0..n).map(one).collect()
}

/// Tokens that are edited, some of them outside the row.
fn edits_of(n: u32, seed: u32) -> Vec<Edit> {
    let biases = [0.0, 0.0, 1.5, -2.0, f32::NEG_INFINITY, f32::MAX, f32::MIN];
    let edit = |id: u32| {
        let [a, b, c, _] = philox([id, 0, 0, 1], [seed, 5]);
        a.is_multiple_of(4).then(|| Edit { id, count: b % 4, bias: biases[c as usize % 7] })
    };
    (0..n + 3).filter_map(edit).collect()
}

/// Chooses from rows of `n` logits, one for each choice, and compares with the definition.
fn choices_match(n: u32, rows: &[(Choice, Vec<Edit>, Vec<f32>)]) {
    let mut choices = Choices::default();
    for (choice, edits, _) in rows {
        choices.push(choice, edits).unwrap();
    }
    let words = choices.words();
    check_choices(words, rows.len()).unwrap();
    let x: Vec<f32> = rows.iter().flat_map(|(.., x)| x.iter().copied()).collect();
    let stages = choose((rows.len() as u32, n), &LIMITS).unwrap();
    let mut memory = vec![
        (Slot::Input(0), f32s(&x)),
        (Slot::Input(1), u32s(words)),
        (Slot::Output, Data::Room(rows.len() * 4)),
    ];
    let Some(()) = run_stages(&stages, &mut memory) else { return };
    let found = as_u32s(&bytes_of(&memory, Slot::Output));
    for (row, found) in found.into_iter().enumerate() {
        let chosen = metallic_core::sample::choose(words, row, &rows[row].2, &mut Scratch::default());
        let expected = chosen.unwrap().unwrap_or(NO_CANDIDATE);
        assert_eq!(found, expected, "row {row} of {n}: {:?}", rows[row].0);
    }
}

/// Settings that are not alike in any stage.
fn settings(index: u32) -> Choice {
    let plain =
        Choice { seed: u64::MAX - 7 * u64::from(index), draw: u64::from(index) << 30, ..Choice::default() };
    let penalties = Choice { repetition: 1.3, presence: 0.4, frequency: 0.2, ..plain };
    match index % 12 {
        0 => plain,
        1 => Choice { temperature: 0.0, ..penalties },
        2 => Choice { top_k: 5, ..penalties },
        3 => Choice { top_p: 0.9, temperature: 0.7, ..plain },
        4 => Choice { min_p: 0.05, temperature: 1.5, ..plain },
        5 => Choice { top_k: 40, top_p: 0.95, min_p: 0.05, temperature: 0.8, ..penalties },
        6 => Choice { temperature: 1e-6, top_k: 50, repetition: 0.5, ..plain },
        7 => Choice { top_p: 1e-12, ..plain },
        8 => Choice { top_p: 0.999_999_94, presence: -1e38, ..plain },
        9 => Choice { top_k: 1, frequency: f32::MAX, ..plain },
        10 => Choice { min_p: 1.0, top_p: 0.5, repetition: 1e30, ..plain },
        _ => Choice { temperature: 0.0, ..plain },
    }
}

#[test]
fn choices_are_those_of_the_definition() {
    for n in [1, 2, 3, 31, 70, 257, 1030] {
        let row = |index: u32| {
            let edits = if index % 3 == 1 { edits_of(n, index) } else { Vec::new() };
            (settings(index), edits, row_of(index / 12, n, index + n))
        };
        choices_match(n, &(0..96).map(row).collect::<Vec<_>>());
    }
}

#[test]
fn long_rows_are_looked_through_in_parts_and_give_the_same_tokens() {
    // The last part has one token, or is nearly full.
    for n in [2 * PART + 1, 3 * PART - 2] {
        let row = |index: u32| {
            let edits = if index % 2 == 1 { edits_of(n, index) } else { Vec::new() };
            (settings(index), edits, row_of(index / 3, n, index + n))
        };
        choices_match(n, &(0..24).map(row).collect::<Vec<_>>());
    }
    let launches = |n| choose((3, n), &LIMITS).unwrap().stages.len();
    assert_eq!([2 * PART, 2 * PART + 1].map(launches), [1, 2]);
}

#[test]
fn equals_at_a_border_are_settled_by_their_ids() {
    let n = 515;
    let row = |index: u32| {
        let plain = Choice { seed: 3, draw: u64::from(index), ..Choice::default() };
        let choice = match index % 3 {
            0 => Choice { top_k: 1 + index * 7, ..plain },
            1 => Choice { top_p: (index + 1) as f32 / 60.0, ..plain },
            _ => Choice { top_k: 300, top_p: (index + 1) as f32 / 60.0, ..plain },
        };
        (choice, Vec::new(), vec![2.5; n as usize])
    };
    choices_match(n, &(0..48).map(row).collect::<Vec<_>>());
}

#[test]
fn no_reward_makes_a_banned_token_possible() {
    let n = 70;
    let banned = |id| Edit { id, count: 1 + id % 3, bias: f32::NEG_INFINITY };
    let row = |index: u32| {
        let huge = [-1e38, f32::MIN, -0.5][index as usize % 3];
        let choice = Choice { presence: huge, frequency: huge, repetition: 1e30, ..settings(index) };
        // All, or all but one that is far below the others.
        let edits: Vec<Edit> = (0..n - index % 2).map(banned).collect();
        (choice, edits, row_of(0, n, index))
    };
    choices_match(n, &(0..24).map(row).collect::<Vec<_>>());
}

#[test]
fn a_large_vocabulary_gives_the_tokens_of_the_definition() {
    let n = 152_064;
    let row =
        |index: u32| (settings([0, 3, 5][index as usize]), edits_of(400, index), row_of(index % 2, n, index));
    choices_match(n, &(0..3).map(row).collect::<Vec<_>>());
}

#[test]
fn typical_tokens_and_words_that_are_no_choices_are_refused_by_name() {
    let mut choices = Choices::default();
    choices.push(&Choice { typical: 0.9, ..Choice::default() }, &[]).unwrap();
    let error = check_choices(choices.words(), 1).unwrap_err().to_string();
    assert!(error.contains("row 0 keeps typical tokens"), "{error}");
    let error = check_choices(&[0; HEADER], 2).unwrap_err().to_string();
    assert!(error.contains("repetition"), "{error}");
    choices.clear();
    choices.push(&Choice::default(), &[]).unwrap();
    let error = check_choices(choices.words(), 2).unwrap_err().to_string();
    assert!(error.contains("32 words, there are 16"), "{error}");
}

#[test]
fn the_words_and_numbers_of_the_definition_stand_in_the_kernel() {
    let mut choices = Choices::default();
    choices.push(&settings(5), &[Edit { id: 1, count: 1, bias: 0.0 }]).unwrap();
    let (record, _) = Record::read(choices.words(), 0).unwrap();
    let twin = ChoiceRecord {
        inverse_temperature: record.inverse_temperature,
        top_k: record.top_k,
        typical: record.typical,
        top_p: record.top_p,
        ln_min_p: record.ln_min_p,
        repetition: record.repetition,
        inverse_repetition: record.inverse_repetition,
        presence: record.presence,
        frequency: record.frequency,
        seed_low: record.seed[0],
        seed_high: record.seed[1],
        draw_low: record.draw[0],
        draw_high: record.draw[1],
        edits_at: record.edits_at,
        edits: record.edits,
        unused: 0,
    };
    assert_eq!(as_u32s(twin.params().as_bytes()), choices.words()[..HEADER]);
    let numbers = |of: &[f32]| of.iter().map(|x| format!("{x:?}f")).collect::<Vec<_>>().join(", ");
    let words = EXP_SERIES.map(|x| format!("{x}u")).join(", ");
    for line in [
        format!("uint EXP_SERIES[7] = {{{words}}};"),
        format!("float LN_SERIES[8] = {{{}}};", numbers(&LN_SERIES)),
        format!("float LEAST_NOISE = {};", numbers(&[LEAST_NOISE])),
        format!("float MOST_NOISE = {};", numbers(&[MOST_NOISE])),
        format!("uint NO_CANDIDATE = {NO_CANDIDATE}u;"),
        format!("uint RECORD_WORDS = {HEADER}u;"),
        format!("uint CHOICE_PART = {PART}u;"),
    ] {
        assert!(FAMILY.text.contains(&line), "{line}");
    }
}
