//! The only part of Bursar that writes in homes.
//!
//! The daemon asks ([`client`]); the server ([`server`]) checks who asks and has a process forked for it ([`spawner`]),
//! which becomes the owner of the home and only then touches a file (`worker`, [`files`]). The merge ([`kubeconfig`])
//! happens in that child, so that a user's other credentials never reach the server or the daemon. What may be asked
//! stands in [`bursar_protocol`].
//!
//! It runs as root: its dependencies are few, and printed in ARCHITECTURE.md.

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
mod ownership;
pub mod server;
pub mod spawner;
mod worker;
