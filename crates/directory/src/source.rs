//! What the configuration says about a source, as plain values: where it is, how to reach it, which trees of it are
//! read, and what its attributes are called. `settings.rs` builds them, from a [`Preset`] and what differs from it;
//! nothing here reaches anything.

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

/// Entries asked for in one page. Servers commonly allow 1,000 to 2,000 (Active Directory: 1,000); fewer cost round
/// trips (100: twice the time of 1,000), more only memory.
pub const PAGE_SIZE: u32 = 1000;
/// How long TCP, `StartTLS` and the TLS handshake together may take before the next URL is tried.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a bind or one page may take. A busy server answers a page of 1,000 in well under a second.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// How long a whole read may take. The largest directories take a minute or two, and a realm of 50,000 some ten.
pub const DEADLINE: Duration = Duration::from_mins(30);

/// A directory to read. Two are equal if reading them is the same act, the password included: a reload compares them to
/// know whether a running source has to start again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// The name the ledger records with every account.
    pub name: String,
    /// Where the entries come from.
    pub kind: SourceKind,
    /// Entries that a complete read must contain.
    pub sentinels: Vec<Sentinel>,
    /// Where tools are; absent: none here.
    pub tools: Option<Tree>,
    /// Where people are; absent: none here.
    pub users: Option<Tree>,
    /// Where groups are; absent: none here.
    pub groups: Option<Tree>,
    /// What the attributes are called.
    pub attributes: AttributeNames,
    /// How SIDs become numbers, in an Active Directory.
    pub sids: SidMapping,
}

/// An entry that a complete read must contain, and what it must show. Marks that disable are rare: nobody else proves that
/// they are not hidden.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinel {
    /// Its DN.
    pub dn: String,
    /// Attributes that it must show.
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
    /// An LDAP server, or several that hold the same.
    Ldap(LdapConfig),
    /// Files.
    Ldif(LdifConfig),
    /// A realm.
    Keycloak(KeycloakConfig),
}

/// How to reach an LDAP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdapConfig {
    /// `ldaps://host[:port]`, `ldap://host[:port]` or `ldapi://%2Fpath`, tried in this order, one for a whole pass. A host that
    /// begins with `_` is looked up as SRV records.
    pub urls: Vec<String>,
    /// Begin TLS on `ldap://` before anything else is said.
    pub starttls: bool,
    /// Let the password and the answers cross the network in the clear.
    pub allow_plaintext: bool,
    /// PEM bundle: the only issuers trusted; absent: the system's.
    pub ca_pem: Option<String>,
    /// Whom to bind as; absent: anonymous.
    pub bind_dn: Option<String>,
    /// The password of `bind_dn`.
    pub password: Option<Secret>,
    /// Our identity by TLS; then the bind is SASL EXTERNAL (RFC 4513, 5.2.3).
    pub identity: Option<ClientIdentity>,
    /// Values of an attribute that are asked for at once; absent: as many as the server gives, 1,500 in Active
    /// Directory. Only where a whole group is too much for the server within `timeout`.
    pub members_at_once: Option<u32>,
    /// Entries in a page.
    pub page_size: u32,
    /// Limit of TCP, `StartTLS` and TLS together.
    pub connect_timeout: Duration,
    /// Limit of a bind, and of each page.
    pub timeout: Duration,
    /// Limit of a whole read.
    pub deadline: Duration,
    /// The nameserver to ask for SRV records; `None`: the system's nameservers.
    pub dns: Option<SocketAddr>,
    /// How to read it at best; a server that cannot is read in full.
    pub way: Way,
}

impl LdapConfig {
    /// An anonymous connection to `urls` with the defaults.
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

/// A certificate of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientIdentity {
    /// PEM: the certificate, and those between it and the issuer.
    pub certificate_pem: String,
    /// PEM: its key.
    pub key: Option<Secret>,
}

/// Which files to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdifConfig {
    /// Files, and folders whose `*.ldif` are read in the order of their names.
    pub paths: Vec<PathBuf>,
}

