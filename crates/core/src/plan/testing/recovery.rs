//! Models a ledger that was rolled back, with the facts that the clusters show to it, and homes that do not answer.

use jiff::SignedDuration;

use super::{SOURCE, World};
use crate::desired::of_generation_group;
use crate::identity::{AccountId, ClusterName, DirectoryId};
use crate::ledger::change::Change;
use crate::ledger::cluster_recovery::{Facts, Tenancy, learn};
use crate::ledger::{Failure, LATER_REMOVAL, LedgerState};
use crate::plan::{AccountPlan, Action, Side};
use crate::shared_map::SharedMap;

impl World {
    /// Raises the marks of the clusters that answer, as each cycle does before its first step.
    pub(super) fn raise_marks(&mut self) {
        let last = self.ledger.last_generation;
        for cluster in self.inventory.clusters.keys() {
            self.ledger.apply(&Change::ClusterMark(cluster.clone(), last));
            self.marks.insert(cluster.clone(), last);
        }
    }

    /// Returns what the clusters that answer show.
    pub fn facts(&self) -> Facts {
        let clusters = &self.inventory.clusters;
        let there = self
            .sealed
            .iter()
            .filter(|(key, _)| clusters.get(&key.cluster).is_some_and(|cluster| cluster.objects.contains_key(*key)));
        let tenancies = there.map(|(_, identity)| Tenancy { identity: identity.clone(), created_at: self.now });
        let bound = self.bound.iter().filter(|(key, _)| clusters.contains_key(&key.cluster));
        let mut facts = Facts {
            clusters: clusters.keys().cloned().collect(),
            tenancies: tenancies.collect(),
            marks: self
                .marks
                .iter()
                .filter(|(cluster, _)| clusters.contains_key(*cluster))
                .map(|(cluster, mark)| (cluster.clone(), *mark))
                .collect(),
            ..Facts::default()
        };
        for (key, names) in bound {
            facts.add_binding(key.clone(), names.iter().filter_map(|name| of_generation_group(name)).collect());
        }
        facts
    }

    /// Replaces the ledger with an older one that takes over the clusters. The directory shows the present facts.
    /// Returns whether the daemon notices, before the takeover, that the ledger was rolled back.
    pub fn take_over(&mut self, older: LedgerState) -> bool {
        let facts = self.facts();
        let older = self.shown_to(older);
        let is_noticed = facts.exceed(&older);
        let source = |_: &DirectoryId| Some(SOURCE.to_owned());
        let learned = learn(&older, &facts, &self.policy, &source, "root", self.now);
        self.ledger = older;
        self.ledger.apply_all(&learned.changes);
        self.uids += 1;
        self.ledger.apply_all(&[Change::LedgerId(format!("ledger-{}", self.uids)), Change::Learned(self.now)]);
        // The directory answers again.
        let now = self.now;
        self.ledger.sources.values_mut().for_each(|state| state.complete_at = Some(now));
        is_noticed
    }

    /// Starts another process with a copy of the ledger, while the present process cannot object. If the marks of the
    /// clusters exceed the copy, the new process exits, and the present one continues. Otherwise the copy becomes the
    /// ledger, and the directory shows it the present facts. Returns whether the new process exits.
    pub fn start_with(&mut self, copy: LedgerState) -> bool {
        let exits = self.facts().exceed(&copy);
        if !exits {
            self.ledger = self.shown_to(copy);
        }
        exits
    }

    /// Returns an older ledger to which the directory shows the present facts.
    fn shown_to(&self, mut older: LedgerState) -> LedgerState {
        for account in older.accounts.values_mut() {
            let Some(now) = self.ledger.accounts.get(&account.id) else { continue };
            let stays = |member: &DirectoryId| now.members.contains_key(member) && !now.leaving.contains(member);
            account.leaving = account.members.keys().filter(|member| !stays(member)).cloned().collect();
            (account.name, account.dn, account.home) = (now.name.clone(), now.dn.clone(), now.home.clone());
            (account.disabled, account.absence) = (now.disabled.clone(), now.absence);
        }
        older
    }

    /// Records that the account's steps in homes failed, if `bursar-homed` does not answer. `before` are the failures
    /// before the execution.
    pub(super) fn fail_in_homes(
        &mut self,
        account: &AccountPlan,
        before: &SharedMap<(AccountId, ClusterName), Failure>,
    ) {
        let now = self.now;
        for action in account.steps().filter(|action| self.homes_away && is_of_a_home(action)) {
            let place = (account.id.clone(), action.cluster().clone());
            let step = if action.side() == Side::Narrowing { LATER_REMOVAL } else { "home" };
            if self.ledger.failures.contains_key(&place) {
                continue;
            }
            let known = before.get(&place).filter(|known| known.step == step);
            let attempts = known.map_or(0, |known| known.attempts) + 1;
            let (reason, next_try) = ("bursar-homed does not answer".to_owned(), now + SignedDuration::from_mins(1));
            let since = known.map_or(now, |known| known.since);
            self.ledger.failures.set(place, Some(Failure { step: step.to_owned(), reason, since, attempts, next_try }));
        }
    }
}

/// Whether `bursar-homed` carries out the action.
pub(super) const fn is_of_a_home(action: &Action) -> bool {
    matches!(
        action,
        Action::Deliver { .. }
            | Action::RemoveKubeconfig { .. }
            | Action::InspectKubeconfig { .. }
            | Action::SshKeys { .. }
            | Action::MakeDirectory { .. }
    )
}
