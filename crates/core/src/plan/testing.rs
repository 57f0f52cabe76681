//! A model of the world for tests of the stages without I/O: a ledger, clusters and homes as plain values, and an
//! executor that applies a plan to them.

pub mod crossings;
mod delivery;
mod policy;
mod recovery;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use crate::contract::{Identity, Sealer, identity_of};
use crate::desired::credential::is_ours;
use crate::desired::{DesiredState, derive, detail};
use crate::identity::{
    AccountId, AccountKind, AccountName, ClusterName, DirectoryId, Gid, NamespaceName, PosixIdentity, Uid,
};
use crate::inventory::quota::ObservedQuota;
use crate::inventory::repairs::Repairs;
use crate::inventory::{ClusterInventory, Inventory, ObservedObject, Rare};
use crate::kinds::{ManagedKind, ObjectKey, ObjectKind, ObjectName, Stage};
use crate::ledger::change::{Change, Event};
use crate::ledger::idle::Idleness;
use crate::ledger::transition::{ReadChanges, transition};
use crate::ledger::{
    Account, Archive, CredentialKey, Delivery, LedgerState, Note, ObjectRecord, Order, OrderKind, SourceState,
    StoppedWorkload, Unresolved,
};
use crate::merge::merge;
use crate::packed_text::{DigestText, UuidText};
use crate::plan::credential::{forget, lasts};
use crate::plan::intents::{burnt, overcome};
use crate::plan::quota::lapsed;
use crate::plan::revocation::advance;
use crate::plan::{AccountPlan, Action, ApprovedPlan, Bounds, Plan, PlanInputs, Reason, Refusal, guard, plan};
use crate::policy::{Class, CredentialKind, PodSecurity, Policy};
use crate::snapshot::{Completeness, DirectorySnapshot, Entry, Role, SourceRead, Way};

pub use self::policy::{course, policy, profile, workspace_of};

pub const SOURCE: &str = "people";

/// The inputs of a plan, and the effects of its execution.
#[derive(Debug, Clone)]
pub struct World {
    pub ledger: LedgerState,
    pub inventory: Inventory,
    pub policy: Policy,
    pub sealer: Arc<Sealer>,
    pub now: Timestamp,
    /// Whether a finalizer keeps namespaces that are deleted.
    pub stuck: bool,
    /// Whether `bursar-homed` does not answer.
    pub homes_away: bool,
    /// Clusters in which the daemon's confinement is not confirmed, although the policy requires it.
    pub unconfined: BTreeSet<ClusterName>,
    /// The names in each binding.
    pub bound: BTreeMap<ObjectKey, Vec<String>>,
    /// The seal of each namespace.
    pub sealed: BTreeMap<ObjectKey, Identity>,
    /// The generation in the mark of each cluster.
    pub marks: BTreeMap<ClusterName, u64>,
    uids: u64,
}

pub fn prod() -> ClusterName {
    ClusterName("prod".into())
}

impl World {
    pub fn new() -> Self {
        let now: Timestamp = "2026-05-03T12:00:00Z".parse().expect("the text is a timestamp");
        let mut world = Self {
            ledger: LedgerState { ledger_id: "ledger".to_owned(), last_generation: 1000, ..LedgerState::default() },
            inventory: Inventory::default(),
            policy: policy(),
            sealer: Arc::new(Sealer::from_seed(&[7; 32]).expect("32 bytes are a seed")),
            now,
            stuck: false,
            homes_away: false,
            unconfined: BTreeSet::new(),
            bound: BTreeMap::new(),
            sealed: BTreeMap::new(),
            marks: BTreeMap::new(),
            uids: 0,
        };
        world.inventory.clusters.insert(prod(), Arc::default());
        world.source(Completeness::Complete);
        world
    }

    /// Returns a world with the tool foo.
    pub fn with_foo() -> (Self, AccountId) {
        let mut world = Self::new();
        let id = world.add(AccountKind::Tool, "foo", Some(52_503));
        (world, id)
    }

    pub fn source(&mut self, completeness: Completeness) {
        let state = SourceState {
            server: Some("ldap1.example.org".to_owned()),
            completeness,
            entries: self.ledger.accounts.len() as u64,
            took_ms: 230,
            read_at: self.now,
            complete_at: Some(self.now),
            numbers: None,
            way: Way::Full,
            compared: None,
            servers: BTreeMap::new(),
            failures: 0,
            unresolved: Unresolved::default(),
        };
        self.ledger.sources.insert(SOURCE.to_owned(), state);
    }

