//! The work in homes besides the delivery of credentials: removes Bursar's entries, leaves notices, writes SSH keys and
//! checks what was delivered. `bursar-homed` does the work; this module makes its requests and interprets the answers.

use std::path::{Path, PathBuf};

use bursar_homed::client::{HomedClient, HomedClientError};
use bursar_homed::kubeconfig;
use bursar_protocol::{
    Answer, EntryNames, HomeError, HomeTarget, Inspection, Request, USER_PREFIX, UserProof, Work, Written,
};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::StepError;
use crate::desired::{DesiredCredential, DesiredHome, DesiredNotice, DirectoryTarget, Proof};
use crate::identity::ClusterName;
use crate::inventory::HomeFinding;
use crate::ledger::{Delivery, LedgerState};
use crate::plan::Expected;
use crate::policy::Cluster;

/// Returns the names of Bursar's entries in a kubeconfig: the cluster's name for the default endpoint (`prod`), and the
/// cluster's name with the endpoint's name for another endpoint (`prod-external`). Only the user entry has a prefix
/// that marks it as Bursar's, because nobody types its name.
#[must_use]
pub fn entry_names<'a>(
    cluster: &ClusterName,
    default_endpoint: &str,
    endpoints: impl IntoIterator<Item = &'a String>,
) -> EntryNames {
    let mut names: Vec<String> =
        endpoints.into_iter().map(|endpoint| Cluster::entry_name(cluster, default_endpoint, endpoint)).collect();
    // The shortest name belongs to the default endpoint. Its context becomes the current one if the file has none.
    names.sort_by_key(String::len);
    EntryNames { clusters: names.clone(), user: user_name(cluster), contexts: names }
}

/// Returns the name of the user entry.
#[must_use]
pub fn user_name(cluster: &ClusterName) -> String {
    format!("{USER_PREFIX}{cluster}")
}

/// Returns the mount point on which a home should lie: the mount point at the last delivery into this home, or into
/// another home in the same folder. While that file system is not mounted, `bursar-homed` refuses a folder that only
/// has the home's name.
pub(super) fn known_mount(ledger: &LedgerState, delivery: Option<&Delivery>, home: &Path) -> Option<PathBuf> {
    if let Some(own) = delivery.filter(|delivery| delivery.path.starts_with(home)) {
        return own.mount.clone();
    }
    let above = home.parent()?;
    let mut others = ledger.deliveries.values().chain(ledger.ssh_deliveries.values());
    // A file without a credential is checked only in its first minute, so its recorded mount may be out of date.
    let beside = others.find_map(|other| {
        let mount = other.mount.as_ref().filter(|mount| above.starts_with(mount) && other.may_hold_a_credential())?;
        other.path.starts_with(above).then_some(mount)
    });
    beside.cloned()
}

/// Converts a plan's target into that of `bursar-homed`. `mount` is the mount point on which the home should lie.
#[must_use]
pub fn target(home: &DesiredHome, mount: Option<PathBuf>) -> HomeTarget {
    HomeTarget {
        home: home.home.clone(),
        uid: home.posix.uid.get(),
        gid: home.posix.gid.get(),
        groups: home.posix.groups.iter().map(|gid| gid.get()).collect(),
        kubeconfig: home.kubeconfig.clone(),
        mount,
    }
}

/// Makes sure that the directory of a volume exists and belongs to its owner. Returns whether it was created now.
pub async fn make_directory(
    homes: &HomedClient,
    directory: &DirectoryTarget,
    ledger: &LedgerState,
) -> Result<bool, StepError> {
    let posix = &directory.posix;
    let mount = known_mount(ledger, None, &directory.path);
    let target = HomeTarget { mount, ..HomeTarget::new(&directory.path, posix.uid.get(), posix.gid.get()) };
    match homes.call(&Request::new(target, Work::MakeDirectory { shared: directory.shared })).await? {
        Answer::HomeReady { created } => Ok(created),
        _ => Err(StepError::HomeAnswer),
    }
}

/// Removes Bursar's entries of a cluster, for all its endpoints, and returns whether there were any. If the cluster is no
/// longer configured (`face` is `None`), `bursar-homed` finds the entries by Bursar's user entry.
pub(super) async fn remove(
    homes: &HomedClient,
    cluster: &ClusterName,
    face: Option<&Cluster>,
    (home, mount): (&DesiredHome, Option<PathBuf>),
) -> Result<bool, StepError> {
    let endpoints = face.into_iter().flat_map(|face| face.endpoints.keys());
    let names = entry_names(cluster, face.map_or("", |face| &face.default_endpoint), endpoints);
    let request = Request::new(target(home, mount), Work::RemoveKubeconfig { names });
    match homes.call(&request).await {
        // A home that is gone contains nothing of Bursar. `bursar-homed` reports it only if the home's file system is
        // mounted.
        Err(HomedClientError::Home(HomeError::MissingHome { .. })) => Ok(false),
        Ok(Answer::Removed { changed }) => Ok(changed),
        Ok(_) => Err(StepError::HomeAnswer),
        Err(error) => Err(error.into()),
    }
}

