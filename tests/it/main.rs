//! The integration tests: Bursar against real servers, which the whole binary shares.

#[path = "../servers/mod.rs"]
mod servers;

mod directory;
mod execute;
mod harness;
mod homes;
