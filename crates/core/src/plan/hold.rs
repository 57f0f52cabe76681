//! What goes through a hold: ordered suspensions and revocations with the delivery of the replacement, and the removal of
//! a person's access who was disabled or left. Everything else of a held account is shown and not done.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{AccountPlan, Action, Reason, Side};
use crate::desired::{Regeneration, Transition, of_generation_group, quota::stops_pods};
use crate::digest::digest;
use crate::json_text::JsonText;
use crate::kinds::{ManagedKind, Stage};
use crate::ledger::LedgerState;

/// Returns the part of `plan` that is done, where `plan` was made from what a held account may get; `None` if nothing
/// is.
#[must_use]
pub(super) fn through(plan: AccountPlan, ledger: &LedgerState) -> Option<AccountPlan> {
    let replaces =
        matches!(plan.regenerated, Some(Regeneration::Revoked(_))) || plan.actions.iter().any(is_replacement);
    let narrowing = plan.narrowing.iter().filter_map(|action| narrowed(action, &plan, ledger)).collect();
    let actions = plan.actions.iter().filter(|action| delivers(action, replaces)).cloned().collect();
    let plan = AccountPlan {
        narrowing,
        actions,
        adopts: BTreeSet::new(),
        adopted: Vec::new(),
        paced: BTreeSet::new(),
        losses: super::loss::Losses::new(),
        settles: std::collections::BTreeMap::new(),
        places: std::collections::BTreeMap::new(),
        forgotten: Vec::new(),
        is_own: false,
        held: None,
        ..plan
    };
    plan.changes_something().then_some(plan)
}

/// A new credential in the place of one that was revoked.
fn is_replacement(action: &Action) -> bool {
    matches!(action, Action::Deliver { reason: Reason::Revoked, .. })
}

/// What the replacement needs.
fn delivers(action: &Action, replaces: bool) -> bool {
    match action {
        Action::Deliver { reason, .. } => *reason == Reason::Revoked,
        Action::ProveRevoked { .. } => true,
        Action::Apply { key, uid: None, .. } => {
            replaces && (key.kind == ManagedKind::ServiceAccount || key.kind == ManagedKind::Secret)
        }
        Action::Apply { .. }
        | Action::MakeDirectory { .. }
        | Action::Delete { .. }
        | Action::StopWorkloads { .. }
        | Action::Evict { .. }
        | Action::WarnIdle { .. }
        | Action::ReapPod { .. }
        | Action::WarnPod { .. }
        | Action::ResumeWorkloads { .. }
        | Action::Archive { .. }
        | Action::DeleteNamespace { .. }
        | Action::AwaitDeletion { .. }
        | Action::RemoveKubeconfig { .. }
        | Action::SshKeys { .. }
        | Action::InspectKubeconfig { .. } => false,
    }
}

/// Returns the part of a narrowing step that is neither a repair nor a change of the class.
fn narrowed(action: &Action, plan: &AccountPlan, ledger: &LedgerState) -> Option<Action> {
    debug_assert_eq!(action.side(), Side::Narrowing);
    match action {
        Action::Apply { key, reason: Reason::Changed(_), .. } if key.kind.stage() == Stage::Access => {
            without_grants(action, ledger)
        }
        Action::Apply { key, reason, .. } => {
            let begins = matches!(reason, Reason::Changed(_) | Reason::Missing);
            (begins && (stops_pods(key) || key.kind.stage() == Stage::Namespace)).then(|| action.clone())
        }
        Action::Delete { key, reason, .. } => {
            let tokens = key.kind == ManagedKind::ServiceAccount || key.kind == ManagedKind::Secret;
            // The last of a workspace's people takes the binding along.
            let last = !plan.rests_on.is_empty() || !plan.leaving.is_empty();
            (*reason == Reason::Suspended || tokens || last).then(|| action.clone())
        }
        Action::StopWorkloads { .. } | Action::Evict { .. } => Some(action.clone()),
        Action::RemoveKubeconfig { reason, .. } | Action::SshKeys { reason: Some(reason), .. } => {
            (*reason == Reason::Suspended).then(|| action.clone())
        }
        _ => None,
    }
}

/// A binding with those of its subjects that it has, and that follow one that it has to another generation.
fn without_grants(action: &Action, ledger: &LedgerState) -> Option<Action> {
    let Action::Apply { key, manifest, uid, reason, .. } = action else { return None };
    let before = ledger.objects.get(key)?.detail.as_ref().map(JsonText::value);
    // A ledger of before it knew subjects: what the binding names now is what can be said.
    let Some(before) = before.as_ref().and_then(Value::as_array) else { return Some(action.clone()) };
    let mut manifest = manifest.value();
    let now = manifest["subjects"].as_array().cloned().unwrap_or_default();
    if before.iter().all(|subject| now.contains(subject)) {
        return None;
    }
    let kept: Vec<Value> = now.into_iter().filter(|subject| before.iter().any(|it| follows(subject, it))).collect();
    manifest["subjects"] = json!(kept);
    let (wanted, manifest) = (digest(&manifest), JsonText::from(&manifest));
    Some(Action::Apply { key: key.clone(), manifest, wanted, uid: uid.clone(), reason: reason.clone() })
}

/// The same subject, or the same account's of another generation.
fn follows(subject: &Value, before: &Value) -> bool {
    let account = |subject: &Value| subject["name"].as_str().and_then(of_generation_group).map(|(account, _)| account);
    let is_token = |subject: &Value| subject["kind"] == ManagedKind::ServiceAccount.row().kind;
    subject == before
        || account(subject).is_some_and(|name| account(before) == Some(name))
        || (is_token(subject) && is_token(before) && subject["namespace"] == before["namespace"])
}

/// Whether a held account's own suspension waits for the release, and what others have by it stays.
pub(super) fn keeps(plan: &AccountPlan) -> bool {
    let ends = |plan: &AccountPlan| matches!(plan.transition, Some(Transition::Suspend(_)));
    let ordered =
        |plan: &AccountPlan| matches!(&plan.transition, Some(Transition::Suspend(why)) if why.ordered().is_some());
    ends(plan) && !plan.otherwise.as_deref().is_some_and(ordered)
}
