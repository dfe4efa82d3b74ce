//! The address-space lint.
//!
//! To run kernels on a CPU their address spaces are dropped, so a pointer to `threadgroup` memory passed where `device` memory is
//! wanted would go unseen. clang's C++ for OpenCL has the same four address spaces and checks them: the source is rewritten to it
//! and parsed, with this crate's own headers, and no code is made.
//!
//! Only messages about address spaces are reported. C++ for OpenCL is not Metal in every other respect, and what it alone dislikes
//! says nothing about the source.

use crate::{
    compiler::{Compiler, Source},
    diagnostic::{Diagnostic, Severity, parse_clang},
    error::Result,
    rewrite::rewrite_for_lint,
};

/// Checks the address spaces of a source. An empty list means that nothing was found.
///
/// Templates are checked as far as they are instantiated, which kernels with a `host_name` are.
pub fn lint(compiler: &Compiler, source: &Source) -> Result<Vec<Diagnostic>> {
    let text = compiler.preprocess(source, &["-DMSL_LINT=1".to_owned()])?;
    let text = rewrite_for_lint(compiler.text(source, &text))?;
    let flags = "-x clcpp -cl-std=CLC++2021 -cl-no-stdinc -target spir64 -Xclang -cl-ext=+all -fdeclspec -fsyntax-only \
        -Wno-everything -fno-caret-diagnostics -fno-color-diagnostics -ferror-limit=0 -ftemplate-backtrace-limit=0 -";
    let output = compiler.toolchain().run(flags.split_whitespace(), text.as_bytes())?;
    let shim = compiler.shim();
    // What a constructor of these headers would have taken stands in notes about them.
    let built = parse_clang(&output.stderr, "").into_iter().filter(|diagnostic| misplaces(diagnostic, &shim));
    let mut found: Vec<Diagnostic> = parse_clang(&output.stderr, &shim)
        .into_iter()
        .filter(|diagnostic| concerns_address_spaces(diagnostic, &shim))
        .chain(built)
        .map(in_metal_words)
        .collect();
    // A template reports the same line for every instance.
    let mut seen = std::collections::HashSet::new();
    found.retain(|diagnostic| seen.insert((diagnostic.at.clone(), diagnostic.message.clone())));
    Ok(found)
}

/// Whether the source gives a constructor a pointer into another address space than it takes.
fn misplaces(diagnostic: &Diagnostic, shim: &str) -> bool {
    let taken = |note: &Diagnostic| {
        note.message.contains("cannot pass pointer to address space") && !note.message.contains("__generic")
    };
    diagnostic.at.as_ref().is_some_and(|at| !at.file.starts_with(shim))
        && diagnostic.message.starts_with("no matching constructor")
        && diagnostic.notes.iter().any(taken)
}

fn concerns_address_spaces(diagnostic: &Diagnostic, shim: &str) -> bool {
    if diagnostic.severity != Severity::Error
        || diagnostic.at.as_ref().is_none_or(|at| at.file.starts_with(shim))
    {
        return false;
    }
    let says = |phrases: &str| phrases.split('|').any(|phrase| diagnostic.message.contains(phrase));
    // What is in `constant` memory is read-only.
    if says("not assignable|read-only") {
        return true;
    }
    // Of OpenCL's own making: Metal has no generic address space, copies structs out of `constant` without a constructor for it,
    // and binds references to temporaries.
    if says("__generic|no matching constructor|no viable constructor|unrelated type|temporary object") {
        return false;
    }
    if says("address space") {
        // Rules of OpenCL about where variables may be declared, not about what points where.
        return !says("variable in|non-kernel function variable|may not be qualified|must be qualified");
    }
    // A mismatch shows in a message of types, or in the notes about candidates.
    let mismatch = says(
        "initializing|assigning|passing|returning|cannot initialize|binding|cannot bind|cannot assign|casting",
    );
    if mismatch && space(&diagnostic.message).is_some() {
        return true;
    }
    diagnostic.message.starts_with("no matching function for call")
        && diagnostic.notes.iter().any(|note| {
            note.message.contains("address space")
                || (note.message.contains("no known conversion") && differs(&note.message))
        })
}

/// OpenCL's address spaces, and Metal's names for them.
const SPACES: [(&str, &str); 4] =
    [("__global", "device"), ("__local", "threadgroup"), ("__constant", "constant"), ("__private", "thread")];

fn space(text: &str) -> Option<&'static str> {
    SPACES.iter().map(|(opencl, _)| *opencl).find(|space| text.contains(space))
}

/// Whether the two types of "no known conversion from 'A' to 'B'" name different address spaces.
fn differs(note: &str) -> bool {
    match note.split_once("' to '") {
        Some((from, to)) => space(from).is_some() && space(to).is_some() && space(from) != space(to),
        None => false,
    }
}

/// OpenCL's names back to Metal's.
fn in_metal_words(mut diagnostic: Diagnostic) -> Diagnostic {
    // A pointer's own place is not the point.
    let mut message = diagnostic.message.replace("*__private", "*").replace("*const __private", "*const");
    for (opencl, metal) in SPACES {
        message = message.replace(opencl, metal);
    }
    diagnostic.message = message;
    diagnostic.notes = diagnostic.notes.into_iter().map(in_metal_words).collect();
    diagnostic
}
