//! Keeps members whom a group may name by a DN that Bursar does not know yet, because their entry was renamed after it
//! was read. Until the rename is proved or excluded, nobody leaves and nobody joins because of it.

use std::collections::BTreeSet;

use super::Memory;
use super::members::{Named, doubt_key, staying};
use crate::identity::{AccountId, DirectoryId};
use crate::ledger::Account;
use crate::ledger::doubt::{Doubt, Question};
use crate::ledger::people::PeopleByEntry;
use crate::snapshot::SourceRead;
use crate::snapshot::freshness::SETTLES;

impl Memory<'_> {
    /// Keeps and returns the members whom a group no longer names, if the group names an entry that the read lacks.
    /// That entry may be the member under a new DN. If the last complete read raised this doubt about a person already,
    /// the person leaves, because this read began after the rename.
    pub(super) fn renamed(&self, read: &SourceRead, named: &mut Named) -> BTreeSet<AccountId> {
        let mut renamed = BTreeSet::new();
        if !named.is_news || named.strange.is_empty() {
            return renamed;
        }
        let doubt = self.doubt_of_rename(read);
        for (holder, member, person) in self.unnamed(read, named, |holder| named.strange.contains(holder)) {
            if person.source == read.source && doubt.is_none_or(|doubt| !doubt.accounts.contains(&person.id)) {
                named.keep(&holder.directory_id, member);
                renamed.insert(person.id.clone());
            }
        }
        renamed
    }

    /// Like [`Self::renamed`], for members from another source. Another domain of the forest may learn a new DN earlier
    /// than the server that is asked for the member's own source, so only a later read of that source decides. Until
    /// then, nobody joins the group by a DN either, because the DN may be new for this member and old for another
    /// person.
    pub(super) fn renamed_elsewhere(&self, read: &SourceRead, named: &mut Named) -> BTreeSet<AccountId> {
        let mut renamed = BTreeSet::new();
        named.by_dn.retain(|_, new| !new.is_empty());
        if named.strange_dns.is_empty() && named.by_dn.is_empty() {
            return renamed;
        }
        let doubt = self.doubt_of_rename(read);
        let is_doubtful = |holder: &DirectoryId| named.strange_dns.contains(holder) || named.by_dn.contains_key(holder);
        for (holder, member, person) in self.unnamed(read, named, is_doubtful) {
            let id = &holder.directory_id;
            let known = doubt.filter(|doubt| doubt.accounts.contains(&person.id));
            let may_be_meant = named.is_news || known.is_some() || named.by_dn.contains_key(id);
            let is_excluded = known.is_some_and(|doubt| self.was_read_since(&person.source, doubt));
            if person.source == read.source || !may_be_meant || is_excluded {
                continue;
            }
            named.keep(id, member);
            renamed.insert(person.id.clone());
            if let (Some(members), Some(new)) = (named.elsewhere.get_mut(id), named.by_dn.get(id)) {
                members.retain(|member, _| !new.contains(member));
            }
        }
        renamed
    }

    /// Returns the members whom their group or tool no longer names and who are not leaving yet. Only groups and tools
    /// for which `by` is true count.
    fn unnamed<'m>(
        &'m self,
        read: &'m SourceRead,
        named: &Named,
        by: impl Fn(&DirectoryId) -> bool,
    ) -> Vec<(&'m Account, &'m DirectoryId, &'m Account)> {
        let people = self.people.get_or_init(|| PeopleByEntry::of(self.ledger));
        let shown = read.entries.iter().map(|entry| (&entry.id, entry.members.keys().collect()));
        let rejected = read.rejected.iter().filter_map(|entry| entry.id.as_ref());
        let rejected = rejected.filter_map(|id| Some((id, read.nesting.members(id)?)));
        let mut unnamed = Vec::new();
        for (id, members) in shown.chain(rejected).filter(|(id, _)| by(id)) {
            let members: BTreeSet<&DirectoryId> = members;
            let Some(holder) = self.known.get(&(read.source.as_str(), id)).copied() else { continue };
            let gone = staying(holder).filter(|member| !members.contains(member) && !named.has(id, member));
            unnamed.extend(gone.filter_map(|member| Some((holder, member, people.get(holder, member)?))));
        }
        unnamed
    }

    fn doubt_of_rename(&self, read: &SourceRead) -> Option<&Doubt> {
        self.ledger.doubts.get(&doubt_key(read, Question::Renamed))
    }

    /// Whether a complete read of the source has decided the doubt: the read is newer than the doubt by at least the
    /// time that the source's servers may be behind. If the source is no longer configured, returns true.
    fn was_read_since(&self, source: &str, doubt: &Doubt) -> bool {
        let is_configured = self.judged.contains_key(source) || self.snapshot.unasked.contains(source);
        let read = self.ledger.sources.get(source).and_then(|known| known.complete_at);
        !is_configured || read.is_some_and(|at| at.duration_since(doubt.since) >= SETTLES)
    }
}
