//! What a server has told of its trees since they were first read whole: every entry by its immutable id, as it last
//! was. It gives what a full read would. PURE: no runtime, no client, no file system, no clock.
//!
//! All changes up to one moment are gathered in [`News`] and applied as a whole, to a mirror that stands beside the
//! previous one: if gathering breaks off, nothing is half done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bursar_core::identity::AccountKind;

use crate::entry::assemble::{RawRead, RawTree};
use crate::entry::raw::RawEntry;

/// Between two reads no server writes to so many of its entries that this part of them is told for nothing; and so many are
/// left of those that a server tells again, unless more were deleted than any site deletes.
const PART: usize = 10;

/// The immutable id of an entry, as the protocol has it: 16 bytes of `entryUUID` or `objectGUID`.
pub type Id = Vec<u8>;

/// The entries of one source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mirror {
    /// Shared with the previous mirror if nothing was told of a tree.
    trees: BTreeMap<AccountKind, Arc<BTreeMap<Id, Placed>>>,
    /// Place of the next entry that was not there before.
    next: u64,
}

/// An entry, and where it comes in its tree: servers list entries in the order in which they were made, and of two that
/// claim the same it matters who comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placed {
    place: u64,
    entry: Arc<RawEntry>,
}

/// What is told of one tree. If an id is told several times, the last counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct News {
    /// Entries as they are now, in the order in which they were told.
    puts: BTreeMap<Id, (usize, Arc<RawEntry>)>,
    gone: BTreeSet<Id>,
    /// If told: of what was there before nothing else is left than these.
    only: Option<BTreeSet<Id>>,
    told: usize,
}

impl News {
    /// Told from the beginning: nothing of what was there before is left.
    #[must_use]
    pub fn of_everything() -> Self {
        Self { only: Some(BTreeSet::new()), ..Self::default() }
    }

    /// An entry as it is now, new or changed.
    pub fn put(&mut self, id: Id, entry: impl Into<Arc<RawEntry>>) {
        self.gone.remove(&id);
        let place = self.puts.get(&id).map_or(self.told, |(place, _)| *place);
        self.told += 1;
        self.puts.insert(id, (place, entry.into()));
    }

    /// An entry that is no longer there, or was never known: servers tell of those too.
    pub fn remove(&mut self, id: Id) {
        self.puts.remove(&id);
        if let Some(only) = &mut self.only {
            only.remove(&id);
        }
        self.gone.insert(id);
    }

    /// These are there still, unchanged; what is neither told to be there nor put is gone.
    pub fn only(&mut self, ids: impl IntoIterator<Item = Id>) {
        self.only.get_or_insert_default().extend(ids);
    }

    /// What was last put of an entry.
    #[must_use]
    pub fn get(&self, id: &[u8]) -> Option<&RawEntry> {
        self.puts.get(id).map(|(_, entry)| &**entry)
    }

    /// Whether who is gone is so because they were not named.
    #[must_use]
    pub const fn is_by_silence(&self) -> bool {
        self.only.is_some()
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.gone.is_empty() && self.only.is_none()
    }
}

impl Mirror {
    /// What a full read told, if it is whole and `id` of each entry tells it from the others.
    pub fn of(read: &RawRead, id: impl Fn(&RawEntry) -> Option<Id>) -> Option<Self> {
        if !read.problems.is_empty() {
            return None;
        }
        let mut trees = BTreeMap::new();
        for (kind, tree) in read.trees.iter().filter(|(_, tree)| tree.whole) {
            let mut news = News::of_everything();
            for entry in &tree.entries {
                let id = id(entry)?;
                if news.get(&id).is_some() {
                    return None;
                }
                news.put(id, Arc::clone(entry));
            }
            trees.insert(*kind, news);
        }
        if trees.len() == read.trees.len() { Self::default().with(trees) } else { None }
    }

