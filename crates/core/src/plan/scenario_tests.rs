//! Tests plans by stories. `tests/data/scenarios/NAME.txt` has the events, and `tests/data/plans/NAME.txt` the expected
//! plans and history. `UPDATE_GOLDENS=1` rewrites the plans, which a person then reviews.
//!
//! Each line of a story is an event. `plan` shows the output of `bursar plan`, `do` executes the plan and shows the
//! history, and `settle` executes cycles without output. `reads 26 1h` reads the directory 26 times, one hour apart,
//! and shows the events of each read and of its plan. The site is [`super::testing::policy`].

mod adopted;
mod crossings;
mod reaper;
mod stories;
mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bursar_protocol::Grant;
use jiff::SignedDuration;

use super::display::Preview;
use super::guard::{Refusal, approve, refused_hash};
use super::testing::{World, entry_of, prod};
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId, HostName};
use crate::inventory::HomeFinding;
use crate::inventory::quota::ObservedQuota;
use crate::kinds::{DriftKey, ManagedKind, ObjectKey};
use crate::ledger::change::Event;
use crate::ledger::{Absence, Failure, Note, Order, OrderKind};
use crate::orders::request::{ExceptionSet, OrderRequest, QuotaSet, QuotaUnset, Target};
use crate::orders::{RecordedOrders, write_all};
use crate::policy::{CredentialKind, DriftMode, From, Limit, NfsVolume, OidcRule, Volume, VolumeKind, When};
use crate::snapshot::{Completeness, Entry};

fn data(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(folder)
}

