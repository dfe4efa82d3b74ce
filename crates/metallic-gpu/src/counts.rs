//! What steps cost by their plans: bytes that launches move, and multiply-adds.

use metallic_core::OpCost;

use crate::command::{Command, Dispatch};
use crate::kernel_counts::KernelCounts;
use crate::kernels::{Moved, SlotUse, Stage};
use crate::step::StepCounts;

/// What the steps of one shape cost, or one launch of them, apart from what each of them looks at.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) dispatches: u64,
    read: u64,
    pub(crate) written: u64,
    /// Reads that the step alone knows, each kind once with its sum.
    seen: Vec<Moved>,
    work: u64,
    /// Multiply-adds of launches that look at tokens, if every token of a step saw as many as any could; each window once.
    looking: Vec<Looking>,
    pub(crate) kernels: KernelCounts,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Looking {
    window: Option<usize>,
    work: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, command: &Command, stage: &Stage) {
        self.dispatches += 1;
        if let Some(dispatch) = command.dispatch() {
            self.kernels.add(dispatch, stage);
        }
        let mut looks = None;
        for ((_, binding), SlotUse { moved, .. }) in
            command.dispatch().into_iter().flat_map(Dispatch::bindings).zip(stage.slots())
        {
            if let Moved::Seen { row, readers, window, tiles } = *moved {
                looks = Some(Looking { window, work: stage.launch.work });
                let same = |known: &&mut Moved| matches!(known, Moved::Seen { readers: r, window: w, tiles: t, .. } if *r == readers && *w == window && *t == tiles);
                match self.seen.iter_mut().find(same) {
                    Some(Moved::Seen { row: sum, .. }) => *sum = sum.saturating_add(row),
                    Some(Moved::Once | Moved::Bytes(_)) | None => self.seen.push(*moved),
                }
                continue;
            }
            let (read, written) = binding.traffic();
            self.read += read;
            self.written += written;
        }
        match looks {
            Some(looking) => self.look(looking),
            None => self.work = self.work.saturating_add(stage.launch.work),
        }
    }

    fn look(&mut self, looking: Looking) {
        match self.looking.iter_mut().find(|known| known.window == looking.window) {
            Some(known) => known.work = known.work.saturating_add(looking.work),
            None => self.looking.push(looking),
        }
    }

    /// Bytes read.
    pub(crate) fn read(&self, step: &StepCounts) -> u64 {
        self.seen.iter().filter_map(|seen| seen.bytes(step)).fold(self.read, |sum, bytes| sum + bytes as u64)
    }

    /// Multiply-adds, in a plan for tokens that see `visible` at most.
    pub(crate) fn multiply_adds(&self, step: &StepCounts, visible: usize) -> u64 {
        let looking = self.looking.iter().map(|looking| looking.of(step, visible));
        looking.fold(self.work, u64::saturating_add)
    }
}

impl Looking {
    /// The part that belongs to tokens which are looked at.
    fn of(&self, step: &StepCounts, visible: usize) -> u64 {
        let looks =
            Moved::Seen { row: 1, readers: 1, window: self.window, tiles: false }.bytes(step).unwrap_or(0);
        let planned = visible.min(self.window.unwrap_or(usize::MAX)).saturating_mul(step.tokens).max(1);
        let part = u128::from(self.work) * looks.min(planned) as u128 / planned as u128;
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// One launch of a step: what it belongs to, and what it costs.
#[derive(Clone, Debug)]
pub(crate) struct LaunchCounts {
    /// Operation, weights and kernel; its numbers are zeros.
    pub(crate) kind: OpCost,
    pub(crate) counts: Counts,
}

impl LaunchCounts {
    /// What it cost in a step, in which it took so long.
    pub(crate) fn cost(&self, step: &StepCounts, visible: usize, time: std::time::Duration) -> OpCost {
        OpCost {
            times: 1,
            time,
            bytes: self.counts.read(step) + self.counts.written,
            multiply_adds: self.counts.multiply_adds(step, visible),
            ..self.kind.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_looks_at_tokens_is_counted_by_those_there_are() {
        let mut counts = Counts { work: 1000, ..Counts::default() };
        // As if 3 tokens saw 8 each, 10 multiply-adds a look.
        counts.look(Looking { window: None, work: 3 * 8 * 10 });
        counts.look(Looking { window: None, work: 3 * 8 * 10 });
        counts.look(Looking { window: Some(2), work: 3 * 2 * 100 });
        let step = StepCounts { tokens: 3, tiles: 1, seen: 1 + 2 + 3, tiles_see: 3, sequences: 1, held: 3 };
        assert_eq!(
            counts.multiply_adds(&step, 8),
            1000 + 6 * 20 + 6 * 100,
            "a window of 2 is counted as full"
        );
        let one = StepCounts { tokens: 1, tiles: 1, seen: 1, tiles_see: 1, sequences: 1, held: 1 };
        let mut counts = Counts::default();
        counts.look(Looking { window: Some(4), work: 4 * 100 });
        assert_eq!(counts.multiply_adds(&one, 128), 100);
        assert_eq!(counts.multiply_adds(&one, 1), 400, "no more than was planned");
    }
}
