//! Derives the desired state from the ledger and the policy.
//!
//! Building and sealing the objects of 10,000 tenants takes a second; checking whether their inputs changed takes
//! milliseconds. A [`Deriver`] therefore keeps what it derived, and rebuilds only accounts whose inputs changed.

mod account;
mod places;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::adopted::{self, Adopted};
use super::class::{self, Groups, Taken, taken};
use super::subject::{Idle, Inputs, Subject};
use super::workspace::{Holders, Workspaces, holders, workspaces};
use super::{DesiredAccount, DesiredState, Notice, quota};
use crate::contract::Sealer;
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName, DirectoryId, NamespaceName};
use crate::ledger::exception::ExceptionKey;
use crate::ledger::idle::Idleness;
use crate::ledger::people::PeopleByEntry;
use crate::ledger::{Account, LedgerState, Order, Tenant};
use crate::policy::{Class, Endpoint, Policy, Reapers};

/// How long a person who asked for an account is assumed to wait for it. During this time, the account is created
/// before others.
const AWAITED: SignedDuration = SignedDuration::from_mins(2);

/// Returns the desired state of all tenants, for a single plan. A daemon keeps a [`Deriver`].
#[must_use]
pub fn derive(ledger: &LedgerState, policy: &Policy, sealer: &Sealer, now: Timestamp) -> DesiredState {
    let mut deriver = Deriver { whole: ledger.accounts.keys().cloned().collect(), ..Deriver::default() };
    deriver.derive(ledger, policy, sealer, now);
    deriver.desired
}

/// Derives repeatedly, and rebuilds only accounts whose inputs changed. The result equals the result of [`derive`],
/// even after a preview of a hypothetical ledger, except that manifests of applied objects are dropped.
#[derive(Debug, Default)]
pub struct Deriver {
    desired: DesiredState,
    /// Accounts that need all manifests, because one of their objects differs from what was applied.
    whole: BTreeSet<AccountId>,
    /// The distinct sets of endpoints, shared by all credentials.
    endpoints: Vec<Arc<BTreeMap<String, Endpoint>>>,
    /// Accounts in `desired` whose manifests are dropped once they are applied.
    heavy: BTreeSet<AccountId>,
    /// Inputs of those accounts in `desired` for which nothing is due.
    inputs: BTreeMap<AccountId, Inputs>,
    /// The policy and the public key with which everything in `desired` was built.
    rules: Option<(Policy, [u8; 32])>,
}

