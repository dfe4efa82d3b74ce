//! When guessing pays: what steps of so many tokens take, how often guesses are right, and how many to make.

/// Guesses are told apart by how sure they seem: by the length of their match, or by their place in a draft.
pub(super) const CLASSES: usize = 7;

/// Of how many guesses the past counts: of one sequence, and of all together.
const OWN_MEMORY: f32 = 40.0;
const ALL_MEMORY: f32 = 400.0;
/// What all sequences showed counts as much as so many guesses of one.
const PRIOR: f32 = 3.0;
/// By so much the rate of tokens must grow for a guess to be made.
const GAIN: f64 = 1.03;

/// How often guesses were right, lately, by class.
#[derive(Clone, Debug)]
pub(super) struct Odds {
    right: [f32; CLASSES],
    tried: [f32; CLASSES],
    memory: f32,
}

impl Odds {
    /// Of a sequence, which has shown nothing.
    pub(super) fn new() -> Self {
        Self { right: [0.0; CLASSES], tried: [0.0; CLASSES], memory: OWN_MEMORY }
    }

    /// Of an engine, with what is usual.
    pub(super) fn of_all(usual: [f32; CLASSES]) -> Self {
        let tried = [8.0; CLASSES];
        Self { right: usual.map(|share| share * 8.0), tried, memory: ALL_MEMORY }
    }

    pub(super) fn note(&mut self, class: usize, is_right: bool) {
        let (right, tried) = (&mut self.right[class], &mut self.tried[class]);
        let fades = 1.0 - 1.0 / self.memory;
        *tried = *tried * fades + 1.0;
        *right = *right * fades + f32::from(u8::from(is_right));
    }

    /// How probable it is that a guess of this class is right, by what it and `all` have shown.
    pub(super) fn of(&self, class: usize, all: &Odds) -> f64 {
        let usual = all.right[class] / all.tried[class].max(1e-3);
        f64::from((self.right[class] + PRIOR * usual) / (self.tried[class] + PRIOR))
    }
}

/// Steps of so many tokens are told apart one by one up to this, and further up by eighths of an octave.
const SINGLE: usize = 24;
/// How much the last step counts beside those before.
const FRESH: f64 = 0.15;
/// What was not measured for so many steps is no longer known.
const STALE: u64 = 400;
/// A token more costs so much of a step, as long as nothing is known.
const SLOPE: f64 = 0.12;

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    tokens: f64,
    seconds: f64,
    /// How often it was measured, and when last.
    count: u32,
    at: u64,
}

/// What steps of so many tokens take, as measured lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Costs {
    cells: Vec<Cell>,
    steps: u64,
}

fn cell(tokens: usize) -> usize {
    if tokens <= SINGLE {
        return tokens;
    }
    let octaves = (tokens as f64 / SINGLE as f64).log2();
    SINGLE + 1 + (octaves * 8.0) as usize
}

impl Costs {
    /// Notes that a step was taken elsewhere: what is known here grows older.
    pub(super) fn pass(&mut self) {
        self.steps += 1;
    }

    pub(super) fn note(&mut self, tokens: usize, seconds: f64) {
        self.steps += 1;
        let index = cell(tokens);
        if self.cells.len() <= index {
            self.cells.resize(index + 1, Cell::default());
        }
        let now = self.steps;
        let cell = &mut self.cells[index];
        let (known, tokens) = (cell.count > 1 && now - cell.at < STALE, tokens as f64);
        if known {
            // One step that the machine was busy with something else says little.
            let seconds = seconds.min(cell.seconds * 2.0);
            cell.tokens += FRESH * (tokens - cell.tokens);
            cell.seconds += FRESH * (seconds - cell.seconds);
        } else {
            // The first step of a size has things to make ready, and does not count.
            *cell = Cell { tokens, seconds, ..*cell };
        }
        *cell = Cell { count: cell.count.saturating_add(1), at: now, ..*cell };
    }

