//! The part of NVIDIA's driver library that this crate calls, loaded when it is first asked for: a program runs on machines
//! that have no such GPU. Some forty functions are declared here by hand, because all bindings there are would bring a
//! hundred times as many.
//!
//! Everything outside this file is safe. A context is made current before each call, so any thread may call; memory, modules
//! and streams hold their context; what a launch reaches for is kept alive by whoever launches until an event says that it is
//! done. That kernels keep to what they are given is what softmetal checks them for.
#![allow(unsafe_code)]

mod codes;
mod pinned;
mod work;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::ptr;
use std::sync::{Arc, OnceLock};

use libloading::Library;

pub(super) use self::blas::Blas;
use self::codes::{Meaning, meaning};
pub(super) use self::pinned::Slot;
pub(super) use self::work::{Arguments, Event, Grid, Kernel, Replay, Stream, Takes};
use crate::error::GpuError;

type Status = c_int;
type Handle = *mut c_void;
/// An address in the memory of a device.
pub(super) type Address = u64;

/// What a function of these libraries returns where nothing is said.
macro_rules! returned {
    () => {
        Status
    };
    ($result:ty) => {
        $result
    };
}

/// Declares functions of a library, to be found when it was loaded.
macro_rules! functions {
    ($($name:ident = $symbol:literal($($arg:ty),*) $(-> $result:ty)?;)*) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> returned!($($result)?),)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Functions, libloading::Error> {
                Ok(Functions {$(
                    // SAFETY: the declarations are those of the library's own header; the library stays as long as they do.
                    $name: unsafe { *library.get(concat!($symbol, "\0").as_bytes())? },
                )*})
            }
        }
    };
}

mod blas;

functions! {
    init = "cuInit"(c_uint);
    version = "cuDriverGetVersion"(*mut c_int);
    error_text = "cuGetErrorString"(Status, *mut *const c_char);
    device_count = "cuDeviceGetCount"(*mut c_int);
    device = "cuDeviceGet"(*mut c_int, c_int);
    device_name = "cuDeviceGetName"(*mut c_char, c_int, c_int);
    device_memory = "cuDeviceTotalMem_v2"(*mut usize, c_int);
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int);
    retain_context = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int);
    release_context = "cuDevicePrimaryCtxRelease_v2"(c_int);
    set_current = "cuCtxSetCurrent"(Handle);
    memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2"(*mut Address, usize);
    free = "cuMemFree_v2"(Address);
    allocate_pinned = "cuMemHostAlloc"(*mut *mut c_void, usize, c_uint);
    free_pinned = "cuMemFreeHost"(*mut c_void);
    upload = "cuMemcpyHtoDAsync_v2"(Address, *const c_void, usize, Handle);
    download = "cuMemcpyDtoHAsync_v2"(*mut c_void, Address, usize, Handle);
    copy = "cuMemcpyDtoDAsync_v2"(Address, Address, usize, Handle);
    fill = "cuMemsetD8Async"(Address, u8, usize, Handle);
    stream = "cuStreamCreate"(*mut Handle, c_uint);
    destroy_stream = "cuStreamDestroy_v2"(Handle);
    synchronize = "cuStreamSynchronize"(Handle);
    load_module = "cuModuleLoadData"(*mut Handle, *const c_void);
    unload_module = "cuModuleUnload"(Handle);
    function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char);
    function_attribute = "cuFuncGetAttribute"(*mut c_int, c_int, Handle);
    set_function_attribute = "cuFuncSetAttribute"(Handle, c_int, c_int);
    launch = "cuLaunchKernel"(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
    launch_with = "cuLaunchKernelEx"(*const LaunchConfig, Handle, *mut *mut c_void, *mut *mut c_void);
    event = "cuEventCreate"(*mut Handle, c_uint);
    destroy_event = "cuEventDestroy_v2"(Handle);
    record = "cuEventRecord"(Handle, Handle);
    record_with = "cuEventRecordWithFlags"(Handle, Handle, c_uint);
    query = "cuEventQuery"(Handle);
    wait_for = "cuEventSynchronize"(Handle);
    elapsed = "cuEventElapsedTime"(*mut f32, Handle, Handle);
    begin_capture = "cuStreamBeginCapture_v2"(Handle, c_int);
    end_capture = "cuStreamEndCapture"(Handle, *mut Handle);
    instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64);
    destroy_graph = "cuGraphDestroy"(Handle);
    destroy_replay = "cuGraphExecDestroy"(Handle);
    replay = "cuGraphLaunch"(Handle, Handle);
}

