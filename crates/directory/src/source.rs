//! The configuration of a source as plain values: where it is, how it is reached, which of its trees are read, and how
//! its attributes are named. `settings.rs` builds these values from a [`Preset`] and from the settings of the source.
//! Nothing here connects to a server or reads a file.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bursar_core::identity::AccountKind;
use bursar_core::snapshot::Way;
use zeroize::Zeroizing;

use crate::entry::filter::Filter;
pub use crate::entry::mark::{DisabledMark, MarkTest};
pub use crate::entry::numbers::{Ids, SidMapping};
pub use crate::entry::preset::{AttributeNames, PRESETS, Preset};
pub use crate::keycloak::KeycloakConfig;

/// Entries that are requested in one page. Servers commonly allow 1,000 to 2,000 (Active Directory: 1,000). Smaller
/// pages cost round trips (a page size of 100 takes twice the time of 1,000), and larger pages only need more memory.
pub const PAGE_SIZE: u32 = 1000;
/// How long TCP, `StartTLS` and the TLS handshake together may take before the next URL is tried.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a bind or one page may take. A busy server sends a page of 1,000 entries in well under a second.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a whole read may take. The largest directories take a minute or two, and a realm of 50,000 people about ten
/// minutes.
pub const DEADLINE: Duration = Duration::from_mins(30);

/// A directory to read. Two configurations are equal if they are read in the same way, including the password: after a
/// reload, a running source restarts if its configuration differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// The name that the ledger records with every account.
    pub name: String,
    /// Where the entries come from.
    pub kind: SourceKind,
    /// Entries that a complete read must contain.
    pub sentinels: Vec<Sentinel>,
    /// The tree of the tools; `None` if this source has none.
    pub tools: Option<Tree>,
    /// The tree of the people; `None` if this source has none.
    pub users: Option<Tree>,
    /// The tree of the groups; `None` if this source has none.
    pub groups: Option<Tree>,
    /// How the attributes are named.
    pub attributes: AttributeNames,
    /// How the SIDs of an Active Directory are mapped to numbers.
    pub sids: SidMapping,
}

/// An entry that a complete read must contain, with the attributes that it must show. Attributes that disable an
/// account are rare, so without a sentinel nothing proves that the server does not hide them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinel {
    pub dn: String,
    /// Attributes that the entry must show.
    pub attributes: Vec<String>,
}

impl From<&str> for Sentinel {
    fn from(dn: &str) -> Self {
        Self { dn: dn.to_owned(), attributes: Vec::new() }
    }
}

/// Where entries come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// An LDAP server, or several servers with the same content.
    Ldap(LdapConfig),
    Ldif(LdifConfig),
    /// A realm of Keycloak.
    Keycloak(KeycloakConfig),
}

/// How an LDAP server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdapConfig {
    /// `ldaps://host[:port]`, `ldap://host[:port]` or `ldapi://%2Fpath`, tried in this order. A whole pass uses one
    /// server. If a host begins with `_`, its SRV records are looked up.
    pub urls: Vec<String>,
    /// Whether TLS begins on `ldap://` before any other request.
    pub starttls: bool,
    /// Whether the password and the answers may cross the network in plain text.
    pub allow_plaintext: bool,
    /// A PEM bundle with the only issuers that are trusted; `None` for the system's.
    pub ca_pem: Option<String>,
    /// The DN to bind as; `None` for an anonymous bind.
    pub bind_dn: Option<String>,
    /// The password of `bind_dn`.
    pub password: Option<Secret>,
    /// The client certificate in TLS. If it is set, the bind is SASL EXTERNAL (RFC 4513, 5.2.3).
    pub identity: Option<ClientIdentity>,
    /// The number of values of an attribute to request at once; `None` for as many as the server sends (Active
    /// Directory: 1,500). Needed only if the server cannot send a whole group within `timeout`.
    pub members_at_once: Option<u32>,
    /// Entries in a page.
    pub page_size: u32,
    /// The limit of TCP, `StartTLS` and the TLS handshake together.
    pub connect_timeout: Duration,
    /// The limit of a bind, and of each page.
    pub timeout: Duration,
    /// The limit of a whole read.
    pub deadline: Duration,
    /// The nameserver that is asked for SRV records; `None` for the system's nameservers.
    pub dns: Option<SocketAddr>,
    /// The preferred way to read. A server that does not support it is read in full.
    pub way: Way,
}

