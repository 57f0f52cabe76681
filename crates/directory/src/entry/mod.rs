//! Checks one raw entry, and turns it into an [`Entry`] or into a [`RejectedEntry`] with the reason.
//!
//! These checks need only the entry itself and the rules. Checks that need other entries are in `assemble` (members,
//! groups) and `merge` (names and uids used twice, patterns of classes). Later stages never parse a uid.

pub mod assemble;
pub mod filter;
pub(crate) mod groups;
pub mod idmap;
pub(crate) mod mark;
pub mod membership;
pub(crate) mod numbers;
pub(crate) mod preset;
pub mod raw;
pub mod sid;
pub mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bursar_core::identity::{AccountKind, DirectoryId, Gid, PosixIdentity};
use bursar_core::policy::Policy;
use bursar_core::snapshot::dn::{Dn, fold};
use bursar_core::snapshot::freshness::DecidedIds;
use bursar_core::snapshot::{Entry, RejectedEntry};
use bursar_protocol::{MAX_KEY_BYTES, MAX_KEYS};
use jiff::Timestamp;
use jiff::fmt::strtime::BrokenDownTime;
use sha2::{Digest, Sha256};

use crate::entry::numbers::{Numbers, is_account, sid};
use crate::entry::raw::RawEntry;
use crate::source::AttributeNames;

/// The longest name that is accepted. POSIX guarantees 9 to 32 characters and directories allow more, but no known name
/// is longer than this.
const NAME_MAX: usize = 255;

/// The rules of the policy for homes, and the facts about the read that the meaning of entries depends on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EntryRules {
    /// The folder of the homes of each kind, for entries without a home. Only kinds with a class that has a home are
    /// listed.
    pub homes: BTreeMap<AccountKind, PathBuf>,
    /// Folders; every home must lie beneath one of them.
    pub allowed: Vec<PathBuf>,
    /// The time of the read. Accounts that expired before it are disabled.
    pub now: Timestamp,
    /// What `ids = "auto"` means, as an earlier read of the source decided.
    pub ids: Option<DecidedIds>,
}

impl EntryRules {
    /// Returns the rules that `policy` implies. If several classes have the same kind, the first by name gives the
    /// default home.
    #[must_use]
    pub fn of(policy: &Policy, now: Timestamp) -> Self {
        let mut homes = BTreeMap::new();
        for class in policy.classes.values() {
            if let (Some(kind), Some(home)) = (class.from.account_kind(), &class.home) {
                homes.entry(kind).or_insert_with(|| home.prefix.clone());
            }
        }
        Self { homes, allowed: policy.home_prefixes.clone(), now, ids: None }
    }
}

/// An entry that is, or should be, an account.
pub(crate) struct Candidate {
    pub(crate) kind: AccountKind,
    pub(crate) dn: Dn,
    /// `None` if the id is missing, or hidden from Bursar.
    pub(crate) id: Option<DirectoryId>,
    pub(crate) raw: Arc<RawEntry>,
}

/// How the entries of a source are interpreted.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    pub source: &'a str,
    /// How its attributes are named.
    pub attributes: &'a AttributeNames,
    /// The prefix that names have in the directory and not in Bursar.
    pub strip_prefix: Option<&'a str>,
    /// Whether an entry without an immutable id gets one that is derived from its DN. True only for handwritten files,
    /// where renaming an entry makes a new account. Never true for a server: if a server hid the ids, all its accounts
    /// would get new ids.
    pub id_from_dn: bool,
    /// How uids and gids are found.
    pub numbers: &'a Numbers,
    pub rules: &'a EntryRules,
}

