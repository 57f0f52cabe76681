//! Compares the desired state with the observed state. The result is a [`Plan`] of steps, each with its reason; no
//! decision is left to the executor. Nothing here does I/O.

mod account;
pub mod action;
pub mod adopted;
pub mod bound;
mod budget;
mod confine;
pub mod credential;
pub mod display;
mod doubt;
mod ending;
pub mod guard;
pub mod hash;
mod hold;
pub mod idle;
pub mod intents;
mod limit;
pub mod limit_usage;
mod loss;
mod ownerless;
pub mod pace;
mod planner;
pub mod quota;
pub mod realm;
mod reaper;
pub mod revocation;
mod scan;
pub mod spread;
mod ssh;
pub mod subjects;
mod tenant;
pub mod unknown;
mod volume;
pub mod wording;

#[cfg(test)]
mod binding_tests;
#[cfg(test)]
mod blind_tests;
#[cfg(test)]
mod given_up_tests;
#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod leaving_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod realm_tests;
#[cfg(test)]
mod return_tests;
#[cfg(test)]
mod scenario_tests;
#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    clippy::new_without_default,
    reason = "a model for tests: it panics if the test is wrong"
)]
pub mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

pub use account::AccountPlan;
pub use action::{Action, Bound, Expected, Holder, Reason, Side};

pub use crate::desired::Notice;
pub use guard::{ApprovedPlan, Bounds, Refusal, guard};
pub use planner::Planner;
pub use quota::{Adoption, OverQuota};

use self::bound::Bindings;
use self::loss::People;
use self::scan::Scan;
use crate::contract::Sealer;
use crate::desired::quota::stops_pods;
use crate::desired::{Deriver, DesiredAccount, DesiredState, DesiredTenant, Transition};
use crate::identity::{AccountId, ClusterName, NamespaceName};
use crate::inventory::{ClusterInventory, Inventory};
use crate::ledger::{Account, Failure, LedgerState, Lifecycle, Suspension, Tenant};
use crate::policy::{Policy, Reapers};

/// All steps, account by account, and findings for administrators.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Plan {
    /// Accounts with something to do, sorted by name.
    pub accounts: Vec<AccountPlan>,
    /// The number of accounts for which nothing changes.
    pub unchanged: u64,
    /// The number of tenants that wait for each cluster that does not answer.
    pub waiting: BTreeMap<ClusterName, u64>,
    /// The number of tenants in each cluster that the configuration no longer names.
    pub abandoned: BTreeMap<ClusterName, u64>,
    /// Findings that no plan can remedy, such as foreign objects and failing tenants.
    pub notices: Vec<Notice>,
    /// Quotas that are lower than the present use.
    pub over_quota: Vec<OverQuota>,
    /// Namespaces that a class would adopt, but that have no owner.
    pub unowned: Vec<adopted::Unowned>,
    /// Objects with our labels that are not in the ledger.
    pub unknown: Vec<unknown::Unknown>,
}

impl Plan {
    /// Whether nothing is to be done. Homes may still be checked, and held accounts shown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.accounts.iter().filter_map(AccountPlan::done).any(AccountPlan::changes_something)
    }
}

impl Plan {
    /// Adds the plan of other accounts. The caller sorts the result when it is complete.
    fn add(&mut self, others: Self) {
        // The plan is destructured, so that a new field cannot be forgotten.
        let Self { accounts, unchanged, waiting, abandoned, notices, over_quota, unowned, unknown } = others;
        self.accounts.extend(accounts);
        self.unchanged += unchanged;
        for (all, some) in [(&mut self.waiting, waiting), (&mut self.abandoned, abandoned)] {
            for (cluster, count) in some {
                *all.entry(cluster).or_default() += count;
            }
        }
        self.notices.extend(notices);
        self.over_quota.extend(over_quota);
        self.unowned.extend(unowned);
        self.unknown.extend(unknown);
    }

    /// Counts a tenant in a cluster that is not in the inventory.
    fn misses(&mut self, cluster: &ClusterName, is_configured: bool) {
        let counts = if is_configured { &mut self.waiting } else { &mut self.abandoned };
        *counts.entry(cluster.clone()).or_default() += 1;
    }