impl LdapConfig {
    /// Returns an anonymous connection to `urls` with the defaults.
    #[must_use]
    pub fn new(urls: Vec<String>) -> Self {
        Self {
            urls,
            starttls: false,
            allow_plaintext: false,
            ca_pem: None,
            bind_dn: None,
            password: None,
            identity: None,
            members_at_once: None,
            page_size: PAGE_SIZE,
            connect_timeout: CONNECT_TIMEOUT,
            timeout: TIMEOUT,
            deadline: DEADLINE,
            dns: None,
            way: Way::Incremental,
        }
    }
}

/// A client certificate, with its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// PEM: the certificate, and those between it and the issuer.
    pub certificate_pem: String,
    /// PEM: the key of the certificate.
    pub key: Option<Secret>,
}

/// Which files are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdifConfig {
    /// Files, and folders whose `*.ldif` files are read in the order of their names.
    pub paths: Vec<PathBuf>,
}

/// A password. It is erased from memory when it is dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes ownership of `text`, so that it is erased too.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Returns the plain text, for the function that sends it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A part of the directory that holds entries of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Entries are searched beneath this DN, at any depth.
    pub base: String,
    /// A filter that selects the entries (RFC 4515).
    pub filter: String,
    /// The prefix that names have in the directory and not in Bursar.
    pub strip_prefix: Option<String>,
}

/// A mistake in a `[[source]]`, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct SourceError {
    /// The key within the source.
    pub key: &'static str,
    pub why: String,
}

impl SourceError {
    pub(super) fn new(key: &'static str, why: String) -> Self {
        Self { key, why }
    }
}

impl SourceConfig {
    /// Returns the tree that holds entries of `kind`.
    #[must_use]
    pub const fn tree(&self, kind: AccountKind) -> Option<&Tree> {
        match kind {
            AccountKind::Tool => self.tools.as_ref(),
            AccountKind::User => self.users.as_ref(),
            AccountKind::Group => self.groups.as_ref(),
        }
    }

    /// Returns the attributes that a search for entries of `kind` requests, including those of sentinels.
    #[must_use]
    pub fn wanted(&self, kind: AccountKind) -> Vec<String> {
        let mut wanted = self.attributes.wanted(kind);
        for attribute in self.sentinels.iter().flat_map(|sentinel| &sentinel.attributes) {
            if !wanted.iter().any(|known| known.eq_ignore_ascii_case(attribute)) {
                wanted.push(attribute.clone());
            }
        }
        wanted
    }

    /// Returns the key of the source's only secret, and the place to store the secret; `None` if the source needs none.
    pub fn secret(&mut self) -> Option<(&'static str, &mut Option<Secret>)> {
        match &mut self.kind {
            SourceKind::Ldap(LdapConfig { identity: Some(identity), .. }) => Some(("client_key", &mut identity.key)),
            SourceKind::Ldap(ldap) => Some(("password", &mut ldap.password)),
            SourceKind::Keycloak(realm) => Some(("client_secret", &mut realm.client_secret)),
            SourceKind::Ldif(_) => None,
        }
    }

