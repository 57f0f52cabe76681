//! Finds servers by the SRV records of a zone (RFC 2782): `ldaps://_ldap._tcp.example.org` is looked up, and the
//! targets are tried in the order of their priority. The system's resolver returns only addresses, so this module asks
//! the system's nameservers itself.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::source::{LdapConfig, ServerUrl};

/// The file that names the system's nameservers (resolv.conf(5)).
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The limit of one question. resolv.conf(5) moves to the next nameserver after 5 s, but a site's own nameservers
/// answer within milliseconds.
const TRY: Duration = Duration::from_secs(2);
/// The largest answer by UDP that is requested (RFC 6891). Answers of this size are not fragmented in any network.
const UDP_SIZE: u16 = 1232;
const SRV: u16 = 33;
const OPT: u16 = 41;

/// Returns the servers of `config` in the order in which they are tried. The reasons why some servers could not be
/// found are added to `failures`.
pub(super) async fn servers(config: &LdapConfig, failures: &mut Vec<String>) -> Vec<ServerUrl> {
    let mut servers = Vec::new();
    for text in &config.urls {
        match ServerUrl::parse(text) {
            None => failures.push(format!("{text} is not a usable URL")),
            Some(url) if url.is_service() => match timeout(config.connect_timeout, find(&url, config.dns)).await {
                Ok(Ok(found)) => {
                    let (trusted, others): (Vec<_>, Vec<_>) = found
                        .into_iter()
                        .partition(|found| config.ca_pem.is_some() || is_of_zone(&url.host, &found.host));
                    failures.extend(others.iter().map(|other| {
                        format!(
                            "{}: {other} is not used: it is outside the zone, and without `ca` a public certificate \
                             of its name would be trusted; set `ca`, or name the server in `urls`",
                            url.host
                        )
                    }));
                    servers.extend(trusted);
                }
                Ok(Err(why)) => failures.push(format!("{}: {why}", url.host)),
                Err(_) => failures.push(format!("{}: no SRV records within {:?}", url.host, config.connect_timeout)),
            },
            Some(url) => servers.push(url),
        }
    }
    servers
}

/// Whether `host` lies in the zone of `service`. TLS proves only the name of a target, and a forged answer can choose
/// that name.
fn is_of_zone(service: &str, host: &str) -> bool {
    let labels = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
    let (service, host) = (labels(service), labels(host));
    // In Active Directory, sites and roles of servers come before the zone: `_ldap._tcp.dc._msdcs.example.org`.
    let after = service.rfind('_').unwrap_or(0);
    let zone = service[after..].split_once('.').map_or("", |(_, zone)| zone);
    !zone.is_empty() && host.strip_suffix(zone).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

async fn find(url: &ServerUrl, dns: Option<SocketAddr>) -> Result<Vec<ServerUrl>, String> {
    let nameservers = match dns {
        Some(server) => vec![server],
        None => nameservers(&tokio::fs::read_to_string(RESOLV_CONF).await.unwrap_or_default()),
    };
    let mut why = format!("{RESOLV_CONF} names no server");
    for server in nameservers {
        match ask(server, &url.host).await {
            Ok(records) if records.is_empty() => return Err("no SRV records".to_owned()),
            Ok(records) => return Ok(records.iter().map(|record| record.url(url)).collect()),
            Err(error) => why = format!("no SRV records from {server}: {error}"),
        }
    }
    Err(why)
}

/// Returns the addresses in the `nameserver` lines; if there are none, this machine.
fn nameservers(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let addresses = lines.filter_map(|rest| rest.trim().split('%').next()?.parse::<IpAddr>().ok());
    let mut servers: Vec<SocketAddr> = addresses.map(|address| SocketAddr::new(address, 53)).collect();
    if servers.is_empty() {
        servers.push(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53));
    }
    servers
}

/// A target of an SRV record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    priority: u16,
    /// Among servers of one priority, the heaviest comes first. The choice is always the same, because a server can be
    /// asked only for changes since its own last answer.
    weight: std::cmp::Reverse<u16>,
    host: String,
    port: u16,
}

