//! Responses that are kept so that others can build on them: in memory, so many and so large, the oldest go first.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
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
    /// Of those items that have one.
    ids: BTreeSet<String>,
}

/// What an id takes in the tables beside its own length.
const ID_BYTES: usize = 128;

impl Stored {
    pub(crate) fn new(key: Option<usize>, response: &Value, items: &[Value]) -> Self {
        let ids = items.iter().filter_map(id_of).map(str::to_owned).collect();
        // Writing values as text does not fail.
        let items = serde_json::to_string(items).unwrap_or_default();
        Self { key, response: response.to_string(), items, ids }
    }

    fn bytes(&self) -> usize {
        let ids: usize = self.ids.iter().map(|id| ID_BYTES + 2 * id.len()).sum();
        self.response.len() + self.items.len() + ids
    }

    pub(crate) fn response(&self) -> Value {
        serde_json::from_str(&self.response).unwrap_or_default()
    }

    pub(crate) fn items(&self) -> Vec<Value> {
        serde_json::from_str(&self.items).unwrap_or_default()
    }
}

/// What an item goes by.
fn id_of(item: &Value) -> Option<&str> {
    item.get("id")?.as_str()
}

/// An item by its id, as the key sees it that it was made with.
type ItemId = (Option<usize>, String);

/// The responses that are kept.
#[derive(Debug, Default)]
pub(crate) struct Store(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by_id: HashMap<String, Stored>,
    /// Ids, the one that was used least recently first.
    order: VecDeque<String>,
    /// Ids of the responses that have an item, the newest last.
    holders: HashMap<ItemId, Vec<String>>,
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
        for item in &stored.ids {
            inner.holders.entry((stored.key, item.clone())).or_default().push(id.clone());
        }
        inner.order.push_back(id.clone());
        inner.by_id.insert(id, stored);
    }

    /// A response, for who asked for it.
    pub(crate) fn get(&self, id: &str, key: Option<usize>) -> Option<Stored> {
        let mut inner = self.lock();
        let found = inner.by_id.get(id).filter(|stored| stored.key == key).cloned()?;
        inner.touch(id);
        Some(found)
    }

    /// The items that go by these ids, for who asked for the responses that have them.
    pub(crate) fn items<'a>(
        &self,
        ids: impl Iterator<Item = &'a str>,
        key: Option<usize>,
    ) -> HashMap<String, Value> {
        let mut inner = self.lock();
        let mut wanted: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for id in ids {
            let holder = inner.holders.get(&(key, id.to_owned())).and_then(|holders| holders.last());
            if let Some(holder) = holder {
                wanted.entry(holder.clone()).or_default().insert(id);
            }
        }
        let mut holders = Vec::with_capacity(wanted.len());
        for (holder, ids) in wanted {
            inner.touch(&holder);
            holders.extend(inner.by_id.get(&holder).cloned().map(|stored| (stored, ids)));
        }
        drop(inner);
        let mut found = HashMap::new();
        for (stored, ids) in holders {
            let items = stored.items().into_iter();
            found.extend(items.filter_map(|item| Some((ids.get(id_of(&item)?)?.to_string(), item))));
        }
        found
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
    /// A response was used.
    fn touch(&mut self, id: &str) {
        if let Some(at) = self.order.iter().position(|other| other == id)
            && let Some(id) = self.order.remove(at)
        {
            self.order.push_back(id);
        }
    }

    fn remove(&mut self, id: &str) {
        if let Some(stored) = self.by_id.remove(id) {
            self.bytes -= stored.bytes();
            for item in stored.ids {
                if let Entry::Occupied(mut holders) = self.holders.entry((stored.key, item)) {
                    holders.get_mut().retain(|holder| holder != id);
                    if holders.get().is_empty() {
                        holders.remove();
                    }
                }
            }
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

    fn with_items(key: usize, ids: &[&str]) -> Stored {
        let items: Vec<Value> = ids.iter().map(|id| json!({"id": id, "of": key})).collect();
        Stored::new(Some(key), &json!("1"), &items)
    }

    #[test]
    fn items_are_found_as_long_as_a_response_has_them() {
        let (store, limits) = (Store::default(), Limits::default());
        store.put("a".into(), with_items(0, &["m1"]), &limits);
        store.put("b".into(), with_items(0, &["m1", "m2"]), &limits);
        store.put("c".into(), with_items(1, &["m1"]), &limits);
        let find = |key| store.items(["m1", "m2", "m3"].into_iter(), Some(key));
        assert_eq!(find(0)["m2"], json!({"id": "m2", "of": 0}));
        assert_eq!((find(0).len(), find(1)["m1"]["of"].clone(), find(2).len()), (2, json!(1), 0));
        store.delete("b", Some(0));
        assert_eq!(find(0).into_keys().collect::<Vec<_>>(), ["m1"]);
        store.delete("a", Some(0));
        assert!(find(0).is_empty() && find(1).len() == 1);
        store.delete("c", Some(1));
        let inner = store.lock();
        assert!(inner.holders.is_empty() && inner.bytes == 0);
    }

    #[test]
    fn who_has_another_key_neither_sees_nor_deletes() {
        let store = Store::default();
        store.put("a".into(), stored("1"), &Limits::default());
        assert!(store.get("a", Some(1)).is_none() && !store.delete("a", None));
        assert!(store.delete("a", Some(0)) && !store.delete("a", Some(0)));
    }
}
