//! Issues a client certificate and has it delivered (§5): the one place where a private key of a tenant exists. It goes
//! from here to `bursar-homed` and is overwritten; no plan, ledger, log or error ever has it.
//!
//! In this order, so that nothing is asked for in vain: a test write in the home; a key and a request; the signer; a
//! look at what was issued; a trial of it; the kubeconfig.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::apply::refused;
use super::authority::{self, VerifyError};
use super::keypair::{Names, NewKey};
use super::signing::{self, SigningError, Unsigned};
use super::trial::{self, Endpoints, Old};
use super::{ClusterEffects, StepError, home};
use crate::desired::{DesiredCredential, HomeTarget};
use crate::homes::client::HomedClient;
use crate::homes::{Answer, ClusterEntry, ContextEntry, KubeconfigEntries, Request, SecretText, UserEntry, Work};
use crate::identity::ClusterName;
use crate::ledger::change::Change;
use crate::ledger::{Certificate, Delivery};
use crate::observed::certificate::{self, Asked, CertificateError, Issued};
use crate::plan::AccountPlan;

/// What is to be issued and where it goes.
#[derive(Debug, Clone, Copy)]
pub struct Issue<'a> {
    /// For whom, and what the kubeconfig around it says.
    pub credential: &'a DesiredCredential,
    /// Of the subject.
    pub generation: u64,
    /// Into which home.
    pub home: &'a HomeTarget,
    /// What stands there now.
    pub old: Old,
}

