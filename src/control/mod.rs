//! The control socket, over which `bursar` talks to `bursard`: `api` has the messages, `caller` identifies the peer,
//! `server` (with `connections`) is the daemon's end, and `client` is the end of `bursar`.

pub mod api;
pub mod caller;
pub mod client;
mod connections;
pub mod server;
