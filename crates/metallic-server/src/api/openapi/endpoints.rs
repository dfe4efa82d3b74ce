//! The endpoints, each with what it takes and gives.

use serde_json::{Value, json};

use super::requests::count;
use super::{others, reference, requests};
use crate::api::LONGEST_ITEMS;
use crate::api::models::LONGEST_PAGE;
use crate::options::Limits;

/// One method of one path.
pub(super) struct Endpoint {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    summary: &'static str,
    /// The schema of the body, and a body that is good.
    body: Option<(Value, Value)>,
    /// What comes back when all is well: types of content with their schemas.
    answers: Vec<(&'static str, Value)>,
    /// What else may come back.
    errors: &'static [u16],
    /// The schema of errors.
    error: &'static str,
    is_open: bool,
    /// Fields of the query.
    query: Vec<Value>,
}

const JSON: &str = "application/json";
/// Errors of everything that reads a body and works.
const WORK: &[u16] = &[400, 401, 403, 404, 408, 413, 415, 429, 500, 503, 504, 507];
/// Errors of what only reads.
const READ: &[u16] = &[401, 403, 500, 503];
const PROBE: &[u16] = &[403, 500, 503];

fn error_text(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong; `param` is a JSON pointer to the field that is to blame.",
        401 => "The key is missing or wrong.",
        403 => "The server does not answer to the name that it was called by.",
        404 => "There is no such model, or nothing of that name.",
        408 => "The body did not arrive in time.",
        413 => "The body is too large.",
        415 => "The body is not application/json.",
        429 => "Too many requests; `Retry-After` says when to come back.",
        503 => "The server is about to stop, or the model is not there now.",
        504 => "The answer was not complete in time.",
        507 => "The model does not fit into memory.",
        _ => "The server failed.",
    }
}

impl Endpoint {
    pub(super) fn operation(&self, has_keys: bool) -> Value {
        let content: serde_json::Map<String, Value> = self
            .answers
            .iter()
            .map(|(kind, schema)| ((*kind).to_owned(), json!({"schema": schema})))
            .collect();
        let mut responses = json!({"200": {"description": "What was asked for.", "content": content}});
        for status in self.errors.iter().filter(|status| has_keys || **status != 401) {
            let mut response = json!({
                "description": error_text(*status),
                "content": {JSON: {"schema": reference(self.error)}},
            });
            if *status == 429 {
                let schema = json!({"type": "integer", "minimum": 1});
                response["headers"] = json!({"Retry-After": {"schema": schema}});
            }
            if [504, 507].contains(status) {
                response["headers"] = json!({"x-should-retry": {"schema": {"const": "false"}}});
            }
            responses[status.to_string()] = response;
        }
        let mut operation = json!({"summary": self.summary, "responses": responses});
        if let Some((schema, example)) = &self.body {
            let content = json!({JSON: {"schema": schema, "example": example}});
            operation["requestBody"] = json!({"required": true, "content": content});
        }
        let mut parameters = self.query.clone();
        if self.path.contains("{id}") {
            let schema = json!({"type": "string", "minLength": 1});
            parameters.push(json!({"name": "id", "in": "path", "required": true, "schema": schema}));
        }
        if !parameters.is_empty() {
            operation["parameters"] = Value::Array(parameters);
        }
        if has_keys && !self.is_open {
            operation["security"] = json!([{"key": []}]);
        }
        operation
    }
}

