//! How bytes of the host go to a GPU that copies from pinned memory alone: by pieces, each read into a slot of such memory while
//! the slots before it are on their way. Bytes of a mapped file are read from the disk meanwhile.

use std::ops::Range;

use crate::error::GpuError;

/// Bytes of a piece: long enough that the copy of one hides what a call costs, short enough that the first is soon on its way.
pub(crate) const PIECE: usize = 4 << 20;
/// Slots of a lane: one is read into while the other is on its way.
pub(crate) const SLOTS: usize = 2;
/// Lanes at most, each filled by a thread of its own: one thread copies at a fraction of what a GPU takes, and waits for the disk.
pub(crate) const LANES: usize = 4;
/// What is shorter goes as it is: the driver has staging memory of its own, and threads would cost more than they gain.
pub(crate) const LEAST: usize = 1 << 20;

/// Lanes for an upload, of which so many are there; none where it goes as it is.
pub(crate) fn lanes(len: usize, there: usize) -> usize {
    if len < LEAST { 0 } else { len.div_ceil(PIECE).min(there) }
}

/// Lanes worth having on a machine of so many cores: others need some of them.
pub(crate) fn worth_having(cores: usize) -> usize {
    (cores / 2).clamp(1, LANES)
}

/// As many lanes as can be had of those wanted, and what is to be said where that is fewer. A GPU that is lost has none.
pub(crate) fn lanes_to_be_had<L>(
    wanted: usize,
    mut make: impl FnMut() -> Result<L, GpuError>,
) -> Result<(Vec<L>, Option<String>), GpuError> {
    let mut had = Vec::new();
    while had.len() < wanted {
        match make() {
            Ok(lane) => had.push(lane),
            Err(lost @ GpuError::Lost { .. }) => return Err(lost),
            Err(error) => {
                let way = if had.is_empty() { "by plain copies" } else { "through less pinned memory" };
                let (count, each) = (had.len(), (SLOTS * PIECE) >> 20);
                let note = format!(
                    "weights go to the GPU {way}, which takes longer: of {wanted} times {each} MiB of pinned memory {count} could be had: {error}"
                );
                return Ok((had, Some(note)));
            }
        }
    }
    Ok((had, None))
}

/// The pieces of a lane among `lanes`, in the order they go, each with its slot. Lanes take turns, so that all read close to
/// each other in a file.
pub(crate) fn pieces(len: usize, lane: usize, lanes: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let starts = (lane * PIECE..len).step_by(lanes.max(1) * PIECE);
    starts.enumerate().map(move |(turn, start)| (turn % SLOTS, start..len.min(start + PIECE)))
}

/// Slots of pinned memory.
pub(crate) trait Lane {
    /// Puts bytes into a slot, once what was sent from it before has been copied.
    fn fill(&mut self, slot: usize, bytes: &[u8]) -> Result<(), GpuError>;

    /// Begins to copy what the slot holds to this byte of the target.
    fn send(&mut self, slot: usize, to: usize) -> Result<(), GpuError>;
}

