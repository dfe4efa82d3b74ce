//! What the table must cover: every operation, and those of its forms that are computed differently.

use metallic_core::{Attention, Binary, Mask, Op, Project, Qkv, Recurrence, Rope, RopePairs, Sdpa, Unary};

/// One list for both: a new operation does not compile until it stands here, and the tests fail until it has a case.
macro_rules! kinds {
    ($($name:literal: $pattern:pat,)*) => {
        /// Every kind of operation.
        pub const KINDS: &[&str] = &[$($name),*];

        /// Which of [`KINDS`] an operation is.
        pub fn kind(op: &Op) -> &'static str {
            match op {
                $($pattern => $name,)*
            }
        }
    };
}

kinds! {
    "tokens": Op::Tokens,
    "positions": Op::Positions,
    "output rows": Op::OutputRows,
    "choices": Op::Choices,
    "adapters": Op::Adapters { .. },
    "weight": Op::Weight(_),
    "embed": Op::Embed(_),
    "select rows": Op::SelectRows,
    "slice": Op::Slice { .. },
    "gather": Op::Gather,
    "cast": Op::Cast(_),
    "silu": Op::Unary(Unary::Silu),
    "gelu": Op::Unary(Unary::Gelu),
    "gelu by tanh": Op::Unary(Unary::GeluTanh),
    "relu": Op::Unary(Unary::Relu),
    "sigmoid": Op::Unary(Unary::Sigmoid),
    "exp": Op::Unary(Unary::Exp),
    "softplus": Op::Unary(Unary::Softplus),
    "add": Op::Binary(Binary::Add),
    "sub": Op::Binary(Binary::Sub),
    "mul": Op::Binary(Binary::Mul),
    "div": Op::Binary(Binary::Div),
    "min": Op::Binary(Binary::Min),
    "max": Op::Binary(Binary::Max),
    "scalar": Op::Scalar { reversed: false, .. },
    "scalar, reversed": Op::Scalar { reversed: true, .. },
    "softcap": Op::Softcap(_),
    "gated by silu": Op::Gated(Unary::Silu),
    "gated by gelu": Op::Gated(Unary::Gelu),
    "gated by gelu by tanh": Op::Gated(Unary::GeluTanh),
    "gated by another": Op::Gated(Unary::Relu | Unary::Sigmoid | Unary::Exp | Unary::Softplus),
    "rms norm": Op::RmsNorm { groups: 0 | 1, .. },
    "rms norm of groups": Op::RmsNorm { groups: 2.., .. },
    "layer norm": Op::LayerNorm { .. },
    "softmax": Op::Softmax,
    "linear": Op::Linear,
    "expert linear": Op::ExpertLinear,
    "combine": Op::Combine,
    "rope by halves": Op::Rope(Rope { pairs: RopePairs::Halves, .. }),
    "rope, interleaved": Op::Rope(Rope { pairs: RopePairs::Interleaved, .. }),
    "kv write": Op::KvWrite { .. },
    "attention with sinks": Op::Attention(Attention { sinks: true, .. }),
    "attention in a window": Op::Attention(Attention { sinks: false, window: Some(_), .. }),
    "attention, capped": Op::Attention(Attention { sinks: false, window: None, softcap: Some(_), .. }),
    "attention": Op::Attention(Attention { sinks: false, window: None, softcap: None, .. }),
    "sdpa": Op::Sdpa(Sdpa { mask: Mask::Full, .. }),
    "sdpa, causal": Op::Sdpa(Sdpa { mask: Mask::Causal, .. }),
    "sdpa in a window": Op::Sdpa(Sdpa { mask: Mask::Window(_), .. }),
    "short conv": Op::ShortConv { .. },
    "recurrence": Op::Recurrence(Recurrence { delta: false, .. }),
    "recurrence by the delta rule": Op::Recurrence(Recurrence { delta: true, .. }),
    "argmax": Op::Argmax,
    "top k": Op::TopK { .. },
    "sample": Op::Sample,
    "project with norm": Op::Project(Project { norm: Some(_), .. }),
    "project with residual": Op::Project(Project { norm: None, residual: true, .. }),
    "project": Op::Project(Project { norm: None, residual: false, .. }),
    "gated project with norm": Op::GatedProject { norm: Some(_), .. },
    "gated project": Op::GatedProject { norm: None, .. },
    "qkv with head norms": Op::Qkv(Qkv { head_norm: Some(_), .. }),
    "qkv with norm": Op::Qkv(Qkv { head_norm: None, norm: Some(_), .. }),
    "qkv": Op::Qkv(Qkv { head_norm: None, norm: None, .. }),
}