    /// Adds an account that the ledger knows from a directory entry, and returns its id.
    pub fn add(&mut self, kind: AccountKind, name: &str, uid: Option<i64>) -> AccountId {
        let directory_id = DirectoryId(format!("{kind}-{name}-id"));
        let id = AccountId::derive("ledger", SOURCE, &directory_id);
        let posix = uid.map(|uid| PosixIdentity {
            uid: Uid::try_from(uid).expect("the id is in range"),
            gid: Gid::try_from(uid).expect("the id is in range"),
            groups: BTreeSet::new(),
        });
        let home = if kind == AccountKind::Tool { "/data/project" } else { "/home" };
        let account = Account {
            dn: format!("cn={name},ou={kind}s,dc=example,dc=org"),
            home: posix.as_ref().map(|_| format!("{home}/{name}").into()),
            posix,
            ..Account::new(id.clone(), AccountName { kind, name: name.to_owned() }, SOURCE, directory_id, self.now)
        };
        self.ledger.accounts.insert(account);
        id
    }

    /// Returns a world in which nothing is left to do, the student alice, and the workspace algebra with her.
    pub fn in_course() -> (Self, AccountId, AccountId) {
        let mut world = Self::new();
        let course = course();
        world.policy.classes.insert(course.name.clone(), course);
        let alice = world.add(AccountKind::User, "alice", Some(20_001));
        "uid=alice,ou=students,dc=example,dc=org".clone_into(&mut world.account(&alice).dn);
        let algebra = world.add(AccountKind::Group, "algebra", None);
        world.join(&algebra, &alice);
        world.cycles(3);
        (world, alice, algebra)
    }

    pub fn id(&self, kind: AccountKind, name: &str) -> AccountId {
        let found = self.ledger.accounts.values().find(|account| account.kind == kind && account.name == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}")).id.clone()
    }

    pub fn account(&mut self, id: &AccountId) -> &mut Account {
        self.ledger.accounts.get_mut(id).expect("the world has this account")
    }

    pub fn class(&mut self, name: &str) -> &mut Class {
        self.policy.classes.get_mut(name).expect("the policy has this class")
    }

    /// Returns the kind of a class's credential.
    pub fn credential(&mut self, class: &str) -> &mut CredentialKind {
        &mut self.class(class).credential.as_mut().expect("the class has a credential").kind
    }

    /// Returns an administrator's note for an order or a hold at the present time.
    pub fn note(&self, reason: &str) -> Note {
        Note { actor: "root".to_owned(), reason: reason.to_owned(), ticket: None, at: self.now }
    }

    pub fn hold(&mut self, id: &AccountId) {
        let note = self.note("audit");
        self.ledger.holds.insert(id.clone(), note);
    }

    /// Records an order, which the next cycle carries out.
    pub fn order(&mut self, id: &AccountId, what: OrderKind) {
        let (account, note) = (id.clone(), self.note("stolen"));
        let id = self.ledger.orders.last().map_or(1, |order| order.id + 1);
        self.ledger.orders.push(Order { id, account, what, note, bulk: None, object: None });
    }

    pub fn join(&mut self, group: &AccountId, member: &AccountId) {
        let member = self.account(member).directory_id.clone();
        self.account(group).members.insert(member, Role::Member);
    }

    pub fn cluster(&mut self) -> &mut ClusterInventory {
        Arc::make_mut(self.inventory.clusters.entry(prod()).or_default())
    }

    /// Adds a cluster, and gives it to the class of tools.
    pub fn another_cluster(&mut self, name: &str) {
        let name = ClusterName(name.into());
        let face = self.policy.clusters[&prod()].clone();
        self.policy.clusters.insert(name.clone(), face);
        self.inventory.clusters.insert(name.clone(), Arc::default());
        self.class("tool").clusters.push(name);
    }

    /// Removes a cluster from the configuration and from the inventory.
    pub fn without_cluster(&mut self, name: &str) {
        let name = ClusterName(name.into());
        self.policy.clusters.remove(&name);
        self.inventory.clusters.remove(&name);
        for class in self.policy.classes.values_mut() {
            class.clusters.retain(|cluster| *cluster != name);
        }
    }

    pub fn in_cluster(&mut self, cluster: &ClusterName) -> &mut ClusterInventory {
        Arc::make_mut(self.inventory.clusters.get_mut(cluster).expect("the cluster answers"))
    }

    /// Returns the answer of a directory with these entries.
    pub fn answer(&self, entries: Vec<Entry>, completeness: Completeness) -> DirectorySnapshot {
        let read = SourceRead {
            server: Some("ldap1.example.org".to_owned()),
            completeness,
            took: Duration::from_millis(230),
            ..SourceRead::complete(SOURCE, [AccountKind::Tool, AccountKind::User, AccountKind::Group], entries)
        };
        merge(vec![read], BTreeSet::new(), &self.policy, &self.ledger)
    }

