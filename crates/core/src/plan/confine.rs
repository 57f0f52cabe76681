//! Removes all steps except removals of access from a plan, for clusters in which the daemon's confinement is not
//! confirmed (`[security] require_confinement`).

use std::collections::BTreeSet;

use super::subjects::without_new;
use super::{AccountPlan, Action};
use crate::desired::Transition;
use crate::identity::ClusterName;

/// Removes the steps that grant or repair something in `unconfined` clusters. The removed steps are not recorded, so a
/// later cycle plans them again. Steps in other clusters remain.
pub(super) fn confine(accounts: &mut Vec<AccountPlan>, unconfined: &BTreeSet<ClusterName>) {
    if unconfined.is_empty() {
        return;
    }
    let all = std::mem::take(accounts);
    accounts.extend(all.into_iter().filter_map(|plan| unless_it_begins(plan, unconfined)));
    for plan in accounts.iter_mut() {
        without_new(plan, unconfined);
        let (before, narrowing) = (plan.steps().count(), plan.narrowing.len());
        plan.retain_steps(|place, action| {
            // The second write of a binding is in `actions` and is removed, because its service account is not created.
            let narrows = place < narrowing || matches!(action, Action::ProveRevoked { .. });
            narrows || !unconfined.contains(action.cluster())
        });
        plan.settles.retain(|(cluster, _)| !unconfined.contains(cluster));
        plan.places.retain(|(cluster, _)| !unconfined.contains(cluster));
        // An order stays open until its steps are done. The remaining steps still carry out a suspension or a
        // revocation.
        if plan.steps().count() < before && plan.transition.is_none() && plan.regenerated.is_none() {
            (plan.orders, plan.ordered) = (Vec::new(), None);
        }
    }
    accounts.retain(|plan| !plan.is_idle());
}

/// Returns the plan that is executed now. If the plan changes the lifecycle state in an unconfined cluster, the whole
/// change waits, unless it is a suspension. While the change waits, the alternative ([`AccountPlan::otherwise`]) is
/// executed, so that an unfinished suspension continues.
fn unless_it_begins(mut plan: AccountPlan, unconfined: &BTreeSet<ClusterName>) -> Option<AccountPlan> {
    let waits = |plan: &AccountPlan| {
        !matches!(plan.transition, None | Some(Transition::Suspend(_)))
            && plan.steps().any(|action| unconfined.contains(action.cluster()))
    };
    while waits(&plan) {
        plan = *plan.otherwise?;
    }
    Some(plan)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use jiff::SignedDuration;

    use crate::identity::{AccountKind, ClusterName};
    use crate::kinds::{ManagedKind, ObjectKey};
    use crate::plan::testing::{World, prod};
    use crate::plan::{Action, ApprovedPlan, Bounds, Reason, guard};

    fn confined(world: &World) -> ApprovedPlan {
        let unconfined = BTreeSet::from([prod()]);
        let bounds = Bounds { unconfined, ..Bounds::of(&world.ledger, &world.policy) };
        guard(world.plan(), &bounds, world.now).0
    }

    fn cycle(world: &mut World) {
        let approved = confined(world);
        world.execute(&approved);
    }

    fn steps(approved: &ApprovedPlan) -> Vec<&Action> {
        approved.accounts().iter().flat_map(crate::plan::AccountPlan::steps).collect()
    }

    fn edit(world: &mut World, cluster: &ClusterName, kind: ManagedKind, namespace: &str) -> ObjectKey {
        let objects = &mut world.in_cluster(cluster).objects;
        let mut found = objects.iter_mut();
        let is_meant = |key: &ObjectKey| key.kind == kind && key.namespace.as_deref() == Some(namespace);
        let (key, found) = found.find(|(key, _)| is_meant(key)).expect("the world has such an object");
        found.digest = "edited".to_owned().into();
        key.clone()
    }

    fn names(world: &World) -> Vec<&str> {
        let bound = world.bound.iter().filter(|(key, _)| key.namespace.as_deref() == Some("workspace-algebra"));
        bound.flat_map(|(_, names)| names).map(|name| name.split('#').next().unwrap_or_default()).collect()
    }

    #[test]
    fn a_foreign_subject_is_removed_while_home_checks_wait() {
        let (mut world, _) = World::with_foo();
        world.cycles(2);
        world.now += SignedDuration::from_hours(20);
        let binding = edit(&mut world, &prod(), ManagedKind::RoleBinding, "tool-foo");
        edit(&mut world, &prod(), ManagedKind::LimitRange, "tool-foo");
        let plan = world.plan();
        let all: Vec<&Action> = plan.accounts.iter().flat_map(crate::plan::AccountPlan::steps).collect();
        assert!(
            all.len() == 3 && all.iter().any(|action| matches!(action, Action::InspectKubeconfig { .. })),
            "{all:?}"
        );
        let approved = confined(&world);
        let left = steps(&approved);
        assert!(
            matches!(&left[..], [Action::Apply { key, reason: Reason::Drifted(_), .. }] if *key == binding),
            "{left:?}"
        );
    }

    #[test]
    fn an_unconfined_workspace_loses_disabled_people_and_gets_no_new_ones() {
        let (mut world, alice, algebra) = World::in_course();
        let bob = world.add(AccountKind::User, "bob", Some(20_002));
        "uid=bob,ou=students,dc=example,dc=org".clone_into(&mut world.account(&bob).dn);
        world.join(&algebra, &bob);
        (0..2).for_each(|_| cycle(&mut world));
        assert_eq!(names(&world), ["bursar:user:alice"]);
        assert!(steps(&confined(&world)).is_empty(), "{:?}", confined(&world));
        world.account(&alice).disabled = Some("mark".to_owned());
        (0..2).for_each(|_| cycle(&mut world));
        assert!(names(&world).is_empty(), "{:?}", names(&world));
        world.account(&alice).disabled = None;
        (0..2).for_each(|_| cycle(&mut world));
        assert!(names(&world).is_empty(), "{:?}", names(&world));
        world.cycles(2);
        assert_eq!(names(&world), ["bursar:user:alice", "bursar:user:bob"]);
        world.cycles(2);
        assert!(world.plan().is_empty(), "{}", world.plan());
    }

    #[test]
    fn a_new_member_with_an_existing_account_gets_no_access_while_unconfined() {
        let (mut world, _, algebra) = World::in_course();
        let bob = world.add(AccountKind::User, "bob", Some(20_002));
        "uid=bob,ou=students,dc=example,dc=org".clone_into(&mut world.account(&bob).dn);
        world.cycles(2);
        world.join(&algebra, &bob);
        (0..2).for_each(|_| cycle(&mut world));
        assert_eq!(names(&world), ["bursar:user:alice"]);
        world.cycle();
        assert_eq!(names(&world), ["bursar:user:alice", "bursar:user:bob"]);
    }

    #[test]
    fn repairs_in_a_confined_cluster_go_on() {
        let mut world = World::new();
        world.another_cluster("b");
        world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycles(2);
        let b = ClusterName("b".into());
        edit(&mut world, &prod(), ManagedKind::ResourceQuota, "tool-foo");
        let quota = edit(&mut world, &b, ManagedKind::ResourceQuota, "tool-foo");
        let approved = confined(&world);
        let left = steps(&approved);
        assert!(matches!(&left[..], [Action::Apply { key, .. }] if *key == quota), "{left:?}");
    }
}
