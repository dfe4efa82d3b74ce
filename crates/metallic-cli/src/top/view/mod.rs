//! The screen: a picture of what is known. It reads the state and draws; keys and the terminal are elsewhere.

mod answer;
mod help;
mod log;
mod memory;
mod ops;
mod overview;
mod paint;
mod stores;
mod table;
pub(crate) mod theme;
mod units;

use ratatui_core::{buffer::Buffer, layout::Rect};

use super::state::{State, USUAL_WINDOW, WINDOWS};
use paint::{Painter, row, split_top};
use theme::{Theme, Tone};

/// The least that anything can be shown in.
pub(crate) const LEAST: (u16, u16) = (40, 12);
/// Less than this is shown without frames.
const FRAMED: (u16, u16) = (72, 20);

/// What the body shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Pane {
    /// Everything in short
    #[default]
    Overview,
    /// Time by operation and by layer
    Ops,
    /// Caches and pools
    Caches,
    /// Memory by owner, and who carries out operations
    Memory,
    /// Warnings and faults
    Log,
}

impl Pane {
    pub(crate) const ALL: [Pane; 5] = [Pane::Overview, Pane::Ops, Pane::Caches, Pane::Memory, Pane::Log];

    fn title(self) -> &'static str {
        match self {
            Pane::Overview => "overview",
            Pane::Ops => "ops",
            Pane::Caches => "caches",
            Pane::Memory => "memory",
            Pane::Log => "log",
        }
    }
}

/// What the person who looks has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) pane: Pane,
    /// Which of `WINDOWS`.
    pub(crate) window: usize,
    pub(crate) scroll: usize,
    pub(crate) help: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self { pane: Pane::default(), window: USUAL_WINDOW, scroll: 0, help: false }
    }
}

impl Look {
    pub(crate) fn seconds(&self) -> f64 {
        WINDOWS[self.window.min(WINDOWS.len() - 1)]
    }
}

/// Where the records come from, and how that stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Feed<'a> {
    Replay {
        at: f64,
        length: f64,
        speed: f64,
        stands: Stands,
        bad_lines: u64,
    },
    /// Another process.
    Live {
        stands: Stands,
        bad_lines: u64,
    },
    /// This process, with the text it makes.
    Own {
        stands: Stands,
        answer: &'a str,
    },
}

/// Whether the picture moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    Moves,
    Paused,
    /// Nothing more will come.
    Ended,
}

/// All that is drawn.
#[derive(Clone, Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) state: &'a State,
    pub(crate) look: &'a Look,
    pub(crate) feed: Feed<'a>,
    pub(crate) theme: Theme,
}

/// Draws the screen; gives how far it can be scrolled.
pub(crate) fn draw(buffer: &mut Buffer, scene: &Scene<'_>) -> usize {
    let area = buffer.area;
    let mut painter = Painter { buffer, theme: scene.theme };
    let p = &mut painter;
    if area.width < LEAST.0 || area.height < LEAST.1 {
        too_small(p, area);
        return 0;
    }
    let framed = area.width >= FRAMED.0 && area.height >= FRAMED.1;
    header(p, row(area, 0), scene);
    tabs(p, row(area, 1), scene);
    let (_, body) = split_top(area, 2);
    let body = if framed { Rect { height: body.height - 1, ..body } } else { body };
    if framed {
        footer(p, row(area, area.height - 1), &scene.feed);
    }
    let (state, window, scroll) = (scene.state, scene.look.seconds(), scene.look.scroll);
    let beyond = match scene.look.pane {
        Pane::Overview if framed => {
            let body = match &scene.feed {
                Feed::Own { answer, .. } => answer::below(p, body, answer),
                Feed::Replay { .. } | Feed::Live { .. } => body,
            };
            overview::framed(p, body, state, window)
        }
        Pane::Overview => overview::bare(p, body, state, window),
        Pane::Ops => ops::pane(p, body, state, window, scroll),
        Pane::Caches => stores::pane(p, body, state, scroll),
        Pane::Memory => memory::pane(p, body, state, scroll),
        Pane::Log => log::pane(p, body, state, scroll),
    };
    if scene.look.help {
        help::draw(p, area, &scene.feed);
    }
    beyond
}

/// Columns that a text takes on a screen.
pub(crate) fn columns_of(text: &str) -> usize {
    paint::width(text).into()
}

fn too_small(p: &mut Painter<'_>, area: Rect) {
    let (width, height) = LEAST;
    let lines = [
        format!("{width}x{height} needed,"),
        format!("{}x{} here", area.width, area.height),
        "q: quit".to_owned(),
    ];
    for (index, line) in lines.iter().enumerate() {
        p.text(row(area, index as u16), line, Tone::Plain);
    }
}

