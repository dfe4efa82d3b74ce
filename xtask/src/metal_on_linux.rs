//! `cargo xtask metal-on-linux`: the driver for Metal, executed on Linux.
//!
//! A workspace in `target/metal-on-linux` has our crates by links and, in the place of the crates of bindings, copies
//! of the registry's with a few lines changed: they do not link Apple's frameworks, they send messages in the flavour of
//! GNUstep, whose runtime `softmetal-framework` is, with the types of Apple Silicon, and they ask it for the version of
//! macOS. Nothing of the copies is committed, and the lock file of the repository stays as it is.

mod command_line;
mod executed;
mod mistakes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::process::{cargo, output, root, run as run_command, works};

/// What a copy of a crate has in the place of what the registry's has: file, text, its replacement.
pub(crate) type Change = (&'static str, &'static str, &'static str);

/// The crates of bindings, and what is changed in each.
const COPIES: &[(&str, &[Change])] = &[
    (
        "objc2",
        &[
            // Classes are looked up by name, so no proc macro is needed.
            (
                "Cargo.toml",
                "gnustep-1-7 = [\n    \"unstable-static-class\",\n    \"objc2-exception-helper?/gnustep-1-7\",\n]",
                "gnustep-1-7 = []",
            ),
            (
                "Cargo.toml",
                "alloc = [\"objc2-encode/alloc\"]",
                "alloc = [\"gnustep-1-7\", \"objc2-encode/alloc\"]",
            ),
            // The types of Apple Silicon.
            ("src/runtime/bool.rs", "    pub(crate) type BOOL = u8;", "    pub(crate) type BOOL = bool;"),
            (
                "src/runtime/__nsstring.rs",
                "pub const UTF8_ENCODING: i32 = 4;",
                "pub const UTF8_ENCODING: usize = 4;",
            ),
            (
                "src/__macro_helpers/os_version.rs",
                "let version = if cfg!(target_os = \"macos\") {",
                "extern \"C\" { fn softmetal_macos_version() -> u32; }\n    \
                 // SAFETY: it returns a number.\n    \
                 let current = OSVersion::from_u32(unsafe { softmetal_macos_version() });\n    \
                 if version.macos != OSVersion::MAX { return version.macos <= current; }\n    \
                 let version = if cfg!(target_os = \"macos\") {",
            ),
        ],
    ),
    ("block2", &[("Cargo.toml", "alloc = []", "alloc = [\"gnustep-1-7\"]")]),
    (
        "objc2-metal",
        &[
            ("src/generated/mod.rs", "#[link(name = \"Metal\", kind = \"framework\")]\n", ""),
            // All devices, as on a Mac, not the default alone.
            ("src/device.rs", "#[cfg(any(target_os = \"macos\", target_env = \"macabi\"))]", "#[cfg(all())]"),
            (
                "src/device.rs",
                "#[cfg(not(any(target_os = \"macos\", target_env = \"macabi\")))]",
                "#[cfg(any())]",
            ),
        ],
    ),
    (
        "objc2-metal-performance-shaders",
        &[(
            "src/generated/mod.rs",
            "#[link(name = \"MetalPerformanceShaders\", kind = \"framework\")]\n",
            "",
        )],
    ),
    (
        "objc2-metal-performance-shaders-graph",
        &[(
            "src/generated/mod.rs",
            "#[link(name = \"MetalPerformanceShadersGraph\", kind = \"framework\")]\n",
            "",
        )],
    ),
];

/// Libraries that the bindings name; their symbols are those of `softmetal-framework`.
const LIBRARIES: [&str; 4] = ["objc", "gnustep-base", "BlocksRuntime", "dispatch"];

/// The crates in which `cfg(metal_on_linux)` means something. The others are links, and what was built of them for the
/// repository's own workspace serves here too.
const CRATES: [&str; 4] = ["metallic", "metallic-cli", "metallic-gpu", "softmetal-framework"];

/// The test of Apple's compiler would show clang once more what softmetal's tests show it.
const TESTS: [&str; 3] = ["metal::", "-E", "not test(apples_compiler)"];

/// What is tested: the driver and the framework; golden models, for which the whole library is built once more.
const SUITES: [&[&str]; 2] = [
    &["-p", "metallic-gpu", "-p", "softmetal-framework", "--lib", "--test", "it"],
    &["-p", "metallic", "--features", "soft", "--test", "it"],
];

pub(crate) fn run(args: &[String]) -> Result<()> {
    ensure!(
        cfg!(target_os = "linux"),
        "a Mac has Metal itself: `cargo test -p metallic-gpu --test it metal::`"
    );
    match args {
        [] => {
            let shadow = Shadow::prepare()?;
            shadow.test(&SUITES)?;
            command_line::check(&shadow)
        }
        [first] if first == "--driver" => Shadow::prepare()?.test(&SUITES[..1]),
        [first] if first == "command-line" => command_line::check(&Shadow::prepare()?),
        [first, rest @ ..] if first == "cargo" => run_command(Shadow::prepare()?.command().args(rest)),
        [first, folder] if first == "copies" => copies(&root().join(folder)),
        [first, only @ ..] if first == "mistakes" => mistakes::run(only),
        [first, rest @ ..] if first == "executed" => executed::run(rest),
        _ => bail!(
            "metal-on-linux knows `--driver`, `command-line`, `cargo ARGUMENTS…`, `copies FOLDER`, `mistakes` and `executed`, not `{}`",
            args.join(" ")
        ),
    }
}

/// Makes the bindings and libraries for a workspace of somebody else's, and says what to do with them.
fn copies(folder: &Path) -> Result<()> {
    let patches = bindings(folder)?;
    let lines: Vec<String> = patches
        .iter()
        .map(|name| format!("{name} = {{ path = \"{}\" }}", folder.join(name).display()))
        .collect();
    println!("# Cargo.toml\n[patch.crates-io]\n{}\n", lines.join("\n"));
    println!("[target.'cfg(target_os = \"linux\")'.dev-dependencies]");
    println!(
        "softmetal-framework = {{ path = \"{}\" }}\n",
        root().join("crates/softmetal-framework").display()
    );
    println!("# .cargo/config.toml\n[target.x86_64-unknown-linux-gnu]");
    println!("rustflags = [\"-L\", \"native={}\"]", folder.join("lib").display());
    Ok(())
}

/// Writes the copies of the bindings and the empty libraries into a folder; the names of the copies.
pub(crate) fn bindings(folder: &Path) -> Result<Vec<&'static str>> {
    let libraries = folder.join("lib");
    fs::create_dir_all(&libraries)?;
    for library in LIBRARIES {
        // An archive without members.
        write_if_new(&libraries.join(format!("lib{library}.a")), "!<arch>\n")?;
    }
    let sources = sources()?;
    for (name, changes) in COPIES {
        let source = sources.iter().find(|(known, _)| known == name).map(|(_, path)| path);
        let source = source.with_context(|| format!("`{name}` is no dependency of this workspace"))?;
        copy(source, &folder.join(name), changes)?;
    }
    Ok(COPIES.iter().map(|(name, _)| *name).collect())
}