/// A password: wiped from memory when dropped, and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes `text` over.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The plain text, for the one who sends it.
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
    /// Which of them (RFC 4515).
    pub filter: String,
    /// What the names in the directory begin with and ours do not.
    pub strip_prefix: Option<String>,
}

/// What is wrong in a `[[source]]`, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct SourceError {
    /// The key within the source.
    pub key: &'static str,
    /// What is wrong with it.
    pub why: String,
}

impl SourceError {
    pub(super) fn new(key: &'static str, why: String) -> Self {
        Self { key, why }
    }
}

impl SourceConfig {
    /// The tree that holds entries of `kind`.
    #[must_use]
    pub const fn tree(&self, kind: AccountKind) -> Option<&Tree> {
        match kind {
            AccountKind::Tool => self.tools.as_ref(),
            AccountKind::User => self.users.as_ref(),
            AccountKind::Group => self.groups.as_ref(),
        }
    }

    /// The attributes that a search for entries of `kind` asks for, those of sentinels among them.
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

    /// The key of its one secret, and where that goes.
    pub fn secret(&mut self) -> Option<(&'static str, &mut Option<Secret>)> {
        match &mut self.kind {
            SourceKind::Ldap(LdapConfig { identity: Some(identity), .. }) => Some(("client_key", &mut identity.key)),
            SourceKind::Ldap(ldap) => Some(("password", &mut ldap.password)),
            SourceKind::Keycloak(realm) => Some(("client_secret", &mut realm.client_secret)),
            SourceKind::Ldif(_) => None,
        }
    }

    /// How long it is not asked again after it answered; zero: it is asked in each cycle.
    #[must_use]
    pub const fn interval(&self) -> Duration {
        match &self.kind {
            SourceKind::Keycloak(realm) => realm.interval,
            SourceKind::Ldap(_) | SourceKind::Ldif(_) => Duration::ZERO,
        }
    }

    /// How long a whole read of it may take.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        match &self.kind {
            SourceKind::Ldap(ldap) => ldap.deadline,
            SourceKind::Keycloak(_) | SourceKind::Ldif(_) => DEADLINE,
        }
    }

    /// Whether its server is to tell each change at once.
    #[must_use]
    pub const fn persists(&self) -> bool {
        matches!(&self.kind, SourceKind::Ldap(LdapConfig { way: Way::Persist, .. }))
    }

    /// Whether a server can tell its changes: whether what is read of an entry changes with it alone. `memberOf` does not;
    /// servers write it into people's entries and tell of none.
    #[must_use]
    pub const fn tells_changes(&self) -> bool {
        matches!(self.kind, SourceKind::Ldap(_)) && !self.attributes.windows && self.attributes.member_of.is_empty()
    }

    /// A global catalogue shows groups of other kinds than universal without their members, and a server that knows no
    /// parts of attributes all of them: as if they were empty.
    fn check_members(&self, ldap: &LdapConfig) -> Result<(), SourceError> {
        if !self.attributes.windows && ldap.members_at_once.is_some() {
            return Err(SourceError::new("members_at_once", "only Active Directory gives members in parts".to_owned()));
        }
        let is_catalogue = |text: &&String| ServerUrl::parse(text).is_some_and(|url| matches!(url.port, 3268 | 3269));
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
            "Active Directory is asked for its changes in each cycle"
        } else {
            "memberOf changes without a word of the server's: such a source is read in full (member_of)"
        };
        if ldap.way == Way::Persist && !self.tells_changes() {
            return Err(SourceError::new("persist", why.to_owned()));
        }
        Ok(())
    }

    /// Checks what can be checked without reaching anything.
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

/// Whether `text` begins as a DN does, with an attribute and `=`: no entry has any other name.
fn is_dn(text: &str) -> bool {
    let attribute = text.split_once('=').map(|(attribute, _)| attribute.trim());
    attribute.is_some_and(|attribute| {
        let mut bytes = attribute.bytes();
        !attribute.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
    })
}

