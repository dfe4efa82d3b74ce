//! Responses that are kept so that others can build on them: in memory, so many and so large, the oldest go first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use crate::options::Limits;

/// A response that ended.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Which key it was asked for with: nobody else sees it.
    pub(crate) key: Option<usize>,
    /// The response, as JSON.
    response: String,
    /// Everything that was said up to it and in it, as a JSON array of items.
    items: String,
}

impl Stored {
    pub(crate) fn new(key: Option<usize>, response: &Value, items: &[Value]) -> Self {
        // Writing values as text does not fail.
        let items = serde_json::to_string(items).unwrap_or_default();
        Self { key, response: response.to_string(), items }
    }

    fn bytes(&self) -> usize {
        self.response.len() + self.items.len()
    }

    pub(crate) fn response(&self) -> Value {
        serde_json::from_str(&self.response).unwrap_or_default()
    }

    pub(crate) fn items(&self) -> Vec<Value> {
        serde_json::from_str(&self.items).unwrap_or_default()
    }
}

/// The responses that are kept.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<String, Stored>,
    /// Ids, the one that was used least recently first.
    order: VecDeque<String>,
    bytes: usize,
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a response; those that have to make room for it go. One that is too large alone is not kept.
    pub(crate) fn put(&self, id: String, stored: Stored, limits: &Limits) {
        if stored.bytes() > limits.stored_bytes || limits.stored_responses == 0 {
            return;
        }
        let mut inner = self.lock();
        while inner.order.len() >= limits.stored_responses
            || inner.bytes + stored.bytes() > limits.stored_bytes
        {
            let Some(oldest) = inner.order.front().cloned() else { break };
            inner.remove(&oldest);
        }
        inner.bytes += stored.bytes();
        inner.order.push_back(id.clone());
        inner.by_id.insert(id, stored);
    }

    /// A response, for who asked for it.
    pub(crate) fn get(&self, id: &str, key: Option<usize>) -> Option<Stored> {
        let mut inner = self.lock();
        let found = inner.by_id.get(id).filter(|stored| stored.key == key).cloned()?;
        if let Some(at) = inner.order.iter().position(|other| other == id)
            && let Some(id) = inner.order.remove(at)
        {
            inner.order.push_back(id);
        }
        Some(found)
    }

    /// Forgets a response; whether it was there, for who asked for it.
    pub(crate) fn delete(&self, id: &str, key: Option<usize>) -> bool {
        let mut inner = self.lock();
        let is_own = inner.by_id.get(id).is_some_and(|stored| stored.key == key);
        if is_own {
            inner.remove(id);
        }
        is_own
    }
}

impl Inner {
    fn remove(&mut self, id: &str) {
        if let Some(stored) = self.by_id.remove(id) {
            self.bytes -= stored.bytes();
        }
        self.order.retain(|other| other != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(text: &str) -> Stored {
        Stored::new(Some(0), &json!(text), &[])
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let store = Store::default();
        let mut limits = Limits { stored_responses: 2, ..Limits::default() };
        store.put("a".into(), stored("1"), &limits);
        store.put("b".into(), stored("2"), &limits);
        assert!(store.get("a", Some(0)).is_some());
        store.put("c".into(), stored("3"), &limits);
        assert!(store.get("b", Some(0)).is_none());
        assert_eq!(store.get("a", Some(0)).unwrap().response(), json!("1"));
        limits.stored_bytes = 27;
        store.put("d".into(), stored(&"x".repeat(20)), &limits);
        assert!(store.get("a", Some(0)).is_none() && store.get("c", Some(0)).is_none());
        store.put("e".into(), stored(&"x".repeat(40)), &limits);
        assert!(store.get("e", Some(0)).is_none() && store.get("d", Some(0)).is_some());
        let held = store.lock().bytes;
        assert_eq!(held, store.get("d", Some(0)).unwrap().bytes());
    }

    #[test]
    fn who_has_another_key_neither_sees_nor_deletes() {
        let store = Store::default();
        store.put("a".into(), stored("1"), &Limits::default());
        assert!(store.get("a", Some(1)).is_none() && !store.delete("a", None));
        assert!(store.delete("a", Some(0)) && !store.delete("a", Some(0)));
    }
}
