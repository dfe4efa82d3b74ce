//! Logits, greedy continuation and perplexity without an engine.

use crate::generate_support::*;
use metallic::generate::{EngineError, greedy, logits, perplexity};

#[test]
fn logits_do_not_depend_on_the_size_of_the_pieces() {
    let tokens = prompt(2, 130);
    let expected: Vec<_> = (1..=130).map(|n| expected_logits(&tokens[..n])).collect();
    for chunk in [1, 7, 64, 512] {
        let (mut program, _) = fake();
        assert_eq!(
            logits(program.as_mut(), &tokens, chunk, true).expect("logits"),
            expected,
            "pieces of {chunk}"
        );
        let last = logits(program.as_mut(), &tokens, chunk, false).expect("logits");
        assert_eq!(last, expected[129..], "pieces of {chunk}");
    }
}

#[test]
fn the_greedy_continuation_is_the_models() {
    let tokens = prompt(2, 600);
    let (mut program, handle) = fake();
    assert_eq!(greedy(program.as_mut(), &tokens, 40).expect("tokens"), expected_greedy(&tokens, 40));
    assert_eq!(handle.log().tokens, 639, "the last token is not computed");
    assert!(greedy(program.as_mut(), &tokens, 0).expect("tokens").is_empty());
}

#[test]
fn bad_input_is_an_error() {
    let (mut program, handle) = fake();
    let program = program.as_mut();
    assert_eq!(logits(program, &[], 4, false), Err(EngineError::EmptyPrompt));
    assert_eq!(greedy(program, &[], 4), Err(EngineError::EmptyPrompt));
    assert!(matches!(logits(program, &[1], 0, false), Err(EngineError::Parameter { name: "chunk", .. })));
    assert!(matches!(logits(program, &[1, 97], 4, false), Err(EngineError::Backend(_))));
    assert!(matches!(
        perplexity(program, &[1; 9], 2, None, |_| ()),
        Err(EngineError::Parameter { name: "ctx", .. })
    ));
    assert_eq!(
        perplexity(program, &[1; 9], 10, None, |_| ()),
        Err(EngineError::TextTooShort { tokens: 9, window: 10 })
    );
    handle.log().nan_after = Some(3);
    assert!(matches!(greedy(program, &[1, 3], 2), Err(EngineError::NoCandidate { .. })));
}

#[test]
fn perplexity_predicts_the_second_half_of_each_window() {
    for (ctx, bos) in [(3, None), (8, Some(1)), (64, Some(1)), (301, None), (600, None)] {
        let text = prompt(6, 1250);
        let (mut loss, mut count) = (0.0, 0);
        for window in text.chunks_exact(ctx) {
            let mut window = window.to_vec();
            window[0] = bos.unwrap_or(window[0]);
            for i in ctx / 2..=ctx - 2 {
                let logits = expected_logits(&window[..=i]);
                let total: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
                loss += total.ln() - f64::from(logits[window[i + 1] as usize]);
                count += 1;
            }
        }
        let (mut program, _) = fake();
        let mut seen = Vec::new();
        let found = perplexity(program.as_mut(), &text, ctx, bos, |so_far| seen.push(so_far.chunks))
            .expect("a figure");
        assert_eq!((found.tokens, found.chunks), (count, 1250 / ctx));
        assert!((found.ppl / (loss / f64::from(count as u32)).exp() - 1.0).abs() < 1e-9, "windows of {ctx}");
        assert_eq!(seen, (1..=1250 / ctx).collect::<Vec<_>>());
    }
}
