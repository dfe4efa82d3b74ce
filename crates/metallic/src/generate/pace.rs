//! How large pieces of prompts may be: by what steps took of late.

/// How much the last step counts.
const FRESH: f64 = 0.25;
/// A step that takes so many times as long as expected counts as if it took that long: the machine was busy with something else.
const OUTLIER: f64 = 4.0;
/// Seconds that a step of prompts alone should take at most: so long waits who comes meanwhile.
const ALONE_S: f64 = 0.4;
/// Tokens of such a step that are never too many: fewer leave a device idle.
const ALONE_LEAST: usize = 128;
/// Tokens beside answers until it is known what they cost.
const FIRST: usize = 8;
/// Fewer tokens than this say little about what one takes.
const TELLING: usize = 32;

/// After so many steps with prompts it is no longer known what one without takes: there may be prompts in all of them.
const STALE: u32 = 64;
/// How much a step counts that is measured after such a time.
const ANEW: f64 = 0.5;
/// No step or token takes less than so many seconds.
const LEAST_S: f64 = 1e-9;

/// Steps are told apart by the bits of the number of their answers, up to this many.
const SIZES: usize = 16;

/// What steps took: those of answers alone, and what tokens of prompts add to them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Steps of answers, by the number of bits of their number.
    ordinary: [Ordinary; SIZES],
    /// Seconds of a token in steps of prompts alone.
    alone: Option<f64>,
}

/// Steps with about so many answers.
#[derive(Clone, Copy, Debug, Default)]
struct Ordinary {
    /// Of answers alone.
    seconds: Option<f64>,
    /// Steps with prompts since that was measured.
    since: u32,
    /// Seconds a token of a prompt adds.
    beside: Option<f64>,
    /// Tokens of prompts in the last step that had some.
    last: usize,
}

fn bits(answers: usize) -> usize {
    ((usize::BITS - answers.leading_zeros()) as usize).min(SIZES - 1)
}

fn note(known: &mut Option<f64>, seconds: f64, fresh: f64) {
    // A clock may not tell two moments apart; of nothing there is no multiple.
    let seconds = seconds.max(LEAST_S);
    *known = Some(known.map_or(seconds, |old| old + fresh * (seconds.min(OUTLIER * old) - old)));
}

impl Pace {
    /// Notes what a step took of so many answers and so many tokens of prompts.
    pub(super) fn observe(&mut self, answers: usize, prompts: usize, seconds: f64) {
        let elsewhere = self.each(answers);
        let ordinary = &mut self.ordinary[bits(answers)];
        match (answers, prompts) {
            (_, 0) => {
                let fresh = if ordinary.since < STALE { FRESH } else { ANEW };
                note(&mut ordinary.seconds, seconds, fresh);
                ordinary.since = 0;
            }
            (0, _) if prompts >= TELLING || self.alone.is_none() => {
                note(&mut self.alone, seconds / prompts as f64, FRESH);
            }
            (0, _) => {}
            (_, _) => {
                ordinary.last = prompts;
                ordinary.since = ordinary.since.saturating_add(1);
                if let Some(seconds_without) = ordinary.seconds {
                    // A token that costs nothing measurable costs a little.
                    let added = (seconds - seconds_without).max(seconds_without / 1000.0);
                    // The first time it is held to what tokens take elsewhere.
                    ordinary.beside = ordinary.beside.or(elsewhere);
                    note(&mut ordinary.beside, added / prompts as f64, FRESH);
                }
            }
        }
    }

    /// Notes a step of so many answers with pieces of many prompts: large pieces cost less by the token than those of a long one beside answers.
    pub(super) fn crowded(&mut self, answers: usize) {
        let since = &mut self.ordinary[bits(answers)].since;
        *since = since.saturating_add(1);
    }

    /// Seconds of a token of a prompt beside so many answers, or where that is not known yet the most it takes beside others, or alone.
    fn each(&self, answers: usize) -> Option<f64> {
        let most = || self.ordinary.iter().filter_map(|steps| steps.beside).max_by(f64::total_cmp);
        self.ordinary[bits(answers)].beside.or_else(most).or(self.alone)
    }

    /// Seconds that a step with so many answers may take beyond what it takes by itself; none while that is not known.
    pub(super) fn spare(&self, answers: usize, stretch: f64) -> f64 {
        if stretch.is_infinite() {
            return f64::INFINITY;
        }
        (stretch - 1.0) * self.ordinary[bits(answers)].seconds.unwrap_or(0.0)
    }

