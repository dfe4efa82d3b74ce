//! Golden models: what another engine computed, and how close a backend must come.

use std::path::{Path, PathBuf};

use metallic_core::{BLOCK_TOKENS, BackendError, Program, SequenceSpan, Step};
use serde::Deserialize;

/// `expected.json` of a golden model.
#[derive(Clone, Debug, Deserialize)]
pub struct Expected {
    /// Prompts with their logits.
    pub prompts: Vec<Prompt>,
    /// A greedy continuation of one of them.
    pub greedy: Greedy,
    /// What was measured when the data was made.
    pub checks: serde_json::Value,
}

/// One prompt.
#[derive(Clone, Debug, Deserialize)]
pub struct Prompt {
    /// Its name: `p1`, `p17`, `p70`.
    #[serde(rename = "id")]
    pub name: String,
    /// The ids to feed.
    pub token_ids: Vec<u32>,
    /// Logits of the last position.
    pub last_logits: Vec<f32>,
    /// What llama.cpp gave with its own activations.
    #[serde(default)]
    pub last_logits_llamacpp: Vec<f32>,
    /// Best id at every position.
    pub argmax: Vec<u32>,
    /// Best minus second-best logit at every position.
    pub argmax_margin: Vec<f32>,
}

/// A greedy continuation.
#[derive(Clone, Debug, Deserialize)]
pub struct Greedy {
    /// The prompt it continues.
    pub prompt: String,
    /// The ids it adds.
    pub token_ids: Vec<u32>,
    /// Best minus second-best logit of each step.
    pub margin: Vec<f32>,
}

impl Expected {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Expected, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Root mean square by which llama.cpp, with its own activations, is off the reference.
    pub fn peer_rms(&self) -> Option<f64> {
        let mean_square = |prompt: &Prompt| {
            let pairs = prompt.last_logits.iter().zip(&prompt.last_logits_llamacpp);
            let squares = pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            (!prompt.last_logits_llamacpp.is_empty()).then(|| squares / prompt.last_logits.len() as f64)
        };
        let squares: Vec<f64> = self.prompts.iter().map(mean_square).collect::<Option<_>>()?;
        Some((squares.iter().sum::<f64>() / squares.len() as f64).sqrt())
    }
}

/// Golden models of families or types this engine does not run.
const NOT_RUN: &[&str] = &["gemma3n", "gemma4"];

/// What lies in the folders of this name of all golden sets that are here, the models not run left out.
fn entries(kind: &str) -> Vec<PathBuf> {
    let folders = crate::data::golden_sets().into_iter().map(|set| set.join(kind));
    let read =
        |folder: PathBuf| std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = folders.flat_map(read).map(|entry| entry.expect("the golden set is complete").path());
    let runs = |path: &PathBuf| !NOT_RUN.iter().any(|family| name_of(path).split('.').next() == Some(family));
    let mut found: Vec<PathBuf> = paths.filter(runs).collect();
    found.sort();
    assert!(found.len() >= 4, "{found:?}");
    found
}

fn name_of(path: &Path) -> String {
    path.file_name().expect("the golden set is complete").to_string_lossy().into_owned()
}

/// Golden folders, and those of families that are in no golden set.
pub fn folders() -> Vec<PathBuf> {
    let own = std::fs::read_dir(crate::data::own().join("families")).expect("the data of this crate");
    let own = own.map(|entry| entry.expect("the data of this crate").path());
    let mut all: Vec<PathBuf> = entries("arch").into_iter().chain(own).collect();
    all.sort();
    all
}

/// Golden GGUF files, by name.
pub fn ggufs() -> Vec<String> {
    entries("gguf").iter().filter_map(|path| name_of(path).strip_suffix(".gguf").map(str::to_owned)).collect()
}

/// A GGUF file of the golden set and what is expected of it.
pub fn gguf(name: &str) -> (PathBuf, Expected) {
    let files =
        crate::data::golden_sets().into_iter().map(|set| set.join("gguf").join(format!("{name}.gguf")));
    let path = files.into_iter().find(|path| path.is_file()).unwrap_or_else(|| panic!("no golden {name}"));
    let expected = Expected::read(&path.with_extension("expected.json")).expect("the golden set is complete");
    (path, expected)
}

/// One sequence on a program: blocks are handed out in a scattered order, as an engine would.
pub struct Sequence {
    slot: u32,
    blocks: Vec<u32>,
    past: usize,
}