    /// Returns the shortest time between two reads of the source; zero if it is read in each cycle.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        match &self.kind {
            SourceKind::Keycloak(realm) => realm.interval,
            SourceKind::Ldap(_) | SourceKind::Ldif(_) => Duration::ZERO,
        }
    }

    /// Returns how long a whole read of the source may take.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        match &self.kind {
            SourceKind::Ldap(ldap) => ldap.deadline,
            SourceKind::Keycloak(_) | SourceKind::Ldif(_) => DEADLINE,
        }
    }

    /// Whether servers can be asked about a single account.
    #[must_use]
    pub const fn has_servers(&self) -> bool {
        match &self.kind {
            SourceKind::Ldap(_) | SourceKind::Keycloak(_) => true,
            SourceKind::Ldif(_) => false,
        }
    }

    /// Whether the DN of an entry without an id is its id.
    pub(crate) const fn id_from_dn(&self) -> bool {
        match &self.kind {
            SourceKind::Ldif(_) => true,
            SourceKind::Ldap(_) | SourceKind::Keycloak(_) => false,
        }
    }

    /// Whether the server is asked to push each change at once.
    #[must_use]
    pub const fn persists(&self) -> bool {
        matches!(&self.kind, SourceKind::Ldap(LdapConfig { way: Way::Persist, .. }))
    }

    /// Whether a server can report changes of this source. A server cannot if `memberOf` is read: servers write
    /// `memberOf` into people's entries without reporting a change of these entries.
    #[must_use]
    pub const fn tells_changes(&self) -> bool {
        matches!(self.kind, SourceKind::Ldap(_)) && !self.attributes.windows && self.attributes.member_of.is_empty()
    }

    /// Checks that the server shows the members of groups. A global catalogue shows the members of universal groups
    /// only. A server without range retrieval (everything but Active Directory) would show all groups without members.
    /// In both cases, the groups would look empty.
    fn check_members(&self, ldap: &LdapConfig) -> Result<(), SourceError> {
        if !self.attributes.windows && ldap.members_at_once.is_some() {
            return Err(SourceError::new("members_at_once", "only Active Directory gives members in parts".to_owned()));
        }
        let is_catalogue = |text: &&String| ServerUrl::parse(text).is_some_and(|url| url.is_catalogue());
        match ldap.urls.iter().find(is_catalogue) {
            Some(text) if self.attributes.windows => {
                let why = format!(
                    "{text:?} is a global catalogue, which has no members and uids; use ldaps://HOST, port 636"
                );
                Err(SourceError::new("urls", why))
            }
            _ => Ok(()),
        }
    }

    fn check_way(&self, ldap: &LdapConfig) -> Result<(), SourceError> {
        let why = if self.attributes.windows {
            "Bursar asks Active Directory for its changes in each cycle, and keeps no connection open; remove persist"
        } else {
            "servers do not report changes of memberOf, so the source must be read in full; remove persist or member_of"
        };
        if ldap.way == Way::Persist && !self.tells_changes() {
            return Err(SourceError::new("persist", why.to_owned()));
        }
        Ok(())
    }

    /// Checks everything that can be checked without reaching a server or reading a file.
    pub fn check(&self) -> Result<(), SourceError> {
        match &self.kind {
            SourceKind::Ldap(ldap) => {
                check_ldap(ldap)?;
                self.check_way(ldap)?;
                self.check_members(ldap)?;
            }
            SourceKind::Ldif(ldif) if ldif.paths.is_empty() => {
                return Err(SourceError::new("paths", "empty; name at least one LDIF file or folder".to_owned()));
            }
            SourceKind::Ldif(_) => {}
            SourceKind::Keycloak(realm) => realm.check()?,
        }
        if let Some(Sentinel { dn, .. }) = self.sentinels.iter().find(|sentinel| !is_dn(&sentinel.dn)) {
            let why = format!("{dn:?} is not a DN; for example uid=novaadmin,ou=people,dc=example,dc=org");
            return Err(SourceError::new("sentinels", why));
        }
        if self.sids.range.slices() == 0 {
            let why = "range_min, range_max and range_size leave no slice; SSSD's are 200000, 2000200000 and 200000";
            return Err(SourceError::new("idmap", why.to_owned()));
        }
        let trees = [("tools", &self.tools), ("users", &self.users), ("groups", &self.groups)];
        if trees.iter().all(|(_, tree)| tree.is_none()) {
            return Err(SourceError::new("tools", "none of tools, users, groups has a base".to_owned()));
        }
        for (key, tree) in trees {
            let Some(tree) = tree else { continue };
            let valid = match self.kind {
                SourceKind::Ldap(_) => ldap3::parse_filter(&tree.filter).is_ok(),
                SourceKind::Ldif(_) => Filter::parse(&tree.filter).is_some(),
                SourceKind::Keycloak(_) => true,
            };
            if !valid {
                let why = format!("filter {:?} is not a filter; for example (objectClass=posixAccount)", tree.filter);
                return Err(SourceError::new(key, why));
            }
        }
        Ok(())
    }
}

