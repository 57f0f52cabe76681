//! Finds the certificates that are still in homes. A certificate is accepted only if the cluster's authority signed it
//! for this account, its key is in the file, and a binding still names its generation.

use std::collections::{BTreeMap, BTreeSet};

use bursar_homed::client::{HomedClient, HomedClientError};
use bursar_homed::kubeconfig;
use bursar_protocol::{Answer, Inspection, Request, SecretText, UserProof, Work};
use futures::StreamExt as _;
use jiff::Timestamp;

use super::RecoveryError;
use crate::certificate::{self, Asked};
use crate::desired::{DesiredCredential, DesiredHome, DesiredState, DesiredTenant, Proof, of_generation_group};
use crate::errors::chain;
use crate::execute::credential::entries;
use crate::execute::request::ApiServer;
use crate::execute::{authority, home};
use crate::identity::{AccountId, AccountName, ClusterName};
use crate::ledger::{Certificate, Delivery};

/// The number of homes that are read in parallel: as many as `bursar-homed` serves.
const AT_A_TIME: usize = bursar_homed::client::MAX_CONCURRENT;

/// A valid certificate in a home.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Held {
    /// The account's id in the ledger that issued the certificate.
    pub(super) id: AccountId,
    /// The cluster in which it is valid.
    pub(super) cluster: ClusterName,
    pub(super) certificate: Certificate,
    pub(super) delivery: Delivery,
}

/// Where to look, and what makes a certificate valid.
pub(super) struct Search<'a> {
    pub(super) homes: &'a HomedClient,
    pub(super) servers: &'a BTreeMap<ClusterName, ApiServer>,
    /// The generations that bindings name.
    pub(super) bound: &'a BTreeMap<AccountName, u64>,
    pub(super) now: Timestamp,
}

impl Search<'_> {
    /// Reads the home of each account in `bound` that should hold a credential. A home that cannot be read counts as
    /// empty, and is reported in `doubts`.
    pub(super) async fn all(
        &self,
        desired: &DesiredState,
        doubts: &mut Vec<String>,
    ) -> Result<BTreeMap<(AccountId, ClusterName), Held>, RecoveryError> {
        let places = desired.accounts.iter().filter(|(_, account)| self.bound.contains_key(&account.account));
        let places = places.flat_map(|(id, account)| {
            account.clusters.iter().map(move |(cluster, tenant)| (id, &account.account, cluster, tenant))
        });
        let looks = places.filter_map(|(id, account, cluster, tenant)| {
            let DesiredTenant { credentials, home: Some(home), .. } = &**tenant else { return None };
            // Tokens are short-lived, and logins leave no entry of Bursar in a home.
            let credential = credentials.iter().find(|it| matches!(it.proof, Proof::Certificate { .. }))?;
            Some(async move {
                let held = self.held(cluster, account, credential, home).await;
                ((id.clone(), cluster.clone()), account, held)
            })
        });
        let mut looks = futures::stream::iter(looks.collect::<Vec<_>>()).buffer_unordered(AT_A_TIME);
        let mut found = BTreeMap::new();
        while let Some((place, account, held)) = looks.next().await {
            match held {
                Ok(Some(held)) => drop(found.insert(place, held)),
                Ok(None) => doubts.push(format!("the home of {account} has no valid certificate: it gets a new one")),
                Err(error @ HomedClientError::NotListening { .. }) => return Err(RecoveryError::Homes(error)),
                Err(error) => {
                    let why = chain(&error);
                    doubts.push(format!("cannot read the home of {account}: {why}"));
                }
            }
        }
        Ok(found)
    }

    async fn held(
        &self,
        cluster: &ClusterName,
        account: &AccountName,
        credential: &DesiredCredential,
        home: &DesiredHome,
    ) -> Result<Option<Held>, HomedClientError> {
        let nothing =
            UserProof::Certificate { certificate_pem: String::new(), key_pem: SecretText::new(String::new()) };
        let wanted = entries(cluster, credential, nothing);
        let request = Request::new(home::target(home, None), Work::Inspect { names: wanted.names() });
        let Answer::Inspected(inspection) = self.homes.call(&request).await? else { return Ok(None) };
        let Some((id, certificate)) = self.good(cluster, account, credential, &inspection).await else {
            return Ok(None);
        };
        // If the entries differ from the desired ones, the empty digest causes a new delivery.
        let shape = kubeconfig::deliver("", &wanted, &[]).ok().and_then(|delivered| delivered.digest);
        let same = shape.is_some() && shape == inspection.entries_digest;
        let delivery = Delivery {
            path: home.file(),
            home: Some(home.home.clone()),
            mount: inspection.mount,
            digest: if same { credential.digest.as_str() } else { "" }.into(),
            at: certificate.not_before,
            checked_at: Some(self.now),
        };
        Ok(Some(Held { id, cluster: cluster.clone(), certificate, delivery }))
    }

    /// Returns the account's id and its certificate, if the certificate is valid.
    async fn good(
        &self,
        cluster: &ClusterName,
        account: &AccountName,
        credential: &DesiredCredential,
        inspection: &Inspection,
    ) -> Option<(AccountId, Certificate)> {
        let Proof::Certificate { subject, .. } = &credential.proof else { return None };
        let pem = inspection.certificate_pem.as_deref().filter(|_| inspection.key_matches)?;
        let said = certificate::subject(pem.as_bytes())?;
        let mut groups = said.organizations.iter().filter_map(|group| Some((group, of_generation_group(group)?)));
        let (group, (named, generation)) = groups.next()?;
        let serial_number = said.serial_number.as_deref().filter(|number| is_id(number))?;
        if named != *account || self.bound.get(account) != Some(&generation) {
            return None;
        }
        let asked = Asked {
            common_name: &subject.common_name,
            organizations: BTreeSet::from([subject.kind_group.as_str(), group.as_str()]),
            serial_number: Some(serial_number),
            public_key: &said.public_key,
            authorities: None,
        };
        let issued = authority::verified(self.servers.get(cluster)?, pem.as_bytes(), &asked).await.ok()?;
        let certificate = issued.of(subject.common_name.clone(), generation, None);
        (certificate.not_after > self.now).then(|| (AccountId(serial_number.into()), certificate))
    }
}

/// Whether the text has the form of an id of [`AccountId::derive`]. If the authorities are unknown, a certificate in a
/// home could contain any text.
fn is_id(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