    pub fn remember(&mut self, snapshot: &DirectorySnapshot) -> Vec<Event> {
        let ReadChanges { changes, events } = transition(&self.ledger, snapshot, &self.policy, self.now);
        self.ledger.apply_all(&changes);
        self.ledger.apply_all(&self.ledger.count_terms(self.now));
        events
    }

    pub fn desired(&self) -> DesiredState {
        derive(&self.ledger, &self.policy, &self.sealer, self.now)
    }

    pub fn inputs(&self) -> PlanInputs<'_> {
        let Self { ledger, inventory, policy, sealer, now, .. } = self;
        PlanInputs { ledger, inventory, policy, sealer, now: *now }
    }

    pub fn plan(&self) -> Plan {
        plan(&self.desired(), &self.ledger, &self.inventory, &self.policy, self.now)
            .expect("all manifests were derived")
    }

    pub fn guarded(&self) -> (ApprovedPlan, Vec<Refusal>) {
        guard(self.plan(), &self.bounds(), self.now)
    }

    fn bounds(&self) -> Bounds {
        Bounds { unconfined: self.unconfined.clone(), ..Bounds::of(&self.ledger, &self.policy) }
    }

    /// Observes foreign namespaces and all counted facts, and records them.
    pub fn look(&mut self) -> Vec<Event> {
        let without = crate::desired::groups_without_uid(&self.ledger, &self.policy);
        let (changes, _) = crate::ledger::workspace_uid::assign(&self.ledger, &without);
        self.ledger.apply_all(&changes);
        let (changes, events) = super::adopted::look(&self.ledger, &self.inventory, &self.policy, self.now);
        self.ledger.apply_all(&changes);
        self.ledger.apply_all(&self.ledger.count_terms(self.now));
        events
    }

    /// Runs a whole cycle in which every step succeeds.
    pub fn cycle(&mut self) -> Vec<Event> {
        self.look();
        let plan = self.plan();
        let (approved, _) = guard(plan.clone(), &self.bounds(), self.now);
        self.execute_plan(&plan, &approved)
    }

    pub fn cycles(&mut self, count: usize) {
        (0..count).for_each(|_| drop(self.cycle()));
    }

    pub fn execute(&mut self, approved: &ApprovedPlan) -> Vec<Event> {
        self.execute_plan(&self.plan(), approved)
    }

    fn execute_plan(&mut self, plan: &Plan, approved: &ApprovedPlan) -> Vec<Event> {
        let before = self.ledger.failures.clone();
        let events = self.execute_steps(plan, approved, usize::MAX);
        for account in approved.accounts() {
            let clusters = &self.inventory.clusters;
            self.ledger.failures.retain(|(id, cluster), failure| {
                *id != account.id || !clusters.contains_key(cluster) || failure.is_of_overwritten()
            });
            self.fail_in_homes(account, &before);
            for action in account.steps() {
                if let Some((_, own)) = account.settles.iter().find(|(cluster, _)| cluster == action.cluster()) {
                    let place = (account.id.clone(), action.cluster().clone());
                    self.ledger.settled.insert(place, own.clone());
                }
            }
        }
        events
    }

    /// Executes only the first `actions` steps, like a daemon that is killed after them.
    pub fn execute_until(&mut self, approved: &ApprovedPlan, actions: usize) -> Vec<Event> {
        self.execute_steps(&self.plan(), approved, actions)
    }

    fn execute_steps(&mut self, plan: &Plan, approved: &ApprovedPlan, mut actions: usize) -> Vec<Event> {
        let (mut changes, mut events) = approved.intents(self.now);
        changes.extend(burnt(approved, &self.ledger));
        changes.extend(overcome(plan, &self.ledger, &self.inventory, self.now));
        for (ended, told) in [lapsed(&self.ledger), advance(approved, &self.ledger, self.now)] {
            changes.extend(ended);
            events.extend(told);
        }
        self.ledger.apply_all(&changes);
        self.raise_marks();
        for account in approved.accounts() {
            for action in account.steps() {
                if actions == 0 {
                    return events;
                }
                actions -= 1;
                if self.homes_away && recovery::is_of_a_home(action) {
                    continue;
                }
                for change in self.act(account, action) {
                    self.ledger.apply(&change);
                }
            }
        }
        events
    }

    fn binds(&mut self, key: &ObjectKey, manifest: &Value) {
        if let Ok(namespace) = NamespaceName::try_from(key.name.to_string())
            && key.kind == ManagedKind::Namespace
        {
            let texts = |part: &str| serde_json::from_value(manifest["metadata"][part].clone()).unwrap_or_default();
            let (labels, annotations) = (texts("labels"), texts("annotations"));
            let keys = [self.sealer.public_key()];
            let identity = identity_of(&key.cluster, &namespace, &labels, &annotations, &keys);
            self.sealed.insert(key.clone(), identity.expect("a namespace of ours has a valid seal"));
        }
        if key.kind.stage() == Stage::Access {
            let subjects = manifest["subjects"].as_array().expect("a binding has subjects").iter();
            let names = subjects.filter_map(|subject| subject["name"].as_str().map(str::to_owned)).collect();
            self.bound.insert(key.clone(), names);
        }
    }

    /// Does the same as the real executor, and returns the changes that it would report.
    pub fn act(&mut self, account: &AccountPlan, action: &Action) -> Vec<Change> {
        let (id, now) = (&account.id, self.now);
        match action {
            Action::Apply { key, manifest, wanted, uid, reason } => {
                let known = self.in_cluster(&key.cluster).objects.get(key).map(|found| found.uid.to_string());
                assert_eq!(known, *uid, "{key:?} is applied with the uid that it has");
                let manifest = &manifest.value();
                self.binds(key, manifest);
                self.uids += 1;
                let uid = UuidText::from(known.unwrap_or_else(|| format!("uid-{}", self.uids)));
                let observed = DigestText::from(format!("answer to {wanted}"));
                let before = self.in_cluster(&key.cluster).objects.get(key).and_then(|found| found.quota().cloned());
                // A write does not change the amounts in use. It takes ownership of all amounts, so none counts as
                // edited.
                let quota = before.map(|quota| ObservedQuota { edited: BTreeMap::new(), ..quota });
                let rare = Rare { quota, ..Rare::default() }.if_any();
                let found = ObservedObject { uid: uid.clone(), digest: observed.clone(), rare, ..Default::default() };
                self.in_cluster(&key.cluster).objects.insert(key.clone(), found);
                let detail = detail(&key.kind, manifest);
                self.count_repair(key, reason);
                let record = ObjectRecord { account: id.clone(), uid, wanted: wanted.clone(), observed, detail };
                vec![Change::Object(key.clone(), Some(record))]
            }
            Action::SetLevel { cluster, namespace, level, .. } => self.set_level(cluster, namespace, *level),
            Action::MakeDirectory { .. }
            | Action::ProveRevoked { .. }
            | Action::Evict { .. }
            | Action::WarnPod { .. }
            | Action::AwaitDeletion { .. } => Vec::new(),
            Action::Archive { cluster, namespace, file } => {
                let archive = Archive {
                    account: id.clone(),
                    cluster: cluster.clone(),
                    namespace: namespace.clone(),
                    generation: account.generation,
                    digest: format!("digest of {file}"),
                    bytes: 1000,
                    objects: 10,
                    secrets: 0,
                    left_out: 0,
                    at: now,
                };
                vec![Change::Archive(file.clone(), archive)]
            }
            Action::DeleteNamespace { cluster, namespace, uid, archived, .. } => {
                let archive = archived.as_deref().map(|(_, archive)| archive.generation);
                assert_eq!(archive, Some(account.generation), "{namespace} is deleted with an archive of its own");
                self.delete_namespace(&ObjectKey::namespace(cluster, namespace), uid);
                Vec::new()
            }
            Action::Delete { key, uid, .. } => {
                self.delete(key, uid);
                vec![Change::Object(key.clone(), None)]
            }
            Action::WarnIdle { cluster, until, counted, .. } => {
                let idle = self.ledger.idle[&(id.clone(), cluster.clone())].clone();
                let warned = Idleness { warned_at: Some(now), due: *until, seconds: *counted, ..idle };
                vec![Change::Idle(id.clone(), cluster.clone(), Some(warned))]
            }
            Action::ReapPod { cluster, namespace, name, .. } => {
                let pods = self.inventory.pods.get_mut(cluster).expect("the cluster shows its pods");
                Arc::make_mut(pods).pods.remove(&(namespace.to_string(), name.clone()));
                Vec::new()
            }
            Action::StopWorkloads { cluster, namespace } => {
                let key = ObjectKey::from(ObjectName {
                    cluster: cluster.clone(),
                    kind: ObjectKind::of("apps/v1", "Deployment"),
                    namespace: Some(namespace.as_str().into()),
                    name: "web".into(),
                });
                let stopped = StoppedWorkload { uid: "web".to_owned(), replicas: Some(2), at: now };
                vec![Change::Stopped(id.clone(), key, Some(stopped))]
            }
            Action::ResumeWorkloads { stopped, .. } => {
                stopped.iter().map(|(key, _)| Change::Stopped(id.clone(), key.clone(), None)).collect()
            }
            Action::Deliver { cluster, credential, generation, home, replaced, .. } => {
                let mut changes = self.deliver(id, cluster, credential, *generation, home);
                changes.extend(forget(id, cluster, replaced));
                changes
            }
            Action::RemoveKubeconfig { cluster, host, home, unrecorded: _, notice, reason } => {
                let key = CredentialKey::new(id.clone(), cluster.clone()).on(host);
                if let Some(notice) = notice {
                    return vec![Change::Delivery(key, Some(notice.delivered(home, now)))];
                }
                let nobodys = (*reason == Reason::Orphaned).then(|| Change::Certificate(key.clone(), None));
                let removed = self.ledger.deliveries.get(&key).map(|delivery| delivery.clone().removed(now));
                nobodys.into_iter().chain([Change::Delivery(key, removed)]).collect()
            }
            Action::SshKeys { home, keys, digest, .. } => {
                let delivery = (!keys.is_empty()).then(|| home.ssh_delivery(digest, now));
                vec![Change::SshDelivery(id.clone(), delivery)]
            }
            Action::InspectKubeconfig { cluster, host, .. } => {
                let key = CredentialKey::new(id.clone(), cluster.clone()).on(host);
                let delivery = self.ledger.deliveries.get(&key).cloned();
                let checked = delivery.map(|it| Delivery { checked_at: Some(now), ..it }).filter(lasts);
                vec![Change::Delivery(key, checked)]
            }
        }
    }

    fn count_repair(&mut self, key: &ObjectKey, reason: &Reason) {
        if reason.is_repair(self.ledger.objects.contains_key(key)) {
            let now = self.now;
            let repairs = &mut self.in_cluster(&key.cluster).repairs;
            repairs.insert(key.clone(), Repairs::after(repairs.get(key), now));
        }
    }

    fn set_level(&mut self, cluster: &ClusterName, namespace: &NamespaceName, level: PodSecurity) -> Vec<Change> {
        let there = self.inventory.adopted.get_mut(cluster).and_then(|found| found.get_mut(namespace));
        there.expect("the inventory has the namespace").level.get_or_insert_with(|| level.as_str().to_owned());
        Vec::new()
    }

    fn delete(&mut self, key: &ObjectKey, uid: &str) {
        let shown = self.in_cluster(&key.cluster).objects.get(key).cloned();
        let by_record = key.kind.stage() == Stage::Access || is_ours(key);
        assert!(by_record || shown.is_some(), "{key:?} is deleted, so it exists");
        assert!(shown.as_ref().is_none_or(|found| found.uid == uid), "{key:?} is deleted with its UID");
        assert!(key.kind != ManagedKind::Namespace, "namespaces are only deleted by DeleteNamespace");
        let objects = &mut self.in_cluster(&key.cluster).objects;
        match objects.get_mut(key).filter(|found| found.deleting) {
            // An object that a finalizer keeps stays, but names nobody any more.
            Some(found) => found.rare = Rare { emptied: by_record, ..Rare::default() }.if_any(),
            None => drop(objects.remove(key)),
        }
        self.bound.remove(key);
    }

    fn delete_namespace(&mut self, key: &ObjectKey, uid: &str) {
        let stuck = self.stuck;
        let objects = &mut self.in_cluster(&key.cluster).objects;
        let found = objects.get_mut(key).expect("the world has the object");
        assert_eq!(found.uid, uid, "the namespace is deleted with its UID");
        found.deleting = true;
        if !stuck {
            objects.retain(|known, _| known != key && known.namespace.as_deref() != Some(key.name.as_str()));
        }
    }
}

/// Returns the directory entry that matches the account.
pub fn entry_of(account: &Account) -> Entry {
    Entry {
        sid: account.sid.clone(),
        kind: account.kind,
        id: account.directory_id.clone(),
        dn: account.dn.clone(),
        name: account.name.clone(),
        posix: account.posix.clone(),
        home: account.home.clone(),
        home_by_default: false,
        gid: account.gid,
        person: None,
        mail: account.mail.clone(),
        display_name: account.display_name.clone(),
        ssh_keys: account.ssh_keys.clone(),
        disabled: account.disabled.clone(),
        created: None,
        members: account
            .members
            .iter()
            .filter(|(member, _)| !account.leaving.contains(*member))
            .map(|(member, role)| (member.clone(), *role))
            .collect(),
    }
}
