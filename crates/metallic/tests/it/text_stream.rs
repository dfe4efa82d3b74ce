//! Streams of tokens and of text: what comes out in pieces is what would have come out at once.

use std::path::Path;

use metallic::text::{
    HfFiles, Piece, ReasoningFormat, ReasoningSplitter, StopMatcher, StreamDecoder, Tokenizer,
};

/// A small generator of random numbers, the same on every run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }
}

fn tokenizers() -> Vec<Tokenizer> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text");
    ["bpe", "spm_prefix", "spm_plain"].map(|d| Tokenizer::from_hf(&data.join(d)).unwrap()).into()
}

#[test]
fn pieces_add_up_to_the_whole_for_random_tokens() {
    let mut random = Random(1);
    for tokenizer in tokenizers() {
        for round in 0..300 {
            let count = random.below(40);
            // Every third round: bytes only, which are mostly not UTF-8.
            let size = if round % 3 == 0 { 300 } else { tokenizer.vocab_size() + 5 };
            let ids: Vec<u32> = (0..count).map(|_| random.below(size) as u32).collect();
            for skip_special in [false, true] {
                let mut decoder = StreamDecoder::new(&tokenizer, skip_special);
                let mut text: String = ids.iter().map(|&id| decoder.push(id)).collect();
                text += &decoder.finish();
                assert_eq!(text, tokenizer.decode(&ids, skip_special), "{ids:?}");
                let mut bytes = Vec::new();
                for &id in ids.iter().filter(|&&id| !(skip_special && tokenizer.is_special(id))) {
                    bytes.extend_from_slice(&tokenizer.token_bytes(id).unwrap_or_default());
                }
                let whole = String::from_utf8_lossy(&bytes);
                assert!(text == whole || format!(" {text}") == whole, "{text:?} {whole:?}");
                assert_eq!(decoder.finish(), "");
            }
        }
    }
}

#[test]
fn a_character_comes_out_once_it_is_complete() {
    for tokenizer in tokenizers() {
        let ids = tokenizer.encode("a😀b", false, false).unwrap();
        let mut decoder = StreamDecoder::new(&tokenizer, true);
        let pieces: Vec<String> = ids.iter().map(|&id| decoder.push(id)).collect();
        assert_eq!(pieces.concat(), "a😀b");
        assert!(pieces.iter().any(|p| p.starts_with('😀')));
        assert!(!pieces.concat().contains('\u{FFFD}'));
        let cut = ids.len() - 2;
        let mut decoder = StreamDecoder::new(&tokenizer, true);
        let text: String = ids[..cut].iter().map(|&id| decoder.push(id)).collect();
        assert_eq!(text + &decoder.finish(), "a\u{FFFD}");
    }
}

#[test]
fn the_added_space_is_dropped_at_the_beginning_only() {
    let tokenizer = &tokenizers()[1];
    let ids = tokenizer.encode("hi you", false, false).unwrap();
    let text = |mut decoder: StreamDecoder<'_>| ids.iter().map(|&id| decoder.push(id)).collect::<String>();
    assert_eq!(text(StreamDecoder::new(tokenizer, true)), "hi you");
    assert_eq!(text(StreamDecoder::continuing(tokenizer, true)), " hi you");
}

/// What a stop matcher should let through: everything before the stop that is complete first.
fn until_stop(text: &str, stops: &[String]) -> (String, bool) {
    let ends = stops.iter().filter(|s| !s.is_empty());
    let first = ends.filter_map(|s| text.find(s.as_str()).map(|at| (at + s.len(), at))).min();
    first.map_or_else(|| (text.to_owned(), false), |(_, at)| (text[..at].to_owned(), true))
}

#[test]
fn stop_strings_are_found_however_the_text_is_cut() {
    let mut random = Random(2);
    let letters = ['a', 'b', 'ä', '\n'];
    let mut stopped = 0;
    for _ in 0..20_000 {
        let mut word = |most: usize| -> String {
            let n = random.below(most);
            (0..n).map(|_| letters[random.below(4)]).collect()
        };
        let stops: Vec<String> = vec![word(4), word(5), word(3)];
        let text: Vec<char> = word(16).chars().collect();
        let mut matcher = StopMatcher::new(stops.clone());
        let mut out = String::new();
        let mut rest = &text[..];
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + random.below(rest.len()));
            out += &matcher.push(&piece.iter().collect::<String>());
            rest = after;
        }
        out += &matcher.finish();
        let text: String = text.iter().collect();
        assert_eq!((out, matcher.is_stopped()), until_stop(&text, &stops), "{text:?} {stops:?}");
        if let Some(stop) = matcher.matched() {
            assert!(text.contains(stop));
            stopped += 1;
        }
    }
    assert!(stopped > 1000, "the cases hardly ever stop");
}

