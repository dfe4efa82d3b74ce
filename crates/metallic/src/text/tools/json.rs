//! JSON as it comes: copied, decoded or skipped, and calls that are JSON objects.

use super::cursor::{Bad, Call, Cursor, Nowhere, Sink};
use super::schema::Tools;

/// Levels of nesting in arguments.
const LEVELS: usize = 128;

/// Copies one JSON value. Control characters inside strings, which JSON forbids and models write, are escaped.
pub(super) async fn value<S: Sink>(cursor: &Cursor, out: &mut S) -> Result<(), Bad> {
    // The brackets that close what is open.
    let mut open: Vec<char> = Vec::new();
    loop {
        copy_spaces(cursor, out).await;
        match cursor.peek().await {
            Some(c @ ('{' | '[')) => {
                let close = if c == '{' { '}' } else { ']' };
                cursor.bump();
                out.put(c);
                copy_spaces(cursor, out).await;
                if cursor.take(close).await {
                    out.put(close);
                } else {
                    if open.len() == LEVELS {
                        return Err(Bad);
                    }
                    open.push(close);
                    if close == '}' {
                        key(cursor, out).await?;
                    }
                    continue;
                }
            }
            Some('"') => string(cursor, out).await?,
            Some('-' | '0'..='9') => number(cursor, out).await?,
            Some(c @ ('t' | 'f' | 'n')) => {
                let word = match c {
                    't' => "true",
                    'f' => "false",
                    _ => "null",
                };
                cursor.mark(&[word]).await.ok_or(Bad)?;
                out.put_all(word);
            }
            _ => return Err(Bad),
        }
        loop {
            let Some(&close) = open.last() else { return Ok(()) };
            copy_spaces(cursor, out).await;
            if cursor.take(',').await {
                out.put(',');
                if close == '}' {
                    copy_spaces(cursor, out).await;
                    key(cursor, out).await?;
                }
                break;
            }
            cursor.need(close).await?;
            out.put(close);
            open.pop();
        }
    }
}

async fn copy_spaces<S: Sink>(cursor: &Cursor, out: &mut S) {
    while let Some(c @ (' ' | '\n' | '\r' | '\t')) = cursor.peek().await {
        cursor.bump();
        out.put(c);
    }
}

async fn key<S: Sink>(cursor: &Cursor, out: &mut S) -> Result<(), Bad> {
    string(cursor, out).await?;
    copy_spaces(cursor, out).await;
    cursor.need(':').await?;
    out.put(':');
    Ok(())
}

async fn string<S: Sink>(cursor: &Cursor, out: &mut S) -> Result<(), Bad> {
    cursor.need('"').await?;
    out.put('"');
    loop {
        match cursor.peek().await.ok_or(Bad)? {
            '"' => {
                cursor.bump();
                out.put('"');
                return Ok(());
            }
            '\\' => {
                cursor.bump();
                // Both at once: half an escape is no fragment that could be shown.
                let c = cursor.peek().await.ok_or(Bad)?;
                cursor.bump();
                out.put('\\');
                out.put(c);
                match c {
                    '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {}
                    'u' => {
                        for _ in 0..4 {
                            let digit = cursor.peek().await.filter(char::is_ascii_hexdigit).ok_or(Bad)?;
                            cursor.bump();
                            out.put(digit);
                        }
                    }
                    _ => return Err(Bad),
                }
            }
            c => {
                cursor.bump();
                escape(c, out);
            }
        }
    }
}

/// Writes a character as it stands inside a JSON string.
pub(super) fn escape<S: Sink>(c: char, out: &mut S) {
    match c {
        '"' => out.put_all("\\\""),
        '\\' => out.put_all("\\\\"),
        '\n' => out.put_all("\\n"),
        '\r' => out.put_all("\\r"),
        '\t' => out.put_all("\\t"),
        c if c.is_control() && c.is_ascii() => out.put_all(&format!("\\u{:04x}", u32::from(c))),
        c => out.put(c),
    }
}

async fn number<S: Sink>(cursor: &Cursor, out: &mut S) -> Result<(), Bad> {
    let mut text = String::new();
    while let Some(c @ ('-' | '+' | '.' | 'e' | 'E' | '0'..='9')) = cursor.peek().await {
        cursor.bump();
        text.push(c);
    }
    out.put_all(&text);
    if serde_json::from_str::<serde_json::Number>(&text).is_ok() { Ok(()) } else { Err(Bad) }
}

/// The text of a JSON string, decoded as it comes.
pub(super) async fn decoded<S: Sink>(cursor: &Cursor, out: &mut S) -> Result<(), Bad> {
    cursor.need('"').await?;
    loop {
        match cursor.next().await.ok_or(Bad)? {
            '"' => return Ok(()),
            '\\' => match cursor.next().await.ok_or(Bad)? {
                c @ ('"' | '\\' | '/') => out.put(c),
                'b' => out.put('\u{8}'),
                'f' => out.put('\u{c}'),
                'n' => out.put('\n'),
                'r' => out.put('\r'),
                't' => out.put('\t'),
                'u' => {
                    let first = four_digits(cursor).await?;
                    half_or_whole(cursor, first, out).await?;
                }
                _ => return Err(Bad),
            },
            c => out.put(c),
        }
    }
}

/// The character of an escape, with its other half behind it where it is one of two. Half a character is a sign that one is missing.
async fn half_or_whole<S: Sink>(cursor: &Cursor, mut code: u32, out: &mut S) -> Result<(), Bad> {
    while (0xD800..0xDC00).contains(&code) && cursor.mark(&["\\u"]).await.is_some() {
        let second = four_digits(cursor).await?;
        if (0xDC00..0xE000).contains(&second) {
            code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00);
        } else {
            out.put(char::REPLACEMENT_CHARACTER);
            code = second;
        }
    }
    out.put(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
    Ok(())
}

