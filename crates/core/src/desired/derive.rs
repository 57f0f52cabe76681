//! From the ledger and the policy to what should be.
//!
//! Building and sealing the objects of 10,000 tenants takes a second; looking whether anything they depend on changed
//! takes milliseconds. So a [`Deriver`] keeps what it derived, and builds again only what has a new input.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::adopted::{self, Adopted};
use super::class::{Groups, taken};
use super::life::{Evidence, Namespaces, Verdict, verdict};
use super::subject::{Idle, Inputs, Side, Subject};
use super::workspace::{Holders, Workspaces, holders, workspaces};
use super::{DesiredAccount, DesiredState, EndOfTenant, Notice, Transition, quota, ssh, tenant};
use crate::contract::Sealer;
use crate::identity::{AccountId, AccountKind, AccountName, ClusterName, DirectoryId, NamespaceName};
use crate::kinds::ObjectKey;
use crate::ledger::idle::Idleness;
use crate::ledger::people::PeopleByEntry;
use crate::ledger::quota::day;
use crate::ledger::workspace_uid::why_none;
use crate::ledger::{Account, LedgerState, Lifecycle, Order, OrderKind, Suspension, Tenant};
use crate::policy::{Class, Endpoint, Policy, Provision};

/// For this time, a person who asked for an account is taken to wait for it; the account is made before others.
const AWAITED: SignedDuration = SignedDuration::from_mins(2);

/// What all tenants should have. For one plan; a daemon keeps a [`Deriver`].
#[must_use]
pub fn derive(ledger: &LedgerState, policy: &Policy, sealer: &Sealer, now: Timestamp) -> DesiredState {
    let mut deriver = Deriver { whole: ledger.accounts.keys().cloned().collect(), ..Deriver::default() };
    deriver.derive(ledger, policy, sealer, now);
    deriver.desired
}

/// Derives again and again, and remembers what it need not build again. It always gives what [`derive`] gives, also after
/// a ledger that never came to be, but for the manifests of objects that were applied.
#[derive(Debug, Default)]
pub struct Deriver {
    desired: DesiredState,
    /// Accounts of whose objects all manifests are wanted: something of theirs is not as it was applied.
    whole: BTreeSet<AccountId>,
    /// The few that there are, shared by all credentials.
    endpoints: Vec<Arc<BTreeMap<String, Endpoint>>>,
    /// Accounts in `desired` with manifests that are dropped when they are applied.
    heavy: BTreeSet<AccountId>,
    /// Inputs of those accounts in `desired` for which nothing is due.
    inputs: BTreeMap<AccountId, Inputs>,
    /// The policy and the key everything in `desired` was built with.
    rules: Option<(Policy, [u8; 32])>,
}

impl Deriver {
    /// What all tenants should have now.
    pub fn derive(&mut self, ledger: &LedgerState, policy: &Policy, sealer: &Sealer, now: Timestamp) -> &DesiredState {
        let whole = std::mem::take(&mut self.whole);
        self.forget_unless_built_with(policy, sealer);
        let world = World::of(ledger, policy, sealer, now);
        let mut generation = ledger.last_generation;
        let mut claimed = Claims::new();
        self.desired.notices.clear();
        self.desired.reaps.clone_from(&policy.reapers);
        self.desired.clusters = policy.clusters.keys().cloned().collect();
        // A workspace's people have their own part first: what they may do there depends on it.
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
                        // Asked for, they are kept: the next plan would ask again.
                        let is_heavy = !whole.contains(id) && !derived.lighten(ledger);
                        heavy.extend(is_heavy.then(|| id.clone()));
                    }
                    desired.accounts.insert(id.clone(), derived);
                }
            }
        };
        for subject in world.subjects() {
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
        // A preview's ledger may have had others; what comes again under an id is built again.
        self.inputs.retain(|id, _| self.desired.accounts.contains_key(id));
        let accounts = &mut self.desired.accounts;
        self.heavy.retain(|id| accounts.get_mut(id).is_some_and(|account| !account.lighten(ledger)));
        &self.desired
    }

    /// The next derivation gives these accounts with all their manifests.
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

/// Has its credentials share the endpoints that are known.
fn share(account: &mut DesiredAccount, known: &mut Vec<Arc<BTreeMap<String, Endpoint>>>) {
    for credential in account.clusters.values_mut().flat_map(|tenant| &mut tenant.credentials) {
        match known.iter().find(|known| **known == credential.endpoints) {
            Some(known) => credential.endpoints = Arc::clone(known),
            None => known.push(Arc::clone(&credential.endpoints)),
        }
    }
}

