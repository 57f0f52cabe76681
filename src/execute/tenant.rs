//! Carries out the plan of one account in one cluster. The steps that take access away come first, and each is tried
//! even if others fail. The other steps follow in their order: objects of one rank in parallel, everything else one
//! after the other. Steps in foreign namespaces are tried after them, each namespace for itself, and steps in homes
//! come last. The ledger records each step before the next one depends on it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::apply::{Applied, Claim, apply};
use super::credential::{Delivering, deliver};
use super::endpoint_probe::Old;
use super::prune::delete;
use super::record::{failure, removal_failure};
use super::refusal::Others;
use super::{ClusterEffects, Effects, Recorder, Report, Run, StepError, home, idle, level, reap, refusal, workloads};
use crate::desired::credential::is_token_holder;
use crate::desired::{DesiredCredential, DesiredNotice, HomeTarget, Proof, Regeneration, Transition, detail};
use crate::errors::chain;
use crate::identity::{ClusterName, HostName, NamespaceName};
use crate::inventory::HomeFinding;
use crate::kinds::{Data, ManagedKind, ObjectKey, Stage};
use crate::ledger::change::{Change, Event};
use crate::ledger::idle::Idleness;
use crate::ledger::{
    ADOPTED, CredentialKey, Delivery, Failure, LATER_REMOVAL, MISSING_HOME, ObjectRecord, REMOVAL, StoppedWorkload,
};
use crate::plan::adopted::foreign_namespace;
use crate::plan::credential::KUBECONFIG;
use crate::plan::{AccountPlan, Action, Reason, Side};
use crate::policy::Cluster;

/// The number of objects of one account that are written in parallel. A tenant has about ten, so a new one needs three
/// rounds.
const OBJECTS_AT_A_TIME: usize = 4;
/// The same for objects that take access away. It is higher, so that one that hangs does not hold up the others.
const NARROWING_AT_A_TIME: usize = 16;

/// After a takeover, a rebuild or a restore, namespaces need no seal for this long ([`Claim::Sealed`]).
const RECOVERS: SignedDuration = SignedDuration::from_hours(24);

/// An action in the history: the API server refuses everything to older credentials.
pub const REFUSED: &str = "old credentials refused";
/// An action in the history: bindings of others name the holder of older credentials, and still grant rights.
pub const BOUND_BY_OTHERS: &str = "old credentials bound by others";

/// The number of retries of an object that the daemon admission policy refuses after this execution wrote its
/// namespace: 5 s in all. The API server evaluates the policy with the namespace from its cache, which lags by
/// milliseconds, or by more under load. If the policy is right to refuse, further retries would only delay the account.
const ADMISSION_RETRIES: u32 = 25;
/// The pause before such a retry.
const ADMISSION_PAUSE: Duration = Duration::from_millis(200);

/// How often our entries are tried to be removed from a former file. Each try issues another certificate.
const FORMER_TRIES: u64 = 3;

/// How often workloads are searched for. Another round is needed if a workload was replaced while it was stopped.
const STOPS: usize = 5;

/// The execution of one account in one cluster.
pub(super) struct TenantExecution<'a> {
    pub(super) account: &'a AccountPlan,
    /// The hash of the plan, for the history.
    pub(super) plan: &'a str,
    pub(super) cluster: &'a ClusterName,
    /// Steps that take access away.
    pub(super) narrowing: Vec<&'a Action>,
    /// Everything else.
    pub(super) actions: Vec<&'a Action>,
    /// The plan is complete: nothing of it is left to a later cycle.
    pub(super) is_whole: bool,
    /// The failure of `narrowing`, if it concerns only a home or a workload past its lifetime. After any other failure,
    /// `actions` are not carried out.
    pub(super) narrowed: Option<Failure>,
    /// Bindings in the cluster that are not ours.
    pub(super) others: &'a Others,
    pub(super) effects: &'a Effects,
    pub(super) run: Run<'a>,
    pub(super) recorder: &'a Recorder,
}

/// What was done and is not yet recorded in the ledger.
#[derive(Default)]
pub(super) struct Done {
    pub(super) changes: Vec<Change>,
    pub(super) events: Vec<Event>,
    /// The objects that were applied and deleted, with the reason, for the history.
    objects: Vec<Value>,
    /// The namespaces that were written.
    namespaces: BTreeSet<String>,
    drift_repaired: u64,
    reaped: u64,
    repeated: u64,
}

