//! What the administrators want: classes, quotas, networks, lifetimes, limits, each validated once by `settings.rs` so
//! that everything built from it afterwards cannot fail.

mod adopts;
mod credential;
mod network;
mod realm;
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

pub use self::adopts::{AdoptedAdmission, Adopts, PLACEHOLDER, Requirement, Selector};
pub use self::credential::{CredentialKind, CredentialRule, OidcRule, TOKEN_LIFETIME_MAX};
pub use self::network::{Namespaces, NetworkProfile, Peer, Port, Range, Target, Who};
pub use self::realm::Realm;
pub use self::workspace::{FromWorkspaces, UidRange, Workspace};

/// The name the API server knows the daemon by: common name of its certificate, `username` in its RBAC.
pub const DAEMON_USER: &str = "bursar:daemon";

/// Everything the configuration says about tenants.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Shown in plans, logs and reports.
    pub site: String,
    /// Whom suspended people are told to ask.
    pub contact: Option<String>,
    /// Classes by name.
    pub classes: BTreeMap<String, Class>,
    /// Network profiles by name, with the built-in `open` and `isolated`.
    pub networks: BTreeMap<String, NetworkProfile>,
    /// Clusters by name.
    pub clusters: BTreeMap<ClusterName, Cluster>,
    /// How much may happen at once.
    pub limits: Limits,
    /// How long things wait.
    pub lifecycle: Lifecycle,
    /// Folders that homes may lie beneath.
    pub home_prefixes: Vec<PathBuf>,
    /// What is ended by itself.
    pub reapers: Reapers,
    /// `[security] require_confinement`: where the daemon's confinement is not whole, nothing is granted or repaired.
    pub require_confinement: bool,
    /// `[security] strict_egress`: a class whose pods reach file servers, directories or this host is refused.
    pub strict_egress: bool,
    /// Groups whom admission lets change namespaces of tenants and objects of ours.
    pub exempt: Vec<String>,
}

/// A cluster: its public face, as kubeconfigs name it, and whose reviews its webhook answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The endpoint whose context becomes `current-context` where none is set.
    pub default_endpoint: String,
    /// Endpoints by name; one context each.
    pub endpoints: BTreeMap<String, Endpoint>,
    /// Who may send reviews to its webhook.
    pub senders: Senders,
}

impl Cluster {
    /// The name of the cluster and the context of one endpoint in a kubeconfig, where this cluster has that name.
    #[must_use]
    pub fn entry_name(name: &ClusterName, default_endpoint: &str, endpoint: &str) -> String {
        if endpoint == default_endpoint { name.0.clone() } else { format!("{name}-{endpoint}") }
    }
}

/// One way to reach an API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// `https://host:port`.
    pub url: String,
    /// PEM bundle; old and new together during a rollover.
    pub ca_pem: String,
    /// kubeconfig `tls-server-name`.
    pub tls_server_name: Option<String>,
    /// kubeconfig `proxy-url`.
    pub proxy: Option<String>,
}

/// Which directory entries a class is made from, and what only such a class can say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum From {
    /// Tools.
    Tools,
    /// People, whose workspaces may change the quota of the class.
    Users(Option<FromWorkspaces>),
    /// Groups: what their people may do in the workspace.
    Groups(Workspace),
    /// Namespaces that others create: which of them, and whose each is.
    Adopted(Adopts),
}

impl From {
    /// The kind of account such a class is for; adopted namespaces are for none.
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
    /// Members of this directory group, nested ones included.
    Group(String),
    /// Entries beneath this DN.
    Base(String),
}

