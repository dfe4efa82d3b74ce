//! Grammars compile, accept what families write, refuse what they do not, and what they accept is understood.

use serde_json::{Map, Value, json};

use super::table::{FAMILIES, GENERIC, PROMPTED};
use super::{ToolChoice, ToolFormat, families};
use crate::constrain::{Constrainer, Format};
use crate::generate::{Place, Restrict, Verdict};
use crate::text::{HfFiles, Tokenizer};

const END: &str = "<|the_end|>";

/// A vocabulary of single bytes and these marks.
fn tokenizer(marks: &[&str]) -> Tokenizer {
    let mut vocab = Map::new();
    let mut other = 256;
    for byte in 0..=255_u8 {
        let c = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                other += 1;
                char::from_u32(other - 1).unwrap()
            }
        };
        vocab.insert(c.to_string(), byte.into());
    }
    let added: Vec<Value> = [END]
        .iter()
        .chain(marks)
        .enumerate()
        .map(|(i, mark)| json!({"id": 256 + i, "content": mark, "special": true, "normalized": false}))
        .collect();
    let json = json!({
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
        "decoder": {"type": "ByteLevel"},
        "added_tokens": added,
    });
    Tokenizer::from_hf_files(HfFiles { tokenizer: json.to_string().as_bytes(), ..HfFiles::default() })
        .unwrap()
}

/// Families with marks as text, and with marks as special tokens.
fn formats() -> Vec<(ToolFormat, Tokenizer)> {
    let mut out = Vec::new();
    for family in FAMILIES.iter().chain([&GENERIC, &PROMPTED]) {
        out.push((ToolFormat { family, tokens: [].into() }, tokenizer(&[])));
        let marks: Vec<&str> = families::marks(family)
            .into_iter()
            .filter(|mark| {
                mark.starts_with("<|")
                    || mark.starts_with("<｜")
                    || mark.starts_with("[TOOL")
                    || *mark == "[ARGS]"
            })
            .filter(|mark| mark.ends_with(['>', ']']) && mark.matches(['>', ']']).count() == 1)
            .collect();
        let tokenizer = tokenizer(&marks);
        let tokens = marks.iter().map(|mark| (tokenizer.token_to_id(mark).unwrap(), (*mark).to_owned()));
        let tokens = tokens.collect::<Vec<_>>().into();
        out.push((ToolFormat { family, tokens }, tokenizer));
    }
    out
}

