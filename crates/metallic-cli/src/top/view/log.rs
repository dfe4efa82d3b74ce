//! Warnings and faults, the newest first.

use ratatui_core::layout::Rect;

use super::{
    answer::wrapped,
    paint::{Painter, row, skip_left},
    theme::Tone,
    units,
};
use crate::{
    escape,
    top::state::{Entry, Level, State},
};

pub(crate) fn tone(level: Level) -> Tone {
    match level {
        Level::Note => Tone::Plain,
        Level::Warning => Tone::Warning,
        Level::Fault => Tone::Fault,
    }
}

pub(crate) fn framed(p: &mut Painter<'_>, area: Rect, state: &State) {
    let title = format!("{} warnings, {} faults", units::count(state.warnings), units::count(state.faults));
    let inner = p.frame(area, &title);
    entries(p, inner, state, 0);
}

pub(crate) fn pane(p: &mut Painter<'_>, area: Rect, state: &State, scroll: usize) -> usize {
    let older = if state.forgotten > 0 {
        format!(", {} older ones gone", units::count(state.forgotten))
    } else {
        String::new()
    };
    let title = format!(
        "{} warnings, {} faults, newest first{older}",
        units::count(state.warnings),
        units::count(state.faults)
    );
    let inner = if area.height >= 14 { p.frame(area, &title) } else { area };
    entries(p, inner, state, scroll)
}

/// Columns of the time before the text.
const TIME: u16 = 9;

/// Long texts go over several lines; scrolling goes by lines.
fn entries(p: &mut Painter<'_>, area: Rect, state: &State, scroll: usize) -> usize {
    if state.log().len() == 0 {
        p.text(row(area, 0), "nothing degraded, nothing failed", Tone::Dim);
        return 0;
    }
    let room = usize::from(area.width.saturating_sub(TIME));
    // Lines are made as far as they are seen, and one screen on: that is how far one can scroll at once.
    let needed = scroll.saturating_add(2 * usize::from(area.height)).max(1);
    let lines: Vec<_> = state.log().flat_map(|entry| lines(entry, state, room)).take(needed).collect();
    let beyond = lines.len().saturating_sub(area.height.into());
    for (index, (time, text, tone)) in
        lines.into_iter().skip(scroll.min(beyond)).take(area.height.into()).enumerate()
    {
        let line = row(area, index as u16);
        p.text(line, &time, Tone::Dim);
        p.text(skip_left(line, TIME), &text, tone);
    }
    beyond
}

fn lines(entry: &Entry, state: &State, room: usize) -> Vec<(String, String, Tone)> {
    let word = match entry.level {
        Level::Note => "note",
        Level::Warning => "warning",
        Level::Fault => "FAULT",
    };
    let times = if entry.times > 1 { format!(" (×{})", units::count(entry.times)) } else { String::new() };
    let text = format!("{word} {}: {}{times}", entry.about, entry.text);
    let time = units::clock(state.age_at(entry.t));
    let with_time =
        |(index, text)| (if index == 0 { time.clone() } else { String::new() }, text, tone(entry.level));
    wrapped(&escape::line(&text), room).into_iter().enumerate().map(with_time).collect()
}
