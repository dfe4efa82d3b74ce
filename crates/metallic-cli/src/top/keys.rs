//! What keys mean.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view::Pane;

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Action {
    Quit,
    /// Closes the help, else quits.
    Back,
    Help,
    Pane(Pane),
    NextPane,
    PreviousPane,
    /// Lines, down where positive.
    Scroll(isize),
    Top,
    Bottom,
    Pause,
    Longer,
    Shorter,
    /// Seconds of the recording.
    Seek(f64),
    Faster,
    Slower,
}

const SEEK_SECONDS: f64 = 5.0;
const PAGE: isize = 10;

/// `None` for keys that mean nothing.
pub(crate) fn action(key: &KeyEvent) -> Option<Action> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return matches!(key.code, KeyCode::Char('c' | 'C')).then_some(Action::Quit);
    }
    Some(match key.code {
        KeyCode::Char('q' | 'Q') => Action::Quit,
        KeyCode::Esc => Action::Back,
        KeyCode::Char('?' | 'h') => Action::Help,
        KeyCode::Char(digit @ '1'..='5') => Action::Pane(Pane::ALL[digit as usize - '1' as usize]),
        KeyCode::Tab => Action::NextPane,
        KeyCode::BackTab => Action::PreviousPane,
        KeyCode::Down | KeyCode::Char('j') => Action::Scroll(1),
        KeyCode::Up | KeyCode::Char('k') => Action::Scroll(-1),
        KeyCode::PageDown => Action::Scroll(PAGE),
        KeyCode::PageUp => Action::Scroll(-PAGE),
        KeyCode::Home | KeyCode::Char('g') => Action::Top,
        KeyCode::End | KeyCode::Char('G') => Action::Bottom,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Char('+' | '=') => Action::Longer,
        KeyCode::Char('-' | '_') => Action::Shorter,
        KeyCode::Right => Action::Seek(SEEK_SECONDS),
        KeyCode::Left => Action::Seek(-SEEK_SECONDS),
        KeyCode::Char(']') => Action::Faster,
        KeyCode::Char('[') => Action::Slower,
        _ => return None,
    })
}
