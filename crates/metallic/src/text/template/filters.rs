//! Filters that differ from Python's jinja2 in the engine: what they print, and the arguments they take.
#![allow(clippy::needless_pass_by_value, reason = "the engine hands arguments over by value")]

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, State, Value};

use super::python;

pub(super) fn add_to(env: &mut Environment<'_>) {
    env.add_filter("tojson", |value: &Value, indent: Option<Value>, options: Kwargs| {
        python::tojson(value, indent, &options)
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
    }
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
    Ok(match count.or(named) {
        Some(count) => text.replacen(old, new, count),
        None => text.replace(old, new),
    })
}

/// The number in a value, or `default` where there is none.
fn int(value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default = default.map_or_else(|| options.get::<Option<Value>>("default"), |d| Ok(Some(d)))?;
    options.assert_all_used()?;
    let parsed = match (value.kind(), value.as_str()) {
        (_, Some(text)) => {
            let text = text.trim();
            text.parse::<i128>().ok().or_else(|| text.parse::<f64>().ok().and_then(whole))
        }
        (ValueKind::Bool, _) => Some(i128::from(value.is_true())),
        (ValueKind::Number, _) => {
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
    minijinja::filters::sort(state, value, all.into_iter().collect())
}
