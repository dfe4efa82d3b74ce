//! Whether what a side has made follows from its own inputs: every operation is computed again by the reference.

use std::collections::HashMap;
use std::ops::Range;

use metallic_core::quant::{dequantize, quantize};
use metallic_core::reference::{Expected, Oracle, ProductInputs};
use metallic_core::{DType, KvRows, NodeId, Op, StateId, Step, Tapped};

use super::figures::{Deviation, Place, errors};
use super::lineage::Lineage;
use super::record::StepTaps;
use super::{DiffError, Side, What};

/// What was found of one result of one side.
#[derive(Clone, Debug)]
pub(crate) struct Check {
    /// The node that is carried out.
    pub(crate) node: NodeId,
    pub(crate) what: What,
    /// Whose keys or values.
    pub(crate) state: Option<StateId>,
    /// Off what the reference makes of the same inputs.
    pub(crate) error: Deviation,
    /// What 32-bit arithmetic explains, element by element.
    pub(crate) bounds: Vec<f32>,
    /// Set where numbers are not such as the cache's type holds.
    pub(crate) foreign: Option<String>,
}

impl Check {
    /// Whether rounding explains it, that of products by design included.
    pub(crate) fn passed(&self) -> bool {
        self.foreign.is_none() && self.error.loose <= 1.0
    }
}

/// Computes the operations of a side again, step by step.
pub(crate) struct Checker {
    oracle: Oracle,
    /// The type of the cache, where its numbers came as they are.
    kv: DType,
}

impl Checker {
    /// `stored`: the type in which values came.
    pub(crate) fn new(side: &Side<'_>, lineage: &Lineage, stored: DType) -> Result<Checker, DiffError> {
        let oracle = Oracle::new(&lineage.typed, side.options.kv, side.products)?.given_as(stored);
        let kv = if stored == DType::F32 { side.options.kv } else { DType::F32 };
        Ok(Checker { oracle, kv })
    }

    pub(crate) fn of(lineage: &Lineage, kv: DType, products: ProductInputs) -> Result<Checker, DiffError> {
        Ok(Checker { oracle: Oracle::new(&lineage.typed, kv, products)?, kv })
    }

    /// Begins a step of which one operation is checked, with what one state keeps at most.
    pub(crate) fn begin_with(&mut self, step: &Step<'_>, state: Option<StateId>) {
        self.oracle.begin_with(step, state);
    }

    pub(crate) fn give_kept(
        &mut self,
        state: StateId,
        table: &[u32],
        positions: Range<usize>,
        rows: &KvRows,
    ) -> Result<(), DiffError> {
        Ok(self.oracle.give_kept(state, table, positions, rows)?)
    }

    /// Checks one node of a step that was [begun](Checker::begin_with); `taps` has its inputs and its result.
    pub(crate) fn check_one(
        &mut self,
        lineage: &Lineage,
        taps: &StepTaps,
        step: &Step<'_>,
        node: NodeId,
    ) -> Result<Vec<Check>, DiffError> {
        for input in &lineage.carried.graph.node(node).inputs {
            // A receipt has no numbers: what it stands for was given as what is kept.
            let receipt =
                || lineage.carried.graph.node(*input).op.has_effect().then(|| Tapped::Words(Vec::new()));
            if let Some(value) = taps.values[input.0].clone().or_else(receipt) {
                self.oracle.give(lineage.carried.origins[input.0].node, value)?;
            }
        }
        // Fused, the queries are the receipt as well; the graph before has one of its own.
        for part in &lineage.carried.origins[node.0].parts {
            for input in &lineage.typed.node(*part).inputs {
                if matches!(lineage.typed.node(*input).op, Op::KvWrite { .. }) {
                    self.oracle.give(*input, Tapped::Words(Vec::new()))?;
                }
            }
        }
        self.check_node(lineage, taps, step, node)
    }

    /// Checks the results of a step in order; `wanted` says which, others are only taken over.
    pub(crate) fn check(
        &mut self,
        lineage: &Lineage,
        taps: &StepTaps,
        step: &Step<'_>,
        wanted: impl Fn(NodeId) -> bool,
    ) -> Result<Vec<Check>, DiffError> {
        self.oracle.begin(step);
        let mut found = Vec::new();
        for id in (0..lineage.carried.graph.nodes().len()).map(NodeId) {
            let node = lineage.carried.graph.node(id);
            let made = taps.values[id.0].is_some() || node.op.has_effect();
            if !made || node.op.is_source() {
                continue;
            }
            // A recurrent state follows only where every step is computed again.
            if wanted(id) || node.op.has_effect() {
                let checks = self.check_node(lineage, taps, step, id)?;
                found.extend(checks.into_iter().filter(|_| wanted(id)));
            } else if let Some(value) = &taps.values[id.0] {
                self.oracle.give(lineage.carried.origins[id.0].node, value.clone())?;
            }
        }
        Ok(found)
    }

