//! Checks whether network profiles let tenants' pods reach servers that they should not: the file servers of the
//! policy, the directories, and this host. NFS with `AUTH_SYS` trusts every uid that a client claims, so a pod that
//! reaches the file server can read every home.
//!
//! Names are resolved with this host's resolver, which may differ from that of the nodes. With [`Names::AsWritten`],
//! names are not resolved.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs as _};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bursar_directory::ldap;
use bursar_directory::source::{LdapConfig, ServerUrl, SourceKind};

use super::{Settings, site_policy};
use crate::identity::ClusterName;
use crate::policy::{Class, NetworkProfile, NfsVolume, Policy, Target};
use crate::rules::AllowedVolume;

/// The deadline of the resolver. If it does not answer, the configuration is read without its answer.
const RESOLVED_WITHIN: Duration = Duration::from_secs(2);
/// The ports of rpcbind, NFS, mountd and NFS over RDMA.
const NFS_PORTS: [u16; 4] = [111, 2049, 20048, 20049];
/// The ports of LDAP and of the global catalog of Active Directory.
const LDAP_PORTS: [u16; 4] = [389, 636, 3268, 3269];

/// How to treat servers that the configuration gives by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Resolve the names with this host's resolver, which may take seconds.
    Resolved,
    /// Resolve nothing: only servers given by address are checked, and nothing is contacted.
    AsWritten,
}

/// The servers that classes reach although they should not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Egress {
    /// A class, and a server that its pods reach, with the reason.
    pub reached: Vec<(String, String)>,
    /// Servers whose addresses are not known, although a class reaches addresses outside its cluster.
    pub unknown: BTreeSet<String>,
}

/// Checks the rules of each class together, because they add up, also with the policies among its manifests.
#[must_use]
pub fn egress(settings: &Settings, names: Names) -> Egress {
    let policy = &settings.policy;
    // If no class reaches addresses outside the cluster, there is nothing to resolve.
    let reaches_out = |class: &&Class| {
        policy.networks.get(&class.network).is_some_and(NetworkProfile::reaches_out)
            || class.manifests.iter().any(site_policy::reaches_out)
    };
    let classes: Vec<&Class> = with_pods(policy).filter(reaches_out).collect();
    let mut found = Egress::default();
    if classes.is_empty() {
        return found;
    }
    let targets = targets(settings, names);
    for class in classes {
        let Some(profile) = policy.networks.get(&class.network) else { continue };
        for target in &targets {
            let by_manifest = || class.manifests.iter().find_map(|manifest| site_policy::reaches(manifest, target));
            if let Some(why) = profile.reaches(target).or_else(by_manifest) {
                found.reached.push((class.name.clone(), format!("{} ({why})", target.name)));
            } else if target.addresses.is_empty() && target.namespace.is_none() {
                found.unknown.insert(target.name.clone());
            }
        }
    }
    found
}

/// Returns the servers that the configuration gives by address, for each class of a cluster whose pods may reach pods of
/// other namespaces. If such an address belongs to a Service, the namespace of the server is not known.
#[must_use]
pub fn servers_by_address(settings: &Settings, cluster: &ClusterName) -> Vec<(String, Target)> {
    let policy = &settings.policy;
    let reaches = |class: &&Class| {
        let profile = policy.networks.get(&class.network);
        class.clusters.contains(cluster)
            && (profile.is_some_and(NetworkProfile::reaches_other_namespaces)
                || class.manifests.iter().any(site_policy::reaches_other_namespaces))
    };
    let classes: Vec<&Class> = with_pods(policy).filter(reaches).collect();
    if classes.is_empty() {
        return Vec::new();
    }
    let servers: Vec<Target> = servers(settings, Names::AsWritten, &own_addresses());
    let of_class =
        |class: &Class| servers.iter().map(|server| (class.name.clone(), server.clone())).collect::<Vec<_>>();
    classes.into_iter().flat_map(of_class).collect()
}

