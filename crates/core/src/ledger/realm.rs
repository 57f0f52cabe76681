//! The ledger's record of an account's user in a Keycloak realm. Only the ledger knows which users Bursar created or
//! adopted: people can edit the attributes of their user in the realm, so an attribute cannot mark these users.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::Failure;

/// A user in a realm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RealmAccount {
    /// Keycloak's id; `None` while it is unknown whether Keycloak has created the user.
    pub user_id: Option<String>,
    /// The creation time that Bursar gives the user, in milliseconds. If the creation was interrupted, only the user
    /// that Bursar created has this time and name.
    pub asked: i64,
    /// Whether the user existed before and was taken over.
    #[serde(deserialize_with = "flag")]
    pub adopted: bool,
    /// The name, as last written to Keycloak.
    pub name: String,
    /// The mail address, as last written to Keycloak.
    pub mail: Option<String>,
    /// The display name, as last written to Keycloak.
    pub display_name: Option<String>,
    /// Whether the user may log in, as last written to Keycloak.
    #[serde(deserialize_with = "flag")]
    pub enabled: bool,
    /// Whether the person must still be informed by mail, once.
    #[serde(deserialize_with = "flag")]
    pub mail_due: bool,
    /// When the mail server accepted the mail.
    pub mailed_at: Option<Timestamp>,
}

/// Reads a flag, which SQLite stores as a number.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value == Value::Bool(true) || value.as_i64().is_some_and(|number| number != 0))
}

/// The first word of [`Failure::step`] for a step in a realm.
const STEP: &str = "realm ";

impl Failure {
    /// Whether the step failed in a realm. Clusters and homes are not affected.
    #[must_use]
    pub fn is_of_realm(&self) -> bool {
        self.step.starts_with(STEP)
    }
}

#[cfg(any(test, feature = "testing"))]
impl RealmAccount {
    /// Returns a user with every optional value, or one that is being created.
    #[must_use]
    pub fn sample(there: bool) -> Self {
        Self {
            user_id: there.then(|| "u1".to_owned()),
            asked: 1_763_684_479_123,
            adopted: !there,
            name: "alice".to_owned(),
            mail: there.then(|| "alice@example.org".to_owned()),
            display_name: there.then(|| "Alice Example".to_owned()),
            enabled: there,
            mail_due: there,
            mailed_at: there.then_some(Timestamp::UNIX_EPOCH),
        }
    }
}
