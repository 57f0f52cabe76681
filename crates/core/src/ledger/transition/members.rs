//! Who stays a member: the members of groups that became empty all at once, and members that are named but have no
//! entry.

use std::collections::{BTreeMap, BTreeSet};

use super::Memory;
use crate::identity::{AccountKind, DirectoryId};
use crate::ledger::{Account, Lifecycle};
use crate::policy::When;
use crate::snapshot::dn::Dn;
use crate::snapshot::named::MemberName;
use crate::snapshot::{Entry, SourceRead};

/// Members that a group or tool keeps though no entry of the read answers to their names.
pub(super) type Kept = BTreeMap<DirectoryId, BTreeSet<DirectoryId>>;

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
        let present: BTreeSet<&DirectoryId> = read.entries.iter().map(|entry| &entry.id).collect();
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

    /// The accounts that keep a membership because the group still names them and their own absence is not due yet.
    pub(super) fn kept_members(&self, read: &SourceRead) -> Kept {
        let mut kept = Kept::new();
        if read.dangling.members.is_empty() {
            return kept;
        }
        let present: BTreeSet<&DirectoryId> = read.entries.iter().map(|entry| &entry.id).collect();
        let limit = self.policy.lifecycle.absent_for.as_secs();
        let waits = |account: &&Account| {
            account.source == read.source
                && account.state != Lifecycle::Deleted
                && !present.contains(&account.directory_id)
                && account.absence.map_or(0, |absence| absence.seconds) < limit
        };
        for account in self.ledger.accounts.values().filter(waits) {
            let names =
                [MemberName::Dn(Dn::parse(&account.dn).canonical().to_owned()), MemberName::Name(account.name.clone())];
            let holders: BTreeSet<&DirectoryId> = names.iter().flat_map(|name| read.dangling.holders(name)).collect();
            for holder in holders {
                let members = kept.entry(holder.clone()).or_default();
                members.insert(account.directory_id.clone());
                if account.kind == AccountKind::Group {
                    members.extend(staying(account).cloned());
                }
            }
        }
        kept
    }
}

/// Members whose leaving is not proved yet.
fn staying(account: &Account) -> impl Iterator<Item = &DirectoryId> {
    account.members.keys().filter(|member| !account.leaving.contains(member))
}
