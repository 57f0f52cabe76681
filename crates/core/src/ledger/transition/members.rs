//! Decides who stays a member: handles groups that became empty in the same read, and members who are named but have no
//! entry in the read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashSet;
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

use super::Memory;
use super::waiting::Believed;
use crate::identity::{AccountId, AccountKind, AccountName, DirectoryId, Gid, kubernetes_name};
use crate::ledger::change::Change;
use crate::ledger::doubt::{Doubt, DoubtKey, Question};
use crate::ledger::{Account, Lifecycle, Unresolved, UnresolvedIn};
use crate::policy::When;
use crate::snapshot::dn::Dn;
use crate::snapshot::named::MemberName;
use crate::snapshot::{Entry, Role, SourceRead};

/// Named members for which the read has no entry.
#[derive(Default)]
pub(super) struct Named {
    /// The members that a group or tool keeps, because their own absence is not due yet.
    pub(super) kept: BTreeMap<DirectoryId, BTreeSet<DirectoryId>>,
    /// The members in other domains of the forest, by the group or tool that names them.
    pub(super) elsewhere: BTreeMap<DirectoryId, BTreeMap<DirectoryId, Role>>,
    /// The gids of the groups that keep a member, by member.
    pub(super) gids: BTreeMap<DirectoryId, BTreeSet<Gid>>,
    /// The members, by group or tool, who do not join, because the group may mean another account.
    pub(super) withheld: BTreeMap<DirectoryId, BTreeSet<DirectoryId>>,
    /// The gids, by entry, that the entry does not gain, because the group may mean another account.
    pub(super) withheld_gids: BTreeMap<DirectoryId, BTreeSet<Gid>>,
    /// The names for which no source has an entry.
    pub(super) unresolved: Unresolved,
    /// The groups that show no member, and whose members stay until an administrator decides.
    pub(super) emptied: BTreeSet<DirectoryId>,
    /// The groups and tools that name a DN or a name that belongs to no account. Some member may have got this DN or
    /// name recently.
    pub(super) strange: BTreeSet<DirectoryId>,
    /// The groups and tools in `strange` that name such a DN. SIDs do not count, because a SID stays the same when its
    /// account is renamed.
    pub(super) strange_dns: BTreeSet<DirectoryId>,
    /// Whether the names without an entry differ from those in the last read.
    pub(super) is_news: bool,
    /// The people of other domains who would join a group or tool because of a DN.
    pub(super) by_dn: BTreeMap<DirectoryId, BTreeSet<DirectoryId>>,
}

/// Entries that cannot be identified by their name, because another account has or had the name. Groups that list names
/// may mean the other account. The value is the other account's id, if its entry is missing.
pub(super) type Misnamed = BTreeMap<DirectoryId, Option<DirectoryId>>;

impl Named {
    /// Whether a group or tool still names `member`, although the read has no entry for it.
    pub(super) fn has(&self, holder: &DirectoryId, member: &DirectoryId) -> bool {
        self.kept.get(holder).is_some_and(|kept| kept.contains(member))
            || self.elsewhere.get(holder).is_some_and(|members| members.contains_key(member))
    }

    /// Whether a member keeps a gid that it has, although the read does not give it.
    pub(super) fn keeps_gid(&self, member: &DirectoryId, gid: Gid) -> bool {
        self.gids.get(member).is_some_and(|kept| kept.contains(&gid))
    }

    /// Lets `holder` keep a member.
    pub(super) fn keep(&mut self, holder: &DirectoryId, member: &DirectoryId) {
        self.kept.entry(holder.clone()).or_default().insert(member.clone());
    }

    /// Returns `entry` with the members from other domains, and without members and gids that it may not gain.
    pub(super) fn settled<'e>(&self, entry: &'e Entry, known: Option<&Account>) -> Cow<'e, Entry> {
        let (elsewhere, withheld) = (self.elsewhere.get(&entry.id), self.withheld.get(&entry.id));
        let gids = self.withheld_gids.get(&entry.id);
        if elsewhere.is_none() && withheld.is_none() && gids.is_none() {
            return Cow::Borrowed(entry);
        }
        let mut whole = entry.clone();
        for (member, role) in elsewhere.into_iter().flatten() {
            let known = whole.members.entry(member.clone()).or_insert(*role);
            *known = (*known).max(*role);
        }
        for member in withheld.into_iter().flatten() {
            match known.and_then(|account| role(account, member)) {
                Some(before) => whole.members.insert(member.clone(), before),
                None => whole.members.remove(member),
            };
        }
        if let (Some(posix), Some(gids)) = (&mut whole.posix, gids) {
            posix.groups.retain(|gid| !gids.contains(gid));
        }
        Cow::Owned(whole)
    }
}

