//! What is known of devices before anything was measured on the one at hand.

use std::fmt;

use super::Tuning;

/// Where the numbers of a device come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nothing is known of such a device.
    Default,
    /// They were measured on a device of this name.
    Measured,
    /// They follow from what its maker says of it; nobody has measured them there.
    Reasoned,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Origin::Default => "the defaults",
            Origin::Measured => "built in, measured on this kind of GPU",
            Origin::Reasoned => "built in, reasoned and not measured",
        })
    }
}

/// Cores that are many: a row of attention is as long as a core takes for its part.
const MANY: u32 = 64;

/// For GPUs with many cores, as the H200 wants them: by `metallic tune` with models of 7B.
const MANY_CORES: Tuning =
    Tuning { attention_reach: 8, attention_span: 4, heads_apart: 2, ..Tuning::DEFAULT };

/// What plans go by on a device, by its kind, its name and its cores, where they are known.
pub fn built_in(kind: &str, name: &str, cores: u32) -> (Tuning, Origin) {
    match kind {
        "cuda" if cores >= MANY && name.contains("H200") => (MANY_CORES, Origin::Measured),
        "cuda" | "soft" if cores >= MANY => (MANY_CORES, Origin::Reasoned),
        "metal" => apple(name),
        _ => (Tuning::DEFAULT, Origin::Default),
    }
}

/// GPUs of Apple Silicon, by the names that Metal gives them: `Apple M2 Max`.
///
/// Eight key/value heads keep the eight to ten cores of a plain chip busy by themselves, so its rows are split late: these are the
/// defaults. A Pro (14 to 20 cores), a Max (24 to 40) and an Ultra (48 to 80) have so many more cores than there are such heads, and rows are
/// split as much earlier. What plans go by else (threadgroup memory, threads, the width of simdgroups) is the same from the M1 to
/// the M5, so generations do not differ.
fn apple(name: &str) -> (Tuning, Origin) {
    let mut words = name.trim().split(' ');
    let generation = match (words.next(), words.next()) {
        (Some("Apple"), Some(chip)) => chip.strip_prefix('M').and_then(|number| number.parse::<u32>().ok()),
        _ => None,
    };
    if !generation.is_some_and(|generation| (1..=5).contains(&generation)) {
        return (Tuning::DEFAULT, Origin::Default);
    }
    let tuning = match words.next() {
        None => Tuning::DEFAULT,
        Some("Pro") => Tuning { attention_reach: 16, attention_span: 8, ..Tuning::DEFAULT },
        Some("Max") => Tuning { attention_reach: 8, attention_span: 8, heads_apart: 1, ..Tuning::DEFAULT },
        Some("Ultra") => MANY_CORES,
        Some(_) => return (Tuning::DEFAULT, Origin::Default),
    };
    (tuning, Origin::Reasoned)
}
