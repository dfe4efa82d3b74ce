//! A name, then a JSON object; and the messages of harmony.

use super::cursor::{Bad, Call, Cursor, Sink};
use super::families::{Family, Named};
use super::json;

/// Bytes of the longest name, with what stands around it.
const LONGEST: usize = 512;

/// Reads one call after its head.
pub(super) async fn call(cursor: &Cursor, named: &Named, closes: &[&str]) -> Result<(), Bad> {
    let (text, _) = cursor.until(&[named.mark], LONGEST).await?;
    let name = name(&text, named);
    if Some(name) == named.text {
        return Ok(());
    }
    if name.is_empty() || name.contains(char::is_whitespace) || name.contains(['{', '<', '[', '"']) {
        return Err(Bad);
    }
    let mut call = Call::new(cursor);
    call.may_be(name);
    call.begin();
    arguments(cursor, call, closes).await
}

/// Reads the JSON object of a call that has begun.
async fn arguments(cursor: &Cursor, mut call: Call<'_>, closes: &[&str]) -> Result<(), Bad> {
    cursor.spaces().await;
    if cursor.mark(closes).await.is_some() {
        call.put_all("{}");
        return call.end();
    }
    match json::value(cursor, &mut call).await {
        Ok(()) => call.end(),
        Err(Bad) => json::rest(cursor, call, closes).await,
    }
}

/// The name in what stands before the arguments.
fn name<'t>(text: &'t str, named: &Named) -> &'t str {
    // `[CALL_ID]` follows the name, other marks come before it.
    let text = text.split("[CALL_ID]").next().unwrap_or(text);
    let text = match named.before.rfind('>') {
        Some(end) => {
            let start = named.before[..end].rfind('<').unwrap_or(0);
            text.rsplit(&named.before[start..=end]).next().unwrap_or(text)
        }
        None => text,
    };
    let text = text.trim().trim_start_matches('>');
    let text = text.strip_prefix("functions.").unwrap_or(text);
    let number = named.after.starts_with(":#").then(|| text.rsplit_once(':')).flatten();
    number.filter(|(_, n)| n.bytes().all(|byte| byte.is_ascii_digit())).map_or(text, |(name, _)| name)
}

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const MESSAGE: &str = "<|message|>";

/// Reads messages with headers: one with a recipient is a call. Headers are no text. The first header may lack its beginning, which
/// the prompt had.
pub(super) async fn harmony(cursor: &Cursor, family: &Family) {
    let mut marks = vec![START, CHANNEL, " to=", "to="];
    marks.extend(family.quiet);
    loop {
        let found = cursor.mark(&marks).await;
        let read = match found {
            Some(0 | 1) => message(cursor, "").await,
            Some(2 | 3) if cursor.is_fresh() => message(cursor, "to=").await,
            Some(2 | 3) => Err(Bad),
            Some(_) => Ok(()),
            None if cursor.peek().await.is_none() => return cursor.finish(),
            None => {
                cursor.bump();
                Err(Bad)
            }
        };
        match read {
            Ok(()) => cursor.settle(),
            Err(Bad) => cursor.give_up(),
        }
    }
}

async fn message(cursor: &Cursor, before: &str) -> Result<(), Bad> {
    let (header, _) = cursor.until(&[MESSAGE], LONGEST).await?;
    let header = format!("{before}{header}");
    let Some((_, recipient)) = header.rsplit_once("to=") else { return Ok(()) };
    let end = recipient.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(recipient.len());
    let recipient = &recipient[..end];
    let name = recipient.strip_prefix("functions.").unwrap_or(recipient);
    if name.is_empty() || matches!(name, "assistant" | "user" | "all") {
        return Ok(());
    }
    let mut call = Call::new(cursor);
    call.may_be(name);
    call.begin();
    arguments(cursor, call, &["<|call|>", "<|end|>", "<|return|>"]).await
}
