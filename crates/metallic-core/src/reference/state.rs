//! What is kept between steps, as plain numbers that were rounded to the storage type.

use super::ops;
use super::value::{Value, failed};
use crate::{
    Attention, BLOCK_TOKENS, BackendError, Blocks, KvRows, KvState, Recurrence, SequenceSpan, State, StateId,
    StateLayout, Step,
};
use std::ops::Range;

#[derive(Debug)]
pub(super) struct Kept {
    layout: StateLayout,
    /// By state. Keys and values: blocks × tokens of a block × (keys, values of all heads). Recurrent: slots × numbers.
    states: Vec<Vec<f32>>,
    pub(super) blocks: Blocks,
    slots: usize,
}

impl Kept {
    pub(super) fn new(layout: StateLayout) -> Kept {
        let states = vec![Vec::new(); layout.states().len()];
        Kept { layout, states, blocks: Blocks::default(), slots: 0 }
    }

    pub(super) fn layout(&self) -> &StateLayout {
        &self.layout
    }

    pub(super) fn slots(&self) -> Option<usize> {
        self.layout.is_recurrent().then_some(self.slots)
    }

    pub(super) fn bytes(&self) -> usize {
        self.layout.bytes_of(self.blocks) + self.slots * self.layout.sequence_bytes()
    }

    pub(super) fn reserve(&mut self, blocks: Blocks, slots: usize) {
        self.blocks = self.layout.settled(self.blocks.max(blocks));
        self.slots = self.slots.max(slots);
        for (numbers, state) in self.states.iter_mut().zip(self.layout.states()) {
            let len = match state {
                Some(State::Kv(kv)) => {
                    let blocks = if self.layout.is_near(kv) { self.blocks.near } else { self.blocks.far };
                    blocks * BLOCK_TOKENS * token_len(kv)
                }
                Some(State::Recurrent(elements)) => self.slots * elements,
                None => 0,
            };
            // Unwritten cache is poison: reading it must show.
            numbers.resize(len, f32::NAN);
        }
    }

    /// Lets go of all, and makes room in one state alone.
    pub(super) fn reserve_only(&mut self, only: Option<StateId>, blocks: usize) {
        (self.blocks, self.slots) = (Blocks::both(blocks), 0);
        for (id, numbers) in self.states.iter_mut().enumerate() {
            let kv = self.layout.kv(StateId(id)).filter(|_| only == Some(StateId(id)));
            *numbers = vec![f32::NAN; kv.map_or(0, |kv| blocks * BLOCK_TOKENS * token_len(kv))];
        }
    }

    pub(super) fn copy_slot(&mut self, from: u32, to: u32) {
        for (numbers, state) in self.states.iter_mut().zip(self.layout.states()) {
            if let Some(State::Recurrent(elements)) = state {
                let start = from as usize * elements;
                numbers.copy_within(start..start + elements, to as usize * elements);
            }
        }
    }

    fn kv(&self, id: StateId) -> KvState {
        self.layout.kv(id).copied().unwrap_or_default()
    }

    pub(super) fn write(
        &mut self,
        id: StateId,
        step: &Step<'_>,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), BackendError> {
        let kv = self.kv(id);
        let (k_cols, v_cols) = (kv.kv_heads * kv.key_dim, kv.kv_heads * kv.value_dim);
        let (dtype, near) = (self.layout.dtype(), self.layout.is_near(&kv));
        for span in step.sequences {
            for (i, token) in span.tokens.clone().enumerate() {
                let at = token_at(&kv, span.table(near), span.past + i);
                let k = Value::Floats(keys[token * k_cols..][..k_cols].to_vec()).rounded(dtype)?;
                let v = Value::Floats(values[token * v_cols..][..v_cols].to_vec()).rounded(dtype)?;
                self.states[id.0][at..at + k_cols].copy_from_slice(k.floats());
                self.states[id.0][at + k_cols..at + k_cols + v_cols].copy_from_slice(v.floats());
            }
        }
        Ok(())
    }

    /// Where each of these positions lies, with the columns of keys and of values.
    fn places(
        &self,
        id: StateId,
        table: &[u32],
        positions: Range<usize>,
    ) -> Result<(Vec<usize>, [usize; 2]), BackendError> {
        let found = || failed(format!("state {} holds no keys and values", id.0));
        let kv = self.layout.kv(id).copied().ok_or_else(found)?;
        let held = self.states.get(id.0).map_or(0, Vec::len) / token_len(&kv).max(1);
        let place = |position: usize| {
            let block = table.get(position / BLOCK_TOKENS).copied().unwrap_or(u32::MAX);
            let reserved = (block as usize).saturating_add(1).saturating_mul(BLOCK_TOKENS) <= held;
            let missing = || failed(format!("position {position} of state {} was never reserved", id.0));
            reserved.then(|| token_at(&kv, table, position)).ok_or_else(missing)
        };
        let places = positions.map(place).collect::<Result<_, _>>()?;
        Ok((places, [kv.kv_heads * kv.key_dim, kv.kv_heads * kv.value_dim]))
    }

    /// What is kept of these positions.
    pub(super) fn rows(
        &self,
        id: StateId,
        table: &[u32],
        positions: Range<usize>,
    ) -> Result<KvRows, BackendError> {
        let (places, [k_cols, v_cols]) = self.places(id, table, positions)?;
        let numbers = |at: usize, cols: usize| self.states[id.0][at..at + cols].iter().copied();
        Ok(KvRows {
            keys: places.iter().flat_map(|at| numbers(*at, k_cols)).collect(),
            values: places.iter().flat_map(|at| numbers(at + k_cols, v_cols)).collect(),
        })
    }

