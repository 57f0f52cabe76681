//! A sorted map whose copies share their unchanged parts. It finds the differences between two copies without reading
//! the parts that both share.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, Index, RangeBounds};
use std::slice;
use std::sync::Arc;

/// The maximum number of entries of a part. The maximum is small, because a write to a shared part copies all entries
/// of the part.
const MOST: usize = 64;

/// A sorted map of shared parts. A clone only copies a pointer. A change of a map that has clones copies one part.
#[derive(Clone)]
pub struct SharedMap<K, V> {
    /// No part is empty. Each part is sorted, and its keys are lower than those of the next part.
    parts: Arc<Vec<Part<K, V>>>,
    length: usize,
}

type Part<K, V> = Arc<Vec<(K, V)>>;

/// A difference at one key: the value before, and the value now.
pub type Difference<'a, K, V> = (&'a K, Option<&'a V>, Option<&'a V>);

impl<K, V> SharedMap<K, V> {
    /// Returns the number of entries.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether the map has no entries.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns all entries, in the order of their keys.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter { parts: self.parts.iter(), here: [].iter(), left: self.length }
    }

    /// Returns all keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &K> + Clone {
        self.iter().map(|(key, _)| key)
    }

    /// Returns all values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// Whether both maps share all parts: one is a copy of the other, and neither has changed since.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.parts, &other.parts)
    }

    /// Returns the address of the list of parts. It changes when a write has to copy the list.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.parts).addr()
    }
}

