//! The page, made of counts.

use std::fmt::Write;

use metallic::core::{DType, KernelCount};
use metallic::roof::{CHIPS, Chip, Reached};

use super::findings::findings;
use super::{Counted, TESTS};

/// Chips that the tables of kernels have a time for; the first has its launches shown.
pub(super) const SHOWN: [&str; 5] = ["M4 Max (40)", "M1 (8)", "M2 Pro (19)", "M4 (10)", "M3 Ultra (80)"];

/// Of its memory, a chip gives weights at most this share.
const ROOM: f64 = 0.75;

pub(super) fn chip(title: &str) -> &'static Chip {
    Chip::named(title).first().copied().unwrap()
}

pub(super) fn page(all: &[Counted]) -> String {
    let mut page = INTRO.to_owned();
    page += "\n## Tokens a second that the counts allow\n\n";
    page += ALLOWED;
    for (test, title) in TITLES.iter().enumerate() {
        let _ = write!(page, "\n### {title}\n\n{}", allowed(all, test));
    }
    let _ = write!(page, "\n## A step, counted\n\n{STEP}\n{}", steps(all));
    let _ = write!(page, "\n## What the counts say\n\n{}", findings(all));
    let _ = write!(page, "\n## How it is computed\n\n{HOW}");
    let _ = write!(page, "\n## Chips\n\n{CHIPS_TEXT}\n{}", chips());
    let _ = write!(page, "\n## Kernel by kernel\n\n{KERNELS}");
    for counted in all.iter().filter(|counted| counted.dtype == DType::Q4_0) {
        for (test, title) in TITLES.iter().enumerate() {
            let _ =
                write!(page, "\n### {}, Q4_0: {}\n\n{}", counted.model, lower(title), kernels(counted, test));
        }
    }
    page
}

const TITLES: [&str; TESTS.len()] = [
    "One token, nothing in the cache",
    "One token, 4096 in the cache",
    "Eight sequences, a token each",
    "A prompt of 512 tokens",
];

const INTRO: &str = "\
# Apple's GPUs, counted

**Nothing on this page was measured on an Apple GPU.** Its figures are counts: the bytes, multiply-adds, launches and threadgroups of the very
plans that a Mac would run, set against public figures of Apple's chips and a stated efficiency. They say what the kernels ask for, and what a
chip would then allow; how fast they are is for the first person with a Mac to say, in one command:

```sh
metallic tool counts -m MODEL      # counted and measured side by side, operation by operation
```

It runs on every device that plans kernels; `--device null --chip \"M2 Max\"` counts without a GPU, which is how this page came about
(`cargo xtask apple-speed` writes it; a test fails where it is not what the plans give).
";

const ALLOWED: &str = "\
At 70 % of the memory bandwidth, 50 % of the arithmetic rate and 2 µs a launch: assumptions, the same for every kernel. Each chip in its largest
form; F16 cache; all matrices of the type named, the table of embeddings included (Q5_0 where rows are no whole blocks of Q4_K). A dash: the
weights take more than three quarters of the largest memory the chip is sold with.
";

const STEP: &str = "\
By the plans of an M4 Max; those of other chips move the same weights. MB are 10⁶ bytes, and count as often as memory is read.
";

const HOW: &str = "\
- **Plans.** Models of published shapes, as GGUF files without data, go through the loader, fusion and the planner with the limits of an Apple GPU
  (32 KiB of threadgroup memory, 1024 threads, simdgroups of 32). Plans differ between base chips, Pro, Max and Ultra alone, by the simdgroups that
  keep a GPU busy.
- **Bytes.** What a launch reads and writes, as often as its threadgroups go over it; *again* is the part that a launch has read before. Vectors of
  tokens, which every block of four rows reads, are counted apart: they come out of caches.
- **Time.** Of a launch, the longer of `bytes / (70 % of the bandwidth)` and `2 · multiply-adds / (50 % of the F32 rate)`, and 2 µs. Kernels multiply
  in F32; F16 would be no faster by the figures below. Occupancy is not in it: it is shown beside.
- **Simdgroups a core.** Threadgroups × simdgroups of each / cores, and no more than fit: 96 a core, and 64 KiB of threadgroup memory. Registers are
  not counted. 48 keep a core busy: the share is in brackets. Neither the 96, the 64 KiB nor the 48 are published by Apple: the first two are what others
  have measured on M1 and M2 (`metal-benchmarks`), the last is what the plans count with.
";

const CHIPS_TEXT: &str = "\
Bandwidth, cores and memory from Apple's newsroom articles on each chip and the technical specifications of Macs; `*`: not published by Apple. No clock
is: M1's and M2's are measured by others, and give the 2.6 and 3.6 teraflops that Apple states; M3's and M4's are those of public lists of hardware; M5's is
unknown, and M4's is taken. F16 has the rate of F32 (measured by others on M1 and M2). M5's matrix units are left out: no kernel here uses them. The data
are in `crates/metallic/src/roof/chips.rs`.
";

const KERNELS: &str = "\
Launches as an M4 Max would have them. Times in µs of all launches, each chip by its own plan. Other types differ in their bytes alone.
";

