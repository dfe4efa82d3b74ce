//! A request on its way through the server: what is known of it, until it is logged and counted at its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::Method;

use super::fresh_id;
use crate::log::RequestLog;
use crate::server::Server;

/// What is known of a request. Endpoints add to it.
#[derive(Clone, Debug)]
pub(crate) struct Journey {
    pub(crate) started: Instant,
    /// Whether texts may be kept.
    pub(crate) texts: bool,
    log: Arc<Mutex<RequestLog>>,
}

/// What a client was told of an error, kept beside the response for the log.
#[derive(Clone, Debug)]
pub(crate) struct Told(pub(crate) String);

impl Journey {
    pub(super) fn new(server: &Server, method: &Method, route: &'static str) -> Self {
        let log = RequestLog {
            id: fresh_id("req_"),
            method: method.as_str().chars().take(16).collect(),
            route,
            ..RequestLog::default()
        };
        let texts = server.options().log_prompts;
        Self { started: Instant::now(), texts, log: Arc::new(Mutex::new(log)) }
    }

    /// The name of the request.
    pub(crate) fn id(&self) -> String {
        self.log().id.clone()
    }

    /// The record, to add to.
    pub(crate) fn log(&self) -> MutexGuard<'_, RequestLog> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
