//! Who stays a member: the members of groups that became empty all at once, and members that are named but have no
//! entry in the read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::Memory;
use crate::identity::{AccountKind, AccountName, DirectoryId};
use crate::ledger::{Account, Lifecycle, Unresolved, UnresolvedIn};
use crate::policy::When;
use crate::snapshot::dn::Dn;
use crate::snapshot::named::MemberName;
use crate::snapshot::{Entry, Role, SourceRead};

/// What is known of members that no entry of the read answers to.
#[derive(Default)]
pub(super) struct Named {
    /// The members that a group or tool keeps, because their own absence is not due yet.
    pub(super) kept: BTreeMap<DirectoryId, BTreeSet<DirectoryId>>,
    /// The members that another domain of the forest has, by the group or tool that names them.
    elsewhere: BTreeMap<DirectoryId, BTreeMap<DirectoryId, Role>>,
    /// The names that no source has an entry of.
    pub(super) unresolved: Unresolved,
}

impl Named {
    /// `entry` with its members from other domains.
    pub(super) fn with_members_elsewhere<'e>(&self, entry: &'e Entry) -> Cow<'e, Entry> {
        let Some(elsewhere) = self.elsewhere.get(&entry.id) else { return Cow::Borrowed(entry) };
        let mut whole = entry.clone();
        for (member, role) in elsewhere {
            let known = whole.members.entry(member.clone()).or_insert(*role);
            *known = (*known).max(*role);
        }
        Cow::Owned(whole)
    }
}