fn lower(title: &str) -> String {
    let mut letters = title.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

fn head(cells: &[String]) -> String {
    row(cells.iter().cloned()) + &row(cells.iter().map(|_| "---".to_owned()))
}

/// Three digits that count.
pub(super) fn number(x: f64) -> String {
    match x {
        _ if x == 0.0 => "0".to_owned(),
        _ if x < 10.0 => format!("{x:.2}"),
        _ if x < 100.0 => format!("{x:.1}"),
        _ => {
            let digits = format!("{x:.0}");
            let mut text = String::new();
            for (index, digit) in digits.chars().enumerate() {
                if index > 0 && (digits.len() - index).is_multiple_of(3) {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
    }
}

/// Tokens of a test's step.
fn tokens(test: usize) -> f64 {
    (TESTS[test].tokens * TESTS[test].sequences) as f64
}

pub(super) fn speed(counted: &Counted, chip: &Chip, test: usize) -> f64 {
    tokens(test) / chip.step_seconds(counted.on(chip, test), &Reached::STATED)
}

fn allowed(all: &[Counted], test: usize) -> String {
    let names = Chip::largest().map(|chip| chip.name.to_owned());
    let mut text = head(&["tokens/s".to_owned()].into_iter().chain(names).collect::<Vec<_>>());
    for counted in all {
        let speeds = Chip::largest().map(|chip| {
            let room = f64::from(chip.memory) * f64::from(1 << 30) * ROOM;
            let fits = counted.weight_bytes as f64 <= room;
            if fits { format!("{:.0}", speed(counted, chip, test)) } else { "–".to_owned() }
        });
        text += &row([format!("{} {}", counted.model, counted.dtype)].into_iter().chain(speeds));
    }
    text
}

pub(super) fn sum(kernels: &[KernelCount], of: impl Fn(&KernelCount) -> u64) -> u64 {
    kernels.iter().map(of).sum()
}

fn steps(all: &[Counted]) -> String {
    let max = chip(SHOWN[0]);
    let mut text = head(
        &[
            "model",
            "parameters (10⁶)",
            "weights, MB",
            "launches",
            "MB, one token",
            "at 4096",
            "eight sequences",
            "prompt of 512",
            "of it again",
            "10⁹ multiply-adds of the prompt",
        ]
        .map(str::to_owned),
    );
    for counted in all {
        let of = |test: usize| counted.on(max, test);
        let mega = |bytes: u64| number(bytes as f64 / 1e6);
        let moved = |test: usize| mega(sum(of(test), |k| k.moved));
        text += &row([
            format!("{} {}", counted.model, counted.dtype),
            mega(counted.parameters),
            mega(counted.weight_bytes),
            sum(of(0), |k| k.launches).to_string(),
            moved(0),
            moved(1),
            moved(2),
            moved(3),
            mega(sum(of(3), |k| k.moved - k.distinct)),
            number(sum(of(3), |k| k.multiply_adds) as f64 / 1e9),
        ]);
    }
    text
}

fn chips() -> String {
    let mut text = head(
        &["chip", "GPU cores", "GB/s", "GHz *", "F32 and F16, 10¹² op/s *", "memory up to, GB"]
            .map(str::to_owned),
    );
    for chip in CHIPS {
        let mark = if chip.bandwidth.published { "" } else { " *" };
        text += &row([
            chip.name.to_owned(),
            chip.cores.to_string(),
            format!("{}{mark}", chip.bandwidth.value),
            chip.clock.to_string(),
            format!("{:.1}", chip.flops() / 1e12),
            chip.memory.to_string(),
        ]);
    }
    text
}

fn kernels(counted: &Counted, test: usize) -> String {
    let max = chip(SHOWN[0]);
    let fixed = [
        "op, kernel",
        "launches",
        "threadgroups × threads",
        "KiB each",
        "MB (again)",
        "vectors again, MB",
        "10⁶ multiply-adds",
        "simdgroups a core",
    ];
    let times = SHOWN.iter().map(|title| chip(title).name.to_owned());
    let mut text = head(&fixed.map(str::to_owned).into_iter().chain(times).collect::<Vec<_>>());
    for kernel in counted.on(max, test) {
        let again = kernel.moved - kernel.distinct;
        let mega = |bytes: u64| number(bytes as f64 / 1e6);
        let moved = mega(kernel.moved);
        let cells = [
            format!("{}, `{}`", kernel.op, kernel.kernel),
            kernel.launches.to_string(),
            format!("{} × {}", kernel.groups, kernel.threads),
            number(f64::from(kernel.threadgroup_bytes) / 1024.0),
            if again > 0 { format!("{moved} ({})", mega(again)) } else { moved },
            mega(kernel.vectors_again),
            number(kernel.multiply_adds as f64 / 1e6),
            format!("{:.1} ({:.0} %)", max.resident(kernel), 100.0 * max.busy(kernel)),
        ];
        let times = SHOWN.iter().map(|title| {
            let chip = chip(title);
            let same = |other: &&KernelCount| same(kernel, other);
            let found = counted.on(chip, test).iter().find(same);
            found.map_or("–".to_owned(), |found| number(chip.seconds(found, &Reached::STATED) * 1e6))
        });
        text += &row(cells.into_iter().chain(times));
    }
    text
}

/// Whether two plans mean the same launches, however they cut them.
fn same(a: &KernelCount, b: &KernelCount) -> bool {
    (a.op, a.kernel, a.launches, a.multiply_adds) == (b.op, b.kernel, b.launches, b.multiply_adds)
}
