//! Which type each tensor of a file gets.

use std::collections::BTreeSet;
use std::str::FromStr;

use metallic_core::DType;
use metallic_formats::Metadata;

/// What a quantised file is called by: most matrices have one type, those that matter more have a better one.
#[derive(Clone, Copy, Debug)]
pub struct Mixture {
    /// Its name: `Q4_K_M`.
    pub name: &'static str,
    /// The number by which `general.file_type` calls it.
    pub file_type: u32,
    /// The type of most matrices.
    pub base: DType,
    /// What makes the values of attention.
    v: Rule,
    /// What brings the feed-forward back to the residual stream.
    down: Rule,
    /// What brings attention back to it.
    out: DType,
    /// Queries, keys and values in one matrix.
    qkv: DType,
}

/// Layers in which a matrix has a type of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Nowhere,
    Everywhere,
    First(usize),
    /// The first of so many parts of the layers.
    Part(usize),
    /// The first and the last eighth, and every third between: an error in either stays to the end, or is not made good.
    Edges,
    /// Everywhere, if four queries or more share a value.
    Shared,
    /// The first eighth, if nothing is known of importance.
    PartUnknown,
    /// The first eighth, if importance is known.
    PartKnown,
}

/// `more` there, `rest` elsewhere.
#[derive(Clone, Copy, Debug)]
struct Rule {
    there: Where,
    more: DType,
    rest: DType,
}

const fn rule(there: Where, more: DType, rest: DType) -> Rule {
    Rule { there, more, rest }
}

/// All matrices alike.
const fn plain(name: &'static str, file_type: u32, base: DType) -> Mixture {
    let same = rule(Where::Nowhere, base, base);
    Mixture { name, file_type, base, v: same, down: same, out: base, qkv: base }
}

use DType::{BF16, F16, F32, IQ4NL, IQ4XS, MXFP4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use Where::{Edges, Everywhere, First, Part, PartKnown, PartUnknown, Shared};

const MIXTURES: [Mixture; 21] = [
    plain("F32", 0, F32),
    plain("F16", 1, F16),
    plain("BF16", 32, BF16),
    plain("Q8_0", 7, Q8_0),
    plain("Q6_K", 18, Q6K),
    Mixture { v: rule(Edges, Q6K, Q5K), down: rule(Edges, Q6K, Q5K), qkv: Q6K, ..plain("Q5_K_M", 17, Q5K) },
    plain("Q5_K_S", 16, Q5K),
    Mixture { v: rule(Edges, Q6K, Q4K), down: rule(Edges, Q6K, Q4K), qkv: Q5K, ..plain("Q4_K_M", 15, Q4K) },
    Mixture { v: rule(First(4), Q5K, Q4K), down: rule(Part(8), Q5K, Q4K), ..plain("Q4_K_S", 14, Q4K) },
    Mixture {
        v: rule(Everywhere, Q5K, Q3K),
        down: rule(Everywhere, Q5K, Q3K),
        out: Q5K,
        qkv: Q4K,
        ..plain("Q3_K_L", 13, Q3K)
    },
    Mixture {
        v: rule(First(2), Q5K, Q4K),
        down: rule(Part(16), Q5K, Q4K),
        out: Q4K,
        qkv: Q4K,
        ..plain("Q3_K_M", 12, Q3K)
    },
    plain("Q3_K_S", 11, Q3K),
    Mixture {
        v: rule(Shared, Q4K, Q3K),
        down: rule(Everywhere, Q3K, Q2K),
        out: Q3K,
        ..plain("Q2_K", 10, Q2K)
    },
    plain("Q5_1", 9, Q5_1),
    Mixture { down: rule(PartKnown, Q5_1, Q5_0), ..plain("Q5_0", 8, Q5_0) },
    plain("Q4_1", 3, Q4_1),
    Mixture { down: rule(PartKnown, Q4_1, Q4_0), ..plain("Q4_0", 2, Q4_0) },
    Mixture {
        v: rule(Shared, Q5K, IQ4XS),
        down: rule(PartUnknown, Q5K, IQ4XS),
        ..plain("IQ4_XS", 30, IQ4XS)
    },
    Mixture {
        v: rule(Shared, Q5K, IQ4NL),
        down: rule(PartUnknown, Q5K, IQ4NL),
        ..plain("IQ4_NL", 25, IQ4NL)
    },
    plain("MXFP4", 38, MXFP4),
    // The name by which others call it.
    plain("MXFP4_MOE", 38, MXFP4),
];

impl Mixture {
    /// Every mixture.
    pub fn all() -> impl Iterator<Item = &'static Mixture> {
        MIXTURES.iter()
    }
}

