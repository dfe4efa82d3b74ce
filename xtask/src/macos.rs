//! `cargo xtask check-macos`: the build for Apple Silicon, checked and linked without a Mac.
//!
//! On Debian and its kin: the distribution's second Rust compiler, which comes with the source of std, builds std
//! for the target once; a stub SDK of symbol names lets the linker of the Rust toolchain finish. Nothing is
//! run: this proves types, lints, code generation and that every imported symbol is one that macOS has.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::checks::ALL_FEATURES;
use crate::process::{apt_install, cargo, command, output, root, run as run_command, works};

const TARGET: &str = "aarch64-apple-darwin";
/// Declared in `xtask/macos/profile.toml`.
const PROFILE: &str = "macos-check";
const DEPLOYMENT_TARGET: &str = "14.0";
const RUSTC: &str = "/usr/bin/rustc";
const STD_SOURCE: &str = "/usr/lib/rustlib/src/rust/library/std/src/lib.rs";
const CARGO_CLIPPY: &str = "/usr/bin/cargo-clippy";
/// Dependencies with C code (ring) need a compiler that knows the target: any clang does.
const CLANG: &str = "clang-19";

/// What the other machines need to build for the target.
struct Cross {
    folder: PathBuf,
    linker: PathBuf,
    clang: &'static str,
}

pub(crate) fn run(args: &[String]) -> Result<()> {
    let if_possible = match args {
        [] => false,
        [option] if option == "--if-possible" => true,
        _ => bail!("check-macos knows `--if-possible` alone, not `{}`", args.join(" ")),
    };
    if cfg!(target_os = "macos") {
        return check(&mut cargo(), &mut cargo());
    }
    let cross = match Cross::prepare() {
        Ok(cross) => cross,
        Err(error) if if_possible => {
            eprintln!("NOT CHECKED: the macOS build. This machine cannot: {error:#}");
            return Ok(());
        }
        Err(error) => {
            return Err(error.context("cannot check the macOS build here (--if-possible lets that pass)"));
        }
    };
    let mut clippy = command(CARGO_CLIPPY);
    clippy.env("CARGO", cargo().get_program());
    check(cross.configure(&mut clippy), cross.configure(&mut cargo()))?;
    cross.show_result()
}

/// Clippy includes the type check; linking is what finds symbols that no library has.
fn check(clippy: &mut Command, build: &mut Command) -> Result<()> {
    let config = root().join("xtask").join("macos").join("profile.toml");
    let profile = ["--locked", "--target", TARGET, "--profile", PROFILE];
    run_command(
        clippy
            .args(["clippy", "--workspace", ALL_FEATURES, "--all-targets", "--config"])
            .arg(&config)
            .args(profile)
            .args(["--", "-D", "warnings"]),
    )?;
    run_command(build.args(["build", "--package", "metallic-cli", "--config"]).arg(&config).args(profile))
}

impl Cross {
    fn prepare() -> Result<Cross> {
        ensure!(cfg!(target_os = "linux"), "only Linux and macOS are supported");
        let clang = ["clang", CLANG].into_iter().find(|name| works(name, &["--version"]));
        let mut packages = Vec::new();
        for (path, package) in
            [(RUSTC, "rustc-web"), (STD_SOURCE, "rust-web-src"), (CARGO_CLIPPY, "rust-web-clippy")]
        {
            if !Path::new(path).exists() {
                packages.push(package);
            }
        }
        if clang.is_none() {
            packages.push(CLANG);
        }
        if !packages.is_empty() {
            apt_install(&packages)?;
        }

        let linker = rust_lld()?;
        let folder = root().join("target").join("macos");
        let scripts = root().join("xtask").join("macos");
        eprintln!("the standard library for {TARGET}: {} (made once)", folder.join("sysroot").display());
        run_command(
            without_flags(&mut command("bash"))
                .arg(scripts.join("mksysroot.sh"))
                .arg(folder.join("sysroot"))
                .arg(RUSTC),
        )?;
        run_command(command("python3").arg(scripts.join("mksdk.py")).arg(folder.join("sdk")))?;
        Ok(Cross { folder, linker, clang: clang.unwrap_or(CLANG) })
    }

    fn configure<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        let flags = format!("--sysroot {} -Clinker-flavor=ld64.lld", self.folder.join("sysroot").display());
        without_flags(command)
            .env("RUSTC", RUSTC)
            .env("SDKROOT", self.folder.join("sdk"))
            .env("MACOSX_DEPLOYMENT_TARGET", DEPLOYMENT_TARGET)
            .env("CARGO_TARGET_DIR", self.folder.join("build"))
            .env("CARGO_TARGET_AARCH64_APPLE_DARWIN_LINKER", &self.linker)
            .env("CARGO_TARGET_AARCH64_APPLE_DARWIN_RUSTFLAGS", flags)
            .env("CC_aarch64_apple_darwin", self.clang)
            // Integer types come from clang's own headers, not from the stub SDK.
            .env("CFLAGS_aarch64_apple_darwin", "-ffreestanding")
            .env("AR_aarch64_apple_darwin", "ar")
    }

    fn show_result(&self) -> Result<()> {
        let binary = self.folder.join("build").join(TARGET).join(PROFILE).join("metallic");
        let bytes = std::fs::read(&binary)?;
        ensure!(is_arm64_mach_o(&bytes), "{} is not a Mach-O file for arm64", binary.display());
        eprintln!(
            "linked for macOS: {} ({:.1} MB, arm64 Mach-O)",
            binary.display(),
            bytes.len() as f64 / 1e6
        );
        Ok(())
    }
}

/// The linker inside the Rust toolchain that runs this chore.
fn rust_lld() -> Result<PathBuf> {
    let sysroot = output(without_flags(&mut command("rustc")).args(["--print", "sysroot"]))?;
    let version = output(without_flags(&mut command("rustc")).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap_or_default();
    let linker = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin/rust-lld");
    ensure!(linker.exists(), "the Rust toolchain has no {}; one from rustup has", linker.display());
    Ok(linker)
}

/// Without what the caller's environment says about compilers: it speaks of this machine.
fn without_flags(command: &mut Command) -> &mut Command {
    for name in ["RUSTC", "RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER"]
    {
        command.env_remove(name);
    }
    command
}

fn is_arm64_mach_o(bytes: &[u8]) -> bool {
    // 64-bit magic, then CPU_TYPE_ARM64, both little-endian.
    bytes.starts_with(&[0xCF, 0xFA, 0xED, 0xFE, 0x0C, 0, 0, 0x01])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_mach_o_file_for_arm64_counts_as_linked() {
        assert!(is_arm64_mach_o(&[0xCF, 0xFA, 0xED, 0xFE, 0x0C, 0, 0, 1, 0, 0]));
        assert!(!is_arm64_mach_o(&[0xCF, 0xFA, 0xED, 0xFE, 0x07, 0, 0, 1, 0, 0]));
        assert!(!is_arm64_mach_o(b"\x7fELF\x02\x01\x01\0\0\0"));
    }
}
