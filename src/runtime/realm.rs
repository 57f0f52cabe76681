//! Keeps the realm in agreement with the ledger: reads the realm when that is due, and then changes it step by step. An
//! error there stops only the work in the realm, which is retried with backoff. Other work waits for the realm no
//! longer than one request.

use std::sync::Arc;
use std::time::Duration;

use bursar_directory::SourceConfig;
use bursar_directory::keycloak::{Administration, RealmError};
use bursar_directory::source::{KeycloakConfig, SourceKind};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Work;
use super::asking::{Asking, PATIENCE};
use super::clusters::Clusters;
use super::ledger::Ledger;
use crate::control::api::{RealmStatus, RealmTrouble};
use crate::desired::Notice;
use crate::errors::chain;
use crate::evolve::{Followed, follow};
use crate::execute::Extent;
use crate::execute::realm::{RealmRun, carry_out, ends_all, failure, is_other_than_seen};
use crate::execute::record::retry_after;
use crate::identity::AccountId;
use crate::inventory::realm::RealmInventory;
use crate::ledger::change::Change;
use crate::ledger::{Account, LAST_REMOVAL_RETRY, LedgerState};
use crate::observed::realm::read;
use crate::orders::request::Trigger;
use crate::plan::Refusal;
use crate::plan::limit_usage::LimitUse;
use crate::plan::realm as planned;
use crate::plan::realm::guard::{ApprovedStep, RealmBounds, forgotten};
use crate::policy::{Limits, Realm};
use crate::report::unfinished::{self, Unfinished};
use crate::settings::{RealmSettings, Settings};
use crate::store::StoreError;
use crate::telemetry::SharedMetrics;

/// How long a cycle writes to the realm before it leaves the rest to another cycle, so that orders and clusters do not
/// wait for 5,000 new users.
const SLICE: Duration = Duration::from_secs(20);

/// A read in progress, which returns its session.
type Reading = Asking<(Administration, Result<RealmInventory, RealmError>)>;

/// A realm, as the daemon knows it.
pub struct RealmTarget {
    settings: RealmSettings,
    config: KeycloakConfig,
    /// Kept for its token, and recreated after an error. `None` while a read uses it.
    session: Option<Administration>,
    reading: Option<Reading>,
    seen: Option<RealmInventory>,
    read_at: Option<Timestamp>,
    trouble: Option<RealmTrouble>,
    waiting: u64,
    notices: Vec<Notice>,
}

impl RealmTarget {
    /// Returns the realm of the configuration, which is reached by `connection`. `before` is kept if its configuration is
    /// the same.
    pub(super) fn of(
        settings: &Settings,
        connection: Option<KeycloakConfig>,
        before: Option<Box<Self>>,
    ) -> Option<Box<Self>> {
        let (wanted, config) = (settings.realm.as_ref()?, connection?);
        let same = before.filter(|target| target.settings == **wanted && target.config == config);
        Some(same.unwrap_or_else(|| {
            Box::new(Self {
                settings: wanted.as_ref().clone(),
                config,
                session: None,
                reading: None,
                seen: None,
                read_at: None,
                trouble: None,
                waiting: 0,
                notices: Vec::new(),
            })
        }))
    }

    /// Returns whether the realm must be read before anything is decided. A cycle that somebody asks for always reads
    /// it.
    fn is_due(&self, trigger: Trigger, now: Timestamp) -> bool {
        let over = self.read_at.is_none_or(|at| {
            let gap = now.duration_since(at);
            gap.is_negative() || gap.unsigned_abs() >= self.settings.interval
        });
        trigger.tries_all() || over || self.seen.is_none()
    }

