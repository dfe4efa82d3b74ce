//! What a step says: its shape, which decides the plan, and its tables, which the kernels read.

use metallic_core::sample::HEADER;
use metallic_core::{BLOCK_TOKENS, SequenceSpan, Sizes, Step, Wanted};

use crate::command::Region;
use crate::error::GpuError;
use crate::kernels::{StepTable, TABLES, TILE_TOKENS};

/// Everything of a step that its plan depends on. Steps of one shape run the same commands on other tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    pub(crate) tokens: usize,
    pub(crate) outputs: usize,
    pub(crate) sequences: usize,
    pub(crate) tiles: usize,
    /// Most tokens any token may see, rounded up.
    pub(crate) visible: usize,
    /// Words of the block tables, rounded up.
    pub(crate) blocks: usize,
    /// Words of the block tables of layers with a window, where others have none.
    pub(crate) near: usize,
    /// Words of the choices, rounded up.
    pub(crate) choices: usize,
    /// Shares of adapters, of all tokens.
    pub(crate) adapters: usize,
    /// Choices have edits of logits.
    pub(crate) edits: bool,
    /// The wanted results are those of all tokens, in order.
    pub(crate) all_outputs: bool,
    /// Some tokens are those the step before chooses.
    pub(crate) fed: bool,
    pub(crate) wanted: Wanted,
    /// Which of the buffers for steps under way it takes.
    pub(crate) lane: usize,
}

/// Tokens in sight are told apart in steps of an eighth of the power of two above, of this many at least.
const SIGHT: usize = 128;

/// So many tokens in sight, or a few more: a plan serves some steps before the next one is needed.
pub(crate) fn rounded_sight(tokens: usize) -> usize {
    tokens.next_multiple_of((tokens.next_power_of_two() / 8).max(SIGHT))
}

impl StepShape {
    pub(crate) fn of(step: &Step<'_>, lane: usize) -> StepShape {
        let visible = step.sequences.iter().map(SequenceSpan::kv_len).max().unwrap_or(0);
        let blocks: usize = step.sequences.iter().map(blocks_of).sum();
        let blocks = blocks.next_power_of_two().max(64);
        StepShape {
            tokens: step.tokens.len(),
            outputs: step.outputs.len(),
            sequences: step.sequences.len(),
            tiles: step.sequences.iter().map(|s| s.tokens.len().div_ceil(TILE_TOKENS)).sum(),
            visible: rounded_sight(visible),
            blocks,
            near: if step.sequences.iter().any(|s| !s.near.is_empty()) { blocks } else { 0 },
            choices: match step.choices.len() {
                0 => 0,
                words => words.next_power_of_two().max(64),
            },
            adapters: step.adapters.len(),
            edits: step.choices.len() > step.outputs.len() * HEADER,
            all_outputs: step.outputs.len() == step.tokens.len()
                && (0..).zip(step.outputs).all(|(index, row)| index == *row),
            fed: !step.fed.is_empty(),
            wanted: step.wanted,
            lane,
        }
    }

    pub(crate) fn sizes(&self) -> Sizes {
        Sizes { tokens: self.tokens, outputs: self.outputs }
    }

    fn words(&self, table: StepTable) -> usize {
        match table {
            StepTable::Tokens | StepTable::Positions => self.tokens,
            StepTable::Outputs => self.outputs,
            StepTable::Choices => self.choices,
            StepTable::Adapters => self.adapters,
            StepTable::Rows => 2 * self.tokens,
            StepTable::Tiles => 4 * self.tiles,
            StepTable::Sequences => 4 * self.sequences,
            StepTable::Blocks => self.blocks,
            StepTable::Near => self.near,
        }
    }

    /// Where a table begins, in words: a multiple of four, so that it can be read four words at a time.
    fn start(&self, table: StepTable) -> usize {
        let before = TABLES.iter().take_while(|t| **t != table);
        before.map(|t| self.words(*t).next_multiple_of(4)).sum()
    }

    /// Where a table lies in the buffer that holds them all.
    pub(crate) fn region(&self, table: StepTable, all: Region) -> Result<Region, GpuError> {
        all.slice(4 * self.start(table), 4 * self.words(table))
    }

    pub(crate) fn table_bytes(&self) -> usize {
        TABLES.iter().map(|t| 4 * self.words(*t).next_multiple_of(4)).sum()
    }
}

/// What a step does that its shape does not tell, for counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepCounts {
    pub(crate) tokens: usize,
    pub(crate) tiles: usize,
    /// Tokens that the tokens of the step see, each its own.
    pub(crate) seen: usize,
    /// Tokens that the query tiles see, each its own.
    pub(crate) tiles_see: usize,
    pub(crate) sequences: usize,
    /// Tokens that the sequences hold, each once.
    pub(crate) held: usize,
}

/// In a table of tokens: the rest of the word is a row of the step before, which chooses the token.
const FED: u32 = 1 << 31;

