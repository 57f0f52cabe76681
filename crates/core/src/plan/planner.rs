//! Plans incrementally: recomputes only the accounts whose plan may differ from the last one. It may differ if a row,
//! an object or an order changed, if something became due, or if the account was not quiet.
//!
//! An account is quiet if the last plan had no steps and no notices for it, and every input of that result is checked
//! for changes. All other accounts are planned each time. Changes are found by comparing the maps themselves
//! ([`SharedMap::differences`]), so no writer has to report them. Property tests compare each incremental plan with a
//! full one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::credential::next_due;
use super::guard::Counts;
use super::scan::Scan;
use super::unknown::stays;
use super::{Bounds, Plan, PlanInputs, compare, derived};
use crate::desired::{Derived, Deriver, DesiredState, Each, is_separable};
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName};
use crate::inventory::{Inventory, ObservedObject};
use crate::kinds::{ObjectKey, WatchedKind};
use crate::ledger::LedgerState;
use crate::policy::Policy;
use crate::shared_map::SharedMap;

/// The number of accounts that are planned at a time. Their desired states, with all manifests, are in memory
/// meanwhile.
const AT_A_TIME: usize = 256;

/// Plans, and remembers the quiet accounts. This memory makes plans faster, but does not change them.
#[derive(Debug, Default)]
pub struct Planner {
    /// The deriver for a site in which the desired state of an account depends on other accounts.
    deriver: Deriver,
    known: Option<Known>,
    counts: Counts,
}

/// [`crate::inventory::ClusterInventory::blind`] by cluster.
type Blind = BTreeMap<ClusterName, BTreeSet<WatchedKind>>;

fn blind(inventory: &Inventory) -> Blind {
    let blind = inventory.clusters.iter().filter(|(_, there)| !there.blind.is_empty());
    blind.map(|(cluster, there)| (cluster.clone(), there.blind.clone())).collect()
}

/// The inputs of the last plan, and the accounts that were quiet in it.
#[derive(Debug)]
struct Known {
    policy: Policy,
    key: [u8; 32],
    at: Timestamp,
    ledger: LedgerState,
    clusters: BTreeMap<ClusterName, SharedMap<ObjectKey, ObservedObject>>,
    blind: Blind,
    accounts: BTreeMap<AccountId, Remembered>,
    groups: BTreeSet<AccountId>,
    /// Whether a group changed since the last plan.
    is_regrouped: bool,
    /// Objects with our label that are not in the ledger.
    strays: BTreeSet<ObjectKey>,
    /// The distinct values of [`Quiet::classes`], which are few.
    classes: BTreeSet<Arc<[String]>>,
}

#[derive(Debug, Default)]
struct Remembered {
    /// The account's objects in the ledger, sorted.
    objects: Vec<ObjectKey>,
    /// `None` if the next plan recomputes the account.
    quiet: Option<Quiet>,
}

/// The state of an account for which nothing is to be done.
#[derive(Debug)]
struct Quiet {
    /// When something becomes due for the account.
    until: Timestamp,
    /// The classes of the account.
    classes: Arc<[String]>,
    /// Whether the account is, or was, a tenant.
    is_tenant: bool,
    /// Clusters of the account that do not answer, or that the configuration no longer names.
    away: Box<[ClusterName]>,
}

impl Planner {
    /// Returns the same plan as [`super::plan`].
    pub fn plan(&mut self, inputs: PlanInputs<'_>) -> Plan {
        if let Some(plan) = self.incremental(inputs) {
            self.deriver = Deriver::default();
            return plan;
        }
        derived(&mut self.deriver, inputs)
    }

    /// Returns the bounds for the guard. Counts of accounts are updated incrementally.
    pub fn bounds(&mut self, ledger: &LedgerState, policy: &Policy) -> Bounds {
        self.counts.follow(ledger);
        Bounds::with(&self.counts, ledger, policy)
    }

    /// Forgets everything, so that the next plan recomputes all accounts.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns `None` if the desired state of an account may depend on other accounts.
    fn incremental(&mut self, inputs: PlanInputs<'_>) -> Option<Plan> {
        let known = self.known.take();
        if !is_separable(inputs.ledger, inputs.policy) {
            return None;
        }
        let mut known = known.filter(|known| known.holds(inputs)).unwrap_or_else(|| Known::nothing(inputs));
        known.mark(inputs);
        let plan = known.plan(inputs);
        self.known = Some(known);
        plan
    }
}