    fn sort(&mut self) {
        self.accounts.sort_by(|a, b| (&a.account, &a.id).cmp(&(&b.account, &b.id)));
        self.notices.sort();
        self.notices.dedup();
        self.over_quota.sort();
    }
}

/// The inputs of a plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanInputs<'a> {
    pub ledger: &'a LedgerState,
    pub inventory: &'a Inventory,
    /// The configuration in force.
    pub policy: &'a Policy,
    /// Seals the namespaces.
    pub sealer: &'a Sealer,
    /// The time of the plan. All other inputs were read before it.
    pub now: Timestamp,
}

/// Derives the desired state and compares it with the inventory.
pub fn derived(deriver: &mut Deriver, inputs: PlanInputs<'_>) -> Plan {
    let PlanInputs { ledger, inventory, policy, sealer, now } = inputs;
    loop {
        // The second pass has the manifests that the first pass asked for, so it asks for no more.
        match plan(deriver.derive(ledger, policy, sealer, now), ledger, inventory, policy, now) {
            Ok(plan) => return plan,
            Err(accounts) => deriver.want_manifests(accounts),
        }
    }
}

/// Compares the desired state with the inventory. `desired` was derived from `policy`.
///
/// # Errors
/// Returns the accounts whose manifests are needed and were not derived ([`Deriver::want_manifests`]).
pub fn plan(
    desired: &DesiredState,
    ledger: &LedgerState,
    inventory: &Inventory,
    policy: &Policy,
    now: Timestamp,
) -> Result<Plan, BTreeSet<AccountId>> {
    let scan = Scan::of(desired, ledger, inventory, policy, now);
    if !scan.lacking().is_empty() {
        return Err(scan.lacking().clone());
    }
    Ok(compare(desired, ledger, inventory, &scan, now, false))
}

/// If `closely` is set, every object of every tenant is compared, even if the scan finds nothing to do.
fn compare(
    desired: &DesiredState,
    ledger: &LedgerState,
    inventory: &Inventory,
    scan: &Scan<'_>,
    now: Timestamp,
    closely: bool,
) -> Plan {
    let (people, bindings) = (People::of(ledger, desired), Bindings::of(ledger));
    let mut plan = Plan { notices: desired.notices.clone(), ..Plan::default() };
    let (configured, nothing) = (&desired.clusters, &ClusterInventory::default());
    let world = World {
        ledger,
        inventory,
        configured,
        nothing,
        scan,
        people: &people,
        bindings: &bindings,
        reaps: &desired.reaps,
        now,
        closely,
    };
    let otherwise = World { closely: true, ..world };
    for (id, account) in &desired.accounts {
        let Some(before) = ledger.accounts.shared(id) else { continue };
        for cluster in account.clusters.keys().filter(|cluster| !inventory.clusters.contains_key(cluster)) {
            plan.misses(cluster, configured.contains(cluster));
        }
        let Some(mut planned) = world.account(id, account, before, &mut plan.notices) else {
            plan.unchanged += 1;
            continue;
        };
        plan.unchanged += u64::from(!planned.changes_something());
        planned.otherwise = otherwise.alternative(id, account, before);
        plan.accounts.push(planned);
    }
    plan.accounts.extend(ownerless::removals(&scan.strays().ownerless, now));
    plan.over_quota = over_quota(desired, scan);
    plan.unowned = adopted::Unowned::of(ledger);
    plan.unknown.clone_from(&scan.strays().said);
    plan.sort();
    plan
}

/// Returns the clusters in which `steps` stop workloads.
fn stops<'a>(steps: impl Iterator<Item = &'a Action>) -> BTreeSet<&'a ClusterName> {
    steps.filter(|action| matches!(action, Action::StopWorkloads { .. })).map(Action::cluster).collect()
}

fn namespaces(account: &DesiredAccount) -> Vec<String> {
    account.clusters.values().filter_map(|tenant| tenant.namespace.as_ref()).map(ToString::to_string).collect()
}

