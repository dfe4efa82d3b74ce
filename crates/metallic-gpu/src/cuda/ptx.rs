//! Kernels as PTX: made of the Metal sources by softmetal where this machine has its clang, kept on disk, and found beside the
//! program where somebody made them before.

mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use self::file::{EMPTY, MARK, Translation, hash, keep};
use super::api::Takes;
use crate::error::GpuError;
use crate::kernels::Constants;
use crate::{lock, tell};

/// The folder beside the program.
const BESIDE: &str = "metallic-ptx";
/// The variable that names another one.
const VARIABLE: &str = "METALLIC_PTX";
/// The compute capabilities that kernels are made for, the newest first; what is made for one runs on all that came after. From
/// 9.0 on kernels begin before those before them are done, from 8.0 on there are matrix units for bfloats.
const MADE_FOR: [u32; 2] = [EARLY, 80];
const EARLY: u32 = 90;
/// What softmetal is asked for beside the target and the constants, a part of every key.
const FULL_SIMDGROUPS: bool = true;
const EXACT: bool = false;
const BY_VALUE: bool = true;

/// Names what makes PTX of a source: softmetal's standard library, its rewriter and the flags of clang. Keys are the same on machines
/// that have no softmetal, for which it is written down.
fn translator() -> &'static str {
    #[cfg(feature = "soft")]
    {
        static NAME: std::sync::OnceLock<String> = std::sync::OnceLock::new();
        NAME.get_or_init(softmetal::ptx::fingerprint)
    }
    #[cfg(not(feature = "soft"))]
    WRITTEN_DOWN.trim_ascii()
}

/// Softmetal's fingerprint, as it was when this was built.
#[cfg(any(test, not(feature = "soft")))]
const WRITTEN_DOWN: &str = include_str!("ptx/translator.txt");

/// A kernel of one source with its constants, for GPUs of one capability.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) library: &'a str,
    pub(super) source: &'a str,
    pub(super) function: &'a str,
    pub(super) constants: &'a Constants,
    /// Compute capability times ten.
    pub(super) capability: u32,
}

impl Wanted<'_> {
    /// What it can be made for, the best first.
    fn targets(&self) -> impl Iterator<Item = u32> {
        let (own, mut made) =
            (self.capability, MADE_FOR.into_iter().filter(|sm| *sm <= self.capability).peekable());
        let old = made.peek().is_none().then_some(own);
        made.chain(old)
    }

    /// The newest capability that it is made for.
    fn best(&self) -> u32 {
        self.targets().next().unwrap_or(self.capability)
    }

    /// Its file's name.
    fn file(&self, sm: u32) -> String {
        format!("{}.ptx", self.key(sm))
    }

    /// The constants as their source names them, for whoever has to do without: `KV_TYPE=1, HEAD_DIM=64`.
    fn named_constants(&self) -> String {
        let name =
            |index: usize| constant(self.source, index).map_or_else(|| index.to_string(), str::to_owned);
        let each: Vec<String> = self.constants.values().map(|(i, v)| format!("{}={v}", name(i))).collect();
        if each.is_empty() { "no constants".to_owned() } else { each.join(", ") }
    }

    /// The constants by their index: `0=1,3=10`; no constants are a dash.
    fn constants_text(&self) -> String {
        let each: Vec<String> = self.constants.values().map(|(i, v)| format!("{i}={v}")).collect();
        if each.is_empty() { "-".to_owned() } else { each.join(",") }
    }

    /// Names it by all it is made of: the same on every machine, whichever clang makes it.
    fn key(&self, sm: u32) -> String {
        self.key_by(translator(), sm)
    }

    fn key_by(&self, translator: &str, sm: u32) -> String {
        let options = format!("{FULL_SIMDGROUPS} {EXACT} {BY_VALUE} {}", sm >= EARLY);
        let (constants, sm) = (self.constants_text(), sm.to_string());
        let parts = [MARK, translator, &options, self.function, &constants, &sm, self.source];
        let (one, other) = (hash(EMPTY, &parts), hash(0x6c62_272e_07bb_0142, &parts));
        format!("{}-{one:016x}{other:016x}", self.function)
    }
}

/// What is not as it should be, each kind told once: kernels are many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Trouble {
    /// The variable names no folder.
    NoFolder,
    /// A file that cannot be used.
    Damaged,
    /// What was made could not be kept.
    NotKept,
    /// Kernels made for older GPUs serve.
    Older,
}

/// Where translations are found, and made where they are not.
#[derive(Debug)]
pub(super) struct Translator {
    /// Where they may lie, in the order they are looked for.
    folders: Vec<PathBuf>,
    /// Where new ones are put.
    into: Option<PathBuf>,
    #[cfg(feature = "soft")]
    compiler: Result<softmetal::Compiler, String>,
    troubles: Mutex<BTreeMap<Trouble, String>>,
    /// How many were made.
    made: AtomicU64,
}

