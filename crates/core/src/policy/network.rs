//! Network profiles: the peers that may reach a tenant's pods, and the peers that the pods may reach. Also decides
//! whether the pods may reach a given server.

use core::net::IpAddr;
use std::collections::BTreeSet;
use std::fmt;

use super::Selector;

/// The NetworkPolicies of a class. The empty profile is `open` and makes no policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkProfile {
    /// Whether connections are denied if no rule allows them; false only for `open`.
    pub default_deny: bool,
    /// The peers that may reach the tenant's pods.
    pub allow_ingress: Vec<Peer>,
    /// The peers that the tenant's pods may reach.
    pub allow_egress: Vec<Peer>,
}

/// The other side of allowed connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    pub who: Who,
    /// The allowed ports; if empty, all ports. [`Who::Dns`] has its own ports, and ignores this field.
    pub ports: Vec<Port>,
}

/// The peers of one rule of a profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// The cluster's DNS: port 53 of kube-system, UDP and TCP.
    Dns,
    Pods {
        /// The namespaces of the pods.
        namespaces: Namespaces,
        /// Labels that the pods must have; `None` for all pods.
        labels: Option<Selector>,
    },
    Addresses {
        /// The allowed addresses.
        range: Range,
        /// The addresses that are not allowed, each within `range`.
        except: Vec<Range>,
    },
}

/// Namespaces of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespaces {
    /// The tenant's own namespace.
    Own,
    /// The namespace with this `kubernetes.io/metadata.name`.
    Named(String),
    /// The namespaces with these labels.
    Labelled(Selector),
}

/// A port of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Port {
    pub number: u16,
    /// Whether the port is a UDP port; otherwise it is a TCP port.
    pub udp: bool,
}

/// A range of addresses such as `192.0.2.0/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    address: IpAddr,
    length: u8,
}

impl From<Who> for Peer {
    /// A peer on all ports.
    fn from(who: Who) -> Self {
        Self { who, ports: Vec::new() }
    }
}

impl Peer {
    /// Returns the cluster's DNS.
    #[must_use]
    pub fn dns() -> Self {
        Who::Dns.into()
    }

    /// Returns all pods of the tenant's own namespace.
    #[must_use]
    pub fn own_namespace() -> Self {
        Who::Pods { namespaces: Namespaces::Own, labels: None }.into()
    }

    /// Returns all pods of a namespace.
    #[must_use]
    pub fn namespace(name: &str) -> Self {
        Who::Pods { namespaces: Namespaces::Named(name.to_owned()), labels: None }.into()
    }
}

impl Port {
    /// Returns a TCP port.
    #[must_use]
    pub const fn tcp(number: u16) -> Self {
        Self { number, udp: false }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.number, if self.udp { "/udp" } else { "" })
    }
}

/// Length of the prefix that maps IPv4 addresses to IPv6 (`::ffff:0:0/96`).
const MAPPED: u8 = 96;

impl Range {
    /// Parses `ADDRESS/LENGTH`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let (address, length): (IpAddr, u8) = (address.parse().ok()?, length.parse().ok()?);
        // Network plugins take `::ffff:192.0.2.0/120` for the range `192.0.2.0/24`.
        let of_mapped = length.checked_sub(MAPPED).filter(|_| address.is_ipv6());
        let (address, length) = match (address.to_canonical(), of_mapped) {
            (four @ IpAddr::V4(_), Some(length)) => (four, length),
            _ => (address, length),
        };
        (length <= bits(address)).then_some(Self { address, length })
    }

    /// Whether an address is in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.overlaps(&Self { address, length: bits(address) })
    }

    /// Whether `other` lies entirely in this range.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.overlaps(other)
    }

    /// Whether the ranges have an address in common. If they do, one of them covers the other.
    fn overlaps(&self, other: &Self) -> bool {
        let length = self.length.min(other.length);
        let prefix = |address: IpAddr| match address {
            IpAddr::V4(four) => u128::from(u32::from(four)).checked_shr(u32::from(32 - length.min(32))),
            IpAddr::V6(six) => u128::from(six).checked_shr(u32::from(128 - length)),
        };
        // A shift by all bits gives `None`, which counts as 0: a range of length 0 has every address of its family.
        self.address.is_ipv4() == other.address.is_ipv4()
            && prefix(self.address).unwrap_or(0) == prefix(other.address).unwrap_or(0)
    }
}

const fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// A server that tenants' pods should not reach.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Its name in messages, such as `nfs.server nfs.example.org`.
    pub name: String,
    pub addresses: BTreeSet<IpAddr>,
    /// The namespace of the server's pods; `None` if its name is not the name of a Service.
    pub namespace: Option<String>,
    /// The ports by which the server can be used; if empty, any port.
    pub ports: BTreeSet<u16>,
}

impl NetworkProfile {
    /// Whether a pod with this profile may reach anything outside its namespace, other than the DNS.
    #[must_use]
    pub fn reaches_out(&self) -> bool {
        let is_outside = |peer: &Peer| match peer.who {
            Who::Dns | Who::Pods { namespaces: Namespaces::Own, .. } => false,
            Who::Pods { .. } | Who::Addresses { .. } => true,
        };
        !self.default_deny || self.allow_egress.iter().any(is_outside)
    }

    /// Whether a pod with this profile may reach pods of other namespaces, apart from the DNS.
    #[must_use]
    pub fn reaches_other_namespaces(&self) -> bool {
        let is_elsewhere = |peer: &Peer| match &peer.who {
            Who::Pods { namespaces: Namespaces::Named(_) | Namespaces::Labelled(_), .. } => true,
            Who::Dns | Who::Pods { namespaces: Namespaces::Own, .. } | Who::Addresses { .. } => false,
        };
        self.allow_egress.iter().any(is_elsewhere)
    }

    /// Returns why a pod with this profile reaches `target` on one of its ports; `None` if it does not. Rules of
    /// NetworkPolicies add up, so one rule that allows the connection is enough.
    #[must_use]
    pub fn reaches(&self, target: &Target) -> Option<String> {
        if !self.default_deny {
            return Some("everything is open".to_owned());
        }
        let mut by = self.allow_egress.iter().filter(|peer| peer.is_on(&target.ports));
        by.find_map(|peer| peer.who.reaches(target))
    }
}

impl Peer {
    fn is_on(&self, ports: &BTreeSet<u16>) -> bool {
        let has_one =
            || self.ports.is_empty() || ports.is_empty() || self.ports.iter().any(|it| ports.contains(&it.number));
        match self.who {
            // Port 53 of kube-system belongs to no other server.
            Who::Dns => false,
            // A rule has the ports of pods, and a target has the ports of its Service. The two can differ, so ports are
            // not compared here.
            Who::Pods { .. } => true,
            Who::Addresses { .. } => has_one(),
        }
    }
}