/// How a kernel is launched, as `cuda.h` has it.
#[repr(C)]
pub(super) struct LaunchConfig {
    groups: [c_uint; 3],
    threads: [c_uint; 3],
    shared: c_uint,
    stream: Handle,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// One thing more about a launch: its number in `cuda.h`, and a value.
#[repr(C, align(8))]
pub(super) struct LaunchAttribute {
    id: c_uint,
    padding: c_uint,
    value: [u32; 16],
}

/// The kernel may begin before the one before it in its stream is done; it waits for it itself.
const BEGINS_EARLY: LaunchAttribute =
    LaunchAttribute { id: 6, padding: 0, value: [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] };

const NOT_READY: Status = 600;
/// An event of a recording that others may ask for.
const EXTERNAL: c_uint = 1;
/// A stream that does not wait for the one everybody shares.
const NON_BLOCKING: c_uint = 1;
/// A capture that only its own thread takes part in.
const THREAD_LOCAL: c_int = 1;

/// What [`Context::attribute`] is asked for, by its number in `cuda.h`.
#[derive(Clone, Copy)]
pub(super) enum Attribute {
    MaxThreads = 1,
    WarpSize = 10,
    Multiprocessors = 16,
    MostShared = 97,
    Major = 75,
    Minor = 76,
}

/// NVIDIA's driver library.
pub(super) struct Driver {
    functions: Functions,
    _library: Library,
}

impl Driver {
    /// Loads and starts it.
    pub(super) fn load() -> Result<Arc<Driver>, GpuError> {
        let name = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };
        let missing = |e: &dyn fmt::Display| {
            GpuError::Missing(format!("the driver of NVIDIA GPUs cannot be loaded: {e}"))
        };
        // SAFETY: it is the system's driver library; its initialisers are what every CUDA program runs.
        let library = unsafe { Library::new(name) }.map_err(|e| missing(&e))?;
        let functions = Functions::find(&library).map_err(|e| missing(&e))?;
        let driver = Arc::new(Driver { functions, _library: library });
        // SAFETY: no flags are defined.
        let status = unsafe { (driver.functions.init)(0) };
        driver.check(status, "start").map_err(|e| missing(&e))?;
        Ok(driver)
    }

    fn check(&self, status: Status, what: &'static str) -> Result<(), GpuError> {
        Err(match meaning(status) {
            Meaning::Done => return Ok(()),
            Meaning::NoMemory => GpuError::no_room(what, 0, None),
            Meaning::Lost => GpuError::Lost { reason: format!("{what} failed: {}", self.text(status)) },
            Meaning::Failed => GpuError::execution(what, self.text(status)),
        })
    }

    fn text(&self, status: Status) -> String {
        let mut text = ptr::null();
        // SAFETY: `text` receives a static string, or nothing.
        let found = unsafe { (self.functions.error_text)(status, &raw mut text) };
        if found != 0 || text.is_null() {
            return format!("the driver says {status}");
        }
        // SAFETY: it ends with a zero and lives as long as the library.
        let text = unsafe { CStr::from_ptr(text) };
        format!("the driver says {status}: {}", text.to_string_lossy())
    }

    /// The CUDA it is made for, as 1000 times the first number and 10 times the second.
    pub(super) fn version(&self) -> Result<u32, GpuError> {
        let mut version = 0;
        // SAFETY: `version` receives a number.
        let status = unsafe { (self.functions.version)(&raw mut version) };
        self.check(status, "version of the driver")?;
        Ok(u32::try_from(version).unwrap_or(0))
    }

    /// GPUs there are.
    pub(super) fn count(&self) -> Result<usize, GpuError> {
        let mut count = 0;
        // SAFETY: `count` receives a number.
        let status = unsafe { (self.functions.device_count)(&raw mut count) };
        self.check(status, "count of GPUs")?;
        Ok(usize::try_from(count).unwrap_or(0))
    }
}

/// A GPU and the state this process has on it.
pub(super) struct Context {
    driver: Arc<Driver>,
    device: c_int,
    handle: Handle,
    /// What the GPU was lost by.
    lost: OnceLock<GpuError>,
}

// SAFETY: the driver's calls may come from any thread; each is made with the context current on its own.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.device).finish_non_exhaustive()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was retained once.
        unsafe { (self.driver.functions.release_context)(self.device) };
    }
}

