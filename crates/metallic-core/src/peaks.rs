//! What a device reaches at best, which figures of a run are a share of.

use std::time::Duration;

/// What a device reaches at best, as kernels found it that do nothing else.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes read a second.
    pub read: f64,
    /// Bytes read and written a second, by a copy.
    pub copy: f64,
    /// Multiplications with additions a second, of matrix products.
    pub multiply_adds: f64,
    /// What multiplied, in words.
    pub by: &'static str,
}

/// One measurement takes about so long.
const RUN: Duration = Duration::from_millis(10);
/// All measurements of one figure take about so long.
const ALL: Duration = Duration::from_millis(120);
/// Repetitions of one measurement at most.
const MOST_REPEATS: u32 = 256;
/// Measurements at most.
const MOST_RUNS: usize = 64;
/// Measurements at least, unless each takes longer than all should.
const LEAST_RUNS: usize = 4;

/// How much is done a second at best, where `run` does `amount` so many times as it is told, and says how long that took. It is run
/// once to warm up, once to see how long it takes, and then as often as a tenth of a second allows.
pub fn best_rate<E>(amount: f64, mut run: impl FnMut(u32) -> Result<Duration, E>) -> Result<f64, E> {
    run(1)?;
    let repeats = repeats(run(1)?);
    let (mut best, mut spent) = (Duration::MAX, Duration::ZERO);
    for index in 0..MOST_RUNS {
        let time = run(repeats)?;
        best = best.min(time);
        spent += time;
        if spent >= ALL && (index + 1 >= LEAST_RUNS || time >= ALL) {
            break;
        }
    }
    Ok(amount * f64::from(repeats) / best.as_secs_f64().max(1e-9))
}

/// Repetitions that take about as long as a measurement should, where one takes `once`.
fn repeats(once: Duration) -> u32 {
    let times = RUN.as_secs_f64() / once.as_secs_f64().max(1e-9);
    (times.ceil() as u32).clamp(1, MOST_REPEATS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that takes `once` for each repetition and `start` for each run, and what it was asked for.
    fn rate(once: Duration, start: Duration) -> (f64, Vec<u32>) {
        let mut asked = Vec::new();
        let rate = best_rate(1e6, |repeats| {
            asked.push(repeats);
            Ok::<_, ()>(start + once * repeats)
        });
        (rate.unwrap(), asked)
    }

    #[test]
    fn short_work_is_repeated_until_its_start_does_not_count() {
        let (rate, asked) = rate(Duration::from_micros(100), Duration::from_micros(10));
        assert_eq!(asked[..3], [1, 1, 91]);
        assert!((rate - 1e10).abs() < 2e7, "{rate}");
        assert!(asked.len() > LEAST_RUNS + 2 && asked.len() <= MOST_RUNS + 2, "{}", asked.len());
    }

    #[test]
    fn long_work_is_done_a_few_times_and_what_takes_no_time_comes_to_an_end() {
        let (rate_of_slow, asked) = rate(Duration::from_millis(500), Duration::ZERO);
        assert_eq!((asked, rate_of_slow), (vec![1, 1, 1], 2e6));
        let (_, asked) = rate(Duration::ZERO, Duration::ZERO);
        assert_eq!((asked.len(), asked[2]), (MOST_RUNS + 2, MOST_REPEATS));
    }

    #[test]
    fn the_best_of_several_counts_and_a_failure_is_passed_on() {
        let mut times = [9, 9, 30, 12, 25, 60].into_iter();
        let rate = best_rate(12e6, |_| Ok::<_, ()>(Duration::from_millis(times.next().unwrap_or(60))));
        assert!((rate.unwrap() - 2.0 * 12e6 / 12e-3).abs() < 1.0);
        assert_eq!(best_rate(1.0, |_| Err::<Duration, _>("lost")), Err("lost"));
    }
}
