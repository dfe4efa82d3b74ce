//! `cargo xtask apple-speed`: the page on Apple's GPUs, made of plans by a test that else compares it.

use anyhow::{Result, bail};

use crate::checks::ALL_FEATURES;
use crate::process::{cargo, run as run_command};

const TEST: &str = "the_page_on_apples_gpus_is_what_the_plans_give";
/// What the test looks for.
const WRITE: &str = "METALLIC_WRITE_DOCS";

pub(crate) fn run(args: &[String]) -> Result<()> {
    let check = match args {
        [] => false,
        [flag] if flag == "--check" => true,
        _ => bail!("apple-speed takes `--check` and nothing else, found `{}`", args.join(" ")),
    };
    let mut test = cargo();
    test.args(["test", "--quiet", "--package", "metallic", ALL_FEATURES, "--test", "it", TEST]);
    if check {
        test.env_remove(WRITE)
    } else {
        test.env(WRITE, "1")
    };
    run_command(&mut test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_options_are_refused_by_name() {
        let error = run(&["--chekc".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("`--chekc`") && error.contains("--check"), "{error}");
    }

    #[test]
    fn the_test_it_runs_and_the_variable_it_sets_are_there() {
        let text = include_str!("../../crates/metallic/tests/it/apple_speed/mod.rs");
        assert!(text.contains(&format!("fn {TEST}()")) && text.contains(&format!("{WRITE:?}")));
    }
}
