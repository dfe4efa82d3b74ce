//! Rates of matrix products and attention: GB/s of weights or cache for one token, GMAC/s for many.
//!
//! `cargo bench -p metallic-cpu --features bench --bench kernels [-- FILTER...]`; a line is printed where its name has every filter.

use std::time::{Duration, Instant};

use metallic_core::sample::{Choice, Choices, Edit, Scratch, gumbel, philox};
use metallic_core::{BLOCK_TOKENS, DType};
use metallic_cpu::simd::{
    Activations, Factors, Grain, Isa, KvBlock, KvType, Matmul, PackedMatrix, QuantizedRows, SharedOut, Team,
    Tile, TileShape, choose, matmul, store_key, store_value,
};

const TYPES: [DType; 8] =
    [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4K, DType::Q5K, DType::Q6K, DType::F16, DType::F32];
/// In the second-level cache, in the last, beyond both.
const DECODE: [(usize, usize); 4] = [(1536, 576), (49152, 512), (4096, 4096), (49152, 4096)];
/// Weights, and the activations they meet.
type Kind = (DType, Grain);
const PREFILL: [usize; 2] = [128, 512];
/// Tokens of a large vocabulary.
const VOCAB: u32 = 152_064;
/// Tokens that are checked together, or a few answers side by side.
const FEW: [usize; 6] = [1, 2, 3, 4, 8, 16];

fn main() {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let wanted = |name: &str| filters.iter().all(|f| name.contains(f.as_str()));
    fork_join();
    for isa in Isa::available() {
        for kind in KvType::ALL {
            for (head_dim, group) in [(64, 3), (128, 1)] {
                let shape = |tokens, position| TileShape {
                    kind,
                    head_dim,
                    value_dim: head_dim,
                    tokens,
                    group,
                    position,
                    window: None,
                    softcap: None,
                };
                let name = format!("attention512/{}/{kind:?}/{group}x{head_dim}", isa.name());
                if wanted(&name) {
                    let time: f64 =
                        (0..512).step_by(16).map(|position| attention(isa, shape(16, position))).sum();
                    let macs = (2 * group * head_dim * 512 * 513 / 2) as f64;
                    println!("{name:48} {:9.1} us {:7.1} GMAC/s", time * 1e6, macs / time / 1e9);
                }
                let name = format!("attention1/{}/{kind:?}/{group}x{head_dim}", isa.name());
                if wanted(&name) {
                    let time = attention(isa, shape(1, 4095));
                    let bytes = (2 * 4096 / BLOCK_TOKENS * kind.block_bytes(head_dim)) as f64;
                    println!("{name:48} {:9.1} us {:7.1} GB/s", time * 1e6, bytes / time / 1e9);
                }
            }
        }
    }
    for isa in Isa::available() {
        for (label, choice, edits) in choices() {
            let name = format!("choose/{}/{label}", isa.name());
            if wanted(&name) {
                println!("{name:48} {:9.1} us of a row of {VOCAB}", choosing(isa, choice, edits) * 1e6);
            }
        }
    }
    for threads in [1, 2] {
        let team = Team::new(threads).expect("threads");
        for isa in Isa::available() {
            let halves =
                TYPES.into_iter().filter(|dtype| dtype.is_quantized()).map(|dtype| (dtype, Grain::Half));
            for kind in TYPES.map(|dtype| (dtype, Grain::Group)).into_iter().chain(halves) {
                let dtype = kind.0;
                let label = if kind.1 == Grain::Half { format!("{dtype}-halves") } else { dtype.to_string() };
                for (rows, cols) in DECODE {
                    // Blocks of 256 do not fill rows of 576.
                    let cols = cols.next_multiple_of(dtype.block_len());
                    let name = format!("decode/{}/{label}/{rows}x{cols}/t{threads}", isa.name());
                    if wanted(&name) {
                        let (time, bytes) = product(isa, &team, kind, (rows, cols), 1);
                        println!("{name:48} {:9.1} us {:7.1} GB/s", time * 1e6, bytes as f64 / time / 1e9);
                    }
                }
                for tokens in FEW {
                    let (rows, cols) = (49152, 1024);
                    let name = format!("few{tokens}/{}/{label}/{rows}x{cols}/t{threads}", isa.name());
                    if wanted(&name) {
                        let (time, bytes) = product(isa, &team, kind, (rows, cols), tokens);
                        println!("{name:48} {:9.1} us {:7.1} GB/s", time * 1e6, bytes as f64 / time / 1e9);
                    }
                }
                for tokens in PREFILL {
                    let (rows, cols) = (1536, 1024);
                    let name = format!("prefill{tokens}/{}/{label}/{rows}x{cols}/t{threads}", isa.name());
                    if wanted(&name) {
                        let (time, _) = product(isa, &team, kind, (rows, cols), tokens);
                        let macs = (rows * cols * tokens) as f64;
                        println!("{name:48} {:9.1} us {:7.1} GMAC/s", time * 1e6, macs / time / 1e9);
                    }
                }
            }
        }
    }
}

