//! One memory seen as bytes, as floats or as words: numbers are read where they lie.

use std::collections::TryReserveError;

/// Bytes of tensors and files are little-endian, and so are numbers that are read where they lie.
const _: () = assert!(cfg!(target_endian = "little"), "numbers of this processor lie the other way round");

/// A cache line and a vector.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes that begin at the alignment of cache lines: rows that fill lines share none.
#[derive(Debug, Default)]
pub struct AlignedBytes {
    lines: Vec<Line>,
    /// Bytes in use, at most those of all lines.
    len: usize,
}

impl AlignedBytes {
    /// Makes room for at least `len` bytes; new ones are zeros.
    pub fn grow(&mut self, len: usize) -> Result<(), TryReserveError> {
        let lines = len.div_ceil(size_of::<Line>());
        if let Some(more) = lines.checked_sub(self.lines.len()) {
            self.lines.try_reserve_exact(more)?;
            self.lines.resize(lines, Line([0; 64]));
        }
        self.len = self.len.max(len);
        Ok(())
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: lines are plain bytes, of which `len` are at most all.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }

    /// All bytes, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, borrowed mutably; any bytes are lines.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}

macro_rules! views {
    ($($name:ident, $name_mut:ident: $ty:ty;)*) => {$(
        /// The numbers that stand in these bytes.
        pub fn $name(bytes: &[u8]) -> &[$ty] {
            // SAFETY: any four bytes are such a number.
            let (before, numbers, after) = unsafe { bytes.align_to() };
            assert!(before.is_empty() && after.is_empty(), "{} bytes of numbers out of place", bytes.len());
            numbers
        }

        /// The numbers that stand in these bytes, to write.
        pub fn $name_mut(bytes: &mut [u8]) -> &mut [$ty] {
            let len = bytes.len();
            // SAFETY: any four bytes are such a number, and any such number is four bytes.
            let (before, numbers, after) = unsafe { bytes.align_to_mut() };
            assert!(before.is_empty() && after.is_empty(), "{len} bytes of numbers out of place");
            numbers
        }
    )*};
}

views! {
    floats, floats_mut: f32;
    words, words_mut: u32;
}

/// The bytes of numbers.
pub fn bytes_of(numbers: &[f32]) -> &[u8] {
    // SAFETY: numbers are plain bytes without padding.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_where_they_lie_and_nowhere_else() {
        let mut memory = AlignedBytes::default();
        memory.grow(10).unwrap();
        floats_mut(&mut memory.bytes_mut()[4..8]).fill(1.5);
        assert_eq!(memory.bytes().len(), 10);
        assert_eq!(floats(&memory.bytes()[..8]), [0.0, 1.5]);
        assert_eq!(words(&memory.bytes()[4..8]), [1.5f32.to_bits()]);
        assert_eq!(bytes_of(&[1.5]), &memory.bytes()[4..8]);
        for range in [1..5, 0..6] {
            assert!(std::panic::catch_unwind(|| floats(&memory.bytes()[range]).len()).is_err());
        }
        memory.grow(3).unwrap();
        assert_eq!(memory.bytes().len(), 10);
    }
}
