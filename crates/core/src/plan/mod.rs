//! What will be done, and why: the difference between what should be and what is, as a value that leaves nothing to
//! decide while executing.

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
mod wording;

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
    reason = "a model for tests: it panics where the test is wrong"
)]
pub mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::Serialize;

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
use crate::desired::{Deriver, DesiredAccount, DesiredState, DesiredTenant, Regeneration, Transition};
use crate::identity::{AccountId, AccountName, ClusterName, DirectoryId, PosixIdentity};
use crate::inventory::{ClusterInventory, Inventory};
use crate::kinds::ObjectKey;
use crate::ledger::{Account, Failure, LedgerState, Note, Suspension, Tenant};
use crate::policy::{Policy, Reapers};

/// Everything that is to be done, tenant by tenant, and what is odd.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Plan {
    /// Accounts with something to do, sorted by name.
    pub accounts: Vec<AccountPlan>,
    /// Accounts that are as they should be.
    pub unchanged: u64,
    /// How many tenants wait for clusters that do not answer.
    pub waiting: BTreeMap<ClusterName, u64>,
    /// How many tenants are in clusters that the configuration does not name any more.
    pub abandoned: BTreeMap<ClusterName, u64>,
    /// What an administrator should know, and nobody can do by planning: foreign objects, failing tenants.
    pub notices: Vec<Notice>,
    /// Quotas that give less than is in use.
    pub over_quota: Vec<OverQuota>,
    /// Namespaces that a class would adopt, and that are nobody's.
    pub unowned: Vec<adopted::Unowned>,
    /// Objects with our labels that the ledger does not know.
    pub unknown: Vec<unknown::Unknown>,
}

/// What is to be done for one account.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts of which none depends on another")]
pub struct AccountPlan {
    /// The ledger's id.
    pub id: AccountId,
    /// `tool:foo`.
    pub account: AccountName,
    /// For the text.
    pub posix: Option<PosixIdentity>,
    /// The class that counts for limits.
    pub class: String,
    /// The change of its life.
    pub transition: Option<Transition>,
    /// The generation after this.
    pub generation: u64,
    /// Why the generation is a new one.
    pub regenerated: Option<Regeneration>,
    /// Shown, and not touched but by `otherwise`.
    pub held: Option<Note>,
    /// Orders that this carries out.
    pub orders: Vec<i64>,
    /// Who gave the newest of them, and why.
    pub ordered: Option<Note>,
    /// Objects of somebody else's that are taken over, where they stand in the way.
    pub adopts: BTreeSet<String>,
    /// Somebody waits for it.
    #[serde(skip)]
    pub awaited: bool,
    /// Members that it loses, with their names.
    pub leaving: BTreeMap<DirectoryId, AccountName>,
    /// Steps that take access away ([`Side::Narrowing`]). Each is tried even if others fail, before `actions` of any
    /// account.
    pub narrowing: Vec<Action>,
    /// Everything else, in this order; a failure ends what is left of this account's cluster, and nobody else's.
    pub actions: Vec<Action>,
    /// Edits of its quota that become overrides.
    pub adopted: Vec<Adoption>,
    /// Its own namespaces: what else it has was made by others.
    #[serde(skip)]
    pub namespaces: BTreeSet<String>,
    /// Something of its own is another: name, ids, home, an override.
    #[serde(skip)]
    pub is_own: bool,
    /// Places in [`AccountPlan::steps`] of those that only the policy asks for.
    #[serde(skip)]
    pub paced: BTreeSet<usize>,
    /// Places in [`AccountPlan::steps`] of those that take access from who did nothing to lose it.
    #[serde(skip)]
    pub losses: loss::Losses,
    /// Each of `rests_on` is a group that counts it among the members who leave.
    #[serde(skip)]
    pub left: bool,
    /// What the ledger is to know of each place when all of it is as it should be.
    #[serde(skip)]
    pub settles: BTreeMap<ClusterName, String>,
    /// Groups whose loss of a member, or of themselves, this rests on.
    #[serde(skip)]
    pub rests_on: BTreeSet<AccountId>,
    /// As in [`DesiredAccount`].
    #[serde(skip)]
    pub keeps_people: bool,
    /// People of a workspace whose own creation or return may still be refused, and what its bindings call them.
    #[serde(skip)]
    pub returning: BTreeMap<AccountId, BTreeMap<ClusterName, serde_json::Value>>,
    /// What stands there of the bindings that it writes.
    #[serde(skip)]
    pub standing: subjects::Standing,
    /// Places that it gets, or that get a namespace.
    #[serde(skip)]
    pub places: BTreeMap<ClusterName, Tenant>,
    /// Objects that are gone already and need not be remembered.
    #[serde(skip)]
    pub forgotten: Vec<ObjectKey>,
    /// Where a change of its life begins that must not be lost: a suspension, whether or not the cluster answers now,
    /// and whatever comes after a failure, which is to be tried at once.
    #[serde(skip)]
    pub begun: BTreeMap<ClusterName, Failure>,
    /// The account as the ledger has it.
    #[serde(skip)]
    pub before: Box<Account>,
    /// What is done instead while the guard does not let the removal through that this is; `None`: nothing.
    #[serde(skip)]
    pub otherwise: Option<Box<AccountPlan>>,
}

