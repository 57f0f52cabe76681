//! Applies a delivery to the model of the world.

use jiff::SignedDuration;

use super::World;
use crate::desired::{DesiredCredential, DesiredHome, Proof};
use crate::identity::{AccountId, ClusterName};
use crate::ledger::change::Change;
use crate::ledger::{Certificate, CredentialKey};

impl World {
    pub(super) fn deliver(
        &mut self,
        account: &AccountId,
        cluster: &ClusterName,
        credential: &DesiredCredential,
        generation: u64,
        home: &DesiredHome,
    ) -> Vec<Change> {
        let now = self.now;
        let bound_to = match &credential.proof {
            Proof::Token(token) => Some(self.in_cluster(cluster).objects[&token.secret_key(cluster)].uid.to_string()),
            Proof::Certificate { .. } | Proof::Oidc(_) => None,
        };
        let certificate = credential.proof.name().map(|subject| Certificate {
            fingerprint: format!("{subject}-{generation}-{}-{}", credential.host, now.as_second()).into(),
            generation,
            subject,
            not_before: now,
            not_after: now + SignedDuration::from_hours(168),
            renew_after: now + SignedDuration::from_hours(112),
            bound_to,
        });
        let delivery = credential.delivered(home, now);
        self.inventory.homes.remove(&(account.clone(), cluster.clone()));
        let key = CredentialKey::new(account.clone(), cluster.clone()).on(&credential.host);
        vec![Change::Certificate(key.clone(), certificate), Change::Delivery(key, Some(delivery))]
    }
}
