//! The web page at `/`: a few files that travel in the program. No build step made them, and they ask for nothing from elsewhere.

use axum::Router;
use axum::body::Body;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::get;

/// What the page may do: run its own scripts, wear its own style, ask its own server. It can be put into no other page, and the
/// browser refuses to turn a string into markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

const HEADERS: [(HeaderName, &str); 7] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    // It is asked each time whether it is still the same: the next version of the program brings another page.
    (CACHE_CONTROL, "no-cache"),
];

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

struct File {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    /// Changes with the bytes.
    mark: u64,
}

macro_rules! file {
    ($path:literal, $kind:expr, $file:literal) => {{
        const BYTES: &[u8] = include_bytes!(concat!("../web/", $file));
        File { path: $path, kind: $kind, bytes: BYTES, mark: fnv(BYTES) }
    }};
}

static FILES: [File; 13] = [
    file!("/", HTML, "index.html"),
    file!("/web/style.css", CSS, "style.css"),
    file!("/web/answer.js", SCRIPT, "answer.js"),
    file!("/web/api.js", SCRIPT, "api.js"),
    file!("/web/app.js", SCRIPT, "app.js"),
    file!("/web/dom.js", SCRIPT, "dom.js"),
    file!("/web/highlight.js", SCRIPT, "highlight.js"),
    file!("/web/inline.js", SCRIPT, "inline.js"),
    file!("/web/markdown.js", SCRIPT, "markdown.js"),
    file!("/web/settings.js", SCRIPT, "settings.js"),
    file!("/web/store.js", SCRIPT, "store.js"),
    file!("/web/theme.js", SCRIPT, "theme.js"),
    file!("/web/view.js", SCRIPT, "view.js"),
];

/// The page's routes, for any state: `/` and what lies under `/web/`. They need no key, for they hold nothing that is anybody's;
/// what the page asks for goes through the API as it does for everybody.
pub fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| {
        router.route(file.path, get(move |headers: HeaderMap| async move { file.response(&headers) }))
    })
}

/// The page's own path that is written like this one, if there is one.
pub(crate) fn path(of: &str) -> Option<&'static str> {
    FILES.iter().map(|file| file.path).find(|path| *path == of)
}

impl File {
    fn response(&self, asked: &HeaderMap) -> Response {
        let mark = format!("\"{:016x}\"", self.mark);
        let known = asked
            .get_all(IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(str::trim)
            .any(|known| known == "*" || known.trim_start_matches("W/") == mark);
        let mut response = Response::new(if known { Body::empty() } else { Body::from(self.bytes) });
        if known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        }
        let headers = response.headers_mut();
        headers.extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.extend(HeaderValue::from_str(&mark).ok().map(|mark| (ETAG, mark)));
        response
    }
}

/// FNV-1a of 64 bits: tells versions apart, and is computed when the program is built.
const fn fnv(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(file: &File) -> &str {
        std::str::from_utf8(file.bytes).unwrap()
    }

    #[test]
    fn every_file_that_the_page_asks_for_is_served() {
        for file in &FILES {
            for part in text(file)
                .split(['"', '\''])
                .filter(|part| part.starts_with("web/") || part.starts_with("./"))
            {
                let name = part.rsplit('/').next().unwrap();
                assert!(path(&format!("/web/{name}")).is_some(), "{} asks for {part}", file.path);
            }
        }
        assert_eq!(path("/"), Some("/"));
        assert_eq!(path("/web/other.js"), None);
    }

    #[test]
    fn nothing_is_fetched_from_elsewhere_and_no_string_becomes_markup() {
        for file in &FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "@import",
                "url(",
            ] {
                assert!(!text(file).contains(word), "{} has {word}", file.path);
            }
            // Names of XML are no addresses.
            let plain = text(file).replace("http://www.w3.org/2000/svg", "");
            for address in ["http://", "https://", "//cdn"] {
                assert!(!plain.contains(address), "{} has {address}", file.path);
            }
        }
    }

    #[test]
    fn the_page_stays_small() {
        let all: usize = FILES.iter().map(|file| file.bytes.len()).sum();
        assert!(all < 90_000, "{all} bytes");
    }

    #[test]
    fn a_file_that_is_known_is_not_sent_again() {
        let mut asked = HeaderMap::new();
        let first = FILES[0].response(&asked);
        assert_eq!(first.status(), StatusCode::OK);
        assert_eq!(first.headers()[CONTENT_TYPE], HTML);
        assert_eq!(first.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
        let policy = first.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self'; ") && !policy.contains("unsafe"),
            "{policy}"
        );

        let mark = first.headers()[ETAG].to_str().unwrap();
        asked.insert(IF_NONE_MATCH, HeaderValue::from_str(&format!("\"other\", W/{mark}")).unwrap());
        assert_eq!(FILES[0].response(&asked).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(FILES[1].response(&asked).status(), StatusCode::OK, "another file has another mark");
    }
}
