//! Values as Python and Gemma write them, made JSON as they come, and calls that are made of them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use super::cursor::{Bad, Call, Cursor, Sink};
use super::json;
use super::schema::Tools;
use super::tagged::write_string;

/// Levels of nesting in arguments.
const LEVELS: usize = 64;
/// Bytes of the longest name, key, number or word.
const LONGEST: usize = 512;

type Reading<'a> = Pin<Box<dyn Future<Output = Result<(), Bad>> + Send + 'a>>;

/// Reads one value. `quote` is what stands around texts, beside Python's quotes; empty where there is nothing else.
fn value<'a, S: Sink>(cursor: &'a Cursor, out: &'a mut S, quote: &'a str, levels: usize) -> Reading<'a> {
    Box::pin(async move {
        cursor.spaces().await;
        if cursor.mark(&[quote]).await.is_some() {
            return quoted(cursor, out, quote).await;
        }
        match cursor.peek().await.ok_or(Bad)? {
            '{' if levels > 0 => object(cursor, out, quote, levels - 1).await,
            open @ ('[' | '(') if levels > 0 => {
                cursor.bump();
                out.put('[');
                let close = if open == '[' { ']' } else { ')' };
                let mut first = true;
                loop {
                    cursor.spaces().await;
                    if cursor.take(close).await {
                        out.put(']');
                        return Ok(());
                    }
                    if !std::mem::take(&mut first) {
                        out.put_all(", ");
                    }
                    value(cursor, out, quote, levels - 1).await?;
                    cursor.spaces().await;
                    if !cursor.take(',').await && cursor.peek().await != Some(close) {
                        return Err(Bad);
                    }
                }
            }
            '"' | '\'' => python_string(cursor, out).await,
            _ => word(cursor, out, quote).await,
        }
    })
}

/// Reads text up to `quote`.
async fn quoted<S: Sink>(cursor: &Cursor, out: &mut S, quote: &str) -> Result<(), Bad> {
    out.put('"');
    while cursor.mark(&[quote]).await.is_none() {
        json::escape(cursor.next().await.ok_or(Bad)?, out);
    }
    out.put('"');
    Ok(())
}

/// Reads `{key: value}`; keys are quoted in one way or another, or not at all.
async fn object<S: Sink>(cursor: &Cursor, out: &mut S, quote: &str, levels: usize) -> Result<(), Bad> {
    cursor.need('{').await?;
    out.put('{');
    let mut first = true;
    loop {
        cursor.spaces().await;
        if cursor.take('}').await {
            out.put('}');
            return Ok(());
        }
        if !std::mem::take(&mut first) {
            out.put_all(", ");
        }
        if cursor.mark(&[quote]).await.is_some() {
            quoted(cursor, out, quote).await?;
        } else if let Some('"' | '\'') = cursor.peek().await {
            python_string(cursor, out).await?;
        } else {
            let (key, _) = cursor.until(&[":"], LONGEST).await?;
            if key.trim().is_empty() || key.contains(['{', '}', ',', '\n', '"']) {
                return Err(Bad);
            }
            write_string(key.trim(), out);
            cursor.unread(":");
        }
        cursor.spaces().await;
        cursor.need(':').await?;
        out.put_all(": ");
        value(cursor, out, quote, levels).await?;
        cursor.spaces().await;
        if !cursor.take(',').await && cursor.peek().await != Some('}') {
            return Err(Bad);
        }
    }
}

/// Reads a text in one of Python's four quotes.
async fn python_string<S: Sink>(cursor: &Cursor, out: &mut S) -> Result<(), Bad> {
    const QUOTES: [&str; 4] = ["\"\"\"", "'''", "\"", "'"];
    let quote = QUOTES[cursor.mark(&QUOTES).await.ok_or(Bad)?];
    out.put('"');
    loop {
        if cursor.mark(&[quote]).await.is_some() {
            out.put('"');
            return Ok(());
        }
        let c = match cursor.next().await.ok_or(Bad)? {
            '\\' => match cursor.next().await.ok_or(Bad)? {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                'b' => '\u{8}',
                'f' => '\u{c}',
                '0' => '\0',
                '\n' => continue,
                digits @ ('x' | 'u' | 'U') => {
                    let count = match digits {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    out.put_all(&code(cursor, count).await?);
                    continue;
                }
                c @ ('\\' | '\'' | '"' | '/') => c,
                other => {
                    // As Python has it: a backslash that means nothing is a backslash.
                    json::escape('\\', out);
                    other
                }
            },
            c => c,
        };
        json::escape(c, out);
    }
}

/// A character by its number, as JSON writes it: halves of a pair stay as they are.
async fn code(cursor: &Cursor, digits: usize) -> Result<String, Bad> {
    let mut code = 0_u32;
    for _ in 0..digits {
        let digit = cursor.next().await.and_then(|c| c.to_digit(16)).ok_or(Bad)?;
        code = (code << 4) | digit;
    }
    match char::from_u32(code) {
        Some(c) => {
            let mut out = String::new();
            json::escape(c, &mut out);
            Ok(out)
        }
        None if digits == 4 => Ok(format!("\\u{code:04x}")),
        None => Err(Bad),
    }
}

/// Reads a number or a word. Words that mean nothing are text where texts have quotes of their own.
async fn word<S: Sink>(cursor: &Cursor, out: &mut S, quote: &str) -> Result<(), Bad> {
    let mut text = String::new();
    let ends = |c: char| {
        c.is_whitespace() || matches!(c, ',' | ']' | '}' | ')' | ':' | '(' | '[' | '{' | '"' | '\'')
    };
    while let Some(c) = cursor.peek().await.filter(|&c| !ends(c)) {
        if text.len() >= LONGEST {
            return Err(Bad);
        }
        cursor.bump();
        text.push(c);
    }
    match &*text {
        "" => return Err(Bad),
        "True" | "true" => out.put_all("true"),
        "False" | "false" => out.put_all("false"),
        "None" | "null" => out.put_all("null"),
        number if serde_json::from_str::<serde_json::Number>(number).is_ok() => out.put_all(number),
        number => {
            // What Python reads and JSON does not: `1_000`, `.5`, `+1`.
            let plain = number.replace('_', "");
            match plain.parse::<f64>().ok().and_then(serde_json::Number::from_f64) {
                Some(number)
                    if plain.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '.' | '+' | '-')) =>
                {
                    out.put_all(&number.to_string());
                }
                _ if !quote.is_empty() => write_string(&text, out),
                _ => return Err(Bad),
            }
        }
    }
    Ok(())
}

