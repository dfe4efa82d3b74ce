//! What one sequence guesses, and how right it was.

use super::adapt::{CLASSES, Odds};
use super::lookup::{Lookup, Match, guessed};
use super::options::Speculation;

/// Guesses of a smaller model that did not pay are tried again after so many tokens at first, and after so many at last.
const PATIENCE: [usize; 2] = [64, 1024];
/// Tokens of such a trial.
const TRIAL: usize = 2;

/// A sequence's guesses.
#[derive(Debug)]
pub(in crate::generate) struct Guess {
    /// `None` where a smaller model guesses.
    lookup: Option<(Lookup, usize)>,
    /// Most tokens guessed at once.
    most: usize,
    odds: Odds,
    /// Where the tokens that end the sequence stood before.
    lead: Option<Match>,
    /// What the step under way has after the sequence's own tokens.
    pub(in crate::generate) draft: Vec<u32>,
    /// Tokens that the step under way has given so far.
    taken: usize,
    /// What became of guesses, made or only thought of, by class; whoever has seen them all takes them.
    pub(super) judged: Vec<(usize, bool)>,
    /// Tokens since a smaller model last guessed, and how many there must be for a trial.
    since: usize,
    patience: usize,
    /// Tokens guessed, and how many of them were right.
    pub(in crate::generate) drafted: usize,
    pub(in crate::generate) accepted: usize,
}

impl Guess {
    /// `None` where nothing is to be guessed.
    pub(in crate::generate) fn new(speculation: &Speculation) -> Option<Self> {
        let lookup = match speculation {
            Speculation::Off => return None,
            Speculation::Lookup(options) => Some((Lookup::default(), options.shortest)),
            Speculation::Draft(_) => None,
        };
        Some(Self {
            lookup,
            most: speculation.limits().0,
            odds: Odds::new(),
            lead: None,
            draft: Vec::new(),
            taken: 0,
            judged: Vec::new(),
            since: 0,
            patience: PATIENCE[0],
            drafted: 0,
            accepted: 0,
        })
    }

    /// Forgets the guesses of a step that is over.
    pub(in crate::generate) fn clear(&mut self) {
        self.draft.clear();
        self.taken = 0;
    }

    /// Looks where `tokens` end like this; to be called once they have grown.
    pub(super) fn look(&mut self, tokens: &[u32]) {
        if let Some((lookup, shortest)) = &mut self.lookup {
            self.lead = lookup.find(tokens, *shortest, self.lead);
        }
    }

    /// How probable each guess is, all before it being right: of as many as there may be.
    pub(super) fn chances(&self, all: &Odds, room: usize) -> Vec<f64> {
        let most = self.most.min(room);
        let first = match (&self.lookup, self.lead) {
            (None, _) => 0,
            (Some(_), Some(lead)) => lead.length,
            (Some(_), None) => return Vec::new(),
        };
        let mut chance = 1.0;
        let class =
            |index: usize| if self.lookup.is_some() { by_length(first + index) } else { by_place(index) };
        (0..most)
            .map(|index| {
                chance *= self.odds.of(class(index), all);
                chance
            })
            .collect()
    }

    /// Guesses so many tokens after `tokens`, as they followed before.
    pub(super) fn look_up(&mut self, tokens: &[u32], count: usize) {
        self.clear();
        if let Some(lead) = self.lead {
            self.draft.extend((0..count).map_while(|index| guessed(tokens, lead.source, index)));
        }
    }

    /// How many guesses of a smaller model are worth a try although they do not seem to pay.
    pub(super) fn trial(&mut self, room: usize) -> usize {
        if self.since < self.patience {
            return 0;
        }
        TRIAL.min(room).min(self.most)
    }

    /// A trial was made: the next one is farther away.
    pub(super) fn tried(&mut self) {
        self.patience = (self.patience * 2).min(PATIENCE[1]);
    }

    /// A smaller model is to guess for it, because that pays.
    pub(super) fn pays(&mut self) {
        self.patience = PATIENCE[0];
    }

