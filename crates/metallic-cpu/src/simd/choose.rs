//! The choice of a token, compiled for each instruction set: the loops of the definition are its vector code.

use metallic_core::sample::{self, ChoiceError, Scratch};

use super::isa::{Isa, dispatch};

/// [`metallic_core::sample::choose`], faster and with the same result.
pub fn choose(
    isa: Isa,
    words: &[u32],
    row: usize,
    logits: &[f32],
    scratch: &mut Scratch,
) -> Result<Option<u32>, ChoiceError> {
    dispatch!(isa, fn<L>(words: &[u32], row: usize, logits: &[f32], scratch: &mut Scratch) -> Result<Option<u32>, ChoiceError> {
        sample::choose(words, row, logits, scratch)
    })
}

#[cfg(test)]
mod tests {
    use metallic_core::sample::{Choice, Choices, Edit, philox, uniform};

    use super::*;

    /// Rows that are spread, flat and full of equals.
    fn row(kind: u32, n: u32) -> Vec<f32> {
        let spread = [12.0, 0.2, 5.0][kind as usize % 3];
        let one = |i: u32| (uniform(philox([i, kind, 0, 0], [1, 2])[0]) - 0.5) * spread;
        (0..n).map(|i| if kind % 3 == 2 { one(i).round() } else { one(i) }).collect()
    }

    #[test]
    fn every_instruction_set_chooses_the_token_of_the_definition() {
        let plain = Choice { seed: 11, ..Choice::default() };
        let ways = [
            plain,
            Choice { temperature: 0.0, ..plain },
            Choice { top_k: 40, top_p: 0.95, min_p: 0.05, temperature: 0.8, ..plain },
            Choice { top_p: 0.95, ..plain },
            Choice { top_p: 0.3, temperature: 3.0, ..plain },
            Choice { typical: 0.8, ..plain },
            Choice { typical: 0.8, top_k: 100, top_p: 0.7, presence: 0.5, ..plain },
        ];
        let edits: Vec<Edit> = (0..20)
            .map(|i| Edit { id: i * 7, count: i % 3, bias: [0.0, f32::NEG_INFINITY][i as usize % 2] })
            .collect();
        let mut scratch = Scratch::default();
        for draw in 0..30 {
            let logits = row(draw, 5003);
            for way in ways {
                let mut choices = Choices::default();
                let edits = if draw % 2 == 0 { &edits[..] } else { &[] };
                choices.push(&Choice { draw: u64::from(draw), ..way }, edits).expect("sound choices");
                let expected = sample::choose(choices.words(), 0, &logits, &mut Scratch::default());
                for isa in Isa::available() {
                    let found = choose(isa, choices.words(), 0, &logits, &mut scratch);
                    assert_eq!(found, expected, "{}: {way:?}", isa.name());
                }
            }
        }
    }
}
