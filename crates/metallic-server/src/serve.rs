//! Listening: connections with limits on their time and number, and an orderly end.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::error::ServerError;
use crate::http::Patient;
use crate::server::{Phase, Server, router};

/// How long cancelled streams have for their last event.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// How long to wait when the system has no more connections to give.
const NO_MORE: Duration = Duration::from_millis(50);

/// Serves until `shutdown` is done. Then no new connections are taken, answers under way have
/// [`shutdown_time`](crate::Limits::shutdown_time) to end, and what is left is cancelled.
///
/// On an address of the loopback, requests must call the server by one of its names, unless
/// [`allowed_hosts`](crate::ServerOptions::allowed_hosts) says otherwise.
pub async fn serve(
    listener: TcpListener,
    server: Server,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServerError> {
    if is_loopback(listener.local_addr()?.ip()) {
        server.guard_loopback();
    }
    let routes = router(server.clone());
    let room = Arc::new(Semaphore::new(server.options().limits.connections.min(Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            (stream, permit) = accept(&listener, &room) => {
                connections.spawn(connection(stream, routes.clone(), server.clone(), permit));
            }
        }
    }
    drop(listener);
    server.enter(Phase::Draining);
    let patience = server.options().limits.shutdown_time;
    if tokio::time::timeout(patience, all(&mut connections)).await.is_err() {
        server.enter(Phase::Ending);
        if tokio::time::timeout(LAST_WORDS, all(&mut connections)).await.is_err() {
            connections.shutdown().await;
        }
    }
    Ok(())
}

/// Also of addresses that are written in the other form.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

async fn all(connections: &mut JoinSet<()>) {
    while connections.join_next().await.is_some() {}
}

/// The next connection, once there is room for one.
async fn accept(listener: &TcpListener, room: &Arc<Semaphore>) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Nobody closes the semaphore.
    let permit = Arc::clone(room).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            // A client that left already, or a process without file descriptors: neither is an end.
            Err(error) => {
                tracing::warn!(target: "metallic_server", %error, "a connection could not be taken");
                tokio::time::sleep(NO_MORE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    routes: Router,
    server: Server,
    _permit: Option<OwnedSemaphorePermit>,
) {
    // Tokens are small and must not wait for company; a system that refuses that still serves.
    let _ = stream.set_nodelay(true);
    let limits = &server.options().limits;
    let service = TowerToHyperService::new(routes);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .serve_connection(TokioIo::new(Patient::new(stream, limits.write_time)), service);
    let mut connection = pin!(connection);
    let mut phase = server.phase();
    // Errors are of clients that leave or write what is no HTTP, and hyper has answered those it can.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = phase.wait_for(|phase| *phase >= Phase::Draining) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}
