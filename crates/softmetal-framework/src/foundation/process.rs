//! `NSProcessInfo`.

use super::object::NS_OBJECT;
use super::string::string;
use crate::objc::{Id, Method, Strong, class, methods, raw_methods};
use crate::settings::macos_version;

class!(pub(crate) static NS_PROCESS_INFO = c"NSProcessInfo", &NS_OBJECT, all, own);

struct ProcessInfo;

fn all() -> Vec<Method> {
    methods! { ProcessInfo;
        c"operatingSystemVersionString"(_) -> Id {
            let version = macos_version();
            let (major, minor, patch) = (version >> 16, version >> 8 & 0xFF, version & 0xFF);
            let patch = if patch == 0 { String::new() } else { format!(".{patch}") };
            string(&format!("Version {major}.{minor}{patch} (softmetal)")).lend()
        }
        c"processorCount"(_) -> usize { std::thread::available_parallelism().map_or(1, usize::from) }
        c"activeProcessorCount"(_) -> usize { std::thread::available_parallelism().map_or(1, usize::from) }
        c"processIdentifier"(_) -> i32 { std::process::id() as i32 }
    }
}

fn own() -> Vec<Method> {
    raw_methods! {
        c"processInfo"(_) -> Id { Strong::new(&NS_PROCESS_INFO, ProcessInfo).lend() }
    }
}
