//! What a realm of Keycloak has, as it was last read and as it was written since.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Users, and the roles of workspaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealmInventory {
    /// By id.
    pub users: BTreeMap<String, RealmUser>,
    /// By name; only those that were asked for.
    pub roles: BTreeMap<String, Holders>,
}

/// Who has a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// The role's id.
    pub id: String,
    /// Ids of users.
    pub holders: BTreeSet<String>,
}

/// The properties of a user that are compared (`UserRepresentation`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RealmUser {
    /// Immutable.
    pub id: String,
    /// In lower case, as Keycloak keeps it.
    pub username: String,
    /// May log in.
    pub enabled: bool,
    /// In lower case, as Keycloak keeps it.
    pub email: Option<String>,
    /// Milliseconds; the client that creates a user can set it to any value.
    #[serde(rename = "createdTimestamp")]
    pub created: Option<i64>,
}

/// A role of the client (`RoleRepresentation`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RealmRole {
    /// Immutable.
    pub id: String,
    /// Unique in its client.
    pub name: String,
}