fn tools() -> Vec<Value> {
    let weather = json!({"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"type": "string", "enum": ["C", "F"]}},
        "required": ["city"],
        "additionalProperties": false,
    }}});
    let note = json!({"type": "function", "function": {"name": "note", "parameters": {
        "type": "object",
        "properties": {
            "pin": {"type": "boolean"},
            "text": {"type": "string"},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}},
            "place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": false},
        },
        "required": ["text"],
        "additionalProperties": false,
        "$defs": {"tag": {"type": "string"}},
    }}});
    vec![
        weather,
        note,
        json!({"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}),
    ]
}

fn call(name: &str, arguments: Value) -> (String, Map<String, Value>) {
    match arguments {
        Value::Object(arguments) => (name.to_owned(), arguments),
        other => panic!("{other}"),
    }
}

fn samples() -> Vec<(String, Map<String, Value>)> {
    vec![
        call("get_weather", json!({"city": "Köln \"x\"", "days": 3, "unit": "F"})),
        call("get_weather", json!({"city": "Oslo", "unit": "C"})),
        call(
            "note",
            json!({"pin": true, "text": "one\ntwo {3} <4>", "tags": ["a", "b c"], "place": {"x": 1.5}}),
        ),
        call("note", json!({"text": "", "tags": []})),
        call("now", json!({})),
    ]
}

struct Walk {
    constraint: crate::constrain::Constraint,
    tokens: Vec<u32>,
    end: u32,
    size: usize,
}

impl Walk {
    fn new(grammar: &str, tokenizer: &Tokenizer, constrainer: &Constrainer) -> Self {
        let end = tokenizer.token_to_id(END).unwrap();
        let format = Format::Lark(grammar.to_owned());
        let constraint = constrainer.constraint(&format).unwrap_or_else(|e| panic!("{e}:\n{grammar}"));
        Self { constraint, tokens: Vec::new(), end, size: tokenizer.vocab_size() }
    }

    /// The tokens that may come next; the end among them where the text is complete.
    fn allowed(&mut self) -> Vec<u32> {
        let (logits, mut row) = (vec![0.0; self.size], Vec::new());
        let place = Place { tokens: &self.tokens, prompt_len: 0, room: usize::MAX, stop_tokens: &[self.end] };
        match self.constraint.restrict(&place, &logits, &mut row).unwrap() {
            Verdict::End => vec![self.end],
            Verdict::Next => (0..self.size as u32).filter(|id| row[*id as usize] == 0.0).collect(),
        }
    }

    /// How many of these tokens may come one after the other; all, and one more if the text may end there.
    fn accepts(&mut self, tokens: &[u32]) -> usize {
        for (i, token) in tokens.iter().enumerate() {
            if !self.allowed().contains(token) {
                return i;
            }
            self.tokens.push(*token);
        }
        tokens.len() + usize::from(self.allowed().contains(&self.end))
    }
}

fn constrainer(tokenizer: &Tokenizer) -> Constrainer {
    Constrainer::new(tokenizer, &[tokenizer.token_to_id(END).unwrap()]).unwrap()
}

/// What the model writes: not what the prompt has written before, nor the mark that ends the answer.
fn written(format: &ToolFormat, calls: &[(String, Map<String, Value>)]) -> String {
    let text = format.write(calls);
    let text =
        if format.family.primed { text.strip_prefix(format.family.frame.head).unwrap() } else { &text };
    let text = text.strip_suffix("<|call|>").unwrap_or(text);
    text.strip_suffix("<|calls|>").unwrap_or(text).to_owned()
}

#[test]
fn grammars_accept_what_their_families_write() {
    for (format, tokenizer) in formats() {
        let constrainer = constrainer(&tokenizer);
        let grammar = format.grammar(&tools(), &ToolChoice::Required, true).unwrap().unwrap();
        let mut all: Vec<Vec<_>> = samples().into_iter().map(|call| vec![call]).collect();
        if format.family.parallel {
            all.push(samples());
        }
        for calls in all {
            let text = written(&format, &calls);
            let tokens = tokenizer.encode(&text, false, true).unwrap();
            let accepted = Walk::new(&grammar, &tokenizer, &constrainer).accepts(&tokens);
            let name = format.name();
            let until = tokenizer.decode(&tokens[..accepted.min(tokens.len())], false);
            assert!(accepted > tokens.len(), "{name}: {text}\nonly: {until}\n{grammar}");
        }
    }
}

#[test]
fn grammars_refuse_text_other_tools_and_more_than_one_call() {
    for (format, tokenizer) in formats() {
        let constrainer = constrainer(&tokenizer);
        let accepts = |grammar: &str, text: &str| {
            let tokens = tokenizer.encode(text, false, true).unwrap();
            Walk::new(grammar, &tokenizer, &constrainer).accepts(&tokens) > tokens.len()
        };
        let named = ToolChoice::Named("now".into());
        let grammar = format.grammar(&tools(), &named, false).unwrap().unwrap();
        let now = call("now", json!({}));
        let name = format.name();
        assert!(accepts(&grammar, &written(&format, std::slice::from_ref(&now))), "{name}");
        assert!(!accepts(&grammar, ""), "{name}");
        assert!(!accepts(&grammar, "Hello"), "{name}");
        assert!(!accepts(&grammar, &written(&format, &samples()[..1])), "{name}");
        assert!(!accepts(&grammar, &written(&format, &[now.clone(), now.clone()])), "{name}");
        let grammar = format.grammar(&tools(), &ToolChoice::Required, false).unwrap().unwrap();
        assert!(!accepts(&grammar, &written(&format, &[call("other", json!({}))])), "{name}");
        assert!(!accepts(&grammar, &written(&format, &[call("get_weather", json!({"days": 1}))])), "{name}");
        assert!(
            !accepts(&grammar, &written(&format, &[call("get_weather", json!({"city": "x", "days": "y"}))])),
            "{name}"
        );
    }
}

/// A tool whose arguments are of few values, said in the ways that generators of schemas have.
fn picky() -> Vec<Value> {
    vec![json!({"name": "pick", "parameters": {
        "type": "object",
        "properties": {
            "one": {"const": "red"},
            "any": {"anyOf": [{"const": "green"}, {"enum": ["blue", "grey"]}]},
            "named": {"$ref": "#/$defs/named"},
            "none": {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]},
        },
        "required": ["one", "any", "named", "none"],
        "additionalProperties": false,
        "$defs": {"named": {"type": "string", "enum": ["north", "south"]}},
    }})]
}