/// The workspace beside the repository's own.
struct Shadow {
    folder: PathBuf,
}

impl Shadow {
    fn prepare() -> Result<Shadow> {
        Shadow::prepare_with(&[])
    }

    /// With more crates in it than the repository's.
    fn prepare_with(members: &[&str]) -> Result<Shadow> {
        let folder = root().join("target").join("metal-on-linux");
        let libraries = folder.join("lib");
        let patches: Vec<String> =
            bindings(&folder)?.iter().map(|name| format!("{name} = {{ path = \"{name}\" }}")).collect();
        for entry in fs::read_dir(root().join("crates"))? {
            let (from, name) = (entry?.path(), folder.join("crates"));
            let Some(own) = from.file_name().map(|own| name.join(own)) else { continue };
            fs::create_dir_all(&name)?;
            if CRATES.iter().any(|known| own.ends_with(known)) {
                stand_in(&from, &own, &libraries)?;
            } else {
                link(&from, &own)?;
            }
        }
        let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
        let manifest =
            format!("{}\n[patch.crates-io]\n{}\n", with_members(&manifest, members)?, patches.join("\n"));
        write_if_new(&folder.join("Cargo.toml"), &manifest)?;
        // The same versions; what is patched is written into it anew.
        fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock"))?;
        Ok(Shadow { folder })
    }

    /// A command of cargo in which `cfg(metal_on_linux)` holds, and which builds where the repository does.
    fn command(&self) -> Command {
        let mut command = cargo();
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
        command
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", root().join(target))
            .env("METALLIC_KERNEL_CACHE", self.folder.join("kernels"));
        command
    }

    /// Tests of the framework, and those that only a Mac could run before: no rule may be broken, no object left.
    fn test(&self, suites: &[&[&str]]) -> Result<()> {
        let nextest = works("cargo-nextest", &["nextest", "--version"]);
        let runner: &[&str] = if nextest { &["nextest", "run", "--no-fail-fast"] } else { &["test"] };
        // Devices and faults are those of a process, of which the other runner has one for all tests.
        let chosen: &[&str] = if nextest { &TESTS } else { &[TESTS[0], "--", "--test-threads", "1"] };
        for packages in suites {
            let mut command = self.command();
            command.args(runner).args(*packages).args(chosen);
            run_command(command.env("METALLIC_TEST_ALL", "1").env("SOFTMETAL_STRICT", "1"))?;
        }
        Ok(())
    }
}

