//! What the configuration says about a source, as plain values: where it is, how to reach it, which trees of it are
//! read, and what its attributes are called. `settings.rs` builds them, from a [`Preset`] and what differs from it;
//! nothing here reaches anything.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use zeroize::Zeroizing;

use super::filter::Filter;
use crate::identity::AccountKind;

/// Entries asked for in one page. Servers commonly allow 1,000 to 2,000 (Active Directory: 1,000); fewer cost round
/// trips (100: twice the time of 1,000), more only memory.
pub const PAGE_SIZE: u32 = 1000;
/// How long TCP, `StartTLS` and the TLS handshake together may take before the next URL is tried.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a bind or one page may take. A busy server answers a page of 1,000 in well under a second.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// A directory to read. Two are equal if reading them is the same act, the password included: a reload compares them
/// to know whether a running source has to begin anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// The name the ledger records with every account.
    pub name: String,
    /// Where the entries come from.
    pub kind: SourceKind,
    /// DNs that a complete read must contain.
    pub sentinels: Vec<String>,
    /// Where tools are; absent: none here.
    pub tools: Option<Tree>,
    /// Where people are; absent: none here.
    pub users: Option<Tree>,
    /// Where groups are; absent: none here.
    pub groups: Option<Tree>,
    /// What the attributes are called.
    pub attributes: AttributeNames,
}

/// Where entries come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceKind {
    /// An LDAP server, or several that hold the same.
    Ldap(LdapConfig),
    /// Files.
    Ldif(LdifConfig),
}

/// How to reach an LDAP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdapConfig {
    /// `ldaps://host[:port]` or `ldap://host[:port]`, tried in this order, one for a whole pass.
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
    /// Entries in a page.
    pub page_size: u32,
    /// Limit of TCP, `StartTLS` and TLS together.
    pub connect_timeout: Duration,
    /// Limit of a bind, and of each page.
    pub timeout: Duration,
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
            page_size: PAGE_SIZE,
            connect_timeout: CONNECT_TIMEOUT,
            timeout: TIMEOUT,
        }
    }
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

/// What the attributes are called, in any case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttributeNames {
    /// The immutable id.
    pub id: String,
    /// When the entry was made.
    pub created: String,
    /// A tool's name.
    pub tool_name: String,
    /// A person's name.
    pub user_name: String,
    /// A group's name.
    pub group_name: String,
    /// POSIX user id.
    pub uid: String,
    /// POSIX group id.
    pub gid: String,
    /// Home directory.
    pub home: String,
    /// Mail address.
    pub mail: String,
    /// Display name: the first of these that the entry has.
    pub display_name: Vec<String>,
    /// Marks that disable an entry; any one is enough.
    pub disabled: Vec<DisabledMark>,
    /// Members of a group by DN.
    pub member_dns: Vec<String>,
    /// Members of a group by name.
    pub member_names: Vec<String>,
    /// Managers of a group or tool by DN (a class's `managers`).
    pub managers: Option<String>,
}

impl AttributeNames {
    /// The attributes that a search for entries of `kind` asks for, and no others.
    #[must_use]
    pub fn wanted(&self, kind: AccountKind) -> Vec<String> {
        let mut wanted = vec!["objectClass", &self.id, &self.created];
        let people = [&self.uid, &self.gid, &self.home, &self.mail].into_iter().chain(&self.display_name);
        let groups = self.member_dns.iter().chain(&self.member_names).chain(&self.managers);
        match kind {
            AccountKind::Tool => {
                wanted.extend([self.tool_name.as_str(), &self.group_name]);
                wanted.extend(people.map(String::as_str));
                wanted.extend(groups.map(String::as_str));
            }
            AccountKind::User => {
                wanted.push(&self.user_name);
                wanted.extend(people.map(String::as_str));
            }
            AccountKind::Group => {
                wanted.extend([self.group_name.as_str(), &self.gid]);
                wanted.extend(groups.map(String::as_str));
            }
        }
        wanted.extend(self.disabled.iter().map(|mark| mark.attribute.as_str()));
        let mut names: Vec<String> = wanted.into_iter().map(str::to_owned).collect();
        names.sort_by_key(|name| name.to_lowercase());
        names.dedup_by_key(|name| name.to_lowercase());
        names
    }
}