/// Names are read in either case.
impl FromStr for Mixture {
    type Err = String;

    fn from_str(name: &str) -> Result<Mixture, String> {
        // What people call the middle one of a family.
        let name = match name.to_ascii_uppercase().as_str() {
            "Q5_K" => "Q5_K_M".to_owned(),
            "Q4_K" => "Q4_K_M".to_owned(),
            "Q3_K" => "Q3_K_M".to_owned(),
            other => other.to_owned(),
        };
        let known = || MIXTURES.map(|mixture| mixture.name).join(", ");
        let found = MIXTURES.iter().find(|mixture| mixture.name == name);
        found.copied().ok_or_else(|| format!("known are {}", known()))
    }
}

/// What of a whole model decides about its tensors.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Queries that share a key and a value.
    group: usize,
    experts: usize,
    /// There is no output matrix: the embedding table serves.
    tied: bool,
    important: bool,
    v_layers: Vec<usize>,
    down_layers: Vec<usize>,
}

/// What a tensor is for, by its name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Role {
    Embedding,
    Output,
    V,
    K,
    Qkv,
    AttentionOut,
    Down,
    Other,
}

impl Role {
    fn of(name: &str) -> Role {
        let inner = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map_or(name, |(_, n)| n);
        match inner.strip_suffix(".weight").unwrap_or(inner) {
            "token_embd" | "per_layer_token_embd" => Role::Embedding,
            "output" => Role::Output,
            "attn_v" | "attn_kv_b" => Role::V,
            "attn_k" => Role::K,
            "attn_qkv" => Role::Qkv,
            "attn_output" => Role::AttentionOut,
            "ffn_down" | "ffn_down_exps" | "ffn_down_shexp" => Role::Down,
            _ => Role::Other,
        }
    }
}

fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

impl Facts {
    pub(super) fn new<'a>(
        metadata: &Metadata,
        names: &(impl Iterator<Item = &'a str> + Clone),
        important: bool,
    ) -> Facts {
        let architecture = metadata.opt_str("general.architecture").ok().flatten().unwrap_or_default();
        let number = |key: &str| metadata.opt_usize(&format!("{architecture}.{key}")).ok().flatten();
        let heads = number("attention.head_count").unwrap_or(1);
        let layers = |roles: &[Role]| {
            let found = names.clone().filter(|name| roles.contains(&Role::of(name))).filter_map(layer);
            found.collect::<BTreeSet<usize>>().into_iter().collect()
        };
        Facts {
            group: heads / number("attention.head_count_kv").unwrap_or(heads).max(1),
            experts: number("expert_count").unwrap_or(0),
            tied: !names.clone().any(|name| Role::of(name) == Role::Output),
            important,
            v_layers: layers(&[Role::V, Role::Qkv]),
            down_layers: layers(&[Role::Down]),
        }
    }

    fn holds(&self, there: Where, i: usize, n: usize) -> bool {
        match there {
            Where::Nowhere => false,
            Where::Everywhere => true,
            Where::First(count) => i < count,
            Where::Part(parts) => i < n / parts,
            Where::Edges => i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2,
            Where::Shared => self.group >= 4,
            Where::PartUnknown => !self.important && i < n / 8,
            Where::PartKnown => self.important && i < n / 8,
        }
    }

