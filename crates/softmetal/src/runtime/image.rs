//! A kernel library in this process: loading it and reading what it says about itself.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::{CStr, c_char, c_void},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use libloading::os::unix;

use super::{abi, callbacks};
use crate::{
    cache::Lease,
    error::{Error, Result},
    library::{Argument, ArgumentKind, BuiltIn, FunctionConstant, Kernel, TextureArgument},
};

/// Values of function constants by index, in order. Cheap to clone and, where nothing has changed, to compare.
pub(crate) type Constants = Arc<[(u32, Vec<u8>)]>;

thread_local! {
    /// What the constants of each library are set to in this thread.
    static SET: RefCell<BTreeMap<usize, Constants>> = const { RefCell::new(BTreeMap::new()) };
}

/// A loaded kernel library. It stays loaded: reports and other threads may still hold addresses in it.
///
/// Only a [`Compiler`](crate::Compiler) makes one: loading a file runs what is in it.
///
/// ```compile_fail,E0624
/// let image = softmetal::runtime::Image::open(std::path::Path::new("library.so"));
/// ```
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    /// Reports read the file's debug information.
    _lease: Lease,
    pub(super) entries: Vec<abi::Entry>,
    kernels: Vec<Kernel>,
    /// Per kernel and parameter, the type after template arguments were put in.
    pub(crate) types: Vec<Vec<String>>,
    constants: Vec<FunctionConstant>,
    /// Functions that can be put into tables, and where they are.
    functions: Vec<(String, usize)>,
    slots: Vec<Slot>,
    init_constants: unsafe extern "C" fn(),
    /// What addresses of its debug information are relative to.
    pub(crate) base: usize,
    checked: bool,
}

/// How to reach a function constant of the calling thread.
#[derive(Debug)]
struct Slot {
    value: unsafe extern "C" fn() -> *mut c_void,
    defined: unsafe extern "C" fn() -> *mut bool,
}

impl Slot {
    /// Where the calling thread has it.
    fn address(&self) -> usize {
        // SAFETY: returns the address of a thread-local of the loaded library, which is never unloaded.
        unsafe { (self.value)() as usize }
    }
}

/// Where the library lies in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Span {
    base: usize,
    /// Code, constants and globals.
    pub(crate) segments: Vec<Range<usize>>,
    /// Thread-local storage of the thread that asked, if the loader knows, and its length in any thread.
    pub(crate) tls: Range<usize>,
    tls_len: usize,
}

impl Image {
    /// Loads the shared object at `path`, which this crate has compiled: its initialisers run, and what it says of itself is
    /// believed.
    pub(crate) fn open(path: &Path) -> Result<Arc<Self>> {
        let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
        let lease = Lease::of(path).ok_or_else(|| fail("it is not there".to_owned()))?;
        // What is missing shows here; bound at its first call it would end the process, on the small stack of a fiber.
        let flags = unix::RTLD_NOW | unix::RTLD_LOCAL;
        // SAFETY: the file was built by the compiler of this crate; its initialisers only fill its own lists.
        let library = unsafe { unix::Library::open(Some(path), flags) }.map_err(|e| fail(e.to_string()))?;
        // SAFETY: the exported symbols have these types by `msl_abi.h`, whose version is compared before any other is used.
        unsafe {
            let version: unsafe extern "C" fn() -> u32 =
                symbol(&library, b"msl_abi_version\0").map_err(fail)?;
            if version() != abi::VERSION {
                let (found, needed) = (version(), abi::VERSION);
                return Err(fail(format!("it has kernel interface {found}, this program needs {needed}")));
            }
            let set: unsafe extern "C" fn(*const abi::Runtime) =
                symbol(&library, b"msl_set_runtime\0").map_err(fail)?;
            let kernels: unsafe extern "C" fn() -> *const abi::Kernel =
                symbol(&library, b"msl_kernels\0").map_err(fail)?;
            let constants: unsafe extern "C" fn() -> *const abi::FunctionConstant =
                symbol(&library, b"msl_function_constants\0").map_err(fail)?;
            let functions: unsafe extern "C" fn() -> *const abi::Function =
                symbol(&library, b"msl_functions\0").map_err(fail)?;
            let init_constants: unsafe extern "C" fn() =
                symbol(&library, b"msl_init_constants\0").map_err(fail)?;
            let checked = library.get::<unsafe extern "C" fn() -> u32>(b"msl_checked\0").is_ok();
            set(&raw const callbacks::TABLE);
            let mut image = Self {
                path: path.to_owned(),
                _lease: lease,
                entries: Vec::new(),
                kernels: Vec::new(),
                types: Vec::new(),
                constants: Vec::new(),
                functions: Vec::new(),
                slots: Vec::new(),
                init_constants,
                base: span_of(kernels as usize).base,
                checked,
            };
            image.read_kernels(kernels());
            image.read_constants(constants());
            image.read_functions(functions());
            std::mem::forget(library);
            Ok(Arc::new(image))
        }
    }

