//! What a step says, written down as the tables the kernels read.

use metallic_core::{BLOCK_TOKENS, SequenceSpan, Sizes, Step};

use crate::command::Region;
use crate::error::GpuError;
use crate::kernels::{StepTable, TILE_TOKENS};

/// The tables of one step, one after another in one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTables {
    words: Vec<u32>,
    /// First word and length of each table, by [`StepTable`].
    places: [(usize, usize); 6],
    facts: StepFacts,
    /// The table being written.
    open: Option<StepTable>,
}

/// What planning needs to know of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StepFacts {
    /// Tokens of all sequences.
    pub(crate) tokens: usize,
    /// Tokens whose result is wanted.
    pub(crate) outputs: usize,
    /// Query tiles.
    pub(crate) tiles: usize,
    /// Most tokens any token may see.
    pub(crate) visible_max: usize,
    /// Tokens that the tokens of the step see, each its own.
    pub(crate) seen: usize,
    /// Tokens that the query tiles see, each its own.
    pub(crate) tiles_see: usize,
    /// Most tokens one sequence brings.
    pub(crate) longest: usize,
    /// The wanted results are those of all tokens, in order.
    pub(crate) all_outputs: bool,
}

impl StepFacts {
    /// What the symbolic axes are.
    pub(crate) fn sizes(&self) -> Sizes {
        Sizes { tokens: self.tokens, outputs: self.outputs }
    }
}

impl StepTables {
    /// Writes down a valid step.
    pub(crate) fn fill(&mut self, step: &Step<'_>) {
        self.words.clear();
        self.facts = StepFacts {
            tokens: step.tokens.len(),
            outputs: step.outputs.len(),
            visible_max: step.sequences.iter().map(SequenceSpan::kv_len).max().unwrap_or(0),
            longest: step.sequences.iter().map(|s| s.tokens.len()).max().unwrap_or(0),
            tiles: 0,
            seen: 0,
            tiles_see: 0,
            all_outputs: step.outputs.len() == step.tokens.len()
                && (0..).zip(step.outputs).all(|(index, row)| index == *row),
        };
        let mut table = 0;
        self.begin(StepTable::Tiles);
        for span in step.sequences {
            for first in span.tokens.clone().step_by(TILE_TOKENS) {
                let count = TILE_TOKENS.min(span.tokens.end - first);
                let visible = span.past + (first - span.tokens.start) + 1;
                self.words.extend([first, count, table, visible].map(|n| n as u32));
                self.facts.tiles += 1;
                self.facts.tiles_see += visible + count - 1;
            }
            table += blocks_of(span);
        }
        self.begin(StepTable::Rows);
        table = 0;
        for span in step.sequences {
            for index in 0..span.tokens.len() {
                self.words.extend([table, span.past + index + 1].map(|n| n as u32));
                self.facts.seen += span.past + index + 1;
            }
            table += blocks_of(span);
        }
        self.begin(StepTable::Tokens);
        self.words.extend(step.tokens);
        self.begin(StepTable::Positions);
        self.words.extend(step.positions);
        self.begin(StepTable::Outputs);
        self.words.extend(step.outputs);
        self.begin(StepTable::Blocks);
        for span in step.sequences {
            self.words.extend(&span.blocks[..blocks_of(span)]);
        }
        self.end();
    }

    /// What planning needs.
    pub(crate) fn facts(&self) -> StepFacts {
        self.facts
    }

    /// Appends the bytes to hand to the device.
    pub(crate) fn write_to(&self, bytes: &mut Vec<u8>) {
        bytes.extend(self.words.iter().flat_map(|w| w.to_ne_bytes()));
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.words.len() * 4
    }

    /// Where a table lies in the buffer that holds them all.
    pub(crate) fn region(&self, table: StepTable, all: Region) -> Result<Region, GpuError> {
        let (start, len) = self.places[table as usize];
        all.slice(start * 4, len * 4)
    }

    /// Tables begin at 16 bytes, so that they can be read four words at a time.
    fn begin(&mut self, table: StepTable) {
        self.end();
        self.words.resize(self.words.len().next_multiple_of(4), 0);
        self.places[table as usize] = (self.words.len(), 0);
        self.open = Some(table);
    }

    fn end(&mut self) {
        if let Some(table) = self.open.take() {
            let (start, len) = &mut self.places[table as usize];
            *len = self.words.len() - *start;
        }
    }
}

fn blocks_of(span: &SequenceSpan<'_>) -> usize {
    span.kv_len().div_ceil(BLOCK_TOKENS)
}

#[cfg(test)]
mod tests {
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
                SequenceSpan { tokens: 0..35, past: 4, blocks: &first },
                SequenceSpan { tokens: 35..38, past: 9, blocks: &second },
            ],
            outputs: &[34, 37],
        };
        let mut tables = StepTables::default();
        tables.fill(&step);
        let facts = tables.facts();
        assert_eq!((facts.tokens, facts.outputs, facts.tiles), (38, 2, 3));
        assert!(!facts.all_outputs);
        assert_eq!((facts.visible_max, facts.longest), (39, 35));
        assert_eq!(facts.seen, (5..=39).sum::<usize>() + 10 + 11 + 12);
        assert_eq!(facts.tiles_see, 36 + 39 + 12);
        let table = |which| {
            let region = tables.region(which, Region::whole(BufferId(0), tables.len())).unwrap();
            assert_eq!(region.offset() % 16, 0);
            tables.words[region.offset() / 4..][..region.len() / 4].to_vec()
        };
        assert_eq!(table(StepTable::Tiles), [0, 32, 0, 5, 32, 3, 0, 37, 35, 3, 2, 10]);
        assert_eq!(table(StepTable::Rows)[..4], [0, 5, 0, 6]);
        assert_eq!(table(StepTable::Rows)[70..], [2, 10, 2, 11, 2, 12]);
        assert_eq!(table(StepTable::Blocks), [7, 3, 5]);
        assert_eq!(table(StepTable::Outputs), [34, 37]);
    }
}
