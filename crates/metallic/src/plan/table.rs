//! Tables whose columns are aligned.

use std::fmt::Write;

/// How a column stands.
#[derive(Clone, Copy)]
pub(super) enum Align {
    Left,
    Right,
}

/// Rows of as many cells as there are columns.
pub(super) struct Table {
    align: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns, each with its heading.
    pub(super) fn new<const N: usize>(columns: [(&str, Align); N]) -> Table {
        let (headings, align) = columns.into_iter().map(|(name, align)| (name.to_owned(), align)).unzip();
        Table { align, rows: vec![headings] }
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Its lines, each with so many spaces before it and none after.
    pub(super) fn text(&self, indent: usize) -> String {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.align.len()).map(|column| width(column).unwrap_or(0)).collect();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).zip(&self.align).map(|((cell, width), align)| match align {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
            let line = cells.collect::<Vec<_>>().join("  ");
            let _ = writeln!(text, "{:indent$}{}", "", line.trim_end());
        }
        text
    }
}

/// A count with its thousands told apart: `1 234 567`.
pub(super) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// `64×1×1` without what is 1 at the end: `64`.
pub(super) fn grid(size: [u32; 3]) -> String {
    let used = size.iter().rposition(|n| *n != 1).map_or(1, |last| last + 1);
    size[..used].iter().map(u32::to_string).collect::<Vec<_>>().join("×")
}

/// `1 token`, `2 tokens`.
pub(super) fn tokens(n: usize) -> String {
    if n == 1 { "1 token".to_owned() } else { format!("{n} tokens") }
}

/// Characters of a name that are shown.
const NAME: usize = 48;

/// A name that may say more than a line has room for.
pub(super) fn short(name: &str) -> String {
    match name.char_indices().nth(NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Equal names one after another counted: `linear ×3, rope ×2`.
pub(super) fn counted<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, times)) => *times += 1,
            None => counts.push((name, 1)),
        }
    }
    let each =
        |(name, times): (&str, usize)| if times > 1 { format!("{name} ×{times}") } else { name.to_owned() };
    counts.into_iter().map(each).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_with_text() {
        let mut table = Table::new([("A", Align::Left), ("NUMBER", Align::Right), ("Z", Align::Left)]);
        table.row(["é×".to_owned(), "7".to_owned(), "x".to_owned()]);
        table.row(["long".to_owned(), "12345678".to_owned(), String::new()]);
        assert_eq!(table.text(1), " A       NUMBER  Z\n é×           7  x\n long  12345678\n");
    }

    #[test]
    fn numbers_sizes_and_names_are_short() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1 000", "1 234 567"]);
        assert_eq!([[64, 1, 1], [1, 1, 1], [3, 1, 2], [2, 5, 1]].map(grid), ["64", "1", "3×1×2", "2×5"]);
        assert_eq!(short(&"é".repeat(60)), format!("{}…", "é".repeat(48)));
        assert_eq!([short("blk.0"), tokens(1), tokens(2)], ["blk.0", "1 token", "2 tokens"]);
        assert_eq!(counted(["a", "b", "a", "a"]), "a ×3, b");
    }
}
