//! Combines the health of each part into the status and the metrics.

use std::collections::BTreeMap;

use super::Runtime;
use crate::control::api::{ClusterStatus, Status};
use crate::inventory::adopted;
use crate::observed::adopted_watch::AdoptedWatch;
use crate::report;
use crate::store::holding_the_wal;

impl Runtime {
    /// Returns the status.
    #[must_use]
    pub fn status(&self) -> Status {
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
        let mut status = report::status(&settings.policy.site, ledger.state(), &settings.policy, there, last_cycle);
        status.unfinished.extend(realm.iter().flat_map(|realm| realm.unfinished(ledger.state())));
        Status {
            reading: directories.progress().counts(),
            ledger: ledger.trouble().cloned(),
            wal: holding_the_wal(&settings.state_dir),
            backup: ledger.backup().clone(),
            realm: realm.as_ref().map(|realm| realm.status(ledger.state())),
            configuration: self.refused.clone().or_else(|| settings.differing_file()),
            ..status
        }
    }

    /// Returns the status of each cluster, with the unknown certificates that the ledger remembers until they expire.
    fn clusters_status(&self) -> BTreeMap<String, ClusterStatus> {
        let now = self.ledger.now();
        let mut there = self.clusters.status(now);
        for ((cluster, _), unknown) in &self.ledger.state().unknown_certificates {
            if let Some(status) = there.get_mut(cluster.0.as_str())
                && unknown.not_after > now
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
            metrics.suspended_pods(&cluster.0, *pods);
        }
        for (cluster, effects) in &clusters.effects.clusters {
            let findings = effects.findings();
            for endpoint in effects.face.endpoints.keys() {
                metrics.endpoint(&cluster.0, endpoint, findings.contains_key(endpoint));
            }
        }
        metrics.exposition(ledger.state(), ledger.now())
    }
}
