//! Derives the desired state from the ledger and the policy.
//!
//! Building and sealing the objects of 10,000 tenants takes a second; checking whether their inputs changed takes
//! milliseconds. A [`Deriver`] therefore keeps what it derived, and rebuilds only accounts whose inputs changed.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::adopted::{self, Adopted};
use super::class::{self, Groups, Taken, taken};
use super::life::{Evidence, Namespaces, Verdict, verdict};
use super::subject::{Idle, Inputs, Side, Subject};
use super::workspace::{Holders, Workspaces, holders, workspaces};
use super::{DesiredAccount, DesiredState, EndOfTenant, Notice, Transition, quota, ssh, tenant};
use crate::contract::Sealer;
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName, DirectoryId, NamespaceName};
use crate::kinds::{ObjectKey, Stage};
use crate::ledger::exception::ExceptionKey;
use crate::ledger::idle::Idleness;
use crate::ledger::people::PeopleByEntry;
use crate::ledger::quota::day;
use crate::ledger::workspace_uid::why_none;
use crate::ledger::{Account, LedgerState, Lifecycle, Order, OrderKind, Suspension, Tenant};
use crate::policy::{Class, Endpoint, Policy, Reapers};

/// How long a person who asked for an account is assumed to wait for it. Until then, the account is created before
/// others.
const AWAITED: SignedDuration = SignedDuration::from_mins(2);

/// Returns the desired state of all tenants, for a single plan. A daemon keeps a [`Deriver`].
#[must_use]
pub fn derive(ledger: &LedgerState, policy: &Policy, sealer: &Sealer, now: Timestamp) -> DesiredState {
    let mut deriver = Deriver { whole: ledger.accounts.keys().cloned().collect(), ..Deriver::default() };
    deriver.derive(ledger, policy, sealer, now);
    deriver.desired
}

/// Derives repeatedly, and rebuilds only accounts whose inputs changed. The result equals that of [`derive`], even
/// after a preview of a hypothetical ledger, except that manifests of applied objects are dropped.
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
        // Workspaces last: the bindings of a workspace depend on its people's own accounts.
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
                        // Manifests that were asked for are kept, because the next plan would ask again.
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
        // The ledger of a preview may have had other accounts. If an id comes back later, it is built again.
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

/// Derives single accounts with all their manifests, and keeps nothing. It is right only if [`is_separable`] says that
/// no account depends on the state of another one. The caller passes the accounts for which something may be due.
pub struct Each<'a> {
    world: World<'a>,
    generation: u64,
    claimed: Claims,
}

