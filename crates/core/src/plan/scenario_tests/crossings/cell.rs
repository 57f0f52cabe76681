//! The world of one combination of a state and an event, and the lines that change it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::super::{Story, hours_of};
use crate::desired::of_generation_group;
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId, NamespaceName};
use crate::inventory::adopted::{FoundNamespace, FoundNamespaces};
use crate::inventory::{ClusterInventory, HomeFinding, ObservedObject};
use crate::kinds::{ManagedKind, ObjectKey};
use crate::ledger::{Absence, Account, Ending, LAST_REMOVAL_RETRY, LedgerState, Lifecycle};
use crate::orders::request::{Evict, OrderRequest, ResumeStarting, Target};
use crate::orders::write_all;
use crate::plan::testing::{course, entry_of, prod, profile};
use crate::policy::{Class, From, When};
use crate::snapshot::Entry;

/// The places of bindings that name an account, as `CLUSTER NAMESPACE`, each with the name in the binding.
pub(super) type Access = BTreeSet<(String, String)>;

const NAMES: [&str; 2] = ["foo", "food"];

/// The test of one state with one event.
#[derive(Clone)]
pub(super) struct Cell {
    story: Story,
    kind: AccountKind,
    foo: AccountId,
    /// The observed state of the clusters that do not answer.
    away: BTreeMap<ClusterName, (Arc<ClusterInventory>, Option<FoundNamespaces>)>,
    /// Classes that the configuration no longer has.
    former: BTreeMap<String, Class>,
    /// Whether each cycle reads the directory.
    reads: bool,
    /// The entry of foo, while it differs from the account and the directory does not show it.
    hidden: Option<Entry>,
    /// The ledger to which the present one is rolled back, or with which another process starts.
    snapshot: Option<LedgerState>,
    /// Whether the marks showed that the ledger was rolled back or is a copy; `None` if it is neither.
    pub(super) rollback: Option<bool>,
    /// Orders that were refused.
    refused: Vec<OrderRequest>,
    /// Lines that follow the event.
    later: Vec<String>,
}

impl Cell {
    pub(super) fn new(kind: AccountKind) -> Self {
        let mut story = Story::new();
        let world = &mut story.world;
        world.another_cluster("b");
        let ann = world.add(AccountKind::User, "ann", Some(20_001));
        let [foo, stays] = [("foo", 52_503), ("stays", 52_504)].map(|(name, uid)| {
            let id = world.add(kind, name, Some(uid));
            if kind == AccountKind::Tool {
                world.join(&id, &ann);
            }
            id
        });
        for (group, members) in [("crew", vec![&foo]), ("rest", vec![&stays]), ("algebra", vec![&foo, &stays])] {
            let group = world.add(AccountKind::Group, group, None);
            for member in members {
                world.join(&group, member);
            }
        }
        let classes = &mut world.policy.classes;
        let tool = classes.get_mut("tool").expect("the policy has this class");
        if kind == AccountKind::User {
            tool.from = From::Users(None);
        }
        let other = Class { name: "other".to_owned(), when: Some(When::Group("rest".to_owned())), ..tool.clone() };
        tool.when = Some(When::Group("crew".to_owned()));
        classes.insert(other.name.clone(), other);
        if kind == AccountKind::User {
            let course =
                Class { when: Some(When::Base("cn=algebra,ou=groups,dc=example,dc=org".to_owned())), ..course() };
            for class in [course, profile()] {
                classes.insert(class.name.clone(), class);
            }
            let found = world.inventory.adopted.entry(prod()).or_default();
            for name in ["foo", "stays"] {
                let namespace = format!("profile-{name}").try_into().expect("the text is a namespace name");
                let adopted = FoundNamespace {
                    uid: name.to_owned(),
                    selectors: BTreeSet::from(["part-of=profiles".to_owned()]),
                    annotations: BTreeMap::from([("owner".to_owned(), name.to_owned())]),
                    ..FoundNamespace::default()
                };
                found.insert(namespace, adopted);
            }
        }
        story.settle();
        Self {
            story,
            kind,
            foo,
            away: BTreeMap::new(),
            former: BTreeMap::new(),
            reads: false,
            hidden: None,
            snapshot: None,
            rollback: None,
            refused: Vec::new(),
            later: Vec::new(),
        }
    }

