//! The end of an eviction. Only the stopped workloads that an administrator names start again, because an intruder may
//! have left the others.

use super::refused;
use crate::identity::ClusterName;
use crate::kinds::ObjectKey;
use crate::ledger::change::Change;
use crate::ledger::{Account, LedgerState, Suspension};
use crate::orders::request::RequestRefusal;
use crate::policy::Policy;

const ALL: &str = "all";
const NONE: &str = "none";

/// Returns the changes that leave workloads stopped when the account resumes. `start` has the workloads that the
/// administrator named; it may be `None` only if there was no eviction or nothing is stopped. An eviction that is not
/// finished cannot be ended, because a resumed account is not searched for what an intruder left.
pub(super) fn left_stopped(
    ledger: &LedgerState,
    policy: &Policy,
    account: &Account,
    start: Option<&Vec<String>>,
) -> Result<Vec<Change>, RequestRefusal> {
    let is_evicted = matches!(account.suspension.as_deref(), Some(Suspension::Evicted { .. }));
    let mut stopped: Vec<&ObjectKey> =
        ledger.stopped.keys().filter(|(id, _)| *id == account.id).map(|(_, key)| key).collect();
    stopped.sort_by_key(|key| said(key));
    let names: Vec<String> = stopped.iter().map(|key| said(key)).collect();
    if let Some((cluster, why)) = unfinished(ledger, policy, account).filter(|_| is_evicted) {
        let text = format!(
            "{}: the eviction is not finished in cluster {cluster}: {why}; run the command again when `bursar status` \
             no longer shows it, or take a cluster that is lost out of the configuration",
            account.account_name()
        );
        return refused(1, text);
    }
    let refused = |text| refused(64, text);
    let Some(start) = start else {
        if !is_evicted || stopped.is_empty() {
            return Ok(Vec::new());
        }
        return refused(format!(
            "{} was evicted; name what starts again with --start KIND/NAME for each, --start all or --start none; \
             stopped are: {}",
            account.account_name(),
            names.join(", ")
        ));
    };
    let keeps: &dyn Fn(&String) -> bool = match start.as_slice() {
        [one] if one == ALL => &|_| true,
        [one] if one == NONE => &|_| false,
        several => {
            if names.is_empty() {
                return refused(format!(
                    "{}: no eviction stopped anything; run the command again without --start",
                    account.account_name()
                ));
            }
            if let Some(unknown) = several.iter().find(|name| !names.contains(name)) {
                return refused(format!(
                    "{}: {unknown:?} is not among the stopped workloads: {}",
                    account.account_name(),
                    names.join(", ")
                ));
            }
            &|name| several.contains(name)
        }
    };
    let left = stopped.iter().zip(&names).filter(|(_, name)| !keeps(name));
    Ok(left.map(|(key, _)| Change::Stopped(account.id.clone(), (*key).clone(), None)).collect())
}

/// Returns a configured cluster in which steps of the account's suspension are left, and why.
fn unfinished<'a>(
    ledger: &'a LedgerState,
    policy: &Policy,
    account: &'a Account,
) -> Option<(&'a ClusterName, &'a str)> {
    ledger.failures_of(&account.id).find_map(|(cluster, failure)| {
        // Only files in homes may be left. An intruder can keep Bursar from changing them, and the credential in them
        // is already revoked.
        let is_left = failure.is_begun() || (failure.is_of_removal() && !failure.is_of_homes());
        let why = if failure.is_begun() { "the cluster has not answered yet" } else { failure.reason.as_str() };
        (is_left && policy.clusters.contains_key(cluster)).then_some((cluster, why))
    })
}

