//! Each kind of format, and how answers end.

use super::*;
use metallic::generate::EngineError;
use metallic::text::ReasoningFormat;

const PERSON: &str = r#"{"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"]}"#;

#[test]
fn a_json_object_is_one_whatever_the_budget() {
    for (seed, max_tokens) in [(1, 6), (2, 12), (3, 40), (4, 120), (5, 400)] {
        let done = answer(&Format::JsonObject, Asked { max_tokens, seed: Some(seed) });
        let value: Value = serde_json::from_str(&done.text).expect("JSON");
        assert!(
            value.is_object() && done.reason == FinishReason::Stop && done.tokens.len() <= max_tokens,
            "{done:?}"
        );
    }
}

#[test]
fn text_matches_its_expression_grammar_or_choice() {
    let (asked, expression) = (Asked { max_tokens: 40, seed: Some(1) }, r"[a-z]{3,5}-[0-9]{2}x");
    let done = answer(&Format::Regex(expression.to_owned()), asked);
    assert_eq!(constraint(&Format::Regex(expression.to_owned())).accepts(&done.text), Ok(true), "{done:?}");
    let (letters, rest) = done.text.split_once('-').expect("a hyphen");
    assert!((3..=5).contains(&letters.len()) && rest.len() == 3 && rest.ends_with('x'), "{}", done.text);

    let done = answer(
        &Format::Lark("start: \"<\" word (\",\" word)~0..3 \">\"\nword: /[a-z]{1,4}/\n".to_owned()),
        asked,
    );
    assert!(
        done.text.starts_with('<') && done.text.ends_with('>') && done.reason == FinishReason::Stop,
        "{done:?}"
    );

    let choices = ["Lily", "a (very) big [dog]?", "Лев\n"].map(str::to_owned);
    for seed in 0..8 {
        let done = answer(&Format::Choice(choices.to_vec()), Asked { seed: Some(seed), ..asked });
        assert!(choices.contains(&done.text) && done.reason == FinishReason::Stop, "{done:?}");
    }
}

#[test]
fn text_does_not_become_marks() {
    let bos = stories().tokenizer().bos().expect("it has one");
    let mark = stories().tokenizer().token_text(bos).expect("its text").trim().to_owned();
    let done = answer(&Format::Choice(vec![mark.clone()]), Asked { max_tokens: 12, seed: None });
    assert_eq!(done.text, mark);
    assert!(done.tokens.len() > 1 && !done.tokens.contains(&bos), "{done:?}");
}

#[test]
fn answers_end_without_end_tokens() {
    let llm = stories();
    let no_ends = Constrainer::new(llm.tokenizer(), &[]).expect("a tree of tokens");
    for (constrainer, ignore_eos) in [(&no_ends, false), (&no_ends, true), (constrainer(), true)] {
        for format in [schema(PERSON), Format::Choice(vec!["yes".to_owned(), "no".to_owned()])] {
            let constraint = constrainer.constraint(&format).expect("a format");
            let request = llm.request("Once").expect("tokens").max_tokens(60).ignore_eos(ignore_eos);
            let done = llm
                .submit(request.constraint(constraint.clone()))
                .expect("it fits")
                .complete()
                .expect("an answer");
            assert_eq!(done.reason, FinishReason::Stop, "{done:?}");
            assert_eq!(constraint.accepts(&done.text), Ok(true), "{done:?}");
        }
    }
}

#[test]
fn stop_tokens_cut_no_answer_before_its_end() {
    let llm = stories();
    let digits: Vec<u32> =
        "01234".chars().filter_map(|d| llm.tokenizer().token_to_id(&d.to_string())).collect();
    assert_eq!(digits.len(), 5);
    let request = llm.request("Once").expect("tokens").max_tokens(20).stop_tokens(digits);
    let request = request.constraint(constraint(&Format::Regex("[0-9]{6}".to_owned())));
    let done = llm.submit(request).expect("it fits").complete().expect("an answer");
    assert!(done.text.len() == 6 && done.text.bytes().all(|b| (b'5'..=b'9').contains(&b)), "{done:?}");
}