fn check_ldap(ldap: &LdapConfig) -> Result<(), SourceError> {
    if ldap.urls.is_empty() {
        return Err(SourceError::new("urls", "names no server; for example ldaps://ldap.example.org".to_owned()));
    }
    for text in &ldap.urls {
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
        return Err(SourceError::new("members_at_once", "0 asks for nothing; for example 500".to_owned()));
    }
    if let Some(identity) = &ldap.identity {
        if ldap.bind_dn.is_some() {
            let why = "the certificate says who we are; the server maps it to an entry".to_owned();
            return Err(SourceError::new("bind_dn", why));
        }
        if identity.key.is_none() {
            return Err(SourceError::new("client_key", "client_certificate needs its key".to_owned()));
        }
        let plain = |text: &String| {
            ServerUrl::parse(text).is_some_and(|url| !url.tls && (url.socket.is_some() || !ldap.starttls))
        };
        if ldap.urls.iter().any(plain) {
            return Err(SourceError::new("client_certificate", "is shown in TLS only".to_owned()));
        }
    }
    if ldap.bind_dn.is_some() && ldap.password.as_ref().is_none_or(|password| password.reveal().is_empty()) {
        // RFC 4513, 5.1.2: a name without a password is an "unauthenticated bind", which servers answer with success.
        return Err(SourceError::new("password", "bind_dn needs one that is not empty".to_owned()));
    }
    Ok(())
}

/// The parts of an LDAP URL that Bursar uses (RFC 4516 knows more; base, filter and attributes have their own keys).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl {
    /// `ldaps`.
    pub tls: bool,
    /// Name or address, an IPv6 address without its brackets.
    pub host: String,
    /// 636 or 389 unless given.
    pub port: u16,
    /// `ldapi`: a socket of this machine, and no host.
    pub socket: Option<PathBuf>,
}

impl ServerUrl {
    /// Reads `ldap[s]://host[:port][/]`, or `ldapi://%2Fpath` with the path's slashes escaped (as OpenLDAP writes it);
    /// `ldapi:///` is OpenLDAP's own socket.
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

    /// Whether nobody on a network reads what is said.
    #[must_use]
    pub const fn is_private(&self) -> bool {
        self.tls || self.socket.is_some()
    }

    /// Whether the host names SRV records (RFC 2782): `_ldap._tcp.example.org`.
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.host.starts_with('_')
    }
}

/// OpenLDAP's own socket, in Debian and Red Hat.
const LDAPI: &str = "/run/slapd/ldapi";

/// `text` with `%2F` and the like as what they stand for.
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
mod tests {
    use super::*;

    fn source(urls: &[&str]) -> SourceConfig {
        SourceConfig {
            name: "people".to_owned(),
            kind: SourceKind::Ldap(LdapConfig::new(urls.iter().map(|url| (*url).to_owned()).collect())),
            sentinels: Vec::new(),
            tools: None,
            users: Some(Preset::Rfc2307.tree(AccountKind::User, "ou=people,dc=example,dc=org")),
            groups: None,
            attributes: Preset::Rfc2307.attributes(),
            sids: SidMapping::default(),
        }
    }

    #[test]
    fn plain_text_must_be_asked_for() {
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
    fn a_name_to_bind_as_needs_a_password() {
        let mut config = source(&["ldaps://a"]);
        if let SourceKind::Ldap(ldap) = &mut config.kind {
            ldap.bind_dn = Some("cn=bursar".to_owned());
            ldap.password = Some(Secret::new(String::new()));
        }
        assert_eq!(config.check().map_err(|error| error.key), Err("password"));
    }

    #[test]
    fn a_global_catalogue_is_no_domain() {
        let mut config = source(&["ldaps://dc1:3269"]);
        assert_eq!(config.check(), Ok(()), "only a port elsewhere");
        config.attributes = Preset::Ad.attributes();
        assert_eq!(config.check().map_err(|error| error.key), Err("urls"));
    }

    #[test]
    fn members_in_parts_are_asked_of_active_directory_alone() {
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