impl Context {
    pub(super) fn new(driver: &Arc<Driver>, index: usize) -> Result<Arc<Context>, GpuError> {
        let (mut device, mut handle) = (0, ptr::null_mut());
        let index = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: `device` and `handle` receive what is asked for.
        let status = unsafe { (driver.functions.device)(&raw mut device, index) };
        driver.check(status, "choice of a GPU")?;
        // SAFETY: as above.
        let status = unsafe { (driver.functions.retain_context)(&raw mut handle, device) };
        driver.check(status, "opening of a GPU")?;
        Ok(Arc::new(Context { driver: driver.clone(), device, handle, lost: OnceLock::new() }))
    }

    /// The functions, with this context current.
    fn functions(&self) -> &Functions {
        // SAFETY: the context is retained. What fails here fails in the call that follows.
        unsafe { (self.driver.functions.set_current)(self.handle) };
        &self.driver.functions
    }

    /// What a call has said. Of a GPU that is lost every call says the same, and what it was lost by is said first.
    fn check(&self, status: Status, what: &'static str) -> Result<(), GpuError> {
        self.driver.check(status, what).map_err(|error| match error {
            lost @ GpuError::Lost { .. } => self.lost.get_or_init(|| lost).clone(),
            GpuError::OutOfMemory { .. } => self.full(what, 0),
            other => other,
        })
    }

    /// There is no room for so many bytes; for 0 where the driver needs some for itself.
    fn full(&self, what: &'static str, needed: usize) -> GpuError {
        let (status, free) = self.ask_for_free();
        GpuError::OutOfMemory { what, needed, budget: None, free: (status == 0).then_some(free) }
    }

    /// Bytes that nobody has, and whether the driver has said so.
    fn ask_for_free(&self) -> (Status, u64) {
        let (mut free, mut all) = (0, 0);
        // SAFETY: both receive numbers.
        let status = unsafe { (self.functions().memory_info)(&raw mut free, &raw mut all) };
        (status, free as u64)
    }

    /// An error where the GPU was lost: the driver need not be asked again.
    pub(super) fn alive(&self) -> Result<(), GpuError> {
        self.lost.get().map_or(Ok(()), |lost| Err(lost.clone()))
    }

    pub(super) fn name(&self) -> String {
        let mut text = [0_u8; 256];
        // SAFETY: so many bytes may be written.
        unsafe { (self.functions().device_name)(text.as_mut_ptr().cast(), text.len() as c_int, self.device) };
        CStr::from_bytes_until_nul(&text)
            .map_or_else(|_| "NVIDIA GPU".to_owned(), |t| t.to_string_lossy().into_owned())
    }

    pub(super) fn attribute(&self, attribute: Attribute) -> Result<u32, GpuError> {
        let mut value = 0;
        // SAFETY: `value` receives a number.
        let status =
            unsafe { (self.functions().device_attribute)(&raw mut value, attribute as c_int, self.device) };
        self.check(status, "a question to the GPU")?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    /// Bytes of its memory.
    pub(super) fn memory(&self) -> Result<u64, GpuError> {
        let mut bytes = 0;
        // SAFETY: `bytes` receives a number.
        let status = unsafe { (self.functions().device_memory)(&raw mut bytes, self.device) };
        self.check(status, "a question to the GPU")?;
        Ok(bytes as u64)
    }

    /// Bytes of its memory that nobody has.
    pub(super) fn free_memory(&self) -> Result<u64, GpuError> {
        let (status, free) = self.ask_for_free();
        self.check(status, "a question to the GPU").map(|()| free)
    }
}

/// Memory of a GPU.
#[derive(Debug)]
pub(super) struct Memory {
    context: Arc<Context>,
    address: Address,
    len: usize,
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was allocated once, and whoever launches work on it keeps it until the work is done.
        unsafe { (self.context.functions().free)(self.address) };
    }
}

impl Memory {
    /// So many bytes, with whatever is in them.
    pub(super) fn new(context: &Arc<Context>, len: usize) -> Result<Memory, GpuError> {
        let mut address = 0;
        // SAFETY: `address` receives where they lie.
        let status = unsafe { (context.functions().allocate)(&raw mut address, len.max(1)) };
        match meaning(status) {
            Meaning::NoMemory => Err(context.full("buffers", len)),
            _ => context.check(status, "memory").map(|()| Memory { context: context.clone(), address, len }),
        }
    }

    /// Where a byte of it lies; past its end, where that is.
    pub(super) fn at(&self, offset: usize) -> Address {
        self.address + offset.min(self.len) as Address
    }

    fn inside(&self, offset: usize, len: usize) -> Result<Address, GpuError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.address + offset as Address),
            _ => {
                let end = offset.saturating_add(len);
                Err(GpuError::OutOfBounds { start: offset, end, len: self.len })
            }
        }
    }
}
