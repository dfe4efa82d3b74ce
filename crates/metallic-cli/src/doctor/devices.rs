//! What can compute here, and whether it computes what it should.

use metallic::{
    Device,
    core::{Backend, BackendError, DType},
    device::{self, Listed, OpKind, OpenOptions, Provider, Providers, Quarantined, Why},
    selftest::{self, Exactness, Outcome},
};

use super::{Finding, Status};
use crate::term::{Ui, size};

const AREA: &str = "devices";
const TESTS: &str = "self-tests";

pub(crate) fn devices(all: &[Listed]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = all.iter().map(listed).collect();
    findings.extend(all.iter().flat_map(details));
    findings
}

fn listed(listed: &Listed) -> Finding {
    let what = listed.device.to_string();
    let memory = listed.memory_bytes.map(|bytes| format!(", {}", size(bytes))).unwrap_or_default();
    let auto = if listed.auto { ", what `auto` takes" } else { "" };
    match &listed.unavailable {
        None => Finding::new(AREA, what, Status::Ok, format!("{}{memory}{auto}", listed.name)),
        Some(reason) => Finding::new(AREA, what, Status::Note, format!("not available: {reason}")),
    }
}

/// What a device lacks, though it works.
fn details(listed: &Listed) -> Vec<Finding> {
    let mut findings = Vec::new();
    let device = &listed.device;
    if let Some(compiler) = &listed.compiler {
        findings.push(Finding::new(AREA, format!("{device}: compiler"), Status::Ok, compiler));
    }
    if let Some(Err(reason)) = &listed.library {
        let found = format!("long prompts go by kernels of ours: cuBLASLt is not there ({reason})");
        findings.push(
            Finding::new(AREA, format!("{device}: library"), Status::Note, found)
                .advice("the CUDA toolkit's libraries make them faster"),
        );
    }
    match &listed.tuning {
        Some(Err(error)) => findings.push(
            Finding::new(AREA, format!("{device}: tuning"), Status::Warning, error)
                .advice("`metallic tune` measures anew, and writes the file"),
        ),
        Some(Ok(found)) => {
            if let Some(note) = &found.note {
                findings.push(
                    Finding::new(AREA, format!("{device}: tuning"), Status::Note, note.clone())
                        .advice("`metallic tune` measures this device"),
                );
            }
        }
        None => {}
    }
    findings
}

/// Every provider of every device that computes, by small models with known answers.
pub(crate) fn self_tests(all: &[Listed], quick: bool, ui: Ui) -> Vec<Finding> {
    let mut findings = Vec::new();
    for listed in all.iter().filter(|listed| listed.unavailable.is_none()) {
        match listed.kind {
            "null" | "reference" => {}
            "soft" if quick => {
                let found = "left out: kernels may have to be compiled (without --quick they are)";
                findings.push(Finding::new(TESTS, "soft", Status::Note, found));
            }
            _ => findings.extend(device_tests(listed, ui)),
        }
    }
    findings
}

fn device_tests(listed: &Listed, ui: Ui) -> Vec<Finding> {
    let mut findings = vec![tried(listed, None, ui)];
    if listed.limits.is_some() {
        let providers = OpKind::ALL.iter().flat_map(|op| op.providers());
        findings.extend(providers.map(|provider| tried(listed, Some(provider), ui)));
    }
    findings
}

/// One run of the self-test, with a provider that is asked for.
fn tried(listed: &Listed, provider: Option<Provider>, ui: Ui) -> Finding {
    let asked = provider.map(|provider| format!("{}={provider}", provider.op()));
    let what =
        format!("{}{}", listed.device, asked.as_ref().map(|flag| format!(" {flag}")).unwrap_or_default());
    let _spinner = ui.spinner(&format!("testing {what}"));
    let options = OpenOptions::default();
    let providers = options.providers.clone();
    let outcome = ask(&providers, asked.as_deref())
        .and_then(|()| listed.device.open_with(&options))
        .and_then(|backend| outcomes(backend.as_ref(), provider));
    judged(&what, outcome, &providers, provider)
}

fn ask(providers: &Providers, flag: Option<&str>) -> Result<(), BackendError> {
    let Some(flag) = flag else { return Ok(()) };
    providers.set_by_flag(flag).map_err(|error| error.on("doctor"))
}

