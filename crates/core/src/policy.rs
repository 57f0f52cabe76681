//! The configuration of tenants as checked values: classes, quotas, networks, lifetimes and limits. `settings.rs`
//! validates each value once, so building objects from a [`Policy`] cannot fail.

mod adopts;
mod credential;
mod limits;
mod network;
mod realm;
mod reaper;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use regex::Regex;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::contract::exception::ExceptedRule;
use crate::identity::{AccountKind, ClusterName};
use crate::kinds::DriftKey;
use crate::rules::senders::Senders;
use crate::rules::server::ServerRules;
use crate::rules::{AllowedVolume, ClaimRules, HostRules, ImageRules, Inject, Lifetimes, Mode, UidRules};

pub use self::adopts::{AdoptedAdmission, Adopts, Requirement, Selector};
pub use self::credential::{CredentialKind, CredentialRule, OidcRule, TOKEN_LIFETIME_MAX};
pub use self::limits::{Limit, Limits};
pub use self::network::{Namespaces, NetworkProfile, Peer, Port, Range, Target, Who};
pub use self::realm::Realm;
pub use self::reaper::{ClassLifetimes, Evidence, NamespaceReaper, PodReaper, Reapers};
pub use self::workspace::{FromWorkspaces, UidRange, Workspace};

/// The daemon's name in the API server, which is the common name of its certificate.
pub const DAEMON_USER: &str = "bursar:daemon";

/// Returns the group that the daemon's rights are bound to. The name of the group contains the id of the ledger. If
/// another ledger becomes the owner of a cluster, another group is bound, and every copy of the former owner's
/// certificate loses its rights at that moment. Nothing is ever bound to [`DAEMON_USER`], which certificates of every
/// ledger name.
#[must_use]
pub fn daemon_group(ledger_id: &str) -> String {
    format!("{DAEMON_USER}#{ledger_id}")
}

/// The part of the configuration that concerns tenants.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// The name of the site in plans, logs and reports.
    pub site: String,
    /// The contact address in the kubeconfig of a suspended person; if `None`, the kubeconfig names the administrators
    /// of the site.
    pub contact: Option<String>,
    /// The names of the directories. The ledger has no state of a directory that has never answered.
    pub sources: BTreeSet<String>,
    pub classes: BTreeMap<String, Class>,
    /// Network profiles, including the built-in `open` and `isolated`.
    pub networks: BTreeMap<String, NetworkProfile>,
    pub clusters: BTreeMap<ClusterName, Cluster>,
    pub limits: Limits,
    pub lifecycle: LifecycleDelays,
    /// Folders that may contain homes.
    pub home_prefixes: Vec<PathBuf>,
    pub reapers: Reapers,
    /// `[security] require_confinement`: whether nothing is granted or repaired in a cluster in which the daemon's
    /// confinement is not confirmed.
    pub require_confinement: bool,
    /// `[security] strict_egress`: whether the configuration is refused if a class's pods reach file servers,
    /// directories or this host.
    pub strict_egress: bool,
    /// Groups that the webhook allows to change namespaces of tenants and Bursar's own objects.
    pub exempt: Vec<String>,
}

/// A cluster: the endpoints that kubeconfigs name, and the clients that its webhook answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The endpoint whose context becomes `current-context` in a kubeconfig that has none.
    pub default_endpoint: String,
    /// Endpoints by name. Each becomes one context of a kubeconfig.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// The clients that may send reviews to the cluster's webhook.
    pub senders: Senders,
}

impl Cluster {
    /// Returns the name of an endpoint's entries in kubeconfigs: its cluster and its context.
    #[must_use]
    pub fn entry_name(name: &ClusterName, default_endpoint: &str, endpoint: &str) -> String {
        if endpoint == default_endpoint { name.to_string() } else { format!("{name}-{endpoint}") }
    }
}

/// One way to reach an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://host:port`.
    pub url: String,
    /// The CA certificates in PEM; old and new together during a rollover.
    pub ca_pem: String,
    /// kubeconfig `tls-server-name`.
    pub tls_server_name: Option<String>,
    /// kubeconfig `proxy-url`.
    pub proxy: Option<String>,
}

/// The directory entries or namespaces that a class is made from, with the settings that depend on this choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    Tools,
    /// People, and how their workspaces change their quota.
    Users(Option<FromWorkspaces>),
    /// Groups, and the rights of their people in the workspace.
    Groups(Workspace),
    /// Namespaces that others create: the selector for them, and the annotation that names their owner.
    Adopted(Adopts),
}

