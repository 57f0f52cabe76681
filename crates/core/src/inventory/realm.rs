//! The users and roles of a Keycloak realm: the last read, with the changes that Bursar made since.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// The users, and the roles of workspaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealmInventory {
    /// Users by id.
    pub users: BTreeMap<String, RealmUser>,
    /// Roles by name. Only roles of workspaces are read.
    pub roles: BTreeMap<String, Holders>,
}

/// A role and the users who have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Holders {
    /// The id of the role.
    pub id: String,
    /// The ids of the users.
    pub holders: BTreeSet<String>,
}

/// The properties of a user that plans compare (`UserRepresentation`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RealmUser {
    /// The immutable id.
    pub id: String,
    /// The name in lower case, as Keycloak stores it.
    pub username: String,
    /// Whether the user may log in.
    pub enabled: bool,
    /// The mail address in lower case, as Keycloak stores it.
    pub email: Option<String>,
    /// The creation time in milliseconds since 1970. The client that creates a user may set any value.
    #[serde(rename = "createdTimestamp")]
    pub created: Option<i64>,
}

/// A client role (`RoleRepresentation`).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RealmRole {
    /// The immutable id.
    pub id: String,
    /// The name, which is unique in the client.
    pub name: String,
}
