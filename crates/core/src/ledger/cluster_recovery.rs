//! What a cluster still shows of a ledger that was lost, or that is older than what was done since.
//!
//! The cluster is believed where it is newer: a generation that is higher there was a revocation, a sealed state is what
//! was in force. Nobody's certificate is revived and nobody is suspended by it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::json;

use super::change::{Change, Event};
use super::{Account, LedgerState, Lifecycle, Note, Suspension, Tenant};
use crate::contract::{Identity, TenantState};
use crate::identity::{AccountId, AccountName, DirectoryId, kubernetes_name, name_in};
use crate::policy::Policy;

/// Added to the highest generation that was seen anywhere: those given out since, and of which nothing is left to see,
/// must not be given out again. More than any site revokes in the time between two backups.
pub const GENERATIONS_SKIPPED: u64 = 1000;

/// A namespace whose seal holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenancy {
    /// What it says.
    pub identity: Identity,
    /// When the namespace was created.
    pub created_at: Timestamp,
}

/// What clusters show.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Namespaces of tenants.
    pub tenancies: Vec<Tenancy>,
    /// The highest generation that a binding of ours names for an account.
    pub bound: BTreeMap<AccountName, u64>,
    /// The highest generation that a signed mark has: everything up to it may have been in use.
    pub marked: u64,
    /// Findings about objects of ours that cannot be believed, for people.
    pub doubts: Vec<String>,
}

impl Facts {
    /// Adds what another cluster shows.
    pub fn extend(&mut self, other: Self) {
        let Self { tenancies, bound, marked, doubts } = other;
        self.tenancies.extend(tenancies);
        for (account, generation) in bound {
            let known = self.bound.entry(account).or_default();
            *known = generation.max(*known);
        }
        self.marked = self.marked.max(marked);
        self.doubts.extend(doubts);
    }
}

/// What follows from it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Learned {
    /// For the ledger.
    pub changes: Vec<Change>,
    /// For the history.
    pub events: Vec<Event>,
    /// What remains unknown, for people.
    pub doubts: Vec<String>,
}

/// What `ledger` does not know of what `facts` show. `source_of`: which directory has an entry.
#[must_use]
pub fn learn(
    ledger: &LedgerState,
    facts: &Facts,
    policy: &Policy,
    source_of: &dyn Fn(&DirectoryId) -> Option<String>,
    actor: &str,
    now: Timestamp,
) -> Learned {
    let mut lesson = Lesson { ledger, accounts: BTreeMap::new(), actor, now, learned: Learned::default() };
    lesson.learned.doubts.extend(facts.doubts.iter().cloned());
    for tenancy in &facts.tenancies {
        lesson.tenancy(tenancy, policy, source_of);
    }
    for (name, generation) in &facts.bound {
        lesson.bound(name, *generation);
    }
    let seen = facts.tenancies.iter().map(|tenancy| tenancy.identity.generation);
    let highest = seen.chain(facts.bound.values().copied()).fold(ledger.last_generation.max(facts.marked), u64::max);
    let Lesson { accounts, mut learned, .. } = lesson;
    let changed = accounts.into_values().filter(|account| ledger.accounts.get(&account.id) != Some(account));
    let accounts: Vec<Change> = changed.map(|account| Change::Account(Box::new(account))).collect();
    learned.changes.splice(0..0, accounts);
    learned.changes.push(Change::LastGeneration(highest + GENERATIONS_SKIPPED));
    learned
}

