//! A proxy between Bursar and a real `slapd` that cuts, silences, slows or corrupts connections.
//!
//! In every case, a read that claims to be complete is right, the cache is never half updated, nothing panics, and the
//! next read over a good connection is right without help. Without TLS, this is tested with broken messages and wrong
//! results, because a changed letter in a name cannot be detected; with TLS, with any changed byte.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bursar::snapshot::SourceRead;
use bursar_directory::source::{LdapConfig, SourceConfig};
use bursar_directory::{Pass, SyncCache};
use bursar_testkit::ldif::{person_dn, person_ldif, tool_ldif};
use bursar_testkit::slapd::{BASE_DN, Slapd, SlapdOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::{assert_same, ldap, read, read_by, site, toolforge, why};

/// The timeout of tests in which nothing hangs. It is long, so that a busy machine does not fail them.
const PATIENT: Duration = Duration::from_secs(20);
/// The timeout of tests in which some reads wait for an answer that never comes.
const HASTY: Duration = Duration::from_secs(4);

/// Changes an LDAP message in place.
pub type Change = Arc<dyn Fn(&mut Vec<u8>) + Send + Sync>;

/// What the proxy does to the data of the server.
#[derive(Clone)]
pub enum Fault {
    None,
    /// The connection ends after this many bytes.
    Cut(usize),
    /// Nothing more comes after this many bytes.
    Silent(usize),
    /// The data comes in pieces of this many bytes.
    Pieces(usize),
    /// This byte is changed.
    Flip(usize),
    /// The LDAP message with this number is changed.
    Message(usize, Change),
    /// The function may change each LDAP message before the client gets it.
    Each(Change),
}

/// The proxy. Bytes and messages are counted for each connection.
#[derive(Clone)]
pub struct Proxy {
    port: u16,
    fault: Arc<Mutex<Fault>>,
    /// The largest number of bytes and of messages that the server sent over one connection since the last query.
    bytes: Arc<AtomicUsize>,
    messages: Arc<AtomicUsize>,
    pub connections: Arc<AtomicU64>,
}

impl Proxy {
    pub async fn to(url: &str) -> Self {
        let server = url.split("//").last().expect("the URL has a host and a port").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("the system has a free port");
        let proxy = Self {
            port: listener.local_addr().expect("a listener has an address").port(),
            fault: Arc::new(Mutex::new(Fault::None)),
            bytes: Arc::default(),
            messages: Arc::default(),
            connections: Arc::default(),
        };
        let serving = proxy.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                let fault = serving.fault.lock().expect("no thread panics with the lock").clone();
                let (proxy, server) = (serving.clone(), server.clone());
                tokio::spawn(async move { proxy.carry(client, &server, fault).await });
            }
        });
        proxy
    }

    /// The URL that Bursar connects to.
    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Returns the largest number of bytes that the server sent over one connection since the last call.
    pub fn bytes(&self) -> usize {
        self.bytes.swap(0, Ordering::SeqCst)
    }

    fn messages(&self) -> usize {
        self.messages.swap(0, Ordering::SeqCst)
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().expect("no thread panics with the lock") = fault;
    }

    async fn carry(&self, client: TcpStream, server: &str, fault: Fault) -> Option<()> {
        let server = TcpStream::connect(server).await.ok()?;
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (client.into_split(), server.into_split());
        let up = async {
            let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        };
        let down = async {
            let (mut passed, mut message, mut waiting, mut buffer) = (0, 0, Vec::new(), vec![0; 65536]);
            loop {
                let length = from_server.read(&mut buffer).await.ok().filter(|length| *length > 0)?;
                let mut chunk = buffer[..length].to_vec();
                if let Fault::Message(_, change) | Fault::Each(change) = &fault {
                    waiting.append(&mut chunk);
                    while let Some(end) = message_end(&waiting) {
                        let mut whole: Vec<u8> = waiting.drain(..end).collect();
                        if !matches!(fault, Fault::Message(number, _) if number != message) {
                            change(&mut whole);
                        }
                        message += 1;
                        chunk.append(&mut whole);
                    }
                } else if matches!(fault, Fault::None) {
                    waiting.extend_from_slice(&chunk);
                    while let Some(end) = message_end(&waiting) {
                        waiting.drain(..end);
                        message += 1;
                    }
                    self.messages.fetch_max(message, Ordering::SeqCst);
                }
                let before = passed;
                passed += chunk.len();
                self.bytes.fetch_max(passed, Ordering::SeqCst);
                match fault {
                    Fault::Cut(at) if at < passed => {
                        to_client.write_all(&chunk[..at - before]).await.ok()?;
                        return None::<()>;
                    }
                    Fault::Silent(at) if at < passed => {
                        to_client.write_all(&chunk[..at - before]).await.ok()?;
                        return std::future::pending().await;
                    }
                    Fault::Flip(at) if (before..passed).contains(&at) => chunk[at - before] ^= 0x55,
                    Fault::Pieces(size) => {
                        for piece in chunk.chunks(size) {
                            to_client.write_all(piece).await.ok()?;
                            tokio::task::yield_now().await;
                        }
                        continue;
                    }
                    _ => {}
                }
                to_client.write_all(&chunk).await.ok()?;
            }
        };
        tokio::select! {
            () = up => None,
            down = down => down,
        }
    }
}