/// Returns the classes that have namespaces, in which pods run.
fn with_pods(policy: &Policy) -> impl Iterator<Item = &Class> {
    policy.classes.values().filter(|class| class.namespace.is_some() || class.adopts().is_some())
}

/// Where a server is.
enum Place {
    Host(String),
    /// A URL that names SRV records.
    Service(Box<LdapConfig>),
}

impl Place {
    /// Returns the place of a URL of `config`.
    fn of(url: &ServerUrl, text: &str, config: &LdapConfig) -> Self {
        if !url.is_service() {
            return Self::Host(url.host.clone());
        }
        let (ca_pem, dns) = (config.ca_pem.clone(), config.dns);
        Self::Service(Box::new(LdapConfig { ca_pem, dns, ..LdapConfig::new(vec![text.to_owned()]) }))
    }

    /// Returns the addresses of the server, and the ports that SRV records name.
    fn resolved(&self) -> (BTreeSet<IpAddr>, BTreeSet<u16>) {
        let addresses = |host: &str| {
            let found = (host, 0).to_socket_addrs().into_iter().flatten();
            found.map(|address| address.ip().to_canonical()).collect::<Vec<_>>()
        };
        match self {
            Self::Host(host) => (addresses(host).into_iter().collect(), BTreeSet::new()),
            Self::Service(config) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let servers = runtime.map(|runtime| runtime.block_on(ldap::servers(config))).unwrap_or_default();
                let ports = servers.iter().map(|server| server.port).collect();
                (servers.iter().flat_map(|server| addresses(&server.host)).collect(), ports)
            }
        }
    }
}

fn targets(settings: &Settings, names: Names) -> Vec<Target> {
    let own = own_addresses();
    let mut targets = servers(settings, names, &own);
    let name = "the control host".to_owned();
    targets.push(Target { name, addresses: own, namespace: None, ports: BTreeSet::new() });
    targets
}

/// Returns the file servers and the directories. `own` are the addresses of this host.
fn servers(settings: &Settings, names: Names, own: &BTreeSet<IpAddr>) -> Vec<Target> {
    let mut servers: Vec<(String, Place, BTreeSet<u16>)> = Vec::new();
    for (server, more) in nfs(&settings.policy) {
        let ports = NFS_PORTS.into_iter().chain(more).collect();
        servers.push((format!("nfs.server {server}"), Place::Host(server), ports));
    }
    for (source, _) in &settings.sources {
        let name = format!("source.{}", source.name);
        match &source.kind {
            SourceKind::Ldap(ldap) => {
                let urls = ldap.urls.iter().filter_map(|text| Some((text, ServerUrl::parse(text)?)));
                // A URL of a local socket is left out: it leads to a server on this host.
                servers.extend(urls.filter(|(_, url)| url.socket.is_none()).map(|(text, url)| {
                    let ports = LDAP_PORTS.into_iter().chain([url.port]).collect();
                    (format!("{name} ({})", url.host), Place::of(&url, text, ldap), ports)
                }));
            }
            SourceKind::Keycloak(realm) => {
                if let Ok(url) = reqwest::Url::parse(&realm.url)
                    && let Some(host) = url.host_str()
                {
                    let host = host.trim_matches(['[', ']']).to_owned();
                    let ports = url.port_or_known_default().into_iter().collect();
                    servers.push((format!("{name} ({host})"), Place::Host(host), ports));
                }
            }
            SourceKind::Ldif(_) => {}
        }
    }
    let literal = |place: &Place| match place {
        Place::Host(host) => host.parse().ok().map(|address: IpAddr| address.to_canonical()),
        Place::Service(_) => None,
    };
    let namespaces: Vec<Option<String>> = servers.iter().map(|(_, place, _)| of_service(place)).collect();
    let servers: Vec<(String, BTreeSet<IpAddr>, BTreeSet<u16>)> = match names {
        Names::Resolved => resolved(servers),
        Names::AsWritten => servers
            .into_iter()
            .map(|(name, place, ports)| (name, literal(&place).into_iter().collect(), ports))
            .collect(),
    };
    // A server with a loopback address runs on this host, so pods would reach it at any address of this host.
    let seen_by_pods = |addresses: BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
        let (here, others): (BTreeSet<_>, BTreeSet<_>) = addresses.into_iter().partition(IpAddr::is_loopback);
        if here.is_empty() { others } else { others.union(own).copied().collect() }
    };
    let servers = servers.into_iter().zip(namespaces).map(|((name, addresses, ports), namespace)| Target {
        name,
        addresses: seen_by_pods(addresses),
        namespace,
        ports,
    });
    servers.collect()
}

