//! Which keys there are.

use ratatui_core::layout::Rect;

use super::{
    Feed,
    paint::{Painter, row, skip_left},
    theme::Tone,
};

const KEYS: [(&str, &str); 7] = [
    ("q, Esc, Ctrl-C", "quit"),
    ("Tab, 1-5", "another pane"),
    ("up/down, j/k", "scroll"),
    ("PgUp/PgDn, g/G", "scroll far"),
    ("p", "pause"),
    ("+ -", "longer, shorter window"),
    ("?", "this help"),
];

const REPLAY: [(&str, &str); 3] = [("space", "pause"), ("left/right", "seek 5 s"), ("[ ]", "slower, faster")];

/// Lies above everything else.
pub(crate) fn draw(p: &mut Painter<'_>, area: Rect, feed: &Feed<'_>) {
    let replay: &[_] = if matches!(feed, Feed::Replay { .. }) { &REPLAY } else { &[] };
    let lines: Vec<_> = KEYS.iter().chain(replay).collect();
    let (width, height) = (40.min(area.width), (lines.len() as u16 + 2).min(area.height));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    p.clear(place);
    let inner = p.frame(place, "keys");
    for (index, (keys, what)) in lines.into_iter().enumerate() {
        let line = row(inner, index as u16);
        p.text(line, keys, Tone::Strong);
        p.text(skip_left(line, 16), what, Tone::Plain);
    }
}