    /// Sees which token was chosen after `tokens`, and says whether the step under way has guessed it: then its results go on
    /// with the next.
    pub(in crate::generate) fn judge(&mut self, tokens: &[u32], id: u32) -> bool {
        let made = self.draft.get(self.taken).copied();
        self.since = if made.is_some() { 0 } else { self.since + 1 };
        if self.lookup.is_some() {
            if let Some(lead) = self.lead {
                let is_right = guessed(tokens, lead.source, 0) == Some(id);
                self.judged.push((by_length(lead.length), is_right));
                let Match { source, length } = lead;
                self.lead = is_right.then_some(Match { source: source + 1, length: length + 1 });
            }
        } else if let Some(made) = made {
            self.judged.push((by_place(self.taken), made == id));
        }
        self.taken += 1;
        let is_right = made == Some(id);
        self.accepted += usize::from(is_right);
        is_right
    }

    /// Learns from what became of its guesses, and lets `all` learn.
    pub(super) fn learn(&mut self, all: &mut Odds) {
        for (class, is_right) in self.judged.drain(..) {
            self.odds.note(class, is_right);
            all.note(class, is_right);
        }
    }
}

/// How often guesses of each class are right, before any was made: of matches, and of a smaller model's.
pub(super) const USUAL_OF_MATCHES: [f32; CLASSES] = [0.25, 0.35, 0.45, 0.6, 0.7, 0.85, 0.9];
pub(super) const USUAL_OF_DRAFTS: [f32; CLASSES] = [0.7; CLASSES];

/// The class of a guess after a match of so many tokens.
fn by_length(length: usize) -> usize {
    match length {
        0..=2 => 0,
        3 => 1,
        4..=5 => 2,
        6..=8 => 3,
        9..=13 => 4,
        14..=23 => 5,
        _ => 6,
    }
}

/// The class of the guess at this place of a draft.
fn by_place(index: usize) -> usize {
    match index {
        0..=3 => index,
        4..=5 => 4,
        6..=8 => 5,
        _ => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeating() -> Guess {
        Guess::new(&Speculation::lookup()).expect("guesses")
    }

    #[test]
    fn what_follows_is_guessed_judged_and_learnt() {
        let mut all = Odds::of_all(USUAL_OF_MATCHES);
        let mut tokens = vec![1, 2, 3, 4, 5, 1, 2, 3];
        let mut guess = repeating();
        assert!(guess.chances(&all, 9).is_empty(), "it has not looked");
        guess.look(&tokens);
        let chances = guess.chances(&all, 4);
        assert!(chances.len() == 4 && chances.is_sorted_by(|a, b| a > b), "{chances:?}");
        guess.look_up(&tokens, 3);
        assert_eq!(guess.draft, [4, 5, 1]);
        for (id, is_right) in [(4, true), (5, true), (9, false)] {
            assert_eq!(guess.judge(&tokens, id), is_right);
            tokens.push(id);
        }
        assert_eq!(guess.judged, [(1, true), (2, true), (2, false)]);
        guess.learn(&mut all);
        assert!(guess.judged.is_empty());
        assert_eq!(guess.accepted, 2);
        guess.clear();
        guess.look(&tokens);
        assert!(guess.draft.is_empty() && guess.chances(&all, 4).is_empty(), "9 is new");
    }

    #[test]
    fn guesses_that_were_only_thought_of_teach_as_much() {
        let mut all = Odds::of_all(USUAL_OF_MATCHES);
        let mut guess = repeating();
        let mut tokens: Vec<u32> = (0..20).collect();
        for i in 0..200 {
            let id = i % 20;
            assert!(!guess.judge(&tokens, id), "none was made");
            tokens.push(id);
            guess.look(&tokens);
            guess.learn(&mut all);
        }
        assert_eq!(guess.accepted, 0);
        let chances = guess.chances(&all, 15);
        assert!(chances.len() == 15 && chances[14] > 0.5, "{chances:?}");
    }

    #[test]
    fn a_model_that_is_never_right_is_asked_ever_more_rarely() {
        let mut guess = Guess::new(&Speculation::draft("x")).expect("guesses");
        let mut trials = 0;
        for _ in 0..10_000 {
            let count = guess.trial(8);
            if count > 0 {
                trials += 1;
                guess.draft = vec![7; count];
                guess.tried();
            }
            assert!(!guess.judge(&[1], 1));
            guess.clear();
        }
        assert!((5..20).contains(&trials), "{trials}");
        guess.pays();
        assert_eq!(guess.patience, PATIENCE[0]);
    }
}