/// Returns the file servers, each with the ports that its mount options name.
fn nfs(policy: &Policy) -> BTreeSet<(String, BTreeSet<u16>)> {
    let port = |option: &String| option.strip_prefix("port=").or(option.strip_prefix("mountport="))?.parse().ok();
    let mut servers = BTreeSet::new();
    for class in policy.classes.values() {
        for volume in &class.volumes {
            if let Some(NfsVolume { server, options, .. }) = volume.kind.nfs() {
                servers.insert((server.clone(), options.iter().filter_map(port).collect()));
            }
        }
        let adopted = class.adopts().into_iter().flat_map(|adopts| &adopts.admission.allowed_volumes);
        for allowed in class.admission.volumes.allow.iter().chain(adopted) {
            if let AllowedVolume::Nfs { server, .. } = allowed {
                servers.insert((server.clone(), BTreeSet::new()));
            }
        }
    }
    servers
}

/// Returns the namespace of a name such as `NAME.NAMESPACE.svc` or `POD.NAME.NAMESPACE.svc.cluster.local`.
fn of_service(place: &Place) -> Option<String> {
    let Place::Host(host) = place else { return None };
    let labels: Vec<&str> = host.trim_end_matches('.').split('.').collect();
    let at = labels.iter().position(|label| *label == "svc").filter(|at| *at >= 2)?;
    Some(labels[at - 1].to_owned())
}

/// Returns the servers with their addresses, and with the ports of SRV records; without addresses if a server is not
/// found in time.
#[expect(clippy::disallowed_methods, reason = "waits for the resolver, with a deadline")]
fn resolved(servers: Vec<(String, Place, BTreeSet<u16>)>) -> Vec<(String, BTreeSet<IpAddr>, BTreeSet<u16>)> {
    let (sender, answers) = mpsc::channel();
    let mut all = Vec::new();
    for (index, (name, place, ports)) in servers.into_iter().enumerate() {
        let sender = sender.clone();
        // The resolver of the C library cannot be interrupted, so a thread that is late keeps running.
        let _ = std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
            let _ = sender.send((index, place.resolved()));
        });
        all.push((name, BTreeSet::new(), ports));
    }
    drop(sender);
    let begun = Instant::now();
    while let Ok((index, (addresses, ports))) = answers.recv_timeout(RESOLVED_WITHIN.saturating_sub(begun.elapsed())) {
        all[index].1 = addresses;
        all[index].2.extend(ports);
    }
    all
}

/// Returns the addresses of this host that a pod could reach. They are read from files, because the daemon may not open
/// a netlink socket.
fn own_addresses() -> BTreeSet<IpAddr> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let (four, six) = (of_fib_trie(&read("/proc/self/net/fib_trie")), of_if_inet6(&read("/proc/self/net/if_inet6")));
    four.into_iter().map(IpAddr::V4).chain(six.into_iter().map(IpAddr::V6)).collect()
}

/// Parses `fib_trie`. A leaf is `|-- ADDRESS`, and a line beneath it says `/32 host LOCAL` if it is an address of this
/// host.
fn of_fib_trie(text: &str) -> BTreeSet<Ipv4Addr> {
    let mut leaf: Option<Ipv4Addr> = None;
    let mut own = BTreeSet::new();
    for line in text.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            own.extend(leaf.filter(|address| !address.is_loopback()));
        }
    }
    own
}

