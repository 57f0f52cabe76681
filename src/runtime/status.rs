//! Combines the health of each part into the status and the metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Runtime;
use crate::control::api::{ClusterStatus, Status};
use crate::execute::signing;
use crate::inventory::adopted;
use crate::observed::adopted_watch::AdoptedWatch;
use crate::report;
use crate::store::holding_the_wal;

impl Runtime {
    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status_later()()
    }

    /// Returns a function that builds the status as it is now. To build it takes a walk over all objects, which is done
    /// only if somebody asks.
    pub(crate) fn status_later(&self) -> Box<dyn FnOnce() -> Status + Send> {
        let Self { settings, ledger, clusters, realm, directories, .. } = self;
        let last_cycle = ledger.last_cycle().cloned();
        let mut there = self.clusters_status();
        for (cluster, effects) in &clusters.effects.clusters {
            let found = effects.adopted.as_ref().and_then(AdoptedWatch::inventory).unwrap_or_default();
            if let Some(status) = there.get_mut(cluster.0.as_str()) {
                let weaker = adopted::weaker(&settings.policy, cluster, &found);
                status.weaker = weaker.iter().map(ToString::to_string).collect();
            }
        }
        let unfinished: Vec<_> = realm.iter().flat_map(|realm| realm.unfinished(ledger.state())).collect();
        let (reading, trouble) = (directories.progress().counts(), ledger.trouble().cloned());
        let (wal, backup) = (holding_the_wal(&settings.state_dir), ledger.backup().clone());
        let (realm, configuration) = (
            realm.as_ref().map(|realm| realm.status(ledger.state())),
            self.refused.clone().or_else(|| settings.differing_file()),
        );
        let (policy, ledger) = (settings.policy.clone(), ledger.state().clone());
        Box::new(move || {
            let mut status = report::status(&policy.site, &ledger, &policy, there, last_cycle);
            status.unfinished.extend(unfinished);
            Status { reading, ledger: trouble, wal, backup, realm, configuration, ..status }
        })
    }

    /// Returns the status of each cluster, with the unknown certificates that the ledger remembers until they expire.
    fn clusters_status(&self) -> BTreeMap<String, ClusterStatus> {
        let now = self.ledger.now();
        let mut there = self.clusters.status(now);
        let own = (self.ledger.state().ledger_id.as_str(), self.sealer.public_key());
        for (cluster, notice) in self.clusters.outdated_approvers(&self.settings.policy, own) {
            if let Some(status) = there.get_mut(cluster.0.as_str()) {
                status.approver = Some(notice);
            }
        }
        for (cluster, unknown) in self.ledger.state().valid_unknown_certificates(now) {
            if let Some(status) = there.get_mut(cluster.0.as_str())
                && !status.unknown_certificates.contains(&unknown.text)
            {
                status.unknown_certificates.push(unknown.text.clone());
            }
        }
        there
    }

    /// Returns the metrics as Prometheus text.
    #[must_use]
    pub fn exposition(&self) -> String {
        self.exposition_later()()
    }

    /// Returns a function that builds the metrics of the accounts as they are now.
    pub(crate) fn exposition_later(&self) -> Box<dyn FnOnce() -> String + Send> {
        let Self { settings, ledger, clusters, realm, metrics, .. } = self;
        metrics.backup(ledger.backup().newest, ledger.backup().failed.is_some());
        if let Some(realm) = realm.as_ref().map(|realm| realm.status(ledger.state())) {
            metrics.realm(realm.trouble.is_some(), realm.read_at, realm.waiting);
        }
        metrics.forget_endpoints();
        for (cluster, status) in self.clusters_status() {
            let own = status.own_certificate_until.map(|until| until.duration_since(ledger.now()).as_secs());
            if let Some(answer) = &status.webhook {
                metrics.webhook(&cluster, answer.trouble.is_some());
            }
            metrics.confinement(&cluster, (status.confinement.len(), status.unknown_certificates.len()), own);
        }
        for (cluster, pods) in clusters.suspended_pods.iter().filter(|it| settings.clusters.contains_key(it.0)) {
            metrics.suspended_pods(&cluster.0, pods.values().sum());
        }
        for (cluster, effects) in &clusters.effects.clusters {
            metrics.unapproved(&cluster.0, signing::unapproved(&effects.server));
            let findings = effects.findings();
            for endpoint in effects.face.endpoints.keys() {
                metrics.endpoint(&cluster.0, endpoint, findings.contains_key(endpoint));
            }
        }
        let (metrics, now, ledger) = (Arc::clone(metrics), ledger.now(), ledger.state().clone());
        Box::new(move || metrics.exposition(&ledger, now))
    }
}
