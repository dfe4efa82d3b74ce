//! Which of a model's quantisations suits this machine: the largest whose weights leave a quarter of the memory to the context
//! and to everything else. Float weights are taken only where there is nothing else: they cost speed and bring no visible quality.

use std::fmt;

use super::{choose::by_quant, split::Model};
use crate::term::size;

/// Types that the engine runs, as files are named.
const QUANTISED: [&str; 25] = [
    "Q2_K",
    "Q2_K_S",
    "Q3_K",
    "Q3_K_S",
    "Q3_K_M",
    "Q3_K_L",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q4_K_S",
    "Q4_K_M",
    "Q4_K_L",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q5_K_S",
    "Q5_K_M",
    "Q5_K_L",
    "Q6_K",
    "Q6_K_L",
    "Q8_0",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "MXFP4_MOE",
];
const FLOATS: [&str; 5] = ["F16", "BF16", "F32", "FP16", "FP32"];

/// Where sizes are not known. Best first: what the engine runs well, a good size for its quality.
const PREFERRED: [&str; 9] = ["Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "Q4_1", "Q8_0", "Q6_K", "F16", "BF16"];

/// Percent of the memory that weights may take.
const SHARE: u64 = 75;

/// Why a quantisation was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fit {
    label: &'static str,
    bytes: u64,
    memory: u64,
    /// Among how many it was chosen, and of which kind.
    among: (usize, &'static str),
    /// The others, with their sizes.
    others: Vec<(&'static str, u64)>,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ((all, kind), memory) = (self.among, size(self.memory));
        let bytes = size(self.bytes);
        write!(f, "{}, {bytes}: the largest of {all} {kind} that fits in {SHARE} % of {memory}", self.label)
    }
}

impl Fit {
    /// The others in a line, smallest first.
    pub(super) fn others(&self) -> Option<String> {
        let names: Vec<String> =
            self.others.iter().map(|(label, bytes)| format!("{label} ({})", size(*bytes))).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// The best of several models; a lone one is always it.
pub(super) fn best<'m, 'a>(
    models: &'m [Model<'a>],
    memory: Option<u64>,
) -> Result<(&'m Model<'a>, Option<Fit>), String> {
    if let [only] = models {
        return Ok((only, None));
    }
    let find = |labels: &[&'static str]| -> Vec<(&'static str, &'m Model<'a>)> {
        labels.iter().filter_map(|label| Some((*label, by_quant(models, label)?))).collect()
    };
    let (quantised, floats) = (find(&QUANTISED), find(&FLOATS));
    let (candidates, kind) =
        if quantised.is_empty() { (&floats, "float types") } else { (&quantised, "quantisations") };
    let sized: Option<Vec<_>> =
        candidates.iter().map(|(label, model)| Some((*label, *model, model.bytes()?))).collect();
    let (Some(mut sized), Some(memory)) = (sized.filter(|sized| !sized.is_empty()), memory) else {
        let liked = PREFERRED.iter().find_map(|label| by_quant(models, label));
        let first = liked.or_else(|| candidates.first().map(|(_, model)| *model));
        return first
            .map(|model| (model, None))
            .ok_or("has several GGUF files, none of a usual type".to_owned());
    };
    sized.sort_by_key(|(label, _, bytes)| (*bytes, *label));
    let limit = memory / 100 * SHARE;
    let Some(&(label, model, bytes)) = sized.iter().rfind(|(_, _, bytes)| *bytes <= limit) else {
        let (label, _, bytes) = sized[0];
        return Err(format!(
            "has nothing that fits in {SHARE} % of {}: the smallest is {label} with {}",
            size(memory),
            size(bytes)
        ));
    };
    let mut others: Vec<_> = sized.into_iter().map(|(label, _, bytes)| (label, bytes)).collect();
    if !quantised.is_empty() {
        others.extend(floats.iter().filter_map(|(label, model)| Some((*label, model.bytes()?))));
    }
    let among = (candidates.len(), kind);
    others.retain(|(other, _)| *other != label);
    Ok((model, Some(Fit { label, bytes, memory, among, others })))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::{choose::Offer, split};

    const GB: u64 = 1_000_000_000;

    fn offers(files: &[(&'static str, u64)]) -> Vec<Offer<'static>> {
        files.iter().map(|(path, bytes)| Offer { path, bytes: Some(*bytes) }).collect()
    }

    fn files() -> Vec<Offer<'static>> {
        offers(&[
            ("M-Q4_K_M.gguf", 5 * GB),
            ("M-Q6_K-00001-of-00002.gguf", 3 * GB),
            ("M-Q6_K-00002-of-00002.gguf", 4 * GB),
            ("M-Q8_0.gguf", 9 * GB),
            ("M-F16.gguf", 16 * GB),
            ("M-IQ1_S.gguf", GB),
        ])
    }

    #[test]
    fn the_largest_that_leaves_room_is_taken_and_says_why() {
        let files = files();
        let models = split::models(files.iter());
        for (memory, path) in [
            (100, "M-Q8_0.gguf"),
            (12, "M-Q8_0.gguf"),
            (11, "M-Q6_K-00001-of-00002.gguf"),
            (8, "M-Q4_K_M.gguf"),
        ] {
            assert_eq!(best(&models, Some(memory * GB)).unwrap().0.path(), path, "{memory}");
        }
        let fit = best(&models, Some(10 * GB)).unwrap().1.unwrap();
        assert_eq!(
            fit.to_string(),
            "Q6_K, 7.0 GB: the largest of 3 quantisations that fits in 75 % of 10.0 GB"
        );
        assert_eq!(fit.others().unwrap(), "Q4_K_M (5.0 GB), Q8_0 (9.0 GB), F16 (16.0 GB)");
        let problem = best(&models, Some(4 * GB)).unwrap_err();
        assert_eq!(problem, "has nothing that fits in 75 % of 4.0 GB: the smallest is Q4_K_M with 5.0 GB");
    }

    #[test]
    fn without_sizes_or_memory_the_usual_type_wins_and_a_lone_file_always_does() {
        let mut files = files();
        let models = split::models(files.iter());
        assert_eq!(best(&models, None).unwrap().0.path(), "M-Q4_K_M.gguf");
        files[0].bytes = None;
        let models = split::models(files.iter());
        assert_eq!(best(&models, Some(GB)).unwrap(), (by_quant(&models, "Q4_K_M").unwrap(), None));
        let lone = offers(&[("odd.gguf", 900 * GB)]);
        assert_eq!(best(&split::models(lone.iter()), Some(GB)).unwrap().0.path(), "odd.gguf");
        let floats = offers(&[("M-F16.gguf", 2 * GB), ("M-F32.gguf", 4 * GB)]);
        assert_eq!(best(&split::models(floats.iter()), Some(4 * GB)).unwrap().0.path(), "M-F16.gguf");
        let odd = offers(&[("odd.gguf", 1), ("even.gguf", 1)]);
        assert!(best(&split::models(odd.iter()), Some(GB)).unwrap_err().contains("several"));
    }
}
