//! Measured numbers of a GPU's plans: kept in a file of the cache folder, taken from there when the device is opened.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use metallic_core::BackendError;
pub use metallic_gpu::tuning::{Field, Origin, Tuned, TunedDevice, Tuning, TuningSource};
use serde::{Deserialize, Serialize};

/// The variable that says where the numbers come from: `off` for those that are built in, or a file.
pub const VARIABLE: &str = "METALLIC_TUNING";
/// Of the format of the files.
const VERSION: u32 = 1;
/// Files are small; what is larger is none of ours.
const MOST_BYTES: u64 = 1 << 20;

/// What a file of measured numbers says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    version: u32,
    /// The release that measured.
    metallic: String,
    /// The device's kind and name.
    kind: String,
    name: String,
    /// What drove it and compiled its kernels.
    system: String,
    /// The model they were measured with, for people.
    pub model: String,
    /// Tokens per second before and after, by test, for people.
    pub measured: BTreeMap<String, [f64; 2]>,
    /// The fields that are not as built in.
    pub fields: BTreeMap<String, u32>,
}

impl Kept {
    /// What was found on a device with a model.
    pub fn new(device: &TunedDevice, tuning: &Tuning, model: &str) -> Kept {
        let fields = tuning.differing(&device.built_in);
        Kept {
            version: VERSION,
            metallic: env!("CARGO_PKG_VERSION").to_owned(),
            kind: device.kind.to_owned(),
            name: device.name.clone(),
            system: device.system.clone(),
            model: model.to_owned(),
            measured: BTreeMap::new(),
            fields: fields.map(|field| (field.name.to_owned(), field.of(tuning))).collect(),
        }
    }

    /// The numbers of a device of which these were measured.
    fn tuning(&self, device: &TunedDevice) -> Result<Tuning, String> {
        let mut tuning = device.built_in;
        for (name, value) in &self.fields {
            let field = Field::named(name).ok_or_else(|| format!("there is no field `{name}`"))?;
            tuning = field.with(&tuning, *value).map_err(|error| error.to_string())?;
        }
        Ok(tuning)
    }

    /// What has changed since: they were measured with other software.
    fn stale(&self, device: &TunedDevice) -> Option<String> {
        let with = |metallic: &str, system: &str| format!("metallic {metallic}, {system}");
        let (then, now) =
            (with(&self.metallic, &self.system), with(env!("CARGO_PKG_VERSION"), &device.system));
        (then != now).then(|| format!("it was measured with {then}; this is {now}"))
    }

    /// Reads a file, which must be of this device.
    fn read(path: &Path, device: &TunedDevice) -> Result<(Kept, Tuning), String> {
        let bytes = fs::metadata(path).map_err(|error| error.to_string())?.len();
        if bytes > MOST_BYTES {
            return Err(format!("it has {bytes} bytes, {MOST_BYTES} at most are allowed"));
        }
        let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
        // A file of another format may have anything else in it.
        let any: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        match any.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => return Err(format!("its format is version {version}, {VERSION} is needed")),
            None => return Err("it is no file of measured numbers: it has no version".to_owned()),
        }
        let kept: Kept = serde_json::from_value(any).map_err(|error| error.to_string())?;
        let (found, needed) = ((&*kept.kind, &*kept.name), (device.kind, &*device.name));
        if found != needed {
            let [found, needed] = [found, needed].map(|(kind, name)| format!("{kind} ({name})"));
            return Err(format!("it is of {found}, this device is {needed}"));
        }
        let tuning = kept.tuning(device)?;
        Ok((kept, tuning))
    }

    /// Writes the file of a device; whoever reads it meanwhile sees the old one or the new one.
    pub fn write(&self, path: &Path) -> Result<(), BackendError> {
        let failed = |error: &dyn std::fmt::Display| BackendError::Failed {
            device: "tuning",
            reason: format!("cannot write `{}`: {error}", path.display()),
        };
        let text = serde_json::to_string_pretty(self).map_err(|error| failed(&error))?;
        let draft = path.with_extension(format!("json.{}", std::process::id()));
        let write = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            fs::write(&draft, text + "\n")?;
            fs::rename(&draft, path)
        };
        write().map_err(|error| {
            // What is left of it is of no use; that it cannot be removed is no second failure.
            let _ = fs::remove_file(&draft);
            failed(&error)
        })
    }
}

