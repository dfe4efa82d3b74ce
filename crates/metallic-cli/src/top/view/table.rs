//! Tables that give up columns where there is no room, and are scrolled where there are too many rows.

use ratatui_core::layout::Rect;

use super::{
    paint::{Painter, row, skip_left},
    theme::Tone,
};

/// A column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) width: u16,
    pub(crate) side: Side,
    /// The highest ones are left out first; those with 0 stay.
    pub(crate) rank: u8,
}

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
    /// Left, and it takes the columns that are left over. One of them in a table.
    Rest,
}

pub(crate) const fn left(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, side: Side::Left, rank }
}

pub(crate) const fn right(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, side: Side::Right, rank }
}

pub(crate) const fn rest(title: &'static str, width: u16, rank: u8) -> Column {
    Column { title, width, side: Side::Rest, rank }
}

/// What stands in a column.
#[derive(Clone, Debug)]
pub(crate) enum Cell {
    Text(String, Tone),
    /// A bar of this share.
    Bar(f64, Tone),
}

/// Text as usual.
pub(crate) fn text(text: impl Into<String>) -> Cell {
    Cell::Text(text.into(), Tone::Plain)
}

/// A number, or a dash.
pub(crate) fn maybe<T>(value: Option<T>, spell: impl Fn(T) -> String) -> Cell {
    value.map_or_else(|| Cell::Text("-".to_owned(), Tone::Dim), |value| text(spell(value)))
}

/// Draws a table with its titles; gives how many rows there are beyond those that fit.
pub(crate) fn draw(
    p: &mut Painter<'_>,
    area: Rect,
    columns: &[Column],
    rows: &[Vec<Cell>],
    scroll: usize,
) -> usize {
    let places = places(columns, area.width);
    for (column, place) in columns.iter().zip(&places) {
        if let Some((x, width)) = *place {
            let at = Rect { width, ..skip_left(row(area, 0), x) };
            align(p, at, column.side, column.title, Tone::Dim);
        }
    }
    let room = usize::from(area.height.saturating_sub(1));
    let beyond = rows.len().saturating_sub(room);
    let scroll = scroll.min(beyond);
    for (index, cells) in rows.iter().skip(scroll).take(room).enumerate() {
        let line = row(area, index as u16 + 1);
        for ((column, place), cell) in columns.iter().zip(&places).zip(cells) {
            let Some((x, width)) = *place else { continue };
            let at = Rect { width, ..skip_left(line, x) };
            match cell {
                Cell::Text(text, tone) => align(p, at, column.side, text, *tone),
                Cell::Bar(share, tone) => p.bar(at, *share, *tone),
            }
        }
    }
    beyond
}

fn align(p: &mut Painter<'_>, at: Rect, side: Side, text: &str, tone: Tone) {
    match side {
        Side::Right => p.text_right(at, text, tone),
        Side::Left | Side::Rest => p.text(at, text, tone),
    };
}

/// Where each column begins and how wide it is; `None` for those that are left out.
fn places(columns: &[Column], room: u16) -> Vec<Option<(u16, u16)>> {
    let needed = |limit: u8| {
        let kept = columns.iter().filter(|column| column.rank <= limit);
        kept.fold(0_u16, |all, column| all + column.width + u16::from(all > 0))
    };
    let most = columns.iter().map(|column| column.rank).max().unwrap_or(0);
    let limit = (0..=most).rev().find(|limit| needed(*limit) <= room).unwrap_or(0);
    let spare = room.saturating_sub(needed(limit));
    let mut x = 0;
    let place = |column: &Column| {
        if column.rank > limit || x >= room {
            return None;
        }
        let wanted = column.width + if column.side == Side::Rest { spare } else { 0 };
        let (at, width) = (x, wanted.min(room - x));
        x += width + 1;
        Some((at, width))
    };
    columns.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_left_out_by_rank_and_the_rest_is_given_to_one() {
        let columns = [rest("name", 6, 0), right("time", 5, 1), left("why", 4, 2)];
        assert_eq!(places(&columns, 20), [Some((0, 9)), Some((10, 5)), Some((16, 4))]);
        assert_eq!(places(&columns, 16), [Some((0, 10)), Some((11, 5)), None]);
        assert_eq!(places(&columns, 11), [Some((0, 11)), None, None]);
        assert_eq!(places(&columns, 3), [Some((0, 3)), None, None]);
        assert!(places(&columns, 0).iter().all(Option::is_none));
    }
}
