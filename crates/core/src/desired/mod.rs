//! What should be: from accounts and policy to objects, credentials and homes. [`derive()`] cannot fail, for everything
//! it builds from was validated.
//!
//! `class` says who is a tenant, `life` what is due in its life, `tenant` puts together what it gets, from the builders
//! `namespace`, `quota`, `network`, `volume`, `manifest`, `rbac` and `credential`.

mod adopted;
pub mod approver_rules;
mod class;
pub mod credential;
mod derive;
mod life;
pub mod manifest;
pub mod namespace;
pub mod network;
pub mod quota;
pub mod rbac;
pub mod rules;
pub mod server_rules;
mod ssh;
mod subject;
mod tenant;
pub mod volume;
pub mod watched;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bursar_protocol::AUTHORIZED_KEYS;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::contract::{MANAGED_BY, MANAGER};
use crate::digest::digest;
use crate::identity::{AccountId, AccountName, ClusterName, DirectoryId, HostName, NamespaceName, PosixIdentity};
use crate::json_text::JsonText;
use crate::kinds::{Detail, ManagedKind, ObjectKey, ObjectKind, ObjectName};
use crate::ledger::{Account, Delivery, LedgerState, Note, Suspension};
use crate::packed_text::DigestText;
use crate::policy::{DriftMode, Endpoint, OidcRule, PodSecurity, Reapers};
pub use class::{
    ClassesOfNamespaces, Groups, accounts_of, classes_by, classes_if_asked, classes_of, classes_of_namespaces,
    groups_without_uid, takes,
};
pub use derive::{Derived, Deriver, Each, derive, is_separable};
pub use ssh::DesiredKeys;

pub use crate::identity::{generation_group, of_generation_group};

/// What all tenants should have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DesiredState {
    /// Every account that is or was a tenant, or is about to be one.
    pub accounts: BTreeMap<AccountId, DesiredAccount>,
    /// The clusters of the configuration. A tenant in another is left as it is there.
    pub clusters: BTreeSet<ClusterName>,
    /// What ends by itself.
    pub reaps: Reapers,
    /// Accounts that should be tenants and cannot be.
    pub notices: Vec<Notice>,
}

/// Something odd or blocked, that an administrator should know and nobody can do by planning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Notice {
    /// Whom it is about.
    pub account: AccountName,
    /// For people, with the remedy.
    pub text: String,
}

/// What one account should have.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredAccount {
    /// `tool:foo`.
    pub account: AccountName,
    /// For the plan's text.
    pub posix: Option<PosixIdentity>,
    /// The class that counts for limits: the first that took it.
    pub class: String,
    /// The change of its life that is due.
    pub transition: Option<Transition>,
    /// The generation its certificates and bindings should carry. Already the new one where `renewed` says so.
    pub generation: u64,
    /// Why the generation is a new one.
    pub regenerated: Option<Regeneration>,
    /// Planned for and shown, but not touched.
    pub held: Option<Note>,
    /// Orders that this carries out.
    pub orders: Vec<i64>,
    /// Objects of somebody else's that they say are the account's, as [`ObjectKey::said`].
    pub adopts: BTreeSet<String>,
    /// Who gave the newest of them, and why.
    pub ordered: Option<Note>,
    /// Somebody waits for it.
    pub awaited: bool,
    /// Members whose leaving is due, with their names.
    pub leaving: BTreeMap<DirectoryId, AccountName>,
    /// Groups whose loss of a member, or of themselves, this rests on.
    pub rests_on: BTreeSet<AccountId>,
    /// Made for a workspace in which the removal of some people is refused: they keep what they have, and members
    /// leave.
    pub keeps_people: bool,
    /// People of a workspace whose own creation or return may still be refused, and what its bindings call them.
    pub returning: BTreeMap<AccountId, BTreeMap<ClusterName, Value>>,
    /// What it should have while the guard does not let the removal through that this is. Without it an account that a
    /// limit holds back would lose its access after all, when its certificate ends.
    pub otherwise: Option<Box<DesiredAccount>>,
    /// Its SSH keys in its home; absent: none of ours are there.
    pub ssh: Option<DesiredKeys>,
    /// Its place in each cluster.
    pub clusters: BTreeMap<ClusterName, Box<DesiredTenant>>,
}