impl From {
    /// Returns the kind of account that the class is for; `None` for adopted namespaces.
    #[must_use]
    pub const fn account_kind(&self) -> Option<AccountKind> {
        match self {
            Self::Tools => Some(AccountKind::Tool),
            Self::Users(_) => Some(AccountKind::User),
            Self::Groups(_) => Some(AccountKind::Group),
            Self::Adopted(_) => None,
        }
    }
}

/// Narrows a class to some of its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum When {
    /// The class takes only members of this directory group, including members of nested groups.
    Group(String),
    /// The class takes only entries beneath this DN.
    Base(String),
}

/// A compiled regular expression. Two patterns are equal if their texts are equal.
#[derive(Debug, Clone)]
pub struct Pattern(pub Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// A configured rule that selects directory entries as tenants, with everything that a tenant of the class gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// The key in `[class.NAME]`, and the label on its namespaces.
    pub name: String,
    pub from: From,
    pub when: Option<When>,
    /// The clusters in which each tenant gets a namespace.
    pub clusters: Vec<ClusterName>,
    /// A name that does not match is rejected.
    pub name_pattern: Pattern,
    /// The pattern of the namespace, with `{name}`; `None` if the class is bound in the whole cluster, as
    /// administrators are.
    pub namespace: Option<String>,
    pub home: Option<HomeRule>,
    /// ClusterRoles bound in the namespace, or in the whole cluster if the class has no namespace.
    pub roles: Vec<String>,
    /// ClusterRoles bound to the namespace's `default` service account.
    pub service_account_roles: Vec<String>,
    /// Users that a holder of the credential may impersonate (`kubectl --as`).
    pub impersonate: Vec<String>,
    /// What happens if somebody else changes an object, by kind; [`DriftMode::Revert`] for kinds that are not listed.
    pub drift: BTreeMap<DriftKey, DriftMode>,
    /// The Pod Security level, used for all three modes: enforce, audit and warn.
    pub pod_security: PodSecurity,
    /// ResourceQuota `spec.hard`.
    pub quota: BTreeMap<String, String>,
    /// Resources that an override cannot change.
    pub quota_locked: BTreeSet<String>,
    /// LimitRange `spec.limits` as sent to the API server; `None` if there is no LimitRange.
    pub limit_range: Option<Value>,
    /// Name of a [`NetworkProfile`].
    pub network: String,
    /// The credential of an account; `None` if no credential is issued.
    pub credential: Option<CredentialRule>,
    /// The claims in the namespace, with their storage.
    pub volumes: Vec<Volume>,
    /// The rules that the webhook applies to pods, ingresses and claims.
    pub admission: Admission,
    pub provision: Provision,
    /// The site's templates: one parsed YAML document each. The placeholders in their strings, such as `{name}`, are
    /// not replaced yet.
    pub manifests: Vec<Value>,
}

impl Class {
    /// Returns the rights of people in the workspace, if the class is made from groups.
    #[must_use]
    pub const fn workspace(&self) -> Option<&Workspace> {
        match &self.from {
            From::Groups(workspace) => Some(workspace),
            From::Tools | From::Users(_) | From::Adopted(_) => None,
        }
    }

    /// Returns which namespaces are adopted and who owns them, if the class adopts namespaces.
    #[must_use]
    pub const fn adopts(&self) -> Option<&Adopts> {
        match &self.from {
            From::Adopted(adopts) => Some(adopts),
            From::Tools | From::Users(_) | From::Groups(_) => None,
        }
    }

    /// Returns how workspaces change the quota of the class, if it is made from users and has such a rule.
    #[must_use]
    pub const fn quota_from_workspaces(&self) -> Option<FromWorkspaces> {
        match &self.from {
            From::Users(way) => *way,
            From::Tools | From::Groups(_) | From::Adopted(_) => None,
        }
    }

    /// Whether the class grants rights in the whole cluster, as ClusterRoles or by impersonation.
    #[must_use]
    pub fn has_cluster_roles(&self) -> bool {
        (self.namespace.is_none() && self.adopts().is_none() && !self.roles.is_empty()) || !self.impersonate.is_empty()
    }