/// Compares `actual` with the golden file. With `UPDATE_GOLDENS`, writes the file first.
fn golden(path: &Path, actual: &str) -> Result<(), String> {
    if std::env::var_os("UPDATE_GOLDENS").is_some() {
        fs::write(path, actual).map_err(|error| error.to_string())?;
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    if expected == actual {
        return Ok(());
    }
    Err(format!("{}: expected\n{expected}\nbut it is\n{actual}", path.display()))
}

#[test]
fn every_class_makes_the_objects_that_its_golden_shows() {
    let (mut world, _) = World::with_foo();
    let alice = world.add(AccountKind::User, "alice", Some(20_001));
    let admins = world.add(AccountKind::Group, "k8s-admins", None);
    world.join(&admins, &alice);
    let bob = world.add(AccountKind::User, "bob", Some(20_002));
    world.account(&bob).dn = "uid=bob,ou=Students,dc=example,dc=org".to_owned();
    let desired = world.desired();
    for account in desired.accounts.values() {
        let mut text = String::new();
        for object in account.clusters[&prod()].objects.values() {
            let manifest = object.manifest.as_ref().expect("a new object has a manifest").value();
            writeln!(text, "{manifest:#}").expect("writing to a string does not fail");
        }
        golden(&data("objects").join(format!("{}.json", account.class)), &text).expect("the objects match the golden");
    }
    assert_eq!(desired.accounts.len(), 3);
}

/// The state of a story, and its output.
#[derive(Clone)]
struct Story {
    world: World,
    refusals: Vec<Refusal>,
    orders: i64,
    /// Accounts whose entries the directory no longer has.
    gone: BTreeSet<AccountId>,
    /// Entries that differ from the ledger's accounts, or are new.
    others: BTreeMap<DirectoryId, Entry>,
    shown: String,
}

fn told(story: &str) -> String {
    let mut teller = Story::new();
    for line in story.lines() {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        if !words.is_empty() {
            teller.line(&words);
        }
    }
    teller.shown
}

impl Story {
    fn new() -> Self {
        Self {
            world: World::new(),
            refusals: Vec::new(),
            orders: 0,
            gone: BTreeSet::new(),
            others: BTreeMap::new(),
            shown: String::new(),
        }
    }

    fn line(&mut self, words: &[&str]) {
        match words {
            ["plan"] => self.plan(),
            ["do"] => self.carry_out(),
            ["settle"] => self.settle(),
            ["time", hours] => self.world.now += hours_of(hours),
            ["reads", times, hours] => {
                (0..times.parse::<u32>().expect("the word is a number"))
                    .for_each(|_| self.read(hours, Completeness::Complete));
            }
            ["read", "partial", why @ ..] => self.read("1h", Completeness::Partial { why: why.join(" ") }),
            ["site", "tools", from, to] => self.many(from, to),
            ["quota", verb, kind, name, rest @ ..] => self.quota(verb, kind, name, rest),
            ["exception", "set", kind, name, rules @ ..] => self.exception(kind, name, rules),
            ["revoke", "class", class, reason @ ..] => self.revoke_class(class, reason),
            ["reaper" | "prometheus" | "portal" | "pods" | "pod" | "looks", ..] => self.reaper(words),
            ["pace", count] => self.limit("pace", count),
            ["cluster", "new", name] => self.world.another_cluster(name),
            ["cluster", "out", name] => self.world.without_cluster(name),
            ["class", class, "adopt", "quota"] => {
                self.world.class(class).drift.insert(DriftKey::Quota, DriftMode::Adopt);
            }
            ["class", class, "on-demand"] => {
                self.world.class(class).provision = crate::policy::Provision::OnDemand;
            }
            ["class", class, "lock", resource] => {
                self.world.class(class).quota_locked.insert((*resource).to_owned());
            }
            ["class", class, "role", role] => {
                self.world.class(class).roles.push((*role).to_owned());
            }
            ["class", class, "for", whom] => {
                self.world.class(class).when =
                    (*whom != "all").then(|| When::Base(format!("ou={whom},dc=example,dc=org")));
            }
            ["class", _, "loses" | "nowhere" | "in" | "tokens" | "sso", ..] => self.narrowed(words),
            ["class", class, "becomes", name] => {
                let mut class = self.world.policy.classes.remove(*class).expect("the policy has this class");
                (*name).clone_into(&mut class.name);
                self.world.policy.classes.insert(class.name.clone(), class);
            }
            ["add", kind, name, rest @ ..] => self.add(kind, name, rest),
            ["source", "complete"] => self.world.source(Completeness::Complete),
            ["source", "stale"] => {
                let (server, why) = ("ldap2.example.org".to_owned(), "it is behind".to_owned());
                self.world.source(Completeness::Stale { server, why });
            }
            ["source", "partial", why @ ..] => self.world.source(Completeness::Partial { why: why.join(" ") }),
            ["cluster", "down"] => drop(self.world.inventory.clusters.remove(&prod())),
            ["class", class, "pods", pods] => {
                self.world.class(class).quota.insert("pods".to_owned(), (*pods).to_owned());
            }
            ["class", class, "report", kind] => {
                self.world
                    .class(class)
                    .drift
                    .insert(DriftKey::named(kind).expect("the word is a key of drift"), DriftMode::Report);
            }
            ["class", class, "namespace", pattern] => {
                self.world.class(class).namespace = Some((*pattern).to_owned());
            }
            ["class", class, "gone"] => drop(self.world.policy.classes.remove(*class)),
            ["limit", what, count] => self.limit(what, count),
            ["profiles" | "profile", ..] => self.profiles(words),
            ["workspaces" | "who" | "manages", ..] => self.workspace(words),
            ["retention", hours] => self.world.policy.lifecycle.retention = hours_of(hours).unsigned_abs(),
            ["finalizers", held] => self.finalizers(*held == "hold"),
            ["approve"] => self.approve(),
            ["killed", actions] => self.killed(actions.parse().expect("the word is a number")),
            ["members", "keep"] => self.world.policy.lifecycle.revoke_on_member_removed = false,
            ["class", class, "volume", path] => {
                let class = self.world.class(class);
                let nfs = NfsVolume {
                    server: "nfs.example.org".to_owned(),
                    path: (*path).to_owned(),
                    options: Vec::new(),
                    directory: Some((*path).to_owned()),
                };
                class.volumes.push(Volume { name: "home".to_owned(), kind: VolumeKind::Static(nfs), mount: None });
            }
            [verb, kind, name, rest @ ..] => {
                let id = self.world.id(kind.parse().expect("the word is a kind of account"), name);
                self.happens(verb, &id, rest);
            }
            other => panic!("no such line: {other:?}"),
        }
    }

    /// Changes a class so that it gives less, or another kind of credential.
    fn narrowed(&mut self, words: &[&str]) {
        match words {
            ["class", class, "loses", role] => {
                let class = self.world.class(class);
                class.roles.retain(|known| known != role);
                class.service_account_roles.retain(|known| known != role);
                if let From::Groups(roles) = &mut class.from {
                    roles.members.retain(|known| known != role);
                    roles.managers.retain(|known| known != role);
                }
            }
            ["class", class, "nowhere"] => {
                self.world.class(class).clusters.clear();
            }
            ["class", class, "in", clusters @ ..] => {
                let clusters = clusters.iter().map(|name| ClusterName((*name).into()));
                self.world.class(class).clusters = clusters.collect();
            }
            ["class", class, "tokens", hosts @ ..] => {
                let hosts = hosts.iter().map(|host| HostName((*host).to_owned())).collect();
                let lifetime = std::time::Duration::from_hours(168);
                let kind =
                    CredentialKind::ServiceAccount { lifetime, hosts, directory: Some("/srv/{host}/{name}".into()) };
                *self.world.credential(class) = kind;
            }
            ["class", class, "sso", user] => {
                let kind = CredentialKind::Oidc(OidcRule {
                    issuer: "https://sso.example.org".to_owned(),
                    client_id: "kubernetes".to_owned(),
                    scopes: Vec::new(),
                    grant: Grant::Auto,
                    user: (*user).to_owned(),
                });
                *self.world.credential(class) = kind;
            }
            other => panic!("no such line: {other:?}"),
        }
    }

    fn limit(&mut self, what: &str, count: &str) {
        let limits = &mut self.world.policy.limits;
        let both = Limit { count: count.parse().expect("the word is a number"), percent: None };
        match what {
            "access" => (limits.remove_access_per_cycle, limits.remove_access_per_day) = (both, both),
            "marks" => (limits.disable_per_cycle, limits.disable_per_day) = (both, both),
            _ => self.one_limit(what, both),
        }
    }

    fn one_limit(&mut self, what: &str, to: Limit) {
        let limits = &mut self.world.policy.limits;
        let limit = match what {
            "pace" => &mut limits.change_per_cycle,
            "suspend" => &mut limits.suspend_per_cycle,
            "day" => &mut limits.suspend_per_day,
            "members" => &mut limits.remove_members_per_cycle,
            "delete" => &mut limits.delete_per_cycle,
            "delete-day" => &mut limits.delete_per_day,
            other => panic!("no such limit: {other}"),
        };
        *limit = to;
    }

    fn add(&mut self, kind: &str, name: &str, rest: &[&str]) {
        let kind: AccountKind = kind.parse().expect("the word is a kind of account");
        let uid = rest.first().and_then(|uid| uid.parse().ok());
        let id = self.world.add(kind, name, uid);
        for member in rest.iter().skip(usize::from(uid.is_some())) {
            let member = self.world.id(AccountKind::User, member);
            self.world.join(&id, &member);
        }
    }

    fn happens(&mut self, verb: &str, id: &AccountId, rest: &[&str]) {
        let now = self.world.now;
        let note = |reason: &[&str]| Note {
            actor: "root".to_owned(),
            reason: reason.join(" "),
            ticket: Some("T9".to_owned()),
            at: now,
        };
        match (verb, rest) {
            ("absent", [hours]) => {
                let seconds = hours_of(hours).as_secs().unsigned_abs();
                let absence = Absence { since: now, counted_at: now, seconds, due: now };
                self.world.account(id).absence = Some(absence);
            }
            ("studies", []) => self.world.account(id).dn = "uid=x,ou=students,dc=example,dc=org".to_owned(),
            ("back", []) => self.world.account(id).absence = None,
            ("gone", []) => drop(self.gone.insert(id.clone())),
            ("there", []) => drop(self.gone.remove(id)),
            ("moves", [uid]) => self.moves(id, uid),
            ("reborn", uid) => self.reborn(id, uid.first()),
            ("heals", []) => drop(self.world.ledger.failures.remove(&(id.clone(), prod()))),
            ("asks", []) => drop(self.world.ledger.last_use.insert(id.clone(), now)),
            ("stranger", []) => self.namespace_recreated(id),
            ("release", []) => drop(self.world.ledger.holds.remove(id)),
            ("edits", [amount, rest @ ..]) => self.quota_edited(id, amount, rest.first().copied()),
            ("uses", [amount]) => {
                let (resource, amount) = amount.split_once('=').expect("the word is RESOURCE=AMOUNT");
                let amount = (resource.to_owned(), amount.to_owned());
                self.in_quota(id, &prod(), |quota| quota.used.extend([amount]));
            }
            ("disabled", mark) => self.world.account(id).disabled = Some(mark.join(" ")),
            ("enabled", []) => self.world.account(id).disabled = None,
            ("rename", [name]) => {
                (*name).clone_into(&mut self.world.account(id).name);
                self.world.account(id).home = Some(format!("/data/project/{name}").into());
            }
            ("loses", [member]) => {
                let member = self.world.id(AccountKind::User, member);
                let member = self.world.account(&member).directory_id.clone();
                self.world.account(id).leaving.insert(member);
            }
            ("hold", reason) => drop(self.world.ledger.holds.insert(id.clone(), note(reason))),
            ("drift" | "vanish" | "foreign", [kind, name]) => self.object(verb, id, kind, name),
            ("fails", [step, why @ ..]) => {
                let next_try = now + SignedDuration::from_mins(10);
                let (step, reason) = ((*step).to_owned(), why.join(" "));
                let failure = Failure { step, reason, since: now, attempts: 3, next_try };
                self.world.ledger.failures.insert((id.clone(), prod()), failure);
            }
            ("broken", why) => {
                let finding = HomeFinding::Broken { why: why.join(" ") };
                self.world.inventory.homes.insert((id.clone(), prod()), finding);
            }
            ("suspend" | "resume" | "revoke" | "adopts" | "inherits", reason) => {
                self.orders += 1;
                let what = match verb {
                    "suspend" => OrderKind::Suspend,
                    "resume" => OrderKind::Resume,
                    "adopts" => OrderKind::AdoptUid,
                    "inherits" => OrderKind::AdoptAccount,
                    _ => OrderKind::Revoke,
                };
                let (reason, object) = match reason {
                    [reason @ .., "until", until] => (reason, Some((*until).to_owned())),
                    reason => (reason, None),
                };
                let (id, account) = (self.orders, id.clone());
                let order = Order { id, account, what, note: note(reason), bulk: None, object };
                self.world.ledger.orders.push(order);
            }
            other => panic!("no such thing happens: {other:?}"),
        }
    }

    /// Somebody edits an object, deletes it, or deletes and recreates it.
    fn object(&mut self, verb: &str, id: &AccountId, kind: &str, name: &str) {
        let records = &self.world.ledger.objects;
        let (key, _) = records
            .iter()
            .find(|(key, record)| {
                record.account == *id && key.cluster == prod() && key.kind.as_str() == kind && key.name == name
            })
            .expect("the account has this object");
        let key = key.clone();
        let objects = &mut self.world.cluster().objects;
        match verb {
            "vanish" => drop(objects.remove(&key)),
            "drift" => objects.get_mut(&key).expect("the world has the object").digest = "edited".into(),
            _ => objects.get_mut(&key).expect("the world has the object").uid = "another".into(),
        }
    }

    fn plan(&mut self) {
        self.see();
        let entries = self.world.ledger.accounts.len() as u64;
        self.world.ledger.sources.values_mut().for_each(|source| source.entries = entries);
        let plan = self.world.plan();
        let (approved, refusals) = self.world.guarded();
        let preview = Preview::of(&self.world.ledger, &plan, &approved, &refusals);
        write!(self.shown, "{preview}exit {}\n\n", preview.exit_code()).expect("writing to a string does not fail");
        self.refusals = refusals;
    }

    fn carry_out(&mut self) {
        self.see();
        let (approved, refusals) = self.world.guarded();
        self.refusals = refusals;
        let done = self.world.execute(&approved);
        self.show("done:", &done);
        self.shown.push('\n');
    }

    /// Executes only the first `actions` steps, because the daemon is killed.
    fn killed(&mut self, actions: usize) {
        let (approved, _) = self.world.guarded();
        let done = self.world.execute_until(&approved, actions);
        self.show("done:", &done);
        self.shown.push('\n');
    }

    fn settle(&mut self) {
        self.world.cycles(4);
        assert!(self.world.plan().is_empty(), "{}", self.world.plan());
    }

    fn many(&mut self, from: &str, to: &str) {
        let (from, to): (i64, i64) =
            (from.parse().expect("the word is a number"), to.parse().expect("the word is a number"));
        for number in from..=to {
            self.world.add(AccountKind::Tool, &format!("t{number:02}"), Some(53_000 + number));
        }
    }

    /// Lets the time pass, reads the directory, and executes the plan.
    fn read(&mut self, hours: &str, completeness: Completeness) {
        self.world.now += hours_of(hours);
        let known = self.world.ledger.accounts.values().filter(|account| !self.gone.contains(&account.id));
        let mut entries: BTreeMap<DirectoryId, Entry> =
            known.map(|account| (account.directory_id.clone(), entry_of(account))).collect();
        entries.extend(self.others.clone());
        let answer = self.world.answer(entries.into_values().collect(), completeness);
        let mut taught = self.world.remember(&answer);
        taught.sort_by(|a, b| a.account.cmp(&b.account));
        let (approved, refusals) = self.world.guarded();
        self.refusals = refusals;
        let done = self.world.execute(&approved);
        let now = format!("{:.0}", self.world.now);
        self.show(&now, &taught);
        self.show(&now, &done);
    }

    /// Changes the uid of the account's entry.
    fn moves(&mut self, id: &AccountId, uid: &str) {
        let mut entry = entry_of(self.world.account(id));
        let uid: i64 = uid.parse().expect("the word is a number");
        entry.posix.as_mut().expect("the entry has a uid").uid = uid.try_into().expect("the id is in range");
        self.others.insert(entry.id.clone(), entry);
    }

    /// Replaces the account's entry by another one with the same name, and with the same or another uid.
    fn reborn(&mut self, id: &AccountId, uid: Option<&&str>) {
        let mut entry = entry_of(self.world.account(id));
        if let (Some(uid), Some(posix)) = (uid, &mut entry.posix) {
            posix.uid = uid.parse::<i64>().expect("the word is a number").try_into().expect("the id is in range");
        }
        entry.id = DirectoryId(format!("{}-again", entry.id));
        self.others.insert(entry.id.clone(), entry);
        self.gone.insert(id.clone());
    }

    /// Shows events, such as `done: tool:foo suspended by bursar: absent 26 h`.
    fn show(&mut self, head: &str, events: &[Event]) {
        for Event { account, action, actor, reason, .. } in events {
            let account = account.as_ref().map(|account| format!("{account} ")).unwrap_or_default();
            writeln!(self.shown, "{head} {account}{action} by {actor}: {reason}")
                .expect("writing to a string does not fail");
        }
    }

    fn quota(&mut self, verb: &str, kind: &str, name: &str, rest: &[&str]) {
        let word = |key: &str| {
            let at = rest.iter().position(|word| *word == key)?;
            rest.get(at + 1).map(|word| (*word).to_owned())
        };
        let resources = rest.iter().take_while(|word| !["until", "ticket", "in"].contains(word));
        let kind = kind.parse().expect("the word is a kind of account");
        let target = Target { kind, name: name.to_owned(), reason: None, ticket: word("ticket") };
        let cluster = word("in").map(ClusterName::from);
        let request = if verb == "set" {
            let amounts = resources.filter_map(|word| word.split_once('='));
            OrderRequest::QuotaSet(QuotaSet {
                target,
                amounts: amounts.map(|(resource, amount)| (resource.to_owned(), amount.to_owned())).collect(),
                until: word("until").map(|until| until.parse().expect("the text is a timestamp")),
                cluster,
            })
        } else {
            OrderRequest::QuotaUnset(QuotaUnset {
                target,
                resources: resources.map(|word| (*word).to_owned()).collect(),
                cluster,
            })
        };
        self.ordered(request);
    }

    /// Sets an exception for 30 days.
    fn exception(&mut self, kind: &str, name: &str, rules: &[&str]) {
        let (kind, ticket) = (kind.parse().expect("the word is a kind of account"), Some("T1".to_owned()));
        self.ordered(OrderRequest::ExceptionSet(ExceptionSet {
            target: Target { kind, name: name.to_owned(), reason: None, ticket },
            rules: rules.iter().map(|rule| rule.parse().expect("the word is a rule")).collect(),
            until: self.world.now + jiff::SignedDuration::from_hours(30 * 24),
            cluster: None,
        }));
    }

    fn ordered(&mut self, request: OrderRequest) {
        let RecordedOrders { changes, texts, refused, .. } =
            write_all(&self.world.ledger, &self.world.policy, "root", &[request], self.world.now);
        self.world.ledger.apply_all(&changes);
        let refused = refused.into_iter().map(|refusal| format!("refused ({}): {}", refusal.exit_code, refusal.text));
        for text in texts.into_iter().chain(refused) {
            writeln!(self.shown, "{text}\n").expect("writing to a string does not fail");
        }
    }

    /// Edits a quota like an administrator with `kubectl edit`.
    fn quota_edited(&mut self, id: &AccountId, amount: &str, cluster: Option<&str>) {
        let cluster = cluster.map_or_else(prod, |name| ClusterName(name.into()));
        let (resource, amount) = amount.split_once('=').expect("the word is RESOURCE=AMOUNT");
        let wanted = self.world.desired().accounts[id].clusters[&cluster].objects.clone();
        let (_, quota) =
            wanted.iter().find(|(key, _)| key.kind == ManagedKind::ResourceQuota).expect("the account has a quota");
        let ours = super::quota::amounts(quota.hard.as_ref().expect("a quota has amounts"));
        let mut hard = ours.clone();
        hard.insert(resource.to_owned(), amount.to_owned());
        self.in_quota(id, &cluster, |quota| {
            quota.edited = hard;
            quota.editors = vec!["kubectl-edit".to_owned()];
        });
        if ours.contains_key(resource) {
            let key = self.quota_key(id, &cluster);
            let objects = &mut self.world.in_cluster(&cluster).objects;
            objects.get_mut(&key).expect("the world has the object").digest = format!("edited {amount}").into();
        }
    }

    fn quota_key(&self, id: &AccountId, cluster: &ClusterName) -> ObjectKey {
        let mut records = self.world.ledger.objects.iter();
        let of = |key: &ObjectKey| key.kind == ManagedKind::ResourceQuota && key.cluster == *cluster;
        let (key, _) = records.find(|(key, record)| record.account == *id && of(key)).expect("the account has a quota");
        key.clone()
    }

    fn in_quota(&mut self, id: &AccountId, cluster: &ClusterName, change: impl FnOnce(&mut ObservedQuota)) {
        let key = self.quota_key(id, cluster);
        let found = self.world.in_cluster(cluster).objects.get_mut(&key).expect("the world has the object");
        change(Arc::make_mut(found.rare.get_or_insert_default()).quota.get_or_insert_default());
    }

    /// Lets finalizers keep deleted namespaces or, if `hold` is `false`, removes the kept ones.
    fn finalizers(&mut self, hold: bool) {
        self.world.stuck = hold;
        let objects = &mut self.world.cluster().objects;
        let going: BTreeSet<String> = objects
            .iter()
            .filter(|(key, found)| key.kind == ManagedKind::Namespace && found.deleting && !hold)
            .map(|(key, _)| key.name.to_string())
            .collect();
        let is_in = |key: &ObjectKey| {
            going.contains(key.namespace.as_deref().unwrap_or(if key.kind == ManagedKind::Namespace {
                &key.name
            } else {
                ""
            }))
        };
        objects.retain(|key, _| !is_in(key));
    }

    /// Somebody deletes the account's namespace, and another person creates one with the same name.
    fn namespace_recreated(&mut self, id: &AccountId) {
        let namespace =
            self.world.ledger.tenants[&(id.clone(), prod())].namespace.clone().expect("the tenant has a namespace");
        let key = ObjectKey::namespace(&prod(), &namespace);
        let objects = &mut self.world.cluster().objects;
        objects.retain(|known, _| known.namespace.as_deref() != Some(namespace.as_str()));
        objects.get_mut(&key).expect("the world has the object").uid = "a stranger's".into();
    }

    fn approve(&mut self) {
        let hash = refused_hash(&self.refusals).expect("the last plan refused something");
        for change in approve(&self.world.ledger, &hash, self.world.now).expect("the ledger has the refusal") {
            self.world.ledger.apply(&change);
        }
        writeln!(self.shown, "approved {hash}\n").expect("writing to a string does not fail");
    }
}

fn hours_of(text: &str) -> SignedDuration {
    SignedDuration::from_hours(text.trim_end_matches('h').parse().expect("the word is a number of hours"))
}
