//! What the servers of a source say about one account that a read did not show, when they are asked for its immutable
//! id.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::identity::{AccountKind, DirectoryId};

/// An account whose absence would be due, and where it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Due {
    /// Its immutable id.
    pub id: DirectoryId,
    /// What it is.
    pub kind: AccountKind,
    /// Its last DN.
    pub dn: String,
}

/// Where one server has an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "found")]
pub enum Place {
    /// Nowhere beneath the suffix.
    Nowhere,
    /// Outside the bases, or no longer of their filters.
    Outside {
        /// Where it is now.
        dn: String,
    },
    /// Where the read should have shown it.
    Inside {
        /// Where it is.
        dn: String,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("not found"),
            Self::Outside { dn } => write!(f, "moved to {dn}"),
            Self::Inside { dn } => write!(f, "there, at {dn}"),
        }
    }
}

/// What each server that is not behind says of an entry. Empty: none could be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// By server; the first is the freshest.
    pub servers: Vec<(String, Place)>,
}

/// What follows from a proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// No server could be asked: nothing is proved.
    Unknown,
    /// All say that it is not where it was.
    Gone,
    /// All say that it is there: the read was wrong.
    There,
    /// Some say this and some that.
    Disagreement {
        /// The freshest one has it.
        freshest_has_it: bool,
    },
}

impl Proof {
    /// What follows.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let has = |place: &Place| matches!(place, Place::Inside { .. });
        let there = self.servers.iter().filter(|(_, place)| has(place)).count();
        match self.servers.first() {
            None => Verdict::Unknown,
            Some(_) if there == 0 => Verdict::Gone,
            Some(_) if there == self.servers.len() => Verdict::There,
            Some((_, place)) => Verdict::Disagreement { freshest_has_it: has(place) },
        }
    }

    /// By server, for the history.
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
    fn servers_that_disagree_leave_it_to_the_freshest() {
        let there = || Place::Inside { dn: "uid=a".to_owned() };
        let moved = || Place::Outside { dn: "uid=a,ou=left".to_owned() };
        let proof = |places: Vec<Place>| {
            let servers = places.into_iter().enumerate().map(|(at, place)| (at.to_string(), place)).collect();
            Proof { servers }.verdict()
        };
        assert_eq!(proof(vec![]), Verdict::Unknown);
        assert_eq!(proof(vec![Place::Nowhere, moved()]), Verdict::Gone);
        assert_eq!(proof(vec![there(), there()]), Verdict::There);
        assert_eq!(proof(vec![there(), moved()]), Verdict::Disagreement { freshest_has_it: true });
        assert_eq!(proof(vec![Place::Nowhere, there()]), Verdict::Disagreement { freshest_has_it: false });
    }
}