/// The length of the first LDAP message (RFC 4511, 5.1), if it is complete.
fn message_end(bytes: &[u8]) -> Option<usize> {
    let (header, length) = length(bytes.get(1..)?)?;
    (bytes.len() > header + length).then_some(1 + header + length)
}

/// The number of bytes of a BER length, and its value.
fn length(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*bytes.first()?);
    if first < 128 {
        return Some((1, first));
    }
    let long = bytes.get(1..=first - 128)?;
    Some((1 + long.len(), long.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))))
}

/// The offset of the operation's tag in a message: after the header and the message's number.
pub fn operation(message: &[u8]) -> usize {
    let header = 1 + length(&message[1..]).expect("the message has a valid length").0;
    header + 2 + usize::from(message[header + 1])
}

/// A server, a proxy to it, and a source that is read through the proxy.
struct Site {
    slapd: Slapd,
    proxy: Proxy,
    source: SourceConfig,
}

impl Site {
    async fn new(tls: bool, timeout: Duration) -> Self {
        let slapd = site(SlapdOptions { sessionlog: 100, ..SlapdOptions::default() });
        let proxy = Proxy::to(if tls { &slapd.ldaps_url } else { &slapd.ldap_url }).await;
        let url = proxy.url(if tls { "ldaps" } else { "ldap" });
        let config = LdapConfig {
            allow_plaintext: true,
            page_size: 5,
            timeout,
            connect_timeout: timeout,
            ..ldap(&[&url], &slapd)
        };
        Self { source: toolforge(config), slapd, proxy }
    }

    async fn read(&self, pass: &Pass, fault: Fault) -> SourceRead {
        self.proxy.set(fault);
        let read = read_by(&self.source, pass).await;
        self.proxy.set(Fault::None);
        read
    }

    /// Returns the cache after a complete read. Afterwards the directory changes, so that the next read finds changes.
    async fn kept(&self) -> SyncCache {
        let memory = SyncCache::default();
        self.read(&Pass::Changes(memory.clone()), Fault::None).await;
        self.slapd.add_ldif(&(person_ldif(BASE_DN, "zoe", 2100) + &tool_ldif(BASE_DN, "new", 52600, &["zoe"])));
        for name in ["alice", "bob"] {
            self.slapd.delete(&person_dn(BASE_DN, name));
        }
        memory
    }

    /// Returns a copy of the cache `memory`, so that a read does not change the original.
    fn copy(&self, memory: &SyncCache) -> SyncCache {
        let copy = SyncCache::default();
        if let Some(kept) = memory.of(&self.source) {
            copy.keep(&self.source.name, kept);
        }
        copy
    }

    /// Returns how many bytes the server sends for a read of this kind over a good connection. If the read uses several
    /// connections, only the longest counts.
    async fn length(&self, how: How, begun: &SyncCache, truth: &SourceRead) -> usize {
        self.proxy.bytes();
        self.proxy.messages();
        assert!(self.survives(how, begun, Fault::None, truth, "a good connection").await);
        self.proxy.bytes()
    }

