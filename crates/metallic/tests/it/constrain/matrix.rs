//! Schemas of each keyword beside others, written out by loops: what a keyword means must not depend on its neighbours.

use super::*;

#[test]
fn answers_by_schemas_of_each_keyword_beside_others_are_valid() {
    all_are_valid(
        &schemas(),
        &[Asked { max_tokens: 330, seed: Some(11) }, Asked { max_tokens: 120, seed: Some(5) }],
    );
}

pub(super) fn schemas() -> Vec<Value> {
    let groups = [constants(), strings(), numbers(), arrays(), objects(), combined(), references()];
    groups.into_iter().flatten().collect()
}

fn constants() -> Vec<Value> {
    let values = json!([
        null, true, false, 0, -1, 42, 9_007_199_254_740_991_i64, -9_007_199_254_740_991_i64, 1.0, -0.0, 0.1, -2.5, 1e2, 1e-7,
        0.30000000000000004, 123_456_789.125, 1e14, "", " ", "a\"b\\c/d", "\n\t\r\u{8}\u{c}", "é ß 日本 🦀 \u{2028}", "</s>", "<s>", "\\u0041", "{\"a\": 1}", [], {},
        [[]], [1, [2, ["3", null]]], {"": ""}, {"a": {"b": {"c": [true, 0.5]}}}, {"x y": "z", "🦀": ["\""]}, "0", "null", "true",
        "a long text that goes on for a while, so that no token of any vocabulary has it as a whole, and then some more of it"
    ]);
    let values = values.as_array().expect("a list");
    let alone = values.iter().map(|value| json!({ "const": value }));
    let pairs = values.windows(3).map(|some| json!({ "enum": some }));
    let typed = [
        json!({ "type": "string", "enum": ["a", 1, null, "b"] }),
        json!({ "type": ["null", "integer"], "enum": ["a", 1, null, "b", 2.5] }),
        json!({ "enum": ["aa", "bbb", "c"], "minLength": 2, "maxLength": 2 }),
        json!({ "enum": ["a1", "b", "a2"], "pattern": "^a" }),
        json!({ "enum": [1, 5, 10, "x"], "minimum": 4, "type": "number" }),
        json!({ "enum": [[1], [1, 2], []], "minItems": 1, "maxItems": 1 }),
        json!({ "enum": [{ "a": 1 }, { "b": 1 }], "required": ["b"] }),
        json!({ "const": { "a": 1, "b": "x" }, "properties": { "b": { "type": "string" } } }),
        json!({ "allOf": [{ "enum": [1, 2, 3] }, { "enum": [3, 4] }] }),
    ];
    alone.chain(pairs).chain(typed).collect()
}

fn strings() -> Vec<Value> {
    let lengths = [(0, 0), (1, 1), (3, 3), (0, 4), (5, 9), (40, 60)];
    let lengths =
        lengths.map(|(least, most)| json!({ "type": "string", "minLength": least, "maxLength": most }));
    let patterns = [
        "",
        "a",
        "^",
        "$",
        "^$",
        "^a",
        "a$",
        "^(a|bc)+$",
        "(^x|y$)",
        "^[^a-z]{2}$",
        "^[\\s\\S]{3}$",
        r"^\D\d\S\s?\W\w$",
        r"^\.\*\/\-$",
        "^é+$",
        r"^\u00e9\x41\cJ?$",
        "^🦀{2}$",
        r"^[😀-😎]$",
        r"^\p{L}+\P{L}$",
        "^a{2,}b{0,2}c{3}$",
        "^a{0}b$",
        "^(a?b?c?){3}$",
        "^(?:(?:ab)*c)*$",
        r"^[\]\\^-]{2}$",
        r"^[a\-z]{3}$",
        "^.{4}$",
        "^(([a-c]|[b-d])[0-9])*$",
        "^x*?y+?z??$",
        "^[+*.]{2}$",
    ];
    let patterns = patterns.map(|pattern| json!({ "type": "string", "pattern": pattern }));
    let both = ["[0-9]", "^[a-f]+$", "^.*z$", "^🦀"];
    let both =
        both.map(|pattern| json!({ "type": "string", "pattern": pattern, "minLength": 3, "maxLength": 8 }));
    let formats = [
        "date-time",
        "date",
        "time",
        "duration",
        "email",
        "idn-email",
        "hostname",
        "idn-hostname",
        "ipv4",
        "ipv6",
        "uri",
        "uri-reference",
        "iri",
        "iri-reference",
        "uri-template",
        "uuid",
        "json-pointer",
        "relative-json-pointer",
    ];
    let alone = formats.map(|format| json!({ "type": "string", "format": format }));
    let more = [
        json!({ "type": "string", "format": "date", "pattern": "^20" }),
        json!({ "type": "string", "format": "email", "maxLength": 12 }),
        json!({ "type": "string", "format": "hostname", "minLength": 20 }),
        json!({ "type": "string", "format": "uri", "pattern": "^https://" }),
        json!({ "type": ["string", "null"], "format": "uuid" }),
        json!({ "format": "ipv4" }),
        json!({ "type": "string", "allOf": [{ "pattern": "a" }, { "pattern": "b" }, { "maxLength": 6 }] }),
        json!({ "minLength": 2 }),
        json!({ "pattern": "^a+$" }),
    ];
    lengths.into_iter().chain(patterns).chain(both).chain(alone).chain(more).collect()
}

