//! Carries out single steps, and stops and resumes workloads.

use serde_json::{Value, json};

use super::{BOUND_BY_OTHERS, Done, REFUSED, TenantExecution};
use crate::desired::{DesiredHome, Proof};
use crate::execute::credential::{Delivering, issue};
use crate::execute::{ClusterEffects, StepError, home, idle, level, reap, refusal, workloads};
use crate::identity::{HostName, NamespaceName};
use crate::inventory::HomeFinding;
use crate::kinds::ObjectKey;
use crate::ledger::StoppedWorkload;
use crate::ledger::change::Change;
use crate::ledger::idle::Idleness;
use crate::plan::credential::{forget, lasts, next_look};
use crate::plan::{Action, Expected, Reason};
use crate::policy::Cluster;

/// The maximum number of searches for workloads. Another search is needed if a workload was replaced while it was
/// stopped.
const STOPS: usize = 5;

impl TenantExecution<'_> {
    pub(super) async fn step(
        &self,
        effects: &ClusterEffects,
        action: &Action,
        done: &mut Done,
    ) -> Result<(), StepError> {
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
                let (job, maker) = (job.as_deref(), maker.as_deref());
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
                self.delete_namespace(effects, namespace, uid, (archived.as_deref(), file), done).await
            }
            Action::AwaitDeletion { namespace, uid, .. } => self.await_deletion(effects, namespace, uid, done).await,
            Action::Deliver { credential, generation, home, former, replaced, reason, .. } => {
                let mount = self.mount(&credential.host, home);
                let known = self.run.ledger.deliveries.get(&self.key(&credential.host));
                let what = Delivering {
                    credential,
                    generation: *generation,
                    home,
                    mount: mount.as_deref(),
                    old: self.standing(credential, reason),
                    is_first: known.is_none_or(|known| known.gives_way_to(&home.file())),
                };
                let changes = self.deliver(effects, what, (former.as_deref(), reason), done).await?;
                done.repeated += u64::from(matches!(reason, Reason::Drifted(_)));
                done.events.extend(self.delivered(credential, &changes, reason));
                done.changes.extend(changes);
                done.changes.extend(forget(&self.account.id, self.cluster, replaced));
                Ok(())
            }
            Action::RemoveKubeconfig { .. } | Action::SshKeys { .. } | Action::InspectKubeconfig { .. } => {
                self.in_home(Some(&effects.face), action, done).await
            }
        }
    }

    /// Delivers a credential, and removes our entries from the file that had the last delivery. Returns the changes for
    /// the ledger.
    ///
    /// If the files have different names, the former file is left before the new one is written: they may be in the same
    /// folder, and then the removal would remove the new token. If they have the same name, both paths may lead to the
    /// same file, so the former one is left afterwards, unless it has the new credential. Login entries do not show
    /// whether they are new, so the former file is left first.
    async fn deliver(
        &self,
        effects: &ClusterEffects,
        what: Delivering<'_>,
        (former, reason): (Option<&DesiredHome>, &Reason),
        done: &mut Done,
    ) -> Result<Vec<Change>, StepError> {
        let (homes, host) = (&self.effects.homes, &what.credential.host);
        let is_renamed = former.is_some_and(|it| it.kubeconfig.file_name() != what.home.kubeconfig.file_name());
        let is_left_first = is_renamed || matches!(what.credential.proof, Proof::Oidc(_));
        let issued = issue(effects, homes, self.account, what, (self.run.clock, self.recorder)).await?;
        let mut left = Ok(None);
        if let Some(former) = former.filter(|_| is_left_first) {
            left = self.leave_former(&effects.face, (host, former), None, reason).await;
        }
        let changes = issued.write(homes, self.run.clock).await?;
        if let Some(former) = former.filter(|_| !is_left_first) {
            let delivered = changes.iter().find_map(|change| match change {
                Change::Certificate(_, issued @ Some(_)) => Expected::of(what.credential, issued.as_ref()),
                _ => None,
            });
            left = self.leave_former(&effects.face, (host, former), delivered, reason).await;
        }
        done.events.extend(left?);
        Ok(changes)
    }

    pub(super) async fn inspect_kubeconfig(
        &self,
        face: Option<&Cluster>,
        (host, home): (&HostName, &DesiredHome),
        expected: &Expected,
        done: &mut Done,
    ) -> Result<(), StepError> {
        let place = (home, self.mount(host, home));
        let (found, mount) = home::inspect(&self.effects.homes, self.cluster, face, place, expected).await?;
        let key = self.key(host);
        let mut is_undone = false;
        if let Some(delivery) = self.run.ledger.deliveries.get(&key) {
            is_undone = next_look(delivery).is_some() && matches!(found, HomeFinding::Broken { .. });
            let checked = home::checked(delivery, home, (&found, mount), self.run.now);
            done.changes.push(Change::Delivery(key, Some(checked).filter(lasts)));
        }
        let (what, why) = match found {
            HomeFinding::AsDelivered => return Ok(()),
            HomeFinding::Repaired { why } if expected.is_nothing() => ("kubeconfig removed", why),
            HomeFinding::Broken { why } => ("kubeconfig broken", why),
            HomeFinding::Repaired { why } => ("kubeconfig written again", why),
        };
        done.events.push(self.event(what, why, json!({"home": home.home})));
        if is_undone { Err(StepError::Overwritten { file: home.file() }) } else { Ok(()) }
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
}
