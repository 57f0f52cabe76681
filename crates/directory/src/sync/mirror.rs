//! The entries of a source's trees as its server last reported them, by immutable id. A mirror gives the same result as
//! a full read.
//!
//! All changes up to one moment are collected in [`News`], and applied together to a copy of the mirror. If collecting
//! fails, the previous mirror is unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bursar_core::identity::AccountKind;

use crate::entry::assemble::{RawRead, RawTree};
use crate::entry::raw::RawEntry;

/// An answer counts as a repetition of everything if it has at least 1/`PART` of the known entries, and most of these
/// are unchanged. Between two reads, no server reports so many unchanged entries for other reasons, and no site deletes
/// nine of ten entries.
const PART: usize = 10;

/// The immutable id of an entry, as the protocol transfers it: the 16 bytes of `entryUUID` or `objectGUID`.
pub type Id = Vec<u8>;

/// The entries of one source.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mirror {
    /// A tree without changes is shared with the previous mirror.
    trees: BTreeMap<AccountKind, Arc<BTreeMap<Id, Placed>>>,
    /// The position of the next new entry.
    next: u64,
}

/// An entry with its position in the tree. Servers list entries in the order in which they were created, and if two
/// claim the same name, the first one matters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Placed {
    place: u64,
    entry: Arc<RawEntry>,
}

/// The changes of one tree. If an id is reported several times, the last report counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct News {
    /// The new state of entries, in the order in which they were reported.
    puts: BTreeMap<Id, (usize, Arc<RawEntry>)>,
    gone: BTreeSet<Id>,
    /// If this is `Some`, all other entries that were known before are gone.
    only: Option<BTreeSet<Id>>,
    told: usize,
}

impl News {
    /// Returns changes that begin with an empty tree: no known entry is left.
    #[must_use]
    pub fn of_everything() -> Self {
        Self { only: Some(BTreeSet::new()), ..Self::default() }
    }

    /// Adds the state of an entry that is new or changed.
    pub fn put(&mut self, id: Id, entry: impl Into<Arc<RawEntry>>) {
        self.gone.remove(&id);
        let place = self.puts.get(&id).map_or(self.told, |(place, _)| *place);
        self.told += 1;
        self.puts.insert(id, (place, entry.into()));
    }

    /// Removes an entry. The entry may be unknown, because servers report the deletion of unknown entries too.
    pub fn remove(&mut self, id: Id) {
        self.puts.remove(&id);
        if let Some(only) = &mut self.only {
            only.remove(&id);
        }
        self.gone.insert(id);
    }

    /// Records entries that still exist unchanged. All entries that are neither recorded here nor added by
    /// [`News::put`] are gone.
    pub fn only(&mut self, ids: impl IntoIterator<Item = Id>) {
        self.only.get_or_insert_default().extend(ids);
    }

    /// Iterates over the entries that were put, with their ids.
    pub fn entries(&self) -> impl Iterator<Item = (&Id, &RawEntry)> {
        self.puts.iter().map(|(id, (_, entry))| (id, &**entry))
    }

    /// Returns the last state that was put for an entry.
    #[must_use]
    pub fn get(&self, id: &[u8]) -> Option<&RawEntry> {
        self.puts.get(id).map(|(_, entry)| &**entry)
    }

    /// Whether entries can be gone only because the server did not name them.
    #[must_use]
    pub const fn is_by_silence(&self) -> bool {
        self.only.is_some()
    }

    /// Whether there are no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.puts.is_empty() && self.gone.is_empty() && self.only.is_none()
    }
}

impl Mirror {
    /// Returns the mirror of a full read; `None` if the read is incomplete, or `id` does not give each entry a
    /// different id.
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

