//! Tools that are functions, for APIs that write them otherwise than templates take them.

use serde_json::{Map, Value, json};

use super::chat::{TOOLS, is_name, name_of};
use crate::error::ApiError;
use crate::fields::{Fields, kind};

/// Refuses lists that no model can be told of.
pub(crate) fn check_count(count: usize, pointer: &str) -> Result<(), ApiError> {
    if count <= TOOLS {
        return Ok(());
    }
    Err(ApiError::invalid(pointer, format!("`{pointer}` has {count} tools, at most {TOOLS} are allowed")))
}

/// Reads the name, the description and the schema of a function, and puts it in the form that templates take. `schema` is what
/// the API calls the schema of its arguments.
pub(crate) fn read_function(fields: &mut Fields, schema: &str) -> Result<Value, ApiError> {
    let pointer = fields.pointer("name");
    let name = fields.required_string("name")?;
    if !is_name(&name) {
        let message = format!("`{pointer}` must have 1 to 64 letters, digits, underscores and dashes");
        return Err(ApiError::invalid(pointer, message));
    }
    let mut function = Map::from_iter([("name".to_owned(), json!(name))]);
    if let Some(description) = fields.string("description")? {
        function.insert("description".into(), json!(description));
    }
    function.insert("parameters".into(), read_parameters(fields, schema)?);
    Ok(json!({"type": "function", "function": function}))
}

/// The schema of a function's arguments, which are an object: templates look for one, and for its properties.
pub(crate) fn read_parameters(fields: &mut Fields, name: &str) -> Result<Value, ApiError> {
    let pointer = fields.pointer(name);
    let mut schema = match fields.take(name) {
        None => Map::new(),
        Some(Value::Object(schema)) => schema,
        Some(other) => {
            let message =
                format!("`{pointer}` is {}, it must be a JSON schema, which is an object", kind(&other));
            return Err(ApiError::Field { pointer, message, code: "invalid_type" });
        }
    };
    if schema.is_empty() {
        schema.insert("type".into(), json!("object"));
    }
    // No model writes arguments that are anything else.
    let object = json!("object");
    let may_be =
        |kind: &Value| *kind == object || kind.as_array().is_some_and(|kinds| kinds.contains(&object));
    if let Some(found) = schema.get("type").filter(|kind| !may_be(kind)) {
        let found = found.to_string();
        let message = format!("`{pointer}/type` is {found:.40}: the arguments of a function are an object");
        return Err(ApiError::invalid(format!("{pointer}/type"), message));
    }
    if schema.get("type").is_some_and(|kind| kind == "object") {
        schema.entry("properties").or_insert_with(|| json!({}));
    }
    Ok(Value::Object(schema))
}

/// Adds a tool whose name no other has; `pointer` is where it stands.
pub(crate) fn add_tool(tools: &mut Vec<Value>, tool: Value, pointer: &str) -> Result<(), ApiError> {
    if tools.iter().any(|other| name_of(other) == name_of(&tool)) {
        let message = format!("`{pointer}/name` is the name of another tool too");
        return Err(ApiError::invalid(format!("{pointer}/name"), message));
    }
    tools.push(tool);
    Ok(())
}

/// Refuses the name of a tool that is not there.
pub(crate) fn check_named(name: &str, tools: &[Value], pointer: &str) -> Result<(), ApiError> {
    if tools.iter().any(|tool| name_of(tool) == Some(name)) {
        return Ok(());
    }
    let message = format!("`{pointer}` names the tool `{name:.80}`, which is not among `tools`");
    Err(ApiError::invalid(pointer, message))
}
