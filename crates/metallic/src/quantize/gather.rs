//! How much the columns of a model's matrices matter: the squares of what they are multiplied by, over a text.
//!
//! A graph has few outputs and a model many matrices, so the text is read several times: each time the part of the graph that
//! ends with the next few inputs of matrices is compiled, with those as its outputs.

use std::collections::BTreeMap;

use metallic_core::{
    BLOCK_TOKENS, Backend, BackendError, CompileOptions, DType, Dim, Graph, Node, NodeId, Op, Program,
    SequenceSpan, Step, Wanted,
};

use super::{QuantizeError, Sums};
use crate::Model;
use crate::model::{ModelError, Source};

/// Over which text, and how.
#[derive(Clone, Copy, Debug)]
pub struct Gathering<'a> {
    /// The text.
    pub tokens: &'a [u32],
    /// Tokens of a window; each begins without a past.
    pub ctx: usize,
    /// What stands for the first token of each window.
    pub bos: Option<u32>,
}

/// Outputs of a graph at most.
const OUTPUTS: usize = 31;
/// Tokens of a step.
const STEP: usize = 256;

/// The input of some matrices, and who is chosen where those are stacks of experts.
#[derive(Clone, Debug)]
struct Input {
    x: NodeId,
    experts: Option<NodeId>,
    /// Names of the matrices, their columns, and how many are in each stack.
    names: Vec<String>,
    columns: usize,
    stacked: usize,
}

impl Input {
    fn outputs(&self) -> usize {
        1 + usize::from(self.experts.is_some())
    }
}

/// The sums over the whole windows of a text, by the names of matrices. `progress` is told of each window of each reading,
/// the number of all first, and ends the work by returning `false`.
pub fn gather(
    model: &Model,
    backend: &dyn Backend,
    text: Gathering<'_>,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<BTreeMap<String, Sums>, QuantizeError> {
    let Gathering { tokens, ctx, .. } = text;
    if let Source::Folder(_) = model.source() {
        return Err(QuantizeError::NotGguf { file: model.path().display().to_string() });
    }
    if ctx == 0 || tokens.len() < ctx {
        return Err(QuantizeError::TextTooShort { tokens: tokens.len(), window: ctx.max(1) });
    }
    let inputs = inputs(model.graph());
    let mut groups: Vec<Vec<Input>> = vec![Vec::new()];
    let mut room = OUTPUTS;
    for input in inputs {
        if input.outputs() > room {
            groups.push(Vec::new());
            room = OUTPUTS;
        }
        room -= input.outputs();
        groups.last_mut().into_iter().for_each(|group| group.push(input.clone()));
    }
    let mut all = BTreeMap::new();
    if !progress(groups.len() * (tokens.len() / ctx)) {
        return Err(QuantizeError::Stopped);
    }
    for group in &groups {
        let outputs: Vec<NodeId> = group.iter().flat_map(|i| [Some(i.x), i.experts]).flatten().collect();
        let graph = model.graph().up_to(&outputs).map_err(BackendError::from).map_err(ModelError::from)?;
        let mut program =
            backend.compile(&graph, CompileOptions::kv(DType::F32)).map_err(ModelError::from)?;
        read(program.as_mut(), group, text, &mut all, progress)?;
    }
    Ok(all)
}

/// The inputs of all matrices but the output's, those of several together.
fn inputs(graph: &Graph) -> Vec<Input> {
    let mut found: Vec<Input> = Vec::new();
    for node in graph.nodes() {
        let Node { op: Op::Linear | Op::ExpertLinear, inputs, .. } = node else { continue };
        let Some(weight) = graph.weight(inputs[1]) else { continue };
        // A part of a fused matrix is called by the rows of it.
        let name = weight.name.split('[').next().unwrap_or_default();
        if !name.ends_with(".weight") || name == "output.weight" || name == "token_embd.weight" {
            continue;
        }
        let (x, experts) = (inputs[0], inputs.get(2).copied().filter(|_| node.op == Op::ExpertLinear));
        let columns = weight.ty.shape.cols();
        let stacked = match (experts, weight.ty.shape.dims()) {
            (Some(_), [Dim::Fixed(count), ..]) => *count,
            _ => 1,
        };
        match found.iter_mut().find(|input| input.x == x && input.experts == experts) {
            Some(input) if input.names.iter().any(|other| other == name) => {}
            Some(input) => input.names.push(name.to_owned()),
            None => found.push(Input { x, experts, names: vec![name.to_owned()], columns, stacked }),
        }
    }
    found
}

