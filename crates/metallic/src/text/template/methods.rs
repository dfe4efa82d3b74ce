//! The methods of Python's `str`, `dict` and `list` that templates call.

use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

use super::budget::{charge, charge_times, elements, room};
use super::python::{self, Tuple};

/// Calls `method` of `value`.
pub(super) fn call(_: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => of_str(text, method, args),
        (ValueKind::Map, _) => of_dict(value, method, args),
        (ValueKind::Seq | ValueKind::Iterable, _) => of_list(value, method, args),
        _ => Err(Error::from(ErrorKind::UnknownMethod)),
    }
}

/// Positional and named arguments of one call.
struct Args {
    method: String,
    positional: Vec<Value>,
    named: Kwargs,
}

impl Args {
    fn new(method: &str, args: &[Value]) -> Result<Self, Error> {
        let (positional, named): (Rest<Value>, Kwargs) = from_args(args)?;
        Ok(Self { method: method.into(), positional: positional.0, named })
    }

    /// The argument at `place` or called `name`; `None` passes for absent.
    fn get(&self, place: usize, name: &str) -> Result<Option<Value>, Error> {
        let found = match self.positional.get(place) {
            Some(value) => Some(value.clone()),
            None => self.named.get::<Option<Value>>(name)?,
        };
        Ok(found.filter(|v| !v.is_none() && !v.is_undefined()))
    }

    fn text(&self, place: usize, name: &str) -> Result<Option<String>, Error> {
        let Some(value) = self.get(place, name)? else { return Ok(None) };
        value.as_str().map(|s| Some(s.to_owned())).ok_or_else(|| self.wrong(name, "a text"))
    }

    fn needed_text(&self, place: usize, name: &str) -> Result<String, Error> {
        self.text(place, name)?.ok_or_else(|| self.wrong(name, "a text"))
    }

    fn int(&self, place: usize, name: &str) -> Result<Option<i64>, Error> {
        self.get(place, name)?.map(i64::try_from).transpose()
    }

    fn wrong(&self, name: &str, needed: &str) -> Error {
        Error::new(
            ErrorKind::InvalidOperation,
            format!("the argument `{name}` of {}() must be {needed}", self.method),
        )
    }
}

