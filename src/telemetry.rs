//! Logs and metrics. Writes one event per line to the journal. Keeps counters that only grow, and computes gauges from
//! the ledger's state at each scrape.

use std::sync::Arc;

use jiff::Timestamp;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use tracing_subscriber::EnvFilter;

use crate::identity::AccountKind;
use crate::ledger::change::Event;
use crate::ledger::missing::Missing;
use crate::ledger::{LedgerState, Lifecycle};
use crate::snapshot::Way;

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people and the journal, which adds the time itself.
    Plain,
    /// For log collectors: one JSON object per line.
    Json,
}

/// Sends log lines to standard error. `RUST_LOG` filters them; without it, Bursar logs at `info` and its libraries at
/// `warn`.
pub fn log_to_stderr(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn,bursar=info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    match format {
        LogFormat::Plain => lines.without_time().with_ansi(false).init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
}

/// The names of labels with their values.
type Labels<V, const N: usize = 1> = [(&'static str, V); N];

/// Everything that is counted when it happens.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    requests: Family<Labels<String, 2>, Counter>,
    cycles: Family<Labels<&'static str>, Counter>,
    drift_repaired: Counter,
    pods_reaped: Counter,
    deliveries_repeated: Counter,
    account_changes: Family<Labels<String>, Counter>,
    refusals: Family<Labels<String>, Counter>,
    endpoints: Family<Labels<String, 2>, Gauge>,
    confinement: Family<Labels<String>, Gauge>,
    suspended_pods: Family<Labels<String>, Gauge>,
    unknown_certificates: Family<Labels<String>, Gauge>,
    own_certificate: Family<Labels<String>, Gauge>,
    unapproved: Family<Labels<String>, Gauge>,
    webhook_failing: Family<Labels<String>, Gauge>,
    realm_failing: Gauge,
    /// Seconds since 1970; 0 if the realm was not read.
    realm_read_at: Gauge,
    realm_waiting: Gauge,
    ledger_stuck: Gauge,
    backup_failed: Gauge,
    /// Seconds since 1970; 0 if there is no backup.
    backup_at: Gauge,
}

impl Metrics {
    /// Counts requests to the realm that Bursar writes to.
    pub fn realm_requests(&self, place: &str, counted: impl IntoIterator<Item = (&'static str, u64)>) {
        for (verb, count) in counted {
            self.requests.get_or_create(&request(place, verb)).inc_by(count);
        }
    }

    /// Counts a request to an API server.
    pub fn request(&self, cluster: &str, verb: &str) {
        self.requests.get_or_create(&request(cluster, verb)).inc();
    }

    /// Counts a cycle that ended as `done`, `failing` or `refused`.
    pub fn cycle(&self, outcome: &'static str) {
        self.cycles.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts objects that somebody changed and Bursar changed back.
    pub fn drift_repaired(&self, objects: u64) {
        self.drift_repaired.inc_by(objects);
    }

    /// Counts events of accounts (created, suspended, revoked, …), by the action in the history.
    pub fn changed(&self, events: &[Event]) {
        for event in events.iter().filter(|event| event.account.is_some()) {
            self.account_changes.get_or_create(&[("action", event.action.clone())]).inc();
        }
    }

    /// Counts pods that were deleted past their lifetime.
    pub fn reaped(&self, pods: u64) {
        self.pods_reaped.inc_by(pods);
    }

    /// Counts kubeconfigs that were delivered again.
    pub fn repeated(&self, kubeconfigs: u64) {
        self.deliveries_repeated.inc_by(kubeconfigs);
    }

    /// Counts a refusal by a limit.
    pub fn refused(&self, limit: &str) {
        self.refusals.get_or_create(&[("limit", limit.to_owned())]).inc();
    }

    /// Sets whether an endpoint refused a credential or was unreachable at the last check.
    pub fn endpoint(&self, cluster: &str, endpoint: &str, failing: bool) {
        let labels = [("cluster", cluster.to_owned()), ("endpoint", endpoint.to_owned())];
        self.endpoints.get_or_create(&labels).set(i64::from(failing));
    }

    /// Clears the gauges of clusters and endpoints, because the configuration may have changed.
    pub fn forget_endpoints(&self) {
        self.endpoints.clear();
        self.confinement.clear();
        self.suspended_pods.clear();
        self.unknown_certificates.clear();
        self.own_certificate.clear();
        self.unapproved.clear();
        self.webhook_failing.clear();
    }

    /// Sets whether the webhook's answer to the last review was wrong or missing.
    pub fn webhook(&self, cluster: &str, failing: bool) {
        self.webhook_failing.get_or_create(&[("cluster", cluster.to_owned())]).set(i64::from(failing));
    }

    /// Sets the number of faults of the daemon's confinement, the number of certificates that were signed for requests
    /// in the daemon's name that Bursar did not make, and the seconds until the daemon's own certificate expires.
    pub fn confinement(&self, cluster: &str, (broken, unknown): (usize, usize), own: Option<i64>) {
        let label = [("cluster", cluster.to_owned())];
        self.confinement.get_or_create(&label).set(count_gauge(broken));
        self.unknown_certificates.get_or_create(&label).set(count_gauge(unknown));
        if let Some(seconds) = own {
            self.own_certificate.get_or_create(&label).set(seconds);
        }
    }

    /// Sets the number of holders whose last certificate request the approver did not approve in time.
    pub fn unapproved(&self, cluster: &str, holders: usize) {
        self.unapproved.get_or_create(&[("cluster", cluster.to_owned())]).set(count_gauge(holders));
    }

    /// Sets the number of pods of suspended tenants that still run in a cluster.
    pub fn suspended_pods(&self, cluster: &str, pods: usize) {
        self.suspended_pods.get_or_create(&[("cluster", cluster.to_owned())]).set(count_gauge(pods));
    }

    /// Sets whether nothing can be done in the realm, when it was last read, and the number of steps that are left.
    pub fn realm(&self, failing: bool, read_at: Option<Timestamp>, waiting: u64) {
        self.realm_failing.set(i64::from(failing));
        self.realm_read_at.set(read_at.map_or(0, Timestamp::as_second));
        self.realm_waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// Sets whether the ledger takes no writes.
    pub fn ledger_stuck(&self, stuck: bool) {
        self.ledger_stuck.set(i64::from(stuck));
    }

    /// Sets the time of the newest backup, and whether the last one failed.
    pub fn backup(&self, newest: Option<Timestamp>, failed: bool) {
        self.backup_failed.set(i64::from(failed));
        self.backup_at.set(newest.map_or(0, Timestamp::as_second));
    }

    /// Returns all metrics in the Prometheus text format, with the gauges of `state` at `now`.
    #[must_use]
    pub fn exposition(&self, state: &LedgerState, now: Timestamp) -> String {
        let mut registry = Registry::with_prefix("bursar");
        registry.register("api_requests", "Requests to API servers", self.requests.clone());
        registry.register("cycles", "Cycles by how they ended", self.cycles.clone());
        registry.register(
            "drift_repaired",
            "Objects that somebody else changed and that were changed back",
            self.drift_repaired.clone(),
        );
        registry.register(
            "account_changes",
            "Events of accounts, by the action in the history",
            self.account_changes.clone(),
        );
        registry.register("pods_reaped", "Pods that were deleted past their lifetime", self.pods_reaped.clone());
        registry.register(
            "deliveries_repeated",
            "Kubeconfigs that somebody had changed or reverted and that were delivered again",
            self.deliveries_repeated.clone(),
        );
        registry.register("refusals", "Plans in which a limit held back a part", self.refusals.clone());
        registry.register(
            "confinement_broken",
            "Faults of the daemon's confinement in a cluster",
            self.confinement.clone(),
        );
        registry.register(
            "suspended_pods",
            "Pods of suspended tenants that ran when the last nightly cycle counted them",
            self.suspended_pods.clone(),
        );
        registry.register(
            "unknown_certificates",
            "Certificates signed for requests in the daemon's name that Bursar did not make",
            self.unknown_certificates.clone(),
        );
        registry.register_with_unit(
            "own_certificate_expiry",
            "Time until the daemon's own certificate expires",
            Unit::Seconds,
            self.own_certificate.clone(),
        );
        registry.register(
            "unapproved_certificates",
            "Accounts whose last certificate request the approver did not approve in time",
            self.unapproved.clone(),
        );
        registry.register(
            "webhook_failing",
            "1 if the webhook's answer to the last review was wrong or missing",
            self.webhook_failing.clone(),
        );
        registry.register(
            "endpoint_failing",
            "1 if an endpoint refused a credential or was unreachable at the last check",
            self.endpoints.clone(),
        );
        registry.register(
            "ledger_stuck",
            "1 while the ledger takes no writes, and so nothing is written anywhere",
            self.ledger_stuck.clone(),
        );
        registry.register("backup_failed", "1 if the last backup of the ledger failed", self.backup_failed.clone());
        registry.register(
            "realm_failing",
            "1 while nothing can be done in the realm that Bursar writes to",
            self.realm_failing.clone(),
        );
        registry.register(
            "realm_waiting",
            "Steps in the realm that are left to a later cycle",
            self.realm_waiting.clone(),
        );
        if self.realm_read_at.get() > 0 {
            let age = gauge(age(self.realm_read_at.get(), now));
            registry.register_with_unit(
                "realm_read_age",
                "Age of the last complete read of the realm",
                Unit::Seconds,
                age,
            );
        }
        if self.backup_at.get() > 0 {
            let age = gauge(age(self.backup_at.get(), now));
            registry.register_with_unit("backup_age", "Age of the newest backup of the ledger", Unit::Seconds, age);
        }
        state_gauges(&mut registry, state, now);
        let mut text = String::new();
        // Writing to a String cannot fail. Half an exposition would be worse than none.
        if encode(&mut text, &registry).is_err() {
            text.clear();
        }
        text
    }
}

fn state_gauges(registry: &mut Registry, state: &LedgerState, now: Timestamp) {
    let read_age = Family::<Labels<String>, Gauge>::default();
    let ways = Family::<Labels<String, 2>, Gauge>::default();
    let differences = Family::<Labels<String>, Gauge>::default();
    let unresolved = Family::<Labels<String>, Gauge>::default();
    for (source, read) in &state.sources {
        for way in [Way::Full, Way::Incremental, Way::Persist] {
            let labels = [("source", source.clone()), ("way", way.as_str().to_owned())];
            ways.get_or_create(&labels).set(i64::from(read.way == way));
        }
        let found = read.compared.as_ref().map_or(0, |compared| compared.found.differences);
        let found = i64::try_from(found).unwrap_or(i64::MAX);
        differences.get_or_create(&[("source", source.clone())]).set(found);
        let members = i64::try_from(read.unresolved.members).unwrap_or(i64::MAX);
        unresolved.get_or_create(&[("source", source.clone())]).set(members);
        let age = read.complete_at.map_or(i64::MAX, |at| age(at.as_second(), now));
        read_age.get_or_create(&[("source", source.clone())]).set(age);
    }
    registry.register_with_unit(
        "source_complete_age",
        "Age of the last complete read of a directory",
        Unit::Seconds,
        read_age,
    );
    registry.register(
        "source_unresolved_members",
        "Members of a directory's groups for which no directory has an entry",
        unresolved,
    );
    registry.register("source_way", "1 for the way in which a directory was last read", ways);
    registry.register(
        "source_differences",
        "Entries that were wrong after a directory's changes, and that its last full read repaired",
        differences,
    );
    let accounts = Family::<Labels<&'static str>, Gauge>::default();
    for known in [Lifecycle::New, Lifecycle::Active, Lifecycle::Suspended, Lifecycle::Archived, Lifecycle::Deleted] {
        let count = state.accounts.values().filter(|account| account.state == known).count();
        accounts.get_or_create(&[("state", known.as_str())]).set(count_gauge(count));
    }
    registry.register("accounts", "Accounts by state", accounts);
    let missing = Family::<Labels<&'static str>, Gauge>::default();
    for kind in [AccountKind::Tool, AccountKind::User, AccountKind::Group] {
        missing.get_or_create(&[("kind", kind.as_str())]).set(0);
    }
    for Missing { kind, count, since: _, due: _ } in Missing::of(state) {
        missing.get_or_create(&[("kind", kind.as_str())]).set(i64::try_from(count).unwrap_or(i64::MAX));
    }
    registry.register(
        "missing_accounts",
        "Active accounts that their directory no longer shows, and that are not suspended yet",
        missing,
    );
    let suspended = Family::<Labels<&'static str>, Gauge>::default();
    for suspension in state.accounts.values().filter_map(|account| account.suspension.as_deref()) {
        suspended.get_or_create(&[("cause", suspension.word())]).inc();
    }
    registry.register("suspensions", "Accounts without access, by cause", suspended);
    registry.register("idle_namespaces", "Namespaces in which nothing runs", gauge(count_gauge(state.idle.len())));
    registry.register("rejected_entries", "Entries that failed a check", gauge(count_gauge(state.rejected.len())));
    registry.register("failing_tenants", "Tenants with a failing step", gauge(count_gauge(state.failures.len())));
    let oldest = state.failures.values().map(|failure| age(failure.since.as_second(), now)).max();
    registry.register_with_unit(
        "oldest_failure_age",
        "How long the oldest failure of a tenant has lasted",
        Unit::Seconds,
        gauge(oldest.unwrap_or(0)),
    );
    let overdue = state.overdue_since(now).map_or(0, |due| now.as_second() - due.as_second());
    registry.register_with_unit(
        "renewal_overdue",
        "How long the most overdue renewal of a certificate or token has been due",
        Unit::Seconds,
        gauge(overdue),
    );
    if let Some(soonest) = state.next_expiry() {
        registry.register_with_unit(
            "soonest_certificate_expiry",
            "Time until the first certificate expires",
            Unit::Seconds,
            gauge(soonest.as_second() - now.as_second()),
        );
    }
}

/// Returns the seconds since `at`. If the clock was set back to a time before `at`, the age is unknown and counts as
/// the longest, because a negative age would silence the alert.
fn age(at: i64, now: Timestamp) -> i64 {
    Some(now.as_second() - at).filter(|age| *age >= 0).unwrap_or(i64::MAX)
}

fn request(cluster: &str, verb: &str) -> Labels<String, 2> {
    [("cluster", cluster.to_owned()), ("verb", verb.to_owned())]
}

fn gauge(value: i64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(value);
    gauge
}

fn count_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// [`Metrics`] that many tasks share.
pub type SharedMetrics = Arc<Metrics>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exposition_ends_with_the_eof_of_openmetrics() {
        let metrics = Metrics::default();
        metrics.request("prod", "apply");
        let text = metrics.exposition(&LedgerState::default(), Timestamp::UNIX_EPOCH);
        assert!(text.contains("bursar_api_requests_total{cluster=\"prod\",verb=\"apply\"} 1"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    /// The clock was ahead when the directory was read and the ledger was backed up.
    #[test]
    fn an_age_is_never_negative() {
        let (metrics, mut state) = (Metrics::default(), LedgerState::default());
        let at = |second| Timestamp::from_second(second).expect("the time is valid");
        metrics.backup(Some(at(9_000)), false);
        metrics.realm(false, Some(at(9_000)), 0);
        let read = serde_json::json!({
            "server": null, "completeness": {"completeness": "complete"}, "entries": 1, "took_ms": 1,
            "read_at": at(9_000), "complete_at": at(9_000),
        });
        let read = serde_json::from_value(read).expect("the JSON is a read");
        state.sources.insert("people".to_owned(), read);
        let is_old = |now: i64| {
            let text = metrics.exposition(&state, at(now));
            let ages = text.lines().filter(|line| !line.starts_with('#') && line.contains("_age_seconds"));
            ages.filter(|line| line.ends_with(&format!(" {}", i64::MAX))).count()
        };
        assert_eq!((is_old(8_999), is_old(9_000)), (3, 0));
    }
}
