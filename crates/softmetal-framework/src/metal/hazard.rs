//! Order between commands: those that may run together must not care in which order they do, and resources that Metal
//! does not track need fences.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::bind::{Pass, PassKind, Step};
use super::buffer::Buffer;
use super::execute::Failure;
use super::memory::snapshot;
use super::sync::Fence;
use crate::lock;
use crate::objc::Id;
use crate::problem::{Rule, note, refuse};
use crate::settings::Settings;

/// Bytes of written buffers up to which dispatches are run in both orders.
const MOST_BYTES: usize = 512 << 20;

/// Runs commands of which each may run before any other. Where two of them could meet in memory, they are run again in
/// the reverse order, which must leave the same bytes.
pub(crate) fn run_together(
    steps: &[Step],
    label: &str,
    run: &dyn Fn(&Step) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let settings = Settings::get();
    let order = shuffled(steps.len(), settings.seed);
    let written = if settings.hazards { shared_and_written(steps) } else { Vec::new() };
    if written.is_empty() {
        return order.into_iter().try_for_each(|index| run(&steps[index]));
    }
    let bytes: usize = written.iter().map(|(buffer, _)| buffer.len()).sum();
    if bytes > MOST_BYTES {
        eprintln!("softmetal: {bytes} bytes are too many to run dispatches of \"{label}\" in both orders");
        return order.into_iter().try_for_each(|index| run(&steps[index]));
    }
    let before: Vec<Vec<u8>> = written.iter().map(|(buffer, _)| snapshot(&buffer.memory)).collect();
    steps.iter().rev().try_for_each(run)?;
    let reverse: Vec<Vec<u8>> = written.iter().map(|(buffer, _)| snapshot(&buffer.memory)).collect();
    for ((buffer, _), bytes) in written.iter().zip(&before) {
        // As long as the buffer that it was taken of.
        let _ = buffer.memory.write(0, bytes);
    }
    order.into_iter().try_for_each(|index| run(&steps[index]))?;
    for ((buffer, id), reverse) in written.iter().zip(&reverse) {
        let forward = snapshot(&buffer.memory);
        if let Some(at) = forward.iter().zip(reverse).position(|(one, other)| one != other) {
            note(
                Rule::Hazard,
                format!(
                    "dispatches {} of \"{label}\", a concurrent encoder, leave other bytes at {at} of {} in the reverse \
                     order: no barrier orders them, and a GPU runs them together",
                    names(steps),
                    id.describe()
                ),
            );
            return Err(Failure::internal("dispatches that run together depend on their order"));
        }
    }
    Ok(())
}

fn names(steps: &[Step]) -> String {
    let names = steps.iter().filter_map(|step| match step {
        Step::Dispatch(dispatch) => Some(format!("`{}`", dispatch.name())),
        _ => None,
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Buffers that a command writes and another uses.
fn shared_and_written(steps: &[Step]) -> Vec<(Arc<Buffer>, Id)> {
    let mut written: Vec<(Arc<Buffer>, Id)> = Vec::new();
    let uses: Vec<_> = steps.iter().map(Step::uses).collect();
    for (place, used) in uses.iter().enumerate() {
        for (buffer, id, _) in used.iter().filter(|(.., writes)| *writes) {
            let others = uses.iter().enumerate().filter(|(other, _)| *other != place);
            let met = others
                .flat_map(|(_, used)| used)
                .any(|(other, ..)| Arc::ptr_eq(&other.memory, &buffer.memory));
            if met && !written.iter().any(|(known, _)| Arc::ptr_eq(known, buffer)) {
                written.push((buffer.clone(), *id));
            }
        }
    }
    written
}

/// An order drawn by the seed; as they stand for seed 0.
fn shuffled(len: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    let mut state = seed;
    for last in (1..len).rev().filter(|_| seed != 0) {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        order.swap(last, ((bits ^ (bits >> 31)) % (last as u64 + 1)) as usize);
    }
    order
}

/// Who used an untracked buffer last.
#[derive(Default)]
pub(crate) struct LastUse(Mutex<Option<Use>>);

struct Use {
    /// Number of the pass, in the order of commits.
    pass: u64,
    wrote: bool,
    /// Its command buffer was completed.
    done: Arc<AtomicBool>,
}

/// Numbers passes in the order of commits.
static PASSES: AtomicU64 = AtomicU64::new(1);

/// Refuses passes of which one uses what another wrote, or the other way round, where Metal keeps no order and no fence
/// does.
pub(crate) fn check_untracked(passes: &[Pass], done: &Arc<AtomicBool>) {
    // All passes up to this one were waited for.
    let mut waited = 0;
    for pass in passes {
        let number = PASSES.fetch_add(1, Ordering::Relaxed);
        let PassKind::Encoder { steps, label, .. } = &pass.kind else {
            if matches!(pass.kind, PassKind::Wait(..)) {
                waited = number;
            }
            continue;
        };
        let mut ordered = waited;
        for step in steps {
            match step {
                Step::WaitForFence(fence) => ordered = ordered.max(fence.id.this::<Fence>().updated()),
                Step::UpdateFence(fence) => fence.id.this::<Fence>().update(number),
                _ => {}
            }
            for (buffer, id, writes) in step.uses().into_iter().filter(|(buffer, ..)| !buffer.tracked) {
                let moment = Moment { pass: number, ordered, done };
                check_use((&buffer, id), writes, &moment, label);
            }
        }
    }
}

/// When a buffer is used.
struct Moment<'m> {
    pass: u64,
    /// Passes up to this one were waited for.
    ordered: u64,
    done: &'m Arc<AtomicBool>,
}

fn check_use((buffer, id): (&Buffer, Id), writes: bool, now: &Moment<'_>, label: &str) {
    let mut last = lock(&buffer.last_use.0);
    let conflict = last.as_ref().is_some_and(|last| {
        last.pass != now.pass
            && last.pass > now.ordered
            && (last.wrote || writes)
            && !last.done.load(Ordering::Acquire)
    });
    let wrote = writes || last.as_ref().is_some_and(|last| last.pass == now.pass && last.wrote);
    if wrote || last.as_ref().is_none_or(|last| !last.wrote) {
        *last = Some(Use { pass: now.pass, wrote, done: now.done.clone() });
    }
    drop(last);
    if conflict {
        refuse(
            Rule::Untracked,
            format!(
                "encoder \"{label}\" uses {}, which Metal does not track and an earlier encoder uses: without a fence or an \
                 event the two run at once",
                id.describe()
            ),
        );
    }
}