impl DesiredAccount {
    /// Something of the account itself is to be done, whatever there is to do in its places.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.transition.is_some() || self.regenerated.is_some() || !self.orders.is_empty() || !self.leaving.is_empty()
    }

    /// Drops the manifests of objects that were applied as they are, and names them by the ledger's keys. Returns whether
    /// no manifest is left.
    fn lighten(&mut self, ledger: &LedgerState) -> bool {
        for tenant in self.clusters.values_mut() {
            let shared = |key| ledger.objects.get_key_value(&key).map_or(key, |(known, _)| known.clone());
            let objects = std::mem::take(&mut tenant.objects).into_iter();
            tenant.objects = objects.map(|(key, object)| (shared(key), object)).collect();
        }
        let objects = self.clusters.values_mut().flat_map(|tenant| &mut tenant.objects);
        let kept = objects.filter_map(|(key, object)| {
            let is_applied = ledger.objects.get(key).is_some_and(|record| record.wanted == object.digest);
            object.manifest.take_if(|_| is_applied);
            object.manifest.as_ref()
        });
        kept.count() == 0
    }
}

/// A change of an account's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "transition")]
pub enum Transition {
    /// It becomes a tenant.
    Create,
    /// Its access goes.
    Suspend(Suspension),
    /// Its access comes back; after its deletion, everything.
    Resume,
    /// Its namespaces are in files now.
    Archive,
    /// Its namespaces are deleted from now on.
    Delete {
        /// How many there are.
        namespaces: u64,
    },
    /// They are gone.
    Gone,
}

/// Why every older certificate should be worth nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "cause")]
pub enum Regeneration {
    /// It never had one.
    First,
    /// It is being suspended.
    Suspended,
    /// An administrator asked, or a maintainer left.
    Revoked(Note),
}

/// What an account should have in one cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredTenant {
    /// Class of its namespace, or of its cluster-wide binding.
    pub class: String,
    /// Absent for admins.
    pub namespace: Option<NamespaceName>,
    /// New pods may not start; its workloads are stopped.
    pub suspended: bool,
    /// No class has this place any more, and its suspension waits. What is there stays, and bindings lose those only who
    /// have to leave them.
    pub given_up: bool,
    /// What its end asks for here.
    pub end: Option<EndOfTenant>,
    /// Digest of what its objects take from itself. They may differ from what they were for another reason only: the
    /// policy.
    pub own: String,
    /// Everything that should exist. What the ledger knows of beyond this should not.
    pub objects: BTreeMap<ObjectKey, DesiredObject>,
    /// Levels of Pod Security of namespaces that others made, if these have none: class and level.
    pub levels: BTreeMap<NamespaceName, (String, PodSecurity)>,
    /// Directories that are made before the PersistentVolume of this name is.
    pub directories: BTreeMap<String, DirectoryTarget>,
    /// Its class is gone from the configuration: nobody can say what its quota was, so only bindings are taken away.
    pub keep_unknown: bool,
    /// What its holders should hold: one credential, or one for each host that has its own. What stands in a home and is
    /// not among them goes.
    pub credentials: Vec<DesiredCredential>,
    /// While it is suspended: what stands in homes instead of its credentials, and is put only where one stands.
    pub notices: Vec<DesiredNotice>,
    /// Whom bindings name for its credential.
    pub holder: JsonText,
    /// Where the kubeconfig is or was, for every host that has one ([`HomeTarget::on`]); absent for classes without homes.
    pub home: Option<HomeTarget>,
}

/// What the end of a suspended tenant asks for in one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfTenant {
    /// Its namespace is to be written into a file.
    Archive,
    /// Its namespace is to be deleted; nothing else is wanted any more.
    Delete,
}

