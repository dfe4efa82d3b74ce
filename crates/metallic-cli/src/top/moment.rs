//! A record as the dashboard keeps it: the times of operations, which are most of a file, added up by operation and by layer.

use std::{collections::BTreeMap, sync::Arc};

use metallic_telemetry::{Event, Ops, Record};

/// What happened when.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    /// Seconds on the clock of records.
    pub(crate) t: f64,
    pub(crate) what: What,
}

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum What {
    Ops(OpsDigest),
    /// Any other event; never `Event::Ops`.
    Event(Event),
}

/// What operations took together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cost {
    pub(crate) seconds: f64,
    pub(crate) bytes: u64,
    pub(crate) calls: u64,
}

impl Cost {
    pub(crate) fn add(&mut self, other: &Cost) {
        self.seconds += other.seconds;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.calls = self.calls.saturating_add(other.calls);
    }

    /// Bytes a second.
    pub(crate) fn bandwidth(&self) -> Option<f64> {
        (self.seconds > 0.0 && self.bytes > 0).then(|| self.bytes as f64 / self.seconds)
    }
}

/// The operations of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpsDigest {
    pub(crate) by_op: Vec<(Arc<str>, Cost)>,
    /// Those outside of layers are under `None`.
    pub(crate) by_layer: Vec<(Option<u32>, Cost)>,
}

/// Makes moments of records; names that come again are held once.
#[derive(Debug, Default)]
pub(crate) struct Digester {
    names: BTreeMap<String, Arc<str>>,
}

/// Of names that are held once: a file of strangers may have any number.
const MOST_NAMES: usize = 4096;

impl Digester {
    pub(crate) fn digest(&mut self, record: Record) -> Moment {
        let what = match record.event {
            Event::Ops(ops) => What::Ops(self.ops(&ops)),
            event => What::Event(event),
        };
        Moment { t: number(record.t), what }
    }

    fn ops(&mut self, ops: &Ops) -> OpsDigest {
        let (mut by_op, mut by_layer) = (BTreeMap::<Arc<str>, Cost>::new(), BTreeMap::new());
        for op in &ops.ops {
            let cost = Cost { seconds: number(op.seconds), bytes: op.bytes, calls: 1 };
            let name = if op.part.is_empty() { op.op.to_string() } else { format!("{} {}", op.op, op.part) };
            by_op.entry(self.name(name)).or_default().add(&cost);
            by_layer.entry(op.layer).or_insert_with(Cost::default).add(&cost);
        }
        OpsDigest { by_op: by_op.into_iter().collect(), by_layer: by_layer.into_iter().collect() }
    }

    fn name(&mut self, name: String) -> Arc<str> {
        if let Some(known) = self.names.get(&name) {
            return known.clone();
        }
        let shared: Arc<str> = name.as_str().into();
        if self.names.len() < MOST_NAMES {
            self.names.insert(name, shared.clone());
        }
        shared
    }
}

/// A time or an amount that can be added up: what a file says may be anything.
pub(crate) fn number(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use metallic_telemetry::OpTime;

    use super::*;

    #[test]
    fn operations_are_added_up_by_name_and_by_layer() {
        let op = |op: &'static str, part: &'static str, layer, seconds| OpTime {
            op: op.into(),
            part: part.into(),
            layer,
            seconds,
            bytes: 10,
            ..OpTime::default()
        };
        let ops = vec![
            op("linear", "ffn_up", Some(0), 1.0),
            op("linear", "ffn_up", Some(1), 2.0),
            op("rms_norm", "", None, -3.0),
        ];
        let record = Record { v: 1, t: 5.0, event: Event::Ops(Ops { ops, ..Ops::default() }) };
        let Moment { t, what: What::Ops(digest) } = Digester::default().digest(record) else {
            panic!("no operations")
        };
        assert_eq!(t, 5.0);
        let by_op: Vec<_> =
            digest.by_op.iter().map(|(name, cost)| (&**name, cost.seconds, cost.calls)).collect();
        assert_eq!(by_op, [("linear ffn_up", 3.0, 2), ("rms_norm", 0.0, 1)]);
        let by_layer: Vec<_> = digest.by_layer.iter().map(|(layer, cost)| (*layer, cost.bytes)).collect();
        assert_eq!(by_layer, [(None, 10), (Some(0), 10), (Some(1), 10)]);
        assert_eq!(digest.by_op[0].1.bandwidth(), Some(20.0 / 3.0));
    }
}
