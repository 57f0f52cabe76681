//! Builds the objects that a class creates in the foreign namespaces that it adopts.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{DesiredAccount, Notice, Place, credential, network, quota, rbac};
use crate::identity::{AccountId, ClusterName, NamespaceName};
use crate::ledger::LedgerState;
use crate::policy::{Class, CredentialKind, CredentialRule, Policy};

/// The cluster, the name, and the class that adopts the namespace.
pub(super) type Adopted<'a> = (&'a ClusterName, &'a NamespaceName, &'a Class);

/// Returns the adopted namespaces of each owner.
pub(super) fn by_owner<'a>(ledger: &'a LedgerState, policy: &'a Policy) -> BTreeMap<&'a AccountId, Vec<Adopted<'a>>> {
    let mut owners: BTreeMap<&AccountId, Vec<Adopted<'_>>> = BTreeMap::new();
    for ((cluster, namespace), row) in &ledger.adopted {
        let class = policy.classes.get(&row.class).filter(|class| class.adopts().is_some());
        if let (Some(owner), Some(class)) = (&row.account, class) {
            owners.entry(owner).or_default().push((cluster, namespace, class));
        }
    }
    owners
}

/// Returns all objects of Bursar in an adopted namespace: bindings of the subject `owner` (if there is an owner),
/// bindings of the `default` service account, and the other objects that the class defines. The namespace itself is not
/// included.
pub(super) fn objects(place: &Place<'_>, class: &Class, owner: Option<&Value>, policy: &Policy) -> Vec<Value> {
    let mut manifests: Vec<Value> = Vec::new();
    manifests.extend(quota::resource_quota(place.namespace, class, &BTreeMap::new(), &BTreeMap::new()));
    manifests.extend(quota::limit_range(place.namespace, class));
    if let Some(profile) = policy.networks.get(&class.network) {
        manifests.extend(network::network_policies(place.namespace, profile));
    }
    manifests.extend(rbac::role_bindings(place, class, owner));
    manifests
}

/// Whether a credential works in other namespaces. The token of a service account does not: it is for a machine, and
/// gives rights only in the namespace of that account.
pub(super) const fn works_elsewhere(rule: Option<&CredentialRule>) -> bool {
    match rule {
        Some(rule) => !matches!(rule.kind, CredentialKind::ServiceAccount { .. }),
        None => false,
    }
}

/// Returns notices about accounts that own adopted namespaces and have no credential for them.
pub(super) fn notices(ledger: &LedgerState, desired: &BTreeMap<AccountId, DesiredAccount>) -> Vec<Notice> {
    let notice = |((cluster, namespace), row): (&(ClusterName, NamespaceName), &_)| {
        let row: &crate::ledger::adopted::AdoptedNamespace = row;
        let owner = ledger.accounts.get(row.account.as_ref()?)?;
        let place = desired.get(&owner.id).and_then(|account| account.clusters.get(cluster));
        let bound = place.is_some_and(|place| place.suspended || works(place));
        (!bound).then(|| Notice {
            account: owner.account_name(),
            text: format!(
                "owns namespace {namespace} in cluster {cluster}, but has no personal credential there: configure a class \
                 of users that takes this account"
            ),
        })
    };
    ledger.adopted.iter().filter_map(notice).collect()
}

fn works(place: &super::DesiredTenant) -> bool {
    !place.credentials.is_empty() && !credential::is_service_account(&place.holder.value())
}
