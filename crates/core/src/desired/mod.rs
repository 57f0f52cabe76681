//! Derives the desired state from accounts and policy: objects, credentials and homes. [`derive()`] cannot fail,
//! because all its inputs were validated.
//!
//! `class` decides which accounts are tenants, and `life` what is due in the life of an account. `tenant` builds what a
//! tenant gets, with the help of `namespace`, `quota`, `network`, `volume`, `manifest`, `rbac` and `credential`.

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
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bursar_protocol::AUTHORIZED_KEYS;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::contract::{CLASS, MANAGED_BY, MANAGER};
use crate::digest::digest;
use crate::identity::{AccountId, AccountName, ClusterName, DirectoryId, HostName, NamespaceName, PosixIdentity};
use crate::json_text::JsonText;
use crate::kinds::{Detail, ManagedKind, ObjectKey, ObjectKind, ObjectName};
use crate::ledger::{Account, Delivery, LedgerState, Note, Suspension};
use crate::packed_text::DigestText;
use crate::policy::{DriftMode, Endpoint, OidcRule, PodSecurity, Reapers};
pub use class::{
    ClassesOfNamespaces, Groups, accounts_of, classes_by, classes_if_asked, classes_of, classes_of_namespaces,
    former_classes, groups_without_uid, takes,
};
pub use derive::{Derived, Deriver, Each, derive, is_separable};
pub use ssh::DesiredKeys;

pub use crate::identity::{generation_group, of_generation_group};

/// The desired state of all tenants.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DesiredState {
    /// Every account that is or was a tenant, or is about to be one.
    pub accounts: BTreeMap<AccountId, DesiredAccount>,
    /// The clusters of the configuration. Tenants in other clusters are left as they are.
    pub clusters: BTreeSet<ClusterName>,
    /// The policy of the reapers, which end unused workloads and namespaces.
    pub reaps: Reapers,
    /// Problems of accounts, for example an account that should be a tenant but cannot be one.
    pub notices: Vec<Notice>,
}

/// A problem that an administrator should know, because no plan can solve it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Notice {
    pub account: AccountName,
    /// The problem and its remedy, as a text for administrators.
    pub text: String,
}

/// The desired state of one account.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredAccount {
    pub intent: AccountIntent,
    /// The alternative, for the case that the guard refuses the removal, the return or the end in this state. Without
    /// an alternative, nothing would renew the certificate of an account whose removal a limit refuses, so the account
    /// would lose its access when the certificate expires.
    pub otherwise: Option<Box<DesiredAccount>>,
    /// The SSH keys that its home should have; `None` if the home should have no keys from Bursar.
    pub ssh: Option<DesiredKeys>,
    /// Its place in each cluster.
    pub clusters: BTreeMap<ClusterName, Box<DesiredTenant>>,
}

/// What is intended for the account itself, apart from its objects. A plan takes it over as it is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccountIntent {
    /// The name, such as `tool:foo`.
    pub account: AccountName,
    /// The POSIX ids, shown in the text of the plan.
    pub posix: Option<PosixIdentity>,
    /// The class by which `[limits]` counts the account: the one that took it first.
    pub class: String,
    /// The change of the account's lifecycle state that is due.
    pub transition: Option<Transition>,
    /// The generation that its certificates and bindings should have. If `regenerated` is set, this is already the new
    /// generation.
    pub generation: u64,
    /// Why the generation is new; `None` if it is not.
    pub regenerated: Option<Regeneration>,
    /// The note of the hold, if the account is held. While the hold lasts, the plan only shows this state, and the
    /// alternative is executed ([`DesiredAccount::otherwise`]).
    pub held: Option<Note>,
    /// Ids of the orders that are carried out.
    pub orders: Vec<i64>,
    /// The note of the newest of `orders`.
    pub ordered: Option<Note>,
    /// Foreign objects that orders give to the account, as [`ObjectKey::said`], so that a step may take them over.
    pub adopts: BTreeSet<String>,
    /// Whether a person who recently asked for the account may be waiting for it at a login.
    #[serde(skip)]
    pub awaited: bool,
    /// Members whose removal is due, with their names.
    pub leaving: BTreeMap<DirectoryId, AccountName>,
    /// Accounts that cause a removal of access here: groups that are gone or lost members, and people of a workspace
    /// who lose their own access.
    #[serde(skip)]
    pub rests_on: BTreeSet<AccountId>,
    /// Whether this is the state of a workspace in which some people keep their access, because the guard refuses to
    /// remove them, while other members leave.
    #[serde(skip)]
    pub keeps_people: bool,
    /// People of a workspace whose own creation or return the guard may still refuse, with the subject of their
    /// bindings in each cluster.
    #[serde(skip)]
    pub returning: BTreeMap<AccountId, BTreeMap<ClusterName, Value>>,
}