impl Sequence {
    /// A sequence that may grow to `capacity` tokens; `slot` keeps several apart.
    pub fn new(program: &mut dyn Program, slot: usize, capacity: usize) -> Result<Sequence, BackendError> {
        let count = capacity.div_ceil(BLOCK_TOKENS);
        let first = slot * count;
        program.reserve_blocks((slot + 1) * count)?;
        program.reserve_slots(slot + 1)?;
        let blocks = (0..count).rev().map(|i| (first + i) as u32).collect();
        Ok(Sequence { slot: slot as u32, blocks, past: 0 })
    }

    /// A sequence that goes on from here by itself: it shares the full blocks, and has a copy of what is kept in a slot. The
    /// sequence must end with a block.
    pub fn branch(&self, program: &mut dyn Program, slot: usize) -> Result<Sequence, BackendError> {
        assert!(self.past.is_multiple_of(BLOCK_TOKENS), "a block with room in it has one writer");
        let mut branch = Sequence::new(program, slot, self.blocks.len() * BLOCK_TOKENS)?;
        program.copy_slot(self.slot, branch.slot)?;
        let shared = self.past / BLOCK_TOKENS;
        branch.blocks[..shared].copy_from_slice(&self.blocks[..shared]);
        branch.past = self.past;
        Ok(branch)
    }

    /// Feeds `tokens` in one step and returns the logits of each.
    pub fn feed(&mut self, program: &mut dyn Program, tokens: &[u32]) -> Result<Vec<Vec<f32>>, BackendError> {
        let mut rows = feed_all(program, &mut [(self, tokens)])?;
        Ok(rows.pop().unwrap_or_default())
    }
}

/// Feeds tokens of several sequences in one step; returns the logits of each token of each sequence.
pub fn feed_all(
    program: &mut dyn Program,
    parts: &mut [(&mut Sequence, &[u32])],
) -> Result<Vec<Vec<Vec<f32>>>, BackendError> {
    let tokens: Vec<u32> = parts.iter().flat_map(|(_, tokens)| tokens.iter().copied()).collect();
    let mut positions = Vec::new();
    let mut spans = Vec::new();
    for (sequence, tokens) in &*parts {
        let start = positions.len();
        positions.extend((0..tokens.len()).map(|i| (sequence.past + i) as u32));
        spans.push(SequenceSpan {
            tokens: start..positions.len(),
            past: sequence.past,
            blocks: &sequence.blocks,
            near: &[],
            slot: sequence.slot,
        });
    }
    let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
    program.run(&Step {
        tokens: &tokens,
        positions: &positions,
        sequences: &spans,
        outputs: &outputs,
        ..Step::default()
    })?;
    let logits = program.output(0);
    let mut rows = logits.chunks(logits.len() / tokens.len()).map(<[f32]>::to_vec);
    let mut all = Vec::new();
    for (sequence, tokens) in parts {
        sequence.past += tokens.len();
        all.push(rows.by_ref().take(tokens.len()).collect());
    }
    Ok(all)
}

/// Logits at every position of a prompt, fed in chunks.
pub fn logits(
    program: &mut dyn Program,
    tokens: &[u32],
    chunk: usize,
) -> Result<Vec<Vec<f32>>, BackendError> {
    let mut sequence = Sequence::new(program, 0, tokens.len())?;
    let mut rows = Vec::new();
    for part in tokens.chunks(chunk) {
        rows.extend(sequence.feed(program, part)?);
    }
    Ok(rows)
}

/// Greedy continuation of a prompt by `n` tokens.
pub fn greedy(program: &mut dyn Program, tokens: &[u32], n: usize) -> Result<Vec<u32>, BackendError> {
    let mut sequence = Sequence::new(program, 0, tokens.len() + n)?;
    let mut row = sequence.feed(program, tokens)?.pop().unwrap_or_default();
    let mut ids = Vec::new();
    loop {
        ids.push(argmax(&row));
        if ids.len() >= n {
            return Ok(ids);
        }
        row = sequence.feed(program, &ids[ids.len() - 1..])?.pop().unwrap_or_default();
    }
}

/// The index of the largest number; the first of equals.
pub fn argmax(row: &[f32]) -> u32 {
    let better = |best: (u32, f32), next: (u32, f32)| if next.1 > best.1 { next } else { best };
    (0..).zip(row.iter().copied()).fold((0, f32::NEG_INFINITY), better).0
}

/// The largest absolute difference.
pub fn max_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows differ in length");
    let worse = |worst: f32, d: f32| if d.is_nan() { f32::INFINITY } else { worst.max(d) };
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, worse)
}

/// How close the last logits must be, and from which margin on the best id must be the same.
#[derive(Clone, Copy, Debug)]
pub struct Close {
    /// Largest absolute difference.
    pub max_abs: f32,
    /// Best ids must agree where the reference's margin is above this.
    pub margin: f32,
}

