//! Text and stop strings of an answer.

use std::sync::Arc;

use crate::generate_support::*;
use metallic::generate::{Engine, Event, FinishReason, Generation};

fn text_engine() -> Engine {
    Engine::with_text(fake().0, config(64), Arc::new(Letters)).expect("a valid configuration")
}

/// A prompt whose greedy answer has none of the three tokens that are not one letter.
fn plain_prompt(n: usize) -> Vec<u32> {
    let plain = |prompt: &Vec<u32>| expected_greedy(prompt, n).iter().all(|&id| id > 2);
    (0..1000).map(|kind| prompt(kind, 10)).find(plain).expect("one of them")
}

fn letters(prompt: &[u32], n: usize) -> String {
    expected_greedy(prompt, n).into_iter().map(letter).collect()
}

#[test]
fn the_text_of_all_events_is_the_text_of_the_tokens() {
    let prompt = plain_prompt(24);
    let done = text_engine()
        .submit(greedy_request(prompt.clone(), 24))
        .and_then(Generation::complete)
        .expect("an answer");
    assert_eq!(done.text, letters(&prompt, 24));
}

#[test]
fn a_stop_string_across_tokens_ends_the_answer_exactly_before_it() {
    let (engine, prompt) = (text_engine(), plain_prompt(30));
    let text = letters(&prompt, 30);
    for (start, len) in [(0, 1), (0, 3), (7, 2), (11, 5), (20, 8)] {
        let stop = &text[start..start + len];
        let cut = text.find(stop).expect("it is in there");
        let request = greedy_request(prompt.clone(), 30).stop(vec![stop.to_owned()]);
        let mut found = String::new();
        let mut tokens = 0;
        for event in engine.submit(request).expect("valid") {
            match event.expect("no error") {
                Event::Token(token) => {
                    found.push_str(&token.text);
                    tokens += 1;
                    assert!(text[..cut].starts_with(&found), "nothing of the stop string comes out: {found}");
                }
                Event::Finished(finished) => {
                    assert_eq!((finished.reason, finished.text.as_str()), (FinishReason::Stop, ""));
                    assert_eq!(finished.stats.generated_tokens, tokens);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(found, text[..cut]);
        assert_eq!(tokens, cut + len, "not one token more than needed");
    }
}

#[test]
fn text_that_only_began_a_stop_string_comes_out_at_the_end() {
    let (engine, prompt) = (text_engine(), plain_prompt(12));
    let text = letters(&prompt, 12);
    let stop = format!("{}!", &text[9..]);
    let request = greedy_request(prompt, 12).stop(vec![stop]);
    let events: Vec<_> = engine.submit(request).expect("valid").map(|e| e.expect("no error")).collect();
    let Some(Event::Finished(finished)) = events.last() else { panic!("an end") };
    assert_eq!((finished.reason, finished.text.as_str()), (FinishReason::Length, &text[9..]));
}

#[test]
fn half_a_character_is_held_until_it_is_whole() {
    let (program, handle) = fake();
    let engine = Engine::with_text(program, config(64), Arc::new(Letters)).expect("a valid configuration");
    handle.log().end_with = Some((3, 1));
    let events: Vec<_> = engine
        .submit(greedy_request(vec![5, 6, 7], 1))
        .expect("valid")
        .map(|e| e.expect("no error"))
        .collect();
    let [Event::Token(token), Event::Finished(finished)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((token.id, token.text.as_str()), (1, ""));
    assert_eq!(finished.text, "\u{fffd}", "an incomplete character is not lost in silence");
}