    fn by(&self, rule: Rule, layers: &[usize], name: &str) -> DType {
        let i = layer(name).and_then(|layer| layers.iter().position(|other| *other == layer));
        if self.holds(rule.there, i.unwrap_or(0), layers.len()) { rule.more } else { rule.rest }
    }
}

impl Mixture {
    /// The type of a matrix, as far as its name and place tell.
    pub(super) fn dtype(&self, facts: &Facts, name: &str, is_stack: bool) -> DType {
        if !self.base.is_quantized() {
            return self.base;
        }
        let role = Role::of(name);
        let is_output = role == Role::Output || (facts.tied && role == Role::Embedding);
        if self.base == DType::MXFP4 {
            // A type for experts: what all tokens go through keeps more.
            let coarse = if facts.experts > 0 { is_stack } else { !is_output };
            return if coarse { DType::MXFP4 } else { DType::Q8_0 };
        }
        if is_output {
            return if self.base == DType::Q8_0 { DType::Q8_0 } else { DType::Q6K };
        }
        // Beside eight experts the matrices that all tokens share are small.
        let few_shared = facts.experts == 8;
        match role {
            Role::V | Role::K if few_shared => DType::Q8_0,
            Role::AttentionOut if few_shared && self.is_coarse() => DType::Q5K,
            Role::V => facts.by(self.v, &facts.v_layers, name),
            Role::Down => facts.by(self.down, &facts.down_layers, name),
            Role::AttentionOut => self.out,
            Role::Qkv => self.qkv,
            Role::K | Role::Embedding | Role::Output | Role::Other => self.base,
        }
    }

    fn is_coarse(&self) -> bool {
        matches!(self.base, DType::Q2K | DType::Q3K | DType::Q4K | DType::IQ4NL | DType::IQ4XS)
    }
}

/// Whether a tensor is a matrix that may lose precision: not a norm, a router, a convolution, a table of positions or one of the
/// small ones that decide over others.
pub(super) fn is_matrix(name: &str, shape: &[usize]) -> bool {
    const KEPT: [&str; 13] = [
        "_norm.weight",
        "ffn_gate_inp",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "position_embd",
        "token_types",
        "ssm_conv1d",
        "shortconv.conv",
        "time_mix_",
        "attn_rel_b",
        "rope_freqs",
        "rope_factors",
    ];
    let axes = shape.iter().filter(|n| **n > 1).count();
    axes >= 2 && name.ends_with(".weight") && !KEPT.iter().any(|kept| name.contains(kept))
}