/// Nothing is due, so nothing but its inputs can change what it should have.
fn is_settled(derived: &DesiredAccount) -> bool {
    derived.held.is_none()
        && derived.transition.is_none()
        && derived.regenerated.is_none()
        && derived.orders.is_empty()
        && derived.leaving.is_empty()
        && derived.rests_on.is_empty()
        // The end of a tenant depends on what is archived and what is gone.
        && derived.clusters.values().all(|tenant| tenant.end.is_none())
}

/// New namespaces, and whose they are to be.
type Claims = BTreeMap<(ClusterName, NamespaceName), AccountId>;

/// All inputs, indexed.
struct World<'a> {
    ledger: &'a LedgerState,
    policy: &'a Policy,
    sealer: &'a Sealer,
    now: Timestamp,
    groups: Groups<'a>,
    orders: BTreeMap<&'a AccountId, Vec<&'a Order>>,
    /// Namespaces that others created, by whose they are.
    adopted: BTreeMap<&'a AccountId, Vec<Adopted<'a>>>,
    /// Namespaces in files, with the generation they were left by; looked up only where something ends.
    archives: OnceCell<BTreeSet<(&'a AccountId, &'a ClusterName, u64)>>,
    /// Whose each namespace is, looked up only where somebody needs a new one.
    namespaces: OnceCell<BTreeSet<(&'a ClusterName, &'a NamespaceName)>>,
    /// Names of people, only where somebody leaves.
    people: OnceCell<BTreeMap<&'a DirectoryId, AccountName>>,
    /// The workspaces of people, only where they give them something.
    workspaces: OnceCell<Workspaces<'a>>,
    /// People by their entries, only where there are workspaces.
    entries: OnceCell<PeopleByEntry<'a>>,
}