impl Translator {
    /// Looks where a program finds them: where the variable says, in the cache of compiled kernels, beside itself. New ones go into the
    /// cache.
    pub(super) fn of_user() -> Translator {
        let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let program = std::env::current_exe().ok();
        let beside = program.and_then(|path| Some(path.parent()?.join(BESIDE)));
        Translator::of(named, Translator::cache(), beside)
    }

    fn of(named: Option<PathBuf>, cache: Option<PathBuf>, beside: Option<PathBuf>) -> Translator {
        let missing = named.clone().filter(|folder| !folder.is_dir());
        let folders = named.into_iter().chain(cache.clone()).chain(beside).collect();
        let translator = Translator::with(folders, cache);
        if let Some(folder) = missing {
            translator.tell(Trouble::NoFolder, || {
                format!(
                    "{VARIABLE} names `{}`, which is no folder: kernels come from elsewhere",
                    folder.display()
                )
            });
        }
        translator
    }

    /// Puts all that is asked for into one folder.
    pub(super) fn into_folder(folder: &Path) -> Translator {
        Translator::with(vec![folder.to_owned()], Some(folder.to_owned()))
    }

    #[cfg(feature = "soft")]
    fn cache() -> Option<PathBuf> {
        Some(softmetal::Cache::of_user().ok()?.folder().join("ptx"))
    }

    #[cfg(not(feature = "soft"))]
    fn cache() -> Option<PathBuf> {
        None
    }

    fn with(folders: Vec<PathBuf>, into: Option<PathBuf>) -> Translator {
        Translator {
            folders,
            into,
            #[cfg(feature = "soft")]
            compiler: softmetal::Compiler::new().map_err(|error| error.to_string()),
            troubles: Mutex::default(),
            made: AtomicU64::new(0),
        }
    }

    /// How many translations were made, and not found.
    pub(super) fn made(&self) -> u64 {
        self.made.load(Ordering::Relaxed)
    }

    fn tell(&self, kind: Trouble, text: impl FnOnce() -> String) {
        lock(&self.troubles).entry(kind).or_insert_with(text);
    }

    /// What is not as it should be, as far as it is known by now: for people.
    pub(super) fn notes(&self) -> Vec<String> {
        lock(&self.troubles).values().cloned().collect()
    }

