//! A recorded run: lines of a file, and where in them the dashboard stands.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use metallic_telemetry::{Event, LineError, Record, Start};

use super::{
    moment::{Digester, Moment, What},
    state::State,
};
use crate::fail::Failure;

/// Of one line: a step of a large model has some thousand operations of 200 bytes each.
const MOST_LINE_BYTES: u64 = 16 << 20;
/// Of a file: what is kept of each takes memory.
const MOST_RECORDS: usize = 20_000_000;
/// Bad lines that are named; the others are only counted.
const MOST_NAMED: usize = 3;
/// Between two processes that follow each other in a file.
const PAUSE_BETWEEN: f64 = 1.0;
const SLOWEST: f64 = 1.0 / 64.0;
pub(crate) const FASTEST: f64 = 1024.0;

/// Lines that are no records.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct BadLines {
    pub(crate) count: u64,
    /// The first ones: which line, and what is wrong with it.
    named: Vec<(u64, String)>,
}

impl BadLines {
    fn add(&mut self, line: u64, reason: String) {
        self.count += 1;
        if self.named.len() < MOST_NAMED {
            self.named.push((line, reason));
        }
    }

    /// In words; `None` where there is none.
    pub(crate) fn told(&self) -> Option<String> {
        let named: Vec<String> =
            self.named.iter().map(|(line, reason)| format!("line {line}: {reason}")).collect();
        let more = match self.count.saturating_sub(named.len() as u64) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let lines = if self.count == 1 { "line is" } else { "lines are" };
        (self.count > 0).then(|| format!("{} {lines} left out: {}{more}", self.count, named.join("; ")))
    }
}

/// All of a file.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    moments: Vec<Moment>,
    /// When each of them is shown: seconds since the first, never less than the one before.
    times: Vec<f64>,
    pub(crate) bad: BadLines,
}

impl Recording {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Recording> {
        let name = path.display().to_string();
        let unreadable = |error: &io::Error| {
            let hint = "give a file that `--telemetry FILE.jsonl` wrote";
            anyhow::Error::from(Failure::new(format!("cannot read `{name}`: {error}"), hint))
        };
        let file = File::open(path).map_err(|error| unreadable(&error))?;
        Recording::read(BufReader::new(file), &name, &|error| unreadable(&error))
    }

    fn read(
        mut lines: impl BufRead,
        name: &str,
        unreadable: &dyn Fn(io::Error) -> anyhow::Error,
    ) -> anyhow::Result<Recording> {
        let (mut recording, mut digester) = (Recording::default(), Digester::default());
        let (mut number, mut bytes) = (0, Vec::new());
        while let Some(length) = next_line(&mut lines, &mut bytes).map_err(unreadable)? {
            number += 1;
            match parse(&bytes, length) {
                Ok(Some(record)) => recording.push(digester.digest(record)),
                Ok(None) => {}
                Err(Unread::Version(found)) => {
                    let hint = "take the version of metallic that wrote it";
                    return Err(Failure::new(format!("`{name}` line {number}: {found}"), hint).into());
                }
                Err(Unread::Malformed(reason)) => recording.bad.add(number, reason),
            }
            if recording.moments.len() > MOST_RECORDS {
                let reason = format!("`{name}` has more than {MOST_RECORDS} records");
                return Err(Failure::new(reason, "give a part of it: `tail -n 1000000`").into());
            }
        }
        if recording.moments.is_empty() {
            let why = recording.bad.told().unwrap_or_else(|| "it is empty".to_owned());
            let hint = "give a file that `--telemetry FILE.jsonl` wrote";
            return Err(Failure::new(format!("`{name}` has no telemetry: {why}"), hint).into());
        }
        Ok(recording)
    }

    fn push(&mut self, moment: Moment) {
        let time = match (self.moments.last(), self.times.last()) {
            (Some(_), Some(shown)) if matches!(&moment.what, What::Event(Event::Start(Start { .. }))) => {
                shown + PAUSE_BETWEEN
            }
            // Threads may tell a little out of order.
            (Some(last), Some(shown)) => shown + (moment.t - last.t).max(0.0),
            _ => 0.0,
        };
        self.times.push(time);
        self.moments.push(moment);
    }

