//! The `metallic` command line.
fn main() {}