    /// Puts these rows in the place of what is kept of these positions.
    pub(super) fn put(
        &mut self,
        id: StateId,
        table: &[u32],
        positions: Range<usize>,
        rows: &KvRows,
    ) -> Result<(), BackendError> {
        let (places, [k_cols, v_cols]) = self.places(id, table, positions)?;
        if rows.keys.len() != places.len() * k_cols || rows.values.len() != places.len() * v_cols {
            let (found, needed) = (rows.keys.len() + rows.values.len(), places.len() * (k_cols + v_cols));
            return Err(failed(format!("{found} numbers of keys and values, {needed} are needed")));
        }
        for (i, at) in places.into_iter().enumerate() {
            self.states[id.0][at..at + k_cols].copy_from_slice(&rows.keys[i * k_cols..][..k_cols]);
            self.states[id.0][at + k_cols..][..v_cols].copy_from_slice(&rows.values[i * v_cols..][..v_cols]);
        }
        Ok(())
    }

    pub(super) fn attention(
        &self,
        a: &Attention,
        q: &[f32],
        sinks: Option<&[f32]>,
        step: &Step<'_>,
    ) -> Vec<f32> {
        let kv = self.kv(a.state);
        let numbers = &self.states[a.state.0];
        let group = a.heads / a.kv_heads;
        let mut out = Vec::new();
        let near = self.layout.is_near(&kv);
        for span in step.sequences {
            let table = span.table(near);
            for (i, token) in span.tokens.clone().enumerate() {
                let last = span.past + i;
                let first = a.window.map_or(0, |w| (last + 1).saturating_sub(w));
                for head in 0..a.heads {
                    let shared = head / group;
                    let key =
                        |j: usize| &numbers[token_at(&kv, table, j) + shared * kv.key_dim..][..kv.key_dim];
                    let values_at = kv.kv_heads * kv.key_dim + shared * kv.value_dim;
                    let value = |j: usize| &numbers[token_at(&kv, table, j) + values_at..][..kv.value_dim];
                    let sink = sinks.map(|sinks| sinks[head]);
                    let scores = ops::Scores { scale: a.scale, softcap: a.softcap, sink };
                    let q = &q[(token * a.heads + head) * a.head_dim..][..a.head_dim];
                    let (keys, values) = ((first..=last).map(key), (first..=last).map(value));
                    out.extend(scores.attend(q, keys, values, kv.value_dim));
                }
            }
        }
        out
    }

    /// The numbers of a sequence; zeros where it has no past.
    fn of_sequence(&mut self, id: StateId, elements: usize, span: &SequenceSpan<'_>) -> &mut [f32] {
        let numbers = &mut self.states[id.0][span.slot as usize * elements..][..elements];
        if span.past == 0 {
            numbers.fill(0.0);
        }
        numbers
    }

    pub(super) fn short_conv(&mut self, id: StateId, x: &[f32], w: &[f32], step: &Step<'_>) -> Vec<f32> {
        let d = x.len() / step.tokens.len();
        let width = w.len() / d;
        let mut out = Vec::with_capacity(x.len());
        for span in step.sequences {
            let kept = self.of_sequence(id, d * (width - 1), span);
            let mut rows = kept.to_vec();
            rows.extend_from_slice(&x[span.tokens.start * d..span.tokens.end * d]);
            for t in 0..span.tokens.len() {
                let at = |i: usize| {
                    (0..width)
                        .map(|j| f64::from(w[i * width + j]) * f64::from(rows[(t + j) * d + i]))
                        .sum::<f64>()
                };
                out.extend((0..d).map(|i| at(i) as f32));
            }
            kept.copy_from_slice(&rows[span.tokens.len() * d..]);
        }
        out
    }

    /// `inputs`: queries, keys, values, decay and β.
    pub(super) fn recurrence(&mut self, r: &Recurrence, inputs: [&[f32]; 5], step: &Step<'_>) -> Vec<f32> {
        let [q, k, v, decay, beta] = inputs;
        let (dk, dv) = (r.key_dim, r.value_dim);
        let mut out = Vec::with_capacity(v.len());
        for span in step.sequences {
            let kept = self.of_sequence(r.state, r.elements(), span);
            for token in span.tokens.clone() {
                for (head, s) in kept.chunks_mut(dk * dv).enumerate() {
                    let at = token * r.heads + head;
                    let key = r.key_head(at);
                    let (q, k, v) = (&q[key * dk..][..dk], &k[key * dk..][..dk], &v[at * dv..][..dv]);
                    for s in &mut *s {
                        *s *= decay[at];
                    }
                    let read = |s: &[f32], x: &[f32], j: usize| {
                        (0..dk).map(|i| f64::from(s[i * dv + j]) * f64::from(x[i])).sum::<f64>()
                    };
                    let lacks =
                        |j: usize| if r.delta { f64::from(v[j]) - read(s, k, j) } else { f64::from(v[j]) };
                    let u: Vec<f64> = (0..dv).map(|j| f64::from(beta[at]) * lacks(j)).collect();
                    for (i, row) in s.chunks_mut(dv).enumerate() {
                        row.iter_mut()
                            .zip(&u)
                            .for_each(|(s, u)| *s = (f64::from(*s) + f64::from(k[i]) * u) as f32);
                    }
                    out.extend((0..dv).map(|j| read(s, q, j) as f32));
                }
            }
        }
        out
    }
}

/// Numbers of one token.
fn token_len(kv: &KvState) -> usize {
    kv.kv_heads * (kv.key_dim + kv.value_dim)
}

fn token_at(kv: &KvState, table: &[u32], position: usize) -> usize {
    let slot = table[position / BLOCK_TOKENS] as usize * BLOCK_TOKENS + position % BLOCK_TOKENS;
    slot * token_len(kv)
}
