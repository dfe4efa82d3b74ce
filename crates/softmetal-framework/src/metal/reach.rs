//! Buffers that kernels reach by addresses which lie in other buffers. Metal sees no binding of those: the program says that they
//! are used, by `useResource:`, `useHeap:` or a residency set, and a GPU reads what nobody made resident from nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use softmetal::{Argument, ArgumentKind};

use super::bind::{Dispatch, Slot};
use super::buffer::Buffer;
use super::library::data_type;
use super::residency;
use crate::lock;
use crate::objc::{Id, Strong, This};
use crate::problem::{Rule, note};

/// Bytes of an argument that are looked through for addresses: tables of resources are short.
const MOST_BYTES: usize = 64 << 10;

/// Buffers whose addresses a program has asked for, by where they begin: how long they are, and which.
static ADDRESSED: Mutex<BTreeMap<usize, (usize, Id)>> = Mutex::new(BTreeMap::new());

/// `gpuAddress`: from now on it may stand in an argument.
pub(crate) fn address_of(buffer: &This<Buffer>) -> u64 {
    let address = buffer.memory.address();
    lock(&ADDRESSED).insert(address, (buffer.len(), buffer.id));
    address as u64
}

/// A buffer goes, and its address means nothing any more.
pub(crate) fn forget(buffer: &Buffer) {
    lock(&ADDRESSED).remove(&buffer.memory.address());
}

/// Tells of buffers whose addresses a kernel finds in its arguments, and that nothing makes resident.
pub(crate) fn check(dispatch: &Dispatch, sets: &[Strong]) {
    let known = lock(&ADDRESSED).clone();
    if known.is_empty() {
        return;
    }
    let mut told = BTreeSet::new();
    for argument in &dispatch.state.pipeline.kernel().arguments {
        let ArgumentKind::Buffer(index) = argument.kind else { continue };
        if is_numbers(argument) {
            continue;
        }
        for (start, found) in dispatch.slots.get(&index).map(|slot| found(slot, &known)).unwrap_or_default() {
            if is_resident(dispatch, sets, found) || !told.insert(start) {
                continue;
            }
            note(
                Rule::Residency,
                format!(
                    "kernel `{}`: argument `{}` has the address of {}, which is not bound, and which no useResource:, useHeap: \
                     or residency set makes resident: a GPU may find nothing there",
                    dispatch.name(),
                    argument.name,
                    found.describe()
                ),
            );
        }
    }
}

/// Whether an argument is numbers and no structure that could have addresses in it.
fn is_numbers(argument: &Argument) -> bool {
    let words = argument.type_text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let mut types =
        words.filter(|word| !["", "device", "constant", "const", "volatile", "restrict"].contains(word));
    types.next().is_some_and(|word| word != "ulong" && data_type(word).is_some())
}

/// The buffers whose addresses lie in what is bound, by where they begin.
fn found(slot: &Slot, known: &BTreeMap<usize, (usize, Id)>) -> Vec<(usize, Id)> {
    let bytes = match slot {
        Slot::Bytes(bytes) => bytes.clone(),
        Slot::Buffer { buffer, offset, .. } => {
            let mut bytes = vec![0; buffer.len().saturating_sub(*offset).min(MOST_BYTES)];
            // Inside (above): it was refused else when it was bound.
            if buffer.memory.read(*offset, &mut bytes).is_err() {
                return Vec::new();
            }
            bytes
        }
        Slot::Texture { .. } | Slot::Sampler { .. } => return Vec::new(),
    };
    let named = |word: &[u8; 8]| {
        let address = usize::try_from(u64::from_ne_bytes(*word)).ok()?;
        let (start, (len, id)) = known.range(..=address).next_back()?;
        (address - start < *len).then_some((*start, *id))
    };
    bytes.as_chunks().0.iter().filter_map(named).collect()
}

fn is_resident(dispatch: &Dispatch, sets: &[Strong], buffer: Id) -> bool {
    let heap = buffer.try_this::<Buffer>().and_then(|buffer| buffer.heap());
    let any = |list: &[Id]| list.contains(&buffer) || heap.is_some_and(|heap| list.contains(&heap));
    let bound: Vec<Id> = dispatch.uses().map(|(_, id, _)| id).collect();
    any(&dispatch.resident)
        || bound.contains(&buffer)
        || residency::hold(sets, buffer)
        || heap.is_some_and(|heap| residency::hold(sets, heap))
}
