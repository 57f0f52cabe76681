//! The answers of a source's servers about an account that a read did not show. The servers are asked for the account's
//! immutable id.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::identity::{AccountKind, DirectoryId};

/// An account whose absence would cause its suspension.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// The id in the directory, which never changes.
    pub id: DirectoryId,
    pub kind: AccountKind,
    /// The last known DN.
    pub dn: String,
}

/// The place of the entry on one server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "found")]
pub enum EntryPlace {
    /// The entry is not below the suffix.
    Nowhere,
    /// The entry is outside the search bases, or no longer matched by their filters.
    Outside {
        /// The current DN.
        dn: String,
    },
    /// The entry is within a search base and matched by its filter, so the read should have shown the entry.
    Inside {
        /// The current DN.
        dn: String,
    },
}

impl fmt::Display for EntryPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("not found"),
            Self::Outside { dn } => write!(f, "moved to {dn}"),
            Self::Inside { dn } => write!(f, "there, at {dn}"),
        }
    }
}

/// The answers of all servers that are not behind. Empty if no server could be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// The servers, the freshest first.
    pub servers: Vec<(String, EntryPlace)>,
}

/// The conclusion from a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No server could be asked, so nothing is proved.
    Unknown,
    /// All servers say that the entry is not where the read looks for it.
    Gone,
    /// All servers have the entry, so the read was wrong.
    There,
    /// The servers disagree.
    Disagreement {
        /// Whether the freshest server has the entry.
        freshest_has_it: bool,
    },
}

impl Proof {
    /// Draws the conclusion.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let has = |place: &EntryPlace| matches!(place, EntryPlace::Inside { .. });
        let there = self.servers.iter().filter(|(_, place)| has(place)).count();
        match self.servers.first() {
            None => Verdict::Unknown,
            Some(_) if there == 0 => Verdict::Gone,
            Some(_) if there == self.servers.len() => Verdict::There,
            Some((_, place)) => Verdict::Disagreement { freshest_has_it: has(place) },
        }
    }

    /// Returns the answers by server, for the history.
    #[must_use]
    pub fn by_server(&self) -> BTreeMap<&str, String> {
        self.servers.iter().map(|(server, place)| (server.as_str(), place.to_string())).collect()
    }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.servers.iter().map(|(server, place)| format!("{server}: {place}")).collect();
        f.write_str(&all.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_freshest_server_decides_a_disagreement() {
        let there = || EntryPlace::Inside { dn: "uid=a".to_owned() };
        let moved = || EntryPlace::Outside { dn: "uid=a,ou=left".to_owned() };
        let proof = |places: Vec<EntryPlace>| {
            let servers = places.into_iter().enumerate().map(|(at, place)| (at.to_string(), place)).collect();
            Proof { servers }.verdict()
        };
        assert_eq!(proof(vec![]), Verdict::Unknown);
        assert_eq!(proof(vec![EntryPlace::Nowhere, moved()]), Verdict::Gone);
        assert_eq!(proof(vec![there(), there()]), Verdict::There);
        assert_eq!(proof(vec![there(), moved()]), Verdict::Disagreement { freshest_has_it: true });
        assert_eq!(proof(vec![EntryPlace::Nowhere, there()]), Verdict::Disagreement { freshest_has_it: false });
    }
}
