//! What the doctor looks at. Each look gives findings; what is printed is made of them alone.

mod claims;
mod devices;
mod speed;
mod storage;
mod system;

use std::fmt::Write;

use serde::Serialize;
use serde_json::{Value, json};

pub(crate) use claims::claims;
pub(crate) use devices::{devices, self_tests};
pub(crate) use speed::speed;
pub(crate) use storage::{Sums, models, storage};
pub(crate) use system::{environment, system};

/// How a finding is to be taken, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// Neither good nor bad.
    Note,
    /// Works, and not as well as it could.
    Warning,
    /// Does not work.
    Failure,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Note => "note",
            Status::Warning => "WARN",
            Status::Failure => "FAIL",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// Where it belongs: `system`, `devices`.
    pub(crate) area: &'static str,
    /// What was looked at.
    pub(crate) what: String,
    pub(crate) status: Status,
    /// What was found.
    pub(crate) found: String,
    /// What to do about it.
    pub(crate) advice: Option<String>,
}

impl Finding {
    fn new(area: &'static str, what: impl Into<String>, status: Status, found: impl Into<String>) -> Finding {
        Finding { area, what: what.into(), status, found: found.into(), advice: None }
    }

    fn advice(self, advice: impl Into<String>) -> Finding {
        Finding { advice: Some(advice.into()), ..self }
    }
}

/// How many there are of each status.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Summary {
    ok: usize,
    notes: usize,
    warnings: usize,
    pub(crate) failures: usize,
}

impl Summary {
    pub(crate) fn of(findings: &[Finding]) -> Summary {
        let mut summary = Summary::default();
        for finding in findings {
            match finding.status {
                Status::Ok => summary.ok += 1,
                Status::Note => summary.notes += 1,
                Status::Warning => summary.warnings += 1,
                Status::Failure => summary.failures += 1,
            }
        }
        summary
    }
}

/// The findings as a person reads them.
pub(crate) fn text(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.what.chars().count()).max().unwrap_or(0).min(28);
    let (mut text, mut area) = (format!("metallic {}\n", env!("CARGO_PKG_VERSION")), "");
    for finding in findings {
        if finding.area != area {
            area = finding.area;
            let _ = writeln!(text, "\n{area}");
        }
        let (what, word) = (&finding.what, finding.status.word());
        let _ = writeln!(text, "  {word:4}  {what:width$}  {}", finding.found);
        if let Some(advice) = &finding.advice {
            let _ = writeln!(text, "        {:width$}  -> {advice}", "");
        }
    }
    let Summary { ok, notes, warnings, failures } = Summary::of(findings);
    let _ = writeln!(text, "\n{ok} ok, {notes} notes, {warnings} warnings, {failures} failures");
    text
}

/// The findings for programs.
pub(crate) fn json(findings: &[Finding]) -> Value {
    json!({
        "version": 1,
        "metallic": env!("CARGO_PKG_VERSION"),
        "findings": findings,
        "summary": Summary::of(findings),
    })
}

/// Without the names of this machine's user, for reports that are shown to others.
pub(crate) fn without_home(text: &str, home: Option<&str>) -> String {
    match home.map(|home| home.trim_end_matches('/')).filter(|home| home.len() > 1) {
        Some(home) => text.replace(home, "~"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::new("system", "memory", Status::Ok, "24.0 GB"),
            Finding::new("system", "METALLIC_CPU_ISA", Status::Warning, "portable").advice("unset it"),
            Finding::new("models", "smollm2", Status::Failure, "~/x.gguf is damaged").advice("pull it"),
            Finding::new("speed", "cpu", Status::Note, "left out"),
        ]
    }

    #[test]
    fn findings_stand_under_their_area_with_what_to_do() {
        let text = text(&findings());
        let expected = "\nsystem\n  ok    memory            24.0 GB\n  WARN  METALLIC_CPU_ISA  portable\n                          -> unset it\n\nmodels\n  FAIL  smollm2           ~/x.gguf is damaged\n                          -> pull it\n\nspeed\n  note  cpu               left out\n\n1 ok, 1 notes, 1 warnings, 1 failures\n";
        assert_eq!(text.split_once('\n').map(|(_, rest)| rest), Some(expected));
    }

    #[test]
    fn json_has_every_finding_and_their_sum() {
        let json = json(&findings());
        assert_eq!(json["summary"]["failures"], 1);
        let worst = &json["findings"][2];
        assert_eq!((&worst["status"], &worst["advice"]), (&json!("failure"), &json!("pull it")));
        assert_eq!(json["findings"][0]["advice"], Value::Null);
    }

    #[test]
    fn reports_do_not_name_the_user() {
        assert_eq!(without_home("/home/ada/x and /home/ada", Some("/home/ada/")), "~/x and ~");
        assert_eq!(without_home("/x", Some("/")), "/x");
        assert_eq!(without_home("/x", None), "/x");
    }
}
