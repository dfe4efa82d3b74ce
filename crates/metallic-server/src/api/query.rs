//! What stands behind the `?` of a path, read like the fields of a body.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::{Fields, child, excerpt};

/// The fields of a query: each is a text, and stands there once.
pub(crate) fn read(query: Option<&str>) -> Result<Fields, ApiError> {
    let mut fields = Map::new();
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name);
        let pointer = child("", excerpt(&name));
        if fields.insert(name, Value::String(decode(value))).is_some() {
            return Err(ApiError::invalid(&pointer, format!("`{pointer}` is given twice")));
        }
    }
    Fields::of(Value::Object(fields), "")
}

/// `limit`: how many entries of a list are asked for; `usual` where that is not said.
pub(crate) fn limit(query: &mut Fields, usual: usize, most: usize) -> Result<usize, ApiError> {
    let Some(text) = query.string("limit")? else { return Ok(usual) };
    let limit = text.parse().ok().filter(|limit| (1..=most).contains(limit));
    let text = excerpt(&text);
    let message = format!("`/limit` is {text:?}, it must be a whole number between 1 and {most}");
    limit.ok_or_else(|| ApiError::invalid("/limit", message))
}

/// The text of what is written with `%` and `+`.
fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let (found, used) = match (byte, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => ((high * 16 + low) as u8, 2),
            (b'+', ..) => (b' ', 0),
            _ => (byte, 0),
        };
        bytes.push(found);
        rest = &after[used..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_read_as_they_were_meant() {
        let mut fields = read(Some("after_id=a%3Astyle%2Fb+c%&limit=5&&empty")).unwrap();
        assert_eq!(fields.string("after_id"), Ok(Some("a:style/b c%".to_owned())));
        assert_eq!(fields.string("limit"), Ok(Some("5".to_owned())));
        assert_eq!(fields.string("empty"), Ok(Some(String::new())));
        assert_eq!(fields.finish(), Ok(()));
        assert_eq!(read(None).unwrap().finish(), Ok(()));
    }

    #[test]
    fn what_is_given_twice_is_refused_by_name() {
        assert_eq!(read(Some("limit=5&limit=6")).unwrap_err().param(), Some("/limit"));
    }
}
