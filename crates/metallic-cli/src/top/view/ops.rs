//! Time by operation and by layer.

use ratatui_core::layout::Rect;

use super::{
    paint::{Painter, row, split_left, split_top},
    table::{self, Cell, Column, left, maybe, rest, right, text},
    theme::Tone,
    units,
};
use crate::top::{moment::Cost, state::State};

const BY_OP: [Column; 7] = [
    rest("operation", 14, 0),
    right("a step", 8, 0),
    left("", 10, 2),
    right("share", 6, 0),
    right("GB/s", 6, 3),
    right("of limit", 8, 1),
    right("calls", 6, 4),
];

const BY_LAYER: [Column; 5] =
    [right("layer", 7, 0), right("a step", 8, 0), rest("", 8, 1), right("share", 6, 0), right("GB/s", 6, 2)];

/// Both, side by side where there is room, else one above the other.
pub(crate) fn pane(p: &mut Painter<'_>, area: Rect, state: &State, window: f64, scroll: usize) -> usize {
    let (ops, layers) = if area.width >= 110 {
        split_left(area, area.width * 3 / 5)
    } else {
        split_top(area, area.height.div_ceil(2))
    };
    let steps = state.timed_steps(window);
    let title = format!("time by operation, {} timed steps", units::count(steps));
    let (ops, layers) = if area.height >= 16 {
        (p.frame(ops, &title), p.frame(layers, "time by layer"))
    } else {
        (ops, layers)
    };
    by_op(p, ops, state, window, scroll).max(by_layer(p, layers, state, window, scroll))
}

pub(crate) fn by_op_framed(p: &mut Painter<'_>, area: Rect, state: &State, window: f64) {
    let inner = p.frame(area, "time by operation");
    by_op(p, inner, state, window, 0);
}

/// Gives how many operations do not fit.
pub(crate) fn by_op(p: &mut Painter<'_>, area: Rect, state: &State, window: f64, scroll: usize) -> usize {
    let costs = state.by_op(window);
    let Some(shares) = Shares::of(costs.iter().map(|(_, cost)| cost), state, window) else {
        p.text(row(area, 0), "no operation was timed in this window", Tone::Dim);
        return 0;
    };
    let cells = |(name, cost): &(std::sync::Arc<str>, Cost)| {
        let limit = shares.of_limit(cost);
        vec![
            text(&**name),
            text(units::seconds(shares.a_step(cost))),
            Cell::Bar(shares.share(cost), Tone::Decode),
            text(units::percent(shares.share(cost))),
            maybe(cost.bandwidth(), |rate| units::amount(rate / 1e9)),
            maybe(limit, units::percent),
            text(units::count(cost.calls)),
        ]
    };
    let rows: Vec<_> = costs.iter().map(cells).collect();
    table::draw(p, area, &BY_OP, &rows, scroll)
}

fn by_layer(p: &mut Painter<'_>, area: Rect, state: &State, window: f64, scroll: usize) -> usize {
    let costs = state.by_layer(window);
    let Some(shares) = Shares::of(costs.iter().map(|(_, cost)| cost), state, window) else {
        p.text(row(area, 0), "no layer was timed in this window", Tone::Dim);
        return 0;
    };
    let longest = costs.iter().map(|(_, cost)| cost.seconds).fold(f64::MIN_POSITIVE, f64::max);
    let cells = |(layer, cost): &(Option<u32>, Cost)| {
        vec![
            text(layer.map_or_else(|| "outside".to_owned(), |layer| layer.to_string())),
            text(units::seconds(shares.a_step(cost))),
            // Of the longest one: layers are many and much alike.
            Cell::Bar(cost.seconds / longest, Tone::Prefill),
            text(units::percent(shares.share(cost))),
            maybe(cost.bandwidth(), |rate| units::amount(rate / 1e9)),
        ]
    };
    let rows: Vec<_> = costs.iter().map(cells).collect();
    table::draw(p, area, &BY_LAYER, &rows, scroll)
}

/// What times are shares of.
struct Shares {
    total: f64,
    steps: f64,
    /// Bytes a second at best.
    peak: Option<f64>,
}

impl Shares {
    fn of<'a>(costs: impl Iterator<Item = &'a Cost>, state: &State, window: f64) -> Option<Shares> {
        let total = costs.map(|cost| cost.seconds).sum();
        let peak = state.load.as_ref().and_then(|load| load.peak_bytes_per_second).filter(|peak| *peak > 0.0);
        (total > 0.0).then(|| Shares { total, steps: state.timed_steps(window).max(1) as f64, peak })
    }

    fn share(&self, cost: &Cost) -> f64 {
        cost.seconds / self.total
    }

    fn a_step(&self, cost: &Cost) -> f64 {
        cost.seconds / self.steps
    }

    fn of_limit(&self, cost: &Cost) -> Option<f64> {
        Some(cost.bandwidth()? / self.peak?)
    }
}
