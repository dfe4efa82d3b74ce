//! `MTLCaptureManager`: there is nothing to capture with, which it says as Metal does without `MTL_CAPTURE_ENABLED`.

use super::descriptor::descriptor;
use crate::foundation::{Domain, NS_OBJECT, error};
use crate::objc::{Id, Method, OutObject, Strong, class, methods, raw_methods};

class!(pub(crate) static MANAGER = c"MTLCaptureManager", &NS_OBJECT, all, own);
descriptor!(pub(crate) static DESCRIPTOR = c"MTLCaptureDescriptor", [c"destination" = 1],
    c"captureObject" c"setCaptureObject:" object;
    c"destination" c"setDestination:" isize;
    c"outputURL" c"setOutputURL:" object;
);

struct Manager;

/// `MTLCaptureErrorNotSupported`.
const NOT_SUPPORTED: isize = 1;

fn all() -> Vec<Method> {
    methods! { Manager;
        c"isCapturing"(_) -> bool { false }
        c"supportsDestination:"(_, _destination: isize) -> bool { false }
        c"startCaptureWithDescriptor:error:"(_, _descriptor: Id, out: OutObject) -> bool {
            out.put(error(Domain::Library, NOT_SUPPORTED, "Capturing is not supported."));
            false
        }
        c"stopCapture"(_) { }
    }
}

fn own() -> Vec<Method> {
    raw_methods! {
        c"sharedCaptureManager"(_) -> Id { Strong::new(&MANAGER, Manager).lend() }
    }
}
