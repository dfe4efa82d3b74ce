//! The GGUF reader.

use std::collections::HashMap;

use metallic_core::{Bytes, DType};

use super::cursor::Cursor;
use super::{Gguf, MAGIC, MAX_DIMS, MAX_KEY_LEN, alignment, value};
use crate::contents::Contents;
use crate::error::shown;
use crate::tensor::byte_len;
use crate::{FormatError, Metadata, Tensor, Value};

/// Bytes of the shortest metadata entry: an empty key, a type, a value of one byte.
const LEAST_ENTRY: u64 = 8 + 4 + 1;
/// Bytes of the shortest tensor description: a name of one byte, one axis.
const LEAST_INFO: u64 = 8 + 1 + 4 + 8 + 4 + 8;

/// A tensor as described before the data section.
struct Info {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    byte_len: usize,
    /// From the start of the data section.
    offset: usize,
}

/// Bytes that are read at first of a file that is not mapped: more than most headers, which a vocabulary makes long.
const HEAD: usize = 16 << 20;

pub(super) fn parse(file: &str, contents: &Contents) -> Result<Gguf, FormatError> {
    let mut head = HEAD;
    loop {
        let found = parse_head(file, contents, &contents.head(head)?);
        match found {
            // Perhaps it goes on behind what was read.
            Err(FormatError::Truncated { .. } | FormatError::Header { .. })
                if matches!(contents, Contents::File(_)) && head < contents.len() =>
            {
                head = head.saturating_mul(4);
            }
            // What is lost of a file is the reason for all else.
            found => return contents.check().and(found),
        }
    }
}

/// Reads what stands before the tensors from `head`, the first bytes of the file.
fn parse_head(file: &str, contents: &Contents, head: &Bytes) -> Result<Gguf, FormatError> {
    let mut cursor = Cursor::new(file, head);
    let version = version(&mut cursor)?;
    let tensor_count = cursor.count(LEAST_INFO, &"the tensor count")?;
    let key_count = cursor.count(LEAST_ENTRY, &"the metadata count")?;

    let mut metadata = Metadata::empty(file);
    for i in 0..key_count {
        let (key, value) = entry(&mut cursor, i)?;
        if metadata.get(key).is_some() {
            return Err(FormatError::duplicate(file, "metadata key", key));
        }
        metadata.insert(key, value);
    }
    let alignment = alignment(&metadata)?;

    let mut infos = Vec::with_capacity(tensor_count);
    let mut index = HashMap::with_capacity(tensor_count);
    for i in 0..tensor_count {
        let info = info(&mut cursor, i, alignment)?;
        if index.insert(info.name.clone(), i).is_some() {
            return Err(FormatError::duplicate(file, "tensor", &info.name));
        }
        infos.push(info);
    }
    check_overlap(file, &infos)?;

    // Cannot overflow: a position in memory plus at most 1 MiB, of which the sum is checked below.
    let start = cursor.pos().next_multiple_of(alignment);
    let place = |info| place(file, contents, start, info);
    let tensors = infos.into_iter().map(place).collect::<Result<_, _>>()?;
    // Everything in it was copied.
    head.release(0..cursor.pos());
    Ok(Gguf { metadata, version, alignment, tensors, index })
}

/// Magic and version; says so where the file is of the other byte order.
fn version(cursor: &mut Cursor) -> Result<u32, FormatError> {
    const NEEDED: &str = "2 or 3, little-endian";
    let magic = cursor.take(4, &"the magic")?;
    if magic.iter().rev().eq(&MAGIC) {
        let found = "`FUGG`: big-endian, byte-swapped";
        return Err(FormatError::header(cursor.file, "the magic", found, "`GGUF`, little-endian"));
    }
    if magic != MAGIC {
        return Err(FormatError::NotThisFormat {
            file: cursor.file.into(),
            format: "GGUF",
            found: format!("`{}`", magic.escape_ascii()),
            needed: "`GGUF`",
        });
    }
    let version = cursor.u32(&"the version")?;
    let found = match version {
        2 | 3 => return Ok(version),
        1 => "1, an early form with 32-bit lengths".to_string(),
        _ if (1..=3).contains(&version.swap_bytes()) => {
            format!("{}, big-endian", version.swap_bytes())
        }
        _ => version.to_string(),
    };
    Err(FormatError::header(cursor.file, "the GGUF version", found, NEEDED))
}

