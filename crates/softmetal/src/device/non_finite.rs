//! Infinities and NaN in what a kernel wrote.

#[derive(Debug, Clone, Copy)]
pub(super) enum Float {
    Single,
    Half,
    Brain,
}

impl Float {
    /// The float type a parameter points to, also inside vectors.
    pub(super) fn of(type_text: &str) -> Option<Self> {
        if type_text.contains("bf16") || type_text.contains("bfloat") {
            Some(Self::Brain)
        } else if type_text.contains("_Float16") || type_text.contains("half") {
            Some(Self::Half)
        } else if type_text.contains("float") {
            Some(Self::Single)
        } else {
            None
        }
    }

    pub(super) fn size(self) -> usize {
        if matches!(self, Self::Single) { 4 } else { 2 }
    }

    /// What an element is, if not a finite number: its exponent bits are all set, and the rest tells.
    pub(super) fn non_finite(self, bytes: &[u8]) -> Option<&'static str> {
        let raw = bytes.iter().rev().fold(0_u32, |n, b| n << 8 | u32::from(*b));
        let (exponent, fraction) = match self {
            Self::Single => (0x7F80_0000, 0x007F_FFFF),
            Self::Half => (0x7C00, 0x03FF),
            Self::Brain => (0x7F80, 0x007F),
        };
        let value = if raw & fraction != 0 { "not a number" } else { "infinite" };
        (raw & exponent == exponent).then_some(value)
    }
}
