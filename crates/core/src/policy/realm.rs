//! `[realm]`: the Keycloak realm that Bursar writes to.

use crate::identity::ClusterName;

/// The desired state of the realm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realm {
    /// The name of the realm in Keycloak.
    pub name: String,
    /// The source that reads the same realm. The people of this source already exist in the realm.
    pub source: Option<String>,
    /// The client whose roles represent workspaces; `None` if only users are written.
    pub client: Option<String>,
    /// The actions that Keycloak requires of new users at their first login, by Keycloak's names.
    pub required_actions: Vec<String>,
    /// Whether one mail asks new users for these actions.
    pub mail: bool,
    /// Whether a user that Bursar did not create is adopted if its name and mail address are an account's.
    pub adopt: bool,
}

impl Realm {
    /// Returns the name of the realm for places that expect a cluster, such as in failed steps. No cluster can have
    /// this name.
    #[must_use]
    pub fn place(&self) -> ClusterName {
        ClusterName::from(format!("realm:{}", self.name))
    }
}