impl Deriver {
    /// Returns the desired state of all tenants.
    pub fn derive(&mut self, ledger: &LedgerState, policy: &Policy, sealer: &Sealer, now: Timestamp) -> &DesiredState {
        let whole = std::mem::take(&mut self.whole);
        self.forget_unless_built_with(policy, sealer);
        let groups = ledger.accounts.values().filter(|account| account.kind == AccountKind::Group);
        let world = World::of(ledger, policy, sealer, groups, now);
        let mut generation = ledger.last_generation;
        let mut claimed = Claims::new();
        self.desired.notices.clear();
        self.desired.reaps.clone_from(&policy.reapers);
        self.desired.clusters = policy.clusters.keys().cloned().collect();
        // Workspaces come last, because their bindings depend on the people's own accounts.
        let mut workspaces = Vec::new();
        let (heavy, endpoints) = (&mut self.heavy, &mut self.endpoints);
        let mut derive = |desired: &mut DesiredState, inputs: &mut BTreeMap<_, Inputs>, subject: &Subject<'_>| {
            let id = &subject.account.id;
            if !whole.contains(id) && inputs.get(id).is_some_and(|inputs| inputs.still(subject)) {
                return;
            }
            let derived = world.account(subject, &mut generation, &mut claimed, &mut desired.notices);
            inputs.remove(id);
            heavy.remove(id);
            match derived {
                None => drop(desired.accounts.remove(id)),
                Some(mut derived) => {
                    share(&mut derived, endpoints);
                    if is_settled(&derived) {
                        inputs.insert(id.clone(), Inputs::of(subject));
                        // Manifests that were asked for are kept, because the next plan would ask for them again.
                        let is_heavy = !whole.contains(id) && !derived.lighten(ledger);
                        heavy.extend(is_heavy.then(|| id.clone()));
                    }
                    desired.accounts.insert(id.clone(), derived);
                }
            }
        };
        for subject in ledger.accounts.values().map(|account| world.subject(account)) {
            if subject.is_workspace() {
                workspaces.push(subject);
            } else {
                derive(&mut self.desired, &mut self.inputs, &subject);
            }
        }
        for mut subject in workspaces {
            subject.holders = holders(subject.account, world.people_by_entry(), &self.desired.accounts);
            derive(&mut self.desired, &mut self.inputs, &subject);
        }
        self.desired.notices.extend(adopted::notices(ledger, &self.desired.accounts));
        self.desired.notices.sort();
        self.desired.notices.dedup();
        self.desired.accounts.retain(|id, _| ledger.accounts.contains_key(id));
        // The ledger of a preview may have had other accounts. If an id comes back later, its state is built again.
        self.inputs.retain(|id, _| self.desired.accounts.contains_key(id));
        let accounts = &mut self.desired.accounts;
        self.heavy.retain(|id| accounts.get_mut(id).is_some_and(|account| !account.lighten(ledger)));
        &self.desired
    }

    /// Makes the next derivation return these accounts with all their manifests.
    pub fn want_manifests(&mut self, accounts: BTreeSet<AccountId>) {
        self.whole = accounts;
    }

    fn forget_unless_built_with(&mut self, policy: &Policy, sealer: &Sealer) {
        let key = sealer.public_key();
        if !self.rules.as_ref().is_some_and(|(known, by)| known == policy && *by == key) {
            *self = Self { rules: Some((policy.clone(), key)), ..Self::default() };
        }
    }
}

/// Derives single accounts with all their manifests, and keeps nothing. The result is right only if [`is_separable`]
/// returns `true`, because then no account depends on the state of another. The caller passes the accounts for which
/// something may be due.
pub struct Each<'a> {
    world: World<'a>,
    generation: u64,
    claimed: Claims,
    /// The distinct sets of endpoints, shared by all credentials.
    endpoints: Vec<Arc<BTreeMap<String, Endpoint>>>,
}

/// The desired state of one account.
pub struct Derived {
    /// `None` if the account is not a tenant and nothing makes it one.
    pub account: Option<DesiredAccount>,
    /// Whether only a change of the account's own rows or of its classes can change the result.
    pub is_settled: bool,
    /// The classes that take the account.
    pub classes: Vec<String>,
}

/// Whether the desired state of each account depends only on directory groups and on the ledger's rows about that
/// account. Workspaces also depend on their people, and reapers on what runs.
#[must_use]
pub fn is_separable(ledger: &LedgerState, policy: &Policy) -> bool {
    let shares = |class: &Class| {
        class.from.account_kind() == Some(AccountKind::Group)
            || class.adopts().is_some()
            || class.quota_from_workspaces().is_some()
    };
    ledger.adopted.is_empty() && policy.reapers == Reapers::default() && !policy.classes.values().any(shares)
}

impl<'a> Each<'a> {
    /// `groups` are the directory groups of the ledger.
    #[must_use]
    pub fn of(
        ledger: &'a LedgerState,
        (policy, sealer): (&'a Policy, &'a Sealer),
        groups: impl IntoIterator<Item = &'a Account>,
        now: Timestamp,
    ) -> Self {
        let world = World::of(ledger, policy, sealer, groups, now);
        Self { generation: ledger.last_generation, world, claimed: Claims::new(), endpoints: Vec::new() }
    }