fn get(
    path: &'static str,
    name: &'static str,
    summary: &'static str,
    answer: (&'static str, Value),
) -> Endpoint {
    let (body, answers, errors) = (None, vec![answer], READ);
    let (error, is_open, query) = ("Error", false, Vec::new());
    Endpoint { method: "get", path, name, summary, body, answers, errors, error, is_open, query }
}

fn post(path: &'static str, name: &'static str, summary: &'static str, body: (Value, Value)) -> Endpoint {
    let (body, answers, errors) = (Some(body), Vec::new(), WORK);
    let (error, is_open, query) = ("Error", false, Vec::new());
    Endpoint { method: "post", path, name, summary, body, answers, errors, error, is_open, query }
}

impl Endpoint {
    fn gives(mut self, schema: &str) -> Self {
        self.answers.push((JSON, reference(schema)));
        self
    }

    /// Also as a stream of events; in this version of OpenAPI the schema is that of each.
    fn streams(mut self) -> Self {
        let texts = json!({"event": {"type": "string"}, "data": {"type": "string"}});
        let event = json!({"type": "object", "properties": texts, "required": ["data"]});
        self.answers.push(("text/event-stream", event));
        self
    }

    /// With errors in Anthropic's shape.
    fn anthropic(mut self) -> Self {
        self.error = "AnthropicError";
        self
    }

    fn open(mut self) -> Self {
        (self.is_open, self.errors) = (true, PROBE);
        self
    }
}

/// Which part of the models is listed: for Anthropic's clients alone.
fn pages() -> Vec<Value> {
    let id = json!({"type": "string", "minLength": 1});
    let fields = [
        ("limit", count(1, LONGEST_PAGE), "How many are listed."),
        ("after_id", id.clone(), "Those after this one."),
        ("before_id", id, "Those before this one."),
    ];
    let describe = |text: &str| format!("{text} For requests with the header `anthropic-version` alone.");
    let parameter = |(name, schema, text): (&str, Value, &str)| json!({"name": name, "in": "query", "schema": schema, "description": describe(text)});
    fields.map(parameter).into()
}

/// Which part of a response's items is listed.
fn item_pages() -> Vec<Value> {
    let fields = [
        ("limit", count(1, LONGEST_ITEMS), "How many are listed."),
        ("order", json!({"enum": ["asc", "desc"]}), "Which come first: by default the latest."),
        ("after", json!({"type": "string", "minLength": 1}), "Those after this one."),
    ];
    let parameter = |(name, schema, text): (&str, Value, &str)| json!({"name": name, "in": "query", "schema": schema, "description": text});
    fields.map(parameter).into()
}

/// All of them; `model` is one that is served, for examples.
pub(super) fn all(model: &str, limits: &Limits) -> Vec<Endpoint> {
    let hello = json!([{"role": "user", "content": "Why is the sky blue?"}]);
    let chat = json!({"model": model, "messages": hello, "max_tokens": 8});
    let completion = json!({"model": model, "prompt": "Once upon a time", "max_tokens": 8});
    let mut retrieve = get("/v1/models/{id}", "model", "One model.", (JSON, reference("Model")));
    retrieve.errors = &[401, 403, 404, 500, 503];
    let mut list = get("/v1/models", "models", "The models there are.", (JSON, reference("Models")));
    (list.errors, list.query) = (&[400, 401, 403, 500, 503], pages());
    let answer = (JSON, reference("Response"));
    let mut kept = get("/v1/responses/{id}", "response", "A response that was kept.", answer);
    kept.errors = &[400, 401, 403, 404, 500, 503];
    let answer = (JSON, reference("Items"));
    let mut items = get("/v1/responses/{id}/input_items", "items", "What a response was made of.", answer);
    (items.errors, items.query) = (&[400, 401, 403, 404, 500, 503], item_pages());
    let answer = (JSON, reference("Deleted"));
    let mut forget = get("/v1/responses/{id}", "forget", "Forgets a response.", answer);
    (forget.method, forget.errors) = ("delete", &[401, 403, 404, 500, 503]);
    let respond = json!({"model": model, "input": "Why is the sky blue?", "max_output_tokens": 8});
    let counted = json!({"model": model, "messages": hello});
    vec![
        post(
            "/v1/chat/completions",
            "chat",
            "Answers a conversation.",
            (requests::chat(limits), chat.clone()),
        )
        .gives("ChatCompletion")
        .streams(),
        post("/v1/completions", "complete", "Continues texts.", (requests::completion(limits), completion))
            .gives("Completion")
            .streams(),
        post("/v1/responses", "respond", "Makes a response.", (others::response(), respond.clone()))
            .gives("Response")
            .streams(),
        post(
            "/v1/responses/input_tokens",
            "measure",
            "The number of tokens of a response's prompt.",
            (others::response(), respond),
        )
        .gives("Count"),
        kept,
        items,
        forget,
        post("/v1/messages", "message", "Answers a conversation.", (others::message(), chat.clone()))
            .gives("Message")
            .streams()
            .anthropic(),
        post(
            "/v1/messages/count_tokens",
            "count",
            "The number of tokens of a conversation.",
            (others::counted(), counted),
        )
        .gives("Count")
        .anthropic(),
        post(
            "/v1/embeddings",
            "embed",
            "Embeds texts.",
            (requests::embedding(), json!({"model": model, "input": "A little dog"})),
        )
        .gives("Embeddings"),
        post(
            "/tokenize",
            "tokenize",
            "The tokens of a text, or of a conversation.",
            (requests::tokenize(), json!({"model": model, "content": "Once upon a time"})),
        )
        .gives("Tokens"),
        post(
            "/detokenize",
            "detokenize",
            "The text of tokens.",
            (requests::detokenize(), json!({"model": model, "tokens": [1, 2]})),
        )
        .gives("Text"),
        list,
        retrieve,
        get("/health", "health", "Whether the process is alive.", (JSON, reference("Status"))).open(),
        get("/ready", "ready", "Whether requests should be sent here now.", (JSON, reference("Status")))
            .open(),
        get("/metrics", "metrics", "Figures for Prometheus.", ("text/plain", json!({"type": "string"}))),
        get("/openapi.json", "openapi", "This document.", (JSON, json!({"type": "object"}))).open(),
    ]
}
