//! Who may send reviews to the webhook of a cluster.

use serde::{Deserialize, Serialize};

/// `[cluster.NAME.webhook]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Senders {
    /// Absent: the webhook answers everybody.
    pub client: Option<ClientRules>,
    /// Addresses from which the pods of the webhook take reviews; empty: all.
    pub api_server_cidrs: Vec<String>,
}

/// The client certificate that a sender of reviews must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientRules {
    /// Whose certificates are believed, PEM.
    pub authorities: String,
    /// Common name, or a DNS name among the alternative names.
    pub name: String,
}
