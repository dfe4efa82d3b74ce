//! The dashboard of `metallic top`. Records become a state (`state`), a state becomes a picture (`view`); what brings records (`replay`)
//! and what shows pictures (`app`, `screen`, `svg`) know of each other only through those.

pub(crate) mod app;
mod figures;
mod keys;
mod moment;
pub(crate) mod replay;
pub(crate) mod screen;
mod state;
pub(crate) mod still;
mod svg;
pub(crate) mod view;