impl Known {
    /// Returns the state before the first plan. It knows no account, so every account is recomputed.
    fn nothing(PlanInputs { inventory, policy, sealer, now, .. }: PlanInputs<'_>) -> Self {
        Self {
            policy: policy.clone(),
            key: sealer.public_key(),
            at: now,
            ledger: LedgerState::default(),
            clusters: inventory.clusters.keys().map(|cluster| (cluster.clone(), SharedMap::default())).collect(),
            blind: blind(inventory),
            accounts: BTreeMap::new(),
            groups: BTreeSet::new(),
            is_regrouped: false,
            strays: BTreeSet::new(),
            classes: BTreeSet::new(),
        }
    }

    /// Whether it is enough to recompute the accounts whose rows or objects changed.
    fn holds(&self, PlanInputs { inventory, policy, sealer, now, .. }: PlanInputs<'_>) -> bool {
        self.policy == *policy
            && self.key == sealer.public_key()
            && self.at <= now
            && self.clusters.keys().eq(inventory.clusters.keys())
            && self.blind == blind(inventory)
    }

    /// Marks all accounts that may no longer be quiet.
    fn mark(&mut self, PlanInputs { ledger, inventory, now, .. }: PlanInputs<'_>) {
        let before = std::mem::replace(&mut self.ledger, ledger.clone());
        self.mark_objects(&before, ledger, inventory);
        self.mark_rows(&before, ledger);
        for (id, _) in inventory.homes.keys() {
            self.look_at(id);
        }
        for it in self.accounts.values_mut() {
            it.quiet.take_if(|quiet| quiet.until <= now);
        }
        self.at = now;
    }

    fn look_at(&mut self, id: &AccountId) {
        match self.accounts.get_mut(id) {
            Some(known) => known.quiet = None,
            None => drop(self.accounts.insert(id.clone(), Remembered::default())),
        }
    }

    fn mark_objects(&mut self, before: &LedgerState, ledger: &LedgerState, inventory: &Inventory) {
        for (key, was, is) in ledger.objects.differences(&before.objects) {
            if let Some(was) = was {
                self.look_at(&was.account);
                let objects = self.accounts.get_mut(&was.account).map(|it| &mut it.objects);
                if let Some((objects, at)) = objects.and_then(|it| it.binary_search(key).ok().map(|at| (it, at))) {
                    objects.remove(at);
                }
            }
            if let Some(is) = is {
                let known = self.accounts.entry(is.account.clone()).or_default();
                known.quiet = None;
                if let Err(at) = known.objects.binary_search(key) {
                    known.objects.insert(at, key.clone());
                }
            }
            let shown = || inventory.clusters.get(&key.cluster).and_then(|there| there.objects.get(key));
            self.look_for_stray(key, is.is_none() && shown().is_some_and(|found| stays(key, found)));
        }
        for (cluster, there) in &inventory.clusters {
            let seen = self.clusters.insert(cluster.clone(), there.objects.clone()).unwrap_or_default();
            for (key, _, is) in there.objects.differences(&seen) {
                let record = ledger.objects.get(key);
                if let Some(record) = record {
                    self.look_at(&record.account);
                }
                self.look_for_stray(key, record.is_none() && is.is_some_and(|found| stays(key, found)));
            }
        }
    }

    fn look_for_stray(&mut self, key: &ObjectKey, is_stray: bool) {
        if is_stray {
            self.strays.insert(key.clone());
        } else if !self.strays.is_empty() {
            self.strays.remove(key);
        }
    }

