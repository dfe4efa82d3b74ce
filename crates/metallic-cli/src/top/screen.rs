//! The terminal while the dashboard has it: taken as a whole, and given back however the program ends.

use std::{
    env,
    io::{self, IsTerminal, Stdout, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context;
use crossterm::{
    cursor::{Hide, MoveTo, Show},
    execute, queue,
    style::{Attribute, Color as Ansi, Print, SetAttribute, SetForegroundColor},
    terminal::{self, Clear, EnterAlternateScreen, LeaveAlternateScreen},
};
use ratatui_core::{
    backend::{Backend, ClearType, WindowSize},
    buffer::{Buffer, Cell},
    layout::{Position, Size},
    style::{Color, Modifier, Style},
    terminal::Terminal,
};

use crate::{fail::Failure, interrupt};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Gives the terminal back if the dashboard has it; for whatever ends the program from outside.
pub(crate) fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // What cannot be given back cannot be told either.
        let _ = execute!(io::stdout(), SetAttribute(Attribute::Reset), Show, LeaveAlternateScreen);
        let _ = terminal::disable_raw_mode();
    }
}

/// Why the dashboard has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// SIGINT from outside; a key is an event.
    Interrupted,
    /// SIGTERM, or something failed for good on another thread, which has given the terminal back.
    Terminated,
}

/// Whether there is a terminal to draw on; for those who would work first.
pub(crate) fn check() -> anyhow::Result<()> {
    const HINT: &str = "`metallic top --once` prints one screen as text";
    if !io::stdout().is_terminal() {
        return Err(Failure::new("stdout is no terminal, so there is nothing to draw on", HINT).into());
    }
    if env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return Err(Failure::new("TERM is `dumb`: this terminal has no places to draw at", HINT).into());
    }
    Ok(())
}

/// The terminal.
pub(crate) struct Screen {
    terminal: Terminal<Tty>,
    terminated: Arc<AtomicBool>,
    #[cfg(unix)]
    handlers: Vec<signal_hook::SigId>,
}

impl Screen {
    pub(crate) fn open() -> anyhow::Result<Screen> {
        check()?;
        let terminated = Arc::new(AtomicBool::new(false));
        #[cfg(unix)]
        let handlers = listen(&terminated).context("cannot listen for SIGTERM")?;
        terminal::enable_raw_mode().context("cannot take the terminal")?;
        TAKEN.store(true, Ordering::SeqCst);
        let opened = execute!(io::stdout(), EnterAlternateScreen, Hide)
            .and_then(|()| Terminal::new(Tty(io::stdout())))
            .context("cannot take the terminal");
        let terminal = opened.inspect_err(|_| restore())?;
        Ok(Screen {
            terminal,
            terminated,
            #[cfg(unix)]
            handlers,
        })
    }

    pub(crate) fn draw(&mut self, paint: impl FnOnce(&mut Buffer)) -> anyhow::Result<()> {
        self.terminal.draw(|frame| paint(frame.buffer_mut())).context("cannot draw on the terminal")?;
        Ok(())
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        if self.terminated.load(Ordering::SeqCst) || !TAKEN.load(Ordering::SeqCst) {
            return Some(Ended::Terminated);
        }
        interrupt::check().is_err().then_some(Ended::Interrupted)
    }

    /// Gives the terminal back and ends as SIGTERM does, where that came.
    pub(crate) fn die(&self) -> anyhow::Error {
        restore();
        #[cfg(unix)]
        if self.terminated.load(Ordering::SeqCst) {
            let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGTERM);
        }
        Failure::new("the dashboard was ended from outside", "the lines above may say why").into()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
        #[cfg(unix)]
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// SIGTERM sets the flag; a second one ends the program at once.
#[cfg(unix)]
fn listen(flag: &Arc<AtomicBool>) -> io::Result<Vec<signal_hook::SigId>> {
    use signal_hook::{consts::SIGTERM, flag};
    Ok(vec![
        flag::register_conditional_default(SIGTERM, Arc::clone(flag))?,
        flag::register(SIGTERM, Arc::clone(flag))?,
    ])
}

/// Draws cells by escapes.
struct Tty(Stdout);

impl Backend for Tty {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, cells: I) -> io::Result<()> {
        let (mut next, mut style) = (None, Style::new());
        queue!(self.0, SetAttribute(Attribute::Reset))?;
        for (x, y, cell) in cells {
            if next != Some((x, y)) {
                queue!(self.0, MoveTo(x, y))?;
            }
            let wanted = cell.style();
            if wanted != style {
                set_style(&mut self.0, wanted)?;
                style = wanted;
            }
            queue!(self.0, Print(cell.symbol()))?;
            // Terminals do not agree on how wide other characters are.
            next = cell.symbol().is_ascii().then_some((x + 1, y));
        }
        queue!(self.0, SetAttribute(Attribute::Reset))
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        execute!(self.0, Hide)
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        execute!(self.0, Show)
    }

    fn get_cursor_position(&mut self) -> io::Result<Position> {
        // Nothing is drawn relative to it.
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        let Position { x, y } = position.into();
        execute!(self.0, MoveTo(x, y))
    }

    fn clear(&mut self) -> io::Result<()> {
        self.clear_region(ClearType::All)
    }

    fn clear_region(&mut self, region: ClearType) -> io::Result<()> {
        use crossterm::terminal::ClearType as Region;
        execute!(
            self.0,
            Clear(match region {
                ClearType::All => Region::All,
                ClearType::AfterCursor => Region::FromCursorDown,
                ClearType::BeforeCursor => Region::FromCursorUp,
                ClearType::CurrentLine => Region::CurrentLine,
                ClearType::UntilNewLine => Region::UntilNewLine,
            })
        )
    }

    fn size(&self) -> io::Result<Size> {
        let (width, height) = terminal::size()?;
        Ok(Size { width, height })
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        Ok(WindowSize { columns_rows: self.size()?, pixels: Size::ZERO })
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

fn set_style(out: &mut impl Write, style: Style) -> io::Result<()> {
    queue!(out, SetAttribute(Attribute::Reset))?;
    for (modifier, attribute) in [
        (Modifier::BOLD, Attribute::Bold),
        (Modifier::DIM, Attribute::Dim),
        (Modifier::REVERSED, Attribute::Reverse),
    ] {
        if style.add_modifier.contains(modifier) {
            queue!(out, SetAttribute(attribute))?;
        }
    }
    style.fg.and_then(ansi).map_or(Ok(()), |colour| queue!(out, SetForegroundColor(colour)))
}

/// The colours that themes have; `None` is that of the terminal.
fn ansi(colour: Color) -> Option<Ansi> {
    Some(match colour {
        Color::Red => Ansi::DarkRed,
        Color::Green => Ansi::DarkGreen,
        Color::Yellow => Ansi::DarkYellow,
        Color::Blue => Ansi::DarkBlue,
        Color::Cyan => Ansi::DarkCyan,
        Color::DarkGray => Ansi::DarkGrey,
        _ => return None,
    })
}