/// Returns a name such as `deployment/web`.
fn said(key: &ObjectKey) -> String {
    format!("{}/{}", key.kind.as_str().to_lowercase(), key.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{AccountId, AccountKind};
    use crate::ledger::{HOMES_REMOVAL, Lifecycle, Note, OrderKind};
    use crate::orders::request::{Evict, OrderRequest, ResumeStarting, Target};
    use crate::orders::write_all;
    use crate::plan::Action;
    use crate::plan::testing::{World, prod};

    fn target() -> Target {
        Target { kind: AccountKind::Tool, name: "foo".to_owned(), reason: Some("stolen".to_owned()), ticket: None }
    }

    fn ordered(world: &mut World, request: OrderRequest) -> Vec<RequestRefusal> {
        let written = write_all(&world.ledger, &world.policy, "ann", &[request], world.now);
        world.ledger.apply_all(&written.changes);
        written.refused
    }

    fn evicted() -> (World, AccountId) {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let since = Some(world.now);
        assert_eq!(ordered(&mut world, OrderRequest::Evict(Evict { target: target(), since })), []);
        (world, foo)
    }

    fn start(names: &[&str]) -> OrderRequest {
        let start = names.iter().map(|name| (*name).to_owned()).collect();
        OrderRequest::ResumeStarting(ResumeStarting { target: target(), start })
    }

    #[test]
    fn an_eviction_that_was_interrupted_or_repeated_plans_the_same_steps() {
        let (mut world, foo) = evicted();
        let steps = |world: &World| {
            let plan = world.plan();
            let steps = plan.accounts.iter().flat_map(crate::plan::AccountPlan::steps);
            let step = |action: &Action| match action {
                Action::StopWorkloads { .. } => Some("stop"),
                Action::Evict { since: Some(_), .. } => Some("evict"),
                Action::ProveRevoked { bound, .. } if !bound.is_empty() => Some("prove"),
                _ => None,
            };
            steps.filter_map(step).collect::<Vec<_>>()
        };
        assert_eq!(steps(&world), ["stop", "evict", "prove"]);
        // The daemon was killed before the first step: the ledger has only recorded that the suspension began.
        let (approved, _) = world.guarded();
        world.execute_until(&approved, 0);
        assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Suspended);
        assert_eq!(steps(&world), ["stop", "evict", "prove"]);
        world.cycle();
        assert!(world.plan().is_empty(), "{}", world.plan());
        world.now += jiff::SignedDuration::from_hours(1);
        let since = Some(world.now);
        assert_eq!(ordered(&mut world, OrderRequest::Evict(Evict { target: target(), since })), []);
        assert_eq!(steps(&world), ["stop", "evict", "prove"]);
    }

    #[test]
    fn a_start_of_workloads_is_refused_if_nothing_was_stopped() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let refused = left_stopped(
            &world.ledger,
            &world.policy,
            &world.ledger.accounts[&foo],
            Some(&vec!["deployment/web".to_owned()]),
        );
        let refusal = refused.expect_err("no workload is stopped");
        assert!(refusal.exit_code == 64 && refusal.text.ends_with("without --start"), "{}", refusal.text);
    }

    #[test]
    fn an_eviction_cannot_be_ended_before_every_cluster_has_carried_it_out() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let away = world.inventory.clusters.remove(&prod()).expect("cluster prod answers");
        let since = Some(world.now);
        assert_eq!(ordered(&mut world, OrderRequest::Evict(Evict { target: target(), since })), []);
        world.cycle();
        assert!(Suspension::is_ordered(world.ledger.accounts[&foo].suspension.as_deref()));
        for resume in [OrderRequest::Resume(target()), start(&["none"])] {
            let refused = ordered(&mut world, resume);
            assert!(
                matches!(&refused[..], [RequestRefusal { exit_code: 1, text }] if text.contains("not finished in cluster prod")),
                "{refused:?}"
            );
        }
        world.inventory.clusters.insert(prod(), away);
        let plan = world.plan();
        let is_eviction = |action: &Action| matches!(action, Action::Evict { since: Some(_), .. });
        assert!(plan.accounts[0].steps().any(is_eviction), "{plan}");
        world.cycle();
        assert_eq!(ordered(&mut world, start(&["none"])), []);
        // A cluster that the configuration no longer names will never carry the eviction out, and a file in the home
        // gives no access.
        let failure = crate::ledger::Failure::begun(world.now);
        let of_a_file = crate::ledger::Failure { step: HOMES_REMOVAL.to_owned(), attempts: 1, ..failure.clone() };
        world.ledger.failures.insert((foo.clone(), ClusterName("gone".into())), failure);
        world.ledger.failures.insert((foo, prod()), of_a_file);
        assert_eq!(ordered(&mut world, OrderRequest::Resume(target())), []);
    }

    #[test]
    fn only_named_workloads_start_after_an_eviction() {
        let (mut world, foo) = evicted();
        world.cycle();
        let refused = ordered(&mut world, OrderRequest::Resume(target()));
        assert!(refused[0].text.contains("stopped are: deployment/web"), "{refused:?}");
        assert!(ordered(&mut world, start(&["deployment/miner"]))[0].text.contains("not among"));
        assert_eq!(ordered(&mut world, start(&["none"])), []);
        world.cycle();
        assert_eq!(world.ledger.accounts[&foo].state, Lifecycle::Active);
        assert!(world.ledger.stopped.is_empty() && world.plan().is_empty());

        let (mut world, _) = evicted();
        world.cycle();
        assert_eq!(ordered(&mut world, start(&["deployment/web"])), []);
        let plan = world.plan();
        let resumes = |action: &Action| matches!(action, Action::ResumeWorkloads { stopped, .. } if stopped.len() == 1);
        assert!(plan.accounts[0].steps().any(resumes), "{plan}");
        let note = Note { actor: "ann".to_owned(), reason: String::new(), ticket: None, at: world.now };
        assert!(
            world.ledger.orders.iter().all(|order| order.what == OrderKind::Resume && order.note.actor == note.actor)
        );
    }
}