#[test]
fn texts_are_held_to_the_values_that_a_schema_lists_however_it_does() {
    let right = json!({"one": "red", "any": "blue", "named": "south", "none": "x"});
    for (format, tokenizer) in formats() {
        let constrainer = constrainer(&tokenizer);
        let grammar = format.grammar(&picky(), &ToolChoice::Required, false).unwrap().unwrap();
        let accepts = |arguments: &Value| {
            let text = written(&format, &[call("pick", arguments.clone())]);
            let tokens = tokenizer.encode(&text, false, true).unwrap();
            Walk::new(&grammar, &tokenizer, &constrainer).accepts(&tokens) > tokens.len()
        };
        assert!(accepts(&right), "{}: {grammar}", format.name());
        for key in ["one", "any", "named", "none"] {
            let mut wrong = right.clone();
            wrong[key] = json!("other");
            assert!(!accepts(&wrong), "{}: {key} in {grammar}", format.name());
        }
    }
}

#[test]
fn a_text_ends_for_the_grammar_where_it_ends_for_the_parser() {
    let (format, tokenizer) = formats().into_iter().find(|(format, _)| format.name() == "qwen-xml").unwrap();
    let constrainer = constrainer(&tokenizer);
    let grammar = format.grammar(&tools(), &ToolChoice::Named("note".into()), false).unwrap().unwrap();
    let text = "<tool_call>\n<function=note>\n<parameter=text>\na</parameter>b\n</parameter>\n</function>\n</tool_call>";
    let tokens = tokenizer.encode(text, false, true).unwrap();
    let accepted = Walk::new(&grammar, &tokenizer, &constrainer).accepts(&tokens);
    assert!(accepted < tokens.len(), "{}", format.parse(text, &tools()).calls[0].arguments);
}

#[test]
fn what_may_follow_an_answer_that_is_taken_back_is_what_might_before() {
    let tokenizer = tokenizer(&[]);
    let format =
        Format::json_schema(r#"{"type": "array", "items": {"type": "string", "maxLength": 3}}"#).unwrap();
    let constraint = constrainer(&tokenizer).constraint(&format).unwrap();
    let end = tokenizer.token_to_id(END).unwrap();
    let mut walk = Walk { constraint, tokens: Vec::new(), end, size: tokenizer.vocab_size() };
    let mut before = Vec::new();
    for token in tokenizer.encode("[\"a\", \"bcd\"]", false, true).unwrap() {
        before.push(walk.allowed());
        walk.tokens.push(token);
    }
    for (count, allowed) in before.iter().enumerate().rev() {
        walk.tokens.truncate(count);
        assert_eq!(walk.allowed(), *allowed, "after {count} tokens");
    }
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % sides
    }
}

