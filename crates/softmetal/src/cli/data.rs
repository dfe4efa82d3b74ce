//! Buffers described on the command line.
//!
//! `f32:rand:1024`, `i32:rand:64:0..10`, `u32:zeros:16`, `f16:seq:32`, `u32:4096` (values), `u32:4096,7+f32:1e-5` (a struct),
//! the name of a file, or `alias:0`, the memory of another.

use std::{collections::BTreeMap, fs, path::Path};

use half::{bf16, f16};

use super::Failure;

/// The element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    F32,
    F16,
    Bf16,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
}

impl Type {
    /// The type of a name, as Rust or as Metal spells it.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "f32" | "float" => Self::F32,
            "f16" | "half" => Self::F16,
            "bf16" | "bfloat" => Self::Bf16,
            "i8" | "char" | "int8_t" => Self::I8,
            "u8" | "uchar" | "bool" | "uint8_t" => Self::U8,
            "i16" | "short" | "int16_t" => Self::I16,
            "u16" | "ushort" | "uint16_t" => Self::U16,
            "i32" | "int" | "int32_t" => Self::I32,
            "u32" | "uint" | "uint32_t" => Self::U32,
            "i64" | "long" | "int64_t" => Self::I64,
            "u64" | "ulong" | "size_t" | "uint64_t" => Self::U64,
            _ => return None,
        })
    }

    pub(super) fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::Bf16 | Self::I16 | Self::U16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::I64 | Self::U64 => 8,
        }
    }

    fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// The bytes of a number.
    fn encode(self, number: f64, out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend((number as f32).to_le_bytes()),
            Self::F16 => out.extend(f16::from_f32(number as f32).to_le_bytes()),
            Self::Bf16 => out.extend(bf16::from_f32(number as f32).to_le_bytes()),
            Self::U64 => out.extend((number as u64).to_le_bytes()),
            _ => out.extend_from_slice(&(number as i64).to_le_bytes()[..self.size()]),
        }
    }

    /// Text to bytes; exact for integers of all widths.
    pub(super) fn parse(self, text: &str, out: &mut Vec<u8>) -> Result<(), Failure> {
        let text = text.trim();
        let number = match text {
            "true" => Some(1.0),
            "false" => Some(0.0),
            _ if self.is_float() => text.parse().ok(),
            _ => {
                let wide = match text.strip_prefix("0x") {
                    Some(digits) => i128::from_str_radix(digits, 16).ok(),
                    None => text.parse::<i128>().ok(),
                };
                let bits = self.size() as u32 * 8;
                let fits = |value: &i128| (-(1_i128 << (bits - 1))..1_i128 << bits).contains(value);
                if let Some(value) = wide.filter(fits) {
                    out.extend_from_slice(&value.to_le_bytes()[..self.size()]);
                    return Ok(());
                }
                None
            }
        };
        let number = number
            .ok_or_else(|| Failure::Argument(format!("`{text}` is no {self:?} value").to_lowercase()))?;
        self.encode(number, out);
        Ok(())
    }

    /// The elements of a buffer as numbers.
    pub(super) fn decode(self, bytes: &[u8]) -> Vec<f64> {
        let each = bytes.chunks_exact(self.size()).map(|chunk| {
            let mut wide = [0_u8; 8];
            wide[..chunk.len()].copy_from_slice(chunk);
            let bits = u64::from_le_bytes(wide);
            match self {
                Self::F32 => f32::from_bits(bits as u32) as f64,
                Self::F16 => f16::from_bits(bits as u16).to_f64(),
                Self::Bf16 => bf16::from_bits(bits as u16).to_f64(),
                Self::I8 => bits as i8 as f64,
                Self::I16 => bits as i16 as f64,
                Self::I32 => bits as i32 as f64,
                Self::I64 => bits as i64 as f64,
                Self::U8 | Self::U16 | Self::U32 | Self::U64 => bits as f64,
            }
        });
        each.collect()
    }
}

/// A buffer and how to show it.
#[derive(Debug, Clone)]
pub(super) struct Data {
    pub(super) bytes: Vec<u8>,
    pub(super) kind: Type,
    /// The first byte that the kernel sees.
    pub(super) offset: usize,
}

/// What is bound to an index.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Own(Data),
    /// The memory of another, from `offset` on.
    Alias {
        of: u32,
        offset: usize,
    },
}