    /// The mirror after `news`; `None` if they do not fit it, because they call an entry unchanged that the mirror does
    /// not know. A server that holds another database than the one that was read does so, too, and everything must be
    /// read again.
    #[must_use]
    pub fn with(&self, news: BTreeMap<AccountKind, News>) -> Option<Self> {
        let mut after = self.clone();
        for (kind, news) in news {
            let tree = after.trees.entry(kind).or_default();
            if news.is_empty() {
                continue;
            }
            let (News { puts, gone, only, told: _ }, tree) = (news, Arc::make_mut(tree));
            if let Some(only) = only {
                if only.iter().any(|id| !tree.contains_key(id) && !puts.contains_key(id)) {
                    return None;
                }
                tree.retain(|id, _| only.contains(id) || puts.contains_key(id));
            }
            for id in gone {
                tree.remove(&id);
            }
            let mut puts: Vec<_> = puts.into_iter().collect();
            puts.sort_by_key(|(_, (told, _))| *told);
            for (id, (_, entry)) in puts {
                let place = tree.get(&id).map_or(after.next, |known| known.place);
                after.next += 1;
                tree.insert(id, Placed { place, entry });
            }
        }
        Some(after)
    }

    /// Whether `news` of a tree make it another. Servers tell of every write, also to what is not read.
    #[must_use]
    pub fn is_changed_by(&self, kind: AccountKind, news: &News) -> bool {
        let is_other = |(id, (_, entry)): (&Id, &(usize, Arc<RawEntry>))| self.get(kind, id) != Some(&**entry);
        let is_left =
            |id: &&Id| news.only.as_ref().is_none_or(|only| only.contains(*id)) || news.puts.contains_key(*id);
        news.puts.iter().any(is_other)
            || news.gone.iter().any(|id| self.get(kind, id).is_some())
            || (news.only.is_some() && !self.ids(kind).all(|id| is_left(&id)))
    }

    /// Whether `news` of a tree look like all of it told from the beginning: most of it is no news, and a good part of what is
    /// known is in it. What is gone is then missing from it, and not told to be gone.
    #[must_use]
    pub fn is_told_again_by(&self, kind: AccountKind, news: &News) -> bool {
        let puts = news.puts.len();
        let same = news.puts.iter().filter(|(id, (_, entry))| self.get(kind, id) == Some(&**entry)).count();
        same * 2 > puts && puts * PART >= self.trees.get(&kind).map_or(0, |tree| tree.len())
    }

    /// An entry of a tree.
    #[must_use]
    pub fn get(&self, kind: AccountKind, id: &[u8]) -> Option<&RawEntry> {
        Some(&self.trees.get(&kind)?.get(id)?.entry)
    }

    /// The ids of a tree's entries.
    pub fn ids(&self, kind: AccountKind) -> impl Iterator<Item = &Id> {
        self.trees.get(&kind).into_iter().flat_map(|tree| tree.keys())
    }

    /// Every entry, in no order.
    pub fn entries(&self) -> impl Iterator<Item = &Arc<RawEntry>> {
        self.trees.values().flat_map(|tree| tree.values()).map(|placed| &placed.entry)
    }