    /// Seconds from the first record to the last.
    pub(crate) fn length(&self) -> f64 {
        self.times.last().copied().unwrap_or(0.0)
    }
}

enum Unread {
    Version(LineError),
    Malformed(String),
}

/// The record of a line of `length` bytes, of which `bytes` has the beginning; `None` for an empty line.
fn parse(bytes: &[u8], length: u64) -> Result<Option<Record>, Unread> {
    if length > MOST_LINE_BYTES {
        return Err(Unread::Malformed(format!("it has {length} bytes, at most {MOST_LINE_BYTES} are read")));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        Unread::Malformed(format!("it is not UTF-8: byte {} is wrong", error.valid_up_to()))
    })?;
    if text.trim().is_empty() {
        return Ok(None);
    }
    Record::parse(text).map(Some).map_err(|error| match error {
        LineError::Version { .. } => Unread::Version(error),
        LineError::Malformed(error) => Unread::Malformed(error.to_string()),
    })
}

/// Reads a line, of which no more than the limit is kept; gives its length, `None` at the end.
pub(crate) fn next_line(lines: &mut impl BufRead, kept: &mut Vec<u8>) -> io::Result<Option<u64>> {
    kept.clear();
    let mut length = lines.by_ref().take(MOST_LINE_BYTES + 1).read_until(b'\n', kept)? as u64;
    if length == 0 {
        return Ok(None);
    }
    let mut rest = Vec::new();
    while length > MOST_LINE_BYTES && kept.last() != Some(&b'\n') && rest.last() != Some(&b'\n') {
        rest.clear();
        match lines.by_ref().take(1 << 20).read_until(b'\n', &mut rest)? {
            0 => break,
            more => length += more as u64,
        }
    }
    Ok(Some(length))
}

/// A recording that is shown.
#[derive(Debug)]
pub(crate) struct Player {
    recording: Recording,
    state: State,
    /// The first moment that is not shown yet.
    next: usize,
    /// Seconds since the first moment.
    pub(crate) at: f64,
    pub(crate) speed: f64,
    pub(crate) paused: bool,
}

