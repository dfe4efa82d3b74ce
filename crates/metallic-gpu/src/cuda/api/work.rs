//! What a GPU is given to do: streams, recordings, events and kernels.

use std::ffi::{CString, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use super::{
    Address, BEGINS_EARLY, Context, EXTERNAL, Handle, LaunchConfig, Memory, NON_BLOCKING, NOT_READY,
    THREAD_LOCAL,
};
use crate::error::GpuError;

/// Work in order.
#[derive(Debug)]
pub(in super::super) struct Stream {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: see `Context`.
unsafe impl Send for Stream {}
// SAFETY: see `Context`.
unsafe impl Sync for Stream {}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was made once; the driver lets it finish its work.
        unsafe { (self.context.functions().destroy_stream)(self.handle) };
    }
}

/// Threadgroups and threads of a launch.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Grid {
    pub(in super::super) groups: [u32; 3],
    pub(in super::super) threads: [u32; 3],
    /// Bytes of threadgroup memory.
    pub(in super::super) shared: u32,
}

/// What a launch brings: its params, and where its buffers lie.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Arguments<'a> {
    pub(in super::super) params: &'a [u8],
    pub(in super::super) addresses: &'a [Address],
}

/// Threadgroup arguments an entry has, see [`softmetal`'s](https://docs.rs/softmetal) PTX.
const OFFSETS: usize = 8;

