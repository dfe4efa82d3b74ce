//! Infinities and NaN in what a kernel wrote.

use crate::{
    check::{Finding, Kind, Who},
    diagnostic::Severity,
};

pub(super) fn finding(index: u32, element: usize, value: &str, (pc, who): (usize, Who)) -> Finding {
    Finding {
        kind: Kind::NonFinite,
        severity: Severity::Error,
        pc: Some(pc),
        other_pc: None,
        who,
        buffer: Some(index),
        explanation: format!("element {element} of buffer {index} is {value}"),
    }
}

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

    /// Exponent bits all set: infinite or NaN. The rest tells which.
    fn split(self, bytes: &[u8]) -> (bool, bool) {
        let raw = bytes.iter().rev().fold(0_u32, |n, b| n << 8 | u32::from(*b));
        let (exponent, fraction) = match self {
            Self::Single => (0x7F80_0000, 0x007F_FFFF),
            Self::Half => (0x7C00, 0x03FF),
            Self::Brain => (0x7F80, 0x007F),
        };
        (raw & exponent == exponent, raw & fraction != 0)
    }

    pub(super) fn is_finite(self, bytes: &[u8]) -> bool {
        !self.split(bytes).0
    }

    pub(super) fn show(self, bytes: &[u8]) -> &'static str {
        if self.split(bytes).1 { "not a number" } else { "infinite" }
    }
}
