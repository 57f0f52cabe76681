//! The only part of Bursar that writes in homes.
//!
//! The daemon sends requests ([`client`]). The server ([`server`]) checks who sent a request and has a process forked
//! for it ([`spawner`]). That process becomes the owner of the home, and only then touches a file (`worker`,
//! [`files`]). It also does the merge ([`kubeconfig`]), so that a user's other credentials never reach the server or
//! the daemon. The requests are defined in [`bursar_protocol`].
//!
//! The server runs as root, so it has few dependencies; ARCHITECTURE.md lists them.

pub mod arguments;
mod authorized_keys;
pub mod bounds;
pub mod breaker;
pub mod client;
mod delivery;
pub mod document;
mod document_writer;
mod edit;
mod ensure;
mod errno;
mod exchange;
pub mod files;
mod fork;
mod keypair;
pub mod kubeconfig;
mod mounts;
mod ownership;
pub mod server;
pub mod spawner;
mod worker;
