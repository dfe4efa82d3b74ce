//! Counters: the time alone, as Apple's GPUs have it.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::descriptor::{Properties, descriptor};
use super::device::Device;
use super::labels;
use crate::faults::{self, Fault};
use crate::foundation::{Domain, NS_OBJECT, array, data, error, string};
use crate::lock;
use crate::objc::{Id, Method, NsRange, OutObject, Strong, This, class, lend, methods, none};
use crate::problem::{Rule, refuse};

class!(static COUNTER = c"MTLSoftCounter", &NS_OBJECT, counter, none);
class!(static COUNTER_SET = c"MTLSoftCounterSet", &NS_OBJECT, set, none);
class!(static SAMPLES = c"MTLSoftCounterSampleBuffer", &NS_OBJECT, samples_methods, none);
descriptor!(pub(crate) static SAMPLE_DESCRIPTOR = c"MTLCounterSampleBufferDescriptor", [],
    c"counterSet" c"setCounterSet:" object;
    c"label" c"setLabel:" object;
    c"storageMode" c"setStorageMode:" usize;
    c"sampleCount" c"setSampleCount:" usize;
);

/// The set of counters, and its one counter.
pub(crate) const TIMESTAMP_SET: &str = "timestamp";
pub(crate) const TIMESTAMP: &str = "GPUTimestamp";
/// Bytes of samples that one buffer has at most.
const MOST_BYTES: usize = 32 << 10;
/// Places where nothing is noted: `MTLCounterDontSample`.
const DO_NOT_SAMPLE: usize = usize::MAX;
/// A sample that was never noted: `MTLCounterErrorValue`.
const NOT_NOTED: u64 = u64::MAX;
/// `MTLCounterSampleBufferErrorOutOfMemory` and its like.
const OUT_OF_MEMORY: isize = 0;
const INVALID: isize = 1;

struct Counter;
struct CounterSet;

/// What an `MTLCounterSampleBuffer` holds.
pub(crate) struct Samples {
    device: This<Device>,
    values: Mutex<Vec<u64>>,
    shared: bool,
}

impl Samples {
    /// Notes the time at a place.
    pub(crate) fn note(&self, index: usize) {
        if let Some(place) = lock(&self.values).get_mut(index)
            && !faults::strikes(Fault::Sample)
        {
            *place = now();
        }
    }

    fn resolve(&self, range: NsRange) -> Id {
        let values = lock(&self.values);
        let found = range.end().and_then(|end| values.get(range.location..end)).map(<[u64]>::to_vec);
        let count = values.len();
        drop(values);
        if !self.shared {
            refuse(
                Rule::StorageMode,
                "resolveCounterRange: of private samples: Metal asserts that they are shared".to_owned(),
            );
        }
        let Some(found) = found else {
            refuse(
                Rule::Range,
                format!("resolveCounterRange: {range:?} of {count} samples: Metal asserts that it is inside"),
            );
            return Id::NULL;
        };
        data(found.into_iter().flat_map(u64::to_ne_bytes).collect()).lend()
    }
}

/// Nanoseconds since the first call, and a second: 0 means that nothing was noted.
pub(crate) fn now() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = FIRST.get_or_init(Instant::now).elapsed();
    1_000_000_000 + u64::try_from(since.as_nanos()).unwrap_or(u64::MAX / 2)
}

/// `counterSets`.
pub(crate) fn sets(clock: bool) -> Strong {
    array(clock.then(|| Strong::new(&COUNTER_SET, CounterSet)).into_iter().collect())
}

/// `newCounterSampleBufferWithDescriptor:error:`.
pub(crate) fn samples(device: &This<Device>, descriptor: Id, out: OutObject) -> Option<Strong> {
    let properties = descriptor.this::<Properties>();
    let (count, storage) = (properties.number(c"sampleCount"), properties.number(c"storageMode"));
    if properties.object(c"counterSet").is_none() || count == 0 {
        refuse(
            Rule::Descriptor,
            format!("{count} samples of a set: Metal asserts a set and at least one sample"),
        );
    }
    let fail = |code, text: String| {
        out.put(error(Domain::CounterSample, code, text));
        None
    };
    if faults::strikes(Fault::Object) {
        return fail(OUT_OF_MEMORY, "a failure on request".to_owned());
    }
    if count.saturating_mul(8) > MOST_BYTES {
        return fail(INVALID, format!("{count} samples are more than the {} a buffer has", MOST_BYTES / 8));
    }
    let samples =
        Samples { device: device.again(), values: Mutex::new(vec![NOT_NOTED; count]), shared: storage == 0 };
    let made = Strong::new(&SAMPLES, samples);
    made.id().set_label(properties.object(c"label").map(|label| crate::foundation::text(label.id())));
    Some(made)
}

/// A buffer of samples with places that it has.
pub(crate) fn checked(id: Id, places: &[usize]) -> Arc<Samples> {
    let samples = id.this::<Samples>();
    let count = lock(&samples.values).len();
    for place in places.iter().filter(|place| **place != DO_NOT_SAMPLE) {
        if *place >= count {
            refuse(
                Rule::Range,
                format!("sample {place} of {} with {count}: Metal asserts that it is inside", id.describe()),
            );
        }
    }
    samples.share()
}

fn counter() -> Vec<Method> {
    methods! { Counter; c"name"(_) -> Id { string(TIMESTAMP).lend() } }
}

fn set() -> Vec<Method> {
    methods! { CounterSet;
        c"name"(_) -> Id { string(TIMESTAMP_SET).lend() }
        c"counters"(_) -> Id { array(vec![Strong::new(&COUNTER, Counter)]).lend() }
    }
}

fn samples_methods() -> Vec<Method> {
    let mut all = methods! { Samples;
        c"device"(this) -> Id { lend(Strong::retained(this.device.id)) }
        c"sampleCount"(this) -> usize { lock(&this.values).len() }
        c"resolveCounterRange:"(this, range: NsRange) -> Id { this.resolve(range) }
    };
    all.extend(labels());
    all
}
