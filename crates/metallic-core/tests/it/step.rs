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
