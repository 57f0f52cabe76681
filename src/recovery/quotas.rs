//! Finds the overrides that a lost ledger had: quotas in the clusters that differ from those of the classes. They
//! become lines for `bursar quota import`; without the import, the first cycle of the new ledger would revert them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kube::Client;

use super::RecoveryError;
use crate::bootstrap::{self, AccessError, replace_as};
use crate::desired::DesiredState;
use crate::desired::quota::stops_pods;
use crate::identity::{AccountName, ClusterName, NamespaceName};
use crate::inventory::quota::amounts;
use crate::kinds::{ManagedKind, ObjectKey};
use crate::policy::Policy;
use crate::quantity::compare;

/// Name of the file in the state folder.
pub const FILE: &str = "quotas-to-import.txt";

/// The amounts of a quota, by resource.
type Amounts = BTreeMap<String, String>;

/// The amounts of a quota that does not exist.
static ABSENT: Amounts = BTreeMap::new();

/// Returns the lines for each tenant whose quota differs. A quota that is missing in a sealed namespace also differs.
pub(super) async fn differing(
    clients: &BTreeMap<ClusterName, Client>,
    desired: &DesiredState,
    policy: &Policy,
    sealed: &BTreeSet<(&ClusterName, &NamespaceName)>,
) -> Result<Vec<String>, RecoveryError> {
    let mut lines = Vec::new();
    for (cluster, client) in clients {
        let found = bootstrap::quotas(client).await;
        let found = found.map_err(|source| RecoveryError::Cluster { cluster: cluster.clone(), source })?;
        for account in desired.accounts.values() {
            let Some(tenant) = account.clusters.get(cluster) else { continue };
            let Some(namespace) = &tenant.namespace else { continue };
            let locked = policy.classes.get(&tenant.class).map(|class| &class.quota_locked);
            let wanted = tenant.objects.keys().filter(|key| key.kind == ManagedKind::ResourceQuota);
            let wanted = wanted.filter(|_| sealed.contains(&(cluster, namespace))).map(|key| &*key.name);
            for (name, hard) in of_namespace(&found, namespace.as_str(), wanted) {
                let key = ObjectKey::new(cluster, ManagedKind::ResourceQuota, Some(namespace.as_str()), name);
                if stops_pods(&key) {
                    continue;
                }
                let object = tenant.objects.get(&key).and_then(|object| object.hard.as_ref());
                let wanted = object.map(|wanted| amounts(&wanted.value())).unwrap_or_default();
                let is_locked = |resource: &str| locked.is_some_and(|locked| locked.contains(resource));
                lines.extend(of_tenant(&account.account, cluster, (&wanted, hard), is_locked));
            }
        }
    }
    Ok(lines)
}

/// Returns the quotas of a namespace by name: those that exist, and those that should exist.
fn of_namespace<'q>(
    found: &'q BTreeMap<(String, String), Amounts>,
    namespace: &str,
    wanted: impl Iterator<Item = &'q str>,
) -> BTreeMap<&'q str, &'q Amounts> {
    let found = found.iter().filter(|((there, _), _)| there == namespace);
    wanted.map(|name| (name, &ABSENT)).chain(found.map(|((_, name), hard)| (name.as_str(), hard))).collect()
}

/// Returns one line of the amounts that can be imported, and a comment for those that no override can express.
fn of_tenant(
    account: &AccountName,
    cluster: &ClusterName,
    (wanted, found): (&Amounts, &Amounts),
    is_locked: impl Fn(&str) -> bool,
) -> Vec<String> {
    let AccountName { kind, name } = account;
    let is_same = |given: Option<&String>, amount: &str| {
        given.is_some_and(|given| given == amount || compare(given, amount) == Some(Ordering::Equal))
    };
    let differs = found.iter().filter(|(resource, amount)| !is_same(wanted.get(*resource), amount));
    let (locked, free): (Vec<_>, Vec<_>) = differs.partition(|(resource, _)| is_locked(resource));
    let said = |amounts: Vec<(&String, &String)>| {
        amounts.into_iter().map(|(resource, amount)| format!("{resource}={amount}")).collect::<Vec<_>>().join(" ")
    };
    let mut lines = Vec::new();
    if !free.is_empty() {
        let amounts = said(free);
        lines.push(format!(
            "{} {amounts} --cluster {cluster} --reason \"in the cluster when the ledger was lost\"",
            account.words()
        ));
    }
    if !locked.is_empty() {
        lines.push(format!("# {kind} {name} in {cluster}: {} is locked by its class", said(locked)));
    }
    let gone: Vec<&str> = wanted.keys().filter(|resource| !found.contains_key(*resource)).map(String::as_str).collect();
    if !gone.is_empty() {
        let gone = gone.join(", ");
        lines.push(format!("# {kind} {name} in {cluster}: has no limit of {gone}, which no override can express"));
    }
    lines
}