impl Reading<'_> {
    /// Returns the immutable id of `raw`.
    #[must_use]
    pub fn id(&self, raw: &RawEntry) -> Option<DirectoryId> {
        let is_shown = |value: &&[u8]| !value.trim_ascii().is_empty();
        match raw.values(&self.attributes.id).next().filter(is_shown) {
            Some(value) => id_of(&self.attributes.id, value),
            None if self.id_from_dn => {
                let digest = Sha256::digest(Dn::parse(&raw.dn).canonical());
                Some(DirectoryId(format!("dn:{}", hex::encode(&digest[..16]))))
            }
            None => None,
        }
    }

    /// Returns the name of `raw` as the directory writes it, including the prefix. Memberships by name refer to it.
    ///
    /// If the attribute has several values, the value in the DN is the name (RFC 2307, 5.3).
    pub fn full_name<'r>(&self, raw: &'r RawEntry, dn: &Dn, kind: AccountKind) -> Result<&'r str, String> {
        let attribute = match kind {
            AccountKind::Tool => &self.attributes.tool_name,
            AccountKind::User => &self.attributes.user_name,
            AccountKind::Group => &self.attributes.group_name,
        };
        let mut values = raw.texts(attribute);
        match (values.next(), values.next()) {
            (Some(value), None) => Ok(value),
            (None, _) => Err(format!("{attribute} is missing, or hidden from Bursar")),
            (Some(_), Some(_)) => {
                let named = dn.leaf(&attribute.to_lowercase());
                raw.texts(attribute)
                    .find(|value| Some(fold(value)) == named)
                    .ok_or_else(|| format!("{attribute} has several values, none of them in the DN"))
            }
        }
    }

    /// Returns the full name of a candidate; `None` if it has no usable name.
    pub(crate) fn name_of<'c>(&self, candidate: &'c Candidate) -> Option<&'c str> {
        self.full_name(&candidate.raw, &candidate.dn, candidate.kind).ok()
    }

    /// Returns the name by which groups list an account as a member (`memberUid`). A tool has such a name only if the
    /// name has a prefix, because a name without a prefix may also be a person's name.
    pub(crate) fn member_name_of<'c>(&self, candidate: &'c Candidate) -> Option<&'c str> {
        let prefix = self.strip_prefix.filter(|prefix| !prefix.is_empty());
        let is_apart =
            |name: &&str| candidate.kind == AccountKind::User || prefix.is_some_and(|prefix| name.starts_with(prefix));
        self.name_of(candidate).filter(is_apart)
    }

    /// Checks one entry. Members and supplementary groups stay empty, because they depend on other entries.
    pub(crate) fn check(&self, candidate: &Candidate) -> Result<Entry, Box<RejectedEntry>> {
        let Candidate { kind, dn, id, raw } = candidate;
        let (kind, id) = (*kind, id.clone());
        let name = self.full_name(raw, dn, kind).and_then(|full| self.short_name(full, kind));
        let (disabled, unreadable) = self.marks(raw);
        let reject = |why: String| {
            Box::new(RejectedEntry {
                source: self.source.to_owned(),
                kind,
                dn: raw.dn.clone(),
                name: name.clone().ok(),
                id: id.clone(),
                disabled: disabled.clone(),
                why,
                reason: None,
            })
        };
        let Some(known) = id.clone() else {
            return Err(reject(format!("{} is missing, or hidden from Bursar", self.attributes.id)));
        };
        // An account whose marks cannot be read must not count as enabled. Accounts that another mark disables, and
        // groups, need no further mark.
        if is_account(kind) && disabled.is_none() {
            unreadable.map_or(Ok(()), Err).map_err(reject)?;
        }
        let posix = self.posix(raw, kind).map_err(reject)?;
        let gid = if kind == AccountKind::Group { self.group_gid(raw).map_err(reject)? } else { None };
        let short = name.clone().map_err(reject)?;
        let home = self.home(raw, kind, &short).map_err(reject)?;
        let is_person = kind != AccountKind::Group;
        let display_names = self.attributes.display_name.iter();
        Ok(Entry {
            kind,
            id: known,
            dn: raw.dn.clone(),
            name: short,
            posix,
            gid,
            home,
            home_by_default: kind != AccountKind::Group && !raw.has(&self.attributes.home),
            mail: first(raw, &self.attributes.mail).filter(|_| is_person),
            person: if kind == AccountKind::User { self.person(raw) } else { None },
            display_name: display_names.filter(|_| is_person).find_map(|attribute| first(raw, attribute)),
            ssh_keys: self.ssh_keys(kind, raw),
            disabled: disabled.clone(),
            created: self.created(raw),
            members: BTreeMap::new(),
            sid: if self.attributes.windows { sid(raw).ok().map(|sid| sid.to_string().to_lowercase()) } else { None },
        })
    }

    /// Returns the keys of a person. There is at most one key more than is allowed, and each key has at most one
    /// character more than is allowed, so that later checks notice the excess.
    fn ssh_keys(&self, kind: AccountKind, raw: &RawEntry) -> BTreeSet<String> {
        if kind != AccountKind::User {
            return BTreeSet::new();
        }
        let cut = |key: &str| key.trim().chars().take(MAX_KEY_BYTES + 1).collect();
        let keys: BTreeSet<String> = raw.texts(&self.attributes.ssh_keys).map(cut).collect();
        keys.into_iter().take(MAX_KEYS + 1).collect()
    }

    /// Returns the value that identifies a person in all sources. Returns `None` if there are several values, because
    /// none of them is known to be the right one.
    fn person(&self, raw: &RawEntry) -> Option<String> {
        let value = raw.only(self.attributes.person.as_deref()?).ok()??;
        let value = value.trim().to_lowercase();
        (!value.is_empty()).then_some(value)
    }

    /// Returns when the entry was created, if the entry shows the time.
    pub(crate) fn created(&self, raw: &RawEntry) -> Option<Timestamp> {
        raw.texts(&self.attributes.created).find_map(generalized_time)
    }

    /// Returns the gid of a group, if it has one.
    pub fn group_gid(&self, raw: &RawEntry) -> Result<Option<Gid>, String> {
        self.numbers.group(raw, self.attributes)
    }

    fn short_name(&self, full: &str, kind: AccountKind) -> Result<String, String> {
        let prefix = self.strip_prefix.unwrap_or_default();
        let Some(name) = full.strip_prefix(prefix) else {
            return Err(format!("name {full:?} does not begin with {prefix:?}"));
        };
        if name.is_empty() {
            return Err(format!("name {full:?} is empty after {prefix:?}"));
        }
        let strange = |c: char| c == '/' || c.is_control();
        if name.len() > NAME_MAX || name.chars().any(strange) || name.trim() != name || name == "." || name == ".." {
            return Err(format!("name {full:?} is not a valid name"));
        }
        let lower = self.attributes.windows && is_account(kind);
        Ok(if lower { name.to_lowercase() } else { name.to_owned() })
    }

    /// Returns the mark that disables `raw`, and what is wrong with a mark that cannot be read.
    fn marks(&self, raw: &RawEntry) -> (Option<String>, Option<String>) {
        let mut unreadable = None;
        for mark in &self.attributes.disabled {
            match mark.of(raw, self.rules.now) {
                Ok(None) => {}
                Ok(disabled) => return (disabled, unreadable),
                Err(why) => unreadable = Some(why),
            }
        }
        (None, unreadable)
    }

    fn posix(&self, raw: &RawEntry, kind: AccountKind) -> Result<Option<PosixIdentity>, String> {
        if kind == AccountKind::Group {
            return Ok(None);
        }
        self.numbers.account(raw, self.attributes).map(Some)
    }

    /// Returns `homeDirectory`, or the default folder and the name. The path is checked only if a class of this kind
    /// has homes.
    fn home(&self, raw: &RawEntry, kind: AccountKind, name: &str) -> Result<Option<PathBuf>, String> {
        if kind == AccountKind::Group {
            return Ok(None);
        }
        let given = raw.only(&self.attributes.home)?.map(Path::new);
        let Some(prefix) = self.rules.homes.get(&kind) else {
            return Ok(given.and_then(normal));
        };
        let home = given.map_or_else(|| prefix.join(name), Path::to_path_buf);
        let shown = home.display();
        let clean = normal(&home).ok_or_else(|| format!("home {shown} is not an absolute path without '..'"))?;
        let beneath = |prefix: &PathBuf| clean.starts_with(prefix) && clean != *prefix;
        if self.rules.allowed.iter().any(beneath) {
            return Ok(Some(clean));
        }
        let allowed: Vec<_> = self.rules.allowed.iter().map(|prefix| prefix.display().to_string()).collect();
        Err(format!("home {shown} is not beneath {}", allowed.join(" or ")))
    }
}