impl Who {
    fn reaches(&self, target: &Target) -> Option<String> {
        match self {
            Self::Dns | Self::Pods { namespaces: Namespaces::Own, .. } => None,
            Self::Addresses { range, except } => {
                let left_out = |address: &IpAddr| except.iter().any(|except| except.contains(*address));
                let reached = target.addresses.iter().find(|address| range.contains(**address) && !left_out(address));
                // The address of a server in the cluster is often unknown on this host. A range of all addresses
                // contains it in any case.
                let is_unknown = target.namespace.is_some() && target.addresses.is_empty();
                let has_all = || is_unknown && range.length == 0 && except.is_empty();
                let by_address = reached.map(|address| format!("cidr {range} has {address}"));
                by_address.or_else(|| has_all().then(|| format!("cidr {range} leaves out no address")))
            }
            Self::Pods { namespaces: Namespaces::Named(name), .. } => {
                (target.namespace.as_ref() == Some(name)).then(|| format!("it is in namespace {name}"))
            }
            // The labels of a namespace are not known here, so any label could match.
            Self::Pods { namespaces: Namespaces::Labelled(selector), .. } => {
                let namespace = target.namespace.as_ref()?;
                Some(format!("namespace {namespace} may have the labels {selector}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        Range::parse(text).expect("the text is ADDRESS/LENGTH")
    }

    fn addresses(cidr: &str, except: &[&str], ports: &[Port]) -> Peer {
        let who = Who::Addresses { range: range(cidr), except: except.iter().map(|text| range(text)).collect() };
        Peer { who, ports: ports.to_vec() }
    }

    fn profile(egress: &[Peer]) -> NetworkProfile {
        NetworkProfile { default_deny: true, allow_ingress: Vec::new(), allow_egress: egress.to_vec() }
    }

    fn nfs() -> Target {
        Target {
            name: "nfs.server nfs.example.org".to_owned(),
            addresses: BTreeSet::from([
                "192.0.2.7".parse().expect("the text is an address"),
                "2001:db8::7".parse().expect("the text is an address"),
            ]),
            namespace: None,
            ports: BTreeSet::from([111, 2049]),
        }
    }

    #[test]
    fn ranges_have_an_address_and_a_length() {
        assert!(["192.0.2.0/24", "2001:db8::/32", "0.0.0.0/0", "::/0"].iter().all(|text| Range::parse(text).is_some()));
        assert!(
            ["192.0.2.0", "192.0.2.0/33", "example.org/24", "::/129", "1.2.3.4/-1"]
                .iter()
                .all(|text| Range::parse(text).is_none())
        );
        let has = |text: &str, address: &str| range(text).contains(address.parse().expect("the text is an address"));
        assert!(has("192.0.2.0/24", "192.0.2.255") && !has("192.0.2.0/24", "192.0.3.0"));
        assert!(has("0.0.0.0/0", "192.0.2.1") && has("::/0", "2001:db8::1") && !has("0.0.0.0/0", "::1"));
        assert!(has("192.0.2.7/32", "192.0.2.7") && !has("192.0.2.7/32", "192.0.2.6"));
        assert!(
            range("10.0.0.0/8").covers(&range("10.1.0.0/16")) && !range("10.1.0.0/16").covers(&range("10.0.0.0/8"))
        );
        assert!(!range("0.0.0.0/0").covers(&range("::/0")));
        assert_eq!(range("::ffff:192.0.2.0/120"), range("192.0.2.0/24"));
        assert!(range("::ffff:0:0/96").covers(&range("0.0.0.0/0")) && has("::/0", "::ffff:192.0.2.7"));
    }

    #[test]
    fn one_rule_allows_what_the_exception_of_another_leaves_out() {
        let all = || addresses("0.0.0.0/0", &["192.0.2.0/28"], &[]);
        assert_eq!(profile(&[all()]).reaches(&nfs()), None);
        assert!(profile(&[addresses("0.0.0.0/0", &[], &[])]).reaches(&nfs()).is_some());
        let web = addresses("192.0.2.0/24", &[], &[Port::tcp(443)]);
        assert_eq!(profile(&[all(), web]).reaches(&nfs()), None);
        let other = addresses("192.0.2.0/24", &[], &[Port::tcp(443), Port { number: 2049, udp: true }]);
        let why = profile(&[all(), other]).reaches(&nfs()).expect("the profile reaches the server");
        assert_eq!(why, "cidr 192.0.2.0/24 has 192.0.2.7");
        // Addresses of IPv6 need an exception of their own.
        assert!(profile(&[all(), addresses("::/0", &[], &[])]).reaches(&nfs()).is_some());
    }

    #[test]
    fn the_open_profile_reaches_everything_and_isolated_nothing() {
        assert!(NetworkProfile::open().reaches(&nfs()).is_some());
        let isolated = NetworkProfile::isolated();
        let anything = Target { namespace: Some("kube-system".to_owned()), ports: BTreeSet::new(), ..nfs() };
        assert_eq!((isolated.reaches(&nfs()), isolated.reaches(&anything)), (None, None));
    }

    #[test]
    fn a_server_in_the_cluster_is_reached_by_rules_for_its_namespace() {
        let inside = Target { namespace: Some("storage".to_owned()), addresses: BTreeSet::new(), ..nfs() };
        let labelled = |text: &str| {
            let selector = Selector::parse(text).expect("the selector is valid");
            Peer::from(Who::Pods { namespaces: Namespaces::Labelled(selector), labels: None })
        };
        assert!(profile(&[Peer::namespace("storage")]).reaches(&inside).is_some());
        assert!(profile(&[labelled("team=web")]).reaches(&inside).is_some());
        assert_eq!(profile(&[Peer::namespace("web"), Peer::own_namespace()]).reaches(&inside), None);
        assert_eq!(profile(&[labelled("team=web")]).reaches(&nfs()), None);
        assert!(profile(&[addresses("0.0.0.0/0", &[], &[])]).reaches(&inside).is_some());
        assert!(profile(&[addresses("0.0.0.0/0", &[], &[Port::tcp(443)])]).reaches(&inside).is_none());
        assert!(profile(&[addresses("0.0.0.0/0", &["10.0.0.0/8"], &[])]).reaches(&inside).is_none());
        assert!(profile(&[labelled("team=web")]).reaches_other_namespaces());
        assert!(!profile(&[Peer::dns(), Peer::own_namespace()]).reaches_other_namespaces());
    }

    #[test]
    fn a_rule_for_pods_reaches_a_service_whatever_its_ports() {
        let inside = Target { namespace: Some("storage".to_owned()), addresses: BTreeSet::new(), ..nfs() };
        let by = Peer { ports: vec![Port::tcp(8443)], ..Peer::namespace("storage") };
        assert!(profile(&[by]).reaches(&inside).is_some());
    }
}
