//! Records as a timeline that Perfetto and Chrome show: steps, sampling, compilation and loading of the host, operations of the device by
//! layer, and counters.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use metallic_telemetry::{Event, Ops, Phase, Record, Step};
use serde_json::{Value, json};

use super::writer::Sink;

/// Writes an array of events. Its end may be missing, which both programs allow: a process that is killed leaves a timeline too.
pub(super) struct Trace<W: Write> {
    out: BufWriter<W>,
    is_empty: bool,
    lanes: Lanes,
    /// When the last step was told.
    last_step: i64,
}

/// Rows of the timeline: what overlaps stands in rows of its own.
#[derive(Debug, Default)]
struct Lanes {
    /// What a row shows, and where its last slice ends.
    rows: Vec<(Track, i64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Track {
    Load,
    Compile,
    Steps,
    Sampling,
    Device,
}

impl Track {
    fn name(self) -> &'static str {
        match self {
            Track::Load => "host: load",
            Track::Compile => "host: compile",
            Track::Steps => "host: steps",
            Track::Sampling => "host: sampling",
            Track::Device => "device: operations",
        }
    }
}

impl Lanes {
    /// The number of a row that is free from `begin` on, and whether it is a new one.
    fn take(&mut self, track: Track, begin: i64, end: i64) -> (usize, bool) {
        let free = |(known, until): &(Track, i64)| *known == track && *until <= begin;
        let found = self.rows.iter().position(free);
        let row = found.unwrap_or(self.rows.len());
        match self.rows.get_mut(row) {
            Some((_, until)) => *until = end,
            None => self.rows.push((track, end)),
        }
        (row + 1, found.is_none())
    }

    /// Where the slices of a track end.
    fn end(&self, track: Track) -> i64 {
        self.rows.iter().filter(|(known, _)| *known == track).map(|(_, until)| *until).max().unwrap_or(0)
    }
}

/// A stretch of time on a row.
struct Slice {
    name: String,
    begin: i64,
    end: i64,
    args: Value,
}

/// Seconds as nanoseconds: sums of these are exact, so that slices nest.
fn nanos(seconds: f64) -> i64 {
    (seconds * 1e9).round() as i64
}

/// Nanoseconds as microseconds, which timelines are in.
fn micros(nanos: i64) -> f64 {
    nanos as f64 / 1e3
}

impl Trace<File> {
    /// In a new file.
    pub(super) fn create(path: &Path) -> io::Result<Trace<File>> {
        Ok(Trace::to(File::create(path)?))
    }
}

impl<W: Write> Trace<W> {
    fn to(out: W) -> Trace<W> {
        let out = BufWriter::with_capacity(1 << 16, out);
        Trace { out, is_empty: true, lanes: Lanes::default(), last_step: 0 }
    }

    fn put(&mut self, event: &Value) -> io::Result<()> {
        let before = if self.is_empty { "[\n" } else { ",\n" };
        self.is_empty = false;
        write!(self.out, "{before}{event}")
    }

    /// A row's slice, with the row's name where it is a new one.
    fn slice(&mut self, track: Track, slice: &Slice) -> io::Result<usize> {
        let (row, is_new) = self.lanes.take(track, slice.begin, slice.end);
        if is_new {
            self.put(&named("thread_name", row, track.name()))?;
            self.put(&json!({
                "name": "thread_sort_index", "ph": "M", "pid": PID, "tid": row, "args": { "sort_index": track as u32 },
            }))?;
        }
        self.put(&complete(row, slice))?;
        Ok(row)
    }

    fn counter(&mut self, name: &str, at: f64, args: &Value) -> io::Result<()> {
        self.put(&json!({ "name": name, "ph": "C", "ts": micros(nanos(at)), "pid": PID, "args": args }))
    }

    fn instant(&mut self, name: &str, at: f64, args: &Value) -> io::Result<()> {
        let ts = micros(nanos(at));
        self.put(&json!({ "name": name, "ph": "i", "s": "p", "ts": ts, "pid": PID, "tid": 0, "args": args }))
    }