fn numbers() -> Vec<Value> {
    let kinds = [json!("integer"), json!("number"), json!(["integer", "null"]), json!(["number", "string"])];
    let bounds = [
        json!({}),
        json!({ "minimum": 0 }),
        json!({ "minimum": -3, "maximum": -3 }),
        json!({ "minimum": 0.5, "maximum": 3.25 }),
        json!({ "exclusiveMinimum": -1, "exclusiveMaximum": 1 }),
        json!({ "exclusiveMinimum": 9.5, "maximum": 10 }),
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "minimum": 7, "exclusiveMinimum": true, "maximum": 9, "exclusiveMaximum": true }),
        json!({ "$schema": "http://json-schema.org/draft-04/schema#", "minimum": 7, "exclusiveMinimum": false, "maximum": 8 }),
        json!({ "minimum": 5, "exclusiveMinimum": 3, "maximum": 6 }),
        json!({ "minimum": 1e15 }),
        json!({ "minimum": -1e300, "maximum": -1e14 }),
        json!({ "maximum": 1e308, "minimum": 9_007_199_254_740_990_i64 }),
        json!({ "exclusiveMinimum": 1_000_000, "exclusiveMaximum": 1_000_002 }),
        json!({ "multipleOf": 7, "minimum": 8, "maximum": 15 }),
        json!({ "multipleOf": 0.25, "minimum": -1, "maximum": 1 }),
        json!({ "multipleOf": 1.5, "minimum": 1 }),
        json!({ "multipleOf": 1000, "exclusiveMinimum": 0 }),
    ];
    let with = |kind: &Value, bound: &Value| {
        let mut schema = json!({ "type": kind });
        let members = bound.as_object().expect("an object").clone();
        schema.as_object_mut().expect("an object").extend(members);
        schema
    };
    let all = kinds.iter().flat_map(|kind| bounds.iter().map(move |bound| with(kind, bound)));
    let more = [
        json!({ "type": "integer", "format": "int32", "minimum": 0.5 }),
        json!({ "type": "integer", "minimum": 0.5, "format": "int32" }),
        json!({ "type": "integer", "format": "int64", "maximum": -5 }),
        json!({ "type": "number", "format": "double" }),
        json!({ "allOf": [{ "type": "integer", "minimum": 3 }, { "type": "number", "maximum": 3.9 }] }),
        json!({ "allOf": [{ "multipleOf": 4 }, { "multipleOf": 6 }], "type": "integer", "minimum": 1 }),
        json!({ "anyOf": [{ "type": "integer", "maximum": 0 }, { "type": "integer", "minimum": 9 }] }),
        json!({ "type": "number", "maximum": 0.000_001, "minimum": -0.000_001 }),
        json!({ "minimum": 3 }),
    ];
    all.chain(more).collect()
}

fn arrays() -> Vec<Value> {
    let items = [
        json!({ "type": "integer" }),
        json!({ "enum": ["a", "b"] }),
        json!(true),
        json!({ "items": { "type": "null" }, "type": "array", "maxItems": 2 }),
    ];
    let sizes = [(0, 0), (1, 1), (2, 4), (5, 5)];
    let all = items.iter().flat_map(|item| {
        sizes.map(
            |(least, most)| json!({ "type": "array", "items": item, "minItems": least, "maxItems": most }),
        )
    });
    let more = [
        json!({ "type": "array", "items": false }),
        json!({ "type": "array", "maxItems": 0 }),
        json!({ "type": "array", "prefixItems": [{ "type": "integer" }, { "type": "string", "maxLength": 3 }], "items": false }),
        json!({ "type": "array", "prefixItems": [{ "const": 1 }, { "const": 2 }], "minItems": 2, "maxItems": 3 }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{ "const": 1 }, { "const": 2 }], "additionalItems": { "const": 3 }, "minItems": 4, "maxItems": 4 }),
        json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "array", "items": [{ "type": "null" }], "additionalItems": false }),
        json!({ "type": "array", "uniqueItems": true, "maxItems": 1 }),
        json!({ "type": "array", "uniqueItems": false, "maxItems": 2 }),
        json!({ "type": "array", "prefixItems": [true, false], "items": { "type": "integer" } }),
        json!({ "minItems": 2, "maxItems": 2 }),
        json!({ "prefixItems": [{ "type": "boolean" }] }),
        json!({ "allOf": [{ "type": "array", "minItems": 1 }, { "items": { "type": "integer" }, "maxItems": 2 }] }),
        json!({ "type": "array", "items": { "anyOf": [{ "type": "null" }, { "type": "array", "items": { "type": "boolean" }, "maxItems": 1 }] }, "maxItems": 3 }),
    ];
    all.chain(more).collect()
}