    /// Reads over a connection with `fault`, then over a good one. Returns whether the first read was complete.
    async fn survives(&self, how: How, begun: &SyncCache, fault: Fault, truth: &SourceRead, label: &str) -> bool {
        let memory = self.copy(begun);
        let pass = match how {
            How::Once => Pass::Once,
            How::Changes => Pass::Changes(memory.clone()),
            How::Whole => Pass::Whole(memory.clone()),
        };
        let found = self.read(&pass, fault).await;
        let complete = why(&found) == "complete";
        if complete {
            assert!(
                found.entries == truth.entries,
                "{how:?}, {label}: the read reports complete, but its entries are wrong"
            );
        } else if !matches!(how, How::Once) {
            let same = memory.of(&self.source) == begun.of(&self.source);
            assert!(same, "{how:?}, {label}: a read that is not complete changed the cache");
        }
        if !matches!(how, How::Once) {
            assert_same(&self.read(&Pass::Changes(memory), Fault::None).await, truth);
        }
        complete
    }
}

/// The kind of read during which the fault occurs.
#[derive(Debug, Clone, Copy)]
enum How {
    Once,
    Changes,
    Whole,
}

/// Returns `count` evenly spread offsets below `length`, and some at its beginning and end.
fn places(length: usize, count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).map(|at| at * length / count).collect();
    places.extend([1, 2, length - 1]);
    places.sort_unstable();
    places.dedup();
    places
}

/// Returns `count`, or 20 times as many with `BURSAR_SOAK`.
fn tries(count: usize) -> usize {
    if std::env::var_os("BURSAR_SOAK").is_some() { count * 20 } else { count }
}

/// The reads to test, each with its cache: a single read, a first refresh, a refresh of changes, and a full comparison.
async fn ways(site: &Site) -> [(How, SyncCache); 4] {
    let kept = site.kept().await;
    [
        (How::Once, SyncCache::default()),
        (How::Changes, SyncCache::default()),
        (How::Changes, kept.clone()),
        (How::Whole, kept),
    ]
}

#[tokio::test]
async fn a_read_over_a_cut_connection_is_never_wrong() {
    for tls in [false, true] {
        let site = Site::new(tls, PATIENT).await;
        let ways = ways(&site).await;
        let truth = read(site.source.clone()).await;
        for (how, begun) in ways {
            let length = site.length(how, &begun, &truth).await;
            let mut complete = 0;
            for at in places(length, tries(24)) {
                let label = format!("cut after {at} of {length} bytes, TLS {tls}");
                complete += usize::from(site.survives(how, &begun, Fault::Cut(at), &truth, &label).await);
            }
            // The last bytes only close the connection, so a read that misses them may be complete.
            assert!(complete <= 2, "{how:?} is complete {complete} times");
        }
    }
}

#[tokio::test]
async fn a_read_over_a_silent_connection_is_incomplete_after_the_timeout() {
    let site = Site::new(false, HASTY).await;
    let ways = ways(&site).await;
    let truth = read(site.source.clone()).await;
    for (how, begun) in ways {
        let length = site.length(how, &begun, &truth).await;
        for at in [0, length / 2, length - 10] {
            let label = format!("silent after {at} of {length} bytes");
            assert!(!site.survives(how, &begun, Fault::Silent(at), &truth, &label).await, "{label}");
        }
    }
}

#[tokio::test]
async fn a_read_in_single_bytes_is_complete() {
    let site = Site::new(false, PATIENT).await;
    let ways = ways(&site).await;
    let truth = read(site.source.clone()).await;
    for (how, begun) in ways {
        for size in [1, 7, 1000] {
            assert!(site.survives(how, &begun, Fault::Pieces(size), &truth, "pieces").await, "{how:?} {size}");
        }
    }
}

#[tokio::test]
async fn a_changed_byte_under_tls_never_falsifies_a_read() {
    let site = Site::new(true, Duration::from_secs(5)).await;
    let ways = ways(&site).await;
    let truth = read(site.source.clone()).await;
    for (how, begun) in ways {
        let length = site.length(how, &begun, &truth).await;
        for at in places(length, tries(12)) {
            site.survives(how, &begun, Fault::Flip(at), &truth, &format!("byte {at} is changed")).await;
        }
    }
}

