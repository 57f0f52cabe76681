//! The input of a cycle without any server: policy, directory, cluster and ledger of a simulated site.
//!
//! The stages themselves make the ledger: the first read of a simulated directory, its plan, and the records of an
//! execution in which every action succeeded.

#![allow(dead_code, reason = "each benchmark uses some of the items")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bursar::contract::Sealer;
use bursar::desired::Deriver;
use bursar::evolve::{Evolved, Inputs, Writes, evolve};
use bursar::identity::{AccountKind, ClusterName, DirectoryId, Gid, PosixIdentity, Uid};
use bursar::inventory::{ClusterInventory, Inventory, ObservedObject};
use bursar::ledger::change::Change;
use bursar::ledger::transition::transition;
use bursar::ledger::{Certificate, CredentialKey, Delivery, ObjectRecord};
use bursar::orders::request::Trigger;
use bursar::plan::intents::overcome;
use bursar::plan::{AccountPlan, Action, Bounds, Planner, guard, plan};
use bursar::policy::Policy;
use bursar::report;
use bursar::snapshot::{DirectorySnapshot, Entry, Role, SourceRead};
use bursar::store::{CycleEnd, CycleLock, Store};
use bursar_testkit::pki::{Authority, write_public};
use jiff::{SignedDuration, Timestamp};

use crate::figures::settings;

/// The number of accounts whose results are written in one transaction.
const AT_A_TIME: usize = 64;

pub struct Site {
    pub policy: Policy,
    pub sealer: Sealer,
    pub deriver: Deriver,
    pub store: Store,
    pub lock: CycleLock,
    pub snapshot: DirectorySnapshot,
    pub inventory: Inventory,
    pub now: Timestamp,
}

impl Site {
    /// Creates a site in which all tenants are set up.
    pub async fn bootstrapped(folder: &Path, tenants: u32) -> Self {
        fs::create_dir_all(folder).expect("the parent folder is writable");
        let (store, lock) = Store::create(folder).await.expect("the ledger can be opened");
        let mut site = Self {
            policy: policy(folder),
            sealer: Sealer::from_seed(&[7; 32]).expect("32 bytes are a seed"),
            deriver: Deriver::default(),
            store,
            lock,
            snapshot: directory(tenants),
            inventory: Inventory::default(),
            now: "2026-11-21T06:00:00Z".parse().expect("the time is valid"),
        };
        site.inventory.clusters.insert(cluster(), Arc::default());
        let inputs = Inputs {
            ledger: site.store.state(),
            heard: Some(&site.snapshot),
            inventory: &site.inventory,
            policy: &site.policy,
            sealer: &site.sealer,
            now: site.now,
        };
        let Evolved { seen, plan, approved, refusals, intended, known: _ } = evolve(inputs, &mut Planner::default());
        assert_eq!(
            (plan.accounts.len(), approved.accounts().len(), refusals.len()),
            (tenants as usize, tenants as usize, 0)
        );
        drop(plan);
        for Writes { changes, events } in [seen, intended] {
            site.store.write(&site.lock, &changes, &events, site.now).await.expect("the ledger can be written");
        }
        let mut objects = ClusterInventory::default();
        for some in approved.accounts().chunks(AT_A_TIME) {
            let mut changes = Vec::new();
            for account in some {
                account.steps().for_each(|step| changes.extend(site.done(account, step, &mut objects)));
            }
            site.store.write(&site.lock, &changes, &[], site.now).await.expect("the ledger can be written");
        }
        site.inventory.clusters.insert(cluster(), Arc::new(objects));
        // A new process derives everything once.
        site.deriver = Deriver::default();
        site
    }

    /// Returns the changes that the executor records if the action succeeds.
    fn done(&self, account: &AccountPlan, action: &Action, objects: &mut ClusterInventory) -> Vec<Change> {
        match action {
            Action::Apply { key, wanted, manifest, .. } => {
                let uid = format!("0b0c1d2e-0000-4000-8000-{:012}", objects.objects.len());
                let found =
                    ObservedObject { uid: uid.as_str().into(), digest: wanted.clone(), ..ObservedObject::default() };
                objects.objects.insert(key.clone(), found);
                let record = ObjectRecord {
                    account: account.id.clone(),
                    uid: uid.into(),
                    wanted: wanted.clone(),
                    observed: wanted.clone(),
                    detail: bursar::desired::detail(&key.kind, &manifest.value()),
                };
                vec![Change::Object(key.clone(), Some(record))]
            }
            Action::Deliver { cluster, credential, generation, home, .. } => {
                let certificate = Certificate {
                    fingerprint: format!("{generation:064x}").into(),
                    generation: *generation,
                    subject: credential.proof.name().expect("the credential is a certificate"),
                    not_before: self.now,
                    not_after: self.now + SignedDuration::from_hours(168),
                    renew_after: self.now + SignedDuration::from_hours(112),
                    bound_to: None,
                };
                let delivery = Delivery {
                    path: home.home.join(&home.kubeconfig),
                    home: None,
                    mount: None,
                    digest: credential.digest.as_str().into(),
                    at: self.now,
                    checked_at: Some(self.now),
                };
                let key = CredentialKey::new(account.id.clone(), cluster.clone());
                vec![Change::Certificate(key.clone(), Some(certificate)), Change::Delivery(key, Some(delivery))]
            }
            other => panic!("{other:?} is not an action for a new tenant"),
        }
    }

