//! A name, then tags for keys and values, which become JSON by the tools' schemas.

use super::cursor::{Bad, Call, Cursor, Sink};
use super::families::{Attributes, Tagged};
use super::schema::{Tools, fits};
use super::{json, literal};

/// Bytes of the longest name or key, with what stands around it.
const LONGEST: usize = 512;
/// Bytes of the longest value that is not text.
const LONGEST_VALUE: usize = 1 << 24;

/// Reads one call after its head; `tail` ends it.
pub(super) async fn call(
    cursor: &Cursor,
    call: &mut Call<'_>,
    (tagged, tail): (&Tagged, &str),
    tools: &Tools,
) -> Result<(), Bad> {
    let name = name(cursor, tagged, tail).await?;
    if name.is_empty() || name.contains(char::is_whitespace) || name.contains(['{', '<', '"']) {
        return Err(Bad);
    }
    call.may_be(&name);
    call.begin();
    call.put('{');
    let mut first = true;
    loop {
        cursor.spaces().await;
        // The whole of the arguments as JSON, which one family may write instead of tags.
        let whole = "<|open|>json type=\"object\"<|sep|>";
        match cursor.mark(&[tail, tagged.key, whole]).await {
            Some(0) => break,
            Some(1) => {}
            Some(_) if tagged.attributes == Attributes::Kind && first => {
                return whole_object(cursor, call, tail).await;
            }
            _ => return Err(Bad),
        }
        if !std::mem::take(&mut first) {
            call.put_all(", ");
        }
        argument(cursor, call, tagged, tools.kinds_of(&name)).await?;
    }
    call.put('}');
    call.end()
}

/// Reads the name and what ends it. A key or the end of the call ends it too, and both stay.
async fn name(cursor: &Cursor, tagged: &Tagged, tail: &str) -> Result<String, Bad> {
    // What changes from call to call is read over.
    let (end, rest) = match tagged.name_end.split_once(" index=\"#") {
        Some((end, rest)) => (end, Some(rest)),
        None => (tagged.name_end.trim_end(), None),
    };
    let end = if end.is_empty() { "\n" } else { end };
    let marks = [end, tagged.key, tail];
    let (text, which) = cursor.until(&marks, LONGEST).await?;
    if let Some(rest) = rest.filter(|_| which == 0) {
        cursor.until(&[rest], LONGEST).await?;
    }
    if which > 0 {
        cursor.unread(marks[which]);
    }
    Ok(text.trim().to_owned())
}

async fn whole_object(cursor: &Cursor, call: &mut Call<'_>, tail: &str) -> Result<(), Bad> {
    // The brace that opens the arguments has been told.
    cursor.spaces().await;
    cursor.need('{').await?;
    cursor.unread("{");
    let mut text = String::new();
    json::value(cursor, &mut text).await?;
    call.put_all(text.trim_start_matches('{'));
    cursor.mark(&["<|close|>json<|sep|>"]).await;
    cursor.spaces().await;
    cursor.mark(&[tail]).await.ok_or(Bad)?;
    call.end()
}

/// Reads a key and its value.
async fn argument(
    cursor: &Cursor,
    call: &mut Call<'_>,
    tagged: &Tagged,
    kinds_of: impl Fn(&str) -> Vec<String>,
) -> Result<(), Bad> {
    let (key_end, between) = match tagged.key_end.split_once('\n') {
        Some((end, between)) => (end, Some(between)),
        None => (tagged.key_end.trim_end(), None),
    };
    let (key, _) = cursor.until(&[key_end], LONGEST).await?;
    let mut kinds = kinds_of(key.trim());
    match tagged.attributes {
        Attributes::Nothing => {}
        Attributes::IsText => {
            let (attributes, _) = cursor.until(&[">"], LONGEST).await?;
            if attributes.contains("string=\"true\"") {
                kinds = vec!["string".to_owned()];
            } else if attributes.contains("string=\"false\"") {
                kinds.retain(|kind| kind != "string");
            }
        }
        Attributes::Kind => {
            let (attributes, _) = cursor.until(&["<|sep|>"], LONGEST).await?;
            let kind = attributes.split('"').nth(1).unwrap_or_default();
            kinds = vec![kind.to_owned()];
        }
    }
    if let Some(between) = between {
        cursor.spaces().await;
        cursor.mark(&[between]).await.ok_or(Bad)?;
    }
    write_string(key.trim(), call);
    call.put_all(": ");
    value(cursor, call, tagged, &kinds).await
}

async fn value(cursor: &Cursor, call: &mut Call<'_>, tagged: &Tagged, kinds: &[String]) -> Result<(), Bad> {
    let with_line = format!("\n{}", tagged.value_end);
    let ends: &[&str] = if tagged.lines { &[&with_line, tagged.value_end] } else { &[tagged.value_end] };
    if tagged.lines {
        cursor.take('\n').await;
    }
    if cursor.mark(&["<![CDATA["]).await.is_some() {
        let ends = ends.iter().map(|end| format!("]]>{}", end.trim_start())).collect::<Vec<_>>();
        let ends: Vec<&str> = ends.iter().map(String::as_str).collect();
        return text(cursor, call, &ends).await;
    }
    if kinds.iter().all(|kind| kind == "string") && !kinds.is_empty() {
        return text(cursor, call, ends).await;
    }
    let (text, _) = cursor.until(ends, LONGEST_VALUE).await?;
    call.put_all(&typed(&text, kinds));
    Ok(())
}

/// Reads text that becomes a JSON string as it comes.
async fn text(cursor: &Cursor, call: &mut Call<'_>, ends: &[&str]) -> Result<(), Bad> {
    call.put('"');
    while cursor.mark(ends).await.is_none() {
        json::escape(cursor.next().await.ok_or(Bad)?, call);
    }
    call.put('"');
    Ok(())
}

pub(super) fn write_string<S: Sink>(text: &str, out: &mut S) {
    out.put('"');
    text.chars().for_each(|c| json::escape(c, out));
    out.put('"');
}

/// A value that was written without quotes, as JSON: of one of these kinds if it can be, else a string.
pub(super) fn typed(text: &str, kinds: &[String]) -> String {
    let short = text.trim();
    let fits = |value: &serde_json::Value| {
        if kinds.is_empty() { !value.is_string() } else { !value.is_string() && fits(value, kinds) }
    };
    if let Ok(value) = serde_json::from_str::<serde_json::Value>(short)
        && fits(&value)
    {
        return short.to_owned();
    }
    // Templates print lists and booleans as Python does.
    if let Some(json) = literal::to_json(short)
        && serde_json::from_str(&json).is_ok_and(|value| fits(&value))
    {
        return json;
    }
    let mut out = String::new();
    write_string(text, &mut out);
    out
}
