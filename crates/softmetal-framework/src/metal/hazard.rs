//! Order between commands that may run together: they must not care in which order they do.

use std::ops::Range;
use std::sync::Arc;

use super::bind::Step;
use super::buffer::Buffer;
use super::execute::Failure;
use crate::objc::Id;
use crate::problem::{Rule, note};
use crate::settings::Settings;

/// Bytes of written buffers up to which dispatches are run in both orders.
const MOST_BYTES: usize = 512 << 20;

/// Runs commands of which each may run before any other. Where two of them could meet in memory, they are run in the
/// reverse order as well, on copies of what they write, which must leave the same bytes.
pub(crate) fn run_together(
    steps: &[Step],
    label: &str,
    run: &dyn Fn(&Step, &Memories) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let settings = Settings::get();
    let [forward, backward] = orders(steps.len(), settings.seed);
    let run_all = |order: &[usize], on: &Memories| order.iter().try_for_each(|index| run(&steps[*index], on));
    let own = Memories::default();
    let extents = if settings.hazards && two_meet(steps) { extents(steps) } else { Vec::new() };
    let bytes: usize = extents.iter().map(|extent| extent.range.len()).sum();
    if bytes > MOST_BYTES {
        note(
            Rule::Unchecked,
            format!(
                "dispatches {} of \"{label}\" write {bytes} bytes: those of a concurrent encoder are run in both orders \
                 up to {MOST_BYTES}, so that it is not known whether they need a barrier",
                names(steps)
            ),
        );
    }
    if extents.is_empty() || bytes > MOST_BYTES {
        return run_all(&forward, &own);
    }
    let before = Memories::copied(&extents, &own)?;
    let reverse = Memories::copied(&extents, &before)?;
    run_all(&backward, &reverse)?;
    run_all(&forward, &own)?;
    if difference(&extents, &own, &reverse)?.is_none() {
        return Ok(());
    }
    // The program may write meanwhile what the commands do not touch. In copies it cannot.
    run_all(&forward, &before)?;
    let Some((id, at)) = difference(&extents, &before, &reverse)? else { return Ok(()) };
    note(
        Rule::Hazard,
        format!(
            "dispatches {} of \"{label}\", a concurrent encoder, leave other bytes at {at} of {} in the reverse order: \
             no barrier orders them, and a GPU runs them together",
            names(steps),
            id.describe()
        ),
    );
    Err(Failure::internal("dispatches that run together depend on their order"))
}

fn names(steps: &[Step]) -> String {
    let names = steps.iter().filter_map(|step| match step {
        Step::Dispatch(dispatch) => Some(format!("`{}`", dispatch.name())),
        _ => None,
    });
    names.collect::<Vec<_>>().join(", ")
}

/// Addresses of a buffer's bytes.
fn addresses(buffer: &Buffer) -> Range<usize> {
    let start = buffer.memory.address();
    start..start + buffer.len()
}

/// Whether a command writes what another uses. Buffers may show the same memory of the program.
fn two_meet(steps: &[Step]) -> bool {
    let uses: Vec<_> = steps.iter().map(Step::uses).collect();
    uses.iter().enumerate().any(|(place, used)| {
        let others =
            || uses.iter().enumerate().filter(|(other, _)| *other != place).flat_map(|(_, used)| used);
        used.iter().filter(|(.., writes)| *writes).any(|(buffer, ..)| {
            let written = addresses(buffer);
            others()
                .map(|(other, ..)| addresses(other))
                .any(|other| other.start < written.end && written.start < other.end)
        })
    })
}

/// Bytes in a row that some command writes, and the buffers that show them.
struct Extent {
    range: Range<usize>,
    buffers: Vec<(Arc<Buffer>, Id)>,
    written: bool,
}

/// Everything that the commands write, whether others use it or not: run twice, they must find it as it was.
fn extents(steps: &[Step]) -> Vec<Extent> {
    let mut uses: Vec<_> = steps.iter().flat_map(Step::uses).collect();
    uses.sort_by_key(|(buffer, ..)| buffer.memory.address());
    let mut extents: Vec<Extent> = Vec::new();
    for (buffer, id, written) in uses {
        let range = addresses(&buffer);
        match extents.last_mut().filter(|last| range.start < last.range.end) {
            Some(last) => {
                last.range.end = last.range.end.max(range.end);
                last.written |= written;
                if !last.buffers.iter().any(|(known, _)| Arc::ptr_eq(known, &buffer)) {
                    last.buffers.push((buffer, id));
                }
            }
            None => extents.push(Extent { range, buffers: vec![(buffer, id)], written }),
        }
    }
    extents.retain(|extent| extent.written);
    extents
}

/// What commands run on: the memory of their buffers, or copies of all that they write.
#[derive(Default)]
pub(crate) struct Memories(Vec<(usize, Arc<softmetal::Buffer>)>);