/// An object as we want it.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredObject {
    /// The whole manifest, label and all. A [`Deriver`] does not keep one that was applied: [`plan`](crate::plan) asks
    /// for it again if the object has to be.
    pub manifest: Option<JsonText>,
    /// [`crate::digest::digest`] of the manifest.
    pub digest: DigestText,
    /// The amounts of a quota.
    pub hard: Option<JsonText>,
    /// What to do about somebody's change.
    pub drift: DriftMode,
    /// If edits of this quota are adopted: the resources whose edits are not.
    pub locked: BTreeSet<String>,
}

/// What the ledger keeps of an object that was applied, beside its digests: what later plans compare with.
#[must_use]
pub fn detail(kind: &ObjectKind, manifest: &Value) -> Option<JsonText> {
    match kind.detail() {
        Detail::None => None,
        Detail::QuotaHard => Some(JsonText::from(&manifest["spec"]["hard"])),
        Detail::VolumeFixed => volume::fixed(kind, manifest).as_ref().map(JsonText::from),
        Detail::Subjects => Some(JsonText::from(&manifest["subjects"])),
    }
}

impl DesiredObject {
    /// Labels `manifest` as ours and says which object it is. The manifest has a kind and a name.
    fn new(cluster: &ClusterName, mut manifest: Value, drift: DriftMode) -> (ObjectKey, Self) {
        manifest["metadata"]["labels"][MANAGED_BY] = Value::from(MANAGER);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let key = ObjectKey::from(ObjectName {
            cluster: cluster.clone(),
            kind: ObjectKind::of_manifest(&manifest),
            namespace: text(&manifest["metadata"]["namespace"]),
            name: text(&manifest["metadata"]["name"]).unwrap_or_default(),
        });
        let hard = (key.kind.detail() == Detail::QuotaHard).then(|| JsonText::from(&manifest["spec"]["hard"]));
        let (digest, manifest) = (digest(&manifest).into(), Some(JsonText::from(&manifest)));
        (key, Self { manifest, digest, hard, drift, locked: BTreeSet::new() })
    }
}

/// A tenant's place, as the builders of its objects see it.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Where.
    pub cluster: &'a ClusterName,
    /// Where.
    pub namespace: &'a NamespaceName,
    /// Whose.
    pub account: &'a Account,
    /// The class of the namespace.
    pub class: &'a str,
    /// The generation whose certificates are good.
    pub generation: u64,
    /// Its access is gone.
    pub suspended: bool,
    /// Nothing runs in it, its people were warned, and then it is suspended.
    pub idle_until: Option<Timestamp>,
}

/// What a holder proves itself with, and the kubeconfig around it. It holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DesiredCredential {
    /// With what: the only thing the API server knows its holder by.
    pub proof: Proof,
    /// The host that it is for.
    pub host: HostName,
    /// The contexts, by endpoint name.
    #[serde(skip)]
    pub endpoints: Arc<BTreeMap<String, Endpoint>>,
    /// The endpoint whose context becomes current where none is.
    pub default_endpoint: String,
    /// The contexts' namespace.
    pub namespace: Option<NamespaceName>,
    /// Digest of everything above but the generation: the kubeconfig's shape.
    pub digest: String,
}

impl DesiredCredential {
    /// What the ledger keeps of its delivery into `home`.
    #[must_use]
    pub fn delivered(&self, home: &HomeTarget, now: Timestamp) -> Delivery {
        Delivery {
            path: home.file(),
            home: (!self.host.is_any()).then(|| home.home.clone()),
            mount: None,
            digest: self.digest.clone(),
            at: now,
            checked_at: Some(now),
        }
    }
}

/// A kubeconfig that tells people that they are suspended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DesiredNotice {
    /// What it says.
    pub notice: bursar_protocol::Notice,
    /// The credential in whose place it stands, with the same clusters and contexts.
    pub credential: DesiredCredential,
}

impl DesiredNotice {
    /// [`Delivery::digest`] of it.
    #[must_use]
    pub fn digest(&self) -> String {
        Delivery::notice(&digest(&serde_json::json!([self.notice, self.credential.digest])))
    }

    /// What the ledger keeps of it in `home`.
    #[must_use]
    pub fn delivered(&self, home: &HomeTarget, now: Timestamp) -> Delivery {
        Delivery { digest: self.digest(), ..self.credential.delivered(home, now) }
    }
}