    /// Computes one node again, with others as they were given.
    fn check_node(
        &mut self,
        lineage: &Lineage,
        taps: &StepTaps,
        step: &Step<'_>,
        id: NodeId,
    ) -> Result<Vec<Check>, DiffError> {
        let node = lineage.carried.graph.node(id);
        let (origin, value) = (&lineage.carried.origins[id.0], taps.values[id.0].as_ref());
        let mut found = Vec::new();
        let mut expected = HashMap::new();
        for part in &origin.parts {
            expected.insert(*part, self.oracle.follow(*part, step)?);
        }
        let output = expected.get(&origin.node);
        if let Some((expected, value)) = output.zip(value) {
            found.push(checked(id, expected, value, node.ty.shape.cols()));
        }
        for part in &origin.parts {
            let Op::KvWrite { state, .. } = lineage.typed.node(*part).op else { continue };
            let rows = taps.kept.get(state.0).and_then(Option::as_ref);
            let Some(rows) = rows else { return Err(DiffError::NotKept { state: state.0 }) };
            if let Some(expected) = expected.get(part) {
                found.extend(self.check_write(id, state, expected, rows, step)?);
            }
            self.take_over(state, rows, step)?;
        }
        if let Some(value) = value {
            self.oracle.give(origin.node, value.clone())?;
        }
        Ok(found)
    }

    /// Compares what the cache holds with what the reference would have stored.
    fn check_write(
        &self,
        node: NodeId,
        state: StateId,
        expected: &Expected,
        rows: &KvRows,
        step: &Step<'_>,
    ) -> Result<[Check; 2], DiffError> {
        let mut stored = KvRows::default();
        for span in step.sequences {
            let part = self.oracle.kept(state, span.table(self.is_near(state)), span.past..span.kv_len())?;
            stored.keys.extend(part.keys);
            stored.values.extend(part.values);
        }
        let tokens = step.tokens.len().max(1);
        let (keys, values) = (stored.keys.len(), stored.values.len());
        let part = |what, stored: Vec<f32>, found: &[f32], from: usize| {
            let cols = stored.len() / tokens;
            let bounds = |all: &[f32]| all.get(from..from + stored.len()).unwrap_or(&[]).to_vec();
            let (tight, loose) = (bounds(&expected.tight), bounds(&expected.loose));
            let expected = Expected { value: Tapped::Floats(stored), tight, loose };
            let found = Tapped::Floats(found.to_vec());
            let foreign = foreign(self.kv, found.floats());
            Check { what, foreign, state: Some(state), ..checked(node, &expected, &found, cols) }
        };
        debug_assert_eq!(expected.tight.len(), keys + values);
        Ok([
            part(What::Keys, stored.keys, &rows.keys, 0),
            part(What::Values, stored.values, &rows.values, keys),
        ])
    }

    pub(crate) fn is_near(&self, state: StateId) -> bool {
        let layout = self.oracle.layout();
        layout.kv(state).is_some_and(|kv| layout.is_near(kv))
    }

    /// Attention is computed again from what the device has in its cache.
    fn take_over(&mut self, state: StateId, rows: &KvRows, step: &Step<'_>) -> Result<(), DiffError> {
        let (near, tokens) = (self.is_near(state), step.tokens.len().max(1));
        let (k, v) = (rows.keys.len() / tokens, rows.values.len() / tokens);
        for span in step.sequences {
            let part = KvRows {
                keys: rows.keys[span.tokens.start * k..span.tokens.end * k].to_vec(),
                values: rows.values[span.tokens.start * v..span.tokens.end * v].to_vec(),
            };
            self.oracle.give_kept(state, span.table(near), span.past..span.kv_len(), &part)?;
        }
        Ok(())
    }
}

fn checked(node: NodeId, expected: &Expected, found: &Tapped, cols: usize) -> Check {
    let error = match (&expected.value, found) {
        (Tapped::Words(expected), Tapped::Words(found)) => of_indices(expected, found, cols),
        (expected_value, found) => {
            errors(found.floats(), expected_value.floats(), [&expected.tight, &expected.loose], cols)
        }
    };
    Check { node, what: What::Output, state: None, error, bounds: expected.tight.clone(), foreign: None }
}

/// The same inputs give the same indices.
fn of_indices(expected: &[u32], found: &[u32], cols: usize) -> Deviation {
    let other = expected.iter().zip(found).position(|(a, b)| a != b);
    let at = other.or((expected.len() != found.len()).then_some(0));
    let Some(at) = at else { return Deviation { gain: 1.0, ..Deviation::default() } };
    let number = |of: &[u32]| of.get(at).map_or(f32::NAN, |id| *id as f32);
    let (found, expected) = (number(found), number(expected));
    let place = Place { row: at / cols.max(1), column: at % cols.max(1) };
    let off = f64::INFINITY;
    Deviation {
        tight: off,
        loose: off,
        place,
        found,
        expected,
        largest: f64::from((found - expected).abs()),
        gain: 1.0,
        ..Deviation::default()
    }
}

/// Says how numbers are not such as this type of the cache holds.
fn foreign(dtype: DType, found: &[f32]) -> Option<String> {
    if dtype == DType::F32 {
        return None;
    }
    let mut bytes = vec![0; dtype.bytes_for(found.len())?];
    let mut again = vec![0.0; found.len()];
    quantize(dtype, found, &mut bytes).ok()?;
    dequantize(dtype, &bytes, &mut again).ok()?;
    let group = dtype.block_len();
    let off = found.chunks(group).zip(again.chunks(group)).position(|(found, again)| {
        // A scale is a half: it may round to its neighbour when it is made again.
        let top = found.iter().fold(0f32, |top, x| x.abs().max(top));
        let slack = if group > 1 { top / 127.0 * 0.1 } else { 0.0 };
        found.iter().zip(again).any(|(a, b)| a.is_finite() && (a - b).abs() > slack)
    })?;
    Some(format!("{} is no number of {dtype}, the type that was asked for", found[off * group]))
}