/// An attribute that disables the entry that has it, written `attribute`, `attribute=value` or `attribute=begin*`.
///
/// Without a value its presence is enough, unless it says `FALSE` (`nsAccountLock: FALSE`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DisabledMark {
    /// Name of the attribute.
    pub attribute: String,
    /// What it must say, compared without case; a `*` at its end stands for anything.
    pub value: Option<String>,
}

impl DisabledMark {
    /// Whether `value` of this attribute disables.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let value = value.to_lowercase();
        match self.value.as_deref().map(str::to_lowercase) {
            None => value != "false",
            Some(wanted) => wanted.strip_suffix('*').map_or(value == wanted, |begin| value.starts_with(begin)),
        }
    }
}

impl FromStr for DisabledMark {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        let (attribute, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        if !is_attribute_name(attribute) {
            return Err(SourceError::new("attributes.disabled", format!("{text:?} does not begin with an attribute")));
        }
        Ok(Self { attribute: attribute.to_owned(), value: value.map(str::to_owned) })
    }
}

/// Attribute names and filters of a known kind of directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// Wikimedia Toolforge: a tool is a posixAccount and a groupOfNames of one cn, `tools.NAME`.
    Toolforge,
    /// RFC 2307: posixAccount and posixGroup with `memberUid`; `member` and `uniqueMember` are read as well.
    Rfc2307,
}

impl FromStr for Preset {
    type Err = SourceError;

    fn from_str(text: &str) -> Result<Self, SourceError> {
        match text {
            "toolforge" => Ok(Self::Toolforge),
            "rfc2307" => Ok(Self::Rfc2307),
            other => Err(SourceError::new("preset", format!("{other:?} is none of: toolforge, rfc2307"))),
        }
    }
}

impl Preset {
    /// The attribute names of such a directory.
    #[must_use]
    pub fn attributes(self) -> AttributeNames {
        let mark = |attribute: &str, value: &str| DisabledMark {
            attribute: attribute.to_owned(),
            value: Some(value.to_owned()),
        };
        // The password policy's mark for "locked until an administrator unlocks it" (draft-behera-ldap-password-policy,
        // 5.3.3). Any other time is a lockout after wrong passwords, which disables nobody.
        let mut disabled = vec![mark("pwdAccountLockedTime", "000001010000Z")];
        if self == Self::Toolforge {
            disabled.push(mark("pwdPolicySubentry", "cn=disabled,*"));
        }
        let tool_name = if self == Self::Toolforge { "cn" } else { "uid" };
        AttributeNames {
            id: "entryUUID".to_owned(),
            created: "createTimestamp".to_owned(),
            tool_name: tool_name.to_owned(),
            user_name: "uid".to_owned(),
            group_name: "cn".to_owned(),
            uid: "uidNumber".to_owned(),
            gid: "gidNumber".to_owned(),
            home: "homeDirectory".to_owned(),
            mail: "mail".to_owned(),
            display_name: vec!["displayName".to_owned(), "cn".to_owned()],
            disabled,
            member_dns: vec!["member".to_owned(), "uniqueMember".to_owned()],
            member_names: vec!["memberUid".to_owned()],
            managers: None,
        }
    }

    /// The tree of `kind` beneath `base`, with the filter and prefix such a directory has.
    #[must_use]
    pub fn tree(self, kind: AccountKind, base: &str) -> Tree {
        const GROUPS: &str = "(|(objectClass=posixGroup)(objectClass=groupOfNames)(objectClass=groupOfUniqueNames))";
        let (filter, prefix) = match (self, kind) {
            (Self::Toolforge, AccountKind::Tool) => ("(cn=tools.*)", Some("tools.")),
            (Self::Rfc2307, AccountKind::Tool) | (_, AccountKind::User) => ("(objectClass=posixAccount)", None),
            (_, AccountKind::Group) => (GROUPS, None),
        };
        Tree { base: base.to_owned(), filter: filter.to_owned(), strip_prefix: prefix.map(str::to_owned) }
    }
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
    fn new(key: &'static str, why: String) -> Self {
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

    /// Checks what can be checked without reaching anything.
    pub fn check(&self) -> Result<(), SourceError> {
        match &self.kind {
            SourceKind::Ldap(ldap) => check_ldap(ldap)?,
            SourceKind::Ldif(ldif) if ldif.paths.is_empty() => {
                return Err(SourceError::new("paths", "names no file and no folder".to_owned()));
            }
            SourceKind::Ldif(_) => {}
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
            };
            if !valid {
                let why = format!("filter {:?} is not a filter; for example (objectClass=posixAccount)", tree.filter);
                return Err(SourceError::new(key, why));
            }
        }
        Ok(())
    }
}

