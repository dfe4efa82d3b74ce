//! What a backend may rely on: steps within their contract.

use metallic_core::{Blocks, Fed, SequenceSpan, Step, StepError, StepLimits};

const LIMITS: StepLimits =
    StepLimits { vocab: 4, blocks: Blocks { far: 1, near: 1 }, slots: Some(2), fed_rows: 1, adapters: 0 };

#[test]
fn a_past_beyond_all_bounds_is_refused() {
    for past in [usize::MAX, usize::MAX - 1, usize::MAX / 2] {
        let sequences = [SequenceSpan { tokens: 0..2, past, blocks: &[0], near: &[], slot: 0 }];
        let step = Step { tokens: &[0, 0], positions: &[0, 1], sequences: &sequences, ..Step::default() };
        let found = step.validate(&LIMITS);
        assert!(matches!(found, Err(StepError::Blocks { blocks: 1, .. })), "{past}: {found:?}");
    }
}

#[test]
fn tokens_that_are_fed_need_no_id_and_a_row_to_come_from() {
    let sequences = [SequenceSpan { tokens: 0..1, past: 3, blocks: &[0], near: &[], slot: 1 }];
    let step = Step { tokens: &[9], positions: &[3], sequences: &sequences, ..Step::default() };
    assert!(matches!(step.validate(&LIMITS), Err(StepError::TokenOutOfRange { id: 9, vocab: 4, .. })));
    let fed = |fed: &[Fed]| Step { fed, ..step.clone() }.validate(&LIMITS);
    assert_eq!(fed(&[Fed { token: 0, row: 0 }]), Ok(()));
    assert!(matches!(fed(&[Fed { token: 0, row: 1 }]), Err(StepError::FedOutOfRange { rows: 1, .. })));
    assert!(matches!(fed(&[Fed { token: 1, row: 0 }]), Err(StepError::FedOutOfRange { tokens: 1, .. })));
}

#[test]
fn recurrent_states_must_be_reserved() {
    let sequences = [SequenceSpan { tokens: 0..1, past: 0, blocks: &[0], near: &[], slot: 2 }];
    let step = Step { tokens: &[0], positions: &[0], sequences: &sequences, ..Step::default() };
    assert!(matches!(step.validate(&LIMITS), Err(StepError::SlotOutOfRange { slot: 2, reserved: 2, .. })));
    assert_eq!(step.validate(&StepLimits { slots: None, ..LIMITS }), Ok(()));
}

#[test]
fn a_recurrent_state_has_one_sequence_of_a_step() {
    let sequence = |token: usize, slot| SequenceSpan {
        tokens: token..token + 1,
        past: 0,
        blocks: &[0],
        near: &[],
        slot,
    };
    let sequences = [sequence(0, 1), sequence(1, 1)];
    let step = Step { tokens: &[0, 0], positions: &[0, 0], sequences: &sequences, ..Step::default() };
    let twice = StepError::SlotTwice { other: 0, sequence: 1, slot: 1 };
    assert_eq!(step.validate(&LIMITS), Err(twice));
    assert_eq!(step.validate(&StepLimits { slots: None, ..LIMITS }), Ok(()));
}

#[test]
fn blocks_of_layers_with_a_window_are_held_to_their_own_number() {
    let limits = StepLimits { blocks: Blocks { far: 9, near: 2 }, slots: None, ..LIMITS };
    let checked = |near: &[u32]| {
        let sequences = [SequenceSpan { tokens: 0..2, past: 31, blocks: &[7, 8], near, slot: 0 }];
        assert_eq!(sequences[0].table(false), [7, 8]);
        assert_eq!(sequences[0].table(true), if near.is_empty() { &[7, 8] } else { near });
        let step = Step { tokens: &[0, 0], positions: &[31, 32], sequences: &sequences, ..Step::default() };
        step.validate(&limits)
    };
    assert_eq!(checked(&[1, 0]), Ok(()));
    assert_eq!(checked(&[0]), Err(StepError::Blocks { sequence: 0, blocks: 1, needed: 2 }));
    assert_eq!(checked(&[1, 2]), Err(StepError::BlockOutOfRange { sequence: 0, block: 2, reserved: 2 }));
    // Without blocks of their own they have those of the others.
    assert_eq!(checked(&[]), Err(StepError::BlockOutOfRange { sequence: 0, block: 7, reserved: 2 }));
}

#[test]
fn every_token_says_how_much_of_each_adapter_it_takes() {
    let limits = StepLimits { adapters: 2, ..LIMITS };
    let sequences = [SequenceSpan { tokens: 0..2, past: 0, blocks: &[0], near: &[], slot: 0 }];
    for (found, fits) in [(4, true), (0, false), (3, false), (5, false)] {
        let adapters = vec![0.5; found];
        let step = Step { tokens: &[0, 0], positions: &[0, 1], sequences: &sequences, ..Step::default() };
        let said = Step { adapters: &adapters, ..step }.validate(&limits);
        let wrong = Err(StepError::Adapters { found, tokens: 2, adapters: 2 });
        assert_eq!(said, if fits { Ok(()) } else { wrong });
    }
}