impl<K: Ord, V> SharedMap<K, V> {
    /// Returns the value of `key`.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.get_key_value(key).map(|(_, value)| value)
    }

    /// Returns the entry of `key`.
    pub fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let part = self.parts.get(self.part_of(key))?;
        let (key, value) = &part[search(part, key).ok()?];
        Some((key, value))
    }

    /// Whether the map has an entry for `key`.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Returns the entries of a range of keys.
    pub fn range<'a, Q>(&'a self, range: impl RangeBounds<Q> + 'a) -> impl Iterator<Item = (&'a K, &'a V)>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized + 'a,
    {
        let (first, from) = match range.start_bound() {
            Bound::Unbounded => (0, 0),
            Bound::Included(key) => self.place(key, |found| found.unwrap_or_else(|next| next)),
            Bound::Excluded(key) => self.place(key, |found| found.map_or_else(|next| next, |at| at + 1)),
        };
        let parts = self.parts.get(first..).unwrap_or_default();
        let entries =
            parts.iter().enumerate().flat_map(move |(place, part)| &part[if place == 0 { from } else { 0 }..]);
        entries.map(|(key, value)| (key, value)).take_while(move |(key, _)| match range.end_bound() {
            Bound::Unbounded => true,
            Bound::Included(last) => (*key).borrow() <= last,
            Bound::Excluded(end) => (*key).borrow() < end,
        })
    }

    fn place<Q: Ord + ?Sized>(&self, key: &Q, of: impl Fn(Result<usize, usize>) -> usize) -> (usize, usize)
    where
        K: Borrow<Q>,
    {
        let part = self.part_of(key);
        (part, self.parts.get(part).map_or(0, |entries| of(search(entries, key))))
    }

    /// Returns the index of the part that has `key`, or into which `key` would be inserted.
    fn part_of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.parts.partition_point(|part| part[0].0.borrow() <= key).saturating_sub(1)
    }

    /// Returns the entries that differ from `before`, in the order of the keys. Parts that both maps share are not
    /// read.
    #[must_use]
    pub fn differences<'a>(&'a self, before: &'a Self) -> Vec<Difference<'a, K, V>>
    where
        V: PartialEq,
    {
        let mut differences = Vec::new();
        if self.is_same(before) {
            return differences;
        }
        let (mut old, mut new) = (Cursor::at(&before.parts), Cursor::at(&self.parts));
        loop {
            if old.shares_its_part_with(&new) {
                (old.part, new.part) = (old.part + 1, new.part + 1);
                continue;
            }
            match (old.entry(), new.entry()) {
                (None, None) => return differences,
                (Some((key, was)), there) if there.is_none_or(|(other, _)| key < other) => {
                    differences.push((key, Some(was), None));
                    old.step();
                }
                (was, Some((key, is))) if was.is_none_or(|(other, _)| key < other) => {
                    differences.push((key, None, Some(is)));
                    new.step();
                }
                (was, is) => {
                    if let Some(((_, was), (key, is))) = was.zip(is).filter(|((_, was), (_, is))| was != is) {
                        differences.push((key, Some(was), Some(is)));
                    }
                    old.step();
                    new.step();
                }
            }
        }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// Inserts or replaces an entry. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let at = self.part_of(&key);
        let parts = Arc::make_mut(&mut self.parts);
        let is_last = at + 1 == parts.len();
        let Some(part) = parts.get_mut(at) else {
            parts.push(Arc::new(vec![(key, value)]));
            self.length = 1;
            return None;
        };
        let part = Arc::make_mut(part);
        match search(part, &key) {
            Ok(place) => return Some(std::mem::replace(&mut part[place].1, value)),
            // If keys are inserted in ascending order, this leaves full parts instead of halves.
            Err(MOST) if is_last => parts.push(Arc::new(vec![(key, value)])),
            Err(place) if part.len() < MOST => part.insert(place, (key, value)),
            Err(place) => {
                let mut upper = part.split_off(MOST / 2);
                match place.checked_sub(MOST / 2) {
                    Some(place) if place > 0 => upper.insert(place, (key, value)),
                    _ => part.insert(place, (key, value)),
                }
                parts.insert(at + 1, Arc::new(upper));
            }
        }
        self.length += 1;
        None
    }

    /// Inserts `value`, or removes the entry if `value` is `None`.
    pub fn set(&mut self, key: K, value: Option<V>) {
        match value {
            Some(value) => drop(self.insert(key, value)),
            None => drop(self.remove(&key)),
        }
    }

    /// Removes the entry of `key`. Returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let at = self.part_of(key);
        let place = search(self.parts.get(at)?, key).ok()?;
        let parts = Arc::make_mut(&mut self.parts);
        let (_, value) = Arc::make_mut(&mut parts[at]).remove(place);
        self.length -= 1;
        if parts[at].is_empty() {
            parts.remove(at);
        } else if parts.get(at + 1).is_some_and(|next| parts[at].len() + next.len() <= MOST / 2) {
            let next = parts.remove(at + 1);
            Arc::make_mut(&mut parts[at]).extend(Arc::unwrap_or_clone(next));
        }
        Some(value)
    }

    /// Returns the value of `key` for changes.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let at = self.part_of(key);
        let place = search(self.parts.get(at)?, key).ok()?;
        Some(&mut Arc::make_mut(&mut Arc::make_mut(&mut self.parts)[at])[place].1)
    }

    /// Returns all values for changes.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }

    /// Returns all entries, with their values for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let parts = Arc::make_mut(&mut self.parts).iter_mut();
        parts.flat_map(|part| Arc::make_mut(part).iter_mut().map(|(key, value)| (&*key, value)))
    }

    /// Keeps the entries for which `keeps` returns `true`.
    pub fn retain(&mut self, mut keeps: impl FnMut(&K, &mut V) -> bool) {
        let entries = std::mem::take(self).into_iter();
        *self = entries.filter_map(|(key, mut value)| keeps(&key, &mut value).then_some((key, value))).collect();
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

fn search<K: Borrow<Q>, V, Q: Ord + ?Sized>(part: &[(K, V)], key: &Q) -> Result<usize, usize> {
    part.binary_search_by(|(known, _)| known.borrow().cmp(key))
}

/// A position in a map during an iteration.
struct Cursor<'a, K, V> {
    parts: &'a [Part<K, V>],
    part: usize,
    entry: usize,
}

impl<'a, K, V> Cursor<'a, K, V> {
    const fn at(parts: &'a [Part<K, V>]) -> Self {
        Self { parts, part: 0, entry: 0 }
    }

    /// Whether both cursors are at the beginning of the same shared part.
    fn shares_its_part_with(&self, other: &Self) -> bool {
        let parts = self.parts.get(self.part).zip(other.parts.get(other.part));
        self.entry == 0 && other.entry == 0 && parts.is_some_and(|(one, other)| Arc::ptr_eq(one, other))
    }

    fn entry(&self) -> Option<(&'a K, &'a V)> {
        self.parts.get(self.part).map(|part| &part[self.entry]).map(|(key, value)| (key, value))
    }

    fn step(&mut self) {
        self.entry += 1;
        if self.parts.get(self.part).is_some_and(|part| self.entry == part.len()) {
            (self.part, self.entry) = (self.part + 1, 0);
        }
    }
}

/// All entries of a map, in the order of their keys.
pub struct Iter<'a, K, V> {
    parts: slice::Iter<'a, Part<K, V>>,
    here: slice::Iter<'a, (K, V)>,
    left: usize,
}

impl<K, V> Clone for Iter<'_, K, V> {
    fn clone(&self) -> Self {
        Self { parts: self.parts.clone(), here: self.here.clone(), left: self.left }
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, value)) = self.here.next() {
                self.left -= 1;
                return Some((key, value));
            }
            self.here = self.parts.next()?.iter();
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<K, V> ExactSizeIterator for Iter<'_, K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Iter<'_, K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { parts: Arc::default(), length: 0 }
    }
}