/// Why an issued certificate is not delivered, or none could be asked for. The text carries the cure.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// No key or no request; the system's random numbers failed.
    #[error("no key could be made")]
    Key(#[source] rcgen::Error),
    /// The signer changed what was asked for.
    #[error("{0}; it is not delivered; check which signer answers for kubernetes.io/kube-apiserver-client")]
    Unusable(CertificateError),
    /// No certificate.
    #[error(transparent)]
    Signing(SigningError),
    /// An endpoint does not take it.
    #[error(transparent)]
    Trial(#[from] trial::TrialError),
}

impl From<CredentialError> for StepError {
    fn from(error: CredentialError) -> Self {
        Self::Credential(Box::new(error))
    }
}

/// A test write in the home, a key, a request, its approval, and the kubeconfig. Answers with what the ledger keeps.
pub async fn issue(
    effects: &ClusterEffects,
    homes: &HomedClient,
    account: &AccountPlan,
    issue: Issue<'_>,
    now: Timestamp,
) -> Result<Vec<Change>, StepError> {
    let server = &effects.server;
    let Issue { credential, generation, home, old } = issue;
    let endpoints = Endpoints { all: &credential.endpoints, default: &credential.default_endpoint };
    server.trials().recall(endpoints, old).map_err(CredentialError::from)?;
    prepare(homes, home).await?;
    let key = NewKey::generate().map_err(CredentialError::Key)?;
    let (pem, issued) = certify(effects, credential, &key).await?;
    let key_pem = key.pem();
    drop(key);
    let user = &credential.subject.common_name;
    let proof = trial::Credential { user, certificate_pem: &pem, key_pem: &key_pem };
    server.trials().attempt(endpoints, proof, old).await.map_err(CredentialError::from)?;
    let entries = entries(&server.cluster, credential, pem, key_pem);
    deliver(homes, home, entries).await?;
    let place = (account.id.clone(), server.cluster.clone());
    let certificate = Certificate {
        renew_after: certificate::renew_after(&issued),
        fingerprint: issued.fingerprint,
        generation,
        subject: user.clone(),
        not_before: issued.not_before,
        not_after: issued.not_after,
    };
    let delivery = Delivery {
        path: home.home.join(&home.kubeconfig),
        digest: credential.digest.clone(),
        at: now,
        checked_at: Some(now),
    };
    Ok(vec![
        Change::Certificate(place.0.clone(), place.1.clone(), Some(certificate)),
        Change::Delivery(place.0, place.1, Some(delivery)),
    ])
}

/// The home is there and takes a file: else no certificate is asked for.
async fn prepare(homes: &HomedClient, home: &HomeTarget) -> Result<(), StepError> {
    if home.create {
        let work = Work::EnsureHome { create: true, skeleton: true };
        match homes.call(&Request::new(home::target(home), work)).await? {
            Answer::HomeReady { .. } => {}
            _ => return Err(StepError::HomeAnswer),
        }
    }
    let work = Work::TestWrite { replace_unparsable: false };
    match homes.call(&Request::new(home::target(home), work)).await? {
        Answer::Writable => Ok(()),
        _ => Err(StepError::HomeAnswer),
    }
}

/// The certificate, and what it really grants.
async fn certify(
    effects: &ClusterEffects,
    credential: &DesiredCredential,
    key: &NewKey,
) -> Result<(String, Issued), StepError> {
    let subject = &credential.subject;
    let names = Names {
        common_name: &subject.common_name,
        organizations: [Some(&subject.kind_group), Some(&subject.generation_group)],
        serial_number: Some(&subject.serial_number),
    };
    let request = key.request(names).map_err(CredentialError::Key)?;
    let unsigned = Unsigned {
        holder: &subject.serial_number,
        account: &subject.common_name,
        request: &request,
        lifetime: credential.lifetime,
    };
    let cluster = &effects.server.cluster;
    let pem = signing::sign(&effects.server, unsigned).await.map_err(|error| match error {
        SigningError::Request(source) => refused(&signing::key(cluster, unsigned.account), source),
        error => CredentialError::Signing(error).into(),
    })?;
    let asked = Asked {
        common_name: &subject.common_name,
        organizations: BTreeSet::from([subject.kind_group.as_str(), subject.generation_group.as_str()]),
        serial_number: Some(&subject.serial_number),
        public_key: &key.public_key(),
        authorities: None,
    };
    let issued = authority::verified(&effects.server, &pem, &asked).await.map_err(|error| match error {
        VerifyError::Request(source) => StepError::Request(source),
        VerifyError::Certificate(error) => CredentialError::Unusable(error).into(),
    })?;
    let pem = String::from_utf8(pem).map_err(|_| CredentialError::Unusable(CertificateError::Unreadable))?;
    Ok((pem, issued))
}

async fn deliver(homes: &HomedClient, home: &HomeTarget, entries: KubeconfigEntries) -> Result<(), StepError> {
    let work = Work::WriteKubeconfig { entries, replace_unparsable: false };
    match homes.call(&Request::new(home::target(home), work)).await? {
        Answer::Written(_) => Ok(()),
        _ => Err(StepError::HomeAnswer),
    }
}

/// One cluster and one context for each endpoint, the default one first: it becomes the current one of a file that has
/// none.
#[must_use]
pub fn entries(
    cluster: &ClusterName,
    credential: &DesiredCredential,
    certificate_pem: String,
    key_pem: SecretText,
) -> KubeconfigEntries {
    let name = |endpoint: &str| home::entry_name(cluster, &credential.default_endpoint, endpoint);
    let user = home::user_name(cluster);
    let mut endpoints: Vec<_> = credential.endpoints.iter().collect();
    endpoints.sort_by_key(|(name, _)| **name != credential.default_endpoint);
    let clusters = endpoints.iter().map(|(endpoint, reached)| ClusterEntry {
        name: name(endpoint),
        server: reached.url.clone(),
        ca_pem: reached.ca_pem.clone(),
        tls_server_name: reached.tls_server_name.clone(),
        proxy: reached.proxy.clone(),
    });
    let contexts = endpoints.iter().map(|(endpoint, _)| ContextEntry {
        name: name(endpoint),
        cluster: name(endpoint),
        user: user.clone(),
        namespace: credential.namespace.as_ref().map(ToString::to_string),
    });
    KubeconfigEntries {
        clusters: clusters.collect(),
        contexts: contexts.collect(),
        user: UserEntry { name: user, certificate_pem, key_pem },
    }
}
