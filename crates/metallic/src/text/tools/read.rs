//! Reads an answer: text, and calls where a mark opens them.

use std::sync::Arc;

use super::cursor::{Bad, Call, Cursor};
use super::families::{Body, Family};
use super::json::{self, Shape};
use super::schema::Tools;
use super::{elements, literal, named, tagged};

/// What stopped the reading of text.
enum Found {
    Begin,
    Open,
    Head,
    Also,
    /// Something that may be a call without a mark.
    Bare,
    Quiet,
    End,
}

/// Reads to the end.
pub(super) async fn answer(cursor: Cursor, family: &'static Family, tools: Arc<Tools>) {
    if matches!(family.body, Body::Harmony) {
        return named::harmony(&cursor, family).await;
    }
    loop {
        let read = match text(&cursor, family).await {
            Found::End => return cursor.finish(),
            Found::Quiet => Ok(()),
            Found::Bare => json::calls(&cursor, Shape::Bare, &[], &tools).await,
            found => section(&cursor, family, found, &tools).await,
        };
        match read {
            Ok(()) => cursor.settle(),
            Err(Bad) => cursor.give_up(),
        }
    }
}

/// Reads text up to what may be a call.
async fn text(cursor: &Cursor, family: &Family) -> Found {
    let frame = &family.frame;
    let own = [(frame.begin, Found::Begin), (frame.open, Found::Open), (frame.head, Found::Head)];
    let also = family.also.iter().map(|mark| (*mark, Found::Also));
    let quiet = family.quiet.iter().map(|mark| (*mark, Found::Quiet));
    let mut openers: Vec<(&str, Found)> = own.into_iter().chain(also).chain(quiet).collect();
    openers.retain_mut(|(mark, _)| {
        *mark = mark.trim();
        !mark.is_empty()
    });
    let marks: Vec<&str> = openers.iter().map(|(mark, _)| *mark).collect();
    loop {
        if let Some(i) = cursor.mark(&marks).await {
            return openers.swap_remove(i).1;
        }
        let Some(c) = cursor.peek().await else { return Found::End };
        if c == '{' && family.bare && cursor.is_fresh() {
            return Found::Bare;
        }
        cursor.bump();
        cursor.give_up();
    }
}

/// Reads the calls behind a mark. An error while nothing of a call was told: what was read is text.
async fn section(cursor: &Cursor, family: &'static Family, found: Found, tools: &Tools) -> Result<(), Bad> {
    let frame = &family.frame;
    let mut closes: Vec<&str> = [frame.tail, frame.close, frame.end].map(str::trim).to_vec();
    closes.extend(family.also_end);
    closes.retain(|mark| !mark.is_empty());
    let (open, head) = (frame.open.trim(), frame.head.trim());
    let mut at_head = matches!(found, Found::Head);
    loop {
        if !at_head && !head.is_empty() {
            cursor.spaces().await;
            cursor.mark(&[open]).await;
            cursor.spaces().await;
            cursor.mark(&[head]).await.ok_or(Bad)?;
        }
        body(cursor, family, &closes, tools).await?;
        cursor.settle();
        cursor.spaces().await;
        while cursor.mark(&closes).await.is_some() {
            cursor.settle();
            cursor.spaces().await;
        }
        // Text between calls is found by whoever looks for marks.
        if head.is_empty() || cursor.mark(&[head]).await.is_none() {
            return Ok(());
        }
        at_head = true;
    }
}

/// Reads one call after its head, or all calls where there is none.
async fn body(cursor: &Cursor, family: &'static Family, closes: &[&str], tools: &Tools) -> Result<(), Bad> {
    match &family.body {
        Body::Objects { keys, .. } => {
            let shape = if keys.is_some() { Shape::Marked } else { Shape::NameIsKey };
            if family.also.contains(&"<|python_tag|>") {
                cursor.spaces().await;
                // Tools that Llama knows by itself: `name.call(a="b")`.
                if cursor.peek().await.is_some_and(char::is_alphabetic) {
                    let mut call = Call::new(cursor);
                    return match literal::call(cursor, &mut call, tools).await {
                        Ok(()) => Ok(()),
                        Err(Bad) => json::rest(cursor, call, closes).await,
                    };
                }
            }
            json::calls(cursor, shape, closes, tools).await
        }
        Body::Python { .. } => literal::calls(cursor, closes, tools).await,
        Body::Harmony => Err(Bad),
        Body::Named(named) => named::call(cursor, named, closes).await,
        Body::Tagged(tagged) => {
            let mut call = Call::new(cursor);
            match tagged::call(cursor, &mut call, (tagged, family.frame.tail.trim()), tools).await {
                Ok(()) => Ok(()),
                Err(Bad) => json::rest(cursor, call, closes).await,
            }
        }
        Body::Braces { quote } => {
            let mut call = Call::new(cursor);
            match literal::braces(cursor, &mut call, quote).await {
                Ok(()) => Ok(()),
                Err(Bad) => json::rest(cursor, call, closes).await,
            }
        }
        Body::Elements { prefix } => {
            let mut call = Call::new(cursor);
            match elements::call(cursor, &mut call, prefix, tools).await {
                Ok(()) => Ok(()),
                Err(Bad) => json::rest(cursor, call, closes).await,
            }
        }
    }
}