/// Writes down a valid step of this shape, table after table.
pub(crate) fn write_tables(step: &Step<'_>, shape: &StepShape, words: &mut Vec<u32>) -> StepCounts {
    words.clear();
    let mut counts = StepCounts {
        tokens: step.tokens.len(),
        tiles: shape.tiles,
        sequences: step.sequences.len(),
        held: step.sequences.iter().map(SequenceSpan::kv_len).sum(),
        ..StepCounts::default()
    };
    for table in TABLES {
        words.resize(shape.start(*table), 0);
        let first = words.len();
        match table {
            StepTable::Tokens => {
                words.extend(step.tokens);
                step.fed.iter().for_each(|fed| words[first + fed.token as usize] = FED | fed.row);
            }
            StepTable::Positions => words.extend(step.positions),
            StepTable::Outputs => words.extend(step.outputs),
            StepTable::Choices => words.extend(step.choices),
            StepTable::Adapters => words.extend(step.adapters.iter().map(|share| share.to_bits())),
            StepTable::Rows => each_span(step, |span, table| {
                for index in 0..span.tokens.len() {
                    words.extend([table, span.past + index + 1].map(|n| n as u32));
                    counts.seen += span.past + index + 1;
                }
            }),
            StepTable::Tiles => each_span(step, |span, table| {
                for first in span.tokens.clone().step_by(TILE_TOKENS) {
                    let count = TILE_TOKENS.min(span.tokens.end - first);
                    let visible = span.past + (first - span.tokens.start) + 1;
                    words.extend([first, count, table, visible].map(|n| n as u32));
                    counts.tiles_see += visible + count - 1;
                }
            }),
            StepTable::Sequences => each_span(step, |span, _| {
                let fresh = u32::from(span.past == 0);
                words.extend([span.tokens.start as u32, span.tokens.len() as u32, span.slot, fresh]);
            }),
            StepTable::Blocks => each_span(step, |span, _| words.extend(&span.blocks[..blocks_of(span)])),
            StepTable::Near if shape.near == 0 => {}
            StepTable::Near => each_span(step, |span, _| words.extend(&span.table(true)[..blocks_of(span)])),
        }
    }
    words.resize(shape.table_bytes() / 4, 0);
    counts
}

/// Visits the sequences, each with where its block table begins.
fn each_span(step: &Step<'_>, mut visit: impl FnMut(&SequenceSpan<'_>, usize)) {
    let mut table = 0;
    for span in step.sequences {
        visit(span, table);
        table += blocks_of(span);
    }
}

fn blocks_of(span: &SequenceSpan<'_>) -> usize {
    span.kv_len().div_ceil(BLOCK_TOKENS)
}

#[cfg(test)]
mod tests {
    use metallic_core::Fed;

    use super::*;
    use crate::gpu::BufferId;

    #[test]
    fn every_token_knows_its_table_and_what_it_sees() {
        let (first, second) = ([7, 3], [5]);
        let tokens: Vec<u32> = (0..38).collect();
        let step = Step {
            tokens: &tokens,
            positions: &tokens,
            sequences: &[
                SequenceSpan { tokens: 0..35, past: 4, blocks: &first, near: &[], slot: 3 },
                SequenceSpan { tokens: 35..38, past: 0, blocks: &second, near: &[], slot: 1 },
            ],
            outputs: &[34, 37],
            fed: &[Fed { token: 35, row: 2 }],
            ..Step::default()
        };
        let shape = StepShape::of(&step, 0);
        assert_eq!((shape.tokens, shape.outputs, shape.tiles, shape.sequences), (38, 2, 3, 2));
        assert_eq!((shape.visible, shape.all_outputs, shape.fed), (128, false, true));
        let mut words = Vec::new();
        let counts = write_tables(&step, &shape, &mut words);
        assert_eq!(counts.seen, (5..=39).sum::<usize>() + 1 + 2 + 3);
        assert_eq!(counts.tiles_see, 36 + 39 + 3);
        assert_eq!((counts.sequences, counts.held), (2, 39 + 3));
        assert_eq!(words.len() * 4, shape.table_bytes());
        let table = |which| {
            let region = shape.region(which, Region::whole(BufferId(0), words.len() * 4)).unwrap();
            assert_eq!(region.offset() % 16, 0);
            words[region.offset() / 4..][..region.len() / 4].to_vec()
        };
        assert_eq!(table(StepTable::Tiles), [0, 32, 0, 5, 32, 3, 0, 37, 35, 3, 2, 1]);
        assert_eq!(table(StepTable::Rows)[..4], [0, 5, 0, 6]);
        assert_eq!(table(StepTable::Rows)[70..], [2, 1, 2, 2, 2, 3]);
        assert_eq!(table(StepTable::Blocks)[..4], [7, 3, 5, 0]);
        assert_eq!(table(StepTable::Outputs), [34, 37]);
        assert_eq!(table(StepTable::Sequences), [0, 35, 3, 0, 35, 3, 1, 1]);
        assert_eq!(table(StepTable::Tokens)[34..37], [34, FED | 2, 36]);
    }

    #[test]
    fn a_longer_context_keeps_its_shape_for_a_while() {
        for (tokens, rounded) in
            [(1, 128), (128, 128), (129, 256), (1000, 1024), (1024, 1024), (1025, 1280), (5000, 5120)]
        {
            assert_eq!(rounded_sight(tokens), rounded, "{tokens}");
        }
    }
}
