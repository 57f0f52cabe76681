//! Opens a connection to an LDAP server: connect, begin TLS, bind. Connections are used only for reading.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bursar_core::errors::chain;
use bursar_core::snapshot::freshness::Marks;
use futures::FutureExt as _;
use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError, LdapResult, Scope, SearchResult, StdStream};
use rustix::net::sockopt;
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::raw;
use super::refusals::Refusals;
use crate::entry::raw::RawEntry;
use crate::entry::windows::bind_refusal;
use crate::source::{LdapConfig, Secret, ServerUrl};
use crate::tls::{TlsError, client_config};

/// The time after which a silent connection is probed, and the interval of the probes. The kernel's default of two
/// hours is too long to wait for a server that lost power, because a pass takes only seconds.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// An error while talking to a server.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The URL is `ldap://` without `starttls`. `SourceConfig::check` refuses such a URL earlier, too.
    #[error("the connection would send the password in plain text; set starttls or allow_plaintext")]
    Plaintext,
    /// RFC 4513, 5.1.2: many servers answer a bind with a name and without a password with success, and then treat the
    /// client as anonymous.
    #[error("bind_dn has no password; set password")]
    NoPassword,
    /// There is no usable issuer, or the client certificate of the source is unusable.
    #[error("cannot use TLS")]
    Tls(#[from] TlsError),
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    #[error("no connection within {0:?}")]
    ConnectTimeout(Duration),
    #[error("TLS failed")]
    Begin(#[source] LdapError),
    /// The server's certificate is from an issuer that is not in `ca`.
    #[error("its certificate is not from an issuer in ca (UnknownIssuer)")]
    Untrusted,
    #[error("bind as {name} refused: {why}")]
    BindRefused {
        /// The DN, or the kind of identity, of the bind.
        name: String,
        /// The result and the server's own text.
        why: String,
        /// Whether other servers would refuse the bind too, and count one more wrong password.
        for_good: bool,
    },
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection ended, or the answer is not LDAP.
    #[error("connection lost")]
    Lost(#[source] LdapError),
    #[error("connection lost: the server closed it")]
    Closed,
    /// The result of a search is not success.
    #[error("{0}")]
    Answer(String),
    /// The answer is not valid. ldap3 panics at some malformed messages.
    #[error("the server's answer could not be parsed")]
    Unparsable,
}

impl ReadError {
    /// Whether the connection cannot be used any further.
    pub(super) fn ends_connection(&self) -> bool {
        !matches!(self, Self::Answer(_))
    }
}

/// An open connection. It is closed when it is dropped.
pub(super) struct Connection {
    /// `host` or `host:port`.
    pub(super) server: String,
    /// Sends requests. Clones can be used at the same time.
    pub(super) ldap: Ldap,
    /// The replication state that the server showed.
    pub(super) marks: Marks,
    driver: JoinHandle<Result<(), LdapError>>,
}

impl Connection {
    /// Replaces `error` with its cause. An operation only learns that the connection ended; the driver task knows why.
    pub(super) async fn diagnose(&mut self, error: ReadError) -> ReadError {
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

/// Connects to the first of `servers`, from index `next` on, that accepts the bind account. The reasons why other
/// servers were skipped are added to `failures`.
pub(super) async fn connect_next(
    config: &LdapConfig,
    servers: &[ServerUrl],
    refusals: &Refusals,
    next: &mut usize,
    failures: &mut Vec<String>,
) -> Option<Connection> {
    while let Some(url) = servers.get(*next) {
        *next += 1;
        let server = url.to_string();
        if let Some(why) = refusals.standing(config, &server, now()) {
            // The same refusal by several servers is reported only once.
            if !failures.iter().any(|known| why.starts_with(known)) {
                failures.push(why);
            }
            continue;
        }
        let connecting = AssertUnwindSafe(connect(config, url)).catch_unwind();
        match connecting.await.unwrap_or(Err(ReadError::Unparsable)) {
            Ok(connection) => {
                refusals.accepted(config, &server);
                return Some(connection);
            }
            Err(error) => {
                let why = format!("{server}: {}", chain(&error));
                let for_good = matches!(error, ReadError::BindRefused { for_good: true, .. });
                if for_good {
                    refusals.refused(config, &server, &why, now());
                }
                failures.push(why);
            }
        }
    }
    None
}

#[expect(clippy::disallowed_methods, reason = "when to bind again is not a decision about the directory")]
fn now() -> Instant {
    Instant::now()
}

/// Connects, begins TLS and binds.
async fn connect(config: &LdapConfig, url: &ServerUrl) -> Result<Connection, ReadError> {
    if !url.is_private() && !config.starttls && !config.allow_plaintext {
        return Err(ReadError::Plaintext);
    }
    let is_local = url.socket.is_some();
    let mut settings = LdapConnSettings::new().set_starttls(!url.is_private() && config.starttls);
    if url.tls || (config.starttls && !is_local) {
        settings = settings.set_config(client_config(config.ca_pem.as_deref(), config.identity.as_ref())?);
    }
    let opening = async {
        if let Some(path) = &url.socket {
            let socket = UnixStream::connect(path).await.and_then(UnixStream::into_std).map_err(ReadError::Connect)?;
            let settings = settings.set_std_stream(StdStream::Unix(socket));
            return LdapConnAsync::with_settings(settings, "ldapi:///").await.map_err(begin_error);
        }
        let socket = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(ReadError::Connect)?;
        let socket = keep_alive(socket, config.timeout).map_err(ReadError::Connect)?;
        let scheme = if url.tls { "ldaps" } else { "ldap" };
        // TLS checks the certificate against the host in this URL. An IPv6 address needs brackets to be parsed.
        let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        LdapConnAsync::with_settings(settings.set_std_stream(StdStream::Tcp(socket)), &format!("{scheme}://{host}"))
            .await
            .map_err(begin_error)
    };
    let (connection, ldap) = timeout(config.connect_timeout, opening)
        .await
        .map_err(|_| ReadError::ConnectTimeout(config.connect_timeout))??;
    let driver = tokio::spawn(connection.drive());
    let mut connection = Connection { server: url.to_string(), ldap, marks: Marks::default(), driver };
    match bind(&mut connection.ldap, config, is_local).await {
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

/// Binds with the client certificate of the TLS connection, with a password, as the user of this process over a local
/// socket, or not at all.
async fn bind(ldap: &mut Ldap, config: &LdapConfig, is_local: bool) -> Result<(), ReadError> {
    let limit = config.timeout;
    let late = |_| ReadError::Timeout(limit);
    let (name, answer) = if config.identity.is_some() {
        ("client_certificate", timeout(limit, ldap.sasl_external_bind()).await.map_err(late)?)
    } else if let Some(name) = &config.bind_dn {
        let password = config.password.as_ref().map(Secret::reveal).filter(|password| !password.is_empty());
        let password = password.ok_or(ReadError::NoPassword)?;
        (name.as_str(), timeout(limit, ldap.simple_bind(name, password)).await.map_err(late)?)
    } else if is_local {
        ("the user of this process", timeout(limit, ldap.sasl_external_bind()).await.map_err(late)?)
    } else {
        return Ok(());
    };
    let answer = answer.map_err(ReadError::Lost)?;
    if answer.rc == 0 {
        return Ok(());
    }
    // 48 and 49 (RFC 4511, A.2): the name or the password is wrong. Trying them at the next server risks a lockout.
    let for_good = matches!(answer.rc, 48 | 49);
    let why = match bind_refusal(&answer.text) {
        Some(why) => format!("{why}: {}", meaning(&answer)),
        None => meaning(&answer),
    };
    Err(ReadError::BindRefused { name: name.to_owned(), why, for_good })
}

/// Describes a result code in words (RFC 4511, A.1).
#[must_use]
pub fn words(code: u32) -> &'static str {
    match code {
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
    }
}

/// Describes a result in words, with its code and the server's text.
pub(super) fn meaning(result: &LdapResult) -> String {
    let words = words(result.rc);
    let referral = result.refs.first().map(|to| format!(" to {to}")).unwrap_or_default();
    let text = result.text.trim_end_matches('\0').trim();
    let text = if text.is_empty() { String::new() } else { format!(": {text}") };
    format!("{words}{referral} ({}){text}", result.rc)
}

/// Searches without pages.
pub(super) async fn search(
    ldap: &mut Ldap,
    base: &str,
    scope: Scope,
    filter: &str,
    attributes: &[&str],
    limit: Duration,
) -> Result<Vec<RawEntry>, ReadError> {
    let search = ldap.search(base, scope, filter, attributes.to_vec());
    let SearchResult(found, answer) =
        timeout(limit, search).await.map_err(|_| ReadError::Timeout(limit))?.map_err(ReadError::Lost)?;
    if answer.rc != 0 {
        return Err(ReadError::Answer(meaning(&answer)));
    }
    let entries = found.into_iter().filter(|item| !item.is_ref() && !item.is_intermediate());
    entries.map(|item| raw(item.0, |_| ()).ok_or(ReadError::Unparsable)).collect()
}
