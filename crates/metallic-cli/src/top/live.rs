//! A run that goes on: records as they come, and a clock that goes on between them.

use std::sync::mpsc::{Receiver, TryRecvError};

use metallic_telemetry::{LineError, Record};

use super::{
    app::Source,
    moment::{Digester, number},
    state::State,
    view::{Feed, Stands},
};

/// What comes from a process.
pub(crate) type Told = Result<Record, LineError>;

/// Where records wait.
#[derive(Debug)]
pub(crate) enum Records {
    /// Those of another process.
    Lines(Receiver<Told>),
    /// Those of this one.
    Own(Receiver<Record>),
}

impl Records {
    fn next(&self) -> Result<Told, TryRecvError> {
        match self {
            Records::Lines(lines) => lines.try_recv(),
            Records::Own(records) => records.try_recv().map(Ok),
        }
    }
}

/// What is known of a process that runs.
#[derive(Debug)]
pub(crate) struct Live {
    records: Records,
    digester: Digester,
    state: State,
    /// What is shown while the picture is stopped.
    frozen: Option<Box<State>>,
    /// The time of the newest record, and the seconds since it came.
    newest: f64,
    since: f64,
    ended: bool,
    bad_lines: u64,
}

impl Live {
    pub(crate) fn new(records: Records) -> Live {
        Live {
            records,
            digester: Digester::default(),
            state: State::default(),
            frozen: None,
            newest: 0.0,
            since: 0.0,
            ended: false,
            bad_lines: 0,
        }
    }

    pub(crate) fn stands(&self) -> Stands {
        match (&self.frozen, self.ended) {
            (Some(_), _) => Stands::Paused,
            (None, true) => Stands::Ended,
            (None, false) => Stands::Moves,
        }
    }

    /// Nothing more comes.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }
}

impl Source for Live {
    fn advance(&mut self, seconds: f64) {
        self.since += seconds;
        loop {
            match self.records.next() {
                Ok(Ok(record)) => {
                    (self.newest, self.since) = (number(record.t), 0.0);
                    self.state.apply(&self.digester.digest(record));
                }
                Ok(Err(_)) => self.bad_lines += 1,
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.ended = true;
                    break;
                }
            }
        }
        if !self.ended {
            self.state.pass(self.newest + self.since);
        }
    }

    fn state(&self) -> &State {
        self.frozen.as_deref().unwrap_or(&self.state)
    }

    fn feed(&self) -> Feed<'_> {
        Feed::Live { stands: self.stands(), bad_lines: self.bad_lines }
    }

    fn pause(&mut self) {
        self.frozen = match self.frozen.take() {
            Some(_) => None,
            None => Some(Box::new(self.state.clone())),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use metallic_telemetry::{Event, Step, VERSION};

    use super::*;

    #[test]
    fn time_goes_on_between_records_and_stops_with_the_process() {
        let (to, from) = channel();
        let mut live = Live::new(Records::Lines(from));
        let step = |t: f64| {
            let step = Step { begin: t - 1.0, seconds: 1.0, tokens: 1, ..Step::default() };
            Ok(Record { v: VERSION, t, event: Event::Step(step) })
        };
        to.send(step(10.0)).unwrap();
        live.advance(0.5);
        assert_eq!((live.state().now(), live.state().totals.steps), (10.0, 1));
        live.advance(1.5);
        assert_eq!((live.state().now(), live.stands()), (11.5, Stands::Moves));
        live.pause();
        to.send(step(12.0)).unwrap();
        to.send(Err(LineError::Version { found: 2 })).unwrap();
        live.advance(0.5);
        assert_eq!((live.state().now(), live.stands()), (11.5, Stands::Paused));
        live.pause();
        drop(to);
        live.advance(9.0);
        assert_eq!((live.state().now(), live.state().totals.steps), (12.0, 2));
        assert_eq!(live.feed(), Feed::Live { stands: Stands::Ended, bad_lines: 1 });
    }
}
