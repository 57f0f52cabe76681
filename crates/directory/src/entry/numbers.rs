//! Determines the uids and gids of a source: from attributes, or from SIDs.
//!
//! Attributes and SIDs are mixed only if the configuration says so. If they were always mixed, a person whose
//! `uidNumber` is removed would get another uid, and a number that was assigned by hand could equal one that comes from
//! a SID.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use bursar_core::identity::{AccountKind, Gid, IdentityError, PosixIdentity, Uid};
use bursar_core::snapshot::freshness::DecidedIds;

use crate::entry::assemble::RawTree;
use crate::entry::idmap::{IdMap, IdRange};
use crate::entry::preset::AttributeNames;
use crate::entry::raw::RawEntry;
use crate::entry::sid::Sid;

/// The SID of an object (MS-ADA3 2.237).
pub(crate) const OBJECT_SID: &str = "objectSid";
/// The RID of an account's primary group, which does not list it among its members (MS-ADA3 2.120).
pub(crate) const PRIMARY_GROUP: &str = "primaryGroupID";

const UNDECIDED: &str = "ids = \"auto\" waits for a complete read, because no account that was read has a uidNumber; \
                         set ids = \"sid\" or \"attributes\" to decide now";
/// The type of a group (MS-ADTS 2.2.12).
pub(crate) const GROUP_TYPE: &str = "groupType";
/// The bit of the type for groups that can be granted rights.
const GROUP_TYPE_SECURITY_ENABLED: i64 = 0x8000_0000;

/// How the configuration maps the SIDs of an Active Directory to numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SidMapping {
    /// The source of the numbers.
    pub ids: Ids,
    /// The range of numbers that SIDs are mapped to.
    pub range: IdRange,
    /// The domain that gets the first slice of the range.
    pub default_domain: Option<Sid>,
    /// Domains in the order in which SSSD first saw them. Needed only if two have the same hash.
    pub domains: Vec<Sid>,
}

/// The source of uids and gids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ids {
    /// Attributes if any account that was read has a `uidNumber`, otherwise SIDs.
    #[default]
    Auto,
    /// `uidNumber` and `gidNumber`.
    Attributes,
    /// Only SIDs, like SSSD with `ldap_id_mapping = true`.
    Sid,
    /// For each account, its `uidNumber` if it has one, otherwise its SID.
    Mixed,
}

/// The meaning of [`Ids`] for one read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Attributes,
    Sid,
    Either,
    Unknown,
}

/// Finds the numbers of one read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbers {
    /// The configured source; `None` outside Active Directory, where there are only attributes.
    told: Option<Ids>,
    by: By,
    map: IdMap,
    /// The number of accounts that were read.
    accounts: usize,
    /// The number of these accounts that have a uid attribute.
    numbered: usize,
    /// The decision of an earlier read.
    decided: Option<DecidedIds>,
}

impl Default for Numbers {
    /// Attributes, as everywhere but in Active Directory.
    fn default() -> Self {
        Self { told: None, by: By::Attributes, map: IdMap::default(), accounts: 0, numbered: 0, decided: None }
    }
}

impl Numbers {
    /// Decides where the numbers come from, by all `trees` that one source returned, unless an earlier read has
    /// `decided`.
    pub(crate) fn of(
        mapping: &SidMapping,
        names: &AttributeNames,
        trees: &BTreeMap<AccountKind, RawTree>,
        decided: Option<DecidedIds>,
    ) -> Self {
        if !names.windows {
            return Self::default();
        }
        let (mut accounts, mut numbered) = (0, 0);
        let mut domains = BTreeSet::new();
        for (kind, tree) in trees {
            for raw in &tree.entries {
                accounts += usize::from(is_account(*kind));
                numbered += usize::from(is_account(*kind) && raw.has(&names.uid));
                domains.extend(sid(raw).ok().and_then(|sid| sid.in_domain()).map(|(domain, _)| domain));
            }
        }
        let map = IdMap::new(mapping.range, mapping.default_domain.as_ref(), &mapping.domains, &domains);
        let whole = trees.iter().all(|(kind, tree)| tree.whole || !is_account(*kind));
        let by = match (mapping.ids, decided) {
            // The part that was not read may contain the first `uidNumber`.
            (Ids::Auto, None) if numbered == 0 && !whole => By::Unknown,
            (Ids::Auto, None) if numbered == 0 => By::Sid,
            (Ids::Auto, Some(DecidedIds::Sid)) | (Ids::Sid, _) => By::Sid,
            (Ids::Auto, None | Some(DecidedIds::Attributes)) | (Ids::Attributes, _) => By::Attributes,
            (Ids::Mixed, _) => By::Either,
        };
        Self { told: Some(mapping.ids), by, map, accounts, numbered, decided }
    }

