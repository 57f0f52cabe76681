//! Starts real servers on loopback for the tests, the demo and the benchmarks: Kubernetes control planes, LDAP servers,
//! Keycloak.
//!
//! Every server ends with the process that started it, even if that process is killed: see [`process`] and [`folder`].
//! This crate does not depend on Bursar's crates.

#![expect(clippy::disallowed_methods, reason = "waits for real servers, with deadlines")]
#![allow(clippy::missing_panics_doc, clippy::must_use_candidate, reason = "a test panics on every error")]

pub mod audit;
pub mod binaries;
pub mod control_plane;
pub mod folder;
pub mod https;
pub mod keycloak;
pub mod kubeconfig;
pub mod ldif;
pub mod pki;
pub mod ports;
pub mod process;
pub mod prometheus;
pub mod ready;
pub mod samba;
pub mod sample;
pub mod slapd;
pub mod world_file;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use control_plane::{ControlPlane, ControlPlaneOptions};
use folder::Folder;
use slapd::{Slapd, SlapdOptions};

/// A control plane, and an LDAP server with the entries of [`sample::toolforge`] and [`sample::rfc2307`].
#[derive(Debug)]
pub struct Servers {
    pub cluster: ControlPlane,
    pub slapd: Slapd,
    // Last, because fields are dropped in order, and the servers write to this folder until they end.
    folder: Folder,
}

impl Servers {
    /// Starts both servers in parallel and returns when both answer. This takes about 3 s, or minutes if the control
    /// plane must be built first (with a message).
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&ControlPlaneOptions::default(), &SlapdOptions::default(), |_| sample::toolforge())
    }

    /// Like [`Self::start`], with other options and another sample. `sample` gets the folder.
    #[must_use]
    pub fn start_with(
        cluster: &ControlPlaneOptions,
        slapd: &SlapdOptions,
        sample: impl FnOnce(&Path) -> String,
    ) -> Self {
        let folder = Folder::create("servers");
        let (cluster, slapd) = std::thread::scope(|scope| {
            let cluster = scope.spawn(|| ControlPlane::start_in(&folder.path().join("cluster"), cluster));
            let slapd = Slapd::start_in(&folder.path().join("slapd"), slapd);
            slapd.add_ldif(&sample(folder.path()));
            slapd.add_ldif(&sample::rfc2307());
            (cluster.join(), slapd)
        });
        let cluster = cluster.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Self { cluster, slapd, folder }
    }

    /// The servers that all tests of this process share, started at the first call. They are never dropped: their
    /// processes end with this one ([`process`]), and a reaper removes their files ([`folder`]).
    pub fn shared() -> &'static Arc<Self> {
        static SHARED: OnceLock<Option<Arc<Servers>>> = OnceLock::new();
        // The panic's message was printed when the start failed.
        let shared = SHARED.get_or_init(|| std::panic::catch_unwind(Self::start).ok().map(Arc::new));
        shared.as_ref().expect("the servers that all tests share did not start: see the first failure")
    }

    /// The folder of the servers, also for a test's own homes and ledgers. It is removed with the servers.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
