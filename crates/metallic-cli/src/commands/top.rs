//! `metallic top`: what a running metallic does, or did.

#[cfg(unix)]
use std::time::{Duration, Instant};
use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Args;

#[cfg(not(unix))]
use crate::fail::Failure;
#[cfg(unix)]
use crate::{
    interrupt,
    top::{
        attach,
        live::{Live, Records},
    },
};
use crate::{
    term::{self, Ui},
    top::{
        app::{App, Source},
        replay::{FASTEST, Player, Recording},
        screen,
        state::{USUAL_WINDOW, WINDOWS},
        still::{self, Size},
        view::{Look, Pane, Scene, theme::Theme},
    },
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// The process to look at [default: the only one that runs]
    #[arg(conflicts_with = "replay")]
    pid: Option<u32>,
    /// Show a recorded run: a file that `--telemetry` wrote
    #[arg(long, value_name = "FILE.jsonl")]
    replay: Option<PathBuf>,
    /// How many times as fast as it was [default: 1]
    #[arg(long, value_name = "X", requires = "replay", value_parser = parse_speed, allow_negative_numbers = true)]
    speed: Option<f64>,
    /// Begin so many seconds after the first record [default: the beginning; with --once the end]
    #[arg(long, value_name = "SECONDS", requires = "replay", value_parser = parse_seconds, allow_negative_numbers = true)]
    at: Option<f64>,
    /// Print one screen as text and end; of a process, what it does in two seconds
    #[arg(long)]
    once: bool,
    /// Columns and rows of that screen [default: those of the terminal, else 120x40]
    #[arg(long, value_name = "WxH", requires = "once")]
    size: Option<Size>,
    /// What to show first
    #[arg(long, value_enum, default_value_t)]
    pane: Pane,
    /// The stretch of time that figures are of, in seconds: 5, 15, 60, 180, 600 or 1800 [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = parse_window)]
    window: Option<usize>,
    /// No colours; NO_COLOR says the same
    #[arg(long)]
    no_color: bool,
    /// Draw the screen into a file instead
    #[arg(long, value_name = "FILE.svg", requires = "once", hide = true)]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  metallic top                                           look at the metallic that runs
  metallic top 4711                                      at one of several
  metallic top --once --pane ops                         where its time goes, as text
  metallic run --telemetry run.jsonl \"Why is the sky blue?\"
  metallic top --replay run.jsonl                        look at a run again
  metallic top --replay run.jsonl --speed 4
  metallic top --replay run.jsonl --once --at 12.5 --size 100x50

Keys: ? lists them, q leaves, Tab and 1-5 change the pane, space stops the picture, left and right seek in a recorded run, [ and ] change its
speed, + and - the stretch of time that figures are of. Bars are drawn in ASCII unless LC_ALL, LC_CTYPE or LANG names UTF-8.
METALLIC_RUNTIME_DIR must be the same as for the process that is looked at.";

/// What `--once` sees of a process.
#[cfg(unix)]
const LOOK: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &TopArgs, ui: Ui) -> anyhow::Result<()> {
    if !args.once {
        screen::check()?;
    }
    let Some(file) = &args.replay else { return watch(args) };
    let recording = Recording::open(file)?;
    if let Some(bad) = recording.bad.told() {
        ui.note(&format!("note: `{}`: {bad}", file.display()));
    }
    let end = recording.length();
    let mut player = Player::new(recording, args.speed.unwrap_or(1.0));
    player.seek(args.at.unwrap_or(if args.once { end } else { 0.0 }));
    show(args, &mut player)
}

/// Looks at another process.
#[cfg(unix)]
fn watch(args: &TopArgs) -> anyhow::Result<()> {
    let mut live = Live::new(Records::Lines(attach::attach(args.pid)?));
    if args.once {
        let begin = Instant::now();
        while begin.elapsed() < LOOK && !live.has_ended() {
            interrupt::sleep(interrupt::POLL)?;
            live.advance(interrupt::POLL.as_secs_f64());
        }
    }
    show(args, &mut live)
}

#[cfg(not(unix))]
fn watch(_: &TopArgs) -> anyhow::Result<()> {
    let reason = "processes of this system cannot be looked at";
    Err(Failure::new(reason, "`--replay FILE.jsonl` shows a recorded run").into())
}

fn show(args: &TopArgs, source: &mut dyn Source) -> anyhow::Result<()> {
    let look = Look { pane: args.pane, window: args.window.unwrap_or(USUAL_WINDOW), ..Look::default() };
    let theme = Theme::of_environment(args.no_color);
    if args.once {
        return once(args, source, &look, theme);
    }
    App::new(source, look, theme).run(&|| false)
}

fn once(args: &TopArgs, source: &dyn Source, look: &Look, theme: Theme) -> anyhow::Result<()> {
    let scene = Scene { state: source.state(), look, feed: source.feed(), theme };
    let size = args.size.unwrap_or_else(Size::of_output);
    let Some(path) = &args.svg else {
        return Ok(term::print(&still::text(&scene, size))?);
    };
    // A drawing brings its own colours and shapes.
    let scene = Scene { theme: Theme { colour: true, unicode: true }, ..scene };
    fs::write(path, still::drawing(&scene, size))
        .with_context(|| format!("cannot write `{}`", path.display()))
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let speed = text.parse().ok().filter(|speed: &f64| *speed > 0.0 && *speed <= FASTEST);
    speed.ok_or_else(|| format!("it must be above 0 and at most {FASTEST}"))
}

/// Which of the windows.
fn parse_window(text: &str) -> Result<usize, String> {
    let given = text.parse::<f64>().ok();
    let found = given.and_then(|given| WINDOWS.iter().position(|window| *window == given));
    found.ok_or_else(|| format!("it must be one of {}", WINDOWS.map(|window| window.to_string()).join(", ")))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| "it must be a number of seconds, 0 or more".to_owned())
}