/// One of the three kinds of [`crate::policy::CredentialKind`], for one holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Proof {
    /// A client certificate of this subject.
    Certificate {
        /// Whom it is for.
        subject: Subject,
        /// Asked of the signer.
        #[serde(skip)]
        lifetime: Duration,
    },
    /// A token that ends with a Secret.
    Token(TokenOf),
    /// Whatever the issuer says of people; nothing of it is ours.
    Oidc(OidcRule),
}

impl Proof {
    /// The name that the API server knows the holder by, where it is we who give it.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Certificate { subject, .. } => Some(subject.common_name.clone()),
            Self::Token(token) => Some(format!("{SERVICE_ACCOUNT}{}:{}", token.namespace, token.service_account)),
            Self::Oidc(_) => None,
        }
    }

    /// What it is called, for people.
    #[must_use]
    pub const fn noun(&self) -> &'static str {
        match self {
            Self::Certificate { .. } => "certificate",
            Self::Token(_) => "token",
            Self::Oidc(_) => "kubeconfig",
        }
    }
}

/// How the API server begins the names of service accounts (`system:serviceaccount:NAMESPACE:NAME`).
pub const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// A token of a service account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenOf {
    /// Where both are.
    pub namespace: NamespaceName,
    /// Name of the service account; its generation is in it.
    pub service_account: String,
    /// Name of the Secret.
    pub secret: String,
    /// Asked of the API server.
    #[serde(skip)]
    pub lifetime: Duration,
}

impl TokenOf {
    /// The Secret.
    #[must_use]
    pub fn secret_key(&self, cluster: &ClusterName) -> ObjectKey {
        self.key(cluster, ManagedKind::Secret, &self.secret)
    }

    /// The service account.
    #[must_use]
    pub fn service_account_key(&self, cluster: &ClusterName) -> ObjectKey {
        self.key(cluster, ManagedKind::ServiceAccount, &self.service_account)
    }

    fn key(&self, cluster: &ClusterName, kind: ManagedKind, name: &str) -> ObjectKey {
        ObjectKey::from(ObjectName {
            cluster: cluster.clone(),
            kind: kind.into(),
            namespace: Some(self.namespace.to_string()),
            name: name.to_owned(),
        })
    }
}

/// Subject of a client certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// CN: `tool:foo`.
    pub common_name: String,
    /// First O: `bursar:tools`.
    pub kind_group: String,
    /// Second O: `bursar:tool:foo#1042`.
    pub generation_group: String,
    /// serialNumber: the ledger's immutable account id.
    pub serial_number: String,
}

/// A directory of a volume, on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DirectoryTarget {
    /// Where.
    pub path: PathBuf,
    /// Whose.
    pub posix: PosixIdentity,
    /// Mode 2770 instead of 0700.
    pub shared: bool,
}

/// A file in a home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HomeTarget {
    /// The home.
    pub home: PathBuf,
    /// Who its owner must be, and whom the writer becomes.
    pub posix: PosixIdentity,
    /// The kubeconfig, relative to the home.
    pub kubeconfig: PathBuf,
    /// Make a missing home.
    pub create: bool,
    /// Replace a kubeconfig that is no YAML, and keep a dated copy beside it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replace_unparsable: bool,
}

impl HomeTarget {
    /// Where the file of one host is.
    #[must_use]
    pub fn on(&self, host: &HostName) -> Self {
        if host.is_any() {
            return self.clone();
        }
        let home = self.home.to_string_lossy().replace("{host}", &host.0).into();
        Self { home, ..self.clone() }
    }

    /// What the ledger keeps of SSH keys that were written.
    #[must_use]
    pub fn ssh_delivery(&self, digest: &str, now: Timestamp) -> Delivery {
        Delivery {
            path: self.home.join(AUTHORIZED_KEYS),
            home: Some(self.home.clone()),
            mount: None,
            digest: digest.to_owned(),
            at: now,
            checked_at: Some(now),
        }
    }

    /// The whole path of the kubeconfig.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.home.join(&self.kubeconfig)
    }
}