impl AccountPlan {
    /// All that is to be done, in the order in which it is begun.
    pub fn steps(&self) -> impl Iterator<Item = &Action> {
        self.narrowing.iter().chain(&self.actions)
    }

    /// Keeps the steps of which `keeps` says so, by their place in [`AccountPlan::steps`].
    fn retain_steps(&mut self, keeps: impl Fn(usize, &Action) -> bool) {
        let (mut index, mut places) = (0, BTreeMap::new());
        for steps in [&mut self.narrowing, &mut self.actions] {
            steps.retain(|action| {
                let kept = keeps(index, action);
                if kept {
                    places.insert(index, places.len());
                }
                index += 1;
                kept
            });
        }
        self.paced = self.paced.iter().filter_map(|place| places.get(place).copied()).collect();
        let losses = std::mem::take(&mut self.losses).into_iter();
        self.losses = losses.filter_map(|(place, instead)| Some((*places.get(&place)?, instead))).collect();
    }

    /// The part of it that is done if nothing refuses it: for a held account, what passes the hold.
    #[must_use]
    pub fn done(&self) -> Option<&Self> {
        if self.held.is_some() { self.otherwise.as_deref() } else { Some(self) }
    }

    /// Looking into a home changes nothing, and is not what a person calls something to do.
    #[must_use]
    pub fn changes_something(&self) -> bool {
        self.transition.is_some()
            || self.regenerated.is_some()
            || !self.orders.is_empty()
            || !self.leaving.is_empty()
            || !self.places.is_empty()
            || !self.adopted.is_empty()
            || self.steps().any(|action| !action.is_look())
    }

    /// It takes access away or gives it back, or is about this account alone, as an order is: that goes before
    /// everything that merely makes or repairs.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        let life = matches!(self.transition, Some(Transition::Suspend(_) | Transition::Resume));
        life || self.regenerated.is_some()
            || !self.orders.is_empty()
            || !self.leaving.is_empty()
            || self.is_own
            || self.awaited
    }

    /// There is nothing in it to do or to write down.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.steps().next().is_none() && self.forgotten.is_empty() && !self.changes_something()
    }
}

impl Plan {
    /// Nothing is to be done; homes may still be looked into, and held accounts shown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.accounts.iter().filter_map(AccountPlan::done).any(AccountPlan::changes_something)
    }
}

impl Plan {
    /// The same of other accounts, to be sorted when all are there.
    fn add(&mut self, others: Self) {
        // Destructured, so that a new field cannot be forgotten.
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

    /// Counts a tenant in a cluster that is not there.
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

/// All that a plan is made of.
#[derive(Debug, Clone, Copy)]
pub struct PlanInputs<'a> {
    /// What is remembered.
    pub ledger: &'a LedgerState,
    /// What the clusters show.
    pub inventory: &'a Inventory,
    /// The configuration in force.
    pub policy: &'a Policy,
    /// Seals what is made.
    pub sealer: &'a Sealer,
    /// After all was read.
    pub now: Timestamp,
}

/// Derives what should be, and compares it with what is.
pub fn derived(deriver: &mut Deriver, inputs: PlanInputs<'_>) -> Plan {
    let PlanInputs { ledger, inventory, policy, sealer, now } = inputs;
    loop {
        // Derived with the manifests that the first plan asks for, the second asks for none.
        match plan(deriver.derive(ledger, policy, sealer, now), ledger, inventory, now) {
            Ok(plan) => return plan,
            Err(accounts) => deriver.want_manifests(accounts),
        }
    }
}

/// Compares what should be with what is.
///
/// # Errors
/// The accounts whose manifests have to be there first ([`Deriver::want_manifests`]).
pub fn plan(
    desired: &DesiredState,
    ledger: &LedgerState,
    inventory: &Inventory,
    now: Timestamp,
) -> Result<Plan, BTreeSet<AccountId>> {
    let scan = Scan::of(desired, ledger, inventory, now);
    if !scan.lacking().is_empty() {
        return Err(scan.lacking().clone());
    }
    Ok(compare(desired, ledger, inventory, &scan, now, false))
}

/// `closely`: looks at every object of every tenant, also where the scan finds nothing to do.
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
        let Some(before) = ledger.accounts.get(id) else { continue };
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
    plan.over_quota = over_quota(desired, scan);
    plan.unowned = adopted::Unowned::of(ledger);
    plan.unknown.clone_from(&scan.strays().said);
    plan.sort();
    plan
}

