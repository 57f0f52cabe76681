//! The control socket: how `bursar` speaks with `bursard`. `api` is what they say, `caller` who asks, `server` (with
//! `connections`) and `client` the two ends.

pub mod api;
pub mod caller;
pub mod client;
mod connections;
pub mod server;
