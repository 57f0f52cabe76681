//! What is remembered of an account's user in a realm of Keycloak: that it is ours, for nothing in the realm itself
//! could say so that its users could not write.

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::Failure;

/// A user in a realm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RealmAccount {
    /// Keycloak's id; absent: it is being made, and nobody knows whether it was.
    pub user_id: Option<String>,
    /// The moment that it is given as its creation, in milliseconds: by it and its name it is known again when its making
    /// was cut off, and nobody else's is.
    pub asked: i64,
    /// It was there before, and taken over.
    #[serde(deserialize_with = "flag")]
    pub adopted: bool,
    /// As it was last written.
    pub name: String,
    /// As it was last written.
    pub mail: Option<String>,
    /// As it was last written.
    pub display_name: Option<String>,
    /// As it was last written.
    #[serde(deserialize_with = "flag")]
    pub enabled: bool,
    /// It is to be told by mail, once.
    #[serde(deserialize_with = "flag")]
    pub mail_due: bool,
    /// When the mail was accepted.
    pub mailed_at: Option<Timestamp>,
}

/// SQLite has numbers for it.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(value == Value::Bool(true) || value.as_i64().is_some_and(|number| number != 0))
}

/// First word of [`Failure::step`] of what fails in a realm.
const STEP: &str = "realm ";

impl Failure {
    /// It failed in a realm: no cluster and no home has to do with it.
    #[must_use]
    pub fn is_of_realm(&self) -> bool {
        self.step.starts_with(STEP)
    }
}

#[cfg(any(test, feature = "testing"))]
impl RealmAccount {
    /// One that is there with all that it can have, or one that is being made.
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
