//! Which version of the Metal language a source is written in.

/// A version of the language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    /// 3.1, of macOS 14: `bfloat`. Everything but what needs more, so that it compiles on every system the program runs on.
    Metal3,
    /// 4.0, of macOS 26: tensors, and the operations on them.
    Metal4,
}

impl Language {
    /// What a source asks for by what it includes.
    pub(crate) fn of(source: &str) -> Language {
        let tensors = source.lines().any(|line| line.starts_with("#include <MetalPerformancePrimitives/"));
        if tensors { Language::Metal4 } else { Language::Metal3 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::FAMILIES;

    #[test]
    fn tensor_operations_alone_need_the_newer_language() {
        for family in FAMILIES {
            let newer = Language::of(&family.source()) == Language::Metal4;
            assert_eq!(newer, family.name == "tensor_matmul", "{}", family.name);
        }
    }
}
