//! Asks one cluster which ledger owns it, and what its mark and seals prove. Uses the daemon's own credential, and
//! first renews it if that is due.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::config::AuthInfo;
use sha2::{Digest as _, Sha256};

use crate::bootstrap::{self, AccessError, FoundMark, KnownGenerations, MarkOwner, Renewal, Said};
use crate::identity::ClusterName;
use crate::policy::Cluster;

/// How long a cycle waits for a renewal. Approval and signature normally take a second.
const RENEWED_WITHIN: Duration = Duration::from_secs(5);

/// A cluster that answered.
pub(in crate::runtime) struct Reached {
    pub(super) seen: Seen,
    pub(super) mark: MarkOwner,
    pub(super) renewal: Option<Renewal>,
    pub(super) credential: AuthInfo,
    pub(super) file: Option<[u8; 32]>,
    pub(super) own: Option<(String, Timestamp)>,
}

/// What a cluster shows about its ledger.
pub(super) struct Seen {
    pub(super) client: kube::Client,
    /// The ledger that owns it.
    pub(super) owner: String,
    /// The choices that an administrator made for it.
    pub(super) said: Said,
    pub(super) found: FoundMark,
    /// The highest generation in a seal, if it is higher than expected.
    sealed: Option<u64>,
}

impl Seen {
    /// Returns the generation, from the mark or a seal, that proves a rollback.
    pub(super) fn exceeded(&self, generations: &KnownGenerations) -> Option<u64> {
        let marked = if let FoundMark::Own(own) = &self.found { Some(own.generation) } else { None };
        generations.exceeded(marked, self.sealed)
    }
}

/// Reads who owns a cluster and which generations it has. Writes nothing.
async fn look(kubeconfig: &Path, mark: &MarkOwner, generations: &KnownGenerations) -> Result<Seen, AccessError> {
    let client = bootstrap::client(kubeconfig).await?;
    // This error concerns one cluster: the work in the others goes on.
    let what = "the cluster belongs to no ledger yet: run `bursar init`";
    let owner = bootstrap::owner_and_said(&client).await?;
    let (owner, said) = owner.ok_or_else(|| AccessError::Incomplete { path: kubeconfig.to_owned(), what })?;
    let found = mark.read(&client).await?;
    let sealed = mark.sealed_beyond(&client, generations.sealed()).await?;
    Ok(Seen { client, owner, said, found, sealed })
}

/// Asks a cluster with the daemon's own credential. If the credential is due for renewal and the cluster belongs to
/// this ledger, the credential is renewed first. `renew` is the current time, or `None` if the ledger takes no writes.
pub(super) async fn reach(
    kubeconfig: PathBuf,
    face: Cluster,
    (mark, generations): (MarkOwner, Arc<KnownGenerations>),
    renew: Option<Timestamp>,
) -> Result<Reached, AccessError> {
    if renew.is_some() {
        followed(&mark.cluster, &kubeconfig, &face).await?;
    }
    let first = look(&kubeconfig, &mark, &generations).await;
    let is_ours = |seen: &Seen| seen.owner == mark.ledger_id && seen.exceeded(&generations).is_none();
    let renewal = match renew {
        // If the cluster did not answer, the reason may be that the credential has expired.
        Some(now) if first.as_ref().map_or(true, is_ours) => {
            renewed(kubeconfig.clone(), mark.cluster.clone(), now).await?
        }
        _ => None,
    };
    let seen = match (first, &renewal) {
        (Ok(seen), None | Some(Renewal::NotDue { .. } | Renewal::NotOurs | Renewal::Postponed { .. })) => seen,
        (_, Some(Renewal::Renewed { .. })) => look(&kubeconfig, &mark, &generations).await?,
        (Err(error), _) => return Err(error),
    };
    let credential = bootstrap::credential(&kubeconfig).await?;
    let (file, own) = (digest(&kubeconfig), bootstrap::own_certificate(&kubeconfig)?);
    Ok(Reached { seen, mark, renewal, credential, file, own })
}

/// Renews the daemon's own certificate if that is due. Returns `None` if the certificate was not issued in time. The
/// request goes on in the background, so that no revocation waits for an approver.
async fn renewed(kubeconfig: PathBuf, cluster: ClusterName, now: Timestamp) -> Result<Option<Renewal>, AccessError> {
    let renewing = tokio::spawn(async move { bootstrap::renew(&kubeconfig, &cluster, now).await });
    match tokio::time::timeout(RENEWED_WITHIN, renewing).await {
        Ok(Ok(renewal)) => renewal.map(Some),
        Ok(Err(_)) | Err(_) => Ok(None),
    }
}

/// Writes the CA of the configuration into the daemon's own kubeconfig. Returns whether the file changed.
pub(super) async fn followed(cluster: &ClusterName, kubeconfig: &Path, face: &Cluster) -> Result<bool, AccessError> {
    let changed = bootstrap::follow(kubeconfig, face).await?;
    if changed {
        tracing::info!(%cluster, "wrote the CA of the configuration into the daemon's own kubeconfig");
    }
    Ok(changed)
}

/// Returns the SHA-256 of a file, or `None` if it cannot be read.
pub(super) fn digest(path: &Path) -> Option<[u8; 32]> {
    std::fs::read(path).ok().map(|content| Sha256::digest(zeroize::Zeroizing::new(content).as_slice()).into())
}