    /// The kernels in the order of the source.
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The function constants in the order of the source.
    pub fn constants(&self) -> &[FunctionConstant] {
        &self.constants
    }

    /// The functions marked `[[visible]]`, in the order of the source, and where they are in this process.
    pub(crate) fn functions(&self) -> &[(String, usize)] {
        &self.functions
    }

    /// Whether accesses to memory are instrumented.
    pub fn checked(&self) -> bool {
        self.checked
    }

    /// The shared object.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Segments of the library and the calling thread's storage in it.
    pub(crate) fn span(&self) -> Span {
        // The storage is created on first use, so touch it before asking where it is.
        let addresses: Vec<usize> = self.slots.iter().map(Slot::address).collect();
        let mut span = span_of(self.init_constants as usize);
        // The loader does not always say. The storage is in one piece, so it ends within its length of each variable.
        if let (Some(&low), Some(&high)) = (addresses.iter().min(), addresses.iter().max())
            && !span.tls.contains(&low)
        {
            span.tls = low.saturating_sub(span.tls_len)..high + span.tls_len;
        }
        span
    }

    /// Sets the function constants of the calling thread: given ones to their bytes, others to zero and undefined. They are the
    /// thread's own, so others may run kernels with other values meanwhile.
    pub(crate) fn set_constants(&self, values: &Constants) {
        // Loaded twice, a library has still one set of constants: it goes by an address in it.
        let library = self.init_constants as usize;
        let before = SET.with_borrow_mut(|sets| sets.insert(library, values.clone()));
        if before.is_some_and(|before| before == *values) {
            return;
        }
        for (constant, slot) in self.constants.iter().zip(&self.slots) {
            let given = values.iter().find(|(index, _)| *index == constant.index).map(|(_, bytes)| bytes);
            let size = constant.size as usize;
            // SAFETY: `value` and `defined` give thread-locals of `size` bytes and of one bool; lengths were checked by the caller.
            unsafe {
                let to = (slot.value)().cast::<u8>();
                *(slot.defined)() = given.is_some();
                match given {
                    Some(bytes) => {
                        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len().min(size));
                    }
                    None => std::ptr::write_bytes(to, 0, size),
                }
            }
        }
        // SAFETY: recomputes the thread-locals derived from the constants above.
        unsafe { (self.init_constants)() };
    }

    /// # Safety
    /// `list` is null or a kernel list of a loaded library.
    unsafe fn read_kernels(&mut self, mut list: *const abi::Kernel) {
        // SAFETY: the list and its texts are static data of the library, which is never unloaded.
        while let Some(k) = unsafe { list.as_ref() } {
            let params = if k.param_count == 0 {
                &[][..]
            } else {
                // SAFETY: `params` has `param_count` elements by construction in `msl_entry.h`.
                unsafe { std::slice::from_raw_parts(k.params, k.param_count as usize) }
            };
            // SAFETY: a static string, see above.
            let (name, texts) = unsafe { (text(k.name), text(k.texts)) };
            let mut lines = texts.lines();
            let mut types = Vec::new();
            let arguments = params
                .iter()
                .map(|p| {
                    let (spelled, name) = lines.next().and_then(|l| l.split_once('\t')).unwrap_or(("", ""));
                    // SAFETY: a static string, see above.
                    let deduced = unsafe { text(p.type_text) };
                    let deduced = deduced.rsplit_once("P = ").map_or("", |(_, t)| t.trim_end_matches(']'));
                    types.push(deduced.to_owned());
                    Argument {
                        name: name.to_owned(),
                        type_text: match spelled {
                            "" => deduced.to_owned(),
                            "device" | "constant" | "threadgroup" | "thread" => {
                                format!("{spelled} {deduced}")
                                    .replace(" *", "*")
                                    .replace(" &", "&")
                                    .replace("_Float16", "half")
                            }
                            _ => spelled.to_owned(),
                        },
                        kind: kind_of(p.semantic),
                        element_size: p.element_size,
                        alignment: p.alignment,
                        pointer: p.flags & abi::PARAM_POINTER != 0,
                        reference: p.flags & abi::PARAM_REFERENCE != 0,
                        read_only: p.flags & abi::PARAM_CONST != 0,
                        optional: is_optional(p.semantic),
                        texture: TextureArgument::of_code(p.texture),
                    }
                })
                .collect();
            self.kernels.push(Kernel {
                name,
                arguments,
                max_threads: (k.max_threads > 0).then_some(k.max_threads),
            });
            self.entries.push(k.entry);
            self.types.push(types);
            list = k.next;
        }
        self.kernels.reverse();
        self.entries.reverse();
        self.types.reverse();
    }

    /// # Safety
    /// `list` is null or a function list of a loaded library.
    unsafe fn read_functions(&mut self, mut list: *const abi::Function) {
        // SAFETY: the list and its texts are static data of the library, which is never unloaded.
        while let Some(f) = unsafe { list.as_ref() } {
            // SAFETY: a static string, see above.
            self.functions.push((unsafe { text(f.name) }, f.address as usize));
            list = f.next;
        }
        self.functions.reverse();
    }

    /// # Safety
    /// `list` is null or a constant list of a loaded library.
    unsafe fn read_constants(&mut self, mut list: *const abi::FunctionConstant) {
        // SAFETY: the list and its texts are static data of the library, which is never unloaded.
        while let Some(c) = unsafe { list.as_ref() } {
            // SAFETY: static strings, see above.
            let (name, type_text) = unsafe { (text(c.name), text(c.type_text)) };
            self.constants.push(FunctionConstant { name, index: c.index as u32, size: c.size, type_text });
            self.slots.push(Slot { value: c.value, defined: c.defined });
            list = c.next;
        }
        self.constants.reverse();
        self.slots.reverse();
    }
}