/// The type a matrix gets instead of one whose blocks its rows do not fill.
pub(super) fn fitting(wanted: DType, columns: usize) -> DType {
    let fits = |dtype: DType| columns.is_multiple_of(dtype.block_len());
    if fits(wanted) {
        return wanted;
    }
    let smaller = match wanted {
        DType::IQ4XS => DType::IQ4NL,
        DType::Q2K | DType::Q3K => DType::Q4_0,
        DType::Q4K => DType::Q5_0,
        DType::Q5K => DType::Q5_1,
        DType::Q6K => DType::Q8_0,
        _ => DType::F16,
    };
    if fits(smaller) { smaller } else { DType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(layers: usize, experts: usize, names: &[&str], important: bool) -> Facts {
        let mut metadata = Metadata::empty("m");
        metadata.insert("general.architecture", "llama");
        metadata.insert("llama.attention.head_count", 8_u32);
        metadata.insert("llama.attention.head_count_kv", 2_u32);
        metadata.insert("llama.expert_count", experts as u32);
        let mut all: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        for i in 0..layers {
            all.extend(["attn_v", "ffn_down"].map(|part| format!("blk.{i}.{part}.weight")));
        }
        Facts::new(&metadata, &all.iter().map(String::as_str), important)
    }

    #[test]
    fn the_first_and_last_layers_and_every_third_have_more_bits() {
        let (facts, mixture) =
            (facts(16, 0, &["output.weight"], false), "q4_k_m".parse::<Mixture>().unwrap());
        let more: Vec<usize> = (0..16)
            .filter(|i| mixture.dtype(&facts, &format!("blk.{i}.ffn_down.weight"), false) == DType::Q6K)
            .collect();
        assert_eq!(more, [0, 1, 4, 7, 10, 13, 14, 15]);
        let cases = [
            ("output.weight", DType::Q6K),
            ("token_embd.weight", DType::Q4K),
            ("blk.3.attn_q.weight", DType::Q4K),
            ("blk.3.attn_qkv.weight", DType::Q5K),
        ];
        for (name, dtype) in cases {
            assert_eq!(mixture.dtype(&facts, name, false), dtype, "{name}");
        }
    }

    #[test]
    fn mixtures_know_what_is_shared_tied_or_known() {
        let dtype = |mixture: &str, facts: &Facts, name: &str| {
            mixture.parse::<Mixture>().unwrap().dtype(facts, name, name.contains("_exps"))
        };
        let (tied, known) = (facts(16, 0, &[], false), facts(16, 0, &["output.weight"], true));
        let eight = facts(16, 8, &["output.weight"], false);
        let cases = [
            ("Q4_K_S", &tied, "token_embd.weight", DType::Q6K),
            ("Q8_0", &tied, "token_embd.weight", DType::Q8_0),
            ("Q4_0", &known, "token_embd.weight", DType::Q4_0),
            ("Q4_0", &tied, "blk.0.ffn_down.weight", DType::Q4_0),
            ("Q4_0", &known, "blk.0.ffn_down.weight", DType::Q4_1),
            ("IQ4_XS", &tied, "blk.0.ffn_down.weight", DType::Q5K),
            ("IQ4_XS", &known, "blk.0.ffn_down.weight", DType::IQ4XS),
            ("IQ4_XS", &known, "blk.9.attn_v.weight", DType::Q5K),
            ("Q2_K", &known, "blk.9.attn_v.weight", DType::Q4K),
            ("Q2_K", &known, "blk.9.attn_output.weight", DType::Q3K),
            ("Q3_K_M", &known, "blk.1.attn_v.weight", DType::Q5K),
            ("Q3_K_M", &known, "blk.2.attn_v.weight", DType::Q4K),
            ("Q4_K_M", &eight, "blk.5.attn_k.weight", DType::Q8_0),
            ("Q4_K_M", &eight, "blk.5.attn_output.weight", DType::Q5K),
            ("Q6_K", &eight, "blk.5.attn_output.weight", DType::Q6K),
            ("MXFP4", &eight, "blk.5.ffn_up_exps.weight", DType::MXFP4),
            ("MXFP4", &eight, "blk.5.attn_q.weight", DType::Q8_0),
            ("MXFP4", &known, "blk.5.attn_q.weight", DType::MXFP4),
            ("F16", &known, "blk.5.attn_q.weight", DType::F16),
        ];
        for (mixture, facts, name, expected) in cases {
            assert_eq!(dtype(mixture, facts, name), expected, "{mixture} {name}");
        }
        assert!("Q9_9".parse::<Mixture>().unwrap_err().contains("Q4_K_M"));
    }

    #[test]
    fn rows_that_fill_no_blocks_get_a_type_that_fits() {
        assert_eq!(fitting(DType::Q4K, 512), DType::Q4K);
        assert_eq!(fitting(DType::Q4K, 576), DType::Q5_0);
        assert_eq!(fitting(DType::IQ4XS, 96), DType::IQ4NL);
        assert_eq!(fitting(DType::Q6K, 100), DType::F16);
        assert_eq!(fitting(DType::Q4_0, 48), DType::F16);
    }

    #[test]
    fn what_decides_over_others_is_no_matrix_to_save_on() {
        for name in ["blk.0.ffn_gate_inp.weight", "blk.0.attn_norm.weight", "position_embd.weight", "a.bias"]
        {
            assert!(!is_matrix(name, &[8, 64]), "{name}");
        }
        assert!(is_matrix("blk.0.attn_q.weight", &[8, 64]));
        assert!(!is_matrix("blk.0.attn_q.weight", &[1, 64]));
    }
}
