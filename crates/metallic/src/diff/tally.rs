//! What a comparison has found so far.

use std::collections::BTreeMap;

use metallic_core::NodeId;

use super::check::Check;
use super::figures::{Figures, figures};
use super::lineage::Lineage;
use super::record::{Fed, StepTaps};
use super::report::{Explanation, Finding, OpReport, Report, Verdict};
use super::weights::WeightDiff;
use super::{Side, What};

/// Which result: the node of the model's graph that has the value, one after it that only types have added, and what of it.
pub(crate) type Key = (usize, usize, What);

/// A result that rounding does not explain.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) step: usize,
    pub(crate) check: Check,
}

#[derive(Default)]
struct Row {
    step: usize,
    figures: Option<Figures>,
    /// The worst check of each side.
    checks: [Option<Check>; 2],
}

#[derive(Default)]
pub(crate) struct Tally {
    rows: BTreeMap<Key, Row>,
    failures: BTreeMap<Key, [Option<Failure>; 2]>,
    /// The tokens of each step.
    pub(crate) fed: Vec<Fed>,
    /// Whether both sides' logits have the same best token, by step.
    agree: Vec<bool>,
    pub(crate) weights: Vec<WeightDiff>,
}

impl Tally {
    pub(crate) fn has_failed(&self) -> bool {
        !self.failures.is_empty()
    }

    /// The first failure, and whose it is.
    pub(crate) fn first_failure(&self) -> Option<(usize, Failure)> {
        let sides = self.failures.values().next()?;
        sides.iter().enumerate().find_map(|(side, failure)| Some((side, failure.clone()?)))
    }

    pub(crate) fn add(
        &mut self,
        step: usize,
        fed: &Fed,
        lineages: [&Lineage; 2],
        taps: &[StepTaps; 2],
        checks: [Vec<Check>; 2],
    ) {
        let mut both: BTreeMap<Key, [Option<Check>; 2]> = BTreeMap::new();
        for (side, checks) in checks.into_iter().enumerate() {
            for check in checks {
                let key = key(lineages[side], check.node, check.what);
                both.entry(key).or_default()[side] = Some(check);
            }
        }
        for (key, sides) in both {
            let values = [0, 1].map(|side| {
                let check = sides[side].as_ref()?;
                numbers(&taps[side], check)
            });
            let found = match values {
                [Some(a), Some(b)] => {
                    let bound = |side: usize, at: usize| {
                        sides[side].as_ref().and_then(|check| check.bounds.get(at)).copied().unwrap_or(0.0)
                    };
                    let cols = a.len() / fed_rows(lineages[0], &sides, fed).max(1);
                    Some(figures(a, b, |at| bound(0, at) + bound(1, at), cols))
                }
                _ => None,
            };
            self.take(step, key, found, sides);
        }
        self.agree.push(super::best(&taps[0].logits) == super::best(&taps[1].logits));
        self.fed.push(fed.clone());
    }

    /// Keeps the worst of each result over all steps, and what failed.
    fn take(&mut self, step: usize, key: Key, found: Option<Figures>, sides: [Option<Check>; 2]) {
        for (side, check) in sides.iter().enumerate() {
            if let Some(check) = check.as_ref().filter(|check| !check.passed()) {
                let failure = Failure { step, check: check.clone() };
                self.failures.entry(key).or_default()[side].get_or_insert(failure);
            }
        }
        let row = self.rows.entry(key).or_default();
        let worse = |new: &Figures, old: &Figures| new.relative > old.relative || (old.equal && !new.equal);
        if let Some(found) = found
            && row.figures.as_ref().is_none_or(|old| worse(&found, old))
        {
            (row.figures, row.step) = (Some(found), step);
        }
        for (kept, check) in row.checks.iter_mut().zip(sides) {
            let Some(mut check) = check else { continue };
            check.bounds = Vec::new();
            if kept
                .as_ref()
                .is_none_or(|old| check.error.loose > old.error.loose || old.error.tight < check.error.tight)
            {
                *kept = Some(check);
            }
        }
    }

