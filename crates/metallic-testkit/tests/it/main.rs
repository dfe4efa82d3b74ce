//! Families nobody has made, each of one file and one line, on every device: what a model may be made of, held together.

mod agree;
mod crowd;
mod experts;
mod hybrid;
mod tiny;

use metallic::model::Family;

/// One line for each.
const FAMILIES: &[&Family] = &[
    &hybrid::FAMILY, //
    &experts::FAMILY,
];
