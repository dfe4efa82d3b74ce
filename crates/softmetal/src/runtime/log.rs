//! What kernels say through `os_log`: `printf` with the vectors of OpenCL (`%v4f`).

use std::{ffi::CString, fmt::Write as _};

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
    /// Bytes of a whole number.
    bytes: u32,
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
    let after = rest.trim_start_matches(['h', 'l', 'z', 'j', 't', 'L']);
    found.bytes = match &rest[..rest.len() - after.len()] {
        "hh" => 1,
        "h" => 2,
        // The second is OpenCL's, of vectors.
        "" | "hl" => 4,
        _ => 8,
    };
    rest = after;
    found.letter = rest.chars().next().unwrap_or('\0');
    let after = rest.get(found.letter.len_utf8()..).unwrap_or_default();
    (found, after)
}

/// What C's `printf` is given.
enum Argument {
    Signed(i64),
    Unsigned(u64),
    Double(f64),
}

impl Conversion {
    fn show(&self, bits: u64, kind: u32) -> String {
        // A number that the format does not fit is taken for what it is, where C has no answer.
        let whole = if kind == LOG_FLOAT { f64::from_bits(bits) as i64 as u64 } else { bits };
        let unused = 64 - 8 * self.bytes;
        match self.letter {
            'd' | 'i' => self.print(&Argument::Signed((whole << unused) as i64 >> unused)),
            'o' | 'u' | 'x' | 'X' => self.print(&Argument::Unsigned(whole << unused >> unused)),
            'p' => self.pad(&format!("{bits:#x}")),
            'c' => self.pad(&char::from(whole as u8).to_string()),
            _ => self.print(&Argument::Double(match kind {
                LOG_FLOAT => f64::from_bits(bits),
                LOG_SIGNED => bits as i64 as f64,
                _ => bits as f64,
            })),
        }
    }

    fn pad(&self, text: &str) -> String {
        let width = self.width;
        if self.left { format!("{text:<width$}") } else { format!("{text:>width$}") }
    }

    /// The text that C makes of it.
    fn print(&self, value: &Argument) -> String {
        let mut format = "%".to_owned();
        format.extend(self.left.then_some('-'));
        format.extend(self.zeros.then_some('0'));
        format.extend(self.alternate.then_some('#'));
        format.extend(self.sign);
        // Written to a string, which cannot fail.
        let _ = write!(format, "{}", if self.width > 0 { self.width.to_string() } else { String::new() });
        let _ = self.precision.map_or(Ok(()), |precision| write!(format, ".{precision}"));
        format.push_str(if matches!(value, Argument::Double(_)) { "" } else { "ll" });
        format.push(self.letter);
        // Neither digits nor letters are zero bytes.
        let Ok(format) = CString::new(format) else { return String::new() };
        // The largest double has 309 digits, and `WIDEST` may follow them.
        let mut out = [0_u8; 1024];
        let (to, room, text) = (out.as_mut_ptr().cast(), out.len(), format.as_ptr());
        // SAFETY: `out` has so much room; the format has one conversion, of the type of its argument.
        let len = unsafe {
            match *value {
                Argument::Signed(value) => libc::snprintf(to, room, text, value),
                Argument::Unsigned(value) => libc::snprintf(to, room, text, value),
                Argument::Double(value) => libc::snprintf(to, room, text, value),
            }
        };
        let len = usize::try_from(len).unwrap_or(0).min(out.len() - 1);
        String::from_utf8_lossy(&out[..len]).into_owned()
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
            ("%f|%.1f|%8.2f|%-6.1f|%+.0e", &[float; 5], "2.500000|2.5|    2.50|2.5   |+2e+00"),
            ("%d %5d %-5d| %05d %.3d", &[minus; 5], "-7    -7 -7   | -0007 -007"),
            ("%v3hlu %#x", &[vector, one(1, 255)], "1,20,300 0xff"),
            ("%d and %s", &[minus], "-7 and %s"),
            ("%99999999999999999999d%", &[minus], &format!("{:>256}%", -7)[..]),
            ("a lone %", &[], "a lone %"),
            ("%g %f", &[float, one(LOG_FLOAT, f64::NEG_INFINITY.to_bits())], "2.5 -inf"),
            ("%ä", &[minus], "%ä"),
            (
                "%x %X %u %o %hhx %hx %lx",
                &[minus; 7],
                "fffffff9 FFFFFFF9 4294967289 37777777771 f9 fff9 fffffffffffffff9",
            ),
            ("%d %hd %ld", &[one(1, 0xFFFF_FFFF), one(1, 0x1_8000), one(1, u64::MAX)], "-1 -32768 -1"),
            (
                "%e %g %G %a %#.3g",
                &[float, float, one(LOG_FLOAT, 1e-7_f64.to_bits()), float, float],
                "2.500000e+00 2.5 1E-07 0x1.4p+1 2.50",
            ),
            ("%f", &[one(LOG_FLOAT, f64::MAX.to_bits())], &format!("{:.6}", f64::MAX)[..]),
            (
                "%5.3u|%05x|%+d|% d|%3c|%-8p|",
                &[one(1, 7), one(1, 255), one(0, 7), one(0, 7), one(1, 65), one(1, 16)],
                "  007|000ff|+7| 7|  A|0x10    |",
            ),
        ] {
            assert_eq!(format(text, values), expected, "{text}");
        }
    }
}
