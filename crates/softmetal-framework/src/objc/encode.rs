//! Type encodings, derived from the types of the functions that answer messages: the two cannot differ. What a
//! function takes is written as Apple's headers for Apple Silicon say.

use std::ffi::{c_char, c_void};

use super::args::{
    BlockArg, InBytes, InNumbers, InObjects, MtlRegion, MtlSize, NsRange, OutBytes, OutObject,
};
use super::class::ClassRef;
use super::object::Id;
use super::sel::Sel;

/// A type that messages carry.
pub(crate) trait Encoded {
    const CODE: &'static str;
    /// Bytes it takes among the arguments.
    const SIZE: usize;
}

macro_rules! encoded {
    ($($type:ty = $code:literal;)+) => {
        $(impl Encoded for $type {
            const CODE: &'static str = $code;
            const SIZE: usize = size_of::<$type>();
        })+
    };
}
encoded! {
    () = "v";
    bool = "B";
    u8 = "C";
    u16 = "S";
    u32 = "I";
    i32 = "i";
    usize = "Q";
    u64 = "Q";
    isize = "q";
    f32 = "f";
    f64 = "d";
    Id = "@";
    ClassRef = "#";
    Sel = ":";
    *mut c_void = "^v";
    *const c_char = "r*";
    InBytes = "r^v";
    OutBytes = "^v";
    InObjects = "r^@";
    InNumbers = "r^Q";
    OutObject = "^@";
    BlockArg = "@?";
    MtlSize = "{?=QQQ}";
    MtlRegion = "{?={?=QQQ}{?=QQQ}}";
    NsRange = "{_NSRange=QQ}";
}

/// A function that answers a message.
pub(crate) trait Implementation {
    fn address(self) -> *const c_void;
    /// The types as `method_getTypeEncoding` tells them.
    fn types() -> String;
}

macro_rules! implementation {
    ($($arg:ident)*) => {
        impl<R: Encoded $(, $arg: Encoded)*> Implementation for extern "C-unwind" fn(Id, Sel $(, $arg)*) -> R {
            fn address(self) -> *const c_void {
                self as *const c_void
            }

            fn types() -> String {
                signature(R::CODE, &[$(($arg::CODE, $arg::SIZE)),*])
            }
        }
    };
}
implementation!();
implementation!(A);
implementation!(A B);
implementation!(A B C);
implementation!(A B C D);
implementation!(A B C D E);
implementation!(A B C D E F);
implementation!(A B C D E F G);
implementation!(A B C D E F G H);

/// Each type with its place among the arguments, after the receiver and the selector.
fn signature(returns: &str, args: &[(&str, usize)]) -> String {
    let mut at = 2 * size_of::<usize>();
    let place = |(code, size): &(&str, usize)| {
        let placed = format!("{code}{at}");
        at += size.next_multiple_of(4);
        placed
    };
    let rest: Vec<String> = args.iter().map(place).collect();
    format!("{returns}{at}@0:8{}", rest.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_are_those_of_clang_for_apple_silicon() {
        type NewBuffer = extern "C-unwind" fn(Id, Sel, usize, usize) -> Id;
        type Dispatch = extern "C-unwind" fn(Id, Sel, MtlSize, MtlSize) -> ();
        type Supports = extern "C-unwind" fn(Id, Sel, isize) -> bool;
        assert_eq!(NewBuffer::types(), "@32@0:8Q16Q24");
        assert_eq!(Dispatch::types(), "v64@0:8{?=QQQ}16{?=QQQ}40");
        assert_eq!(Supports::types(), "B24@0:8q16");
    }
}
