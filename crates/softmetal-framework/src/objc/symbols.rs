//! Functions and constants of Metal and MPS by the names that their bindings link to.

use super::object::{Id, Object};
use crate::foundation::{NS_STRING, constant};
use crate::metal::{TIMESTAMP, TIMESTAMP_SET, all_devices, default_device};

#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCreateSystemDefaultDevice() -> Id {
    default_device()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn MTLCopyAllDevices() -> Id {
    all_devices()
}

#[unsafe(no_mangle)]
extern "C-unwind" fn MPSSupportsMTLDevice(device: Id) -> bool {
    crate::mps::supports(device)
}

static TIMESTAMP_SET_TEXT: Object = Object::constant(&NS_STRING, || constant(TIMESTAMP_SET));
static TIMESTAMP_TEXT: Object = Object::constant(&NS_STRING, || constant(TIMESTAMP));

#[unsafe(no_mangle)]
static MTLCommonCounterSetTimestamp: Id = Id::of(&TIMESTAMP_SET_TEXT);
#[unsafe(no_mangle)]
static MTLCommonCounterTimestamp: Id = Id::of(&TIMESTAMP_TEXT);
