//! Builds what the control socket answers, for people and programs, from the ledger, the plan and the guard.

pub mod overview;
pub mod own;
pub mod unfinished;
pub mod who;
pub mod why;

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::control::api::{Away, BackupStatus, ClusterStatus, CycleReport, Failing, Status};
use crate::identity::ClusterName;
use crate::ledger::LedgerState;
use crate::ledger::missing::Missing;
use crate::ledger::suspension::TemporarySuspension;
use crate::orders::request::Trigger;
use crate::plan::adopted::Unowned;
use crate::plan::pace::PolicyProgress;
use crate::plan::revocation::RevocationProgress;
use crate::plan::{ApprovedPlan, Plan, Refusal};
use crate::policy::Policy;
use crate::snapshot::Completeness;

/// Returns the report of a cycle that ended. The caller fills in the id and the results of the execution.
#[must_use]
pub fn cycle(
    trigger: Trigger,
    (began, ended): (Timestamp, Timestamp),
    ledger: &LedgerState,
    plan: &Plan,
    approved: &ApprovedPlan,
    refusals: &[Refusal],
) -> CycleReport {
    let partial = ledger.sources.iter().filter_map(|(source, state)| match &state.completeness {
        Completeness::Complete => None,
        Completeness::Partial { why } => Some((source.clone(), why.clone())),
        Completeness::Stale { .. } => Some((source.clone(), state.completeness.to_string())),
    });
    CycleReport {
        id: 0,
        trigger,
        began,
        ended,
        changed: approved.accounts().len() as u64,
        unchanged: plan.unchanged,
        actions: 0,
        left: 0,
        failing: failing(ledger),
        rejected: ledger.rejected.len() as u64,
        partial: partial.collect(),
        refusals: refusals.iter().map(Refusal::record).collect(),
        near: approved.near().to_vec(),
        pace: PolicyProgress::of(ledger),
        over_quota: plan.over_quota.clone(),
        unknown: plan.unknown.clone(),
        revocations: RevocationProgress::of(ledger),
        unfinished: Vec::new(),
        being_revoked: ledger.being_revoked(),
        away: BTreeMap::new(),
        realm: None,
        reading: BTreeMap::new(),
        left_out: BTreeMap::new(),
    }
}

/// Returns the status as far as the ledger has it. The other fields are filled in by the caller.
#[must_use]
pub fn status(
    site: &str,
    ledger: &LedgerState,
    policy: &Policy,
    clusters: BTreeMap<String, ClusterStatus>,
    last_cycle: Option<CycleReport>,
) -> Status {
    let mut accounts: BTreeMap<&str, u64> = BTreeMap::new();
    for account in ledger.accounts.values() {
        *accounts.entry(account.state.as_str()).or_default() += 1;
    }
    Status {
        site: site.to_owned(),
        sources: ledger.sources.clone(),
        reading: BTreeMap::new(),
        unfinished: unfinished::all(ledger, policy, &clusters),
        clusters,
        last_cycle,
        accounts: accounts.into_iter().map(|(state, count)| (state.to_owned(), count)).collect(),
        rejected: ledger.rejected.iter().cloned().collect(),
        missing: Missing::of(ledger),
        unowned: Unowned::of(ledger),
        suspended: TemporarySuspension::of(ledger),
        failing: failing(ledger),
        refusals: ledger.refusals.clone(),
        pace: PolicyProgress::of(ledger),
        revocations: RevocationProgress::of(ledger),
        next_expiry: ledger.next_expiry(),
        ledger: None,
        wal: None,
        backup: BackupStatus::default(),
        realm: None,
        configuration: None,
    }
}

/// Returns the clusters that tenants of the plan wait for. `clusters` is the clusters' status as in `bursar status`.
#[must_use]
pub fn away(plan: &Plan, clusters: &BTreeMap<String, ClusterStatus>) -> BTreeMap<String, Away> {
    let of = |(cluster, tenants): (&ClusterName, &u64)| {
        let why = clusters.get(cluster.0.as_str()).and_then(|status| status.trouble.clone());
        (cluster.to_string(), Away { why, tenants: *tenants })
    };
    plan.waiting.iter().map(of).collect()
}

