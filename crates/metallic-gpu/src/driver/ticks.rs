//! The times of single steps, of what a GPU notes at the beginning and the end of each.

use std::time::Duration;

/// What stands for a moment that could not be noted.
pub(crate) const FAILED: u64 = u64::MAX;
/// Bytes of the buffer that moments are noted in, at most, and of one moment.
const BUFFER: usize = 32 << 10;
const MOMENT: usize = size_of::<u64>();
/// Steps of a run at most, where each has two moments.
const MOST_STEPS: usize = BUFFER / MOMENT / 2;

/// Cuts runs so that the moments of each fit a buffer.
pub(crate) fn cut<T>(runs: Vec<Vec<T>>) -> Vec<Vec<T>> {
    let mut shorter = Vec::with_capacity(runs.len());
    for run in runs {
        let mut steps = run.into_iter();
        loop {
            let piece: Vec<T> = steps.by_ref().take(MOST_STEPS).collect();
            if piece.is_empty() {
                break;
            }
            shorter.push(piece);
        }
    }
    shorter
}

/// Moments as they lie in memory.
pub(crate) fn moments(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|moment| u64::from_ne_bytes(*moment)).collect()
}

/// How long each step took, of its beginning and its end in ticks of a length that nobody tells: from the first beginning to the last
/// end it is `span`. `None` where a moment was not noted, or time went backwards.
pub(crate) fn durations(moments: &[u64], span: Duration) -> Option<Vec<Duration>> {
    let steps = moments.as_chunks::<2>().0;
    if steps.iter().any(|[begin, end]| *begin == FAILED || *end == FAILED || end < begin) {
        return None;
    }
    let first = steps.iter().map(|[begin, _]| *begin).min()?;
    let last = steps.iter().map(|[_, end]| *end).max()?;
    let ticks = (last - first).max(1) as f64;
    let part = |[begin, end]: &[u64; 2]| span.mul_f64((end - begin) as f64 / ticks);
    Some(steps.iter().map(part).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_parts_of_the_whole() {
        let ms = Duration::from_millis;
        let found = durations(&[1000, 1010, 1010, 1040, 1050, 1100], ms(50)).unwrap();
        assert_eq!(found, [ms(5), ms(15), ms(25)], "5 ms between the last two are nobody's");
        assert_eq!(durations(&[7, 7], ms(1)).unwrap(), [Duration::ZERO]);
    }

    #[test]
    fn a_moment_that_is_missing_or_out_of_order_gives_no_times() {
        let ms = Duration::from_millis(1);
        assert_eq!(durations(&[1, 2, FAILED, 4], ms), None);
        assert_eq!(durations(&[1, FAILED], ms), None);
        assert_eq!(durations(&[3, 2], ms), None);
        assert_eq!(durations(&[], ms), None);
    }

    #[test]
    fn runs_are_cut_where_their_moments_fill_a_buffer_and_no_step_is_lost() {
        let runs = cut(vec![(0..3).collect(), (3..4 + 2 * MOST_STEPS).collect(), Vec::new()]);
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [3, MOST_STEPS, MOST_STEPS, 1]);
        assert!(runs.concat().into_iter().eq(0..4 + 2 * MOST_STEPS));
        assert_eq!(2 * MOST_STEPS * MOMENT, BUFFER);
    }

    #[test]
    fn bytes_are_moments() {
        let bytes = [1u64.to_ne_bytes(), u64::MAX.to_ne_bytes()].concat();
        assert_eq!(moments(&bytes), [1, FAILED]);
    }
}