    /// Returns the mirror after `news`; `None` if they report an entry as unchanged that the mirror does not have, so
    /// that everything must be read again. This also happens if the server has another database.
    #[must_use]
    pub fn with(&self, news: BTreeMap<AccountKind, News>) -> Option<Self> {
        let mut after = self.clone();
        for (kind, news) in news {
            let tree = after.trees.entry(kind).or_default();
            let is_unknown = |id: &Id| !tree.contains_key(id) && !news.puts.contains_key(id);
            if news.only.iter().flatten().any(is_unknown) {
                return None;
            }
            // A copy takes time in proportion to all entries, and most writes change no attribute that is read.
            if !self.is_changed_by(kind, &news) {
                continue;
            }
            let (News { puts, gone, only, told: _ }, tree) = (news, Arc::make_mut(tree));
            if let Some(only) = only {
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

    /// Whether `news` change the tree of `kind`. Servers report every write, even to attributes that Bursar does not
    /// read.
    #[must_use]
    pub fn is_changed_by(&self, kind: AccountKind, news: &News) -> bool {
        let is_other = |(id, (_, entry)): (&Id, &(usize, Arc<RawEntry>))| self.get(kind, id) != Some(&**entry);
        let is_left =
            |id: &&Id| news.only.as_ref().is_none_or(|only| only.contains(*id)) || news.puts.contains_key(*id);
        news.puts.iter().any(is_other)
            || news.gone.iter().any(|id| self.get(kind, id).is_some())
            || (news.only.is_some() && !self.ids(kind).all(|id| is_left(&id)))
    }

    /// Whether `news` look like a report of all entries from the beginning: most entries in them are unchanged, and
    /// they contain at least a tenth (1/`PART`) of the known entries. Such a report leaves out deleted entries instead
    /// of naming them.
    #[must_use]
    pub fn is_told_again_by(&self, kind: AccountKind, news: &News) -> bool {
        let puts = news.puts.len();
        let same = news.puts.iter().filter(|(id, (_, entry))| self.get(kind, id) == Some(&**entry)).count();
        same * 2 > puts && puts * PART >= self.trees.get(&kind).map_or(0, |tree| tree.len())
    }

    /// Returns an entry of a tree.
    #[must_use]
    pub fn get(&self, kind: AccountKind, id: &[u8]) -> Option<&RawEntry> {
        Some(&self.trees.get(&kind)?.get(id)?.entry)
    }

    /// Returns the ids of a tree's entries.
    pub fn ids(&self, kind: AccountKind) -> impl Iterator<Item = &Id> {
        self.trees.get(&kind).into_iter().flat_map(|tree| tree.keys())
    }

    /// Iterates over all entries with their ids, in no order. An entry that two trees hold comes twice.
    pub fn entries(&self) -> impl Iterator<Item = (&Id, &RawEntry)> {
        self.trees.values().flat_map(|tree| tree.iter()).map(|(id, placed)| (id, &*placed.entry))
    }

    /// Returns what a full read of `server` would have returned.
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
        Mirror::default().with(one(news)).expect("the news reports no entry as unchanged")
    }

    #[test]
    fn entries_keep_the_servers_order_and_changed_ones_their_place() {
        let mut news = News::default();
        news.put(id("b"), entry("b2"));
        news.put(id("d"), entry("d"));
        news.remove(id("never seen"));
        news.remove(id("c"));
        let after = whole(&["z", "b", "c", "a"]).with(one(news)).expect("the news reports no entry as unchanged");
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
        assert_eq!(
            names(&whole(&["a", "b"]).with(one(news)).expect("the news reports no entry as unchanged")),
            ["cn=b2"]
        );
    }

    #[test]
    fn an_entry_neither_present_nor_changed_is_deleted() {
        let mut news = News::default();
        news.only([id("a")]);
        news.put(id("d"), entry("d"));
        news.only([id("c")]);
        news.remove(id("c"));
        assert_eq!(
            names(&whole(&["a", "b", "c"]).with(one(news)).expect("all entries that stay are known")),
            ["cn=a", "cn=d"]
        );
        let mut nothing = News::default();
        nothing.only([]);
        assert_eq!(names(&whole(&["a"]).with(one(nothing)).expect("no entry has to be known")), [""; 0]);
    }

    #[test]
    fn a_report_without_a_difference_is_not_a_change() {
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
    fn a_report_without_a_difference_copies_no_tree() {
        let mirror = whole(&["a", "b"]);
        let mut news = News::default();
        news.put(id("a"), entry("a"));
        news.remove(id("never seen"));
        let after = mirror.with(one(news)).expect("the news reports no entry as unchanged");
        assert!(Arc::ptr_eq(&after.trees[&AccountKind::User], &mirror.trees[&AccountKind::User]));
    }

    #[test]
    fn a_repeated_report_of_all_entries_is_recognised() {
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
        assert!(told_again(&names[..4], &["p5"]), "most entries were deleted");
        assert!(!told_again(&names[..3], &[]), "three reports of 40 are ordinary writes");
        assert!(!told_again(&names[..10], &names[10..]), "most reported entries changed");
        assert!(!told_again(&[], &[]));
    }

    #[test]
    fn news_that_call_an_unknown_entry_unchanged_do_not_fit() {
        let mut news = News::default();
        news.only([id("a"), id("x")]);
        assert_eq!(whole(&["a"]).with(one(news)), None);
    }

    #[test]
    fn a_full_refresh_replaces_everything() {
        let before = whole(&["a", "b"]);
        let mut news = News::of_everything();
        news.put(id("c"), entry("c"));
        assert_eq!(names(&before.with(one(news)).expect("the news reports no entry as unchanged")), ["cn=c"]);
        assert!(News::default().is_empty() && !News::of_everything().is_empty());
        assert_eq!(names(&before), ["cn=a", "cn=b"], "the previous mirror is unchanged");
    }
}