    /// Begins another combination. More than a day passes, because the daily limits allow few removals, and a takeover
    /// has a grace period of a day.
    pub(super) fn begin_again(&mut self) {
        self.snapshot = None;
        self.rollback = None;
        self.refused.clear();
        self.story.world.now += jiff::SignedDuration::from_hours(25);
        (0..2).for_each(|_| self.cycle());
    }

    /// Whether foo is suspended after another cycle. Resumes it.
    pub(super) fn resume_if_suspended(&mut self) -> bool {
        self.cycle();
        let is_suspended = self.foo().state == Lifecycle::Suspended;
        self.tell_foo("resume", &["back"]);
        is_suspended
    }

    pub(super) fn foo(&self) -> &Account {
        &self.story.world.ledger.accounts[&self.foo]
    }

    /// Runs a cycle, with a read of the directory if entries differ from the accounts.
    pub(super) fn cycle(&mut self) {
        if self.reads {
            let completeness = self.story.world.ledger.sources[crate::plan::testing::SOURCE].completeness.clone();
            self.story.world.look();
            self.story.read("1h", completeness);
        } else {
            self.story.world.cycle();
        }
    }

    pub(super) fn tell(&mut self, lines: &[String]) {
        for line in lines {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["then", rest @ ..] => self.later.push(rest.join(" ")),
                ["cycle"] => self.cycle(),
                ["read"] => {
                    self.reads = true;
                    self.cycle();
                }
                ["snapshot"] => self.snapshot = Some(self.story.world.ledger.clone()),
                ["rolled", "back"] => self.roll_back(),
                ["copy", "starts"] => self.start_copy(),
                ["unconfined", clusters @ ..] => {
                    let clusters = clusters.iter().map(|name| ClusterName((*name).into()));
                    self.story.world.unconfined = clusters.collect();
                }
                ["confined"] => self.story.world.unconfined.clear(),
                ["homes", state] => self.story.world.homes_away = *state == "down",
                ["cluster", name, state] => self.cluster(ClusterName::from((*name).to_owned()), *state == "up"),
                ["class", class, "gone"] => {
                    let gone = self.story.world.policy.classes.remove_entry(*class);
                    self.former.extend(gone);
                }
                ["class", class, "back"] => {
                    let back = self.former.remove_entry(*class);
                    self.story.world.policy.classes.extend(back);
                }
                ["class", class, ..] if self.former.contains_key(*class) => {
                    let line = line.clone();
                    let name = (*class).to_owned();
                    self.tell(&[format!("class {name} back"), line, format!("class {name} gone")]);
                }
                ["class", class, "group", group] => {
                    self.story.world.class(class).when = Some(When::Group((*group).to_owned()));
                }
                ["endpoint", url] => {
                    let clusters = self.story.world.policy.clusters.values_mut();
                    let endpoints = clusters.flat_map(|cluster| cluster.endpoints.values_mut());
                    endpoints.for_each(|endpoint| (*url).clone_into(&mut endpoint.url));
                }
                ["namespace", name, "labelled", label] => {
                    let name = NamespaceName::try_from((*name).to_owned()).expect("the word is a namespace name");
                    let here = self.story.world.inventory.adopted.values_mut();
                    let away = self.away.values_mut().filter_map(|(_, adopted)| adopted.as_mut());
                    for found in here.chain(away).filter_map(|found| found.get_mut(&name)) {
                        found.selectors = BTreeSet::from([(*label).to_owned()]);
                    }
                }
                ["loses" | "joins", "group", group, member] => self.membership(words[0], group, member),
                ["absent" | "back", "group", group, rest @ ..] => {
                    let group = self.story.world.id(AccountKind::Group, group);
                    match (words[0], rest) {
                        ("absent", [hours]) if self.reads => self.hide(&group, hours),
                        ("back", _) if self.reads => self.show(&group),
                        (verb, rest) => self.story.happens(verb, &group, rest),
                    }
                }
                [verb, "tool", name, rest @ ..] if NAMES.contains(name) => self.tell_foo(verb, rest),
                ["quota" | "exception", verb, "tool", name, rest @ ..] => {
                    let (kind, name) = (self.kind.to_string(), self.name_of(name));
                    let line = [words[0], *verb, kind.as_str(), name.as_str()].into_iter().chain(rest.iter().copied());
                    self.story.line(&line.collect::<Vec<_>>());
                }
                words => self.story.line(words),
            }
        }
    }

    /// Carries out the lines of the state that follow the event.
    pub(super) fn continue_after_the_event(&mut self) {
        let later = std::mem::take(&mut self.later);
        self.tell(&later);
    }

    /// Gives the orders again that were refused, because a hold has ended by now. A resumption may have to wait until
    /// an eviction is finished.
    pub(super) fn order_again(&mut self) {
        for _ in 0..2 {
            for order in std::mem::take(&mut self.refused) {
                self.order(order);
            }
            self.refused.retain(|order| matches!(order, OrderRequest::ResumeStarting(_)));
            if self.refused.is_empty() {
                return;
            }
            self.story.world.now += LAST_REMOVAL_RETRY;
            self.cycle();
        }
    }

    fn tell_foo(&mut self, verb: &str, rest: &[&str]) {
        let (kind, name, reason) = (self.kind, self.foo().id.to_string(), Some(rest.join(" ")));
        let target = || Target { kind, name, reason, ticket: None };
        match (verb, rest) {
            ("suspend", _) => self.order(OrderRequest::Suspend(target())),
            ("resume", _) => {
                let start = vec!["all".to_owned()];
                self.order(OrderRequest::ResumeStarting(ResumeStarting { target: target(), start }));
            }
            ("revoke", _) => self.order(OrderRequest::Revoke(target())),
            ("evict", _) => self.order(OrderRequest::Evict(Evict { target: target(), since: None })),
            ("hold", _) => self.order(OrderRequest::Hold(target())),
            ("release", _) => self.order(OrderRequest::Release(target())),
            ("adopts", _) => self.order(OrderRequest::AdoptUid(target())),
            // The cluster does not show a binding without our label, but the binding still applies.
            ("unlabelled", _) => {
                let binding = self.binding();
                self.story.world.cluster().objects.remove(&binding);
            }
            ("stray", _) => self.stray(),
            ("finalizer", _) => {
                let binding = self.binding();
                self.object(&binding).deleting = true;
            }
            ("finalized", _) => {
                let objects = &mut self.story.world.cluster().objects;
                objects.retain(|key, found| key.kind != ManagedKind::RoleBinding || !found.deleting);
            }
            ("terminating", _) => {
                let key = self.namespace();
                self.object(&key).deleting = true;
            }
            ("remade", _) => self.remade(),
            ("broken", why) => {
                let finding = HomeFinding::Broken { why: why.join(" ") };
                self.story.world.inventory.homes.insert((self.foo.clone(), prod()), finding);
            }
            ("waited", _) => self.wait_out(),
            ("home", [home]) => {
                let entry = self.foo().directory_id.clone();
                if let Some(entry) = self.story.others.get_mut(&entry) {
                    entry.home = Some((*home).into());
                }
                self.story.world.account(&self.foo).home = Some((*home).into());
            }
            ("twin", ["gone"]) => drop(self.story.others.remove(&twin())),
            ("twin", _) => {
                let mut entry = Entry { id: twin(), ..entry_of(self.foo()) };
                if let Some(posix) = &mut entry.posix {
                    posix.uid = 52_777_i64.try_into().expect("the id is in range");
                }
                self.story.others.insert(entry.id.clone(), entry);
            }
            (_, _) if self.reads => self.in_the_directory(verb, rest),
            (verb, rest) => self.story.happens(verb, &self.foo.clone(), rest),
        }
    }

    fn order(&mut self, order: OrderRequest) {
        let world = &mut self.story.world;
        let written = write_all(&world.ledger, &world.policy, "root", std::slice::from_ref(&order), world.now);
        world.ledger.apply_all(&written.changes);
        if !written.refused.is_empty() {
            self.refused.push(order);
        }
    }

    /// Changes the entry of foo, if it differs from the account.
    fn in_the_directory(&mut self, verb: &str, rest: &[&str]) {
        let id = self.foo().directory_id.clone();
        match (verb, rest) {
            ("absent", [hours]) => {
                self.hidden = self.story.others.remove(&id);
                self.hide(&self.foo.clone(), hours);
            }
            ("back", _) => {
                self.story.others.extend(self.hidden.take().map(|entry| (id, entry)));
                self.show(&self.foo.clone());
            }
            (verb, rest) => {
                let ann = self.story.world.id(AccountKind::User, "ann");
                let ann = self.story.world.account(&ann).directory_id.clone();
                let entry = self.story.others.get_mut(&id);
                match (entry, verb, rest) {
                    (Some(entry), "disabled", mark) => entry.disabled = Some(mark.join(" ")),
                    (Some(entry), "enabled", _) => entry.disabled = None,
                    (Some(entry), "loses", ["ann"]) => drop(entry.members.remove(&ann)),
                    (Some(entry), "rename", [name]) => {
                        (*name).clone_into(&mut entry.name);
                        entry.home = Some(format!("/data/project/{name}").into());
                    }
                    (Some(entry), "moves", [uid]) => {
                        let uid: i64 = uid.parse().expect("the word is a number");
                        let posix = entry.posix.as_mut().expect("the entry has a uid");
                        posix.uid = uid.try_into().expect("the id is in range");
                    }
                    _ => self.story.happens(verb, &self.foo.clone(), rest),
                }
            }
        }
    }

    /// Hides the entry of the account from the directory, and runs a cycle in each of these hours.
    fn hide(&mut self, id: &AccountId, hours: &str) {
        self.story.gone.insert(id.clone());
        (0..=hours_of(hours).as_hours()).for_each(|_| self.cycle());
    }

    fn show(&mut self, id: &AccountId) {
        self.story.gone.remove(id);
        self.cycle();
    }

    /// Makes the next phase of a suspended or archived account due.
    fn wait_out(&mut self) {
        let (now, seconds) = (self.story.world.now, 10 * 365 * 24 * 3600);
        let waits = Absence { since: now, counted_at: now, seconds, due: now };
        self.story.world.account(&self.foo).ending = Some(Ending::Waits(waits));
    }

    fn membership(&mut self, verb: &str, group: &str, member: &str) {
        let world = &mut self.story.world;
        let group = world.id(AccountKind::Group, group);
        let member = if NAMES.contains(&member) { self.foo.clone() } else { world.id(self.kind, member) };
        let entry = world.ledger.accounts[&member].directory_id.clone();
        if verb == "loses" {
            world.account(&group).leaving.insert(entry);
        } else {
            world.account(&group).leaving.remove(&entry);
            world.join(&group, &member);
        }
    }

    fn cluster(&mut self, name: ClusterName, is_up: bool) {
        let inventory = &mut self.story.world.inventory;
        if is_up {
            let Some((objects, adopted)) = self.away.remove(&name) else { return };
            inventory.clusters.insert(name.clone(), objects);
            inventory.adopted.extend(adopted.map(|adopted| (name, adopted)));
        } else if let Some(objects) = inventory.clusters.remove(&name) {
            let adopted = inventory.adopted.remove(&name);
            self.away.insert(name, (objects, adopted));
        }
    }

    /// Replaces the ledger by the snapshot, which takes over the clusters.
    fn roll_back(&mut self) {
        let older = self.snapshot.take().expect("there is a snapshot");
        self.rollback = Some(self.story.world.take_over(older));
    }

    /// Starts another process with the snapshot. If it replaces the present process, the ledger of the replaced process
    /// becomes the snapshot, so that the two can alternate.
    fn start_copy(&mut self) {
        let copy = self.snapshot.take().expect("there is a snapshot");
        let world = &mut self.story.world;
        let present = world.ledger.clone();
        let exits = world.start_with(copy.clone());
        self.snapshot = Some(if exits { copy } else { present });
        self.rollback = Some(exits);
    }

    fn name_of(&self, name: &str) -> String {
        if NAMES.contains(&name) { self.foo().name.clone() } else { name.to_owned() }
    }

    fn namespace(&self) -> ObjectKey {
        let tenant = &self.story.world.ledger.tenants[&(self.foo.clone(), prod())];
        ObjectKey::namespace(&prod(), tenant.namespace.as_ref().expect("the tenant has a namespace"))
    }

    fn binding(&self) -> ObjectKey {
        let namespace = Some(self.namespace().name.clone());
        let mut bound = self.story.world.bound.keys();
        let binding = bound.find(|key| key.cluster == prod() && key.namespace == namespace);
        binding.expect("the account has a binding").clone()
    }

    /// Adds a binding that the ledger does not know and that names foo, as after a restore of the ledger.
    fn stray(&mut self) {
        let binding = self.binding();
        let names = self.story.world.bound[&binding].clone();
        let key = ObjectKey::new(&prod(), ManagedKind::RoleBinding, binding.namespace.as_deref(), "bursar-stray");
        let found = ObservedObject { uid: "stray".into(), ..ObservedObject::default() };
        self.story.world.cluster().objects.insert(key.clone(), found);
        self.story.world.bound.insert(key, names);
    }

    fn object(&mut self, key: &ObjectKey) -> &mut ObservedObject {
        self.story.world.cluster().objects.get_mut(key).expect("the world has the object")
    }

    /// Removes the namespace, as at the end of its deletion.
    fn remade(&mut self) {
        let key = self.namespace();
        let is_in =
            |known: &ObjectKey| known.cluster == key.cluster && known.namespace.as_deref() == Some(key.name.as_str());
        let objects = &mut self.story.world.cluster().objects;
        objects.retain(|known, _| *known != key && !is_in(known));
        self.story.world.bound.retain(|known, _| !is_in(known));
    }

    pub(super) fn is_any_away(&self) -> bool {
        !self.away.is_empty()
    }

    /// Whether the cluster of a place answers.
    pub(super) fn answers(&self, place: &str) -> bool {
        !self.away.keys().any(|cluster| place.starts_with(&format!("{cluster} ")))
    }

    /// Returns the access of foo or `stays`, in the clusters that answer.
    pub(super) fn access(&self, name: &str) -> Access {
        let is_own = |it: &str| if name == "foo" { NAMES.contains(&it) } else { it == name };
        let bound = self.story.world.bound.iter().flat_map(|(key, names)| names.iter().map(move |name| (key, name)));
        let named = bound.filter_map(|(key, name)| {
            let (account, _) = of_generation_group(name)?;
            let place = format!("{} {}", key.cluster, key.namespace.as_deref().unwrap_or_default());
            (account.kind == self.kind && is_own(&account.name) && self.answers(&place)).then(|| (place, name.clone()))
        });
        named.collect()
    }

    /// Returns the final state of the world, without generations.
    pub(super) fn end(&mut self) -> BTreeMap<String, String> {
        for cycle in 0..8 {
            let world = &self.story.world;
            if cycle == 3 && !self.reads && world.ledger.failures.is_empty() && world.plan().is_empty() {
                break;
            }
            self.story.world.now += jiff::SignedDuration::from_hours(1);
            self.cycle();
        }
        let world = &self.story.world;
        let mut end = BTreeMap::new();
        for account in world.ledger.accounts.values() {
            let uid = account.posix.as_ref().map(|posix| posix.uid);
            let what = format!("{} with uid {uid:?}, {} members", account.state.as_str(), account.members.len());
            end.insert(format!("{} {}", account.kind, account.name), what);
        }
        let name = |key: &ObjectKey| format!("{} {} {:?} {}", key.cluster, key.kind, key.namespace, key.name);
        for key in world.inventory.clusters.values().flat_map(|cluster| cluster.objects.keys()) {
            end.insert(name(key), String::new());
        }
        for (key, names) in &world.bound {
            let accounts: Vec<String> =
                names.iter().filter_map(|name| Some(of_generation_group(name)?.0.to_string())).collect();
            end.insert(name(key), accounts.join(", "));
        }
        for (key, delivery) in world.ledger.deliveries.iter().filter(|(_, delivery)| !delivery.is_removed()) {
            let account = &world.ledger.accounts[&key.account];
            let certificate = world.ledger.certificates.get(key);
            let is_present = certificate.is_some_and(|certificate| certificate.generation == account.generation);
            let what = format!("{} of the present generation: {is_present}", delivery.path.display());
            end.insert(format!("kubeconfig of {} for {}", account.name, key.cluster), what);
        }
        end.insert("plan".to_owned(), world.plan().to_string());
        end
    }
}

fn twin() -> DirectoryId {
    DirectoryId("twin".to_owned())
}
