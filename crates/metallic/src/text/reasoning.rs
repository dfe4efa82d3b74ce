//! What a model thinks before it answers, told apart from the answer.

use std::sync::Arc;

use super::Tokenizer;
use super::stop::overlap;

/// Marks around thoughts, by family. The first whose marks a model has are taken.
const PAIRS: &[(&str, &str)] = &[
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|channel>thought\n", "<channel|>"),
    ("◁think▷", "◁/think▷"),
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<thought>", "</thought>"),
];

/// Marks of the harmony format: a header names the channel, and thoughts are the channel `analysis`.
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";
const ENDS: [&str; 5] = [CHANNEL, "<|start|>", "<|end|>", "<|return|>", "<|call|>"];

/// How a model marks its thoughts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReasoningFormat {
    marks: Marks,
    /// The marks that are tokens which are no text, with their ids: a decoder leaves them out.
    tokens: Arc<[(u32, String)]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marks {
    Pair(&'static str, &'static str),
    Channels,
}

impl ReasoningFormat {
    /// The format that a chat template writes, or else that the vocabulary has tokens for; `None` for models that do not
    /// think aloud.
    pub fn of(template: Option<&str>, tokenizer: &Tokenizer) -> Option<Self> {
        let template = template.unwrap_or("");
        let has = |mark: &str| tokenizer.token_to_id(mark).is_some();
        let channels = [CHANNEL, MESSAGE].iter().all(|mark| template.contains(mark) || has(mark));
        let written = || PAIRS.iter().find(|(_, close)| template.contains(close));
        let known = || PAIRS.iter().find(|(open, close)| has(open) && has(close));
        let marks = if channels {
            Marks::Channels
        } else {
            let (open, close) = written().or_else(known)?;
            Marks::Pair(open, close)
        };
        let all: Vec<&str> = match marks {
            Marks::Pair(open, close) => vec![open, close],
            Marks::Channels => ENDS.into_iter().chain([MESSAGE]).collect(),
        };
        // A mark may be a token followed by text, as in `<|channel>thought`.
        let tokens = all.iter().filter_map(|mark| {
            let end = mark.find('>').map_or(mark.len(), |at| at + 1);
            let token = [*mark, &mark[..end]].into_iter().find_map(|m| tokenizer.token_to_id(m));
            token
                .filter(|&id| tokenizer.is_special(id))
                .map(|id| (id, tokenizer.token_text(id).unwrap_or("").to_owned()))
        });
        Some(Self { marks, tokens: tokens.collect() })
    }

    /// A splitter for the answer to `prompt`, which may have opened the thoughts already.
    pub fn splitter(&self, prompt: &str) -> ReasoningSplitter {
        let inside = match self.marks {
            Marks::Pair(open, _) => prompt.trim_end().ends_with(open.trim_end()),
            Marks::Channels => prompt.trim_end().ends_with("<|channel|>analysis<|message|>"),
        };
        let place = if inside { Place::Thoughts } else { Place::Answer };
        ReasoningSplitter {
            format: self.clone(),
            place,
            held: String::new(),
            begins: inside,
            header: String::new(),
            keeps_calls: false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Answer,
    Thoughts,
    /// Between a mark that ends a message and the next message.
    Header,
}

/// A piece of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// What the model thinks.
    pub reasoning: String,
    /// What it answers.
    pub answer: String,
}

/// Tells thoughts from answers in streamed text, wherever it is cut. Marks, and whitespace around them, belong to neither.
///
/// ```
/// # use metallic::text::{HfFiles, ReasoningFormat, Tokenizer};
/// # let json = br#"{"model": {"type": "BPE", "vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}}"#;
/// # let tokenizer = Tokenizer::from_hf_files(HfFiles { tokenizer: json, ..HfFiles::default() })?;
/// let format = ReasoningFormat::of(Some("… </think> …"), &tokenizer).unwrap();
/// let mut splitter = format.splitter("<|assistant|>");
/// let mut whole = splitter.push("<thi");
/// for text in ["nk>\nA sum", ".\n</th", "ink>\n\nFour."] {
///     let piece = splitter.push(text);
///     whole.reasoning += &piece.reasoning;
///     whole.answer += &piece.answer;
/// }
/// assert_eq!((&*whole.reasoning, &*whole.answer), ("A sum.", "Four."));
/// # Ok::<(), metallic::text::TextError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ReasoningSplitter {
    format: ReasoningFormat,
    place: Place,
    /// What may be the beginning of a mark, or whitespace before one.
    held: String,
    /// A mark was the last thing: whitespace that follows belongs to it.
    begins: bool,
    header: String,
    keeps_calls: bool,
}

