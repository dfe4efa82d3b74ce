//! How much a pattern of a stranger's file may cost.

use std::cell::Cell;
use std::time::{Duration, Instant};

use fancy_regex::Expr;

use super::TextError;

/// Bytes of the longest pattern. The longest real one has about two thousand.
const MAX_LENGTH: usize = 1 << 15;
/// Parts of a pattern, counting what is repeated as often as it is. Real ones have less than two thousand.
const MAX_PARTS: usize = 4096;

/// Refuses a pattern that becomes too large when its repetitions are written out.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    if pattern.len() > MAX_LENGTH {
        return Err(format!("it has {} bytes; at most {MAX_LENGTH} are allowed", pattern.len()));
    }
    // What this parser does not know the other engine may; its own limit on size holds there.
    let Ok(tree) = Expr::parse_tree(pattern) else { return Ok(()) };
    let parts = parts(&tree.expr);
    if parts > MAX_PARTS {
        return Err(format!(
            "it has {parts} parts when its repetitions are written out; at most {MAX_PARTS} are allowed"
        ));
    }
    Ok(())
}

fn parts(expr: &Expr) -> usize {
    let all = |list: &[Expr]| list.iter().map(parts).fold(1, usize::saturating_add);
    match expr {
        Expr::Concat(list) | Expr::Alt(list) => all(list),
        Expr::Group(child) | Expr::LookAround(child, _) | Expr::AtomicGroup(child) => {
            parts(child).saturating_add(1)
        }
        Expr::Repeat { child, lo, hi, .. } => {
            let times = if *hi == usize::MAX { lo.saturating_add(1) } else { *hi };
            parts(child).saturating_mul(times.max(1))
        }
        Expr::Conditional { condition, true_branch, false_branch } => {
            [condition, true_branch, false_branch].iter().map(|e| parts(e)).fold(1, usize::saturating_add)
        }
        Expr::Literal { val, .. } => val.len(),
        Expr::Delegate { inner, .. } => 1 + inner.len() / 64,
        _ => 1,
    }
}

/// Ends the work of patterns that backtrack more than they move, over all the pieces of a text.
#[derive(Debug, Default)]
pub(super) struct Patience {
    spent: Cell<Duration>,
    passed: Cell<usize>,
}

impl Patience {
    /// What patterns may take for any text.
    const GRACE: Duration = Duration::from_millis(500);
    /// What they may take for each byte they have passed: a hundred times what the slowest real one takes.
    const PER_BYTE: Duration = Duration::from_micros(20);

    /// Notes that `pattern` has passed so many bytes since `began`; an error if that takes too long.
    pub(super) fn spend(&self, pattern: &str, began: Instant, bytes: usize) -> Result<(), TextError> {
        self.spent.set(self.spent.get() + began.elapsed());
        self.passed.set(self.passed.get() + bytes);
        let passed = u32::try_from(self.passed.get()).unwrap_or(u32::MAX);
        if self.spent.get() <= Self::GRACE + Self::PER_BYTE.saturating_mul(passed) {
            return Ok(());
        }
        Err(TextError::Pattern {
            pattern: pattern.into(),
            reason: format!("it was stopped after {passed} bytes because it hardly moves"),
        })
    }
}
