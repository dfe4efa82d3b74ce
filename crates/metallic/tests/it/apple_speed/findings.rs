//! What the counts say, with the figures they say it by.

use std::fmt::Write;

use metallic::core::{DType, KernelCount};
use metallic::roof::{Chip, Reached};

use super::Counted;
use super::page::{chip, number, speed, sum};

/// Tests by their place in [`super::TESTS`].
const ONE: usize = 0;
const DEEP: usize = 1;
const EIGHT: usize = 2;
const PROMPT: usize = 3;

/// Chips of every grade.
const CHIPS: [&str; 4] = ["M4 (10)", "M4 Pro (20)", "M4 Max (40)", "M3 Ultra (80)"];

/// Cores are less than half busy.
const IDLE: f64 = 0.5;

pub(super) fn findings(all: &[Counted]) -> String {
    let max = chip("M4 Max (40)");
    let of = |model: &str, dtype: DType| {
        all.iter().find(|counted| counted.model == model && counted.dtype == dtype).unwrap()
    };
    let (small, large) = (of("Qwen2.5-0.5B", DType::Q4_0), of("Qwen2.5-7B", DType::Q4_0));
    let mut text = String::new();
    text += &traffic(all, large, max);
    text += &idle(all);
    text += &deep(small, large, max);
    text += &launches(all, max);
    text += &promising(small, large, max);
    wrapped(&text)
}

/// Lines of a page's width; tables stay as they are, and what belongs to a list is set in.
fn wrapped(text: &str) -> String {
    const WIDTH: usize = 150;
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with('|') {
            let _ = writeln!(out, "{line}");
            continue;
        }
        let inset = if line.starts_with(|first: char| first.is_ascii_digit()) { "   " } else { "" };
        let mut row = String::new();
        for word in line.split(' ') {
            if !row.trim().is_empty() && row.chars().count() + word.chars().count() >= WIDTH {
                let _ = writeln!(out, "{}", row.trim_end());
                inset.clone_into(&mut row);
            }
            row += word;
            row.push(' ');
        }
        let _ = writeln!(out, "{}", row.trim_end());
    }
    out
}

fn mega(bytes: u64) -> String {
    number(bytes as f64 / 1e6)
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.0} %", 100.0 * part / whole)
}

fn traffic(all: &[Counted], large: &Counted, max: &Chip) -> String {
    let again = |test: usize| {
        let of = |counted: &Counted| sum(counted.on(max, test), |k| k.moved - k.distinct);
        all.iter().map(of).max().unwrap_or_default()
    };
    let (one, prompt) = (large.on(max, ONE), large.on(max, PROMPT));
    let weights: Vec<&KernelCount> = one.iter().filter(|k| k.vectors_again > 0).collect();
    let vectors: u64 = weights.iter().map(|k| k.vectors_again).sum();
    let bytes: u64 = weights.iter().map(|k| k.moved).sum();
    let (moved, twice) = (sum(prompt, |k| k.moved), sum(prompt, |k| k.moved - k.distinct));
    let tiles = prompt.iter().filter(|k| k.kernel == "matmul_project").copied().collect::<Vec<_>>();
    let arithmetic = 2.0 * sum(&tiles, |k| k.multiply_adds) as f64 / (max.flops() * Reached::STATED.rate);
    let memory = sum(&tiles, |k| k.moved) as f64 / (max.bandwidth.value * 1e9 * Reached::STATED.bandwidth);
    format!(
        "**Traffic.** No launch of a decode step reads a byte of memory twice: with one sequence {} MB at most over all models, with 4096 tokens in the \
         cache {}, with eight sequences {}. A prompt of 512 goes over the weights once for every 64 tokens: {} of Qwen2.5-7B Q4_0's {} MB are read again. By \
         the rates stated that costs nothing yet (its products take {} ms of an M4 Max's arithmetic and {} ms of its memory), and would where arithmetic is {:.1} times as fast. \
         What is read again is vectors: each block of four rows reads the token's and the norm's, {} MB out of caches \
         beside {} MB of weights in a decode step of the same model, {:.1} times as much.\n\n",
        mega(again(ONE)),
        mega(again(DEEP)),
        mega(again(EIGHT)),
        mega(twice),
        mega(moved),
        number(1e3 * arithmetic),
        number(1e3 * memory),
        arithmetic / memory,
        mega(vectors),
        mega(bytes),
        vectors as f64 / bytes as f64,
    )
}

