//! The command line of softmetal.

fn main() {}
