//! What can go wrong: for programs that start a server, and for clients of one.

use std::time::Duration;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use metallic::constrain::ConstrainError;
use metallic::generate::EngineError;
use metallic::text::TextError;
use serde_json::{Value, json};

use crate::http::{Told, json_response};

/// Why a server could not be made or went down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A server without a model has nothing to say.
    #[error("there is no model to serve")]
    NoModel,
    /// Two models, or a model and an alias, have one name.
    #[error("two models are called `{name}`; give one of them another name")]
    Name {
        /// The name.
        name: String,
    },
    /// An alias stands for a model that is not served.
    #[error("the alias `{alias}` stands for `{model}`, which is not served")]
    Alias {
        /// The alias.
        alias: String,
        /// What it was to stand for.
        model: String,
    },
    /// An option has a value that cannot be meant.
    #[error("{name} is `{found}`, it must be {needed}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        found: String,
        /// What is allowed.
        needed: &'static str,
    },
    /// A model could not be loaded.
    #[error("the model `{name}` cannot be loaded: {source}")]
    Load {
        /// The model.
        name: String,
        /// Why.
        source: Box<metallic::Error>,
    },
    /// A model that is to be there from the start does not fit beside the others.
    #[error("there is no room for the model `{name}`; give more memory, or fewer models that stay loaded")]
    NoRoom {
        /// The model.
        name: String,
    },
    /// The address could not be listened on.
    #[error("cannot serve: {0}")]
    Io(#[from] std::io::Error),
}

/// Why a model that is there in name does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It is being loaded, or waits for its turn.
    Loading,
    /// Others would have to go for it that are in use.
    InUse,
    /// It does not fit even alone.
    TooLarge,
    /// Its file is not what it was.
    Broken,
}

impl Trouble {
    fn words(self) -> &'static str {
        match self {
            Self::Loading => "is still being loaded; try again later",
            Self::InUse => "has to wait for others that are in use; try again later",
            Self::TooLarge => "does not fit into the memory that this server may use",
            Self::Broken => "could not be loaded; the server's log says why",
        }
    }
}

/// What clients of both APIs look at before they repeat a request.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// What Anthropic's clients send a whole conversation again for.
const THREAD_NOT_FOUND: &str = "thread_not_found";

/// How long clients are told to wait for a model.
const MODEL_RETRY: Duration = Duration::from_secs(5);

/// Why a request was refused or broke off, in words for the client: nothing of paths, threads or memory.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ApiError {
    /// A field that has a wrong value, or must not be there.
    #[error("{message}")]
    Field {
        /// JSON pointer to it.
        pointer: String,
        message: String,
        code: &'static str,
    },
    /// The body is not JSON.
    #[error("{0}")]
    Body(String),
    #[error("{0}")]
    Unauthorized(&'static str),
    #[error(
        "this server does not answer to the name `{host}`; `--allow-host` or `ServerOptions::allowed_hosts` adds it"
    )]
    Host { host: String },
    #[error("the model `{model}` does not exist; /v1/models lists those there are")]
    NoModel { model: String },
    #[error("the model `{model}` {}", trouble.words())]
    Model { model: String, trouble: Trouble },
    #[error("there is no response `{id}` here, or not any more")]
    NoResponse { id: String },
    #[error(
        "the conversation up to `{id}` is not kept here; send all of it, with a new thread or without one"
    )]
    NoThread { id: String },
    #[error("there is no `{path}` here; /openapi.json lists what there is")]
    NoRoute { path: String },
    #[error("`{path}` does not take {method} requests")]
    Method { path: String, method: String },
    #[error("the body has more than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the content type is {found}, it must be application/json")]
    MediaType { found: String },
    #[error("the body is encoded as `{found}`, it must come as it is")]
    Encoding { found: String },
    #[error("the body did not arrive in time")]
    SlowBody,
    #[error("{message}; try again later")]
    Busy { message: String, retry_after: Duration },
    #[error(
        "the answer was not complete within {limit} seconds; ask for fewer tokens (`max_tokens`), or stream"
    )]
    Timeout { limit: u64 },
    #[error("{0}")]
    Unavailable(&'static str),
    #[error("the server failed at this request; its log says why")]
    Internal,
}

/// The field that a parameter of the engine comes from.
fn pointer_of(parameter: &str) -> String {
    let field = match parameter {
        "typical" => "typical_p",
        "the scale of an adapter" => "adapters",
        same => same,
    };
    format!("/{field}")
}

