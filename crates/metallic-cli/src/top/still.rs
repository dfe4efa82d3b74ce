//! One picture, as text or as a drawing.

use std::{env, io, io::IsTerminal, str::FromStr};

use ratatui_core::{buffer::Buffer, layout::Rect};

use super::{
    svg,
    view::{self, LEAST, Scene},
};

/// Columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    width: u16,
    height: u16,
}

/// Where nothing says otherwise.
const USUAL: Size = Size { width: 120, height: 40 };
/// More has no use, and takes memory.
const MOST: u16 = 1000;

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let number = |text: &str| text.parse().ok();
        let (least_width, least_height) = LEAST;
        let size = text.split_once(['x', 'X', '×']);
        let size =
            size.and_then(|(width, height)| Some(Size { width: number(width)?, height: number(height)? }));
        size.filter(|Size { width, height }| {
            (least_width..=MOST).contains(width) && (least_height..=MOST).contains(height)
        })
        .ok_or_else(|| {
            format!("it is written 120x40, and goes from {least_width}x{least_height} to {MOST}x{MOST}")
        })
    }
}

impl Size {
    /// That of the terminal, of `COLUMNS` and `LINES`, or a usual one.
    pub(crate) fn of_output() -> Size {
        let number = |name: &str| env::var(name).ok().and_then(|value| value.parse::<u16>().ok());
        let named = number("COLUMNS").zip(number("LINES"));
        let seen = || io::stdout().is_terminal().then(|| crossterm::terminal::size().ok()).flatten();
        let (width, height) = named.or_else(seen).unwrap_or((USUAL.width, USUAL.height));
        Size { width: width.clamp(LEAST.0, MOST), height: height.clamp(LEAST.1, MOST) }
    }
}

/// The picture in cells.
fn painted(scene: &Scene<'_>, size: Size) -> Buffer {
    let mut buffer = Buffer::empty(Rect::new(0, 0, size.width, size.height));
    view::draw(&mut buffer, scene);
    buffer
}

/// The picture as lines without blanks at their ends.
pub(crate) fn text(scene: &Scene<'_>, size: Size) -> String {
    lines(&painted(scene, size))
}

/// The picture as a drawing for web pages.
pub(crate) fn drawing(scene: &Scene<'_>, size: Size) -> String {
    svg::drawing(&painted(scene, size))
}

pub(crate) fn lines(buffer: &Buffer) -> String {
    let mut text = String::new();
    for y in buffer.area.top()..buffer.area.bottom() {
        let mut line = String::new();
        let mut hidden = 0;
        for x in buffer.area.left()..buffer.area.right() {
            let symbol = buffer.cell((x, y)).map_or(" ", |cell| cell.symbol());
            // The cell after a letter of two columns is empty and lies below it.
            if hidden == 0 {
                line.push_str(symbol);
                hidden = view::columns_of(symbol).saturating_sub(1);
            } else {
                hidden -= 1;
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_as_columns_and_rows() {
        assert_eq!("80x24".parse(), Ok(Size { width: 80, height: 24 }));
        for text in ["80", "x", "80x", "39x24", "80x11", "1001x24", "80x99999", "-80x24"] {
            let error = text.parse::<Size>().unwrap_err();
            assert_eq!(error, "it is written 120x40, and goes from 40x12 to 1000x1000", "{text}");
        }
    }

    #[test]
    fn letters_of_two_columns_are_not_torn() {
        assert_eq!(lines(&Buffer::with_lines(["a日b  ", "  "])), "a日b\n\n");
    }
}
