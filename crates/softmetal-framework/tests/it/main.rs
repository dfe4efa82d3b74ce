//! The framework from the outside, as programs on objc2-metal see it: `cargo xtask metal-on-linux`.
#![cfg(metal_on_linux)]
#![allow(unsafe_code)]

mod metal;