    /// Returns what `ids = "auto"` means from this read on; `None` if there is nothing to decide, or no account to
    /// decide by.
    pub(crate) fn decided(&self) -> Option<DecidedIds> {
        match (self.told?, self.by) {
            (Ids::Auto, _) if self.accounts == 0 => self.decided,
            (Ids::Auto, By::Attributes) => Some(DecidedIds::Attributes),
            (Ids::Auto, By::Sid) => Some(DecidedIds::Sid),
            _ => None,
        }
    }

    /// Describes where the numbers come from; `None` if there is no choice.
    pub(crate) fn source(&self, names: &AttributeNames) -> Option<String> {
        let Self { numbered, accounts, decided, .. } = self;
        let uid = &names.uid;
        Some(match (self.told?, self.by) {
            (Ids::Auto, By::Sid) if *numbered > 0 => format!(
                "uids from SIDs, as the first complete read decided, though {numbered} of {accounts} accounts have a {uid} \
                 now; to make the choice explicit, set ids = \"sid\" or \"mixed\""
            ),
            (Ids::Auto, By::Attributes) if *numbered == 0 && decided.is_some() => format!(
                "uids from attributes, as the first complete read decided, though no account has a {uid} now; to make \
                 the choice explicit, set ids"
            ),
            (Ids::Auto, By::Sid) => format!("uids from SIDs, because no account has a {uid} (ids = \"auto\")"),
            (Ids::Auto, By::Unknown) => {
                format!("uids undecided: no account that was read has a {uid} (ids = \"auto\")")
            }
            (Ids::Auto, _) => {
                format!("uids from attributes, because {numbered} of {accounts} accounts have a {uid} (ids = \"auto\")")
            }
            (Ids::Attributes, _) => "uids from attributes".to_owned(),
            (Ids::Sid, _) => "uids from SIDs".to_owned(),
            (Ids::Mixed, _) => format!("uids mixed: of {accounts} accounts {numbered} by {uid}, the others by SID"),
        })
    }

    /// Returns the uid and gid of an account. Supplementary groups stay empty, because they depend on other entries.
    pub(crate) fn account(&self, raw: &RawEntry, names: &AttributeNames) -> Result<PosixIdentity, String> {
        let (uid, gid) = match self.by {
            By::Unknown => return Err(UNDECIDED.to_owned()),
            By::Sid => self.mapped(raw)?,
            By::Either if !raw.has(&names.uid) => self.mapped(raw)?,
            By::Either | By::Attributes => self.given(raw, names)?,
        };
        Ok(PosixIdentity { uid, gid, groups: BTreeSet::new() })
    }

    /// Returns the gid of a group, if it has one.
    pub(crate) fn group(&self, raw: &RawEntry, names: &AttributeNames) -> Result<Option<Gid>, String> {
        if names.windows && is_for_mail_only(raw)? {
            return Ok(None);
        }
        match self.by {
            By::Sid => self.group_by_sid(raw),
            By::Either if !raw.has(&names.gid) => self.group_by_sid(raw),
            By::Either | By::Attributes | By::Unknown => number(raw, &names.gid),
        }
    }