fn over_quota(desired: &DesiredState, scan: &Scan<'_>) -> Vec<OverQuota> {
    // Until all workloads of a suspended tenant are stopped, its quota is lower than the present use.
    let lasting = scan.quotas().iter().filter(|(_, key, ..)| !stops_pods(key));
    let quotas = lasting.filter_map(|(id, key, wanted, quota)| {
        let account = &desired.accounts.get(*id)?.account;
        let over = quota::over(wanted, quota).into_iter();
        Some(over.map(move |(resource, amount, used)| OverQuota {
            account: account.clone(),
            cluster: key.cluster.clone(),
            namespace: key.namespace.as_deref().unwrap_or_default().to_owned(),
            resource,
            amount,
            used,
        }))
    });
    quotas.flatten().collect()
}

/// Whether a cluster answers and is configured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Answers,
    /// The configuration names the cluster, but it does not answer.
    Away,
    /// The configuration no longer names the cluster.
    Abandoned,
}

/// All inputs of a plan.
#[derive(Clone, Copy)]
struct World<'a> {
    ledger: &'a LedgerState,
    inventory: &'a Inventory,
    configured: &'a BTreeSet<ClusterName>,
    /// An empty inventory, for clusters that do not answer.
    nothing: &'a ClusterInventory,
    scan: &'a Scan<'a>,
    people: &'a People<'a>,
    bindings: &'a Bindings<'a>,
    reaps: &'a Reapers,
    now: Timestamp,
    /// Whether to compare every object instead of skipping tenants by `scan`, because `scan` was made for another
    /// desired state, or is being tested.
    closely: bool,
}