/// The share of a step's bytes that is moved by kernels that leave cores idle.
fn idle_share(counted: &Counted, chip: &Chip, test: usize) -> f64 {
    let kernels = counted.on(chip, test);
    let idle: u64 = kernels.iter().filter(|k| chip.busy(k) < IDLE).map(|k| k.moved).sum();
    idle as f64 / sum(kernels, |k| k.moved) as f64
}

fn idle(all: &[Counted]) -> String {
    let mut text = String::from(
        "**Occupancy.** The share of a step's bytes that is moved by kernels with fewer simdgroups on a core than half of what keeps it busy, in Q4_0; first one \
         token, then eight sequences:\n\n",
    );
    let _ = writeln!(text, "| | {} |", CHIPS.map(|title| chip(title).name).join(" | "));
    let _ = writeln!(text, "| --- |{}", " --- |".repeat(CHIPS.len()));
    for counted in all.iter().filter(|counted| counted.dtype == DType::Q4_0) {
        let shares = CHIPS.map(|title| {
            let of = |test| percent(idle_share(counted, chip(title), test), 1.0);
            format!("{}, {}", of(ONE), of(EIGHT))
        });
        let _ = writeln!(text, "| {} | {} |", counted.model, shares.join(" | "));
    }
    text + "\n"
}

fn attention<'k>(counted: &'k Counted, chip: &Chip, test: usize) -> &'k KernelCount {
    counted.on(chip, test).iter().find(|k| k.kernel.starts_with("attention_decode")).unwrap()
}

fn deep(small: &Counted, large: &Counted, max: &Chip) -> String {
    let [few, many] = [small, large].map(|counted| max.resident(attention(counted, max, DEEP)));
    let start = attention(large, max, ONE);
    format!(
        "Attention over 4096 tokens has {few:.1} simdgroups on a core of an M4 Max for Qwen2.5-0.5B and {many:.1} for 7B: one for each block of 32 tokens \
         of a key/value head, so splits of less than their eight blocks would put no more to work. Up to 1024 tokens a row stays whole ({} threadgroups for \
         7B), which saves a launch and leaves most cores idle.\n\n",
        start.groups
    )
}

fn launches(all: &[Counted], max: &Chip) -> String {
    let mut text =
        String::from("**Launches.** Of the time counted for a token on an M4 Max, launches at 2 µs are ");
    let shares: Vec<String> = all
        .iter()
        .filter(|counted| counted.dtype == DType::Q4_0)
        .map(|counted| {
            let kernels = counted.on(max, ONE);
            let launches = sum(kernels, |k| k.launches);
            let share =
                launches as f64 * Reached::STATED.launch / max.step_seconds(kernels, &Reached::STATED);
            format!("{} for {} ({launches} of them)", percent(share, 1.0), counted.model)
        })
        .collect();
    text += &shares.join(", ");
    text + ", all in Q4_0.\n\n"
}

fn promising(small: &Counted, large: &Counted, max: &Chip) -> String {
    let down = |counted: &Counted| {
        let kernels = counted.on(max, ONE);
        let narrow = kernels.iter().filter(|k| k.op == "project" && k.launches > 1);
        narrow.map(|k| max.resident(k)).fold(f64::INFINITY, f64::min)
    };
    let eight = large.on(max, EIGHT).iter().find(|k| k.kernel == "matvec_8").unwrap();
    format!(
        "**The three most promising changes for decode**, by these counts:\n\n\
         1. *Columns of short matrices shared out between simdgroups.* Four rows of all columns are the least a simdgroup takes, so the projections out of \
         attention and of the feed-forward have {:.1} simdgroups on a core of an M4 Max for Qwen2.5-0.5B and {:.1} for 7B, where 48 keep it busy. Two to eight \
         simdgroups a row would fill it; the order of sums must then follow from the matrix alone.\n\
         2. *Vectors read less often.* Eight rows a lane, or vectors that lie in threadgroup memory once for a threadgroup, halve what comes out of caches, which \
         is more than the weights are.\n\
         3. *Less threadgroup memory for eight sequences.* `matvec_8` takes {} KiB a threadgroup, so a core holds {:.0} simdgroups ({:.0} %). Lanes' parts brought \
         together in two rounds of four tokens would take half of it and hold twice as many. By the rates stated its arithmetic bounds it, not its bytes: eight \
         sequences of 7B come to {:.1} times one, so products by matrices of 8 are worth a try there, too.\n\n\
         For models as small as SmolLM2 launches come first: a layer's five could only become fewer by kernels that wait for each other.\n",
        down(small),
        down(large),
        number(f64::from(eight.threadgroup_bytes) / 1024.0),
        max.resident(eight),
        100.0 * max.busy(eight),
        speed(large, max, EIGHT) / speed(large, max, ONE),
    )
}