impl Memory<'_> {
    /// Returns why a read is only partial: an access rule hides the members of groups, or a plugin lost them. A person
    /// who may create groups in one place can also empty many groups there, so the groups of each place are counted
    /// separately.
    pub(super) fn hidden_members(&self, read: &SourceRead) -> Option<String> {
        let emptied = self.emptied(read);
        let example = emptied.first()?.account_name();
        let mut places: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        let parent = |account: &Account| Dn::parse(&account.dn).parent().to_owned();
        for account in &emptied {
            places.entry(parent(account)).or_default().0 += 1;
        }
        for entry in read.entries.iter().filter(|entry| entry.kind != AccountKind::User && !entry.members.is_empty()) {
            let known = self.known.get(&(read.source.as_str(), &entry.id));
            if let Some(account) = known.filter(|account| staying(account).next().is_some()) {
                places.entry(parent(account)).or_default().1 += 1;
            }
        }
        places.values().all(|(emptied, shown)| emptied >= shown).then(|| {
            format!(
                "{} groups became empty in the same read, but the ledger knows members, for example of {example}; if they are \
                 really empty, run: bursar directory accept {} --reason TEXT",
                emptied.len(),
                read.source
            )
        })
    }

    /// Returns the groups that show no members, although some of their known members are in the read. If there is only
    /// one such group, or all of them had the same single member, returns none, because this also happens in a correct
    /// read. Rejected groups do not count, because a rejected group that shows no members keeps all of them.
    fn emptied(&self, read: &SourceRead) -> Vec<&Account> {
        if self.is_accepted(read) {
            return Vec::new();
        }
        let empty = read.entries.iter().filter(|entry| entry.kind != AccountKind::User && entry.members.is_empty());
        let lost = empty.filter_map(|entry| self.known.get(&(read.source.as_str(), &entry.id)).copied());
        let lost: Vec<&Account> = lost.filter(|account| staying(account).next().is_some()).collect();
        if lost.len() < 2 {
            return Vec::new();
        }
        // A group in one domain may have members in another.
        let elsewhere = self.ledger.accounts.values().filter(|account| {
            account.source != read.source && account.absence.is_none() && account.state != Lifecycle::Deleted
        });
        let rejected = read.rejected.iter().filter_map(|entry| entry.id.as_ref());
        let shown = read.entries.iter().map(|entry| &entry.id).chain(rejected);
        let present: BTreeSet<&DirectoryId> = shown.chain(elsewhere.map(|account| &account.directory_id)).collect();
        let (mut groups, mut people) = (Vec::new(), BTreeSet::new());
        for account in lost {
            let still: Vec<&DirectoryId> = staying(account).filter(|member| present.contains(member)).collect();
            if !still.is_empty() {
                groups.push(account);
                people.extend(still);
            }
        }
        if groups.len() > 1 && people.len() > 1 { groups } else { Vec::new() }
    }

    /// Keeps the members whose leaving is doubted, in a complete read. There are two reasons for such a doubt: several
    /// groups became empty in the same read, or the member's entry may have been renamed after it was read, so that the
    /// group names the member by a new DN. `elsewhere` are people of other domains whose entry may have been renamed.
    pub(super) fn doubt_leavings(&mut self, read: &SourceRead, named: &mut Named, elsewhere: BTreeSet<AccountId>) {
        let mut emptied = BTreeSet::new();
        for holder in self.emptied(read) {
            emptied.insert(holder.id.clone());
            named.emptied.insert(holder.directory_id.clone());
            staying(holder).for_each(|member| named.keep(&holder.directory_id, member));
        }
        let mut renamed = self.renamed(read, named);
        renamed.extend(elsewhere);
        self.doubt_members(read, Question::Emptied, emptied);
        self.doubt_members(read, Question::Renamed, renamed);
    }

    fn doubt_members(&mut self, read: &SourceRead, question: Question, accounts: BTreeSet<AccountId>) {
        let key = doubt_key(read, question);
        if accounts.is_empty() {
            return self.believe(key);
        }
        let known = self.ledger.doubts.get(&key);
        let same = known.filter(|known| !known.accounts.is_disjoint(&accounts));
        let since = same.map_or(self.now, |known| known.since);
        let doubt = Doubt { since, before: accounts.len() as u64, now: 0, accounts, proof: None, counted: None };
        if known != Some(&doubt) {
            self.result.changes.push(Change::Doubt(key, Some(doubt)));
        }
    }

    /// Records the gids of the groups that keep a member.
    pub(super) fn note_gids(&self, read: &SourceRead, named: &mut Named) {
        if named.kept.is_empty() {
            return;
        }
        let rejected = read.rejected.iter().filter_map(|entry| {
            let holder = self.known.get(&(read.source.as_str(), entry.id.as_ref()?))?;
            Some((entry.id.as_ref()?, gid_of(holder)?))
        });
        let shown = read.entries.iter().filter_map(|entry| Some((&entry.id, own_gid(entry)?)));
        for (holder, gid) in shown.chain(rejected) {
            for member in named.kept.get(holder).into_iter().flatten() {
                named.gids.entry(member.clone()).or_default().insert(gid);
            }
        }
    }

    /// Whether a group that selects a class has become empty. Accounts that leave the class for this reason get the
    /// grace period of an absence.
    pub(super) fn is_emptied(&self, account: &Account, Believed { entry, names, .. }: &Believed<'_>) -> bool {
        let selects = |group: &str| group == entry.name || group == account.name;
        let classes = || self.policy.classes.values();
        entry.kind == AccountKind::Group
            && names.is_empty()
            && staying(account).next().is_some()
            && classes().any(|class| matches!(&class.when, Some(When::Group(group)) if selects(group)))
            && account.absence.map_or(0, |absence| absence.seconds) < self.policy.lifecycle.absent_for.as_secs()
    }

    /// Returns the entries that have the name of another account, and rejected entries whose name differs from their
    /// account's name.
    pub(super) fn misnamed(
        &self,
        read: &SourceRead,
        known: &[Option<&Account>],
        present: &HashSet<&DirectoryId>,
    ) -> Misnamed {
        let limit = self.policy.lifecycle.absent_for.as_secs();
        let missing = |owner: &Account| {
            let is_missing = owner.source == read.source && !present.contains(&owner.directory_id);
            let is_due = owner.absence.is_some_and(|absence| absence.seconds >= limit);
            (is_missing && !is_due).then(|| owner.directory_id.clone())
        };
        let mut misnamed = Misnamed::new();
        for (entry, account) in read.entries.iter().zip(known).filter(|(entry, _)| entry.kind != AccountKind::Group) {
            let owner = match account {
                Some(account) if account.name == entry.name => continue,
                Some(account) => self.bearer(entry.kind, &entry.name, Some(&account.id)),
                None => self.other_of_the_name(entry),
            };
            misnamed.extend(owner.map(|owner| (entry.id.clone(), missing(owner))));
        }
        for rejected in read.rejected.iter().filter(|rejected| rejected.kind != AccountKind::Group) {
            let (Some(id), Some(name)) = (&rejected.id, &rejected.name) else { continue };
            let account = self.known.get(&(read.source.as_str(), id));
            let owner = self.bearer(rejected.kind, name, account.map(|account| &account.id));
            if account.map_or(owner.is_some(), |account| account.name != *name) {
                misnamed.insert(id.clone(), owner.and_then(missing));
            }
        }
        misnamed
    }

    /// Returns the account that already has the name of a new entry, unless an order gives the account to that entry.
    fn other_of_the_name(&self, entry: &Entry) -> Option<&Account> {
        let named = self.named(entry.kind, &kubernetes_name(&entry.name)).and_then(|id| self.ledger.accounts.get(id));
        let owner = named.or_else(|| self.bearer(entry.kind, &entry.name, None))?;
        self.adoption(&owner.id, &entry.id).is_none().then_some(owner)
    }

    /// Finds the accounts that a group or tool may mean by a name without an entry. Accounts of this source that are
    /// missing, renamed or ambiguous stay members until their absence is due. Accounts in other domains of the forest
    /// are members. Nobody joins by a DN or SID that may also mean another account.
    pub(super) fn named_members(&self, read: &SourceRead) -> Named {
        let mut named = Named { gids: read.kept_gids.clone(), ..Named::default() };
        if read.dangling.members.is_empty() {
            return named;
        }
        let is_of_forest = read.entries.iter().any(|entry| entry.sid.is_some());
        let limit = self.policy.lifecycle.absent_for.as_secs();
        let is_there = |account: &&Account| {
            account.state != Lifecycle::Deleted && account.absence.map_or(0, |absence| absence.seconds) < limit
        };
        let (domains, disputed) = (self.domains(read), self.disputed(read));
        let mut unresolved: BTreeSet<&MemberName> = read.dangling.members.keys().collect();
        for account in self.ledger.accounts.values().filter(is_there) {
            // Each name of the account, and whether the account may become a member by this name.
            let dn = Dn::parse(&account.dn);
            let by_dn = MemberName::Dn(dn.canonical().to_owned());
            let former = account.former_dns.iter().filter(|(_, until)| is_recent(**until, self.now));
            let former = former.filter_map(|(former, _)| Some((called_formerly(read, account.kind, former)?, false)));
            let called: Vec<(MemberName, bool)> = if account.source == read.source {
                // Within a source, these names only keep members, because an account with an entry joins by its entry.
                let by_name = read.labels.member_name(account.kind, &account.name).map(MemberName::Name);
                [by_dn].into_iter().chain(by_name).map(|name| (name, true)).chain(former).collect()
            } else {
                let Some(sid) = account.sid.as_ref().filter(|_| is_of_forest) else { continue };
                // The other source may now use the name for another account, so its last read must be complete before
                // anybody joins.
                let is_sure = self.is_proved(&account.source) && domains.is_of_one_source(sid);
                let is_its_own = is_sure
                    && domains.is_of_one_domain(&dn)
                    && disputed.get(&by_dn).is_none_or(|ids| ids.iter().all(|id| *id == &account.directory_id));
                let by_sid = (MemberName::Sid(sid.clone()), is_sure);
                [(by_dn, is_its_own), by_sid].into_iter().chain(former).collect()
            };
            for (name, may_join) in &called {
                for (holder, role) in read.dangling.holders(name) {
                    let known = self.known.get(&(read.source.as_str(), holder));
                    let is_member = |id: &DirectoryId| known.is_some_and(|known| known.members.contains_key(id));
                    if named.add(&read.source, holder, account, role, |id| *may_join || is_member(id)) {
                        unresolved.remove(name);
                    }
                    if *may_join && matches!(name, MemberName::Dn(_)) && account.source != read.source {
                        let person = Some(&account.directory_id).filter(|_| account.kind == AccountKind::User);
                        let nested = staying(account).filter(|_| account.kind == AccountKind::Group);
                        let new = nested.chain(person).filter(|id| !is_member(id));
                        named.by_dn.entry(holder.clone()).or_default().extend(new.cloned());
                    }
                }
            }
        }
        named.unresolved = counted(read, &unresolved);
        let before = self.ledger.sources.get(&read.source).map(|known| known.unresolved.digest.as_str());
        named.is_news = named.unresolved.digest != before.unwrap_or_default();
        if named.is_news || self.ledger.doubts.contains_key(&doubt_key(read, Question::Renamed)) {
            let known = self.known_names();
            for name in unresolved.iter().filter(|name| !known.contains(name)) {
                let holders: Vec<_> = read.dangling.holders(name).into_keys().cloned().collect();
                if matches!(name, MemberName::Dn(_)) {
                    named.strange_dns.extend(holders.iter().cloned());
                }
                named.strange.extend(holders);
            }
        }
        named
    }

    /// Returns the names that accounts already have, which therefore cannot be the new name of a renamed account.
    fn known_names(&self) -> BTreeSet<MemberName> {
        let names = self.ledger.accounts.values().flat_map(|account| {
            let names = [MemberName::of(&Dn::parse(&account.dn)), MemberName::Name(account.name.clone())];
            names.into_iter().chain(account.sid.clone().map(MemberName::Sid))
        });
        names.collect()
    }

    /// Returns the domains of all accounts.
    fn domains(&self, read: &SourceRead) -> Domains {
        let configured: BTreeSet<&str> = self.snapshot.reads.iter().map(|read| read.source.as_str()).collect();
        let is_configured = |source: &str| configured.contains(source) || self.snapshot.unasked.contains(source);
        let known = self.ledger.accounts.values();
        let known = known.filter(|account| account.state != Lifecycle::Deleted && is_configured(&account.source));
        let known = known.map(|account| (account.source.as_str(), account.dn.as_str(), account.sid.as_deref()));
        let shown = self.snapshot.reads.iter().chain([read]).flat_map(|read| {
            read.entries.iter().map(|entry| (read.source.as_str(), entry.dn.as_str(), entry.sid.as_deref()))
        });
        let mut domains = Domains::default();
        for (source, dn, sid) in known.chain(shown) {
            let Some(sid) = sid else { continue };
            let of = domains.sources.entry(domain(sid).to_owned()).or_default();
            if !of.contains(source) {
                of.insert(source.to_owned());
            }
            domains.suffixes.entry(suffix(&Dn::parse(dn)).to_owned()).or_default().insert(domain(sid).to_owned());
        }
        domains
    }

    /// Returns the entries that had, or should get, a DN that names a member without an entry. The DN may mean any of
    /// these entries.
    fn disputed(&self, read: &SourceRead) -> BTreeMap<MemberName, BTreeSet<&DirectoryId>> {
        let former = self.ledger.accounts.values().flat_map(|account| {
            let recent = account.former_dns.iter().filter(|(_, until)| is_recent(**until, self.now));
            recent.map(|(dn, _)| (dn, &account.directory_id))
        });
        let rejected = self.snapshot.reads.iter().flat_map(|read| &read.rejected).chain(&self.ledger.rejected);
        let rejected = rejected.filter_map(|entry| Some((&entry.dn, entry.id.as_ref()?)));
        let mut disputed: BTreeMap<MemberName, BTreeSet<&DirectoryId>> = BTreeMap::new();
        for (dn, id) in former.chain(rejected) {
            let name = MemberName::Dn(Dn::parse(dn).canonical().to_owned());
            if read.dangling.members.contains_key(&name) {
                disputed.entry(name).or_default().insert(id);
            }
        }
        disputed
    }
}