/// Returns the id for a value of the attribute `name`. Text is returned in lower case (as UUIDs are compared), bytes in
/// hex, and an `objectGUID` in the notation of Windows.
pub(crate) fn id_of(name: &str, value: &[u8]) -> Option<DirectoryId> {
    if is_guid(name) {
        return windows::guid(value).map(DirectoryId);
    }
    match std::str::from_utf8(value).map(str::trim) {
        Ok("") => None,
        Ok(text) => Some(DirectoryId(text.to_lowercase())),
        Err(_) => Some(DirectoryId(hex::encode(value))),
    }
}

/// Whether the values of this attribute are GUIDs of Windows.
pub(crate) fn is_guid(name: &str) -> bool {
    name.eq_ignore_ascii_case("objectGUID")
}

/// Returns `path` without doubled or trailing slashes and `.`; `None` if it is relative, or has `..` or control
/// characters.
fn normal(path: &Path) -> Option<PathBuf> {
    if path.to_str()?.chars().any(char::is_control) {
        return None;
    }
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::RootDir | Component::Normal(_) => clean.push(component),
            Component::CurDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    clean.is_absolute().then_some(clean)
}

fn first(raw: &RawEntry, attribute: &str) -> Option<String> {
    raw.texts(attribute).map(str::trim).filter(|value| !value.is_empty()).min().map(str::to_owned)
}