/// A compiled pattern that compares by its text.
#[derive(Debug, Clone)]
pub struct Pattern(pub Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// The configured rule by which directory entries become tenants, and what a tenant of that class gets.
#[derive(Debug, Clone, PartialEq)]
pub struct Class {
    /// Its name: the key in `[class.NAME]`, and the label on its namespaces.
    pub name: String,
    /// Which entries.
    pub from: From,
    /// Only these of them.
    pub when: Option<When>,
    /// Where its tenants live.
    pub clusters: Vec<ClusterName>,
    /// What a name must look like to become a tenant.
    pub name_pattern: Pattern,
    /// Namespace with `{name}`; absent for admins, who are bound cluster-wide instead.
    pub namespace: Option<String>,
    /// Where the kubeconfig goes.
    pub home: Option<HomeRule>,
    /// ClusterRoles bound in the namespace; cluster-wide where there is none.
    pub roles: Vec<String>,
    /// ClusterRoles bound to the namespace's `default` service account.
    pub service_account_roles: Vec<String>,
    /// Users that a holder of the credential may impersonate (`kubectl --as`).
    pub impersonate: Vec<String>,
    /// What happens to a difference somebody made; [`DriftMode::Revert`] where a kind is not named.
    pub drift: BTreeMap<DriftKey, DriftMode>,
    /// Pod Security level, enforced, audited and warned of alike.
    pub pod_security: PodSecurity,
    /// ResourceQuota `spec.hard`.
    pub quota: BTreeMap<String, String>,
    /// Keys that no override may change.
    pub quota_locked: BTreeSet<String>,
    /// LimitRange `spec.limits`, ready to be sent; absent: none.
    pub limit_range: Option<Value>,
    /// Name of a [`NetworkProfile`].
    pub network: String,
    /// What its holders prove themselves with; absent: nothing is issued.
    pub credential: Option<CredentialRule>,
    /// Claims, and what stands behind them.
    pub volumes: Vec<Volume>,
    /// What the webhook lets pods, ingresses and claims be.
    pub admission: Admission,
    /// When its tenants are made.
    pub provision: Provision,
    /// Site templates: one parsed YAML document each, with `{name}` and the like still in its strings.
    pub manifests: Vec<Value>,
}

impl Class {
    /// What its people may do in the workspace, if the class is from groups.
    #[must_use]
    pub const fn workspace(&self) -> Option<&Workspace> {
        match &self.from {
            From::Groups(workspace) => Some(workspace),
            From::Tools | From::Users(_) | From::Adopted(_) => None,
        }
    }

    /// Which namespaces of others it adopts, and whose each is.
    #[must_use]
    pub const fn adopts(&self) -> Option<&Adopts> {
        match &self.from {
            From::Adopted(adopts) => Some(adopts),
            From::Tools | From::Users(_) | From::Groups(_) => None,
        }
    }

    /// How the workspaces of its users change their quota.
    #[must_use]
    pub const fn quota_from_workspaces(&self) -> Option<FromWorkspaces> {
        match &self.from {
            From::Users(way) => *way,
            From::Tools | From::Groups(_) | From::Adopted(_) => None,
        }
    }

    /// Whether its people hold ClusterRoles in the whole cluster.
    #[must_use]
    pub fn has_cluster_roles(&self) -> bool {
        (self.namespace.is_none() && self.adopts().is_none() && !self.roles.is_empty()) || !self.impersonate.is_empty()
    }

    /// Whether an account of the class may be excepted from a rule, or why not.
    ///
    /// # Errors
    /// The rule is a part of what keeps its pods from running as others.
    pub fn excepts(&self, rule: ExceptedRule) -> Result<(), &'static str> {
        let uid = &self.admission.uid;
        match rule {
            ExceptedRule::Images if uid.mode != Mode::Off && !uid.strict_groups => {
                Err("its class has strict_groups = false, and an image of others could add any group to its pods")
            }
            ExceptedRule::Images | ExceptedRule::Hosts | ExceptedRule::Volumes | ExceptedRule::Lifetime => Ok(()),
        }
    }
}

/// When tenants of a class are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Provision {
    /// When the directory has them.
    #[default]
    Always,
    /// When somebody asks for them (`bursar ensure`).
    OnDemand,
}

/// Where homes of a class are and what is written there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeRule {
    /// The folder homes lie in; a home without `homeDirectory` is `prefix/name`.
    pub prefix: PathBuf,
    /// The kubeconfig, relative to the home.
    pub kubeconfig: PathBuf,
    /// Make a missing home.
    pub create: bool,
    /// Keep the people's SSH keys in it.
    pub ssh_keys: bool,
    /// Replace a kubeconfig that is no YAML, and keep a dated copy beside it.
    pub replace_unparsable: bool,
}

/// What to do with a difference somebody made in an object of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DriftMode {
    /// Write ours back.
    Revert,
    /// Show it only.
    Report,
    /// Keep it: what an administrator wrote becomes an override. For the quota only.
    Adopt,
}

/// A level of the Pod Security Standards (label `pod-security.kubernetes.io/enforce`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PodSecurity {
    /// No restriction.
    Privileged,
    /// Known privilege escalations refused.
    Baseline,
    /// Current hardening practice.
    Restricted,
}

impl PodSecurity {
    /// The level of a label's value.
    #[must_use]
    pub fn of(value: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted].into_iter().find(|level| level.as_str() == value)
    }

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

