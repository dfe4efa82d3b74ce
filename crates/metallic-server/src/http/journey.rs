//! A request on its way through the server: what is known of it, until it is logged and counted at its end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use axum::http::Method;

use super::fresh_id;
use super::keys::Permit;
use crate::log::RequestLog;
use crate::server::Server;

/// What is known of a request. Endpoints add to it.
#[derive(Clone, Debug)]
pub(crate) struct Journey {
    pub(crate) started: Instant,
    /// Whether texts may be kept.
    pub(crate) texts: bool,
    /// Its place among those in work, where it needs one: free again when nobody has it any more.
    permit: Option<Arc<Permit>>,
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
        Self { started: Instant::now(), texts, permit: None, log: Arc::new(Mutex::new(log)) }
    }

    /// The same, with a place among those in work.
    pub(super) fn with_permit(self, permit: Option<Permit>) -> Self {
        Self { permit: permit.map(Arc::new), ..self }
    }

    /// Its place, for work that may outlast its client.
    pub(super) fn permit(&self) -> Option<Arc<Permit>> {
        self.permit.clone()
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
