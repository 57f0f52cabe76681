//! Reduces the plan of a held account to the steps that are carried out in spite of the hold. These are ordered
//! suspensions, revocations with the delivery of the new credential, and the removal of people who were disabled or
//! left. All other steps are only shown.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::budget::is_counted;
use super::loss::{Kept, Losses};
use super::{AccountPlan, Action, Reason, Side};
use crate::desired::credential::{self, of_service_account};
use crate::desired::{AccountIntent, Regeneration, Transition, of_generation_group, quota::stops_pods};
use crate::digest::digest;
use crate::identity::AccountKind;
use crate::json_text::JsonText;
use crate::kinds::{ManagedKind, Stage};
use crate::ledger::LedgerState;

/// Returns the part of `plan` that is carried out in spite of the hold; `None` if there is no such part. `plan` must be
/// the alternative that the desired state gives for a held account.
#[must_use]
pub(super) fn through(plan: AccountPlan, ledger: &LedgerState) -> Option<AccountPlan> {
    let replaces =
        matches!(plan.regenerated, Some(Regeneration::Revoked(_))) || plan.actions.iter().any(is_replacement);
    let steps = plan.narrowing.iter().enumerate();
    let narrowing: Vec<_> =
        steps.filter_map(|(place, action)| narrowed(action, plan.losses.get(&place), ledger)).collect();
    let delivered = |(place, action): (usize, &Action)| match plan.losses.get(&(plan.narrowing.len() + place)) {
        Some(Kept::AsItIs) => None,
        Some(Kept::Without(kept)) => Some((**kept).clone()),
        None => Some(action.clone()),
    };
    let actions = plan.actions.iter().enumerate().filter(|(_, action)| delivers(action, replaces));
    let actions: Vec<_> = actions.filter_map(delivered).collect();
    let plan = AccountPlan {
        intent: Arc::new(AccountIntent { held: None, adopts: BTreeSet::new(), ..Arc::unwrap_or_clone(plan.intent) }),
        narrowing: Arc::new(narrowing),
        actions: Arc::new(actions),
        adopted: Vec::new(),
        paced: BTreeSet::new(),
        losses: Losses::new(),
        settles: Vec::new(),
        places: Vec::new(),
        forgotten: Vec::new(),
        labelled: Vec::new(),
        is_own: false,
        ..plan
    };
    (!plan.is_idle()).then_some(plan)
}

/// Whether the action delivers the replacement of a revoked credential.
fn is_replacement(action: &Action) -> bool {
    matches!(action, Action::Deliver { reason: Reason::Revoked, .. })
}

/// Whether the replacement of a revoked credential needs this action.
fn delivers(action: &Action, replaces: bool) -> bool {
    match action {
        // A revoked credential that nothing replaces is removed from its home.
        Action::Deliver { reason, .. } | Action::RemoveKubeconfig { reason, .. } => *reason == Reason::Revoked,
        Action::ProveRevoked { .. } => true,
        Action::Apply { key, uid: None, .. } => {
            replaces && (key.kind == ManagedKind::ServiceAccount || key.kind == ManagedKind::Secret)
        }
        // The second write of a binding adds the service account that was missing at the first write.
        Action::Apply { key, uid: Some(_), .. } if key.kind.stage() == Stage::Access => replaces,
        Action::Apply { .. }
        | Action::MakeDirectory { .. }
        | Action::SetLevel { .. }
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
        | Action::SshKeys { .. }
        | Action::InspectKubeconfig { .. } => false,
    }
}

/// Returns the part of a narrowing step that is carried out under a hold; `None` if the step is only a repair, or only
/// follows a change of the class. If only a change of the policy removes the access, `loss` is the replacement of the
/// step.
fn narrowed(action: &Action, loss: Option<&Kept>, ledger: &LedgerState) -> Option<Action> {
    debug_assert_eq!(action.side(), Side::Narrowing);
    match action {
        // A binding that exists but is not in the ledger may name anybody, so `Missing` counts as a change.
        Action::Apply { key, reason: Reason::Changed(_), .. }
        | Action::Apply { key, reason: Reason::Missing, uid: Some(_), .. }
        | Action::Delete { key, reason: Reason::Orphaned, .. }
            if key.kind.stage() == Stage::Access =>
        {
            match (loss, action) {
                (Some(Kept::AsItIs), _) => None,
                (Some(Kept::Without(kept)), _) => without_grants(kept, ledger),
                (None, Action::Delete { .. }) => Some(action.clone()),
                (None, _) => without_grants(action, ledger),
            }
        }
        Action::Apply { key, reason, .. } => {
            let begins = matches!(reason, Reason::Changed(_) | Reason::Missing);
            (begins && (stops_pods(key) || key.kind.stage() == Stage::Namespace)).then(|| action.clone())
        }
        Action::Delete { key, reason, .. } => {
            let tokens = credential::is_ours(key) && loss.is_none();
            (*reason != Reason::Orphaned || tokens).then(|| action.clone())
        }
        Action::StopWorkloads { .. } | Action::Evict { .. } | Action::InspectKubeconfig { .. } => Some(action.clone()),
        Action::RemoveKubeconfig { reason, .. } | Action::SshKeys { reason: Some(reason), .. } => {
            (*reason == Reason::Suspended).then(|| action.clone())
        }
        _ => None,
    }
}