    /// What a full read of `server` would have answered.
    #[must_use]
    pub fn read(&self, server: &str) -> RawRead {
        let tree = |entries: &BTreeMap<Id, Placed>| {
            let mut placed: Vec<&Placed> = entries.values().collect();
            placed.sort_by_key(|placed| placed.place);
            RawTree { entries: placed.iter().map(|placed| Arc::clone(&placed.entry)).collect(), whole: true }
        };
        let trees = self.trees.iter().map(|(kind, entries)| (*kind, tree(entries))).collect();
        RawRead { server: Some(server.to_owned()), trees, ..RawRead::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str) -> RawEntry {
        RawEntry::from_texts(&format!("cn={name}"), &[("cn", name)])
    }

    fn id(text: &str) -> Id {
        text.as_bytes().to_vec()
    }

    fn one(news: News) -> BTreeMap<AccountKind, News> {
        BTreeMap::from([(AccountKind::User, news)])
    }

    fn names(mirror: &Mirror) -> Vec<String> {
        let read = mirror.read("a");
        read.trees[&AccountKind::User].entries.iter().map(|entry| entry.dn.clone()).collect()
    }

    fn whole(names: &[&str]) -> Mirror {
        let mut news = News::of_everything();
        for name in names {
            news.put(id(name), entry(name));
        }
        Mirror::default().with(one(news)).expect("everything fits")
    }

    #[test]
    fn entries_keep_the_servers_order_and_a_change_its_place() {
        let mut news = News::default();
        news.put(id("b"), entry("b2"));
        news.put(id("d"), entry("d"));
        news.remove(id("never seen"));
        news.remove(id("c"));
        let after = whole(&["z", "b", "c", "a"]).with(one(news)).expect("it fits");
        assert_eq!(names(&after), ["cn=z", "cn=b2", "cn=a", "cn=d"]);
        assert!(after.get(AccountKind::User, b"z").is_some() && after.get(AccountKind::Tool, b"z").is_none());
        assert_eq!(after.ids(AccountKind::User).count(), 4);
    }

    #[test]
    fn the_last_change_of_an_entry_counts() {
        let mut news = News::default();
        news.put(id("a"), entry("a2"));
        news.remove(id("a"));
        news.remove(id("b"));
        news.put(id("b"), entry("b2"));
        assert_eq!(names(&whole(&["a", "b"]).with(one(news)).expect("it fits")), ["cn=b2"]);
    }

    #[test]
    fn an_entry_neither_present_nor_changed_is_deleted() {
        let mut news = News::default();
        news.only([id("a")]);
        news.put(id("d"), entry("d"));
        news.only([id("c")]);
        news.remove(id("c"));
        assert_eq!(names(&whole(&["a", "b", "c"]).with(one(news)).expect("it fits")), ["cn=a", "cn=d"]);
        let mut nothing = News::default();
        nothing.only([]);
        assert_eq!(names(&whole(&["a"]).with(one(nothing)).expect("it fits")), [""; 0]);
    }

    #[test]
    fn a_write_to_what_is_not_read_changes_nothing() {
        let mirror = whole(&["a", "b"]);
        let is_changed = |tell: &dyn Fn(&mut News)| {
            let mut news = News::default();
            tell(&mut news);
            mirror.is_changed_by(AccountKind::User, &news)
        };
        assert!(!is_changed(&|_| ()));
        assert!(!is_changed(&|news| news.put(id("a"), entry("a"))));
        assert!(!is_changed(&|news| news.remove(id("x"))));
        assert!(!is_changed(&|news| news.only([id("a"), id("b")])));
        assert!(is_changed(&|news| news.put(id("a"), entry("a2"))));
        assert!(is_changed(&|news| news.put(id("c"), entry("c"))));
        assert!(is_changed(&|news| news.remove(id("b"))));
        assert!(is_changed(&|news| news.only([id("b")])));
    }

    #[test]
    fn a_repeated_refresh_is_no_change() {
        let names: Vec<String> = (0..40).map(|at| format!("p{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mirror = whole(&names);
        let told_again = |told: &[&str], new: &[&str]| {
            let mut news = News::default();
            for name in told {
                news.put(id(name), entry(name));
            }
            for name in new {
                news.put(id(name), entry("new"));
            }
            mirror.is_told_again_by(AccountKind::User, &news)
        };
        assert!(told_again(&names[1..], &["x"]));
        assert!(told_again(&names[..4], &["p5"]), "most of them were deleted");
        assert!(!told_again(&names[..3], &[]), "three changed their passwords");
        assert!(!told_again(&names[..10], &names[10..]), "most of them changed");
        assert!(!told_again(&[], &[]));
    }

    #[test]
    fn an_unknown_entry_that_is_present_is_another_database() {
        let mut news = News::default();
        news.only([id("a"), id("x")]);
        assert_eq!(whole(&["a"]).with(one(news)), None);
    }

    #[test]
    fn a_full_refresh_replaces_everything() {
        let before = whole(&["a", "b"]);
        let mut news = News::of_everything();
        news.put(id("c"), entry("c"));
        assert_eq!(names(&before.with(one(news)).expect("it fits")), ["cn=c"]);
        assert!(News::default().is_empty() && !News::of_everything().is_empty());
        assert_eq!(names(&before), ["cn=a", "cn=b"], "the mirror before is as it was");
    }
}