fn objects() -> Vec<Value> {
    let names = [
        "",
        " ",
        "a.b",
        "\"",
        "\\",
        "é🦀",
        "\u{1}\u{7f}",
        "\n",
        "\u{2028}",
        "$ref",
        "a/b~c%25",
        "</s>",
        "type",
    ];
    let named = names.map(|name| {
        json!({ "type": "object", "properties": { name: { "type": "integer" } }, "required": [name], "additionalProperties": false })
    });
    let further = [json!(false), json!(true), json!({ "type": "boolean" }), json!({ "enum": ["x"] })];
    let open = further.iter().flat_map(|further| {
        [
            json!({ "type": "object", "additionalProperties": further }),
            json!({ "type": "object", "properties": { "a": { "type": "null" } }, "additionalProperties": further, "title": "a" }),
            json!({ "type": "object", "properties": { "a": { "type": "null" } }, "required": ["a"], "additionalProperties": further, "maxProperties": 2 }),
            json!({ "type": "object", "patternProperties": { "^[a-c]": { "type": "integer" } }, "additionalProperties": further }),
        ]
    });
    let sizes = [
        json!({ "type": "object", "minProperties": 1 }),
        json!({ "type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": { "type": "null" } }),
        json!({ "type": "object", "required": ["a"], "minProperties": 2, "additionalProperties": { "type": "integer" } }),
        json!({ "type": "object", "properties": { "a": { "type": "null" }, "b": { "type": "null" } }, "minProperties": 1, "additionalProperties": false }),
        json!({ "type": "object", "properties": { "a": { "type": "null" }, "b": { "type": "null" } }, "maxProperties": 1, "additionalProperties": false }),
        json!({ "type": "object", "maxProperties": 0 }),
        json!({ "type": "object", "required": ["z", "y"], "properties": { "y": { "type": "integer" } }, "additionalProperties": { "type": "string", "maxLength": 4 } }),
        json!({ "type": "object", "required": ["z"], "properties": { "y": { "type": "integer" } } }),
        json!({ "required": ["a"] }),
        json!({ "properties": { "a": { "type": "integer" } } }),
        json!({ "type": "object", "properties": { "a": false, "b": { "type": "integer" } } }),
        json!({ "type": "object", "propertyNames": { "type": "string" }, "additionalProperties": { "type": "null" } }),
    ];
    let patterns = [
        json!({ "type": "object", "patternProperties": { "^x-": { "type": "string", "maxLength": 5 }, "^y-": { "type": "integer" } } }),
        json!({ "type": "object", "properties": { "x-a": { "minLength": 2 } }, "patternProperties": { "^x-": { "type": "string", "maxLength": 3 } }, "required": ["x-a"] }),
        json!({ "type": "object", "patternProperties": { r"^\d+$": { "type": "null" } }, "minProperties": 1 }),
        json!({ "type": "object", "patternProperties": { r"\W": { "type": "integer" } }, "additionalProperties": { "type": "string" } }),
        json!({ "type": "object", "patternProperties": { "": { "type": "integer" } } }),
        json!({ "type": "object", "patternProperties": { ".*": { "type": "integer" } }, "additionalProperties": false }),
        json!({ "type": "object", "patternProperties": { "^a": false }, "additionalProperties": { "type": "integer" } }),
    ];
    named.into_iter().chain(open).chain(sizes).chain(patterns).collect()
}