#[test]
fn whatever_a_grammar_lets_through_is_a_call_of_one_of_the_tools() {
    let mut dice = Dice(7);
    for (format, tokenizer) in formats() {
        let constrainer = constrainer(&tokenizer);
        let grammar = format.grammar(&tools(), &ToolChoice::Required, false).unwrap().unwrap();
        for _ in 0..3 {
            let text = random_answer(&format, (&tokenizer, &constrainer), &grammar, &mut dice);
            let answer = format.parse(&text, &tools());
            let name = format.name();
            assert_eq!(answer.text, "", "{name}: {text}");
            let [call] = &answer.calls[..] else { panic!("{name}: {text}: {answer:?}") };
            assert!(call.complete && super::Tools::new(&tools()).get(&call.name).is_some(), "{name}: {text}");
            let arguments: Map<String, Value> = serde_json::from_str(&call.arguments)
                .unwrap_or_else(|e| panic!("{name}: {text}: {} is no JSON: {e}", call.arguments));
            let needed = match &*call.name {
                "get_weather" => "city",
                "note" => "text",
                _ => continue,
            };
            assert!(arguments[needed].is_string(), "{name}: {text}: {arguments:?}");
            assert!(arguments.get("days").is_none_or(Value::is_number), "{name}: {text}");
            assert!(arguments.get("tags").is_none_or(Value::is_array), "{name}: {text}");
        }
    }
}

/// Tokens by chance out of those that are allowed; free text is soon ended by what ends texts in this family.
fn random_answer(
    format: &ToolFormat,
    (tokenizer, constrainer): (&Tokenizer, &Constrainer),
    grammar: &str,
    dice: &mut Dice,
) -> String {
    let mut walk = Walk::new(grammar, tokenizer, constrainer);
    let ends: Vec<&str> = match &format.family.body {
        families::Body::Tagged(tagged) if tagged.lines => vec!["\n</parameter>"],
        families::Body::Tagged(tagged) => vec![tagged.value_end],
        families::Body::Braces { quote } => vec![quote],
        families::Body::Elements { prefix } => vec![prefix],
        _ => vec!["\""],
    };
    let mut queue: Vec<u32> = Vec::new();
    for _ in 0..4000 {
        let allowed = walk.allowed();
        if allowed.contains(&walk.end) {
            return tokenizer.decode(&walk.tokens, false);
        }
        let is_text = allowed.len() > 60;
        // Letters only: marks that come up by chance inside a text are the model's own fault.
        let letters: Vec<u32> =
            allowed.iter().copied().filter(|id| *id < 256 && (*id as u8).is_ascii_alphanumeric()).collect();
        let planned = queue.pop().filter(|id| allowed.contains(id));
        if planned.is_none() && is_text && dice.roll(4) == 0 {
            // Values that are no texts are JSON, in which quotes end texts.
            let text = tokenizer.decode(&walk.tokens, false);
            let is_json =
                text.rsplit('>').next().is_some_and(|value| value.trim_start().starts_with(['[', '{']));
            let end = if is_json { "\"" } else { ends[dice.roll(ends.len())] };
            queue = tokenizer.encode(end, false, true).unwrap();
            queue.reverse();
            continue;
        }
        let choice = match planned {
            Some(id) => id,
            None if is_text && !letters.is_empty() => letters[dice.roll(letters.len())],
            None => allowed[dice.roll(allowed.len())],
        };
        walk.tokens.push(choice);
    }
    panic!("{} does not end: {}", format.name(), tokenizer.decode(&walk.tokens, false));
}

#[test]
fn what_cannot_be_forced_is_said() {
    let (format, _) = formats().swap_remove(0);
    assert_eq!(format.grammar(&tools(), &ToolChoice::Auto, true).unwrap(), None);
    assert_eq!(format.grammar(&tools(), &ToolChoice::None, true).unwrap(), None);
    let error = format.grammar(&tools(), &ToolChoice::Named("other".into()), true).unwrap_err().to_string();
    assert!(error.contains("`other`"), "{error}");
    let error = format.grammar(&[], &ToolChoice::Required, true).unwrap_err().to_string();
    assert!(error.contains("no tools"), "{error}");
    let error =
        format.grammar(&[json!({"type": "function"})], &ToolChoice::Required, true).unwrap_err().to_string();
    assert!(error.contains("no name"), "{error}");
}
