//! Kernels as PTX: made of the Metal sources by softmetal where this machine has its clang, kept on disk, and found beside the
//! program where somebody made them before.

use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::api::Takes;
use crate::error::GpuError;
use crate::kernels::Constants;

/// What names a file of this kind and this way to write it.
const MARK: &str = "metallic ptx 2";
/// The folder beside the program.
const BESIDE: &str = "metallic-ptx";
/// The variable that names another one.
const VARIABLE: &str = "METALLIC_PTX";
/// The compute capabilities that kernels are made for, the newest first; what is made for one runs on all that came after. From
/// 9.0 on kernels begin before those before them are done, from 8.0 on there are matrix units for bfloats.
const MADE_FOR: [u32; 2] = [EARLY, 80];
const EARLY: u32 = 90;
/// What a kernel says that may begin early.
const WAITS: &str = "griddepcontrol.wait";

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

    /// Names it: the same for the same bytes on every machine.
    fn key(&self, sm: u32) -> String {
        let parts = [MARK, self.function, &self.constants_text(), &sm.to_string(), self.source];
        let hash = |seed: u64| {
            let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
            bytes.fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
        };
        format!("{}-{:016x}{:016x}", self.function, hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142))
    }
}

/// A kernel as PTX.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Translation {
    /// Its name in the text.
    pub(super) entry: CString,
    pub(super) takes: Takes,
    /// Its function constants, for whoever looks into the file.
    pub(super) constants: String,
    pub(super) text: CString,
}

impl Translation {
    /// Whether it may be launched before what came before is done.
    pub(super) fn begins_early(&self) -> bool {
        self.text.to_string_lossy().contains(WAITS)
    }

    /// Lines of what is known of it, an empty one, the text.
    fn written(&self) -> String {
        let (entry, text) = (self.entry.to_string_lossy(), self.text.to_string_lossy());
        let Takes { params, addresses } = self.takes;
        format!("{MARK}\n{entry}\n{params} {addresses}\n{}\n\n{text}", self.constants)
    }

    fn read(written: &str) -> Option<Translation> {
        let (head, text) = written.split_once("\n\n")?;
        let mut lines = head.lines();
        if lines.next() != Some(MARK) {
            return None;
        }
        let (entry, (params, addresses)) = (lines.next()?, lines.next()?.split_once(' ')?);
        let takes = Takes { params: params.parse().ok()?, addresses: addresses.parse().ok()? };
        let constants = lines.next()?.to_owned();
        Some(Translation {
            entry: CString::new(entry).ok()?,
            takes,
            constants,
            text: CString::new(text).ok()?,
        })
    }
}

/// Where translations are found, and made where they are not.
#[derive(Debug)]
pub(super) struct Translator {
    /// Where they may lie; the first is where new ones are put.
    folders: Vec<PathBuf>,
    #[cfg(feature = "soft")]
    compiler: Result<softmetal::Compiler, String>,
}

impl Translator {
    /// Looks where a program finds them: where the variable says, beside itself, in the cache of compiled kernels.
    pub(super) fn of_user() -> Translator {
        let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let program = std::env::current_exe().ok();
        let beside = program.and_then(|path| Some(path.parent()?.join(BESIDE)));
        Translator::with(Translator::cache().into_iter().chain(named).chain(beside).collect())
    }

    /// Puts all that is asked for into one folder.
    pub(super) fn into_folder(folder: &Path) -> Translator {
        Translator::with(vec![folder.to_owned()])
    }

    #[cfg(feature = "soft")]
    fn cache() -> Option<PathBuf> {
        // Beside the headers that are part of every translation, whose folder is named after what they say.
        let compiler = softmetal::Compiler::new().ok()?;
        let headers = compiler.shim_folder().file_name()?.to_owned();
        let cache = softmetal::Cache::of_user().ok()?;
        Some(cache.folder().join("ptx").join(headers))
    }

    #[cfg(not(feature = "soft"))]
    fn cache() -> Option<PathBuf> {
        None
    }