    /// What a step of so many tokens will take; `None` where none was measured.
    pub(super) fn of(&self, tokens: usize) -> Option<f64> {
        let is_known = |cell: &&Cell| cell.count > 1 && self.steps - cell.at < STALE;
        let mut known = self.cells.iter().filter(is_known);
        let wanted = tokens as f64;
        let (mut below, mut above): (Option<&Cell>, Option<&Cell>) = (None, None);
        let mut before = None;
        for cell in known.by_ref() {
            if cell.tokens <= wanted {
                before = below.replace(cell);
            } else {
                above = Some(cell);
                break;
            }
        }
        Some(match (before, below, above) {
            (_, Some(a), Some(b)) => {
                a.seconds + (b.seconds - a.seconds) * (wanted - a.tokens) / (b.tokens - a.tokens)
            }
            (_, None, Some(b)) => b.seconds,
            // Steps grow dearer at the same rate, if at all.
            (Some(a), Some(b), None) if b.seconds > a.seconds => {
                b.seconds + (b.seconds - a.seconds) * (wanted - b.tokens) / (b.tokens - a.tokens)
            }
            (_, Some(a), None) => a.seconds * (1.0 + SLOPE * (wanted - a.tokens) / a.tokens.max(1.0)),
            (_, None, None) => return None,
        })
    }
}

/// How many guesses are made for each sequence, and what that promises.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Tokens that are expected of the step, and what it will take.
    pub(super) tokens: f64,
    pub(super) seconds: f64,
    /// Guesses of each sequence.
    pub(super) guesses: Vec<usize>,
}

