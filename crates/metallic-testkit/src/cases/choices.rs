//! Operations that choose; they must agree to the bit.

use metallic_core::sample::{Choice, Choices, Edit};

use super::Table;

/// How tokens are chosen from so many rows, each differently, packed for [`metallic_core::Op::Sample`].
pub fn packed(rows: usize, turn: usize) -> Vec<u32> {
    let plain = Choice::default();
    let penalties = Choice { repetition: 1.3, presence: 0.4, frequency: 0.2, ..plain };
    let ways = [
        Choice { temperature: 0.7, seed: u64::MAX, draw: 9, ..plain },
        Choice { temperature: 1.5, top_k: 10, top_p: 0.9, seed: 1 << 33, ..penalties },
        Choice { top_p: 0.8, min_p: 0.02, seed: 12, draw: 1 << 40, ..penalties },
        Choice { temperature: 0.0, ..penalties },
        // Rewards beyond all numbers: who is banned stays so.
        Choice { temperature: 0.9, presence: -3e38, frequency: -3e38, repetition: 1e30, seed: 3, ..plain },
        Choice { temperature: 0.0, presence: -3e38, frequency: -3e38, ..plain },
    ];
    let edits: Vec<Edit> = (0..7)
        .map(|i| Edit {
            id: 3 * i,
            count: [0, 1, 2, Edit::REPEATED][i as usize % 4],
            bias: [0.0, 0.5, f32::NEG_INFINITY][i as usize % 3],
        })
        .collect();
    let mut choices = Choices::default();
    for (row, choice) in ways.iter().cycle().skip(turn).take(rows).enumerate() {
        let own = if choice.presence < 0.0 { &edits[..] } else { &edits[..row % 8] };
        choices.push(choice, own).expect("the test's own choices are sound");
    }
    choices.words().to_vec()
}

/// Equal numbers, none, infinities; and rows of nothing but -inf.
fn odd(i: usize) -> f32 {
    match (i / 40 % 4, i % 40) {
        (1, _) => f32::NEG_INFINITY,
        (2, 7) => f32::INFINITY,
        (_, j) if j % 5 == 0 => f32::NAN,
        (_, j) => (j % 4) as f32,
    }
}

pub(super) fn all(t: &mut Table) {
    for cols in [1, 31, 257, 1025, 8003] {
        t.case(format!("argmax of {cols}"), 0.0, move |m| m.rows(cols).argmax());
        for k in [1, 5, 33, 64].into_iter().filter(|k| *k <= cols) {
            t.case(format!("top {k} of {cols}"), 0.0, move |m| m.rows(cols).top_k(k));
        }
        t.case(format!("sample of {cols}"), 0.0, move |m| {
            m.rows(cols).scale(4.0).select_rows(m.g.output_rows()).sample()
        });
    }
    t.case("argmax of equals and no numbers", 0.0, |m| m.table(40, odd).argmax());
    for k in [9, 40] {
        t.case(format!("top {k} of equals and no numbers"), 0.0, move |m| m.table(40, odd).top_k(k));
    }
    t.case("sample of equals and no numbers", 0.0, |m| {
        m.table(40, odd).select_rows(m.g.output_rows()).sample()
    });
    t.case("argmax of three axes", 0.0, |m| m.values(&[2, 3, 33], |i| (i * 7 % 31) as f32).argmax()).alone();
}