/// The sources and the DN suffixes of each domain.
#[derive(Default)]
struct Domains {
    /// Sources, by the SID of the domain.
    sources: BTreeMap<String, BTreeSet<String>>,
    /// SIDs of domains, by the DN suffix of their accounts.
    suffixes: BTreeMap<String, BTreeSet<String>>,
}

impl Domains {
    /// Whether a single source has accounts of this domain. A copy of a domain has the same SIDs, and gives them to
    /// other accounts.
    fn is_of_one_source(&self, sid: &str) -> bool {
        self.sources.get(domain(sid)).is_some_and(|sources| sources.len() == 1)
    }

    /// Whether a single domain has this suffix. Two forests that do not trust each other may have domains with the same
    /// suffix.
    fn is_of_one_domain(&self, dn: &Dn) -> bool {
        self.suffixes.get(suffix(dn)).is_some_and(|domains| domains.len() == 1)
    }
}

/// Returns the SID of the domain of an account.
fn domain(sid: &str) -> &str {
    sid.rsplit_once('-').map_or(sid, |(domain, _)| domain)
}

/// How long a former DN or name may still mean the account. Other domains learn the new DN by replication, and their
/// infrastructure masters compare names every two days. A week covers a weekend on which an infrastructure master is
/// down.
const FORMER: SignedDuration = SignedDuration::from_hours(7 * 24);