    /// Returns the ClusterRoles that the class binds in its namespaces.
    pub fn roles_in_namespaces(&self) -> impl Iterator<Item = &String> {
        let binds = self.namespace.is_some() || self.adopts().is_some();
        let own = [&self.roles, &self.service_account_roles].into_iter().filter(move |_| binds).flatten();
        own.chain(
            self.workspace().into_iter().flat_map(|workspace| workspace.members.iter().chain(&workspace.managers)),
        )
    }

    /// Checks that an administrator may give an account of the class an exception from `rule`.
    ///
    /// # Errors
    /// If the exception would let pods run as other accounts or mount their homes, returns the reason as text.
    pub fn excepts(&self, rule: ExceptedRule) -> Result<(), &'static str> {
        let uid = &self.admission.uid;
        match rule {
            ExceptedRule::Images if uid.mode != Mode::Off && !uid.strict_groups => {
                Err("its class has supplemental_groups = \"merge\", and others' images could add any group to its pods")
            }
            ExceptedRule::Volumes if self.workspace().is_some_and(|workspace| workspace.uid_range.is_some()) => {
                Err("its class has uid_range, and a member's home could be mounted in its pods")
            }
            ExceptedRule::Images | ExceptedRule::Hosts | ExceptedRule::Volumes | ExceptedRule::Lifetime => Ok(()),
        }
    }
}

/// When the tenants of a class are created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Provision {
    /// The tenants are created as soon as the directory shows the account.
    #[default]
    Always,
    /// Each tenant is created when `bursar ensure` first asks for its account.
    OnDemand,
}

/// Where the homes of a class are, and what Bursar writes there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeRule {
    /// The folder that contains the homes. If an entry has no `homeDirectory`, its home is `prefix/name`.
    pub prefix: PathBuf,
    /// The path of the kubeconfig, relative to the home.
    pub kubeconfig: PathBuf,
    /// Whether a missing home is created.
    pub create: bool,
    /// Whether `.ssh/authorized_keys` gets the SSH keys from the directory.
    pub ssh_keys: bool,
    /// Whether a kubeconfig that is not YAML is replaced. A dated copy is kept next to it.
    pub replace_unparsable: bool,
}

/// What happens if somebody else changes one of Bursar's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriftMode {
    /// The change is reverted.
    Revert,
    /// The change stays, and plans show it.
    Report,
    /// The change becomes an override if an administrator made it. Only for the quota.
    Adopt,
}

/// A level of the Pod Security Standards (label `pod-security.kubernetes.io/enforce`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PodSecurity {
    Privileged,
    /// Refuses known privilege escalations.
    Baseline,
    /// Requires current hardening practice.
    Restricted,
}

impl PodSecurity {
    /// Returns the level with this label value.
    #[must_use]
    pub fn of(value: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted].into_iter().find(|level| level.as_str() == value)
    }

    /// Returns the label value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// A claim in the tenant's namespace. All its paths contain `{name}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    pub name: String,
    pub kind: VolumeKind,
    /// The path at which the webhook mounts the claim in pods; `None` if the webhook does not mount it.
    pub mount: Option<String>,
}

/// The storage of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeKind {
    /// A directory of an NFS server for this tenant alone, as a PersistentVolume that only this claim can bind.
    Static(NfsVolume),
    /// Like `Static`, but for several people: the directory has mode 2770, so new files belong to its group.
    Shared(NfsVolume),
    /// A volume that a storage class provisions.
    Dynamic(Provisioned),
    /// A directory of an NFS server. Its claim is in a namespace that outlives the account. A Secret in the tenant's
    /// namespace contains the server and the path.
    Personal(NfsVolume),
    /// A volume from a storage class. Its claim is in the same namespace as the claim of `Personal`, and the Secret
    /// contains the claim's name.
    PersonalDynamic(Provisioned),
}

impl VolumeKind {
    /// Returns the directory of the NFS server, if the volume is on NFS.
    #[must_use]
    pub fn nfs(&self) -> Option<&NfsVolume> {
        match self {
            Self::Static(nfs) | Self::Shared(nfs) | Self::Personal(nfs) => Some(nfs),
            Self::Dynamic(_) | Self::PersonalDynamic(_) => None,
        }
    }

    /// Whether the claim outlives the account. No tenant has rights in the claim's namespace.
    #[must_use]
    pub fn is_personal(&self) -> bool {
        match self {
            Self::Personal(_) | Self::PersonalDynamic(_) => true,
            Self::Static(_) | Self::Shared(_) | Self::Dynamic(_) => false,
        }
    }
}