    /// Runs the stages of `cycle::run` in their order and returns the duration of each. The time stands still, because
    /// otherwise some kubeconfigs would be due for a check in each cycle.
    pub async fn cycle(&mut self) -> Vec<(&'static str, Duration)> {
        let (now, policy) = (self.now, &self.policy);
        let mut stages = Vec::new();
        let mut timed = |stage, began: Instant| stages.push((stage, began.elapsed()));

        let began = Instant::now();
        let seen = transition(self.store.state(), &self.snapshot, policy, now);
        timed("transition", began);
        let began = Instant::now();
        self.store.write(&self.lock, &seen.changes, &seen.events, now).await.expect("the ledger can be written");
        timed("ledger: write of what was seen (nothing)", began);
        let began = Instant::now();
        let desired = self.deriver.derive(self.store.state(), policy, &self.sealer, now);
        timed("derive", began);
        let began = Instant::now();
        let planned = plan(desired, self.store.state(), &self.inventory, policy, now).expect("no manifest is missing");
        timed("plan", began);
        let began = Instant::now();
        let (approved, refusals) = guard(planned.clone(), &Bounds::of(self.store.state(), policy), now);
        timed("guard", began);
        let began = Instant::now();
        let (mut changes, events) = approved.intents(now);
        changes.extend(overcome(&planned, self.store.state(), &self.inventory, now));
        timed("intents", began);
        let began = Instant::now();
        self.store.write(&self.lock, &changes, &events, now).await.expect("the ledger can be written");
        timed("ledger: write of the intents (nothing)", began);
        let began = Instant::now();
        let report = report::cycle(Trigger::Schedule, (now, now), self.store.state(), &planned, &approved, &refusals);
        timed("report", began);
        assert_eq!((report.changed, report.actions, report.failing.len()), (0, 0, 0), "there is nothing to do");
        let end = CycleEnd {
            began: report.began,
            ended: report.ended,
            trigger: report.trigger.name().to_owned(),
            sources: self.store.state().sources.clone(),
            report: serde_json::to_value(&report).expect("the report has a JSON form"),
            shorter: None,
        };
        let began = Instant::now();
        self.store.finish(&self.lock, end).await.expect("the ledger can be written");
        timed("ledger: the cycle's own row, synced to disk", began);
        stages
    }

    /// Returns how long it takes to close the ledger and to open it again.
    pub async fn reopened(self, folder: &Path) -> (Duration, Duration) {
        let before = self.store.state().clone();
        let began = Instant::now();
        self.store.close().await.expect("the ledger closes");
        let close = began.elapsed();
        drop(self.lock);
        let began = Instant::now();
        let (store, _lock) = Store::open(folder).await.expect("the ledger can be opened again");
        let open = began.elapsed();
        assert!(*store.state() == before, "the ledger did not change");
        store.close().await.expect("the ledger closes");
        (close, open)
    }
}

pub fn cluster() -> ClusterName {
    ClusterName("test".into())
}

/// The policy of the tests' sites. No server is contacted, so the addresses are made up.
pub fn policy(folder: &Path) -> Policy {
    let ca = folder.join("ca.pem");
    // An authority that exists is kept, because a new one would change every kubeconfig.
    if !ca.exists() {
        write_public(folder, "ca.pem", &Authority::new("bench").identity().certificate);
    }
    settings(folder, ("ldaps://ldap.example.org", &ca), ("https://k8s.example.org:6443", &ca)).policy
}

/// Returns as many tools as tenants, each with three maintainers, and as many people.
pub fn directory(tenants: u32) -> DirectorySnapshot {
    let tools = (0..tenants).map(|number| {
        let maintainers = (0..3).map(|step| (person_id((number + step * 7) % tenants), Role::Member));
        Entry { members: maintainers.collect(), ..entry(AccountKind::Tool, "tool", number, 100_000 + number) }
    });
    let people = (0..tenants).map(|number| Entry {
        person: None,
        mail: Some(format!("person{number}@example.org")),
        display_name: Some(format!("Person {number}")),
        ..entry(AccountKind::User, "person", number, 10_000_000 + number)
    });
    let read = SourceRead {
        server: Some("ldap.example.org".to_owned()),
        took: Duration::from_millis(300),
        ..SourceRead::complete("people", [AccountKind::Tool, AccountKind::User], tools.chain(people).collect())
    };
    DirectorySnapshot { reads: vec![read], ..DirectorySnapshot::default() }
}

pub fn person_id(number: u32) -> DirectoryId {
    DirectoryId(format!("7d0c1d2e-0000-4000-8000-{number:012}"))
}

fn entry(kind: AccountKind, name: &str, number: u32, uid: u32) -> Entry {
    let name = format!("{name}{number}");
    let is_tool = kind == AccountKind::Tool;
    let (id, home) = if is_tool {
        (DirectoryId(format!("3a0c1d2e-0000-4000-8000-{number:012}")), "/data/project")
    } else {
        (person_id(number), "/home")
    };
    Entry {
        posix: Some(PosixIdentity {
            uid: Uid::try_from(i64::from(uid)).expect("the uid is in range"),
            gid: Gid::try_from(i64::from(uid)).expect("the gid is in range"),
            groups: BTreeSet::new(),
        }),
        home: Some(format!("{home}/{name}").into()),
        ..Entry::new(kind, id.0, format!("uid={name},ou=people,dc=example,dc=org"), name)
    }
}
