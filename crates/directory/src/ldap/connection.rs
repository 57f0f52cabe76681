//! A connection to an LDAP server: reached, TLS begun, bound. Nothing is ever written over one.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use bursar_core::errors::chain;
use futures::FutureExt as _;
use ldap3::{Ldap, LdapConnAsync, LdapConnSettings, LdapError, LdapResult, StdStream};
use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::entry::windows::bind_refusal;
use crate::source::{LdapConfig, Secret, ServerUrl};
use crate::tls::{TlsError, client_config};

/// A silent connection is probed after this long, and again at this interval: a pass lasts seconds, so a server that
/// lost power must not be waited for through the kernel's two hours.
const KEEPALIVE: Duration = Duration::from_secs(10);

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
    pub(super) fn ends_connection(&self) -> bool {
        !matches!(self, Self::Answer(_))
    }
}

/// One that is open; dropped, it ends.
pub(super) struct Connection {
    /// `host` or `host:port`.
    pub(super) server: String,
    /// To ask with; a clone asks beside it.
    pub(super) ldap: Ldap,
    driver: JoinHandle<Result<(), LdapError>>,
}

impl Connection {
    /// An operation only learns that the connection is gone; its driver knows why.
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

/// Connects to the first server of `config` that lets us in. `failures` says what was wrong with those before it, or with
/// all.
pub(super) async fn connect_first(config: &LdapConfig, source: &str, failures: &mut Vec<String>) -> Option<Connection> {
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
                failures.push(format!("{server}: {}", chain(&error)));
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
