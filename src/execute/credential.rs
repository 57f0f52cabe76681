//! Delivers a credential of any kind. Only this module holds a tenant's private key, passes it to `bursar-homed` and
//! overwrites it. No plan, ledger, log or error ever contains it.
//!
//! The order of the steps avoids useless requests: a test write in the home; a key and a request, or a token; a check
//! of what was issued; a test at the endpoints; the kubeconfig.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bursar_homed::client::HomedClient;
use bursar_protocol::{
    Answer, ClusterEntry, ContextEntry, HomeTarget, KubeconfigEntries, Login, PlannedEntries, Request, TokenFiles,
    UserEntry, UserProof, Work, Written,
};
use jiff::Timestamp;

use super::apply::refused;
use super::authority::{self, VerifyError};
use super::endpoint_probe::{self, Endpoints, Old};
use super::keypair::{Names, NewKey};
use super::record::Recorder;
use super::signing::{self, SigningError, Unsigned};
use super::{ClusterEffects, StepError, home, token};
use crate::certificate::{self, Asked, CertificateError, Issued};
use crate::desired::{DesiredCredential, DesiredHome, Proof, Subject};
use crate::identity::{ClusterName, NamespaceName};
use crate::ledger::change::Change;
use crate::ledger::{Certificate, CredentialKey, Delivery};
use crate::plan::AccountPlan;
use crate::policy::{Cluster, OidcRule};

/// A credential to be delivered.
#[derive(Debug, Clone, Copy)]
pub struct Delivering<'a> {
    /// The credential's holder, and the content of the kubeconfig.
    pub credential: &'a DesiredCredential,
    /// The generation of the credential.
    pub generation: u64,
    /// The home.
    pub home: &'a DesiredHome,
    /// The mount point on which the home should lie.
    pub mount: Option<&'a Path>,
    /// The state of the file in the home before the delivery.
    pub old: Old,
    /// Whether the ledger gets a row before the file is written, because it has none that leads to the new credential.
    pub is_first: bool,
}

/// A credential that was issued and tried, and that is not in the home yet.
#[derive(Debug)]
pub struct Undelivered<'a> {
    what: Delivering<'a>,
    key: CredentialKey,
    target: HomeTarget,
    proof: UserProof,
    certificate: Option<Certificate>,
}

/// Why no certificate was issued, or why it is not delivered. The text contains the remedy.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The system gave no random numbers, so there is no key or no request.
    #[error("cannot generate a private key")]
    Key(#[source] rcgen::Error),
    /// The certificate differs from what was requested.
    #[error("{0}; it is not delivered; check which signer answers for kubernetes.io/kube-apiserver-client")]
    Unusable(CertificateError),
    /// No certificate was issued.
    #[error(transparent)]
    Signing(SigningError),
    /// The environment file of a token cannot name the API server.
    #[error("the url of endpoint {0} has no host; check it in bursar.toml")]
    Address(String),
    /// An endpoint does not accept the credential.
    #[error(transparent)]
    EndpointProbe(#[from] endpoint_probe::EndpointProbeError),
}

impl From<CredentialError> for StepError {
    fn from(error: CredentialError) -> Self {
        Self::Credential(Box::new(error))
    }
}

/// Does everything before the kubeconfig is written, in the order that the module describes.
pub async fn issue<'a>(
    effects: &ClusterEffects,
    homes: &HomedClient,
    account: &AccountPlan,
    what: Delivering<'a>,
    (clock, recorder): (fn() -> Timestamp, &Recorder),
) -> Result<Undelivered<'a>, StepError> {
    let server = &effects.server;
    let Delivering { credential, generation, home, mount, old, is_first } = what;
    let target = home::target(home, mount.map(Path::to_owned));
    let endpoints =
        Endpoints { all: &credential.endpoints, default: &credential.default_endpoint, kind: credential.proof.noun() };
    let user = credential.proof.name();
    if user.is_some() {
        server.endpoint_probes().recall(endpoints, old).map_err(CredentialError::from)?;
    }
    prepare(homes, &server.cluster, (home, &target), credential).await?;
    let key = CredentialKey::new(account.id.clone(), server.cluster.clone()).on(&credential.host);
    let (proof, certificate) = obtain(effects, credential, generation, (&key, recorder)).await?;
    if let Some(user) = &user {
        let tried = endpoint_probe::Credential { user, proof: &proof };
        server.endpoint_probes().attempt(endpoints, tried, old).await.map_err(CredentialError::from)?;
    }
    if is_first {
        // Even if the answer is lost, a suspension then finds the credential in the home.
        let pending = Delivery { mount: target.mount.clone(), ..credential.delivered(home, clock()).pending() };
        let pending = Change::Delivery(key.clone(), Some(pending));
        recorder.store(vec![pending], Vec::new()).await.map_err(|_| StepError::NotRecorded)?;
    }
    Ok(Undelivered { what, key, target, proof, certificate })
}

