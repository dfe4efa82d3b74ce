//! The machine, and what its environment says.

use std::{env, fs, process::Command};

use metallic::device;

use super::{Finding, Status};
use crate::term::size;

const AREA: &str = "system";

/// Memory below which next to no model has room.
const LITTLE: u64 = 1 << 30;

pub(crate) fn system() -> Vec<Finding> {
    let mut findings = vec![
        Finding::new(AREA, "operating system", Status::Ok, operating_system()),
        Finding::new(AREA, "cores", Status::Ok, cores()),
        memory(device::available_memory(), device::total_memory()),
    ];
    findings.extend(wired_limit());
    findings
}

fn operating_system() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let pretty = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    let name = pretty.map(|name| name.trim_matches('"').to_owned());
    let name =
        name.or_else(|| said("sw_vers", &["-productVersion"]).map(|version| format!("macOS {version}")));
    let kernel = said("uname", &["-sr"]).map(|kernel| format!(", {kernel}")).unwrap_or_default();
    let name = name.unwrap_or_else(|| env::consts::OS.to_owned());
    format!("{name}{kernel}, {}", env::consts::ARCH)
}

fn cores() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} that this process may use")
}

/// What a program of the system prints, where it is there.
pub(super) fn said(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

fn memory(available: Option<u64>, total: Option<u64>) -> Finding {
    let (Some(available), Some(total)) = (available, total) else {
        let found = "this system does not say how much there is";
        return Finding::new(AREA, "memory", Status::Note, found)
            .advice("`--ctx` bounds what an answer may take");
    };
    let found = format!("{} available of {}", size(available), size(total));
    if available < LITTLE {
        return Finding::new(AREA, "memory", Status::Warning, found)
            .advice("close programs, or take a smaller model: less than 1 GB is left");
    }
    Finding::new(AREA, "memory", Status::Ok, found)
}

/// What macOS lets a GPU hold.
fn wired_limit() -> Option<Finding> {
    let megabytes: u64 = said("sysctl", &["-n", "iogpu.wired_limit_mb"])?.parse().ok()?;
    Some(match megabytes {
        0 => {
            Finding::new(AREA, "GPU memory", Status::Ok, "the system's own limit (iogpu.wired_limit_mb is 0)")
        }
        set => {
            let found = format!("iogpu.wired_limit_mb is {set}");
            Finding::new(AREA, "GPU memory", Status::Note, found)
                .advice("`sudo sysctl iogpu.wired_limit_mb=0` gives the system its own limit back")
        }
    })
}

/// Variables that are known, and what it means that they are set.
const VARIABLES: &[(&str, Status, &str)] = &[
    ("METALLIC_HOME", Status::Ok, ""),
    ("METALLIC_CPU_ISA", Status::Warning, "unset it: the processor may have faster instructions"),
    ("METALLIC_FORCE_SDPA_BACKEND", Status::Note, "unset it to have the preferred kernels"),
    ("METALLIC_FORCE_MATMUL_BACKEND", Status::Note, "unset it to have the preferred kernels"),
    ("METALLIC_KERNEL_CACHE", Status::Note, "unset it to keep compiled kernels where the system wants them"),
    ("METALLIC_TUNING", Status::Note, "unset it to go by what `metallic tune` has measured"),
    ("METALLIC_TELEMETRY", Status::Note, "every run writes there; unset it to stop that"),
    ("METALLIC_TRACE", Status::Note, "every run writes there; unset it to stop that"),
    ("METALLIC_RUNTIME_DIR", Status::Ok, ""),
    ("METALLIC_DUMP_GRAPH_PLAN", Status::Note, "unset it to have no plans printed"),
    ("METALLIC_PTX", Status::Ok, ""),
    ("METALLIC_SHARED", Status::Ok, ""),
    ("METALLIC_TEST_MODELS", Status::Ok, ""),
    ("METALLIC_TEST_ALL", Status::Ok, ""),
    ("METALLIC_TEST_DEVICE", Status::Ok, ""),
    ("METALLIC_LLVM_TOOLS", Status::Ok, ""),
    ("SOFTMETAL_CLANG", Status::Ok, ""),
    ("SOFTMETAL_CACHE", Status::Ok, ""),
    ("SOFTMETAL_PTXAS", Status::Ok, ""),
    ("HF_ENDPOINT", Status::Note, "models come from there"),
    ("HF_HUB_DOWNLOAD_TIMEOUT", Status::Ok, ""),
];

/// What is never shown.
const SECRET: &str = "HF_TOKEN";

pub(crate) fn environment() -> Vec<Finding> {
    let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
    let mut set: Vec<(String, String)> =
        env::vars_os().map(|(name, value)| (text(name), text(value))).collect();
    set.sort();
    follow(&set)
}

fn follow(set: &[(String, String)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, value) in set {
        if name == SECRET {
            findings.push(Finding::new("environment", name, Status::Ok, "set"));
        } else if let Some((_, status, advice)) = VARIABLES.iter().find(|(known, _, _)| known == name) {
            let finding = Finding::new("environment", name, *status, value);
            findings.push(if advice.is_empty() { finding } else { finding.advice(*advice) });
        } else if name.starts_with("METALLIC_") || name.starts_with("SOFTMETAL_") {
            let alike = |known: &&(&str, Status, &str)| strsim::damerau_levenshtein(known.0, name) <= 3;
            let advice = match VARIABLES.iter().find(alike) {
                Some((known, _, _)) => format!("`{known}` may be meant"),
                None => "unset it".to_owned(),
            };
            let found = format!("`{value}`: nothing reads a variable of this name");
            findings.push(Finding::new("environment", name, Status::Warning, found).advice(advice));
        }
    }
    if findings.is_empty() {
        findings.push(Finding::new("environment", "variables", Status::Ok, "none of ours is set"));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&str, &str)]) -> Vec<(Status, String, Option<String>)> {
        let set: Vec<_> = set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        follow(&set).into_iter().map(|finding| (finding.status, finding.found, finding.advice)).collect()
    }

    #[test]
    fn what_slows_a_run_down_and_what_is_misspelt_shows_and_a_token_does_not() {
        let found = of(&[("METALLIC_CPU_ISA", "portable"), ("PATH", "/bin")]);
        assert_eq!((found.len(), found[0].0), (1, Status::Warning));
        let found = of(&[("METALIC_X", "1"), ("METALLIC_TUNNING", "off")]);
        assert_eq!((found.len(), found[0].0), (1, Status::Warning));
        assert_eq!(found[0].2.as_deref(), Some("`METALLIC_TUNING` may be meant"));
        let found = of(&[("HF_TOKEN", "hf_secret")]);
        assert_eq!(found, [(Status::Ok, "set".to_owned(), None)]);
        assert_eq!(of(&[])[0].0, Status::Ok);
    }

    #[test]
    fn little_memory_is_a_warning_and_none_known_a_note() {
        assert_eq!(memory(Some(1 << 34), Some(1 << 35)).status, Status::Ok);
        assert_eq!(memory(Some(1 << 20), Some(1 << 35)).status, Status::Warning);
        assert_eq!(memory(None, None).status, Status::Note);
    }
}