struct Lesson<'a> {
    ledger: &'a LedgerState,
    accounts: BTreeMap<AccountId, Account>,
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
            Some(account) => account,
            None => match self.unknown(identity, policy, source_of) {
                Ok(account) => account,
                Err(why) => {
                    let namespace = &identity.namespace;
                    let doubt = format!("namespace {namespace} in {} is not taken: {why}", identity.cluster);
                    return self.learned.doubts.push(doubt);
                }
            },
        };
        if account.state == Lifecycle::Suspended && identity.state == TenantState::Active {
            self.forget_stopped(identity);
        }
        self.stand(account, identity);
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

    /// An account that the ledger never heard of, or forgot.
    fn unknown(
        &mut self,
        identity: &Identity,
        policy: &Policy,
        source_of: &dyn Fn(&DirectoryId) -> Option<String>,
    ) -> Result<Account, String> {
        let source =
            source_of(&identity.directory_id).ok_or("no directory has its entry, and which one had is lost")?;
        let kubernetes_name = frozen_name(identity, policy);
        let all = || self.ledger.accounts.values().chain(self.accounts.values());
        let same_name = |other: &&Account| {
            other.kind == identity.account.kind && other.kubernetes_name == kubernetes_name
                || other.source == source && other.directory_id == identity.directory_id
        };
        if let Some(other) = all().find(same_name) {
            return Err(format!("its name or its entry is that of {} ({}) already", other.account_name(), other.id.0));
        }
        if let Some(posix) = &identity.posix {
            let holder = all().find(|other| other.posix.as_ref().is_some_and(|known| known.uid == posix.uid));
            if let Some(holder) = holder {
                return Err(format!("its uid {} is that of {} already", posix.uid, holder.account_name()));
            }
            self.learned.changes.push(Change::Uid(posix.uid, identity.id.clone()));
        }
        Ok(Account {
            id: identity.id.clone(),
            kind: identity.account.kind,
            name: identity.account.name.clone(),
            kubernetes_name,
            source,
            directory_id: identity.directory_id.clone(),
            dn: String::new(),
            posix: identity.posix.clone(),
            gid: None,
            home: None,
            mail: None,
            display_name: None,
            ssh_keys: std::collections::BTreeSet::new(),
            disabled: None,
            members: BTreeMap::new(),
            leaving: std::collections::BTreeSet::new(),
            absence: None,
            state: Lifecycle::New,
            since: self.now,
            suspension: None,
            generation: 0,
            revocation: None,
            ending: None,
            sid: None,
        })
    }

    /// It was resumed since: what its workloads were before the suspension is no longer what they should be.
    fn forget_stopped(&mut self, identity: &Identity) {
        let stale =
            self.ledger.stopped.keys().filter(|(id, key)| *id == identity.id && key.cluster == identity.cluster);
        let forgotten = stale.map(|(id, key)| Change::Stopped(id.clone(), key.clone(), None));
        self.learned.changes.extend(forgotten);
    }

    /// Generation and state as the cluster has them.
    fn stand(&mut self, account: Account, identity: &Identity) {
        let before = account.clone();
        let mut after = Account { generation: account.generation.max(identity.generation), ..account };
        match (identity.state, after.state) {
            (TenantState::Active, Lifecycle::New | Lifecycle::Suspended) => {
                (after.state, after.suspension, after.since) = (Lifecycle::Active, None, self.now);
            }
            (TenantState::Suspended, Lifecycle::New | Lifecycle::Active) => {
                let reason = "it is suspended in the cluster; who asked for it, and why, is lost".to_owned();
                let note = Note { actor: self.actor.to_owned(), reason, ticket: None, at: self.now };
                let name = after.account_name();
                self.learned.doubts.push(format!("why {name} is suspended is lost; `bursar resume` ends it"));
                (after.state, after.since) = (Lifecycle::Suspended, self.now);
                after.suspension = Some(Suspension::Ordered(note));
            }
            _ => {}
        }
        self.took(&before, after, &format!("namespace {} in {}", identity.namespace, identity.cluster));
    }

    /// An account without a namespace has its generation in bindings only.
    fn bound(&mut self, name: &AccountName, generation: u64) {
        let all = self.accounts.values().chain(self.ledger.accounts.values());
        let named = all.filter(|account| account.account_name() == *name);
        let Some(before) = named.max_by_key(|account| account.generation).cloned() else { return };
        if before.generation < generation {
            self.took(&before, Account { generation, ..before.clone() }, "a role binding");
        }
    }

    fn took(&mut self, before: &Account, mut after: Account, from: &str) {
        if before.generation == 0 && after.generation > 0 {
            // Who holds a certificate of its generation is not known: it gets another one before anything else.
            let reason = format!("learned from {from}; who holds its credentials is not known");
            after.revocation = Some(Note { actor: self.actor.to_owned(), reason, ticket: None, at: self.now });
        }
        if *before != after {
            self.learned.events.push(Event {
                actor: self.actor.to_owned(),
                account: Some(after.account_name()),
                account_id: Some(after.id.clone()),
                action: "learned".to_owned(),
                reason: format!("from {from}"),
                ticket: None,
                plan: None,
                detail: json!({"state": after.state.as_str(), "generation": after.generation}),
            });
        }
        self.accounts.insert(after.id.clone(), after);
    }
}