/// What a file is of, for people; else what is wrong with it, and whether another version has written it.
pub(super) fn summary(path: &Path, bytes: u64) -> Result<String, (String, bool)> {
    let damaged = |why: String| (why, false);
    if bytes > MOST_BYTES {
        return Err(damaged(format!("it has {bytes} bytes, {MOST_BYTES} at most are allowed")));
    }
    let text = fs::read_to_string(path).map_err(|error| damaged(error.to_string()))?;
    let any: serde_json::Value = serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?;
    match any.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => return Err((format!("its format is version {version}, {VERSION} is needed"), true)),
        None => return Err(damaged("it has no version".to_owned())),
    }
    let kept: Kept = serde_json::from_value(any).map_err(|error| damaged(error.to_string()))?;
    Ok(format!("{} ({}), metallic {}", kept.kind, kept.name, kept.metallic))
}

/// `METALLIC_HOME`, else `metallic` in the platform's cache folder; `None` where there is no home folder either.
pub fn cache_folder() -> Option<PathBuf> {
    folder(|name| std::env::var_os(name), std::env::home_dir())
}

fn folder(variable: impl Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = home.filter(|home| !home.as_os_str().is_empty());
    let home = |below: &str| home.as_ref().map(|home| home.join(below));
    let platform = || {
        if cfg!(target_os = "macos") {
            home("Library/Caches")
        } else if cfg!(windows) {
            set("LOCALAPPDATA")
        } else {
            set("XDG_CACHE_HOME").filter(|path| path.is_absolute()).or_else(|| home(".cache"))
        }
    };
    set("METALLIC_HOME").or_else(|| platform().map(|cache| cache.join("metallic")))
}

/// The file of a device in the cache folder.
pub fn file_of(cache: &Path, device: &TunedDevice) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = device.name.chars().map(plain).collect();
    cache.join("tuning").join(format!("{}-{name}.json", device.kind))
}

/// Removes the file of a device; `false` where there is none.
pub fn remove(path: &Path) -> Result<bool, BackendError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(BackendError::Failed {
            device: "tuning",
            reason: format!("cannot remove `{}`: {error}", path.display()),
        }),
    }
}

/// What a device would go by, where it comes from, and what should be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The numbers.
    pub tuning: Tuning,
    /// Where they come from.
    pub source: TuningSource,
    /// Why a file is not used, or is used with a doubt.
    pub note: Option<String>,
}

/// What a device goes by: what the environment says, else the file of the cache folder, else what is built in. A file that cannot be
/// read, or is not of this device, is an error.
pub fn find(device: &TunedDevice) -> Result<Found, BackendError> {
    find_by(device, std::env::var_os(VARIABLE), cache_folder().as_deref())
}

/// What a device goes by where this is asked for, as by the environment: `off`, or a file.
pub(crate) fn asked(device: &TunedDevice, from: OsString) -> Result<Found, BackendError> {
    find_by(device, Some(from), None)
}

/// Says so where the cache's file is of another release, which may have had other fields.
fn of_another_release(path: &Path) -> Option<String> {
    let text = fs::metadata(path)
        .ok()
        .filter(|about| about.len() <= MOST_BYTES)
        .and_then(|_| fs::read_to_string(path).ok())?;
    let any: serde_json::Value = serde_json::from_str(&text).ok()?;
    let (then, now) = (any.get("metallic")?.as_str()?, env!("CARGO_PKG_VERSION"));
    (then != now).then(|| {
        let instead = "what is built in is used, `metallic tune` measures anew";
        format!("`{}`: it was measured with metallic {then}; this is {now}; {instead}", path.display())
    })
}