    /// All of it, with a verdict.
    pub(crate) fn report(
        self,
        sides: [&Side<'_>; 2],
        lineages: [&Lineage; 2],
        bisected: Option<String>,
    ) -> Report {
        let verdict = self.verdict(sides, lineages, bisected);
        let (mut ops, mut compared) = (Vec::new(), 0);
        for (key, row) in &self.rows {
            compared += usize::from(row.figures.is_some());
            let Some((side, check)) = first(&row.checks) else { continue };
            let lineage = lineages[side];
            let typed = lineage.carried.origins[check.node.0].node;
            let name = |side: usize| {
                let check = row.checks[side].as_ref()?;
                Some(lineages[side].carried.graph.node(check.node).op.name().to_owned())
            };
            ops.push(OpReport {
                node: key.0,
                ops: [name(0), name(1)],
                what: check.what,
                layer: lineage.layer(typed),
                part: lineage.carried.graph.part(check.node),
                step: row.step,
                figures: row.figures.clone(),
                errors: [0, 1].map(|side| row.checks[side].as_ref().map(|check| check.error.clone())),
            });
        }
        Report {
            verdict,
            sides: sides.map(|side| side.name.clone()),
            tokens: self.fed.iter().map(|fed| fed.tokens.clone()).collect(),
            same_choice: self.agree,
            compared,
            ops,
        }
    }

    fn verdict(&self, sides: [&Side<'_>; 2], lineages: [&Lineage; 2], bisected: Option<String>) -> Verdict {
        let by_weights = self.weights.iter().find(|weight| weight.differs);
        let by_op = self.failures.iter().next();
        if let Some(weight) = by_weights
            && by_op.is_none_or(|(key, _)| weight.reader <= key.0)
        {
            let lineage = lineages[0];
            let node = reader(lineage, weight.reader);
            return Verdict::Differs(Box::new(weight.finding(lineage, node)));
        }
        if let Some((_, failures)) = by_op
            && let Some(finding) = finding(sides, lineages, failures, bisected)
        {
            return Verdict::Differs(Box::new(finding));
        }
        let equal = |row: &Row| row.figures.as_ref().is_none_or(|figures| figures.equal);
        let explanations = self.explanations(sides, lineages);
        if self.rows.values().all(equal) && self.weights.is_empty() {
            Verdict::Equal
        } else if explanations.is_empty() {
            Verdict::Rounding
        } else {
            Verdict::Explained(explanations)
        }
    }

    /// Why the sides may differ as much as they do.
    fn explanations(&self, sides: [&Side<'_>; 2], lineages: [&Lineage; 2]) -> Vec<Explanation> {
        let mut found = Vec::new();
        for side in 0..2 {
            let beyond = |check: &&Check| check.error.tight > 1.0;
            let checks = self.rows.values().filter_map(|row| row.checks[side].as_ref()).filter(beyond);
            let mut checks = checks.peekable();
            if let Some(first) = checks.peek() {
                let node = first.node;
                let lineage = lineages[side];
                found.push(Explanation::Products {
                    side: sides[side].name.clone(),
                    to: sides[side].products.into(),
                    op: lineage.carried.graph.node(node).op.name().to_owned(),
                    layer: lineage.layer(lineage.carried.origins[node.0].node),
                    part: lineage.carried.graph.part(node),
                    ops: checks.count(),
                });
            }
        }
        let [a, b] = sides.map(|side| side.options);
        if a.kv != b.kv {
            found.push(Explanation::Cache { types: [a.kv, b.kv].map(|dtype| dtype.to_string()) });
        }
        if a.activations != b.activations {
            let types = [a.activations, b.activations].map(|dtype| dtype.to_string());
            found.push(Explanation::Activations { types });
        }
        if let Some(first) = self.weights.first() {
            let (tensor, types) = (first.name.clone(), first.types.map(|dtype| dtype.to_string()));
            found.push(Explanation::Weights { tensor, types, tensors: self.weights.len() });
        }
        found
    }
}

/// What is to be said of the failures of one result.
fn finding(
    sides: [&Side<'_>; 2],
    lineages: [&Lineage; 2],
    failures: &[Option<Failure>; 2],
    bisected: Option<String>,
) -> Option<Finding> {
    let (side, failure) = failures.iter().enumerate().find_map(|(side, of)| Some((side, of.as_ref()?)))?;
    let (check, lineage) = (&failure.check, lineages[side]);
    let origin = &lineage.carried.origins[check.node.0];
    let op = |id: &NodeId| lineage.typed.node(*id).op.name().to_owned();
    let both = failures.iter().all(Option::is_some);
    Some(Finding {
        side: if both { "both".to_owned() } else { sides[side].name.clone() },
        op: lineage.carried.graph.node(check.node).op.name().to_owned(),
        what: check.what,
        layer: lineage.layer(origin.node),
        part: lineage.carried.graph.part(check.node),
        tensors: lineage.tensors(check.node),
        step: failure.step,
        error: Some(check.error.clone()),
        parts: if origin.rule.is_some() { origin.parts.iter().map(op).collect() } else { Vec::new() },
        bisected,
        reason: check.foreign.clone(),
    })
}

/// The check that is there, the first side's before the second's.
fn first(checks: &[Option<Check>; 2]) -> Option<(usize, &Check)> {
    checks.iter().enumerate().find_map(|(side, check)| Some((side, check.as_ref()?)))
}

/// Results of nodes that only types have added stand after the one they were added to.
fn key(lineage: &Lineage, node: NodeId, what: What) -> Key {
    if let Some(model) = lineage.of_model[node.0] {
        return (model.0, 0, what);
    }
    let before = lineage.of_model[..node.0].iter().rev().find_map(|id| *id);
    (before.map_or(0, |id| id.0), node.0, what)
}

fn numbers<'t>(taps: &'t StepTaps, check: &Check) -> Option<&'t [f32]> {
    let rows = |taps: &'t StepTaps| taps.kept.get(check.state?.0)?.as_ref();
    match check.what {
        What::Output => Some(taps.values[check.node.0].as_ref()?.floats()),
        What::Keys => Some(&rows(taps)?.keys),
        What::Values => Some(&rows(taps)?.values),
    }
}

/// Rows of a result: tokens, or those whose result was asked for.
fn fed_rows(lineage: &Lineage, sides: &[Option<Check>; 2], fed: &Fed) -> usize {
    let tokens = fed.tokens.len();
    let sizes = metallic_core::Sizes { tokens, outputs: 1 };
    match &sides[0] {
        Some(check) if check.what == What::Output => {
            lineage.carried.graph.node(check.node).ty.shape.rows(sizes)
        }
        Some(_) | None => tokens,
    }
}

/// The node that is carried out and has the value of this node of the model, or the first one after.
fn reader(lineage: &Lineage, model: usize) -> NodeId {
    let at = lineage.of_model.iter().enumerate();
    let computed = |id: usize| !lineage.carried.graph.node(NodeId(id)).op.is_source();
    let found = at.into_iter().find(|(id, of)| of.is_some_and(|of| of.0 >= model) && computed(*id));
    NodeId(found.map_or(0, |(id, _)| id))
}