    fn mark_rows(&mut self, before: &LedgerState, ledger: &LedgerState) {
        // The ledger is destructured, so that a new field cannot be forgotten.
        let LedgerState {
            ledger_id: _,
            older_than_rules: _,
            last_generation: _,
            cluster_marks: _,
            // These matter only for strays, and if there are strays, the plan is not incremental.
            learned_at: _,
            sources: _,
            marks: _,
            doubts: _,
            homes_shown: _,
            accounts,
            persons: _,
            uid_history: _,
            used_uids: _,
            holds,
            orders,
            approvals: _,
            refusals: _,
            spent: _,
            tenants,
            settled,
            overrides,
            exceptions,
            paces: _,
            last_use,
            idle,
            // A site with adopted namespaces is not planned incrementally.
            adopted: _,
            // The orders of a revocation are in `orders`.
            revocations: _,
            objects: _,
            certificates,
            deliveries,
            requested,
            unknown_certificates: _,
            ssh_deliveries,
            stopped,
            archives,
            rejected: _,
            realm_accounts: _,
            failures,
        } = ledger;
        for (id, was, is) in accounts.differences(&before.accounts) {
            let [was_group, is_group] = [was, is].map(|it| it.is_some_and(|it| it.kind == AccountKind::Group));
            if is_group {
                self.groups.insert(id.clone());
            } else if was_group {
                self.groups.remove(id);
            }
            self.is_regrouped |= was_group || is_group;
            self.look_at(id);
        }
        macro_rules! look {
            ($($map:ident by $id:expr;)*) => {$(
                for (key, ..) in $map.differences(&before.$map) {
                    self.look_at(&$id(key));
                }
            )*};
        }
        let of_place = |(id, _): &(AccountId, _)| -> AccountId { id.clone() };
        look! {
            tenants by of_place;
            settled by of_place;
            overrides by |key: &crate::ledger::quota::OverrideKey| key.account.clone();
            exceptions by |key: &crate::ledger::exception::ExceptionKey| key.account.clone();
            last_use by AccountId::clone;
            idle by of_place;
            certificates by |key: &crate::ledger::CredentialKey| key.account.clone();
            deliveries by |key: &crate::ledger::CredentialKey| key.account.clone();
            requested by |key: &crate::ledger::CredentialKey| key.account.clone();
            ssh_deliveries by AccountId::clone;
            stopped by |(id, _): &(AccountId, ObjectKey)| id.clone();
            failures by of_place;
        }
        for (_, was, is) in archives.differences(&before.archives) {
            was.into_iter().chain(is).for_each(|archive| self.look_at(&archive.account));
        }
        let ordered = orders.iter().map(|order| &order.account);
        ordered.chain(holds.keys()).for_each(|id| self.look_at(id));
    }

    fn plan(&mut self, inputs: PlanInputs<'_>) -> Option<Plan> {
        let PlanInputs { ledger, inventory, policy, sealer, now } = inputs;
        if !self.strays.is_empty() {
            return None;
        }
        let groups: Vec<_> = self.groups.iter().filter_map(|id| ledger.accounts.get(id)).collect();
        let mut each = Each::of(ledger, (policy, sealer), groups, now);
        if std::mem::take(&mut self.is_regrouped) {
            // A changed group may change the classes of its members.
            for (id, known) in &mut self.accounts {
                let account = ledger.accounts.get(id);
                let is_taken = |quiet: &Quiet| account.is_some_and(|it| each.is_taken_by(it, &quiet.classes));
                known.quiet.take_if(|quiet| !is_taken(quiet));
            }
        }
        self.accounts
            .retain(|id, known| known.quiet.is_some() || ledger.accounts.contains_key(id) || !known.objects.is_empty());
        let mut plan = Plan::default();
        for quiet in self.accounts.values().filter_map(|known| known.quiet.as_ref()) {
            plan.unchanged += u64::from(quiet.is_tenant);
            for cluster in &quiet.away {
                plan.misses(cluster, policy.clusters.contains_key(cluster));
            }
        }
        let others = self.accounts.iter().filter(|(id, it)| it.quiet.is_none() && ledger.accounts.contains_key(id));
        let others: Vec<AccountId> = others.map(|(id, _)| id.clone()).collect();
        for some in others.chunks(AT_A_TIME) {
            let (mut desired, mut settled) = (DesiredState::default(), BTreeMap::new());
            desired.clusters = policy.clusters.keys().cloned().collect();
            for id in some {
                let Derived { account, is_settled, classes } =
                    each.derive(&ledger.accounts[id], &mut desired.notices)?;
                if is_settled {
                    settled.insert(id, (account.is_some(), classes));
                }
                desired.accounts.extend(account.map(|account| (id.clone(), account)));
            }
            let scan =
                Scan::among(&desired, ledger, inventory, |id| self.accounts.get(id).map_or(&[][..], |it| &it.objects));
            let planned = compare(&desired, ledger, inventory, &scan, now, false);
            let quiet: Vec<_> = settled
                .into_iter()
                .filter(|(id, _)| is_quiet(id, &desired, &planned, &scan, inputs))
                .map(|(id, (is_tenant, classes))| {
                    let classes = Arc::from(classes);
                    let classes = Arc::clone(self.classes.get(&classes).unwrap_or(&classes));
                    let clusters = desired.accounts.get(id).into_iter().flat_map(|it| it.clusters.keys());
                    let away = clusters.filter(|it| !inventory.clusters.contains_key(*it)).cloned().collect();
                    (id, Quiet { until: next_due(ledger, id, now), classes, is_tenant, away })
                })
                .collect();
            for (id, quiet) in quiet {
                self.classes.insert(Arc::clone(&quiet.classes));
                self.accounts.entry(id.clone()).or_default().quiet = Some(quiet);
            }
            plan.add(planned);
        }
        if others.len() > self.accounts.len() / 2 {
            // The map was filled in the order of the objects, which leaves a third of its memory unused. Building it
            // again in the order of its keys frees this memory.
            let accounts = std::mem::take(&mut self.accounts).into_iter().map(|(id, mut known)| {
                known.objects.shrink_to_fit();
                (id, known)
            });
            self.accounts = accounts.collect();
        }
        plan.sort();
        Some(plan)
    }
}

