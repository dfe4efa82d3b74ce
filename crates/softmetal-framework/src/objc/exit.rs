//! A look around when the process ends.

use std::sync::Once;

/// Looks for leaks and problems when the process ends; what is found is shown, and the process fails.
pub(crate) fn at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function is there as long as the process is.
        unsafe { libc::atexit(look) };
    });
}

extern "C" fn look() {
    let found = std::panic::catch_unwind(crate::leaks::at_exit).unwrap_or_default();
    if !found.is_empty() {
        for line in found {
            eprintln!("{line}");
        }
        // SAFETY: it ends the process at once, which is what is wanted: exit handlers cannot set its status.
        unsafe { libc::_exit(CODE) };
    }
}

/// Another than that of tests that fail.
const CODE: i32 = 66;
