//! Rules that the API server evaluates itself, in validating admission policies. The webhook does not know these rules,
//! so they add no time to a review.
//!
//! The policies read each rule as words, which [`crate::desired::server_rules`] writes.

use std::collections::BTreeSet;

use super::Mode;

macro_rules! unprivileged_port {
    () => {
        "(102[4-9]|10[3-9][0-9]|1[1-9][0-9][0-9]|[2-9][0-9][0-9][0-9]|[1-9][0-9][0-9][0-9][0-9])"
    };
}

/// The word that stands for every name of its kind.
pub const ANY: &str = "*";

/// Sysctls that Kubernetes counts as safe, without the two of [`PORT_SYSCTLS`].
pub const SAFE_SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

/// Sysctls that set the lowest port of a pod's programs, each with a pattern of the values that keep ports below 1024
/// closed. A program on such a port could pose as a service of the node, and NFS servers trust requests from these
/// ports.
pub const PORT_SYSCTLS: [(&str, &str); 2] = [
    ("net.ipv4.ip_unprivileged_port_start", concat!("^", unprivileged_port!(), "$")),
    ("net.ipv4.ip_local_port_range", concat!("^", unprivileged_port!(), "[ \\t]+[0-9]+$")),
];

/// Annotations that name hosts although their names do not end in `hostname`. Controllers read them from Services, pods
/// and Gateways: kOps' dns-controller and external-dns for DNS, Gardener for DNS, cert-manager for certificates, and
/// Emissary for routes.
pub const HOST_ANNOTATIONS: [&str; 7] = [
    "cert-manager.io/common-name",
    "dns.alpha.kubernetes.io/external",
    "dns.alpha.kubernetes.io/internal",
    "dns.gardener.cloud/dnsnames",
    "domainName",
    "getambassador.io/config",
    "zalando.org/dnsname",
];

/// The longest grace period in seconds that a pod of a tenant, or its deletion, may ask for, unless the class has
/// another limit. A kubelet that has begun to end a pod waits for the whole grace period, even if a later deletion asks
/// for a shorter one.
pub const LONGEST_GRACE: i64 = 300;

/// One rule of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerRule {
    /// `None` if the administrator has not chosen a mode; the age of the ledger then decides.
    pub mode: Option<Mode>,
    /// The words that the class allows.
    pub allow: BTreeSet<String>,
}

/// The rules of a class that the API server evaluates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRules {
    /// `admission.services`: types of Services (`NodePort`), and `externalIPs`, which also stands for the addresses of
    /// Gateways.
    pub services: ServerRule,
    /// `admission.scheduling`: `priority NAME`, `runtime NAME`, `scheduler NAME`, `toleration KEY`, `nodeName` and
    /// `schedulingGroup`. If the class does not limit the names, for example of runtimes, the name is [`ANY`].
    pub scheduling: ServerRule,
    /// `admission.sysctls`: names of sysctls in addition to the safe ones.
    pub sysctls: ServerRule,
    /// `admission.ingress`: `ingress CLASS` and `gateway CLASS`. If the class does not limit the classes of ingresses
    /// or of gateways, their name is [`ANY`].
    pub ingress: ServerRule,
    /// The storage classes of `admission.claims`: `class NAME`.
    pub storage: ServerRule,
    /// Fields with host names, in kinds other than Ingress and `HTTPRoute`. The mode of `admission.hosts` applies to
    /// them.
    pub host_fields: BTreeSet<HostField>,
    /// Annotations that name hosts, in addition to [`HOST_ANNOTATIONS`]. The mode of `admission.services` applies to
    /// them.
    pub host_annotations: BTreeSet<String>,
    /// `admission.max_grace_period`: the longest grace period that a pod or its deletion may ask for, in seconds.
    pub longest_grace: i64,
}

impl Default for ServerRules {
    fn default() -> Self {
        let any = |kinds: &[&str]| kinds.iter().map(|kind| format!("{kind} {ANY}")).collect();
        Self {
            services: ServerRule::default(),
            scheduling: ServerRule { mode: None, allow: any(&["priority", "runtime", "scheduler", "toleration"]) },
            sysctls: ServerRule::default(),
            ingress: ServerRule { mode: Some(Mode::Off), allow: any(&["ingress", "gateway"]) },
            storage: ServerRule { mode: Some(Mode::Off), allow: BTreeSet::new() },
            host_fields: BTreeSet::new(),
            host_annotations: BTreeSet::new(),
            longest_grace: LONGEST_GRACE,
        }
    }
}

/// A field of a kind that names the host of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostField {
    /// API group; empty for the core group.
    pub group: String,
    /// Plural of the kind.
    pub plural: String,
    /// The names of the fields from the object to the host.
    pub path: Vec<Step>,
    /// Whether objects without the field pass.
    pub optional: bool,
}

/// One part of a [`HostField::path`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// Name of the field.
    pub name: String,
    /// Whether the field is a list. The rest of the path then applies to each item.
    pub each: bool,
}

impl HostField {
    /// Parses `PLURAL.GROUP` and a path such as `spec.listeners[].hostname`. A `?` at the end of the path sets
    /// `optional`.
    #[must_use]
    pub fn parse(kind: &str, path: &str) -> Option<Self> {
        let (plural, group) = kind.split_once('.').unwrap_or((kind, ""));
        let is_label = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        };
        let is_group = !kind.contains('.') || group.split('.').all(is_label);
        let (path, optional) = path.strip_suffix('?').map_or((path, false), |path| (path, true));
        let step = |text: &str| {
            let (name, each) = text.strip_suffix("[]").map_or((text, false), |name| (name, true));
            let plain =
                !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
            plain.then(|| Step { name: name.to_owned(), each })
        };
        let path: Vec<Step> = path.split('.').map(step).collect::<Option<_>>()?;
        (is_label(plural) && is_group).then(|| Self {
            group: group.to_owned(),
            plural: plural.to_owned(),
            path,
            optional,
        })
    }
}

/// Writes the kind and the path, for example `gateways.gateway.networking.k8s.io spec.listeners[].hostname`.
impl std::fmt::Display for HostField {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { group, plural, path, optional } = self;
        let dot = if group.is_empty() { "" } else { "." };
        let steps: Vec<String> =
            path.iter().map(|Step { name, each }| format!("{name}{}", if *each { "[]" } else { "" })).collect();
        write!(f, "{plural}{dot}{group} {}{}", steps.join("."), if *optional { "?" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_fields_survive_parsing_and_malformed_ones_are_rejected() {
        for (kind, path) in [
            ("gateways.gateway.networking.k8s.io", "spec.listeners[].hostname"),
            ("widgets.example.org", "spec.hosts[]?"),
            ("services", "spec.externalName"),
        ] {
            let field = HostField::parse(kind, path).expect("the field is well-formed");
            assert_eq!(field.to_string(), format!("{kind} {path}"));
        }
        for (kind, path) in [
            ("", "spec.host"),
            ("Gateways.example.org", "spec.host"),
            ("gateways.", "spec.host"),
            ("gateways.example..org", "spec.host"),
            ("gateways.example.org", ""),
            ("gateways.example.org", "spec..host"),
            ("gateways.example.org", "spec.host'"),
            ("gateways.example.org", "spec.[]"),
            ("gateways.example.org/v1", "spec.host"),
        ] {
            assert_eq!(HostField::parse(kind, path), None, "{kind} {path}");
        }
    }
}