    /// Derives one account. Returns `None` if the account is a workspace. A cycle must derive accounts in the order of
    /// their ids, because new generations are assigned in the order of the calls.
    pub fn derive(&mut self, account: &'a Account, notices: &mut Vec<Notice>) -> Option<Derived> {
        let Self { world, generation, claimed, endpoints } = self;
        let (subject, told) = (world.subject(account), notices.len());
        if subject.is_workspace() {
            return None;
        }
        let mut derived = world.account(&subject, generation, claimed, notices);
        if let Some(derived) = &mut derived {
            share(derived, endpoints);
        }
        // A time in the future comes from a wrong clock: the account will count as awaited later, so it is not settled.
        let used = world.ledger.last_use.get(&account.id);
        let is_awaited = used.is_some_and(|used| world.now.duration_since(*used) < AWAITED);
        let is_settled = !is_awaited
            && told == notices.len()
            && subject.held.is_none()
            && subject.orders.is_empty()
            && subject.taken.rests_on.is_empty()
            && derived.as_ref().is_none_or(|it| is_settled(it) && it.otherwise.is_none() && it.returning.is_empty());
        let classes = subject.taken.now.iter().map(|class| class.name.clone()).collect();
        Some(Derived { account: derived, is_settled, classes })
    }

    /// Whether exactly these classes take the account, and no pending removal from a group affects that.
    #[must_use]
    pub fn is_taken_by(&self, account: &'a Account, classes: &[String]) -> bool {
        let taken = self.world.taken(account, &self.world.ledger.tenants_of(&account.id).collect::<Vec<_>>());
        taken.rests_on.is_empty() && taken.now.iter().map(|class| &class.name).eq(classes)
    }
}

/// Makes the account's credentials share known endpoints.
fn share(account: &mut DesiredAccount, known: &mut Vec<Arc<BTreeMap<String, Endpoint>>>) {
    for credential in account.clusters.values_mut().flat_map(|tenant| &mut tenant.credentials) {
        match known.iter().find(|known| **known == credential.endpoints) {
            Some(known) => credential.endpoints = Arc::clone(known),
            None => known.push(Arc::clone(&credential.endpoints)),
        }
    }
}

/// Whether nothing is due, so that the desired state can change only if the inputs change.
fn is_settled(derived: &DesiredAccount) -> bool {
    derived.held.is_none()
        && derived.transition.is_none()
        && derived.regenerated.is_none()
        && derived.orders.is_empty()
        && derived.leaving.is_empty()
        && derived.rests_on.is_empty()
        // The end of a tenant depends on what is archived and what is deleted.
        && derived.clusters.values().all(|tenant| tenant.end.is_none())
        // In a place that is given up, the existing bindings decide what stays.
        && !derived.otherwise.iter().flat_map(|kept| kept.clusters.values()).any(|tenant| tenant.given_up)
}

/// The account that gets each new namespace.
type Claims = BTreeMap<(ClusterName, NamespaceName), AccountId>;

/// All inputs, indexed.
struct World<'a> {
    ledger: &'a LedgerState,
    policy: &'a Policy,
    sealer: &'a Sealer,
    now: Timestamp,
    groups: Groups<'a>,
    orders: BTreeMap<&'a AccountId, Vec<&'a Order>>,
    /// Adopted namespaces by their owner.
    adopted: BTreeMap<&'a AccountId, Vec<Adopted<'a>>>,
    /// Archived namespaces, with the generation of the account at that time; computed only if a tenant ends.
    archives: OnceCell<BTreeSet<(&'a AccountId, &'a ClusterName, u64)>>,
    /// Namespaces in use; computed only if an account needs a new one.
    namespaces: OnceCell<BTreeSet<(&'a ClusterName, &'a NamespaceName)>>,
    /// The clusters in which accounts have bindings; computed only if a class gave up a cluster.
    bound: OnceCell<BTreeSet<(&'a AccountId, &'a ClusterName)>>,
    /// Names of people; computed only if somebody leaves a group.
    people: OnceCell<BTreeMap<&'a DirectoryId, AccountName>>,
    /// The workspaces of people; computed only if a class takes quota from workspaces.
    workspaces: OnceCell<Workspaces<'a>>,
    /// People by their entries; computed only if there are workspaces.
    entries: OnceCell<PeopleByEntry<'a>>,
}

