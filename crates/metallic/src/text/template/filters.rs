//! Filters that differ from Python's jinja2 in the engine: what they print, and the arguments they take.
#![allow(clippy::needless_pass_by_value, reason = "the engine hands arguments over by value")]

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};

use super::budget::{charge, charge_times, elements, keep, room, weight};
use super::python::Tuple;
use super::{methods, ops, python};

pub(super) fn add_to(env: &mut Environment<'_>) {
    env.add_filter("tojson", |value: &Value, places: Rest<Value>, options: Kwargs| {
        python::tojson(value, &places, &options)
    });
    env.add_filter("string", |value: &Value| python::str(value));
    env.add_filter("upper", |value: &Value| python::str(value).map(|s| s.to_uppercase()));
    env.add_filter("lower", |value: &Value| python::str(value).map(|s| s.to_lowercase()));
    env.add_filter("trim", trim);
    env.add_filter("join", join);
    env.add_filter("replace", replace);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("sort", sort);
    env.add_filter("indent", indent);
    env.add_filter("slice", slice);
    env.add_filter("batch", batch);
    env.add_filter("format", ops::format);
    env.add_filter("list", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        _ => elements(value).map(Value::from),
    });
    env.add_filter("title", |value: &Value| python::str(value).map(|s| title(&s)));
    env.add_filter("round", round);
    env.add_filter("escape", |value: &Value| python::str(value).map(|s| escape(&s)));
    env.add_filter("e", |value: &Value| python::str(value).map(|s| escape(&s)));
    env.add_filter("truncate", truncate);
    env.add_filter("wordcount", |value: &Value| {
        python::str(value).map(|s| {
            s.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
        })
    });
    env.add_filter("center", |value: &Value, width: Option<usize>| {
        let width = width.unwrap_or(80);
        charge_times(width, 4)?;
        python::str(value).map(|s| methods::pad(&s, "center", width, None))
    });
    env.add_filter("items", |value: &Value| match value.kind() {
        ValueKind::Undefined => Ok(Value::from(Vec::<Value>::new())),
        _ => methods::of_dict(value, "items", &[]),
    });
    env.add_filter("capitalize", |value: &Value| python::str(value).map(|s| methods::capitalize(&s)));
    // What the engine does over lists, paid for by what is in them.
    env.add_filter("__map", filters::map);
    env.add_filter("__select", filters::select);
    env.add_filter("__reject", filters::reject);
    env.add_filter("__selectattr", filters::selectattr);
    env.add_filter("__rejectattr", filters::rejectattr);
    env.add_filter("__groupby", filters::groupby);
    env.add_filter("__unique", filters::unique);
    env.add_filter("__min", filters::min);
    env.add_filter("__max", filters::max);
    env.add_filter("__zip", filters::zip);
    env.add_filter("__chain", filters::chain);
    env.add_filter("__reverse", filters::reverse);
    env.add_filter("__dictsort", filters::dictsort);
    for name in &OVER_LISTS {
        env.add_filter(&name[2..], |state: &State, args: Rest<Value>| {
            for value in args.iter().filter(|v| !v.is_kwargs()) {
                charge(weight(value)?.saturating_mul(4))?;
            }
            let result = state.apply_filter(name, &args).and_then(keep)?;
            if *name != "__dictsort" {
                return Ok(result);
            }
            let pairs = elements(&result)?;
            pairs.iter().map(|pair| Ok(Tuple::value(elements(pair)?))).collect::<Result<Value, Error>>()
        });
    }
    env.add_filter("sum", |value: &Value, options: Kwargs| {
        let attribute: Option<String> = options.get("attribute")?;
        let start: Option<Value> = options.get("start")?;
        options.assert_all_used()?;
        let start = start.unwrap_or_else(|| Value::from(0));
        elements(value)?.iter().try_fold(start, |sum, item| match &attribute {
            Some(name) => ops::add(&sum, &item.get_attr(name)?),
            None => ops::add(&sum, item),
        })
    });
}

const OVER_LISTS: [&str; 13] = [
    "__map",
    "__select",
    "__reject",
    "__selectattr",
    "__rejectattr",
    "__groupby",
    "__unique",
    "__min",
    "__max",
    "__zip",
    "__chain",
    "__reverse",
    "__dictsort",
];