pub(super) fn is_recent(until: Timestamp, now: Timestamp) -> bool {
    now.duration_since(until).abs() < FORMER
}

/// Returns the former DNs and names that groups may still use for the account after it was seen as `entry` with the
/// name `name`. Servers update groups later than the entry, or never, and other domains even later.
pub(super) fn former_names(
    account: &Account,
    entry: &Entry,
    name: &str,
    now: Timestamp,
) -> BTreeMap<String, Timestamp> {
    let mut former = account.former_dns.clone();
    let is_moved = account.dn != entry.dn;
    let is_renamed = account.name != name && account.kind != AccountKind::Group;
    if account.directory_id == entry.id && (is_moved || is_renamed) {
        former.retain(|former, until| *former != entry.dn && former != name && is_recent(*until, now));
        let both = [(is_moved, &account.dn), (is_renamed, &account.name)];
        former.extend(both.into_iter().filter(|(is_other, _)| *is_other).map(|(_, former)| (former.clone(), now)));
    }
    former
}

/// Turns a former DN or name of an account into the name of a member, if groups can use it. Every DN contains `=`, so a
/// plain name with `=` matches nobody.
pub(super) fn called_formerly(read: &SourceRead, kind: AccountKind, former: &str) -> Option<MemberName> {
    if former.contains('=') {
        return Some(MemberName::Dn(Dn::parse(former).canonical().to_owned()));
    }
    read.labels.member_name(kind, former).map(MemberName::Name)
}

