//! What should be: from accounts and policy to objects, credentials and homes. PURE: no runtime, no client, no file
//! system, no clock; [`derive`] cannot fail, for everything it builds from was validated.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::identity::{AccountId, AccountName, ClusterName, NamespaceName, PosixIdentity};
use crate::ledger::{Note, ObjectKey, Suspension};
use crate::policy::{DriftMode, Endpoint};

/// What all tenants should have.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DesiredState {
    /// Every account that is or was a tenant, or is about to be one.
    pub accounts: BTreeMap<AccountId, DesiredAccount>,
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
    /// Its place in each cluster.
    pub clusters: BTreeMap<ClusterName, DesiredTenant>,
}

/// A change of an account's life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "transition")]
pub enum Transition {
    /// It becomes a tenant.
    Create,
    /// Its access goes.
    Suspend(Suspension),
    /// Its access comes back.
    Resume,
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
    /// Everything that should exist. What the ledger knows of beyond this should not.
    pub objects: BTreeMap<ObjectKey, DesiredObject>,
    /// What its holders should hold; absent: nothing, and what stands in the home goes.
    pub credential: Option<DesiredCredential>,
    /// Where the kubeconfig is or was; absent for classes without homes.
    pub home: Option<HomeTarget>,
}

/// An object as we want it.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredObject {
    /// The whole manifest, label and all.
    pub manifest: Value,
    /// [`crate::observed::digest::digest`] of `manifest`.
    pub digest: String,
    /// What to do about somebody's change.
    pub drift: DriftMode,
}

/// A client certificate and the kubeconfig around it. It holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DesiredCredential {
    /// Subject of the certificate (§5): the only thing the API server knows its holder by.
    pub subject: Subject,
    /// Asked of the signer.
    #[serde(skip)]
    pub lifetime: Duration,
    /// The contexts, by endpoint name.
    #[serde(skip)]
    pub endpoints: BTreeMap<String, Endpoint>,
    /// The endpoint whose context becomes current where none is.
    pub default_endpoint: String,
    /// The contexts' namespace.
    pub namespace: Option<NamespaceName>,
    /// Digest of everything above but the subject's generation: the kubeconfig's shape.
    pub digest: String,
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
}

/// The generation group of an account: `bursar:tool:foo#1042`. Bindings name it, so raising the generation takes
/// every older certificate's access away in one write.
#[must_use]
pub fn generation_group(account: &AccountName, generation: u64) -> String {
    format!("bursar:{account}#{generation}")
}

/// Kinds are applied in this order and deleted in the reverse of it: a namespace before what is in it, and the
/// bindings last, so that nobody works in a namespace whose quota and policies are not there yet.
#[must_use]
pub fn apply_order(kind: &str) -> u8 {
    match kind {
        "Namespace" => 0,
        "ResourceQuota" | "LimitRange" | "NetworkPolicy" => 1,
        "PersistentVolume" => 2,
        "RoleBinding" | "ClusterRoleBinding" => 4,
        _ => 3,
    }
}

/// Groups by the objects' kinds, for the plan's text.
#[must_use]
pub fn kinds<'a>(objects: impl IntoIterator<Item = &'a ObjectKey>) -> BTreeSet<&'a str> {
    objects.into_iter().map(|key| key.kind.as_str()).collect()
}
