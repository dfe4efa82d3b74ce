//! The dashboard while somebody looks at it: records in, keys in, pictures out.

use std::time::{Duration, Instant};

use crossterm::event::{self, Event};
use ratatui_core::buffer::Buffer;

use super::{
    keys::{self, Action},
    replay::Player,
    screen::{Ended, Screen},
    state::{State, WINDOWS},
    view::{self, Feed, Look, Pane, Scene, Stands, theme::Theme},
};
use crate::{fail::Stopped, interrupt};

/// Between two pictures.
const FRAME: Duration = Duration::from_millis(100);

/// Where records come from.
pub(crate) trait Source {
    /// Brings the state up to date, `seconds` after it was the last time.
    fn advance(&mut self, seconds: f64);

    fn state(&self) -> &State;

    fn feed(&self) -> Feed<'_>;

    /// Stops the picture, or lets it go on.
    fn pause(&mut self);

    /// Goes so many seconds on or back, where that means something.
    fn seek(&mut self, _seconds: f64) {}

    fn change_speed(&mut self, _faster: bool) {}
}

impl Source for Player {
    fn advance(&mut self, seconds: f64) {
        Player::advance(self, seconds);
    }

    fn state(&self) -> &State {
        Player::state(self)
    }

    fn feed(&self) -> Feed<'_> {
        let stands = match (self.has_ended(), self.paused) {
            (true, _) => Stands::Ended,
            (false, true) => Stands::Paused,
            (false, false) => Stands::Moves,
        };
        let (length, bad_lines) = (self.recording().length(), self.recording().bad.count);
        Feed::Replay { at: self.at, length, speed: self.speed, stands, bad_lines }
    }

    fn pause(&mut self) {
        self.paused = !self.paused;
    }

    fn seek(&mut self, seconds: f64) {
        let at = self.at + seconds;
        Player::seek(self, at);
    }

    fn change_speed(&mut self, faster: bool) {
        Player::change_speed(self, faster);
    }
}

/// What is looked at, and how.
pub(crate) struct App<'a> {
    pub(crate) source: &'a mut dyn Source,
    look: Look,
    theme: Theme,
    /// How far the last picture could be scrolled.
    beyond: usize,
}

impl<'a> App<'a> {
    pub(crate) fn new(source: &'a mut dyn Source, look: Look, theme: Theme) -> App<'a> {
        App { source, look, theme, beyond: 0 }
    }

    /// Draws the picture of now.
    pub(crate) fn draw(&mut self, buffer: &mut Buffer) {
        let feed = self.source.feed();
        let scene = Scene { state: self.source.state(), look: &self.look, feed, theme: self.theme };
        self.beyond = view::draw(buffer, &scene);
        self.look.scroll = self.look.scroll.min(self.beyond);
    }

    /// Does what a key asked for; gives whether to go on.
    pub(crate) fn act(&mut self, action: Action) -> bool {
        let look = &mut self.look;
        match action {
            Action::Back if look.help => look.help = false,
            Action::Quit | Action::Back => return false,
            Action::Help => look.help = !look.help,
            Action::Pane(pane) => self.show(pane),
            Action::NextPane => self.show(neighbour(self.look.pane, 1)),
            Action::PreviousPane => self.show(neighbour(self.look.pane, Pane::ALL.len() - 1)),
            Action::Scroll(lines) => look.scroll = look.scroll.saturating_add_signed(lines).min(self.beyond),
            Action::Top => look.scroll = 0,
            Action::Bottom => look.scroll = usize::MAX,
            Action::Pause => self.source.pause(),
            Action::Longer => look.window = (look.window + 1).min(WINDOWS.len() - 1),
            Action::Shorter => look.window = look.window.saturating_sub(1),
            Action::Seek(seconds) => self.source.seek(seconds),
            Action::Faster => self.source.change_speed(true),
            Action::Slower => self.source.change_speed(false),
        }
        true
    }

    fn show(&mut self, pane: Pane) {
        (self.look.pane, self.look.scroll) = (pane, 0);
    }

    /// Shows pictures until a key, Ctrl-C or a signal ends it, or `is_over`.
    pub(crate) fn run(&mut self, is_over: &dyn Fn() -> bool) -> anyhow::Result<()> {
        let _listener = interrupt::Listener::new();
        let mut screen = Screen::open()?;
        let mut last = Instant::now();
        while !is_over() {
            let now = Instant::now();
            self.source.advance(now.duration_since(last).as_secs_f64());
            last = now;
            screen.draw(|buffer| self.draw(buffer))?;
            match screen.ended() {
                Some(Ended::Terminated) => return Err(screen.die()),
                Some(Ended::Interrupted) => return Err(Stopped.into()),
                None => {}
            }
            if event::poll(FRAME)? && !self.take_keys()? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// All keys that wait; gives whether to go on.
    fn take_keys(&mut self) -> anyhow::Result<bool> {
        loop {
            if let Event::Key(key) = event::read()?
                && let Some(action) = keys::action(&key)
                && !self.act(action)
            {
                return Ok(false);
            }
            if !event::poll(Duration::ZERO)? {
                return Ok(true);
            }
        }
    }
}

fn neighbour(pane: Pane, steps: usize) -> Pane {
    let at = Pane::ALL.iter().position(|known| *known == pane).unwrap_or(0);
    Pane::ALL[(at + steps) % Pane::ALL.len()]
}
