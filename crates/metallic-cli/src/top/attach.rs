//! Another process of this user that runs a model.

use std::{
    io::{self, BufReader},
    os::unix::net::UnixStream,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use metallic::telemetry::{Process, processes};
use metallic_telemetry::{Event, Record};

use super::{live::Told, replay};
use crate::fail::Failure;

/// How long a process may take to say what it is.
const PATIENCE: Duration = Duration::from_secs(5);
/// Records that wait for the picture; a process that tells more loses them, and says how many.
const WAITING: usize = 4096;

/// Attaches to the process of this number, or to the only one there is.
pub(crate) fn attach(pid: Option<u32>) -> anyhow::Result<Receiver<Told>> {
    let found = processes().map_err(|error| {
        let hint = "METALLIC_RUNTIME_DIR names the folder of sockets; it must be the same for both";
        Failure::new(format!("cannot look for processes: {error}"), hint)
    })?;
    let process = choose(found, pid, |process| open(process).ok().map(|(_, first)| first))?;
    let (lines, first) = open(&process)?;
    let (to, from) = sync_channel(WAITING);
    // There is room for one.
    let _ = to.send(Ok(first));
    thread::Builder::new().name("metallic-top".to_owned()).spawn(move || pass_on(lines, &to))?;
    Ok(from)
}

fn choose(
    mut found: Vec<Process>,
    pid: Option<u32>,
    about: impl Fn(&Process) -> Option<Record>,
) -> anyhow::Result<Process> {
    let described = |process: &Process| match about(process).map(|record| record.event) {
        Some(Event::Start(start)) => format!("{} ({})", process.pid, start.program),
        _ => process.pid.to_string(),
    };
    let all = |found: &[Process]| found.iter().map(described).collect::<Vec<_>>().join(", ");
    if let Some(pid) = pid {
        if let Some(at) = found.iter().position(|process| process.pid == pid) {
            return Ok(found.remove(at));
        }
        let known = all(&found);
        let hint =
            if known.is_empty() { NONE.to_owned() } else { format!("these can be looked at: {known}") };
        return Err(Failure::new(format!("process {pid} is no metallic that can be looked at"), hint).into());
    }
    match found.len() {
        0 => Err(Failure::new("no metallic runs here that could be looked at", NONE).into()),
        1 => Ok(found.remove(0)),
        count => {
            let hint = format!("name one, such as `metallic top {}`", found[0].pid);
            Err(Failure::new(format!("{count} processes can be looked at: {}", all(&found)), hint).into())
        }
    }
}

const NONE: &str =
    "start one in another terminal, such as `metallic chat`; `--replay FILE.jsonl` shows a recorded run";

/// Connects, and reads what the process says of itself first.
fn open(process: &Process) -> anyhow::Result<(BufReader<UnixStream>, Record)> {
    let failed = |what: String| Failure::new(what, "it may have ended just now; try again");
    let cannot = |error: io::Error| failed(format!("cannot attach to process {}: {error}", process.pid));
    let stream = process.attach().map_err(cannot)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(cannot)?;
    let mut lines = BufReader::new(stream);
    let mut line = Vec::new();
    if replay::next_line(&mut lines, &mut line).map_err(cannot)?.is_none() {
        return Err(failed(format!("process {} ended before it said anything", process.pid)).into());
    }
    let first = Record::parse(&String::from_utf8_lossy(&line)).map_err(|error| {
        let hint = "take the version of metallic that runs there";
        Failure::new(format!("process {}: {error}", process.pid), hint)
    })?;
    Ok((lines, first))
}

/// Until the process ends, or nobody looks any more.
fn pass_on(mut lines: BufReader<UnixStream>, to: &SyncSender<Told>) {
    // Time without an event is no failure.
    let _ = lines.get_ref().set_read_timeout(None);
    let mut line = Vec::new();
    while let Ok(Some(_)) = replay::next_line(&mut lines, &mut line) {
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() && to.send(Record::parse(&text)).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use metallic_telemetry::{Start, VERSION};

    use super::*;

    fn process(pid: u32) -> Process {
        Process { pid, socket: format!("{pid}.sock").into() }
    }

    fn about(process: &Process) -> Option<Record> {
        let start = Start { program: "metallic run".into(), pid: process.pid, ..Start::default() };
        (process.pid != 3).then_some(Record { v: VERSION, t: 0.0, event: Event::Start(start) })
    }

    #[test]
    fn the_only_process_is_taken_and_several_are_listed() {
        assert_eq!(choose(vec![process(7)], None, about).unwrap().pid, 7);
        assert_eq!(choose(vec![process(2), process(7)], Some(7), about).unwrap().pid, 7);
        for (found, pid, reason) in [
            (vec![], None, "no metallic runs here that could be looked at"),
            (vec![process(2), process(3)], None, "2 processes can be looked at: 2 (metallic run), 3"),
            (vec![process(2)], Some(9), "process 9 is no metallic that can be looked at"),
        ] {
            assert_eq!(choose(found, pid, about).unwrap_err().to_string(), reason);
        }
    }
}
