//! Running tables, and what came of it.

use std::fmt;

use metallic_core::{Backend, BackendError};

use crate::cases::Exactness;
use crate::{copies, eager, graphs};

/// Why a case did not pass.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The backend says that it cannot run it.
    Refused(BackendError),
    /// The result is wrong, or there is none.
    Wrong(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(error) => error.fmt(f),
            Failure::Wrong(what) => f.write_str(what),
        }
    }
}

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Failure {
        match error {
            BackendError::Unsupported { .. } => Failure::Refused(error),
            error => Failure::Wrong(error.to_string()),
        }
    }
}

impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure::Wrong(what)
    }
}

/// What is asked of the results of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Results {
    /// They are those of the reference.
    Compared,
    /// Nothing: the backend computes none. A case passes where all of it could be planned and submitted.
    Unread,
}

/// Which cases are run, and what is asked of the backend.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// How close its results must be.
    pub exactness: Exactness,
    /// Cases with this in their name, and single operations that are called so.
    pub only: &'a str,
    /// Which of the walks programs go, see [`crate::graphs::WALKS`].
    pub walks: &'a [usize],
    /// What is asked of its results.
    pub results: Results,
    /// Is told what came of each case as soon as it is known.
    pub each: &'a dyn Fn(&str, &Result<(), Failure>),
}

impl Default for Plan<'_> {
    /// Every case, exactly, on all walks.
    fn default() -> Self {
        Plan {
            exactness: Exactness::Exact,
            only: "",
            walks: &[0, 1, 2, 3],
            results: Results::Compared,
            each: &|_, _| {},
        }
    }
}

/// What came of a table.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Report {
    /// Cases that passed.
    pub passed: usize,
    /// All others, and what is wrong.
    pub failed: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, plan: &Plan<'_>, name: &str, result: Result<(), Failure>) {
        (plan.each)(name, &result);
        match result {
            Ok(()) => self.passed += 1,
            Err(failure) => self.failed.push(format!("{name}: {failure}")),
        }
    }

    /// Both together.
    pub fn and(mut self, other: Report) -> Report {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self
    }

    /// Fails the test where a case failed, or where there was none.
    #[track_caller]
    pub fn expect(self) {
        let Report { passed, failed } = &self;
        assert!(failed.is_empty(), "{} cases failed, {passed} passed:\n{}", failed.len(), failed.join("\n"));
        assert!(*passed > 0, "no case has such a name");
    }
}

/// Every table on a backend: programs, single operations, copies, and what it must refuse.
pub fn run_all(backend: &dyn Backend, plan: &Plan<'_>) -> Report {
    let mut report =
        graphs::run(backend, plan).and(eager::run(backend, plan)).and(copies::run(backend, plan));
    if REFUSALS.contains(plan.only) {
        report.add(plan, REFUSALS, eager::check_refusals(backend).map_err(Failure::Wrong));
    }
    report
}

/// What is said of all that a backend must refuse.
const REFUSALS: &str = "refusals";
