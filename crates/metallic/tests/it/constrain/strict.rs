//! What is refused, and how soon.

use std::time::{Duration, Instant};

use super::*;
use metallic::constrain::ConstrainError;

fn refusal(schema: &Value) -> ConstrainError {
    constrainer().constraint(&Format::JsonSchema(schema.clone())).expect_err("it cannot be enforced")
}

#[test]
fn keywords_that_cannot_be_enforced_are_refused_by_name_and_place() {
    let cases = [
        (json!({ "not": { "type": "string" } }), "/not"),
        (
            json!({ "type": "object", "properties": { "a/b": { "if": {}, "then": {} } } }),
            "/properties/a~1b/if",
        ),
        (json!({ "then": true }), "/then"),
        (json!({ "else": true }), "/else"),
        (json!({ "type": "array", "uniqueItems": true }), "/uniqueItems"),
        (json!({ "items": { "contains": {} } }), "/items/contains"),
        (json!({ "minContains": 1 }), "/minContains"),
        (json!({ "maxContains": 1 }), "/maxContains"),
        (json!({ "propertyNames": { "pattern": "a" } }), "/propertyNames"),
        (json!({ "dependentRequired": { "a": ["b"] } }), "/dependentRequired"),
        (json!({ "dependentSchemas": {} }), "/dependentSchemas"),
        (json!({ "dependencies": {} }), "/dependencies"),
        (json!({ "unevaluatedProperties": false }), "/unevaluatedProperties"),
        (json!({ "unevaluatedItems": false }), "/unevaluatedItems"),
        (json!({ "type": "object", "minProperties": 3 }), "/minProperties"),
        // A name that is asked for twice comes once.
        (json!({ "type": "object", "required": ["a", "a"], "minProperties": 3 }), "/minProperties"),
        (json!({ "$ref": "https://example.com/schema.json" }), "/$ref"),
        (json!({ "$ref": "#anchor", "$defs": { "a": { "$anchor": "anchor" } } }), "/$ref"),
        (json!({ "$dynamicRef": "#a" }), "/$dynamicRef"),
        (json!({ "$dynamicAnchor": "a" }), "/$dynamicAnchor"),
        (json!({ "$recursiveRef": "#" }), "/$recursiveRef"),
        (json!({ "$vocabulary": {} }), "/$vocabulary"),
        (json!({ "properties": { "a": { "$id": "urn:x" } } }), "/properties/a/$id"),
        (json!({ "$schema": "https://example.com/mine" }), "/$schema"),
        (json!({ "type": "string", "contentEncoding": "base64" }), "/contentEncoding"),
        (json!({ "type": "string", "contentMediaType": "text/html" }), "/contentMediaType"),
        (json!({ "contentSchema": {} }), "/contentSchema"),
        (json!({ "type": "string", "nullable": true }), "/nullable"),
        (json!({ "x-guidance": { "lenient": true } }), "/x-guidance"),
        (json!({ "maxLenght": 3 }), "/maxLenght"),
        (json!({ "type": "string", "pattern": "(?=a)b" }), "/pattern"),
        (json!({ "type": "string", "pattern": r"\bword" }), "/pattern"),
        (json!({ "patternProperties": { "(a)\\1": {} } }), "/patternProperties/(a)\\1"),
        // Dialects differ in what these mean.
        (json!({ "type": "string", "pattern": "^a{,3}$" }), "/pattern"),
        (json!({ "type": "string", "pattern": "^a++b$" }), "/pattern"),
        (
            json!({ "properties": { "é": {} }, "patternProperties": { r"\W": { "type": "null" } } }),
            "/patternProperties",
        ),
        (
            json!({ "patternProperties": { r"\W": { "type": "null" }, "^é": { "type": "string" } } }),
            "/patternProperties",
        ),
        (json!({ "$ref": "#/$defs/a", "$defs": { "a": { "items": { "not": {} } } } }), "/$defs/a/items/not"),
    ];
    for (schema, place) in cases {
        let ConstrainError::Unsupported { pointer, keyword } = refusal(&schema) else {
            panic!("{schema}: {:?}", refusal(&schema));
        };
        assert_eq!(pointer, place, "{schema}");
        let named = place.trim_start_matches('/').split('/').any(|part| part == keyword);
        assert!(named, "{schema}: {keyword}");
    }
}