async fn four_digits(cursor: &Cursor) -> Result<u32, Bad> {
    let mut code = 0;
    for _ in 0..4 {
        let digit = cursor.next().await.and_then(|c| c.to_digit(16)).ok_or(Bad)?;
        code = code * 16 + digit;
    }
    Ok(code)
}

/// Which objects are calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// `{"name": …, "arguments": …}` after a mark.
    Marked,
    /// The same without a mark: the name must be that of a tool, and nothing unknown may stand beside it.
    Bare,
    /// `{"the_name": {…}}`.
    NameIsKey,
}

/// One call that is a JSON object.
pub(super) async fn call(
    cursor: &Cursor,
    call: &mut Call<'_>,
    shape: Shape,
    tools: &Tools,
) -> Result<(), Bad> {
    let has_arguments = if shape == Shape::NameIsKey {
        cursor.need('{').await?;
        cursor.spaces().await;
        let mut name = String::new();
        decoded(cursor, &mut name).await?;
        cursor.spaces().await;
        cursor.need(':').await?;
        if name.is_empty() {
            return Err(Bad);
        }
        call.may_be(&name);
        call.begin();
        arguments(cursor, call).await?;
        cursor.spaces().await;
        cursor.need('}').await?;
        true
    } else {
        members(cursor, call, shape, tools).await?
    };
    if !call.is_named() || (shape == Shape::Bare && !has_arguments) {
        return Err(Bad);
    }
    if !has_arguments {
        call.put_all("{}");
    }
    call.end()
}

/// The members of a call's object; whether arguments were among them.
async fn members(cursor: &Cursor, call: &mut Call<'_>, shape: Shape, tools: &Tools) -> Result<bool, Bad> {
    cursor.need('{').await?;
    let mut has_arguments = false;
    // `{"function": {"name": …}}`: some models write the call as the API does.
    let mut nested = false;
    cursor.spaces().await;
    if cursor.peek().await == Some('}') {
        return Err(Bad);
    }
    loop {
        cursor.spaces().await;
        let mut key = String::new();
        decoded(cursor, &mut key).await?;
        cursor.spaces().await;
        cursor.need(':').await?;
        cursor.spaces().await;
        let next = cursor.peek().await.ok_or(Bad)?;
        match &*key {
            "function" if next == '{' && !nested => {
                cursor.bump();
                nested = true;
                continue;
            }
            "name" | "tool_name" | "function" | "tool" if next == '"' => {
                let mut name = String::new();
                decoded(cursor, &mut name).await?;
                if name.is_empty() || (shape == Shape::Bare && !tools.allows(&name)) {
                    return Err(Bad);
                }
                call.may_be(&name);
                // A bare object is a call only with its arguments.
                if shape != Shape::Bare || has_arguments {
                    call.begin();
                }
            }
            "arguments" | "parameters" | "args" if !has_arguments => {
                call.begin();
                arguments(cursor, call).await?;
                has_arguments = true;
            }
            "id" | "type" | "tool_call_id" => value(cursor, &mut Nowhere).await?,
            _ if shape == Shape::Bare => return Err(Bad),
            _ => value(cursor, &mut Nowhere).await?,
        }
        cursor.spaces().await;
        while nested && cursor.take('}').await {
            nested = false;
            cursor.spaces().await;
        }
        if cursor.take(',').await {
            continue;
        }
        cursor.need('}').await?;
        return Ok(has_arguments);
    }
}

/// Arguments: an object, or an object written as a string; an empty string or null for none.
async fn arguments(cursor: &Cursor, call: &mut Call<'_>) -> Result<(), Bad> {
    cursor.spaces().await;
    match cursor.peek().await {
        Some('"') if cursor.mark(&["\"\""]).await.is_some() => {
            call.put_all("{}");
            Ok(())
        }
        Some('"') => decoded(cursor, call).await,
        Some('n') => {
            cursor.mark(&["null"]).await.ok_or(Bad)?;
            call.put_all("{}");
            Ok(())
        }
        _ => value(cursor, call).await,
    }
}

/// Calls after a mark: a list of objects, or objects one after the other.
pub(super) async fn calls(cursor: &Cursor, shape: Shape, closes: &[&str], tools: &Tools) -> Result<(), Bad> {
    cursor.spaces().await;
    let list = cursor.take('[').await;
    loop {
        cursor.spaces().await;
        if cursor.peek().await != Some('{') {
            return Err(Bad);
        }
        let mut next = Call::new(cursor);
        let read = call(cursor, &mut next, shape, tools).await;
        if read.is_err() {
            return rest(cursor, next, closes).await;
        }
        cursor.spaces().await;
        if list {
            if cursor.take(',').await {
                continue;
            }
            cursor.need(']').await?;
            return Ok(());
        }
        // Lines of objects, or objects with `;` or `,` between them.
        if let Some(c @ (',' | ';')) = cursor.peek().await {
            cursor.bump();
            cursor.spaces().await;
            if cursor.peek().await != Some('{') {
                cursor.unread(&c.to_string());
                return Ok(());
            }
        }
        if cursor.peek().await != Some('{') {
            return Ok(());
        }
    }
}

/// What follows when a call is malformed: nothing of it was told, and it is text; or else the rest belongs to its arguments, so that
/// nothing is lost, up to the mark that ends it.
pub(super) async fn rest(cursor: &Cursor, mut call: Call<'_>, closes: &[&str]) -> Result<(), Bad> {
    if !call.is_begun() {
        return Err(Bad);
    }
    loop {
        if cursor.mark(closes).await.is_some() {
            return call.end();
        }
        let Some(c) = cursor.next().await else {
            cursor.settle();
            return Ok(());
        };
        call.put(c);
    }
}