#[test]
fn text_that_cannot_begin_a_stop_is_not_held_back() {
    let mut matcher = StopMatcher::new(["</s>", "User:"]);
    assert_eq!(matcher.push("Hello <"), "Hello ");
    assert_eq!(matcher.push("b>"), "<b>");
    assert_eq!(matcher.push("U"), "");
    assert_eq!(matcher.finish(), "U");
    let mut none = StopMatcher::new([""]);
    assert_eq!(none.push("anything"), "anything");
}

/// What a splitter makes of `text` cut at these places.
fn split(mut splitter: ReasoningSplitter, text: &str, mut next: impl FnMut(usize) -> usize) -> Piece {
    let mut whole = Piece::default();
    let mut add = |piece: Piece| {
        whole.reasoning += &piece.reasoning;
        whole.answer += &piece.answer;
    };
    let chars: Vec<char> = text.chars().collect();
    let mut rest = &chars[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(1 + next(rest.len()));
        add(splitter.push(&piece.iter().collect::<String>()));
        rest = after;
    }
    add(splitter.finish());
    whole
}

#[test]
fn thoughts_are_told_from_answers_however_the_text_is_cut() {
    let tokenizer = &tokenizers()[0];
    let harmony = "<|channel|> <|message|>";
    let mut random = Random(5);
    for (template, prompt, text, reasoning, answer) in [
        ("</think>", "user", "<think>\nhm <b>\n</think>\n\nYes.\n", "hm <b>", "Yes.\n"),
        ("</think>", "assistant\n<think>\n", "hm\n\nso\n</think>\n\nYes", "hm\n\nso", "Yes"),
        ("</think>", "<think>\n\n</think>\n\n", "Just an answer", "", "Just an answer"),
        ("</think>", "", " An answer, </think> <thin", "", " An answer, </think> <thin"),
        ("</think>", "", "<think>never ends </thi", "never ends </thi", ""),
        ("</think>", "", "<think></think>a<think>b</think>c", "b", "ac"),
        ("[/THINK]", "[/INST]", "[THINK]a [b] c[/THINK]d", "a [b] c", "d"),
        (
            "<|END_THINKING|>",
            "",
            "<|START_THINKING|>t<|END_THINKING|><|START_RESPONSE|>r",
            "t",
            "<|START_RESPONSE|>r",
        ),
        ("<channel|>", "", "<|channel>thought\nt\n<channel|>r", "t", "r"),
        (
            harmony,
            "<|start|>assistant",
            "<|channel|>analysis<|message|>a b<|end|><|start|>assistant<|channel|>final<|message|>c d<|return|>",
            "a b",
            "c d",
        ),
        (
            harmony,
            "<|start|>assistant",
            "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>commentary to=f <|constrain|>json<|message|>{}<|call|>",
            "t",
            "{}",
        ),
        (harmony, "<|start|>assistant<|channel|>final<|message|>", "c", "", "c"),
    ] {
        let format = ReasoningFormat::of(Some(template), tokenizer).unwrap();
        for round in 0..200 {
            let piece =
                split(format.splitter(prompt), text, |n| if round == 0 { 0 } else { random.below(n) });
            assert_eq!((&*piece.reasoning, &*piece.answer), (reasoning, answer), "{text:?}");
        }
    }
    assert_eq!(ReasoningFormat::of(Some("{{ messages }}"), tokenizer), None);
}

/// Marks that are control tokens do not come as text; their ids tell.
#[test]
fn marks_that_are_control_tokens_are_seen_by_their_ids() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text/bpe/tokenizer.json");
    let file: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let harmony = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>"];
    let cohere = ["<|START_THINKING|>", "<|END_THINKING|>"];
    for (marks, text) in [
        (
            &harmony[..],
            "<|channel|>analysis<|message|>so it is<|end|><|start|>assistant<|channel|>final<|message|>the end",
        ),
        (&cohere[..], "<|START_THINKING|>so it is<|END_THINKING|>the end"),
    ] {
        let mut file = file.clone();
        for (id, mark) in (1000..).zip(marks) {
            let token = serde_json::json!({"id": id, "content": mark, "special": true});
            file["added_tokens"].as_array_mut().unwrap().push(token);
        }
        let bytes = serde_json::to_vec(&file).unwrap();
        let tokenizer =
            Tokenizer::from_hf_files(HfFiles { tokenizer: &bytes, ..HfFiles::default() }).unwrap();
        let mut splitter = ReasoningFormat::of(None, &tokenizer).unwrap().splitter("");
        let mut decoder = StreamDecoder::continuing(&tokenizer, true);
        let (mut thoughts, mut said) = (String::new(), String::new());
        for id in tokenizer.encode(text, false, true).unwrap() {
            let piece = splitter.push_token(id, &decoder.push(id));
            thoughts += &piece.reasoning;
            said += &piece.answer;
        }
        said += &splitter.finish().answer;
        assert_eq!((&*thoughts, &*said), ("so it is", "the end"), "{text}");
    }
}
