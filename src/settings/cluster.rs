//! Reads `[cluster.NAME]`: its endpoints, who may send reviews to its webhook, and the path of the daemon's kubeconfig.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::network::CIDR;
use super::source::{ca, pem};
use super::table::{Table, ValueKind};
use crate::identity::ClusterName;
use crate::policy::{Cluster, Endpoint, Range};
use crate::rules::senders::{ClientRules, Senders};

const URL: ValueKind = ValueKind("an https URL", "\"https://k8s.example.org:6443\"");
const PROXY: ValueKind = ValueKind("a proxy's URL", "\"socks5://proxy.example.org:1080\"");

/// Returns the clusters, and the daemon's kubeconfig of each.
pub(super) fn clusters(
    root: &Table<'_>,
    folder: &Path,
    state_dir: &Path,
) -> (BTreeMap<ClusterName, Cluster>, BTreeMap<ClusterName, PathBuf>) {
    let mut clusters = BTreeMap::new();
    let mut kubeconfigs = BTreeMap::new();
    for (name, table) in root.named("cluster") {
        table.only(&["kubeconfig", "default_endpoint", "endpoint", "webhook"]);
        let made_by_init = || state_dir.join("clusters").join(format!("{name}.kubeconfig"));
        let kubeconfig = table.text("kubeconfig").map_or_else(made_by_init, |path| folder.join(path));
        let endpoints: BTreeMap<String, Endpoint> =
            table.named("endpoint").into_iter().map(|(name, fields)| (name, endpoint(&fields, folder))).collect();
        let default_endpoint = default_endpoint(&table, &endpoints);
        let name = ClusterName::from(name);
        kubeconfigs.insert(name.clone(), kubeconfig);
        clusters
            .insert(name, Cluster { default_endpoint, endpoints, senders: senders(&table.section("webhook"), folder) });
    }
    (clusters, kubeconfigs)
}

/// Reads an endpoint. If it has errors, it is still returned, so that classes that use it cause no further errors.
fn endpoint(table: &Table<'_>, folder: &Path) -> Endpoint {
    table.only(&["url", "ca", "tls_server_name", "proxy"]);
    for (key, example) in [("url", URL.1), ("ca", "\"/etc/bursar/k8s-ca.pem\"")] {
        if !table.has(key) {
            table.wrong(key, format!("missing; for example {example}"));
        }
    }
    let https = |text: &str| url_of(text, &["https"]);
    let proxy = |text: &str| url_of(text, &["http", "https", "socks5"]);
    Endpoint {
        url: table.parsed("url", URL, https).unwrap_or_default(),
        ca_pem: ca(table, folder).unwrap_or_default(),
        tls_server_name: table.text("tls_server_name"),
        proxy: table.parsed("proxy", PROXY, proxy),
    }
}

/// Reads the webhook's senders. `client_ca` and `client_name` need each other: with only one of them, either no client
/// or every client would be accepted.
fn senders(table: &Table<'_>, folder: &Path) -> Senders {
    table.only(&["client_ca", "client_name", "api_server_cidrs"]);
    for (key, other, example) in [
        ("client_ca", "client_name", "\"/etc/bursar/front-proxy-ca.pem\""),
        ("client_name", "client_ca", "\"front-proxy-client\""),
    ] {
        if table.has(other) && !table.has(key) {
            table.wrong(key, format!("missing, because {other} is set; for example {example}"));
        }
    }
    let client = pem(table, "client_ca", folder).zip(table.text("client_name"));
    let ranges = table.texts("api_server_cidrs").unwrap_or_default();
    let ranges = ranges.iter().filter_map(|text| {
        let range = Range::parse(text);
        if range.is_none() {
            table.wrong("api_server_cidrs", format!("{text:?} is not {}; for example {}", CIDR.0, CIDR.1));
        }
        range.map(|range| range.to_string())
    });
    Senders {
        client: client.map(|(authorities, name)| ClientRules { authorities, name }),
        api_server_cidrs: ranges.collect(),
    }
}

pub(super) fn url_of(text: &str, schemes: &[&str]) -> Option<String> {
    let url = reqwest::Url::parse(text).ok()?;
    let is_plain = url.username().is_empty() && url.password().is_none();
    (is_plain && schemes.contains(&url.scheme()) && url.host().is_some()).then(|| text.to_owned())
}

fn default_endpoint(table: &Table<'_>, endpoints: &BTreeMap<String, Endpoint>) -> String {
    let known = table.section("endpoint").keys();
    if known.is_empty() {
        table.wrong("endpoint", "missing; for example [cluster.prod.endpoint.internal] with url and ca");
    }
    if let Some(name) = table.text("default_endpoint") {
        if !known.is_empty() && !known.contains(&name) {
            table.wrong("default_endpoint", format!("{name:?} is none of: {}", known.join(", ")));
        }
        return name;
    }
    if known.len() > 1 && !table.has("default_endpoint") {
        table.wrong("default_endpoint", format!("missing; one of: {}", known.join(", ")));
    }
    endpoints.keys().next().cloned().unwrap_or_default()
}

/// Records an error if two endpoints have the same entry name: they would overwrite each other in each kubeconfig, and
/// the removal of one would remove the other.
pub(super) fn one_entry_each(root: &Table<'_>, clusters: &BTreeMap<ClusterName, Cluster>) {
    let mut entries: BTreeMap<String, (&ClusterName, &str)> = BTreeMap::new();
    for (name, cluster) in clusters {
        for endpoint in cluster.endpoints.keys() {
            let entry = Cluster::entry_name(name, &cluster.default_endpoint, endpoint);
            if let Some((other, of)) = entries.insert(entry.clone(), (name, endpoint)) {
                let why = format!(
                    "its context in kubeconfigs would be {entry:?}, as that of [cluster.{other}.endpoint.{of}]; rename one \
                     of the two"
                );
                root.section("cluster").section(&name.0).section("endpoint").wrong(endpoint, why);
            }
        }
    }
}
