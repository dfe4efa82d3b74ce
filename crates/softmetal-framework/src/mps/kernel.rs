//! `MPSKernel`, which the others inherit.

use crate::foundation::NS_OBJECT;
use crate::metal::labels;
use crate::objc::{class, none};

class!(pub(crate) static KERNEL = c"MPSKernel", &NS_OBJECT, labels, none);
