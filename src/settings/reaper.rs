//! Reads `[reaper]`: which pods and namespaces Bursar ends automatically, and the evidence that this needs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use super::SecretPlace;
use super::cluster::url_of;
use super::source::ca;
use super::table::{Table, ValueKind};
use crate::identity::ClusterName;
use crate::policy::{Cluster, Evidence, NamespaceReaper, PodReaper, Reapers};

const DAY: u64 = 24;
/// The default of `per_cycle` for pods: low enough to notice a wrong lifetime before all pods have ended.
const PODS_PER_CYCLE: u64 = 50;
const NAMESPACES_PER_CYCLE: u64 = 5;

/// Returns the reapers that are enabled.
pub(super) fn reapers(table: &Table<'_>, folder: &Path, clusters: &BTreeMap<ClusterName, Cluster>) -> Reapers {
    table.only(&["pods", "namespaces"]);
    let namespaces = table.section("namespaces");
    namespaces.only(&["enabled", "idle_for", "warn_for", "per_cycle", "prometheus"]);
    let count = |table: &Table<'_>, default| {
        if table.has("per_cycle") { table.number("per_cycle").unwrap_or(default) } else { default }
    };
    let idle = NamespaceReaper {
        idle_for: namespaces.duration("idle_for", Duration::from_hours(30 * DAY)),
        warn_for: namespaces.duration("warn_for", Duration::from_hours(7 * DAY)),
        per_cycle: count(&namespaces, NAMESPACES_PER_CYCLE),
        evidence: evidence(&namespaces, folder, clusters),
    };
    if idle.idle_for.is_zero() {
        namespaces.wrong("idle_for", "0 leaves no time; for example \"30d\"");
    }
    let pods = table.section("pods");
    pods.only(&["enabled", "lifetime", "per_cycle"]);
    let rules = PodReaper {
        lifetime: pods.has("lifetime").then(|| pods.duration("lifetime", Duration::ZERO)),
        per_cycle: count(&pods, PODS_PER_CYCLE),
        classes: BTreeMap::new(),
    };
    if rules.lifetime.is_some_and(|lifetime| lifetime.is_zero()) && !pods.is_wrong("lifetime") {
        pods.wrong("lifetime", "0 leaves no time; for example \"7d\"");
    }
    Reapers {
        pods: pods.switch("enabled", false).then_some(rules),
        namespaces: namespaces.switch("enabled", false).then_some(idle),
    }
}

fn evidence(
    namespaces: &Table<'_>,
    folder: &Path,
    clusters: &BTreeMap<ClusterName, Cluster>,
) -> BTreeMap<ClusterName, Evidence> {
    const HTTP: ValueKind = ValueKind("a URL", "\"https://prometheus.example.org\"");
    let mut evidence = BTreeMap::new();
    for (name, table) in namespaces.named("prometheus") {
        table.only(&["url", "ca", "token", "query", "control"]);
        let name = ClusterName::from(name);
        if !clusters.contains_key(&name) {
            table.wrong_itself(format!("there is no [cluster.{name}]"));
        }
        let control = table.texts("control").unwrap_or_default();
        if control.is_empty() {
            table.wrong("control", "missing: namespaces that are always in use; for example [\"ingress-nginx\"]");
        }
        if !table.has("url") {
            table.wrong("url", format!("missing; for example {}", HTTP.1));
        }
        let url = table.parsed("url", HTTP, |text| url_of(text, &["http", "https"]));
        let ca_pem = table.has("ca").then(|| ca(&table, folder)).flatten();
        let token = table.has("token").then(|| SecretPlace::of(&table, "token")).flatten();
        let query = table.required("query", "sum by (namespace) (increase(nginx_ingress_controller_requests[1h]))");
        if let (Some(url), Some(query)) = (url, query) {
            let url = url.trim_end_matches('/').to_owned();
            let token = token.map(|place| place.path());
            evidence.insert(name, Evidence { url, ca_pem, token, query, control });
        }
    }
    evidence
}
