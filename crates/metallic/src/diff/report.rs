//! What a comparison has found, for people and for programs.

use std::fmt;

use metallic_core::reference::ProductInputs;
use serde::{Deserialize, Serialize};

use super::What;
use super::figures::{Deviation, Figures};

/// What two ways of computing have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", content = "of", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// Every result is equal to the bit.
    Equal,
    /// Rounding explains every difference.
    Rounding,
    /// Every difference is explained by rounding that the ways do by design.
    Explained(Vec<Explanation>),
    /// An operation introduces an error that nothing explains.
    Differs(Box<Finding>),
}

impl Verdict {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        !matches!(self, Verdict::Differs(_))
    }
}

/// What products round to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rounded {
    /// Nothing: 32 bits.
    Exact,
    /// 16 bits.
    Halves,
    /// 8 bits.
    Bytes,
}

impl From<ProductInputs> for Rounded {
    fn from(products: ProductInputs) -> Rounded {
        match products {
            ProductInputs::Exact => Rounded::Exact,
            ProductInputs::Halves => Rounded::Halves,
            ProductInputs::Bytes => Rounded::Bytes,
        }
    }
}

/// Why two ways may differ by more than 32-bit arithmetic does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs, reason = "the sentences say what the fields are")]
pub enum Explanation {
    /// One side's products round activations before they multiply.
    Products { side: String, to: Rounded, op: String, layer: Option<u32>, part: String, ops: usize },
    /// Keys and values are stored otherwise.
    Cache { types: [String; 2] },
    /// Activations are of other types.
    Activations { types: [String; 2] },
    /// Weights are of other types.
    Weights { tensor: String, types: [String; 2], tensors: usize },
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Explanation::Products { side, to, op, layer, part, ops } => {
                let bits = match to {
                    Rounded::Exact => 32,
                    Rounded::Halves => 16,
                    Rounded::Bytes => 8,
                };
                write!(
                    f,
                    "`{side}` rounds the activations of products to {bits} bits ({ops} operations, first "
                )?;
                write!(f, "{})", Named { op, part, layer: *layer, what: What::Output })
            }
            Explanation::Cache { types: [a, b] } => write!(f, "keys and values are stored as {a} and {b}"),
            Explanation::Activations { types: [a, b] } => write!(f, "activations are {a} and {b}"),
            Explanation::Weights { tensor, types: [a, b], tensors } => {
                write!(f, "{tensors} weights are of other types (first `{tensor}`: {a} and {b})")
            }
        }
    }
}

/// The first operation at which two ways part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Which side is off what its own inputs give: its name, `both`, or `weights` where the files differ.
    pub side: String,
    /// The operation, as it is carried out.
    pub op: String,
    /// Which result of it.
    pub what: What,
    /// Its layer; `None` outside of layers.
    pub layer: Option<u32>,
    /// Which weights it takes, without the layer; empty where none.
    pub part: String,
    /// Their names in the file.
    pub tensors: Vec<String>,
    /// The step: 0 is the prompt.
    pub step: usize,
    /// How far it is off; `None` where weights differ.
    pub error: Option<Deviation>,
    /// The operations before fusion it is made of; none where nothing was fused.
    pub parts: Vec<String>,
    /// Which of them is at fault.
    pub bisected: Option<String>,
    /// What is wrong, where it is not the size of the error.
    pub reason: Option<String>,
}

struct Named<'a> {
    op: &'a str,
    part: &'a str,
    layer: Option<u32>,
    what: What,
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Output => {}
            What::Keys => f.write_str("the cached keys of ")?,
            What::Values => f.write_str("the cached values of ")?,
        }
        write!(f, "`{}`", self.op)?;
        if !self.part.is_empty() {
            write!(f, " ({})", self.part)?;
        }
        match self.layer {
            Some(layer) => write!(f, " of layer {layer}"),
            None => f.write_str(" outside of layers"),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Finding { side, op, what, layer, part, step, error, reason, .. } = self;
        let named = Named { op, part, layer: *layer, what: *what };
        if side == "weights" {
            return write!(f, "differs from {named} on: {}", reason.as_deref().unwrap_or_default());
        }
        let (of, has) =
            if side == "both" { ("both sides".to_owned(), "have") } else { (format!("`{side}`"), "has") };
        write!(f, "differs first at {named}, step {step}: {of} ")?;
        if let Some(reason) = reason {
            write!(f, "{has} something else: {reason}")?;
        } else if let Some(error) = error {
            let Deviation { place, found, expected, loose, gain, not_finite, .. } = error;
            write!(f, "{has} {found:e} at row {}, column {}, where {expected:e}", place.row, place.column)?;
            write!(f, " follows from its inputs: {loose:.0} times what rounding explains")?;
            if (gain - 1.0).abs() > 1e-4 {
                write!(f, "; all together by a factor of {gain:.4}")?;
            }
            if *not_finite > 0 {
                write!(f, "; {not_finite} are no numbers")?;
            }
        }
        match &self.bisected {
            Some(bisected) => write!(f, "; {bisected}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Equal => f.write_str("equal to the bit"),
            Verdict::Rounding => f.write_str("within rounding"),
            Verdict::Explained(explanations) => {
                let words: Vec<String> = explanations.iter().map(ToString::to_string).collect();
                write!(f, "explained by rounding: {}", words.join("; "))
            }
            Verdict::Differs(finding) => finding.fmt(f),
        }
    }
}

/// One result of one operation, the worst of all steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpReport {
    /// The node of the model's graph that has this value.
    pub node: usize,
    /// The operation as each side carries it out; `None` where a side has the value only inside a larger one.
    pub ops: [Option<String>; 2],
    /// Which result of it.
    pub what: What,
    /// Its layer; `None` outside of layers.
    pub layer: Option<u32>,
    /// Which weights it takes, without the layer; empty where none.
    pub part: String,
    /// The step of the figures: 0 is the prompt.
    pub step: usize,
    /// Both sides beside each other; `None` where only one has the value.
    pub figures: Option<Figures>,
    /// Each side against what the reference makes of that side's inputs.
    pub errors: [Option<Deviation>; 2],
}

impl OpReport {
    /// The operation's name, as the first side has it, or both.
    pub fn name(&self) -> String {
        match &self.ops {
            [Some(a), Some(b)] if a != b => format!("{a}/{b}"),
            [Some(a), _] => a.clone(),
            [None, Some(b)] => b.clone(),
            [None, None] => String::new(),
        }
    }
}

/// What a comparison has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// All in all.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The ways.
    pub sides: [String; 2],
    /// The tokens of each step.
    pub tokens: Vec<Vec<u32>>,
    /// Whether both would choose the same token after each.
    pub same_choice: Vec<bool>,
    /// Results that both sides have.
    pub compared: usize,
    /// Results in the order of the model's graph.
    pub ops: Vec<OpReport>,
}
