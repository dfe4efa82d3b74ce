//! The runtime's side of the table in `msl_abi.h`: what kernels call while they run on a fiber.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{abi, thread::Call, trap, worker::Worker};
use crate::check::{FaultKind, Verdict};

/// Handed to every kernel library.
pub(crate) static TABLE: abi::Runtime = abi::Runtime {
    version: abi::VERSION,
    barrier,
    simdgroup_barrier,
    simd,
    lane,
    threadgroup_variable,
    fence,
    access,
    fault,
};

extern "C" fn barrier(flags: c_int, file: *const c_char, line: c_int, pc: *const c_void) {
    Worker::with(|w| w.wait(flags, Call { file, line, pc: pc as usize }));
}

extern "C" fn simdgroup_barrier(flags: c_int, file: *const c_char, line: c_int, pc: *const c_void) {
    Worker::with(|w| w.wait_in_simdgroup(flags, Call { file, line, pc: pc as usize }));
}

extern "C" fn simd(
    f: abi::SimdFn,
    input: *mut c_void,
    output: *mut c_void,
    file: *const c_char,
    line: c_int,
    pc: *const c_void,
) {
    Worker::with(|w| w.collect(f, input, output, Call { file, line, pc: pc as usize }));
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
    Worker::with(|w| w.check(|c, who| c.fence(who, flags, scope)));
    trap::in_kernel(true);
}

extern "C" fn access(address: *const c_void, size: usize, flags: u32, pc: *const c_void) {
    trap::in_kernel(false);
    let verdict = Worker::with(|w| {
        w.need_stack(pc as usize);
        w.check(|c, who| c.access(who, address as usize, size, flags, pc as usize))
    });
    if let Some(Some(Verdict::Stop)) = verdict {
        Worker::with(|w| w.stop_thread());
    }
    trap::in_kernel(verdict.is_some());
}

extern "C" fn fault(fault: *const abi::Fault, pc: *const c_void) {
    trap::in_kernel(false);
    // SAFETY: the hooks pass a record on their stack whose texts are static data of the library.
    let (fault, type_text) = unsafe {
        let fault = &*fault;
        let text = if fault.type_text.is_null() {
            ""
        } else {
            CStr::from_ptr(fault.type_text).to_str().unwrap_or("")
        };
        (fault, text)
    };
    let kind = match fault.kind {
        0 => FaultKind::Null,
        1 => FaultKind::Misaligned { address: fault.a, alignment: fault.b },
        2 => FaultKind::Index(fault.a as i64),
        3 => FaultKind::Shift(fault.a as i64),
        4 => FaultKind::Division,
        5 => FaultKind::InvalidValue(fault.a),
        _ => FaultKind::Unreachable,
    };
    let verdict = Worker::with(|w| {
        w.need_stack(pc as usize);
        w.check(|c, who| c.fault(who, kind, type_text, pc as usize))
    });
    if let Some(Some(Verdict::Stop)) = verdict {
        Worker::with(|w| w.stop_thread());
    }
    trap::in_kernel(verdict.is_some());
}
