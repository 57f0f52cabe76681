//! What changed since the last read, and what is kept of a source between two reads.

pub(crate) mod difference;
pub(crate) mod incremental;
pub mod kept;
pub mod mirror;