impl<'a> World<'a> {
    /// `groups` are the directory groups of the ledger.
    fn of(
        ledger: &'a LedgerState,
        policy: &'a Policy,
        sealer: &'a Sealer,
        groups: impl IntoIterator<Item = &'a Account>,
        now: Timestamp,
    ) -> Self {
        let mut orders: BTreeMap<&AccountId, Vec<&Order>> = BTreeMap::new();
        let due = ledger.orders_due(policy.limits.change_per_cycle, now);
        for order in due.into_iter().filter(|order| !order.what.is_of_reads()) {
            orders.entry(&order.account).or_default().push(order);
        }
        for orders in orders.values_mut() {
            orders.sort_by_key(|order| order.id);
        }
        Self {
            ledger,
            policy,
            sealer,
            now,
            groups: Groups::among(groups, &policy.lifecycle),
            orders,
            adopted: adopted::by_owner(ledger, policy),
            archives: OnceCell::new(),
            namespaces: OnceCell::new(),
            bound: OnceCell::new(),
            people: OnceCell::new(),
            workspaces: OnceCell::new(),
            entries: OnceCell::new(),
        }
    }

    /// Returns the amounts of the quota from `classes` that the account's workspaces change.
    fn granted(&self, account: &Account, classes: &[&Class]) -> BTreeMap<String, String> {
        let Some(class) = quota::class_of(classes).filter(|class| class.quota_from_workspaces().is_some()) else {
            return BTreeMap::new();
        };
        let all = self.workspaces.get_or_init(|| workspaces(self.ledger, self.policy, self.people_by_entry()));
        let own = all.get(&account.id);
        quota::from_workspaces(class, own.map_or(&[], Vec::as_slice))
    }

    fn exceptions(&self, account: &'a AccountId) -> Vec<&'a ExceptionKey> {
        let holds = self.ledger.exceptions_of(account).filter(|(_, given)| given.term().is_running());
        holds.map(|(key, _)| key).collect()
    }

    fn people_by_entry(&self) -> &PeopleByEntry<'a> {
        self.entries.get_or_init(|| PeopleByEntry::of(self.ledger))
    }

    fn subject(&self, account: &'a Account) -> Subject<'_> {
        let tenants: Vec<_> = self.ledger.tenants_of(&account.id).collect();
        let overrides = self.ledger.overrides_of(&account.id).filter(|(_, given)| given.is_in_force()).collect();
        let taken = self.taken(account, &tenants);
        let used = self.ledger.last_use.get(&account.id);
        Subject {
            account,
            overrides,
            exceptions: self.exceptions(&account.id),
            held: self.ledger.holds.get(&account.id),
            orders: self.orders.get(&account.id).cloned().unwrap_or_default(),
            idle: self.idle(&account.id, &tenants),
            awaited: used.is_some_and(|used| self.now.duration_since(*used).abs() < AWAITED),
            asked: self.ledger.asked(&account.id, self.now),
            tenants,
            granted: self.granted(account, &taken.now),
            taken,
            holders: Holders::default(),
            adopted: self.adopted.get(&account.id).cloned().unwrap_or_default(),
        }
    }

    fn taken(&self, account: &Account, tenants: &[(&ClusterName, &Tenant)]) -> Taken<'a> {
        let asked_for = |class: &Class| class::is_asked_for(class, account, self.ledger, tenants);
        taken(account, self.policy, &self.groups, &asked_for)
    }

    fn idle(&self, id: &AccountId, tenants: &[(&ClusterName, &Tenant)]) -> Idle {
        let Some(rules) = &self.policy.reapers.namespaces else { return Idle::default() };
        let places: Vec<_> = tenants
            .iter()
            .filter(|(_, tenant)| tenant.namespace.is_some())
            .map(|(cluster, _)| (*cluster, self.ledger.idle.get(&(id.clone(), (*cluster).clone()))))
            .collect();
        let warned = places.iter().filter_map(|(cluster, idle)| {
            let idle = (*idle)?;
            idle.warned_at.map(|_| ((*cluster).clone(), idle.due))
        });
        let warned = warned.collect();
        let due = |idle: Option<&Idleness>| idle.is_some_and(|idle| idle.is_due(rules, self.now));
        let all = !places.is_empty() && places.iter().all(|(_, idle)| due(*idle));
        let since = places.iter().filter_map(|(_, idle)| idle.map(|idle| idle.since)).max();
        Idle { due: since.filter(|_| all), warned }
    }
}

#[cfg(test)]
mod tests;