/// # Safety
/// Null, or a string that ends in zero.
pub(super) unsafe fn text(p: *const c_char) -> String {
    if p.is_null() {
        return String::new();
    }
    // SAFETY: not null; the caller promises the rest.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}

/// # Safety
/// The symbol is a `T`.
unsafe fn symbol<T: Copy>(library: &unix::Library, name: &[u8]) -> Result<T, String> {
    // SAFETY: as the caller promises.
    unsafe { library.get::<T>(name) }.map(|symbol| *symbol).map_err(|error| error.to_string())
}

/// Whether a function constant may switch it off.
fn is_optional(semantic: i32) -> bool {
    (abi::SEM_OPTIONAL_BUFFER..abi::SEM_THREADGROUP).contains(&semantic)
        || (abi::SEM_OPTIONAL_TEXTURE..abi::SEM_SAMPLER).contains(&semantic)
        || semantic >= abi::SEM_OPTIONAL_SAMPLER
}

fn kind_of(semantic: i32) -> ArgumentKind {
    match semantic {
        s if s >= abi::SEM_OPTIONAL_SAMPLER => ArgumentKind::Sampler((s - abi::SEM_OPTIONAL_SAMPLER) as u32),
        s if s >= abi::SEM_SAMPLER => ArgumentKind::Sampler((s - abi::SEM_SAMPLER) as u32),
        s if s >= abi::SEM_OPTIONAL_TEXTURE => ArgumentKind::Texture((s - abi::SEM_OPTIONAL_TEXTURE) as u32),
        s if s >= abi::SEM_TEXTURE => ArgumentKind::Texture((s - abi::SEM_TEXTURE) as u32),
        s if s >= abi::SEM_THREADGROUP => ArgumentKind::Threadgroup((s - abi::SEM_THREADGROUP) as u32),
        s if s >= abi::SEM_OPTIONAL_BUFFER => ArgumentKind::Buffer((s - abi::SEM_OPTIONAL_BUFFER) as u32),
        s if s >= abi::SEM_BUFFER => ArgumentKind::Buffer((s - abi::SEM_BUFFER) as u32),
        s => ArgumentKind::BuiltIn(BuiltIn::ALL[(s - 1).clamp(0, 16) as usize].0),
    }
}

/// The span of the loaded object that holds `address`.
#[cfg(not(target_os = "macos"))]
fn span_of(address: usize) -> Span {
    struct Search {
        address: usize,
        found: Span,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> libc::c_int {
        // SAFETY: the loader passes a valid record; `data` is the `Search` below.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        // SAFETY: the record says how many headers there are.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum as usize) };
        let at = |h: &libc::Elf64_Phdr| {
            let start = info.dlpi_addr as usize + h.p_vaddr as usize;
            start..start + h.p_memsz as usize
        };
        let segments: Vec<_> = headers.iter().filter(|h| h.p_type == libc::PT_LOAD).map(at).collect();
        if !segments.iter().any(|s| s.contains(&search.address)) {
            return 0;
        }
        let tls = headers.iter().find(|h| h.p_type == libc::PT_TLS).map_or(0, |h| h.p_memsz as usize);
        let start = info.dlpi_tls_data as usize;
        search.found = Span {
            base: info.dlpi_addr as usize,
            segments,
            tls: start..start + if start == 0 { 0 } else { tls },
            tls_len: tls,
        };
        1
    }
    let mut search = Search { address, found: Span::default() };
    // SAFETY: `visit` has the type the loader wants and `search` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    search.found
}

/// The span of the loaded object that holds `address`. Thread-local variables lie outside of it, where the system
/// puts them.
#[cfg(target_os = "macos")]
fn span_of(address: usize) -> Span {
    /// More than the function constants of any library have.
    const TLS: usize = 4096;
    /// `LC_SEGMENT_64`.
    const SEGMENT: u32 = 0x19;
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked for, and `info` has room for the answer.
    let known = unsafe { libc::dladdr(address as *const c_void, info.as_mut_ptr()) } != 0;
    if !known {
        return Span::default();
    }
    // SAFETY: zeroed is a valid value, and `dladdr` has filled it.
    let base = unsafe { info.assume_init() }.dli_fbase as usize;
    let mut segments = Vec::new();
    // The words of a `mach_header_64` (`ncmds` is the fifth) and of a `segment_command_64` (from its ninth word on:
    // `vmaddr`, `vmsize`), as the loader has them in memory.
    // SAFETY: a loaded object begins with its header, and its load commands follow, each with its size.
    unsafe {
        let count = *((base + 16) as *const u32);
        let mut at = base + 32;
        for _ in 0..count {
            let (command, size) = (*(at as *const u32), *((at + 4) as *const u32));
            if command == SEGMENT {
                let (start, len) = (*((at + 24) as *const u64), *((at + 32) as *const u64));
                // Linked at 0, so that addresses in the file are offsets from the base.
                let start = base + start as usize;
                segments.push(start..start + len as usize);
            }
            at += size as usize;
        }
    }
    Span { base, segments, tls: 0..0, tls_len: TLS }
}
