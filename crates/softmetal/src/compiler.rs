//! From Metal source to loaded kernels.

/// A Metal source: a name for messages, and the text.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file name that diagnostics show.
    pub name: std::path::PathBuf,
    /// The text.
    pub text: String,
}

/// What the kernels are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Flavour {
    /// Speed.
    #[default]
    Plain,
    /// Every access to memory is checked.
    Checked,
}

/// Compiles Metal sources; results are cached on disk.
#[derive(Debug)]
pub struct Compiler {}