/// Ways to choose a token, and how many tokens before it have penalties.
fn choices() -> [(&'static str, Choice, u32); 6] {
    let plain = Choice::default();
    let penalties = Choice { repetition: 1.1, presence: 0.5, frequency: 0.1, ..plain };
    [
        ("greedy", Choice::greedy(), 0),
        ("temperature", plain, 0),
        ("top-k, top-p, min-p", Choice { temperature: 0.7, top_k: 40, top_p: 0.95, min_p: 0.05, ..plain }, 0),
        ("top-p", Choice { top_p: 0.95, ..plain }, 0),
        ("penalties, top-p", Choice { top_p: 0.95, ..penalties }, 64),
        ("typical", Choice { typical: 0.9, ..plain }, 0),
    ]
}

/// Seconds of one choice, the mean of several draws, from a row like that of a model: most far below a few.
fn choosing(isa: Isa, choice: Choice, edits: u32) -> f64 {
    const DRAWS: u64 = 16;
    let noise = |i: u32, word: usize| gumbel(philox([i, 0, 0, 0], [1, 2])[word]);
    let logits: Vec<f32> =
        (0..VOCAB).map(|i| noise(i, 0) * 1.7 + if i % 997 == 0 { 8.0 + noise(i, 1) } else { 0.0 }).collect();
    let edits: Vec<Edit> = (0..edits).map(|i| Edit { id: i * 997, count: 1 + i % 3, bias: 0.0 }).collect();
    let mut packed = Choices::default();
    for draw in 0..DRAWS {
        packed.push(&Choice { seed: 5, draw, ..choice }, &edits).expect("choices of a benchmark");
    }
    let (words, mut scratch) = (packed.words(), Scratch::default());
    let all = best(|| {
        for row in 0..DRAWS as usize {
            let chosen = choose(isa, words, row, &logits, &mut scratch);
            assert!(chosen.is_ok_and(|id| id.is_some()), "a token of a row of numbers");
        }
    });
    all / DRAWS as f64
}

/// Seconds of a product, quantisation included, and the bytes of its weights.
fn product(
    isa: Isa,
    team: &Team,
    (dtype, grain): Kind,
    shape: (usize, usize),
    tokens: usize,
) -> (f64, usize) {
    let (rows, cols) = shape;
    let bytes = vec![0x11; dtype.bytes_for(rows * cols).expect("whole blocks")];
    let mut matrix = PackedMatrix::pack(team, dtype, shape, &bytes).expect("a valid matrix");
    if grain == Grain::Half {
        matrix.take_halves();
    }
    let x: Vec<f32> = (0..tokens * cols).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut quantized = QuantizedRows::default();
    let mut out = vec![0.0; tokens * rows];
    let time = best(|| {
        let x = if matrix.is_quantized() {
            quantized.quantize(isa, team, &x, cols, grain);
            quantized.all()
        } else {
            Activations::F32 { values: &x, cols }
        };
        let product = Matmul {
            weights: Factors::Plain(&matrix),
            x,
            bias: None,
            residual: None,
            out: SharedOut::new(&mut out, rows),
        };
        matmul(isa, team, &mut [product]);
    });
    (time, matrix.bytes())
}

/// What a fork and join of two threads adds to two tasks of 5 us.
fn fork_join() {
    let team = Team::new(2).expect("threads");
    let task = Duration::from_micros(5);
    let time = best(|| {
        team.run(2, &|_| {
            let begin = Instant::now();
            while begin.elapsed() < task {
                std::hint::spin_loop();
            }
        });
    });
    println!("fork-join of 2 threads: {:.2} us", (time - task.as_secs_f64()) * 1e6);
}

/// Seconds of one key/value head over all a tile sees, on one thread.
fn attention(isa: Isa, shape: TileShape) -> f64 {
    let blocks = (shape.position + shape.tokens).div_ceil(BLOCK_TOKENS);
    let bytes = shape.kind.block_bytes(shape.head_dim);
    let (mut keys, mut values) = (vec![0; blocks * bytes], vec![0; blocks * bytes]);
    let q: Vec<f32> = (0..shape.head_dim).map(|i| (i as f32).cos()).collect();
    for position in 0..blocks * BLOCK_TOKENS {
        let (at, position) = (position / BLOCK_TOKENS * bytes, position % BLOCK_TOKENS);
        store_key(isa, shape.kind, &q, position, &mut keys[at..at + bytes]);
        store_value(isa, shape.kind, &q, position, &mut values[at..at + bytes]);
    }
    let mut memory = vec![0.0; shape.memory().expect("a tile of one query fits")];
    best(|| {
        let mut tile = Tile::new(shape, &mut memory);
        for query in 0..shape.queries() {
            tile.set(query, &q, 0.1);
        }
        for block in 0..blocks {
            let head = |block: usize| {
                let range = block * bytes..(block + 1) * bytes;
                KvBlock { keys: &keys[range.clone()], values: &values[range] }
            };
            tile.attend(isa, block, (head(block), head((block + 1).min(blocks - 1))));
        }
    })
}

/// The fastest of the runs that fit in a while: the machine is shared.
fn best(mut run: impl FnMut()) -> f64 {
    run();
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed() < Duration::from_millis(100) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
