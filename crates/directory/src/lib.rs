//! Reads directories into a [`DirectorySnapshot`](bursar_core::snapshot::DirectorySnapshot). Most of the modules are PURE,
//! which each says; `ldap`, `keycloak` and `ldif` read, as `incremental` says, and [`fetch`](fetch::fetch) puts all of it
//! together.

pub mod assemble;
mod difference;
pub mod entry;
pub mod fetch;
pub mod filter;
mod groups;
pub mod idmap;
mod incremental;
pub mod kept;
pub mod keycloak;
pub mod ldap;
pub mod ldif;
mod mark;
pub mod membership;
pub mod mirror;
mod numbers;
mod preset;
pub mod raw;
pub mod sid;
pub mod source;
pub mod tls;
pub mod windows;

pub use self::fetch::{Pass, fetch};
pub use self::kept::Memory;
pub use self::source::{Preset, SourceConfig, SourceKind};