/// Returns the write of a binding without new subjects; `None` if this write would change nothing. Another generation
/// of a present subject is not new.
fn without_grants(action: &Action, ledger: &LedgerState) -> Option<Action> {
    let Action::Apply { key, manifest, uid, reason, .. } = action else { return None };
    let record = ledger.objects.get(key);
    let before = record.and_then(|record| record.detail.as_ref()).map(JsonText::value);
    // The ledger has no subjects of the binding (old ledger, or no record), so the desired subjects are written.
    let Some(before) = before.as_ref().and_then(Value::as_array) else { return Some(action.clone()) };
    let owner = record.and_then(|record| ledger.accounts.get(&record.account));
    // All subjects stand for the account's own credential, of any kind. This is also assumed if there is no subject: a
    // service account is replaced in two writes. The first write names nobody, and the second may have failed.
    let is_own = owner.is_some_and(|owner| owner.kind != AccountKind::Group) && before.iter().all(is_of_credential);
    let mut manifest = manifest.value();
    let now = manifest["subjects"].as_array().cloned().unwrap_or_default();
    let is_no_grant =
        |subject: &Value| is_own && is_of_credential(subject) || before.iter().any(|it| follows(subject, it));
    let kept: Vec<Value> = now.into_iter().filter(is_no_grant).collect();
    if kept.len() == before.len() && before.iter().all(|subject| kept.contains(subject)) {
        return None;
    }
    manifest["subjects"] = json!(kept);
    let (wanted, manifest) = (digest(&manifest).into(), JsonText::from(&manifest));
    Some(Action::Apply { key: key.clone(), manifest, wanted, uid: uid.clone(), reason: reason.clone() })
}

/// Whether a subject stands for a credential with a generation: a generation group or a service account.
fn is_of_credential(subject: &Value) -> bool {
    let has_generation = |name: &str| of_generation_group(name).is_some() || of_service_account(name).is_some();
    subject["name"].as_str().is_some_and(has_generation)
}

/// Whether `subject` is the same as `before`, or stands for another generation of the same account.
pub(super) fn follows(subject: &Value, before: &Value) -> bool {
    let account = |subject: &Value| subject["name"].as_str().and_then(of_generation_group).map(|(account, _)| account);
    let is_token = |subject: &Value| subject["kind"] == ManagedKind::ServiceAccount.row().kind;
    subject == before
        || account(subject).is_some_and(|name| account(before) == Some(name))
        || (is_token(subject) && is_token(before) && subject["namespace"] == before["namespace"])
}

/// Whether the suspension of a held account, or its removal from a cluster that its class left, waits for its release.
/// Until then, workspaces keep naming it.
pub(super) fn keeps(plan: &AccountPlan) -> bool {
    let ends = |plan: &AccountPlan| matches!(plan.transition, Some(Transition::Suspend(_)));
    let ordered =
        |plan: &AccountPlan| matches!(&plan.transition, Some(Transition::Suspend(why)) if why.ordered().is_some());
    (ends(plan) || is_counted(plan)) && !plan.otherwise.as_deref().is_some_and(ordered)
}

#[cfg(test)]
mod tests {
    use crate::identity::{AccountId, AccountKind, HostName};
    use crate::kinds::{ManagedKind, Stage};
    use crate::ledger::OrderKind;
    use crate::ledger::change::Change;
    use crate::plan::testing::{World, prod, workspace_of};
    use crate::plan::{Bounds, guard};
    use crate::policy::CredentialKind;

    fn is_bound(world: &World, namespace: &str) -> bool {
        world.bound.keys().any(|key| key.namespace.as_deref() == Some(namespace))
    }

    /// Whether a held workspace of which alice is the only member still has its binding. `happens` changes the world
    /// while the cluster does not answer.
    fn is_bound_after(happens: impl Fn(&mut World, &AccountId, &AccountId)) -> bool {
        let (mut world, alice, algebra) = World::in_course();
        world.hold(&algebra);
        let away = world.inventory.clusters.remove(&prod()).expect("the world has the cluster");
        happens(&mut world, &alice, &algebra);
        world.cycle();
        world.inventory.clusters.insert(prod(), away);
        world.cycle();
        is_bound(&world, "workspace-algebra")
    }