impl ReasoningSplitter {
    /// Whether the answer has not begun: what comes next are thoughts, or says what follows it.
    pub fn is_thinking(&self) -> bool {
        self.place != Place::Answer || (self.format.marks == Marks::Channels && self.header.is_empty())
    }

    /// Whether headers of messages to tools stay in the answer, for a [`ToolParser`](super::ToolParser) to read; else they are left out
    /// like all others.
    #[must_use]
    pub fn keep_calls(mut self, keep: bool) -> Self {
        self.keeps_calls = keep;
        self
    }

    /// The mark that would end the thoughts, while there are some.
    pub fn closing(&self) -> Option<&'static str> {
        match (self.format.marks, self.place) {
            (Marks::Pair(_, close), Place::Thoughts) => Some(close),
            (Marks::Channels, Place::Thoughts) => {
                Some("<|end|><|start|>assistant<|channel|>final<|message|>")
            }
            _ => None,
        }
    }

    /// Takes a token and the text that became certain with it.
    pub fn push_token(&mut self, id: u32, text: &str) -> Piece {
        let mut piece = self.push(text);
        let mark = self.format.tokens.iter().find(|t| t.0 == id).map(|t| t.1.clone());
        if let Some(mark) = mark.filter(|mark| !text.ends_with(mark.as_str())) {
            let rest = self.push(&mark);
            piece.reasoning += &rest.reasoning;
            piece.answer += &rest.answer;
        }
        piece
    }

    /// Takes more text and gives what is certain of it.
    pub fn push(&mut self, text: &str) -> Piece {
        let mut piece = Piece::default();
        self.held.push_str(text);
        loop {
            let marks = self.marks();
            let found = marks.iter().filter_map(|m| self.held.find(m).map(|at| (at, *m))).min();
            if let Some((at, mark)) = found {
                let rest = self.held.split_off(at + mark.len());
                self.held.truncate(at);
                let before = std::mem::replace(&mut self.held, rest);
                self.give(before.trim_end(), &mut piece);
                let was_header = self.place == Place::Header;
                self.turn(mark);
                if was_header && self.keeps_calls && self.header.contains(" to=") {
                    self.place = Place::Answer;
                    piece.answer.push_str(&self.header);
                    piece.answer.push_str(mark);
                }
                continue;
            }
            let keep = marks.iter().map(|m| overlap(&self.held, m)).max().unwrap_or(0);
            let sure = &self.held[..self.held.len() - keep];
            let sure = if self.place == Place::Thoughts { sure.trim_end().len() } else { sure.len() };
            let rest = self.held.split_off(sure);
            let sure = std::mem::replace(&mut self.held, rest);
            self.give(&sure, &mut piece);
            return piece;
        }
    }

    /// Ends the text: what was held back is no mark after all.
    pub fn finish(&mut self) -> Piece {
        let mut piece = Piece::default();
        let rest = std::mem::take(&mut self.held);
        self.give(&rest, &mut piece);
        piece
    }

    fn marks(&self) -> Vec<&'static str> {
        match (self.format.marks, self.place) {
            (Marks::Pair(_, close), Place::Thoughts) => vec![close],
            (Marks::Pair(open, _), _) => vec![open],
            (Marks::Channels, Place::Header) => vec![MESSAGE],
            (Marks::Channels, _) => ENDS.to_vec(),
        }
    }

    fn turn(&mut self, mark: &str) {
        self.begins = true;
        self.place = match (self.format.marks, self.place) {
            (Marks::Pair(..), Place::Thoughts) => Place::Answer,
            (Marks::Pair(..), _) => Place::Thoughts,
            (Marks::Channels, Place::Header) => {
                let channel = self.header.rsplit(CHANNEL).next().unwrap_or("").trim_start();
                if channel.starts_with("analysis") { Place::Thoughts } else { Place::Answer }
            }
            (Marks::Channels, _) => {
                self.header.clear();
                self.header.push_str(mark);
                Place::Header
            }
        };
    }

    fn give(&mut self, text: &str, piece: &mut Piece) {
        let text = if self.begins { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.begins = false;
        match self.place {
            Place::Answer => piece.answer.push_str(text),
            Place::Thoughts => piece.reasoning.push_str(text),
            // A header is short; one that does not end is not kept.
            Place::Header if self.header.len() < 1024 => self.header.push_str(text),
            Place::Header => {}
        }
    }
}
