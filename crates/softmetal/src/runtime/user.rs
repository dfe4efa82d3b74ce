//! Who runs this process.

/// The user whose rights this process has.
pub(crate) fn id() -> u32 {
    // SAFETY: asks the system for a number, and cannot fail.
    unsafe { libc::geteuid() }
}