/// Decides how many of its guesses each of the `chances`' sequences brings, besides its next token. Chances of one sequence fall
/// from guess to guess: each is that of all guesses up to it. At most `most` guesses are made together.
pub(super) fn plan(costs: &Costs, chances: &[Vec<f64>], most: usize) -> Option<Plan> {
    let sequences = chances.len();
    let alone = costs.of(sequences)?;
    let mut all: Vec<(f64, usize)> = Vec::new();
    for (sequence, chances) in chances.iter().enumerate() {
        all.extend(chances.iter().map(|chance| (*chance, sequence)));
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let (mut best, mut count) = (Plan { tokens: sequences as f64, seconds: alone, guesses: Vec::new() }, 0);
    let (mut rate, mut expected) = (best.tokens / best.seconds * GAIN, best.tokens);
    for (index, (chance, _)) in all.iter().enumerate().take(most) {
        expected += chance;
        let seconds = costs.of(sequences + index + 1)?;
        if expected / seconds > rate {
            (rate, count) = (expected / seconds, index + 1);
            (best.tokens, best.seconds) = (expected, seconds);
        }
    }
    best.guesses = vec![0; sequences];
    for (_, sequence) in &all[..count] {
        best.guesses[*sequence] += 1;
    }
    Some(best)
}

/// The same where guesses are made one after another for all sequences at once, each round taking `round` seconds: how many rounds
/// are made.
pub(super) fn plan_rounds(costs: &Costs, round: f64, chances: &[Vec<f64>]) -> Option<Plan> {
    let sequences = chances.len();
    let mut best =
        Plan { tokens: sequences as f64, seconds: costs.of(sequences)?, guesses: vec![0; sequences] };
    let mut rate = best.tokens / best.seconds * GAIN;
    let rounds = chances.iter().map(Vec::len).max().unwrap_or(0);
    let (mut expected, mut tokens) = (best.tokens, sequences);
    for made in 1..=rounds {
        let further = chances.iter().filter_map(|chances| chances.get(made - 1));
        tokens += further.clone().count();
        expected += further.sum::<f64>();
        let seconds = costs.of(tokens)? + round * made as f64;
        if expected / seconds > rate {
            rate = expected / seconds;
            let guesses = chances.iter().map(|chances| chances.len().min(made)).collect();
            best = Plan { tokens: expected, seconds, guesses };
        }
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps that take `first` seconds, and `more` for each token after the first.
    fn costs(first: f64, more: f64) -> Costs {
        let mut costs = Costs::default();
        for _ in 0..3 {
            (1..=40).for_each(|n| costs.note(n, first + more * (n - 1) as f64));
        }
        costs
    }

    fn chances(p: f64, n: i32) -> Vec<f64> {
        (1..=n).map(|i| p.powi(i)).collect()
    }

    #[test]
    fn odds_follow_what_is_seen_and_begin_with_what_others_saw() {
        let mut all = Odds::of_all([0.5; CLASSES]);
        let mut own = Odds::new();
        assert!((own.of(2, &all) - 0.5).abs() < 1e-6);
        (0..200).for_each(|_| own.note(2, true));
        assert!(own.of(2, &all) > 0.95);
        assert!((own.of(3, &all) - 0.5).abs() < 1e-6, "each class for itself");
        (0..60).for_each(|_| own.note(2, false));
        assert!(own.of(2, &all) < 0.3, "{}", own.of(2, &all));
        (0..2000).for_each(|_| all.note(1, false));
        assert!(Odds::new().of(1, &all) < 0.01);
    }

    #[test]
    fn what_was_not_measured_lies_between_what_was() {
        let mut known = Costs::default();
        assert_eq!(known.of(1), None);
        known.note(1, 9.0);
        assert_eq!(known.of(1), None, "the first of a size does not count");
        known.note(1, 1.0);
        assert_eq!(known.of(1), Some(1.0));
        assert!((known.of(6).unwrap() - 1.0 - 5.0 * SLOPE).abs() < 1e-9);
        (0..2).for_each(|_| known.note(9, 3.0));
        assert!((known.of(5).unwrap() - 2.0).abs() < 1e-9);
        assert!((known.of(13).unwrap() - 4.0).abs() < 1e-9);
        (0..30).for_each(|_| known.note(1, 5.0));
        assert!((known.of(1).unwrap() - 5.0).abs() < 0.1);
        (0..STALE).for_each(|_| known.note(1, 5.0));
        assert!(known.of(9).unwrap() > 9.0, "what was measured long ago is not known: {:?}", known.of(9));
    }

    #[test]
    fn one_slow_step_does_not_turn_guessing_off() {
        let mut costs = costs(1.0, 0.1);
        costs.note(5, 100.0);
        assert!(costs.of(5).unwrap() < 1.7);
    }

    #[test]
    fn good_guesses_on_a_device_with_cheap_tokens_are_made_in_full() {
        let plan = plan(&costs(1.0, 0.05), &[chances(0.98, 15)], 15).unwrap();
        assert_eq!(plan.guesses, [15]);
        assert!(plan.tokens > 12.0 && plan.seconds < 1.8);
    }

    #[test]
    fn nothing_is_guessed_where_it_does_not_pay() {
        // Right half the time, and a token more costs as much as half a step more.
        assert_eq!(plan(&costs(1.0, 0.5), &[chances(0.5, 15)], 15).unwrap().guesses, [0]);
        assert_eq!(plan(&costs(1.0, 1.0), &[chances(0.95, 15)], 15).unwrap().guesses, [0]);
        assert_eq!(plan(&costs(1.0, 0.1), &[chances(0.1, 15)], 15).unwrap().guesses, [0]);
        assert_eq!(plan(&Costs::default(), &[chances(1.0, 3)], 3), None);
    }

    #[test]
    fn the_surest_guesses_of_all_sequences_come_first() {
        let (sure, unsure) = (chances(0.95, 15), chances(0.4, 15));
        let plan = plan(&costs(1.0, 0.15), &[unsure, sure, Vec::new()], 100).unwrap();
        assert!(plan.guesses[1] > 5 && plan.guesses[0] <= 1 && plan.guesses[2] == 0, "{plan:?}");
        let most = super::plan(&costs(1.0, 0.01), &[chances(0.95, 15), chances(0.95, 15)], 8).unwrap();
        assert_eq!(most.guesses, [4, 4]);
    }

    #[test]
    fn a_jump_between_one_token_and_two_is_looked_past() {
        let mut costs = Costs::default();
        for _ in 0..2 {
            costs.note(1, 1.0);
            (2..=16).for_each(|n| costs.note(n, 2.5));
        }
        assert_eq!(plan(&costs, &[chances(0.95, 15)], 15).unwrap().guesses, [15]);
    }

    #[test]
    fn a_draft_is_as_long_as_its_own_cost_allows() {
        let chances = [chances(0.8, 8), chances(0.8, 3)];
        let of = |round| plan_rounds(&costs(1.0, 0.01), round, &chances).unwrap().guesses;
        assert_eq!(of(0.001), [8, 3]);
        let some = of(0.15);
        assert!(some[0] > 0 && some[0] < 8 && some[1] == some[0].min(3), "{some:?}");
        assert_eq!(of(1.0), [0, 0], "a draft as dear as the model");
    }
}