/// Parses `if_inet6`. Each line has an address as 32 hexadecimal digits, then index, length, scope, flags and
/// interface.
fn of_if_inet6(text: &str) -> BTreeSet<Ipv6Addr> {
    let addresses = text.lines().filter_map(|line| u128::from_str_radix(line.split_whitespace().next()?, 16).ok());
    let is_meant = |address: &Ipv6Addr| !address.is_loopback() && !address.is_unicast_link_local();
    addresses.map(Ipv6Addr::from).filter(is_meant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_of_the_cluster_names_its_namespace() {
        let of_service = |host: &str| super::of_service(&Place::Host(host.to_owned()));
        assert_eq!(of_service("nfs.storage.svc").as_deref(), Some("storage"));
        assert_eq!(of_service("nfs-0.nfs.storage.svc.cluster.local.").as_deref(), Some("storage"));
        assert!(of_service("svc.example.org").is_none() && of_service("nfs.example.org").is_none());
    }

    #[test]
    fn own_addresses_are_the_hosts_and_not_those_of_its_networks() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 192.0.2.0\n        \
                    /24 link UNICAST\n     |-- 192.0.2.7\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link \
                    BROADCAST\nLocal:\n     |-- 127.0.0.1\n        /32 host LOCAL\n";
        assert_eq!(of_fib_trie(trie), BTreeSet::from([Ipv4Addr::new(192, 0, 2, 7)]));
        let six = "00000000000000000000000000000001 01 80 10 80       lo\n\
                   fe800000000000000000000000000007 02 40 20 80     eth0\n\
                   20010db8000000000000000000000007 02 40 00 80     eth0\n";
        assert_eq!(of_if_inet6(six), BTreeSet::from(["2001:db8::7".parse().expect("the text is an address")]));
    }

    #[test]
    fn a_host_that_does_not_resolve_has_no_address() {
        let server = |host: &str| (host.to_owned(), Place::Host(host.to_owned()), BTreeSet::new());
        let found = resolved(vec![server("192.0.2.7"), server("no.such.host.invalid")]);
        assert_eq!(found[0].1, BTreeSet::from([IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))]));
        assert!(found[1].1.is_empty());
    }

    /// A nameserver that answers one question: port 1389 of 192.0.2.9 has the service.
    fn nameserver() -> std::net::SocketAddr {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("the system has a free port");
        let address = socket.local_addr().expect("the socket has an address");
        std::thread::spawn(move || {
            let mut question = [0; 512];
            let (length, client) = socket.recv_from(&mut question).expect("a question arrives");
            // The question without its OPT record, one answer, and its target. An address is a valid name here.
            let mut answer = question[..length - 11].to_vec();
            answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
            answer.extend([0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, 17, 0, 10, 0, 5, 5, 0x6d]);
            answer.extend(b"\x03192\x010\x012\x019\0");
            socket.send_to(&answer, client).expect("the answer is sent");
        });
        address
    }

    #[test]
    fn a_server_behind_srv_records_has_the_addresses_and_ports_of_their_targets() {
        let text = "ldap://_ldap._tcp.dc._msdcs.example.org";
        let url = ServerUrl::parse(text).expect("the URL is valid");
        // Without `ca`, a target outside the zone would not be used.
        let config = LdapConfig { dns: Some(nameserver()), ca_pem: Some(String::new()), ..LdapConfig::new(Vec::new()) };
        let found = resolved(vec![(text.to_owned(), Place::of(&url, text, &config), BTreeSet::from([389]))]);
        let [(_, addresses, ports)] = &*found else { panic!("{found:?}") };
        assert_eq!(*addresses, BTreeSet::from([IpAddr::V4(Ipv4Addr::new(192, 0, 2, 9))]));
        assert_eq!(*ports, BTreeSet::from([389, 1389]));
    }
}
