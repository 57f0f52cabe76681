//! Records what an execution did: failures, and events with the actor and reason.

use serde_json::{Value, json};

use super::{Done, TenantExecution};
use crate::desired::{Regeneration, Transition};
use crate::execute::StepError;
use crate::execute::record::failure;
use crate::ledger::change::{Change, Event};
use crate::ledger::{ADOPTED, Failure};

impl TenantExecution<'_> {
    /// Ends the execution: records a failure, or removes the former one.
    pub(super) fn conclude(&self, done: &mut Done, error: Option<StepError>, elsewhere: Option<StepError>) {
        // A failed removal of access is retried sooner, together with the other steps, so its failure stays.
        if self.narrowed.is_some() {
            return;
        }
        let before = self.before();
        if let Some(error) = error {
            return self.write_down(done, &failure(error.step(), &error, before, (self.run.clock)()));
        }
        // A failed delivery that still waits for its retry was not in the plan, so its failure stays, like a failure in
        // a foreign namespace. The count of overwritten deliveries stays too, because only a later check shows whether
        // a delivery lasts. Every other failure is over, and so is the record that a removal began.
        let waits = |before: &&Failure| {
            let is_left = before.is_of_delivery() || before.is_of_adopted();
            before.is_of_overwritten() || (before.waits(self.run.now) && is_left)
        };
        match (before.filter(waits), elsewhere) {
            (None, Some(error)) => self.write_down(done, &failure(ADOPTED, &error, before, (self.run.clock)())),
            (None, None) if before.is_some() => {
                done.changes.push(Change::Failure(self.account.id.clone(), self.cluster.clone(), None));
            }
            (Some(_), _) | (None, None) => {}
        }
    }

    pub(super) fn write_down(&self, done: &mut Done, failure: &Failure) {
        if self.account.ownerless {
            // The ledger has no account to which the failure could belong. The next cycle tries again.
            let (cluster, account, error) = (self.cluster, &self.account.account, &failure.reason);
            tracing::warn!(%cluster, %account, error, "a role binding without an account in the ledger stays");
            return;
        }
        // The history records only a new reason; the ledger shows how long it lasts.
        if self.before().is_none_or(|before| before.reason != failure.reason) {
            let detail = json!({"step": failure.step});
            done.events.push(self.event("failed", failure.reason.clone(), detail));
        }
        let place = (self.account.id.clone(), self.cluster.clone());
        done.changes.push(Change::Failure(place.0, place.1, Some(failure.clone())));
    }

    /// Stores what was done so far.
    pub(in crate::execute) async fn hand_over(&self, done: &mut Done) -> Result<(), StepError> {
        let objects = std::mem::take(&mut done.objects);
        if !objects.is_empty() {
            let reason = self.cause().1;
            let action = if self.account.ownerless { "unknown access removed" } else { "objects written" };
            done.events.push(self.event(action, reason, json!({"objects": objects})));
        }
        self.recorder.store(std::mem::take(&mut done.changes), std::mem::take(&mut done.events)).await
    }

    pub(in crate::execute) fn event(&self, action: &str, reason: String, mut detail: Value) -> Event {
        let (actor, _, ticket) = self.cause();
        if detail.is_null() {
            detail = json!({});
        }
        detail["cluster"] = json!(self.cluster);
        Event {
            actor,
            account: Some(self.account.account.clone()),
            account_id: self.account.known_id(),
            action: action.to_owned(),
            reason,
            ticket,
            plan: Some(self.plan.to_owned()),
            detail: detail.into(),
        }
    }

    /// Returns actor, reason and ticket of the administrator who ordered the change; otherwise Bursar and its reason.
    pub(in crate::execute) fn cause(&self) -> (String, String, Option<String>) {
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
            None if account.ownerless => "no account of the ledger has this access".to_owned(),
            None => "differs from the desired state".to_owned(),
        };
        ("bursar".to_owned(), reason, None)
    }
}
