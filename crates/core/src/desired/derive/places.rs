//! Finds the places of an account: its namespaces and archives, and the classes that take it there.

use std::collections::BTreeMap;

use super::{Claims, World};
use crate::desired::Notice;
use crate::desired::life::Verdict;
use crate::desired::subject::Subject;
use crate::identity::{ClusterName, NamespaceName};
use crate::kinds::{ObjectKey, Stage};
use crate::ledger::workspace_uid::why_none;
use crate::ledger::{Account, Lifecycle};
use crate::policy::Class;

impl World<'_> {
    /// Whether every namespace was archived during the present suspension.
    pub(super) fn is_archived(&self, subject: &Subject<'_>) -> bool {
        let Subject { account, .. } = subject;
        account.state == Lifecycle::Suspended
            && subject.namespaces().all(|(cluster, _)| self.has_archive(account, cluster))
    }

    pub(super) fn has_archive(&self, account: &Account, cluster: &ClusterName) -> bool {
        let archives = self.archives.get_or_init(|| {
            let archives = self.ledger.archives.values();
            archives.map(|archive| (&archive.account, &archive.cluster, archive.generation)).collect()
        });
        archives.contains(&(&account.id, cluster, account.generation))
    }

    /// Whether the account has bindings in a cluster of the configuration.
    pub(super) fn is_bound(&self, account: &Account, cluster: &ClusterName) -> bool {
        let bound = self.bound.get_or_init(|| {
            let bindings = self.ledger.objects.iter().filter(|(key, _)| key.kind.stage() == Stage::Access);
            bindings.map(|(key, record)| (&record.account, &key.cluster)).collect()
        });
        self.policy.clusters.contains_key(cluster) && bound.contains(&(&account.id, cluster))
    }

    /// Whether an archived account still has a namespace, as far as the ledger knows.
    pub(super) fn is_there(&self, subject: &Subject<'_>) -> bool {
        subject.account.state == Lifecycle::Archived
            && subject
                .namespaces()
                .any(|(cluster, namespace)| self.ledger.objects.contains_key(&ObjectKey::namespace(cluster, namespace)))
    }

    /// Returns the classes of a tenant in `cluster`. If no class takes the account there, the class that the ledger
    /// remembers applies as long as it is configured, so that a suspended tenant keeps its quota.
    pub(super) fn classes_in<'s>(
        &'s self,
        subject: &Subject<'_>,
        classes: &[&'s Class],
        cluster: &ClusterName,
    ) -> Vec<&'s Class> {
        let here: Vec<&Class> = classes.iter().filter(|class| class.clusters.contains(cluster)).copied().collect();
        if !here.is_empty() {
            return here;
        }
        let last = subject.remembered(cluster).and_then(|tenant| self.policy.classes.get(&tenant.class));
        last.filter(|class| class.namespace.is_some()).into_iter().collect()
    }

    /// Returns the clusters where the account has or gets a place, each with its namespace. A suspended account gets no
    /// new place.
    pub(super) fn places<'s>(
        &'s self,
        subject: &Subject<'s>,
        classes: &[&'s Class],
        decided: &Verdict,
        claimed: &mut Claims,
        notices: &mut Vec<Notice>,
    ) -> BTreeMap<&'s ClusterName, Option<NamespaceName>> {
        let mut places: BTreeMap<&ClusterName, Option<NamespaceName>> =
            subject.tenants.iter().map(|(cluster, tenant)| (*cluster, tenant.namespace.clone())).collect();
        if decided.suspended {
            return places;
        }
        for (class, cluster) in classes.iter().flat_map(|class| class.clusters.iter().map(move |at| (class, at))) {
            let without_uid = why_none(subject.account, class);
            let is_barred = without_uid.is_some();
            notices.extend(without_uid.map(|text| Notice { account: subject.account.account_name(), text }));
            if is_barred || places.get(cluster).is_some_and(Option::is_some) {
                continue;
            }
            match class.namespace.as_deref().map(|pattern| self.claim(subject.account, cluster, pattern, claimed)) {
                None => {
                    places.entry(cluster).or_insert(None);
                }
                Some(Ok(namespace)) => {
                    places.insert(cluster, Some(namespace));
                }
                Some(Err(text)) => notices.push(Notice { account: subject.account.account_name(), text }),
            }
        }
        places
    }

    /// Returns the name of a new namespace, or an error if another account has it.
    fn claim(
        &self,
        account: &Account,
        cluster: &ClusterName,
        pattern: &str,
        claimed: &mut Claims,
    ) -> Result<NamespaceName, String> {
        let namespace = NamespaceName::try_from(pattern.replace("{name}", &account.kubernetes_name))
            .map_err(|error| format!("gets no namespace in cluster {cluster}: {error}"))?;
        let known = self.namespaces.get_or_init(|| {
            let tenants = self.ledger.tenants.iter();
            tenants.filter_map(|((_, cluster), tenant)| Some((cluster, tenant.namespace.as_ref()?))).collect()
        });
        let claimant = claimed.entry((cluster.clone(), namespace.clone())).or_insert_with(|| account.id.clone());
        if known.contains(&(cluster, &namespace)) || *claimant != account.id {
            return Err(format!(
                "gets no namespace in cluster {cluster}: {namespace} belongs to another account; rename one of the two \
                 accounts, or change the namespace pattern of its class"
            ));
        }
        Ok(namespace)
    }
}