/// A crate whose manifest takes `cfg(metal_on_linux)` for true, and whose build script says so to the compiler. The rest
/// of it are links.
fn stand_in(from: &Path, to: &Path, libraries: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else { continue };
        if name != "Cargo.toml" {
            ensure!(
                name != "build.rs",
                "{} has a build script, which this chore does not know",
                from.display()
            );
            link(&path, &to.join(name))?;
        }
    }
    // An `all` of nothing is true.
    let manifest = fs::read_to_string(from.join("Cargo.toml"))?.replace("metal_on_linux", "all()");
    write_if_new(&to.join("Cargo.toml"), &manifest)?;
    let script = format!(
        "//! Made by `cargo xtask metal-on-linux`.\n\nfn main() {{\n    println!(\"cargo:rustc-cfg=metal_on_linux\");\n    \
         println!(\"cargo:rustc-link-search=native={}\");\n    println!(\"cargo:rerun-if-changed=build.rs\");\n}}\n",
        libraries.display()
    );
    write_if_new(&to.join("build.rs"), &script)
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> Result<()> {
    if fs::read_link(to).is_ok_and(|known| known == from) {
        return Ok(());
    }
    std::os::unix::fs::symlink(from, to).with_context(|| format!("cannot make the link {}", to.display()))
}

#[cfg(not(unix))]
fn link(_: &Path, to: &Path) -> Result<()> {
    bail!("cannot make the link {}: only Linux is supported", to.display())
}

/// The packages of this workspace and where their sources lie.
fn sources() -> Result<Vec<(String, PathBuf)>> {
    let text = output(cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&text).context("cargo metadata")?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let package = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str()?);
        Some((package["name"].as_str()?.to_owned(), manifest.parent()?.to_owned()))
    };
    Ok(packages.iter().filter_map(package).collect())
}

/// The manifest of our workspace without the chores, which need none of this, and with other crates.
fn with_members(manifest: &str, more: &[&str]) -> Result<String> {
    let list: Vec<String> = [&["crates/*"], more].concat().iter().map(|name| format!("{name:?}")).collect();
    let members = format!("members = [{}]", list.join(", "));
    let members = manifest.replace("members = [\"crates/*\", \"xtask\"]", &members);
    ensure!(members != manifest, "the workspace's manifest has other members than this chore knows");
    Ok(members.replace("[profile.dev.package.xtask]\nopt-level = 0\n", ""))
}

/// Changes to the files of a crate, each to be made once.
pub(crate) struct Changes(Vec<Change>);

impl Changes {
    pub(crate) fn new(changes: &[Change]) -> Changes {
        Changes(changes.to_vec())
    }

    /// The text of a file with its changes.
    pub(crate) fn apply(&mut self, path: &Path, mut text: String) -> String {
        self.0.retain(|(file, old, new)| {
            let here = Path::new(file) == path && text.contains(old);
            if here {
                text = text.replacen(old, new, 1);
            }
            !here
        });
        text
    }

    /// Refuses a crate in which one of them found no place.
    pub(crate) fn all_made(&self, from: &Path) -> Result<()> {
        if let Some((file, text, _)) = self.0.first() {
            bail!(
                "{}/{file} has no `{text}` to replace: another version than this chore knows",
                from.display()
            );
        }
        Ok(())
    }
}

/// Copies a crate and changes it; nothing is written that is there already, so that nothing is built again.
fn copy(from: &Path, to: &Path, changes: &[Change]) -> Result<()> {
    let mut changes = Changes::new(changes);
    copy_folder(from, to, Path::new(""), &mut |path, text| Ok(changes.apply(path, text)))?;
    changes.all_made(from)
}

/// Copies the text files of a folder, each as `change` makes it.
fn copy_folder(
    from: &Path,
    to: &Path,
    inside: &Path,
    change: &mut dyn FnMut(&Path, String) -> Result<String>,
) -> Result<()> {
    fs::create_dir_all(to.join(inside))?;
    for entry in fs::read_dir(from.join(inside)).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let path = inside.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(from, to, &path, change)?;
            continue;
        }
        let Ok(text) = fs::read_to_string(from.join(&path)) else { continue };
        write_if_new(&to.join(&path), &change(&path, text)?)?;
    }
    Ok(())
}

pub(crate) fn write_if_new(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|known| known == text) {
        return Ok(());
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_keeps_all_but_the_chores() {
        let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the repository's own");
        let kept = with_members(&manifest, &[]).expect("it has members");
        assert!(!kept.contains("xtask") && kept.contains("members = [\"crates/*\"]"), "{kept}");
        let more = with_members(&manifest, &["planted/*"]).expect("it has members");
        assert!(more.contains("members = [\"crates/*\", \"planted/*\"]"), "{more}");
        assert!(with_members("[package]\n", &[]).is_err());
    }

    #[test]
    fn a_change_that_finds_nothing_to_change_is_an_error() {
        let folder = std::env::temp_dir().join(format!("metallic-shadow-{}", std::process::id()));
        let (from, to) = (folder.join("from"), folder.join("to"));
        fs::create_dir_all(from.join("src")).expect("a folder");
        fs::write(from.join("src/lib.rs"), "link!();\nfn f() {}\n").expect("a file");
        copy(&from, &to, &[("src/lib.rs", "link!();\n", "")]).expect("it is there");
        assert_eq!(fs::read_to_string(to.join("src/lib.rs")).expect("written"), "fn f() {}\n");
        let error =
            copy(&from, &to, &[("src/lib.rs", "unlink", "")]).expect_err("it is not there").to_string();
        assert!(error.contains("`unlink`"), "{error}");
        fs::remove_dir_all(&folder).expect("it is ours");
    }
}
