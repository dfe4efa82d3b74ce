use super::share_tokens;

fn shares(pending: &[usize], budget: usize) -> Vec<usize> {
    let mut shares = vec![99];
    share_tokens(pending.iter().copied(), budget, &mut shares);
    shares
}

#[test]
fn decoding_comes_first_and_prefill_shares_what_is_left_oldest_first() {
    assert_eq!(shares(&[100, 1, 50, 1], 112), [100, 1, 10, 1]);
    assert_eq!(shares(&[100, 1, 50, 1], 64), [62, 1, 0, 1]);
    assert_eq!(shares(&[100, 1], 1), [0, 1]);
    assert_eq!(shares(&[3, 4], 512), [3, 4]);
    assert!(shares(&[], 8).is_empty());
}
