//! What is kept of a source between two reads, in memory alone: a restart begins with everything anew, so that nothing
//! of the directory stands anywhere twice. PURE: no runtime, no client, no file system, no clock.
//!
//! The entries and the server's mark up to which they are told are one value, which is only ever replaced as a whole:
//! they cannot disagree.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bursar_core::identity::AccountKind;

use crate::source::SourceConfig;
use crate::sync::mirror::Mirror;

/// Entries, and what to ask the server for next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What was asked for, and as whom: another question has another answer.
    pub asked: SourceConfig,
    /// Who answered. Another server's marks may mean something else.
    pub server: String,
    /// Up to where the server has told.
    pub mark: Mark,
    /// What it has told.
    pub mirror: Mirror,
}

/// Up to where a server has told of its changes, in its own words. Never empty: that would ask for everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// RFC 4533: a cookie of each tree's search.
    Syncrepl(BTreeMap<AccountKind, Vec<u8>>),
    /// `DirSync`: a cookie of this domain controller.
    DirSync {
        /// Which one, and in which life of its database.
        controller: String,
        /// For the whole domain.
        cookie: Vec<u8>,
    },
    /// `uSNChanged`: the highest number that this domain controller had given.
    Usn {
        /// Which one, and in which life of its database.
        controller: String,
        /// What changes after it has a higher one.
        usn: u64,
    },
}

/// What is kept of all sources, by their names. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SyncCache(Arc<Mutex<BTreeMap<String, Slot>>>);

#[derive(Debug, Clone, Default)]
struct Slot {
    kept: Option<Arc<Kept>>,
    /// The server tells each change of `kept` by itself.
    live: bool,
}

impl SyncCache {
    /// What is kept of `source`, if it was asked as it would be now.
    #[must_use]
    pub fn of(&self, source: &SourceConfig) -> Option<Arc<Kept>> {
        let kept = self.lock().get(&source.name)?.kept.clone()?;
        (kept.asked == *source).then_some(kept)
    }

    /// What is kept of `source`, if it is up to date without asking.
    #[must_use]
    pub fn live(&self, source: &SourceConfig) -> Option<Arc<Kept>> {
        let is_live = self.lock().get(&source.name)?.live;
        self.of(source).filter(|_| is_live)
    }

    /// Keeps `next`, which a read made. Not while the server tells each change by itself: that is newer.
    pub fn keep(&self, source: &str, next: Arc<Kept>) {
        let mut slots = self.lock();
        let slot = slots.entry(source.to_owned()).or_default();
        if !slot.live {
            slot.kept = Some(next);
        }
    }

    /// Forgets `wrong`, if that is what is kept of `source`: the next read begins anew, and who follows too.
    pub fn forget(&self, source: &str, wrong: &Arc<Kept>) {
        if self.holds(source, wrong) {
            self.lock().insert(source.to_owned(), Slot::default());
        }
    }

    /// Whether `kept` is what is kept of `source`.
    #[must_use]
    pub fn holds(&self, source: &str, kept: &Arc<Kept>) -> bool {
        let slots = self.lock();
        slots.get(source).and_then(|slot| slot.kept.as_ref()).is_some_and(|held| Arc::ptr_eq(held, kept))
    }

    /// Keeps `next`, which is up to date, as what follows it will be.
    pub fn follow(&self, source: &str, next: Arc<Kept>) {
        self.lock().insert(source.to_owned(), Slot { kept: Some(next), live: true });
    }

    /// The server no longer tells.
    pub fn stop_following(&self, source: &str) {
        self.lock().entry(source.to_owned()).or_default().live = false;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        // A value is replaced in one step: who panicked beside it left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
