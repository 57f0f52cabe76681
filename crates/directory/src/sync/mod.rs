//! Reads only what changed since the last read, and caches the entries of a source between two reads.

pub(crate) mod difference;
pub(crate) mod incremental;
pub mod kept;
pub mod mirror;
