//! Recovers from the clusters what a lost or outdated ledger does not know.
//!
//! If a cluster is newer than the ledger, the cluster is believed: a higher generation in it proves a revocation, and a
//! seal proves the state that was in force when the seal was written. A seal with an older generation than the ledger's
//! proves nothing: the ledger's generation may have been raised while the cluster was unreachable. A generation that
//! nothing confirms is never used, so that no old certificate becomes valid again.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::change::{Change, Event};
use super::people::PeopleByEntry;
use super::{Account, LedgerState, Lifecycle, Note, Order, OrderKind, Suspension, Tenant};
use crate::contract::{Identity, TenantState};
use crate::identity::{
    AccountId, AccountKind, AccountName, ClusterName, DirectoryId, Uid, generation_group, kubernetes_name, name_in,
    of_generation_group,
};
use crate::json_text::JsonText;
use crate::kinds::{ObjectKey, Stage};
use crate::policy::{Class, CredentialKind, Policy, When};

/// Added to the highest generation that was seen anywhere. It skips generations that were assigned after that one and
/// left no trace, because no generation may be assigned twice. No site revokes this many credentials between two
/// backups.
pub const GENERATIONS_SKIPPED: u64 = 1000;

/// The most by which a generation can exceed the ledger's counter. No ledger assigns this many generations, so a higher
/// one was written to make the counter overflow, after which old generations would be assigned again.
const PLAUSIBLE: u64 = 1_000_000_000_000_000;

/// The orders that an older ledger lacks and that no cluster shows.
const LOST_ORDERS: &str = "holds, and suspensions of accounts that were already suspended, are lost if they were \
                           ordered after this ledger was written: order them again; the journal lists them";

/// A namespace with a valid seal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenancy {
    /// The content of the seal.
    pub identity: Identity,
    /// When the namespace was created.
    pub created_at: Timestamp,
}

/// The facts that the clusters show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The clusters that were read.
    pub clusters: BTreeSet<ClusterName>,
    /// Namespaces of tenants.
    pub tenancies: Vec<Tenancy>,
    /// The highest generation that our bindings name, by account.
    pub bound: BTreeMap<AccountName, u64>,
    /// The accounts that each of our bindings names, with their generations.
    pub bindings: BTreeMap<ObjectKey, BTreeSet<(AccountName, u64)>>,
    /// The generation in the signed mark of each cluster. Every generation up to it may have been used.
    pub marks: BTreeMap<ClusterName, u64>,
    /// Uids of workspaces in signed marks. Lower uids in the range of the same class were assigned too.
    pub marked_uids: BTreeSet<Uid>,
    /// Objects of Bursar that cannot be believed, as texts for administrators.
    pub doubts: Vec<String>,
}

impl Facts {
    /// Adds one of our bindings.
    pub fn add_binding(&mut self, key: ObjectKey, names: BTreeSet<(AccountName, u64)>) {
        for (account, generation) in &names {
            let known = self.bound.entry(account.clone()).or_default();
            *known = (*generation).max(*known);
        }
        self.bindings.insert(key, names);
    }

    /// Adds the facts of another cluster.
    pub fn extend(&mut self, other: Self) {
        let Self { clusters, tenancies, bound, bindings, marks, marked_uids, doubts } = other;
        self.bindings.extend(bindings);
        self.clusters.extend(clusters);
        self.tenancies.extend(tenancies);
        for (account, generation) in bound {
            let known = self.bound.entry(account).or_default();
            *known = generation.max(*known);
        }
        self.marks.extend(marks);
        self.marked_uids.extend(marked_uids);
        self.doubts.extend(doubts);
    }

    /// Returns the facts without generations that no ledger with the counter `last` can have reached. Records a doubt
    /// for each of them.
    fn plausible(&self, last: u64) -> Self {
        let Self { clusters, tenancies, bound, bindings, marks, marked_uids, doubts } = self.clone();
        // Only `bound` proves generations, so `bindings` is taken unchecked.
        let mut facts = Self { clusters, bindings, marked_uids, doubts, ..Self::default() };
        let mut is_plausible = |generation: u64, what: &dyn Fn() -> String| {
            let is = generation <= last.saturating_add(PLAUSIBLE);
            if !is {
                facts.doubts.push(format!(
                    "{} names generation {generation}, which no ledger has reached; it proves nothing",
                    what()
                ));
            }
            is
        };
        let tenancies = tenancies.into_iter().filter(|Tenancy { identity, .. }| {
            is_plausible(identity.generation, &|| format!("namespace {} in {}", identity.namespace, identity.cluster))
        });
        facts.tenancies = tenancies.collect();
        facts.bound = bound
            .into_iter()
            .filter(|(account, generation)| is_plausible(*generation, &|| format!("a binding of {account}")))
            .collect();
        facts.marks = marks
            .into_iter()
            .filter(|(cluster, generation)| is_plausible(*generation, &|| format!("the mark of {cluster}")))
            .collect();
        facts
    }

    /// Returns the highest generation in a mark, or 0.
    fn marked(&self) -> u64 {
        self.marks.values().copied().max().unwrap_or_default()
    }

    /// Whether a mark has a generation that `ledger` did not write.
    #[must_use]
    pub fn exceed(&self, ledger: &LedgerState) -> bool {
        let written = |cluster| ledger.cluster_marks.get(cluster).copied().unwrap_or(ledger.last_generation);
        self.marks.iter().any(|(cluster, marked)| *marked > written(cluster))
    }
}

/// The knowledge that the ledger gains from the facts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Learned {
    /// Changes of the ledger.
    pub changes: Vec<Change>,
    /// Events of the history.
    pub events: Vec<Event>,
    /// Facts that remain unclear, as texts for administrators.
    pub doubts: Vec<String>,
    /// Accounts that the clusters show as suspended for an unknown reason, each with a text for administrators.
    pub unexplained: BTreeMap<AccountName, String>,
}

