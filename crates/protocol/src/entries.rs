//! The entries of a kubeconfig that are Bursar's, and the names by which they are found.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{SecretText, UserEntry, UserProof};

/// Longest name of an entry, in bytes: that of a cluster and that of an endpoint, each a Kubernetes name.
const MAX_NAME_BYTES: usize = 253;

/// How the names of our users begin. Nobody types them, so they need not be short.
pub const USER_PREFIX: &str = "bursar-";

/// The entries that we own in a kubeconfig: one cluster and one context for each endpoint, and one user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubeconfigEntries {
    /// Clusters, one for each endpoint.
    pub clusters: Vec<ClusterEntry>,
    /// The user with the credential.
    pub user: UserEntry,
    /// Contexts; the first becomes `current-context` of a file that has none.
    pub contexts: Vec<ContextEntry>,
}

/// `clusters[]` of a kubeconfig (client-go `clientcmd/api/v1.NamedCluster`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterEntry {
    /// The entry's name, by which it is found again.
    pub name: String,
    /// URL of the API server.
    pub server: String,
    /// CA bundle, PEM (not base64 of it).
    pub ca_pem: String,
    /// `tls-server-name`, where the URL's host is not in the certificate.
    #[serde(default)]
    pub tls_server_name: Option<String>,
    /// `proxy-url`.
    #[serde(default)]
    pub proxy: Option<String>,
}

/// `contexts[]` of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextEntry {
    /// The entry's name, by which it is found again.
    pub name: String,
    /// Name of one of our clusters.
    pub cluster: String,
    /// Name of our user.
    pub user: String,
    /// The tenant's namespace.
    #[serde(default)]
    pub namespace: Option<String>,
}

/// Entries that are to come, without what their user proves itself with: that is not made yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedEntries {
    /// See [`KubeconfigEntries::clusters`].
    pub clusters: Vec<ClusterEntry>,
    /// The user's name.
    pub user: String,
    /// See [`KubeconfigEntries::contexts`].
    pub contexts: Vec<ContextEntry>,
}

impl PlannedEntries {
    /// As entries with an empty certificate, which are written nowhere.
    #[must_use]
    pub fn with_nothing(&self) -> KubeconfigEntries {
        let proof = UserProof::Certificate { certificate_pem: String::new(), key_pem: SecretText::new(String::new()) };
        KubeconfigEntries {
            clusters: self.clusters.clone(),
            user: UserEntry { name: self.user.clone(), proof },
            contexts: self.contexts.clone(),
        }
    }
}

/// Names of entries that are ours, of whichever cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OurEntries {
    /// Clusters that only contexts of ours need.
    pub clusters: BTreeSet<String>,
    /// Contexts that we wrote.
    pub contexts: BTreeSet<String>,
    /// Users of ours.
    pub users: BTreeSet<String>,
}

/// Names of a list that an answer carries: a user decides how many there are.
const MAX_TOLD_NAMES: usize = 100;

impl OurEntries {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.contexts.is_empty() && self.users.is_empty()
    }

    /// The first of each list that an answer has room for.
    #[must_use]
    pub fn told(self) -> Self {
        let few = |names: BTreeSet<String>| {
            let short = names.into_iter().filter(|name| name.len() <= MAX_NAME_BYTES);
            short.take(MAX_TOLD_NAMES).collect()
        };
        Self { clusters: few(self.clusters), contexts: few(self.contexts), users: few(self.users) }
    }
}

/// The names by which our entries are found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryNames {
    /// Our clusters.
    pub clusters: Vec<String>,
    /// Our user.
    pub user: String,
    /// Our contexts.
    pub contexts: Vec<String>,
}

impl EntryNames {
    /// Whether they can be ours; if not, what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut all = self.clusters.iter().chain(&self.contexts).chain([&self.user]);
        if !is_our_user(&self.user) {
            return Err(format!("the name of a user of ours begins with {USER_PREFIX}"));
        }
        if all.any(|name| name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control)) {
            return Err("an entry without a name, or with an impossible one".to_owned());
        }
        Ok(())
    }
}

impl KubeconfigEntries {
    /// Whether they make sense together; if not, what is wrong.
    pub fn check(&self) -> Result<(), String> {
        let names = self.names();
        for (index, context) in self.contexts.iter().enumerate() {
            if !names.clusters.contains(&context.cluster) || names.user != context.user {
                return Err(format!(
                    "context `{}` names a cluster or user that is not among the entries",
                    context.name
                ));
            }
            if names.contexts[..index].contains(&context.name) {
                return Err(format!("context `{}` is there twice", context.name));
            }
        }
        if names.clusters.iter().enumerate().any(|(index, name)| names.clusters[..index].contains(name)) {
            return Err("a cluster is there twice".to_owned());
        }
        names.check()?;
        self.user.check()?;
        if names.clusters.is_empty() || names.contexts.is_empty() {
            return Err("no cluster or no context".to_owned());
        }
        Ok(())
    }

    /// The names of these entries.
    #[must_use]
    pub fn names(&self) -> EntryNames {
        EntryNames {
            clusters: self.clusters.iter().map(|cluster| cluster.name.clone()).collect(),
            user: self.user.name.clone(),
            contexts: self.contexts.iter().map(|context| context.name.clone()).collect(),
        }
    }
}

/// Whether the name of a user is one of ours.
#[must_use]
pub fn is_our_user(name: &str) -> bool {
    name.starts_with(USER_PREFIX)
}