fn of_str(s: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new(method, args)?;
    // Most methods make about as much as they are given.
    charge_times(s.len(), if method.contains("split") { 8 } else { 1 })?;
    let all = |test: fn(char) -> bool| !s.is_empty() && s.chars().all(test);
    let trimmed = |left: bool, right: bool| -> Result<Value, Error> {
        let chars = args.text(0, "chars")?;
        let strips = |c: char| chars.as_ref().map_or_else(|| is_space(c), |set| set.contains(c));
        let mut kept = s;
        if left {
            kept = kept.trim_start_matches(strips);
        }
        if right {
            kept = kept.trim_end_matches(strips);
        }
        Ok(Value::from(kept))
    };
    let cased =
        |test: fn(char) -> bool, other: fn(char) -> bool| s.chars().any(test) && !s.chars().any(other);
    Ok(match method {
        "strip" => trimmed(true, true)?,
        "lstrip" => trimmed(true, false)?,
        "rstrip" => trimmed(false, true)?,
        "upper" => s.to_uppercase().into(),
        "lower" => s.to_lowercase().into(),
        "casefold" => s.to_lowercase().replace('ß', "ss").replace('ς', "σ").into(),
        "expandtabs" => {
            let width = usize::try_from(args.int(0, "tabsize")?.unwrap_or(8).clamp(0, 256)).unwrap_or(8);
            charge_times(s.matches('\t').count(), width)?;
            expand_tabs(s, width).into()
        }
        "istitle" => (s.chars().any(char::is_uppercase) && title(s) == s).into(),
        "capitalize" => capitalize(s).into(),
        "title" => title(s).into(),
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            s.chars().map(swap).collect::<String>().into()
        }
        "isalpha" => all(char::is_alphabetic).into(),
        "isalnum" => all(char::is_alphanumeric).into(),
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric).into(),
        "isspace" => all(is_space).into(),
        "isascii" => s.is_ascii().into(),
        "islower" => cased(char::is_lowercase, char::is_uppercase).into(),
        "isupper" => cased(char::is_uppercase, char::is_lowercase).into(),
        "startswith" => affix(&args, "prefix", |a| s.starts_with(a))?.into(),
        "endswith" => affix(&args, "suffix", |a| s.ends_with(a))?.into(),
        "removeprefix" => {
            let prefix = args.needed_text(0, "prefix")?;
            s.strip_prefix(prefix.as_str()).unwrap_or(s).into()
        }
        "removesuffix" => {
            let suffix = args.needed_text(0, "suffix")?;
            s.strip_suffix(suffix.as_str()).unwrap_or(s).into()
        }
        "replace" => {
            let (old, new) = (args.needed_text(0, "old")?, args.needed_text(1, "new")?);
            replace(s, &old, &new, args.int(2, "count")?.and_then(|n| usize::try_from(n).ok()))?.into()
        }
        "count" => match args.needed_text(0, "sub")?.as_str() {
            "" => (s.chars().count() + 1).into(),
            sub => s.matches(sub).count().into(),
        },
        "find" | "index" | "rfind" | "rindex" => {
            let sub = args.needed_text(0, "sub")?;
            let found = if method.starts_with('r') { s.rfind(&sub) } else { s.find(&sub) };
            match found {
                Some(at) => s[..at].chars().count().into(),
                None if method.ends_with("find") => (-1).into(),
                None => return Err(Error::new(ErrorKind::InvalidOperation, "substring not found")),
            }
        }
        "split" | "rsplit" => {
            let sep = args.text(0, "sep")?;
            let most = args.int(1, "maxsplit")?.and_then(|n| usize::try_from(n).ok());
            split(s, sep.as_deref(), most, method == "rsplit")?
        }
        "partition" | "rpartition" => {
            let sep = args.needed_text(0, "sep")?;
            let found = if method == "partition" { s.split_once(&sep) } else { s.rsplit_once(&sep) };
            let parts = match found {
                Some((before, after)) => [before, &sep, after],
                None if method == "partition" => [s, "", ""],
                None => ["", "", s],
            };
            Tuple::value(parts.into_iter().map(Value::from))
        }
        "splitlines" => {
            let keep = args.get(0, "keepends")?.is_some_and(|v| v.is_true());
            lines(s, keep).into_iter().map(Value::from).collect()
        }
        "join" => {
            let items = args.get(0, "iterable")?.ok_or_else(|| args.wrong("iterable", "a list"))?;
            let mut out = String::new();
            for (i, item) in elements(&items)?.iter().enumerate() {
                let item = item.as_str().ok_or_else(|| args.wrong("iterable", "a list of texts"))?;
                charge(s.len() + item.len())?;
                out.push_str(if i > 0 { s } else { "" });
                out.push_str(item);
            }
            out.into()
        }
        "ljust" | "rjust" | "center" | "zfill" => {
            let width = usize::try_from(args.int(0, "width")?.unwrap_or(0).max(0)).unwrap_or(usize::MAX);
            charge_times(width, 4)?;
            let fill = if method == "zfill" { None } else { args.text(1, "fillchar")? };
            pad(s, method, width, fill.and_then(|f| f.chars().next())).into()
        }
        "format" => return format(s, &args),
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

/// What Python's `str.strip` strips: whitespace, and the four separators U+001C to U+001F.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// Replaces the first `count` occurrences of `old`, or all.
pub(super) fn replace(s: &str, old: &str, new: &str, count: Option<usize>) -> Result<String, Error> {
    let most = count.unwrap_or(usize::MAX);
    let found = if old.is_empty() { s.chars().count() + 1 } else { s.matches(old).count() };
    charge_times(found.min(most), new.len())?;
    charge(s.len())?;
    Ok(s.replacen(old, new, most))
}

pub(super) fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    let mut out = String::with_capacity(s.len());
    chars.next().into_iter().for_each(|c| push_title(c, &mut out));
    out + &chars.as_str().to_lowercase()
}

/// The form of a letter that begins a word: of letters that become several, only the first is large.
pub(super) fn push_title(c: char, out: &mut String) {
    for (i, upper) in c.to_uppercase().enumerate() {
        if i > 0 && out.ends_with(char::is_uppercase) {
            out.extend(upper.to_lowercase());
        } else {
            out.push(upper);
        }
    }
}

fn expand_tabs(s: &str, width: usize) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for c in s.chars() {
        match c {
            '\t' => {
                let spaces = if width == 0 { 0 } else { width - column % width };
                (0..spaces).for_each(|_| out.push(' '));
                column += spaces;
            }
            c => {
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
                out.push(c);
            }
        }
    }
    out
}

pub(super) fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            push_title(c, &mut out);
        }
        inside = c.is_alphabetic();
    }
    out
}

