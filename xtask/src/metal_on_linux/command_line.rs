//! The command line with `--device metal`, on Linux: it must say what `--device soft` says, and refuse what it cannot do.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Shadow;
use crate::process::{limited, output, root};
use crate::soundness::executable;

/// A model that travels with the repository.
const MODEL: &str = "crates/metallic-testkit/data/golden/gguf/llama256.Q4_0.gguf";
const LIMIT: Duration = Duration::from_secs(300);

/// A variable of the framework, the device that is asked for, and what the error must say.
const REFUSED: [(Option<Variable>, &str, &str); 3] = [
    (None, "metal:7", "no GPU `7`"),
    (Some(("SOFTMETAL_DEVICES", "intel")), "metal", "Apple Silicon"),
    (Some(("SOFTMETAL_FAULTS", "gpu:1")), "metal", "memory that is not there"),
];

/// A name and its value.
type Variable = (&'static str, &'static str);

pub(super) fn check(shadow: &Shadow) -> Result<()> {
    let mut build = shadow.command();
    build.args(["build", "-p", "metallic-cli", "--message-format", "json-render-diagnostics"]);
    let program = executable(&output(&mut build)?).context("cargo made no command line")?;
    let say = |device: &str, variable: Option<Variable>| -> Result<(Option<i32>, String)> {
        let mut command = Command::new(&program);
        command.args(["run", "-m", MODEL, "--device", device, "--temp", "0", "-n", "16", "--raw", "a b"]);
        command.args(["--quiet"]).current_dir(root()).envs(variable);
        command.env("METALLIC_KERNEL_CACHE", shadow.folder.join("kernels")).env("SOFTMETAL_STRICT", "1");
        limited(&mut command, LIMIT)
    };
    let (metal, soft) = (say("metal", None)?, say("soft", None)?);
    ensure!(metal.0 == Some(0) && !metal.1.trim().is_empty(), "`--device metal` fails:\n{}", metal.1);
    ensure!(metal == soft, "`--device metal` says\n{}\nand `--device soft`\n{}", metal.1, soft.1);
    for (variable, device, expected) in REFUSED {
        let (status, said) = say(device, variable)?;
        ensure!(
            status != Some(0) && said.contains(expected),
            "`--device {device}` with {variable:?} does not say `{expected}`:\n{said}"
        );
    }
    let devices = output(Command::new(&program).arg("devices").current_dir(root()))?;
    ensure!(
        devices.contains("metal:0") && devices.contains("Apple M4"),
        "`metallic devices` says\n{devices}"
    );
    println!(
        "the command line says on metal what it says on soft, and refuses {} ways to fail",
        REFUSED.len()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_travels_with_the_repository() {
        assert!(root().join(MODEL).is_file());
    }
}
