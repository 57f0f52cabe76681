//! Bursar's entries in a kubeconfig, and the names by which they are found.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{SecretText, TokenFiles, UserEntry, UserProof};

/// The longest name of an entry, in bytes. It consists of the names of a cluster and of an endpoint.
const MAX_NAME_BYTES: usize = 253;

/// The beginning of the names of Bursar's users. Nobody types them, so they need not be short.
pub const USER_PREFIX: &str = "bursar-";

/// Bursar's entries in a kubeconfig: one cluster and one context for each endpoint, and one user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KubeconfigEntries {
    pub clusters: Vec<ClusterEntry>,
    /// The user with the credential.
    pub user: UserEntry,
    /// The first context becomes `current-context` of a file that has none.
    pub contexts: Vec<ContextEntry>,
}

/// An item of `clusters[]` in a kubeconfig (client-go `clientcmd/api/v1.NamedCluster`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterEntry {
    /// The name, by which the entry is found again.
    pub name: String,
    /// URL of the API server.
    pub server: String,
    /// The CA certificates as PEM, not as base64 of PEM.
    pub ca_pem: String,
    /// `tls-server-name`, if the certificate does not contain the host of the URL.
    #[serde(default)]
    pub tls_server_name: Option<String>,
    /// `proxy-url`.
    #[serde(default)]
    pub proxy: Option<String>,
}

/// An item of `contexts[]` in a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextEntry {
    /// The name, by which the entry is found again.
    pub name: String,
    /// The name of one of Bursar's clusters.
    pub cluster: String,
    /// The name of Bursar's user.
    pub user: String,
    /// The tenant's namespace.
    #[serde(default)]
    pub namespace: Option<String>,
}

/// Entries that will be written once their credential exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedEntries {
    /// See [`KubeconfigEntries::clusters`].
    pub clusters: Vec<ClusterEntry>,
    /// The user's name.
    pub user: String,
    /// See [`KubeconfigEntries::contexts`].
    pub contexts: Vec<ContextEntry>,
    /// Whether the credential is a token, which is written to files of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub token: bool,
}

impl PlannedEntries {
    /// Returns the entries with an empty credential. These are never written.
    #[must_use]
    pub fn with_nothing(&self) -> KubeconfigEntries {
        let proof = if self.token {
            let any = || "x".to_owned();
            let (namespace, service_host) = (any(), any());
            let token = SecretText::new(any());
            UserProof::Token(TokenFiles { token, ca_pem: String::new(), namespace, service_host, service_port: 1 })
        } else {
            UserProof::Certificate { certificate_pem: String::new(), key_pem: SecretText::new(String::new()) }
        };
        KubeconfigEntries {
            clusters: self.clusters.clone(),
            user: UserEntry { name: self.user.clone(), proof },
            contexts: self.contexts.clone(),
        }
    }
}

/// The names of Bursar's entries of all clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OurEntries {
    /// Clusters that only Bursar's contexts use.
    pub clusters: BTreeSet<String>,
    /// Contexts that Bursar wrote.
    pub contexts: BTreeSet<String>,
    /// Bursar's users.
    pub users: BTreeSet<String>,
}

/// The most names of a list in an answer. The user decides how many entries the file has.
const MAX_TOLD_NAMES: usize = 100;

impl OurEntries {
    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.clusters.is_empty() && self.contexts.is_empty() && self.users.is_empty()
    }

    /// Returns the first names of each list, as many as an answer may contain. No name that Bursar writes has control
    /// characters, which take six bytes each in JSON.
    #[must_use]
    pub fn told(self) -> Self {
        let few = |names: BTreeSet<String>| {
            let short = names.into_iter().filter(|name| {
                let is_quotable = !name.contains(char::is_control);
                is_quotable && name.len() <= MAX_NAME_BYTES
            });
            short.take(MAX_TOLD_NAMES).collect()
        };
        Self { clusters: few(self.clusters), contexts: few(self.contexts), users: few(self.users) }
    }
}

/// The names by which Bursar's entries of one cluster are found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryNames {
    pub clusters: Vec<String>,
    pub user: String,
    pub contexts: Vec<String>,
}

impl EntryNames {
    /// Checks that these can be names of Bursar's entries. If not, returns the reason.
    pub fn check(&self) -> Result<(), String> {
        let mut all = self.clusters.iter().chain(&self.contexts).chain([&self.user]);
        if !is_our_user(&self.user) {
            return Err(format!("the name of a user entry of Bursar begins with {USER_PREFIX}"));
        }
        if all.any(|name| name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains(char::is_control)) {
            return Err("the name of an entry is empty, too long, or has control characters".to_owned());
        }
        Ok(())
    }
}

impl KubeconfigEntries {
    /// Checks that the entries are consistent. If not, returns the reason.
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
                return Err(format!("context `{}` occurs twice", context.name));
            }
        }
        if names.clusters.iter().enumerate().any(|(index, name)| names.clusters[..index].contains(name)) {
            return Err("a cluster occurs twice".to_owned());
        }
        names.check()?;
        self.user.check()?;
        if names.clusters.is_empty() || names.contexts.is_empty() {
            return Err("the entries have no cluster or no context".to_owned());
        }
        Ok(())
    }

    #[must_use]
    pub fn names(&self) -> EntryNames {
        EntryNames {
            clusters: self.clusters.iter().map(|cluster| cluster.name.clone()).collect(),
            user: self.user.name.clone(),
            contexts: self.contexts.iter().map(|context| context.name.clone()).collect(),
        }
    }
}

/// Whether this is the name of one of Bursar's users.
#[must_use]
pub fn is_our_user(name: &str) -> bool {
    name.starts_with(USER_PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Answer, Inspection, MAX_ANSWER_BYTES, Response};

    #[test]
    fn the_longest_answer_about_names_is_not_too_long() {
        for odd in ["\u{1}", "\"", "\u{ff}"] {
            let long_name = |number: usize| {
                let start = format!("prod-{number:03}");
                let rest = (MAX_NAME_BYTES - start.len()) / odd.len();
                start + &odd.repeat(rest)
            };
            let names: BTreeSet<String> = (0..2 * MAX_TOLD_NAMES).map(long_name).collect();
            let ours = OurEntries { clusters: names.clone(), contexts: names.clone(), users: names }.told();
            let answer = Answer::Inspected(Inspection { ours, ..Inspection::default() });
            // The rest is for a certificate.
            assert!(Response::new(Ok(answer)).to_line().len() < MAX_ANSWER_BYTES - 64 * 1024, "{odd:?}");
        }
    }
}