impl<'a> World<'a> {
    fn of(ledger: &'a LedgerState, policy: &'a Policy, sealer: &'a Sealer, now: Timestamp) -> Self {
        let mut orders: BTreeMap<&AccountId, Vec<&Order>> = BTreeMap::new();
        let due = ledger.orders_due(policy.limits.change_per_cycle);
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
            groups: Groups::of(ledger, &policy.lifecycle),
            orders,
            adopted: adopted::by_owner(ledger, policy),
            archives: OnceCell::new(),
            namespaces: OnceCell::new(),
            people: OnceCell::new(),
            workspaces: OnceCell::new(),
            entries: OnceCell::new(),
        }
    }

    /// What workspaces change of the quota that `classes` give.
    fn granted(&self, account: &Account, classes: &[&Class]) -> BTreeMap<String, String> {
        let Some(class) = quota::class_of(classes).filter(|class| class.quota_from_workspaces.is_some()) else {
            return BTreeMap::new();
        };
        let all = self.workspaces.get_or_init(|| workspaces(self.ledger, self.policy, self.people_by_entry()));
        let own = all.get(&account.id);
        quota::from_workspaces(class, own.map_or(&[], Vec::as_slice))
    }

    fn people_by_entry(&self) -> &PeopleByEntry<'a> {
        self.entries.get_or_init(|| PeopleByEntry::of(self.ledger))
    }

    /// Every account, by walking accounts and tenants side by side: both are sorted by the account's id.
    fn subjects(&self) -> impl Iterator<Item = Subject<'_>> {
        let mut rows = self.ledger.tenants.iter().peekable();
        let mut given = self.ledger.overrides.iter().peekable();
        self.ledger.accounts.values().map(move |account| {
            while rows.next_if(|((id, _), _)| *id < account.id).is_some() {}
            let mut tenants = Vec::new();
            while let Some(((_, cluster), tenant)) = rows.next_if(|((id, _), _)| *id == account.id) {
                tenants.push((cluster, tenant));
            }
            while given.next_if(|(key, _)| key.account < account.id).is_some() {}
            let mut overrides = Vec::new();
            while let Some((key, given)) = given.next_if(|(key, _)| key.account == account.id) {
                overrides.extend(given.is_in_force().then_some((key, given)));
            }
            let used = self.ledger.last_use.get(&account.id);
            let asked_for = |class: &Class| {
                class.provision == Provision::Always
                    || used.is_some()
                    || tenants.iter().any(|(_, tenant)| tenant.class == class.name)
            };
            let taken = taken(account, self.policy, &self.groups, &asked_for);
            Subject {
                account,
                overrides,
                held: self.ledger.holds.get(&account.id),
                orders: self.orders.get(&account.id).cloned().unwrap_or_default(),
                idle: self.idle(&account.id, &tenants),
                awaited: used.is_some_and(|used| self.now.duration_since(*used).abs() < AWAITED),
                tenants,
                granted: self.granted(account, &taken.now),
                taken,
                holders: Holders::default(),
                adopted: self.adopted.get(&account.id).cloned().unwrap_or_default(),
            }
        })
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
            // People who left a held group have left it all the same; an order waits for the release.
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
        let mut derived = self.derived(subject, subject.side(true), decided, &places, last_generation);
        if subject.held.is_some() {
            derived.otherwise = self.through_hold(subject, true, claimed, last_generation);
            return Some(derived);
        }
        let returns = derived.transition == Some(Transition::Resume)
            && matches!(account.state, Lifecycle::Suspended | Lifecycle::Archived);
        if returns || matches!(derived.transition, Some(Transition::Archive | Transition::Delete { .. })) {
            derived.otherwise = Some(Box::new(self.still_suspended(subject, returns, claimed, last_generation)));
        }
        if removal && let Some(kept) = verdict(self.evidence(subject, false)) {
            let mut places = self.places(subject, &taken.before, &kept, claimed, notices);
            // What it has there was made by a class that is gone: nobody can say what it should be, so it stays.
            places.retain(|cluster, _| is_taken(&taken.before, cluster));
            let mut kept = self.derived(subject, subject.side(false), kept, &places, last_generation);
            kept.leaving.clear();
            kept.rests_on.clear();
            derived.otherwise = Some(Box::new(kept));
        } else if !derived.leaving.is_empty() {
            // Blocking the removal of one member must block neither the end of the account's own access nor its return.
            let ends = derived.otherwise.take_if(|_| !returns);
            let mut kept = ends.map_or_else(|| derived.clone(), |kept| *kept);
            kept.leaving.clear();
            derived.otherwise = Some(Box::new(kept));
        }
        Some(derived)
    }

    /// What is left of its suspension while the guard does not let its return, or its end, through.
    fn still_suspended(
        &self,
        subject: &Subject<'_>,
        returns: bool,
        claimed: &mut Claims,
        last_generation: &mut u64,
    ) -> DesiredAccount {
        let places = self.places(subject, &subject.taken.now, &Verdict::SUSPENDED, claimed, &mut Vec::new());
        let mut kept = self.derived(subject, subject.side(true), Verdict::SUSPENDED, &places, last_generation);
        if returns {
            // They wait with the return, so that neither is lost.
            (kept.orders, kept.ordered) = (Vec::new(), None);
            kept.leaving.clear();
            kept.rests_on.clear();
        }
        kept
    }

    /// What a held account may get: what was ordered to suspend or revoke it, and, with `leavings`, what people lose by
    /// it who left. Its classes stay what they were.
    fn through_hold(
        &self,
        subject: &Subject<'_>,
        leavings: bool,
        claimed: &mut Claims,
        last_generation: &mut u64,
    ) -> Option<Box<DesiredAccount>> {
        let account = subject.account;
        let takes = |order: &&&Order| order.suspends().is_some() || order.what == OrderKind::Revoke;
        let orders: Vec<&Order> = subject.orders.iter().filter(takes).copied().collect();
        let subject = &Subject { orders, ..subject.clone() };
        let decided = verdict(Evidence { leavings, ..self.evidence(subject, false) })?;
        let decided = match (&decided.transition, account.state) {
            (None, Lifecycle::Active) | (Some(Transition::Suspend(_)), _) => Verdict { end: None, ..decided },
            (_, Lifecycle::Suspended | Lifecycle::Archived) => Verdict::SUSPENDED,
            (_, Lifecycle::New | Lifecycle::Active | Lifecycle::Deleted) => return None,
        };
        let mut places = self.places(subject, &subject.taken.before, &decided, claimed, &mut Vec::new());
        places.retain(|cluster, _| is_taken(&subject.taken.before, cluster) || decided.suspended);
        let side = Side { classes: &subject.taken.before, holders: &subject.holders.now };
        let mut derived = self.derived(subject, side, decided, &places, last_generation);
        derived.held = None;
        derived.rests_on.clone_from(&subject.holders.rests_on);
        if !leavings {
            derived.leaving.clear();
            derived.rests_on.clear();
        } else if !derived.leaving.is_empty() {
            // Members who may not leave yet must not hold up an order.
            derived.otherwise = self.through_hold(subject, false, claimed, last_generation);
        }
        Some(Box::new(derived))
    }

    /// What its people are told while it is suspended; nothing once its end has begun, or if no class takes it.
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
            asked: self.ledger.last_use.get(&subject.account.id).copied(),
            namespaces: Namespaces {
                count: subject.namespaces().count() as u64,
                archived: self.is_archived(subject),
                gone: !self.is_there(subject),
            },
            shared: classes.iter().any(|class| class.credential.is_some()),
            now: self.now,
        }
    }

    /// Whether each namespace is in a file, as the present suspension left it.
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

    /// Whether a namespace is left, as far as the ledger knows.
    fn is_there(&self, subject: &Subject<'_>) -> bool {
        subject.account.state == Lifecycle::Archived
            && subject
                .namespaces()
                .any(|(cluster, namespace)| self.ledger.objects.contains_key(&ObjectKey::namespace(cluster, namespace)))
    }

    /// No tenant, but its members or an order to it concern the plan: groups, mostly.
    fn bystander(&self, subject: &Subject<'_>) -> Option<DesiredAccount> {
        let idle = Verdict { transition: None, regenerated: None, suspended: false, end: None };
        let concerned = !subject.account.leaving.is_empty() || !subject.orders.is_empty();
        let nothing = Side { classes: &[], holders: &[] };
        concerned.then(|| self.derived(subject, nothing, idle, &BTreeMap::new(), &mut 0))
    }

    fn derived(
        &self,
        subject: &Subject<'_>,
        Side { classes, holders }: Side<'_>,
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
            let order = tenant::Order {
                cluster,
                account,
                classes: &here,
                remembered: subject.remembered(cluster).map_or("", |tenant| tenant.class.as_str()),
                namespace: namespace.as_ref(),
                generation,
                suspended: decided.suspended || !is_taken(classes, cluster),
                notice: notice.as_ref().filter(|_| decided.suspended),
                idle_until: subject.idle.warned.get(*cluster).copied().filter(|_| !decided.suspended),
                end: decided.end.filter(|end| match end {
                    EndOfTenant::Archive => namespace.is_some() && !self.has_archive(account, cluster),
                    EndOfTenant::Delete => true,
                }),
                overrides: &overrides,
                granted: &subject.granted,
                holders,
                adopted: &subject.adopted,
            };
            ((*cluster).clone(), Box::new(tenant::tenant(order, self.policy, self.sealer)))
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
            // A mark needs nobody's absence: who is locked out does not wait for the limits of somebody else's leaving.
            leaving: if by_mark { BTreeMap::new() } else { self.leaving(account) },
            rests_on: if by_mark { BTreeSet::new() } else { &subject.taken.rests_on | &subject.holders.rests_on },
            returning: subject.holders.returning.clone(),
            otherwise: None,
            ssh: if decided.suspended { None } else { ssh::keys(account, classes) },
            clusters: clusters.collect(),
        }
    }

    /// The classes that make up a tenant. One that no class takes any more keeps the shape of its last class while that
    /// is still configured: it is suspended, and its quota stays.
    fn classes_in<'s>(&'s self, subject: &Subject<'_>, classes: &[&'s Class], cluster: &ClusterName) -> Vec<&'s Class> {
        let here: Vec<&Class> = classes.iter().filter(|class| class.clusters.contains(cluster)).copied().collect();
        if !here.is_empty() {
            return here;
        }
        let last = subject.remembered(cluster).and_then(|tenant| self.policy.classes.get(&tenant.class));
        last.filter(|class| class.namespace.is_some()).into_iter().collect()
    }

    /// The clusters where it has or gets a place, and the namespace there. A suspended account gets no new place.
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

    /// A new namespace, if nobody has it.
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
                "gets no place in cluster {cluster}: namespace {namespace} is another account's; let one of them have \
                 another name, or its class another pattern"
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

fn is_taken(classes: &[&Class], cluster: &ClusterName) -> bool {
    classes.iter().any(|class| class.clusters.contains(cluster))
}

/// The class whose size and budget count: the one that took it first. Accounts without any, such as directory groups,
/// count by their kind.
fn class_for_limits(account: &Account, tenants: &[(&ClusterName, &Tenant)], classes: &[&Class]) -> String {
    match (tenants.first(), classes.first()) {
        (Some((_, tenant)), _) => tenant.class.clone(),
        (None, Some(class)) => class.name.clone(),
        (None, None) => format!("{}s", account.kind),
    }
}