impl AccountIntent {
    /// Returns an intent that changes nothing.
    #[must_use]
    pub const fn new(account: AccountName, class: String, generation: u64) -> Self {
        Self {
            account,
            posix: None,
            class,
            transition: None,
            generation,
            regenerated: None,
            held: None,
            orders: Vec::new(),
            ordered: None,
            adopts: BTreeSet::new(),
            awaited: false,
            leaving: BTreeMap::new(),
            rests_on: BTreeSet::new(),
            keeps_people: false,
            returning: BTreeMap::new(),
        }
    }
}

impl Deref for DesiredAccount {
    type Target = AccountIntent;

    fn deref(&self) -> &AccountIntent {
        &self.intent
    }
}

impl DerefMut for DesiredAccount {
    fn deref_mut(&mut self) -> &mut AccountIntent {
        &mut self.intent
    }
}

impl DesiredAccount {
    /// Whether something of the account itself is due, apart from the objects in its places.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.transition.is_some() || self.regenerated.is_some() || !self.orders.is_empty() || !self.leaving.is_empty()
    }

    /// Drops the manifests of objects that were applied with this digest, and shares the keys of the ledger. Returns
    /// whether no manifest is left.
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

/// A change in an account's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "transition")]
pub enum Transition {
    /// The account becomes a tenant.
    Create,
    /// The account loses its access.
    Suspend(Suspension),
    /// The account regains its access and, if it was deleted, everything else.
    Resume,
    /// All its namespaces are archived.
    Archive,
    /// The deletion of its namespaces begins.
    Delete { namespaces: u64 },
    /// All its namespaces are deleted.
    Gone,
}

/// Why every older certificate becomes invalid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "cause")]
pub enum Regeneration {
    /// The account has no generation yet.
    First,
    /// The account is being suspended.
    Suspended,
    /// An administrator ordered a revocation, or a member left.
    Revoked(Note),
}

/// The desired state of an account in one cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredTenant {
    /// Class of the namespace, or of the cluster-wide binding.
    pub class: String,
    /// `None` for classes without a namespace, such as administrators.
    pub namespace: Option<NamespaceName>,
    /// Whether new pods are refused, and the workloads are stopped.
    pub suspended: bool,
    /// Whether no class gives the account this place any more, but its removal is refused or held. Then everything
    /// there stays; bindings lose only the subjects that have to leave them.
    pub given_up: bool,
    /// The step that the tenant's end requires in this cluster; `None` if it has not begun.
    pub end: Option<EndOfTenant>,
    /// Digest of everything in the objects that comes from the tenant itself. If an object differs although this digest
    /// is the same, the policy has changed.
    pub own: DigestText,
    /// Every object that should exist. If the ledger has an object that is not in this map, the object should be
    /// removed.
    pub objects: BTreeMap<ObjectKey, DesiredObject>,
    /// The Pod Security level that each adopted namespace gets if it has none, with the class that asks for it.
    pub levels: BTreeMap<NamespaceName, (String, PodSecurity)>,
    /// Directories that are created before the PersistentVolume with this name.
    pub directories: BTreeMap<String, DirectoryTarget>,
    /// Whether the class is no longer in the configuration. Then nobody knows what its quota was, and only bindings are
    /// removed.
    pub keep_unknown: bool,
    /// The credentials of the tenant's holders: a single one or, if hosts have credentials of their own, one for each
    /// host. A delivered credential that is not in this list is removed from its home.
    pub credentials: Vec<DesiredCredential>,
    /// Notices for the homes of a suspended tenant. A notice replaces only Bursar's own entries in a kubeconfig.
    pub notices: Vec<DesiredNotice>,
    /// The subject by which bindings name the holder of the credential.
    pub holder: JsonText,
    /// Where the kubeconfig is or was, for every host that has one ([`DesiredHome::on`]); `None` for classes without
    /// homes.
    pub home: Option<DesiredHome>,
}

