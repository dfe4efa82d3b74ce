//! Everything in short.

use ratatui_core::layout::Rect;

use super::{
    log, memory, ops,
    paint::{Painter, row, skip_left, split_left, split_top},
    stores,
    theme::Tone,
    units,
};
use crate::top::{
    figures::Spread,
    state::{State, Tokens},
};

/// With frames, on screens of usual size and large ones.
pub(crate) fn framed(p: &mut Painter<'_>, area: Rect, state: &State, window: f64) -> usize {
    let (top, body) = split_top(area, if area.height >= 30 { 7 } else { 5 });
    // Times are longer than rates.
    let third = top.width * 3 / 10;
    let (decode, others) = split_left(top, third);
    let (prefill, first) = split_left(others, third);
    rate(p, decode, state, (Tokens::Decode, "decode tok/s"), window);
    rate(p, prefill, state, (Tokens::Prefill, "prefill tok/s"), window);
    first_token(p, first, state, window);

    let log_rows = if body.height >= 16 { (body.height / 5).clamp(4, 8) } else { 0 };
    let (middle, bottom) = split_top(body, body.height - log_rows);
    let (left, right) = split_left(middle, middle.width * 3 / 5);
    let memory_rows = if left.height >= 16 { (left.height / 3).clamp(6, 9) } else { 0 };
    let (by_op, owners) = split_top(left, left.height - memory_rows);
    ops::by_op_framed(p, by_op, state, window);
    if memory_rows > 0 {
        memory::owners_framed(p, owners, state);
    }
    let (queue, steps) = split_top(right, 6.min(right.height));
    sequences(p, queue, state);
    let store_rows =
        if steps.height >= 18 { (state.caches.len() as u16 + 3).clamp(4, steps.height / 2) } else { 0 };
    let (steps, caches) = split_top(steps, steps.height - store_rows);
    latencies(p, steps, state, window);
    if store_rows > 0 {
        stores::caches_framed(p, caches, state);
    }
    if log_rows > 0 {
        log::framed(p, bottom, state);
    }
    0
}

/// Figures and their course.
fn graph(p: &mut Painter<'_>, area: Rect, title: &str, figures: Option<[String; 3]>, course: (&[f64], Tone)) {
    let inner = p.frame(area, title);
    let (values, tone) = course;
    let Some([current, median, p95]) = figures else {
        p.text(row(inner, 0), "nothing in this window", Tone::Dim);
        return;
    };
    spread(p, row(inner, 0), [&current, &median, &p95]);
    let (_, room) = split_top(inner, 1);
    let most = values.iter().copied().fold(0.0, f64::max);
    p.columns(room, values, most, tone);
}

/// What is now, in the middle and at the slow end; in short where there is little room.
fn spread(p: &mut Painter<'_>, area: Rect, [current, median, p95]: [&str; 3]) {
    let (middle, end) = if area.width < 34 { (" med ", " p95 ") } else { ("  median ", "  p95 ") };
    let pieces = [
        (current, Tone::Strong),
        (middle, Tone::Dim),
        (median, Tone::Plain),
        (end, Tone::Dim),
        (p95, Tone::Plain),
    ];
    p.pieces(area, &pieces);
}

fn told(spread: Option<Spread>, spell: fn(f64) -> String) -> Option<[String; 3]> {
    spread.map(|Spread { current, median, p95 }| [current, median, p95].map(spell))
}

fn rate(p: &mut Painter<'_>, area: Rect, state: &State, (tokens, title): (Tokens, &str), window: f64) {
    let columns = usize::from(area.width.saturating_sub(2));
    let tone = if tokens == Tokens::Decode { Tone::Decode } else { Tone::Prefill };
    let figures = told(state.rate(tokens, window), units::amount);
    graph(p, area, title, figures, (&state.rates(tokens, window, columns), tone));
}

fn first_token(p: &mut Painter<'_>, area: Rect, state: &State, window: f64) {
    let times = state.first_tokens(window);
    let spread = times.last().and_then(|last| Spread::of(*last, times.clone()));
    graph(p, area, "time to first token", told(spread, units::seconds), (&times, Tone::Warning));
}

/// Who waits and runs, and how full the cache of keys and values is.
fn sequences(p: &mut Painter<'_>, area: Rect, state: &State) {
    let inner = p.frame(area, "sequences and kv cache");
    let Some(queue) = &state.queue else {
        p.text(row(inner, 0), "nothing is known of the queue yet", Tone::Dim);
        return;
    };
    let (running, waiting) = (units::count(queue.running), units::count(queue.waiting));
    let totals = format!(
        "  requests {} ({} ended)",
        units::count(state.totals.requests),
        units::count(state.totals.ended)
    );
    let waits = if queue.waiting > 0 { Tone::Warning } else { Tone::Plain };
    p.pieces(
        row(inner, 0),
        &[
            ("running ", Tone::Dim),
            (&running, Tone::Strong),
            ("  waiting ", Tone::Dim),
            (&waiting, waits),
            (&totals, Tone::Dim),
        ],
    );
    kv_bar(p, row(inner, 1), state);
    let blocks = format!(
        "{} held + {} cached of {}",
        units::count(queue.held_blocks),
        units::count(queue.cached_blocks),
        units::count(queue.block_limit)
    );
    p.pieces(row(inner, 2), &[(&blocks, Tone::Plain), (" blocks", Tone::Dim)]);
    let set_aside = units::count(queue.preemptions);
    let tone = if queue.preemptions > 0 { Tone::Warning } else { Tone::Plain };
    let more = format!(
        "  prefix tokens {}  reserved {}",
        units::count(queue.prefix_tokens),
        units::count(queue.reserved_blocks)
    );
    p.pieces(row(inner, 3), &[("set aside ", Tone::Dim), (&set_aside, tone), (&more, Tone::Dim)]);
}

