//! The runtime's side of the table in `msl_abi.h`: what kernels call while they run on a fiber.

use std::{
    ffi::{c_char, c_int, c_void},
    slice,
};

use super::{
    abi,
    image::text,
    log::Level,
    texel::{self, Use},
    thread::{Call, State},
    trap,
    worker::Worker,
};
use crate::check::{Checker, Event, Site, Verdict, Who};

/// Handed to every kernel library.
pub(crate) static TABLE: abi::Runtime = abi::Runtime {
    version: abi::VERSION,
    barrier,
    simdgroup_barrier,
    simd,
    lane,
    threadgroup_variable,
    fence,
    scope,
    collective,
    assertion,
    log,
    texture,
    texture_extent,
    access,
    fault,
};

extern "C" fn barrier(flags: c_int, file: *const c_char, line: c_int, _pc: *const c_void) {
    Worker::with(|w| w.wait(State::Barrier, flags, Call { file, line }));
}

extern "C" fn simdgroup_barrier(flags: c_int, file: *const c_char, line: c_int, _pc: *const c_void) {
    Worker::with(|w| w.wait(State::SimdBarrier, flags, Call { file, line }));
}

extern "C" fn simd(
    f: abi::SimdFn,
    input: *mut c_void,
    output: *mut c_void,
    file: *const c_char,
    line: c_int,
    _pc: *const c_void,
) {
    Worker::with(|w| w.collect(f, input, output, Call { file, line }));
}

extern "C" fn lane() -> u32 {
    Worker::with(Worker::lane).unwrap_or(0)
}

extern "C" fn threadgroup_variable(key: *const c_void, size: usize, align: usize) -> *mut c_void {
    trap::in_kernel(false);
    let zeroed = size >> 63 != 0;
    let size = size & (usize::MAX >> 1);
    let slot = Worker::with(|w| {
        w.need_stack(0);
        w.variable(key as usize, size, align, zeroed).unwrap_or_else(|| {
            w.report_threadgroup_memory(size);
            w.stop_thread()
        })
    });
    trap::in_kernel(true);
    slot.unwrap_or(0) as *mut c_void
}

extern "C" fn fence(flags: c_int, _order: c_int, scope: c_int) {
    trap::in_kernel(false);
    Worker::with(|w| w.check(|c, _| c.fence(flags, scope)));
    trap::in_kernel(true);
}

extern "C" fn scope(out: *mut abi::Scope) {
    let found = Worker::with(Worker::scope).unwrap_or_default();
    // SAFETY: the shim passes a record on the stack of the thread that calls.
    unsafe { *out = found };
}

extern "C" fn collective(simdgroups: u32, file: *const c_char, line: c_int, _pc: *const c_void) {
    let call = Call { file, line };
    Worker::with(|w| match simdgroups {
        0 => {}
        1 => w.wait(State::SimdBarrier, abi::MEM_UNTOUCHED, call),
        wanted => {
            trap::in_kernel(false);
            w.hold_to_scope(wanted, call);
            trap::in_kernel(true);
            w.wait(State::Barrier, abi::MEM_UNTOUCHED, call);
        }
    });
}

extern "C" fn assertion(what: *const c_char, file: *const c_char, line: c_int) {
    trap::in_kernel(false);
    Worker::with(|w| {
        w.need_room();
        // SAFETY: string literals of the library, which is never unloaded.
        let (what, file) = unsafe { (text(what), text(file)) };
        w.event(Event::Assertion { site: Site::new(file, line as u32), text: what }, w.who());
        w.stop_thread();
    });
    trap::in_kernel(true);
}

extern "C" fn log(level: c_int, format: *const c_char, values: *const abi::LogValue, count: u32) {
    trap::in_kernel(false);
    Worker::with(|w| {
        w.need_room();
        // SAFETY: a string literal of the library, and an array on the stack of the thread that calls, as long as it says.
        let (format, values) = unsafe { (text(format), slice::from_raw_parts(values, count as usize)) };
        w.log(Level::of(level), &format, values);
    });
    trap::in_kernel(true);
}

extern "C" fn texture(texel: *mut abi::Texel, pc: *const c_void) {
    trap::in_kernel(false);
    // SAFETY: the shim passes a record on the stack of the thread that calls, which nobody else knows.
    let texel = unsafe { &mut *texel };
    let wanted = Worker::with(|w| {
        w.need_room();
        Use::of(w, texel)
    });
    let Some(wanted) = wanted else { return trap::in_kernel(true) };
    if let Some(misuse) = wanted.misuse {
        judge(pc as usize, |c, who| {
            c.misuse(who, wanted.slot, misuse, texel.op == abi::TEXTURE_WRITE, pc as usize)
        });
    }
    let (places, bytes, written) = wanted.accesses();
    if Worker::with(|w| w.checked) == Some(true) {
        for place in places {
            access(place as *const c_void, bytes, if written { abi::ACCESS_WRITE } else { 0 }, pc);
        }
    }
    trap::in_kernel(false);
    texel.value = wanted.run(texel.value);
    trap::in_kernel(true);
}

extern "C" fn texture_extent(handle: u32, axis: u32) -> u32 {
    trap::in_kernel(false);
    let extent = Worker::with(|w| {
        w.need_room();
        texel::extent(w, handle, axis)
    });
    trap::in_kernel(true);
    extent.unwrap_or(0)
}

extern "C" fn access(address: *const c_void, size: usize, flags: u32, pc: *const c_void) {
    Worker::with(|w| w.step(address as usize));
    judge(pc as usize, |c, who| c.access(who, address as usize, size, flags, pc as usize));
}

extern "C" fn fault(fault: *const abi::Fault, pc: *const c_void) {
    judge(pc as usize, |c, who| {
        // SAFETY: the hooks pass a record on their stack whose texts are static data of the library.
        let (fault, type_text) = unsafe { (&*fault, text((*fault).type_text)) };
        c.fault(who, fault, &type_text, pc as usize)
    });
}

/// Asks the checker about the running thread, whose end that may be.
#[inline(always)]
fn judge(pc: usize, f: impl FnOnce(&mut Checker, Who) -> Verdict) {
    trap::in_kernel(false);
    let verdict = Worker::with(|w| {
        w.need_stack(pc);
        w.settle();
        w.check(f)
    });
    match verdict {
        Some(Some(Verdict::Stop)) => {
            Worker::with(|w| w.stop_thread());
        }
        Some(Some(Verdict::Compare)) => {
            Worker::with(Worker::note);
        }
        Some(None | Some(Verdict::Go)) | None => {}
    }
    trap::in_kernel(verdict.is_some());
}
