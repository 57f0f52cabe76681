//! The ledger as its only writer holds it: the store and its lock, whether it takes writes, and the state of its
//! backups.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sha2::{Digest as _, Sha256};

use super::Clock;
use crate::control::api::{BackupStatus, CycleReport, LedgerTrouble, OrderAnswer};
use crate::errors::chain;
use crate::identity::{AccountName, ClusterName};
use crate::ledger::change::{Change, Event};
use crate::ledger::revocation::BulkRevocation;
use crate::ledger::{CredentialKey, Failure, LedgerState};
use crate::orders::request::{Evict, OrderRequest};
use crate::orders::{self, RecordedOrders};
use crate::plan::credential::next_look;
use crate::policy::Policy;
use crate::store::backup::{self, Backup};
use crate::store::{CycleEnd, CycleLock, ReadStore, Store, StoreError, is_before_init};
use crate::telemetry::SharedMetrics;

/// `next_look` ignores what is due later, because a scheduled cycle comes every minute.
const SOON: SignedDuration = SignedDuration::from_secs(90);
/// How soon the next cycle begins after a delivery was found broken. That cycle repeats the delivery.
const AT_ONCE: SignedDuration = SignedDuration::from_secs(1);

pub struct Ledger {
    store: Store,
    lock: CycleLock,
    clock: Clock,
    metrics: SharedMetrics,
    trouble: Option<LedgerTrouble>,
    backup: BackupStatus,
    last_cycle: Option<CycleReport>,
}

impl Ledger {
    pub(crate) async fn open(state_dir: &Path, clock: Clock, metrics: &SharedMetrics) -> Result<Self, StoreError> {
        let opened =
            if is_before_init(state_dir) { Store::create(state_dir).await? } else { Store::open(state_dir).await? };
        Ok(Self::of(opened, state_dir, clock, metrics))
    }

    pub(crate) fn of(
        (store, lock): (Store, CycleLock),
        state_dir: &Path,
        clock: Clock,
        metrics: &SharedMetrics,
    ) -> Self {
        let backup = BackupStatus { newest: backup::newest(state_dir, clock()), failed: None };
        Self { store, lock, clock, metrics: Arc::clone(metrics), trouble: None, backup, last_cycle: None }
    }

    pub(crate) async fn close(self) -> Result<(), StoreError> {
        self.store.close().await
    }

