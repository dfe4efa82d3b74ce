//! What a GPU can fail with.

use std::time::Duration;

use metallic_core::{BackendError, BytesLost};

/// A failure of a GPU or of what was asked of it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    /// Memory could not be had.
    #[error("no room for {}{}", asked_for(what, *needed), room(*budget, *free))]
    OutOfMemory {
        /// What the memory was for.
        what: &'static str,
        /// Bytes asked for; 0 where a driver needs some for itself and does not say how many.
        needed: usize,
        /// Bytes that may be held in all, where there is a limit.
        budget: Option<u64>,
        /// Bytes that nobody had then, where the device says so.
        free: Option<u64>,
    },
    /// A file's weights cannot be had (any more).
    #[error(transparent)]
    Bytes(#[from] BytesLost),
    /// A kernel does not compile.
    #[error("kernel `{kernel}` does not compile: {message}")]
    Compile {
        /// The library or the function.
        kernel: String,
        /// What the compiler said.
        message: String,
    },
    /// A binding does not fit the kernel's argument or its buffer.
    #[error("`{kernel}`, argument {index} (`{argument}`): {problem}")]
    Binding {
        /// The kernel.
        kernel: &'static str,
        /// Position among the arguments.
        index: usize,
        /// The argument's name.
        argument: &'static str,
        /// What was found and what was needed.
        problem: String,
    },
    /// A range lies outside its buffer.
    #[error("bytes {start}..{end} lie outside a buffer of {len} bytes")]
    OutOfBounds {
        /// First byte.
        start: usize,
        /// Past the last byte.
        end: usize,
        /// Bytes of the buffer.
        len: usize,
    },
    /// A launch asks for more than the device has.
    #[error("`{kernel}` asks for {found} {what}, the device allows {most}")]
    Launch {
        /// The kernel.
        kernel: &'static str,
        /// Threads, bytes, …
        what: &'static str,
        /// What it asked for.
        found: u64,
        /// What there is.
        most: u64,
    },
    /// No kernel does this.
    #[error("no kernel for `{op}`: {reason}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// What it would need.
        reason: String,
    },
    /// Work that was submitted broke off.
    #[error("`{label}` failed: {reason}")]
    Execution {
        /// The operation, or the submission.
        label: String,
        /// What the device said.
        reason: String,
    },
    /// The device is gone for this process: nothing that was on it can be read, and nothing runs on it any more.
    #[error(
        "the GPU is lost to this process: {reason}; only a new process, or a restart of the machine, can use it again"
    )]
    Lost {
        /// What the device said first.
        reason: String,
    },
    /// Work did not finish in time.
    #[error("the work did not finish within {after:?}")]
    Timeout {
        /// The bound of the wait.
        after: Duration,
    },
    /// There is no such device.
    #[error("no GPU `{asked}`; there {}", known_devices(.known))]
    NoDevice {
        /// Index or name asked for.
        asked: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No provider of this name serves this operation.
    #[error("no provider `{asked}`; there are {}", known.join(", "))]
    NoProvider {
        /// `operation=provider`, as it was asked for.
        asked: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A variable of the environment asks for a provider that is not there.
    #[error("`{variable}` names no provider; there are {}", known.join(", "))]
    Variable {
        /// `VARIABLE=provider`, as it was found.
        variable: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A provider that was asked for by name cannot serve.
    #[error("provider `{provider}`, which was asked for, cannot serve `{op}`: {error}")]
    Provider {
        /// The operation.
        op: &'static str,
        /// The provider.
        provider: &'static str,
        /// Why not.
        error: Box<GpuError>,
    },
    /// A number that plans may not go by.
    #[error("`{field}` is {found}; it may be {}", one_of(values))]
    Tuning {
        /// Which one.
        field: &'static str,
        /// What it is.
        found: u32,
        /// What it may be.
        values: &'static [u32],
    },
    /// Something the device needs is missing on this machine.
    #[error("{0}")]
    Missing(String),
}

fn asked_for(what: &str, needed: usize) -> String {
    if needed == 0 { what.to_owned() } else { format!("{needed} bytes of {what}") }
}

fn room(budget: Option<u64>, free: Option<u64>) -> String {
    let budget = budget.map(|bytes| format!("{bytes} bytes are allowed in all"));
    let free = free.map(|bytes| format!("{bytes} bytes are free"));
    let known: Vec<String> = budget.into_iter().chain(free).collect();
    if known.is_empty() { String::new() } else { format!(": {}", known.join(", ")) }
}

fn known_devices(known: &[String]) -> String {
    match known {
        [] => "is none on this machine".to_owned(),
        names => format!("are {}", names.join(", ")),
    }
}

/// `1, 2 or 4`
fn one_of(values: &[u32]) -> String {
    let names: Vec<String> = values.iter().map(u32::to_string).collect();
    match names.split_last() {
        Some((last, rest @ [_, ..])) => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

impl GpuError {
    pub(crate) fn unsupported(op: &'static str, reason: impl Into<String>) -> GpuError {
        GpuError::Unsupported { op, reason: reason.into() }
    }

    pub(crate) fn no_room(what: &'static str, needed: usize, budget: impl Into<Option<u64>>) -> GpuError {
        GpuError::OutOfMemory { what, needed, budget: budget.into(), free: None }
    }

    pub(crate) fn execution(label: impl Into<String>, reason: impl Into<String>) -> GpuError {
        GpuError::Execution { label: label.into(), reason: reason.into() }
    }

    pub(crate) fn compile(kernel: &str, message: impl Into<String>) -> GpuError {
        GpuError::Compile { kernel: kernel.to_owned(), message: message.into() }
    }

    /// The same failure as callers of a backend see it.
    pub fn on(self, device: &'static str) -> BackendError {
        match self {
            GpuError::OutOfMemory { what, needed, .. } if needed > 0 => {
                BackendError::OutOfMemory { device, what, needed }
            }
            GpuError::Unsupported { op, reason } => BackendError::Unsupported { device, op, reason },
            GpuError::Launch { kernel, what, found, most } => {
                let reason = format!("it asks for {found} {what}, the device allows {most}");
                BackendError::Unsupported { device, op: kernel, reason }
            }
            GpuError::Provider { op, provider, error } => {
                let reason = format!("provider `{provider}`, which was asked for, cannot: {error}");
                BackendError::Unsupported { device, op, reason }
            }
            GpuError::NoProvider { asked: setting, known }
            | GpuError::Variable { variable: setting, known } => {
                let reason = format!("there are {}", known.join(", "));
                BackendError::Setting { device, setting, reason }
            }
            GpuError::Tuning { field, found, .. } => {
                let (setting, reason) = (format!("{field}={found}"), self.to_string());
                BackendError::Setting { device, setting, reason }
            }
            GpuError::Compile { kernel, message } => {
                BackendError::Compile { device, kernel, reason: message }
            }
            GpuError::Bytes(lost) => BackendError::Bytes(lost),
            GpuError::Timeout { after } => BackendError::Timeout { device, after },
            error @ (GpuError::NoDevice { .. } | GpuError::Missing(_)) => {
                BackendError::Unavailable { device, reason: error.to_string() }
            }
            other => BackendError::Failed { device, reason: other.to_string() },
        }
    }
}
