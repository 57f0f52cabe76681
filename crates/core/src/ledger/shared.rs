//! A map that copies of a ledger share until one of them changes it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::collections::btree_map::{IntoIter, Iter};
use std::ops::{Deref, DerefMut, Index};
use std::sync::Arc;

/// A [`BTreeMap`] whose clone costs nothing; the first change of one that is shared copies it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedMap<K, V>(Arc<BTreeMap<K, V>>);

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K, V> Deref for SharedMap<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<K: Clone, V: Clone> DerefMut for SharedMap<K, V> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        Arc::make_mut(&mut self.0)
    }
}

impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, V> Index<&Q> for SharedMap<K, V> {
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        &self.0[key]
    }
}

impl<'a, K, V> IntoIterator for &'a SharedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<K: Clone, V: Clone> IntoIterator for SharedMap<K, V> {
    type Item = (K, V);
    type IntoIter = IntoIter<K, V>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::unwrap_or_clone(self.0).into_iter()
    }
}

impl<K, V> From<BTreeMap<K, V>> for SharedMap<K, V> {
    fn from(map: BTreeMap<K, V>) -> Self {
        Self(Arc::new(map))
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SharedMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        BTreeMap::from(entries).into()
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SharedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        BTreeMap::from_iter(entries).into()
    }
}

#[cfg(any(test, feature = "testing"))]
impl<K, V> SharedMap<K, V> {
    /// Where the map is: the same as long as nothing copied it.
    #[must_use]
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}
