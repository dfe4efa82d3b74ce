//! Schemas made at random, the same ones each time.

use super::*;
use serde_json::Map;

/// How many, of which each is asked for greedily and by chance; `METALLIC_TEST_SCHEMAS` says how many else.
const SCHEMAS: usize = 320;

#[test]
fn answers_by_generated_schemas_are_valid() {
    let schemas = schemas();
    let ways = [Asked { max_tokens: 330, seed: None }, Asked { max_tokens: 450, seed: Some(7) }];
    all_are_valid(&schemas, &ways);
}

/// As many as there should be, no two of them alike.
pub(super) fn schemas() -> Vec<Value> {
    let count = std::env::var("METALLIC_TEST_SCHEMAS").ok().and_then(|count| count.parse().ok());
    let mut seen = BTreeSet::new();
    let made = (0..).map(|i| document(&mut Dice(0x9e37_79b9 + i)));
    made.filter(|schema| seen.insert(schema.to_string())).take(count.unwrap_or(SCHEMAS)).collect()
}

#[test]
fn an_answer_that_ends_is_valid_however_little_room_it_had() {
    let schemas: Vec<Value> = (0..40).map(|i| document(&mut Dice(0x51ed_270b + i))).collect();
    let mut cut = 0;
    for schema in &schemas {
        let (constraint, validator) = (constraint(&Format::JsonSchema(schema.clone())), validator(schema));
        for max_tokens in [1, 2, 3, 5, 8, 13, 21, 34, 55, 89] {
            let done =
                ask(constraint.clone(), Asked { max_tokens, seed: Some(3) }).complete().expect("an answer");
            let value = serde_json::from_str::<Value>(&done.text);
            match done.reason {
                FinishReason::Stop => {
                    assert!(value.is_ok_and(|v| validator.is_valid(&v)), "{schema}: {}", done.text);
                }
                _ => cut += 1,
            }
        }
    }
    assert!(cut > 10, "the smallest budgets cannot be enough: {cut} were not");
}

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())].clone()
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.roll(100) < percent
    }
}

/// A schema with definitions, two of which refer to themselves.
fn document(dice: &mut Dice) -> Value {
    let mut root = if dice.chance(80) { object(dice, 3) } else { any_schema(dice, 3) };
    root["$defs"] = json!({
        "small": scalar(dice),
        "list": { "type": "object", "properties": { "v": scalar(dice), "next": { "anyOf": [{ "$ref": "#/$defs/list" }, { "type": "null" }] } },
                  "required": ["v", "next"], "additionalProperties": false },
        "tree": { "type": "object", "properties": { "of": { "type": "array", "items": { "$ref": "#/$defs/tree" }, "maxItems": 2 } } },
    });
    root
}

fn any_schema(dice: &mut Dice, depth: usize) -> Value {
    if depth == 0 {
        return scalar(dice);
    }
    match dice.roll(10) {
        0..=2 => scalar(dice),
        3 | 4 => object(dice, depth - 1),
        5 => array(dice, depth - 1),
        6 => json!({ "anyOf": [any_schema(dice, depth - 1), scalar(dice), object(dice, depth - 1)] }),
        7 => json!({ "$ref": format!("#/$defs/{}", dice.pick(&["small", "list", "tree"])) }),
        8 => {
            json!({ "oneOf": [{ "type": "string", "maxLength": 9 }, { "type": "integer" }, object(dice, depth - 1)] })
        }
        _ => {
            // What both allow must not be nothing.
            let mut first = object(dice, 0);
            first.as_object_mut().expect("an object").remove("additionalProperties");
            json!({ "allOf": [first, { "type": "object", "properties": { "both": scalar(dice) }, "required": ["both"] }] })
        }
    }
}

fn object(dice: &mut Dice, depth: usize) -> Value {
    let names = ["id", "name", "a b", "größe", "x-1", "\"q\"", "items", "type", "$ref", "long_property_name"];
    let mut properties = Map::new();
    for _ in 0..dice.roll(5) {
        let name = dice.pick(&names);
        properties.insert(name.to_owned(), any_schema(dice, depth));
    }
    let required: Vec<String> = properties.keys().filter(|_| dice.chance(60)).cloned().collect();
    let mut schema =
        json!({ "type": "object", "properties": properties, "required": required, "title": "T" });
    match dice.roll(5) {
        0 => {}
        1 => schema["additionalProperties"] = scalar(dice),
        2 => schema["patternProperties"] = json!({ "^p_[a-z]+$": scalar(dice) }),
        _ => schema["additionalProperties"] = json!(false),
    }
    schema
}

fn array(dice: &mut Dice, depth: usize) -> Value {
    let least = dice.roll(3);
    let mut schema = json!({ "type": "array", "items": any_schema(dice, depth), "minItems": least });
    if dice.chance(70) {
        schema["maxItems"] = json!(least + dice.roll(3));
    }
    if dice.chance(25) {
        schema["prefixItems"] = json!([scalar(dice), scalar(dice)]);
    }
    schema
}

fn scalar(dice: &mut Dice) -> Value {
    match dice.roll(14) {
        0 => json!({ "type": "string" }),
        1 => json!({ "type": "string", "minLength": dice.roll(6), "maxLength": 6 + dice.roll(20) }),
        2 => {
            let patterns = [
                r"^[A-Z]{2}\d{3}$",
                r"^\w+@\w+\.(com|org)$",
                "ab+c",
                r"^(?:\s|\S){2}$",
                r"[^\d\W]",
                r"^a.c$|^\$",
                "^([a-z]+-)*z$",
                r"^\p{Lu}",
            ];
            json!({ "type": "string", "pattern": dice.pick(&patterns) })
        }
        3 => {
            let formats = [
                "date-time",
                "date",
                "time",
                "duration",
                "email",
                "hostname",
                "ipv4",
                "ipv6",
                "uri",
                "uri-reference",
                "uuid",
                "json-pointer",
            ];
            json!({ "type": "string", "format": dice.pick(&formats) })
        }
        4 => json!({ "enum": ["red", "grün", 3, 2.5, null, true, ["x"], { "k": [1, "v"] }] }),
        5 => {
            json!({ "const": dice.pick(&[json!("one"), json!(-7), json!(0.25), json!("line\nbreak \"q\" \\"), json!({ "a": {} })]) })
        }
        6 => {
            let least = dice.roll(2000) as i64 - 1000;
            json!({ "type": "integer", "minimum": least, "maximum": least + dice.roll(500) as i64 })
        }
        7 => json!({ "type": "integer", "multipleOf": 1 + dice.roll(12), "exclusiveMinimum": dice.roll(50) }),
        8 => {
            let least = (dice.roll(4000) as f64 - 2000.0) / 64.0;
            json!({ "type": "number", "minimum": least, "maximum": least + dice.roll(200) as f64 / 32.0 })
        }
        9 => {
            json!({ "type": "number", "exclusiveMinimum": dice.roll(3), "exclusiveMaximum": 3 + dice.roll(9) })
        }
        10 => json!({ "type": "number", "multipleOf": dice.pick(&[0.5, 0.01, 0.25, 3.0]), "minimum": 0 }),
        11 => json!({ "type": "boolean" }),
        12 => json!({ "type": ["integer", "null", "boolean"] }),
        _ => json!({ "type": "number" }),
    }
}
