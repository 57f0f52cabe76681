//! Writes and deletes the objects of an account: those of one rank in parallel.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::StreamExt as _;
use jiff::SignedDuration;
use serde_json::json;

use super::{Done, TenantExecution, rank};
use crate::desired::credential::is_token_holder;
use crate::desired::detail;
use crate::execute::apply::{Applied, Claim, apply};
use crate::execute::prune::delete;
use crate::execute::{ClusterEffects, Run, StepError};
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::ObjectRecord;
use crate::ledger::change::Change;
use crate::plan::{Action, Reason};

/// The number of objects of one account that are written in parallel. A tenant has about ten, so a new one needs three
/// rounds.
const OBJECTS_AT_A_TIME: usize = 4;
/// The number of objects that take access away and are written in parallel. It is higher, so that a write that hangs
/// does not delay the others.
const NARROWING_AT_A_TIME: usize = 16;

/// After a takeover, a rebuild or a restore, namespaces need no seal for this long ([`Claim::Sealed`]).
const RECOVERS: SignedDuration = SignedDuration::from_hours(24);

/// The number of retries of an object that the daemon admission policy refuses after this execution wrote its
/// namespace: 5 s in all. The API server evaluates the policy with the namespace from its cache, which lags by
/// milliseconds, or by more under load. If the policy is right to refuse, further retries would only delay the account.
const ADMISSION_RETRIES: u32 = 25;
/// The pause before such a retry.
const ADMISSION_PAUSE: Duration = Duration::from_millis(200);

impl TenantExecution<'_> {
    /// Writes and deletes objects of the cluster that take access away, and records that. Returns all errors.
    pub(in crate::execute) async fn narrow_objects(&self) -> (Done, Vec<StepError>) {
        let (mut done, mut errors) = (Done::default(), Vec::new());
        let effects = self.effects.clusters.get(self.cluster);
        let Some(effects) = effects.filter(|_| !self.run.stop.is_cancelled() && !self.is_away()) else {
            return (done, errors);
        };
        let objects = self.narrowing.iter().filter(|action| rank(action).is_some());
        // A write that fails is not retried at once, because other steps and accounts wait for these writes.
        let begun: Vec<_> = objects.map(|action| self.object_once(effects, action)).collect();
        let mut outcomes = futures::stream::iter(begun).buffer_unordered(NARROWING_AT_A_TIME);
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Ok(written) => written.add_to(&mut done),
                Err(error) => errors.push(error),
            }
        }
        errors.extend(self.hand_over(&mut done).await.err());
        (done, errors)
    }

    /// Writes objects of one rank. All are tried; returns the first error.
    pub(super) async fn objects(
        &self,
        effects: &ClusterEffects,
        group: &[&Action],
        done: &mut Done,
    ) -> Result<(), StepError> {
        let written = done.namespaces.clone();
        let begun: Vec<_> = group.iter().map(|action| self.object(effects, action, &written)).collect();
        let mut outcomes = futures::stream::iter(begun).buffered(OBJECTS_AT_A_TIME);
        let mut failed = None;
        while let Some(outcome) = outcomes.next().await {
            match outcome {
                Ok(written) => written.add_to(done),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes or deletes an object. If Bursar's admission policy refuses it and its namespace is in `written`, it is
    /// retried for a moment.
    pub(super) async fn object(
        &self,
        effects: &ClusterEffects,
        action: &Action,
        written: &BTreeSet<String>,
    ) -> Result<ObjectOutcome, StepError> {
        for _ in 0..ADMISSION_RETRIES {
            match self.object_once(effects, action).await {
                Err(error) if error.is_by_our_policy() && is_in(written, action) && !self.run.stop.is_cancelled() => {
                    tokio::time::sleep(ADMISSION_PAUSE).await;
                }
                outcome => return outcome,
            }
        }
        self.object_once(effects, action).await
    }

    async fn object_once(&self, effects: &ClusterEffects, action: &Action) -> Result<ObjectOutcome, StepError> {
        match action {
            Action::Apply { key, manifest, wanted, uid, reason } => {
                let writing = effects.watch.write(key);
                let manifest = manifest.value();
                let applied = apply(&effects.server, key, &manifest, uid.as_deref(), self.claim(key)).await?;
                let observed = writing.applied(&applied.object);
                if reason.is_repair(self.run.ledger.objects.contains_key(key)) {
                    effects.watch.repaired(key, self.run.now);
                }
                let record = ObjectRecord {
                    account: self.account.id.clone(),
                    uid: observed.uid,
                    wanted: wanted.clone(),
                    observed: observed.digest,
                    detail: detail(&key.kind, &manifest),
                };
                let did = match applied {
                    Applied { created: true, .. } => "created",
                    Applied { adopted: true, .. } => "adopted",
                    Applied { .. } => "applied",
                };
                Ok(ObjectOutcome { key: key.clone(), record: Some(record), did, reason: reason.clone() })
            }
            Action::Delete { key, uid, reason } => {
                let writing = effects.watch.write(key);
                let deleted = delete(&effects.server, key, uid).await?;
                match deleted {
                    crate::execute::prune::Deleted::Gone => writing.deleted(true),
                    crate::execute::prune::Deleted::Going => writing.deleted(false),
                    // The watch has shown, or will show, the object that has taken its place.
                    crate::execute::prune::Deleted::Replaced => drop(writing),
                }
                Ok(ObjectOutcome { key: key.clone(), record: None, did: "deleted", reason: reason.clone() })
            }
            // Only `Apply` and `Delete` have a rank.
            _ => Err(StepError::NoCluster(self.cluster.clone())),
        }
    }

    /// Returns the condition that an existing object must meet before it is overwritten.
    fn claim(&self, key: &ObjectKey) -> Claim<'_> {
        let Run { ledger, now, .. } = self.run;
        // After a recovery, the seal's key may be another one. Within this time, every namespace gets its record.
        let is_recovered = ledger.learned_at.is_some_and(|at| now.duration_since(at).abs() < RECOVERS);
        if is_token_holder(key) {
            // If a service account lost its label, the watch does not see it, and only its uid shows that Bursar
            // created it.
            Claim::Made(ledger.objects.get(key).map(|record| &record.uid))
        } else if self.account.adopts.contains(&key.said()) {
            Claim::Any
        } else if key.kind == ManagedKind::Namespace && !ledger.objects.contains_key(key) && !is_recovered {
            Claim::Sealed(&self.account.id)
        } else {
            Claim::Ours
        }
    }
}

/// The result of writing or deleting an object.
pub(super) struct ObjectOutcome {
    key: ObjectKey,
    record: Option<ObjectRecord>,
    /// The verb for the history.
    did: &'static str,
    reason: Reason,
}

impl ObjectOutcome {
    pub(super) fn add_to(self, done: &mut Done) {
        let Self { key, record, did, reason } = self;
        done.drift_repaired += u64::from(matches!(reason, Reason::Drifted(_)));
        if key.kind == ManagedKind::Namespace && record.is_some() {
            done.namespaces.insert(key.name.to_string());
        }
        done.objects.push(json!({
            "did": did, "kind": key.kind.as_str(), "namespace": key.namespace, "name": key.name, "why": reason.to_string(),
        }));
        done.changes.push(Change::Object(key, record));
    }
}

/// Whether the action writes an object in one of these namespaces.
fn is_in(namespaces: &BTreeSet<String>, action: &Action) -> bool {
    matches!(action, Action::Apply { key, .. } if key.namespace.as_ref().is_some_and(|there| namespaces.contains(there.as_str())))
}