    /// Returns whether the realm must not be asked again yet after an error. The realm is asked at once if somebody
    /// asks for the cycle, or if an order arrives while a user whose access should be removed can still log in.
    fn waits(&self, trigger: Trigger, ledger: &LedgerState, now: Timestamp) -> bool {
        // A next try that is further away than any backoff comes from a wrong clock.
        let soon = |next_try: Timestamp| next_try > now && next_try.duration_since(now) <= LAST_REMOVAL_RETRY;
        let ordered = trigger == Trigger::Order && self.may_log_in_still(ledger).next().is_some();
        !trigger.tries_all() && !ordered && self.trouble.as_ref().is_some_and(|trouble| soon(trouble.next_try))
    }

    fn may_log_in_still<'s>(&'s self, ledger: &'s LedgerState) -> impl Iterator<Item = &'s Account> {
        planned::may_log_in_still(ledger, &self.settings.rules, self.seen.as_ref())
    }

    /// Reads the realm. Returns `None` if it has not answered in time; then another cycle takes the answer, and
    /// `changed` is notified. If `waits`, waits to the end.
    async fn read(
        &mut self,
        ledger: &LedgerState,
        now: Timestamp,
        waits: bool,
        changed: &Arc<Notify>,
    ) -> Option<Result<(), RealmError>> {
        if self.reading.is_none() {
            let session = self.session.take().map_or_else(|| Administration::new(&self.config), Ok);
            let mut session = match session {
                Ok(session) => session,
                Err(error) => return Some(Err(error)),
            };
            let (client, roles) = (self.settings.rules.client.clone(), planned::roles(ledger));
            let read = async move {
                let seen = read(&mut session, client.as_deref(), &roles).await;
                (session, seen)
            };
            self.reading = Some(Asking::begin(read, changed));
        }
        let (session, seen) = Asking::answer(&mut self.reading, (!waits).then_some(PATIENCE)).await?;
        self.session = Some(session);
        Some(seen.and_then(|seen| self.is_seen(seen, ledger, now)))
    }

    fn is_seen(&mut self, seen: RealmInventory, ledger: &LedgerState, now: Timestamp) -> Result<(), RealmError> {
        let rules = &self.settings.rules;
        let mut ours = ledger.realm_accounts.iter().filter(|((_, realm), _)| *realm == rules.name);
        if seen.users.is_empty() && ours.any(|(_, row)| row.user_id.is_some()) {
            return Err(RealmError::Nobody);
        }
        self.seen = Some(seen);
        (self.read_at, self.trouble) = (Some(now), None);
        Ok(())
    }

    /// Stops the work in the realm after an error, and forgets what was seen, which may be out of date.
    fn fail(&mut self, error: &RealmError, now: Timestamp) {
        let why = chain(error);
        let (since, attempts) = self.trouble.as_ref().map_or((now, 0), |before| (before.since, before.attempts));
        let attempts = attempts + 1;
        tracing::warn!(realm = self.settings.rules.name, error = why, "the work in the realm failed; it is retried");
        // The wait is as short as for a removal of access: until the realm answers, nobody knows what has to be removed
        // there.
        let wait = retry_after(attempts).min(LAST_REMOVAL_RETRY);
        let next_try = now.saturating_add(wait).unwrap_or(Timestamp::MAX);
        self.trouble = Some(RealmTrouble { why, since, attempts, next_try });
        (self.session, self.seen) = (None, None);
    }

    fn follow(&self, ledger: &LedgerState, limits: &Limits, now: Timestamp) -> Followed {
        let (nothing, rules) = (RealmInventory::default(), &self.settings.rules);
        let seen = self.seen.as_ref().unwrap_or(&nothing);
        follow(ledger, rules, seen, &RealmBounds::of(ledger, rules, limits, seen), now)
    }
}

/// What a cycle did in the realm, and what a limit refused.
#[derive(Debug, Default)]
pub(crate) struct RealmReport {
    pub(crate) actions: u64,
    pub(crate) refusals: Vec<Refusal>,
    pub(crate) near: Vec<LimitUse>,
}

