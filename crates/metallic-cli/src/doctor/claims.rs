//! What only a Mac can show, tried where there is one: the claims of `docs/metal-without-a-mac.md`.

use std::cell::Cell;

use metallic::{
    core::{Backend, DType},
    device::{Listed, OpenOptions},
    selftest::{self, Exactness},
};
use metallic_testkit::{Failure, Plan, run_all};

use super::{Finding, Status};
use crate::term::Ui;

const AREA: &str = "claims";

/// A claim, by the words of the page, and what tries it.
struct Claim {
    what: &'static str,
    words: &'static str,
    holds: fn(&dyn Backend, Ui) -> Result<String, String>,
}

const CLAIMS: &[Claim] = &[
    Claim {
        what: "compiler",
        words: "Apple's compiler accepts the kernels",
        holds: |backend, _| {
            let outcomes =
                selftest::run(backend, Exactness::Full, DType::F32).map_err(|error| error.to_string())?;
            Ok(format!("kernels of {} models were compiled", outcomes.len() / 2))
        },
    },
    Claim {
        what: "rounding",
        words: "Apple's GPU rounds as clang does",
        holds: |backend, ui| {
            let seen = Cell::new(0_usize);
            let bar = ui.spinner("every operation, against the reference");
            let each = |name: &str, _: &Result<(), Failure>| {
                seen.set(seen.get() + 1);
                bar.tell(&format!("{} operations, against the reference: {name}", seen.get()));
            };
            let report = run_all(backend, &Plan { each: &each, ..Plan::default() });
            match report.failed.first() {
                None => Ok(format!("{} cases of the table of operations agree", report.passed)),
                Some(failed) => Err(format!(
                    "{} of {} cases differ, the first is {failed:?}",
                    report.failed.len(),
                    report.passed + report.failed.len()
                )),
            }
        },
    },
    Claim {
        what: "speed",
        words: "The memory's bandwidth bounds decoding",
        holds: |backend, _| {
            let time = std::time::Duration::from_secs(3);
            let speed = selftest::speed(backend, time).map_err(|error| error.to_string())?;
            let speed = speed.ok_or("this device has no figure for its memory")?;
            Ok(format!(
                "{:.0} % of {:.0} GB/s; `metallic tool counts` has counted and measured side by side",
                100.0 * speed.share(),
                speed.peak / 1e9
            ))
        },
    },
];

/// Tries every claim on each GPU that Metal has here.
pub(crate) fn claims(all: &[Listed], ui: Ui) -> Vec<Finding> {
    let mut findings = Vec::new();
    for listed in all.iter().filter(|listed| listed.kind == "metal" && listed.unavailable.is_none()) {
        match listed.device.open_with(&OpenOptions::default()) {
            Ok(backend) => findings.extend(CLAIMS.iter().map(|claim| tried(claim, backend.as_ref(), ui))),
            Err(error) => {
                findings.push(Finding::new(
                    AREA,
                    listed.device.to_string(),
                    Status::Failure,
                    error.to_string(),
                ));
            }
        }
    }
    if findings.is_empty() {
        let found = format!("{} claims of docs/metal-without-a-mac.md wait for a Mac", CLAIMS.len());
        findings.push(Finding::new(AREA, "Metal", Status::Note, found));
    }
    findings
}

fn tried(claim: &Claim, backend: &dyn Backend, ui: Ui) -> Finding {
    let Claim { what, words, holds } = claim;
    let system =
        if std::env::consts::OS == "macos" { "" } else { " on a stand-in for Metal, which is no Mac" };
    match holds(backend, ui) {
        Ok(how) => Finding::new(AREA, *what, Status::Ok, format!("confirmed{system}: {words} ({how})")),
        Err(why) => Finding::new(AREA, *what, Status::Failure, format!("refuted{system}: {words}: {why}"))
            .advice("please report this with `metallic doctor --report`: no Mac has shown it before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metallic::Device;

    #[test]
    fn without_a_mac_claims_wait_and_say_how_many() {
        let findings = claims(&[], Ui { quiet: true });
        assert_eq!((findings.len(), findings[0].status), (1, Status::Note));
        assert!(findings[0].found.starts_with("3 claims"), "{findings:?}");
    }

    #[test]
    fn a_claim_that_does_not_hold_is_refuted_with_what_was_seen() {
        let null = Device::Null.open(1).unwrap();
        let wrong = Claim { what: "x", words: "It is so", holds: |_, _| Err("it is not".to_owned()) };
        let finding = tried(&wrong, null.as_ref(), Ui { quiet: true });
        assert!(finding.status == Status::Failure && finding.found.ends_with("It is so: it is not"));
        let speed = CLAIMS.iter().find(|claim| claim.what == "speed").unwrap();
        assert_eq!(tried(speed, null.as_ref(), Ui { quiet: true }).status, Status::Failure);
    }

    #[test]
    fn the_page_makes_the_claims() {
        let page = include_str!("../../../../docs/metal-without-a-mac.md");
        for claim in CLAIMS {
            assert!(page.contains(claim.words), "`{}` is not in docs/metal-without-a-mac.md", claim.words);
        }
    }
}