    /// Returns an id of this process that no other running process has: a hash of the host's boot id and the place of
    /// the lock file. After a crash, the next process on this host gets the same id, which is safe because the former
    /// process is gone. A copy of the folder and a rebooted host get another id.
    pub(crate) fn instance(&self) -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        match (boot, self.lock.place()) {
            (Ok(boot), Ok((device, inode))) => {
                let place = format!("{} {device} {inode}", boot.trim());
                hex::encode(&Sha256::digest(place)[..16])
            }
            _ => uuid::Uuid::new_v4().simple().to_string(),
        }
    }

    /// Returns the state that the ledger remembers.
    #[must_use]
    pub const fn state(&self) -> &LedgerState {
        self.store.state()
    }

    /// Returns the current time in whole seconds.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub(crate) const fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) async fn write(
        &mut self,
        changes: &[Change],
        events: &[Event],
        now: Timestamp,
    ) -> Result<(), StoreError> {
        self.store.write(&self.lock, changes, events, now).await
    }

    /// Records that the marks of `clusters` may be raised to the last generation. This must precede each raise: a mark
    /// that is higher than recorded proves that the ledger was rolled back.
    pub(crate) async fn may_mark(&mut self, clusters: impl Iterator<Item = &ClusterName>) -> Result<(), StoreError> {
        let LedgerState { last_generation, cluster_marks, .. } = self.state();
        let is_lower =
            |cluster: &&ClusterName| cluster_marks.get(*cluster).is_none_or(|marked| marked < last_generation);
        let changes: Vec<Change> =
            clusters.filter(is_lower).map(|cluster| Change::ClusterMark(cluster.clone(), *last_generation)).collect();
        if changes.is_empty() {
            return Ok(());
        }
        self.write(&changes, &[], self.now()).await
    }

    /// Checks that the file takes a write, before anything is done that the ledger has to remember.
    pub(crate) async fn prove(&mut self) -> Result<(), StoreError> {
        self.store.prove(&self.lock).await
    }

    /// Checks that the ledger takes writes. If it did not take them before, tries to recover it first. After an error,
    /// nothing may be written anywhere.
    ///
    /// # Errors
    /// Why it takes no writes; [`StoreError::is_of_the_disk`] if waiting may resolve it.
    pub async fn must_write(&mut self) -> Result<(), StoreError> {
        if self.store.is_stuck() {
            self.store.recover(&self.lock).await?;
        } else {
            self.store.has_room()?;
        }
        if let Some(trouble) = self.trouble.take() {
            tracing::info!(since = %trouble.since, "the ledger takes writes again");
        }
        self.metrics.ledger_stuck(false);
        Ok(())
    }

    /// Returns whether the ledger probably takes writes. Tests this without a write.
    pub(super) fn may_write(&self) -> bool {
        !self.store.is_stuck() && self.store.has_room().is_ok()
    }

    /// Records that the ledger did not take a write.
    pub fn is_stuck(&mut self, error: &StoreError) {
        let why = chain(error);
        if self.trouble.is_none() {
            tracing::error!(error = why, "the ledger takes no writes: nothing is written anywhere until it does");
        }
        let (since, waiting) =
            self.trouble.take().map_or_else(|| (self.now(), 0), |trouble| (trouble.since, trouble.waiting));
        self.trouble = Some(LedgerTrouble { why, since, waiting });
        self.metrics.ledger_stuck(true);
    }

    /// Keeps in memory what the directories showed while the ledger takes no writes, and the number of accounts with
    /// something to do.
    pub(crate) fn hear(&mut self, changes: &[Change], waiting: u64) {
        self.store.hear(changes);
        if let Some(trouble) = &mut self.trouble {
            trouble.waiting = waiting;
        }
    }

    /// Returns why the ledger takes no writes.
    #[must_use]
    pub const fn trouble(&self) -> Option<&LedgerTrouble> {
        self.trouble.as_ref()
    }

    pub(super) const fn backup(&self) -> &BackupStatus {
        &self.backup
    }

    pub(crate) const fn last_cycle(&self) -> Option<&CycleReport> {
        self.last_cycle.as_ref()
    }

    /// Records the result of a backup.
    pub fn backed_up(&mut self, result: Result<Backup, StoreError>) {
        match result {
            Ok(Backup { path, at, events, head }) => {
                tracing::info!(file = %path.display(), events, head, "backup");
                self.backup = BackupStatus { newest: Some(at), failed: None };
            }
            Err(error) => {
                let why = chain(&error);
                tracing::error!(error = why, "cannot back up the ledger");
                self.backup.failed = Some(why);
            }
        }
    }

    /// Logs where the history ends. An administrator who keeps the journal can prove later that no part of the history
    /// was cut off or rewritten.
    pub fn tell_the_head(&self) {
        let (events, head) = self.store.head();
        tracing::info!(ledger = self.state().ledger_id, events, head, "history");
    }

    /// Ends a cycle, and writes its row.
    pub(crate) async fn finish(&mut self, mut report: CycleReport) -> Result<CycleReport, StoreError> {
        report.id = self.store.next_cycle();
        let end = CycleEnd {
            began: report.began,
            ended: report.ended,
            trigger: report.trigger.name().to_owned(),
            sources: self.state().sources.clone(),
            report: serde_json::to_value(&report).unwrap_or_default(),
            shorter: report.shorter().and_then(|shorter| serde_json::to_value(shorter).ok()),
        };
        self.store.finish(&self.lock, end).await?;
        self.metrics.cycle(["done", "failing", "", "refused"][usize::from(report.exit_code().min(3))]);
        self.last_cycle = Some(report.clone());
        Ok(report)
    }

    /// Returns the number of revocations of classes that are in progress, how many accounts they have revoked, and how
    /// many of these are not finished.
    #[must_use]
    pub fn revoked(&self) -> (usize, u64, usize) {
        let (ledger, revocations) = (self.state(), &self.state().revocations);
        let open = revocations.values().map(|revocation| ledger.under_way(revocation).len()).sum();
        (revocations.len(), revocations.values().map(|revocation| revocation.done).sum(), open)
    }

    /// Returns the time until a cycle that is due earlier than the schedule's next one. Such a cycle checks a home
    /// after a delivery, retries a delivery or a failed removal of access, or continues the revocation of a class.
    /// Returns `None` if no such cycle is due within `SOON`.
    #[must_use]
    pub fn next_look(&self) -> Option<Duration> {
        let (now, ledger) = (self.now(), self.state());
        let soon = now.saturating_add(SOON).ok()?;
        let waits = |key: &CredentialKey| {
            let failure = ledger.failures.get(&(key.account.clone(), key.cluster.clone()));
            failure.is_some_and(|failure| failure.waits(now))
        };
        let looks = ledger.deliveries.iter().filter_map(|(key, delivery)| {
            let at = match delivery.checked_at {
                None => (delivery.at.saturating_add(SOON).ok()? > now).then(|| now.saturating_add(AT_ONCE).ok())?,
                Some(_) => next_look(delivery),
            };
            at.filter(|_| !waits(key))
        });
        let of_its_own = |failure: &&Failure| failure.is_of_delivery() || failure.is_of_removal();
        let failures = ledger.failures.values().filter(of_its_own);
        let tries = failures.map(|failure| failure.next_try);
        let turns = ledger.revocations.values().filter_map(BulkRevocation::waits_until);
        // A step that became due while the last cycle ran may be missing in that cycle's plan. A step that was due
        // before waits for something other than the time, such as an unreachable cluster.
        let since = self.last_cycle.as_ref().map_or(now, |cycle| cycle.began.min(now));
        let next = looks.chain(tries).chain(turns).filter(|at| (since..=soon).contains(at)).min()?;
        let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default();
        Some(wait.max(Duration::from_secs(1)))
    }

    pub(super) async fn order(
        &mut self,
        policy: &Policy,
        actor: &str,
        requests: &[OrderRequest],
    ) -> Result<OrderAnswer, StoreError> {
        let now = self.now();
        write_down(&mut self.store, &self.lock, policy, actor, requests, now).await
    }
}