/// What a cycle needs for its work in the realm.
pub(crate) struct Following<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) limits: &'a Limits,
    pub(crate) work: &'a Work,
    pub(crate) metrics: &'a SharedMetrics,
    /// Notified when a slice is over and steps are left.
    pub(crate) changed: &'a Arc<Notify>,
    /// The clusters show whether this process was rolled back.
    pub(crate) clusters: &'a Clusters,
    pub(crate) trigger: Trigger,
    pub(crate) extent: Extent,
}

/// Makes the realm agree with the ledger. If no realm is configured, the ledger forgets what was refused in it.
pub(crate) async fn serve(
    target: Option<&mut RealmTarget>,
    mut following: Following<'_>,
) -> Result<RealmReport, StoreError> {
    let Some(target) = target else {
        let Following { ledger, .. } = following;
        let changes: Vec<Change> = forgotten(ledger.state()).into_iter().collect();
        let now = ledger.now();
        ledger.write(&changes, &[], now).await?;
        return Ok(RealmReport::default());
    };
    let done = Box::pin(target.serve(&mut following)).await;
    if let Some(session) = &mut target.session {
        following.metrics.realm_requests(&target.settings.rules.place().0, session.counted());
    }
    done
}

impl RealmTarget {
    async fn serve(&mut self, following: &mut Following<'_>) -> Result<RealmReport, StoreError> {
        let Following { ledger, limits, work, metrics, changed, trigger, .. } = following;
        let now = ledger.now();
        if self.reading.is_none() && self.waits(*trigger, ledger.state(), now) {
            return Ok(RealmReport::default());
        }
        if self.reading.is_some() || self.is_due(*trigger, now) {
            // A cycle for an order waits too, unless the realm failed before.
            let waits = trigger.tries_all() || (*trigger == Trigger::Order && self.trouble.is_none());
            let read = tokio::select! {
                read = self.read(ledger.state(), now, waits, changed) => read,
                () = work.interrupt.cancelled() => return Ok(RealmReport::default()),
            };
            match read {
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    self.fail(&error, ledger.now());
                    return Ok(RealmReport::default());
                }
                None => return Ok(RealmReport::default()),
            }
        }
        let now = ledger.now();
        work.progress.step();
        let Followed { plan, approved, refusals } = self.follow(ledger.state(), limits, now);
        self.notices = plan.notices;
        let changes = approved.intents(ledger.state(), &self.settings.rules, now);
        ledger.write(&changes, &[], now).await?;
        for refusal in &refusals {
            metrics.refused(&refusal.limit);
        }
        if !approved.steps().is_empty() {
            // If this process was rolled back, this call interrupts its work.
            following.clusters.confirm().await;
        }
        let actions = self.carry_out(following, approved.steps()).await?;
        Ok(RealmReport { actions, refusals, near: approved.near().to_vec() })
    }

    #[expect(clippy::disallowed_methods, reason = "measures how long a cycle writes there")]
    async fn carry_out(&mut self, following: &mut Following<'_>, steps: &[ApprovedStep]) -> Result<u64, StoreError> {
        let Following { ledger, work, metrics, changed, clusters, extent, .. } = following;
        let (began, mut done, mut waiting) = (Instant::now(), 0, 0);
        let only_takes = clusters.is_unproven();
        let mut failed: Vec<(&AccountId, &str)> = Vec::new();
        let mut mails = true;
        for (at, approved) in steps.iter().enumerate() {
            let step = approved.step();
            let later = *extent == Extent::Urgent && !step.action.is_urgent();
            let is_over = began.elapsed() > SLICE || (at > 0 && work.hurry.is_cancelled());
            if later || work.interrupt.is_cancelled() || is_over {
                self.waiting = (steps.len() - at) as u64;
                if is_over {
                    changed.notify_one();
                }
                return Ok(done);
            }
            if only_takes && !step.action.takes_access() {
                waiting += 1;
                continue;
            }
            let kind = step.action.step();
            if failed.contains(&(&step.id, kind)) || (kind == planned::MAIL && !mails) {
                continue;
            }
            let now = ledger.now();
            let (Some(realm), Some(seen)) = (&mut self.session, &mut self.seen) else { break };
            let mut run = RealmRun { realm, seen, rules: &self.settings.rules, ledger: ledger.state(), now };
            let (changes, events) = match carry_out(approved, &mut run).await {
                Ok(did) => did,
                Err(error) if ends_all(&step.action, &error) => {
                    self.waiting = (steps.len() - at) as u64;
                    self.fail(&error, ledger.now());
                    return Ok(done);
                }
                Err(error) => {
                    failed.push((&step.id, kind));
                    if is_other_than_seen(&error) {
                        self.read_at = None;
                    }
                    // The mail server would refuse the next mail too.
                    mails &= kind != planned::MAIL;
                    (vec![failure(step, &error, &run)], Vec::new())
                }
            };
            ledger.write(&changes, &events, now).await?;
            metrics.changed(&events);
            work.progress.step();
            done += events.len() as u64;
        }
        self.waiting = waiting;
        Ok(done)
    }

    /// Returns what a cycle would do in the realm if `ledger` were the ledger, or why that is unknown. Reads the realm
    /// as `bursar sync` does.
    pub(crate) async fn preview(
        &mut self,
        ledger: &LedgerState,
        limits: &Limits,
        now: Timestamp,
    ) -> Result<Followed, String> {
        if self.is_due(Trigger::Sync, now)
            && let Some(Err(error)) = Box::pin(self.read(ledger, now, true, &Arc::default())).await
        {
            self.fail(&error, now);
            return Err(format!("realm {}: {}", self.settings.rules.name, chain(&error)));
        }
        Ok(self.follow(ledger, limits, now))
    }

    /// Returns the configured rules.
    pub(crate) const fn rules(&self) -> &Realm {
        &self.settings.rules
    }

    /// Returns why nothing can be done in the realm.
    pub(crate) fn trouble(&self) -> Option<String> {
        Some(self.trouble.as_ref()?.why.clone())
    }

    /// Returns the removals of access that are not finished in the realm.
    pub(crate) fn unfinished(&self, ledger: &LedgerState) -> Vec<Unfinished> {
        let trouble = self.trouble.as_ref().map(|trouble| trouble.why.as_str());
        unfinished::in_realm(ledger, self.may_log_in_still(ledger), &self.settings.rules, trouble)
    }

    /// Returns when the realm is tried again after an error.
    pub(super) fn next_try(&self) -> Option<Timestamp> {
        Some(self.trouble.as_ref()?.next_try)
    }

    pub(super) fn status(&self, ledger: &LedgerState) -> RealmStatus {
        let Self { settings, read_at, trouble, waiting, notices, .. } = self;
        let name = settings.rules.name.clone();
        let rows = ledger.realm_accounts.iter();
        let ours = rows.filter(|((_, realm), row)| *realm == name && row.user_id.is_some());
        RealmStatus {
            users: ours.count() as u64,
            name,
            read_at: *read_at,
            waiting: *waiting,
            trouble: trouble.clone(),
            notices: notices.clone(),
        }
    }
}

/// Tells a source that reads this realm which of its users Bursar made.
pub(super) fn with_made(source: &SourceConfig, realm: Option<&Realm>, ledger: &LedgerState) -> SourceConfig {
    let mut source = source.clone();
    let rules = realm.filter(|rules| rules.source.as_ref() == Some(&source.name));
    if let (Some(rules), SourceKind::Keycloak(config)) = (rules, &mut source.kind) {
        let rows = ledger.realm_accounts.iter().filter(|((_, realm), _)| *realm == rules.name);
        config.made = rows.filter(|(_, row)| !row.adopted).filter_map(|(_, row)| row.user_id.clone()).collect();
    }
    source
}
