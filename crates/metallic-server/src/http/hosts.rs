//! The names a server answers to: a page that points its own name at this machine must not speak with it.

use std::net::Ipv6Addr;

use axum::extract::Request;
use axum::http::Version;
use axum::http::header::HOST;
use axum::http::uri::Authority;

use crate::error::ApiError;

/// Which names are good.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hosts {
    #[default]
    All,
    Only(Vec<String>),
}

impl Hosts {
    /// Names of the loopback.
    pub(crate) fn loopback() -> Self {
        Self::only(&["localhost", "127.0.0.1", "::1"].map(str::to_owned))
    }

    pub(crate) fn only(names: &[String]) -> Self {
        Self::Only(names.iter().map(|name| plain(name)).collect())
    }

    pub(crate) fn check(&self, request: &Request) -> Result<(), ApiError> {
        let Self::Only(names) = self else { return Ok(()) };
        let header = request.headers().get(HOST).and_then(|host| host.to_str().ok());
        let host = header.or_else(|| request.uri().authority().map(Authority::as_str));
        // Before 1.1 there were no names; no browser speaks it.
        if host.is_none() && request.version() < Version::HTTP_11 {
            return Ok(());
        }
        let host = plain(host.unwrap_or_default());
        if names.contains(&host) {
            return Ok(());
        }
        Err(ApiError::Host { host: host.chars().filter(|c| !c.is_control()).take(200).collect() })
    }
}

/// A name without port, brackets, capital letters and the dot at its end.
fn plain(host: &str) -> String {
    let host = host.trim();
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, _)) => inside,
        None if host.parse::<Ipv6Addr>().is_ok() => host,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_without_their_ports() {
        for (host, name) in [
            ("LocalHost:8080", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]:80", "::1"),
            ("::1", "::1"),
            ("evil.example.:80", "evil.example"),
            ("", ""),
        ] {
            assert_eq!(plain(host), name, "{host}");
        }
    }

    #[test]
    fn a_page_with_a_name_of_its_own_is_refused_on_the_loopback() {
        let of =
            |host: &str| Request::builder().header("host", host).body(axum::body::Body::empty()).unwrap();
        assert_eq!(Hosts::loopback().check(&of("localhost:8080")), Ok(()));
        assert_eq!(Hosts::loopback().check(&of("[::1]:8080")), Ok(()));
        for host in ["evil.example", "localhost.evil.example", "127.0.0.1.nip.example:80", ""] {
            assert!(Hosts::loopback().check(&of(host)).is_err(), "{host}");
            assert_eq!(Hosts::All.check(&of(host)), Ok(()));
        }
        let nameless = |version| Request::builder().version(version).body(axum::body::Body::empty()).unwrap();
        assert_eq!(Hosts::loopback().check(&nameless(Version::HTTP_10)), Ok(()));
        assert!(Hosts::loopback().check(&nameless(Version::HTTP_11)).is_err());
    }
}