impl Stream {
    pub(in super::super) fn new(context: &Arc<Context>) -> Result<Stream, GpuError> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` receives the stream.
        let status = unsafe { (context.functions().stream)(&raw mut handle, NON_BLOCKING) };
        context.check(status, "a stream")?;
        Ok(Stream { context: context.clone(), handle })
    }

    pub(super) fn handle(&self) -> Handle {
        self.handle
    }

    /// Copies bytes of the host, which are read before this returns: the driver takes pages that are not locked into its own.
    pub(in super::super) fn upload(&self, to: &Memory, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        let to = to.inside(offset, bytes.len())?;
        // SAFETY: both ranges are there.
        let status =
            unsafe { (self.context.functions().upload)(to, bytes.as_ptr().cast(), bytes.len(), self.handle) };
        self.context.check(status, "a copy to the GPU")
    }

    /// Copies bytes to the host, and waits for them.
    pub(in super::super) fn download(
        &self,
        from: &Memory,
        offset: usize,
        out: &mut [u8],
    ) -> Result<(), GpuError> {
        let from = from.inside(offset, out.len())?;
        // SAFETY: both ranges are there until the wait below is over.
        let status = unsafe {
            (self.context.functions().download)(out.as_mut_ptr().cast(), from, out.len(), self.handle)
        };
        let waited = self.wait();
        self.context.check(status, "a copy from the GPU").and(waited)
    }

    /// Waits for all of its work.
    pub(in super::super) fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: the stream is there.
        let status = unsafe { (self.context.functions().synchronize)(self.handle) };
        self.context.check(status, "work of the GPU")
    }

    pub(in super::super) fn copy(
        &self,
        (from, start): (&Memory, usize),
        (to, offset): (&Memory, usize),
        len: usize,
    ) -> Result<(), GpuError> {
        let (from, to) = (from.inside(start, len)?, to.inside(offset, len)?);
        // SAFETY: both ranges are there.
        let status = unsafe { (self.context.functions().copy)(to, from, len, self.handle) };
        self.context.check(status, "a copy")
    }

    pub(in super::super) fn fill(
        &self,
        to: &Memory,
        offset: usize,
        len: usize,
        value: u8,
    ) -> Result<(), GpuError> {
        let to = to.inside(offset, len)?;
        // SAFETY: the range is there.
        let status = unsafe { (self.context.functions().fill)(to, value, len, self.handle) };
        self.context.check(status, "a fill")
    }

    /// Launches a kernel with these params on buffers at these addresses. The caller keeps the buffers until the work is done.
    /// `early`: it may begin before the kernel before it is done, for which it waits itself.
    pub(in super::super) fn launch(
        &self,
        kernel: &Kernel,
        grid: Grid,
        Arguments { params, addresses }: Arguments<'_>,
        early: bool,
    ) -> Result<(), GpuError> {
        let (found, takes) = (Takes { params: params.len(), addresses: addresses.len() }, kernel.takes);
        if found != takes {
            let reason = format!("it is given {found:?}, its entry has {takes:?}");
            return Err(GpuError::execution("a launch", reason));
        }
        let offsets = [0_u32; OFFSETS];
        // The driver copies what they point to before the call returns, and writes nothing.
        let own = (takes.params > 0).then_some(params.as_ptr().cast::<c_void>());
        let others = addresses.iter().map(|address| ptr::from_ref(address).cast());
        let arguments = own.into_iter().chain(others).chain([offsets.as_ptr().cast()]);
        let mut arguments: Vec<*mut c_void> = arguments.map(<*const c_void>::cast_mut).collect();
        if early {
            let attribute = BEGINS_EARLY;
            let (groups, threads, shared) = (grid.groups, grid.threads, grid.shared);
            let config = LaunchConfig {
                groups,
                threads,
                shared,
                stream: self.handle,
                attributes: &raw const attribute,
                count: 1,
            };
            // SAFETY: as below; the attribute is there during the call.
            let status = unsafe {
                (self.context.functions().launch_with)(
                    &raw const config,
                    kernel.handle,
                    arguments.as_mut_ptr(),
                    ptr::null_mut(),
                )
            };
            return self.context.check(status, "a launch");
        }
        let ([x, y, z], [tx, ty, tz]) = (grid.groups, grid.threads);
        // SAFETY: the entry takes so many bytes of params, so many addresses and the offsets, as its translation says.
        let status = unsafe {
            (self.context.functions().launch)(
                kernel.handle,
                x,
                y,
                z,
                tx,
                ty,
                tz,
                grid.shared,
                self.handle,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.context.check(status, "a launch")
    }

    /// Records what `work` hands over instead of running it.
    pub(in super::super) fn record(
        &self,
        work: impl FnOnce() -> Result<(), GpuError>,
    ) -> Result<Replay, GpuError> {
        let functions = self.context.functions();
        // SAFETY: the stream is there, and nobody else uses it meanwhile: the caller holds its lock.
        let status = unsafe { (functions.begin_capture)(self.handle, THREAD_LOCAL) };
        self.context.check(status, "a recording")?;
        let done = work();
        let (mut graph, mut handle) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a capture is under way; `graph` receives what it was.
        let status = unsafe { (self.context.functions().end_capture)(self.handle, &raw mut graph) };
        let mut ended = done.and(self.context.check(status, "a recording"));
        if ended.is_ok() {
            // SAFETY: the graph is whole; `handle` receives what can be launched.
            let status = unsafe { (functions.instantiate)(&raw mut handle, graph, 0) };
            ended = self.context.check(status, "a recording");
        }
        if !graph.is_null() {
            // SAFETY: it was made once, and what was made of it stands alone.
            unsafe { (functions.destroy_graph)(graph) };
        }
        ended.map(|()| Replay { context: self.context.clone(), handle })
    }

    /// Runs what was recorded.
    pub(in super::super) fn replay(&self, replay: &Replay) -> Result<(), GpuError> {
        // SAFETY: both are there.
        let status = unsafe { (self.context.functions().replay)(replay.handle, self.handle) };
        self.context.check(status, "a launch")
    }
}

/// Work that was recorded.
#[derive(Debug)]
pub(in super::super) struct Replay {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: see `Context`.
unsafe impl Send for Replay {}
// SAFETY: see `Context`.
unsafe impl Sync for Replay {}

impl Drop for Replay {
    fn drop(&mut self) {
        // SAFETY: it was made once.
        unsafe { (self.context.functions().destroy_replay)(self.handle) };
    }
}

/// A moment in a stream.
#[derive(Debug)]
pub(in super::super) struct Event {
    context: Arc<Context>,
    handle: Handle,
}

// SAFETY: see `Context`.
unsafe impl Send for Event {}
// SAFETY: see `Context`.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: it was made once.
        unsafe { (self.context.functions().destroy_event)(self.handle) };
    }
}

impl Event {
    /// A moment that is yet to be told.
    pub(in super::super) fn new(context: &Arc<Context>) -> Result<Event, GpuError> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` receives the event.
        let status = unsafe { (context.functions().event)(&raw mut handle, 0) };
        context.check(status, "an event")?;
        Ok(Event { context: context.clone(), handle })
    }

    /// The moment when all that the stream has is done.
    pub(in super::super) fn after(stream: &Stream) -> Result<Event, GpuError> {
        let event = Event::new(&stream.context)?;
        event.record(stream)?;
        Ok(event)
    }

    /// From now on it is the moment when all that the stream has is done.
    pub(super) fn record(&self, stream: &Stream) -> Result<(), GpuError> {
        // SAFETY: both are there.
        let status = unsafe { (self.context.functions().record)(self.handle, stream.handle) };
        self.context.check(status, "an event")
    }

    /// Waits for it.
    pub(super) fn wait(&self) -> Result<(), GpuError> {
        // SAFETY: it was recorded.
        let status = unsafe { (self.context.functions().wait_for)(self.handle) };
        self.context.check(status, "work of the GPU")
    }

    /// In a recording: the moment, of each replay, when what was recorded so far is done. Whoever replays it keeps the event.
    pub(in super::super) fn mark(&self, stream: &Stream) -> Result<(), GpuError> {
        // SAFETY: both are there, and a capture is under way, which alone takes the flag.
        let status = unsafe { (self.context.functions().record_with)(self.handle, stream.handle, EXTERNAL) };
        self.context.check(status, "an event")
    }

    /// Whether it has come.
    pub(in super::super) fn is_past(&self) -> Result<bool, GpuError> {
        // SAFETY: it was recorded.
        match unsafe { (self.context.functions().query)(self.handle) } {
            NOT_READY => Ok(false),
            status => self.context.check(status, "work of the GPU").map(|()| true),
        }
    }

    /// Seconds since another event, both of which have come.
    pub(in super::super) fn seconds_since(&self, start: &Event) -> Result<f64, GpuError> {
        let mut ms = 0.0;
        // SAFETY: `ms` receives a number.
        let status = unsafe { (self.context.functions().elapsed)(&raw mut ms, start.handle, self.handle) };
        self.context.check(status, "work of the GPU")?;
        Ok(f64::from(ms) / 1e3)
    }
}