/// A claim's request to its storage class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provisioned {
    /// `storageClassName`; `None` for the cluster's default class.
    pub storage_class: Option<String>,
    /// A Kubernetes quantity. It may be raised, never lowered.
    pub size: String,
    /// One of `accessModes`: `ReadWriteOnce`, `ReadWriteMany`.
    pub access: String,
}

/// A directory of an NFS server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NfsVolume {
    /// `nfs.server`.
    pub server: String,
    /// `nfs.path`.
    pub path: String,
    /// `mountOptions`: `nfsvers=4.2`, `hard`.
    pub options: Vec<String>,
    /// The path of the directory on this host; `None` if Bursar does not create the directory.
    pub directory: Option<String>,
}

/// `[class.NAME.admission]`. The webhook's other rules follow from the rest of the class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// The user and groups that pods run as.
    pub uid: UidRules,
    /// Namespaces, ports and privileges of the node.
    pub host: Mode,
    /// The registries that images may come from.
    pub images: ImageRules,
    /// The hosts that an Ingress or a route may serve.
    pub hosts: HostRules,
    /// Volumes that a pod may mount in addition to those of the class, and the volumes that the webhook adds.
    pub volumes: VolumeRule,
    pub claims: ClaimRules,
    /// What happens if a pod's lifetime does not parse or breaks [`Admission::lifetimes`].
    pub lifetime: Mode,
    pub lifetimes: Lifetimes,
    /// How long before the end of a pod its people are warned; zero if they are not warned.
    pub lifetime_warning: Duration,
    /// The rules that the API server evaluates itself.
    pub server: ServerRules,
}

/// `admission.volumes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRule {
    pub mode: Mode,
    /// Volumes from outside the namespace that pods may mount.
    pub allow: Vec<AllowedVolume>,
    /// The containers that get the class's volumes with a `mount`.
    pub inject: Inject,
    /// Labels of the nodes that can mount the class's volumes.
    pub node_selector: BTreeMap<String, String>,
}

impl Default for Admission {
    /// Enforces every rule except `images` and `hosts`, which are off because only the site knows its registries and
    /// hosts.
    fn default() -> Self {
        Self {
            uid: UidRules { mode: Mode::Enforce, strict_groups: true, privilege_escalation: false },
            host: Mode::Enforce,
            images: ImageRules { mode: Mode::Off, allow: Vec::new(), digest: false },
            hosts: HostRules { mode: Mode::Off, allow: Vec::new(), annotations: Vec::new() },
            volumes: VolumeRule {
                mode: Mode::Enforce,
                allow: Vec::new(),
                inject: Inject::Containers,
                node_selector: BTreeMap::new(),
            },
            claims: ClaimRules { mode: Mode::Enforce, storage_class: None },
            lifetime: Mode::Enforce,
            lifetimes: Lifetimes::default(),
            lifetime_warning: Duration::ZERO,
            server: ServerRules::default(),
        }
    }
}

impl Policy {
    /// Returns the classes whose workspaces have their own uids, with the range of each class.
    pub fn uid_ranges(&self) -> impl Iterator<Item = (&Class, UidRange)> {
        self.classes.values().filter_map(|class| Some((class, class.workspace()?.uid_range?)))
    }

    /// Returns a hash of everything that can change a tenant's objects without an action of the tenant: the class, its
    /// network profile, the clusters, and Bursar's version.
    #[must_use]
    pub fn revision(&self, class: &str) -> String {
        let class = self.classes.get(class);
        let network = class.and_then(|class| self.networks.get(&class.network));
        let text = format!("{} {class:?} {network:?} {:?}", env!("CARGO_PKG_VERSION"), self.clusters);
        hex::encode(&Sha256::digest(text)[..8])
    }
}

/// `[lifecycle]`: how long Bursar waits before each step in an account's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LifecycleDelays {
    /// How long an account must be absent from complete reads before it is suspended.
    pub absent_for: Duration,
    /// How long an account stays suspended before it is archived.
    pub retention: Duration,
    /// How long an account stays archived before it is deleted.
    pub delete_after: Duration,
    /// Whether the certificate is replaced when a maintainer leaves, because the maintainer may have kept a copy.
    pub revoke_on_member_removed: bool,
}
