//! Autorelease pools, and the shortcut of Apple's runtime: what a method returns and its caller retains at once
//! reaches no pool.

use std::cell::RefCell;

use super::object::{Id, Strong};
use crate::problem::{Rule, note};
use crate::settings::pools_are_required;

#[derive(Default)]
struct Pools {
    /// Objects, oldest first.
    objects: Vec<Strong>,
    /// How many there were when each open pool began.
    starts: Vec<usize>,
    /// What the last method returned.
    returned: Option<Strong>,
}

thread_local! {
    static POOLS: RefCell<Pools> = RefCell::default();
}

/// With the pools of this thread; nothing while the thread ends.
fn with<R>(f: impl FnOnce(&mut Pools) -> R) -> Option<R> {
    POOLS.try_with(|pools| pools.try_borrow_mut().ok().map(|mut pools| f(&mut pools))).ok().flatten()
}

/// Returns an object from a method that does not hand over a reference.
pub(crate) fn return_value(object: Strong) -> Id {
    settle();
    let id = object.id();
    let lonely = with(|pools| {
        pools.returned = Some(object);
        pools.starts.is_empty()
    });
    if lonely == Some(true) && pools_are_required() {
        note(
            Rule::NoPool,
            format!(
                "{} is returned where no pool is open: whether the caller takes it before it is autoreleased is the \
                 compiler's choice, and if not it stays until the thread ends",
                id.describe()
            ),
        );
    }
    id
}

/// The caller wants a reference of its own.
pub(crate) fn retain_returned(id: Id) {
    let taken = with(|pools| match &pools.returned {
        Some(returned) if returned.id() == id => pools.returned.take(),
        _ => None,
    });
    if let Some(object) = taken.flatten() {
        object.give();
    } else {
        settle();
        id.retain();
    }
}

/// Every other step of the runtime ends the shortcut: the object goes to the pool.
pub(crate) fn settle() {
    if let Some(object) = with(|pools| pools.returned.take()).flatten() {
        add(object);
    }
}

/// Keeps an object until the innermost pool ends.
pub(crate) fn add(object: Strong) {
    let id = object.id();
    let lonely = with(|pools| {
        pools.objects.push(object);
        pools.starts.is_empty()
    });
    if lonely == Some(true) {
        note(
            Rule::NoPool,
            format!("{} is autoreleased without a pool: it stays until the thread ends", id.describe()),
        );
    }
}

/// Opens a pool; what it is known by.
pub(crate) fn push() -> usize {
    settle();
    with(|pools| {
        pools.starts.push(pools.objects.len());
        pools.starts.len()
    })
    .unwrap_or(0)
}

/// Ends a pool and those inside of it.
pub(crate) fn pop(token: usize) {
    settle();
    let gone = with(|pools| {
        let depth = token.checked_sub(1)?;
        let start = *pools.starts.get(depth)?;
        pools.starts.truncate(depth);
        Some(pools.objects.split_off(start))
    });
    // Outside of the borrow: what ends here may use pools.
    match gone.flatten() {
        Some(objects) => drop(objects),
        None => note(Rule::NoPool, "an autorelease pool is ended that is not open".to_owned()),
    }
}