impl Undelivered<'_> {
    /// Writes the kubeconfig. Returns the changes for the ledger.
    pub async fn write(self, homes: &HomedClient, clock: fn() -> Timestamp) -> Result<Vec<Change>, StepError> {
        let Self { what: Delivering { credential, home, .. }, key, target, proof, certificate } = self;
        let written = write(homes, (home, &target), entries(&key.cluster, credential, proof)).await;
        let written = written.map_err(|error| match error {
            StepError::Home(source) if certificate.is_some() => StepError::Undelivered(source),
            error => error,
        })?;
        // The inspections after the delivery are counted from here: the signer and the home may have taken a while.
        let delivery = Delivery { mount: written.mount, ..credential.delivered(home, clock()) };
        let requested = matches!(credential.proof, Proof::Certificate { .. });
        let requested = requested.then(|| Change::Requested(key.clone(), None));
        let delivered = [Change::Certificate(key.clone(), certificate), Change::Delivery(key, Some(delivery))];
        Ok(delivered.into_iter().chain(requested).collect())
    }
}

/// Makes sure that the home exists and can be written to, before any credential is requested.
async fn prepare(
    homes: &HomedClient,
    cluster: &ClusterName,
    (home, target): (&DesiredHome, &HomeTarget),
    credential: &DesiredCredential,
) -> Result<(), StepError> {
    if home.create {
        let work = if credential.host.is_any() {
            Work::EnsureHome { create: true, skeleton: true }
        } else {
            // A folder for a host is not a home, so it gets no skeleton files.
            Work::MakeDirectory { shared: false }
        };
        match homes.call(&Request::new(target.clone(), work)).await? {
            Answer::HomeReady { .. } => {}
            _ => return Err(StepError::HomeAnswer),
        }
    }
    let planned = planned(cluster, credential);
    let work = Work::TestDelivery { planned, replace_unparsable: home.replace_unparsable };
    match homes.call(&Request::new(target.clone(), work)).await? {
        Answer::Writable => Ok(()),
        _ => Err(StepError::HomeAnswer),
    }
}

/// Issues the credential. Returns it with its record for the ledger; a login has no record.
async fn obtain(
    effects: &ClusterEffects,
    credential: &DesiredCredential,
    generation: u64,
    record: (&CredentialKey, &Recorder),
) -> Result<(UserProof, Option<Certificate>), StepError> {
    match &credential.proof {
        Proof::Certificate { subject, lifetime } => {
            let key = NewKey::generate().map_err(CredentialError::Key)?;
            let namespace = credential.namespace.as_ref();
            let (certificate_pem, issued) = certify(effects, subject, *lifetime, (&key, namespace), record).await?;
            let certificate = issued.of(subject.common_name.clone(), generation, None);
            Ok((UserProof::Certificate { certificate_pem, key_pem: key.pem() }, Some(certificate)))
        }
        Proof::Token(of) => {
            let face = credential.endpoints.get(&credential.default_endpoint);
            let (service_host, service_port) = face
                .and_then(|face| address(&face.url))
                .ok_or_else(|| CredentialError::Address(credential.default_endpoint.clone()))?;
            let (token, certificate) = token::request(&effects.server, of, generation).await?;
            let files = TokenFiles {
                token,
                ca_pem: face.map(|face| face.ca_pem.clone()).unwrap_or_default(),
                namespace: of.namespace.to_string(),
                service_host,
                service_port,
            };
            Ok((UserProof::Token(files), Some(certificate)))
        }
        Proof::Oidc(oidc) => Ok((UserProof::Login(login(oidc)), None)),
    }
}