fn combined() -> Vec<Value> {
    let object = |name: &str, value: Value| json!({ "type": "object", "properties": { name: value }, "required": [name] });
    let tagged = |kind: &str, name: &str| json!({ "type": "object", "properties": { "kind": { "const": kind }, name: { "type": "integer" } }, "required": ["kind", name] });
    vec![
        json!({ "anyOf": [object("a", json!({ "type": "integer" })), object("b", json!({ "type": "string" }))] }),
        json!({ "anyOf": [{ "required": ["a"] }, { "required": ["b"] }], "type": "object", "properties": { "a": { "type": "null" }, "b": { "type": "null" } } }),
        json!({ "anyOf": [{ "type": "string", "maxLength": 3 }, { "type": "string", "pattern": "^z+$" }] }),
        json!({ "anyOf": [false, { "type": "integer" }] }),
        json!({ "anyOf": [true, { "type": "integer" }] }),
        json!({ "anyOf": [{}, false] }),
        json!({ "allOf": [true, { "type": "boolean" }] }),
        json!({ "allOf": [object("a", json!({ "type": "integer" })), object("b", json!({ "type": "boolean" }))] }),
        json!({ "allOf": [object("a", json!({ "type": "integer" })), object("a", json!({ "minimum": 3, "maximum": 4 }))] }),
        json!({ "allOf": [{ "anyOf": [{ "type": "integer" }, { "type": "null" }] }, { "anyOf": [{ "type": "string" }, { "type": "null" }] }] }),
        json!({ "allOf": [{ "properties": { "a": { "type": "integer" } }, "additionalProperties": false }, { "required": ["a"] }], "type": "object" }),
        json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "allOf": [{ "required": ["a"] }], "additionalProperties": false }),
        json!({ "oneOf": [tagged("x", "n"), tagged("y", "n"), tagged("z", "m")] }),
        json!({ "oneOf": [{ "type": "integer" }, { "type": "string", "maxLength": 4 }, { "type": "null" }] }),
        json!({ "oneOf": [{ "enum": ["a", "b"] }, { "enum": ["c"] }] }),
        json!({ "oneOf": [{ "const": true }, { "const": false }] }),
        json!({ "oneOf": [false, { "type": "boolean" }] }),
        json!({ "oneOf": [{ "type": "array", "items": { "type": "integer" }, "maxItems": 2 }, { "type": "integer" }] }),
        json!({ "type": "object", "properties": { "kind": { "type": "string" } }, "required": ["kind"], "oneOf": [tagged("x", "n"), tagged("y", "m")] }),
        json!({ "oneOf": [{ "oneOf": [tagged("x", "n"), tagged("y", "n")] }, { "type": "null" }] }),
        json!({ "anyOf": [{ "oneOf": [tagged("x", "n"), tagged("y", "n")] }, tagged("x", "o")] }),
        json!({ "allOf": [{ "oneOf": [tagged("x", "n"), tagged("y", "m")] }, object("extra", json!({ "type": "boolean" }))] }),
        json!({ "type": ["object", "array", "null"], "properties": { "a": { "const": 1 } }, "items": { "const": 2 }, "maxItems": 3 }),
        json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "minLength": 3, "minItems": 2, "minimum": 9 }),
        json!({}),
        json!({ "title": "anything" }),
    ]
}

fn references() -> Vec<Value> {
    vec![
        json!({ "$ref": "#/$defs/a", "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "type": "integer" } } }),
        json!({ "$ref": "#/definitions/a%20b~1c", "definitions": { "a b/c": { "type": "boolean" } } }),
        json!({ "properties": { "a": { "type": "integer", "maximum": 3 }, "b": { "$ref": "#/properties/a" } }, "required": ["a", "b"], "type": "object" }),
        json!({ "type": "object", "properties": { "next": { "$ref": "#" }, "v": { "type": "null" } }, "required": ["v"], "additionalProperties": false }),
        json!({ "type": "array", "items": { "$ref": "#" }, "maxItems": 2 }),
        json!({ "anyOf": [{ "type": "null" }, { "type": "array", "items": { "$ref": "#" }, "maxItems": 1 }] }),
        json!({ "$ref": "#/$defs/even", "$defs": {
            "even": { "type": "object", "properties": { "odd": { "$ref": "#/$defs/odd" } }, "additionalProperties": false },
            "odd": { "type": "object", "properties": { "even": { "$ref": "#/$defs/even" } }, "additionalProperties": false }
        } }),
        json!({ "$ref": "#/$defs/a", "minimum": 3, "$defs": { "a": { "type": "integer", "maximum": 5 } } }),
        json!({ "$ref": "#/$defs/a", "required": ["y"], "$defs": { "a": { "type": "object", "properties": { "x": { "type": "null" }, "y": { "type": "null" } } } } }),
        json!({ "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }], "$defs": {
            "a": { "type": "object", "properties": { "x": { "type": "integer" } }, "required": ["x"] },
            "b": { "type": "object", "properties": { "y": { "type": "integer" } }, "required": ["y"] }
        } }),
        json!({ "oneOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/b" }], "$defs": {
            "a": { "type": "object", "properties": { "t": { "const": "a" } }, "required": ["t"] },
            "b": { "type": "object", "properties": { "t": { "const": "b" }, "sub": { "$ref": "#" } }, "required": ["t"] }
        } }),
        json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/t" }, "b": { "$ref": "#/$defs/f" } }, "$defs": { "t": true, "f": false } }),
    ]
}