    /// Whether new ones can be made, or some are there.
    pub(super) fn has_some(&self) -> bool {
        let mut folders = self.folders.iter();
        self.compiler().is_ok()
            || folders.any(|folder| fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some()))
    }

    /// What makes new ones, or why nothing can.
    pub(super) fn compiler(&self) -> Result<String, String> {
        #[cfg(feature = "soft")]
        return self.compiler.as_ref().map_err(Clone::clone).map(|compiler| {
            let toolchain = compiler.toolchain();
            format!("{} ({})", toolchain.version, toolchain.clang.display())
        });
        #[cfg(not(feature = "soft"))]
        Err("this build has no `soft` feature, which compiles kernels".to_owned())
    }

    /// Has it in the folder for new ones, whole. Whether it had to be made, and the bytes of its file.
    pub(super) fn put(&self, wanted: &Wanted<'_>) -> Result<(bool, u64), GpuError> {
        let best = wanted.best();
        let folder = self.into.as_ref().ok_or_else(|| GpuError::Missing("a folder for PTX".to_owned()))?;
        if let Some(found) = self.kept(wanted, best) {
            return Ok((false, found.written().len() as u64));
        }
        let (name, written) = (wanted.file(best), self.make(wanted, best)?.written());
        let failed = |error: std::io::Error| {
            GpuError::compile(wanted.function, format!("`{}`: {error}", folder.join(&name).display()))
        };
        keep(folder, &name, &written).map_err(failed)?;
        Ok((true, written.len() as u64))
    }

    /// What lies in one of the folders. What is damaged is as good as nothing, and told.
    fn kept(&self, wanted: &Wanted<'_>, sm: u32) -> Option<Translation> {
        let name = wanted.file(sm);
        let read = |folder: &PathBuf| {
            let path = folder.join(&name);
            let read = match fs::read(&path) {
                Ok(written) => Translation::read(&written),
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                    return None;
                }
                Err(error) => Err(error.to_string()),
            };
            let unusable = |reason: String| {
                self.tell(Trouble::Damaged, || {
                    format!(
                        "`{}` cannot be used and is made again where that is possible: {reason}",
                        path.display()
                    )
                });
            };
            read.map_err(unusable).ok()
        };
        self.folders.iter().find_map(read)
    }

    pub(super) fn get(&self, wanted: &Wanted<'_>) -> Result<Translation, GpuError> {
        tell::compiled("ptx", wanted.function, || Some(self.made()), || self.find_or_make(wanted))
    }

    fn find_or_make(&self, wanted: &Wanted<'_>) -> Result<Translation, GpuError> {
        let best = wanted.best();
        if let Some(found) = self.kept(wanted, best) {
            return Ok(found);
        }
        if let Err(reason) = self.compiler() {
            return self.older(wanted).ok_or_else(|| self.missing(wanted, &reason));
        }
        self.made.fetch_add(1, Ordering::Relaxed);
        let made = self.make(wanted, best)?;
        let name = wanted.file(best);
        let kept = match &self.into {
            Some(folder) => keep(folder, &name, &made.written())
                .map_err(|error| format!("`{}`: {error}", folder.join(&name).display())),
            None => Err("softmetal's cache has no folder".to_owned()),
        };
        if let Err(reason) = kept {
            self.tell(Trouble::NotKept, || {
                format!("kernels cannot be kept and are compiled at every start: {reason}")
            });
        }
        Ok(made)
    }

    /// Where nothing can be made: what was made for older ones is as right.
    fn older(&self, wanted: &Wanted<'_>) -> Option<Translation> {
        let (sm, found) = wanted.targets().skip(1).find_map(|sm| Some((sm, self.kept(wanted, sm)?)))?;
        self.tell(Trouble::Older, || {
            let (function, best) = (wanted.function, wanted.best());
            format!(
                "kernels made for compute capability {} serve, `{function}` among them, and wait for each other to end: those for {} \
                 are not there, which `metallic tool ptx --capability {best}` makes where there is a clang",
                dotted(sm),
                dotted(best)
            )
        });
        Some(found)
    }

    #[cfg(not(feature = "soft"))]
    fn make(&self, wanted: &Wanted<'_>, _: u32) -> Result<Translation, GpuError> {
        Err(self.missing(wanted, "this build has no `soft` feature, which compiles kernels"))
    }

    #[cfg(feature = "soft")]
    fn make(&self, wanted: &Wanted<'_>, sm: u32) -> Result<Translation, GpuError> {
        use softmetal::ptx::{PtxOptions, ptx};
        let compiler = self.compiler.as_ref().map_err(|reason| self.missing(wanted, reason))?;
        let named = wanted.constants.values().filter_map(|(index, value)| {
            Some((constant(wanted.source, index)?.to_owned(), format!("{value}u")))
        });
        let options = PtxOptions {
            constants: named.collect(),
            sm,
            full_simdgroups: FULL_SIMDGROUPS,
            exact: EXACT,
            early: sm >= EARLY,
            by_value: BY_VALUE,
        };
        let source = softmetal::Source::new(wanted.library, wanted.source);
        let failed = |message: String| GpuError::compile(wanted.function, message);
        let module = ptx(&compiler.clone().only([wanted.function]), &source, &options)
            .map_err(|error| failed(error.to_string()))?;
        let kernel = module.kernels.iter().find(|kernel| kernel.name == wanted.function);
        let kernel = kernel.ok_or_else(|| failed("the source has no such kernel".to_owned()))?;
        let text = |text: &str| std::ffi::CString::new(text).map_err(|error| failed(error.to_string()));
        Ok(Translation {
            entry: text(&kernel.entry)?,
            takes: Takes {
                params: kernel.by_value as usize,
                addresses: kernel.buffers.saturating_sub(u32::from(kernel.by_value > 0)) as usize,
            },
            constants: wanted.constants_text(),
            text: text(&module.text)?,
        })
    }

    fn missing(&self, wanted: &Wanted<'_>, reason: &str) -> GpuError {
        let damaged = lock(&self.troubles).get(&Trouble::Damaged).cloned();
        let damaged = damaged.map(|note| format!("; {note}")).unwrap_or_default();
        let places: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        let message = format!(
            "`{}`, the kernel with {} for compute capability {}, is in none of {}, and cannot be made here: {reason}{damaged}; \
             where there is a clang, `metallic tool ptx -m MODEL -o {BESIDE}` of this version makes what a model needs",
            wanted.file(wanted.best()),
            wanted.named_constants(),
            dotted(wanted.best()),
            places.join(", ")
        );
        GpuError::compile(wanted.function, message)
    }
}

/// A compute capability as people write it: `9.0`.
fn dotted(sm: u32) -> String {
    format!("{}.{}", sm / 10, sm % 10)
}

/// The name a source gives a function constant.
fn constant(source: &str, index: usize) -> Option<&str> {
    let mark = format!("[[function_constant({index})]]");
    let line = source.lines().find(|line| line.contains(&mark))?;
    line[..line.find(&mark)?].split_whitespace().next_back()
}
