//! Messages that older systems do not know.

use crate::objc::Sel;
use crate::settings::macos_version;

/// The macOS from which on a message is answered, by Apple's headers.
const SINCE: &[(u32, &[&str])] = &[
    (13, &["gpuAddress", "optimizationLevel", "setOptimizationLevel:"]),
    (14, &["architecture"]),
    (
        15,
        &[
            "newResidencySetWithDescriptor:error:",
            "addResidencySet:",
            "addResidencySets:count:",
            "removeResidencySet:",
            "removeResidencySets:count:",
            "useResidencySet:",
            "useResidencySets:count:",
            "mathMode",
            "setMathMode:",
            "mathFloatingPointFunctions",
            "setMathFloatingPointFunctions:",
            "enableLogging",
            "setEnableLogging:",
            "logState",
            "setLogState:",
            "shaderValidation",
            "setShaderValidation:",
        ],
    ),
    (26, &["requiredThreadsPerThreadgroup"]),
];

/// Whether the system that there is answers a message that the newest one does.
pub(crate) fn known(sel: Sel) -> bool {
    let macos = macos_version() >> 16;
    let newer = SINCE.iter().filter(|(since, _)| *since > macos);
    newer.flat_map(|(_, names)| *names).all(|name| *name != sel.name())
}
