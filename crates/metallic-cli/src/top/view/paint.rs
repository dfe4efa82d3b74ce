//! Marks on the screen: text, frames, bars, columns. All text of records goes through `Painter::text`, which spells out what would
//! steer a terminal.

use ratatui_core::{buffer::Buffer, layout::Rect, style::Style, text::Span};

use super::theme::{Theme, Tone};
use crate::escape;

/// Draws into a buffer, never outside of the area that is given.
pub(crate) struct Painter<'a> {
    pub(crate) buffer: &'a mut Buffer,
    pub(crate) theme: Theme,
}

impl Painter<'_> {
    /// Text in the first row of `area`, cut where it does not fit; gives the columns it took.
    pub(crate) fn text(&mut self, area: Rect, text: &str, tone: Tone) -> u16 {
        let area = area.intersection(self.buffer.area);
        if area.is_empty() {
            return 0;
        }
        let safe = escape::line(text);
        let spelled = self.theme.spelled(&safe);
        let style = self.theme.style(tone);
        // What was there before leaves no colour.
        let columns = width(&spelled).min(area.width);
        self.buffer.set_style(Rect { width: columns, height: 1, ..area }, Style::reset());
        let (end, _) = self.buffer.set_stringn(area.x, area.y, &spelled, area.width.into(), style);
        if width(&spelled) > area.width {
            let more = self.theme.spelled("…");
            self.buffer.set_stringn(area.right() - 1, area.y, &more, 1, style);
        }
        end - area.x
    }

    /// Text that ends at the right end of the first row.
    pub(crate) fn text_right(&mut self, area: Rect, text: &str, tone: Tone) -> u16 {
        let taken = width(&self.theme.spelled(&escape::line(text))).min(area.width);
        self.text(Rect { x: area.right() - taken, width: taken, ..area }, text, tone)
    }

    /// Pieces of text, one after the other; gives the columns they took.
    pub(crate) fn pieces(&mut self, area: Rect, pieces: &[(&str, Tone)]) -> u16 {
        let mut taken = 0;
        for (text, tone) in pieces {
            taken += self.text(skip_left(area, taken), text, *tone);
        }
        taken
    }

    /// A frame with a title; gives what is inside.
    pub(crate) fn frame(&mut self, area: Rect, title: &str) -> Rect {
        let area = area.intersection(self.buffer.area);
        if area.width < 2 || area.height < 2 {
            return Rect { width: 0, height: 0, ..area };
        }
        let [upper_left, upper_right, lower_right, lower_left, horizontal, vertical] = self.theme.borders();
        let (right, bottom) = (area.right() - 1, area.bottom() - 1);
        for x in area.x..=right {
            self.cell(x, area.y, horizontal, Tone::Dim);
            self.cell(x, bottom, horizontal, Tone::Dim);
        }
        for y in area.y..=bottom {
            self.cell(area.x, y, vertical, Tone::Dim);
            self.cell(right, y, vertical, Tone::Dim);
        }
        self.cell(area.x, area.y, upper_left, Tone::Dim);
        self.cell(right, area.y, upper_right, Tone::Dim);
        self.cell(right, bottom, lower_right, Tone::Dim);
        self.cell(area.x, bottom, lower_left, Tone::Dim);
        let top = Rect { x: area.x + 1, width: area.width - 2, height: 1, ..area };
        self.text(top, &format!(" {title} "), Tone::Strong);
        Rect { x: area.x + 1, y: area.y + 1, width: area.width - 2, height: area.height - 2 }
    }

    /// A bar over the first row of `area`, filled to a share from 0 to 1.
    pub(crate) fn bar(&mut self, area: Rect, share: f64, tone: Tone) {
        let parts = self.theme.parts();
        let filled = scaled(share, usize::from(area.width) * parts.len());
        for column in 0..area.width {
            let (x, before) = (area.x + column, usize::from(column) * parts.len());
            match filled.saturating_sub(before).min(parts.len()) {
                0 => self.cell(x, area.y, self.theme.rest(), Tone::Dim),
                part => self.cell(x, area.y, parts[part - 1], tone),
            }
        }
    }

    /// Columns as high as the values are of `most`; as many of the last values as fit. What is more than nothing can be seen.
    pub(crate) fn columns(&mut self, area: Rect, values: &[f64], most: f64, tone: Tone) {
        let levels = self.theme.levels();
        let shown = &values[values.len().saturating_sub(area.width.into())..];
        let first = area.right() - shown.len() as u16;
        for (x, value) in (first..).zip(shown) {
            let full = usize::from(area.height) * levels.len();
            let height = scaled(value / most, full).max(usize::from(*value > 0.0));
            for row in 0..area.height {
                let below = usize::from(row) * levels.len();
                let part = height.saturating_sub(below).min(levels.len());
                if part > 0 {
                    self.cell(x, area.bottom() - 1 - row, levels[part - 1], tone);
                }
            }
        }
    }

    fn cell(&mut self, x: u16, y: u16, symbol: &str, tone: Tone) {
        let style = self.theme.style(tone);
        if let Some(cell) = self.buffer.cell_mut((x, y)) {
            cell.set_symbol(symbol).set_style(style);
        }
    }

    /// Empties an area, for what lies above others.
    pub(crate) fn clear(&mut self, area: Rect) {
        for position in area.intersection(self.buffer.area).positions() {
            if let Some(cell) = self.buffer.cell_mut(position) {
                cell.reset();
            }
        }
    }
}

