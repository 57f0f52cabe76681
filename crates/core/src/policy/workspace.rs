//! The rights of people in a workspace, and what the workspace adds to the quotas of their own namespaces.

use std::collections::BTreeMap;
use std::fmt;

use crate::identity::Uid;

/// How the workspaces of a person change the quota of the person's own namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FromWorkspaces {
    /// The amounts of the class plus the amounts of all workspaces.
    Sum,
    /// For each resource, the largest amount of the class and of the workspaces.
    Max,
    /// The quota of the workspace with the highest tier replaces the quota of the class.
    Tier,
}

/// The rights and quotas that a workspace gives to its people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workspace {
    /// ClusterRoles of its members, bound in its namespace.
    pub members: Vec<String>,
    /// ClusterRoles of its managers.
    pub managers: Vec<String>,
    /// The attribute of the group's entry that names the managers; `None` if there are no managers.
    pub named_by: Option<String>,
    /// The amounts that the workspace adds to the quota of each member's own namespace.
    pub member_quota: BTreeMap<String, String>,
    /// The rank that [`FromWorkspaces::Tier`] compares.
    pub tier: u32,
    /// The range of uids for the workspaces; `None` if the workspaces have no uids.
    pub uid_range: Option<UidRange>,
}

/// Uids for the workspaces of one class. Both ends belong to the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UidRange {
    pub first: Uid,
    pub last: Uid,
}

impl UidRange {
    /// Whether `uid` is in the range.
    #[must_use]
    pub fn contains(self, uid: Uid) -> bool {
        (self.first..=self.last).contains(&uid)
    }

    /// Whether the ranges have a uid in common.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl fmt::Display for UidRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}
