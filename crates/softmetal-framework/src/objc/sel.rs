//! Selectors: names of messages, each at one address.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::sync::{Mutex, OnceLock};

use crate::lock;

/// The name of a message. Equal names have equal addresses.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sel(*const c_char);

// SAFETY: it points to a text that is never changed or freed.
unsafe impl Send for Sel {}
// SAFETY: as above.
unsafe impl Sync for Sel {}

impl Sel {
    pub(crate) fn of(name: &CStr) -> Sel {
        static KNOWN: OnceLock<Mutex<HashMap<CString, Sel>>> = OnceLock::new();
        let mut known = lock(KNOWN.get_or_init(Mutex::default));
        if let Some(sel) = known.get(name) {
            return *sel;
        }
        let sel = Sel(CString::from(name).into_raw());
        known.insert(name.to_owned(), sel);
        sel
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    pub(crate) fn as_ptr(self) -> *const c_char {
        self.0
    }

    pub(crate) fn name(self) -> &'static str {
        if self.is_null() {
            return "(null)";
        }
        // SAFETY: only `of` makes selectors, of texts that stay.
        unsafe { CStr::from_ptr(self.0) }.to_str().unwrap_or("(not UTF-8)")
    }
}

impl fmt::Debug for Sel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
