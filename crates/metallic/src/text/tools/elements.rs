//! Arguments as elements inside elements: `<list><item>…</item></list>`, each mark behind a prefix that nothing else has.

use std::future::Future;
use std::pin::Pin;

use serde_json::{Map, Value};

use super::cursor::{Bad, Call, Cursor, Sink};
use super::schema::{STEPS, Tools, kinds};
use super::tagged::{typed, write_string};

/// Levels of nesting in arguments.
const LEVELS: usize = 64;
const LONGEST: usize = 512;
const LONGEST_VALUE: usize = 1 << 24;

/// Reads one call after its head.
pub(super) async fn call(
    cursor: &Cursor,
    call: &mut Call<'_>,
    prefix: &str,
    tools: &Tools,
) -> Result<(), Bad> {
    let (name, _) = cursor.until(&["\">"], LONGEST).await?;
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(Bad);
    }
    call.may_be(&name);
    call.begin();
    call.put('{');
    let none = Value::Null;
    let root = tools.get(&name).map_or(&none, |tool| &tool.parameters);
    let (close, open) = (format!("{prefix}</invoke>"), format!("{prefix}<"));
    let mut first = true;
    loop {
        cursor.spaces().await;
        match cursor.mark(&[&close, &open]).await {
            Some(0) => break,
            Some(_) => {}
            None => return Err(Bad),
        }
        if !std::mem::take(&mut first) {
            call.put_all(", ");
        }
        let (key, _) = cursor.until(&[">"], LONGEST).await?;
        write_string(&key, call);
        call.put_all(": ");
        let schema = root.get("properties").and_then(|p| p.get(&key)).unwrap_or(&none);
        let value = Reader { cursor, prefix, root }.element(&key, schema, LEVELS).await?;
        call.put_all(&value);
    }
    call.put('}');
    call.end()
}

struct Reader<'a> {
    cursor: &'a Cursor,
    prefix: &'a str,
    root: &'a Value,
}

impl Reader<'_> {
    /// Reads what stands inside an element, and its end, as JSON.
    fn element<'s>(
        &'s self,
        tag: &'s str,
        schema: &'s Value,
        levels: usize,
    ) -> Pin<Box<dyn Future<Output = Result<String, Bad>> + Send + 's>> {
        Box::pin(async move {
            let close = format!("{}</{tag}>", self.prefix);
            let open = format!("{}<", self.prefix);
            let (text, which) = self.cursor.until(&[&close, &open], LONGEST_VALUE).await?;
            let kinds = kinds(self.root, schema, &mut STEPS.clone());
            if which == 0 {
                let is_list = text.trim().is_empty() && kinds.first().is_some_and(|kind| kind == "array");
                let is_object = text.trim().is_empty() && kinds.first().is_some_and(|kind| kind == "object");
                return Ok(match (is_list, is_object) {
                    (true, _) => "[]".to_owned(),
                    (_, true) => "{}".to_owned(),
                    _ => typed(&text, &kinds),
                });
            }
            if levels == 0 || !text.trim().is_empty() {
                return Err(Bad);
            }
            self.children(&close, &open, schema, levels).await
        })
    }

    /// Reads elements up to the end of the one around them: a list where they are called `item`, else an object.
    async fn children(&self, close: &str, open: &str, schema: &Value, levels: usize) -> Result<String, Bad> {
        let none = Value::Null;
        let mut list = Vec::new();
        let mut object = Map::new();
        loop {
            let (tag, _) = self.cursor.until(&[">"], LONGEST).await?;
            let is_item = tag == "item" && schema.get("properties").is_none_or(|p| p.get("item").is_none());
            let inner = if is_item {
                schema.get("items")
            } else {
                schema.get("properties").and_then(|p| p.get(&tag))
            };
            let json = self.element(&tag, inner.unwrap_or(&none), levels - 1).await?;
            let value = serde_json::from_str(&json).map_err(|_| Bad)?;
            if is_item {
                list.push(value);
            } else {
                object.insert(tag, value);
            }
            self.cursor.spaces().await;
            match self.cursor.mark(&[close, open]).await {
                Some(0) if object.is_empty() => return Ok(Value::from(list).to_string()),
                Some(0) => return Ok(Value::from(object).to_string()),
                Some(_) => {}
                None => return Err(Bad),
            }
        }
    }
}
