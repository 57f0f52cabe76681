//! A wire between Bursar and a real `slapd` that fails: cut, silent, slow, or with other bytes than were sent.
//!
//! Whatever happens: a read that says it is complete is right, what is kept is never half of something, nothing panics, and
//! the next read over a good wire is right by itself. On a plain wire that is asked of broken messages and of wrong
//! results, for nobody can notice another letter in a name there; under TLS of any byte.

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

/// Where nothing hangs: a machine with other work is no fault.
const PATIENT: Duration = Duration::from_secs(20);
/// Where some reads wait for what does not come.
const HASTY: Duration = Duration::from_secs(4);

/// What becomes of a message.
type Change = Arc<dyn Fn(&mut Vec<u8>) + Send + Sync>;

/// What the wire does to what the server says.
#[derive(Clone)]
pub enum Fault {
    None,
    /// The connection ends after so many bytes.
    Cut(usize),
    /// Nothing more comes after so many bytes.
    Silent(usize),
    /// Pieces of so many bytes.
    Pieces(usize),
    /// This byte is another.
    Flip(usize),
    /// The LDAP message of this number is another.
    Message(usize, Change),
}

/// The wire; each connection counts from zero.
#[derive(Clone)]
pub struct Wire {
    port: u16,
    fault: Arc<Mutex<Fault>>,
    /// The most bytes and messages that the server sent over one connection, since they were last asked for.
    bytes: Arc<AtomicUsize>,
    messages: Arc<AtomicUsize>,
    pub connections: Arc<AtomicU64>,
}

impl Wire {
    pub async fn to(url: &str) -> Self {
        let server = url.split("//").last().expect("host and port").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let wire = Self {
            port: listener.local_addr().expect("its address").port(),
            fault: Arc::new(Mutex::new(Fault::None)),
            bytes: Arc::default(),
            messages: Arc::default(),
            connections: Arc::default(),
        };
        let serving = wire.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                serving.connections.fetch_add(1, Ordering::SeqCst);
                let fault = serving.fault.lock().expect("whole").clone();
                let (wire, server) = (serving.clone(), server.clone());
                tokio::spawn(async move { wire.carry(client, &server, fault).await });
            }
        });
        wire
    }

    /// Where it begins.
    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// The most bytes that the server sent over one connection since this was last asked.
    pub fn bytes(&self) -> usize {
        self.bytes.swap(0, Ordering::SeqCst)
    }

    fn messages(&self) -> usize {
        self.messages.swap(0, Ordering::SeqCst)
    }

    pub fn set(&self, fault: Fault) {
        *self.fault.lock().expect("whole") = fault;
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
                if let Fault::Message(number, change) = &fault {
                    waiting.append(&mut chunk);
                    while let Some(end) = message_end(&waiting) {
                        let mut whole: Vec<u8> = waiting.drain(..end).collect();
                        if message == *number {
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

/// Where the first LDAP message ends (RFC 4511, 5.1), if all of it is there.
fn message_end(bytes: &[u8]) -> Option<usize> {
    let (header, length) = length(bytes.get(1..)?)?;
    (bytes.len() > header + length).then_some(1 + header + length)
}

/// Bytes of a BER length, and what it says.
fn length(bytes: &[u8]) -> Option<(usize, usize)> {
    let first = usize::from(*bytes.first()?);
    if first < 128 {
        return Some((1, first));
    }
    let long = bytes.get(1..=first - 128)?;
    Some((1 + long.len(), long.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))))
}

/// The place of the tag of a message's operation: after the header and the message's number.
fn operation(message: &[u8]) -> usize {
    let header = 1 + length(&message[1..]).expect("a whole message").0;
    header + 2 + usize::from(message[header + 1])
}

/// A server, a wire to it, and a source that is read over it.
struct Site {
    slapd: Slapd,
    wire: Wire,
    source: SourceConfig,
}

impl Site {
    async fn new(tls: bool, timeout: Duration) -> Self {
        let slapd = site(SlapdOptions { sessionlog: 100, ..SlapdOptions::default() });
        let wire = Wire::to(if tls { &slapd.ldaps_url } else { &slapd.ldap_url }).await;
        let url = wire.url(if tls { "ldaps" } else { "ldap" });
        let config = LdapConfig {
            allow_plaintext: true,
            page_size: 5,
            timeout,
            connect_timeout: timeout,
            ..ldap(&[&url], &slapd)
        };
        Self { source: toolforge(config), slapd, wire }
    }

    async fn read(&self, pass: &Pass, fault: Fault) -> SourceRead {
        self.wire.set(fault);
        let read = read_by(&self.source, pass).await;
        self.wire.set(Fault::None);
        read
    }

    /// What is kept after a read, and then some changes.
    async fn kept(&self) -> SyncCache {
        let memory = SyncCache::default();
        self.read(&Pass::Changes(memory.clone()), Fault::None).await;
        self.slapd.add_ldif(&(person_ldif(BASE_DN, "zoe", 2100) + &tool_ldif(BASE_DN, "new", 52600, &["zoe"])));
        for name in ["alice", "bob"] {
            self.slapd.delete(&person_dn(BASE_DN, name));
        }
        memory
    }

    /// The same as `memory` has now, which no read of another one changes.
    fn copy(&self, memory: &SyncCache) -> SyncCache {
        let copy = SyncCache::default();
        if let Some(kept) = memory.of(&self.source) {
            copy.keep(&self.source.name, kept);
        }
        copy
    }

    /// How many bytes such a read takes over a good wire; of a comparison, the longest of its connections.
    async fn length(&self, how: How, begun: &SyncCache, truth: &SourceRead) -> usize {
        self.wire.bytes();
        self.wire.messages();
        assert!(self.survives(how, begun, Fault::None, truth, "a good wire").await);
        self.wire.bytes()
    }

    /// Reads over a wire with `fault`, then over a good one. `Some`: whether the first read was complete.
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
            assert!(found.entries == truth.entries, "{how:?}, {label}: it says that it is complete");
        } else if !matches!(how, How::Once) {
            let same = memory.of(&self.source) == begun.of(&self.source);
            assert!(same, "{how:?}, {label}: what is kept is not what it was");
        }
        if !matches!(how, How::Once) {
            assert_same(&self.read(&Pass::Changes(memory), Fault::None).await, truth);
        }
        complete
    }
}

