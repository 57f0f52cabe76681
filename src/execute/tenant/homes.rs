//! Carries out the steps in homes. They come last, and most of them need no cluster.

use serde_json::json;

use super::{Done, TenantExecution, rank};
use crate::desired::{DesiredCredential, DesiredHome, DesiredNotice, Proof};
use crate::errors::chain;
use crate::execute::endpoint_probe::Old;
use crate::execute::{ClusterEffects, StepError, home};
use crate::identity::HostName;
use crate::inventory::HomeFinding;
use crate::kinds::Data;
use crate::ledger::change::{Change, Event};
use crate::ledger::{CredentialKey, Delivery};
use crate::plan::credential::KUBECONFIG;
use crate::plan::{Action, Expected, Reason, Side};
use crate::policy::Cluster;

/// The number of attempts to remove our entries from a former file. Each attempt issues another certificate.
const FORMER_TRIES: u64 = 3;

impl TenantExecution<'_> {
    /// Carries out the steps in homes. `failed` is the failure of the steps in the cluster. If `is_done`, nothing else
    /// keeps the account from being settled.
    pub(super) async fn then_in_homes(
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
            if failed.is_none() && (done.is_cut || self.is_late()) {
                done.is_cut = true;
                break;
            }
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

    /// Whether `action` comes after all other steps because it needs a home. Each such step is tried even if another
    /// fails. So a broken home or a file server that hangs delays neither quota, policies and bindings nor the end of a
    /// tenant. A volume waits for its directory.
    pub(super) fn waits_for_a_home(&self, action: &Action) -> bool {
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

    /// Carries out the steps in homes, for a cluster that does not answer or is no longer configured. Returns all
    /// errors.
    pub(super) async fn in_homes(&self, actions: &[&Action], done: &mut Done) -> Vec<StepError> {
        let face = self.effects.clusters.get(self.cluster).map(|effects| &effects.face);
        let mut errors = Vec::new();
        for action in actions {
            errors.extend(self.in_home(face, action, done).await.err());
            errors.extend(self.hand_over(done).await.err());
        }
        errors
    }

    /// Carries out a step in a home, which needs no cluster or only its name and endpoints; refuses all others.
    pub(super) async fn in_home(
        &self,
        face: Option<&Cluster>,
        action: &Action,
        done: &mut Done,
    ) -> Result<(), StepError> {
        match action {
            Action::RemoveKubeconfig { host, home, unrecorded, notice, reason, .. } => {
                let places = (&**home, unrecorded.as_deref());
                self.remove_kubeconfig(face, (host, places, reason), notice.as_deref(), done).await
            }
            Action::InspectKubeconfig { host, home, expected, .. } => {
                self.inspect_kubeconfig(face, (host, &**home), expected, done).await
            }
            Action::SshKeys { home, keys, digest, reason, .. } => {
                let before = self.run.ledger.ssh_deliveries.get(&self.account.id);
                let mount = home::known_mount(self.run.ledger, before, &home.home);
                if before.is_none() && !keys.is_empty() {
                    // Even if the answer is lost, a suspension then finds the keys in the home.
                    let pending = home.ssh_delivery(digest, self.run.now).pending();
                    let pending = Delivery { mount: mount.clone(), ..pending };
                    done.changes.push(Change::SshDelivery(self.account.id.clone(), Some(pending)));
                    self.hand_over(done).await?;
                }
                let (changed, mount) = match home::ssh_keys(&self.effects.homes, (&**home, mount), keys).await {
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
                    None if changed => ("SSH keys written again", "Bursar's block was changed".to_owned()),
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
        (host, (home, unrecorded), reason): (&HostName, (&DesiredHome, Option<&DesiredHome>), &Reason),
        notice: Option<&DesiredNotice>,
        done: &mut Done,
    ) -> Result<(), StepError> {
        let (key, mount) = (self.key(host), self.mount(host, home));
        if let Some(notice) = notice
            && let Some(written) = home::leave(&self.effects.homes, self.cluster, (home, mount.clone()), notice).await?
        {
            let delivery = Delivery { mount: written.mount, ..notice.delivered(home, (self.run.clock)()) };
            done.changes.push(Change::Delivery(key, Some(delivery)));
            let detail = json!({"home": home.home, "kubeconfig": home.kubeconfig, "notice": notice.notice.text()});
            done.events.push(self.event("kubeconfig replaced by a notice", reason.to_string(), detail));
            return Ok(());
        }
        let remove = |home, mount| home::remove(&self.effects.homes, self.cluster, face, (home, mount));
        let removed = remove(home, mount).await;
        if let Some(unrecorded) = unrecorded {
            remove(unrecorded, self.mount(host, unrecorded)).await?;
        }
        removed?;
        if *reason == Reason::Orphaned {
            // The certificate is no longer renewed.
            done.changes.push(Change::Certificate(key.clone(), None));
        }
        // The row stays until the inspections after the removal are done.
        let delivery = self.run.ledger.deliveries.get(&key).cloned();
        let left = delivery.map(|delivery| Delivery { home: Some(home.home.clone()), ..delivery });
        done.changes.push(Change::Delivery(key, left.map(|delivery| delivery.removed((self.run.clock)()))));
        let detail = json!({"home": home.home, "kubeconfig": home.kubeconfig});
        done.events.push(self.event("kubeconfig removed", reason.to_string(), detail));
        Ok(())
    }

    /// Removes our entries from the file that had the last delivery. A removal that fails is tried three times,
    /// together with the delivery, because the ledger knows one file only. Then the old credential is left to expire:
    /// an old home that is archived or broken must not keep the account from its new one. If both paths lead to the same
    /// file, it has the credential that was just delivered, and stays as it is.
    pub(super) async fn leave_former(
        &self,
        face: &Cluster,
        (host, former): (&HostName, &DesiredHome),
        delivered: Option<Expected>,
        reason: &Reason,
    ) -> Result<Option<Event>, StepError> {
        let (homes, mount) = (&self.effects.homes, self.mount(host, former));
        if let Some(expected) = delivered {
            let found = home::inspect(homes, self.cluster, Some(face), (former, mount.clone()), &expected).await;
            if matches!(found, Ok((HomeFinding::AsDelivered, _))) {
                return Ok(None);
            }
        }
        let detail = json!({"home": former.home, "kubeconfig": former.kubeconfig});
        match home::remove(homes, self.cluster, Some(face), (former, mount)).await {
            Ok(_) => Ok(Some(self.event("kubeconfig removed", reason.to_string(), detail))),
            Err(error) => {
                let tries = self.before().filter(|before| before.is_of_delivery()).map_or(0, |before| before.attempts);
                if tries + 1 < FORMER_TRIES && *reason != Reason::Revoked && !error.is_of_a_link(former) {
                    return Err(error);
                }
                Ok(Some(self.event("kubeconfig left in a former home", chain(&error), detail)))
            }
        }
    }

    /// Returns whether the credential in the home can stay: it is not due for renewal, and only the kubeconfig around
    /// it changes.
    pub(super) fn standing(&self, credential: &DesiredCredential, reason: &Reason) -> Old {
        let key = CredentialKey::new(self.account.id.clone(), self.cluster.clone()).on(&credential.host);
        let certificate = self.run.ledger.certificates.get(&key);
        let has_time = certificate.is_some_and(|certificate| self.run.now < certificate.renew_after);
        let is_of_the_file = matches!(reason, Reason::Changed(what) if *what == [KUBECONFIG]);
        if has_time && is_of_the_file { Old::Good } else { Old::Spent }
    }

    pub(super) fn key(&self, host: &HostName) -> CredentialKey {
        CredentialKey::new(self.account.id.clone(), self.cluster.clone()).on(host)
    }

    pub(super) fn mount(&self, host: &HostName, home: &DesiredHome) -> Option<std::path::PathBuf> {
        let ledger = self.run.ledger;
        home::known_mount(ledger, ledger.deliveries.get(&self.key(host)), &home.home)
    }

    /// Returns the event of a delivery. A token that only replaces an expiring token makes no event, because that
    /// happens dozens of times a day, and the ledger keeps every event.
    pub(super) fn delivered(
        &self,
        credential: &DesiredCredential,
        changes: &[Change],
        reason: &Reason,
    ) -> Option<Event> {
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
}

/// Whether the step needs no cluster.
pub(super) const fn is_of_a_home(action: &Action) -> bool {
    match action {
        Action::RemoveKubeconfig { .. } | Action::SshKeys { .. } => true,
        Action::InspectKubeconfig { expected, .. } => expected.is_nothing(),
        _ => false,
    }
}