impl ApiError {
    /// A field with a value that is not allowed.
    pub(crate) fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Field { pointer: pointer.into(), message: message.into(), code: "invalid_value" }
    }

    /// A field that this server does not have, with what to do about it.
    pub(crate) fn unsupported(pointer: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Field { pointer: pointer.into(), message: message.into(), code: "unsupported_parameter" }
    }

    /// The same of an API that has a field elsewhere: pairs of where it was looked for and where it is.
    pub(crate) fn in_places(self, places: &[(&str, &str)]) -> Self {
        let Self::Field { pointer, message, code } = self else { return self };
        // A field that nobody knows is where the client wrote it.
        let places = if code == "unknown_parameter" { &[] } else { places };
        let moved = places.iter().find_map(|(from, to)| Some((from, to, pointer.strip_prefix(from)?)));
        match moved.filter(|(.., rest)| rest.is_empty() || rest.starts_with('/')) {
            Some((from, to, rest)) => {
                Self::Field { pointer: format!("{to}{rest}"), message: message.replace(from, to), code }
            }
            None => Self::Field { pointer, message, code },
        }
    }

    /// What the library says of a request; `input` is the field that holds the prompt. What is not the client's fault is logged
    /// and not told.
    pub(crate) fn of_library(error: &metallic::Error, input: &str) -> Self {
        match error {
            metallic::Error::Engine(error) => Self::of_engine(error, input),
            metallic::Error::Text(error) => Self::of_text(error, input),
            metallic::Error::NoTemplate { .. } => Self::Field {
                pointer: input.to_owned(),
                message: "the model has no chat template, so it takes no conversations; /v1/completions continues plain text".into(),
                code: "no_chat_template",
            },
            other => Self::internal(other),
        }
    }

    pub(crate) fn of_engine(error: &EngineError, input: &str) -> Self {
        match error {
            // Both APIs' clients know the error by their server's words, so it has them.
            EngineError::PromptTooLong { tokens, context } => Self::Field {
                pointer: input.to_owned(),
                message: format!(
                    "prompt is too long: {tokens} tokens > {} maximum; this model's maximum context length is {context} tokens, \
                     and one more must have room",
                    context.saturating_sub(1)
                ),
                code: "context_length_exceeded",
            },
            EngineError::KvBudget { .. } => Self::Field {
                pointer: input.to_owned(),
                message: error.to_string(),
                code: "context_length_exceeded",
            },
            EngineError::EmptyPrompt | EngineError::TokenOutOfRange { .. } => {
                Self::invalid(input, error.to_string())
            }
            EngineError::Parameter { name, .. } => Self::invalid(pointer_of(name), error.to_string()),
            EngineError::Adapter { .. } => Self::invalid("/adapters", error.to_string()),
            EngineError::Busy { waiting, retry_after, .. } => {
                Self::Busy { message: format!("{waiting} requests wait already"), retry_after: *retry_after }
            }
            EngineError::Gone => Self::Unavailable("the model has stopped"),
            other => Self::internal(other),
        }
    }

    /// What is wrong with the form that an answer is to have, which stands in the field `format`.
    pub(crate) fn of_format(error: &ConstrainError, format: &str) -> Self {
        let (pointer, code) = match error {
            ConstrainError::Unsupported { pointer, .. } => {
                (format!("{format}{pointer}"), "unsupported_parameter")
            }
            ConstrainError::Invalid { pointer, .. } => (format!("{format}{pointer}"), "invalid_value"),
            ConstrainError::Vocabulary { .. } => return Self::internal(error),
            _ => (format.to_owned(), "invalid_value"),
        };
        Self::Field { pointer, message: error.to_string(), code }
    }

    /// A template and a tokenizer see what the client wrote: it is the client who can change it.
    pub(crate) fn of_text(error: &TextError, input: &str) -> Self {
        match error {
            TextError::TemplateRaised { message, .. } => Self::invalid(
                input,
                format!("the model's chat template refuses this conversation: {message}"),
            ),
            TextError::Io { .. } => Self::internal(error),
            other => Self::invalid(input, format!("the model cannot take this: {other}")),
        }
    }

    /// A failure of ours.
    pub(crate) fn internal(error: &dyn std::error::Error) -> Self {
        tracing::error!(target: "metallic_server", %error, "a request failed");
        Self::Internal
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Field { .. } | Self::Body(_) => StatusCode::BAD_REQUEST,
            Self::Unauthorized(_) => StatusCode::UNAUTHORIZED,
            Self::Host { .. } => StatusCode::FORBIDDEN,
            Self::NoModel { .. } | Self::NoResponse { .. } | Self::NoThread { .. } | Self::NoRoute { .. } => {
                StatusCode::NOT_FOUND
            }
            Self::Model { trouble: Trouble::TooLarge, .. } => StatusCode::INSUFFICIENT_STORAGE,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::MediaType { .. } | Self::Encoding { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::Unavailable(_) | Self::Model { trouble: Trouble::Loading | Trouble::InUse, .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Internal | Self::Model { trouble: Trouble::Broken, .. } => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    /// The kind of error as the OpenAI API calls it.
    fn kind(&self) -> &'static str {
        match self {
            Self::Unauthorized(_) => "authentication_error",
            Self::Host { .. } => "permission_error",
            Self::Busy { .. } => "rate_limit_error",
            Self::Timeout { .. } | Self::SlowBody => "timeout_error",
            Self::Unavailable(_) | Self::Internal | Self::Model { .. } => "server_error",
            _ => "invalid_request_error",
        }
    }

    pub(crate) fn code(&self) -> Option<&'static str> {
        Some(match self {
            Self::Field { code, .. } => code,
            Self::Body(_) => "invalid_json",
            Self::Unauthorized(_) => "invalid_api_key",
            Self::Host { .. } => "host_not_allowed",
            Self::NoModel { .. } => "model_not_found",
            Self::NoThread { .. } => THREAD_NOT_FOUND,
            Self::NoRoute { .. } | Self::NoResponse { .. } => "not_found",
            Self::Model { trouble: Trouble::Loading, .. } => "model_loading",
            Self::Model { trouble: Trouble::InUse, .. } => "models_in_use",
            Self::Model { trouble: Trouble::TooLarge, .. } => "model_too_large",
            Self::Model { trouble: Trouble::Broken, .. } => "model_broken",
            Self::Method { .. } => "method_not_allowed",
            Self::TooLarge { .. } => "body_too_large",
            Self::MediaType { .. } => "unsupported_media_type",
            Self::Encoding { .. } => "unsupported_content_encoding",
            Self::Busy { .. } => "rate_limit_exceeded",
            Self::Timeout { .. } | Self::SlowBody => "timeout",
            Self::Unavailable(_) => "unavailable",
            Self::Internal => return None,
        })
    }

    /// JSON pointer to the field that is wrong.
    pub(crate) fn param(&self) -> Option<&str> {
        match self {
            Self::Field { pointer, .. } => Some(pointer),
            Self::NoModel { .. } | Self::Model { .. } => Some("/model"),
            _ => None,
        }
    }

    /// The body of the OpenAI API.
    pub(crate) fn body(&self) -> Value {
        json!({"error": {
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        }})
    }

    /// The body of Anthropic's API, with the name of the request.
    pub(crate) fn anthropic_body(&self, id: &str) -> Value {
        let kind = match self {
            Self::NoModel { .. } | Self::NoRoute { .. } | Self::NoThread { .. } => "not_found_error",
            Self::TooLarge { .. } => "request_too_large",
            Self::Unavailable(_) | Self::Model { trouble: Trouble::Loading | Trouble::InUse, .. } => {
                "overloaded_error"
            }
            Self::Internal | Self::Model { .. } => "api_error",
            other => other.kind(),
        };
        let message = match self.param() {
            Some(pointer) => format!("{pointer}: {self}"),
            None => self.to_string(),
        };
        let mut error = json!({"type": kind, "message": message});
        if matches!(self, Self::NoThread { .. }) {
            error["details"] = json!({"error_code": THREAD_NOT_FOUND});
        }
        json!({"type": "error", "error": error, "request_id": id})
    }

    /// The response with a body that was made for its API.
    pub(crate) fn respond_with(&self, body: &Value) -> Response {
        let mut response = json_response(self.status(), body);
        response.extensions_mut().insert(Told(self.to_string()));
        match self {
            Self::Busy { retry_after, .. } => {
                let seconds = retry_after.as_secs_f64().ceil().max(1.0) as u64;
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            }
            Self::Model { trouble: Trouble::Loading | Trouble::InUse, .. } => {
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(MODEL_RETRY.as_secs()));
            }
            // The same request would end the same way; clients repeat others of these statuses by themselves.
            Self::Timeout { .. } | Self::Model { trouble: Trouble::TooLarge | Trouble::Broken, .. } => {
                response.headers_mut().insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
            Self::Unauthorized(_) => {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

/// In the shape of the OpenAI API.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.respond_with(&self.body())
    }
}
