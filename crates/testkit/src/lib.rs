//! Real servers on loopback for the tests, the demo and the figures: Kubernetes control planes, LDAP servers, Keycloak.
//!
//! Nothing of them outlives the process that started them, however it ends: see [`process`] and [`folder`]. Nothing
//! here knows Bursar.

#![expect(clippy::disallowed_methods, reason = "waits for real servers, with deadlines")]
#![allow(clippy::missing_panics_doc, clippy::must_use_candidate, reason = "what goes wrong in a test panics")]

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

use std::path::Path;
use std::sync::{Arc, OnceLock};

use control_plane::{ControlPlane, ControlPlaneOptions};
use folder::Folder;
use slapd::{Slapd, SlapdOptions};

/// A control plane, and an LDAP server that holds [`sample::toolforge`] and [`sample::rfc2307`].
#[derive(Debug)]
pub struct Servers {
    /// The Kubernetes control plane.
    pub cluster: ControlPlane,
    /// The LDAP server.
    pub slapd: Slapd,
    // Last: fields are dropped in order, and the servers write here until they end.
    folder: Folder,
}

impl Servers {
    /// Starts both side by side and returns when both answer: about 3 s, or minutes if the control plane has yet to be
    /// built (the build says so).
    ///
    /// # Panics
    /// If one does not start: with what was awaited and the end of its log.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&ControlPlaneOptions::default(), &SlapdOptions::default(), |_| sample::toolforge())
    }

    /// [`Self::start`] with other options.
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

    /// The one set of servers of this process, started at the first call. It is never dropped: its processes end with
    /// this one ([`process`]), and a reaper removes its files ([`folder`]).
    ///
    /// # Panics
    /// If they do not start, at this call and, at once, at every later one.
    pub fn shared() -> &'static Arc<Self> {
        static SHARED: OnceLock<Option<Arc<Servers>>> = OnceLock::new();
        // The panic's message is printed where it happened.
        let shared = SHARED.get_or_init(|| std::panic::catch_unwind(Self::start).ok().map(Arc::new));
        shared.as_ref().expect("the servers that all tests share start: see the first failure")
    }

    /// The folder of everything here, which goes with the servers. A place for a test's own homes and ledgers.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}
