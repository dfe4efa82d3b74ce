//! softmetal from the outside: sources in, results and reports out.

mod buffers;
mod bugs;
mod cache;
mod cli;
mod crashes;
mod front;
mod helper;
mod lint;
mod others;
mod parts;
mod ptx;
mod rewrite;
mod robust;
mod runtime;
mod soundness;
mod stdlib;
mod tensor;
mod textures;
mod workflow;