/// A claim of the tenant. `{name}` stands in every path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Name of the claim.
    pub name: String,
    /// What stands behind it.
    pub kind: VolumeKind,
    /// Where pods find it (the webhook injects it there).
    pub mount: Option<String>,
}

/// What stands behind a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolumeKind {
    /// A PersistentVolume on NFS of the tenant's own, bound by this claim alone.
    Static(NfsVolume),
    /// The same for several people: its directory gives its group on (mode 2770).
    Shared(NfsVolume),
    /// Whatever a storage class makes.
    Dynamic(Provisioned),
    /// On NFS, claimed in a namespace that outlives the account; the tenant's namespace gets a Secret with server and
    /// path.
    Personal(NfsVolume),
    /// From a storage class, claimed in the same namespace; the Secret names the claim.
    PersonalDynamic(Provisioned),
}

impl VolumeKind {
    /// The directory of an NFS server behind it.
    #[must_use]
    pub fn nfs(&self) -> Option<&NfsVolume> {
        match self {
            Self::Static(nfs) | Self::Shared(nfs) | Self::Personal(nfs) => Some(nfs),
            Self::Dynamic(_) | Self::PersonalDynamic(_) => None,
        }
    }

    /// Whether its claim outlives the account, in a namespace where no tenant has a right.
    #[must_use]
    pub fn is_personal(&self) -> bool {
        match self {
            Self::Personal(_) | Self::PersonalDynamic(_) => true,
            Self::Static(_) | Self::Shared(_) | Self::Dynamic(_) => false,
        }
    }
}

/// What a claim asks its storage class for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provisioned {
    /// `storageClassName`; absent: the cluster's default class.
    pub storage_class: Option<String>,
    /// A Kubernetes quantity. It grows and never shrinks.
    pub size: String,
    /// `accessModes`: `ReadWriteOnce`, `ReadWriteMany`.
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
    /// Where this host sees it, if it is to be made there.
    pub directory: Option<String>,
}

/// `[class.NAME.admission]`; the other rules for the webhook are in the class itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admission {
    /// Who a pod runs as.
    pub uid: UidRules,
    /// Host namespaces, ports, privileges.
    pub host: Mode,
    /// Where images come from.
    pub images: ImageRules,
    /// What an Ingress or route may serve.
    pub hosts: HostRules,
    /// What a pod may mount besides the class's own volumes, and what it is given.
    pub volumes: VolumeRule,
    /// Claims.
    pub claims: ClaimRules,
    /// What happens to lifetimes of pods that do not parse, or are not as `lifetimes` says.
    pub lifetime: Mode,
    /// How long pods may live.
    pub lifetimes: Lifetimes,
    /// So long before its end the people of a pod are told; zero: they are not.
    pub lifetime_warning: Duration,
    /// What the API server judges itself.
    pub server: ServerRules,
}

/// `admission.volumes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRule {
    /// What happens.
    pub mode: Mode,
    /// From outside the namespace.
    pub allow: Vec<AllowedVolume>,
    /// Which containers are given the class's volumes that have a `mount`.
    pub inject: Inject,
    /// Nodes that can mount them.
    pub node_selector: BTreeMap<String, String>,
}

impl Default for Admission {
    /// Enforced; images and hosts off, for nobody could say which.
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

/// `[limits]`: how much may happen at once. A day is a rolling 24 h.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Tenants suspended in one cycle.
    pub suspend_per_cycle: Limit,
    /// Tenants suspended in a day.
    pub suspend_per_day: Limit,
    /// Tenants suspended in one cycle because a directory marks them as disabled.
    pub disable_per_cycle: Limit,
    /// The same in a day.
    pub disable_per_day: Limit,
    /// Places that lose access in one cycle because of the configuration, of a label, or of an owner's annotation.
    pub remove_access_per_cycle: Limit,
    /// The same in a day.
    pub remove_access_per_day: Limit,
    /// Namespaces deleted in one cycle.
    pub delete_per_cycle: Limit,
    /// Namespaces deleted in a day.
    pub delete_per_day: Limit,
    /// Members removed in one cycle.
    pub remove_members_per_cycle: Limit,
    /// Members removed in a day.
    pub remove_members_per_day: Limit,
    /// Users disabled in the realm in one cycle.
    pub realm_disable_per_cycle: Limit,
    /// Users disabled in the realm in a day.
    pub realm_disable_per_day: Limit,
    /// Roles taken from users of the realm in one cycle.
    pub realm_remove_roles_per_cycle: Limit,
    /// Roles taken from users of the realm in a day.
    pub realm_remove_roles_per_day: Limit,
    /// Tenants that get their access back in one cycle because a directory says so.
    pub resume_per_cycle: Limit,
    /// The same in a day.
    pub resume_per_day: Limit,
    /// Existing tenants that a policy change may touch in one cycle.
    pub change_per_cycle: Limit,
}