/// The desired state of one account.
pub struct Derived {
    /// `None` if the account is not a tenant and nothing makes it one.
    pub account: Option<DesiredAccount>,
    /// Only a change of the account's own rows or of its classes can change the result.
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
        Self { generation: ledger.last_generation, world, claimed: Claims::new() }
    }

    /// Returns `None` if the account is a workspace. A cycle must derive its accounts in the order of their ids,
    /// because new generations are assigned in the order of the calls.
    pub fn derive(&mut self, account: &'a Account, notices: &mut Vec<Notice>) -> Option<Derived> {
        let Self { world, generation, claimed } = self;
        let (subject, told) = (world.subject(account), notices.len());
        if subject.is_workspace() {
            return None;
        }
        let derived = world.account(&subject, generation, claimed, notices);
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

/// Whether nothing is due, so that only changed inputs can change the desired state.
fn is_settled(derived: &DesiredAccount) -> bool {
    derived.held.is_none()
        && derived.transition.is_none()
        && derived.regenerated.is_none()
        && derived.orders.is_empty()
        && derived.leaving.is_empty()
        && derived.rests_on.is_empty()
        // The end of a tenant depends on what is archived and what is deleted.
        && derived.clusters.values().all(|tenant| tenant.end.is_none())
        // In a place that is given up, what stays depends on the existing bindings.
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
            asked: used.copied(),
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

    fn account(
        &self,
        subject: &Subject<'_>,
        last_generation: &mut u64,
        claimed: &mut Claims,
        notices: &mut Vec<Notice>,
    ) -> Option<DesiredAccount> {
        let Subject { account, taken, .. } = subject;
        let decided = verdict(self.evidence(subject, true));
        let Some(decided) = decided else {
            let mut derived = self.bystander(subject)?;
            // A hold does not delay the leaving of members; orders wait until the hold ends.
            derived.otherwise = subject
                .held
                .map(|_| Box::new(DesiredAccount { held: None, orders: Vec::new(), ordered: None, ..derived.clone() }));
            return Some(derived);
        };
        let places = self.places(subject, &taken.now, &decided, claimed, notices);
        if places.is_empty() && decided.transition == Some(Transition::Create) {
            return None;
        }
        let removal = account.state == Lifecycle::Active
            && (matches!(&decided.transition, Some(Transition::Suspend(why)) if why.ordered().is_none())
                || !account.leaving.is_empty()
                || !taken.rests_on.is_empty()
                || !subject.holders.rests_on.is_empty()
                || places.keys().any(|cluster| !is_taken(&taken.now, cluster)));
        let people = (!decided.suspended && subject.may_keep_people()).then(|| decided.clone());
        let mut derived = self.derived(subject, subject.side(), decided, &places, last_generation);
        if subject.held.is_some() {
            let orders = subject.orders.iter().filter(|order| order.what.takes_access()).copied().collect();
            let passing = Subject { orders, ..subject.clone() };
            derived.otherwise = self.without_removal(&passing, true, claimed, last_generation);
            return Some(derived);
        }
        let returns = derived.transition == Some(Transition::Resume)
            && matches!(account.state, Lifecycle::Suspended | Lifecycle::Archived);
        if returns || matches!(derived.transition, Some(Transition::Archive | Transition::Delete { .. })) {
            derived.otherwise = Some(Box::new(self.still_suspended(subject, returns, claimed, last_generation)));
        }
        if removal {
            let side = Side { holders: &subject.holders.staying, ..subject.side() };
            let people = people.map(|decided| self.derived(subject, side, decided, &places, last_generation));
            derived.otherwise = self.without_removal(subject, true, claimed, last_generation);
            derived.keep_people(subject, people);
        } else if !derived.leaving.is_empty() {
            // Blocking the removal of one member must block neither the end of the account's own access nor its return.
            let ends = derived.otherwise.take_if(|_| !returns);
            let mut kept = ends.map_or_else(|| derived.clone(), |kept| *kept);
            kept.leaving.clear();
            derived.otherwise = Some(Box::new(kept));
        }
        Some(derived)
    }

    /// Returns the state of an account that stays suspended while the guard refuses its return or its end.
    fn still_suspended(
        &self,
        subject: &Subject<'_>,
        returns: bool,
        claimed: &mut Claims,
        last_generation: &mut u64,
    ) -> DesiredAccount {
        let places = self.places(subject, &subject.taken.now, &Verdict::SUSPENDED, claimed, &mut Vec::new());
        let mut kept = self.derived(subject, subject.side(), Verdict::SUSPENDED, &places, last_generation);
        if returns {
            // Orders and removals of members wait for the return, so that none of them is lost.
            (kept.orders, kept.ordered) = (Vec::new(), None);
            kept.leaving.clear();
            kept.rests_on.clear();
        }
        kept
    }

    /// Returns the state of an account whose own removal is refused or held. Orders are carried out and, with
    /// `leavings`, former members and people lose their access. The classes stay as they were.
    fn without_removal(
        &self,
        subject: &Subject<'_>,
        leavings: bool,
        claimed: &mut Claims,
        last_generation: &mut u64,
    ) -> Option<Box<DesiredAccount>> {
        let Subject { account, taken, holders, .. } = subject;
        let decided = verdict(Evidence { leavings, ..self.evidence(subject, false) })?;
        let decided = match (&decided.transition, account.state) {
            (None, Lifecycle::Active) | (Some(Transition::Suspend(_)), _) => Verdict { end: None, ..decided },
            (_, Lifecycle::Suspended | Lifecycle::Archived) => Verdict::SUSPENDED,
            (_, Lifecycle::New | Lifecycle::Active | Lifecycle::Deleted) => return None,
        };
        let mut places = self.places(subject, &taken.before, &decided, claimed, &mut Vec::new());
        // If no class has a place any more and no binding is left there, the place is not created again.
        places.retain(|cluster, _| {
            decided.suspended || is_taken(&taken.before, cluster) || self.is_bound(account, cluster)
        });
        let may_keep_people = leavings && !decided.suspended && !holders.rests_on.is_empty();
        let people = may_keep_people.then(|| decided.clone());
        let now = if leavings { &holders.now } else { &holders.before };
        let side = Side { classes: &taken.before, holders: now, leaves: false };
        let mut derived = self.derived(subject, side, decided, &places, last_generation);
        derived.held = None;
        derived.rests_on.retain(|id| holders.rests_on.contains(id));
        if !leavings {
            derived.leaving.clear();
            derived.rests_on.clear();
        } else if !derived.leaving.is_empty() || !derived.rests_on.is_empty() {
            // Members who may not leave yet must not hold up an order.
            derived.otherwise = self.without_removal(subject, false, claimed, last_generation);
        }
        let staying = Side { holders: &holders.staying, ..side };
        let kept = people.map(|decided| self.derived(subject, staying, decided, &places, last_generation));
        derived.keep_people(subject, kept.map(|kept| DesiredAccount { held: None, ..kept }));
        Some(Box::new(derived))
    }

    /// Returns the notice for the people of a suspended account; `None` if its end has begun or no class takes it.
    fn notice(&self, account: &Account, transition: Option<&Transition>) -> Option<bursar_protocol::Notice> {
        let (why, since) = match (transition, account.state) {
            (Some(Transition::Suspend(why)), Lifecycle::Suspended) => (why, account.since),
            (Some(Transition::Suspend(why)), _) => (why, self.now),
            (None, Lifecycle::Suspended) => (account.suspension.as_ref()?, account.since),
            _ => return None,
        };
        let ends = why.term().and_then(|term| term.until).map(day);
        let contact = || format!("the administrators of {}", self.policy.site);
        Some(bursar_protocol::Notice {
            account: format!("{} {}", account.kind, account.name),
            since: format!("{since:.0}"),
            until: ends,
            contact: self.policy.contact.clone().unwrap_or_else(contact),
        })
        .filter(|notice| *why != Suspension::Left && notice.check().is_ok())
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

    fn evidence<'s>(&'s self, subject: &'s Subject<'_>, removals: bool) -> Evidence<'s> {
        let taken = &subject.taken;
        let classes = if removals { &taken.now } else { &taken.before };
        Evidence {
            account: subject.account,
            wanted: !classes.is_empty(),
            orders: &subject.orders,
            lifecycle: &self.policy.lifecycle,
            removals,
            leavings: removals,
            idle: subject.idle.due,
            asked: subject.asked,
            namespaces: Namespaces {
                count: subject.namespaces().count() as u64,
                archived: self.is_archived(subject),
                gone: !self.is_there(subject),
            },
            shared: classes.iter().any(|class| class.credential.is_some())
                || self.ledger.certificates_of(&subject.account.id).next().is_some(),
            now: self.now,
        }
    }

    /// Whether every namespace was archived during the present suspension.
    fn is_archived(&self, subject: &Subject<'_>) -> bool {
        let Subject { account, .. } = subject;
        account.state == Lifecycle::Suspended
            && subject.namespaces().all(|(cluster, _)| self.has_archive(account, cluster))
    }

    fn has_archive(&self, account: &Account, cluster: &ClusterName) -> bool {
        let archives = self.archives.get_or_init(|| {
            let archives = self.ledger.archives.values();
            archives.map(|archive| (&archive.account, &archive.cluster, archive.generation)).collect()
        });
        archives.contains(&(&account.id, cluster, account.generation))
    }

    /// Whether the account has bindings in a cluster of the configuration.
    fn is_bound(&self, account: &Account, cluster: &ClusterName) -> bool {
        let bound = self.bound.get_or_init(|| {
            let bindings = self.ledger.objects.iter().filter(|(key, _)| key.kind.stage() == Stage::Access);
            bindings.map(|(key, record)| (&record.account, &key.cluster)).collect()
        });
        self.policy.clusters.contains_key(cluster) && bound.contains(&(&account.id, cluster))
    }

    /// Whether an archived account still has a namespace, as far as the ledger knows.
    fn is_there(&self, subject: &Subject<'_>) -> bool {
        subject.account.state == Lifecycle::Archived
            && subject
                .namespaces()
                .any(|(cluster, namespace)| self.ledger.objects.contains_key(&ObjectKey::namespace(cluster, namespace)))
    }

    /// Returns the state of an account that is no tenant, but whose members or orders concern the plan. Most are
    /// directory groups.
    fn bystander(&self, subject: &Subject<'_>) -> Option<DesiredAccount> {
        let idle = Verdict { transition: None, regenerated: None, suspended: false, end: None };
        let concerned = !subject.account.leaving.is_empty() || !subject.orders.is_empty();
        let nothing = Side { classes: &[], holders: &[], leaves: true };
        concerned.then(|| self.derived(subject, nothing, idle, &BTreeMap::new(), &mut 0))
    }

    fn derived(
        &self,
        subject: &Subject<'_>,
        Side { classes, holders, leaves }: Side<'_>,
        decided: Verdict,
        places: &BTreeMap<&ClusterName, Option<NamespaceName>>,
        last_generation: &mut u64,
    ) -> DesiredAccount {
        let account = subject.account;
        let generation = if decided.regenerated.is_some() {
            *last_generation += 1;
            *last_generation
        } else {
            account.generation
        };
        let notice = self.notice(account, decided.transition.as_ref());
        let clusters = places.iter().map(|(cluster, namespace)| {
            let here = self.classes_in(subject, classes, cluster);
            let overrides = self.ledger.overrides_in(&account.id, cluster);
            let given_up = !decided.suspended && !is_taken(classes, cluster);
            let here_too = |key: &&&ExceptionKey| key.cluster.as_ref().is_none_or(|there| there == *cluster);
            let exceptions = subject.exceptions.iter().filter(here_too).map(|key| key.rule).collect();
            let order = tenant::TenantInput {
                cluster,
                account,
                classes: &here,
                remembered: subject.remembered(cluster).map_or("", |tenant| tenant.class.as_str()),
                namespace: namespace.as_ref(),
                generation,
                suspended: decided.suspended || given_up,
                notice: notice.as_ref().filter(|_| decided.suspended),
                idle_until: subject.idle.warned.get(*cluster).copied().filter(|_| !decided.suspended),
                end: decided.end.filter(|end| match end {
                    EndOfTenant::Archive => namespace.is_some() && !self.has_archive(account, cluster),
                    EndOfTenant::Delete => true,
                }),
                overrides: &overrides,
                exceptions: &exceptions,
                granted: &subject.granted,
                holders,
                adopted: &subject.adopted,
            };
            let tenant = if given_up && !leaves {
                tenant::given_up(&order)
            } else {
                tenant::tenant(order, self.policy, self.sealer)
            };
            ((*cluster).clone(), Box::new(tenant))
        });
        let by_mark = matches!(decided.transition, Some(Transition::Suspend(Suspension::Disabled { .. })));
        DesiredAccount {
            account: account.account_name(),
            posix: account.posix.clone(),
            class: class_for_limits(account, &subject.tenants, classes),
            transition: decided.transition,
            generation,
            regenerated: decided.regenerated,
            held: subject.held.cloned(),
            orders: subject.orders.iter().map(|order| order.id).collect(),
            adopts: {
                let adopting = subject.orders.iter().filter(|order| order.what == OrderKind::AdoptObject);
                adopting.filter_map(|order| order.object.clone()).collect()
            },
            ordered: subject.orders.last().map(|order| order.note.clone()),
            awaited: subject.awaited,
            // A suspension by a mark rests on no absence, so limits on leaving members must not delay it.
            leaving: if by_mark { BTreeMap::new() } else { self.leaving(account) },
            rests_on: match (by_mark, decided.suspended) {
                (true, _) => BTreeSet::new(),
                // Nobody has a role in a suspended workspace, so it need not wait for anybody's own removal.
                (false, true) => subject.taken.rests_on.clone(),
                (false, false) => &subject.taken.rests_on | &subject.holders.rests_on,
            },
            keeps_people: false,
            returning: subject.holders.returning.clone(),
            otherwise: None,
            ssh: if decided.suspended { None } else { ssh::keys(account, classes) },
            clusters: clusters.collect(),
        }
    }

    /// Returns the classes of a tenant in `cluster`. If no class takes the account there, the class that the ledger
    /// remembers applies while it is configured, so that the suspended tenant keeps its quota.
    fn classes_in<'s>(&'s self, subject: &Subject<'_>, classes: &[&'s Class], cluster: &ClusterName) -> Vec<&'s Class> {
        let here: Vec<&Class> = classes.iter().filter(|class| class.clusters.contains(cluster)).copied().collect();
        if !here.is_empty() {
            return here;
        }
        let last = subject.remembered(cluster).and_then(|tenant| self.policy.classes.get(&tenant.class));
        last.filter(|class| class.namespace.is_some()).into_iter().collect()
    }

    /// Returns the clusters where the account has or gets a place, each with its namespace. A suspended account gets no
    /// new place.
    fn places<'s>(
        &'s self,
        subject: &Subject<'s>,
        classes: &[&'s Class],
        decided: &Verdict,
        claimed: &mut Claims,
        notices: &mut Vec<Notice>,
    ) -> BTreeMap<&'s ClusterName, Option<NamespaceName>> {
        let mut places: BTreeMap<&ClusterName, Option<NamespaceName>> =
            subject.tenants.iter().map(|(cluster, tenant)| (*cluster, tenant.namespace.clone())).collect();
        if decided.suspended {
            return places;
        }
        for (class, cluster) in classes.iter().flat_map(|class| class.clusters.iter().map(move |at| (class, at))) {
            let without_uid = why_none(subject.account, class);
            let is_barred = without_uid.is_some();
            notices.extend(without_uid.map(|text| Notice { account: subject.account.account_name(), text }));
            if is_barred || places.get(cluster).is_some_and(Option::is_some) {
                continue;
            }
            match class.namespace.as_deref().map(|pattern| self.claim(subject.account, cluster, pattern, claimed)) {
                None => {
                    places.entry(cluster).or_insert(None);
                }
                Some(Ok(namespace)) => {
                    places.insert(cluster, Some(namespace));
                }
                Some(Err(text)) => notices.push(Notice { account: subject.account.account_name(), text }),
            }
        }
        places
    }

    /// Returns the name of a new namespace, or an error if another account has it.
    fn claim(
        &self,
        account: &Account,
        cluster: &ClusterName,
        pattern: &str,
        claimed: &mut Claims,
    ) -> Result<NamespaceName, String> {
        let namespace = NamespaceName::try_from(pattern.replace("{name}", &account.kubernetes_name))
            .map_err(|error| format!("gets no place in cluster {cluster}: {error}"))?;
        let known = self.namespaces.get_or_init(|| {
            let tenants = self.ledger.tenants.iter();
            tenants.filter_map(|((_, cluster), tenant)| Some((cluster, tenant.namespace.as_ref()?))).collect()
        });
        let claimant = claimed.entry((cluster.clone(), namespace.clone())).or_insert_with(|| account.id.clone());
        if known.contains(&(cluster, &namespace)) || *claimant != account.id {
            return Err(format!(
                "gets no place in cluster {cluster}: namespace {namespace} belongs to another account; rename one of \
                 them, or change the namespace pattern of its class"
            ));
        }
        Ok(namespace)
    }

    fn leaving(&self, account: &Account) -> BTreeMap<DirectoryId, AccountName> {
        let unknown = |id: &DirectoryId| AccountName { kind: AccountKind::User, name: id.0.clone() };
        let name = |id: &DirectoryId| {
            let people = self.people.get_or_init(|| {
                self.ledger.accounts.values().map(|account| (&account.directory_id, account.account_name())).collect()
            });
            people.get(id).cloned().unwrap_or_else(|| unknown(id))
        };
        account.leaving.iter().map(|id| (id.clone(), name(id))).collect()
    }
}

