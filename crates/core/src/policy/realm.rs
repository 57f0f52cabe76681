//! `[realm]`: what a realm of Keycloak is kept at.

use crate::identity::ClusterName;

/// What is wanted of a realm as a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realm {
    /// Its name in Keycloak.
    pub name: String,
    /// The source that reads the same realm, whose people are there without us.
    pub source: Option<String>,
    /// The client whose roles workspaces are; absent: users alone.
    pub client: Option<String>,
    /// What users whom we make have to do at their first login, by Keycloak's names for it.
    pub required_actions: Vec<String>,
    /// Whether they are told by mail, once.
    pub mail: bool,
    /// Users whom we did not make are taken over where name and mail are those of the account.
    pub adopt: bool,
}

impl Realm {
    /// Where steps of it fail, beside clusters: no cluster can have this name.
    #[must_use]
    pub fn place(&self) -> ClusterName {
        ClusterName(format!("realm:{}", self.name))
    }
}
