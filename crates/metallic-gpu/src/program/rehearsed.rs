//! The steps that are planned before the first one runs.

use metallic_core::Wanted;

use super::GpuProgram;
use crate::error::GpuError;
use crate::gpu::Limits;
use crate::kernels::TILE_TOKENS;
use crate::provider::OpKind;
use crate::step::StepShape;
use crate::tuning::Tuning;

/// Steps that are planned when a program is made, as tokens, results and tokens in sight: each takes kernels the others
/// do not. So every kernel of later steps is ready, or known not to compile.
const REHEARSED: [(usize, usize, usize); 13] = [
    (1, 1, 1),
    (1, 1, LONG),
    (2, 1, 2),
    (2, 2, 2),
    (4, 4, 4),
    // Vectors of eight may be laid out before where those of five are not.
    (5, 5, 5),
    (8, 8, 8),
    (FEW, 1, FEW),
    (FEW, FEW, FEW),
    (TILED, 1, TILED),
    (TILED, TILED, TILED),
    // They look at little: what all of that would take is for steps that do.
    (MANY, 1, TILED),
    (MANY / 4, MANY / 4, TILED),
];
/// More tokens than go one by one, and fewer than fill tiles.
const FEW: usize = 16;
/// Tokens that fill tiles.
const TILED: usize = 2 * TILE_TOKENS;
/// Tokens that fill the largest tiles many times.
const MANY: usize = 1 << 13;
/// Sequences with a token each that leave no core without a row, whatever is in sight.
const SEQUENCES: usize = 512;
/// Tokens in sight of which threadgroups take a part each.
const LONG: usize = 1 << 14;

/// [`REHEARSED`], and where other numbers of tokens are the first to need a kernel, these as well.
fn rehearsed(tuning: &Tuning) -> Vec<(usize, usize, usize)> {
    let thresholds = |tuning: &Tuning| [tuning.vector_tokens, tuning.small_tile_tokens];
    let mut shapes = REHEARSED.to_vec();
    for (last, usual) in thresholds(tuning).into_iter().zip(thresholds(&Tuning::DEFAULT)) {
        let counts = [last, last + 1].map(|tokens| tokens as usize).into_iter().filter(|_| last != usual);
        shapes.extend(counts.flat_map(|tokens| [(tokens, 1, tokens), (tokens, tokens, tokens)]));
    }
    shapes
}

impl GpuProgram {
    /// Plans them, so that a kernel which does not compile shows when a program is made.
    pub(super) fn rehearse(&self) -> Result<(), GpuError> {
        let shapes = rehearsed(&self.lowered.shared.limits().tuning);
        let alone = shapes.into_iter().map(|(tokens, outputs, visible)| (tokens, outputs, visible, 1));
        let together = (SEQUENCES, SEQUENCES, 1, SEQUENCES);
        for (tokens, outputs, visible, sequences) in alone.chain([together]) {
            let shape = StepShape {
                tokens,
                outputs,
                sequences,
                tiles: tokens.div_ceil(TILE_TOKENS).max(sequences),
                visible,
                choices: 1,
                adapters: tokens * self.lowered.graph.adapters(),
                edits: true,
                all_outputs: outputs == tokens,
                wanted: Wanted::ALL,
                ..StepShape::default()
            };
            self.lowered.plan(&shape)?;
            self.lowered.plan(&StepShape { fed: true, ..shape })?;
            // What a library takes over from some number of tokens on, kernels do up to it.
            let limits = self.lowered.shared.limits();
            if limits.library && !self.lowered.shared.options.providers.is_forced(OpKind::Matmul) {
                self.lowered.plan_within(&shape, &Limits { library: false, ..limits })?;
            }
        }
        Ok(())
    }
}
