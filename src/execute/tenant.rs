//! Carries out the plan of one account in one cluster. The steps that take access away come first, and each is tried
//! even if others fail. The other steps follow in their order: objects of one rank in parallel, everything else one
//! after the other. Steps in foreign namespaces are tried after them, each namespace for itself, and steps in homes
//! come last. The ledger records each step before the next one depends on it.

mod history;
mod homes;
mod objects;
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use serde_json::Value;

use self::homes::is_of_a_home;
use super::record::{failure, removal_failure};
use super::refusal::Others;
use super::{ClusterEffects, Effects, Recorder, Report, Run, StepError};
use crate::identity::ClusterName;
use crate::kinds::Stage;
use crate::ledger::change::{Change, Event};
use crate::ledger::{Failure, HOMES_REMOVAL, LATER_REMOVAL, MISSING_HOME, REMOVAL};
use crate::plan::adopted::foreign_namespace;
use crate::plan::{AccountPlan, Action};

/// An action in the history: the API server refuses everything to older credentials.
pub const REFUSED: &str = "old credentials refused";
/// An action in the history: bindings of others name the holder of older credentials, and still grant rights.
pub const BOUND_BY_OTHERS: &str = "old credentials bound by others";

/// After this time, an execution whose slice is over stops between two steps of an account. Before this time, it
/// finishes the account. Otherwise frequent directory changes could interrupt every execution, and no account would
/// ever be finished, even in a fast cluster.
const FINISHES: SignedDuration = SignedDuration::from_secs(1);

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
    /// Whether the plan is complete: nothing of it is left to a later cycle.
    pub(super) is_whole: bool,
    /// The failure of `narrowing`, if it concerns only a home or a workload past its lifetime. After any other failure,
    /// `actions` are not carried out.
    pub(super) narrowed: Option<Failure>,
    /// Bindings in the cluster that differ from what Bursar wrote.
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
    /// Whether steps are left to the next execution ([`TenantExecution::is_late`]).
    is_cut: bool,
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
        let actions = self.narrowing.iter().filter(|action| !action.is_look()).count() as u64;
        let drift_repaired = done.drift_repaired;
        let counted = Report { actions, drift_repaired, reaped: done.reaped, ..Report::default() };
        let goes_on = !self.actions.is_empty() && errors.iter().all(is_of_the_tenant);
        let failed = errors.iter().find(|error| !is_of_the_tenant(error)).or(errors.first());
        if let (Some(error), Some(effects)) = (failed, self.effects.clusters.get(self.cluster))
            && error.is_loss()
        {
            effects.watch.suspect();
        }
        let is_done_there = answers && errors.iter().all(StepError::is_of_a_file);
        let step = if is_done_there { HOMES_REMOVAL } else { step };
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
            // If the cluster does not answer, the ledger keeps the failure, or the record that the removal began, so
            // that a later cycle finds the rest.
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

    /// Carries out the other steps that take access away: workloads, tokens and homes. If the cluster is not connected
    /// or does not answer, carries out only the steps in homes; the caller computes whether others are left. Returns
    /// `errors` and all new ones.
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

    /// Whether a step failed because a home that was itself a mount point is missing. A home that was deleted for good
    /// looks the same, so the removal must not be repeated every minute for ever.
    fn is_of_a_missing_home(&self, error: &StepError) -> bool {
        let mut homes = self.narrowing.iter().filter_map(|action| match action {
            Action::RemoveKubeconfig { home, .. }
            | Action::SshKeys { home, .. }
            | Action::InspectKubeconfig { home, .. } => Some(home),
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
        if self.before().is_some_and(|before| !before.is_of_overwritten()) {
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
        let Done { drift_repaired, reaped, repeated, is_cut, .. } = done;
        let counted = Report { drift_repaired, reaped, repeated, ..Report::default() };
        let failed = result.is_err() || elsewhere.is_some() || self.narrowed.is_some();
        if let (Err(error), Some(effects)) = (&result, self.effects.clusters.get(self.cluster))
            && error.is_loss()
        {
            effects.watch.suspect();
        }
        // A check of a home is not counted as an action.
        let actions = self.actions.iter().filter(|action| !action.is_look()).count() as u64;
        if !is_cut || result.is_err() || self.narrowed.is_some() {
            self.conclude(&mut done, result.err(), elsewhere);
        }
        if self.hand_over(&mut done).await.is_err() {
            // What cannot be recorded must not be done.
            self.run.stop.cancel();
            return Report { failed: 1, actions, ..counted };
        }
        let done = u64::from(!failed && !is_cut);
        Report { done, failed: u64::from(failed), left: u64::from(is_cut), actions, ..counted }
    }

    /// Whether the steps that have not begun are left to the next execution, although the account has begun. Otherwise
    /// an account in a cluster that answers slowly delays all other clusters until its last step ends.
    ///
    /// Two kinds of accounts are never interrupted: urgent ones, and those with a step that the ledger does not record,
    /// because the next execution would repeat it.
    fn is_late(&self) -> bool {
        let repeats = |action: &&Action| matches!(action, Action::ProveRevoked { .. } | Action::MakeDirectory { .. });
        !self.account.is_urgent()
            && !self.actions.iter().any(repeats)
            && self.run.slice_over.is_cancelled()
            && (self.run.clock)().duration_since(self.run.now) > FINISHES
    }

    /// Whether the cluster stopped answering. Steps that have not begun are then left to a later cycle, so that no time
    /// is lost with deadlines.
    fn is_away(&self) -> bool {
        self.effects.clusters.get(self.cluster).is_some_and(|effects| !effects.watch.is_ready())
    }

    /// Whether the cluster is connected, and answers.
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
        let is_own = |namespace: &str| self.account.owns(namespace);
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
        let is_done = failed.is_none() && failed_elsewhere.is_none() && !done.is_cut;
        (self.then_in_homes(effects, (&homes, is_done), failed, done).await, failed_elsewhere)
    }

    /// Carries out steps in foreign namespaces. The maker of a namespace can make the steps in that namespace fail, so
    /// each namespace is tried even if another failed. Returns the first failure.
    ///
    /// # Errors
    /// The cluster does not answer, or the ledger does not record what was done.
    async fn elsewhere(
        &self,
        effects: &ClusterEffects,
        actions: &[&Action],
        done: &mut Done,
    ) -> Result<Option<StepError>, StepError> {
        let is_own = |namespace: &str| self.account.owns(namespace);
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

    async fn in_cluster(
        &self,
        effects: &ClusterEffects,
        actions: &[&Action],
        done: &mut Done,
    ) -> Result<(), StepError> {
        for group in actions.chunk_by(|one, next| rank(one).is_some() && rank(one) == rank(next)) {
            if self.is_late() {
                done.is_cut = true;
                return Ok(());
            }
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

    /// Records that everything in the plan except the certificate is as desired.
    fn settle(&self, done: &mut Done) {
        if let Some((_, own)) = self.account.settles.iter().find(|(cluster, _)| cluster == self.cluster) {
            done.changes.push(Change::Settled(self.account.id.clone(), self.cluster.clone(), own.clone()));
        }
    }
}

/// Whether our entries could not be removed from a home, or a workload past its lifetime goes on or could not be
/// announced. A tenant can cause these, so none holds up other steps.
fn is_of_the_tenant(error: &StepError) -> bool {
    use StepError::{Home, HomeAnswer, NoController, Outlived, Unwarned};
    matches!(error, Home(_) | HomeAnswer | Outlived { .. } | Unwarned { .. } | NoController { .. })
}

/// Returns the rank of an object's write. Writes of one rank run in parallel. `None` if the step runs alone.
fn rank(action: &Action) -> Option<(bool, Stage)> {
    match action {
        Action::Apply { key, .. } => Some((false, key.kind.stage())),
        Action::Delete { key, .. } => Some((true, key.kind.stage())),
        _ => None,
    }
}
