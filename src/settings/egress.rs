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

use bursar_directory::source::{ServerUrl, SourceKind};

use super::Settings;
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

/// Checks the rules of each class together, because they add up.
#[must_use]
pub fn egress(settings: &Settings, names: Names) -> Egress {
    let policy = &settings.policy;
    // If no class reaches addresses outside the cluster, there is nothing to resolve.
    let reaches_out = |class: &&Class| policy.networks.get(&class.network).is_some_and(NetworkProfile::reaches_out);
    let classes: Vec<&Class> = with_pods(policy).filter(reaches_out).collect();
    let mut found = Egress::default();
    if classes.is_empty() {
        return found;
    }
    let targets = targets(settings, names);
    for class in classes {
        let Some(profile) = policy.networks.get(&class.network) else { continue };
        for target in &targets {
            if let Some(why) = profile.reaches(target) {
                found.reached.push((class.name.clone(), format!("{} ({why})", target.name)));
            } else if target.addresses.is_empty() && target.namespace.is_none() {
                found.unknown.insert(target.name.clone());
            }
        }
    }
    found
}

/// Returns the classes that have namespaces, in which pods run.
fn with_pods(policy: &Policy) -> impl Iterator<Item = &Class> {
    policy.classes.values().filter(|class| class.namespace.is_some() || class.adopts().is_some())
}

fn targets(settings: &Settings, names: Names) -> Vec<Target> {
    let mut servers: Vec<(String, String, BTreeSet<u16>)> = Vec::new();
    for (server, more) in nfs(&settings.policy) {
        servers.push((format!("nfs.server {server}"), server, NFS_PORTS.into_iter().chain(more).collect()));
    }
    for (source, _) in &settings.sources {
        let name = format!("source.{}", source.name);
        match &source.kind {
            SourceKind::Ldap(ldap) => {
                let urls = ldap.urls.iter().filter_map(|text| ServerUrl::parse(text));
                // A URL of a local socket is left out: it leads to a server on this host.
                servers.extend(urls.filter(|url| url.socket.is_none()).map(|url| {
                    let ports = LDAP_PORTS.into_iter().chain([url.port]).collect();
                    // In Active Directory, the domain of an SRV record has the addresses of the controllers.
                    let host = if url.is_service() { after_service(&url.host) } else { url.host.clone() };
                    (format!("{name} ({})", url.host), host, ports)
                }));
            }
            SourceKind::Keycloak(realm) => {
                if let Ok(url) = reqwest::Url::parse(&realm.url)
                    && let Some(host) = url.host_str()
                {
                    let host = host.trim_matches(['[', ']']).to_owned();
                    let ports = url.port_or_known_default().into_iter().collect();
                    servers.push((format!("{name} ({host})"), host, ports));
                }
            }
            SourceKind::Ldif(_) => {}
        }
    }
    let hosts: Vec<String> = servers.iter().map(|(_, host, _)| host.clone()).collect();
    let addresses = match names {
        Names::Resolved => resolved(&hosts),
        Names::AsWritten => {
            let literal = |host: &String| host.parse().ok().map(|address: IpAddr| address.to_canonical());
            hosts.iter().map(|host| literal(host).into_iter().collect()).collect()
        }
    };
    let own = own_addresses();
    // A server with a loopback address runs on this host, so pods would reach it at any address of this host.
    let seen_by_pods = |addresses: BTreeSet<IpAddr>| -> BTreeSet<IpAddr> {
        let (here, others): (BTreeSet<_>, BTreeSet<_>) = addresses.into_iter().partition(IpAddr::is_loopback);
        if here.is_empty() { others } else { others.union(&own).copied().collect() }
    };
    let servers = servers.into_iter().zip(addresses).map(|((name, host, ports), addresses)| Target {
        name,
        addresses: seen_by_pods(addresses),
        namespace: of_service(&host),
        ports,
    });
    let here =
        Target { name: "the control host".to_owned(), addresses: own.clone(), namespace: None, ports: BTreeSet::new() };
    servers.chain([here]).collect()
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

/// Returns the domain of a service name: `example.org` for `_ldap._tcp.example.org`.
fn after_service(host: &str) -> String {
    host.split('.').skip_while(|label| label.starts_with('_')).collect::<Vec<_>>().join(".")
}

/// Returns the namespace of a name such as `NAME.NAMESPACE.svc` or `POD.NAME.NAMESPACE.svc.cluster.local`.
fn of_service(host: &str) -> Option<String> {
    let labels: Vec<&str> = host.trim_end_matches('.').split('.').collect();
    let at = labels.iter().position(|label| *label == "svc").filter(|at| *at >= 2)?;
    Some(labels[at - 1].to_owned())
}

/// Returns the addresses of each host, in the order of the hosts; none if a host does not resolve in time.
#[expect(clippy::disallowed_methods, reason = "waits for the resolver, with a deadline")]
fn resolved(hosts: &[String]) -> Vec<BTreeSet<IpAddr>> {
    let (sender, answers) = mpsc::channel();
    for (index, host) in hosts.iter().enumerate() {
        let (sender, host) = (sender.clone(), host.clone());
        // The resolver of the C library cannot be interrupted, so a thread that is late keeps running.
        let _ = std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
            let found = (host.as_str(), 0).to_socket_addrs();
            let addresses = found.into_iter().flatten().map(|address| address.ip().to_canonical());
            let _ = sender.send((index, addresses.collect()));
        });
    }
    drop(sender);
    let mut addresses = vec![BTreeSet::new(); hosts.len()];
    let begun = Instant::now();
    while let Ok((index, found)) = answers.recv_timeout(RESOLVED_WITHIN.saturating_sub(begun.elapsed())) {
        addresses[index] = found;
    }
    addresses
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
        assert_eq!(of_service("nfs.storage.svc").as_deref(), Some("storage"));
        assert_eq!(of_service("nfs-0.nfs.storage.svc.cluster.local.").as_deref(), Some("storage"));
        assert!(of_service("svc.example.org").is_none() && of_service("nfs.example.org").is_none());
        assert_eq!(after_service("_ldap._tcp.example.org"), "example.org");
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
        let found = resolved(&["192.0.2.7".to_owned(), "no.such.host.invalid".to_owned()]);
        assert_eq!(found[0], BTreeSet::from([IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7))]));
        assert!(found[1].is_empty());
    }
}
