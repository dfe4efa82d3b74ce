//! Pages of other origins: refused by saying nothing, unless the server was told to let them in.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::Response;

/// What pages may read of a response besides its body.
const EXPOSED: &str = "x-request-id, retry-after, x-should-retry";

/// The origin of a request, where pages of it may read the answer.
pub(super) fn allowed(request: &Request, origins: &[String]) -> Option<HeaderValue> {
    let origin = request.headers().get(ORIGIN)?;
    let good = origins.iter().any(|good| good == "*" || good.as_bytes() == origin.as_bytes());
    good.then(|| origin.clone())
}

/// The answer to a page that asks whether it may ask.
pub(super) fn preflight(request: &Request) -> Option<Response> {
    let asks =
        request.method() == Method::OPTIONS && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE, OPTIONS"));
    // The clients of others send headers of their own.
    let asked = request.headers().get("access-control-request-headers").cloned();
    let usual = HeaderValue::from_static("authorization, content-type, x-api-key");
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(usual));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    Some(response)
}

/// Lets the page read the answer.
pub(super) fn mark(response: &mut Response, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(VARY, HeaderValue::from_static("origin"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
}