impl Record {
    /// Returns the URL of the target. A zone usually names the port for plain text, even if TLS is wanted.
    fn url(&self, asked: &ServerUrl) -> ServerUrl {
        let default = if asked.tls { 636 } else { 389 };
        let port = if asked.port != default {
            asked.port
        } else if asked.tls && self.port == 389 {
            default
        } else {
            self.port
        };
        ServerUrl { tls: asked.tls, host: self.host.clone(), port, socket: None }
    }
}

async fn ask(server: SocketAddr, name: &str) -> Result<Vec<Record>, String> {
    let id = id();
    let question = question(id, name).ok_or_else(|| "it is not a valid host name".to_owned())?;
    let text = |error: std::io::Error| error.to_string();
    let by_udp = async {
        let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
        socket.connect(server).await?;
        socket.send(&question).await?;
        let mut answer = vec![0; usize::from(UDP_SIZE)];
        loop {
            let length = socket.recv(&mut answer).await?;
            // Other datagrams are late answers to other questions.
            if answer[..length].starts_with(&id.to_be_bytes()) {
                answer.truncate(length);
                return Ok::<Vec<u8>, std::io::Error>(answer);
            }
        }
    };
    let answer = timeout(TRY, by_udp).await.map_err(|_| format!("no answer within {TRY:?}"))?.map_err(text)?;
    if answer.get(2).is_some_and(|flags| flags & 0x02 == 0) {
        return records(&answer);
    }
    let by_tcp = async {
        let mut stream = TcpStream::connect(server).await?;
        let length = u16::try_from(question.len()).unwrap_or(u16::MAX);
        stream.write_all(&[&length.to_be_bytes()[..], &question].concat()).await?;
        let mut length = [0; 2];
        stream.read_exact(&mut length).await?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer).await?;
        Ok::<Vec<u8>, std::io::Error>(answer)
    };
    let answer = timeout(TRY, by_tcp).await.map_err(|_| format!("no answer within {TRY:?}"))?.map_err(text)?;
    records(&answer)
}

/// Returns a number that a stranger cannot easily guess. Apart from that, the network between this host and its
/// nameserver is trusted.
#[expect(clippy::disallowed_methods, reason = "needs a number that changes, not the time")]
fn id() -> u16 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let [.., a, b] = (now.subsec_nanos() ^ std::process::id()).to_be_bytes();
    u16::from_be_bytes([a, b])
}

/// Encodes a question for SRV records (RFC 1035, 4.1), with recursion desired and the largest size of an answer (RFC
/// 6891).
fn question(id: u16, name: &str) -> Option<Vec<u8>> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 1]);
    for label in name.trim_end_matches('.').split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..64).contains(length))?;
        message.push(length);
        message.extend(label.bytes());
    }
    message.push(0);
    message.extend(SRV.to_be_bytes());
    message.extend([0, 1, 0]);
    message.extend(OPT.to_be_bytes());
    message.extend(UDP_SIZE.to_be_bytes());
    message.extend([0; 6]);
    Some(message)
}

/// Returns the targets in an answer, in the order in which they are tried.
fn records(answer: &[u8]) -> Result<Vec<Record>, String> {
    let code = answer.get(3).ok_or("its answer is truncated")? & 0x0f;
    match code {
        0 => {}
        3 => return Ok(Vec::new()),
        code => return Err(format!("it answers with code {code}")),
    }
    parsed(answer).ok_or_else(|| "its answer could not be parsed".to_owned())
}

