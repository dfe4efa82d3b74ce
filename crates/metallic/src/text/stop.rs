/// Watches streamed text for stop strings.
///
/// Text that may be the beginning of a stop string is held back until it is certain; nothing of a stop string is ever
/// given out, and nothing that follows it.
///
/// ```
/// use metallic::text::StopMatcher;
///
/// let mut stop = StopMatcher::new(["\nUser:"]);
/// assert_eq!(stop.push("Hello.\nUs"), "Hello.");
/// assert_eq!(stop.push("e it.\nUser: x"), "\nUse it.");
/// assert!(stop.is_stopped());
/// ```
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// A matcher for `stops`; empty ones are ignored.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Self {
        let stops = stops.into_iter().map(Into::into).filter(|s: &String| !s.is_empty()).collect();
        Self { stops, held: String::new(), stopped: None }
    }

    /// Takes more text and returns what is certain not to be part of a stop string.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        self.held.push_str(text);
        // The stop that is complete first counts, so that the result does not depend on how the text was cut.
        let found = (self.stops.iter().enumerate())
            .filter_map(|(i, s)| self.held.find(s.as_str()).map(|at| (at + s.len(), at, i)))
            .min();
        if let Some((_, at, which)) = found {
            self.stopped = Some(which);
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|s| overlap(&self.held, s)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the text: what was held back is no stop string after all. Empty after a stop.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Whether a stop string has been seen.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// The stop string that was seen.
    pub fn matched(&self) -> Option<&str> {
        self.stopped.map(|i| self.stops[i].as_str())
    }
}

/// Bytes at the end of `text` that are a beginning of `stop`.
pub(super) fn overlap(text: &str, stop: &str) -> usize {
    let longest = text.len().min(stop.len() - 1);
    (1..=longest)
        .rev()
        .filter(|&n| stop.is_char_boundary(n))
        .find(|&n| text.as_bytes().ends_with(&stop.as_bytes()[..n]))
        .unwrap_or(0)
}