impl TenantExecution<'_> {
    /// Takes access away, and records a failure. Returns itself if `actions` are left to do; after a failure in the
    /// cluster, nothing is granted.
    pub(super) async fn narrow(mut self, begun: (Done, Vec<StepError>)) -> (Report, Option<Self>) {
        let answers = self.answers();
        // Steps in homes need no cluster.
        let left = !answers && !self.narrowing.iter().copied().all(is_of_a_home);
        if self.run.stop.is_cancelled() || (left && !self.narrowing.iter().copied().any(is_of_a_home)) {
            return (Report { left: 1, ..Report::default() }, None);
        }
        let (mut done, errors) = begun;
        let step = if errors.is_empty() { LATER_REMOVAL } else { REMOVAL };
        let errors = self.narrow_steps(errors, &mut done).await;
        let (actions, drift_repaired) = (self.narrowing.len() as u64, done.drift_repaired);
        let counted = Report { actions, drift_repaired, reaped: done.reaped, ..Report::default() };
        let goes_on = !self.actions.is_empty() && errors.iter().all(is_of_the_tenant);
        let failed = errors.iter().find(|error| !is_of_the_tenant(error)).or(errors.first());
        if let (Some(error), Some(effects)) = (failed, self.effects.clusters.get(self.cluster))
            && error.is_loss()
        {
            effects.watch.suspect();
        }
        let failure = failed.map(|error| {
            let (before, now) = (self.before(), (self.run.clock)());
            if self.is_of_a_missing_home(error) {
                return failure(MISSING_HOME, error, before.filter(|before| before.is_of_missing_home()), now);
            }
            removal_failure(step, error, before, now)
        });
        let is_over = failure.is_none();
        match &failure {
            Some(failure) => self.write_down(&mut done, failure),
            // If the cluster does not answer, the ledger keeps the failure or the beginning, so that a later cycle
            // finds the rest.
            None if !goes_on && answers => self.narrowed_all(&mut done),
            None => {}
        }
        self.narrowed = failure;
        if self.hand_over(&mut done).await.is_err() {
            // What cannot be recorded must not be done.
            self.run.stop.cancel();
            return (Report { failed: 1, ..counted }, None);
        }
        if goes_on {
            return (counted, Some(self));
        }
        let done = u64::from(is_over && !left);
        (Report { done, failed: u64::from(!is_over), left: u64::from(is_over && left), ..counted }, None)
    }

    /// Writes and deletes objects of the cluster that take access away, and records that. Returns all errors.
    pub(super) async fn narrow_objects(&self) -> (Done, Vec<StepError>) {
        let (mut done, mut errors) = (Done::default(), Vec::new());
        let effects = self.effects.clusters.get(self.cluster);
        let Some(effects) = effects.filter(|_| !self.run.stop.is_cancelled() && !self.is_away()) else {
            return (done, errors);
        };
        let objects = self.narrowing.iter().filter(|action| rank(action).is_some());
        // If one fails, it is not retried at once, because other steps and accounts wait for it.
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

    /// Carries out the other steps that take access away: workloads, tokens and homes. Returns `errors` and all new
    /// ones; if there are none, every step is done.
    async fn narrow_steps(&self, mut errors: Vec<StepError>, done: &mut Done) -> Vec<StepError> {
        let Some(effects) = self.effects.clusters.get(self.cluster).filter(|effects| effects.watch.is_ready()) else {
            let homes: Vec<&Action> = self.narrowing.iter().copied().filter(|action| is_of_a_home(action)).collect();
            errors.extend(self.in_homes(&homes, done).await);
            return errors;
        };
        for action in self.narrowing.iter().copied().filter(|action| rank(action).is_none()) {
            // If the cluster did not answer, it is not asked for workloads.
            if matches!(action, Action::StopWorkloads { .. } | Action::Evict { .. } | Action::ReapPod { .. })
                && errors.iter().any(StepError::is_loss)
            {
                continue;
            }
            errors.extend(self.step(effects, action, done).await.err());
            errors.extend(self.hand_over(done).await.err());
        }
        errors
    }

    /// Whether a step failed because a home is missing that is a mount of its own. The same shows if the home was deleted
    /// for good, so the removal must not be repeated each minute for ever.
    fn is_of_a_missing_home(&self, error: &StepError) -> bool {
        let mut homes = self.narrowing.iter().filter_map(|action| match action {
            Action::RemoveKubeconfig { home, .. } | Action::SshKeys { home, .. } => Some(home),
            _ => None,
        });
        homes.any(|home| error.misses(home))
    }

    /// If nothing is left to do, records that the account is settled.
    fn narrowed_all(&self, done: &mut Done) {
        // A failed step that waits for its retry is not in the plan.
        let of_the_plan = |before: &Failure| before.is_of_removal() && !before.is_of_later_removal();
        let waits = |before: &Failure| before.waits(self.run.now) && !of_the_plan(before) && !before.is_begun();
        let waits = self.before().is_some_and(waits);
        if waits || !self.is_whole {
            return;
        }
        self.settle(done);
        if self.before().is_some() {
            done.changes.push(Change::Failure(self.account.id.clone(), self.cluster.clone(), None));
        }
    }

    fn before(&self) -> Option<&Failure> {
        self.run.ledger.failures.get(&(self.account.id.clone(), self.cluster.clone()))
    }

    /// Carries out `actions`, and records what was done, even after a failure.
    pub(super) async fn carry_out(self) -> Report {
        if self.run.slice_over.is_cancelled() || self.is_away() {
            return Report { left: 1, ..Report::default() };
        }
        let mut done = Done::default();
        let (result, elsewhere) = self.all(&mut done).await;
        let Done { drift_repaired, reaped, repeated, .. } = done;
        let counted = Report { drift_repaired, reaped, repeated, ..Report::default() };
        let failed = result.is_err() || elsewhere.is_some() || self.narrowed.is_some();
        if let (Err(error), Some(effects)) = (&result, self.effects.clusters.get(self.cluster))
            && error.is_loss()
        {
            effects.watch.suspect();
        }
        // A check of a home is not counted as an action.
        let actions = self.actions.iter().filter(|action| !action.is_look()).count() as u64;
        self.conclude(&mut done, result.err(), elsewhere);
        if self.hand_over(&mut done).await.is_err() {
            // What cannot be recorded must not be done.
            self.run.stop.cancel();
            return Report { failed: 1, actions, ..counted };
        }
        Report { done: u64::from(!failed), failed: u64::from(failed), actions, ..counted }
    }

    /// The cluster stopped answering. Steps that have not begun are left to a later cycle, so that no time is lost with
    /// deadlines.
    fn is_away(&self) -> bool {
        self.effects.clusters.get(self.cluster).is_some_and(|effects| !effects.watch.is_ready())
    }

    /// The cluster is connected, and answers.
    fn answers(&self) -> bool {
        self.effects.clusters.get(self.cluster).is_some_and(|effects| effects.watch.is_ready())
    }

    /// Carries out `actions`. Returns the first failure, and separately the first one in a foreign namespace.
    async fn all(&self, done: &mut Done) -> (Result<(), StepError>, Option<StepError>) {
        let Some(effects) = self.effects.clusters.get(self.cluster) else {
            return (self.in_homes(&self.actions, done).await.into_iter().next().map_or(Ok(()), Err), None);
        };
        let (homes, cluster): (Vec<&Action>, Vec<&Action>) =
            self.actions.iter().copied().partition(|action| self.waits_for_a_home(action));
        let is_own = |namespace: &str| self.account.namespaces.contains(namespace);
        let (elsewhere, cluster): (Vec<&Action>, Vec<&Action>) =
            cluster.into_iter().partition(|action| foreign_namespace(action, is_own).is_some());
        let mut failed = self.in_cluster(effects, &cluster, done).await.err();
        let mut failed_elsewhere = None;
        if failed.is_none() {
            match self.elsewhere(effects, &elsewhere, done).await {
                Ok(error) => failed_elsewhere = error,
                Err(error) => failed = Some(error),
            }
        }
        let is_done = failed.is_none() && failed_elsewhere.is_none();
        (self.then_in_homes(effects, (&homes, is_done), failed, done).await, failed_elsewhere)
    }

    /// Carries out steps in foreign namespaces. Their makers can make these fail, so each namespace is tried even if
    /// another failed. Returns the first failure.
    ///
    /// # Errors
    /// The cluster does not answer, or the ledger does not record.
    async fn elsewhere(
        &self,
        effects: &ClusterEffects,
        actions: &[&Action],
        done: &mut Done,
    ) -> Result<Option<StepError>, StepError> {
        let is_own = |namespace: &str| self.account.namespaces.contains(namespace);
        let mut namespaces: BTreeMap<Option<&str>, Vec<&Action>> = BTreeMap::new();
        for action in actions.iter().copied() {
            namespaces.entry(foreign_namespace(action, is_own)).or_default().push(action);
        }
        let mut failed = None;
        for actions in namespaces.into_values() {
            match self.in_cluster(effects, &actions, done).await {
                Err(error) if error.is_loss() || matches!(error, StepError::NotRecorded) => return Err(error),
                outcome => failed = failed.or(outcome.err()),
            }
        }
        Ok(failed)
    }

    /// Carries out the steps in homes. `failed` is the failure of the steps in the cluster. If `is_done`, nothing else
    /// keeps the account from being settled.
    async fn then_in_homes(
        &self,
        effects: &ClusterEffects,
        (homes, is_done): (&[&Action], bool),
        mut failed: Option<StepError>,
        done: &mut Done,
    ) -> Result<(), StepError> {
        // Volumes that wait for a directory belong to the settled state of the cluster; the other steps in homes do
        // not.
        let mut unsettled = homes.iter().filter(|action| rank(action).is_some()).count();
        if is_done && unsettled == 0 {
            self.settle(done);
        }
        let mut is_without_directory = false;
        for action in homes {
            // Access is taken away after any failure. After a failure in the cluster, no other step in a home is
            // carried out.
            let narrows = matches!(action, Action::RemoveKubeconfig { .. } if action.side() == Side::Narrowing)
                || matches!(action, Action::SshKeys { keys, .. } if keys.is_empty());
            if failed.as_ref().is_some_and(|error| error.is_of_nobodys_home() && !narrows)
                || (is_without_directory && rank(action).is_some())
            {
                continue;
            }
            if let Err(error) = self.step(effects, action, done).await {
                is_without_directory |= matches!(action, Action::MakeDirectory { .. });
                let hangs = error.is_of_an_export();
                failed = failed.or(Some(error));
                if hangs {
                    break;
                }
            } else if rank(action).is_some() {
                unsettled -= 1;
                if is_done && unsettled == 0 {
                    self.settle(done);
                }
            }
            self.hand_over(done).await?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Steps in homes come last, and each is tried, so that a broken home or a file server that hangs delays neither
    /// quota, policies and bindings nor the end of a tenant. A volume waits for its directory.
    fn waits_for_a_home(&self, action: &Action) -> bool {
        match action {
            Action::Deliver { .. }
            | Action::RemoveKubeconfig { .. }
            | Action::InspectKubeconfig { .. }
            | Action::SshKeys { .. }
            | Action::MakeDirectory { .. } => true,
            Action::Apply { key, uid: None, .. } => {
                key.kind.data() != Data::None
                    && self.actions.iter().any(|action| matches!(action, Action::MakeDirectory { .. }))
            }
            Action::Apply { .. }
            | Action::Delete { .. }
            | Action::StopWorkloads { .. }
            | Action::Evict { .. }
            | Action::SetLevel { .. }
            | Action::WarnIdle { .. }
            | Action::ReapPod { .. }
            | Action::WarnPod { .. }
            | Action::ResumeWorkloads { .. }
            | Action::ProveRevoked { .. }
            | Action::Archive { .. }
            | Action::DeleteNamespace { .. }
            | Action::AwaitDeletion { .. } => false,
        }
    }

    async fn in_cluster(
        &self,
        effects: &ClusterEffects,
        actions: &[&Action],
        done: &mut Done,
    ) -> Result<(), StepError> {
        for group in actions.chunk_by(|one, next| rank(one).is_some() && rank(one) == rank(next)) {
            if rank(group[0]).is_some() {
                self.objects(effects, group, done).await?;
            } else {
                for action in group {
                    self.step(effects, action, done).await?;
                    self.hand_over(done).await?;
                }
            }
        }
        Ok(())
    }

    /// Carries out the steps in homes, for a cluster that does not answer or is no longer configured. Returns all
    /// errors.
    async fn in_homes(&self, actions: &[&Action], done: &mut Done) -> Vec<StepError> {
        let face = self.effects.clusters.get(self.cluster).map(|effects| &effects.face);
        let mut errors = Vec::new();
        for action in actions {
            errors.extend(self.in_home(face, action, done).await.err());
            errors.extend(self.hand_over(done).await.err());
        }
        errors
    }

    /// Carries out a step that needs no cluster; refuses all others.
    async fn in_home(&self, face: Option<&Cluster>, action: &Action, done: &mut Done) -> Result<(), StepError> {
        match action {
            Action::RemoveKubeconfig { host, home, notice, reason, .. } => {
                self.remove_kubeconfig(face, (host, home, reason), notice.as_deref(), done).await
            }
            Action::SshKeys { home, keys, digest, reason, .. } => {
                let before = self.run.ledger.ssh_deliveries.get(&self.account.id);
                let mount = home::known_mount(self.run.ledger, before, &home.home);
                let (changed, mount) = match home::ssh_keys(&self.effects.homes, (home, mount), keys).await {
                    // The keys in the account's new home must not wait for a former home that no longer exists.
                    Err(error) if *reason == Some(Reason::Orphaned) && error.misses(home) => (false, None),
                    answer => answer?,
                };
                let delivery =
                    (!keys.is_empty()).then(|| Delivery { mount, ..home.ssh_delivery(digest, self.run.now) });
                done.changes.push(Change::SshDelivery(self.account.id.clone(), delivery));
                let (what, why) = match reason {
                    Some(reason) if keys.is_empty() => ("SSH keys removed", reason.to_string()),
                    Some(reason) => ("SSH keys written", reason.to_string()),
                    None if changed => ("SSH keys written again", "our block was changed".to_owned()),
                    None => return Ok(()),
                };
                done.events.push(self.event(what, why, json!({"home": home.home, "keys": keys})));
                Ok(())
            }
            _ => Err(StepError::NoCluster(self.cluster.clone())),
        }
    }

    async fn remove_kubeconfig(
        &self,
        face: Option<&Cluster>,
        (host, home, reason): (&HostName, &HomeTarget, &Reason),
        notice: Option<&DesiredNotice>,
        done: &mut Done,
    ) -> Result<(), StepError> {
        let (key, mount) = (self.key(host), self.mount(host, home));
        if let Some(notice) = notice
            && let Some(written) = home::leave(&self.effects.homes, self.cluster, (home, mount.clone()), notice).await?
        {
            let delivery = Delivery { mount: written.mount, ..notice.delivered(home, self.run.now) };
            done.changes.push(Change::Delivery(key, Some(delivery)));
            let detail = json!({"home": home.home, "kubeconfig": home.kubeconfig, "notice": notice.notice.text()});
            done.events.push(self.event("kubeconfig replaced by a notice", reason.to_string(), detail));
            return Ok(());
        }
        home::remove(&self.effects.homes, self.cluster, face, (home, mount)).await?;
        if *reason == Reason::Orphaned {
            // The certificate is no longer renewed.
            done.changes.push(Change::Certificate(key.clone(), None));
        }
        done.changes.push(Change::Delivery(key, None));
        let detail = json!({"home": home.home, "kubeconfig": home.kubeconfig});
        done.events.push(self.event("kubeconfig removed", reason.to_string(), detail));
        Ok(())
    }

    /// Removes our entries from the file that had the last delivery. A removal that fails is tried three times, with the
    /// delivery, because the ledger knows one file only. Then the old credential is left to expire: an old home that is
    /// archived or broken must not keep the account from its new one.
    async fn leave_former(
        &self,
        face: &Cluster,
        host: &HostName,
        former: &HomeTarget,
        reason: &Reason,
    ) -> Result<Event, StepError> {
        let place = (former, self.mount(host, former));
        let detail = json!({"home": former.home, "kubeconfig": former.kubeconfig});
        match home::remove(&self.effects.homes, self.cluster, Some(face), place).await {
            Ok(()) => Ok(self.event("kubeconfig removed", reason.to_string(), detail)),
            Err(error) => {
                let tries = self.before().filter(|before| before.is_of_delivery()).map_or(0, |before| before.attempts);
                if tries + 1 < FORMER_TRIES && *reason != Reason::Revoked {
                    return Err(error);
                }
                Ok(self.event("kubeconfig left in a former home", chain(&error), detail))
            }
        }
    }

    /// Records that everything in the plan except the certificate is as desired.
    fn settle(&self, done: &mut Done) {
        if let Some(own) = self.account.settles.get(self.cluster) {
            done.changes.push(Change::Settled(self.account.id.clone(), self.cluster.clone(), own.clone()));
        }
    }

    /// Writes objects of one rank. All are tried; returns the first error.
    async fn objects(&self, effects: &ClusterEffects, group: &[&Action], done: &mut Done) -> Result<(), StepError> {
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

    /// Writes or deletes an object. If our policy refuses it and its namespace is in `written`, it is retried for a
    /// moment.
    async fn object(
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
                if matches!(reason, Reason::Drifted(_)) {
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
                    super::prune::Deleted::Gone => writing.deleted(true),
                    super::prune::Deleted::Going => writing.deleted(false),
                    // The watch has shown, or will show, the object that has taken its place.
                    super::prune::Deleted::Replaced => drop(writing),
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
            // If a service account lost its label, the watch does not see it, and only its uid shows that it is ours.
            Claim::Made(ledger.objects.get(key).map(|record| &record.uid))
        } else if self.account.adopts.contains(&key.said()) {
            Claim::Any
        } else if key.kind == ManagedKind::Namespace && !ledger.objects.contains_key(key) && !is_recovered {
            Claim::Sealed(&self.account.id)
        } else {
            Claim::Ours
        }
    }

    async fn step(&self, effects: &ClusterEffects, action: &Action, done: &mut Done) -> Result<(), StepError> {
        match action {
            Action::Apply { .. } | Action::Delete { .. } => {
                let written = done.namespaces.clone();
                self.object(effects, action, &written).await?.add_to(done);
                Ok(())
            }
            Action::MakeDirectory { directory, .. } => {
                if home::make_directory(&self.effects.homes, directory, self.run.ledger).await? {
                    let detail = json!({"directory": directory.path});
                    done.events.push(self.event("directory made", Reason::Missing.to_string(), detail));
                }
                Ok(())
            }
            Action::SetLevel { namespace, uid, level, .. } => {
                if level::set(&effects.server, namespace, uid, *level).await? {
                    let detail = json!({"cluster": self.cluster, "namespace": namespace, "level": level});
                    done.events.push(self.event("pod security level set", Reason::Missing.to_string(), detail));
                }
                Ok(())
            }
            Action::StopWorkloads { namespace, .. } => self.stop_workloads(effects, namespace, done).await,
            Action::Evict { namespace, since, .. } => self.evict(effects, namespace, *since, done).await,
            Action::ResumeWorkloads { stopped, .. } => self.resume_workloads(effects, stopped, done).await,
            Action::WarnIdle { namespace, idle_since, until, counted, .. } => {
                idle::warn(&effects.server, namespace, (*idle_since, *until), self.run.now).await?;
                let place = (self.account.id.clone(), self.cluster.clone());
                if let Some(idle) = self.run.ledger.idle.get(&place).cloned() {
                    let warned = Idleness { warned_at: Some(self.run.now), due: *until, seconds: *counted, ..idle };
                    done.changes.push(Change::Idle(place.0, place.1, Some(warned)));
                }
                let reason = format!("nothing has run in {namespace} since {idle_since:.0}");
                done.events.push(self.event("warned of suspension", reason, json!({"until": until})));
                Ok(())
            }
            Action::WarnPod { namespace, name, uid, until, .. } => {
                reap::warn(&effects.server, namespace, (name, uid), *until, self.run.now).await
            }
            Action::ReapPod { namespace, name, uid, job, maker, reason, .. } => {
                let (job, maker) = (job.as_deref(), maker.as_ref());
                let reaped = reap::reap((&effects.server, self.run.ledger), namespace, (name, uid), job, maker).await?;
                done.reaped += 1;
                done.events.push(self.event("pod reaped", reason.to_string(), reap::detail(namespace, job, &reaped)));
                reaped.failed.map_or(Ok(()), Err)
            }
            Action::ProveRevoked { alone, known_as, bound, .. } => {
                refusal::refused(&effects.server, alone, bound).await?;
                let foreign = refusal::foreign(&effects.server, self.others, known_as).await?;
                let generation = self.account.generation;
                let detail = json!({"holder": alone, "bound": bound, "foreign": foreign, "generation": generation});
                let what = if foreign.is_empty() { REFUSED } else { BOUND_BY_OTHERS };
                done.events.push(self.event(what, Reason::Revoked.to_string(), detail));
                Ok(())
            }
            Action::Archive { namespace, file, .. } => self.archive(effects, namespace, file, done).await,
            Action::DeleteNamespace { namespace, uid, archived, file, .. } => {
                self.delete_namespace(effects, namespace, uid, (archived.as_ref(), file), done).await
            }
            Action::AwaitDeletion { namespace, uid, .. } => self.await_deletion(effects, namespace, uid, done).await,
            Action::Deliver { credential, generation, home, former, reason, .. } => {
                let old = self.standing(credential, reason);
                let mount = self.mount(&credential.host, home);
                let what = Delivering { credential, generation: *generation, home, mount: mount.as_deref(), old };
                let changes = deliver(effects, &self.effects.homes, self.account, what, self.run.now).await?;
                if let Some(former) = former {
                    done.events.push(self.leave_former(&effects.face, &credential.host, former, reason).await?);
                }
                done.repeated += u64::from(matches!(reason, Reason::Drifted(_)));
                done.events.extend(self.delivered(credential, &changes, reason));
                done.changes.extend(changes);
                Ok(())
            }
            Action::RemoveKubeconfig { .. } | Action::SshKeys { .. } => {
                self.in_home(Some(&effects.face), action, done).await
            }
            Action::InspectKubeconfig { host, home, expected, .. } => {
                let place = (home, self.mount(host, home));
                let (found, mount) =
                    home::inspect(&self.effects.homes, self.cluster, &effects.face, place, expected).await?;
                let key = self.key(host);
                if let Some(delivery) = self.run.ledger.deliveries.get(&key) {
                    let checked = home::checked(delivery, home, (&found, mount), self.run.now);
                    done.changes.push(Change::Delivery(key, Some(checked)));
                }
                let (what, why) = match found {
                    HomeFinding::AsDelivered => return Ok(()),
                    HomeFinding::Broken { why } => ("kubeconfig broken", why),
                    HomeFinding::Repaired { why } => ("kubeconfig written again", why),
                };
                done.events.push(self.event(what, why, json!({"home": home.home})));
                Ok(())
            }
        }
    }

    /// Returns whether the credential in the home is still good: it is not due for renewal, and only the kubeconfig
    /// around it changes.
    fn standing(&self, credential: &DesiredCredential, reason: &Reason) -> Old {
        let key = CredentialKey::new(self.account.id.clone(), self.cluster.clone()).on(&credential.host);
        let certificate = self.run.ledger.certificates.get(&key);
        let has_time = certificate.is_some_and(|certificate| self.run.now < certificate.renew_after);
        let is_of_the_file = matches!(reason, Reason::Changed(what) if *what == [KUBECONFIG]);
        if has_time && is_of_the_file { Old::Good } else { Old::Spent }
    }

    async fn stop_workloads(
        &self,
        effects: &ClusterEffects,
        namespace: &NamespaceName,
        done: &mut Done,
    ) -> Result<(), StepError> {
        for _ in 0..STOPS {
            let found = workloads::find(&effects.server, namespace, self.run.now).await?;
            let stopped = if found.is_empty() { Ok(Vec::new()) } else { self.stop_found(effects, &found, done).await };
            // A tenant can keep a workload from being stopped. Its pods are deleted all the same.
            let goes_on = |error: &StepError| matches!(error, StepError::Workload { .. }) && !error.is_loss();
            if stopped.as_ref().is_err_and(|error| !goes_on(error)) {
                return stopped.map(drop);
            }
            let running = workloads::end_pods(&effects.server, namespace).await?;
            if stopped?.is_empty() && running == 0 {
                return Ok(());
            }
        }
        // Workloads are created again and again in the place of those that are stopped.
        Err(StepError::Restarting { namespace: namespace.clone() })
    }

    /// Stops the workloads. Returns those that others have replaced meanwhile.
    async fn stop_found(
        &self,
        effects: &ClusterEffects,
        found: &[(ObjectKey, StoppedWorkload)],
        done: &mut Done,
    ) -> Result<Vec<ObjectKey>, StepError> {
        let stopped = found
            .iter()
            .map(|(key, workload)| Change::Stopped(self.account.id.clone(), key.clone(), Some(workload.clone())));
        done.changes.extend(stopped);
        let names: Vec<Value> = found
            .iter()
            .map(|(key, workload)| json!({"kind": key.kind.as_str(), "name": key.name, "replicas": workload.replicas}))
            .collect();
        done.events.push(self.event("workloads stopped", self.cause().1, json!({"workloads": names})));
        // Recorded before it is done: a daemon that is killed in between still knows what was running.
        self.hand_over(done).await?;
        workloads::stop(&effects.server, found).await
    }

    async fn resume_workloads(
        &self,
        effects: &ClusterEffects,
        stopped: &[(ObjectKey, StoppedWorkload)],
        done: &mut Done,
    ) -> Result<(), StepError> {
        for (key, workload) in stopped {
            workloads::resume(&effects.server, key, workload).await?;
            done.changes.push(Change::Stopped(self.account.id.clone(), key.clone(), None));
            // Recorded one by one: from now on the workload belongs to the tenant, who may stop it before the rest is
            // resumed.
            self.hand_over(done).await?;
        }
        let names: Vec<Value> =
            stopped.iter().map(|(key, _)| json!({"kind": key.kind.as_str(), "name": key.name})).collect();
        done.events.push(self.event("workloads resumed", self.cause().1, json!({"workloads": names})));
        Ok(())
    }

    /// Ends the execution: records a failure, or removes the former one.
    fn conclude(&self, done: &mut Done, error: Option<StepError>, elsewhere: Option<StepError>) {
        // A failed removal of access is retried sooner, together with the other steps, so its failure stays.
        if self.narrowed.is_some() {
            return;
        }
        let before = self.before();
        if let Some(error) = error {
            return self.write_down(done, &failure(error.step(), &error, before, (self.run.clock)()));
        }
        // A failed delivery that still waits for its retry was not in the plan, and stays; so does a failure in a
        // foreign namespace. Every other failure is over, and so is the record that a removal began.
        let waits =
            |before: &&Failure| before.waits(self.run.now) && (before.is_of_delivery() || before.is_of_adopted());
        match (before.filter(waits), elsewhere) {
            (None, Some(error)) => self.write_down(done, &failure(ADOPTED, &error, before, (self.run.clock)())),
            (None, None) if before.is_some() => {
                done.changes.push(Change::Failure(self.account.id.clone(), self.cluster.clone(), None));
            }
            (Some(_), _) | (None, None) => {}
        }
    }

    fn write_down(&self, done: &mut Done, failure: &Failure) {
        // The history records a new reason; the ledger shows how long it lasts.
        if self.before().is_none_or(|before| before.reason != failure.reason) {
            let detail = json!({"step": failure.step});
            done.events.push(self.event("failed", failure.reason.clone(), detail));
        }
        let place = (self.account.id.clone(), self.cluster.clone());
        done.changes.push(Change::Failure(place.0, place.1, Some(failure.clone())));
    }

    /// Stores what was done so far.
    pub(super) async fn hand_over(&self, done: &mut Done) -> Result<(), StepError> {
        let objects = std::mem::take(&mut done.objects);
        if !objects.is_empty() {
            let reason = self.cause().1;
            done.events.push(self.event("objects written", reason, json!({"objects": objects})));
        }
        self.recorder.store(std::mem::take(&mut done.changes), std::mem::take(&mut done.events)).await
    }

    fn key(&self, host: &HostName) -> CredentialKey {
        CredentialKey::new(self.account.id.clone(), self.cluster.clone()).on(host)
    }

    fn mount(&self, host: &HostName, home: &HomeTarget) -> Option<std::path::PathBuf> {
        let ledger = self.run.ledger;
        home::known_mount(ledger, ledger.deliveries.get(&self.key(host)), &home.home)
    }

    /// Returns the event of a delivery. A token that only replaces an expiring one makes no event: there are dozens a
    /// day, and the ledger keeps every event.
    fn delivered(&self, credential: &DesiredCredential, changes: &[Change], reason: &Reason) -> Option<Event> {
        let what = match (&credential.proof, reason) {
            (Proof::Token(_), Reason::Expiring(_)) => return None,
            (Proof::Token(_), _) => "token issued",
            (Proof::Certificate { .. }, _) => "certificate issued",
            (Proof::Oidc(_), _) => "kubeconfig written",
        };
        let certificate = changes.iter().find_map(|change| match change {
            Change::Certificate(_, Some(certificate)) => Some(certificate),
            _ => None,
        });
        let mut detail = json!({});
        if let Some(certificate) = certificate {
            detail["fingerprint"] = json!(certificate.fingerprint);
            detail["generation"] = json!(certificate.generation);
            detail["not_after"] = json!(certificate.not_after.to_string());
        }
        if !credential.host.is_any() {
            detail["host"] = json!(credential.host);
        }
        Some(self.event(what, reason.to_string(), detail))
    }

    pub(super) fn event(&self, action: &str, reason: String, mut detail: Value) -> Event {
        let (actor, _, ticket) = self.cause();
        if detail.is_null() {
            detail = json!({});
        }
        detail["cluster"] = json!(self.cluster);
        Event {
            actor,
            account: Some(self.account.account.clone()),
            account_id: Some(self.account.id.clone()),
            action: action.to_owned(),
            reason,
            ticket,
            plan: Some(self.plan.to_owned()),
            detail,
        }
    }

    /// Returns actor, reason and ticket of the administrator who ordered the change; otherwise Bursar and its reason.
    pub(super) fn cause(&self) -> (String, String, Option<String>) {
        let account = self.account;
        let ordered = match (&account.transition, &account.regenerated) {
            (Some(Transition::Suspend(why)), _) if why.ordered().is_some() => why.ordered(),
            (_, Some(Regeneration::Revoked(note))) => Some(note),
            _ => account.ordered.as_ref(),
        };
        if let Some(note) = ordered {
            return (note.actor.clone(), note.reason.clone(), note.ticket.clone());
        }
        let reason = match &account.transition {
            Some(Transition::Create) => "new".to_owned(),
            Some(Transition::Suspend(why)) => crate::plan::display::cause(why, account),
            Some(Transition::Resume) => crate::plan::display::returned(account).to_owned(),
            Some(Transition::Archive | Transition::Delete { .. }) => crate::plan::display::waited(account),
            Some(Transition::Gone) => "nothing is left of its namespaces".to_owned(),
            None => "differs from the desired state".to_owned(),
        };
        ("bursar".to_owned(), reason, None)
    }
}

/// Whether a home kept what should be removed, or a workload past its lifetime goes on. A tenant can cause both, so
/// neither holds up other steps.
fn is_of_the_tenant(error: &StepError) -> bool {
    use StepError::{Home, HomeAnswer, NoController, Outlived};
    matches!(error, Home(_) | HomeAnswer | Outlived { .. } | NoController { .. })
}

/// Whether the step needs no cluster.
const fn is_of_a_home(action: &Action) -> bool {
    matches!(action, Action::RemoveKubeconfig { .. } | Action::SshKeys { .. })
}

/// The result of writing or deleting an object.
struct ObjectOutcome {
    key: ObjectKey,
    record: Option<ObjectRecord>,
    /// The verb for the history.
    did: &'static str,
    reason: Reason,
}

impl ObjectOutcome {
    fn add_to(self, done: &mut Done) {
        let Self { key, record, did, reason } = self;
        done.drift_repaired += u64::from(matches!(reason, Reason::Drifted(_)));
        if key.kind == ManagedKind::Namespace && record.is_some() {
            done.namespaces.insert(key.name.clone());
        }
        done.objects.push(json!({
            "did": did, "kind": key.kind.as_str(), "namespace": key.namespace, "name": key.name, "why": reason.to_string(),
        }));
        done.changes.push(Change::Object(key, record));
    }
}

/// Whether the action writes an object in one of these namespaces.
fn is_in(namespaces: &BTreeSet<String>, action: &Action) -> bool {
    matches!(action, Action::Apply { key, .. } if key.namespace.as_ref().is_some_and(|there| namespaces.contains(there)))
}

/// Returns the rank of an object's write. Writes of one rank run in parallel. `None` if the step runs alone.
fn rank(action: &Action) -> Option<(bool, Stage)> {
    match action {
        Action::Apply { key, .. } => Some((false, key.kind.stage())),
        Action::Delete { key, .. } => Some((true, key.kind.stage())),
        _ => None,
    }
}