fn read(
    program: &mut dyn Program,
    group: &[Input],
    text: Gathering<'_>,
    all: &mut BTreeMap<String, Sums>,
    progress: &mut dyn FnMut(usize) -> bool,
) -> Result<(), QuantizeError> {
    let failed = |error: BackendError| QuantizeError::Model(ModelError::from(error));
    let blocks = text.ctx.div_ceil(BLOCK_TOKENS);
    program.reserve_blocks(blocks).map_err(failed)?;
    program.reserve_slots(1).map_err(failed)?;
    let blocks: Vec<u32> = (0..blocks as u32).collect();
    for window in text.tokens.chunks_exact(text.ctx) {
        let mut window = window.to_vec();
        window[0] = text.bos.unwrap_or(window[0]);
        let mut past = 0;
        for tokens in window.chunks(STEP) {
            let positions: Vec<u32> = (past..past + tokens.len()).map(|p| p as u32).collect();
            let sequences =
                [SequenceSpan { tokens: 0..tokens.len(), past, blocks: &blocks, near: &[], slot: 0 }];
            let step = Step {
                tokens,
                positions: &positions,
                sequences: &sequences,
                wanted: Wanted::ALL,
                ..Step::default()
            };
            program.run(&step).map_err(failed)?;
            let mut at = 0;
            for input in group {
                let ids = input.experts.map(|_| program.ids(at + 1));
                let sums = input.sums(program.output(at), ids);
                for name in &input.names {
                    add(all.entry(name.clone()).or_default(), &sums);
                }
                at += input.outputs();
            }
            past += tokens.len();
        }
        if !progress(1) {
            return Err(QuantizeError::Stopped);
        }
    }
    Ok(())
}

impl Input {
    /// The sums of one step: of all rows of `x`, or for each expert of the rows that it was chosen for.
    fn sums(&self, x: &[f32], experts: Option<&[u32]>) -> Sums {
        let columns = self.columns.max(1);
        let mut sums = Sums { squares: vec![0.0; columns * self.stacked], counts: vec![0; self.stacked] };
        let mut one = |row: &[f32], expert: usize| {
            let Some(count) = sums.counts.get_mut(expert) else { return };
            *count += 1;
            let squares = &mut sums.squares[expert * columns..][..columns];
            for (sum, v) in squares.iter_mut().zip(row) {
                *sum += f64::from(*v) * f64::from(*v);
            }
        };
        let rows = x.len() / columns;
        match experts {
            None => x.chunks_exact(columns).for_each(|row| one(row, 0)),
            // Each choice has a part of the row of its own, or all have the whole row.
            Some(ids) if rows == ids.len() => {
                x.chunks_exact(columns).zip(ids).for_each(|(row, id)| one(row, *id as usize));
            }
            Some(ids) => {
                let chosen = ids.len() / rows.max(1);
                for (row, ids) in x.chunks_exact(columns).zip(ids.chunks(chosen.max(1))) {
                    for id in ids {
                        one(row, *id as usize);
                    }
                }
            }
        }
        sums
    }
}

fn add(all: &mut Sums, more: &Sums) {
    all.squares.resize(more.squares.len(), 0.0);
    all.counts.resize(more.counts.len(), 0);
    all.squares.iter_mut().zip(&more.squares).for_each(|(sum, more)| *sum += more);
    all.counts.iter_mut().zip(&more.counts).for_each(|(sum, more)| *sum += more);
}