/// `0=f32:rand:1024`, `0@16=…` or `1@64=alias:0` to index and content.
pub(super) fn buffer(text: &str) -> Result<(u32, Content), Failure> {
    let (place, description) = text.split_once('=').ok_or_else(|| need_index(text))?;
    let (index, offset) = place.split_once('@').map_or((place, "0"), |(index, offset)| (index, offset));
    let index = index.trim().parse().map_err(|_| need_index(text))?;
    let offset = offset
        .trim()
        .parse()
        .map_err(|_| Failure::Argument(format!("`@{offset}` is no number of bytes to begin at, like @64")))?;
    if let Some(of) = description.strip_prefix("alias:") {
        let of = of.trim().parse();
        let of = of.map_err(|_| Failure::Argument("an alias is alias:INDEX of another buffer".to_owned()))?;
        return Ok((index, Content::Alias { of, offset }));
    }
    let data = data(index, description)?;
    if offset > data.bytes.len() {
        let len = data.bytes.len();
        return Err(Failure::Argument(format!("it has {len} bytes, and cannot begin at byte {offset}")));
    }
    Ok((index, Content::Own(Data { offset, ..data })))
}

fn data(index: u32, description: &str) -> Result<Data, Failure> {
    let known = description.split_once(':').and_then(|(name, _)| Type::named(name));
    let Some(kind) = known else {
        let bytes = fs::read(Path::new(description)).map_err(|error| {
            Failure::Argument(format!("`{description}` is no description of data, and as a file: {error}"))
        })?;
        return Ok(Data { bytes, kind: Type::U8, offset: 0 });
    };
    let mut bytes = Vec::new();
    for piece in pieces(description) {
        let (name, content) = piece.split_once(':').unwrap_or((piece, ""));
        let kind = Type::named(name).unwrap_or(kind);
        fill(kind, content, u64::from(index), &mut bytes)?;
    }
    Ok(Data { bytes, kind, offset: 0 })
}

/// `2=f32:1024` to index and that many zeros; `2` alone asks for a buffer that is given elsewhere.
pub(super) fn output(text: &str) -> Result<(u32, Option<Data>), Failure> {
    if let Ok(index) = text.parse() {
        return Ok((index, None));
    }
    let (index, description) = indexed(text)?;
    let parsed = description.split_once(':').and_then(|(name, count)| Some((Type::named(name)?, count)));
    let (kind, count) = parsed
        .ok_or_else(|| Failure::Argument("an output is INDEX=TYPE:COUNT, like 2=f32:1024".to_owned()))?;
    let bytes = vec![0; self::count(count)? * kind.size()];
    Ok((index, Some(Data { bytes, kind, offset: 0 })))
}

/// Holds a buffer against `1=f32:1,2,3`: what is wrong with it, if anything is.
pub(super) fn compare(
    text: &str,
    tolerance: f64,
    found: &BTreeMap<u32, Data>,
) -> Result<Option<String>, Failure> {
    let (index, Content::Own(wanted)) = buffer(text)? else {
        return Err(Failure::Argument("an alias has nothing of its own to expect".to_owned()));
    };
    let data = found.get(&index);
    let data = data.ok_or_else(|| Failure::Argument(format!("no buffer {index} is given")))?;
    let (found, wanted) = (wanted.kind.decode(&data.bytes), wanted.kind.decode(&wanted.bytes));
    if found.len() != wanted.len() {
        return Ok(Some(format!(
            "buffer {index} has {} elements, {} were expected",
            found.len(),
            wanted.len()
        )));
    }
    let near =
        |a: f64, b: f64| a == b || (a - b).abs() <= tolerance * b.abs().max(1.0) || a.is_nan() && b.is_nan();
    let mut wrong = (0..found.len()).filter(|&n| !near(found[n], wanted[n]));
    let Some(first) = wrong.next() else { return Ok(None) };
    let (others, element) = (wrong.count(), format!("is {}, expected {}", found[first], wanted[first]));
    Ok(Some(format!("element {first} of buffer {index} {element}; {others} others are off as well")))
}

/// `0=1024` to two numbers.
pub(super) fn length(text: &str) -> Result<(u32, u32), Failure> {
    let (index, bytes) = indexed(text)?;
    let bytes = bytes.parse().map_err(|_| Failure::Argument(format!("`{bytes}` is no number of bytes")))?;
    Ok((index, bytes))
}

/// `NAME=VALUE` in two.
pub(super) fn assignment(text: &str) -> Result<(&str, &str), Failure> {
    text.split_once('=').ok_or_else(|| Failure::Argument(format!("--set {text}: need NAME=VALUE")))
}

pub(super) fn indexed(text: &str) -> Result<(u32, &str), Failure> {
    let split = text.split_once('=').and_then(|(index, rest)| Some((index.trim().parse().ok()?, rest)));
    split.ok_or_else(|| need_index(text))
}

fn need_index(text: &str) -> Failure {
    let (place, _) = text.split_once('=').unwrap_or((text, ""));
    Failure::Argument(format!("`{place}` is no index of a buffer: need INDEX=…, like 0=f32:rand:1024"))
}