/// Returns what `facts` show and `ledger` does not know. `source_of` returns the directory that has an entry.
#[must_use]
pub fn learn(
    ledger: &LedgerState,
    facts: &Facts,
    policy: &Policy,
    source_of: &dyn Fn(&DirectoryId) -> Option<String>,
    actor: &str,
    now: Timestamp,
) -> Learned {
    let facts = &facts.plausible(ledger.last_generation);
    let mut lesson = Lesson {
        ledger,
        accounts: BTreeMap::new(),
        confirmed: BTreeSet::new(),
        actor,
        now,
        learned: Learned::default(),
    };
    lesson.learned.doubts.extend(facts.doubts.iter().cloned());
    // Sorted from the newest to the oldest. A suspension raises the generation and a resumption does not, so of two
    // states with the same generation, the active state is newer.
    let mut tenancies: Vec<&Tenancy> = facts.tenancies.iter().collect();
    tenancies.sort_by_key(|Tenancy { identity, .. }| {
        (Reverse(identity.generation), identity.state == TenantState::Suspended)
    });
    for tenancy in tenancies {
        lesson.tenancy(tenancy, policy, source_of);
    }
    lesson.used(facts.marked_uids.iter().copied());
    for (name, generation) in &facts.bound {
        lesson.bound(name, *generation);
    }
    let seen = facts.tenancies.iter().map(|tenancy| tenancy.identity.generation);
    let mut highest =
        seen.chain(facts.bound.values().copied()).fold(ledger.last_generation.max(facts.marked()), u64::max);
    // The counter of a restored ledger does not show the ledger's age, because generations were skipped. A cluster
    // without a mark does not show it either.
    let older = highest > ledger.last_generation || facts.exceed(ledger) || ledger.learned_at.is_some();
    if older || facts.marked() == 0 {
        // A cluster without a mark may be new, so missing bindings there prove no suspension.
        let lost = if older && facts.marked() > 0 { lesson.lost_bindings(facts, policy) } else { BTreeSet::new() };
        highest = lesson.unconfirmed(facts, &lost, highest);
    }
    if older {
        lesson.left(facts, policy);
    }
    if older && !ledger.accounts.is_empty() {
        lesson.learned.doubts.push(LOST_ORDERS.to_owned());
    }
    let Lesson { accounts, mut learned, .. } = lesson;
    let changed = accounts.into_values().filter(|account| ledger.accounts.get(&account.id) != Some(account));
    let accounts: Vec<Change> = changed.map(|account| Change::Account(account.into())).collect();
    learned.changes.splice(0..0, accounts);
    learned.changes.push(Change::LastGeneration(highest + GENERATIONS_SKIPPED));
    learned
}

struct Lesson<'a> {
    ledger: &'a LedgerState,
    accounts: BTreeMap<AccountId, Account>,
    /// Accounts whose newest generation is confirmed by a seal or a binding.
    confirmed: BTreeSet<AccountId>,
    actor: &'a str,
    now: Timestamp,
    learned: Learned,
}