#[test]
fn values_that_keywords_cannot_have_are_refused_by_place() {
    let cases = [
        (json!(3), ""),
        (json!({ "type": "text" }), "/type"),
        (json!({ "type": [] }), "/type"),
        (json!({ "properties": { "a": 1 } }), "/properties/a"),
        (json!({ "properties": [] }), "/properties"),
        (json!({ "required": "a" }), "/required"),
        (json!({ "required": [1] }), "/required/0"),
        (json!({ "enum": [] }), "/enum"),
        (json!({ "anyOf": [] }), "/anyOf"),
        (json!({ "anyOf": [{}, 1] }), "/anyOf/1"),
        (json!({ "prefixItems": [true], "items": [true] }), "/items"),
        (json!({ "minLength": -1 }), "/minLength"),
        (json!({ "minLength": "2" }), "/minLength"),
        (json!({ "maxItems": 1.5 }), "/maxItems"),
        (json!({ "minItems": 1_000_000 }), "/minItems"),
        (json!({ "minimum": "0" }), "/minimum"),
        (json!({ "minimum": 1e300 }), "/minimum"),
        (json!({ "maximum": 0.000_000_000_000_012_34 }), "/maximum"),
        (json!({ "multipleOf": 0 }), "/multipleOf"),
        (json!({ "multipleOf": 0.000_000_1 }), "/multipleOf"),
        (json!({ "multipleOf": 59.99 }), "/multipleOf"),
        (json!({ "multipleOf": 360 }), "/multipleOf"),
        (json!({ "multipleOf": 10_000 }), "/multipleOf"),
        (json!({ "multipleOf": 125 }), "/multipleOf"),
        (json!({ "const": 9_007_199_254_740_993_i64 }), "/const"),
        (json!({ "enum": ["a", "\u{1}"] }), "/enum/1"),
        (json!({ "pattern": 1 }), "/pattern"),
        (json!({ "type": "string", "format": "unknown" }), "/format"),
        (json!({ "type": "string", "format": "regex" }), "/format"),
        (json!({ "$ref": "#/$defs/missing" }), "/$ref"),
    ];
    for (schema, place) in cases {
        let ConstrainError::Invalid { pointer, needed, .. } = refusal(&schema) else {
            panic!("{schema}: {:?}", refusal(&schema));
        };
        assert_eq!(pointer, place, "{schema}");
        assert!(!needed.is_empty());
    }
}

#[test]
fn annotations_are_no_obstacle() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:a", "$comment": "c", "title": "t",
        "description": "d", "default": 1, "examples": [1], "deprecated": true, "readOnly": true, "writeOnly": false,
        "x-order": 1, "$anchor": "a", "$defs": { "unused": { "not": {} } }, "type": "integer", "minimum": 1, "maximum": 3
    });
    all_are_valid(&[schema], &[Asked { max_tokens: 8, seed: None }]);
}

#[test]
fn alternatives_that_overlap_are_refused_where_only_one_may_hold() {
    let named = |names: &[&str], required: &str| {
        let properties: serde_json::Map<String, Value> =
            names.iter().map(|name| ((*name).to_owned(), json!({ "type": "string" }))).collect();
        json!({ "type": "object", "properties": properties, "required": [required] })
    };
    for overlapping in [
        json!({ "oneOf": [{ "type": "integer", "minimum": 0 }, { "type": "integer", "maximum": 5 }] }),
        // An object may have what the other asks for, and more besides.
        json!({ "oneOf": [named(&["a", "b"], "a"), named(&["b"], "b")] }),
        json!({ "oneOf": [named(&["a"], "a"), named(&["b"], "b")] }),
        json!({ "oneOf": [{ "type": "object", "properties": { "k": { "const": 1 } } }, { "type": "object", "properties": { "k": { "const": 2 } } }] }),
        json!({ "oneOf": [{ "type": "number" }, { "type": "integer" }] }),
        json!({ "oneOf": [true, { "type": "integer" }] }),
        json!({ "oneOf": [{ "pattern": "a" }, { "type": "null" }] }),
    ] {
        let inside = json!({ "properties": { "a": overlapping } });
        let in_grammar = Format::Lark(format!("start: \"<\" %json {inside}"));
        for format in [Format::JsonSchema(inside), in_grammar] {
            let Err(ConstrainError::Unsupported { pointer, keyword }) = constrainer().constraint(&format)
            else {
                panic!("{format:?}");
            };
            assert_eq!((pointer.as_str(), keyword.as_str()), ("/properties/a/oneOf", "oneOf"), "{format:?}");
        }
    }
}

