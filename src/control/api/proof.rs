//! The proof that a revocation is complete.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::identity::AccountName;
use crate::inventory::Touched;
use crate::orders::request::RequestRefusal;

/// The proof that older credentials of an account are revoked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationProof {
    pub account: AccountName,
    /// The only generation whose credentials are valid.
    pub generation: u64,
    /// By cluster: when its API server answered that older credentials have no rights.
    pub refused: BTreeMap<String, String>,
    /// By cluster: bindings that are not Bursar's and name the holder of the older credentials. The rights that they
    /// give remain.
    #[serde(default)]
    pub bound_by_others: BTreeMap<String, Vec<String>>,
    /// Files with the new credential, with the time when each was written.
    pub delivered: BTreeMap<String, Timestamp>,
    /// The findings of an eviction, by cluster and namespace.
    #[serde(default)]
    pub evicted: BTreeMap<String, Evicted>,
    /// Workloads that were stopped and can be started again, such as `deployment/web`.
    #[serde(default)]
    pub stopped: BTreeSet<String>,
    /// Clusters whose API server has not yet confirmed that it refuses the account's older credentials.
    #[serde(default)]
    pub unproved: BTreeSet<String>,
}

/// The findings of an eviction in one namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evicted {
    /// Names of the token Secrets that were removed.
    pub secrets: Vec<String>,
    /// Changes by others since the time that the administrator named.
    pub changed: Vec<Touched>,
}

impl RevocationProof {
    /// Returns what an administrator still has to do, or what is not proved yet; `None` if nothing is left.
    #[must_use]
    pub fn open(&self) -> Option<RequestRefusal> {
        let bindings: Vec<String> = self
            .bound_by_others
            .iter()
            .map(|(cluster, bindings)| format!("in {cluster}: {}", bindings.join("; ")))
            .collect();
        let mut open = Vec::new();
        if !bindings.is_empty() {
            open.push(format!(
                "bindings that Bursar did not create name the holder of older credentials, {}; delete them, then run \
                 `bursar revoke` again",
                bindings.join(", ")
            ));
        }
        if !self.unproved.is_empty() {
            let clusters = self.unproved.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            open.push(format!("it is not proved yet that the API server of {clusters} refuses the older credentials"));
        }
        let text = format!("{}: {}", self.account, open.join("; "));
        (!open.is_empty()).then_some(RequestRefusal { exit_code: 1, text })
    }

    /// Returns whether the API server of the cluster was asked about the older credentials.
    #[must_use]
    pub fn is_asked(&self, cluster: &str) -> bool {
        self.refused.contains_key(cluster) || self.bound_by_others.contains_key(cluster)
    }
}

impl std::fmt::Display for RevocationProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { account, generation, refused, bound_by_others: _, delivered, evicted, stopped, unproved: _ } = self;
        write!(f, "{account}: generation {generation}")?;
        refused.iter().try_for_each(|(cluster, at)| {
            write!(f, "; the API server of {cluster} refuses older credentials (asked {at})")
        })?;
        delivered.iter().try_for_each(|(file, at)| write!(f, "; new credential in {file} ({at:.0})"))?;
        for (place, Evicted { secrets, changed }) in evicted {
            let removed = if secrets.is_empty() { "none".to_owned() } else { secrets.join(", ") };
            write!(f, "\n  {place}: service account default recreated; token Secrets removed: {removed}")?;
            changed
                .iter()
                .try_for_each(|Touched { at, object, by }| write!(f, "\n  changed {at:.0} by {by}: {object}"))?;
        }
        if !evicted.is_empty() && !stopped.is_empty() {
            let stopped: Vec<&str> = stopped.iter().map(String::as_str).collect();
            write!(f, "\n  stopped: {}; `bursar resume --start` starts what you name", stopped.join(", "))?;
        }
        Ok(())
    }
}
