//! `NSError`.

use super::object::NS_OBJECT;
use super::string::string;
use crate::objc::{Id, Method, Strong, class, methods, none};

class!(pub(crate) static NS_ERROR = c"NSError", &NS_OBJECT, all, none);

struct Error {
    domain: Domain,
    code: isize,
    description: String,
}

/// Whose codes they are.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Domain {
    Library,
    CommandBuffer,
    BinaryArchive,
    CounterSample,
    Residency,
    Capture,
}

impl Domain {
    fn name(self) -> &'static str {
        match self {
            Domain::Library => "MTLLibraryErrorDomain",
            Domain::CommandBuffer => "MTLCommandBufferErrorDomain",
            Domain::BinaryArchive => "MTLBinaryArchiveDomain",
            Domain::CounterSample => "MTLCounterErrorDomain",
            Domain::Residency => "MTLResidencySetErrorDomain",
            Domain::Capture => "MTLCaptureErrorDomain",
        }
    }
}

fn all() -> Vec<Method> {
    methods! { Error;
        c"domain"(this) -> Id { string(this.domain.name()).lend() }
        c"code"(this) -> isize { this.code }
        c"localizedDescription"(this) -> Id { string(&this.description).lend() }
        c"description"(this) -> Id {
            string(&format!("{} Code={} \"{}\"", this.domain.name(), this.code, this.description)).lend()
        }
    }
}

/// A new error.
pub(crate) fn error(domain: Domain, code: isize, description: impl Into<String>) -> Strong {
    Strong::new(&NS_ERROR, Error { domain, code, description: description.into() })
}