impl Memories {
    /// Copies of extents as they are in `from`.
    fn copied(extents: &[Extent], from: &Memories) -> Result<Memories, Failure> {
        let copy = |extent: &Extent| {
            let copy = softmetal::Buffer::new(extent.range.len())?;
            for (buffer, _) in &extent.buffers {
                let (memory, start) = from.of(buffer);
                memory.copy_to(start, &copy, addresses(buffer).start - extent.range.start, buffer.len())?;
            }
            Ok((extent.range.start, Arc::new(copy)))
        };
        let copies: Result<Vec<_>, softmetal::Error> = extents.iter().map(copy).collect();
        copies.map(Memories).map_err(|error| Failure::internal(error.to_string()))
    }

    /// A buffer's memory, and where in it the buffer begins.
    pub(crate) fn of<'m>(&'m self, buffer: &'m Buffer) -> (&'m softmetal::Buffer, usize) {
        let (memory, start) = self.shared(buffer);
        (memory, start)
    }

    /// The same, to be held.
    pub(crate) fn shared<'m>(&'m self, buffer: &'m Buffer) -> (&'m Arc<softmetal::Buffer>, usize) {
        let wanted = addresses(buffer);
        let holds = |(start, copy): &&(usize, Arc<softmetal::Buffer>)| {
            *start <= wanted.start && wanted.end <= start + copy.len()
        };
        match self.0.iter().find(holds) {
            Some((start, copy)) => (copy, wanted.start - start),
            None => (&buffer.memory, 0),
        }
    }

    /// Whether it is what the program sees.
    pub(crate) fn is_own(&self) -> bool {
        self.0.is_empty()
    }

    fn bytes(&self, buffer: &Buffer) -> Result<Vec<u8>, Failure> {
        let (memory, start) = self.of(buffer);
        let mut bytes = vec![0; buffer.len()];
        memory.read(start, &mut bytes).map_err(|error| Failure::internal(error.to_string()))?;
        Ok(bytes)
    }
}

/// The first buffer, and byte of it, that differs.
fn difference(extents: &[Extent], one: &Memories, other: &Memories) -> Result<Option<(Id, usize)>, Failure> {
    for (buffer, id) in extents.iter().flat_map(|extent| &extent.buffers) {
        let (one, other) = (one.bytes(buffer)?, other.bytes(buffer)?);
        if let Some(at) = one.iter().zip(&other).position(|(one, other)| one != other) {
            return Ok(Some((*id, at)));
        }
    }
    Ok(None)
}

/// An order drawn by the seed, as they stand for seed 0, and its reverse: each two come in both orders.
fn orders(len: usize, seed: u64) -> [Vec<usize>; 2] {
    let mut order: Vec<usize> = (0..len).collect();
    let mut state = seed;
    for last in (1..len).rev().filter(|_| seed != 0) {
        // SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        order.swap(last, ((bits ^ (bits >> 31)) % (last as u64 + 1)) as usize);
    }
    let reverse = order.iter().rev().copied().collect();
    [order, reverse]
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::metal::bind::Held;
    use crate::metal::{buffer, device};
    use crate::problem::problems;

    #[test]
    fn each_two_commands_come_in_both_orders_whatever_the_seed() {
        for (len, seed) in (2..6).flat_map(|len| (0..32).map(move |seed| (len, seed))) {
            let [one, other] = orders(len, seed);
            let place = |order: &[usize], which| order.iter().position(|index| *index == which);
            for (a, b) in (0..len).flat_map(|a| (0..a).map(move |b| (a, b))) {
                let first = |order: &[usize]| place(order, a) < place(order, b);
                assert_ne!(first(&one), first(&other), "{len} commands, seed {seed}");
            }
        }
    }

    /// A fill of the first bytes of a buffer.
    fn fill(buffer: Id, len: usize, value: u8) -> Step {
        let this = buffer.this::<Buffer>();
        Step::Fill { to: (Held::new(buffer, false), this.share(), 0), len, value }
    }

    #[test]
    fn what_the_program_writes_meanwhile_stays_and_is_no_hazard() {
        let device = device::default().this::<device::Device>();
        let made = buffer::new(&device, 64, 0).expect("memory");
        let bytes = made.id().this::<Buffer>().memory.clone();
        let steps = [fill(made.id(), 4, 7), fill(made.id(), 4, 7)];
        let runs = Cell::new(0u8);
        let run = |step: &Step, on: &Memories| {
            let Step::Fill { to, len, value } = step else { panic!("a fill") };
            runs.set(runs.get() + 1);
            // The host, in a part that no command touches.
            bytes.write(8 + usize::from(runs.get()), &[1]).expect("inside");
            let (memory, start) = on.of(&to.1);
            memory.write(start, &vec![*value; *len]).map_err(|error| Failure::internal(error.to_string()))
        };
        run_together(&steps, "fills", &run).expect("they agree");
        let mut seen = [0; 16];
        bytes.read(0, &mut seen).expect("inside");
        // Reverse, as they stand, and once more, as the host has written.
        assert_eq!(seen, [7, 7, 7, 7, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0]);
        let other = [fill(made.id(), 4, 7), fill(made.id(), 4, 8)];
        assert!(run_together(&other, "fills", &run).is_err());
        assert!(problems().iter().any(|problem| problem.rule == Rule::Hazard));
    }
}
