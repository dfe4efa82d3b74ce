//! `/openapi.json`: what there is, for programs. Schemas of requests say what is read: a field that is not in them is refused.

mod endpoints;
mod others;
mod requests;
mod responses;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::http::json_response;
use crate::server::Server;

/// The description of this server.
pub(crate) async fn document(State(server): State<Server>) -> Response {
    json_response(StatusCode::OK, &describe(&server))
}

fn describe(server: &Server) -> Value {
    let has_keys = !server.keys().is_empty();
    let model = server.models().names().next().unwrap_or_default();
    let limits = &server.options().limits;
    let mut paths = Map::new();
    for endpoint in endpoints::all(&model, limits) {
        let mut operation = endpoint.operation(has_keys);
        operation["operationId"] = json!(endpoint.name);
        paths.entry(endpoint.path).or_insert_with(|| json!({}))[endpoint.method] = operation;
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Metallic",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Language models over HTTP, in the shape of the OpenAI API. A field that is not described here is refused with the status 400 and a JSON pointer to it.",
        },
        "paths": paths,
        "components": {"schemas": responses::schemas()},
    });
    if has_keys {
        document["components"]["securitySchemes"] = json!({"key": {"type": "http", "scheme": "bearer"}});
    }
    document
}

/// A reference to a schema of the document.
fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}