/// Whether `text` begins like a DN, with an attribute and `=`.
fn is_dn(text: &str) -> bool {
    let attribute = text.split_once('=').map(|(attribute, _)| attribute.trim());
    attribute.is_some_and(|attribute| {
        let mut bytes = attribute.bytes();
        !attribute.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
    })
}

/// What an error says of a URL for which [`has_login`] returns `true`. The URL is not quoted, because it may hold a
/// password.
pub const LOGIN_IN_URL: &str = "a URL contains a user or a password; remove them from it";

/// Whether a URL names a user, and perhaps a password, before its host (RFC 3986, `userinfo`).
#[must_use]
pub fn has_login(url: &str) -> bool {
    let authority = url.split_once("://").and_then(|(_, rest)| rest.split(['/', '?', '#']).next());
    authority.is_some_and(|authority| authority.contains('@'))
}

fn check_ldap(ldap: &LdapConfig) -> Result<(), SourceError> {
    if ldap.urls.is_empty() {
        return Err(SourceError::new("urls", "names no server; for example ldaps://ldap.example.org".to_owned()));
    }
    for text in &ldap.urls {
        if has_login(text) {
            return Err(SourceError::new("urls", LOGIN_IN_URL.to_owned()));
        }
        let Some(url) = ServerUrl::parse(text) else {
            let why = format!(
                "{text:?} is not ldaps://host or ldap://host, with :port or without, nor ldapi://%2Fpath%2Fsocket"
            );
            return Err(SourceError::new("urls", why));
        };
        if !url.is_private() && !ldap.starttls && !ldap.allow_plaintext {
            let why = format!("{text:?} needs starttls = true, or allow_plaintext = true");
            return Err(SourceError::new("urls", why));
        }
    }
    if ldap.page_size == 0 || i32::try_from(ldap.page_size).is_err() {
        return Err(SourceError::new("page_size", format!("{} is not in 1..2147483647", ldap.page_size)));
    }
    if ldap.members_at_once == Some(0) {
        return Err(SourceError::new("members_at_once", "must be at least 1; for example 500".to_owned()));
    }
    if let Some(identity) = &ldap.identity {
        if ldap.bind_dn.is_some() {
            let why =
                "the certificate says who Bursar is, and the server maps it to an entry; remove bind_dn".to_owned();
            return Err(SourceError::new("bind_dn", why));
        }
        if identity.key.is_none() {
            return Err(SourceError::new("client_key", "client_certificate needs its key".to_owned()));
        }
        let plain = |text: &String| {
            ServerUrl::parse(text).is_some_and(|url| !url.tls && (url.socket.is_some() || !ldap.starttls))
        };
        if ldap.urls.iter().any(plain) {
            return Err(SourceError::new(
                "client_certificate",
                "needs TLS: use ldaps://, or ldap:// with starttls = true".to_owned(),
            ));
        }
    }
    if ldap.bind_dn.is_some() && ldap.password.as_ref().is_none_or(|password| password.reveal().is_empty()) {
        // RFC 4513, 5.1.2: a bind with a name and no password is an "unauthenticated bind", which servers answer with
        // success.
        return Err(SourceError::new("password", "bind_dn needs a password that is not empty".to_owned()));
    }
    Ok(())
}