#[test]
fn alternatives_of_which_one_holds_are_told_apart_by_what_each_of_them_closes() {
    let closed = |name: &str| json!({ "type": "object", "properties": { name: { "type": "string" } }, "required": [name], "additionalProperties": false });
    let constraint = constraint(&Format::JsonSchema(json!({ "oneOf": [closed("a"), closed("b")] })));
    for (text, allowed) in
        [(r#"{"a":"x"}"#, true), (r#"{"b":"x"}"#, true), (r#"{"a":"x","b":"x"}"#, false), ("{}", false)]
    {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
    }
}

#[test]
fn names_that_only_some_take_for_a_pattern_are_not_written() {
    let constraint = constraint(&schema(
        r#"{"type": "object", "patternProperties": {"\\W": {"type": "integer"}}, "additionalProperties": {"type": "string"}}"#,
    ));
    for (text, allowed) in [(r#"{"a-b":1}"#, true), (r#"{"a-b":"x"}"#, false), (r#"{"é":"x"}"#, false)] {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
    }
}

#[test]
fn a_format_of_whole_numbers_leaves_their_bounds() {
    for text in [
        r#"{"type": "integer", "minimum": 0.5, "maximum": 7, "format": "int32"}"#,
        r#"{"type": "integer", "format": "int32", "exclusiveMinimum": 0, "maximum": 7}"#,
    ] {
        let constraint = constraint(&schema(text));
        for (text, allowed) in [("0", false), ("-1", false), ("1", true), ("7", true), ("8", false)] {
            assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
        }
    }
    let constraint = constraint(&schema(r#"{"type": "integer", "format": "int32"}"#));
    for (text, allowed) in
        [("2147483647", true), ("2147483648", false), ("-2147483648", true), ("-2147483649", false)]
    {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
    }
}

#[test]
fn bounds_with_more_places_than_are_written_are_drawn_in() {
    let constraint =
        constraint(&schema(r#"{"type": "number", "minimum": 0.1234567891, "maximum": 0.9876543219}"#));
    for (text, allowed) in
        [("0.123456789", false), ("0.12345679", true), ("0.987654321", true), ("0.987654322", false)]
    {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
    }
}

#[test]
fn decimals_that_begin_as_their_upper_bound_are_written_with_a_zero_more() {
    let constraint = constraint(&schema(r#"{"type": "number", "minimum": 0, "maximum": 0.55}"#));
    for (text, allowed) in [("0.5", false), ("0.50", true), ("0.4", true), ("0.55", true), ("0.56", false)] {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
    }
}

#[test]
fn between_values_there_is_little_white_space() {
    let constraint = constraint(&schema(r#"{"type": "array", "items": {"type": "integer"}}"#));
    for (text, allowed) in [
        ("[ 1 , 2 ]", true),
        ("[\n  1,\n  2\n]", true),
        ("[  1]", false),
        ("[\n\n1]", false),
        ("[\t1]", false),
    ] {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text:?}");
    }
}

#[test]
fn schemas_without_a_value_of_finite_length_are_refused() {
    for schema in [
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "$ref": "#" }] }),
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        json!({ "type": "array", "items": { "$ref": "#/$defs/a" }, "minItems": 1, "$defs": { "a": { "$ref": "#/$defs/a" } } }),
        json!({ "type": "array", "items": { "$ref": "#" }, "minItems": 1 }),
    ] {
        let refused = refusal(&schema);
        assert!(matches!(refused, ConstrainError::Grammar { .. }), "{schema}: {refused:?}");
        let in_grammar = Format::Lark(format!("start: \"<\" %json {schema} \">\""));
        assert!(constrainer().constraint(&in_grammar).is_err(), "{schema}");
    }
    let optional = schema(
        r##"{"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"type": "null"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}"##,
    );
    let constraint = constraint(&optional);
    for (text, allowed) in [(r#"{"b":null}"#, true), (r#"{"a":}"#, false), (r#"{"a":1}"#, false)] {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
    }
}

#[test]
fn multiples_cost_little_whatever_their_bounds() {
    let steps = [7, 60, 97, 100, 1000].map(|step| json!(step));
    let steps = steps.into_iter().chain([0.0001, 0.01, 0.97, 0.25, 2.5, 9.7].map(|step| json!(step)));
    let steps: Vec<Value> = steps.collect();
    let bounds = [
        json!({}),
        json!({ "exclusiveMinimum": 0 }),
        json!({ "minimum": 3, "maximum": 987_654_321_987_i64 }),
        json!({ "minimum": -12345, "exclusiveMaximum": 98765.4321 }),
    ];
    let mut schemas = Vec::new();
    for (step, bound) in steps.iter().flat_map(|step| bounds.iter().map(move |bound| (step, bound))) {
        for kind in [json!("number"), json!(["integer", "null"])] {
            let mut schema = json!({ "type": kind, "multipleOf": step });
            schema.as_object_mut().expect("an object").extend(bound.as_object().expect("an object").clone());
            schemas.push(schema);
        }
    }
    all_are_valid(
        &schemas,
        &[Asked { max_tokens: 40, seed: Some(1) }, Asked { max_tokens: 40, seed: Some(2) }],
    );
    let constraint = constraint(&schema(r#"{"type": "number", "multipleOf": 0.5, "minimum": 1}"#));
    for (text, allowed) in [("1.5", true), ("0.5", false), ("1.25", false), ("5000000000000005.5", false)] {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
    }
}

#[test]
fn lengths_are_counted_in_characters() {
    let constraint = constraint(&schema(r#"{"type": "string", "minLength": 2, "maxLength": 3}"#));
    for (text, allowed) in [
        ("\"🦀\"", false),
        ("\"🦀🦀\"", true),
        ("\"🦀é日\"", true),
        ("\"🦀🦀🦀🦀\"", false),
        (r#""\n""#, false),
        (r#""\n\"\\""#, true),
        (r#""\ud83e\udd80a""#, false),
    ] {
        assert_eq!(constraint.accepts(text), Ok(allowed), "{text}");
    }
}

#[test]
fn a_name_cannot_pass_for_another_by_its_spelling() {
    let format = schema(
        r#"{"type": "object", "properties": {"age": {"type": "integer"}}, "additionalProperties": {"type": "string"}}"#,
    );
    let constraint = constraint(&format);
    assert_eq!(constraint.accepts(r#"{"age":1,"b":"x"}"#), Ok(true));
    assert_eq!(constraint.accepts(r#"{"age":"x"}"#), Ok(false));
    assert_eq!(constraint.accepts(r#"{"\u0061ge":"x"}"#), Ok(false));
    assert_eq!(constraint.accepts(r#"{"age":1,"age":"x"}"#), Ok(false));
}

#[test]
fn numbers_can_be_read_and_lie_within_their_bounds() {
    let free = constraint(&schema(r#"{"type": "number"}"#));
    for (text, allowed) in
        [("1e999", false), ("-0.5", true), ("12.250", true), ("01", false), ("99999999999999999999", false)]
    {
        assert_eq!(free.accepts(text), Ok(allowed), "{text}");
    }
    let half = constraint(&schema(r#"{"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}"#));
    for (text, allowed) in [
        ("0", false),
        ("0.0", false),
        ("0.0000000001", false),
        ("0.001", true),
        ("0.5", true),
        ("0.51", false),
    ] {
        assert_eq!(half.accepts(text), Ok(allowed), "{text}");
    }
    let whole =
        constraint(&schema(r#"{"type": "integer", "minimum": -3, "exclusiveMaximum": 12, "multipleOf": 3}"#));
    for n in -20..20 {
        assert_eq!(whole.accepts(&n.to_string()), Ok((-3..12).contains(&n) && n % 3 == 0), "{n}");
    }
}

#[test]
fn formats_of_hostile_size_or_cost_are_refused_or_served_in_bounded_time() {
    let nested = |n: usize| (0..n).fold(json!({}), |schema, _| json!({ "items": schema }));
    let chain: serde_json::Map<String, Value> = (0..15_000)
        .map(|i| {
            (format!("d{i}"), json!({ "properties": { "x": { "$ref": format!("#/$defs/d{}", i + 1) } } }))
        })
        .chain([("d15000".to_owned(), json!({ "type": "null" }))])
        .collect();
    let wide = |n: usize| {
        (0..n).map(|i| json!({ "type": "object", "properties": { format!("p{i}"): {} } })).collect::<Vec<_>>()
    };
    let rules: Vec<String> = (0..12_000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    let formats = [
        Format::JsonSchema(nested(2_000)),
        Format::JsonSchema(json!({ "$ref": "#/$defs/d0", "$defs": chain })),
        Format::JsonSchema(json!({ "enum": (0..50_000).collect::<Vec<_>>() })),
        Format::JsonSchema(json!({ "anyOf": wide(3_000) })),
        Format::JsonSchema(json!({ "allOf": wide(200) })),
        Format::JsonSchema(
            json!({ "allOf": [{ "anyOf": wide(60) }, { "anyOf": wide(60) }, { "anyOf": wide(60) }] }),
        ),
        Format::JsonSchema(
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } } }),
        ),
        Format::JsonSchema(json!({ "allOf": [{ "$ref": "#" }] })),
        Format::JsonSchema(
            json!({ "type": "object", "properties": { "a": { "$ref": "#" } }, "required": ["a"] }),
        ),
        Format::JsonSchema(json!({ "minLength": 60_000, "maxLength": 4_000_000_000_u64 })),
        Format::JsonSchema(
            json!({ "type": "array", "minItems": 60_000, "items": { "type": "array", "minItems": 60_000 } }),
        ),
        Format::JsonSchema(json!({ "type": "string", "pattern": "(.*a.{30}){30}" })),
        Format::JsonSchema(json!({ "type": "string", "pattern": "^(a?){1000}a{1000}$", "format": "email" })),
        Format::Regex("((a{1000}){1000}){1000}".to_owned()),
        Format::Regex("(x+x+)+y".to_owned()),
        Format::Regex("(".repeat(100_000)),
        Format::Regex("a".repeat(1 << 20)),
        Format::Regex(format!("({})", "(a|b)*c".repeat(10_000))),
        Format::Regex(r"\p{L}{1,5000}(\w|\d){5000}".to_owned()),
        Format::Lark(format!("start: {}\"a\"{}", "(".repeat(50_000), ")".repeat(50_000))),
        Format::Lark(format!("start: r0\n{}r12000: \"a\"\n", rules.concat())),
        Format::Lark("start: start start | \"a\" |\n".to_owned()),
        Format::Lark("start: \"a\"~1000000\n".to_owned()),
        Format::Lark("start".to_owned()),
        Format::Lark(String::new()),
        Format::Choice((0..30_000).map(|i| format!("choice {i}")).collect()),
        Format::Choice(Vec::new()),
    ];
    for (i, format) in formats.iter().enumerate() {
        let start = Instant::now();
        let made = constrainer().constraint(format);
        let compiled = start.elapsed();
        if let Ok(constraint) = &made {
            // It may end in an error of its own; what counts is that it ends.
            let _ = ask(constraint.clone(), Asked { max_tokens: 16, seed: Some(1) }).complete();
        }
        let all = start.elapsed();
        println!("format {i}: {compiled:?} of {all:?}: {:?}", made.as_ref().err().map(ToString::to_string));
        assert!(all < Duration::from_secs(20), "format {i} took {all:?}");
    }
}