    #[test]
    fn the_last_member_loses_a_held_workspace_if_disabled_or_leaving_while_its_cluster_is_down() {
        assert!(is_bound_after(|_, _, _| {}), "the hold keeps the binding");
        assert!(!is_bound_after(|world, alice, _| world.account(alice).disabled = Some("mark".to_owned())));
        assert!(!is_bound_after(|world, alice, algebra| {
            let alice = world.account(alice).directory_id.clone();
            world.account(algebra).leaving.insert(alice);
        }));
    }

    fn student(world: &mut World, name: &str, uid: i64, workspace: &AccountId) -> AccountId {
        let id = world.add(AccountKind::User, name, Some(uid));
        world.account(&id).dn = format!("uid={name},ou=students,dc=example,dc=org");
        world.join(workspace, &id);
        id
    }

    /// Returns the names of the people in the workspace's bindings.
    fn members(world: &World) -> std::collections::BTreeSet<&str> {
        let bound = world.bound.iter().filter(|(key, _)| key.namespace.as_deref() == Some("workspace-algebra"));
        let names = bound.flat_map(|(_, names)| names);
        names.filter_map(|name| name.strip_prefix("bursar:user:")?.split('#').next()).collect()
    }

    #[test]
    fn a_refused_suspension_does_not_keep_other_people_in_a_workspace() {
        for (person_is_held, workspace_is_held) in [(true, false), (false, false), (true, true), (false, true)] {
            let (mut world, alice, algebra) = World::in_course();
            let bob = student(&mut world, "bob", 20_002, &algebra);
            let carol = student(&mut world, "carol", 20_003, &algebra);
            student(&mut world, "dave", 20_004, &algebra);
            world.cycles(3);
            world.policy.limits.disable_per_cycle = crate::policy::Limit { count: 1, percent: None };
            world.now += jiff::SignedDuration::from_hours(25);
            if person_is_held {
                world.hold(&alice);
            } else {
                // The limit suspends carol first, because her name sorts before zoe's.
                world.account(&alice).name = "zoe".to_owned();
                world.cycles(2);
            }
            if workspace_is_held {
                world.hold(&algebra);
            }
            for id in [&alice, &carol] {
                world.account(id).disabled = Some("mark".to_owned());
            }
            let leaving = world.account(&bob).directory_id.clone();
            world.account(&algebra).leaving.insert(leaving.clone());
            world.cycle();
            let kept = if person_is_held { "alice" } else { "zoe" };
            let case = format!("held: {person_is_held}, {workspace_is_held}");
            assert!(
                !members(&world).contains("bob") && members(&world).contains(kept),
                "{case}: {:?}",
                members(&world)
            );
            assert!(!world.ledger.accounts[&algebra].members.contains_key(&leaving), "{case}");
            world.policy.limits.disable_per_cycle = crate::policy::Limit { count: 0, percent: None };
            world.cycle();
            assert_eq!(members(&world), std::collections::BTreeSet::from([kept, "dave"]), "{case}");
        }
    }

    #[test]
    fn a_leaving_member_refused_by_a_limit_remains_while_a_person_is_held() {
        for workspace_is_held in [false, true] {
            let (mut world, alice, algebra) = World::in_course();
            let bob = student(&mut world, "bob", 20_002, &algebra);
            world.cycles(3);
            world.policy.limits.remove_members_per_cycle = crate::policy::Limit { count: 0, percent: None };
            world.hold(&alice);
            if workspace_is_held {
                world.hold(&algebra);
            }
            world.account(&alice).disabled = Some("mark".to_owned());
            let leaving = world.account(&bob).directory_id.clone();
            world.account(&algebra).leaving.insert(leaving);
            world.cycles(2);
            assert_eq!(members(&world), std::collections::BTreeSet::from(["alice", "bob"]), "{workspace_is_held}");
        }
    }

    #[test]
    fn a_held_member_does_not_delay_the_suspension_of_a_workspace() {
        let (mut world, alice, algebra) = World::in_course();
        world.hold(&alice);
        world.account(&alice).disabled = Some("mark".to_owned());
        let (since, counted_at, due) = (world.now, world.now, world.now);
        let absence = crate::ledger::Absence { since, counted_at, seconds: 60 * 60 * 1000, due };
        world.account(&algebra).absence = Some(absence);
        world.cycles(2);
        assert!(members(&world).is_empty());
        assert_eq!(world.ledger.accounts[&algebra].state, crate::ledger::Lifecycle::Suspended);
    }

