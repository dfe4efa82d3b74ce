//! What is asked in a storm, and what must come of it.

use std::collections::HashMap;
use std::time::Duration;

use metallic_core::{Backend, DType};

use crate::generate::{
    Engine, EngineConfig, EngineError, Event, FinishReason, Generation, Request, Sampling,
};
use crate::model::Model;

/// How the tokens of a request are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Greedy,
    Drawn,
    Penalised,
    /// By a hook, which sees all tokens that came before.
    Hooked,
    /// With log-probabilities, so that the host chooses.
    Told,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Greedy, Kind::Greedy, Kind::Drawn, Kind::Penalised, Kind::Hooked, Kind::Told];

    /// A request for so many tokens. Its own code breaks down on the token of this number.
    pub(super) fn request(self, prompt: &[u32], wanted: usize, breaks: Option<usize>) -> Request {
        let plain = || Sampling::plain().temperature(0.6).seed(5);
        let request = Request::new(prompt).max_tokens(wanted).ignore_eos(true);
        let end = breaks.map(|after| prompt.len() + after);
        let breakdown = move |seen: &[u32]| assert!(Some(seen.len()) != end, "a hook that breaks down");
        let request = match self {
            Self::Greedy => request.sampling(Sampling::greedy()),
            Self::Drawn => request.sampling(plain().top_k(30)),
            Self::Penalised => request.sampling(Sampling::greedy().frequency_penalty(0.3)),
            Self::Hooked => {
                return request.sampling(Sampling::greedy()).hook(move |seen, logits| {
                    breakdown(seen);
                    let banned = seen.iter().sum::<u32>() as usize % logits.len();
                    logits[banned] = f32::NEG_INFINITY;
                });
            }
            Self::Told => request.sampling(Sampling::greedy()).logprobs(2),
        };
        if breaks.is_some() { request.hook(move |seen, _| breakdown(seen)) } else { request }
    }
}

/// Prompts of at most so many tokens with few beginnings, so that what one computes others wait for, that repeat themselves.
pub(super) fn prompts(vocab: usize, most: usize) -> Vec<Vec<u32>> {
    let piece = |kind: u32, len: u32| -> Vec<u32> {
        (0..len).map(|i| 3 + (i % 11 * 7 + kind * 31 + i / 40) % (vocab as u32 - 3)).collect()
    };
    let begin = [piece(1, 70), piece(2, 40), piece(3, 32)];
    let tails = [1, 5, 26, 33].map(|len| piece(len, len));
    let both = begin.iter().flat_map(|begin| tails.iter().map(|tail| [&begin[..], tail].concat()));
    both.chain([piece(4, 9), piece(5, 1)]).filter(|prompt| prompt.len() <= most).collect()
}

/// The answers that requests get alone, one after another, with room enough.
pub(super) struct Alone {
    pub(super) prompts: Vec<Vec<u32>>,
    engine: Engine,
    known: HashMap<(usize, Kind), Vec<u32>>,
    tokens: usize,
}

impl Alone {
    pub(super) fn new(model: &Model, backend: &dyn Backend, prompts: Vec<Vec<u32>>, tokens: usize) -> Self {
        let program = model.compile(backend, DType::F32).unwrap_or_else(|e| panic!("{e}"));
        let states = model.states(DType::F32).expect("a layout");
        let config = EngineConfig::new(model.config().context, model.config().vocab, states);
        let engine = Engine::new(program, config.prefix_cache(false)).expect("an engine");
        Self { prompts, engine, known: HashMap::new(), tokens }
    }

    pub(super) fn answer(&mut self, which: usize, kind: Kind) -> &[u32] {
        let Self { prompts, engine, known, tokens } = self;
        known.entry((which, kind)).or_insert_with(|| {
            let request = kind.request(&prompts[which], *tokens, None);
            let done = engine.submit(request).and_then(Generation::complete).expect("an answer");
            assert_eq!(done.tokens.len(), *tokens);
            done.tokens
        })
    }
}

/// A request in a storm.
pub(super) struct Asked {
    serial: u64,
    expected: Vec<u32>,
    answer: Generation,
    /// Its own code breaks down.
    pub(super) breaks: bool,
    /// It may run out of time.
    pub(super) is_late: bool,
    cancelled: bool,
    tokens: Vec<u32>,
}

impl Asked {
    pub(super) fn new(serial: u64, expected: Vec<u32>, answer: Generation) -> Self {
        let (breaks, is_late, cancelled) = (false, false, false);
        Self { serial, expected, answer, breaks, is_late, cancelled, tokens: Vec::new() }
    }

    pub(super) fn cancel(&mut self) {
        self.answer.cancel();
        self.cancelled = true;
    }

    pub(super) fn is_over(&self) -> bool {
        self.answer.has_ended()
    }

    /// Takes so many events, of `limit` that may be there; says whether it failed by no fault of its own.
    pub(super) fn read(&mut self, most: usize, limit: usize) -> bool {
        for taken in 0..most {
            let Some(event) = self.answer.next_timeout(Duration::ZERO) else { break };
            assert!(taken <= limit, "{}: more is kept than may be", self.serial);
            match event {
                Ok(Event::Token(token)) => self.tokens.push(token.id),
                Ok(Event::Finished(end)) => {
                    let is_whole = self.tokens == self.expected;
                    match end.reason {
                        FinishReason::Length => assert!(is_whole && !self.breaks, "{}", self.told()),
                        FinishReason::Cancelled => assert!(self.cancelled, "{}", self.told()),
                        FinishReason::Deadline => assert!(self.is_late, "{}", self.told()),
                        FinishReason::Stop => panic!("{}", self.told()),
                    }
                }
                Err(EngineError::Hook { message }) if self.breaks && message.contains("breaks down") => {}
                Err(EngineError::Panicked { message }) if message.contains("lightning") => return true,
                Err(EngineError::Backend(_) | EngineError::Gone) => return true,
                other => panic!("{}: {other:?}", self.told()),
            }
            assert!(self.expected.starts_with(&self.tokens), "{}", self.told());
        }
        false
    }

    fn told(&self) -> String {
        format!("request {}: {:?} of {:?}", self.serial, self.tokens, self.expected)
    }
}
