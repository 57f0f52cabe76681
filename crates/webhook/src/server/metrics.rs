//! The metrics of the webhook and the approver, as Prometheus text.

use std::time::Duration;

use bursar_core::admission::decision::Decision;
use bursar_core::rules::Mode;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// The buckets of review times: from the time that a plain pod takes to the deadline of the API server.
const SECONDS: [f64; 12] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0, 10.0];

/// The names of labels with their values.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Counters and histograms that are updated as reviews are answered.
#[derive(Debug, Clone)]
pub struct Metrics {
    found: Family<Labels<2>, Counter>,
    reviews: Family<Labels<2>, Counter>,
    seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { found: Family::default(), reviews: Family::default(), seconds: Histogram::new(SECONDS) }
    }
}

/// The values that are read at a scrape.
#[derive(Debug, Clone, Copy)]
pub struct Gauges<'a> {
    /// The time since the API server last sent news of namespaces.
    pub index_age: Duration,
    /// The number of namespaces in the index.
    pub namespaces: usize,
    /// The seconds until the serving certificate expires.
    pub certificate_seconds: i64,
    /// The files, and whether their newest content is refused.
    pub wrong: &'a [(&'static str, bool)],
}

impl Metrics {
    /// Counts a review that was decided.
    pub fn decided(&self, phase: &'static str, decision: &Decision, took: Duration) {
        let outcome = match decision {
            decision if !decision.is_allowed() => "refused",
            decision if !decision.patch.is_empty() => "patched",
            _ => "allowed",
        };
        self.review(phase, outcome);
        self.seconds.observe(took.as_secs_f64());
        let found =
            [(Mode::Enforce, &decision.refusals), (Mode::Warn, &decision.warnings), (Mode::Audit, &decision.audit)];
        for (mode, findings) in found {
            for finding in findings {
                self.found.get_or_create(&[("rule", finding.rule.as_str()), ("mode", mode.as_str())]).inc();
            }
        }
        for ((mode, rule), count) in &decision.left_out {
            self.found.get_or_create(&[("rule", rule.as_str()), ("mode", mode.as_str())]).inc_by(*count);
        }
    }

    /// Counts a body that is not a review, too large or too slow.
    pub fn unreadable(&self, phase: &'static str) {
        self.review(phase, "unreadable");
    }

    /// Counts a handshake or a review without the required client certificate.
    pub fn unidentified(&self, phase: &'static str) {
        self.review(phase, "unidentified");
    }

    /// Counts a body for which there was no memory.
    pub fn overloaded(&self, phase: &'static str) {
        self.review(phase, "overloaded");
    }

    fn review(&self, phase: &'static str, outcome: &'static str) {
        self.reviews.get_or_create(&[("phase", phase), ("outcome", outcome)]).inc();
    }

    /// Returns all metrics in the Prometheus text format.
    #[must_use]
    pub fn exposition(&self, gauges: Gauges<'_>) -> String {
        let mut registry = Registry::with_prefix("bursar_webhook");
        registry.register("decisions", "Findings by rule and mode", self.found.clone());
        registry.register("reviews", "Reviews by phase and outcome", self.reviews.clone());
        registry.register_with_unit("review", "Time to decide a review", Unit::Seconds, self.seconds.clone());
        registry.register_with_unit(
            "index_age",
            "Time since the API server last sent news of namespaces",
            Unit::Seconds,
            gauge(i64::try_from(gauges.index_age.as_secs()).unwrap_or(i64::MAX)),
        );
        registry.register(
            "index_namespaces",
            "Namespaces in the index",
            gauge(i64::try_from(gauges.namespaces).unwrap_or(i64::MAX)),
        );
        registry.register_with_unit(
            "certificate_expiry",
            "Time until the serving certificate expires",
            Unit::Seconds,
            gauge(gauges.certificate_seconds),
        );
        let wrong = Family::<Labels<1>, Gauge>::default();
        for (file, is_wrong) in gauges.wrong {
            wrong.get_or_create(&[("file", *file)]).set(i64::from(*is_wrong));
        }
        registry.register(
            "file_wrong",
            "1 if the newest content of a file is wrong and older content is in force",
            wrong,
        );
        text(&registry)
    }
}

/// The counters of the approver.
#[derive(Debug, Clone, Default)]
pub struct ApproverMetrics {
    verdicts: Family<Labels<1>, Counter>,
}

impl ApproverMetrics {
    /// Counts a request of the daemon that was judged.
    pub fn judged(&self, verdict: &'static str) {
        self.verdicts.get_or_create(&[("verdict", verdict)]).inc();
    }

    /// Returns all metrics in the Prometheus text format. `is_ready` is true while requests and namespaces are watched.
    #[must_use]
    pub fn exposition(&self, waiting: usize, is_ready: bool) -> String {
        let mut registry = Registry::with_prefix("bursar_approver");
        registry.register("requests", "Requests of the daemon, by verdict", self.verdicts.clone());
        let waiting = gauge(i64::try_from(waiting).unwrap_or(i64::MAX));
        registry.register("waiting", "Pending requests of the daemon", waiting);
        registry.register("ready", "1 while requests and namespaces are watched", gauge(i64::from(is_ready)));
        text(&registry)
    }
}

/// Returns a gauge with this value.
fn gauge(value: i64) -> Gauge {
    let gauge = Gauge::default();
    gauge.set(value);
    gauge
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail. If it did, no exposition would be better than half of one.
    if encode(&mut text, registry).is_err() {
        text.clear();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exposition_has_every_metric() {
        let metrics = Metrics::default();
        metrics.decided("validate", &Decision::default(), Duration::from_millis(1));
        let gauges = Gauges {
            index_age: Duration::from_secs(3),
            namespaces: 2,
            certificate_seconds: 60,
            wrong: &[("rules", true)],
        };
        let text = metrics.exposition(gauges);
        for line in [
            "bursar_webhook_reviews_total{phase=\"validate\",outcome=\"allowed\"} 1",
            "bursar_webhook_index_age_seconds 3",
            "bursar_webhook_index_namespaces 2",
            "bursar_webhook_certificate_expiry_seconds 60",
            "bursar_webhook_file_wrong{file=\"rules\"} 1",
            "bursar_webhook_review_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
}
