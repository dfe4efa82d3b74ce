//! The kernels that tests launch, as PTX for a machine without a compiler.

use std::path::PathBuf;

use super::Launch;
use crate::cuda::Asked;

/// The folder to write to; nothing is written without it.
const FOLDER: &str = "METALLIC_TEST_PTX";
/// Compute capability, times ten, of the GPU that will run them; an H100's and an H200's where nothing is said.
const CAPABILITY: (&str, u32) = ("METALLIC_TEST_CAPABILITY", 90);

/// Translates the kernel of a launch, unless it lies there already.
pub(super) fn note(launch: &Launch) {
    let Some(folder) = std::env::var_os(FOLDER).filter(|name| !name.is_empty()).map(PathBuf::from) else {
        return;
    };
    let given = std::env::var(CAPABILITY.0).ok().filter(|value| !value.is_empty());
    // INVARIANT: tests alone come here.
    let parse = |value: String| value.parse().unwrap_or_else(|_| panic!("{}={value}", CAPABILITY.0));
    let capability = given.map_or(CAPABILITY.1, parse);
    let (asked, kernel) = (Asked::new(), &launch.kernel);
    asked.note(kernel.family.name, &kernel.family.source(), (kernel.function, &kernel.constants));
    // INVARIANT: as above.
    asked
        .translate(&folder, &[capability], 1, &|_, _| {})
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
}