fn find_by(
    device: &TunedDevice,
    variable: Option<OsString>,
    cache: Option<&Path>,
) -> Result<Found, BackendError> {
    let built_in = |note| Found { tuning: device.built_in, source: TuningSource::BuiltIn, note };
    let asked = variable.filter(|value| !value.is_empty());
    let (path, asked) = match (asked, cache) {
        (Some(off), _) if off == "off" => return Ok(built_in(None)),
        (Some(path), _) => (PathBuf::from(path), true),
        (None, Some(cache)) => (file_of(cache, device), false),
        (None, None) => return Ok(built_in(None)),
    };
    if !asked && !path.exists() {
        return Ok(built_in(None));
    }
    if !asked && let Some(why) = of_another_release(&path) {
        return Ok(built_in(Some(why)));
    }
    let (kept, tuning) = Kept::read(&path, device).map_err(|reason| {
        let variable = if asked { format!("{VARIABLE}=") } else { "tuning ".to_owned() };
        BackendError::Setting {
            device: device.kind,
            setting: format!("{variable}{}", path.display()),
            reason,
        }
    })?;
    let stale = kept.stale(device).map(|why| format!("`{}`: {why}", path.display()));
    match stale {
        Some(why) if !asked => {
            let instead = "what is built in is used, `metallic tune` measures anew";
            Ok(built_in(Some(format!("{why}; {instead}"))))
        }
        note => Ok(Found { tuning, source: TuningSource::File(path), note }),
    }
}

