//! What kernels say through `os_log`: `printf` with the vectors of OpenCL (`%v4f`).

use std::fmt::Write as _;

use serde::Serialize;

use super::abi::{LOG_FLOAT, LOG_SIGNED, LogValue};

/// Messages that a host thread keeps of a dispatch.
pub(super) const MOST: usize = 1024;
/// No number is written wider than this, whatever the format asks for.
const WIDEST: usize = 256;

/// How much a message weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of os_log")]
pub enum Level {
    Default,
    Debug,
    Info,
    Error,
    Fault,
}

impl Level {
    pub(super) fn of(level: i32) -> Self {
        match level {
            1 => Self::Debug,
            2 => Self::Info,
            3 => Self::Error,
            4 => Self::Fault,
            _ => Self::Default,
        }
    }
}

/// A message before it is known where its thread stood.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) level: Level,
    pub(crate) text: String,
}

/// `%-08.3v4hlf`, taken apart.
#[derive(Debug, Default)]
struct Conversion {
    left: bool,
    sign: Option<char>,
    zeros: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
    letter: char,
}

/// The text of a message. What the format does not fit is shown as it stands there.
pub(super) fn format(format: &str, values: &[LogValue]) -> String {
    let (mut out, mut rest, mut values) = (String::new(), format, values.iter());
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let (conversion, after) = parse(&rest[at + 1..]);
        let known = "diouxXfFeEgGaAcp".contains(conversion.letter);
        match values.as_slice().first() {
            _ if conversion.letter == '%' => out.push('%'),
            Some(value) if known => {
                values.next();
                let all = value.bits.iter().take(value.count.clamp(1, 4) as usize);
                let texts: Vec<String> = all.map(|bits| conversion.show(*bits, value.kind)).collect();
                out.push_str(&texts.join(","));
            }
            _ => out.push_str(&rest[at..rest.len() - after.len()]),
        }
        rest = after;
    }
    out + rest
}

/// A conversion and what follows it.
fn parse(text: &str) -> (Conversion, &str) {
    let mut found = Conversion::default();
    let mut rest = text;
    let digits = |rest: &mut &str| -> Option<usize> {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        *rest = after;
        // More digits than a number has are more than anybody wants.
        (!number.is_empty()).then(|| number.parse().unwrap_or(WIDEST))
    };
    while let Some(flag) = rest.chars().next().filter(|c| "-+ 0#".contains(*c)) {
        match flag {
            '-' => found.left = true,
            '0' => found.zeros = true,
            '#' => found.alternate = true,
            sign => found.sign = Some(sign),
        }
        rest = &rest[1..];
    }
    found.width = digits(&mut rest).unwrap_or(0).min(WIDEST);
    if let Some(after) = rest.strip_prefix('.') {
        rest = after;
        found.precision = Some(digits(&mut rest).unwrap_or(0).min(WIDEST));
    }
    if let Some(after) = rest.strip_prefix('v') {
        rest = after;
        digits(&mut rest);
    }
    rest = rest.trim_start_matches(['h', 'l', 'z', 'j', 't', 'L']);
    found.letter = rest.chars().next().unwrap_or('\0');
    let after = rest.get(found.letter.len_utf8()..).unwrap_or_default();
    (found, after)
}

impl Conversion {
    fn show(&self, bits: u64, kind: u32) -> String {
        let (float, whole) = match kind {
            LOG_FLOAT => (f64::from_bits(bits), f64::from_bits(bits) as i128),
            LOG_SIGNED => (bits as i64 as f64, i128::from(bits as i64)),
            _ => (bits as f64, i128::from(bits)),
        };
        let mut digits = String::new();
        let precision = self.precision.unwrap_or(6);
        // Written to a string, which cannot fail.
        let _ = match self.letter {
            'd' | 'i' | 'u' => write!(digits, "{}", whole.unsigned_abs()),
            'o' => write!(digits, "{bits:o}"),
            'x' if self.alternate => write!(digits, "{bits:#x}"),
            'x' => write!(digits, "{bits:x}"),
            'X' => write!(digits, "{bits:X}"),
            'p' => write!(digits, "{bits:#x}"),
            'c' => write!(digits, "{}", char::from(bits as u8)),
            _ if !float.is_finite() => write!(digits, "{}", if float.is_nan() { "nan" } else { "inf" }),
            'e' | 'E' => write!(digits, "{:.precision$e}", float.abs()),
            'f' | 'F' => write!(digits, "{:.precision$}", float.abs()),
            _ => write!(digits, "{}", float.abs()),
        };
        if "diu".contains(self.letter) {
            let missing = self.precision.unwrap_or(0).saturating_sub(digits.len());
            digits.insert_str(0, &"0".repeat(missing));
        }
        let signed = "diufFeEgGaA".contains(self.letter);
        let negative = if "diu".contains(self.letter) { whole < 0 } else { float.is_sign_negative() };
        let sign = match (signed && negative, self.sign) {
            (true, _) => "-".to_owned(),
            (false, Some(sign)) if signed => sign.to_string(),
            (false, _) => String::new(),
        };
        let missing = self.width.saturating_sub(sign.len() + digits.len());
        if self.left {
            format!("{sign}{digits}{}", " ".repeat(missing))
        } else if self.zeros {
            format!("{sign}{}{digits}", "0".repeat(missing))
        } else {
            format!("{}{sign}{digits}", " ".repeat(missing))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(kind: u32, bits: u64) -> LogValue {
        LogValue { kind, count: 1, bits: [bits, 0, 0, 0] }
    }

    #[test]
    fn messages_are_formatted_as_printf_does() {
        let (float, minus) = (one(LOG_FLOAT, 2.5_f64.to_bits()), one(LOG_SIGNED, -7_i64 as u64));
        let vector = LogValue { kind: 1, count: 3, bits: [1, 20, 300, 0] };
        for (text, values, expected) in [
            ("no values, 100%%", &[][..], "no values, 100%"),
            ("%f|%.1f|%8.2f|%-6.1f|%+.0e", &[float; 5], "2.500000|2.5|    2.50|2.5   |+2e0"),
            ("%d %5d %-5d| %05d %.3d", &[minus; 5], "-7    -7 -7   | -0007 -007"),
            ("%v3hlu %#x", &[vector, one(1, 255)], "1,20,300 0xff"),
            ("%d and %s", &[minus], "-7 and %s"),
            ("%99999999999999999999d%", &[minus], &format!("{:>256}%", -7)[..]),
            ("a lone %", &[], "a lone %"),
            ("%g %f", &[float, one(LOG_FLOAT, f64::NEG_INFINITY.to_bits())], "2.5 -inf"),
            ("%ä", &[minus], "%ä"),
        ] {
            assert_eq!(format(text, values), expected, "{text}");
        }
    }
}