/// `indent(width, first, blank)`, each by place or by name; the width may be a text. A line break at the end stays.
fn indent(value: &Value, places: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let option = |place: usize, name: &str| match places.get(place) {
        Some(given) => Ok(Some(given.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let (width, first, blank) = (option(0, "width")?, option(1, "first")?, option(2, "blank")?);
    options.assert_all_used()?;
    let text = python::str(value)?;
    let width = if let Some(text) = width.as_ref().and_then(Value::as_str) {
        text.to_owned()
    } else {
        let width = width.map_or(Ok(4), i64::try_from)?;
        let width = usize::try_from(width.max(0)).unwrap_or(usize::MAX);
        charge_times(width, 1)?;
        " ".repeat(width)
    };
    let text = text + "\n";
    let lines = methods::lines(&text, false);
    charge_times(lines.len(), width.len())?;
    let blank = blank.is_some_and(|b| b.is_true());
    let mut out = String::new();
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        if if i > 0 { blank || !line.is_empty() } else { first.as_ref().is_some_and(Value::is_true) } {
            out.push_str(&width);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// So many columns, the first ones longer by one where the list does not divide.
fn slice(value: &Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    if count == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "slice: the number of columns is zero"));
    }
    let list = elements(value)?;
    charge_times(count, 64)?;
    let (each, longer) = (list.len() / count, list.len() % count);
    let mut rest = &list[..];
    let mut out = Vec::with_capacity(count);
    for column in 0..count {
        let (items, after) = rest.split_at(each + usize::from(column < longer));
        rest = after;
        let fill = fill.iter().filter(|_| longer > 0 && column >= longer);
        out.push(items.iter().chain(fill).cloned().collect::<Value>());
    }
    keep(Value::from(out))
}

/// Lists of so many elements, the last one filled up.
fn batch(value: &Value, count: usize, fill: Option<Value>) -> Result<Value, Error> {
    if count == 0 {
        return Err(Error::new(ErrorKind::InvalidOperation, "batch: the number of elements is zero"));
    }
    let list = elements(value)?;
    charge_times(list.len() / count + 1, 64)?;
    let mut out: Vec<Vec<Value>> = list.chunks(count).map(<[Value]>::to_vec).collect();
    if let (Some(fill), Some(last)) = (fill, out.last_mut()) {
        charge_times(count - last.len(), 32)?;
        last.resize(count, fill);
    }
    keep(Value::from(out))
}

fn trim(value: &Value, chars: Option<&str>) -> Result<String, Error> {
    let text = python::str(value)?;
    Ok(match chars {
        Some(set) => text.trim_matches(|c| set.contains(c)).to_owned(),
        None => text.trim().to_owned(),
    })
}

fn join(items: &Value, separator: Option<&str>, options: Kwargs) -> Result<String, Error> {
    let named: Option<String> = options.get("d")?;
    let separator = separator.or(named.as_deref()).unwrap_or("");
    let attribute: Option<String> = options.get("attribute")?;
    options.assert_all_used()?;
    let mut out = String::new();
    for (i, item) in items.try_iter()?.enumerate() {
        if i > 0 {
            out.push_str(separator);
        }
        let item = match &attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        out.push_str(&python::str(&item)?);
        room(out.len())?;
    }
    charge(out.len())?;
    Ok(out)
}

fn replace(
    value: &Value,
    old: &str,
    new: &str,
    count: Option<usize>,
    options: Kwargs,
) -> Result<String, Error> {
    let named: Option<usize> = options.get("count")?;
    options.assert_all_used()?;
    let text = python::str(value)?;
    methods::replace(&text, old, new, count.or(named))
}

/// `int(default, base)`: the number in a value, or `default` where there is none.
fn int(value: &Value, default: Option<Value>, base: Option<u32>, options: Kwargs) -> Result<Value, Error> {
    let default = default.map_or_else(|| options.get::<Option<Value>>("default"), |d| Ok(Some(d)))?;
    let base = base.map_or_else(|| options.get::<Option<u32>>("base"), |b| Ok(Some(b)))?;
    options.assert_all_used()?;
    let parsed = match (value.kind(), value.as_str(), base) {
        (_, Some(text), Some(base @ (2 | 8 | 16))) => {
            let text = text.trim().to_lowercase();
            let prefix = if base == 2 {
                "0b"
            } else if base == 8 {
                "0o"
            } else {
                "0x"
            };
            i128::from_str_radix(text.strip_prefix(prefix).unwrap_or(&text), base).ok()
        }
        (_, Some(text), _) => {
            let text = text.trim();
            text.parse::<i128>().ok().or_else(|| text.parse::<f64>().ok().and_then(whole))
        }
        (ValueKind::Bool, ..) => Some(i128::from(value.is_true())),
        (ValueKind::Number, ..) => {
            i128::try_from(value.clone()).ok().or_else(|| f64::try_from(value.clone()).ok().and_then(whole))
        }
        _ => None,
    };
    Ok(parsed.map(Value::from).or(default).unwrap_or_else(|| Value::from(0)))
}

fn whole(x: f64) -> Option<i128> {
    x.is_finite().then_some(x as i128)
}

fn float(value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default = default.map_or_else(|| options.get::<Option<Value>>("default"), |d| Ok(Some(d)))?;
    options.assert_all_used()?;
    let parsed = match (value.kind(), value.as_str()) {
        (_, Some(text)) => text.trim().parse::<f64>().ok(),
        (ValueKind::Bool, _) => Some(f64::from(u8::from(value.is_true()))),
        (ValueKind::Number, _) => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    Ok(parsed.map(Value::from).or(default).unwrap_or_else(|| Value::from(0.0)))
}

/// `sort(reverse, case_sensitive, attribute)`, each by place or by name.
fn sort(state: &State, value: Value, places: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let mut all = Vec::new();
    for (place, name) in ["reverse", "case_sensitive", "attribute"].into_iter().enumerate() {
        let given = match places.get(place) {
            Some(given) => Some(given.clone()),
            None => options.get::<Option<Value>>(name)?,
        };
        all.extend(given.filter(|v| !v.is_none()).map(|v| (name, v)));
    }
    options.assert_all_used()?;
    // Each element is compared with some others.
    charge(weight(&value)?.saturating_mul(32))?;
    minijinja::filters::sort(state, value, all.into_iter().collect())
}

/// `title` as a filter: what follows a space, a hyphen or an opening bracket is large, the rest small.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut begins = true;
    for c in text.chars() {
        if begins {
            methods::push_title(c, &mut out);
        } else {
            out.extend(c.to_lowercase());
        }
        begins = c.is_whitespace() || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

fn escape(text: &str) -> String {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&#34;").replace('\'', "&#39;")
}

/// `round(precision, method)`; halves go to the even neighbour, as in Python.
fn round(value: &Value, places: Option<i32>, method: Option<&str>, options: Kwargs) -> Result<Value, Error> {
    let places =
        places.map_or_else(|| options.get::<Option<i32>>("precision"), |p| Ok(Some(p)))?.unwrap_or(0);
    let named: Option<String> = options.get("method")?;
    options.assert_all_used()?;
    let places = places.clamp(-300, 300);
    let scale = 10_f64.powi(places);
    match method.or(named.as_deref()).unwrap_or("common") {
        "common" if value.is_integer() && places >= 0 => Ok(value.clone()),
        "common" => {
            let x = f64::try_from(value.clone())?;
            // The digits of the number itself, correctly rounded.
            let rounded = match usize::try_from(places) {
                Ok(places) => format!("{x:.places$}").parse().unwrap_or(x),
                Err(_) => (x * scale).round_ties_even() / scale,
            };
            Ok(Value::from(rounded))
        }
        "ceil" => Ok(Value::from((f64::try_from(value.clone())? * scale).ceil() / scale)),
        "floor" => Ok(Value::from((f64::try_from(value.clone())? * scale).floor() / scale)),
        other => {
            let what = format!("round: method `{other}` is none of common, ceil, floor");
            Err(Error::new(ErrorKind::InvalidOperation, what))
        }
    }
}

/// `truncate(length, killwords, end, leeway)`, each by place or by name.
fn truncate(value: &Value, places: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let option = |place: usize, name: &str| match places.get(place) {
        Some(given) => Ok(Some(given.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let length = option(0, "length")?.map_or(Ok(255), usize::try_from)?;
    let cuts_words = option(1, "killwords")?.is_some_and(|v| v.is_true());
    let end = option(2, "end")?.map_or(Ok("...".to_owned()), |v| python::str(&v))?;
    let leeway = option(3, "leeway")?.map_or(Ok(5), usize::try_from)?;
    options.assert_all_used()?;
    let text = python::str(value)?;
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text);
    }
    let cut: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = if cuts_words { &*cut } else { cut.rsplit_once(' ').map_or(&*cut, |(kept, _)| kept) };
    Ok(format!("{kept}{end}"))
}

/// Tests that differ from jinja2 in the engine.
pub(super) fn add_tests_to(env: &mut Environment<'_>) {
    let is_iterable = |value: &Value| {
        use ValueKind::{Iterable, Map, Seq, String, Undefined};
        matches!(value.kind(), Seq | Map | Iterable | String | Undefined)
    };
    env.add_test("iterable", is_iterable);
    env.add_test("sequence", is_iterable);
    env.add_test("number", |value: &Value| matches!(value.kind(), ValueKind::Number | ValueKind::Bool));
    env.add_test("callable", |value: &Value| matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined));
    // Of numbers too: what is written is looked at.
    let cased = |value: &Value, test: fn(char) -> bool, other: fn(char) -> bool| -> Result<bool, Error> {
        let text = python::str(value)?;
        Ok(text.chars().any(test) && !text.chars().any(other))
    };
    env.add_test("lower", move |v: &Value| cased(v, char::is_lowercase, char::is_uppercase));
    env.add_test("upper", move |v: &Value| cased(v, char::is_uppercase, char::is_lowercase));
}