    fn given(&self, raw: &RawEntry, names: &AttributeNames) -> Result<(Uid, Gid), String> {
        let missing = |attribute: &str| match self.told {
            // Only `auto` gets the hint: administrators who chose another value know where the numbers come from.
            Some(Ids::Auto) => format!(
                "{attribute} is missing, or hidden from Bursar, and {} accounts have {}: ids = \"mixed\" would take the \
                 numbers of this account from its SID, ids = \"sid\" those of all accounts",
                self.numbered, names.uid
            ),
            _ => format!("{attribute} is missing, or hidden from Bursar"),
        };
        let uid = number(raw, &names.uid)?.ok_or_else(|| missing(&names.uid))?;
        let gid = number(raw, &names.gid)?.ok_or_else(|| missing(&names.gid))?;
        Ok((uid, gid))
    }

    fn mapped(&self, raw: &RawEntry) -> Result<(Uid, Gid), String> {
        let own = sid(raw)?;
        let group = primary_group(raw)?.ok_or_else(|| format!("{PRIMARY_GROUP} is missing, or hidden from Bursar"))?;
        let uid = Uid::try_from(i64::from(self.map.id(&own)?)).map_err(|error| error.to_string())?;
        let gid = Gid::try_from(i64::from(self.map.id(&group)?)).map_err(|error| error.to_string())?;
        Ok((uid, gid))
    }

    /// Groups that every domain has (`BUILTIN`) get no gid, as in SSSD.
    fn group_by_sid(&self, raw: &RawEntry) -> Result<Option<Gid>, String> {
        let sid = sid(raw)?;
        if sid.in_domain().is_none() {
            return Ok(None);
        }
        Gid::try_from(i64::from(self.map.id(&sid)?)).map(Some).map_err(|error| error.to_string())
    }
}

/// Whether a group is only a distribution list. A distribution list gets no gid, as in SSSD: people who may edit the
/// list must not be able to grant rights with it.
fn is_for_mail_only(raw: &RawEntry) -> Result<bool, String> {
    let Some(text) = raw.only(GROUP_TYPE)? else { return Ok(false) };
    let bits: i64 = text.parse().map_err(|_| format!("{GROUP_TYPE} {text:?} is not a number"))?;
    Ok(bits & GROUP_TYPE_SECURITY_ENABLED == 0)
}

/// Returns the SID of an entry.
pub(crate) fn sid(raw: &RawEntry) -> Result<Sid, String> {
    let value =
        raw.values(OBJECT_SID).next().ok_or_else(|| format!("{OBJECT_SID} is missing, or hidden from Bursar"))?;
    Sid::of_value(value).ok_or_else(|| format!("{OBJECT_SID} {} is not a SID", hex::encode(value)))
}

/// Returns the SID of an account's primary group, which belongs to the account's own domain.
pub(crate) fn primary_group(raw: &RawEntry) -> Result<Option<Sid>, String> {
    let Some(rid) = raw.only(PRIMARY_GROUP)? else { return Ok(None) };
    let rid = rid.parse().map_err(|_| format!("{PRIMARY_GROUP} {rid:?} is not a number"))?;
    let own = sid(raw)?;
    let (domain, _) = own.in_domain().ok_or_else(|| format!("{own} belongs to no domain"))?;
    Ok(Some(domain.with_rid(rid)))
}

/// Returns the keys of `groups` by their SIDs, to find primary groups.
pub(crate) fn by_sid<'a, K: Clone + 'a>(groups: impl Iterator<Item = (&'a K, &'a RawEntry)>) -> BTreeMap<Sid, K> {
    groups.filter_map(|(key, raw)| Some((sid(raw).ok()?, key.clone()))).collect()
}

/// Whether entries of `kind` have a uid.
pub(crate) const fn is_account(kind: AccountKind) -> bool {
    !matches!(kind, AccountKind::Group)
}

