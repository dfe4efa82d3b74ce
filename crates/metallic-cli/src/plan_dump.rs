//! `METALLIC_DUMP_GRAPH_PLAN`: the plan of a token, of any command that loads a model.

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use metallic::{
    Model,
    core::{Backend, DType},
    plan::{Plan, Shown, StepSpec},
};

use crate::{escape, fail::Failure};

/// The variable.
const VARIABLE: &str = "METALLIC_DUMP_GRAPH_PLAN";

/// Where the plan goes.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Stderr,
    File(PathBuf),
}

fn place(value: Option<OsString>) -> Option<Place> {
    let value = value?;
    match value.to_str() {
        Some("" | "0" | "off") => None,
        Some("1" | "-") => Some(Place::Stderr),
        Some(_) | None => Some(Place::File(value.into())),
    }
}

/// Whether a plan is asked for and none was shown yet.
pub(crate) fn is_wanted() -> bool {
    !SHOWN.load(Ordering::Relaxed) && place(std::env::var_os(VARIABLE)).is_some()
}

static SHOWN: AtomicBool = AtomicBool::new(false);

/// Shows the plan of a token where the environment asks for it, once in a process: as text on stderr, or in a file, as JSON and as a picture
/// where its name says so.
pub(crate) fn show(model: &Model, backend: &dyn Backend, kv: DType) -> anyhow::Result<()> {
    let Some(place) = place(std::env::var_os(VARIABLE)) else { return Ok(()) };
    if SHOWN.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let plan = Plan::of(model, backend, kv, StepSpec::on(backend, 1, 0))?;
    match place {
        Place::Stderr => {
            let text = plan.text(Shown::default());
            // A reader that has gone away is no reason to stop.
            let _ = io::stderr().write_all(escape::lines(&text).as_bytes());
            Ok(())
        }
        Place::File(path) => {
            let text = match path.extension().and_then(|ending| ending.to_str()) {
                Some("json") => format!("{}\n", plan.json(Shown::default())),
                Some("svg") => plan.svg(None)?,
                Some(_) | None => plan.text(Shown::default()),
            };
            write(&path, &text)
        }
    }
}

/// Writes a plan into a file.
pub(crate) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).map_err(|error| {
        let reason = format!("cannot write the plan into `{}`: {error}", path.display());
        Failure::new(reason, "name a file in a folder that is there and can be written to").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_names_stderr_a_file_or_nothing() {
        for (value, found) in [
            (None, None),
            (Some(""), None),
            (Some("0"), None),
            (Some("1"), Some(Place::Stderr)),
            (Some("plan.json"), Some(Place::File("plan.json".into()))),
        ] {
            assert_eq!(place(value.map(OsString::from)), found, "{value:?}");
        }
    }
}