/// allowed = min(count, max(1, ceil(percent of the class))); without percent: count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Never more than this.
    pub count: u64,
    /// Nor more than this share of the class.
    pub percent: Option<u64>,
}

/// `[reaper]`: what is ended by itself. Absent: off.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reapers {
    /// Pods.
    pub pods: Option<PodReaper>,
    /// Namespaces in which nothing runs.
    pub namespaces: Option<NamespaceReaper>,
}

impl Reapers {
    /// Whether people are told before their pods end.
    #[must_use]
    pub fn warn_of_pods(&self) -> bool {
        self.pods.iter().flat_map(|pods| pods.classes.values()).any(|class| !class.warn.is_zero())
    }

    /// Whether anything has to be known of pods.
    #[must_use]
    pub const fn look_at_pods(&self) -> bool {
        self.pods.is_some() || self.namespaces.is_some()
    }
}

/// `[reaper.namespaces]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceReaper {
    /// Nothing ran for so long: suspended.
    pub idle_for: Duration,
    /// Its people are warned so long before.
    pub warn_for: Duration,
    /// How many in one cycle.
    pub per_cycle: u64,
    /// Clusters whose Prometheus must answer, too, before anything there is idle.
    pub evidence: BTreeMap<ClusterName, Evidence>,
}

/// `[reaper.namespaces.prometheus.CLUSTER]`: what it shows in use is not idle, whatever runs there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Where its API is; `/api/v1/query` is appended.
    pub url: String,
    /// PEM bundle, if it is https of an authority of the site's own.
    pub ca_pem: Option<String>,
    /// The file of a bearer token, which is read for each question.
    pub token: Option<PathBuf>,
    /// A query of Prometheus: a vector with label `namespace`; above 0 is use.
    pub query: String,
    /// Namespaces that are always in use: an answer without one of them proves nothing.
    pub control: Vec<String>,
}

/// `[reaper.pods]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodReaper {
    /// Lifetime of pods that do not set one; `None` if they may live for ever.
    pub lifetime: Option<Duration>,
    /// How many pods in one cycle.
    pub per_cycle: u64,
    /// What classes say that enforce it.
    pub classes: BTreeMap<String, ClassLifetimes>,
}

/// How long the pods of one class live, and when their people are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClassLifetimes {
    /// How long.
    pub lifetimes: Lifetimes,
    /// So long before the end; zero: never.
    pub warn: Duration,
}

impl Policy {
    /// The classes whose workspaces have uids of their own, with the ranges.
    pub fn uid_ranges(&self) -> impl Iterator<Item = (&Class, UidRange)> {
        self.classes.values().filter_map(|class| Some((class, class.workspace()?.uid_range?)))
    }

    /// Names everything that a tenant's objects may differ by without the tenant's doing: its class, what that refers
    /// to, and the program that builds them.
    #[must_use]
    pub fn revision(&self, class: &str) -> String {
        let class = self.classes.get(class);
        let network = class.and_then(|class| self.networks.get(&class.network));
        let text = format!("{} {class:?} {network:?} {:?}", env!("CARGO_PKG_VERSION"), self.clusters);
        hex::encode(&Sha256::digest(text)[..8])
    }
}

impl Limit {
    /// What the limit allows in a class of `size` tenants.
    #[must_use]
    pub fn allowed(self, size: u64) -> u64 {
        self.percent.map_or(self.count, |percent| self.count.min((size * percent).div_ceil(100).max(1)))
    }
}

/// `[lifecycle]`: how long things wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifecycle {
    /// Absence from complete reads before suspension.
    pub absent_for: Duration,
    /// Suspension before archiving.
    pub retention: Duration,
    /// Archived before deletion.
    pub delete_after: Duration,
    /// A maintainer who leaves may have kept a copy of the certificate: issue another.
    pub revoke_on_member_removed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_lets_at_least_one_and_at_most_count_through() {
        let limit = Limit { count: 5, percent: Some(1) };
        assert_eq!([0, 1, 100, 101, 400, 10_000].map(|size| limit.allowed(size)), [1, 1, 1, 2, 4, 5]);
        assert_eq!(Limit { count: 3, percent: None }.allowed(10_000), 3);
    }
}
