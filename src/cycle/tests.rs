//! Checks with random histories of a site and a real ledger that the next cycle executes exactly what `bursar plan`
//! prints, and that the ledger afterwards is as the preview showed it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;
use crate::identity::{AccountId, AccountKind, ClusterName, DirectoryId, PosixIdentity};
use crate::inventory::ClusterInventory;
use crate::ledger::change::Change;
use crate::ledger::{Failure, Note, Order, OrderKind};
use crate::plan::action::Action;
use crate::plan::testing::{World, course, prod};
use crate::policy::{Limit, NamespaceReaper};
use crate::snapshot::{Completeness, Entry, Role};
use crate::store::Store;
use crate::telemetry::Metrics;

/// An event between two cycles.
#[derive(Debug, Clone)]
enum Happening {
    Comes(usize),
    Goes(usize),
    Marked(usize, bool),
    Joins(usize, bool),
    Ordered(usize, OrderKind),
    Held(usize, bool),
    Vanished(usize),
    Edited(usize),
    Cluster(bool),
    Limit(u64),
    Quota(u8),
}

/// The events before a cycle, the hours until it, and the answer of the directories: none, incomplete or complete.
type Step = (Vec<Happening>, i64, Option<bool>);

/// Three tools, two people and their workspace.
const ENTRIES: [(AccountKind, &str); 6] = [
    (AccountKind::Tool, "foo"),
    (AccountKind::Tool, "bar"),
    (AccountKind::Tool, "baz"),
    (AccountKind::User, "alice"),
    (AccountKind::User, "bob"),
    (AccountKind::Group, "lab"),
];

fn step() -> impl Strategy<Value = Step> {
    let who = 0..ENTRIES.len();
    let order = prop_oneof![Just(OrderKind::Suspend), Just(OrderKind::Resume), Just(OrderKind::Revoke)];
    let happening = prop_oneof![
        2 => who.clone().prop_map(Happening::Comes),
        3 => who.clone().prop_map(Happening::Goes),
        1 => (who.clone(), any::<bool>()).prop_map(|(who, on)| Happening::Marked(who, on)),
        1 => (3_usize..5, any::<bool>()).prop_map(|(who, on)| Happening::Joins(who, on)),
        1 => (who.clone(), order).prop_map(|(who, order)| Happening::Ordered(who, order)),
        1 => (who, any::<bool>()).prop_map(|(who, on)| Happening::Held(who, on)),
        1 => (0_usize..40).prop_map(Happening::Vanished),
        1 => (0_usize..40).prop_map(Happening::Edited),
        1 => any::<bool>().prop_map(Happening::Cluster),
        1 => (0_u64..4).prop_map(Happening::Limit),
        1 => (1_u8..4).prop_map(Happening::Quota),
    ];
    let heard = prop_oneof![1 => Just(None), 1 => Just(Some(false)), 4 => Just(Some(true))];
    (prop::collection::vec(happening, 0..4), 0_i64..30, heard)
}

fn entry(who: usize) -> Entry {
    let (kind, name) = ENTRIES[who];
    let number = 20_001 + i64::try_from(who).expect("the number is small");
    let posix = PosixIdentity {
        uid: number.try_into().expect("the number is a valid uid"),
        gid: number.try_into().expect("the number is a valid gid"),
        groups: BTreeSet::new(),
    };
    let place = if kind == AccountKind::User { "students".to_owned() } else { format!("{kind}s") };
    let base = if kind == AccountKind::Tool { "/data/project" } else { "/home" };
    let has_ids = kind != AccountKind::Group;
    Entry {
        posix: has_ids.then_some(posix),
        home: has_ids.then(|| format!("{base}/{name}").into()),
        ..Entry::new(kind, format!("{name}-id"), format!("cn={name},ou={place},dc=example,dc=org"), name)
    }
}

