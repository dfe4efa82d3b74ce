//! Which part of a fused operation is at fault: its parts are run one by one on the same device.

use metallic_core::{CompileOptions, NodeId, Op};

use super::check::Checker;
use super::lineage::Lineage;
use super::record::{Fed, Recorder, Stage};
use super::tally::Failure;
use super::{DiffError, Side};

/// Runs the side unfused on the same steps and says which of the parts fails first.
pub(crate) fn bisect(
    side: &Side<'_>,
    lineage: &Lineage,
    failed: &Failure,
    steps: &[Fed],
) -> Result<String, DiffError> {
    let apart = Side { options: CompileOptions { fuse: false, ..side.options }, ..side.clone() };
    let capacity = steps.iter().map(|fed| fed.tokens.len()).sum();
    let mut recorder = Recorder::new(&apart, capacity)?;
    if recorder.lineage.is_fused() {
        return Ok("its parts cannot be run one by one: the device fuses always".to_owned());
    }
    let mut checker = Checker::new(&apart, &recorder.lineage, metallic_core::DType::F32)?;
    let mut stage = Stage::new(side.model, capacity);
    let parts = &lineage.carried.origins[failed.check.node.0].parts;
    for (index, fed) in steps.iter().enumerate() {
        let taps = recorder.run(fed)?;
        // Nothing is fused, so nodes are those of the typed graph, in which the parts are named.
        let wanted = |node: NodeId| index == failed.step && parts.contains(&node);
        let checks = stage.with(fed, |step| checker.check(&recorder.lineage, &taps, step, wanted))?;
        if let Some(part) = checks.iter().find(|check| !check.passed()) {
            let node = recorder.lineage.typed.node(part.node);
            return Ok(format!(
                "of its parts run one by one `{}`{} is the first that is off, {:.0} times what rounding explains",
                node.op.name(),
                named(&recorder.lineage, part.node, node.op),
                part.error.loose,
            ));
        }
        if index == failed.step {
            break;
        }
    }
    let names: Vec<String> =
        parts.iter().map(|part| lineage.typed.node(*part).op.name().to_owned()).collect();
    Ok(format!("its parts run one by one ({}) are all right: the fused kernel is at fault", names.join(", ")))
}

/// The weights of a part, where it has some.
fn named(lineage: &Lineage, node: NodeId, op: Op) -> String {
    let tensors = lineage.tensors(node);
    match tensors.first() {
        Some(first) if !op.is_source() => format!(" of `{first}`"),
        Some(_) | None => String::new(),
    }
}