/// Where workloads are stopped.
fn stops<'a>(steps: impl Iterator<Item = &'a Action>) -> BTreeSet<&'a ClusterName> {
    steps.filter(|action| matches!(action, Action::StopWorkloads { .. })).map(Action::cluster).collect()
}

fn namespaces(account: &DesiredAccount) -> BTreeSet<String> {
    account.clusters.values().filter_map(|tenant| tenant.namespace.as_ref()).map(ToString::to_string).collect()
}

fn over_quota(desired: &DesiredState, scan: &Scan<'_>) -> Vec<OverQuota> {
    // A suspended tenant's quota is below what runs until all is stopped.
    let lasting = scan.quotas().iter().filter(|(_, key, ..)| !stops_pods(key));
    let quotas = lasting.filter_map(|(id, key, wanted, quota)| {
        let account = &desired.accounts.get(*id)?.account;
        let over = quota::over(wanted, quota).into_iter();
        Some(over.map(move |(resource, amount, used)| OverQuota {
            account: account.clone(),
            cluster: key.cluster.clone(),
            namespace: key.namespace.clone().unwrap_or_default(),
            resource,
            amount,
            used,
        }))
    });
    quotas.flatten().collect()
}

/// What is known of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    Answers,
    /// It does not answer.
    Away,
    /// The configuration does not name it any more.
    Abandoned,
}

/// All inputs of a plan.
#[derive(Clone, Copy)]
struct World<'a> {
    ledger: &'a LedgerState,
    inventory: &'a Inventory,
    configured: &'a BTreeSet<ClusterName>,
    /// What is known of a cluster that nobody reaches.
    nothing: &'a ClusterInventory,
    scan: &'a Scan<'a>,
    people: &'a People<'a>,
    bindings: &'a Bindings<'a>,
    reaps: &'a Reapers,
    now: Timestamp,
    /// `scan` was made of another desired state than this, or is not to be trusted: it settles nothing.
    closely: bool,
}