/// What runs where, and how the picture stands.
fn header(p: &mut Painter<'_>, area: Rect, scene: &Scene<'_>) {
    let (status, tone) = status(&scene.feed, scene.state);
    let taken = p.text_right(area, &status, tone);
    let area = Rect { width: area.width.saturating_sub(taken + 2), ..area };
    let program = scene.state.start.as_ref().map_or("metallic", |start| &start.program);
    let program = format!("{program}  ");
    let Some(load) = &scene.state.load else {
        p.pieces(area, &[(&program, Tone::Strong), ("no model is loaded yet", Tone::Dim)]);
        return;
    };
    let about = format!(
        " · kv {} · {} {} · {} layers · context {}",
        load.kv_type, load.family, load.weights, load.layers, load.context
    );
    let device = format!(" · {}", load.device);
    let name = if load.device_name.is_empty() { String::new() } else { format!(" ({})", load.device_name) };
    p.pieces(
        area,
        &[
            (&program, Tone::Strong),
            (&load.model, Tone::Decode),
            (&device, Tone::Plain),
            (&about, Tone::Plain),
            (&name, Tone::Dim),
        ],
    );
}

fn status(feed: &Feed<'_>, state: &State) -> (String, Tone) {
    let bad =
        |count: u64| if count == 0 { String::new() } else { format!(", {} bad lines", units::count(count)) };
    let process = || {
        let pid = state.start.as_ref().map(|start| format!("pid {} ", start.pid)).unwrap_or_default();
        format!("{pid}up {}", units::clock(state.uptime()))
    };
    let (stands, mut text) = match feed {
        Feed::Replay { at, length, speed, stands, bad_lines } => {
            let speed = if *speed < 1.0 { format!("1/{:.0}", 1.0 / speed) } else { units::amount(*speed) };
            let speed = speed.strip_suffix(".00").map(str::to_owned).unwrap_or(speed);
            let (at, length) = (units::clock(*at), units::clock(*length));
            (*stands, format!("replay {at}/{length} ×{speed}{}", bad(*bad_lines)))
        }
        Feed::Live { stands, bad_lines } => (*stands, process() + &bad(*bad_lines)),
        Feed::Own { stands, .. } => (*stands, process()),
    };
    let tone = match stands {
        Stands::Moves => Tone::Dim,
        Stands::Paused => {
            text.push_str(" ‖ paused");
            Tone::Warning
        }
        Stands::Ended => {
            text.push_str(" · ended");
            Tone::Strong
        }
    };
    (text, tone)
}

fn tabs(p: &mut Painter<'_>, area: Rect, scene: &Scene<'_>) {
    let window = format!("window {:.0} s", scene.look.seconds());
    let taken = p.text_right(area, &window, Tone::Dim);
    let mut area = Rect { width: area.width.saturating_sub(taken + 1), ..area };
    let bad = scene.state.warnings.saturating_add(scene.state.faults);
    let label = |pane: Pane, number: usize, short: bool| {
        let chosen = pane == scene.look.pane;
        let title = if short && !chosen { String::new() } else { format!(" {}", pane.title()) };
        let count =
            if pane == Pane::Log && bad > 0 { format!(" {}", units::count(bad)) } else { String::new() };
        if chosen { format!("[{number}{title}{count}] ") } else { format!(" {number}{title}{count}  ") }
    };
    let labels = |short| (1..).zip(Pane::ALL).map(move |(number, pane)| (pane, label(pane, number, short)));
    // Titles of the others go where they do not fit.
    let short = labels(false).map(|(_, label)| columns_of(&label)).sum::<usize>() > area.width.into();
    for (pane, label) in labels(short) {
        let tone = match pane {
            Pane::Log if scene.state.faults > 0 => Tone::Fault,
            Pane::Log if bad > 0 => Tone::Warning,
            _ if pane == scene.look.pane => Tone::Strong,
            _ => Tone::Dim,
        };
        let taken = p.text(area, &label, tone);
        area = paint::skip_left(area, taken);
    }
}

fn footer(p: &mut Painter<'_>, area: Rect, feed: &Feed<'_>) {
    let keys = match feed {
        Feed::Replay { .. } => {
            "? help  q quit  Tab panes  space pause  left/right seek  [ ] speed  + - window"
        }
        Feed::Live { .. } | Feed::Own { .. } => {
            "? help  q quit  Tab panes  p pause  up/down scroll  + - window"
        }
    };
    p.text(area, keys, Tone::Dim);
}

#[cfg(test)]
mod tests;
