//! Reads directories into a [`DirectorySnapshot`](bursar_core::snapshot::DirectorySnapshot). Only `ldap`, `keycloak`,
//! `ldif`, `sync::incremental` and `confirm` reach a directory; [`fetch`](fetch::fetch) combines their results. Most
//! other modules are pure: `tests/it/architecture.rs` lists them.

pub mod confirm;
pub mod entry;
pub mod fetch;
pub mod keycloak;
pub mod ldap;
pub mod ldif;
pub mod progress;
pub mod source;
pub mod sync;
pub mod tls;

pub use self::confirm::confirm;
pub use self::fetch::{Known, LastRead, Pass, fetch, fetch_after};
pub use self::source::{Preset, SourceConfig, SourceKind};
pub use self::sync::kept::SyncCache;