/// Replaces a credential by a notice. Returns `None` if the home does not accept the file; then Bursar's entries are
/// removed without a notice.
pub(super) async fn leave(
    homes: &HomedClient,
    cluster: &ClusterName,
    (home, mount): (&DesiredHome, Option<PathBuf>),
    DesiredNotice { notice, credential }: &DesiredNotice,
) -> Result<Option<Written>, StepError> {
    let entries = super::credential::entries(cluster, credential, UserProof::Notice(notice.clone()));
    let work = Work::WriteKubeconfig { entries, replace_unparsable: false };
    match homes.call(&Request::new(target(home, mount), work)).await {
        Ok(Answer::Written(written)) => Ok(Some(written)),
        Ok(_) => Err(StepError::HomeAnswer),
        // If the export hangs, a removal would hang too.
        Err(error @ HomedClientError::Home(HomeError::TimedOut { .. })) => Err(error.into()),
        Err(HomedClientError::Home(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Logs what an administrator should know about a file that was written.
pub(super) fn tell(home: &DesiredHome, written: &Written) {
    let file = home.file();
    if let Some(seconds) = written.overridden_lock {
        tracing::warn!(file = %file.display(), seconds, "removed the abandoned lock of another program");
    }
    if let Some(backup) = &written.backup {
        tracing::warn!(file = %file.display(), backup, "replaced a kubeconfig that is not YAML; a backup is kept");
    }
}

/// Checks that what was delivered is still in the home: a certificate with its key, a token or login entries, and the
/// contexts. Also returns the mount of the home. `face` is `None` if the cluster is no longer configured.
pub(super) async fn inspect(
    homes: &HomedClient,
    cluster: &ClusterName,
    face: Option<&Cluster>,
    (home, mount): (&DesiredHome, Option<PathBuf>),
    expected: &Expected,
) -> Result<(HomeFinding, Option<PathBuf>), StepError> {
    let (fingerprint, names, wanted) = match expected {
        Expected::Certificate(fingerprint) => {
            let face = face.ok_or_else(|| StepError::NoCluster(cluster.clone()))?;
            (fingerprint, entry_names(cluster, &face.default_endpoint, [&face.default_endpoint]), None)
        }
        Expected::Token(fingerprint, credential) => {
            let (names, wanted) = token_entries(cluster, credential);
            (fingerprint, names, wanted)
        }
        Expected::Entries(credential) => return rewritten(homes, cluster, (home, mount), credential).await,
        Expected::Notice(notice) => {
            let Some(written) = leave(homes, cluster, (home, mount.clone()), notice).await? else {
                remove(homes, cluster, face, (home, mount.clone())).await?;
                return Ok((HomeFinding::AsDelivered, mount));
            };
            return Ok(repaired(written));
        }
        Expected::Nothing => {
            let changed = remove(homes, cluster, face, (home, mount.clone())).await?;
            return Ok((repaired_if(changed), mount));
        }
    };
    let request = Request::new(target(home, mount), Work::Inspect { names });
    match homes.call(&request).await? {
        Answer::Inspected(inspection) => Ok((finding(&inspection, fingerprint, wanted.as_deref()), inspection.mount)),
        _ => Err(StepError::HomeAnswer),
    }
}

/// Returns the names of the entries of a token, and their [`Inspection::entries_digest`] after a delivery.
fn token_entries(cluster: &ClusterName, credential: &DesiredCredential) -> (EntryNames, Option<String>) {
    let wanted = super::credential::planned(cluster, credential).with_nothing();
    let delivered = kubeconfig::deliver("", &wanted, &[]);
    (wanted.names(), delivered.ok().and_then(|delivered| delivered.digest))
}

/// Writes entries that contain no secret. If the file does not change, the entries were as delivered.
async fn rewritten(
    homes: &HomedClient,
    cluster: &ClusterName,
    (home, mount): (&DesiredHome, Option<PathBuf>),
    credential: &DesiredCredential,
) -> Result<(HomeFinding, Option<PathBuf>), StepError> {
    let Proof::Oidc(oidc) = &credential.proof else { return Err(StepError::HomeAnswer) };
    let entries = super::credential::entries(cluster, credential, UserProof::Login(super::credential::login(oidc)));
    let work = Work::WriteKubeconfig { entries, replace_unparsable: home.replace_unparsable };
    match homes.call(&Request::new(target(home, mount), work)).await? {
        Answer::Written(written) => Ok(repaired(written)),
        _ => Err(StepError::HomeAnswer),
    }
}

/// The finding if another program changed Bursar's entries in a file.
const CHANGED: &str = "Bursar's entries in the file were changed";

/// Turns the result of writing the expected entries into a finding: if that changed the file, it was repaired. Also
/// returns the mount of the home.
fn repaired(Written { changed, mount, .. }: Written) -> (HomeFinding, Option<PathBuf>) {
    (repaired_if(changed), mount)
}

fn repaired_if(changed: bool) -> HomeFinding {
    if changed { HomeFinding::Repaired { why: CHANGED.to_owned() } } else { HomeFinding::AsDelivered }
}

/// Makes the home contain exactly these SSH keys in Bursar's block. Returns whether that changed anything, and the
/// mount of the home.
pub(super) async fn ssh_keys(
    homes: &HomedClient,
    (home, mount): (&DesiredHome, Option<PathBuf>),
    keys: &[String],
) -> Result<(bool, Option<PathBuf>), StepError> {
    let target = target(home, mount);
    if home.create && !keys.is_empty() {
        let work = Work::EnsureHome { create: true, skeleton: true };
        homes.call(&Request::new(target.clone(), work)).await?;
    }
    match homes.call(&Request::new(target, Work::SshKeys { keys: keys.to_vec() })).await {
        Ok(Answer::SshKeys { changed, mount }) => Ok((changed, mount)),
        Err(HomedClientError::Home(HomeError::MissingHome { .. })) if keys.is_empty() => Ok((false, None)),
        Ok(_) => Err(StepError::HomeAnswer),
        Err(error) => Err(error.into()),
    }
}

/// Returns the ledger's row of a delivery after a check. `checked_at` of a broken delivery is `None`, so that it is
/// repeated. Rows of older versions have no home, so it is added.
pub(super) fn checked(
    delivery: &Delivery,
    home: &DesiredHome,
    (finding, mount): (&HomeFinding, Option<PathBuf>),
    now: Timestamp,
) -> Delivery {
    let checked_at = (!matches!(finding, HomeFinding::Broken { .. })).then_some(now);
    Delivery { checked_at, mount, home: Some(home.home.clone()), ..delivery.clone() }
}

/// `wanted` is the digest of the entries of a token. A certificate needs none: if another program writes older entries
/// back, it writes the older certificate back too.
fn finding(inspection: &Inspection, fingerprint: &str, wanted: Option<&str>) -> HomeFinding {
    let broken = |why: &str| HomeFinding::Broken { why: why.to_owned() };
    if !inspection.exists {
        return broken("the file does not exist");
    }
    if !inspection.parses {
        return broken("the file is not a kubeconfig any more");
    }
    if inspection.token_id.as_deref() == Some(fingerprint) {
        return match inspection.entries_digest.as_deref() {
            None => broken("a cluster or context of Bursar is missing"),
            digest if digest != wanted => broken(CHANGED),
            Some(_) => HomeFinding::AsDelivered,
        };
    }
    let found = inspection.certificate_pem.as_deref().and_then(fingerprint_of);
    match found {
        None => broken("Bursar's certificate or token is missing"),
        Some(found) if found != fingerprint => broken("Bursar's user entry has another certificate"),
        Some(_) if !inspection.key_matches => broken("the key does not belong to the certificate"),
        Some(_) if inspection.entries_digest.is_none() => broken("a cluster or context of Bursar is missing"),
        Some(_) => HomeFinding::AsDelivered,
    }
}

/// Returns the SHA-256 (hex) of the DER of a PEM certificate.
fn fingerprint_of(pem: &str) -> Option<String> {
    let (_, block) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).ok()?;
    Some(hex::encode(Sha256::digest(&block.contents)))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bursar_protocol::{KubeconfigEntries, SecretText};

    use super::*;
    use crate::identity::{AccountKind, HostName};
    use crate::plan::Action;
    use crate::plan::testing::{World, prod};
    use crate::policy::CredentialKind;

    #[test]
    fn entries_are_named_after_cluster_and_endpoint() {
        let cluster = ClusterName("prod".into());
        let endpoints = ["external".to_owned(), "internal".to_owned()];
        let names = entry_names(&cluster, "internal", &endpoints);
        assert_eq!(names.contexts, ["prod", "prod-external"]);
        assert_eq!(names.clusters, names.contexts);
        assert_eq!(names.user, "bursar-prod");
    }

    #[test]
    fn a_broken_home_is_described() {
        let key = rcgen::KeyPair::generate().expect("a key is generated");
        let pem = rcgen::CertificateParams::default().self_signed(&key).expect("a certificate is signed").pem();
        let good = Inspection {
            exists: true,
            parses: true,
            certificate_pem: Some(pem.clone()),
            key_matches: true,
            entries_digest: Some("d".to_owned()),
            ..Inspection::default()
        };
        let fingerprint = fingerprint_of(&pem).expect("the PEM is a certificate");
        assert_eq!(finding(&good, &fingerprint, None), HomeFinding::AsDelivered);
        let why = |inspection: Inspection| match finding(&inspection, &fingerprint, None) {
            HomeFinding::Broken { why } => why,
            HomeFinding::AsDelivered | HomeFinding::Repaired { .. } => String::new(),
        };
        assert!(why(Inspection::default()).contains("does not exist"));
        assert!(why(Inspection { key_matches: false, ..good.clone() }).contains("key"));
        assert!(why(Inspection { entries_digest: None, ..good.clone() }).contains("context"));
        assert!(matches!(finding(&good, "another fingerprint", None), HomeFinding::Broken { .. }));
    }

    #[test]
    fn entries_that_another_program_wrote_back_beside_a_token_are_broken() {
        let mut world = World::new();
        *world.credential("tool") = CredentialKind::ServiceAccount {
            lifetime: Duration::from_hours(1),
            hosts: vec![HostName("ce1".to_owned())],
            directory: None,
        };
        world.add(AccountKind::Tool, "foo", Some(52_503));
        let plan = world.plan();
        let credential = plan.accounts[0].steps().find_map(|step| match step {
            Action::Deliver { credential, .. } => Some((**credential).clone()),
            _ => None,
        });
        let credential = credential.expect("the plan delivers a token");
        let planned = |credential| crate::execute::credential::planned(&prod(), credential).with_nothing();
        let text = |entries: &KubeconfigEntries| {
            let delivered = kubeconfig::deliver("", entries, &[]).expect("an empty file takes entries");
            delivered.text.expect("the entries are new").to_string()
        };
        let (names, wanted) = token_entries(&prod(), &credential);
        let found = |text: &str| {
            let found = kubeconfig::inspect(text, &names).expect("the text is a kubeconfig");
            let token_id = Some("id".to_owned());
            finding(&Inspection { exists: true, token_id, ..found }, "id", wanted.as_deref())
        };
        let good = text(&planned(&credential));
        assert_eq!(found(&good), HomeFinding::AsDelivered);
        let mut older = credential.clone();
        for endpoint in std::sync::Arc::make_mut(&mut older.endpoints).values_mut() {
            endpoint.url = "https://old:6443".into();
        }
        let mut certificate = planned(&credential);
        let key_pem = SecretText::new("key".to_owned());
        certificate.user.proof = UserProof::Certificate { certificate_pem: "certificate".to_owned(), key_pem };
        let line = good.lines().find(|line| line.contains("tokenFile")).expect("the user has a token");
        let other = good.replace(line, &format!("{line}\n{}", line.replace("tokenFile", "token")));
        for text in [text(&planned(&older)), text(&certificate), other] {
            assert!(matches!(found(&text), HomeFinding::Broken { .. }), "{text}");
        }
    }

    #[test]
    fn a_new_home_should_lie_where_the_homes_beside_it_do() {
        let delivery = |home: &str, mount: Option<&str>, digest: &str| Delivery {
            path: Path::new(home).join(".kube/config"),
            home: Some(home.into()),
            mount: mount.map(Into::into),
            digest: digest.into(),
            at: Timestamp::UNIX_EPOCH,
            checked_at: None,
        };
        let own = delivery("/home/ann", Some("/"), "d");
        let mut ledger = LedgerState::default();
        let known = |ledger: &LedgerState, home: &str| known_mount(ledger, Some(&own), Path::new(home));
        assert_eq!(known(&ledger, "/home/ann"), Some("/".into()), "the last delivery into the home itself");
        assert_eq!(known(&ledger, "/home/bob"), None, "the account had another home then");
        let others = [
            delivery("/srv/x", Some("/srv"), "d"),
            delivery("/home/y", Some("/home/y"), "d"),
            delivery("/home/z", Some("/mnt"), &Delivery::notice("n")),
        ];
        for (number, other) in others.into_iter().enumerate() {
            ledger.ssh_deliveries.set(crate::identity::AccountId(number.to_string().into()), Some(other));
        }
        assert_eq!(known(&ledger, "/home/bob"), None, "{ledger:?}");
        ledger
            .ssh_deliveries
            .set(crate::identity::AccountId("carl".into()), Some(delivery("/home/carl", Some("/home"), "d")));
        assert_eq!(known(&ledger, "/home/bob"), Some("/home".into()));
    }
}