fn number<T: FromStr<Err = IdentityError>>(raw: &RawEntry, attribute: &str) -> Result<Option<T>, String> {
    let Some(text) = raw.only(attribute)? else { return Ok(None) };
    text.parse().map(Some).map_err(|error| match error {
        IdentityError::NotANumber(_) => format!("{attribute} {text:?} is not a number"),
        other => other.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Preset;

    const DOMAIN: &str = "S-1-5-21-123-456-789";
    const SLICE: u32 = 1_842_600_000;

    fn account(rid: u32, more: &[(&str, &str)]) -> RawEntry {
        let sid = format!("{DOMAIN}-{rid}");
        let pairs = [("objectSid", sid.as_str()), ("primaryGroupID", "513")];
        RawEntry::from_texts("cn=a", &[&pairs, more].concat())
    }

    const GIVEN: [(&str, &str); 2] = [("uidNumber", "10001"), ("gidNumber", "20001")];

    fn trees(kind: AccountKind, entries: &[RawEntry], whole: bool) -> BTreeMap<AccountKind, RawTree> {
        BTreeMap::from([(kind, RawTree { entries: entries.iter().cloned().map(Into::into).collect(), whole })])
    }

    /// Returns uid and gid of each account, or why it has none.
    fn read(ids: Ids, accounts: &[RawEntry]) -> Vec<Result<(u32, u32), String>> {
        let names = Preset::Ad.attributes();
        let mapping = SidMapping { ids, ..SidMapping::default() };
        let numbers = Numbers::of(&mapping, &names, &trees(AccountKind::User, accounts, true), None);
        let both = |posix: PosixIdentity| (posix.uid.get(), posix.gid.get());
        accounts.iter().map(|raw| numbers.account(raw, &names).map(both)).collect()
    }

    #[test]
    fn each_value_of_ids_selects_its_source_of_numbers() {
        let (plain, given) = (account(1103, &[]), account(1104, &GIVEN));
        let mapped = |rid| Ok((SLICE + rid, SLICE + 513));
        assert_eq!(read(Ids::Auto, std::slice::from_ref(&plain)), [mapped(1103)]);
        assert_eq!(read(Ids::Auto, std::slice::from_ref(&given)), [Ok((10_001, 20_001))]);
        let mixed = [plain, given];
        let found = read(Ids::Auto, &mixed);
        assert!(
            found[0].as_ref().is_err_and(|why| why.contains("1 accounts have uidNumber: ids = \"mixed\"")),
            "{found:?}"
        );
        assert_eq!(found[1], Ok((10_001, 20_001)));
        assert_eq!(read(Ids::Sid, &mixed), [mapped(1103), mapped(1104)]);
        assert_eq!(read(Ids::Mixed, &mixed), [mapped(1103), Ok((10_001, 20_001))]);
        let why = Err("uidNumber is missing, or hidden from Bursar".to_owned());
        assert_eq!(read(Ids::Attributes, &mixed), [why, Ok((10_001, 20_001))]);
    }

    #[test]
    fn the_first_complete_read_decides_between_sids_and_attributes_for_good() {
        let names = Preset::Ad.attributes();
        let by = |accounts: &[RawEntry], whole, decided| {
            let trees = trees(AccountKind::User, accounts, whole);
            let numbers = Numbers::of(&SidMapping::default(), &names, &trees, decided);
            (numbers.account(&accounts[0], &names).map(|posix| posix.uid.get()).ok(), numbers.decided())
        };
        let (plain, given) = ([account(1103, &[])], [account(1104, &GIVEN)]);
        let (sid, attributes) = (Some(DecidedIds::Sid), Some(DecidedIds::Attributes));
        assert_eq!(by(&plain, true, None), (Some(SLICE + 1103), sid));
        assert_eq!(by(&plain, false, None), (None, None), "an incomplete read decides nothing");
        assert_eq!(by(&given, true, sid), (Some(SLICE + 1104), sid), "the first uidNumber renumbers nobody");
        assert_eq!(
            by(&plain, false, sid),
            (Some(SLICE + 1103), sid),
            "after the decision, incomplete reads are numbered too"
        );
        assert_eq!(by(&plain, true, attributes), (None, attributes), "attributes that are hidden renumber nobody");
        let none = Numbers::of(&SidMapping::default(), &names, &BTreeMap::new(), None);
        assert_eq!(none.decided(), None, "without an account there is nothing to decide by");
    }

    #[test]
    fn the_source_of_numbers_is_described() {
        let names = Preset::Ad.attributes();
        let said = |ids, accounts: &[RawEntry], whole| {
            let mapping = SidMapping { ids, ..SidMapping::default() };
            Numbers::of(&mapping, &names, &trees(AccountKind::User, accounts, whole), None)
                .source(&names)
                .expect("Active Directory has a choice of sources")
        };
        let (plain, given) = ([account(1103, &[])], [account(1104, &GIVEN)]);
        assert!(said(Ids::Auto, &plain, true).starts_with("uids from SIDs, because"));
        assert!(said(Ids::Auto, &plain, false).starts_with("uids undecided"));
        assert!(said(Ids::Auto, &given, false).starts_with("uids from attributes, because 1 of 1 accounts"));
        assert_eq!(said(Ids::Sid, &given, true), "uids from SIDs");
        assert_eq!(said(Ids::Mixed, &given, true), "uids mixed: of 1 accounts 1 by uidNumber, the others by SID");
        assert_eq!(Numbers::default().source(&names), None);
    }

    #[test]
    fn a_missing_or_invalid_sid_is_rejected_with_the_reason() {
        let why = |pairs: &[(&str, &str)]| read(Ids::Sid, &[RawEntry::from_texts("cn=a", pairs)]).pop();
        let is = |why: &str| Some(Err(why.to_owned()));
        assert_eq!(why(&[]), is("objectSid is missing, or hidden from Bursar"));
        assert_eq!(why(&[("objectSid", "x")]), is("objectSid 78 is not a SID"));
        assert_eq!(why(&[("objectSid", "S-1-5-21-1-2-3-4")]), is("primaryGroupID is missing, or hidden from Bursar"));
        let group = ("primaryGroupID", "x");
        assert_eq!(why(&[("objectSid", "S-1-5-21-1-2-3-4"), group]), is("primaryGroupID \"x\" is not a number"));
        let (system, group) = (("objectSid", "S-1-5-18"), ("primaryGroupID", "513"));
        assert_eq!(why(&[system, group]), is("S-1-5-18 belongs to no domain"));
    }

    #[test]
    fn an_incomplete_read_without_uid_numbers_decides_nothing() {
        let names = Preset::Ad.attributes();
        let posix = |accounts: &[RawEntry], ids| {
            let mapping = SidMapping { ids, ..SidMapping::default() };
            Numbers::of(&mapping, &names, &trees(AccountKind::User, accounts, false), None)
                .account(&accounts[0], &names)
        };
        let (plain, given) = (account(1103, &[]), account(1104, &GIVEN));
        assert_eq!(posix(std::slice::from_ref(&plain), Ids::Auto), Err(UNDECIDED.to_owned()));
        assert!(posix(std::slice::from_ref(&plain), Ids::Sid).is_ok());
        assert!(posix(&[given, plain], Ids::Auto).is_ok());
    }

    #[test]
    fn builtin_groups_and_distribution_lists_have_no_gid() {
        let names = Preset::Ad.attributes();
        let group = |sid, bits| RawEntry::from_texts("cn=a", &[("objectSid", sid), ("groupType", bits)]);
        let users = "S-1-5-21-123-456-789-513";
        let groups = [group("S-1-5-32-544", "-2147483643"), group(users, "-2147483646"), group(users, "2")];
        let numbers = Numbers::of(&SidMapping::default(), &names, &trees(AccountKind::Group, &groups, true), None);
        let gid = |at: usize| numbers.group(&groups[at], &names).map(|gid| gid.map(Gid::get));
        assert_eq!([gid(0), gid(1), gid(2)], [Ok(None), Ok(Some(SLICE + 513)), Ok(None)]);
    }
}