fn parsed(answer: &[u8]) -> Option<Vec<Record>> {
    let number = |at: usize| Some(u16::from_be_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let (questions, answers) = (number(4)?, number(6)?);
    let mut at = 12;
    for _ in 0..questions {
        at = name(answer, at)?.1 + 4;
    }
    let mut records = Vec::new();
    for _ in 0..answers {
        at = name(answer, at)?.1;
        let (kind, length) = (number(at)?, usize::from(number(at + 8)?));
        let data = at + 10;
        if kind == SRV {
            let host = name(answer, data + 6)?.0;
            let (priority, weight, port) = (number(data)?, number(data + 2)?, number(data + 4)?);
            // A single dot as the target says that the service does not exist.
            if !host.is_empty() {
                records.push(Record { priority, weight: std::cmp::Reverse(weight), host, port });
            }
        }
        at = data + length;
    }
    records.sort();
    Some(records)
}

/// Returns a name, and the position after it. A name can point to an earlier one (RFC 1035, 4.1.4); more than 32
/// pointers are refused, because they could form a circle.
fn name(message: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut labels, mut end, mut jumps) = (Vec::new(), None, 0);
    loop {
        let length = *message.get(at)?;
        match length {
            0 => return Some((labels.join("."), end.unwrap_or(at + 1))),
            1..64 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                labels.push(std::str::from_utf8(label).ok()?.to_owned());
                at += 1 + usize::from(length);
            }
            192.. => {
                end = end.or(Some(at + 2));
                at = usize::from(u16::from_be_bytes([length & 0x3f, *message.get(at + 1)?]));
                jumps += 1;
                if jumps > 32 {
                    return None;
                }
            }
            64..192 => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the answer that `dig +noedns SRV _ldap._tcp.example.org` gets: two targets, the second with a pointer
    /// into the question.
    fn answer() -> Vec<u8> {
        let mut message = question(7, "_ldap._tcp.example.org").expect("the name is valid");
        message.truncate(message.len() - 11);
        message[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, 2, 0, 0, 0, 0]);
        let record = |priority: u8, target: &[u8]| {
            let data = [&[0, priority, 0, 5, 1, 133][..], target].concat();
            let length = u8::try_from(data.len()).expect("the data is shorter than 256 bytes");
            [&[0xc0, 12, 0, 33, 0, 1, 0, 0, 0, 60, 0, length][..], &data].concat()
        };
        // `example.org` begins 11 bytes after the start of the question.
        message.extend(record(20, b"\x04ldap\xc0\x17"));
        message.extend(record(10, b"\x02dc\x04test\x00"));
        message
    }

    #[test]
    fn targets_are_sorted_by_priority() {
        let found = records(&answer()).expect("the answer is valid");
        let hosts: Vec<(&str, u16)> = found.iter().map(|record| (record.host.as_str(), record.port)).collect();
        assert_eq!(hosts, [("dc.test", 389), ("ldap.example.org", 389)]);
        let url = |text: &str| found[0].url(&ServerUrl::parse(text).expect("the URL is valid")).to_string();
        assert_eq!(url("ldaps://_ldap._tcp.example.org"), "dc.test");
        assert_eq!(url("ldap://_ldap._tcp.example.org"), "dc.test");
        assert_eq!(url("ldaps://_ldap._tcp.example.org:1636"), "dc.test:1636");
    }

    #[test]
    fn a_target_outside_the_zone_is_recognised() {
        let services =
            ["_ldap._tcp.example.org", "_ldap._tcp.dc._msdcs.example.org", "_ldap._tcp.Site._sites.Example.org."];
        for (host, inside) in [
            ("dc1.example.org", true),
            ("DC1.Prod.Example.ORG.", true),
            ("example.org", true),
            ("dc.evil.example", false),
            ("evilexample.org", false),
            ("example.org.evil.example", false),
        ] {
            for service in services {
                assert_eq!(is_of_zone(service, host), inside, "{host} of {service}");
            }
        }
    }

    #[test]
    fn nameservers_come_from_resolv_conf() {
        let text = "# x\nsearch example.org\nnameserver 192.0.2.1\n nameserver fe80::1%eth0\nnameserver nobody\n";
        let servers: Vec<String> = nameservers(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:53", "[fe80::1]:53"]);
        assert_eq!(nameservers("").len(), 1);
    }

    proptest! {
        #[test]
        fn no_answer_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80), at in 0_usize..120, value: u8) {
            let _ = records(&bytes);
            let mut message = answer();
            if let Some(byte) = message.get_mut(at) {
                *byte = value;
            }
            let _ = records(&message);
            message.truncate(at);
            let _ = records(&message);
        }
    }
}
