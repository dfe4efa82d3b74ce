//! Caches of all kinds side by side, and pools of memory.

use metallic_telemetry::{CacheSummary, PoolSummary};
use ratatui_core::layout::Rect;

use super::{
    paint::{Painter, row, split_top},
    table::{self, Cell, Column, left, maybe, rest, right, text},
    theme::Tone,
    units,
};
use crate::{term, top::state::State};

const CACHES: [Column; 10] = [
    rest("cache", 10, 0),
    right("entries", 7, 0),
    right("limit", 6, 5),
    left("", 8, 4),
    right("hit rate", 8, 0),
    right("hits", 6, 3),
    right("misses", 6, 3),
    right("evicted", 7, 1),
    right("make time", 9, 2),
    right("idle", 8, 3),
];

const POOLS: [Column; 7] = [
    rest("pool", 10, 0),
    right("live", 9, 0),
    right("idle", 9, 1),
    right("peak", 9, 1),
    right("budget", 9, 2),
    right("allocated", 9, 3),
    right("reused", 7, 3),
];

pub(crate) fn pane(p: &mut Painter<'_>, area: Rect, state: &State, scroll: usize) -> usize {
    let compiled = &state.compiled;
    let kernels = format!(
        "kernels: {} compiled, {} from disk, {} failed, {} in all",
        units::count(compiled.made),
        units::count(compiled.from_disk),
        units::count(compiled.failed),
        units::seconds(compiled.seconds)
    );
    let (first, area) = split_top(area, 1);
    p.text(first, &kernels, if compiled.failed > 0 { Tone::Fault } else { Tone::Plain });
    let pools = (state.pools.len() as u16).saturating_add(3).min(area.height / 2);
    let pools = if state.pools.is_empty() { 0 } else { pools };
    let (caches, pools) = split_top(area, area.height - pools);
    let (caches, pools) = if area.height >= 14 {
        (p.frame(caches, "caches"), p.frame(pools, "pools of memory"))
    } else {
        (caches, pools)
    };
    let beyond = all(p, caches, state, scroll);
    let rows: Vec<_> = state.pools.values().map(pool).collect();
    beyond.max(if rows.is_empty() { 0 } else { table::draw(p, pools, &POOLS, &rows, scroll) })
}

pub(crate) fn caches_framed(p: &mut Painter<'_>, area: Rect, state: &State) {
    let inner = p.frame(area, "caches");
    all(p, inner, state, 0);
}

fn all(p: &mut Painter<'_>, area: Rect, state: &State, scroll: usize) -> usize {
    let rows: Vec<_> = state.caches.values().map(cache).collect();
    if rows.is_empty() {
        p.text(row(area, 0), "no cache has told of itself yet", Tone::Dim);
        return 0;
    }
    table::draw(p, area, &CACHES, &rows, scroll)
}

fn cache(cache: &CacheSummary) -> Vec<Cell> {
    let asked = cache.hits.saturating_add(cache.misses);
    let rate = (asked > 0).then(|| cache.hits as f64 / asked as f64);
    let evicted = if cache.evictions > 0 { Tone::Warning } else { Tone::Plain };
    vec![
        text(&*cache.cache),
        text(units::count(cache.entries)),
        maybe(cache.limit, units::count),
        Cell::Bar(rate.unwrap_or(0.0), Tone::Memory),
        maybe(rate, units::percent),
        text(units::count(cache.hits)),
        text(units::count(cache.misses)),
        Cell::Text(units::count(cache.evictions), evicted),
        text(units::seconds(cache.make_seconds)),
        maybe(cache.idle_seconds, units::seconds),
    ]
}

fn pool(pool: &PoolSummary) -> Vec<Cell> {
    vec![
        text(&*pool.pool),
        text(term::size(pool.live_bytes)),
        text(term::size(pool.idle_bytes)),
        text(term::size(pool.peak_bytes)),
        maybe(pool.budget_bytes, term::size),
        text(units::count(pool.allocations)),
        text(units::count(pool.reuses)),
    ]
}