fn check_ldap(ldap: &LdapConfig) -> Result<(), SourceError> {
    if ldap.urls.is_empty() {
        return Err(SourceError::new("urls", "names no server; for example ldaps://ldap.example.org".to_owned()));
    }
    for text in &ldap.urls {
        let Some(url) = ServerUrl::parse(text) else {
            let why = format!("{text:?} is not ldaps://host or ldap://host, with :port or without");
            return Err(SourceError::new("urls", why));
        };
        if !url.tls && !ldap.starttls && !ldap.allow_plaintext {
            let why = format!("{text:?} needs starttls = true, or allow_plaintext = true");
            return Err(SourceError::new("urls", why));
        }
    }
    if ldap.page_size == 0 || i32::try_from(ldap.page_size).is_err() {
        return Err(SourceError::new("page_size", format!("{} is not in 1..2147483647", ldap.page_size)));
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
}

impl ServerUrl {
    /// Reads `ldap[s]://host[:port][/]`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
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
        Some(Self { tls, host: host.to_owned(), port })
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, host, port } = self;
        if *port == if *tls { 636 } else { 389 } { write!(f, "{host}") } else { write!(f, "{host}:{port}") }
    }
}

fn is_attribute_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b';'))
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
    fn a_password_is_never_printed() {
        assert_eq!(format!("{:?}", Some(Secret::new("hunter2".to_owned()))), "Some(Secret)");
    }

    #[test]
    fn urls_are_read_with_and_without_port() {
        let url = |tls, host: &str, port| Some(ServerUrl { tls, host: host.to_owned(), port });
        assert_eq!(ServerUrl::parse("ldaps://a.example.org"), url(true, "a.example.org", 636));
        assert_eq!(ServerUrl::parse("LDAP://10.0.0.1:3890/"), url(false, "10.0.0.1", 3890));
        assert_eq!(ServerUrl::parse("ldap://[::1]:3890"), url(false, "::1", 3890));
        for wrong in ["", "a", "http://a", "ldap://", "ldap://a:x", "ldap://a/dc=x", "ldap://u@a", "ldap://[::1"] {
            assert_eq!(ServerUrl::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_lockout_is_no_disabled_mark() {
        let marks = Preset::Toolforge.attributes().disabled;
        let disables =
            |attribute: &str, value: &str| marks.iter().any(|mark| mark.attribute == attribute && mark.matches(value));
        assert!(disables("pwdAccountLockedTime", "000001010000Z"));
        assert!(!disables("pwdAccountLockedTime", "20261121002119Z"));
        assert!(disables("pwdPolicySubentry", "cn=disabled,ou=ppolicies,dc=example,dc=org"));
        assert!(!disables("pwdPolicySubentry", "cn=default,ou=ppolicies,dc=example,dc=org"));
        let present: Result<DisabledMark, _> = "nsAccountLock".parse();
        assert!(present.is_ok_and(|mark| mark.matches("TRUE") && !mark.matches("false")));
    }

    #[test]
    fn only_what_is_used_is_asked_for() {
        let names = Preset::Rfc2307.attributes();
        assert!(!names.wanted(AccountKind::User).contains(&"memberUid".to_owned()));
        assert!(!names.wanted(AccountKind::Group).contains(&"homeDirectory".to_owned()));
        let tools = names.wanted(AccountKind::Tool);
        assert_eq!(tools.iter().filter(|name| *name == "cn").count(), 1);
    }
}