/// Writes orders into a ledger, in one transaction. Returns what they mean, and why some were refused.
pub async fn write_down(
    store: &mut Store,
    lock: &CycleLock,
    policy: &Policy,
    actor: &str,
    requests: &[OrderRequest],
    now: Timestamp,
) -> Result<OrderAnswer, StoreError> {
    let RecordedOrders { changes, events, texts, ordered, of_access, refused } =
        orders::write_all(store.state(), policy, actor, requests, now);
    store.write(lock, &changes, &events, now).await?;
    let revoked = requests.iter().filter_map(|request| match request {
        OrderRequest::Revoke(target) | OrderRequest::Evict(Evict { target, .. }) => {
            Some(AccountName { kind: target.kind, name: target.name.clone() })
        }
        _ => None,
    });
    let revoked = revoked.filter(|account| ordered.contains(account)).collect();
    let text = texts.join("\n");
    Ok(OrderAnswer { text, refused, ordered, of_access, revoked, ..OrderAnswer::default() })
}

/// Copies the ledger of `state_dir` into its backups, even while another process writes to it.
pub async fn back_up(state_dir: PathBuf, now: Timestamp) -> Result<Backup, StoreError> {
    let mut ledger = ReadStore::open(&state_dir.join(crate::store::FILE)).await?;
    backup::nightly(&mut ledger, &state_dir, now).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Delivery, REMOVAL};
    use crate::orders::request::Trigger;
    use crate::plan::testing::{World, prod};
    use crate::report;
    use crate::telemetry::Metrics;

    const NOW: Timestamp = Timestamp::constant(1_800_000_000, 0);

    #[tokio::test]
    async fn a_delivery_that_waits_for_its_repetition_causes_no_cycle() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let opened = Store::create(folder.path()).await.expect("a new ledger opens");
        let mut ledger = Ledger::of(opened, folder.path(), || NOW, &Arc::new(Metrics::default()));
        let (mut world, foo) = World::with_foo();
        world.cycle();
        let account = Change::Account(world.ledger.accounts[&foo].clone().into());
        let key = CredentialKey::new(foo.clone(), prod());
        let broken = Delivery { at: NOW, checked_at: None, ..world.ledger.deliveries[&key].clone() };
        let failure = Failure { attempts: 4, ..Failure::overwritten("why".to_owned(), None, NOW) };
        let failure = Failure::overwritten("why".to_owned(), Some(&failure), NOW);
        let waits = Change::Failure(foo.clone(), prod(), Some(failure));
        for (change, expected) in [(None, Some(AT_ONCE)), (Some(waits), None)] {
            let delivery = Change::Delivery(key.clone(), Some(broken.clone()));
            let changes: Vec<Change> = [account.clone(), delivery].into_iter().chain(change).collect();
            ledger.write(&changes, &[], NOW).await.expect("the ledger takes writes");
            assert_eq!(ledger.next_look(), expected.map(SignedDuration::unsigned_abs));
        }
    }

    #[tokio::test]
    async fn a_removal_whose_next_try_passed_while_the_cycle_ran_is_tried_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder is created");
        let opened = Store::create(folder.path()).await.expect("a new ledger opens");
        let mut ledger = Ledger::of(opened, folder.path(), || NOW, &Arc::new(Metrics::default()));
        let (world, foo) = World::with_foo();
        let ago = |seconds| NOW - SignedDuration::from_secs(seconds);
        let (step, reason) = (REMOVAL.to_owned(), "no answer".to_owned());
        let failure = Failure { step, reason, since: ago(8), attempts: 1, next_try: ago(3) };
        let account = Change::Account(world.ledger.accounts[&foo].clone().into());
        ledger
            .write(&[account, Change::Failure(foo, prod(), Some(failure))], &[], NOW)
            .await
            .expect("the ledger takes writes");
        let (plan, (approved, refusals)) = (world.plan(), world.guarded());
        let mut ran = |began| {
            let times = (began, NOW);
            ledger.last_cycle = Some(report::cycle(Trigger::Sync, times, &world.ledger, &plan, &approved, &refusals));
            ledger.next_look()
        };
        assert_eq!(ran(ago(10)), Some(Duration::from_secs(1)));
        assert_eq!(ran(ago(2)), None, "the last plan saw that it was due");
    }
}