/// A whole text that is one Python value, as JSON.
pub(super) fn to_json(text: &str) -> Option<String> {
    let cursor = Cursor::new();
    cursor.feed(text);
    cursor.end();
    let mut out = String::new();
    let read = {
        let reading = pin!(async {
            value(&cursor, &mut out, "", LEVELS).await?;
            cursor.spaces().await;
            if cursor.peek().await.is_none() { Ok(()) } else { Err(Bad) }
        });
        reading.poll(&mut Context::from_waker(Waker::noop()))
    };
    (read == Poll::Ready(Ok(()))).then_some(out)
}

/// Reads `[f(a=1), g()]` or such calls without a list.
pub(super) async fn calls(cursor: &Cursor, closes: &[&str], tools: &Tools) -> Result<(), Bad> {
    cursor.spaces().await;
    let list = cursor.take('[').await;
    loop {
        cursor.spaces().await;
        let mut next = Call::new(cursor);
        if call(cursor, &mut next, tools).await.is_err() {
            return json::rest(cursor, next, closes).await;
        }
        cursor.spaces().await;
        if list {
            if cursor.take(',').await {
                continue;
            }
            cursor.need(']').await?;
            return Ok(());
        }
        cursor.take(',').await;
        cursor.spaces().await;
        if !cursor.peek().await.is_some_and(|c| c.is_alphabetic() || c == '_') {
            return Ok(());
        }
    }
}

/// Reads `name(key=value, …)`.
pub(super) async fn call(cursor: &Cursor, call: &mut Call<'_>, tools: &Tools) -> Result<(), Bad> {
    let mut name = String::new();
    while let Some(c) = cursor.peek().await.filter(|&c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')) {
        if name.len() >= LONGEST {
            return Err(Bad);
        }
        cursor.bump();
        name.push(c);
    }
    if name.is_empty() || !cursor.take('(').await {
        return Err(Bad);
    }
    let name = name.strip_suffix(".call").unwrap_or(&name);
    call.may_be(name);
    call.begin();
    call.put('{');
    let keys: Vec<String> = tools
        .get(name)
        .and_then(|tool| tool.parameters.get("properties")?.as_object())
        .map_or_else(Vec::new, |properties| properties.keys().cloned().collect());
    let mut count = 0;
    loop {
        cursor.spaces().await;
        if cursor.take(')').await {
            break;
        }
        if count > 0 {
            call.put_all(", ");
        }
        let key = match keyword(cursor).await {
            Some(key) => key,
            // Without a key, the tool's own order counts.
            None => keys.get(count).cloned().ok_or(Bad)?,
        };
        write_string(&key, call);
        call.put_all(": ");
        value(cursor, call, "", LEVELS).await?;
        count += 1;
        cursor.spaces().await;
        if !cursor.take(',').await && cursor.peek().await != Some(')') {
            return Err(Bad);
        }
    }
    call.put('}');
    call.end()
}

/// Reads `key=`; what is none stays.
async fn keyword(cursor: &Cursor) -> Option<String> {
    let mut key = String::new();
    while let Some(c) = cursor.peek().await.filter(|&c| c.is_alphanumeric() || matches!(c, '_' | '-')) {
        if key.len() >= LONGEST {
            break;
        }
        cursor.bump();
        key.push(c);
    }
    let starts = key.starts_with(|c: char| c.is_alphabetic() || c == '_');
    let mut gap = String::new();
    while let Some(c) = cursor.peek().await.filter(|c| starts && c.is_whitespace()) {
        cursor.bump();
        gap.push(c);
    }
    if starts && cursor.take('=').await {
        return Some(key);
    }
    cursor.unread(&format!("{key}{gap}"));
    None
}

/// Reads `name{key:value, …}`, texts between `quote`.
pub(super) async fn braces(cursor: &Cursor, call: &mut Call<'_>, quote: &str) -> Result<(), Bad> {
    let (name, _) = cursor.until(&["{"], LONGEST).await?;
    let name = name.trim();
    if name.is_empty() || name.contains(char::is_whitespace) || name.contains(['<', '"', ':']) {
        return Err(Bad);
    }
    cursor.unread("{");
    call.may_be(name);
    call.begin();
    object(cursor, call, quote, LEVELS).await?;
    call.end()
}
