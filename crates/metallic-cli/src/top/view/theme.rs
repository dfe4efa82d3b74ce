//! How things look: colours where they are wanted, characters that the terminal can show.

use std::borrow::Cow;
use std::env;

use ratatui_core::style::{Color, Modifier, Style};

/// What a piece of the screen says by its look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    /// Labels, borders, what matters less.
    Dim,
    /// Titles, and what is chosen.
    Strong,
    /// Tokens of answers, and good things.
    Decode,
    /// Tokens of prompts.
    Prefill,
    /// Bytes and blocks.
    Memory,
    Warning,
    Fault,
}

/// Colours and characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Theme {
    pub(crate) colour: bool,
    pub(crate) unicode: bool,
}

impl Theme {
    /// As the environment wants it: `NO_COLOR`, `TERM=dumb`, and the characters of the locale.
    pub(crate) fn of_environment(no_color: bool) -> Theme {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let colour = !no_color && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb");
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        Theme { colour, unicode: locale.is_some_and(|locale| is_utf8(&locale)) }
    }

    pub(crate) fn style(self, tone: Tone) -> Style {
        let plain = Style::new();
        match (tone, self.colour) {
            (Tone::Plain, _) | (Tone::Decode | Tone::Prefill | Tone::Memory, false) => plain,
            (Tone::Dim, true) => plain.fg(Color::DarkGray),
            (Tone::Dim, false) => plain.add_modifier(Modifier::DIM),
            (Tone::Strong, _) | (Tone::Warning, false) => plain.add_modifier(Modifier::BOLD),
            (Tone::Decode, true) => plain.fg(Color::Green),
            (Tone::Prefill, true) => plain.fg(Color::Cyan),
            (Tone::Memory, true) => plain.fg(Color::Blue),
            (Tone::Warning, true) => plain.fg(Color::Yellow),
            (Tone::Fault, true) => plain.fg(Color::Red).add_modifier(Modifier::BOLD),
            (Tone::Fault, false) => plain.add_modifier(Modifier::BOLD | Modifier::REVERSED),
        }
    }

    /// Text in characters that the terminal has.
    pub(crate) fn spelled(self, text: &str) -> Cow<'_, str> {
        if self.unicode || text.is_ascii() {
            return text.into();
        }
        text.chars().map(in_ascii).collect::<String>().into()
    }

    /// Columns of a graph, from the lowest to the full one.
    pub(crate) fn levels(self) -> &'static [&'static str] {
        if self.unicode {
            &["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"]
        } else {
            &[".", ":", "#"]
        }
    }

    /// Parts of a bar's last cell, from the least to the full one.
    pub(crate) fn parts(self) -> &'static [&'static str] {
        if self.unicode { &["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"] } else { &["#"] }
    }

    /// What a bar leaves empty.
    pub(crate) fn rest(self) -> &'static str {
        if self.unicode { "░" } else { "." }
    }

    /// Corners from the upper left on, clockwise, then the horizontal line and the vertical one.
    pub(crate) fn borders(self) -> [&'static str; 6] {
        if self.unicode { ["╭", "╮", "╯", "╰", "─", "│"] } else { ["+", "+", "+", "+", "-", "|"] }
    }
}

fn is_utf8(locale: &str) -> bool {
    let locale = locale.to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The nearest one.
fn in_ascii(c: char) -> char {
    match c {
        c if c.is_ascii() => c,
        'µ' => 'u',
        '·' | '–' | '—' => '-',
        '…' => '~',
        '×' => 'x',
        '‖' => '=',
        _ => '?',
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locales_name_their_characters() {
        for (locale, utf8) in
            [("C.UTF-8", true), ("de_DE.utf8", true), ("C", false), ("de_DE.ISO-8859-1", false)]
        {
            assert_eq!(is_utf8(locale), utf8, "{locale}");
        }
    }

    #[test]
    fn without_unicode_every_character_is_ascii() {
        let theme = Theme { colour: true, unicode: false };
        assert_eq!(theme.spelled("5 µs × 2 · 日本…"), "5 us x 2 - ??~");
        let all = [theme.levels(), theme.parts(), &theme.borders(), &[theme.rest()]].concat();
        assert!(all.iter().all(|text| text.is_ascii()));
    }

    #[test]
    fn without_colours_no_style_has_one() {
        let theme = Theme { colour: false, unicode: true };
        for tone in
            [Tone::Dim, Tone::Strong, Tone::Decode, Tone::Prefill, Tone::Memory, Tone::Warning, Tone::Fault]
        {
            let style = theme.style(tone);
            assert_eq!((style.fg, style.bg), (None, None), "{tone:?}");
        }
        assert_ne!(theme.style(Tone::Warning), theme.style(Tone::Fault));
    }
}