/// The ways in which a message is corrupted or replaced, with their descriptions.
fn spoiled() -> Vec<(&'static str, Change)> {
    let at_operation = |change: fn(&mut Vec<u8>, usize)| {
        move |message: &mut Vec<u8>| {
            let at = operation(message);
            change(message, at);
        }
    };
    vec![
        ("not a sequence", Arc::new(|message: &mut Vec<u8>| message[0] = 0x31)),
        (
            "no message at all",
            Arc::new(|message: &mut Vec<u8>| *message = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ),
        (
            "an endless length",
            Arc::new(|message: &mut Vec<u8>| *message = vec![0x30, 0x88, 255, 255, 255, 255, 255, 255, 255, 255]),
        ),
        ("an indefinite length", Arc::new(|message: &mut Vec<u8>| message[1] = 0x80)),
        ("an empty message", Arc::new(|message: &mut Vec<u8>| *message = vec![0x30, 0])),
        ("an unknown operation", Arc::new(at_operation(|message, at| message[at] = 0x6e))),
        ("a referral instead", Arc::new(at_operation(|message, at| message[at] = 0x73))),
        ("an intermediate message instead", Arc::new(at_operation(|message, at| message[at] = 0x79))),
        ("a searchResultDone instead", Arc::new(at_operation(|message, at| message[at] = 0x65))),
        ("an operation without content", Arc::new(at_operation(|message, at| message[at + 1] = 0))),
        ("an operation that is too long", Arc::new(at_operation(|message, at| message[at + 1] = 0x7f))),
        ("a result with code 51 (busy)", Arc::new(at_operation(|message, at| result(message, at, 51)))),
        ("a result with code 4 (size limit)", Arc::new(at_operation(|message, at| result(message, at, 4)))),
        ("a result with code 80 (other)", Arc::new(at_operation(|message, at| result(message, at, 80)))),
        ("broken controls", Arc::new(|message: &mut Vec<u8>| controls(message, 0x7f))),
        ("an empty control value", Arc::new(|message: &mut Vec<u8>| controls(message, 0))),
    ]
}

/// Changes the code of a result (of a bind or a search).
fn result(message: &mut [u8], at: usize, code: u8) {
    if matches!(message[at], 0x61 | 0x65) {
        let content = at + 1 + length(&message[at + 1..]).expect("the message has a valid length").0;
        message[content + 2] = code;
    }
}

/// Changes the length byte of the sequence in the value of the message's first control.
fn controls(message: &mut [u8], length_byte: u8) {
    let at = operation(message);
    let (header, content) = length(&message[at + 1..]).expect("the message has a valid length");
    let controls = at + 1 + header + content;
    if message.get(controls) != Some(&0xa0) {
        return;
    }
    // [0] { SEQUENCE { OID, criticality?, value } }: the value contains a sequence with its own length.
    let mut at = controls + 1 + length(&message[controls + 1..]).expect("the message has a valid length").0;
    at += 1 + length(&message[at + 1..]).expect("the message has a valid length").0;
    let (header, content) = length(&message[at + 1..]).expect("the message has a valid length");
    at += 1 + header + content;
    if message.get(at) == Some(&0x01) {
        at += 3;
    }
    if message.get(at) == Some(&0x04) {
        at += 1 + length(&message[at + 1..]).expect("the message has a valid length").0;
    }
    if message.get(at) == Some(&0x30) {
        message[at + 1] = length_byte;
    }
}

/// Runs the read `ways()[nth]` with its first, middle and last message spoiled in every way of [`spoiled`].
async fn spoil(nth: usize) {
    let site = Site::new(false, HASTY).await;
    let (how, begun) = ways(&site).await.into_iter().nth(nth).expect("there are four ways to read");
    let truth = read(site.source.clone()).await;
    site.length(how, &begun, &truth).await;
    let messages = site.proxy.messages();
    for (what, change) in spoiled() {
        for number in [0, messages / 2, messages - 1] {
            let label = format!("message {number} of {messages} is {what}");
            site.survives(how, &begun, Fault::Message(number, Arc::clone(&change)), &truth, &label).await;
        }
    }
}

#[tokio::test]
async fn spoiled_messages_never_falsify_a_single_read() {
    spoil(0).await;
}

#[tokio::test]
async fn spoiled_messages_never_falsify_a_first_refresh() {
    spoil(1).await;
}

#[tokio::test]
async fn spoiled_messages_never_falsify_a_refresh() {
    spoil(2).await;
}

#[tokio::test]
async fn spoiled_messages_never_falsify_a_full_read_that_follows_another() {
    spoil(3).await;
}
