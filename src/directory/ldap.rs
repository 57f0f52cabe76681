//! Entries from an LDAP server: one connection for a pass, each tree in pages.
//!
//! Every failure becomes a reason in [`RawRead::problems`] that names the server; what was read before it is given all
//! the same. Nothing here decides what an entry is, and nothing is ever written to the directory.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt as _;
use ldap3::asn1::StructureTag;
use ldap3::controls::{Control, ControlType, PagedResults};
use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError, LdapResult, Scope, StdStream, parse_refs};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::assemble::{KINDS, RawRead, RawTree};
use super::range::{self, Part};
use super::raw::RawEntry;
use super::source::{LdapConfig, Secret, ServerUrl, SourceConfig, Tree};
use super::tls::{TlsError, client_config};
use super::windows::{bind_refusal, is_of_no_people};
use crate::identity::AccountKind;

/// A silent connection is probed after this long, and again at this interval: a pass lasts seconds, so a server that
/// lost power must not be waited for through the kernel's two hours.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// How long to let a server go on before its next entries are taken. It sends each by itself, and waking up for every
/// one of them takes longer than reading it.
const COALESCE: Duration = Duration::from_micros(250);
/// Pages without entries in a row before the server is said to never end. Filters of access rules make a few.
const EMPTY_PAGES: u32 = 100;

