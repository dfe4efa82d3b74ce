//! What went wrong on the GPU, as errors.

use std::time::Duration;

use crate::command::{Command, CommandList};
use crate::error::GpuError;

/// What a submission is, for its errors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct About {
    pub(crate) label: String,
    /// Bytes of all buffers it uses.
    pub(crate) bytes: usize,
    pub(crate) budget: Option<u64>,
}

/// The error of a command buffer that failed: what the system says, and its `MTLCommandBufferError`, or `None` where the error
/// is of another domain. `after` is the time since the work was handed over.
pub(crate) fn error(about: &About, code: Option<isize>, text: &str, after: Duration) -> GpuError {
    let execution = |what: &str| {
        let told = if text.is_empty() { what.to_owned() } else { format!("{what}: {text}") };
        GpuError::execution(&*about.label, told)
    };
    match code {
        Some(2) => GpuError::Timeout { after },
        Some(3) => execution("the GPU reached for memory that is not there"),
        Some(4) => execution("the system denies this process the GPU after earlier faults"),
        Some(7) => execution("the process may not use the GPU now"),
        Some(8) => GpuError::no_room("the buffers of a submission", about.bytes, about.budget),
        Some(9) => execution("a buffer was gone"),
        Some(11) => execution("the GPU was removed"),
        Some(12) => execution("a kernel ran out of stack"),
        Some(code) => execution(&format!("the GPU stopped with code {code}")),
        None => execution("the GPU stopped"),
    }
}

/// Operations of a list, for messages: `embed … lm_head (34 commands)`.
pub(crate) fn label(list: &CommandList) -> String {
    let name = |command: &Command| match command {
        Command::Dispatch(dispatch) | Command::Gemm { dispatch, .. } | Command::Graph { dispatch, .. } => {
            dispatch.label
        }
        Command::Copy { .. } => "copy",
        Command::Fill { .. } => "fill",
    };
    match list.commands() {
        [] => "nothing".to_owned(),
        [only] => name(only).to_owned(),
        [first, .., last] => format!("{} … {} ({} commands)", name(first), name(last), list.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Region;
    use crate::gpu::BufferId;

    #[test]
    fn each_code_of_the_system_is_an_error_of_ours() {
        let about = About { label: "a … b (3 commands)".to_owned(), bytes: 77, budget: Some(99) };
        let with = |code| error(&about, code, "said the system", Duration::from_secs(5));
        assert_eq!(with(Some(2)), GpuError::Timeout { after: Duration::from_secs(5) });
        assert!(matches!(with(Some(8)), GpuError::OutOfMemory { needed: 77, budget: Some(99), .. }));
        for (code, part) in [
            (Some(1), "code 1: said the system"),
            (Some(3), "memory that is not there"),
            (Some(4), "denies"),
            (Some(7), "may not"),
            (Some(9), "gone"),
            (Some(10), "code 10"),
            (Some(11), "removed"),
            (Some(12), "stack"),
            (None, "the GPU stopped: said the system"),
        ] {
            let text = with(code).to_string();
            assert!(text.contains(part) && text.contains("a … b (3 commands)"), "{text}");
        }
    }

    #[test]
    fn a_list_is_named_by_its_first_and_last_operation() {
        let region = Region::whole(BufferId(1), 8);
        let mut list = CommandList::new();
        assert_eq!(label(&list), "nothing");
        list.push(Command::Fill { to: region, value: 0 });
        assert_eq!(label(&list), "fill");
        list.push(Command::Copy { from: region, to: Region::whole(BufferId(2), 8) });
        assert_eq!(label(&list), "fill … copy (2 commands)");
    }
}