/// A site: the answers of its servers, and the ledger of its daemon.
struct Story {
    world: World,
    entries: BTreeMap<usize, Entry>,
    /// The content of the cluster while it does not answer.
    away: Option<Arc<ClusterInventory>>,
    daemon: Ledger,
    planner: Planner,
}

impl Story {
    /// If `shares`, there are workspaces and a reaper, so that what one account should have depends on others.
    async fn new(folder: &std::path::Path, shares: bool) -> Self {
        let metrics = Arc::new(Metrics::default());
        let opened = Store::create(folder).await.expect("a new ledger opens");
        let daemon = Ledger::of(opened, folder, || Timestamp::UNIX_EPOCH, &metrics);
        let mut world = World::new();
        if shares {
            let course = course();
            world.policy.classes.insert(course.name.clone(), course);
            world.inventory.pods.insert(prod(), Arc::default());
            world.policy.reapers.namespaces = Some(NamespaceReaper {
                idle_for: Duration::from_hours(10),
                warn_for: Duration::from_hours(2),
                per_cycle: 1,
                evidence: BTreeMap::new(),
            });
        }
        let mut entries: BTreeMap<usize, Entry> = (0..ENTRIES.len()).map(|who| (who, entry(who))).collect();
        join(&mut entries, 3, true);
        Self { world, entries, away: None, daemon, planner: Planner::default() }
    }

    async fn happens(&mut self, what: &Happening) {
        match what {
            Happening::Comes(who) => drop(self.entries.entry(*who).or_insert_with(|| entry(*who))),
            Happening::Goes(who) => drop(self.entries.remove(who)),
            Happening::Marked(who, on) => {
                if let Some(entry) = self.entries.get_mut(who) {
                    entry.disabled = on.then(|| "mark: yes".to_owned());
                }
            }
            Happening::Joins(who, on) => join(&mut self.entries, *who, *on),
            Happening::Ordered(who, what) => {
                let id = self.daemon.state().orders.last().map_or(1, |order| order.id + 1);
                let order = |account| Order { id, account, what: *what, note: self.note(), bulk: None, object: None };
                let change = self.account(*who).map(|account| Change::Order(order(account)));
                self.write(change).await;
            }
            Happening::Held(who, on) => {
                let change = self.account(*who).map(|account| Change::Hold(account, on.then(|| self.note())));
                self.write(change).await;
            }
            Happening::Vanished(nth) if self.away.is_none() => {
                let key = self.world.cluster().objects.keys().nth(*nth).cloned();
                key.map(|key| self.world.cluster().objects.remove(&key));
            }
            Happening::Edited(nth) if self.away.is_none() => {
                if let Some(found) = self.world.cluster().objects.values_mut().nth(*nth) {
                    found.digest = "edited".into();
                }
            }
            Happening::Vanished(_) | Happening::Edited(_) => {}
            Happening::Cluster(false) => {
                self.away = self.away.take().or_else(|| self.world.inventory.clusters.remove(&prod()));
            }
            Happening::Cluster(true) => {
                let back = self.away.take().map(|cluster| (prod(), cluster));
                self.world.inventory.clusters.extend(back);
            }
            Happening::Limit(count) => {
                let limit = Limit { count: *count, percent: None };
                self.world.policy.limits.suspend_per_cycle = limit;
                self.world.policy.limits.remove_members_per_day = limit;
            }
            Happening::Quota(pods) => {
                self.world.class("tool").quota.insert("pods".to_owned(), pods.to_string());
            }
        }
    }

    fn note(&self) -> Note {
        self.world.note("because")
    }

    fn account(&self, who: usize) -> Option<crate::identity::AccountId> {
        let id = entry(who).id;
        self.daemon.state().accounts.values().find(|account| account.directory_id == id).map(|it| it.id.clone())
    }

    async fn write(&mut self, change: Option<Change>) {
        let changes: Vec<Change> = change.into_iter().collect();
        self.daemon.write(&changes, &[], self.world.now).await.expect("the ledger takes writes");
    }

