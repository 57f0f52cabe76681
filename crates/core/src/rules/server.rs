//! Rules that the API server evaluates itself, by policies of its own. The webhook is not told of them, so they add nothing
//! to a review.
//!
//! The policies read each rule as words ([`crate::desired::server_rules`]).

use std::collections::BTreeSet;

use super::Mode;

macro_rules! unprivileged_port {
    () => {
        "(102[4-9]|10[3-9][0-9]|1[1-9][0-9][0-9]|[2-9][0-9][0-9][0-9]|[1-9][0-9][0-9][0-9][0-9])"
    };
}

/// Stands for every name of its kind in a rule's words.
pub const ANY: &str = "*";

/// Sysctls that Kubernetes counts as safe, except for the two that decide about ports.
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

/// Sysctls that say from which port on a pod may serve, and the values of them that leave the ports below 1024 alone. A
/// program on a lower one could pass for a service of the node, and an NFS server believes what comes from there.
pub const PORT_SYSCTLS: [(&str, &str); 2] = [
    ("net.ipv4.ip_unprivileged_port_start", concat!("^", unprivileged_port!(), "$")),
    ("net.ipv4.ip_local_port_range", concat!("^", unprivileged_port!(), "[ \\t]+[0-9]+$")),
];

/// One rule of a class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerRule {
    /// What happens. `None`: the administrator has not chosen; the ledger decides.
    pub mode: Option<Mode>,
    /// What the class allows, in the words that the policy looks for.
    pub allow: BTreeSet<String>,
}

/// The rules of a class that the API server evaluates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerRules {
    /// `admission.services`: types of Services (`NodePort`), and `externalIPs`.
    pub services: ServerRule,
    /// `admission.scheduling`: `priority NAME`, `runtime NAME`, `scheduler NAME`, `toleration KEY`, each with [`ANY`]
    /// where the class has no list, and `nodeName`.
    pub scheduling: ServerRule,
    /// `admission.sysctls`: names beside those that are safe.
    pub sysctls: ServerRule,
    /// `admission.ingress`: `ingress CLASS` and `gateway CLASS`, each with [`ANY`] where the class has no list.
    pub ingress: ServerRule,
    /// Storage classes of `admission.claims`: `class NAME`.
    pub storage: ServerRule,
    /// Fields of further kinds that name hosts; judged in the mode of `admission.hosts`.
    pub host_fields: BTreeSet<HostField>,
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
        }
    }
}

/// A field of a kind that says for which host an object is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostField {
    /// API group; empty for Kubernetes' core.
    pub group: String,
    /// Plural of the kind.
    pub plural: String,
    /// The way to the host, from the object: names of fields.
    pub path: Vec<Step>,
    /// Objects without the field pass.
    pub optional: bool,
}

/// One part of a [`HostField::path`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// Name of the field.
    pub name: String,
    /// The field is a list, and the rest of the path holds for each of its items.
    pub each: bool,
}

impl HostField {
    /// Reads `PLURAL.GROUP` and `spec.listeners[].hostname`; with `?` at the end, objects without the field pass.
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

/// `gateways.gateway.networking.k8s.io spec.listeners[].hostname`: how the words name it.
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
    fn a_host_field_is_read_as_it_is_written() {
        for (kind, path) in [
            ("gateways.gateway.networking.k8s.io", "spec.listeners[].hostname"),
            ("widgets.example.org", "spec.hosts[]?"),
            ("services", "spec.externalName"),
        ] {
            let field = HostField::parse(kind, path).expect("a field");
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