/// Whether the plan of the accounts in `desired` has no steps and no notices for the account.
fn is_quiet(id: &AccountId, desired: &DesiredState, planned: &Plan, scan: &Scan<'_>, inputs: PlanInputs<'_>) -> bool {
    let told = |account: &AccountName| {
        planned.notices.iter().any(|notice| notice.account == *account)
            || planned.over_quota.iter().any(|over| over.account == *account)
    };
    let fails = inputs.ledger.failures_of(id).next().is_some();
    // If an object is being deleted and has no record, the plan has no step for it. If the account counted as quiet,
    // nobody would notice the end of the deletion. Therefore the account must be settled too.
    let is_settled = |cluster| !inputs.inventory.clusters.contains_key(cluster) || scan.is_settled(id, cluster);
    let wanted = desired.accounts.get(id);
    !fails
        && !planned.accounts.iter().any(|plan| plan.id == *id)
        && wanted.is_none_or(|it| !told(&it.account) && it.clusters.keys().all(is_settled))
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::inventory::HomeFinding;
    use crate::kinds::ManagedKind;
    use crate::ledger::{Failure, OrderKind};
    use crate::plan::testing::{World, prod};

    type Happens<'a> = &'a dyn Fn(&mut World, &AccountId);

    /// Returns a world in which there is nothing to do, and a planner that has planned it.
    fn site() -> (World, Planner) {
        let mut world = World::new();
        let alice = world.add(AccountKind::User, "alice", Some(20_001));
        let admins = world.add(AccountKind::Group, "k8s-admins", None);
        world.join(&admins, &alice);
        world.add(AccountKind::User, "bob", Some(20_002));
        for (uid, name) in (52_500..).zip(["foo", "bar", "gone"]) {
            world.add(AccountKind::Tool, name, Some(uid));
        }
        let gone = world.id(AccountKind::Tool, "gone");
        world.account(&gone).disabled = Some("mark".to_owned());
        world.cycle();
        world.account(&gone).disabled = None;
        world.cycles(2);
        world.account(&gone).disabled = Some("mark".to_owned());
        // After these cycles, the inspections that follow a delivery are done.
        for _ in 0..3 {
            world.cycle();
            world.now += SignedDuration::from_mins(2);
        }
        world.cycle();
        let mut planner = Planner::default();
        assert!(plan(&mut planner, &world).is_empty());
        (world, planner)
    }

    fn plan(planner: &mut Planner, world: &World) -> Plan {
        let plan = planner.plan(world.inputs());
        assert_eq!(plan, world.plan());
        plan
    }

    /// Returns the names of the accounts that the next plan recomputes.
    fn looked_at(planner: &mut Planner, world: &World) -> Vec<String> {
        let known = planner.known.as_mut().expect("the planner keeps its state");
        known.mark(world.inputs());
        let all = known.accounts.iter().filter(|(_, known)| known.quiet.is_none());
        let mut names: Vec<String> = all.map(|(id, _)| world.ledger.accounts[id].name.clone()).collect();
        names.sort();
        names
    }

    #[test]
    fn only_accounts_with_changes_are_recomputed() {
        let (world, mut planner) = site();
        assert!(looked_at(&mut planner, &world).is_empty(), "suspended tools and people without access are quiet too");
        let failure = || Failure::begun(world.now);
        let happenings: [(&str, Happens<'_>); 8] = [
            ("an entry", &|world, foo| world.account(foo).disabled = Some("mark".to_owned())),
            ("an object", &|world, foo| {
                let key = world.ledger.objects.iter().find(|(_, it)| it.account == *foo).map(|(key, _)| key.clone());
                world
                    .cluster()
                    .objects
                    .get_mut(&key.expect("the account has an object"))
                    .expect("the cluster has the object")
                    .digest = "edited".into();
            }),
            ("an object that is gone", &|world, foo| {
                let key = world.ledger.objects.iter().find(|(_, it)| it.account == *foo).map(|(key, _)| key.clone());
                world.cluster().objects.remove(&key.expect("the account has an object"));
            }),
            ("an order", &|world, foo| world.order(foo, OrderKind::Revoke)),
            ("a hold", &|world, foo| world.hold(foo)),
            ("a failure", &|world, foo| drop(world.ledger.failures.insert((foo.clone(), prod()), failure()))),
            ("a home", &|world, foo| {
                let broken = HomeFinding::Broken { why: "no entry".to_owned() };
                world.inventory.homes.insert((foo.clone(), prod()), broken);
            }),
            ("a row that is gone", &|world, foo| {
                world.ledger.deliveries.retain(|key, _| key.account != *foo);
            }),
        ];
        for (what, happens) in happenings {
            let (mut world, mut planner) = site();
            let foo = world.id(AccountKind::Tool, "foo");
            happens(&mut world, &foo);
            assert_eq!(looked_at(&mut planner, &world), ["foo"], "{what}");
            plan(&mut planner, &world);
        }
    }

    #[test]
    fn a_leaving_member_and_the_group_are_recomputed_and_no_other_account() {
        let (mut world, mut planner) = site();
        let admins = world.id(AccountKind::Group, "k8s-admins");
        let alice = world.id(AccountKind::User, "alice");
        let alice = world.account(&alice).directory_id.clone();
        world.account(&admins).leaving.insert(alice);
        let plan = plan(&mut planner, &world);
        assert!(plan.accounts.iter().any(|plan| plan.account.name == "alice"), "{plan}");
        assert_eq!(looked_at(&mut planner, &world), ["alice", "k8s-admins"]);
    }

    #[test]
    fn an_object_that_the_ledger_lacks_makes_the_planner_forget_nothing() {
        let (mut world, mut planner) = site();
        let key = ObjectKey::new(&prod(), ManagedKind::RoleBinding, Some("tool-foo"), "unknown");
        world.cluster().objects.insert(key.clone(), ObservedObject { uid: "u".into(), ..ObservedObject::default() });
        assert_eq!(plan(&mut planner, &world).unknown.len(), 1);
        assert!(looked_at(&mut planner, &world).is_empty());
        world.cluster().objects.remove(&key);
        plan(&mut planner, &world);
        assert!(looked_at(&mut planner, &world).is_empty());
    }

    #[test]
    fn a_binding_without_an_account_is_removed_after_a_day_by_a_planner_that_was_used_before() {
        let (mut world, mut planner) = site();
        let found = ObservedObject { uid: "u".into(), ..ObservedObject::default() };
        let namespace = ObjectKey::new(&prod(), ManagedKind::Namespace, None, "tool-lost");
        let binding = ObjectKey::new(&prod(), ManagedKind::RoleBinding, Some("tool-lost"), "bursar-tenant");
        world.cluster().objects.extend([namespace, binding].map(|key| (key, found.clone())));
        world.ledger.learned_at = Some(world.now);
        world.source(crate::snapshot::Completeness::Complete);
        let removes = |plan: &Plan| plan.accounts.iter().any(|plan| plan.ownerless);
        assert!(!removes(&plan(&mut planner, &world)));
        world.now += SignedDuration::from_hours(25);
        assert!(removes(&plan(&mut planner, &world)));
    }

    #[test]
    fn renewals_and_inspections_become_due_by_time_alone() {
        let (mut world, mut planner) = site();
        let due =
            world.ledger.certificates.values().map(|it| it.renew_after).min().expect("the world has certificates");
        let mut looks = 0;
        while world.now < due {
            world.now += SignedDuration::from_hours(1);
            looks += plan(&mut planner, &world).accounts.len();
        }
        assert!(looks > 0);
        assert!(plan(&mut planner, &world).accounts.iter().any(super::super::AccountPlan::changes_something));
    }

    #[test]
    fn a_clock_that_goes_back_and_a_changed_policy_cause_a_full_plan() {
        let (mut world, mut planner) = site();
        world.now -= SignedDuration::from_hours(1);
        plan(&mut planner, &world);
        world.class("tool").quota.insert("pods".to_owned(), "3".to_owned());
        assert!(!plan(&mut planner, &world).is_empty());
    }
}