impl Lesson<'_> {
    fn known(&self, id: &AccountId) -> Option<Account> {
        self.accounts.get(id).or_else(|| self.ledger.accounts.get(id)).cloned()
    }

    fn tenancy(&mut self, tenancy: &Tenancy, policy: &Policy, source_of: &dyn Fn(&DirectoryId) -> Option<String>) {
        let identity = &tenancy.identity;
        let account = match self.known(&identity.id) {
            Some(account) => self.with_uid(account, identity),
            None => match self.unknown(identity, policy, source_of) {
                Ok(account) => account,
                Err(why) => {
                    let posix = identity.posix.as_ref().filter(|_| identity.account.kind == AccountKind::Group);
                    self.used(posix.map(|posix| posix.uid).into_iter());
                    let namespace = &identity.namespace;
                    let doubt = format!("namespace {namespace} in {} is not taken: {why}", identity.cluster);
                    return self.learned.doubts.push(doubt);
                }
            },
        };
        if identity.generation >= account.generation {
            self.confirmed.insert(identity.id.clone());
            // The state is compared with the ledger, because another cluster may have shown the resumption already.
            let known = self.ledger.accounts.get(&identity.id).map(|known| known.state);
            if matches!(known, Some(Lifecycle::Suspended | Lifecycle::Archived))
                && identity.state == TenantState::Active
            {
                self.forget_stopped(identity);
            }
            self.stand(account, identity);
        } else {
            self.accounts.insert(account.id.clone(), account);
        }
        let place = (identity.id.clone(), identity.cluster.clone());
        if !self.ledger.tenants.contains_key(&place) {
            let tenant = Tenant {
                class: identity.class.clone(),
                namespace: Some(identity.namespace.clone()),
                created_at: tenancy.created_at,
            };
            self.learned.changes.push(Change::Tenant(place.0, place.1, tenant));
        }
    }

    /// Returns the account of a workspace with the uid that its seal names, because no directory has the uids of
    /// workspaces. If the ledger has assigned another uid to the workspace since then, that uid stays.
    fn with_uid(&mut self, account: Account, identity: &Identity) -> Account {
        let sealed = identity.posix.as_ref().filter(|_| account.kind == AccountKind::Group);
        let Some(sealed) = sealed.filter(|sealed| account.posix.as_ref().is_none_or(|own| own.uid != sealed.uid))
        else {
            return account;
        };
        let name = account.account_name();
        if self.ledger.uid_history.get(&sealed.uid).is_some_and(|holder| *holder != account.id) {
            let doubt =
                format!("namespace {} runs as uid {}, which another account has now", identity.namespace, sealed.uid);
            self.learned.doubts.push(doubt);
            return account;
        }
        self.learned.changes.push(Change::Uid(sealed.uid, account.id.clone()));
        if let Some(own) = &account.posix {
            self.learned
                .doubts
                .push(format!("{name} had uid {} in {}; it has {} now", sealed.uid, identity.cluster, own.uid));
            return account;
        }
        let mut posix = sealed.clone();
        posix.gid = account.gid.unwrap_or(posix.gid);
        Account { gid: Some(posix.gid), posix: Some(posix), ..account }
    }

    /// Records uids that no account of the ledger has.
    fn used(&mut self, uids: impl Iterator<Item = Uid>) {
        let unknown = uids.filter(|uid| !self.ledger.uid_history.contains_key(uid));
        self.learned.changes.extend(unknown.map(|uid| Change::UsedUid(uid, self.now)));
    }

    /// Returns an account that the ledger does not have, or why it cannot be recovered.
    fn unknown(
        &mut self,
        identity: &Identity,
        policy: &Policy,
        source_of: &dyn Fn(&DirectoryId) -> Option<String>,
    ) -> Result<Account, String> {
        let source = source_of(&identity.directory_id)
            .ok_or("no directory has its entry, and the former directory is unknown")?;
        let kubernetes_name = frozen_name(identity, policy);
        let all = || self.ledger.accounts.values().chain(self.accounts.values());
        let same_name = |other: &&Account| {
            other.kind == identity.account.kind && other.kubernetes_name == kubernetes_name
                || other.source == source && other.directory_id == identity.directory_id
        };
        if let Some(other) = all().find(same_name) {
            return Err(format!("its name or its entry already belongs to {} ({})", other.account_name(), other.id.0));
        }
        if let Some(posix) = &identity.posix {
            let holder = all().find(|other| other.posix.as_ref().is_some_and(|known| known.uid == posix.uid));
            if let Some(holder) = holder {
                return Err(format!("its uid {} already belongs to {}", posix.uid, holder.account_name()));
            }
            self.learned.changes.push(Change::Uid(posix.uid, identity.id.clone()));
        }
        let name = identity.account.clone();
        Ok(Account {
            kubernetes_name,
            gid: identity.posix.as_ref().map(|posix| posix.gid).filter(|_| identity.account.kind == AccountKind::Group),
            posix: identity.posix.clone(),
            ..Account::new(identity.id.clone(), name, &source, identity.directory_id.clone(), self.now)
        })
    }

    /// Forgets the stopped workloads of an account that was resumed after the ledger recorded them. The recorded
    /// replicas are outdated.
    fn forget_stopped(&mut self, identity: &Identity) {
        let stale =
            self.ledger.stopped.keys().filter(|(id, key)| *id == identity.id && key.cluster == identity.cluster);
        let forgotten = stale.map(|(id, key)| Change::Stopped(id.clone(), key.clone(), None));
        self.learned.changes.extend(forgotten);
    }

    /// If neither a seal nor a binding confirms the generation of an account, the account gets a new generation above
    /// `highest`. Otherwise a revoked account, or a suspended account without a namespace that shows its state, would
    /// get its old access back. `lost` are the accounts to suspend. Returns the highest generation that was assigned.
    fn unconfirmed(&mut self, facts: &Facts, lost: &BTreeSet<AccountId>, mut highest: u64) -> u64 {
        let tenants = self.ledger.tenants.iter().filter(|((_, cluster), _)| facts.clusters.contains(cluster));
        let there: BTreeSet<&AccountId> = tenants.map(|((id, _), _)| id).collect();
        let unknown: Vec<Account> = there
            .into_iter()
            .filter(|id| !self.confirmed.contains(*id))
            .filter_map(|id| self.known(id))
            .filter(|account| account.generation > 0)
            .collect();
        let mut order = self.ledger.orders.iter().map(|order| order.id).max().unwrap_or(0);
        let mut again = Vec::new();
        for before in unknown {
            highest += 1;
            self.took(&before, Account { generation: highest, ..before.clone() }, "the lack of its role bindings");
            let name = before.account_name();
            if before.state != Lifecycle::Active {
                continue;
            }
            if !lost.contains(&before.id) {
                again.push(name.to_string());
                continue;
            }
            order += 1;
            let reason =
                "its role bindings are gone from the cluster; who removed them, and why, is unknown".to_owned();
            let note = Note { actor: self.actor.to_owned(), reason, ticket: None, at: self.now };
            let account = before.id.clone();
            let order = Order { id: order, account, what: OrderKind::Suspend, note, bulk: None, object: None };
            self.learned.changes.push(Change::Order(order));
            self.learned.doubts.push(format!(
                "the role bindings of {name} are gone for an unknown reason, so it is suspended; to end this: \
                 bursar resume {}",
                name.words()
            ));
        }
        if let Some((last, others)) = again.split_last() {
            let others = if others.is_empty() { String::new() } else { format!(" and {} others", others.len()) };
            self.learned.doubts.push(format!(
                "{last}{others} may have been revoked or suspended after this ledger was written, and have no namespace \
                 that shows it. They get new credentials; if the journal shows one as suspended, suspend it again"
            ));
        }
        highest
    }

    /// Returns the accounts whose role bindings are gone although other accounts of their class have role bindings:
    /// they were suspended. If no account of a class has role bindings, an administrator removed all of them, for
    /// example after the theft of a control host.
    fn lost_bindings(&self, facts: &Facts, policy: &Policy) -> BTreeSet<AccountId> {
        let bindings = self.ledger.objects.iter();
        let bindings =
            bindings.filter(|(key, _)| key.kind.stage() == Stage::Access && facts.clusters.contains(&key.cluster));
        let own = bindings.filter_map(|(key, record)| {
            let account = self.ledger.accounts.get(&record.account)?;
            let group = generation_group(&account.account_name(), account.generation);
            let subjects = record.detail.as_ref().map(JsonText::value)?;
            subjects.as_array()?.iter().find(|subject| subject["name"] == group.as_str())?;
            let tenant = self.ledger.tenants.get(&(record.account.clone(), key.cluster.clone()))?;
            let class = policy.classes.get(&tenant.class)?;
            let rule =
                class.credential.as_ref().filter(|_| !class.roles.is_empty() || !class.impersonate.is_empty())?;
            matches!(rule.kind, CredentialKind::Certificate { .. }).then_some((&class.name, &record.account))
        });
        let (kept, lost): (Vec<_>, Vec<_>) = own.partition(|(_, account)| self.confirmed.contains(*account));
        let kept: BTreeSet<&String> = kept.into_iter().map(|(class, _)| class).collect();
        lost.into_iter().filter(|(class, _)| kept.contains(class)).map(|(_, account)| account.clone()).collect()
    }

    /// Removes people from groups that they left after this ledger was written, as the role bindings of the workspace
    /// or of the class show. Otherwise these people would get their access back until a complete read shows that they
    /// left, or as long as a limit refuses their removal. A complete read adds the members again that a directory
    /// shows.
    fn left(&mut self, facts: &Facts, policy: &Policy) {
        let ledger = self.ledger;
        let people = PeopleByEntry::of(ledger);
        let users = ledger.accounts.values().filter(|account| account.kind == AccountKind::User);
        let by_generation: BTreeMap<u64, &Account> = users.map(|person| (person.generation, person)).collect();
        let bindings = ledger.objects.iter();
        let bindings =
            bindings.filter(|(key, _)| key.kind.stage() == Stage::Access && facts.clusters.contains(&key.cluster));
        let mut left: BTreeMap<AccountId, BTreeMap<AccountId, &ClusterName>> = BTreeMap::new();
        for (key, record) in bindings {
            let Some(owner) = ledger.accounts.get(&record.account) else { continue };
            let groups = self.giving(owner, key, policy);
            if groups.is_empty() {
                continue;
            }
            let subjects = record.detail.as_ref().map(JsonText::value);
            for subject in subjects.as_ref().and_then(Value::as_array).into_iter().flatten() {
                let named = subject["name"].as_str().and_then(of_generation_group);
                let person = named.and_then(|(_, generation)| by_generation.get(&generation).copied());
                let Some(person) = person.filter(|person| self.has_lost(facts, key, person)) else { continue };
                for group in &groups {
                    left.entry(group.id.clone()).or_default().insert(person.id.clone(), &key.cluster);
                }
            }
        }
        for (id, persons) in left {
            let Some(before) = self.known(&id) else { continue };
            let mut after = before.clone();
            let is_gone = |member: &DirectoryId| {
                people.get(&before, member).is_some_and(|person| persons.contains_key(&person.id))
            };
            after.members.retain(|member, _| !is_gone(member));
            after.leaving.retain(|member| !is_gone(member));
            if after == before {
                continue;
            }
            for (person, cluster) in persons {
                let Some(person) = ledger.accounts.get(&person).map(Account::account_name) else { continue };
                self.learned.doubts.push(format!(
                    "{person} counts as a former member of {}, because the role bindings in {cluster} no longer name \
                     this person; the next complete read of the directory decides",
                    before.account_name()
                ));
            }
            self.took(&before, after, "role bindings that no longer name former members");
        }
    }

    /// Whether the cluster shows that the person lost the access that a binding gives according to the ledger. This is
    /// so if bindings in the same namespace, or of the same cluster-wide role, name others, and the person has access
    /// elsewhere. Bindings that name nobody prove nothing, because they may have been deleted, or may not have been
    /// created yet.
    fn has_lost(&self, facts: &Facts, binding: &ObjectKey, person: &Account) -> bool {
        let present = self.known(&person.id).map_or(person.generation, |person| person.generation);
        let name = person.account_name();
        let is_own = |(named, generation): &(AccountName, u64)| {
            *generation == present || *generation == person.generation || *named == name
        };
        let is_like = |other: &ObjectKey| {
            other.namespace == binding.namespace
                && (binding.namespace.is_some() || role_of(&other.name) == role_of(&binding.name))
        };
        let (mut names_others, mut is_elsewhere) = (false, false);
        for (key, names) in facts.bindings.iter().filter(|(key, _)| key.cluster == binding.cluster) {
            if !is_like(key) {
                is_elsewhere |= names.iter().any(|(_, generation)| *generation == present);
            } else if names.iter().any(is_own) {
                return false;
            } else {
                names_others |= !names.is_empty();
            }
        }
        names_others && is_elsewhere
    }

    /// Returns the groups whose members get their access by a binding of `owner`. This is the workspace itself or, for
    /// a cluster-wide role, each group that a class with this role selects.
    fn giving(&self, owner: &Account, binding: &ObjectKey, policy: &Policy) -> Vec<Account> {
        if owner.kind == AccountKind::Group {
            return self.known(&owner.id).into_iter().collect();
        }
        let Some(role) = role_of(&binding.name).filter(|_| binding.namespace.is_none()) else { return Vec::new() };
        let gives = |class: &&Class| {
            let is_role = class.namespace.is_none() && class.roles.iter().any(|it| it == role);
            let is_impersonation = role.strip_suffix(&class.name) == Some("bursar-impersonate-");
            class.clusters.contains(&binding.cluster)
                && (is_role || (is_impersonation && !class.impersonate.is_empty()))
        };
        let selected = policy.classes.values().filter(gives).filter_map(|class| match &class.when {
            Some(When::Group(name)) => Some(name),
            Some(When::Base(_)) | None => None,
        });
        let selected: BTreeSet<&String> = selected.collect();
        let groups = self.ledger.accounts.values().filter(|account| account.kind == AccountKind::Group);
        // A workspace shows by its own bindings who belongs to it.
        let is_workspace = |group: &Account| self.ledger.tenants_of(&group.id).next().is_some();
        groups.filter(|group| selected.contains(&group.name) && !is_workspace(group)).cloned().collect()
    }

    /// Takes over the generation and the state that the cluster shows.
    fn stand(&mut self, account: Account, identity: &Identity) {
        let before = account.clone();
        let mut after = Account { generation: account.generation.max(identity.generation), ..account };
        match (identity.state, after.state) {
            (TenantState::Active, Lifecycle::New | Lifecycle::Suspended | Lifecycle::Archived) => {
                (after.state, after.suspension, after.since) = (Lifecycle::Active, None, self.now);
                // Otherwise a deletion that was allowed before the resumption would go on.
                after.ending = None;
            }
            (TenantState::Suspended, Lifecycle::New | Lifecycle::Active) if identity.generation > before.generation => {
                let reason = "it is suspended in the cluster; who ordered this, and why, is unknown".to_owned();
                let note = Note { actor: self.actor.to_owned(), reason, ticket: None, at: self.now };
                let name = after.account_name();
                let text =
                    format!("{name} is suspended for an unknown reason; to end this: bursar resume {}", name.words());
                self.learned.unexplained.insert(name, text);
                (after.state, after.since) = (Lifecycle::Suspended, self.now);
                after.suspension = Some(Box::new(Suspension::by(note)));
            }
            _ => {}
        }
        self.took(&before, after, &format!("namespace {} in {}", identity.namespace, identity.cluster));
    }

    /// Learns a generation from a binding. For an account without a namespace, only the binding shows its generation.
    fn bound(&mut self, name: &AccountName, generation: u64) {
        let all = self.accounts.values().chain(self.ledger.accounts.values());
        let named = all.filter(|account| account.account_name() == *name);
        let Some(before) = named.max_by_key(|account| account.generation).cloned() else { return };
        if before.generation <= generation {
            self.confirmed.insert(before.id.clone());
        }
        if before.generation < generation {
            self.took(&before, Account { generation, ..before.clone() }, "a role binding");
        }
    }

    fn took(&mut self, before: &Account, mut after: Account, from: &str) {
        if before.generation == 0 && after.generation > 0 {
            // It is unknown who holds a certificate of this generation, so the account first gets another generation.
            let reason = format!("learned from {from}; who holds its credentials is not known");
            let note = Note { actor: self.actor.to_owned(), reason, ticket: None, at: self.now };
            after.revocation = Some(Box::new(note));
        }
        if *before != after {
            let detail = json!({"state": after.state.as_str(), "generation": after.generation});
            let event = Event::new("learned", format!("from {from}"), detail).about(&after);
            self.learned.events.push(Event { actor: self.actor.to_owned(), ..event });
        }
        self.accounts.insert(after.id.clone(), after);
    }
}