/// Returns the settings for kubelogin.
#[must_use]
pub fn login(oidc: &OidcRule) -> Login {
    let OidcRule { issuer, client_id, scopes, grant, user: _ } = oidc;
    Login { issuer: issuer.clone(), client_id: client_id.clone(), scopes: scopes.clone(), grant: *grant }
}

/// Returns host and port of `https://host:port`.
fn address(url: &str) -> Option<(String, u16)> {
    let url: http::Uri = url.parse().ok()?;
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), url.port_u16().unwrap_or(443)))
}

/// Gets a certificate, and checks what it grants.
async fn certify(
    effects: &ClusterEffects,
    subject: &Subject,
    lifetime: Duration,
    (key, namespace): (&NewKey, Option<&NamespaceName>),
    (credential, recorder): (&CredentialKey, &Recorder),
) -> Result<(String, Issued), StepError> {
    let names = Names {
        common_name: &subject.common_name,
        organizations: [Some(&subject.kind_group), Some(&subject.generation_group)],
        serial_number: Some(&subject.serial_number),
    };
    let request = key.request(names).map_err(CredentialError::Key)?;
    let requested = Change::Requested(credential.clone(), Some(certificate::fingerprint(&key.public_key())));
    let unsigned = Unsigned {
        holder: &subject.serial_number,
        account: &subject.common_name,
        request: &request,
        lifetime,
        namespace: namespace.map(NamespaceName::as_str),
        record: Some((recorder, &requested)),
    };
    let cluster = &effects.server.cluster;
    let pem = signing::sign(&effects.server, unsigned).await.map_err(|error| match error {
        SigningError::Request(source) => refused(&signing::key(cluster, &unsigned), source),
        error @ SigningError::NotAsked { .. } => StepError::SignerNotAsked(error),
        SigningError::NotRecorded => StepError::NotRecorded,
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

async fn write(
    homes: &HomedClient,
    (home, target): (&DesiredHome, &HomeTarget),
    entries: KubeconfigEntries,
) -> Result<Written, StepError> {
    let work = Work::WriteKubeconfig { entries, replace_unparsable: home.replace_unparsable };
    match homes.call(&Request::new(target.clone(), work)).await? {
        Answer::Written(written) => {
            home::tell(home, &written);
            Ok(written)
        }
        _ => Err(StepError::HomeAnswer),
    }
}

/// Returns the kubeconfig entries of a credential.
#[must_use]
pub fn entries(cluster: &ClusterName, credential: &DesiredCredential, proof: UserProof) -> KubeconfigEntries {
    let PlannedEntries { clusters, user, contexts, token: _ } = planned(cluster, credential);
    KubeconfigEntries { clusters, user: UserEntry { name: user, proof }, contexts }
}

/// Returns one cluster and one context for each endpoint. The default endpoint comes first: a file without a current
/// context gets the first one.
pub(super) fn planned(cluster: &ClusterName, credential: &DesiredCredential) -> PlannedEntries {
    let name = |endpoint: &str| Cluster::entry_name(cluster, &credential.default_endpoint, endpoint);
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
    let token = matches!(credential.proof, Proof::Token(_));
    PlannedEntries { clusters: clusters.collect(), contexts: contexts.collect(), user: user.clone(), token }
}
