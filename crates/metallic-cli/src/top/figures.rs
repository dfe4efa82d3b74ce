//! Figures over a stretch of time: rates, quantiles, counts by size.

/// Work that took from `begin` for `seconds` and came to `amount`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stretch {
    pub(crate) begin: f64,
    pub(crate) seconds: f64,
    pub(crate) amount: f64,
}

impl Stretch {
    fn end(&self) -> f64 {
        self.begin + self.seconds
    }

    /// How much of it falls between two times. What took no time falls where it ended.
    fn within(&self, from: f64, to: f64) -> f64 {
        if self.seconds <= 0.0 {
            return if self.begin > from && self.begin <= to { self.amount } else { 0.0 };
        }
        let common = self.end().min(to) - self.begin.max(from);
        if common <= 0.0 { 0.0 } else { self.amount * (common / self.seconds).min(1.0) }
    }
}

/// Amounts a second in `count` equal parts of the `window` that ends `now`, the oldest first. A stretch is spread over the time it
/// took, so that a long step is no spike at its end.
pub(crate) fn rates(
    stretches: impl Iterator<Item = Stretch>,
    now: f64,
    window: f64,
    count: usize,
) -> Vec<f64> {
    let mut parts = vec![0.0; count];
    let (from, width) = (now - window, window / count.max(1) as f64);
    if width <= 0.0 {
        return parts;
    }
    for stretch in stretches {
        // Negative numbers and those past the end are held by the casts.
        let first = ((stretch.begin - from) / width).floor().max(0.0) as usize;
        let last = (((stretch.end() - from) / width).floor().max(0.0) as usize).min(count.saturating_sub(1));
        for (index, part) in parts.iter_mut().enumerate().take(last + 1).skip(first) {
            let begin = from + index as f64 * width;
            *part += stretch.within(begin, begin + width) / width;
        }
    }
    parts
}

/// The amount a second in the `seconds` before `end`.
pub(crate) fn rate_before(stretches: impl Iterator<Item = Stretch>, end: f64, seconds: f64) -> f64 {
    stretches.map(|stretch| stretch.within(end - seconds, end)).sum::<f64>() / seconds
}

/// What was seen last, in the middle, and at the 95th part of a hundred.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    pub(crate) current: f64,
    pub(crate) median: f64,
    pub(crate) p95: f64,
}

impl Spread {
    /// `None` where there is nothing to tell of.
    pub(crate) fn of(current: f64, mut values: Vec<f64>) -> Option<Spread> {
        values.retain(|value| value.is_finite());
        values.sort_by(f64::total_cmp);
        Some(Spread { current, median: quantile(&values, 0.5)?, p95: quantile(&values, 0.95)? })
    }
}

/// The value below which this part of the sorted ones lies: the nearest, none is made up.
pub(crate) fn quantile(sorted: &[f64], part: f64) -> Option<f64> {
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1).min(sorted.len().checked_sub(1)?)).copied()
}

/// How many values are up to each limit and above the one before. Limits go 1, 2, 5 and on; empty ends are left out.
pub(crate) fn histogram(values: impl Iterator<Item = f64>) -> Vec<(f64, u64)> {
    let mut counts: Vec<(f64, u64)> = limits().map(|limit| (limit, 0)).collect();
    for value in values {
        let found = counts.iter().position(|(limit, _)| value <= *limit).unwrap_or(counts.len() - 1);
        counts[found].1 += 1;
    }
    let filled = |counts: &[(f64, u64)]| counts.iter().position(|(_, count)| *count > 0);
    let Some(first) = filled(&counts) else { return Vec::new() };
    let last = counts.iter().rposition(|(_, count)| *count > 0).unwrap_or(first);
    counts[first..=last].to_vec()
}

/// Ten microseconds to a thousand seconds, and all above.
fn limits() -> impl Iterator<Item = f64> {
    (-5..3).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power))).chain([f64::INFINITY])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(begin: f64, seconds: f64, amount: f64) -> Stretch {
        Stretch { begin, seconds, amount }
    }

    #[test]
    fn a_long_step_is_spread_over_the_time_it_took() {
        // 8 tokens from second 1 to 3, 2 tokens at once at 3.5; the window is 0 to 4.
        let work = [stretch(1.0, 2.0, 8.0), stretch(3.5, 0.0, 2.0)];
        assert_eq!(rates(work.into_iter(), 4.0, 4.0, 4), [0.0, 4.0, 4.0, 2.0]);
        assert_eq!(rates(work.into_iter(), 4.0, 2.0, 2), [4.0, 2.0]);
        assert_eq!(rate_before(work.into_iter(), 4.0, 1.0), 2.0);
        assert_eq!(rate_before(work.into_iter(), 3.0, 4.0), 2.0);
    }

    #[test]
    fn work_outside_of_the_window_counts_for_nothing() {
        let work = [stretch(0.0, 1.0, 9.0), stretch(20.0, 1.0, 9.0), stretch(9.0, 2.0, 4.0)];
        assert_eq!(rates(work.into_iter(), 12.0, 2.0, 2), [2.0, 0.0]);
        assert!(rates(work.into_iter(), 12.0, 2.0, 0).is_empty());
        assert_eq!(rates(work.into_iter(), 1.0, 0.0, 2), [0.0, 0.0]);
    }

    #[test]
    fn figures_of_any_size_are_borne() {
        let huge = [stretch(-1e308, 1e308, 1e300), stretch(0.0, f64::MAX, 1.0), stretch(1e300, 1.0, 1.0)];
        assert_eq!(rates(huge.into_iter(), 5.0, 10.0, 60).len(), 60);
        assert_eq!(histogram([0.0, 1e9, f64::INFINITY].into_iter()).last(), Some(&(f64::INFINITY, 2)));
    }

    #[test]
    fn quantiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&values, 0.5), quantile(&values, 0.95)), (Some(50.0), Some(95.0)));
        assert_eq!((quantile(&values[..1], 0.95), quantile(&[], 0.5)), (Some(1.0), None));
        assert_eq!(
            Spread::of(7.0, vec![3.0, f64::NAN, 1.0, 2.0]),
            Some(Spread { current: 7.0, median: 2.0, p95: 3.0 })
        );
        assert_eq!(Spread::of(0.0, vec![]), None);
    }

    #[test]
    fn a_histogram_begins_and_ends_where_something_is() {
        let counted = histogram([0.0011, 0.002, 0.012, 0.0013].into_iter());
        let expected = [(0.002, 3), (0.005, 0), (0.01, 0), (0.02, 1)];
        assert_eq!(counted.len(), expected.len());
        for ((limit, count), (wanted, many)) in counted.into_iter().zip(expected) {
            assert!((limit - wanted).abs() < 1e-9 && count == many, "{limit} {count}");
        }
        assert!(histogram(std::iter::empty()).is_empty());
    }
}