/// A step that the end of a suspended tenant requires in one cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndOfTenant {
    /// The namespace must be archived.
    Archive,
    /// The namespace must be deleted, and nothing else should exist.
    Delete,
}

/// The desired state of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredObject {
    /// The complete manifest. A [`Deriver`] drops it once it is applied, and builds it again if [`plan`](crate::plan)
    /// asks for it.
    pub manifest: Option<JsonText>,
    /// [`crate::digest::digest`] of the manifest.
    pub digest: DigestText,
    /// `spec.hard` of a quota.
    pub hard: Option<JsonText>,
    /// What happens if another client changes the object.
    pub drift: DriftMode,
    /// The resources of a quota whose edits are reverted, although edits of other resources are adopted.
    pub locked: BTreeSet<String>,
}

/// Returns what the ledger keeps of an applied object in addition to its digests. Later plans compare with it.
#[must_use]
pub fn detail(kind: &ObjectKind, manifest: &Value) -> Option<JsonText> {
    match kind.detail() {
        Detail::None => None,
        Detail::QuotaHard => Some(JsonText::from(&manifest["spec"]["hard"])),
        Detail::VolumeFixed => volume::fixed(kind, manifest).as_ref().map(JsonText::from),
        Detail::Subjects => Some(JsonText::from(&manifest["subjects"])),
        Detail::Class => manifest["metadata"]["labels"][CLASS].as_str().map(namespace_detail),
    }
}

/// Returns what the ledger keeps of a namespace with the label of this class.
#[must_use]
pub fn namespace_detail(class: &str) -> JsonText {
    JsonText::from(&json!({"class": class}))
}

impl DesiredObject {
    /// Labels `manifest` as managed by Bursar. The manifest must have a kind and a name.
    fn new(cluster: &ClusterName, mut manifest: Value, drift: DriftMode) -> (ObjectKey, Self) {
        manifest["metadata"]["labels"][MANAGED_BY] = Value::from(MANAGER);
        let text = |value: &Value| value.as_str().map(Into::into);
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

/// The place of a tenant: the input of the functions that build its objects.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    pub cluster: &'a ClusterName,
    pub namespace: &'a NamespaceName,
    pub account: &'a Account,
    /// The class of the namespace.
    pub class: &'a str,
    /// The present generation: only its certificates are valid.
    pub generation: u64,
    /// Whether the tenant is suspended, and so has no access.
    pub suspended: bool,
    /// When the tenant will be suspended because nothing runs in the namespace; `None` if its people were not warned.
    pub idle_until: Option<Timestamp>,
}

/// The proof of a holder's identity, and the kubeconfig around it. It contains no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DesiredCredential {
    /// The proof, which is all that the API server knows of the holder.
    pub proof: Proof,
    /// The host that the credential is for.
    pub host: HostName,
    /// The contexts, by endpoint name.
    #[serde(skip)]
    pub endpoints: Arc<BTreeMap<String, Endpoint>>,
    /// The endpoint whose context becomes the current one if the kubeconfig has none.
    pub default_endpoint: String,
    /// The namespace of the contexts.
    pub namespace: Option<NamespaceName>,
    /// Digest of all fields above except the generation: the shape of the kubeconfig.
    pub digest: String,
}

impl DesiredCredential {
    /// Returns what the ledger keeps of the delivery into `home`.
    #[must_use]
    pub fn delivered(&self, home: &DesiredHome, now: Timestamp) -> Delivery {
        Delivery {
            path: home.file(),
            home: Some(home.home.clone()),
            mount: None,
            digest: self.digest.as_str().into(),
            at: now,
            checked_at: Some(now),
        }
    }
}

/// A kubeconfig that tells its holders that the account is suspended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DesiredNotice {
    /// The text of the notice.
    pub notice: bursar_protocol::SuspensionNotice,
    /// The credential that the notice replaces, with the same clusters and contexts.
    pub credential: DesiredCredential,
}