    /// A slice that ends when it is told.
    fn ended(&mut self, track: Track, name: String, record: (f64, f64), args: Value) -> io::Result<()> {
        let (at, seconds) = record;
        let end = nanos(at);
        self.slice(track, &Slice { name, begin: (end - nanos(seconds)).max(0), end, args }).map(drop)
    }

    fn step(&mut self, step: &Step, at: f64) -> io::Result<()> {
        let begin = nanos(step.begin);
        let prompt = step.tokens - step.decode_tokens.min(step.tokens);
        let name = match (step.decode_tokens, prompt) {
            (decode, 0) => format!("decode {decode}"),
            (0, prompt) => format!("prompt {prompt}"),
            (decode, prompt) => format!("decode {decode}, prompt {prompt}"),
        };
        let args = json!({
            "step": step.step, "sequences": step.sequences, "planned": step.planned,
            "host us": step.host_seconds * 1e6, "device us": step.device_seconds * 1e6,
            "overlap us": step.overlap_seconds * 1e6,
            "bytes read": step.bytes_read, "dispatches": step.dispatches,
        });
        self.slice(Track::Steps, &Slice { name, begin, end: begin + nanos(step.seconds), args })?;
        if step.sample_seconds > 0.0 {
            let args = json!({ "step": step.step });
            self.ended(Track::Sampling, "sample".to_owned(), (at, step.sample_seconds), args)?;
        }
        // Steps may overlap, and nothing may have run before this one.
        let since = nanos(at) - self.last_step.max(begin);
        self.last_step = nanos(at);
        let rate = step.tokens as f64 / (since.max(1) as f64 / 1e9);
        self.counter("tokens/s", at, &json!({ "tokens/s": rate }))
    }

    /// Operations one after another, those of a layer within a slice of it. The device may have been busy when they were handed over.
    fn ops(&mut self, ops: &Ops) -> io::Result<()> {
        let begin = nanos(ops.begin).max(self.lanes.end(Track::Device));
        let (mut at, mut slices) = (begin, Vec::new());
        for part in ops.ops.chunk_by(|a, b| a.layer == b.layer) {
            let first = at;
            let mut inside = Vec::with_capacity(part.len());
            for op in part {
                let end = at + nanos(op.seconds);
                let name =
                    if op.part.is_empty() { op.op.to_string() } else { format!("{} {}", op.op, op.part) };
                let args =
                    json!({ "kernel": op.kernel, "bytes": op.bytes, "multiply-adds": op.multiply_adds });
                inside.push(Slice { name, begin: at, end, args });
                at = end;
            }
            if let Some(layer) = part[0].layer {
                slices.push(Slice { name: format!("layer {layer}"), begin: first, end: at, args: json!({}) });
            }
            slices.append(&mut inside);
        }
        let whole = Slice {
            name: format!("step {}", ops.step),
            begin,
            end: at,
            args: json!({ "tokens": ops.tokens }),
        };
        let row = self.slice(Track::Device, &whole)?;
        slices.iter().try_for_each(|slice| self.put(&complete(row, slice)))
    }
}

/// One process has one timeline.
const PID: u32 = 1;

fn complete(row: usize, Slice { name, begin, end, args }: &Slice) -> Value {
    let (ts, dur) = (micros(*begin), micros(end - begin));
    json!({ "name": name, "ph": "X", "ts": ts, "dur": dur, "pid": PID, "tid": row, "args": args })
}

fn named(what: &str, row: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": PID, "tid": row, "args": { "name": name } })
}

impl<W: Write + Send> Sink for Trace<W> {
    fn write(&mut self, record: &Record) -> io::Result<()> {
        let at = record.t;
        match &record.event {
            Event::Start(start) => self.put(&named("process_name", 0, &start.program)),
            Event::Load(load) => {
                let args =
                    json!({ "device": load.device_name, "weights": load.weights, "family": load.family });
                self.ended(Track::Load, format!("load {}", load.model), (at, load.seconds), args)
            }
            Event::Compile(compile) => {
                let args = json!({ "what": compile.what, "from": compile.source, "error": compile.error });
                self.ended(Track::Compile, compile.name.clone(), (at, compile.seconds), args)
            }
            Event::Step(step) => self.step(step, at),
            Event::Ops(ops) => self.ops(ops),
            Event::Request(request) => {
                let ph = match request.phase {
                    Phase::Queued => "b",
                    Phase::Started | Phase::FirstToken => "n",
                    Phase::Ended => "e",
                };
                let name = match request.phase {
                    Phase::Started => "started".to_owned(),
                    Phase::FirstToken => "first token".to_owned(),
                    Phase::Queued | Phase::Ended => format!("request {}", request.id),
                };
                let (ts, args) = (micros(nanos(at)), json!(request));
                let id = request.id;
                self.put(&json!({
                    "name": name, "cat": "request", "ph": ph, "ts": ts, "id": id, "pid": PID, "tid": 0, "args": args,
                }))
            }
            Event::Queue(queue) => {
                let (held, cached) = (queue.held_blocks, queue.cached_blocks);
                self.counter("kv blocks", at, &json!({ "held": held, "cached": cached }))?;
                let (running, waiting) = (queue.running, queue.waiting);
                self.counter("queue", at, &json!({ "running": running, "waiting": waiting }))
            }
            Event::Memory(memory) => {
                let owners = memory.owners.iter().map(|owned| (owned.owner.to_string(), json!(owned.bytes)));
                self.counter("memory", at, &Value::Object(owners.collect()))
            }
            Event::Preemption(told) => self.instant("preemption", at, &json!(told)),
            Event::Fault(told) => self.instant("fault", at, &json!(told)),
            Event::Warning(told) => self.instant("warning", at, &json!(told)),
            Event::Lost(told) => self.instant("lost", at, &json!(told)),
            // Figures that say nothing of when.
            _ => Ok(()),
        }
    }

