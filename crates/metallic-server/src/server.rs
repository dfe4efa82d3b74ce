//! What all requests share, and the routes.

use std::sync::{Arc, OnceLock};

use axum::Router;
use metallic::Sampling;
use tokio::sync::watch;

use crate::api;
use crate::error::ServerError;
use crate::http::{Hosts, Keys, gate};
use crate::metrics::Metrics;
use crate::models::{Models, Registry};
use crate::options::ServerOptions;
use crate::page;

/// How far a server is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Open,
    /// No new connections; what is under way may end.
    Draining,
    /// What is under way is cancelled.
    Ending,
}

/// Models, options and figures: what all requests share. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Server(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    models: Arc<Registry>,
    options: ServerOptions,
    metrics: Metrics,
    keys: Keys,
    /// Set once, by the options or by who listens.
    hosts: OnceLock<Hosts>,
    phase: watch::Sender<Phase>,
    responses: api::Store,
}

impl Server {
    /// A server of these models. Those that are to be there from the start are loaded now.
    pub fn new(models: Models, options: ServerOptions) -> Result<Self, ServerError> {
        if models.is_empty() {
            return Err(ServerError::NoModel);
        }
        check(&options)?;
        let models = Registry::new(models)?;
        let hosts = OnceLock::new();
        if let Some(names) = &options.allowed_hosts {
            hosts.get_or_init(|| Hosts::only(names));
        }
        let keys = Keys::new(&options.api_keys);
        let phase = watch::Sender::new(Phase::Open);
        Ok(Self(Arc::new(Inner {
            models,
            options,
            metrics: Metrics::default(),
            keys,
            hosts,
            phase,
            responses: api::Store::default(),
        })))
    }

    pub(crate) fn models(&self) -> &Arc<Registry> {
        &self.0.models
    }

    pub(crate) fn options(&self) -> &ServerOptions {
        &self.0.options
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// Responses that are kept.
    pub(crate) fn responses(&self) -> &api::Store {
        &self.0.responses
    }

    /// Names it answers to.
    pub(crate) fn hosts(&self) -> &Hosts {
        self.0.hosts.get().unwrap_or(&Hosts::All)
    }

    /// Answers to names of the loopback alone, unless the options say otherwise.
    pub(crate) fn guard_loopback(&self) {
        self.0.hosts.get_or_init(Hosts::loopback);
    }

    pub(crate) fn phase(&self) -> watch::Receiver<Phase> {
        self.0.phase.subscribe()
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.0.phase.send_replace(phase);
    }
}

/// Refuses options that would answer nobody, or everybody by mistake.
fn check(options: &ServerOptions) -> Result<(), ServerError> {
    let refuse =
        |name, found: &str, needed| Err(ServerError::Option { name, found: found.to_owned(), needed });
    let ServerOptions { api_keys, limits, cors_origins, sampling, .. } = options;
    if api_keys.iter().any(|key| key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic())) {
        // The key itself is not shown.
        return refuse("an API key", "…", "one or more ASCII characters without spaces");
    }
    for origin in cors_origins {
        let is_origin = origin == "*"
            || origin.split_once("://").is_some_and(|(_, host)| !host.is_empty() && !host.contains('/'));
        if !is_origin {
            return refuse("an origin", origin, "`*` or like `https://example.org`, without a path");
        }
    }
    for (name, count) in [
        ("requests", limits.requests),
        ("requests_per_key", limits.requests_per_key),
        ("connections", limits.connections),
        ("choices", limits.choices),
        ("body_bytes", limits.body_bytes),
        ("max_tokens", limits.max_tokens.unwrap_or(1)),
    ] {
        if count == 0 {
            return refuse(name, "0", "1 or more");
        }
    }
    let Sampling { seed: None, .. } = sampling else {
        return refuse("sampling.seed", "set", "left to the requests");
    };
    Ok(())
}

/// The routes of a server, for programs that listen themselves. Host names are checked only where
/// [`allowed_hosts`](ServerOptions::allowed_hosts) names some.
pub fn router(server: Server) -> Router {
    api::routes()
        .merge(page::routes())
        .fallback(gate::no_route)
        .method_not_allowed_fallback(gate::no_method)
        .layer(axum::middleware::from_fn_with_state(server.clone(), gate::gate))
        .with_state(server)
}