#[test]
fn a_hook_comes_before_the_format_and_may_leave_it_nothing() {
    let llm = stories();
    let banned: Vec<u32> = (0..llm.tokenizer().vocab_size() as u32)
        .filter(|id| llm.tokenizer().token_bytes(*id).is_some_and(|bytes| bytes.contains(&b'a')))
        .collect();
    let ask = |format: &Format| {
        let banned = banned.clone();
        let request = llm.request("Once").expect("tokens").max_tokens(20);
        let request = request.constraint(constraint(format)).hook(move |_, logits| {
            for id in &banned {
                logits[*id as usize] = f32::NEG_INFINITY;
            }
        });
        llm.submit(request).expect("it fits").complete()
    };
    let done = ask(&Format::Regex("[a-z]{5}".to_owned())).expect("an answer");
    assert!(done.text.len() == 5 && !done.text.contains('a'), "{done:?}");
    let stuck = ask(&Format::Choice(vec!["banana".to_owned()]));
    assert!(matches!(stuck, Err(EngineError::NoCandidate { .. })), "{stuck:?}");
}

#[test]
fn answers_that_are_set_aside_go_on_in_their_format() {
    let format = schema(
        r#"{"type": "array", "items": {"type": "string", "minLength": 5, "maxLength": 40}, "minItems": 5, "maxItems": 7}"#,
    );
    let path = data::own().join("stories260K/stories260K-f32.gguf");
    let options = LoadOptions::default().device(Device::Cpu).threads(1).max_sequences(4).context(320);
    let crowded = Llm::load_with(&path, &options.clone().kv_budget(240 << 10)).expect("the model loads");
    let ask = |llm: &Llm, seed: u64| {
        let request = llm.request("Once upon a time there was").expect("tokens").max_tokens(260);
        let request = request.sampling(Sampling::default().seed(seed)).constraint(constraint(&format));
        llm.submit(request).expect("it fits")
    };
    let together: Vec<Generation> = (0..6).map(|seed| ask(&crowded, seed)).collect();
    let together: Vec<Completion> = together.into_iter().map(|g| g.complete().expect("an answer")).collect();
    let set_aside: usize = together.iter().map(|done| done.stats.preemptions).sum();
    assert!(set_aside > 0, "the case needs answers that are set aside");
    for (seed, done) in together.into_iter().enumerate() {
        assert_eq!(constraint(&format).accepts(&done.text), Ok(true), "{done:?}");
        assert_eq!(done.tokens, ask(stories(), seed as u64).complete().expect("an answer").tokens);
    }
}

#[test]
fn the_same_constraint_serves_several_requests() {
    let constraint = constraint(&schema(PERSON));
    let first =
        ask(constraint.clone(), Asked { max_tokens: 60, seed: Some(1) }).complete().expect("an answer");
    let again = ask(constraint, Asked { max_tokens: 60, seed: Some(1) }).complete().expect("an answer");
    assert_eq!((first.tokens, first.reason), (again.tokens, FinishReason::Stop));
}

#[test]
fn what_a_model_thinks_before_it_answers_is_free() {
    let llm = stories();
    let format = ReasoningFormat::of(Some("<think> </think>"), llm.tokenizer()).expect("marks");
    let prompt = llm.request("Once upon a time <think>").expect("tokens");
    let mark = llm.tokenizer().encode("</think>", false, false).expect("tokens");
    let (begin, end) = (prompt.prompt.len() + 6, prompt.prompt.len() + 6 + mark.len());
    // The model knows no marks: six tokens are thoughts, then it is made to end them.
    let request = prompt.reasoning(format.splitter("<think>")).constraint(constraint(&schema(PERSON)));
    let request = request.max_tokens(90).hook(move |tokens, logits| {
        if (begin..end).contains(&tokens.len()) {
            logits.fill(f32::NEG_INFINITY);
            logits[mark[tokens.len() - begin] as usize] = 0.0;
        }
    });
    let done = llm.submit(request).expect("it fits").complete().expect("an answer");
    assert!(!done.reasoning.is_empty() && done.reason == FinishReason::Stop, "{done:?}");
    assert_eq!(constraint(&schema(PERSON)).accepts(&done.text), Ok(true), "{done:?}");
}