    fn end(&mut self, _: &Record) -> io::Result<()> {
        let last = if self.is_empty { "[]\n" } else { "\n]\n" };
        self.out.write_all(last.as_bytes())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use metallic_telemetry::{OpTime, Step};

    use super::*;

    #[test]
    fn what_overlaps_stands_in_rows_of_its_own() {
        let mut lanes = Lanes::default();
        let rows = [(0, 10), (5, 15), (10, 20), (12, 30), (20, 25)];
        let taken = rows.map(|(begin, end)| lanes.take(Track::Steps, begin, end));
        assert_eq!(taken, [(1, true), (2, true), (1, false), (3, true), (1, false)]);
        assert_eq!(lanes.take(Track::Device, 0, 40), (4, true));
        assert_eq!((lanes.end(Track::Steps), lanes.end(Track::Load)), (30, 0));
    }

    #[test]
    fn a_timeline_without_an_end_is_whole_but_for_its_bracket() {
        let op =
            |op: &'static str, layer| OpTime { op: op.into(), layer, seconds: 1e-6, ..OpTime::default() };
        let ops = vec![op("embed", None), op("qkv", Some(0)), op("attention", Some(0)), op("qkv", Some(1))];
        let mut trace = Trace::to(Vec::new());
        let step = Step { tokens: 1, decode_tokens: 1, seconds: 5e-6, begin: 1.0, ..Step::default() };
        for event in [Event::Step(step), Event::Ops(Ops { step: 1, begin: 1.0, tokens: 1, ops })] {
            trace.write(&Record { v: 1, t: 1.000_005, event }).unwrap();
        }
        let text = String::from_utf8(trace.out.into_inner().unwrap()).unwrap();
        let events: Vec<Value> = serde_json::from_str(&format!("{text}]")).unwrap();
        let slices = events.iter().filter(|event| event["ph"] == "X");
        let found: Vec<_> = slices
            .map(|s| {
                (s["name"].as_str().unwrap(), s["ts"].as_f64().unwrap() - 1e6, s["dur"].as_f64().unwrap())
            })
            .collect();
        let expected = [
            ("decode 1", 0.0, 5.0),
            ("step 1", 0.0, 4.0),
            ("embed", 0.0, 1.0),
            ("layer 0", 1.0, 2.0),
            ("qkv", 1.0, 1.0),
            ("attention", 2.0, 1.0),
            ("layer 1", 3.0, 1.0),
            ("qkv", 3.0, 1.0),
        ];
        assert_eq!(found, expected);
    }
}
