//! A bounded, repeatable fuzz run over both parsers: whatever is done to a valid file, reading it ends soon,
//! with a file whose every byte can be reached or with an error of one line. `fuzz/` runs without bound.

use std::path::Path;
use std::time::{Duration, Instant};

use metallic_core::Bytes;
use metallic_formats::{FormatError, Gguf, SafeTensors, Tensor};

const RUNS: u64 = 4000;

/// Values that lengths, counts and offsets break at.
const EDGES: [u64; 10] =
    [0, 1, 7, 0x7fff_ffff, 0xffff_ffff, 1 << 32, 1 << 60, i64::MAX as u64, 1 << 63, u64::MAX];

/// xorshift64*: the same run on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 16) as usize % n.max(1)
    }
}

/// Changes `bytes` in one to four ways, mostly within the first `head` bytes.
fn mutate(bytes: &mut Vec<u8>, head: usize, random: &mut Random) {
    for _ in 0..=random.below(4) {
        let len = if random.below(8) == 0 { bytes.len() } else { head.min(bytes.len()) };
        let at = random.below(len);
        match random.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            2 => bytes
                .iter_mut()
                .skip(at)
                .take(1 + random.below(16))
                .for_each(|byte| *byte = random.next() as u8),
            3 | 4 => {
                let width = [1, 2, 4, 8][random.below(4)];
                let edge =
                    EDGES[random.below(EDGES.len())].wrapping_add(random.below(3) as u64).wrapping_sub(1);
                bytes
                    .iter_mut()
                    .skip(at)
                    .zip(&edge.to_le_bytes()[..width])
                    .for_each(|(byte, new)| *byte = *new);
            }
            5 => {
                let end = (at + random.below(64)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            _ => {
                let end = (at + random.below(64)).min(bytes.len());
                let copy = bytes[at.min(end)..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
        }
    }
}

/// Reads every byte of every tensor and holds it to its shape.
fn reach<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> u64 {
    let mut sum = 0_u64;
    for tensor in tensors {
        assert_eq!(tensor.dtype.bytes_for(tensor.elements()), Some(tensor.data.len()), "{tensor:?}");
        sum += tensor.data.iter().map(|byte| u64::from(*byte)).sum::<u64>();
    }
    sum
}

/// Runs `parse` over mutations of the file `name`; returns how many of them were accepted.
fn run(name: &str, head: usize, parse: impl Fn(Bytes) -> Result<u64, FormatError>) -> u64 {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/bad").join(name);
    let valid = std::fs::read(path).unwrap();
    parse(valid.clone().into()).unwrap();
    let mut accepted = 0;
    for seed in 1..=RUNS {
        let mut bytes = valid.clone();
        mutate(&mut bytes, head, &mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let begin = Instant::now();
        match parse(bytes.into()) {
            Ok(_) => accepted += 1,
            Err(error) => {
                let text = error.to_string();
                assert!(!text.contains('\n') && text.len() < 1000, "seed {seed}: {text}");
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(1), "seed {seed} took {:?}", begin.elapsed());
    }
    accepted
}

/// Were nearly all refused at once, or nearly none, the run would test little.
fn assert_mixed(accepted: u64) {
    assert!((RUNS / 100..RUNS * 9 / 10).contains(&accepted), "{accepted} of {RUNS} were accepted");
}

#[test]
fn mutated_gguf_files_never_panic() {
    let parse = |bytes| {
        let file = Gguf::parse("mutated.gguf", bytes)?;
        Ok(file.metadata.iter().count() as u64 + reach(file.tensors()))
    };
    assert_mixed(run("control_valid.gguf", 5300, parse));
}

#[test]
fn mutated_safetensors_files_never_panic() {
    let parse = |bytes| {
        let file = SafeTensors::parse("mutated.safetensors", bytes)?;
        Ok(file.metadata().iter().count() as u64 + reach(file.tensors()))
    };
    assert_mixed(run("control_valid_hf/model.safetensors", 1120, parse));
}
