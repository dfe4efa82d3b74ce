//! What the processor reaches at best, with all threads: memory that is read or copied, and the product kernel on the shape it likes.

use std::convert::Infallible;
use std::time::Instant;

use metallic_core::{BackendError, DType, Peaks, best_rate};

use crate::simd::{Activations, Factors, Grain, Matmul, PackedMatrix, QuantizedRows, SharedOut, matmul};
use crate::{Processor, failed, no_room};

/// Bytes that are read: more than any cache holds of them.
const BYTES: usize = 256 << 20;
/// Words of a task.
const CHUNK: usize = 1 << 15;
/// A product whose sides stay in the caches of the cores: rows and columns of the matrix, and tokens.
const PRODUCT: (usize, usize, usize) = (1536, 1024, 256);
/// Types of matrices whose products are the fastest, on one processor or another.
const TYPES: [DType; 3] = [DType::Q8_0, DType::Q4_0, DType::F32];

/// Measures them.
pub(crate) fn measure(p: Processor<'_>) -> Result<Peaks, BackendError> {
    let words = BYTES / size_of::<u64>();
    let mut memory = numbers(words)?;
    let bytes = BYTES as f64;
    let reading = || {
        std::hint::black_box(sum(p, &memory));
    };
    let read = rate(bytes, reading);
    let (to, from) = memory.split_at_mut(words / 2);
    let copy = rate(bytes, || copied(p, from, to));
    drop(memory);
    let mut multiply_adds: f64 = 0.0;
    for dtype in TYPES {
        multiply_adds = multiply_adds.max(product(p, dtype, PRODUCT)?);
    }
    Ok(Peaks { read, copy, multiply_adds, by: "the product kernel at its best" })
}

/// How much is done a second at best, where `work` does `amount`.
fn rate(amount: f64, mut work: impl FnMut()) -> f64 {
    let Ok(rate) = best_rate(amount, |repeats| {
        let start = Instant::now();
        (0..repeats).for_each(|_| work());
        Ok::<_, Infallible>(start.elapsed())
    });
    rate
}

/// So many words that differ, so that each has its own page.
fn numbers(words: usize) -> Result<Vec<u64>, BackendError> {
    let mut numbers = Vec::new();
    numbers.try_reserve_exact(words).map_err(|_| no_room("a measurement", words * size_of::<u64>()))?;
    numbers.extend(0..words as u64);
    Ok(numbers)
}

/// The sum of all words.
fn sum(p: Processor<'_>, words: &[u64]) -> u64 {
    let mut sums = vec![0u64; words.len().div_ceil(CHUNK)];
    p.team.for_chunks(&mut sums, 1, |chunk, sum| {
        let part = &words[chunk * CHUNK..words.len().min((chunk + 1) * CHUNK)];
        sum[0] = part.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word));
    });
    sums.iter().fold(0, |sum, part| sum.wrapping_add(*part))
}

fn copied(p: Processor<'_>, from: &[u64], to: &mut [u64]) {
    p.team.for_chunks(to, CHUNK, |chunk, to| to.copy_from_slice(&from[chunk * CHUNK..][..to.len()]));
    std::hint::black_box(to);
}

/// Multiply-adds a second of a product with a matrix of this type.
fn product(
    p: Processor<'_>,
    dtype: DType,
    (rows, cols, tokens): (usize, usize, usize),
) -> Result<f64, BackendError> {
    // As scales of blocks and as halves these are small numbers.
    let bytes = vec![0x11; dtype.bytes_for(rows * cols).ok_or_else(|| failed("columns of part blocks"))?];
    let matrix = PackedMatrix::pack(p.team, dtype, (rows, cols), &bytes).map_err(failed)?;
    let x: Vec<f32> = (0..tokens * cols).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut quantized = QuantizedRows::default();
    let x = if matrix.is_quantized() {
        quantized.quantize(p.isa, p.team, &x, cols, Grain::Group);
        quantized.all()
    } else {
        Activations::F32 { values: &x, cols }
    };
    let mut out = vec![0.0; tokens * rows];
    let mut once = || {
        let (weights, out) = (Factors::Plain(&matrix), SharedOut::new(&mut out, rows));
        matmul(p.isa, p.team, &mut [Matmul { weights, x, bias: None, residual: None, out }]);
    };
    let rate = rate((rows * cols * tokens) as f64, &mut once);
    std::hint::black_box(out);
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Isa, Team};

    #[test]
    fn what_is_measured_reads_and_copies_every_word() {
        let team = Team::new(2).unwrap();
        let p = Processor { isa: Isa::detect(), team: &team };
        // Two tasks and a part of one.
        let words = 2 * CHUNK + 7;
        let memory = numbers(words).unwrap();
        assert_eq!(sum(p, &memory), (words as u64 - 1) * words as u64 / 2);
        let mut copy = vec![0; words];
        copied(p, &memory, &mut copy);
        assert!(copy == memory);
        let rates = TYPES.map(|dtype| product(p, dtype, (64, 256, 4)).unwrap());
        assert!(rates.iter().all(|rate| rate.is_finite() && *rate > 0.0), "{rates:?}");
    }
}