impl World<'_> {
    /// Whether a cluster answers in which the account keeps its place.
    fn is_served(&self, desired: &DesiredAccount) -> bool {
        desired.clusters.iter().any(|(it, tenant)| self.reach(it) == Reach::Answers && !tenant.given_up)
    }

    /// `None`: nothing at all is to be done.
    fn account(
        &self,
        id: &AccountId,
        desired: &DesiredAccount,
        before: &Account,
        notices: &mut Vec<Notice>,
    ) -> Option<AccountPlan> {
        let (mut narrowing, mut actions, mut forgotten, mut adopted) = (vec![], vec![], vec![], vec![]);
        let (mut settles, mut is_own) = (BTreeMap::new(), false);
        let mut is_first = true;
        let is_served = self.is_served(desired);
        for (cluster, tenant) in &desired.clusters {
            let (look, reach) = (self.look(id, desired, cluster, tenant), self.reach(cluster));
            // Nothing is made there, and nothing is said of what should be.
            let is_left = reach != Reach::Answers || tenant.given_up;
            let with_homes = is_first && (!is_left || (reach == Reach::Away && !is_served));
            let found = self.in_cluster(look, reach, with_homes);
            is_first &= !with_homes;
            let with_pace = |action: Action| {
                let by_policy = || pace::is_policy((id, cluster), tenant, &action, self.ledger, look.there);
                let paced = reach == Reach::Abandoned || (!tenant.given_up && by_policy());
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
                    settles.insert(cluster.clone(), tenant.own.clone());
                }
            }
            forgotten.extend(tenant::forgotten(look));
            adopted.extend(found.adopted);
        }
        let places = self.places(id, desired);
        let found_nothing = narrowing.is_empty() && actions.is_empty() && forgotten.is_empty() && adopted.is_empty();
        if found_nothing && places.is_empty() && !desired.is_due() {
            // As `is_idle` would say of what is built below, and most accounts are.
            return None;
        }
        let begun = self.begun(id, desired, &stops(narrowing.iter().map(|(action, _)| action)));
        let steps = narrowing.iter().chain(&actions).enumerate();
        let paced = steps.filter(|(_, (_, paced))| *paced).map(|(place, _)| place).collect();
        let unmarked = |steps: Vec<(Action, bool)>| steps.into_iter().map(|(action, _)| action).collect();
        // Destructured, so that a new field cannot be forgotten.
        let DesiredAccount {
            account,
            posix,
            class,
            transition,
            generation,
            regenerated,
            held,
            orders,
            adopts,
            ordered,
            awaited,
            leaving,
            rests_on,
            keeps_people,
            returning,
            otherwise: _,
            ssh: _,
            clusters: _,
        } = desired;
        let leaves = |group: &AccountId| {
            self.ledger.accounts.get(group).is_some_and(|it| it.leaving.contains(&before.directory_id))
        };
        let mut planned = AccountPlan {
            id: id.clone(),
            account: account.clone(),
            posix: posix.clone(),
            class: class.clone(),
            transition: transition.clone(),
            generation: *generation,
            regenerated: regenerated.clone(),
            held: held.clone(),
            orders: orders.clone(),
            ordered: ordered.clone(),
            adopts: adopts.clone(),
            awaited: *awaited,
            leaving: leaving.clone(),
            narrowing: unmarked(narrowing),
            actions: unmarked(actions),
            adopted,
            namespaces: namespaces(desired),
            is_own,
            paced,
            losses: loss::Losses::new(),
            left: !rests_on.is_empty() && rests_on.iter().all(leaves),
            settles,
            rests_on: rests_on.clone(),
            keeps_people: *keeps_people,
            returning: returning.clone(),
            standing: subjects::Standing::new(),
            places,
            forgotten,
            begun,
            before: Box::new(before.clone()),
            otherwise: None,
        };
        planned.losses = loss::of(*self, desired, &planned);
        loss::keep_given_up(&mut planned, desired);
        planned.standing = subjects::standing(&planned, self.ledger, self.inventory);
        (!planned.is_idle()).then_some(planned)
    }

    /// What is done instead of a removal that is not let through; of a held account what goes through the hold.
    fn alternative(&self, id: &AccountId, desired: &DesiredAccount, before: &Account) -> Option<Box<AccountPlan>> {
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
        if reach == Reach::Away {
            // Nothing is given before the cluster answers, and its tenants are counted as waiting.
            found.actions.clear();
            found.notices.clear();
        }
        // A change of its life is something new to do; whatever failed before does not hold it up.
        let new = look.account.transition.is_some() || look.account.regenerated.is_some();
        let failure = self.ledger.failures.get(&(look.id.clone(), look.cluster.clone()));
        if let Some(failure) = failure.filter(|failure| failure.waits(self.now) && !new) {
            // What takes access away waits for its own failures only, and for a minute at most.
            if failure.is_of_removal() {
                found.narrowing.clear();
            }
            // A home that is broken, which a tenant can see to, holds up no quota and no policy.
            found.actions.retain(|action| failure.is_of_delivery() && !action.is_delivery());
            found.notices.push(format!(
                "{} fails in cluster {}: {}; tried again at {:.0}",
                failure.step, look.cluster, failure.reason, failure.next_try
            ));
        }
        found
    }

    /// `stops`: where workloads are stopped.
    fn begun(
        &self,
        id: &AccountId,
        desired: &DesiredAccount,
        stops: &BTreeSet<&ClusterName>,
    ) -> BTreeMap<ClusterName, Failure> {
        let suspends = matches!(desired.transition, Some(Transition::Suspend(_)));
        let evicts = matches!(desired.transition, Some(Transition::Suspend(Suspension::Evicted { .. })));
        let changes = desired.transition.is_some() || desired.regenerated.is_some();
        let served = desired.clusters.iter().filter(|(cluster, _)| self.configured.contains(*cluster));
        let begun = served.filter_map(|(cluster, tenant)| {
            let known = self.ledger.failures.get(&(id.clone(), cluster.clone()));
            let failure = match known {
                _ if suspends && (tenant.namespace.is_some() || evicts) => Failure::begun(self.now),
                // A removal that failed is tried again anyway, and keeps its backoff.
                known if stops.contains(cluster) && known.is_none_or(|it| !it.is_begun() && !it.is_of_removal()) => {
                    Failure::begun(self.now)
                }
                Some(known) if changes => Failure { attempts: 0, next_try: self.now, ..known.clone() },
                _ => return None,
            };
            Some((cluster.clone(), failure))
        });
        begun.collect()
    }

    /// Rows of the ledger that the account needs and does not have.
    fn places(&self, id: &AccountId, desired: &DesiredAccount) -> BTreeMap<ClusterName, Tenant> {
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
