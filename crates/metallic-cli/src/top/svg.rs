//! Cells as SVG. Bars and frames are drawn as shapes: fonts leave gaps between their blocks.

use std::fmt::Write;

use ratatui_core::{
    buffer::{Buffer, Cell},
    style::{Color, Modifier, Style},
};

const WIDTH: f64 = 8.0;
const HEIGHT: f64 = 17.0;
const MARGIN: f64 = 10.0;
const BACKGROUND: &str = "#15181e";
const TEXT: &str = "#d5d9e0";

/// The whole buffer.
pub(crate) fn drawing(buffer: &Buffer) -> String {
    let area = buffer.area;
    let (width, height) =
        (f64::from(area.width) * WIDTH + 2.0 * MARGIN, f64::from(area.height) * HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,monospace\" font-size=\"13\" shape-rendering=\"crispEdges\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for y in area.top()..area.bottom() {
        let cells: Vec<&Cell> = (area.left()..area.right()).filter_map(|x| buffer.cell((x, y))).collect();
        line(&mut svg, &cells, MARGIN + f64::from(y - area.y) * HEIGHT);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Cells of one row: equal neighbours are one shape, text of one style is one text.
fn line(svg: &mut String, cells: &[&Cell], y: f64) {
    let mut index = 0;
    while index < cells.len() {
        let first = cells[index];
        let style = first.style();
        let like = |cell: &&&Cell| match Shape::of(first.symbol()) {
            Some(_) => cell.symbol() == first.symbol() && cell.style() == style,
            None => Shape::of(cell.symbol()).is_none() && cell.style() == style,
        };
        let like_it = cells[index..].iter().take_while(like).count();
        let count = if Shape::of(first.symbol()).is_some_and(Shape::is_upright) { 1 } else { like_it };
        let (x, width) = (MARGIN + index as f64 * WIDTH, count as f64 * WIDTH);
        if let Some(shape) = Shape::of(first.symbol()) {
            shape.draw(svg, (x, y), width, fill(style));
        } else {
            let text: String = cells[index..index + count].iter().map(|cell| cell.symbol()).collect();
            words(svg, &text, (x, y), style);
        }
        index += count;
    }
    gaps(svg, cells, y);
}

/// Bars of neighbouring rows are held apart.
fn gaps(svg: &mut String, cells: &[&Cell], y: f64) {
    let mut begin = 0;
    for run in cells.chunk_by(|a, b| is_of_bar(a) == is_of_bar(b)) {
        if run.iter().any(|cell| cell.symbol() == "░") {
            let (x, width) = (MARGIN + begin as f64 * WIDTH, run.len() as f64 * WIDTH);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"4\" fill=\"{BACKGROUND}\"/>"
            );
        }
        begin += run.len();
    }
}

fn is_of_bar(cell: &Cell) -> bool {
    "░█▏▎▍▌▋▊▉".contains(cell.symbol()) && !cell.symbol().is_empty()
}

fn words(svg: &mut String, text: &str, (x, y): (f64, f64), style: Style) {
    if text.trim().is_empty() {
        return;
    }
    // Blanks before are left out, those between the words are held by their places.
    let skipped = text.len() - text.trim_start().len();
    let (text, x) = (text.trim(), x + skipped as f64 * WIDTH);
    let weight = if style.add_modifier.contains(Modifier::BOLD) { " font-weight=\"700\"" } else { "" };
    let length = super::view::columns_of(text) as f64 * WIDTH;
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{}\" textLength=\"{length}\" fill=\"{}\"{weight} xml:space=\"preserve\">{escaped}</text>",
        y + 13.0,
        fill(style)
    );
}

fn fill(style: Style) -> &'static str {
    match style.fg {
        Some(Color::Green) => "#8ccf7e",
        Some(Color::Cyan) => "#67c7d9",
        Some(Color::Blue) => "#6f9ceb",
        Some(Color::Yellow) => "#e3b65c",
        Some(Color::Red) => "#ef6b73",
        Some(Color::DarkGray) => "#767d8a",
        _ => TEXT,
    }
}

/// What is no letter.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// A block: how much of the width and of the height it fills, from the lower left.
    Block(f64, f64),
    /// The empty part of a bar.
    Shade,
    /// Lines from the middle to the left, right, upper and lower side.
    Lines([bool; 4]),
}

impl Shape {
    fn of(symbol: &str) -> Option<Shape> {
        let eighths =
            |all: &str| all.chars().position(|c| symbol.starts_with(c)).map(|at| (at + 1) as f64 / 8.0);
        if let Some(height) = eighths("▁▂▃▄▅▆▇█") {
            return Some(Shape::Block(1.0, height));
        }
        if let Some(width) = eighths("▏▎▍▌▋▊▉") {
            return Some(Shape::Block(width, 1.0));
        }
        Some(match symbol {
            "░" => Shape::Shade,
            "─" => Shape::Lines([true, true, false, false]),
            "│" => Shape::Lines([false, false, true, true]),
            "╭" => Shape::Lines([false, true, false, true]),
            "╮" => Shape::Lines([true, false, false, true]),
            "╯" => Shape::Lines([true, false, true, false]),
            "╰" => Shape::Lines([false, true, true, false]),
            _ => return None,
        })
    }

    /// Whether neighbours of it are not one shape with it.
    fn is_upright(self) -> bool {
        match self {
            Shape::Block(width, _) => width < 1.0,
            Shape::Shade => false,
            Shape::Lines([.., up, down]) => up || down,
        }
    }

    fn draw(self, svg: &mut String, (x, y): (f64, f64), width: f64, fill: &str) {
        match self {
            Shape::Block(share, height) => {
                let (width, height) = (if share < 1.0 { share * WIDTH } else { width }, height * HEIGHT);
                let top = y + HEIGHT - height;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x}\" y=\"{top:.1}\" width=\"{width}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
                );
            }
            Shape::Shade => {
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{HEIGHT}\" fill=\"#2a2f39\"/>"
                );
            }
            Shape::Lines([left, right, up, down]) => {
                let (middle, centre) = (y + HEIGHT / 2.0, x + WIDTH / 2.0);
                let mut path = String::new();
                if left || right {
                    let from = if left { x } else { centre };
                    let to = if right { x + width } else { centre };
                    let _ = write!(path, "M{from} {middle}H{to}");
                }
                if up || down {
                    let from = if up { y } else { middle };
                    let to = if down { y + HEIGHT } else { middle };
                    let _ = write!(path, "M{centre} {from}V{to}");
                }
                let _ = writeln!(svg, "<path d=\"{path}\" stroke=\"#4a505c\" fill=\"none\"/>");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_text_and_bars_are_shapes() {
        let svg = drawing(&Buffer::with_lines(["╭─ a<b & c ─╮", "████░░ ▁▄"]));
        assert!(svg.contains(">a&lt;b &amp; c</text>"), "{svg}");
        assert_eq!(svg.matches("<rect").count(), 1 + 4 + 1, "{svg}");
        assert!(!svg.contains('█') && !svg.contains('╭') && svg.ends_with("</svg>\n"), "{svg}");
    }
}
