//! What every request passes before an endpoint sees it, and its response on the way back.

use axum::Extension;
use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::cors;
use super::follow::{Ending, Followed};
use super::journey::{Journey, Told};
use super::keys::Permit;
use crate::api::{OPEN_ROUTES, ROUTES, error_response, is_anthropic};
use crate::error::ApiError;
use crate::page;
use crate::server::Server;

/// Checks the request, hands it on, and follows the response to its end.
pub(crate) async fn gate(State(server): State<Server>, mut request: Request, next: Next) -> Response {
    let route = route_of(&request);
    let mut journey = Journey::new(&server, request.method(), route);
    let to_anthropic = is_anthropic(&request);
    let mut ending = Ending::new(server.clone(), journey.clone());
    let origin = cors::allowed(&request, &server.options().cors_origins);
    let mut response = match check(&server, &request, route, &journey) {
        Err(error) => error_response(&request, &error, &journey.id()),
        Ok(_) if origin.is_some() && request.method() == Method::OPTIONS => {
            cors::preflight(&request).unwrap_or_else(|| method_error(&request).into_response())
        }
        Ok(permit) => {
            journey = journey.with_permit(permit);
            ending.journey = journey.clone();
            request.extensions_mut().insert(journey.clone());
            next.run(request).await
        }
    };
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&journey.id()) {
        if to_anthropic {
            headers.insert("request-id", id.clone());
        }
        headers.insert("x-request-id", id);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // Answers are of the moment; what may be kept says so itself.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Some(origin) = origin {
        cors::mark(&mut response, origin);
    }
    let mut log = journey.log();
    log.status = response.status().as_u16();
    log.error = response.extensions_mut().remove::<Told>().map(|told| told.0);
    drop(log);
    response.map(|body| Body::new(Followed::new(body, ending)))
}

/// The route by its name in the table, so that what clients write is no label of a figure.
fn route_of(request: &Request) -> &'static str {
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let known = ROUTES.iter().find(|route| Some(**route) == matched).copied();
    known.or_else(|| matched.and_then(page::path)).unwrap_or("other")
}

fn check(
    server: &Server,
    request: &Request,
    route: &'static str,
    journey: &Journey,
) -> Result<Option<Permit>, ApiError> {
    server.hosts().check(request)?;
    // A page that asks whether it may ask has no key yet.
    if OPEN_ROUTES.contains(&route) || page::path(route).is_some() || request.method() == Method::OPTIONS {
        return Ok(None);
    }
    let key = server.keys().check(request.headers())?;
    journey.log().key = key;
    // What only reads goes on while there is no room for work.
    let works = request.method() == Method::POST;
    works.then(|| server.keys().admit(key, &server.options().limits)).transpose()
}

fn method_error(request: &Request) -> ApiError {
    let path = request.uri().path().chars().take(200).collect();
    ApiError::Method { path, method: request.method().as_str().chars().take(16).collect() }
}

/// A path that is not there.
pub(crate) async fn no_route(Extension(journey): Extension<Journey>, request: Request) -> Response {
    let path = request.uri().path().chars().take(200).collect();
    error_response(&request, &ApiError::NoRoute { path }, &journey.id())
}

/// A path that is there, for other methods.
pub(crate) async fn no_method(Extension(journey): Extension<Journey>, request: Request) -> Response {
    error_response(&request, &method_error(&request), &journey.id())
}