/// `u32:1+f32:2` in two; the plus of `1e+5` stays.
fn pieces(text: &str) -> Vec<&str> {
    let (mut found, mut start) = (Vec::new(), 0);
    for (at, _) in text.match_indices('+') {
        let begins = text[at + 1..].split_once(':').is_some_and(|(name, _)| Type::named(name).is_some());
        if begins {
            found.push(&text[start..at]);
            start = at + 1;
        }
    }
    found.push(&text[start..]);
    found
}

fn fill(kind: Type, content: &str, seed: u64, bytes: &mut Vec<u8>) -> Result<(), Failure> {
    let mut parts = content.split(':');
    let word = parts.next().unwrap_or_default();
    if !matches!(word, "rand" | "zeros" | "ones" | "seq") {
        return content.split(',').try_for_each(|value| kind.parse(value, bytes));
    }
    let count = count(parts.next().unwrap_or_default())?;
    bytes.reserve(count * kind.size());
    let range = parts.next().map(range).transpose()?;
    let (low, high) = range.unwrap_or_else(|| default_range(kind));
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x5851_F42D_4C95_7F2D;
    for index in 0..count {
        let number = match word {
            "rand" => {
                // splitmix64
                state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
                let mut bits = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
                bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
                let unit = ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
                let number = low + unit * (high - low);
                if kind.is_float() { number } else { number.floor() }
            }
            "ones" => 1.0,
            "seq" => index as f64,
            _ => 0.0,
        };
        kind.encode(number, bytes);
    }
    Ok(())
}

/// Floats around zero; integers over all their values.
fn default_range(kind: Type) -> (f64, f64) {
    let bits = kind.size() as i32 * 8;
    match kind {
        _ if kind.is_float() => (-1.0, 1.0),
        Type::I8 | Type::I16 | Type::I32 | Type::I64 => (-(2_f64.powi(bits - 1)), 2_f64.powi(bits - 1)),
        _ => (0.0, 2_f64.powi(bits)),
    }
}

fn count(text: &str) -> Result<usize, Failure> {
    let parsed = text.split(['x', '*']).map(|part| part.trim().parse::<usize>().ok());
    let total = parsed.reduce(|a, b| a?.checked_mul(b?)).flatten();
    total
        .filter(|&count| count <= 1 << 32)
        .ok_or_else(|| Failure::Argument(format!("`{text}` is no count of elements (like 1024 or 32x128)")))
}

fn range(text: &str) -> Result<(f64, f64), Failure> {
    let parsed = text.split_once("..").and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    parsed.ok_or_else(|| Failure::Argument(format!("`{text}` is no range (like 0..10)")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives_the_way_there_and_back() {
        let half_bits = |value: f64| {
            let mut bytes = Vec::new();
            Type::F16.encode(value, &mut bytes);
            u16::from_le_bytes([bytes[0], bytes[1]])
        };
        for bits in 0..=u16::MAX {
            let value = Type::F16.decode(&bits.to_le_bytes())[0];
            if !value.is_nan() {
                assert_eq!(half_bits(value), bits, "{bits:#x} is {value}");
            }
        }
        assert_eq!(half_bits(1.0 + 1.0 / 2048.0), 0x3C00); // a tie goes to even
        assert_eq!(half_bits(1.0 + 3.0 / 2048.0), 0x3C02);
        assert_eq!(half_bits(65519.0), 0x7BFF);
        assert_eq!(half_bits(65520.0), 0x7C00);
    }

    #[test]
    fn structs_are_values_one_after_another() {
        let (index, Content::Own(data)) = buffer("3=u32:7,8+f32:1e+5").unwrap() else { panic!("an alias") };
        assert_eq!(index, 3);
        assert_eq!(data.bytes, [7_u32.to_le_bytes(), 8_u32.to_le_bytes(), 1e5_f32.to_le_bytes()].concat());
    }

    #[test]
    fn random_data_is_the_same_every_time_and_in_its_range() {
        let first = data(0, "i32:rand:100:5..9").unwrap();
        assert_eq!(first.bytes, data(0, "i32:rand:100:5..9").unwrap().bytes);
        let values = Type::I32.decode(&first.bytes);
        assert!(values.iter().all(|v| (5.0..9.0).contains(v)) && values.iter().any(|v| *v != values[0]));
    }

    #[test]
    fn wrong_descriptions_are_refused_by_name() {
        let wrong = [
            "x",
            "0=f32:rand:many",
            "0=f32:rand:4:a..b",
            "0=u8:256",
            "0=i8:-129",
            "0=f32:one",
            "0=/no/such/file",
            "0@x=f32:1",
            "0@5=f32:1",
            "0=alias:first",
        ];
        for text in wrong {
            let message = buffer(text).unwrap_err().to_string();
            assert!(!message.is_empty(), "{text}");
        }
        assert!(output("0=f32").is_err());
        assert!(output("2").unwrap().1.is_none());
    }
}