    /// Returns the observations. A preview and a cycle at the same time get the same.
    fn read(&self, heard: Option<bool>) -> (Option<DirectorySnapshot>, Inventory) {
        let heard = heard.map(|complete| {
            let cut = Completeness::Partial { why: "size limit".to_owned() };
            let completeness = if complete { Completeness::Complete } else { cut };
            self.world.answer(self.entries.values().cloned().collect(), completeness)
        });
        (heard, self.world.inventory.clone())
    }

    fn evolve(&self, heard: Option<bool>, planner: &mut Planner) -> Evolved {
        let (heard, inventory) = self.read(heard);
        let World { policy, sealer, now, .. } = &self.world;
        evolve(Readings { heard, inventory, policy, sealer, now: *now }.with(self.daemon.state()), planner)
    }

    async fn cycle(&mut self, heard: Option<bool>) -> Result<(), TestCaseError> {
        let mut planner = std::mem::take(&mut self.planner);
        let foreseen = self.evolve(heard, &mut planner);
        let unaided = self.evolve(heard, &mut Planner::default());
        prop_assert_eq!(&foreseen, &unaided, "a planner with memory and a planner without it decide the same");
        let Evolved { known, plan, approved, refusals, .. } = &foreseen;
        let printed = Preview::of(known, plan, approved, refusals).to_string();

        let ((heard, inventory), at) = (self.read(heard), self.world.now);
        let readings = Readings { heard, inventory, policy: &self.world.policy, sealer: &self.world.sealer, now: at };
        let decided = decide(&mut self.daemon, &mut planner, readings).await.expect("the ledger takes writes");
        prop_assert_eq!(self.daemon.state(), &foreseen.after(), "the ledger is as the preview foresaw");

        let mut executed = Vec::new();
        let world = &mut self.world;
        world.ledger = self.daemon.state().clone();
        let answering: BTreeSet<ClusterName> = world.inventory.clusters.keys().cloned().collect();
        let progress = StepCounter::default();
        carry_out(&mut self.daemon, &decided.approved, &progress, async |_, _, recorder| {
            for account in decided.approved.accounts() {
                for action in account.steps() {
                    let changes = world.act(account, action);
                    recorder.store(changes, Vec::new()).await.expect("the record is stored");
                    executed.push((account.account.clone(), action.clone()));
                }
                let places = account.settles.iter().filter(|(cluster, _)| answering.contains(cluster));
                let done = places.flat_map(|(cluster, own)| {
                    let over = Change::Failure(account.id.clone(), cluster.clone(), None);
                    [over, Change::Settled(account.id.clone(), cluster.clone(), own.clone())]
                });
                recorder.store(done.collect(), Vec::new()).await.expect("the record is stored");
            }
            execute::Report::default()
        })
        .await
        .expect("the records are stored");
        let Decided { plan, approved, refusals, events: _ } = &decided;
        prop_assert_eq!(printed, Preview::of(known, plan, approved, refusals).to_string());
        let foreseen: Vec<(_, Action)> = foreseen
            .approved
            .accounts()
            .iter()
            .flat_map(|account| account.steps().map(|action| (account.account.clone(), action.clone())))
            .collect();
        prop_assert_eq!(foreseen, executed);

        let report = report::cycle(Trigger::Sync, (at, at), self.daemon.state(), plan, approved, refusals);
        self.daemon.finish(report).await.expect("the ledger takes writes");
        self.planner = planner;
        Ok(())
    }
}

/// Adds a person to the workspace, or removes them. The workspace is entry 5.
fn join(entries: &mut BTreeMap<usize, Entry>, who: usize, on: bool) {
    let id: DirectoryId = entry(who).id;
    let Some(lab) = entries.get_mut(&5) else { return };
    if on {
        lab.members.insert(id, Role::Member);
    } else {
        lab.members.remove(&id);
    }
}