/// What went wrong while talking to a server.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The configuration's URL; `SourceConfig::check` finds it first.
    #[error("{0} is not a usable URL")]
    Url(String),
    /// `ldap://` as it is; `SourceConfig::check` finds this first, too.
    #[error("would send the password in the clear: set starttls, or allow_plaintext")]
    Plaintext,
    /// RFC 4513, 5.1.2: many servers answer a name without a password with success, and then show what strangers see.
    #[error("there is no password for bind_dn")]
    NoPassword,
    /// No usable issuer.
    #[error("cannot use TLS")]
    Tls(#[from] TlsError),
    /// TCP.
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    /// TCP, `StartTLS` or the handshake took too long.
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    /// `StartTLS` or the handshake failed.
    #[error("TLS failed")]
    Begin(#[source] LdapError),
    /// The server's certificate comes from somebody else.
    #[error("its certificate is not from an issuer in ca (UnknownIssuer)")]
    Untrusted,
    /// The bind was answered with a refusal.
    #[error("bind as {name} refused: {why}")]
    BindRefused {
        /// Whom we said we are.
        name: String,
        /// The server's words.
        why: String,
        /// Another server would say the same, and count it as one more wrong password.
        for_good: bool,
    },
    /// The server stopped answering.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection ended, or what came was no LDAP.
    #[error("connection lost")]
    Lost(#[source] LdapError),
    /// The server ended the connection, or died.
    #[error("connection lost: the server closed it")]
    Closed,
    /// A search ended with something else than success.
    #[error("{0}")]
    Answer(String),
    /// What came is no answer. ldap3 panics at some of it.
    #[error("the server's answer could not be parsed")]
    Unparsable,
}

impl ReadError {
    /// Whether nothing more can be asked on this connection.
    fn ends_connection(&self) -> bool {
        !matches!(self, Self::Answer(_))
    }
}

struct Connection {
    server: String,
    ldap: Ldap,
    driver: JoinHandle<Result<(), LdapError>>,
}

impl Connection {
    /// An operation only learns that the connection is gone; its driver knows why.
    async fn diagnose(&mut self, error: ReadError) -> ReadError {
        if !matches!(error, ReadError::Lost(_)) {
            return error;
        }
        match timeout(Duration::from_secs(1), &mut self.driver).await {
            Ok(Ok(Ok(()))) => ReadError::Closed,
            Ok(Ok(Err(cause))) => ReadError::Lost(cause),
            Ok(Err(_)) => ReadError::Unparsable,
            Err(_) => error,
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Reads all trees of `source` from the first server that lets us in.
pub async fn read(config: &LdapConfig, source: &SourceConfig) -> RawRead {
    let mut raw = RawRead::default();
    for kind in KINDS {
        if source.tree(kind).is_some() {
            raw.trees.insert(kind, RawTree::default());
        }
    }
    let mut failures = Vec::new();
    let Some(mut connection) = connect_first(config, &source.name, &mut failures).await else {
        raw.problems = failures;
        return raw;
    };
    raw.server = Some(connection.server.clone());
    for (kind, into) in &mut raw.trees {
        let Some(tree) = source.tree(*kind) else { continue };
        let reading = read_tree(&mut connection.ldap, config, source, *kind, &mut into.entries);
        let outcome = AssertUnwindSafe(reading).catch_unwind().await.unwrap_or(Err(ReadError::Unparsable));
        let Err(error) = outcome else {
            into.whole = true;
            continue;
        };
        let error = connection.diagnose(error).await;
        let (server, read) = (&connection.server, into.entries.len());
        let why = super::chain(&error);
        raw.problems.push(format!("{server}: {kind}s beneath {}: {why} (after {read} entries)", tree.base));
        if error.ends_connection() {
            return raw;
        }
    }
    // Politeness only: what was asked for is here.
    let _ = timeout(Duration::from_secs(1), connection.ldap.unbind()).await;
    raw
}

async fn connect_first(config: &LdapConfig, source: &str, failures: &mut Vec<String>) -> Option<Connection> {
    for text in &config.urls {
        let (server, outcome) = match ServerUrl::parse(text) {
            Some(url) => {
                let connecting = AssertUnwindSafe(connect(config, &url)).catch_unwind();
                (url.to_string(), connecting.await.unwrap_or(Err(ReadError::Unparsable)))
            }
            None => (text.clone(), Err(ReadError::Url(text.clone()))),
        };
        match outcome {
            Ok(connection) => {
                for failure in failures.drain(..) {
                    tracing::warn!(source, failure, "directory server passed over");
                }
                return Some(connection);
            }
            Err(error) => {
                failures.push(format!("{server}: {}", super::chain(&error)));
                if matches!(error, ReadError::BindRefused { for_good: true, .. }) {
                    return None;
                }
            }
        }
    }
    None
}

/// Connects, begins TLS and binds.
async fn connect(config: &LdapConfig, url: &ServerUrl) -> Result<Connection, ReadError> {
    if !url.tls && !config.starttls && !config.allow_plaintext {
        return Err(ReadError::Plaintext);
    }
    let mut settings = LdapConnSettings::new().set_starttls(!url.tls && config.starttls);
    if url.tls || config.starttls {
        settings = settings.set_config(client_config(config.ca_pem.as_deref(), config.identity.as_ref())?);
    }
    let opening = async {
        let socket = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(ReadError::Connect)?;
        let socket = keep_alive(socket, config.timeout).map_err(ReadError::Connect)?;
        let scheme = if url.tls { "ldaps" } else { "ldap" };
        // The host of this URL is what the certificate must be for; a bare IPv6 address would not be read as one.
        let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        LdapConnAsync::with_settings(settings.set_std_stream(StdStream::Tcp(socket)), &format!("{scheme}://{host}"))
            .await
            .map_err(begin_error)
    };
    let (connection, ldap) = timeout(config.connect_timeout, opening)
        .await
        .map_err(|_| ReadError::ConnectTimeout(config.connect_timeout))??;
    let mut connection = Connection { server: url.to_string(), ldap, driver: tokio::spawn(connection.drive()) };
    match bind(&mut connection.ldap, config).await {
        Ok(()) => Ok(connection),
        Err(error) => Err(connection.diagnose(error).await),
    }
}

fn begin_error(error: LdapError) -> ReadError {
    let issuer = |error: &rustls::Error| {
        matches!(error, rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer))
    };
    match &error {
        LdapError::Io { source } => match source.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(inner) if issuer(inner) => ReadError::Untrusted,
            _ => ReadError::Begin(error),
        },
        _ => ReadError::Begin(error),
    }
}

fn keep_alive(socket: TcpStream, limit: Duration) -> std::io::Result<std::net::TcpStream> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE)?;
    sockopt::set_tcp_user_timeout(&socket, u32::try_from(limit.as_millis()).unwrap_or(u32::MAX))?;
    socket.into_std()
}

/// Says who we are: by the certificate that TLS showed, by a password, or not at all.
async fn bind(ldap: &mut Ldap, config: &LdapConfig) -> Result<(), ReadError> {
    let limit = config.timeout;
    let late = |_| ReadError::Timeout(limit);
    let (name, answer) = if config.identity.is_some() {
        ("client_certificate", timeout(limit, ldap.sasl_external_bind()).await.map_err(late)?)
    } else if let Some(name) = &config.bind_dn {
        let password = config.password.as_ref().map(Secret::reveal).filter(|password| !password.is_empty());
        let password = password.ok_or(ReadError::NoPassword)?;
        (name.as_str(), timeout(limit, ldap.simple_bind(name, password)).await.map_err(late)?)
    } else {
        return Ok(());
    };
    let answer = answer.map_err(ReadError::Lost)?;
    if answer.rc == 0 {
        return Ok(());
    }
    // 48, 49 (RFC 4511, A.2): the name or the password. Asking the next server with them risks a lockout.
    let for_good = matches!(answer.rc, 48 | 49);
    let why = match bind_refusal(&answer.text) {
        Some(why) => format!("{why}: {}", meaning(&answer)),
        None => meaning(&answer),
    };
    Err(ReadError::BindRefused { name: name.to_owned(), why, for_good })
}

/// Reads the tree of `kind` page by page (RFC 2696), into `entries` as they come, and what is missing of long attributes
/// after that.
///
/// The pages are asked for here and not by ldap3's adapter: that one looks only at the last page's result, and each
/// must have answered success, with no referral.
async fn read_tree(
    ldap: &mut Ldap,
    config: &LdapConfig,
    source: &SourceConfig,
    kind: AccountKind,
    entries: &mut Vec<RawEntry>,
) -> Result<(), ReadError> {
    let Some(tree) = source.tree(kind) else { return Ok(()) };
    let attributes = asked(config, source, kind);
    let mut pages = Pages { entries, parts: Vec::new(), referrals: Vec::new() };
    let size = i32::try_from(config.page_size).unwrap_or(i32::MAX);
    let mut cookie = Vec::new();
    let mut empty = 0;
    loop {
        let before = pages.entries.len();
        let first = cookie.is_empty();
        let page = read_page(ldap, PagedResults { size, cookie }, tree, &attributes, &mut pages);
        let answer = timeout(config.timeout, page).await.map_err(|_| ReadError::Timeout(config.timeout))??;
        pages.referrals.extend(answer.refs.iter().cloned());
        if answer.rc != 0 {
            return Err(ReadError::Answer(meaning(&answer)));
        }
        let next = answer.ctrls.iter().find_map(|Control(kind, raw)| {
            matches!(kind, Some(ControlType::PagedResults)).then(|| raw.parse::<PagedResults>().cookie)
        });
        match next {
            Some(next) if !next.is_empty() => cookie = next,
            None if !first => return Err(ReadError::Answer("paging stopped without an end".to_owned())),
            _ => break,
        }
        empty = if pages.entries.len() == before { empty + 1 } else { 0 };
        if empty > EMPTY_PAGES {
            return Err(ReadError::Answer(format!("{EMPTY_PAGES} empty pages in a row")));
        }
    }
    for (at, part) in &pages.parts {
        range::complete(ldap, &mut pages.entries[*at], part, config.members_at_once, config.timeout).await?;
    }
    let missed = |referral: &&String| !(source.attributes.windows && is_of_no_people(referral));
    match pages.referrals.iter().find(missed) {
        None => Ok(()),
        Some(referral) => Err(ReadError::Answer(format!("referral to {referral} was not followed"))),
    }
}

/// The attributes to ask for; of members only the first part where the configuration says how many at once.
fn asked(config: &LdapConfig, source: &SourceConfig, kind: AccountKind) -> Vec<String> {
    let is_long = |name: &String| source.attributes.member_dns.iter().any(|long| long.eq_ignore_ascii_case(name));
    let part = |name: String| match config.members_at_once {
        Some(size) if is_long(&name) => range::ask(&name, 0, Some(size)),
        _ => name,
    };
    source.attributes.wanted(kind).into_iter().map(part).collect()
}

/// What the pages of one tree bring.
struct Pages<'a> {
    entries: &'a mut Vec<RawEntry>,
    /// Attributes that come in parts, after the place of their entry.
    parts: Vec<(usize, Part)>,
    referrals: Vec<String>,
}

