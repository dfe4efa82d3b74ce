//! `metallic top`: what a running metallic does, or did.

use std::{fs, path::PathBuf};

use anyhow::Context;
use clap::Args;

use crate::{
    term::{self, Ui},
    top::{
        app::{App, Source},
        replay::{FASTEST, Player, Recording},
        still::{self, Size},
        view::{Look, Pane, Scene, theme::Theme},
    },
};

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopArgs {
    /// Show a recorded run: a file that `--telemetry` wrote
    #[arg(long, value_name = "FILE.jsonl")]
    replay: PathBuf,
    /// How many times as fast as it was
    #[arg(long, value_name = "X", default_value = "1", value_parser = parse_speed, allow_negative_numbers = true)]
    speed: f64,
    /// Begin so many seconds after the first record [default: the beginning; with --once the end]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, allow_negative_numbers = true)]
    at: Option<f64>,
    /// Print one screen as text and end
    #[arg(long)]
    once: bool,
    /// Columns and rows of that screen [default: those of the terminal, else 120x40]
    #[arg(long, value_name = "WxH", requires = "once")]
    size: Option<Size>,
    /// What to show first
    #[arg(long, value_enum, default_value_t)]
    pane: Pane,
    /// No colours; NO_COLOR says the same
    #[arg(long)]
    no_color: bool,
    /// Draw the screen into a file instead
    #[arg(long, value_name = "FILE.svg", requires = "once", hide = true)]
    svg: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  metallic top --replay run.jsonl                        look at a run again
  metallic top --replay run.jsonl --speed 4
  metallic top --replay run.jsonl --once                 its end, as text
  metallic top --replay run.jsonl --once --at 12.5 --pane ops --size 100x50

Keys: ? lists them, q leaves, Tab and 1-5 change the pane, space stops the picture, left and right seek, [ and ] change the speed, + and - the
stretch of time that figures are of. Bars are drawn in ASCII unless LC_ALL, LC_CTYPE or LANG names UTF-8.";

pub(crate) fn run(args: &TopArgs, ui: Ui) -> anyhow::Result<()> {
    let recording = Recording::open(&args.replay)?;
    if let Some(bad) = recording.bad.told() {
        ui.note(&format!("note: `{}`: {bad}", args.replay.display()));
    }
    let end = recording.length();
    let mut player = Player::new(recording, args.speed);
    player.seek(args.at.unwrap_or(if args.once { end } else { 0.0 }));
    let look = Look { pane: args.pane, ..Look::default() };
    let theme = Theme::of_environment(args.no_color);
    if args.once {
        return once(args, &player, &look, theme);
    }
    App::new(&mut player, look, theme).run(&|| false)
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

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds: &f64| seconds.is_finite() && *seconds >= 0.0);
    seconds.ok_or_else(|| "it must be a number of seconds, 0 or more".to_owned())
}