/// A share of a number of steps.
fn scaled(share: f64, steps: usize) -> usize {
    // A share that is none is 0: the cast holds it.
    ((share.clamp(0.0, 1.0) * steps as f64).round() as usize).min(steps)
}

/// Columns that a text takes.
pub(crate) fn width(text: &str) -> u16 {
    u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX)
}

/// One row of an area; empty where it has fewer.
pub(crate) fn row(area: Rect, index: u16) -> Rect {
    let height = u16::from(index < area.height);
    Rect { y: area.y + index.min(area.height), height, ..area }
}

/// The area without its first columns.
pub(crate) fn skip_left(area: Rect, columns: u16) -> Rect {
    let columns = columns.min(area.width);
    Rect { x: area.x + columns, width: area.width - columns, ..area }
}

/// The first rows, and the rest.
pub(crate) fn split_top(area: Rect, rows: u16) -> (Rect, Rect) {
    let rows = rows.min(area.height);
    (Rect { height: rows, ..area }, Rect { y: area.y + rows, height: area.height - rows, ..area })
}

/// The first columns, and the rest.
pub(crate) fn split_left(area: Rect, columns: u16) -> (Rect, Rect) {
    let columns = columns.min(area.width);
    (Rect { width: columns, ..area }, skip_left(area, columns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn painted(
        width: u16,
        height: u16,
        unicode: bool,
        paint: impl FnOnce(&mut Painter<'_>, Rect),
    ) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        paint(&mut Painter { buffer: &mut buffer, theme: Theme { colour: false, unicode } }, area);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>();
        (0..height).map(line).collect()
    }

    #[test]
    fn text_is_cut_with_a_mark_and_cannot_steer() {
        assert_eq!(painted(6, 1, true, |p, area| _ = p.text(area, "abcdefg", Tone::Plain)), ["abcde…"]);
        assert_eq!(painted(6, 1, false, |p, area| _ = p.text(area, "abcdefg", Tone::Plain)), ["abcde~"]);
        let evil = painted(20, 1, true, |p, area| _ = p.text(area, "a\x1b[2J\n", Tone::Plain));
        assert_eq!(evil, ["a\\u{1b}[2J\\n        "]);
        assert_eq!(painted(6, 1, true, |p, area| _ = p.text_right(area, "abc", Tone::Plain)), ["   abc"]);
        // A letter of two columns is not cut in half.
        assert_eq!(
            painted(4, 1, true, |p, area| _ = p.text(area, "a日本", Tone::Plain))[0].chars().next(),
            Some('a')
        );
    }

    #[test]
    fn bars_and_columns_are_as_long_as_their_shares() {
        let bars = |unicode| {
            painted(8, 3, unicode, |p, area| {
                for (index, share) in [0.5, 9.0, f64::NAN].into_iter().enumerate() {
                    p.bar(row(area, index as u16), share, Tone::Plain);
                }
            })
        };
        assert_eq!(bars(true), ["████░░░░", "████████", "░░░░░░░░"]);
        assert_eq!(bars(false), ["####....", "########", "........"]);
        let columns =
            painted(4, 2, true, |p, area| p.columns(area, &[9.0, 0.0, 0.01, 8.0, 16.0], 16.0, Tone::Plain));
        assert_eq!(columns, ["   █", " ▁██"]);
    }

    #[test]
    fn nothing_is_drawn_outside_of_the_buffer() {
        painted(5, 3, true, |p, _| {
            let far = Rect::new(3, 2, 40, 40);
            p.text(far, "text", Tone::Plain);
            p.frame(far, "title");
            p.bar(far, 0.5, Tone::Plain);
            p.columns(far, &[1.0; 40], 1.0, Tone::Plain);
            p.clear(far);
        });
        for (area, index) in [(Rect::new(0, 0, 5, 0), 0), (Rect::new(0, 0, 5, 2), 2)] {
            assert!(row(area, index).is_empty());
        }
    }
}