/// The parts of an LDAP URL that Bursar uses. RFC 4516 has more; base, filter and attributes have their own settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// Whether the scheme is `ldaps`.
    pub tls: bool,
    /// A name or an address; an IPv6 address has no brackets.
    pub host: String,
    /// 636 (`ldaps`) or 389 if the URL has no port.
    pub port: u16,
    /// `ldapi`: the path of a local socket. The URL then has no host.
    pub socket: Option<PathBuf>,
}

impl ServerUrl {
    /// Parses `ldap[s]://host[:port][/]`, or `ldapi://%2Fpath` with the slashes of the path escaped (as OpenLDAP writes
    /// it). `ldapi:///` is OpenLDAP's default socket. Returns `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        if scheme.eq_ignore_ascii_case("ldapi") {
            let path = unescaped(rest.strip_suffix('/').unwrap_or(rest))?;
            let path = if path.is_empty() { LDAPI.to_owned() } else { path };
            let socket = Some(PathBuf::from(path)).filter(|path| path.is_absolute())?;
            return Some(Self { tls: false, host: String::new(), port: 0, socket: Some(socket) });
        }
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "ldaps" => true,
            "ldap" => false,
            _ => return None,
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(six) => {
                let (host, after) = six.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
            }
            None => rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port))),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        if host.is_empty() || !host.chars().all(plain) {
            return None;
        }
        let port =
            port.map_or(Some(if tls { 636 } else { 389 }), |port| port.parse().ok().filter(|port| *port != 0))?;
        Some(Self { tls, host: host.to_owned(), port, socket: None })
    }

    /// Whether the connection is protected from others on the network.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        self.tls || self.socket.is_some()
    }

    /// Whether the URL names global catalogues of Active Directory, by their port or by their SRV records
    /// (MS-ADTS 6.3.2.3): `_gc._tcp.example.org`, `_ldap._tcp.gc._msdcs.example.org`.
    fn is_catalogue(&self) -> bool {
        let host = self.host.to_ascii_lowercase();
        let of_records = self.is_service() && (host.starts_with("_gc.") || host.contains(".gc._msdcs."));
        of_records || matches!(self.port, 3268 | 3269)
    }

    /// Whether the host names SRV records (RFC 2782): `_ldap._tcp.example.org`.
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.host.starts_with('_')
    }
}

/// OpenLDAP's default socket in Debian and Red Hat.
const LDAPI: &str = "/run/slapd/ldapi";