impl World<'_> {
    /// Whether any cluster answers in which the account remains a tenant.
    fn is_served(&self, desired: &DesiredAccount) -> bool {
        desired.clusters.iter().any(|(it, tenant)| self.reach(it) == Reach::Answers && !tenant.given_up)
    }

    fn leaves(&self, group: &AccountId, member: &Account) -> bool {
        self.ledger.accounts.get(group).is_some_and(|group| group.leaving.contains(&member.directory_id))
    }

    /// Returns the plan of an account; `None` if nothing is to be done or recorded.
    fn account(
        &self,
        id: &AccountId,
        desired: &DesiredAccount,
        before: &Arc<Account>,
        notices: &mut Vec<Notice>,
    ) -> Option<AccountPlan> {
        let (mut narrowing, mut actions, mut forgotten, mut adopted) = (vec![], vec![], vec![], vec![]);
        let mut labelled = Vec::new();
        let (mut settles, mut is_own) = (Vec::new(), false);
        let mut is_first = true;
        let is_served = self.is_served(desired);
        for (cluster, tenant) in &desired.clusters {
            let (look, reach) = (self.look(id, desired, cluster, tenant), self.reach(cluster));
            // Nothing is created in such a cluster, and no tenant there is recorded as settled.
            let is_left = reach != Reach::Answers || tenant.given_up;
            let with_homes = is_first && (!is_left || (reach != Reach::Answers && !is_served));
            let found = self.in_cluster(look, reach, with_homes);
            is_first &= !with_homes;
            let with_pace = |action: Action| {
                let by_policy = || pace::is_policy((id, cluster), tenant, &action, self.ledger, look.there);
                // SSH keys belong to no cluster.
                let is_abandoned = reach == Reach::Abandoned && !matches!(action, Action::SshKeys { .. });
                let paced = !action.is_look() && (is_abandoned || (!tenant.given_up && by_policy()));
                (action, paced)
            };
            narrowing.extend(found.narrowing.into_iter().map(with_pace));
            actions.extend(found.actions.into_iter().map(with_pace));
            notices.extend(found.notices.into_iter().map(|text| Notice { account: desired.account.clone(), text }));
            if is_left {
                continue;
            }
            let known = self.ledger.settled.get(&(id.clone(), cluster.clone()));
            if known != Some(&tenant.own) {
                is_own |= known.is_some_and(|known| !known.is_empty());
                if !found.waits {
                    settles.push((cluster.clone(), tenant.own.clone()));
                }
            }
            forgotten.extend(tenant::forgotten(look));
            labelled.extend(tenant::labelled(look));
            adopted.extend(found.adopted);
        }
        let places = self.places(id, desired);
        let found_nothing = narrowing.is_empty() && actions.is_empty() && forgotten.is_empty() && adopted.is_empty();
        if found_nothing && labelled.is_empty() && places.is_empty() && !desired.is_due() {
            // Most accounts are idle. For them, this avoids building a plan that `is_idle` would drop below.
            return None;
        }
        let begun = self.begun(id, desired, &stops(narrowing.iter().map(|(action, _)| action)));
        let steps = narrowing.iter().chain(&actions).enumerate();
        let paced = steps.filter(|(_, (_, paced))| *paced).map(|(place, _)| place).collect();
        let unmarked = |steps: Vec<(Action, bool)>| steps.into_iter().map(|(action, _)| action).collect::<Vec<_>>();
        let (before, intent) = (Arc::clone(before), desired.intent.clone());
        let mut planned = AccountPlan {
            adopted,
            namespaces: namespaces(desired),
            is_own,
            paced,
            left: !desired.rests_on.is_empty() && desired.rests_on.iter().all(|group| self.leaves(group, &before)),
            settles,
            places,
            forgotten,
            labelled,
            begun,
            ..AccountPlan::new(before, intent, unmarked(narrowing), unmarked(actions))
        };
        planned.losses = loss::of(*self, desired, &planned);
        loss::keep_given_up(&mut planned, desired);
        planned.standing = subjects::standing(&planned, self.ledger, self.inventory);
        (!planned.is_idle()).then_some(planned)
    }

    /// Returns the plan for the case that the guard refuses a removal. For a held account, this is the part that is
    /// carried out in spite of the hold.
    fn alternative(&self, id: &AccountId, desired: &DesiredAccount, before: &Arc<Account>) -> Option<Box<AccountPlan>> {
        let kept = desired.otherwise.as_deref()?;
        let mut planned = self.account(id, kept, before, &mut Vec::new())?;
        if desired.held.is_some() {
            planned = hold::through(planned, self.ledger)?;
            planned.losses = loss::of(*self, kept, &planned);
        }
        planned.otherwise = self.alternative(id, kept, before);
        Some(Box::new(planned))
    }

    fn reach(&self, cluster: &ClusterName) -> Reach {
        if self.inventory.clusters.contains_key(cluster) {
            Reach::Answers
        } else if self.configured.contains(cluster) {
            Reach::Away
        } else {
            Reach::Abandoned
        }
    }

    fn look<'l>(
        &'l self,
        id: &'l AccountId,
        account: &'l DesiredAccount,
        cluster: &'l ClusterName,
        tenant: &'l DesiredTenant,
    ) -> tenant::Look<'l> {
        let Self { ledger, inventory, configured: _, nothing, scan, people: _, bindings, reaps: _, now, closely } =
            *self;
        let there = inventory.clusters.get(cluster).map_or(nothing, Arc::as_ref);
        tenant::Look { id, account, cluster, tenant, ledger, there, inventory, scan, bindings, now, closely }
    }

    fn in_cluster(&self, look: tenant::Look<'_>, reach: Reach, with_homes: bool) -> tenant::Found {
        let mut found = match (reach, look.tenant.given_up) {
            (Reach::Answers, false) => tenant::actions(look),
            (Reach::Answers, true) => tenant::given_up(look),
            (Reach::Away, _) => tenant::away(look),
            (Reach::Abandoned, _) => tenant::abandoned(look),
        };
        if reach == Reach::Answers && !look.tenant.given_up {
            if let Some(rules) = &self.reaps.pods {
                reaper::pods(look, rules, &mut found);
            }
            if let Some(rules) = &self.reaps.namespaces {
                idle::warnings(look, rules, &mut found);
            }
        }
        if with_homes {
            ssh::actions(look, &mut found);
        }
        if reach != Reach::Answers {
            // Nothing is granted before the cluster answers. Its tenants are counted as waiting or abandoned instead.
            found.actions.clear();
            found.notices.clear();
        }
        let failure = self.ledger.failures.get(&(look.id.clone(), look.cluster.clone()));
        let failure = failure.filter(|failure| failure.waits(self.now));
        if let Some(failure) = failure.filter(|_| !self.is_due_at_once(look.id, look.account)) {
            // Steps that remove access wait only if an earlier removal failed, and for a minute at most. If that
            // removal failed after all objects were written, the tenant may have caused the failure, so changes of
            // objects do not wait.
            let is_object = |action: &Action| matches!(action, Action::Apply { .. } | Action::Delete { .. });
            found
                .narrowing
                .retain(|action| !failure.is_of_removal() || (failure.is_of_later_removal() && is_object(action)));
            found.narrowing.retain(|action| !(failure.is_of_missing_home() && action.is_delivery()));
            let before = found.actions.len();
            let own = look.tenant.namespace.as_ref().map(NamespaceName::as_str);
            let is_foreign = |action: &Action| adopted::foreign_namespace(action, |there| own == Some(there)).is_some();
            // Steps in foreign namespaces have no backoff of their own, so they wait for the retry of any failure.
            found.actions.retain(|action| !is_foreign(action));
            // The tenant is not settled while a step in a foreign namespace waits.
            found.waits |= found.actions.len() < before;
            // A tenant can break a home on purpose, so a failed delivery does not delay quotas and policies.
            found
                .actions
                .retain(|action| failure.is_of_adopted() || (failure.is_of_delivery() && !action.is_delivery()));
            found.notices.push(format!(
                "{} fails in cluster {}: {}; tried again at {:.0}",
                failure.step, look.cluster, failure.reason, failure.next_try
            ));
        }
        found
    }

    /// Whether the plan contains a new change that does not wait for the retry of an earlier step. Such changes are a
    /// change of the lifecycle state, a revocation, the departure of a member, and the suspension or revocation of a
    /// person in a workspace. The intents record each of these changes, so it is new only once.
    fn is_due_at_once(&self, id: &AccountId, desired: &DesiredAccount) -> bool {
        if desired.transition.is_some() || desired.regenerated.is_some() || !desired.leaving.is_empty() {
            return true;
        }
        let Some(before) = self.ledger.accounts.get(id) else { return false };
        desired.rests_on.iter().any(|group| self.leaves(group, before))
            || self.people.of_workspace(before).any(|person| {
                let goes = desired.rests_on.contains(&person.id);
                let works = self.people.works(person, goes);
                person.state == Lifecycle::Active && works.map_or(goes, |it| it.regenerated.is_some())
            })
    }

    /// Returns the failure records for [`AccountPlan::begun`]. `stops` are the clusters in which workloads are stopped.
    fn begun(
        &self,
        id: &AccountId,
        desired: &DesiredAccount,
        stops: &BTreeSet<&ClusterName>,
    ) -> BTreeMap<ClusterName, Failure> {
        let suspends = matches!(desired.transition, Some(Transition::Suspend(_)));
        let evicts = matches!(desired.transition, Some(Transition::Suspend(Suspension::Evicted { .. })));
        let changes = || self.is_due_at_once(id, desired);
        // A removal that failed keeps its backoff, because it is retried anyway. A failure in a home keeps its backoff
        // too; otherwise its step would be retried every few seconds.
        let stays = |known: &Failure| {
            known.is_begun() || known.is_of_removal() || (known.is_of_delivery() && !known.waits(self.now))
        };
        let served = desired.clusters.iter().filter(|(cluster, _)| self.configured.contains(*cluster));
        let begun = served.filter_map(|(cluster, tenant)| {
            let known = self.ledger.failures.get(&(id.clone(), cluster.clone()));
            let failure = match known {
                _ if suspends && (tenant.namespace.is_some() || evicts) => Failure::begun(self.now),
                known if stops.contains(cluster) && !known.is_some_and(stays) => Failure::begun(self.now),
                Some(known) if changes() => Failure { attempts: 0, next_try: self.now, ..known.clone() },
                _ => return None,
            };
            Some((cluster.clone(), failure))
        });
        begun.collect()
    }

    /// Returns the tenant rows that the ledger lacks, or that lack a namespace.
    fn places(&self, id: &AccountId, desired: &DesiredAccount) -> Vec<(ClusterName, Tenant)> {
        let wanted = desired.clusters.iter().filter_map(|(cluster, tenant)| {
            let row = self.ledger.tenants.get(&(id.clone(), cluster.clone()));
            match row {
                Some(row) if row.namespace.is_some() || tenant.namespace.is_none() => None,
                row => Some((
                    cluster.clone(),
                    Tenant {
                        class: row.map_or(&tenant.class, |row| &row.class).clone(),
                        namespace: tenant.namespace.clone(),
                        created_at: row.map_or(self.now, |row| row.created_at),
                    },
                )),
            }
        });
        wanted.collect()
    }
}