fn histories() -> ProptestConfig {
    let asked = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(asked.unwrap_or(16)) }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts")
}

proptest! {
    #![proptest_config(histories())]

    #[test]
    fn what_plan_prints_is_what_the_next_cycle_executes(
        history in prop::collection::vec(step(), 1..20),
        shares in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        runtime().block_on(async {
            let mut story = Story::new(folder.path(), shares).await;
            story.cycle(Some(true)).await?;
            for (happenings, hours, heard) in &history {
                for what in happenings {
                    story.happens(what).await;
                }
                story.world.now += SignedDuration::from_hours(*hours);
                story.cycle(*heard).await?;
            }
            story.daemon.close().await.expect("the ledger closes");
            Ok::<(), TestCaseError>(())
        })?;
    }
}

/// `benches/cycle.rs` measures how long a cycle takes; this test guards the reason why it is fast.
#[tokio::test]
async fn a_decision_copies_only_the_changed_part_of_the_ledgers_large_maps() {
    let folder = tempfile::tempdir().expect("a temporary folder is created");
    let mut story = Story::new(folder.path(), false).await;
    for _ in 0..4 {
        story.cycle(Some(true)).await.expect("the cycle executes what was foreseen");
    }
    story.world.ledger = LedgerState::default();
    let quiet = story.evolve(Some(true), &mut Planner::default());
    assert!(quiet.approved.accounts().is_empty(), "{}", quiet.plan);
    assert_eq!(addresses(&quiet.after()), addresses(story.daemon.state()), "nothing changed, so nothing is copied");
    drop(quiet);

    story.happens(&Happening::Marked(0, true)).await;
    let before = addresses(story.daemon.state());
    let (heard, inventory) = story.read(Some(true));
    let World { policy, sealer, now, .. } = &story.world;
    let readings = Readings { heard, inventory, policy, sealer, now: *now };
    let decided = decide(&mut story.daemon, &mut story.planner, readings).await.expect("the ledger takes writes");
    assert_eq!(decided.approved.accounts().len(), 1);
    let after = addresses(story.daemon.state());
    assert_eq!(after[1..], before[1..], "only a part of the accounts is copied, and nothing else");
}

fn addresses(ledger: &LedgerState) -> [usize; 6] {
    let LedgerState { accounts, objects, tenants, settled, certificates, deliveries, .. } = ledger;
    let credentials = [certificates.address(), deliveries.address()];
    [accounts.address(), objects.address(), tenants.address(), settled.address(), credentials[0], credentials[1]]
}

#[tokio::test]
async fn a_write_that_the_ledger_rejects_ends_the_execution() {
    let folder = tempfile::tempdir().expect("a temporary folder is created");
    let mut story = Story::new(folder.path(), false).await;
    let approved = story.evolve(Some(true), &mut Planner::default()).approved;
    assert!(!approved.accounts().is_empty());
    let failure = Failure {
        step: "apply".to_owned(),
        reason: "none".to_owned(),
        since: Timestamp::UNIX_EPOCH,
        attempts: 1,
        next_try: Timestamp::UNIX_EPOCH,
    };
    let unknown = Change::Failure(AccountId("nobody".into()), prod(), Some(failure));
    let writers = async |_: &LedgerState, _, recorder: Recorder| {
        // There are more records than the channel holds, so that some wait for a place in it.
        let (recorder, unknown) = (&recorder, &unknown);
        let stored = (0..200).map(|_| async move { recorder.store(vec![unknown.clone()], Vec::new()).await });
        let stored = futures::future::join_all(stored).await;
        assert!(stored.iter().all(Result::is_err), "every writer learns that nothing was stored");
        execute::Report::default()
    };
    let progress = StepCounter::default();
    let executed = carry_out(&mut story.daemon, &approved, &progress, writers);
    let outcome = tokio::time::timeout(Duration::from_mins(1), executed).await.expect("the execution ends");
    assert!(outcome.is_err(), "{outcome:?}");
}