/// Returns the role of a cluster-wide binding by the binding's name, `bursar-ROLE:KIND:NAME`.
fn role_of(binding: &str) -> Option<&str> {
    binding.strip_prefix("bursar-")?.rsplitn(3, ':').nth(2)
}

/// Returns the text that `{name}` stood for when the namespace was created. The name of the namespace keeps this text
/// after the account is renamed.
fn frozen_name(identity: &Identity, policy: &Policy) -> String {
    let pattern = policy.classes.get(&identity.class).and_then(|class| class.namespace.as_deref());
    let frozen = pattern.and_then(|pattern| name_in(pattern, identity.namespace.as_str()));
    frozen.map_or_else(|| kubernetes_name(&identity.account.name), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{AccountKind, ClusterName};
    use crate::plan::testing::World;

    fn tenancy(account: &Account, generation: u64, state: TenantState) -> Tenancy {
        let identity = Identity {
            cluster: ClusterName("prod".into()),
            namespace: format!("tool-{}", account.kubernetes_name).try_into().expect("the namespace name is valid"),
            id: account.id.clone(),
            directory_id: account.directory_id.clone(),
            account: account.account_name(),
            class: "tool".to_owned(),
            posix: account.posix.clone(),
            generation,
            state,
            exceptions: std::collections::BTreeSet::new(),
        };
        Tenancy { identity, created_at: Timestamp::UNIX_EPOCH }
    }

    fn applied(mut ledger: LedgerState, facts: &Facts, policy: &Policy) -> LedgerState {
        let source = |_: &DirectoryId| Some("people".to_owned());
        let learned = learn(&ledger, facts, policy, &source, "carol", Timestamp::UNIX_EPOCH);
        learned.changes.iter().for_each(|change| ledger.apply(change));
        ledger
    }

    #[test]
    fn an_older_ledger_learns_what_was_revoked_suspended_and_resumed_since() {
        let (mut world, foo) = World::with_foo();
        let bar = world.add(AccountKind::Tool, "bar", Some(52_504));
        world.cycle();
        let (old, policy) = (world.ledger.clone(), world.policy.clone());
        let facts = Facts {
            clusters: BTreeSet::new(),
            tenancies: vec![
                tenancy(&old.accounts[&foo], 7000, TenantState::Suspended),
                tenancy(&old.accounts[&bar], 3, TenantState::Active),
            ],
            bound: BTreeMap::from([(old.accounts[&bar].account_name(), 6000)]),
            bindings: BTreeMap::new(),
            marks: BTreeMap::from([(ClusterName("prod".into()), 7001)]),
            marked_uids: BTreeSet::new(),
            doubts: Vec::new(),
        };
        let ledger = applied(old.clone(), &facts, &policy);
        assert_eq!((ledger.accounts[&foo].generation, ledger.accounts[&foo].state), (7000, Lifecycle::Suspended));
        assert_eq!((ledger.accounts[&bar].generation, ledger.accounts[&bar].state), (6000, Lifecycle::Active));
        assert_eq!(ledger.accounts[&bar].revocation, None, "the ledger knew the account");
        assert_eq!(ledger.last_generation, 7001 + GENERATIONS_SKIPPED);
        let facts = Facts { tenancies: vec![tenancy(&old.accounts[&foo], 7002, TenantState::Active)], ..facts };
        assert_eq!(applied(ledger, &facts, &policy).accounts[&foo].state, Lifecycle::Active);
    }

    #[test]
    fn an_account_learned_from_a_binding_gets_another_generation_before_any_access() {
        let mut world = World::new();
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        let bound = BTreeMap::from([(world.ledger.accounts[&foo].account_name(), 50)]);
        world.ledger = applied(world.ledger.clone(), &Facts { bound, ..Facts::default() }, &world.policy);
        let account = &world.ledger.accounts[&foo];
        assert_eq!((account.state, account.generation), (Lifecycle::New, 50));
        world.cycle();
        let account = &world.ledger.accounts[&foo];
        assert_eq!((account.state, account.revocation.clone()), (Lifecycle::Active, None));
        assert!(account.generation > 50 && world.bound.values().flatten().all(|name| !name.ends_with("#50")));
    }

    /// Anybody who may create bindings in some namespace can write one with any generation and with our label.
    #[test]
    fn generations_that_no_ledger_reaches_do_not_move_the_counter() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let (old, policy) = (world.ledger.clone(), world.policy.clone());
        let account = &old.accounts[&foo];
        let last = old.last_generation;
        for forged in [u64::MAX, last + PLAUSIBLE + 1] {
            let facts = Facts {
                tenancies: vec![tenancy(account, forged, TenantState::Suspended)],
                bound: BTreeMap::from([(account.account_name(), forged)]),
                marks: BTreeMap::from([(ClusterName("prod".into()), forged)]),
                ..Facts::default()
            };
            let learned = learn(&old, &facts, &policy, &|_| None, "root", world.now);
            let named = |what: &str| learned.doubts.iter().any(|doubt| doubt.contains(what));
            assert!(
                ["namespace tool-foo", "binding of tool:foo", "mark of prod"].into_iter().all(named),
                "{learned:#?}"
            );
            let ledger = applied(old.clone(), &facts, &policy);
            assert!((last + GENERATIONS_SKIPPED..last + 3 * GENERATIONS_SKIPPED).contains(&ledger.last_generation));
            assert_eq!(ledger.accounts[&foo].state, account.state);
        }
        let facts = Facts { bound: BTreeMap::from([(account.account_name(), last + PLAUSIBLE)]), ..Facts::default() };
        assert!(applied(old, &facts, &policy).last_generation > last + PLAUSIBLE);
    }

    #[test]
    fn an_older_ledger_forgets_the_stopped_workloads_of_a_resumed_account() {
        let mut world = World::new();
        world.another_cluster("b");
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycle();
        world.account(&foo).disabled = Some("mark".to_owned());
        world.cycles(2);
        let (old, policy) = (world.ledger.clone(), world.policy.clone());
        assert_eq!(old.stopped.len(), 2);
        let seen = |state| Facts {
            tenancies: ["prod", "b"].map(|cluster| seal(&world, &foo, cluster, 7000, state)).to_vec(),
            ..Facts::default()
        };
        assert_eq!(applied(old.clone(), &seen(TenantState::Suspended), &policy).stopped.len(), 2);
        assert!(applied(old.clone(), &seen(TenantState::Active), &policy).stopped.is_empty());
        // It was archived, and its deletion had begun.
        let ending = Some(crate::ledger::Ending::Deletion { at: world.now });
        let mut archived = old.accounts[&foo].clone();
        (archived.state, archived.ending) = (Lifecycle::Archived, ending);
        let mut old = old;
        old.apply(&Change::Account(archived.into()));
        let resumed = applied(old.clone(), &seen(TenantState::Active), &policy);
        let account = &resumed.accounts[&foo];
        assert_eq!((account.state, account.ending, account.generation), (Lifecycle::Active, None, 7000));
        assert!(account.suspension.is_none() && resumed.stopped.is_empty());
        let account = &applied(old, &seen(TenantState::Suspended), &policy).accounts[&foo];
        assert_eq!((account.state, account.ending), (Lifecycle::Archived, ending));
    }

    fn seal(world: &World, id: &AccountId, cluster: &str, generation: u64, state: TenantState) -> Tenancy {
        let mut sealed = tenancy(&world.ledger.accounts[id], generation, state);
        sealed.identity.cluster = ClusterName(cluster.into());
        sealed
    }

    #[test]
    fn a_seal_of_an_older_generation_resumes_nobody() {
        let mut world = World::new();
        world.another_cluster("b");
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycle();
        let before = world.ledger.accounts[&foo].generation;
        world.order(&foo, OrderKind::Suspend);
        world.cycles(2);
        let suspended = world.ledger.accounts[&foo].clone();
        assert!(suspended.generation > before && !world.ledger.stopped.is_empty());
        let of_b = seal(&world, &foo, "b", before, TenantState::Active);
        let of_prod = seal(&world, &foo, "prod", suspended.generation, TenantState::Suspended);
        let seen = |tenancies: &[&Tenancy]| Facts {
            tenancies: tenancies.iter().map(|&tenancy| tenancy.clone()).collect(),
            ..Facts::default()
        };
        // The current ledger and a lost ledger, each with a cluster whose seal could not be written.
        for (ledger, tenancies) in [
            (world.ledger.clone(), vec![&of_prod, &of_b]),
            (world.ledger.clone(), vec![&of_b, &of_prod]),
            (world.ledger.clone(), vec![&of_b]),
            (LedgerState::default(), vec![&of_b, &of_prod]),
            (LedgerState::default(), vec![&of_prod, &of_b]),
        ] {
            let stopped = ledger.stopped.clone();
            let learned = applied(ledger, &seen(&tenancies), &world.policy);
            let account = &learned.accounts[&foo];
            assert_eq!((account.state, account.generation), (Lifecycle::Suspended, suspended.generation));
            assert!(Suspension::is_ordered(account.suspension.as_deref()) && learned.stopped == stopped);
        }
        // The account was resumed while b was unreachable: b shows an older state of the same generation.
        let of_prod = seal(&world, &foo, "prod", suspended.generation, TenantState::Active);
        let of_b = seal(&world, &foo, "b", suspended.generation, TenantState::Suspended);
        let learned = applied(world.ledger.clone(), &seen(&[&of_b, &of_prod]), &world.policy);
        assert_eq!(learned.accounts[&foo].state, Lifecycle::Active);
        assert_eq!(applied(learned.clone(), &seen(&[&of_b]), &world.policy).accounts[&foo], learned.accounts[&foo]);
    }

    /// Two administrators without a namespace, and two tools. The bindings of the first administrator and of the first
    /// tool are gone from the cluster.
    #[test]
    fn a_generation_that_nothing_confirms_is_never_bound_again() {
        let mut world = World::new();
        let group = world.add(AccountKind::Group, "k8s-admins", None);
        let [bob, carol] = [("bob", 20_002), ("carol", 20_003)].map(|(name, uid)| {
            let id = world.add(AccountKind::User, name, Some(uid));
            world.join(&group, &id);
            id
        });
        let [foo, bar] =
            [("foo", 52_503), ("bar", 52_504)].map(|(name, uid)| world.add(AccountKind::Tool, name, Some(uid)));
        world.cycles(2);
        let old = world.ledger.clone();
        let stands = |id: &AccountId| (old.accounts[id].account_name(), old.accounts[id].generation);
        assert!([&bob, &carol, &foo, &bar].iter().all(|id| stands(id).1 > 0));
        let prod = |generation| BTreeMap::from([(ClusterName("prod".into()), generation)]);
        let facts = Facts {
            clusters: BTreeSet::from([ClusterName("prod".into())]),
            bound: BTreeMap::from([stands(&carol), stands(&bar)]),
            marks: prod(old.last_generation + 2),
            ..Facts::default()
        };
        let learned = applied(old.clone(), &facts, &world.policy);
        for id in [&bob, &foo] {
            assert!(learned.accounts[id].generation > facts.marked());
            assert!(learned.last_generation >= learned.accounts[id].generation + GENERATIONS_SKIPPED);
        }
        for id in [&carol, &bar] {
            assert_eq!(learned.accounts[id], old.accounts[id]);
        }
        world.ledger = learned;
        world.cycles(2);
        for (id, state) in [
            (&bob, Lifecycle::Suspended),
            (&foo, Lifecycle::Suspended),
            (&carol, Lifecycle::Active),
            (&bar, Lifecycle::Active),
        ] {
            let account = &world.ledger.accounts[id];
            assert_eq!(account.state, state, "{}", account.account_name());
            assert_eq!(Suspension::is_ordered(account.suspension.as_deref()), state == Lifecycle::Suspended);
        }

        let orders = |ledger: &LedgerState, facts: &Facts| {
            let learned = applied(ledger.clone(), facts, &world.policy);
            (learned.accounts[&bob].generation > stands(&bob).1, learned.orders.len())
        };
        let nobody = Facts { bound: BTreeMap::new(), ..facts.clone() };
        assert_eq!(orders(&old, &nobody), (true, 0), "an administrator removed all of them");
        let unmarked = Facts { marks: BTreeMap::new(), ..facts.clone() };
        assert_eq!(orders(&old, &unmarked), (true, 0), "a cluster without a mark may be new");
        let current = Facts { marks: prod(old.last_generation), ..facts.clone() };
        assert_eq!(orders(&old, &current), (false, 0), "this ledger is not older");
        let restored = LedgerState { learned_at: Some(world.now), ..old.clone() };
        assert_eq!(orders(&restored, &current), (true, 2), "the counter of a restored ledger does not show its age");
        let caught_up = LedgerState { cluster_marks: prod(old.last_generation - 1), ..old.clone() };
        assert_eq!(orders(&caught_up, &current), (true, 2), "new orders raised the counter after the rollback");
        let elsewhere = Facts { clusters: BTreeSet::new(), ..facts };
        assert_eq!(orders(&old, &elsewhere), (false, 0), "the cluster was not asked");
    }

    /// Students alice and bob in workspace algebra; bob is also an administrator, like carol.
    fn course() -> (World, [AccountId; 4]) {
        let (mut world, alice, algebra) = World::in_course();
        world.class("course").when = Some(When::Base("cn=algebra,ou=groups,dc=example,dc=org".to_owned()));
        let [bob, carol] = [("bob", 20_002), ("carol", 20_003)].map(|(name, uid)| {
            let id = world.add(AccountKind::User, name, Some(uid));
            world.account(&id).dn = format!("uid={name},ou=students,dc=example,dc=org");
            world.join(&algebra, &id);
            id
        });
        let admins = world.add(AccountKind::Group, "k8s-admins", None);
        world.join(&admins, &bob);
        world.join(&admins, &carol);
        world.cycles(3);
        (world, [alice, bob, algebra, admins])
    }

    /// Returns the places in which bindings name the account: namespaces, or `None` for the whole cluster.
    fn places(world: &World, id: &AccountId) -> BTreeSet<Option<String>> {
        let name = world.ledger.accounts[id].account_name();
        let is_named = |names: &&Vec<String>| {
            names.iter().filter_map(|it| of_generation_group(it)).any(|(account, _)| account == name)
        };
        let bound = world.bound.iter().filter(|(_, names)| is_named(names));
        bound.map(|(key, _)| key.namespace.as_ref().map(ToString::to_string)).collect()
    }

    #[test]
    fn an_older_ledger_gives_no_access_back_to_people_who_left_since() {
        let (mut world, [alice, bob, algebra, admins]) = course();
        let (own, workspace) = (Some("user-bob".to_owned()), Some("workspace-algebra".to_owned()));
        assert_eq!(places(&world, &bob), BTreeSet::from([None, own.clone(), workspace.clone()]));
        let (older, with_alice) = (world.ledger.clone(), places(&world, &alice));
        let entry = world.account(&bob).directory_id.clone();
        for group in [&algebra, &admins] {
            world.account(group).leaving.insert(entry.clone());
        }
        world.cycles(3);
        assert_eq!(places(&world, &bob), BTreeSet::from([own.clone()]));
        for is_partial in [true, false] {
            let mut world = world.clone();
            assert!(world.take_over(older.clone()));
            if is_partial {
                // No read has shown yet that he left.
                world.source(crate::snapshot::Completeness::Partial { why: "cut".to_owned() });
                world.ledger.accounts.values_mut().for_each(|account| account.leaving.clear());
            } else {
                world.policy.limits.remove_members_per_cycle = crate::policy::Limit { count: 0, percent: None };
            }
            for _ in 0..2 {
                world.cycle();
                assert_eq!(places(&world, &bob), BTreeSet::from([own.clone()]), "partial: {is_partial}");
                assert_eq!(places(&world, &alice), with_alice);
            }
            // A complete read shows him again.
            world.source(crate::snapshot::Completeness::Complete);
            for group in [&algebra, &admins] {
                world.join(group, &bob);
            }
            world.cycles(3);
            assert_eq!(places(&world, &bob), BTreeSet::from([None, own.clone(), workspace.clone()]));
        }
    }

    #[test]
    fn bindings_that_name_nobody_prove_no_departure() {
        let (world, [_, bob, algebra, admins]) = course();
        let members = |facts: &Facts| {
            let learned = applied(world.ledger.clone(), facts, &world.policy);
            [&algebra, &admins].map(|group| learned.accounts[group].members.len())
        };
        let mut facts = world.facts();
        for mark in facts.marks.values_mut() {
            *mark += 1;
        }
        assert_eq!(members(&facts), [3, 2]);
        let keep = |facts: &Facts, keeps: &dyn Fn(&ObjectKey) -> bool| {
            let mut facts = facts.clone();
            facts.bindings.retain(|key, _| keeps(key));
            facts
        };
        // Somebody deleted all bindings of the workspace, or all cluster-wide ones.
        let is_of_algebra = |key: &ObjectKey| key.namespace.as_deref() == Some("workspace-algebra");
        assert_eq!(members(&keep(&facts, &|key| !is_of_algebra(key))), [3, 2]);
        assert_eq!(members(&keep(&facts, &|key| key.namespace.is_some())), [3, 2]);
        // Nothing in the cluster shows that he has access at all.
        let mut suspended = facts.clone();
        let generation = world.ledger.accounts[&bob].generation;
        for names in suspended.bindings.values_mut() {
            names.retain(|(_, named)| *named != generation);
        }
        assert_eq!(members(&suspended), [3, 2]);
        // The class no longer gives the role.
        let mut left = facts.clone();
        left.bindings
            .retain(|key, names| key.namespace.is_some() || names.iter().all(|(_, named)| *named != generation));
        assert_eq!(members(&left), [3, 1]);
        let mut policy = world.policy.clone();
        policy.classes.remove("admin");
        assert_eq!(applied(world.ledger.clone(), &left, &policy).accounts[&admins].members.len(), 2);
        // This ledger is not older than the cluster.
        left.marks = world.facts().marks;
        assert_eq!(members(&left), [3, 2]);
    }

    #[test]
    fn a_lost_ledger_recovers_ids_uids_and_frozen_names() {
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let mut renamed = world.ledger.accounts[&foo].clone();
        renamed.name = "web".to_owned();
        let facts = Facts { tenancies: vec![tenancy(&renamed, 1001, TenantState::Active)], ..Facts::default() };
        let ledger = applied(LedgerState::default(), &facts, &world.policy);
        let account = &ledger.accounts[&foo];
        assert_eq!((account.name.as_str(), account.kubernetes_name.as_str()), ("web", "foo"));
        assert_eq!((account.generation, account.state, account.posix.is_some()), (1001, Lifecycle::Active, true));
        assert!(account.revocation.is_some(), "the account gets another generation first");
        assert_eq!(ledger.uid_history.len(), 1);
        assert_eq!(ledger.tenants.len(), 1);
        // A second namespace that claims the same name is not believed.
        let mut twin = tenancy(&renamed, 1001, TenantState::Active);
        twin.identity.id = AccountId("another".into());
        let facts = Facts { tenancies: vec![facts.tenancies[0].clone(), twin], ..Facts::default() };
        let source = |_: &DirectoryId| Some("people".to_owned());
        let learned = learn(&LedgerState::default(), &facts, &world.policy, &source, "carol", Timestamp::UNIX_EPOCH);
        assert_eq!(learned.doubts.len(), 1, "{:?}", learned.doubts);
    }
}