/// Returns the gid that a group or tool gives its members. A tool gives the gid of its group.
fn own_gid(entry: &Entry) -> Option<Gid> {
    entry.gid.or_else(|| entry.posix.as_ref().map(|posix| posix.gid)).filter(|_| entry.kind != AccountKind::User)
}

/// Returns the last known gid that a group or tool gives its members.
pub(super) fn gid_of(holder: &Account) -> Option<Gid> {
    let gid = holder.gid.or_else(|| holder.posix.as_ref().map(|posix| posix.gid));
    gid.filter(|_| holder.kind != AccountKind::User)
}

/// Returns the DN of the domain, which begins at the first `dc`.
fn suffix(dn: &Dn) -> &str {
    let text = dn.canonical();
    if text.starts_with("dc=") { text } else { text.find(",dc=").map_or("", |at| &text[at + 1..]) }
}

impl Named {
    /// Adds `account` to the members of `holder`. If `account` is a group, adds its members instead. Returns whether
    /// there was anybody to add.
    fn add(
        &mut self,
        source: &str,
        holder: &DirectoryId,
        account: &Account,
        role: Role,
        may: impl Fn(&DirectoryId) -> bool,
    ) -> bool {
        let nested = staying(account).filter(|member| account.kind == AccountKind::Group && may(member));
        if account.source == source {
            let kept = self.kept.entry(holder.clone()).or_default();
            kept.insert(account.directory_id.clone());
            kept.extend(nested.cloned());
            return true;
        }
        let members = self.elsewhere.entry(holder.clone()).or_default();
        let mut is_anybody = account.kind == AccountKind::Group;
        if account.kind == AccountKind::User && may(&account.directory_id) {
            members.insert(account.directory_id.clone(), role);
            is_anybody = true;
        }
        for member in nested {
            members.entry(member.clone()).or_insert(Role::Member);
        }
        is_anybody
    }
}

