//! The text that this process makes, below its figures.

use ratatui_core::layout::Rect;

use super::{
    paint::{Painter, row, split_top, width},
    theme::Tone,
};
use crate::escape;

/// Shows the end of the text in the lower part of the area; gives the upper one.
pub(crate) fn below(p: &mut Painter<'_>, area: Rect, answer: &str) -> Rect {
    let (upper, lower) = split_top(area, area.height - (area.height * 2 / 5).max(5).min(area.height));
    let inner = p.frame(lower, "answer");
    // The last lines are enough: a character takes a place, a line break at most a whole line.
    let most = usize::from(inner.width) * usize::from(inner.height) * 4;
    let begin = answer.len().saturating_sub(most);
    let begin = (begin..=answer.len()).find(|at| answer.is_char_boundary(*at)).unwrap_or(answer.len());
    let safe = escape::output(&answer[begin..]).replace('\t', "    ");
    let lines: Vec<String> = safe.lines().flat_map(|line| wrapped(line, inner.width.into())).collect();
    let skipped = lines.len().saturating_sub(inner.height.into());
    for (index, line) in lines.iter().skip(skipped).enumerate() {
        p.text(row(inner, index as u16), line, Tone::Plain);
    }
    upper
}

/// A line in pieces of so many columns, cut between words where there are any.
pub(crate) fn wrapped(text: &str, room: usize) -> Vec<String> {
    let room = room.max(1);
    let (mut lines, mut line, mut taken) = (Vec::new(), String::new(), 0);
    for word in text.split_inclusive(' ') {
        let columns = usize::from(width(word.trim_end()));
        if taken > 0 && taken + columns > room {
            lines.push(std::mem::take(&mut line));
            taken = 0;
        }
        for c in word.chars() {
            let columns = usize::from(width(c.encode_utf8(&mut [0; 4])));
            if taken > 0 && taken + columns > room {
                if c == ' ' {
                    continue;
                }
                lines.push(std::mem::take(&mut line));
                taken = 0;
            }
            line.push(c);
            taken += columns;
        }
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::wrapped;

    #[test]
    fn lines_are_cut_between_words_and_long_words_where_they_must() {
        assert_eq!(wrapped("one two three", 8), ["one two ", "three"]);
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("abcdefgh i", 4), ["abcd", "efgh", "i"]);
        assert_eq!(wrapped("日本語", 4), ["日本", "語"]);
        assert_eq!(
            (wrapped("", 4), wrapped("ab", 0)),
            (vec![String::new()], vec!["a".to_owned(), "b".to_owned()])
        );
    }
}
