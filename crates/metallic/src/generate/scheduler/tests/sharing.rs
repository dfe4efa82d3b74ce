use std::cmp::Reverse;

use super::super::super::flight::{Budget, Due, share_tokens};

/// Sequences with so many tokens to compute, one of which is an answer's next.
fn shares(pending: &[usize], step: usize, prompts: usize) -> Vec<usize> {
    let due = |&tokens: &usize| Due { tokens, answers: tokens == 1, rank: (Reverse(0), tokens) };
    let dues: Vec<Due> = pending.iter().map(due).collect();
    let mut shares = vec![99];
    share_tokens(&dues, Budget { step, prompts }, &mut shares);
    shares
}

const ALL: usize = usize::MAX;

#[test]
fn answers_come_first_then_short_prompts_and_the_oldest_is_not_forgotten() {
    assert_eq!(shares(&[100, 1, 50, 1], 112, ALL), [60, 1, 50, 1]);
    assert_eq!(shares(&[100, 1, 50, 1], 64, ALL), [16, 1, 46, 1]);
    assert_eq!(shares(&[100, 1], 1, ALL), [0, 1]);
    assert_eq!(shares(&[3, 4], 512, ALL), [3, 4]);
    assert_eq!(shares(&[8000, 1, 20, 16], 512, 8), [2, 1, 0, 6]);
    assert_eq!(shares(&[8000, 1, 16], 512, 1), [1, 1, 0]);
    assert_eq!(shares(&[8000, 1], 512, 0), [0, 1]);
    assert_eq!(shares(&[0, 0, 7], 512, ALL), [0, 0, 7]);
    assert!(shares(&[], 8, ALL).is_empty());
}

#[test]
fn higher_priorities_come_before_shorter_prompts() {
    let due = |tokens, priority| Due { tokens, answers: false, rank: (Reverse(priority), tokens) };
    let mut shares = Vec::new();
    share_tokens(&[due(90, 0), due(10, 0), due(70, 1)], Budget { step: 80, prompts: ALL }, &mut shares);
    assert_eq!(shares, [20, 0, 60]);
}
