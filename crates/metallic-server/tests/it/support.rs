//! A server with a tiny model, asked without a network.

use std::sync::OnceLock;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use metallic::{ChatTemplate, Device, Llm, LoadOptions};
use metallic_server::{Models, Server, ServerOptions, router};
use metallic_testkit::data;
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// Turns as plain text; the tiny model has no template of its own.
pub(crate) const TEMPLATE: &str = "\
{% if tools %}{% for t in tools %}<tool_call>{{ t.function.name }}</tool_call>\n{% endfor %}{% endif %}\
{% for m in messages %}{{ m.role }}: {{ m.content }}\
{% if m.tool_calls %}{% for c in m.tool_calls %} {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}{% endif %}{{ '\n' }}\
{% endfor %}{% if mood %}{{ mood }} {% endif %}assistant:";

pub(crate) const MODEL: &str = "stories";

/// The tiny model with some engine options.
pub(crate) fn llm_with(options: LoadOptions) -> Llm {
    let path = data::own().join("stories260K/stories260K-f32.gguf");
    let llm = Llm::load_with(path, &options.device(Device::Cpu).threads(1)).unwrap();
    let template = ChatTemplate::for_tokenizer(TEMPLATE, llm.tokenizer()).unwrap();
    llm.with_template(template)
}

pub(crate) fn llm() -> Llm {
    llm_with(LoadOptions::default())
}

pub(crate) fn server_with(llm: Llm, options: ServerOptions) -> Server {
    let models = Models::new().add(MODEL, llm).unwrap().alias("tiny", MODEL).unwrap();
    Server::new(models, options).unwrap()
}

pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    })
}

/// A server that tests ask.
pub(crate) struct Asked {
    pub(crate) router: Router,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Got {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The body of a request that went well.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        self.json()
    }

    /// The error of one that did not: its status, and the field that is to blame.
    #[track_caller]
    pub(crate) fn refused(&self, status: u16, param: Option<&str>) -> String {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        let error = &self.json()["error"];
        assert_eq!(error["param"].as_str(), param, "{error}");
        error["message"].as_str().unwrap().to_owned()
    }

    /// The events of a stream, without the last.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        assert_eq!(self.headers["content-type"], "text/event-stream; charset=utf-8");
        let text = self.text.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("{}", self.text));
        let events = text.split_terminator("\n\n").filter_map(|event| event.strip_prefix("data: "));
        events.map(|data| serde_json::from_str(data).unwrap()).collect()
    }
}

impl Asked {
    pub(crate) fn new(options: ServerOptions) -> Self {
        Self { router: router(server_with(llm(), options)) }
    }

    /// One for all tests that change nothing.
    pub(crate) fn shared() -> &'static Asked {
        static SHARED: OnceLock<Asked> = OnceLock::new();
        SHARED.get_or_init(|| Asked::new(ServerOptions::default()))
    }

    pub(crate) async fn send_async(&self, request: Request<Body>) -> Got {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Got { status: parts.status, headers: parts.headers, text }
    }

    pub(crate) fn send(&self, request: Request<Body>) -> Got {
        runtime().block_on(self.send_async(request))
    }

    pub(crate) fn get(&self, path: &str) -> Got {
        self.send(Request::get(path).body(Body::empty()).unwrap())
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Got {
        self.send(post(path, body))
    }
}

pub(crate) fn post(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}
