//! Products by NVIDIA's cuBLASLt, where it is installed: loaded when a GPU is opened, never needed.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fmt, ptr};

use libloading::Library;
use metallic_core::DType;

use super::{Address, Context, Handle, Memory, Status, Stream};
use crate::error::GpuError;
use crate::kernels::Gemm;
use crate::lock;

functions! {
    version = "cublasLtGetVersion"() -> usize;
    create = "cublasLtCreate"(*mut Handle);
    destroy = "cublasLtDestroy"(Handle);
    product = "cublasLtMatmulDescCreate"(*mut Handle, c_int, c_int);
    set_product = "cublasLtMatmulDescSetAttribute"(Handle, c_int, *const c_void, usize);
    destroy_product = "cublasLtMatmulDescDestroy"(Handle);
    layout = "cublasLtMatrixLayoutCreate"(*mut Handle, c_int, u64, u64, i64);
    destroy_layout = "cublasLtMatrixLayoutDestroy"(Handle);
    preference = "cublasLtMatmulPreferenceCreate"(*mut Handle);
    set_preference = "cublasLtMatmulPreferenceSetAttribute"(Handle, c_int, *const c_void, usize);
    destroy_preference = "cublasLtMatmulPreferenceDestroy"(Handle);
    choose = "cublasLtMatmulAlgoGetHeuristic"(Handle, Handle, Handle, Handle, Handle, Handle, Handle, c_int, *mut Found, *mut c_int);
    multiply = "cublasLtMatmul"(Handle, Handle, *const f32, Address, Handle, Address, Handle, *const f32, Address, Handle, Address, Handle, *const Found, Address, usize, Handle);
}

/// Numbers of cublasLt.h.
const SUMS_OF_FLOATS: c_int = 68;
const FLOATS: c_int = 0;
const HALFS: c_int = 2;
const BFLOATS: c_int = 14;
const LEFT_TURNED: c_int = 3;
static TURNED: c_int = 1;
const MOST_WORKSPACE: c_int = 1;
/// The least alignment of the four matrices: these four settings.
const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
static ALIGNMENT: u32 = 16;

/// Bytes that products may use beside their matrices.
static WORKSPACE: usize = 32 << 20;
/// Products that are known how to make at most; steps of every length have some of their own.
const MOST_KNOWN: usize = 1024;

/// How a product is made, as the library has chosen: an algorithm, then what it says of it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
struct Found {
    algorithm: [u64; 8],
    workspace: usize,
    state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

/// The names it may have, the newest first; as they are, and where the toolkit puts it.
fn names() -> Vec<PathBuf> {
    const VERSIONS: [&str; 3] = ["13", "12", "11"];
    let (before, after) = if cfg!(windows) { ("cublasLt64_", ".dll") } else { ("libcublasLt.so.", "") };
    let name = |version: &str| format!("{before}{version}{after}");
    let toolkits = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(std::env::var_os).map(PathBuf::from);
    let part = if cfg!(windows) { "bin" } else { "lib64" };
    let folders = toolkits.chain([PathBuf::from("/usr/local/cuda")]).map(|toolkit| toolkit.join(part));
    let folders: Vec<PathBuf> = [PathBuf::new()].into_iter().chain(folders).collect();
    let all = VERSIONS.iter().flat_map(|version| folders.iter().map(|folder| folder.join(name(version))));
    all.collect()
}

/// The library, and what makes its calls.
pub(in super::super) struct Blas {
    functions: Functions,
    handle: Handle,
    workspace: Memory,
    known: Mutex<HashMap<Gemm, Arc<Known>>>,
    context: Arc<Context>,
}

// SAFETY: a handle of the library may be used by any thread, and by several.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

impl fmt::Debug for Blas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blas").finish_non_exhaustive()
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        lock(&self.known).clear();
        self.context.functions();
        // SAFETY: it was made once.
        unsafe { (self.functions.destroy)(self.handle) };
    }
}

/// The functions of a library, which stays loaded until the process ends: what it has started may outlive every device, and to
/// load half a gigabyte again takes time.
fn load(name: &Path) -> Result<Functions, libloading::Error> {
    // SAFETY: it is NVIDIA's library of products; its initialisers are what every program that multiplies there runs.
    let library = unsafe { Library::new(name) }?;
    let functions = Functions::find(&library)?;
    std::mem::forget(library);
    Ok(functions)
}

impl Blas {
    /// Loads and starts the newest one that starts.
    pub(in super::super) fn new(context: &Arc<Context>) -> Result<Blas, GpuError> {
        let workspace = Memory::new(context, WORKSPACE)?;
        let mut first = None;
        for name in names() {
            match load(&name) {
                Ok(functions) => match Blas::start(&functions, context) {
                    Ok(handle) => {
                        let (known, context) = (Mutex::default(), context.clone());
                        return Ok(Blas { functions, handle, workspace, known, context });
                    }
                    Err(error) => first = Some(first.unwrap_or(error)),
                },
                Err(error) => first = Some(first.unwrap_or_else(|| GpuError::Missing(error.to_string()))),
            }
        }
        Err(first.unwrap_or_else(|| GpuError::Missing("cuBLASLt".to_owned())))
    }

    fn start(functions: &Functions, context: &Context) -> Result<Handle, GpuError> {
        let mut handle = ptr::null_mut();
        context.functions();
        // SAFETY: the context is current; `handle` receives the library's state.
        let status = unsafe { (functions.create)(&raw mut handle) };
        Blas::check(status, "start of cuBLASLt").map(|()| handle)
    }

