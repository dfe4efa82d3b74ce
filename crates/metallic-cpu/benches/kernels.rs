//! Rates of the matrix products: GB/s of weights for one token, GMAC/s for many.
//!
//! `cargo bench -p metallic-cpu --bench kernels [-- FILTER...]`; a line is printed where its name has every filter.

use std::time::{Duration, Instant};

use metallic_core::DType;
use metallic_cpu::simd::{
    Accumulate, Activations, Isa, KvType, Matmul, PackedMatrix, QuantizedRows, SharedOut, Team, Weights,
    accumulate_rows, dot_rows, matmul, store_row,
};

const TYPES: [DType; 8] =
    [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4K, DType::Q5K, DType::Q6K, DType::F16, DType::F32];
/// In the second-level cache, in the last, beyond both.
const DECODE: [(usize, usize); 4] = [(1536, 576), (49152, 512), (4096, 4096), (49152, 4096)];
const PREFILL: [usize; 2] = [128, 512];

fn main() {
    let filters: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let wanted = |name: &str| filters.iter().all(|f| name.contains(f.as_str()));
    fork_join();
    for isa in Isa::available() {
        for kind in KvType::ALL {
            let name = format!("cache/{}/{kind:?}/64", isa.name());
            if wanted(&name) {
                println!("{name:48} {:22.1} GMAC/s", cache_rows(isa, kind, 64));
            }
        }
    }
    for threads in [1, 2] {
        let team = Team::new(threads).expect("threads");
        for isa in Isa::available() {
            for dtype in TYPES {
                for (rows, cols) in DECODE {
                    // Blocks of 256 do not fill rows of 576.
                    let cols = cols.next_multiple_of(dtype.block_len());
                    let name = format!("decode/{}/{dtype}/{rows}x{cols}/t{threads}", isa.name());
                    if wanted(&name) {
                        let (time, bytes) = product(isa, &team, dtype, (rows, cols), 1);
                        println!("{name:48} {:9.1} us {:7.1} GB/s", time * 1e6, bytes as f64 / time / 1e9);
                    }
                }
                for tokens in PREFILL {
                    let (rows, cols) = (1536, 1024);
                    let name = format!("prefill{tokens}/{}/{dtype}/{rows}x{cols}/t{threads}", isa.name());
                    if wanted(&name) {
                        let (time, _) = product(isa, &team, dtype, (rows, cols), tokens);
                        let macs = (rows * cols * tokens) as f64;
                        println!("{name:48} {:9.1} us {:7.1} GMAC/s", time * 1e6, macs / time / 1e9);
                    }
                }
            }
        }
    }
}

/// Seconds of a product, quantisation included, and the bytes of its weights.
fn product(isa: Isa, team: &Team, dtype: DType, shape: (usize, usize), tokens: usize) -> (f64, usize) {
    let (rows, cols) = shape;
    let bytes = vec![0x11; dtype.bytes_for(rows * cols).expect("whole blocks")];
    let matrix = PackedMatrix::pack(team, dtype, shape, &bytes).expect("a valid matrix");
    let x: Vec<f32> = (0..tokens * cols).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut quantized = QuantizedRows::new();
    let mut out = vec![0.0; tokens * rows];
    let time = best(|| {
        let x = if matrix.is_quantized() {
            quantized.quantize(isa, team, &x, cols);
            Activations::Q8(&quantized)
        } else {
            Activations::F32 { values: &x, cols }
        };
        let product = Matmul {
            weights: Weights::Plain(&matrix),
            x,
            bias: None,
            accumulate: Accumulate::Replace,
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

/// Attention of one head over 256 cached tokens: scores and weighted sums, in GMAC/s.
fn cache_rows(isa: Isa, kind: KvType, len: usize) -> f64 {
    let tokens = 256;
    let stride = kind.row_bytes(len);
    let mut bytes = vec![0; tokens * stride];
    let q: Vec<f32> = (0..len).map(|i| (i as f32).cos()).collect();
    for row in bytes.chunks_mut(stride) {
        store_row(isa, kind, &q, row);
    }
    let (mut scores, mut out) = (vec![0.0; tokens], vec![0.0; len]);
    let time = best(|| {
        for block in bytes.chunks(32 * stride) {
            let scores = &mut scores[..block.len() / stride];
            dot_rows(isa, kind, (block, stride), &q, scores);
            accumulate_rows(isa, kind, (block, stride), scores, &mut out);
        }
        out.fill(0.0);
    });
    (2 * tokens * len) as f64 / time / 1e9
}

/// The fastest of the runs that fit in a fifth of a second: the machine is shared.
fn best(mut run: impl FnMut()) -> f64 {
    run();
    let begin = Instant::now();
    let mut best = f64::INFINITY;
    while begin.elapsed() < Duration::from_millis(150) {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}
