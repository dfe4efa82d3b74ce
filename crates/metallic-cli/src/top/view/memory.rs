//! Memory by owner, and who carries out operations.

use metallic_telemetry::ProviderChoice;
use ratatui_core::layout::Rect;

use super::{
    paint::{Painter, row, split_top},
    table::{self, Cell, Column, left, rest, right, text},
    theme::Tone,
    units,
};
use crate::{term, top::state::State};

const OWNERS: [Column; 4] =
    [left("owner", 14, 0), right("bytes", 9, 0), rest("", 8, 1), right("share", 6, 0)];

const PROVIDERS: [Column; 5] = [
    left("operation", 12, 0),
    left("provider", 10, 0),
    left("why", 11, 0),
    left("instead of", 10, 1),
    rest("error", 10, 2),
];

pub(crate) fn pane(p: &mut Painter<'_>, area: Rect, state: &State, scroll: usize) -> usize {
    let (owners_area, providers_area) = split_top(area, area.height.div_ceil(2));
    let (owners_inner, providers_inner) = if area.height >= 14 {
        let title = owners_title(state);
        (p.frame(owners_area, &title), p.frame(providers_area, "who carries out operations"))
    } else {
        (owners_area, providers_area)
    };
    owners(p, owners_inner, state, scroll).max(providers(p, providers_inner, state, scroll))
}

pub(crate) fn owners_framed(p: &mut Painter<'_>, area: Rect, state: &State) {
    let title = owners_title(state);
    let inner = p.frame(area, &title);
    owners(p, inner, state, 0);
}

fn owners_title(state: &State) -> String {
    let Some(memory) = &state.memory else { return "memory".to_owned() };
    let all = total(state);
    match memory.budget_bytes {
        Some(budget) => format!("memory: {} of {}", term::size(all), term::size(budget)),
        None => format!("memory: {}", term::size(all)),
    }
}

fn total(state: &State) -> u64 {
    let owners = state.memory.iter().flat_map(|memory| &memory.owners);
    owners.fold(0, |all, owned| all.saturating_add(owned.bytes))
}

/// The largest first, as shares of the budget, or of all where there is none.
fn owners(p: &mut Painter<'_>, area: Rect, state: &State, scroll: usize) -> usize {
    let Some(memory) = &state.memory else {
        p.text(row(area, 0), "nothing is known of memory yet", Tone::Dim);
        return 0;
    };
    let all = total(state);
    let whole = memory.budget_bytes.unwrap_or(all).max(1) as f64;
    let mut owners: Vec<_> = memory.owners.iter().collect();
    owners.sort_by_key(|owned| std::cmp::Reverse(owned.bytes));
    let line = |name: &str, bytes: u64, tone| {
        let share = bytes as f64 / whole;
        let tone = if share > 0.95 && memory.budget_bytes.is_some() { Tone::Warning } else { tone };
        vec![text(name), text(term::size(bytes)), Cell::Bar(share, tone), text(units::percent(share))]
    };
    let mut rows: Vec<_> = owners.iter().map(|owned| line(&owned.owner, owned.bytes, Tone::Memory)).collect();
    if rows.len() > 1 {
        rows.push(line("all", all, Tone::Decode));
    }
    table::draw(p, area, &OWNERS, &rows, scroll)
}

/// What stands in for something else comes first.
fn providers(p: &mut Painter<'_>, area: Rect, state: &State, scroll: usize) -> usize {
    if state.providers.is_empty() {
        p.text(row(area, 0), "no provider was chosen yet", Tone::Dim);
        return 0;
    }
    let mut choices: Vec<&ProviderChoice> = state.providers.iter().collect();
    choices.sort_by_key(|choice| choice.why != "fallback");
    let rows: Vec<_> = choices.into_iter().map(provider).collect();
    table::draw(p, area, &PROVIDERS, &rows, scroll)
}

fn provider(choice: &ProviderChoice) -> Vec<Cell> {
    let tone = if choice.why == "fallback" { Tone::Warning } else { Tone::Plain };
    let cell = |text: &str| Cell::Text(text.to_owned(), tone);
    vec![
        cell(&choice.op),
        cell(&choice.provider),
        cell(&choice.why),
        cell(choice.instead_of.as_deref().unwrap_or("-")),
        cell(choice.error.as_deref().unwrap_or("-")),
    ]
}