/// Counts how many of `names` each group and tool contains.
fn counted(read: &SourceRead, names: &BTreeSet<&MemberName>) -> Unresolved {
    let mut by_holder: BTreeMap<&DirectoryId, (u64, &MemberName)> = BTreeMap::new();
    for name in names {
        for holder in read.dangling.members.get(name).into_iter().flat_map(BTreeMap::keys) {
            by_holder.entry(holder).or_insert((0, name)).0 += 1;
        }
    }
    let groups = read.entries.iter().filter_map(|entry| {
        let (members, example) = by_holder.get(&entry.id)?;
        let group = AccountName { kind: entry.kind, name: entry.name.clone() };
        Some(UnresolvedIn { group, members: *members, example: example.to_string() })
    });
    let mut examples: Vec<UnresolvedIn> = groups.collect();
    let (groups, members) = (examples.len() as u64, examples.iter().map(|group| group.members).sum());
    examples.sort_by(|one, other| (other.members, &one.group).cmp(&(one.members, &other.group)));
    examples.truncate(Unresolved::EXAMPLES);
    Unresolved { groups, members, examples, digest: digest(read, names) }
}

/// Returns a digest of `names` and of the groups and tools that contain each of them.
fn digest(read: &SourceRead, names: &BTreeSet<&MemberName>) -> String {
    let mut hash = Sha256::new();
    for name in names {
        hash.update(format!("{name:?}\n"));
        for holder in read.dangling.members.get(name).into_iter().flatten() {
            hash.update(format!("{holder:?}\n"));
        }
    }
    if names.is_empty() { String::new() } else { hex::encode(&hash.finalize()[..16]) }
}

pub(super) fn doubt_key(read: &SourceRead, question: Question) -> DoubtKey {
    DoubtKey { source: read.source.clone(), kind: AccountKind::Group, question }
}

/// Returns the members whose leaving is not proved yet.
pub(super) fn staying(account: &Account) -> impl Iterator<Item = &DirectoryId> {
    account.members.keys().filter(|member| !account.leaving.contains(member))
}

/// Returns the role of a member who is not leaving.
pub(super) fn role(account: &Account, member: &DirectoryId) -> Option<Role> {
    account.members.get(member).copied().filter(|_| !account.leaving.contains(member))
}