impl DesiredAccount {
    /// Puts `kept` in front of `otherwise`: members leave, and every other loss of people of the workspace waits.
    fn keep_people(&mut self, subject: &Subject<'_>, kept: Option<Self>) {
        let Some(kept) = kept else { return };
        let rests_on = kept.rests_on.difference(&subject.holders.rests_on).cloned().collect();
        let otherwise = self.otherwise.take();
        self.otherwise = Some(Box::new(Self { keeps_people: true, rests_on, otherwise, ..kept }));
    }
}

fn is_taken(classes: &[&Class], cluster: &ClusterName) -> bool {
    classes.iter().any(|class| class.clusters.contains(cluster))
}

/// Returns the class whose limits apply: the one that took the account first. Accounts without a class, such as
/// directory groups, count by their kind.
fn class_for_limits(account: &Account, tenants: &[(&ClusterName, &Tenant)], classes: &[&Class]) -> String {
    match (tenants.first(), classes.first()) {
        (Some((_, tenant)), _) => tenant.class.clone(),
        (None, Some(class)) => class.name.clone(),
        (None, None) => format!("{}s", account.kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PlanInputs;
    use crate::plan::testing::World as Site;

    #[test]
    fn an_idle_account_that_was_asked_for_resumes_even_in_a_late_cycle() {
        let mut site = Site::new();
        let foo = site.add(AccountKind::Tool, "foo", Some(52_503));
        site.cycle();
        let since = site.now;
        let account = site.account(&foo);
        (account.state, account.since) = (Lifecycle::Suspended, since);
        account.suspension = Some(Suspension::Idle { since });
        let mut deriver = Deriver::default();
        let mut transition = |site: &Site| {
            let PlanInputs { ledger, policy, sealer, now, .. } = site.inputs();
            deriver.derive(ledger, policy, sealer, now).accounts[&foo].transition.clone()
        };
        site.now += SignedDuration::from_hours(1);
        assert_eq!(transition(&site), None);
        site.ledger.last_use.insert(foo.clone(), site.now);
        site.now += 2 * AWAITED;
        assert_eq!(transition(&site), Some(Transition::Resume));
    }
}