    fn with(folders: Vec<PathBuf>) -> Translator {
        Translator {
            folders,
            #[cfg(feature = "soft")]
            compiler: softmetal::Compiler::new().map_err(|error| error.to_string()),
        }
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

    /// Has it in the first folder, whole. Whether it had to be made, and the bytes of its file.
    pub(super) fn put(&self, wanted: &Wanted<'_>) -> Result<(bool, u64), GpuError> {
        let best = wanted.best();
        let (name, folder) = (wanted.file(best), self.folders.first());
        let folder = folder.ok_or_else(|| GpuError::Missing("a folder for PTX".to_owned()))?;
        if let Some(found) = self.kept(wanted, best) {
            return Ok((false, found.written().len() as u64));
        }
        let written = self.make(wanted, best)?.written();
        let failed = |error: std::io::Error| {
            GpuError::compile(wanted.function, format!("`{}`: {error}", folder.join(&name).display()))
        };
        keep(folder, &name, &written).map_err(failed)?;
        Ok((true, written.len() as u64))
    }

    /// What lies in one of the folders. What is damaged is made again.
    fn kept(&self, wanted: &Wanted<'_>, sm: u32) -> Option<Translation> {
        let name = wanted.file(sm);
        let read = |folder: &PathBuf| Translation::read(&fs::read_to_string(folder.join(&name)).ok()?);
        self.folders.iter().find_map(read)
    }

    pub(super) fn get(&self, wanted: &Wanted<'_>) -> Result<Translation, GpuError> {
        let mut targets = wanted.targets();
        let best = targets.next().unwrap_or(wanted.capability);
        let kept = |sm: u32| self.kept(wanted, sm);
        if let Some(found) = kept(best) {
            return Ok(found);
        }
        let made = match self.make(wanted, best) {
            Ok(made) => made,
            // Where nothing can be made, what was made for older ones is as right.
            Err(error) => return targets.find_map(kept).ok_or(error),
        };
        if let Some(folder) = self.folders.first() {
            // Without a place to keep it, it is made again the next time.
            let _ = keep(folder, &wanted.file(best), &made.written());
        }
        Ok(made)
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
        let early = sm >= EARLY;
        let options = PtxOptions {
            constants: named.collect(),
            sm,
            full_simdgroups: true,
            exact: false,
            early,
            by_value: true,
        };
        let source = softmetal::Source::new(wanted.library, wanted.source);
        let failed = |message: String| GpuError::compile(wanted.function, message);
        let module = ptx(&compiler.clone().only([wanted.function]), &source, &options)
            .map_err(|error| failed(error.to_string()))?;
        let kernel = module.kernels.iter().find(|kernel| kernel.name == wanted.function);
        let kernel = kernel.ok_or_else(|| failed("the source has no such kernel".to_owned()))?;
        let text = |text: &str| CString::new(text).map_err(|error| failed(error.to_string()));
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
        let places: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        let message = format!(
            "`{}`, the kernel with {} for compute capability {}.{}, is in none of {}, and cannot be made here: {reason}; \
             where there is a clang, `metallic tool ptx -m MODEL -o {BESIDE}` makes what a model needs",
            wanted.file(wanted.best()),
            wanted.named_constants(),
            wanted.best() / 10,
            wanted.best() % 10,
            places.join(", ")
        );
        GpuError::compile(wanted.function, message)
    }
}

/// The name a source gives a function constant.
fn constant(source: &str, index: usize) -> Option<&str> {
    let mark = format!("[[function_constant({index})]]");
    let line = source.lines().find(|line| line.contains(&mark))?;
    line[..line.find(&mark)?].split_whitespace().next_back()
}

/// Writes a file that is there whole or not at all.
fn keep(folder: &Path, name: &str, text: &str) -> std::io::Result<()> {
    // Two threads may write the same, and so may two processes.
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    fs::create_dir_all(folder)?;
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let part = folder.join(format!("{name}.{}-{number}.part", std::process::id()));
    let written = fs::write(&part, text).and_then(|()| fs::rename(&part, folder.join(name)));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted<'a>(source: &'a str, constants: &'a Constants) -> Wanted<'a> {
        Wanted { library: "t", source, function: "f", constants, capability: 90 }
    }

    #[test]
    fn what_is_written_is_read_again_and_damage_is_nothing() {
        let text = |text: &str| CString::new(text).unwrap();
        let takes = Takes { params: 24, addresses: 3 };
        let (entry, constants) = (text("f"), "0=1,3=10".to_owned());
        let made = Translation { entry, takes, constants, text: text(".version 7.8\n\n.entry f()\n") };
        assert_eq!(Translation::read(&made.written()), Some(made.clone()));
        for damaged in
            ["", "metallic ptx 1\nf\n3\n\nx", "metallic ptx 2\nf\n3\n\nx", "metallic ptx 2\nf\n1 many\n\nx"]
        {
            assert_eq!(Translation::read(damaged), None, "{damaged:?}");
        }
        assert_eq!(Translation::read(&made.written()[..20]), None, "what was cut short");
    }

    #[test]
    fn other_constants_sources_and_capabilities_are_other_files() {
        let (one, two) = (Constants::of([1, 2]), Constants::of([1, 3]));
        let key = wanted("a", &one).key(80);
        assert_eq!(key, wanted("a", &one).key(80));
        assert_ne!(key, wanted("b", &one).key(80));
        assert_ne!(key, wanted("a", &two).key(80));
        assert_ne!(key, wanted("a", &one).key(90));
        let targets = |capability| Wanted { capability, ..wanted("a", &one) }.targets().collect::<Vec<_>>();
        assert_eq!(targets(120), [90, 80], "newer GPUs take the same");
        assert_eq!((targets(90), targets(86), targets(75)), (vec![90, 80], vec![80], vec![75]));
    }

    #[test]
    fn threads_that_write_the_same_file_leave_it_whole_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("metallic-ptx-parts-{}", std::process::id()));
        let text = "x".repeat(1 << 16);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| keep(&folder, "f.ptx", &text).unwrap()));
            }
        });
        let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(left, ["f.ptx"]);
        assert_eq!(fs::read_to_string(folder.join("f.ptx")).unwrap(), text);
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(feature = "soft")]
    #[test]
    fn a_kernel_is_made_once_and_found_after_that_also_without_a_compiler() {
        const SOURCE: &str = "#include <metal_stdlib>\nusing namespace metal;\n\
            constant uint N [[function_constant(0)]];\n\
            struct P { uint n; float x; };\n\
            kernel void f(constant P& p [[buffer(0)]], device uint* out [[buffer(1)]], uint i [[thread_position_in_grid]])\n\
            { if (i < p.n) out[i] = N; }\n";
        let folder = std::env::temp_dir().join(format!("metallic-ptx-test-{}", std::process::id()));
        let constants = Constants::of([77]);
        let wanted = wanted(SOURCE, &constants);
        let maker = Translator::into_folder(&folder);
        if let Err(reason) = maker.compiler() {
            return metallic_testkit::missing(&reason);
        }
        let made = maker.get(&wanted).unwrap();
        assert_eq!(made.takes, Takes { params: 8, addresses: 1 });
        assert!(made.text.to_string_lossy().contains("77"), "{made:?}");
        let without =
            Translator { folders: vec![folder.clone()], compiler: Err("there is no clang".to_owned()) };
        assert_eq!(without.get(&wanted).unwrap(), made);
        assert!(made.begins_early(), "made for 9.0");
        let older = maker.get(&Wanted { capability: 80, ..wanted }).unwrap();
        assert!(!older.begins_early() && older.entry == made.entry, "{older:?}");
        fs::remove_file(folder.join(format!("{}.ptx", wanted.key(90)))).unwrap();
        assert_eq!(without.get(&wanted).unwrap(), older, "what was made for older ones runs too");
        let other = Wanted { constants: &Constants::of([78]), ..wanted };
        let error = without.get(&other).unwrap_err().to_string();
        for part in ["there is no clang", "metallic tool ptx", "`f`", "N=78", "9.0", "metallic-ptx-test"] {
            assert!(error.contains(part), "{part}: {error}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
