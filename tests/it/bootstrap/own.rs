//! The daemon renews its own credential.

use std::path::Path;

use bursar::bootstrap::{self, AccessError, Renewal};
use bursar_testkit::process::run;
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;

use super::site::{LEDGER, Site, empty, name, namespace, said};
use super::{POLICY, json};

/// Returns a copy of the daemon's kubeconfig, so that the one of the other tests stays as it is.
fn copy(folder: &TempDir) -> std::path::PathBuf {
    let path = folder.path().join("test.kubeconfig");
    std::fs::copy(Site::shared().daemon_kubeconfig(), &path).expect("the file can be copied");
    path
}

async fn renew(path: &Path, now: Timestamp) -> Result<Renewal, AccessError> {
    bootstrap::renew(path, &name(), now).await
}

async fn times(path: &Path) -> (Timestamp, Timestamp) {
    match renew(path, Timestamp::UNIX_EPOCH).await.expect("the renewal is not due") {
        Renewal::NotDue { renew_after, not_after } => (renew_after, not_after),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemon_renews_its_certificate_itself_and_stays_confined() {
    let site = Site::shared();
    let folder = TempDir::new().expect("the system allows a temporary folder");
    let path = copy(&folder);
    let (renew_after, not_after) = times(&path).await;
    let lifetime = not_after.duration_since(renew_after).as_hours();
    assert!((7 * 24..13 * 24).contains(&lifetime), "the certificate is due {lifetime} h before its end");
    let old = std::fs::read(&path).expect("the file is readable");
    let renewed = renew(&path, renew_after).await.expect("the certificate is checked without an error");
    assert!(matches!(renewed, Renewal::Renewed { not_after: new, .. } if new >= not_after), "{renewed:?}");
    let new = std::fs::read(&path).expect("the file is readable");
    assert!(old != new);
    let mut command = site.cluster.kubectl_as(&path);
    command.args(["create", "-f", "-"]);
    let refused = run(command, &namespace("unlabelled", &json!({}), "active").to_string());
    assert!(said(&refused).contains(POLICY), "{}", said(&refused));
    let left = site.cluster.run(&["get", "csr", "-l", "bursar.dev/id=bursar-daemon", "-o", "name"], "");
    assert_eq!(left, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_renewal_keeps_the_valid_certificate() {
    let folder = TempDir::new().expect("the system allows a temporary folder");
    let path = copy(&folder);
    let (_, not_after) = times(&path).await;
    let away = std::fs::read_to_string(&path)
        .expect("the file is readable")
        .replace(&Site::shared().cluster.url, "https://127.0.0.1:9");
    std::fs::write(&path, &away).expect("the folder is writable");
    let last = not_after.checked_sub(SignedDuration::from_secs(1)).expect("the time is valid");
    let postponed = renew(&path, last).await.expect("the certificate is checked without an error");
    assert!(matches!(&postponed, Renewal::Postponed { not_after: end, .. } if *end == not_after), "{postponed:?}");
    assert!(renew(&path, not_after).await.is_err(), "after the end of the certificate, renewal must fail");
    assert_eq!(std::fs::read_to_string(&path).expect("the file is readable"), away);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_kubeconfig_is_neither_renewed_nor_replaced() {
    let site = Site::shared();
    let folder = TempDir::new().expect("the system allows a temporary folder");
    let path = folder.path().join("theirs");
    std::fs::copy(&site.cluster.admin_kubeconfig, &path).expect("the file can be copied");
    let theirs = std::fs::read(&path).expect("the file is readable");
    assert_eq!(
        renew(&path, Timestamp::UNIX_EPOCH).await.expect("the certificate is checked without an error"),
        Renewal::NotOurs
    );
    let error = bootstrap::init(site.request(&empty(LEDGER), &path))
        .await
        .expect_err("the kubeconfig does not belong to the daemon");
    assert!(error.to_string().contains("not replaced"), "{error}");
    assert_eq!(std::fs::read(&path).expect("the file is readable"), theirs);
}