/// What an entry takes before its offsets: bytes of params by value, addresses of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Takes {
    pub(in super::super) params: usize,
    pub(in super::super) addresses: usize,
}

/// A kernel, loaded.
#[derive(Debug)]
pub(in super::super) struct Kernel {
    takes: Takes,
    context: Arc<Context>,
    module: Handle,
    handle: Handle,
}

// SAFETY: see `Context`.
unsafe impl Send for Kernel {}
// SAFETY: see `Context`.
unsafe impl Sync for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: it was loaded once.
        unsafe { (self.context.functions().unload_module)(self.module) };
    }
}

impl Kernel {
    /// Compiles PTX for the GPU and finds an entry of it.
    pub(in super::super) fn new(
        context: &Arc<Context>,
        (text, entry): (&CString, &CString),
        takes: Takes,
    ) -> Result<Kernel, GpuError> {
        let mut module = ptr::null_mut();
        // SAFETY: the text ends with a zero; `module` receives what it becomes.
        let status = unsafe { (context.functions().load_module)(&raw mut module, text.as_ptr().cast()) };
        context.check(status, "loading of a kernel")?;
        let mut kernel = Kernel { takes, context: context.clone(), module, handle: ptr::null_mut() };
        // SAFETY: the name ends with a zero; `handle` receives the entry.
        let status =
            unsafe { (context.functions().function)(&raw mut kernel.handle, module, entry.as_ptr()) };
        context.check(status, "loading of a kernel")?;
        Ok(kernel)
    }

    /// What launches bring.
    pub(in super::super) fn takes(&self) -> Takes {
        self.takes
    }

    fn attribute(&self, attribute: c_int) -> Result<usize, GpuError> {
        let mut value = 0;
        // SAFETY: `value` receives a number.
        let status =
            unsafe { (self.context.functions().function_attribute)(&raw mut value, attribute, self.handle) };
        self.context.check(status, "a question to a kernel")?;
        Ok(usize::try_from(value).unwrap_or(0))
    }

    /// Lets launches bring so many bytes of threadgroup memory.
    pub(in super::super) fn allow_shared(&self, bytes: usize) -> Result<(), GpuError> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        // SAFETY: it changes a number of this entry.
        let status = unsafe { (self.context.functions().set_function_attribute)(self.handle, 8, bytes) };
        self.context.check(status, "a setting of a kernel")
    }

    /// Threads of a threadgroup at most.
    pub(in super::super) fn max_threads(&self) -> Result<usize, GpuError> {
        self.attribute(0)
    }

    /// Bytes of threadgroup memory that it declares itself.
    pub(in super::super) fn own_shared(&self) -> Result<usize, GpuError> {
        self.attribute(1)
    }
}