/// Tests the affix, or any of a list of them.
fn affix(args: &Args, name: &str, test: impl Fn(&str) -> bool) -> Result<bool, Error> {
    let wrong = || args.wrong(name, "a text or a list of texts");
    let given = args.get(0, name)?.ok_or_else(wrong)?;
    if let Some(text) = given.as_str() {
        return Ok(test(text));
    }
    for text in given.try_iter()? {
        if test(text.as_str().ok_or_else(wrong)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn split(s: &str, sep: Option<&str>, most: Option<usize>, from_right: bool) -> Result<Value, Error> {
    let most = most.map_or(usize::MAX, |n| n.saturating_add(1));
    let mut parts: Vec<&str> = match sep {
        Some("") => return Err(Error::new(ErrorKind::InvalidOperation, "split(): empty separator")),
        Some(sep) if from_right => s.rsplitn(most, sep).collect(),
        Some(sep) => s.splitn(most, sep).collect(),
        None => words(s, most, from_right),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words between whitespace, at most `most` of them; the last holds the rest. From the right: the last word first.
fn words(s: &str, most: usize, from_right: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = s;
    loop {
        rest = if from_right { rest.trim_end_matches(is_space) } else { rest.trim_start_matches(is_space) };
        if rest.is_empty() {
            return out;
        }
        if out.len() + 1 == most {
            out.push(rest);
            return out;
        }
        let word = if from_right { rest.rsplit(is_space).next() } else { rest.split(is_space).next() };
        let word = word.unwrap_or(rest);
        rest = if from_right { &rest[..rest.len() - word.len()] } else { &rest[word.len()..] };
        out.push(word);
    }
}

/// `str.splitlines`.
pub(super) fn lines(s: &str, keep_ends: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut rest = s;
    let is_break = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    while let Some(at) = rest.find(is_break) {
        let mut end = at + rest[at..].chars().next().map_or(1, char::len_utf8);
        if rest[at..].starts_with("\r\n") {
            end = at + 2;
        }
        out.push(&rest[..if keep_ends { end } else { at }]);
        rest = &rest[end..];
    }
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

pub(super) fn pad(s: &str, method: &str, width: usize, fill: Option<char>) -> String {
    let missing = width.saturating_sub(s.chars().count());
    let fill = |n: usize| fill.unwrap_or(' ').to_string().repeat(n);
    match method {
        "ljust" => s.to_owned() + &fill(missing),
        "rjust" => fill(missing) + s,
        "zfill" => {
            let (sign, digits) = s.split_at(usize::from(s.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", "0".repeat(missing))
        }
        _ => {
            let left = missing / 2 + (missing & width & 1);
            fill(left) + s + &fill(missing - left)
        }
    }
}

/// `str.format` with plain fields: `{}`, `{0}`, `{name}`, `{{`, `}}`.
fn format(s: &str, args: &Args) -> Result<Value, Error> {
    let bad = |what: &str| Error::new(ErrorKind::InvalidOperation, format!("format(): {what}"));
    let mut out = String::new();
    let mut next = 0;
    let mut rest = s;
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..=at];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            out.push_str(brace);
            rest = after;
            continue;
        }
        if brace == "}" {
            return Err(bad("a single `}`"));
        }
        let (field, after) = rest.split_once('}').ok_or_else(|| bad("a `{` that is not closed"))?;
        rest = after;
        let value = if field.is_empty() {
            next += 1;
            args.positional.get(next - 1).cloned()
        } else if let Ok(place) = field.parse::<usize>() {
            args.positional.get(place).cloned()
        } else {
            args.named.get::<Option<Value>>(field)?
        };
        room(out.len())?;
        out.push_str(&python::str(&value.ok_or_else(|| bad(&format!("nothing for the field `{field}`")))?)?);
    }
    out.push_str(rest);
    charge(out.len())?;
    Ok(out.into())
}

pub(super) fn of_dict(dict: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    charge_times(dict.len().unwrap_or(0), 64)?;
    let pairs = || -> Result<Vec<(Value, Value)>, Error> {
        dict.try_iter()?.map(|key| Ok((key.clone(), dict.get_item(&key)?))).collect()
    };
    // A key of this name hides the method, as it does not in Python; what templates mean is the method.
    let args = Args::new(method, args)?;
    Ok(match method {
        "items" => pairs()?.into_iter().map(|(k, v)| Tuple::value([k, v])).collect(),
        "keys" => pairs()?.into_iter().map(|(k, _)| k).collect(),
        "values" => pairs()?.into_iter().map(|(_, v)| v).collect(),
        "copy" => dict.clone(),
        "get" => {
            let key = args.positional.first().ok_or_else(|| args.wrong("key", "given"))?;
            let found = dict.get_item(key)?;
            if found.is_undefined() {
                args.get(1, "default")?.unwrap_or_else(|| Value::from(()))
            } else {
                found
            }
        }
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}

fn of_list(list: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let args = Args::new(method, args)?;
    let wanted = args.positional.first();
    Ok(match method {
        "copy" => Value::from(elements(list)?),
        "count" => list.try_iter()?.filter(|v| Some(v) == wanted).count().into(),
        "index" => match list.try_iter()?.position(|v| Some(&v) == wanted) {
            Some(at) => at.into(),
            None => return Err(Error::new(ErrorKind::InvalidOperation, "index(): not in the list")),
        },
        _ => return Err(Error::from(ErrorKind::UnknownMethod)),
    })
}