impl Memory<'_> {
    /// Groups that show nobody, though members of theirs whom the ledger knows are in the same read: an access rule hides
    /// them, or a plugin lost them. One may be emptied, and so may several that had one and the same member.
    pub(super) fn emptied(&self, read: &SourceRead) -> Option<String> {
        if self.ledger.marks.get(&read.source).is_some_and(|mark| mark.accepted) {
            return None;
        }
        let empty = read.entries.iter().filter(|entry| entry.kind != AccountKind::User && entry.members.is_empty());
        let lost = empty.filter_map(|entry| self.known.get(&(read.source.as_str(), &entry.id)));
        let lost: Vec<_> = lost.filter(|account| staying(account).next().is_some()).collect();
        if lost.len() < 2 {
            return None;
        }
        // A group of one domain may have members of another.
        let elsewhere = self.ledger.accounts.values().filter(|account| {
            account.source != read.source && account.absence.is_none() && account.state != Lifecycle::Deleted
        });
        let shown = read.entries.iter().map(|entry| &entry.id);
        let present: BTreeSet<&DirectoryId> = shown.chain(elsewhere.map(|account| &account.directory_id)).collect();
        let (mut groups, mut people) = (Vec::new(), BTreeSet::new());
        for account in lost {
            let still: Vec<&DirectoryId> = staying(account).filter(|member| present.contains(member)).collect();
            if !still.is_empty() {
                groups.push(account.account_name().to_string());
                people.extend(still);
            }
        }
        (groups.len() > 1 && people.len() > 1).then(|| {
            format!(
                "{} groups show no member at once, where the ledger knows some, such as {}; if they are really empty: bursar \
                 directory accept {}",
                groups.len(),
                groups[0],
                read.source
            )
        })
    }

    /// Whether a group that selects a class has become empty. An account that leaves a class for this reason has the
    /// grace period of an absence.
    pub(super) fn is_emptied(&self, account: &Account, entry: &Entry) -> bool {
        let selects = |group: &str| group == entry.name || group == account.name;
        let classes = || self.policy.classes.values();
        entry.kind == AccountKind::Group
            && entry.members.is_empty()
            && staying(account).next().is_some()
            && classes().any(|class| matches!(&class.when, Some(When::Group(group)) if selects(group)))
            && account.absence.map_or(0, |absence| absence.seconds) < self.policy.lifecycle.absent_for.as_secs()
    }

    /// Looks up in the ledger whom the names without an entry mean: accounts of this source that are missing and keep
    /// their membership until their absence is due, and accounts of other domains of its forest, whose DNs and SIDs no
    /// other account has.
    pub(super) fn named_members(&self, read: &SourceRead) -> Named {
        let mut named = Named::default();
        if read.dangling.members.is_empty() {
            return named;
        }
        let present: BTreeSet<&DirectoryId> = read.entries.iter().map(|entry| &entry.id).collect();
        let is_of_forest = read.entries.iter().any(|entry| entry.sid.is_some());
        let limit = self.policy.lifecycle.absent_for.as_secs();
        let is_there = |account: &&Account| {
            account.state != Lifecycle::Deleted && account.absence.map_or(0, |absence| absence.seconds) < limit
        };
        let domains = self.domains();
        let mut unresolved: BTreeSet<&MemberName> = read.dangling.members.keys().collect();
        for account in self.ledger.accounts.values().filter(is_there) {
            let dn = Dn::parse(&account.dn);
            let by_dn = || MemberName::Dn(dn.canonical().to_owned());
            let called = if account.source != read.source {
                let Some(sid) = account.sid.as_ref().filter(|_| is_of_forest) else { continue };
                // Forests that do not trust each other may have one and the same suffix.
                let is_unique = domains.get(suffix(&dn)).is_some_and(|sids| sids.len() == 1);
                [is_unique.then(by_dn), Some(MemberName::Sid(sid.clone()))]
            } else if present.contains(&account.directory_id) {
                continue;
            } else {
                [Some(by_dn()), Some(MemberName::Name(account.name.clone()))]
            };
            for name in called.iter().flatten() {
                unresolved.remove(name);
                for (holder, role) in read.dangling.holders(name) {
                    // What the source says now may be another account: its last read must be whole before anybody joins.
                    let known = self.known.get(&(read.source.as_str(), holder));
                    let is_member = |id: &DirectoryId| known.is_some_and(|known| known.members.contains_key(id));
                    let may_join = account.source == read.source || self.is_proved(&account.source);
                    named.add(&read.source, holder, account, role, |id: &DirectoryId| may_join || is_member(id));
                }
            }
        }
        named.unresolved = counted(read, &unresolved);
        named
    }

    /// The SIDs of the domains that have accounts beneath each suffix.
    fn domains(&self) -> BTreeMap<String, BTreeSet<&str>> {
        let known = self.ledger.accounts.values().filter(|account| account.state != Lifecycle::Deleted);
        let known = known.filter_map(|account| Some((account.dn.as_str(), account.sid.as_deref()?)));
        let entries = self.snapshot.reads.iter().flat_map(|read| &read.entries);
        let shown = entries.filter_map(|entry| Some((entry.dn.as_str(), entry.sid.as_deref()?)));
        let mut domains: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
        for (dn, sid) in known.chain(shown) {
            let domain = sid.rsplit_once('-').map_or(sid, |(domain, _)| domain);
            domains.entry(suffix(&Dn::parse(dn)).to_owned()).or_default().insert(domain);
        }
        domains
    }
}

/// The DN of the domain: what begins with the first `dc`.
fn suffix(dn: &Dn) -> &str {
    let text = dn.canonical();
    if text.starts_with("dc=") { text } else { text.find(",dc=").map_or("", |at| &text[at + 1..]) }
}

impl Named {
    /// A group stands for its members.
    fn add(
        &mut self,
        source: &str,
        holder: &DirectoryId,
        account: &Account,
        role: Role,
        may: impl Fn(&DirectoryId) -> bool,
    ) {
        let nested = staying(account).filter(|member| account.kind == AccountKind::Group && may(member));
        if account.source == source {
            let kept = self.kept.entry(holder.clone()).or_default();
            kept.insert(account.directory_id.clone());
            kept.extend(nested.cloned());
            return;
        }
        let members = self.elsewhere.entry(holder.clone()).or_default();
        if account.kind == AccountKind::User && may(&account.directory_id) {
            members.insert(account.directory_id.clone(), role);
        }
        for member in nested {
            members.entry(member.clone()).or_insert(Role::Member);
        }
    }
}

/// How many of `names` each group and tool names.
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
    Unresolved { groups, members, examples }
}

/// Members whose leaving is not proved yet.
pub(super) fn staying(account: &Account) -> impl Iterator<Item = &DirectoryId> {
    account.members.keys().filter(|member| !account.leaving.contains(member))
}