/// Lets plans go by what [`find`] finds, unless a caller has said otherwise.
pub(super) fn follow(tuned: &Tuned, device: &TunedDevice) -> Result<(), BackendError> {
    if tuned.get().is_some() {
        return Ok(());
    }
    let found = find(device)?;
    if let Some(note) = found.note {
        tuned.note(note);
    }
    if found.source == TuningSource::BuiltIn {
        return Ok(());
    }
    tuned.set_from(found.tuning, found.source).map_err(|error| error.on(device.kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> TunedDevice {
        TunedDevice {
            kind: "cuda",
            name: "NVIDIA H200/x".to_owned(),
            system: "a driver for CUDA 12.8".to_owned(),
            built_in: Tuning { heads_apart: 2, ..Tuning::DEFAULT },
            origin: Origin::Measured,
        }
    }

    fn in_cache(folder: &tempfile::TempDir) -> (PathBuf, Tuning) {
        let tuning = Tuning { cell_groups: 4, busy: 200, ..device().built_in };
        let path = file_of(folder.path(), &device());
        let kept = Kept {
            measured: [("tg32".to_owned(), [400.0, 410.0])].into(),
            ..Kept::new(&device(), &tuning, "m")
        };
        kept.write(&path).unwrap();
        (path, tuning)
    }

    #[test]
    fn what_was_measured_is_found_again_and_can_be_left_out_or_removed() {
        let folder = tempfile::tempdir().unwrap();
        let found =
            |variable: Option<&str>| find_by(&device(), variable.map(OsString::from), Some(folder.path()));
        let built_in = Found { tuning: device().built_in, source: TuningSource::BuiltIn, note: None };
        assert_eq!(found(None).unwrap(), built_in);
        let (path, tuning) = in_cache(&folder);
        assert_eq!(path.parent().unwrap(), folder.path().join("tuning"), "a name stays in its folder");
        let of_file = Found { tuning, source: TuningSource::File(path.clone()), note: None };
        assert_eq!(found(None).unwrap(), of_file);
        assert_eq!(found(Some("")).unwrap(), of_file);
        assert_eq!(found(Some("off")).unwrap(), built_in);
        assert_eq!(found(path.to_str()).unwrap(), of_file);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"cell_groups\": 4") && !text.contains("heads_apart"), "{text}");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no draft stays");
        assert!(remove(&path).unwrap() && !remove(&path).unwrap());
        assert_eq!(found(None).unwrap(), built_in);
    }

    #[test]
    fn a_file_that_is_not_of_this_device_or_not_whole_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = in_cache(&folder);
        let good = fs::read_to_string(&path).unwrap();
        let with = |from: &str, to: &str| {
            assert!(good.contains(from), "{good}");
            good.replace(from, to)
        };
        for (text, part) in [
            (String::new(), "EOF"),
            ("{\"cell_groups\": 4}".to_owned(), "no version"),
            (good[..good.len() / 2].to_owned(), "EOF"),
            (with("\"version\": 1", "\"version\": 2"), "version 2, 1 is needed"),
            (with("\"cell_groups\": 4", "\"cell_groups\": 3"), "`cell_groups` is 3; it may be 1, 2 or 4"),
            (with("cell_groups", "cell_spilt"), "no field `cell_spilt`"),
            (with("\"model\"", "\"mobel\""), "mobel"),
            (with("H200/x", "A100"), "it is of cuda (NVIDIA A100), this device is cuda (NVIDIA H200/x)"),
            (" ".repeat(2 << 20), "1048576 at most"),
        ] {
            fs::write(&path, text).unwrap();
            for asked in [None, Some(path.clone().into_os_string())] {
                let error = find_by(&device(), asked, Some(folder.path())).unwrap_err();
                assert!(matches!(error, BackendError::Setting { device: "cuda", .. }), "{error:?}");
                let error = error.to_string();
                assert!(error.contains(part) && error.contains(path.to_str().unwrap()), "{error}");
            }
        }
        let missing = folder.path().join("nothing.json");
        let error = find_by(&device(), Some(missing.into_os_string()), None).unwrap_err().to_string();
        assert!(error.contains("METALLIC_TUNING=") && error.contains("nothing.json"), "{error}");
    }

    #[test]
    fn what_was_measured_with_other_software_is_left_and_said_unless_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let (path, tuning) = in_cache(&folder);
        let newer = TunedDevice { system: "a driver for CUDA 13.0".to_owned(), ..device() };
        let found = find_by(&newer, None, Some(folder.path())).unwrap();
        assert_eq!((found.tuning, &found.source), (newer.built_in, &TuningSource::BuiltIn));
        let note = found.note.unwrap();
        assert!(
            note.contains("CUDA 12.8") && note.contains("CUDA 13.0") && note.contains("metallic tune"),
            "{note}"
        );
        let asked = find_by(&newer, Some(path.clone().into_os_string()), None).unwrap();
        assert_eq!((asked.tuning, asked.source), (tuning, TuningSource::File(path)));
        assert!(asked.note.unwrap().contains("CUDA 12.8"));
    }

    #[test]
    fn a_file_of_another_release_is_left_whatever_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _) = in_cache(&folder);
        let own = format!("\"metallic\": \"{}\"", env!("CARGO_PKG_VERSION"));
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(&own), "{text}");
        let old = text.replace(&own, "\"metallic\": \"0.0.1\"").replace("cell_groups", "cells_shared");
        fs::write(&path, old).unwrap();
        let found = find_by(&device(), None, Some(folder.path())).unwrap();
        assert_eq!(found.tuning, device().built_in);
        assert!(found.note.unwrap().contains("metallic 0.0.1"));
        let error = find_by(&device(), Some(path.into_os_string()), None).unwrap_err().to_string();
        assert!(error.contains("no field `cells_shared`"), "{error}");
    }

    #[cfg(not(any(target_os = "macos", windows)))]
    #[test]
    fn the_cache_folder_is_the_users_unless_told_otherwise() {
        let with = |set: &'static [(&str, &str)], home: &str| {
            let of = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
            folder(of, Some(PathBuf::from(home)))
        };
        let path = |path: &str| Some(PathBuf::from(path));
        assert_eq!(with(&[], ""), None);
        assert_eq!(with(&[("METALLIC_HOME", "")], "/h"), path("/h/.cache/metallic"));
        assert_eq!(with(&[("XDG_CACHE_HOME", "/c")], "/h"), path("/c/metallic"));
        assert_eq!(with(&[("XDG_CACHE_HOME", "c")], "/h"), path("/h/.cache/metallic"));
        assert_eq!(with(&[("METALLIC_HOME", "m")], "/h"), path("m"));
    }
}
