//! Keys, and how many requests each may have in work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::error::ApiError;
use crate::options::Limits;

/// The keys that are good, and what is in work with each.
#[derive(Debug)]
pub(crate) struct Keys {
    good: Vec<String>,
    /// One for each key, or one for everybody.
    in_work: Vec<Arc<AtomicUsize>>,
    total: Arc<AtomicUsize>,
}

/// A request in work; dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct Permit(Vec<Arc<AtomicUsize>>);

impl Drop for Permit {
    fn drop(&mut self) {
        for count in &self.0 {
            count.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Permit {
    /// Takes a place of `limit`, if one is left.
    fn enter(&mut self, count: &Arc<AtomicUsize>, limit: usize) -> bool {
        let entered =
            count.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < limit).then_some(n + 1)).is_ok();
        if entered {
            self.0.push(Arc::clone(count));
        }
        entered
    }
}

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        let in_work = (0..keys.len().max(1)).map(|_| Arc::default()).collect();
        Self { good: keys.to_vec(), in_work, total: Arc::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.good.is_empty()
    }

    /// Which key a request has brought, as `Authorization: Bearer` or `x-api-key`; `None` where none is needed. How long it takes
    /// says nothing of how much of a wrong key was right.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<Option<usize>, ApiError> {
        if self.good.is_empty() {
            return Ok(None);
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        let own = || headers.get("x-api-key").map(HeaderValue::as_bytes);
        let Some(given) = bearer.or_else(own) else {
            return Err(ApiError::Unauthorized("there is no API key; send `Authorization: Bearer KEY`"));
        };
        let mut found = u64::MAX;
        for (index, key) in self.good.iter().enumerate() {
            found.conditional_assign(&(index as u64), equals(key.as_bytes(), given));
        }
        let wrong = ApiError::Unauthorized("the API key is wrong");
        if found == u64::MAX { Err(wrong) } else { Ok(usize::try_from(found).ok()) }
    }

    /// Room for one more request with this key.
    pub(crate) fn admit(&self, key: Option<usize>, limits: &Limits) -> Result<Permit, ApiError> {
        let busy = |message: String| ApiError::Busy { message, retry_after: Duration::from_secs(1) };
        let mut permit = Permit(Vec::with_capacity(2));
        let own = &self.in_work[key.unwrap_or(0)];
        if !permit.enter(own, limits.requests_per_key) {
            return Err(busy(format!("{} requests are in work with this key", limits.requests_per_key)));
        }
        if !permit.enter(&self.total, limits.requests) {
            return Err(busy(format!("{} requests are in work", limits.requests)));
        }
        Ok(permit)
    }

    /// Requests in work.
    pub(crate) fn in_work(&self) -> usize {
        self.total.load(Ordering::Acquire)
    }
}

/// Whether two keys are the same. How long it takes depends on the length of what was given, and not on the key's.
fn equals(key: &[u8], given: &[u8]) -> Choice {
    let mut differs = (key.len() ^ given.len()) as u64;
    for (i, byte) in given.iter().enumerate() {
        differs |= u64::from(byte ^ key.get(i).copied().unwrap_or(0));
    }
    differs.ct_eq(&0)
}

/// The key behind `Bearer`, which may be written in any letters.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(axum::http::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn one_of_the_keys_is_enough_and_everything_else_is_not() {
        let keys = Keys::new(&["alpha".to_owned(), "beta".to_owned()]);
        assert_eq!(keys.check(&headers("authorization", "Bearer beta")), Ok(Some(1)));
        assert_eq!(keys.check(&headers("authorization", "bearer  alpha ")), Ok(Some(0)));
        assert_eq!(keys.check(&headers("x-api-key", "alpha")), Ok(Some(0)));
        for wrong in ["Bearer alph", "Bearer alphaa", "Bearer ", "Basic alpha", "alpha", ""] {
            assert!(keys.check(&headers("authorization", wrong)).is_err(), "{wrong}");
        }
        assert!(keys.check(&HeaderMap::new()).is_err());
        assert_eq!(Keys::new(&[]).check(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn a_key_and_everybody_have_limits_of_their_own() {
        let keys = Keys::new(&["a".to_owned(), "b".to_owned()]);
        let mut limits = Limits::default();
        (limits.requests_per_key, limits.requests) = (2, 3);
        let first: Vec<Permit> = (0..2).map(|_| keys.admit(Some(0), &limits).unwrap()).collect();
        assert!(keys.admit(Some(0), &limits).is_err());
        let other = keys.admit(Some(1), &limits).unwrap();
        assert!(keys.admit(Some(1), &limits).is_err(), "everybody together has three");
        drop(first);
        assert_eq!(keys.in_work(), 1);
        drop(other);
        assert_eq!(keys.in_work(), 0);
    }
}