async fn read_page(
    ldap: &mut Ldap,
    page: PagedResults,
    tree: &Tree,
    attributes: &[String],
    into: &mut Pages<'_>,
) -> Result<LdapResult, ReadError> {
    ldap.with_controls(page);
    let mut stream =
        ldap.streaming_search(&tree.base, Scope::Subtree, &tree.filter, attributes).await.map_err(ReadError::Lost)?;
    loop {
        let item = if let Some(item) = stream.next().now_or_never() {
            item
        } else {
            // The whole thread, which is the read's own: what comes meanwhile waits in the socket.
            std::thread::sleep(COALESCE);
            stream.next().await
        };
        let Some(item) = item.map_err(ReadError::Lost)? else { break };
        if item.is_ref() {
            into.referrals.extend(parse_refs(item.0));
        } else if !item.is_intermediate() {
            let at = into.entries.len();
            into.entries.push(raw(item.0, |part| into.parts.push((at, part))).ok_or(ReadError::Unparsable)?);
        }
    }
    Ok(stream.finish().await)
}

/// An entry as it came (RFC 4511, 4.5.2). Not by ldap3's `SearchEntry`, which copies every value to sort the attributes
/// by whether all of theirs are text. `parts` is told of attributes that come in parts.
pub(super) fn raw(entry: StructureTag, mut parts: impl FnMut(Part)) -> Option<RawEntry> {
    let mut fields = entry.expect_constructed()?.into_iter();
    let dn = String::from_utf8(fields.next()?.expect_primitive()?).ok()?;
    let mut raw = RawEntry::new(dn);
    for attribute in fields.next()?.expect_constructed()? {
        let mut fields = attribute.expect_constructed()?.into_iter();
        let name = fields.next()?.expect_primitive()?;
        let part = Part::parse(&name);
        let name = part.as_ref().map_or(name.as_slice(), |part| part.attribute.as_bytes());
        for value in fields.next()?.expect_constructed()? {
            raw.add(name, &value.expect_primitive()?);
        }
        part.into_iter().for_each(&mut parts);
    }
    Some(raw)
}

/// A result in words, with its code and what the server added (RFC 4511, A.1).
pub(super) fn meaning(result: &LdapResult) -> String {
    let words = match result.rc {
        3 => "time limit of the server exceeded",
        4 => "size limit of the server exceeded",
        8 => "stronger authentication required",
        10 => "referral",
        11 => "administrative limit of the server exceeded",
        12 => "a critical extension is not available",
        32 => "no such base",
        34 => "the base is not a DN",
        48 => "inappropriate authentication",
        49 => "wrong name or password",
        50 => "access denied",
        51 => "server busy",
        52 => "server unavailable",
        53 => "server unwilling",
        _ => "refused",
    };
    let referral = result.refs.first().map(|to| format!(" to {to}")).unwrap_or_default();
    let text = result.text.trim_end_matches('\0').trim();
    let text = if text.is_empty() { String::new() } else { format!(": {text}") };
    format!("{words}{referral} ({}){text}", result.rc)
}
