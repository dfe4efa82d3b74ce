//! The table of fields in the documentation is made of the types: where the two part, this says which lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use metallic_telemetry::{
    CacheSummary, Compile, End, Event, Fault, Load, Lost, Memory, OpTime, Ops, Owned, PoolSummary,
    Preemption, ProviderChoice, Queue, Record, Request, Start, Step, Verify, Warning,
};

const BEGIN: &str = "<!-- fields: made of the types; METALLIC_WRITE_FIELDS=1 cargo test -p metallic-telemetry writes them -->\n";
const END: &str = "<!-- end of fields -->";

/// A type as the source declares it: its own line of documentation, and its fields or variants with theirs.
#[derive(Debug)]
struct Declared {
    doc: String,
    members: Vec<(String, String, String)>,
}

/// Reads the declarations of `event.rs`: structs and enums, a member a line.
fn declared() -> BTreeMap<String, Declared> {
    let source = include_str!("../../src/event.rs");
    let (mut types, mut doc, mut open) = (BTreeMap::new(), String::new(), None::<(String, Declared)>);
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            doc = if doc.is_empty() { text.to_owned() } else { format!("{doc} {text}") };
            continue;
        }
        let named = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
        if let Some(name) = named.and_then(|rest| rest.strip_suffix(" {")) {
            let doc = std::mem::take(&mut doc);
            open = Some((name.to_owned(), Declared { doc, members: Vec::new() }));
        } else if line == "}" {
            types.extend(open.take());
        } else if let (Some((_, declared)), true) = (&mut open, line.ends_with(',')) {
            let member = line.trim_start_matches("pub ").trim_end_matches(',');
            let (name, ty) = member.split_once(": ").unwrap_or((member, ""));
            declared.members.push((name.to_owned(), ty.to_owned(), std::mem::take(&mut doc)));
        }
        if !line.starts_with("#[") {
            doc.clear();
        }
    }
    types
}

/// What a type is in JSON.
fn json_type(ty: &str, types: &BTreeMap<String, Declared>) -> String {
    let inside = |outer: &str| ty.strip_prefix(outer)?.strip_suffix('>');
    if let Some(inner) = inside("Option<") {
        return format!("{} or null", json_type(inner, types));
    }
    if let Some(inner) = inside("Vec<") {
        return format!("list of {}", json_type(inner, types));
    }
    match ty {
        "u64" | "u32" => "integer".to_owned(),
        "f64" => "number".to_owned(),
        "bool" => "bool".to_owned(),
        "Name" | "String" => "string".to_owned(),
        other => {
            let declared = types.get(other).unwrap_or_else(|| panic!("`{other}` is not declared"));
            if declared.members.iter().all(|(_, ty, _)| ty.is_empty()) {
                let names = declared.members.iter().map(|(name, ..)| format!("`{}`", snake(name)));
                return names.collect::<Vec<_>>().join(", ");
            }
            let fields =
                declared.members.iter().map(|(name, ty, _)| format!("`{name}` {}", json_type(ty, types)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
    }
}

fn snake(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// The kinds with the names of their structs, in order.
fn kinds(types: &BTreeMap<String, Declared>) -> Vec<(String, String)> {
    let variants = types["Event"].members.iter().map(|(variant, ..)| {
        let (name, inner) = variant.trim_end_matches(')').split_once('(').expect("a struct of its own");
        (snake(name), inner.to_owned())
    });
    variants.collect()
}

fn table() -> String {
    let types = declared();
    let mut text = String::new();
    for (kind, name) in kinds(&types) {
        let declared = &types[&name];
        let head = "| field | type | |\n| --- | --- | --- |";
        let _ = writeln!(text, "\n#### `{kind}`\n\n{}\n\n{head}", declared.doc);
        for (field, ty, doc) in &declared.members {
            let _ = writeln!(text, "| `{field}` | {} | {doc} |", json_type(ty, &types));
        }
    }
    text + "\n"
}

#[test]
fn the_documented_fields_are_those_of_the_types() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/observability.md");
    let page = fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(BEGIN).expect("where the fields begin");
    let (found, after) = rest.split_once(END).expect("where they end");
    let needed = table();
    if std::env::var_os("METALLIC_WRITE_FIELDS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{needed}{END}{after}")).expect("the page");
        return;
    }
    let differing = needed.lines().zip(found.lines()).find(|(needed, found)| needed != found);
    assert!(found == needed, "docs/observability.md is behind the types, first at {differing:#?}");
}

/// One of each kind, with everything in it that may be absent.
fn samples() -> Vec<Event> {
    vec![
        Event::Start(Start::default()),
        Event::Load(Load { peak_bytes_per_second: Some(1.0), ..Load::default() }),
        Event::Request(Request::default()),
        Event::Step(Step::default()),
        Event::Ops(Ops { ops: vec![OpTime { layer: Some(1), ..OpTime::default() }], ..Ops::default() }),
        Event::Provider(ProviderChoice {
            instead_of: Some("a".into()),
            error: Some(String::new()),
            ..ProviderChoice::default()
        }),
        Event::Compile(Compile { error: Some(String::new()), ..Compile::default() }),
        Event::Cache(CacheSummary { limit: Some(1), ..CacheSummary::default() }),
        Event::Pool(PoolSummary { budget_bytes: Some(1), ..PoolSummary::default() }),
        Event::Queue(Queue::default()),
        Event::Preemption(Preemption::default()),
        Event::Memory(Memory { owners: vec![Owned::default()], budget_bytes: None }),
        Event::Fault(Fault::default()),
        Event::Warning(Warning::default()),
        Event::Verify(Verify { layer: Some(1), ..Verify::default() }),
        Event::Lost(Lost::default()),
        Event::End(End::default()),
    ]
}

#[test]
fn lines_have_the_fields_that_are_declared_and_no_others() {
    let types = declared();
    let (kinds, samples) = (kinds(&types), samples());
    let names: Vec<&str> = samples.iter().map(Event::kind).collect();
    assert_eq!(
        names,
        kinds.iter().map(|(kind, _)| kind.as_str()).collect::<Vec<_>>(),
        "a sample of each kind"
    );
    for (sample, (kind, name)) in samples.into_iter().zip(&kinds) {
        let line = Record::now(sample.clone()).to_line();
        assert_eq!(Record::parse(&line).expect(&line).event, sample);
        let value: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(value["kind"], **kind);
        let mut found: Vec<&str> = value.as_object().expect("an object").keys().map(String::as_str).collect();
        let mut needed = vec!["v", "t", "kind"];
        needed.extend(types[name].members.iter().map(|(field, ..)| field.as_str()));
        found.sort_unstable();
        needed.sort_unstable();
        assert_eq!(found, needed, "{kind}");
    }
}
