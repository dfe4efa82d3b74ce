//! The dashboard of `metallic top`. Records become a state (`state`), a state becomes a picture (`view`); what brings records (`replay`,
//! `live`) and what shows pictures (`app`, `screen`, `svg`) know of each other only through those.

pub(crate) mod app;
#[cfg(unix)]
pub(crate) mod attach;
mod figures;
mod keys;
pub(crate) mod live;
mod moment;
pub(crate) mod own;
pub(crate) mod replay;
pub(crate) mod screen;
pub(crate) mod state;
pub(crate) mod still;
mod svg;
pub(crate) mod view;