/// `f32` weights, activations and cache.
pub const EXACT: Close = Close { max_abs: 5e-4, margin: 1e-3 };

/// [`EXACT`] for most models; twice or four times as much for those that make more of every rounding.
pub fn exact(path: &Path) -> Close {
    let name = name_of(path);
    let model = name.split('.').next().unwrap_or_default();
    let times = match model {
        "gemma2" | "gemma2_bf16" | "gemma2_g" => 4.0,
        // What no type of ours holds becomes halves.
        "mlx_6bit" | "mlx_8bit" | "fp8_blocks" | "fp8_channels" => 40.0,
        "gpt_oss" | "gpt_oss_g" | "gpt_oss_mxfp4" | "qwen3_5" | "granitemoehybrid" => 2.0,
        _ => 1.0,
    };
    Close { max_abs: times * EXACT.max_abs, margin: times * EXACT.margin }
}
/// Half-precision weights in the dot product or a half-precision cache.
pub const HALF: Close = Close { max_abs: 0.1, margin: 0.2 };
/// `BF16` cache or dot products.
pub const BRAIN: Close = Close { max_abs: 0.25, margin: 0.5 };

/// Checks logits, best ids and greedy tokens within `close`, for several ways to cut the prompt.
pub fn check_close(
    program: &mut dyn Program,
    expected: &Expected,
    close: Close,
    chunks: &[usize],
) -> Result<(), String> {
    for prompt in &expected.prompts {
        for chunk in chunks {
            let rows = logits(program, &prompt.token_ids, *chunk).map_err(|e| e.to_string())?;
            let last = rows.last().ok_or("no logits")?;
            let diff = max_diff(last, &prompt.last_logits);
            if diff > close.max_abs {
                return Err(format!("{} in chunks of {chunk}: last logits off by {diff}", prompt.name));
            }
            let wrong = rows
                .iter()
                .zip(&prompt.argmax)
                .zip(&prompt.argmax_margin)
                .position(|((row, best), margin)| *margin > close.margin && argmax(row) != *best);
            if let Some(position) = wrong {
                return Err(format!("{} in chunks of {chunk}: best id differs at {position}", prompt.name));
            }
        }
    }
    let is_greedy = |prompt: &&Prompt| prompt.name == expected.greedy.prompt;
    let prompt = expected.prompts.iter().find(is_greedy).ok_or("greedy prompt is missing")?;
    let n = expected.greedy.token_ids.len();
    let ids = greedy(program, &prompt.token_ids, n).map_err(|e| e.to_string())?;
    let sure = expected.greedy.margin.iter().take_while(|m| **m > close.margin).count();
    if ids[..sure] != expected.greedy.token_ids[..sure] {
        return Err(format!("greedy gave {ids:?}, expected {:?}", &expected.greedy.token_ids[..sure]));
    }
    Ok(())
}

/// Checks a backend that rounds activations to 8 bits: no more than twice as far off as llama.cpp, and the best id
/// the same at four positions of five.
pub fn check_int8(program: &mut dyn Program, expected: &Expected) -> Result<(), String> {
    let peer = expected.peer_rms().ok_or("the peer's deviation is missing")?;
    let (mut squares, mut same, mut positions) = (Vec::new(), 0, 0);
    for prompt in &expected.prompts {
        let rows = logits(program, &prompt.token_ids, 512).map_err(|e| e.to_string())?;
        let last = rows.last().ok_or("no logits")?;
        let errors = last.iter().zip(&prompt.last_logits).map(|(a, b)| f64::from(a - b).powi(2));
        squares.push(errors.sum::<f64>() / last.len() as f64);
        same += rows.iter().zip(&prompt.argmax).filter(|(row, best)| argmax(row) == **best).count();
        positions += rows.len();
    }
    let rms = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
    if rms.is_nan() || rms > 2.0 * peer {
        return Err(format!("last logits are off by rms {rms:.4}, llama.cpp by {peer:.4}"));
    }
    if same * 5 < positions * 4 {
        return Err(format!("only {same} of {positions} best ids agree"));
    }
    Ok(())
}

/// Logits at every position as the reference computed them, by prompt name.
pub fn all_logits(path: &Path) -> Result<Vec<(String, Vec<f32>)>, String> {
    let file = metallic_formats::SafeTensors::open(path).map_err(|e| e.to_string())?;
    let numbers = |data: &[u8]| data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let named = |name: &str| name.trim_start_matches("logits_").to_owned();
    Ok(file.tensors().map(|t| (named(&t.name), numbers(&t.data))).collect())
}