/// Returns `text` with escapes such as `%2F` decoded; `None` if an escape is invalid.
fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(part.get(..2)?, 16).ok()?);
        bytes.extend(part.get(2..)?.bytes());
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, host, port, socket } = self;
        if let Some(socket) = socket {
            return write!(f, "{}", socket.display());
        }
        if *port == if *tls { 636 } else { 389 } { write!(f, "{host}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
impl SourceConfig {
    /// Returns a source for tests: people beneath `ou=people,dc=x`.
    pub(crate) fn of_people(preset: Preset) -> Self {
        Self {
            name: "people".to_owned(),
            kind: SourceKind::Ldap(LdapConfig::new(vec!["ldaps://a".to_owned()])),
            sentinels: Vec::new(),
            tools: None,
            users: Some(preset.tree(AccountKind::User, "ou=people,dc=x")),
            groups: None,
            attributes: preset.attributes(),
            sids: SidMapping::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(urls: &[&str]) -> SourceConfig {
        let kind = SourceKind::Ldap(LdapConfig::new(urls.iter().map(|url| (*url).to_owned()).collect()));
        SourceConfig { kind, ..SourceConfig::of_people(Preset::Rfc2307) }
    }

    #[test]
    fn a_url_in_plain_text_needs_starttls_or_allow_plaintext() {
        assert_eq!(source(&["ldaps://a.example.org"]).check(), Ok(()));
        let mut plain = source(&["ldaps://a", "ldap://b"]);
        let error = plain.check().map_err(|error| error.to_string());
        assert_eq!(error, Err(r#"urls: "ldap://b" needs starttls = true, or allow_plaintext = true"#.to_owned()));
        if let SourceKind::Ldap(ldap) = &mut plain.kind {
            ldap.starttls = true;
        }
        assert_eq!(plain.check(), Ok(()));
    }

    #[test]
    fn bind_dn_needs_a_password() {
        let mut config = source(&["ldaps://a"]);
        if let SourceKind::Ldap(ldap) = &mut config.kind {
            ldap.bind_dn = Some("cn=bursar".to_owned());
            ldap.password = Some(Secret::new(String::new()));
        }
        assert_eq!(config.check().map_err(|error| error.key), Err("password"));
    }

    #[test]
    fn a_global_catalogue_is_refused() {
        let catalogues = [
            "dc1:3269",
            "_gc._tcp.example.org",
            "_GC._tcp.Site._sites.example.org",
            "_ldap._tcp.gc._msdcs.example.org",
        ];
        for server in catalogues {
            let url = format!("ldaps://{server}");
            let mut config = source(&[url.as_str()]);
            assert_eq!(config.check(), Ok(()), "{server} means nothing special outside Active Directory");
            config.attributes = Preset::Ad.attributes();
            assert_eq!(config.check().map_err(|error| error.key), Err("urls"), "{server}");
        }
        for server in ["dc1", "_ldap._tcp.dc._msdcs.example.org", "_ldap._tcp.gc.example.org"] {
            let url = format!("ldaps://{server}");
            let mut config = source(&[url.as_str()]);
            config.attributes = Preset::Ad.attributes();
            assert_eq!(config.check(), Ok(()), "{server}");
        }
    }

    #[test]
    fn members_at_once_is_refused_outside_active_directory() {
        let mut config = source(&["ldaps://a"]);
        if let SourceKind::Ldap(ldap) = &mut config.kind {
            ldap.members_at_once = Some(10);
        }
        assert_eq!(config.check().map_err(|error| error.key), Err("members_at_once"));
        config.attributes = Preset::Ad.attributes();
        assert_eq!(config.check(), Ok(()));
    }

    #[test]
    fn a_password_is_never_printed() {
        assert_eq!(format!("{:?}", Some(Secret::new("hunter2".to_owned()))), "Some(Secret)");
    }

    #[test]
    fn urls_are_read_with_and_without_port() {
        let url = |tls, host: &str, port| Some(ServerUrl { tls, host: host.to_owned(), port, socket: None });
        assert_eq!(ServerUrl::parse("ldaps://a.example.org"), url(true, "a.example.org", 636));
        assert_eq!(ServerUrl::parse("LDAP://10.0.0.1:3890/"), url(false, "10.0.0.1", 3890));
        assert_eq!(ServerUrl::parse("ldap://[::1]:3890"), url(false, "::1", 3890));
        let socket = |text: &str| ServerUrl::parse(text).and_then(|url| url.socket);
        assert_eq!(socket("ldapi://%2Frun%2Fslapd%2Fldapi"), Some(PathBuf::from("/run/slapd/ldapi")));
        assert_eq!(socket("ldapi:///"), Some(PathBuf::from("/run/slapd/ldapi")));
        assert_eq!(ServerUrl::parse("ldapi://%2Fa").map(|url| url.to_string()).as_deref(), Some("/a"));
        assert!(ServerUrl::parse("ldaps://_ldap._tcp.example.org").is_some_and(|url| url.is_service()));
        for wrong in [
            "ldapi://run",
            "ldapi://%2",
            "ldapi://%zz",
            "",
            "a",
            "http://a",
            "ldap://",
            "ldap://a:x",
            "ldap://a/dc=x",
            "ldap://u@a",
            "ldap://[::1",
        ] {
            assert_eq!(ServerUrl::parse(wrong), None, "{wrong}");
        }
    }
}