/// The part of all blocks that sequences hold.
fn kv_bar(p: &mut Painter<'_>, area: Rect, state: &State) {
    let Some(queue) = state.queue.as_ref().filter(|queue| queue.block_limit > 0) else { return };
    let share = queue.held_blocks as f64 / queue.block_limit as f64;
    let taken = p.text(area, "kv ", Tone::Dim);
    let label = p.text_right(area, &units::percent(share), Tone::Plain);
    let bar = skip_left(area, taken);
    let tone = if share > 0.9 { Tone::Warning } else { Tone::Memory };
    p.bar(Rect { width: bar.width.saturating_sub(label + 1), ..bar }, share, tone);
}

/// What steps take, and how many take how long.
fn latencies(p: &mut Painter<'_>, area: Rect, state: &State, window: f64) {
    let inner = p.frame(area, "step latency");
    let Some([last, median, p95]) = told(state.latency(window), units::seconds) else {
        p.text(row(inner, 0), "no step in this window", Tone::Dim);
        return;
    };
    spread(p, row(inner, 0), [&last, &median, &p95]);
    let (_, room) = split_top(inner, 1);
    let counts = merged(state.latencies(window), room.height.into());
    let most = counts.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    for (index, (limit, count)) in counts.iter().enumerate() {
        let line = row(room, index as u16);
        let limit = if limit.is_finite() {
            format!("up to {}", units::seconds(*limit).replace(".00", "").replace(".0 ", " "))
        } else {
            "more".to_owned()
        };
        p.text(line, &limit, Tone::Dim);
        let bar = skip_left(line, 14);
        let label = units::count(*count);
        p.text_right(bar, &label, Tone::Plain);
        p.bar(Rect { width: bar.width.saturating_sub(6), ..bar }, *count as f64 / most as f64, Tone::Prefill);
    }
}

/// So few that they fit: the smallest are added to their neighbour above.
fn merged(mut counts: Vec<(f64, u64)>, room: usize) -> Vec<(f64, u64)> {
    while counts.len() > room.max(1) {
        let pair = |index: &usize| counts[*index].1.saturating_add(counts[*index + 1].1);
        let Some(least) = (0..counts.len() - 1).min_by_key(pair) else { break };
        let (_, count) = counts.remove(least);
        counts[least].1 = counts[least].1.saturating_add(count);
    }
    counts
}

/// Line by line, on small screens.
pub(crate) fn bare(p: &mut Painter<'_>, area: Rect, state: &State, window: f64) -> usize {
    let mut line = 0;
    let mut next = || {
        line += 1;
        row(area, line - 1)
    };
    for (tokens, name, tone) in
        [(Tokens::Decode, "decode", Tone::Decode), (Tokens::Prefill, "prefill", Tone::Prefill)]
    {
        let at = next();
        let figure = told(state.rate(tokens, window), units::amount).map_or_else(
            || "-".to_owned(),
            |[current, median, _]| format!("{current} tok/s, median {median} "),
        );
        let label = format!("{name:8}");
        let taken = p.pieces(at, &[(&label, Tone::Dim), (&figure, Tone::Plain)]);
        let room = skip_left(at, taken);
        let rates = state.rates(tokens, window, room.width.into());
        p.columns(room, &rates, rates.iter().copied().fold(0.0, f64::max), tone);
    }
    let times = state.first_tokens(window);
    let spread = times.last().and_then(|last| Spread::of(*last, times.clone()));
    let figure = told(spread, units::seconds).map_or_else(
        || "-".to_owned(),
        |[current, median, p95]| format!("{current}, median {median}, p95 {p95}"),
    );
    p.pieces(next(), &[("ttft    ", Tone::Dim), (&figure, Tone::Plain)]);
    let figure = told(state.latency(window), units::seconds).map_or_else(
        || "-".to_owned(),
        |[current, median, p95]| format!("{current}, median {median}, p95 {p95}"),
    );
    p.pieces(next(), &[("step    ", Tone::Dim), (&figure, Tone::Plain)]);
    let queue = state.queue.as_ref().map_or_else(
        || "-".to_owned(),
        |queue| format!("{} running, {} waiting", units::count(queue.running), units::count(queue.waiting)),
    );
    p.pieces(next(), &[("queue   ", Tone::Dim), (&queue, Tone::Plain)]);
    if state.queue.is_some() {
        kv_bar(p, next(), state);
    }
    if let Some(entry) = state.log().next() {
        let text = format!("{}: {}", entry.about, entry.text);
        p.text(next(), &text, log::tone(entry.level));
    }
    let (_, rest) = split_top(area, line);
    ops::by_op(p, rest, state, window, 0);
    0
}

#[cfg(test)]
mod tests {
    use super::merged;

    #[test]
    fn a_histogram_fits_and_loses_nothing() {
        let counts = vec![(1.0, 5), (2.0, 0), (3.0, 1), (4.0, 9)];
        assert_eq!(merged(counts.clone(), 9), counts);
        assert_eq!(merged(counts.clone(), 2), [(3.0, 6), (4.0, 9)]);
        assert_eq!(merged(counts, 0), [(4.0, 15)]);
        assert!(merged(Vec::new(), 3).is_empty());
    }
}