impl DesiredNotice {
    /// Returns the [`Delivery::digest`] of the notice.
    #[must_use]
    pub fn digest(&self) -> String {
        Delivery::notice(&digest(&serde_json::json!([self.notice, self.credential.digest])))
    }

    /// Returns what the ledger keeps of the delivery into `home`.
    #[must_use]
    pub fn delivered(&self, home: &DesiredHome, now: Timestamp) -> Delivery {
        Delivery { digest: self.digest().into(), ..self.credential.delivered(home, now) }
    }
}

/// How one holder proves its identity: one variant for each [`crate::policy::CredentialKind`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Proof {
    /// A client certificate.
    Certificate {
        /// The subject of the certificate.
        subject: Subject,
        /// The lifetime that the signer is asked for.
        #[serde(skip)]
        lifetime: Duration,
    },
    /// A service account token that becomes invalid when its Secret is deleted.
    Token(TokenOf),
    /// The token of an OIDC issuer. Bursar issues and delivers no token.
    Oidc(OidcRule),
}

impl Proof {
    /// Returns the name by which the API server knows the holder; `None` if an OIDC issuer assigns it.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        match self {
            Self::Certificate { subject, .. } => Some(subject.common_name.clone()),
            Self::Token(token) => Some(format!("{SERVICE_ACCOUNT}{}:{}", token.namespace, token.service_account)),
            Self::Oidc(_) => None,
        }
    }

    /// Returns the word for the credential in messages.
    #[must_use]
    pub const fn noun(&self) -> &'static str {
        match self {
            Self::Certificate { .. } => "certificate",
            Self::Token(_) => "token",
            Self::Oidc(_) => "kubeconfig",
        }
    }
}

/// The prefix of service accounts' user names (`system:serviceaccount:NAMESPACE:NAME`).
pub const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// A token of a service account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenOf {
    /// The namespace of both the service account and the Secret.
    pub namespace: NamespaceName,
    /// Name of the service account. It contains the generation.
    pub service_account: String,
    /// Name of the Secret.
    pub secret: String,
    /// The lifetime that the API server is asked for.
    #[serde(skip)]
    pub lifetime: Duration,
}

impl TokenOf {
    #[must_use]
    pub fn secret_key(&self, cluster: &ClusterName) -> ObjectKey {
        self.key(cluster, ManagedKind::Secret, &self.secret)
    }

    #[must_use]
    pub fn service_account_key(&self, cluster: &ClusterName) -> ObjectKey {
        self.key(cluster, ManagedKind::ServiceAccount, &self.service_account)
    }

    fn key(&self, cluster: &ClusterName, kind: ManagedKind, name: &str) -> ObjectKey {
        ObjectKey::from(ObjectName {
            cluster: cluster.clone(),
            kind: kind.into(),
            namespace: Some(self.namespace.as_str().into()),
            name: name.into(),
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
    pub path: PathBuf,
    /// The owner.
    pub posix: PosixIdentity,
    /// Whether the mode is 2770 instead of 0700.
    pub shared: bool,
}

/// The kubeconfig of one account, in a home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DesiredHome {
    pub home: PathBuf,
    /// The owner that the home must have. The writer runs as this user.
    pub posix: PosixIdentity,
    /// The path of the kubeconfig, relative to the home.
    pub kubeconfig: PathBuf,
    /// Whether the home is created if it does not exist.
    pub create: bool,
    /// Whether a kubeconfig that is not valid YAML is replaced, with a dated copy of the old one kept next to it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replace_unparsable: bool,
}

impl DesiredHome {
    /// Returns the target on one host.
    #[must_use]
    pub fn on(&self, host: &HostName) -> Self {
        if host.is_any() {
            return self.clone();
        }
        let home = self.home.to_string_lossy().replace("{host}", &host.0).into();
        Self { home, ..self.clone() }
    }

    /// Returns what the ledger keeps of SSH keys that were delivered.
    #[must_use]
    pub fn ssh_delivery(&self, digest: &str, now: Timestamp) -> Delivery {
        Delivery {
            path: self.home.join(AUTHORIZED_KEYS),
            home: Some(self.home.clone()),
            mount: None,
            digest: digest.into(),
            at: now,
            checked_at: Some(now),
        }
    }

    /// Returns the absolute path of the kubeconfig.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.home.join(&self.kubeconfig)
    }
}