/// Products by halfs take a cache of halfs, which allows them.
fn outcomes(backend: &dyn Backend, asked: Option<Provider>) -> Result<Vec<Outcome>, BackendError> {
    let halfs = [Provider::MatmulLibrary, Provider::MatmulTensor, Provider::MatmulMps];
    if asked.is_some_and(|asked| halfs.contains(&asked)) {
        return selftest::run(backend, Exactness::Halfs, DType::F16);
    }
    selftest::run(backend, Exactness::of(backend.info().kind, false), DType::F32)
}

/// What came of it. Who was asked for and cannot serve here is no fault; who serves wrongly is.
fn judged(
    what: &str,
    outcome: Result<Vec<Outcome>, BackendError>,
    providers: &Providers,
    asked: Option<Provider>,
) -> Finding {
    let finding = |status, found: String| Finding::new(TESTS, what, status, found);
    let outcomes = match outcome {
        Ok(outcomes) => outcomes,
        Err(BackendError::Setting { reason, .. } | BackendError::Unsupported { reason, .. })
            if asked.is_some() =>
        {
            return finding(Status::Note, format!("not on this device: {reason}"));
        }
        Err(error) => {
            return finding(Status::Failure, error.to_string())
                .advice("`--device` takes another one; please report this with `metallic doctor --report`");
        }
    };
    if let Some(worst) =
        outcomes.iter().filter(|outcome| !outcome.passed()).max_by(|a, b| a.error.total_cmp(&b.error))
    {
        let (weights, error, tolerance) = (worst.weights.name(), worst.error, worst.tolerance);
        let found = format!(
            "{} with weights of {weights} is off by {error:.1e}, at most {tolerance:.0e} is right",
            worst.what
        );
        return finding(Status::Failure, found).advice(
            "`metallic diff` finds the operation; please report this with `metallic doctor --report`",
        );
    }
    if let Some(Quarantined { op, provider, error }) = providers.quarantined().first() {
        return finding(Status::Warning, format!("{op}={provider} is left out: {error}"))
            .advice("answers are right, by other kernels, and slower; please report this");
    }
    let stood_in = providers.stood_in();
    if let Some((selection, Why::Fallback { from, error })) =
        stood_in.first().map(|selection| (selection, &selection.why))
    {
        let found = format!("`{}` serves in the place of `{from}`: {error}", selection.provider);
        return finding(Status::Note, found);
    }
    let error = outcomes.iter().map(|outcome| outcome.error).fold(0.0, f32::max);
    finding(Status::Ok, format!("{} known answers, off by {error:.0e} at most", outcomes.len()))
}

/// The device that `auto` takes.
pub(super) fn auto() -> Device {
    device::list().into_iter().find(|listed| listed.auto).map_or(Device::Cpu, |listed| listed.device)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(error: f32) -> Outcome {
        Outcome { weights: DType::Q4_0, what: "a prompt", error, tolerance: 1e-3 }
    }

    #[test]
    fn wrong_answers_are_a_failure_that_names_the_worst() {
        let wrong =
            judged("soft", Ok(vec![outcome(0.0), outcome(0.5), outcome(0.1)]), &Providers::new(), None);
        assert_eq!(wrong.status, Status::Failure);
        assert_eq!(wrong.found, "a prompt with weights of Q4_0 is off by 5.0e-1, at most 1e-3 is right");
        let right = judged("soft", Ok(vec![outcome(1e-4)]), &Providers::new(), None);
        assert_eq!(
            (right.status, right.found.as_str()),
            (Status::Ok, "1 known answers, off by 1e-4 at most")
        );
    }

    #[test]
    fn a_provider_that_a_device_has_not_is_no_fault_and_a_device_that_fails_is_one() {
        let refused = || BackendError::Setting {
            device: "soft",
            setting: "sdpa=x".to_owned(),
            reason: "no".to_owned(),
        };
        let failed = || BackendError::Failed { device: "soft", reason: "lost".to_owned() };
        let asked = Some(Provider::SdpaMpsGraph);
        let of = |error, asked| judged("soft", Err(error), &Providers::new(), asked).status;
        assert_eq!((of(refused(), asked), of(refused(), None)), (Status::Note, Status::Failure));
        assert_eq!((of(failed(), asked), of(failed(), None)), (Status::Failure, Status::Failure));
    }
}
