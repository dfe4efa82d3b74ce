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
    let found = looked(crate::leaks::at_exit);
    if !found.is_empty() {
        for line in found {
            eprintln!("{line}");
        }
        // SAFETY: it ends the process at once, which is what is wanted: exit handlers cannot set its status.
        unsafe { libc::_exit(CODE) };
    }
}

/// What a look finds. One that panics has not seen that nothing is left.
fn looked(look: impl FnOnce() -> Vec<String> + std::panic::UnwindSafe) -> Vec<String> {
    std::panic::catch_unwind(look)
        .unwrap_or_else(|_| vec!["Metal validation: the look for leaks panicked; see above".to_owned()])
}

/// Another than that of tests that fail.
const CODE: i32 = 66;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_panics_is_no_look_that_finds_nothing() {
        assert!(looked(Vec::new).is_empty());
        assert_eq!(looked(|| vec!["one".to_owned()]), ["one"]);
        assert_eq!(looked(|| panic!("planted")).len(), 1);
    }
}
