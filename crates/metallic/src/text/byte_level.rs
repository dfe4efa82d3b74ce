//! The byte alphabet of byte-level BPE: every byte is written as one printable character.
//!
//! Bytes that are printable in Latin-1 stand for themselves; the other 68 take the characters from U+0100 on, in order.

/// The character that stands for `byte`.
pub(super) fn byte_to_char(byte: u8) -> char {
    let shifted = match byte {
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7F..=0xA0 => 0x121 + u32::from(byte) - 0x7F,
        0xAD => 0x143,
        _ => u32::from(byte),
    };
    char::from_u32(shifted).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that `c` stands for, if it is a letter of the alphabet.
pub(super) fn char_to_byte(c: char) -> Option<u8> {
    let c = u32::from(c);
    match c {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => Some(c as u8),
        0x100..=0x120 => Some((c - 0x100) as u8),
        0x121..=0x142 => Some((c - 0x121 + 0x7F) as u8),
        0x143 => Some(0xAD),
        _ => None,
    }
}

/// Appends the bytes that `text` stands for. Text with a foreign character stands for itself.
pub(super) fn decode_into(text: &str, out: &mut Vec<u8>) {
    let start = out.len();
    for c in text.chars() {
        let Some(byte) = char_to_byte(c) else {
            out.truncate(start);
            out.extend_from_slice(text.as_bytes());
            return;
        };
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_a_bijection_on_all_bytes() {
        let letters: std::collections::HashSet<char> = (0..=255).map(byte_to_char).collect();
        assert_eq!(letters.len(), 256);
        for byte in 0..=255 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        assert_eq!(byte_to_char(b' '), 'Ġ');
        assert_eq!(byte_to_char(b'\n'), 'Ċ');
        assert_eq!(char_to_byte('€'), None);
    }
}