    /// The ledger has no record of a binding after a rebuild, or if the daemon was killed after the write, before it
    /// recorded the binding.
    #[test]
    fn a_binding_without_a_record_is_narrowed_under_a_hold_and_without_confinement() {
        let confined = |world: &mut World| {
            let unconfined = std::collections::BTreeSet::from([prod()]);
            let bounds = Bounds { unconfined, ..Bounds::of(&world.ledger, &world.policy) };
            let approved = guard(world.plan(), &bounds, world.now).0;
            world.execute(&approved);
        };
        for is_held in [true, false] {
            let (mut world, alice, algebra) = World::in_course();
            let before = world.ledger.accounts[&alice].generation;
            let bindings: Vec<_> =
                world.ledger.objects.keys().filter(|key| key.kind.stage() == Stage::Access).cloned().collect();
            assert!(!bindings.is_empty());
            for key in &bindings {
                world.ledger.apply(&Change::Object(key.clone(), None));
            }
            if is_held {
                world.hold(&algebra);
                world.hold(&alice);
            }
            world.order(&alice, OrderKind::Revoke);
            for _ in 0..2 {
                if is_held { drop(world.cycle()) } else { confined(&mut world) }
            }
            assert!(world.ledger.accounts[&alice].generation > before, "held: {is_held}");
            let old = format!("bursar:user:alice#{before}");
            assert!(!world.bound.values().flatten().any(|name| *name == old), "held: {is_held}: {:?}", world.bound);
        }
    }

    #[test]
    fn a_held_account_keeps_a_role_that_its_class_loses() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        world.hold(&foo);
        world.class("tool").roles.clear();
        world.cycles(2);
        assert!(is_bound(&world, "tool-foo"));
        let (mut world, alice, algebra) = World::in_course();
        let bob = world.add(AccountKind::User, "bob", Some(20_002));
        "uid=bob,ou=students,dc=example,dc=org".clone_into(&mut world.account(&bob).dn);
        world.join(&algebra, &bob);
        world.cycles(3);
        world.hold(&algebra);
        let course = world.class("course");
        workspace_of(course).members.clear();
        world.account(&alice).disabled = Some("mark".to_owned());
        world.cycles(2);
        let bound = world.bound.iter().filter(|(key, _)| key.namespace.as_deref() == Some("workspace-algebra"));
        let names: Vec<&String> = bound.flat_map(|(_, names)| names).collect();
        assert!(matches!(&names[..], [bob] if bob.starts_with("bursar:user:bob#")), "{names:?}");
    }

    /// Returns a tool with tokens for two hosts.
    fn tokens(world: &mut World) -> AccountId {
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        let hosts = ["ce1", "ce2"].map(|host| HostName(host.to_owned())).to_vec();
        credential(world, hosts);
        world.cycles(3);
        foo
    }

    fn credential(world: &mut World, hosts: Vec<HostName>) {
        let lifetime = std::time::Duration::from_hours(1);
        let kind = CredentialKind::ServiceAccount { lifetime, hosts, directory: Some("/srv/{host}/{name}".into()) };
        *world.credential("tool") = kind;
    }

    fn tokens_of(world: &World) -> std::collections::BTreeSet<&str> {
        let kinds = [ManagedKind::ServiceAccount, ManagedKind::Secret];
        let keys =
            world.inventory.clusters[&prod()].objects.keys().filter(|key| kinds.iter().any(|it| key.kind == *it));
        keys.map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn no_change_of_a_class_ends_the_tokens_of_a_held_account() {
        let lifetime = std::time::Duration::from_hours(168);
        let certificate = CredentialKind::Certificate { lifetime };
        let changes: [&dyn Fn(&mut World); 2] =
            [&|world| credential(world, vec![HostName("ce1".to_owned())]), &|world| {
                *world.credential("tool") = certificate.clone();
            }];
        for change in changes {
            let mut world = World::new();
            let foo = tokens(&mut world);
            let service_account = format!("bursar-g{}", world.ledger.accounts[&foo].generation);
            world.hold(&foo);
            change(&mut world);
            world.cycles(2);
            let all = [service_account.as_str(), "bursar-host-ce1", "bursar-host-ce2"];
            assert_eq!(tokens_of(&world), all.into_iter().collect());
        }
    }

    #[test]
    fn a_held_account_keeps_a_secret_that_its_class_no_longer_gives() {
        let mut world = World::new();
        let secret = serde_json::json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "proxy", "namespace": "tool-{name}"}});
        world.class("tool").manifests.push(secret);
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycles(3);
        assert!(tokens_of(&world).contains("proxy"));
        world.hold(&foo);
        world.class("tool").manifests.clear();
        world.cycles(2);
        assert!(tokens_of(&world).contains("proxy"));
    }

    #[test]
    fn a_revocation_passes_a_hold_and_ends_the_older_tokens() {
        let mut world = World::new();
        let foo = tokens(&mut world);
        let before = world.ledger.accounts[&foo].generation;
        world.hold(&foo);
        world.order(&foo, OrderKind::Revoke);
        world.cycles(2);
        assert!(!tokens_of(&world).contains(format!("bursar-g{before}").as_str()));
        assert_eq!(tokens_of(&world).len(), 3);
    }
}