/// Whether `bursar quota import` accepts the lines: it refuses a file without an order.
pub(super) fn are_importable(lines: &[String]) -> bool {
    lines.iter().any(|line| !line.starts_with('#'))
}

/// Writes the lines into the state folder; `None` if there are none.
pub(super) fn write(state_dir: &Path, lines: &[String]) -> Result<Option<PathBuf>, AccessError> {
    let path = state_dir.join(FILE);
    let failed = |source| AccessError::Write { path: path.clone(), source };
    if lines.is_empty() {
        // The file of an earlier rebuild has old amounts.
        return match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(None),
        };
    }
    let head = if are_importable(lines) { "# bursar quota import" } else { "# nothing to import from" };
    let text = format!("{head} {}\n{}\n", path.display(), lines.join("\n"));
    replace_as(&path, text.as_bytes(), 0o640, None)?;
    Ok(Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::AccountKind;

    fn map(pairs: &[(&str, &str)]) -> Amounts {
        pairs.iter().map(|(resource, amount)| ((*resource).to_owned(), (*amount).to_owned())).collect()
    }

    #[test]
    fn a_missing_quota_is_a_comment_and_nothing_to_import() {
        let account = AccountName { kind: AccountKind::Tool, name: "foo".to_owned() };
        let (cluster, pods) = (ClusterName("prod".into()), map(&[("pods", "16")]));
        let found = [("tool-foo", "other"), ("tool-bar", "bursar")];
        let found = found.map(|(namespace, name)| ((namespace.to_owned(), name.to_owned()), pods.clone())).into();
        let quotas = of_namespace(&found, "tool-foo", ["bursar"].into_iter());
        assert_eq!(quotas, [("bursar", &ABSENT), ("other", &pods)].into());
        let lines = of_tenant(&account, &cluster, (&pods, quotas["bursar"]), |_| false);
        assert_eq!(lines, ["# tool foo in prod: has no limit of pods, which no override can express"]);
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        let file = write(folder.path(), &lines).expect("the folder is writable").expect("a quota differs");
        let text = std::fs::read_to_string(&file).expect("the file was written");
        assert!(!are_importable(&lines) && text.starts_with("# nothing to import from"), "{text}");
    }

    #[test]
    fn a_quota_that_differs_becomes_an_importable_line() {
        let account = AccountName { kind: AccountKind::Tool, name: "foo".to_owned() };
        let cluster = ClusterName("prod".into());
        let wanted = map(&[("limits.cpu", "2"), ("limits.memory", "1Gi"), ("pods", "16"), ("services.nodeports", "0")]);
        let found = map(&[("limits.cpu", "8"), ("limits.memory", "1024Mi"), ("services.nodeports", "1")]);
        let lines = of_tenant(&account, &cluster, (&wanted, &found), |resource| resource == "services.nodeports");
        let expected = [
            "tool foo limits.cpu=8 --cluster prod --reason \"in the cluster when the ledger was lost\"",
            "# tool foo in prod: services.nodeports=1 is locked by its class",
            "# tool foo in prod: has no limit of pods, which no override can express",
        ];
        assert_eq!(lines, expected);
        assert!(are_importable(&lines));
        assert_eq!(of_tenant(&account, &cluster, (&wanted, &wanted), |_| false), Vec::<String>::new());
    }
}