    /// Which one it is.
    pub(in super::super) fn version(&self) -> String {
        // SAFETY: it takes nothing.
        let version = unsafe { (self.functions.version)() };
        format!("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100)
    }

    /// Whether it can make a product.
    pub(in super::super) fn makes(&self, product: &Gemm) -> bool {
        self.known(product).is_ok()
    }

    fn check(status: Status, what: &str) -> Result<(), GpuError> {
        match status {
            0 => Ok(()),
            _ => Err(GpuError::execution(what, format!("cuBLASLt says {status}"))),
        }
    }

    /// Hands a product over: `x`, `w` and the result lie at these addresses, which the caller keeps until it is done.
    pub(in super::super) fn product(
        &self,
        stream: &Stream,
        product: &Gemm,
        [x, w, out]: [Address; 3],
    ) -> Result<(), GpuError> {
        let known = self.known(product)?;
        let (alpha, beta) = (1.0, if product.adds { 1.0 } else { 0.0 });
        self.context.functions();
        // SAFETY: the context is current, the descriptions are those of this product, and the matrices are as long as it says, which
        // the caller has checked. The library reads columns first, for which `w` comes first, turned.
        let status = unsafe {
            (self.functions.multiply)(
                self.handle,
                known.product.handle,
                &raw const alpha,
                w,
                known.w.handle,
                x,
                known.x.handle,
                &raw const beta,
                out,
                known.out.handle,
                out,
                known.out.handle,
                &raw const known.found,
                self.workspace.at(0),
                WORKSPACE,
                stream.handle(),
            )
        };
        Blas::check(status, "a product")
    }

    fn known(&self, product: &Gemm) -> Result<Arc<Known>, GpuError> {
        let mut all = lock(&self.known);
        if let Some(known) = all.get(product) {
            return Ok(known.clone());
        }
        let known = Arc::new(self.describe(product)?);
        if all.len() >= MOST_KNOWN {
            all.clear();
        }
        all.insert(*product, known.clone());
        Ok(known)
    }

    /// Describes a product to the library, and asks it how it would make it.
    fn describe(&self, product: &Gemm) -> Result<Known, GpuError> {
        self.context.functions();
        let f = &self.functions;
        let described = Described::new(f.destroy_product, "a product", |handle| {
            // SAFETY: `handle` receives the description.
            unsafe { (f.product)(handle, SUMS_OF_FLOATS, FLOATS) }
        })?;
        let turned = (&raw const TURNED).cast();
        // SAFETY: the setting is a number of this size.
        let status = unsafe { (f.set_product)(described.handle, LEFT_TURNED, turned, size_of::<c_int>()) };
        Blas::check(status, "a product")?;
        let layout = |dtype: c_int, rows: u32, columns: u32, pitch: u32| {
            Described::new(f.destroy_layout, "a matrix", |handle| {
                // SAFETY: `handle` receives the description.
                unsafe { (f.layout)(handle, dtype, rows.into(), columns.into(), pitch.into()) }
            })
        };
        let Gemm { m, n, k, pitch, .. } = *product;
        let dtype = match (product.dtype, product.batches) {
            (DType::BF16, 1) => BFLOATS,
            (DType::F16, 1) => HALFS,
            (other, batches) => {
                let reason = format!("{batches} products of {other}: one of halfs or bfloats is needed");
                return Err(GpuError::unsupported("cuBLASLt", reason));
            }
        };
        let (w, x, out) = (layout(dtype, k, n, k)?, layout(dtype, k, m, k)?, layout(FLOATS, n, m, pitch)?);
        let wish = Described::new(f.destroy_preference, "a preference", |handle| {
            // SAFETY: `handle` receives the preference.
            unsafe { (f.preference)(handle) }
        })?;
        // SAFETY: the setting is a number of this size.
        let status = unsafe {
            let most = (&raw const WORKSPACE).cast();
            (f.set_preference)(wish.handle, MOST_WORKSPACE, most, size_of::<usize>())
        };
        Blas::check(status, "a preference")?;
        for setting in ALIGNMENTS {
            // SAFETY: the setting is a number of this size.
            let status = unsafe {
                (f.set_preference)(wish.handle, setting, (&raw const ALIGNMENT).cast(), size_of::<u32>())
            };
            Blas::check(status, "a preference")?;
        }
        let (mut found, mut count) = (Found::default(), 0);
        // SAFETY: all descriptions are there; one answer fits.
        let status = unsafe {
            (f.choose)(
                self.handle,
                described.handle,
                w.handle,
                x.handle,
                out.handle,
                out.handle,
                wish.handle,
                1,
                &raw mut found,
                &raw mut count,
            )
        };
        Blas::check(status, "a product")?;
        if count == 0 {
            return Err(GpuError::execution("a product", format!("cuBLASLt cannot make {product:?}")));
        }
        Ok(Known { product: described, w, x, out, found })
    }
}

/// A product, described to the library.
struct Known {
    product: Described,
    w: Described,
    x: Described,
    out: Described,
    found: Found,
}

/// A description of the library's.
struct Described {
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
}

// SAFETY: descriptions are plain data, which only calls that are given them read.
unsafe impl Send for Described {}
// SAFETY: as above.
unsafe impl Sync for Described {}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: it was made once.
        unsafe { (self.destroy)(self.handle) };
    }
}

impl Described {
    fn new(
        destroy: unsafe extern "C" fn(Handle) -> Status,
        what: &str,
        make: impl FnOnce(*mut Handle) -> Status,
    ) -> Result<Described, GpuError> {
        let mut handle = ptr::null_mut();
        Blas::check(make(&raw mut handle), what)?;
        Ok(Described { handle, destroy })
    }
}
