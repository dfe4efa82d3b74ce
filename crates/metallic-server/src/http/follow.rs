//! A response's body, followed to its end: only then is a request over.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use http_body::{Frame, SizeHint};

use super::journey::Journey;
use crate::server::Server;

/// Counts and logs a request when it is dropped, wherever that happens.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) server: Server,
    pub(super) journey: Journey,
    /// Whether the response was written to its end.
    pub(super) complete: bool,
}

impl Ending {
    pub(super) fn new(server: Server, journey: Journey) -> Self {
        server.metrics().in_flight.fetch_add(1, Ordering::Relaxed);
        Self { server, journey, complete: false }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let metrics = self.server.metrics();
        metrics.in_flight.fetch_sub(1, Ordering::Relaxed);
        let took = self.journey.started.elapsed();
        let mut log = self.journey.log();
        log.seconds = took.as_secs_f64();
        log.disconnected = !self.complete;
        if log.disconnected {
            metrics.disconnected.fetch_add(1, Ordering::Relaxed);
        }
        if log.status == 0 {
            // What others write for a client that left before there was a response.
            log.status = 499;
        }
        metrics.count_request(log.route, log.status, took);
        tracing::info!(
            target: "metallic_server",
            id = log.id,
            method = log.method,
            route = log.route,
            status = log.status,
            seconds = log.seconds,
            disconnected = log.disconnected,
            prompt_tokens = log.prompt_tokens,
            generated_tokens = log.generated_tokens,
            "request"
        );
        if let Some(sink) = &self.server.options().log {
            sink.take(&log);
        }
    }
}

/// A body that knows when it ends.
pub(super) struct Followed {
    body: Body,
    ending: Ending,
}

impl Followed {
    pub(super) fn new(body: Body, mut ending: Ending) -> Self {
        ending.complete = body.is_end_stream();
        Self { body, ending }
    }
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) || self.body.is_end_stream() {
            self.ending.complete = true;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