/// What `{name}` stood for when the namespace was made: it is in the namespace's name, also after a rename.
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
            cluster: ClusterName("prod".to_owned()),
            namespace: format!("tool-{}", account.kubernetes_name).try_into().expect("a namespace"),
            id: account.id.clone(),
            directory_id: account.directory_id.clone(),
            account: account.account_name(),
            class: "tool".to_owned(),
            posix: account.posix.clone(),
            generation,
            state,
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
        let mut world = World::new();
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        let bar = world.add(AccountKind::Tool, "bar", Some(52_504));
        world.cycle();
        let (old, policy) = (world.ledger.clone(), world.policy.clone());
        let facts = Facts {
            tenancies: vec![
                tenancy(&old.accounts[&foo], 7000, TenantState::Suspended),
                tenancy(&old.accounts[&bar], 3, TenantState::Active),
            ],
            bound: BTreeMap::from([(old.accounts[&bar].account_name(), 6000)]),
            marked: 7001,
            doubts: Vec::new(),
        };
        let ledger = applied(old.clone(), &facts, &policy);
        assert_eq!((ledger.accounts[&foo].generation, ledger.accounts[&foo].state), (7000, Lifecycle::Suspended));
        assert_eq!((ledger.accounts[&bar].generation, ledger.accounts[&bar].state), (6000, Lifecycle::Active));
        assert_eq!(ledger.accounts[&bar].revocation, None, "the ledger knew it");
        assert_eq!(ledger.last_generation, 7001 + GENERATIONS_SKIPPED);
        let facts = Facts { tenancies: vec![tenancy(&old.accounts[&foo], 7002, TenantState::Active)], ..facts };
        assert_eq!(applied(ledger, &facts, &policy).accounts[&foo].state, Lifecycle::Active);
    }

    #[test]
    fn an_older_ledger_forgets_what_a_suspension_stopped_that_is_over() {
        let mut world = World::new();
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycle();
        world.account(&foo).disabled = Some("mark".to_owned());
        (0..2).for_each(|_| drop(world.cycle()));
        let (old, policy) = (world.ledger.clone(), world.policy.clone());
        assert_eq!(old.stopped.len(), 1);
        let seen = |state| Facts { tenancies: vec![tenancy(&old.accounts[&foo], 7000, state)], ..Facts::default() };
        assert_eq!(applied(old.clone(), &seen(TenantState::Suspended), &policy).stopped.len(), 1);
        assert!(applied(old.clone(), &seen(TenantState::Active), &policy).stopped.is_empty());
    }

    #[test]
    fn a_lost_ledger_gets_back_ids_uids_and_frozen_names() {
        let mut world = World::new();
        let foo = world.add(AccountKind::Tool, "foo", Some(52_503));
        world.cycle();
        let mut renamed = world.ledger.accounts[&foo].clone();
        renamed.name = "web".to_owned();
        let facts = Facts { tenancies: vec![tenancy(&renamed, 1001, TenantState::Active)], ..Facts::default() };
        let ledger = applied(LedgerState::default(), &facts, &world.policy);
        let account = &ledger.accounts[&foo];
        assert_eq!((account.name.as_str(), account.kubernetes_name.as_str()), ("web", "foo"));
        assert_eq!((account.generation, account.state, account.posix.is_some()), (1001, Lifecycle::Active, true));
        assert!(account.revocation.is_some(), "another generation comes before anything else");
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