    /// Most tokens of prompts in a step with so many answers, which is to take no longer than `stretch` steps without. None while it is
    /// not known, or no longer, what a step without takes: then it is measured. Of a `crowd` of short prompts all but one count
    /// as the answers they are about to be: let in a few tokens at a time, the first would have ended before the last began.
    pub(super) fn piece(&self, answers: usize, crowd: usize, stretch: f64) -> usize {
        if stretch.is_infinite() {
            return usize::MAX;
        }
        if answers == 0 {
            let fitting = self.alone.map_or(usize::MAX, |seconds| (ALONE_S / seconds) as usize);
            return fitting.max(ALONE_LEAST);
        }
        let Ordinary { seconds: Some(ordinary), since: ..STALE, last, .. } = self.ordinary[bits(answers)]
        else {
            return 0;
        };
        let Some(each) = self.each(answers) else { return FIRST.max(crowd) };
        // A token of an answer takes about as long as one of a prompt.
        let others = crowd.saturating_sub(1);
        let fitting = ((stretch - 1.0) * ordinary / each + stretch * others as f64) as usize;
        // What costs little in small pieces may cost more in large ones.
        fitting.clamp(1, 2 * last.max(FIRST).max(others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a step takes on a machine where tokens cost 3 ms each after the first 6 ms.
    fn linear(tokens: usize) -> f64 {
        0.006 + 0.003 * tokens as f64
    }

    #[test]
    fn steps_with_pieces_take_as_long_as_they_may() {
        for answers in [1, 4, 16, 64] {
            let mut pace = Pace::default();
            pace.observe(0, 400, linear(400));
            assert_eq!(pace.piece(answers, 1, 2.5), 0, "first it is measured what a step without takes");
            pace.observe(answers, 0, linear(answers));
            for _ in 0..50 {
                let piece = pace.piece(answers, 1, 2.5);
                assert!(piece >= 1);
                let took = linear(answers + piece);
                assert!(took <= 2.6 * linear(answers), "{answers} answers and {piece} tokens: {took}");
                pace.observe(answers, piece, took);
            }
            let took = linear(answers + pace.piece(answers, 1, 2.5));
            assert!(took > 1.9 * linear(answers), "{answers}: {took}");
        }
    }

    #[test]
    fn a_crowd_of_short_prompts_comes_in_steps_as_long_as_its_answers_can_bear() {
        let mut pace = Pace::default();
        pace.observe(0, 400, linear(400));
        pace.observe(2, 0, linear(2));
        let usual = pace.piece(2, 0, 2.0);
        assert_eq!((pace.piece(2, 1, 2.0), pace.piece(2, 2, 2.0)), (usual, usual + 2));
        for crowd in [8, 60] {
            let piece = pace.piece(2, crowd, 2.0);
            assert!(piece >= crowd && linear(2 + piece) <= 2.1 * linear(2 + crowd), "{crowd}: {piece}");
        }
    }

    #[test]
    fn what_tokens_cost_beside_a_crowd_says_nothing_of_few_answers() {
        let mut pace = Pace::default();
        for answers in [4, 60] {
            pace.observe(answers, 0, linear(answers));
        }
        pace.observe(4, 8, linear(12));
        let usual = pace.piece(4, 1, 2.0);
        for _ in 0..20 {
            // As long as a step without them.
            pace.observe(60, 100, linear(60));
        }
        (0..20).for_each(|_| pace.crowded(4));
        assert_eq!(pace.piece(4, 1, 2.0), usual);
        // Of so many nothing is known yet: tokens take as long as where they take longest, and few come.
        pace.observe(20, 0, linear(20));
        assert_eq!((pace.each(20), pace.piece(20, 1, 2.0)), (pace.each(4), 2 * FIRST));
    }

    #[test]
    fn one_slow_step_does_not_make_all_that_follow_small() {
        let mut pace = Pace::default();
        pace.observe(1, 0, linear(1));
        pace.observe(0, 400, linear(400));
        let usual = pace.piece(1, 1, 2.5);
        pace.observe(1, usual, 5.0);
        for _ in 0..12 {
            let piece = pace.piece(1, 1, 2.5);
            pace.observe(1, piece, linear(1 + piece));
        }
        assert!(pace.piece(1, 1, 2.5) + 1 >= usual, "{} and {usual}", pace.piece(1, 1, 2.5));
    }

    #[test]
    fn steps_that_become_slower_are_noticed_though_every_one_of_them_has_prompts() {
        let mut pace = Pace::default();
        pace.observe(0, 400, 0.4);
        pace.observe(8, 0, 0.006);
        // Contexts have grown: ten times as long, and tokens of prompts cost what they did.
        let took = |piece: usize| 0.06 + 0.0001 * piece as f64;
        let mut pieces = Vec::new();
        for _ in 0..1000 {
            let piece = pace.piece(8, 1, 2.4);
            pace.observe(8, piece, took(piece));
            pieces.push(piece);
        }
        let late = &pieces[700..];
        assert!(late.iter().all(|piece| took(*piece) < 3.0 * took(0)), "{late:?}");
        assert!(late.iter().sum::<usize>() > late.len() * 300, "{late:?}");
        assert!(pieces.iter().filter(|piece| **piece == 0).count() < 25, "measuring is rare");
    }

    #[test]
    fn a_step_that_seems_to_take_no_time_is_no_measure_for_ever() {
        let mut pace = Pace::default();
        pace.observe(1, 0, 0.0);
        for _ in 0..60 {
            pace.observe(1, 0, linear(1));
        }
        pace.observe(0, 400, linear(400));
        assert_eq!(pace.piece(1, 1, 2.5), 4);
    }

    #[test]
    fn pieces_grow_step_by_step_where_tokens_cost_next_to_nothing() {
        let mut pace = Pace::default();
        pace.observe(1, 0, 0.005);
        let mut pieces = Vec::new();
        for _ in 0..5 {
            pieces.push(pace.piece(1, 1, 2.5));
            pace.observe(1, pieces[pieces.len() - 1], 0.005);
        }
        assert_eq!(pieces, [8, 16, 32, 64, 128]);
    }

    #[test]
    fn prompts_alone_are_cut_by_time_where_they_are_slow_and_nothing_is_where_that_is_asked_for() {
        let mut pace = Pace::default();
        assert_eq!(pace.piece(0, 1, 2.5), usize::MAX);
        pace.observe(0, 500, 0.5);
        assert_eq!(pace.piece(0, 1, 2.5), 400);
        pace.observe(0, 500, 500.0);
        assert_eq!(pace.piece(0, 1, 2.5), 228, "one slow step counts little");
        assert_eq!(
            (pace.piece(0, 1, f64::INFINITY), pace.piece(3, 1, f64::INFINITY)),
            (usize::MAX, usize::MAX)
        );
    }
}