/// A connection is cut, silent or spoiled within a read of this kind.
#[derive(Debug, Clone, Copy)]
enum How {
    Once,
    Changes,
    Whole,
}

/// So many places of a length, with the first and the last ones.
fn places(length: usize, count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).map(|at| at * length / count).collect();
    places.extend([1, 2, length - 1]);
    places.sort_unstable();
    places.dedup();
    places
}

/// How many places are tried; `BURSAR_SOAK=1`: many more.
fn tries(count: usize) -> usize {
    if std::env::var_os("BURSAR_SOAK").is_some() { count * 20 } else { count }
}

/// The first read, with nothing kept, and one of changes.
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
async fn a_connection_that_is_cut_anywhere_is_never_complete() {
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
            // With its last bytes the server says goodbye, which nobody needs.
            assert!(complete <= 2, "{how:?} is complete {complete} times");
        }
    }
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_left_after_the_timeout() {
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
async fn a_wire_that_carries_single_bytes_changes_nothing() {
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
async fn any_other_byte_under_tls_is_noticed() {
    let site = Site::new(true, Duration::from_secs(5)).await;
    let ways = ways(&site).await;
    let truth = read(site.source.clone()).await;
    for (how, begun) in ways {
        let length = site.length(how, &begun, &truth).await;
        for at in places(length, tries(12)) {
            site.survives(how, &begun, Fault::Flip(at), &truth, &format!("byte {at} is another")).await;
        }
    }
}

/// What a broken or lying server may send instead of a message.
fn spoiled() -> Vec<(&'static str, Change)> {
    let at_operation = |change: fn(&mut Vec<u8>, usize)| {
        move |message: &mut Vec<u8>| {
            let at = operation(message);
            change(message, at);
        }
    };
    vec![
        ("no sequence", Arc::new(|message: &mut Vec<u8>| message[0] = 0x31)),
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
        ("an end instead", Arc::new(at_operation(|message, at| message[at] = 0x65))),
        ("an operation without content", Arc::new(at_operation(|message, at| message[at + 1] = 0))),
        ("an operation that is too long", Arc::new(at_operation(|message, at| message[at + 1] = 0x7f))),
        ("a result in other words", Arc::new(at_operation(|message, at| result(message, at, 51)))),
        ("a limit", Arc::new(at_operation(|message, at| result(message, at, 4)))),
        ("another failure", Arc::new(at_operation(|message, at| result(message, at, 80)))),
        ("broken controls", Arc::new(|message: &mut Vec<u8>| controls(message, 0x7f))),
        ("a control of nothing", Arc::new(|message: &mut Vec<u8>| controls(message, 0))),
    ]
}

/// A result (of a bind or a search) gets another code; everything else stays.
fn result(message: &mut [u8], at: usize, code: u8) {
    if matches!(message[at], 0x61 | 0x65) {
        let content = at + 1 + length(&message[at + 1..]).expect("a length").0;
        message[content + 2] = code;
    }
}

/// The length within the last value of the message's controls is another.
fn controls(message: &mut [u8], length_byte: u8) {
    let at = operation(message);
    let (header, content) = length(&message[at + 1..]).expect("a length");
    let controls = at + 1 + header + content;
    if message.get(controls) != Some(&0xa0) {
        return;
    }
    // [0] { SEQUENCE { OID, criticality?, value } }: the value is a sequence again, which says how long it is.
    let mut at = controls + 1 + length(&message[controls + 1..]).expect("a length").0;
    at += 1 + length(&message[at + 1..]).expect("a length").0;
    let (header, content) = length(&message[at + 1..]).expect("a length");
    at += 1 + header + content;
    if message.get(at) == Some(&0x01) {
        at += 3;
    }
    if message.get(at) == Some(&0x04) {
        at += 1 + length(&message[at + 1..]).expect("a length").0;
    }
    if message.get(at) == Some(&0x30) {
        message[at + 1] = length_byte;
    }
}

/// The read of this number, each of whose messages is spoiled in turn.
async fn spoil(nth: usize) {
    let site = Site::new(false, HASTY).await;
    let (how, begun) = ways(&site).await.into_iter().nth(nth).expect("there are four");
    let truth = read(site.source.clone()).await;
    site.length(how, &begun, &truth).await;
    let messages = site.wire.messages();
    for (what, change) in spoiled() {
        for number in [0, messages / 2, messages - 1] {
            let label = format!("message {number} of {messages} is {what}");
            site.survives(how, &begun, Fault::Message(number, Arc::clone(&change)), &truth, &label).await;
        }
    }
}

#[tokio::test]
async fn a_page_that_ends_without_an_answer_is_never_complete() {
    spoil(0).await;
}

#[tokio::test]
async fn a_first_refresh_that_ends_without_an_answer_is_never_complete() {
    spoil(1).await;
}

#[tokio::test]
async fn a_refresh_that_ends_without_an_answer_is_never_complete() {
    spoil(2).await;
}