fn entry<'a>(cursor: &mut Cursor<'a>, i: usize) -> Result<(&'a str, Value), FormatError> {
    let key = cursor.string(&format_args!("metadata key number {i}"))?;
    if key.len() > MAX_KEY_LEN {
        let (what, needed) = (format!("the length of metadata key `{}`", shown(key)), "at most 65535");
        return Err(FormatError::header(cursor.file, what, key.len(), needed));
    }
    let kind = cursor.u32(&format_args!("the type of metadata key `{}`", shown(key)))?;
    Ok((key, value::read(cursor, key, kind)?))
}

fn info(cursor: &mut Cursor, i: usize, alignment: usize) -> Result<Info, FormatError> {
    let file = cursor.file;
    let name = cursor.string(&format_args!("the name of tensor number {i}"))?;
    if name.is_empty() {
        return Err(FormatError::header(file, format!("the name of tensor number {i}"), "empty", "a name"));
    }
    let shown = shown(name);
    let what = &format_args!("the description of tensor `{shown}`");

    let axes = cursor.u32(what)?;
    if !(1..=MAX_DIMS as u32).contains(&axes) {
        return Err(FormatError::tensor(file, name, "the number of axes", axes, "1 to 4"));
    }
    let mut shape = Vec::with_capacity(axes as usize);
    for _ in 0..axes {
        let axis = cursor.u64(what)?;
        let fits = usize::try_from(axis).ok().filter(|n| *n > 0);
        shape.push(
            fits.ok_or_else(|| FormatError::tensor(file, name, "an axis", axis, "1 or more, addressable"))?,
        );
    }
    shape.reverse();

    let dtype = DType::from_ggml(cursor.u32(what)?).map_err(|reason| FormatError::DType {
        file: file.into(),
        tensor: shown.clone(),
        reason,
    })?;
    let row = shape.last().copied().unwrap_or(1);
    if !row.is_multiple_of(dtype.block_len()) {
        let needed = format!("a multiple of {}, as {dtype} comes in blocks", dtype.block_len());
        return Err(FormatError::tensor(file, name, "the row length", row, needed));
    }
    let byte_len = byte_len(dtype, &shape).ok_or_else(|| {
        FormatError::tensor(file, name, "the shape", format!("{shape:?}"), "a size that can be addressed")
    })?;

    let offset = cursor.u64(what)?;
    if !offset.is_multiple_of(alignment as u64) {
        let needed = format!("a multiple of the alignment {alignment}");
        return Err(FormatError::tensor(file, name, "the offset", offset, needed));
    }
    let offset = usize::try_from(offset)
        .map_err(|_| FormatError::tensor(file, name, "the offset", offset, "one that can be addressed"))?;
    Ok(Info { name: name.to_string(), dtype, shape, byte_len, offset })
}

/// No two tensors share bytes.
fn check_overlap(file: &str, infos: &[Info]) -> Result<(), FormatError> {
    let mut order: Vec<_> = infos.iter().collect();
    order.sort_by_key(|info| info.offset);
    for pair in order.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        let end = before.offset.saturating_add(before.byte_len);
        if end > after.offset {
            let needed = format!("{end} or more, where tensor `{}` ends", shown(&before.name));
            return Err(FormatError::tensor(file, &after.name, "the offset", after.offset, needed));
        }
    }
    Ok(())
}

/// The tensor with its window into the data section, which begins at `start`.
fn place(file: &str, contents: &Contents, start: usize, info: Info) -> Result<Tensor, FormatError> {
    let Info { name, dtype, shape, byte_len, offset } = info;
    let range = start.checked_add(offset).and_then(|begin| Some(begin..begin.checked_add(byte_len)?));
    let Some(data) = range.and_then(|range| contents.window(range)) else {
        return Err(FormatError::Truncated {
            file: file.into(),
            what: format!("the data of tensor `{}` at offset {offset}", shown(&name)),
            needed: byte_len as u64,
            left: (contents.len() as u64).saturating_sub(start as u64).saturating_sub(offset as u64),
        });
    };
    Ok(Tensor { name, dtype, shape, data })
}