impl Player {
    pub(crate) fn new(recording: Recording, speed: f64) -> Player {
        let mut player =
            Player { recording, state: State::default(), next: 0, at: 0.0, speed, paused: false };
        player.show_until(0.0);
        player
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    pub(crate) fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Lets so much time of the person who looks pass.
    pub(crate) fn advance(&mut self, seconds: f64) {
        if !self.paused {
            self.show_until(self.at + seconds * self.speed);
        }
    }

    /// Goes to a time; back as well.
    pub(crate) fn seek(&mut self, at: f64) {
        if at < self.at {
            (self.state, self.next) = (State::default(), 0);
        }
        self.show_until(at.max(0.0));
    }

    /// Doubles the speed, or halves it.
    pub(crate) fn change_speed(&mut self, faster: bool) {
        let factor = if faster { 2.0 } else { 0.5 };
        self.speed = (self.speed * factor).clamp(SLOWEST, FASTEST);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.next >= self.recording.moments.len()
    }

    fn show_until(&mut self, at: f64) {
        self.at = at.min(self.recording.length());
        while let Some(moment) = self.recording.moments.get(self.next)
            && self.recording.times[self.next] <= self.at
        {
            self.state.apply(moment);
            self.next += 1;
        }
        if let Some(last) = self.next.checked_sub(1) {
            let shown = self.at - self.recording.times[last];
            self.state.pass(self.recording.moments[last].t + shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use metallic_telemetry::{End, Step, VERSION};

    use super::*;

    fn line(t: f64, event: Event) -> String {
        Record { v: VERSION, t, event }.to_line() + "\n"
    }

    fn steps(count: u32) -> String {
        let step =
            |i: u32| Step { step: i.into(), begin: i.into(), seconds: 1.0, tokens: 1, ..Step::default() };
        (0..count).map(|i| line(f64::from(i) + 1.0, Event::Step(step(i)))).collect()
    }

    fn read(text: &str) -> anyhow::Result<Recording> {
        Recording::read(text.as_bytes(), "run.jsonl", &Into::into)
    }

    #[test]
    fn bad_lines_are_counted_and_named_and_the_others_are_shown() {
        let text =
            format!("{}nonsense\n\n{{\"v\":1,\"t\":2,\"kind\":\"new\"}}\n{}{{\"v\":1,", steps(1), steps(1));
        let recording = read(&text).unwrap();
        assert_eq!((recording.moments.len(), recording.bad.count), (2, 3));
        let told = recording.bad.told().unwrap();
        assert!(told.starts_with("3 lines are left out: line 2: "), "{told}");
        assert!(told.contains("; line 4: ") && told.contains("; line 6: "), "{told}");
        assert_eq!(read(&steps(2)).unwrap().bad.told(), None);
    }

    #[test]
    fn other_versions_and_other_files_are_refused_by_name() {
        for (text, reason) in [
            (
                steps(1) + "{\"v\":2}\n",
                "`run.jsonl` line 2: telemetry of version 2; this program reads version 1",
            ),
            (String::new(), "`run.jsonl` has no telemetry: it is empty"),
            ("a\nb\nc\nd\n".to_owned(), "`run.jsonl` has no telemetry: 4 lines are left out: line 1: "),
        ] {
            let error = read(&text).unwrap_err().to_string();
            assert!(error.starts_with(reason), "{error}");
        }
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let long = io::repeat(b'x').take(MOST_LINE_BYTES + 5_000_000);
        let text = long.chain(&b"\n"[..]).chain(io::Cursor::new(steps(1)));
        let recording = Recording::read(BufReader::new(text), "run.jsonl", &Into::into).unwrap();
        assert_eq!(recording.moments.len(), 1);
        let told = recording.bad.told().unwrap();
        assert!(told.contains(&format!("line 1: it has {} bytes", MOST_LINE_BYTES + 5_000_001)), "{told}");
    }

    #[test]
    fn a_replay_goes_on_at_its_speed_and_stops_when_paused() {
        let mut player = Player::new(read(&steps(10)).unwrap(), 2.0);
        assert_eq!((player.state().totals.steps, player.at), (1, 0.0));
        player.advance(1.0);
        assert_eq!((player.state().totals.steps, player.at), (3, 2.0));
        player.paused = true;
        player.advance(5.0);
        assert_eq!(player.at, 2.0);
        player.paused = false;
        player.change_speed(true);
        player.advance(0.25);
        assert_eq!((player.state().totals.steps, player.at, player.has_ended()), (4, 3.0, false));
        player.advance(100.0);
        assert_eq!((player.state().totals.steps, player.at, player.has_ended()), (10, 9.0, true));
    }

    #[test]
    fn seeking_gives_the_same_state_from_both_sides() {
        let mut there = Player::new(read(&steps(10)).unwrap(), 1.0);
        let mut back = Player::new(read(&steps(10)).unwrap(), 1.0);
        there.seek(4.5);
        back.seek(9.0);
        back.seek(4.5);
        for player in [&there, &back] {
            assert_eq!((player.state().totals.steps, player.at), (5, 4.5));
            assert_eq!(player.state().now(), 5.5);
        }
        back.seek(-3.0);
        assert_eq!((back.at, back.state().totals.steps), (0.0, 1));
    }

    #[test]
    fn processes_that_follow_each_other_are_shown_one_after_the_other() {
        let start = line(0.25, Event::Start(Start { pid: 2, ..Start::default() }));
        let end = line(0.75, Event::End(End::default()));
        let mut player = Player::new(read(&(steps(3) + &start + &end)).unwrap(), 1.0);
        assert_eq!(player.recording().length(), 3.5);
        player.seek(2.9);
        assert_eq!(player.state().totals.steps, 3);
        player.seek(3.25);
        assert_eq!((player.state().totals.steps, player.state().now()), (0, 0.5));
    }
}