impl<K: PartialEq, V: PartialEq> PartialEq for SharedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.is_same(other) || (self.length == other.length && self.iter().eq(other.iter()))
    }
}

impl<K: Eq, V: Eq> Eq for SharedMap<K, V> {}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.get(key).expect("the key is in the map")
    }
}

impl<'a, K, V> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K: Clone, V: Clone> IntoIterator for SharedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::iter::FlatMap<std::vec::IntoIter<Part<K, V>>, Vec<(K, V)>, fn(Part<K, V>) -> Vec<(K, V)>>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.parts).into_iter().flat_map(Arc::unwrap_or_clone)
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries: Vec<(K, V)> = entries.into_iter().collect();
        // The sort is stable, and `dedup` keeps the later of two entries with one key, so the last one wins.
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));
        entries.dedup_by(|next, known| {
            next.0 == known.0 && {
                std::mem::swap(next, known);
                true
            }
        });
        let length = entries.len();
        let mut entries = entries.into_iter();
        let mut parts = Vec::with_capacity(length.div_ceil(MOST));
        while entries.len() > 0 {
            parts.push(Arc::new(entries.by_ref().take(MOST).collect::<Vec<_>>()));
        }
        Self { parts: Arc::new(parts), length }
    }
}

impl<K: Ord, V> From<BTreeMap<K, V>> for SharedMap<K, V> {
    fn from(map: BTreeMap<K, V>) -> Self {
        map.into_iter().collect()
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SharedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: Ord + Clone, V: Clone> Extend<(K, V)> for SharedMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        entries.into_iter().for_each(|(key, value)| drop(self.insert(key, value)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Map = SharedMap<u16, u8>;

    fn step() -> impl Strategy<Value = (u16, Option<u8>)> {
        (0_u16..400, prop::option::weighted(0.7, any::<u8>()))
    }

    fn is_well_made(map: &Map) -> bool {
        let keys: Vec<&u16> = map.keys().collect();
        map.parts.iter().all(|part| (1..=MOST).contains(&part.len()))
            && keys.is_sorted()
            && keys.len() == map.len()
            && map.iter().len() == map.len()
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_sorted_map_and_finds_the_differences(
            first in prop::collection::vec((any::<u16>(), any::<u8>()), 0..600),
            steps in prop::collection::vec(prop::collection::vec(step(), 0..40), 1..12),
            from in 0_u16..400,
        ) {
            let mut model: BTreeMap<u16, u8> = first.iter().copied().collect();
            let mut map: Map = first.into_iter().collect();
            for steps in steps {
                let (before, model_before) = (map.clone(), model.clone());
                for (key, value) in steps {
                    if let Some(value) = value {
                        prop_assert_eq!(map.insert(key, value), model.insert(key, value));
                    } else {
                        prop_assert_eq!(map.remove(&key), model.remove(&key));
                    }
                    if let Some(value) = map.get_mut(&(key + 1)) {
                        *value = value.wrapping_add(1);
                        *model.get_mut(&(key + 1)).expect("the model has the same keys") = *value;
                    }
                }
                prop_assert!(is_well_made(&map) && map.iter().eq(&model) && before.iter().eq(&model_before));
                prop_assert!(map.range(from..).eq(model.range(from..)) && map.range(..=from).eq(model.range(..=from)));
                let keys: std::collections::BTreeSet<&u16> = model.keys().chain(model_before.keys()).collect();
                let differ = keys.into_iter().map(|key| (key, model_before.get(key), model.get(key)));
                let differ: Vec<_> = differ.filter(|(_, was, is)| was != is).collect();
                prop_assert_eq!(map.differences(&before), differ);
            }
            map.retain(|key, _| key % 3 == 0);
            model.retain(|key, _| key % 3 == 0);
            prop_assert!(is_well_made(&map) && map.clone().into_iter().eq(model));
        }
    }

    #[test]
    fn a_change_copies_one_part_and_ascending_inserts_fill_the_parts() {
        let mut map = Map::default();
        map.extend((0..1000).map(|key| (key, 0)));
        assert_eq!(map.parts.len(), 1000_usize.div_ceil(MOST));
        let before = map.clone();
        map.insert(500, 1);
        let parts = map.parts.iter().zip(before.parts.iter());
        assert_eq!(parts.filter(|(one, other)| !Arc::ptr_eq(one, other)).count(), 1);
        assert!(!map.is_same(&before) && map != before);
    }
}
