//! What lines contain, against the page that describes them.

mod schema;
