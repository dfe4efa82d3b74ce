//! Logits of tokens that are not allowed.

/// Writes into `row` the logits of tokens whose bit is set, and bans all others: bit `i` of the words, lowest first, is token `i`.
/// Tokens past the last word are banned.
pub(super) fn write(allowed: &[u32], logits: &[f32], row: &mut Vec<f32>) {
    row.resize(logits.len(), f32::NEG_INFINITY);
    let (chunks, rest) = row.as_chunks_mut::<32>();
    let (from, from_rest) = logits.as_chunks::<32>();
    let mut words = allowed.iter().copied().chain(std::iter::repeat(0));
    for ((chunk, from), word) in chunks.iter_mut().zip(from).zip(&mut words) {
        match word {
            u32::MAX => *chunk = *from,
            0 => chunk.fill(f32::NEG_INFINITY),
            word => {
                for (bit, (to, from)) in chunk.iter_mut().zip(from).enumerate() {
                    *to = if word >> bit & 1 == 1 { *from } else { f32::NEG_INFINITY };
                }
            }
        }
    }
    let word = words.next().unwrap_or(0);
    for (bit, (to, from)) in rest.iter_mut().zip(from_rest).enumerate() {
        *to = if word >> bit & 1 == 1 { *from } else { f32::NEG_INFINITY };
    }
}

#[cfg(test)]
mod tests {
    use super::write;

    #[test]
    fn every_token_without_its_bit_is_banned() {
        for vocab in [1, 31, 32, 33, 64, 95, 100] {
            let words = [0xdead_beef_u32, u32::MAX];
            let logits: Vec<f32> = (0..vocab).map(|i| i as f32).collect();
            // What was written for another place, of another length, does not show through.
            let mut row = vec![7.0; 50];
            write(&words, &logits, &mut row);
            assert_eq!(row.len(), vocab);
            for (i, logit) in row.iter().enumerate() {
                let allowed = words.get(i / 32).is_some_and(|word| word >> (i % 32) & 1 == 1);
                assert_eq!(
                    *logit,
                    if allowed { i as f32 } else { f32::NEG_INFINITY },
                    "token {i} of {vocab}"
                );
            }
        }
    }
}
