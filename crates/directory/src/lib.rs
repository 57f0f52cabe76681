//! Reads directories into a [`DirectorySnapshot`](bursar_core::snapshot::DirectorySnapshot). Most of the modules are PURE,
//! which each says; `ldap`, `keycloak` and `ldif` read, as `incremental` says, and [`fetch`](fetch::fetch) puts all of it
//! together.

pub mod confirm;
pub mod entry;
pub mod fetch;
pub mod keycloak;
pub mod ldap;
pub mod ldif;
mod progress;
pub mod source;
pub mod sync;
pub mod tls;

pub use self::confirm::confirm;
pub use self::fetch::{Known, LastRead, Pass, fetch, fetch_after};
pub use self::source::{Preset, SourceConfig, SourceKind};
pub use self::sync::kept::SyncCache;
