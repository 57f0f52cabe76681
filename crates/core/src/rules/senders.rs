//! The clients that may send reviews to the webhook of a cluster.

use serde::{Deserialize, Serialize};

/// `[cluster.NAME.webhook]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Senders {
    /// `None` if the webhook answers every client.
    pub client: Option<ClientRules>,
    /// The addresses that may send reviews to the webhook's pods. If empty, every address may.
    pub api_server_cidrs: Vec<String>,
}

/// The client certificate that a sender of reviews must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientRules {
    /// The certificates, PEM, of the authorities that issue such certificates.
    pub authorities: String,
    /// The common name, or a DNS name among the alternative names.
    pub name: String,
}