/// Parses `20261121002119Z`, with or without a fraction, with `Z` or an offset (RFC 4517, 3.3.13). The forms without
/// minutes or seconds are not supported, because no server writes them.
pub(crate) fn generalized_time(text: &str) -> Option<Timestamp> {
    broken_down(text)?.to_timestamp().ok()
}

/// Like [`generalized_time`], but also parses times that [`Timestamp`] cannot hold.
fn broken_down(text: &str) -> Option<BrokenDownTime> {
    let (digits, zone) = text.split_at_checked(14)?;
    let zone = zone.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ',');
    let offset = if zone == "Z" { "+0000" } else { zone };
    BrokenDownTime::parse("%Y%m%d%H%M%S%z", format!("{digits}{offset}")).ok()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::source::Preset;

    fn rules() -> EntryRules {
        let home = |path: &str| PathBuf::from(path);
        EntryRules {
            homes: BTreeMap::from([(AccountKind::Tool, home("/data/project")), (AccountKind::User, home("/home"))]),
            allowed: vec![home("/data/project"), home("/home")],
            now: Timestamp::UNIX_EPOCH,
            ids: None,
        }
    }

    fn candidate(reading: &Reading<'_>, kind: AccountKind, raw: RawEntry) -> Candidate {
        Candidate { kind, dn: Dn::parse(&raw.dn), id: reading.id(&raw), raw: Arc::new(raw) }
    }

    /// Checks a tool `tools.foo` in which each named attribute is replaced, or removed if its value is empty.
    fn tool(changes: &[(&str, &str)]) -> Result<Entry, String> {
        let defaults = [
            ("cn", "tools.foo"),
            ("uidNumber", "52503"),
            ("gidNumber", "52503"),
            ("entryUUID", "0A1B"),
            ("createTimestamp", "20261121002119Z"),
        ];
        let kept = defaults.iter().filter(|(name, _)| changes.iter().all(|(changed, _)| changed != name));
        let pairs: Vec<_> = kept.chain(changes.iter().filter(|(_, value)| !value.is_empty())).copied().collect();
        let raw = RawEntry::from_texts("cn=tools.foo,ou=servicegroups,dc=x", &pairs);
        let attributes = Preset::Toolforge.attributes();
        let rules = rules();
        let reading = Reading {
            source: "people",
            attributes: &attributes,
            strip_prefix: Some("tools."),
            id_from_dn: false,
            numbers: &Numbers::default(),
            rules: &rules,
        };
        reading.check(&candidate(&reading, AccountKind::Tool, raw)).map_err(|rejected| rejected.why)
    }

    /// Interprets a handwritten file.
    fn by_hand<'a>(attributes: &'a AttributeNames, rules: &'a EntryRules) -> Reading<'a> {
        static NUMBERS: LazyLock<Numbers> = LazyLock::new(Numbers::default);
        Reading { source: "s", attributes, strip_prefix: None, id_from_dn: true, numbers: &NUMBERS, rules }
    }

    fn why(changes: &[(&str, &str)]) -> String {
        tool(changes).err().unwrap_or_default()
    }

    #[test]
    fn a_valid_entry_is_accepted() {
        let entry = tool(&[]).expect("the entry is valid");
        assert_eq!((entry.name.as_str(), entry.id.0.as_str()), ("foo", "0a1b"));
        assert_eq!(entry.posix.map(|posix| (posix.uid.get(), posix.gid.get())), Some((52503, 52503)));
        assert_eq!(entry.home, Some(PathBuf::from("/data/project/foo")));
        assert_eq!(entry.created.map(|at| at.to_string()).as_deref(), Some("2026-11-21T00:21:19Z"));
    }

    #[test]
    fn a_uid_or_gid_out_of_range_is_rejected() {
        assert_eq!(why(&[("uidNumber", "0")]), "uid 0 is not in 1000..2147483646");
        assert_eq!(why(&[("uidNumber", "2147483647")]), "uid 2147483647 is not in 1000..2147483646");
        assert_eq!(why(&[("uidNumber", "1e4")]), "uidNumber \"1e4\" is not a number");
        assert_eq!(why(&[("uidNumber", "99999999999999999999")]), "uidNumber \"99999999999999999999\" is not a number");
        assert_eq!(why(&[("uidNumber", "5000"), ("uidnumber", "5001")]), "uidNumber has 2 values");
        assert_eq!(why(&[("uidNumber", "")]), "uidNumber is missing, or hidden from Bursar");
        assert_eq!(why(&[("gidNumber", "99")]), "gid 99 is not in 100..2147483646");
        assert_eq!(why(&[("gidNumber", "")]), "gidNumber is missing, or hidden from Bursar");
    }

    #[test]
    fn a_home_outside_the_allowed_folders_is_rejected() {
        for wrong in ["/etc", "/home", "/homestead/foo", "/", "/root/.ssh"] {
            assert_eq!(why(&[("homeDirectory", wrong)]), format!("home {wrong} is not beneath /data/project or /home"));
        }
        for wrong in ["/home/../etc", "home/foo", "/home/a\nb"] {
            assert!(why(&[("homeDirectory", wrong)]).contains("not an absolute path"), "{wrong}");
        }
        let home = |path| tool(&[("homeDirectory", path)]).ok().and_then(|entry| entry.home);
        assert_eq!(home("/home//foo/./x/"), Some(PathBuf::from("/home/foo/x")));
    }

    #[test]
    fn a_home_is_not_checked_if_no_class_uses_homes() {
        let attributes = Preset::Toolforge.attributes();
        let rules = EntryRules::default();
        let reading = by_hand(&attributes, &rules);
        let pairs = [("uid", "a"), ("uidNumber", "1000"), ("gidNumber", "100"), ("homeDirectory", "/nonexistent")];
        let raw = RawEntry::from_texts("uid=a", &pairs);
        assert!(reading.check(&candidate(&reading, AccountKind::User, raw)).is_ok());
    }

    #[test]
    fn the_name_is_the_value_in_the_dn() {
        let name = |changes: &[(&str, &str)]| tool(changes).map(|entry| entry.name);
        assert_eq!(name(&[("cn", "tools.other"), ("CN", "tools.foo")]), Ok("foo".to_owned()));
        assert!(why(&[("cn", "tools.a"), ("CN", "tools.b")]).contains("several values"));
        assert_eq!(why(&[("cn", "foo")]), "name \"foo\" does not begin with \"tools.\"");
        assert_eq!(why(&[("cn", "")]), "cn is missing, or hidden from Bursar");
        assert!(why(&[("cn", "tools.")]).contains("is empty"));
        for wrong in ["tools.../x", "tools.a\nb", "tools...", "tools. a"] {
            assert!(why(&[("cn", wrong)]).contains("is not a valid name"), "{wrong}");
        }
    }

    #[test]
    fn an_entry_without_an_id_is_rejected() {
        assert_eq!(why(&[("entryUUID", "")]), "entryUUID is missing, or hidden from Bursar");
    }

    #[test]
    fn an_id_from_the_dn_does_not_depend_on_spelling() {
        let attributes = Preset::Rfc2307.attributes();
        let rules = EntryRules::default();
        let reading = by_hand(&attributes, &rules);
        let id = |dn: &str| reading.id(&RawEntry::from_texts(dn, &[]));
        assert_eq!(id("uid=a, DC=x"), id("UID=A,dc=x"));
        assert_ne!(id("uid=a,dc=x"), id("uid=b,dc=x"));
        assert!(id("uid=a,dc=x").is_some_and(|id| id.0.starts_with("dn:")));
    }

    #[test]
    fn a_disabled_mark_is_kept_as_it_was_written() {
        let disabled = tool(&[("pwdPolicySubentry", "cn=disabled,ou=ppolicies,dc=x")]).map(|entry| entry.disabled);
        assert_eq!(disabled, Ok(Some("pwdPolicySubentry: cn=disabled,ou=ppolicies,dc=x".to_owned())));
    }

    #[test]
    fn a_rejected_entry_keeps_its_disabled_mark() {
        let attributes = Preset::Toolforge.attributes();
        let rules = rules();
        let reading = by_hand(&attributes, &rules);
        let raw = RawEntry::from_texts("uid=a", &[("uid", "a"), ("pwdAccountLockedTime", "000001010000Z")]);
        let rejected = reading.check(&candidate(&reading, AccountKind::User, raw)).err();
        let mark = rejected.and_then(|rejected| rejected.disabled);
        assert_eq!(mark.as_deref(), Some("pwdAccountLockedTime: 000001010000Z"));
    }

    #[test]
    fn times_are_read_with_fraction_and_offset() {
        let at = |text| generalized_time(text).map(|at| at.to_string());
        assert_eq!(at("20261121002119.123Z").as_deref(), Some("2026-11-21T00:21:19Z"));
        assert_eq!(at("20261121022119+0200").as_deref(), Some("2026-11-21T00:21:19Z"));
        assert_eq!(at("2026"), None);
        assert_eq!(at("99999999999999Z"), None);
    }
}