/// Sends the pieces of one lane.
pub(crate) fn send(
    lane: &mut impl Lane,
    bytes: &[u8],
    (number, lanes): (usize, usize),
) -> Result<(), GpuError> {
    for (slot, piece) in pieces(bytes.len(), number, lanes) {
        lane.fill(slot, &bytes[piece.clone()])?;
        lane.send(slot, piece.start)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A GPU that copies a slot only when somebody waits for it, or at the end: what is overwritten before that shows.
    #[derive(Default)]
    struct Late {
        slots: [Vec<u8>; SLOTS],
        on_their_way: VecDeque<(usize, usize)>,
        target: Vec<u8>,
        most: usize,
        fails_after: Option<usize>,
    }

    impl Late {
        fn copy(&mut self, until: Option<usize>) {
            while until.is_none_or(|slot| self.on_their_way.iter().any(|(other, _)| *other == slot)) {
                let Some((slot, to)) = self.on_their_way.pop_front() else { return };
                let bytes = self.slots[slot].clone();
                self.target[to..to + bytes.len()].copy_from_slice(&bytes);
            }
        }
    }

    impl Lane for Late {
        fn fill(&mut self, slot: usize, bytes: &[u8]) -> Result<(), GpuError> {
            assert!(!bytes.is_empty() && bytes.len() <= PIECE);
            self.copy(Some(slot));
            self.slots[slot] = bytes.to_vec();
            Ok(())
        }

        fn send(&mut self, slot: usize, to: usize) -> Result<(), GpuError> {
            if self.fails_after == Some(0) {
                return Err(GpuError::execution("a copy", "it failed"));
            }
            self.fails_after = self.fails_after.map(|left| left - 1);
            self.on_their_way.push_back((slot, to));
            self.most = self.most.max(self.on_their_way.len());
            Ok(())
        }
    }

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 251 + i) as u8).collect()
    }

    #[test]
    fn every_byte_arrives_once_whatever_the_length_and_the_lanes() {
        for len in [1, PIECE - 1, PIECE, PIECE + 1, 5 * PIECE + 7] {
            let bytes = bytes(len);
            for lanes in 1..=LANES {
                let mut target = vec![0xEE; len];
                let mut taken = 0;
                for number in 0..lanes {
                    let mut lane = Late { target: vec![0xEE; len], ..Late::default() };
                    send(&mut lane, &bytes, (number, lanes)).unwrap();
                    lane.copy(None);
                    for (_, piece) in pieces(len, number, lanes) {
                        target[piece.clone()].copy_from_slice(&lane.target[piece.clone()]);
                        taken += piece.len();
                    }
                }
                assert!(target == bytes && taken == len, "{len} bytes, {lanes} lanes");
            }
        }
    }

    #[test]
    fn one_slot_is_read_into_while_the_other_is_on_its_way() {
        let bytes = bytes(4 * PIECE);
        let mut lane = Late { target: vec![0; bytes.len()], ..Late::default() };
        send(&mut lane, &bytes, (0, 1)).unwrap();
        assert_eq!(lane.most, SLOTS);
        let slots: Vec<usize> = pieces(bytes.len(), 0, 1).map(|(slot, _)| slot).collect();
        assert_eq!(slots, [0, 1, 0, 1]);
    }

    #[test]
    fn a_copy_that_fails_ends_the_lane_with_its_error() {
        let bytes = bytes(3 * PIECE);
        let mut lane = Late { target: vec![0; bytes.len()], fails_after: Some(1), ..Late::default() };
        let error = send(&mut lane, &bytes, (0, 1)).unwrap_err().to_string();
        assert!(error.contains("it failed"), "{error}");
        assert_eq!(lane.on_their_way.len(), 1);
    }

    #[test]
    fn pinned_memory_that_cannot_be_had_is_said_and_done_without() {
        let mut left = 2;
        let mut make = || {
            left -= 1;
            if left >= 0 { Ok(()) } else { Err(GpuError::no_room("pinned memory", PIECE, None)) }
        };
        assert_eq!(lanes_to_be_had(2, &mut make).unwrap(), (vec![(); 2], None));
        let (had, note) = lanes_to_be_had(4, &mut make).unwrap();
        assert_eq!((had.len(), lanes(100 * PIECE, had.len())), (0, 0));
        let note = note.unwrap();
        assert!(note.contains("plain copies") && note.contains("of 4 times 8 MiB"), "{note}");
        left = 1;
        let mut make = || {
            left -= 1;
            if left >= 0 { Ok(()) } else { Err(GpuError::no_room("pinned memory", PIECE, None)) }
        };
        let (had, note) = lanes_to_be_had(4, &mut make).unwrap();
        assert!(had.len() == 1 && note.is_some_and(|note| note.contains("less pinned memory")));
        let lost = || Err::<(), _>(GpuError::Lost { reason: "gone".to_owned() });
        assert!(matches!(lanes_to_be_had(4, lost), Err(GpuError::Lost { .. })));
    }

    #[test]
    fn short_uploads_go_as_they_are_and_no_lane_is_without_a_piece() {
        assert_eq!((lanes(0, 4), lanes(LEAST - 1, 4), lanes(LEAST, 4)), (0, 0, 1));
        assert_eq!((lanes(2 * PIECE, 4), lanes(100 * PIECE, 4), lanes(100 * PIECE, 3)), (2, 4, 3));
        assert_eq!(lanes(100 * PIECE, 0), 0, "without pinned memory");
        for (len, there) in [(LEAST, 4), (2 * PIECE + 1, 4), (100 * PIECE, 4)] {
            let lanes = lanes(len, there);
            assert!((0..lanes).all(|lane| pieces(len, lane, lanes).next().is_some()));
        }
        assert_eq!((worth_having(1), worth_having(2), worth_having(4), worth_having(64)), (1, 1, 2, LANES));
    }
}