/// Returns the tenants with a failing step, by name.
#[must_use]
pub fn failing(ledger: &LedgerState) -> Vec<Failing> {
    let failures = ledger.failures.iter().filter(|(_, failure)| !failure.is_under_way());
    let failures = failures.filter_map(|((id, cluster), failure)| {
        Some(Failing {
            account: ledger.accounts.get(id)?.account_name(),
            cluster: cluster.to_string(),
            step: failure.step.clone(),
            reason: failure.reason.clone(),
            since: failure.since,
            attempts: failure.attempts,
            next_try: failure.next_try,
        })
    });
    let mut failing: Vec<_> = failures.collect();
    failing.sort_by(|a, b| (&a.account, &a.cluster).cmp(&(&b.account, &b.cluster)));
    failing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{AccountKind, AccountName};
    use crate::ledger::change::{Change, RefusalRecord};
    use crate::ledger::{Failure, Lifecycle};
    use crate::plan::OverQuota;
    use crate::plan::testing::{World, prod};
    use crate::plan::unknown::Unknown;
    use crate::report::unfinished::Unfinished;

    #[test]
    fn the_remaining_time_follows_the_pace_so_far() {
        let world = World::new();
        let (began, ended) = (world.now, world.now + jiff::SignedDuration::from_secs(30));
        let (plan, (approved, _)) = (world.plan(), world.guarded());
        let report = cycle(Trigger::Start, (began, ended), &world.ledger, &plan, &approved, &[]);
        let remaining = |changed, left| CycleReport { changed, left, ..report.clone() }.remaining();
        assert_eq!(remaining(1_000, 900).map(|time| time.as_secs()), Some(270));
        assert_eq!((remaining(1_000, 0), remaining(5, 5), remaining(5, 9)), (None, None, None));
    }

    #[test]
    fn an_older_row_keeps_few_entries_of_each_list() {
        let world = World::new();
        let (plan, (approved, _), now) = (world.plan(), world.guarded(), world.now);
        let name = |n: u8| AccountName { kind: AccountKind::Tool, name: format!("tool{n}") };
        let (account, text) = (name(0), || "t".to_owned());
        let failing = Failing {
            account: account.clone(),
            cluster: text(),
            step: text(),
            reason: text(),
            since: now,
            attempts: 1,
            next_try: now,
        };
        let over = OverQuota {
            account: account.clone(),
            cluster: prod(),
            namespace: text(),
            resource: text(),
            amount: text(),
            used: text(),
        };
        let unknown = Unknown { cluster: prod(), object: text(), what: text() };
        let unfinished =
            Unfinished { account: account.clone(), what: text(), by: None, waits_for: Vec::new(), refused: false };
        let (accounts, parts) = (vec![account; 30], vec![text(); 30]);
        let report = CycleReport {
            failing: vec![failing; 30],
            over_quota: vec![over; 30],
            unknown: vec![unknown; 30],
            unfinished: vec![unfinished; 30],
            being_revoked: (0..30).map(name).collect(),
            refusals: vec![RefusalRecord { hash: text(), limit: text(), why: text(), accounts, parts }; 30],
            ..cycle(Trigger::Sync, (now, now), &world.ledger, &plan, &approved, &[])
        };
        let row = serde_json::to_value(report.shorter()).expect("the report has a JSON form");
        let fields = row.as_object().expect("the report is longer than a row keeps");
        for (field, list) in fields {
            assert!(list.as_array().is_none_or(|list| list.len() <= 20), "{field}");
        }
        let lists = ["being_revoked", "failing", "over_quota", "refusals", "refused accounts", "unfinished", "unknown"];
        assert!(row["left_out"].as_object().is_some_and(|left| left.keys().eq(lists)), "{}", row["left_out"]);
    }

    #[test]
    fn a_cycle_fails_while_tenants_wait_for_a_cluster() {
        let (mut world, _) = World::with_foo();
        world.cycle();
        let code = |world: &World| {
            let (plan, (approved, _)) = (world.plan(), world.guarded());
            let trouble = Some("no kubeconfig".to_owned());
            let clusters =
                BTreeMap::from([(prod().to_string(), ClusterStatus { trouble, ..ClusterStatus::default() })]);
            let report = cycle(Trigger::Sync, (world.now, world.now), &world.ledger, &plan, &approved, &[]);
            let report = CycleReport { away: away(&plan, &clusters), ..report };
            (report.exit_code(), report.away.values().next().map(|away| (away.why.clone(), away.tenants)))
        };
        assert_eq!(code(&world), (0, None));
        world.inventory.clusters.remove(&prod());
        assert_eq!(code(&world), (1, Some((Some("no kubeconfig".to_owned()), 1))));
    }

    #[test]
    fn a_suspension_that_has_begun_is_not_failing() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let begun = Failure::begun(world.now);
        world.ledger.apply(&Change::Failure(foo.clone(), prod(), Some(begun.clone())));
        assert!(failing(&world.ledger).is_empty());
        world.ledger.apply(&Change::Failure(foo, prod(), Some(Failure { attempts: 1, ..begun })));
        assert_eq!(failing(&world.ledger).len(), 1);
    }

    #[test]
    fn the_next_expiry_ignores_revoked_and_suspended_accounts() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let next_expiry = |world: &World| status("s", &world.ledger, &world.policy, BTreeMap::new(), None).next_expiry;
        assert!(next_expiry(&world).is_some());
        world.account(&foo).generation += 1;
        assert_eq!(next_expiry(&world), None, "a revoked certificate");
        world.account(&foo).generation -= 1;
        world.account(&foo).state = Lifecycle::Suspended;
        assert_eq!(next_expiry(&world), None, "a suspended account's certificate");
    }
}
