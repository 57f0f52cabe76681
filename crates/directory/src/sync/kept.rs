//! The cache of each source between two reads. It is only in memory, so that there is no second copy of the directory
//! on disk; after a restart, everything is read again.
//!
//! The entries and the server's mark, up to which they contain all changes, are one value. The value is only replaced
//! as a whole, so the two cannot disagree.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bursar_core::identity::AccountKind;
use bursar_core::snapshot::freshness::{Behind, Marks};
use jiff::Timestamp;

use crate::fetch::LastRead;
use crate::ldap::refusals::Refusals;
use crate::progress::Counters;
use crate::source::SourceConfig;
use crate::sync::mirror::Mirror;

/// The cached entries of a source, and the mark from which changes are requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The configuration of the read, including the account. If it differs, the cache is not used.
    pub asked: SourceConfig,
    /// The server that answered. The marks of another server have another meaning.
    pub server: String,
    /// The replication state that the server showed.
    pub marks: Marks,
    /// Servers that were skipped because they are behind.
    pub behind: Vec<(String, Behind)>,
    /// The mark up to which `mirror` has the server's changes.
    pub mark: Mark,
    /// The entries.
    pub mirror: Mirror,
}

/// A position in the changes of a server, in the server's own form. A mark is never empty, because an empty mark would
/// request everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// RFC 4533: the cookie of each tree's search.
    Syncrepl(BTreeMap<AccountKind, Vec<u8>>),
    /// `DirSync`: a cookie of one domain controller.
    DirSync {
        /// The domain controller, and the invocation id of its database.
        controller: String,
        /// The cookie, which is for the whole domain.
        cookie: Vec<u8>,
    },
    /// `uSNChanged`: the highest number that one domain controller had assigned.
    Usn {
        /// The domain controller, and the invocation id of its database.
        controller: String,
        /// Later changes have higher numbers.
        usn: u64,
    },
}

/// The caches of all sources, by their names. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SyncCache {
    slots: Arc<Mutex<BTreeMap<String, Slot>>>,
    counters: Counters,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    kept: Option<Arc<Kept>>,
    /// Whether the server pushes each change of `kept`.
    live: bool,
    /// How often the entries were found wrong. A task that follows the server from wrong entries must start again.
    found_wrong: u64,
    /// The known facts about the source's servers. They stay if the entries are dropped.
    servers: ServerHistory,
    /// Whether `servers` has what the ledger knows.
    is_known: bool,
    /// The replication state that the server showed when it was last asked while it pushed changes.
    shown: Option<Marks>,
}

/// The known facts about the servers of a source, before a connection is made.
#[derive(Debug, Clone, Default)]
pub struct ServerHistory {
    /// The server that answered last.
    pub answered: String,
    /// The replication state of the servers. A server that is behind this state is not used.
    pub marks: Arc<Marks>,
    /// When the servers are asked.
    pub now: Timestamp,
    /// Binds that were refused.
    pub refusals: Refusals,
    /// The counters of the read.
    pub counters: Counters,
}

impl ServerHistory {
    /// Returns what the ledger knows about the servers.
    #[must_use]
    pub fn after(LastRead { server, marks, now }: LastRead) -> Self {
        Self { answered: server, marks, now, ..Self::default() }
    }
}

impl SyncCache {
    /// Returns an empty cache that counts each page of its reads in `steps`.
    #[must_use]
    pub fn counting(steps: Arc<AtomicU64>) -> Self {
        Self { counters: Counters { steps: Some(steps), entries: None }, ..Self::default() }
    }

    /// Returns this cache for a read that counts its entries in `entries`.
    #[must_use]
    pub fn counting_entries(&self, entries: Arc<AtomicU64>) -> Self {
        let counters = Counters { entries: Some(entries), ..self.counters.clone() };
        Self { counters, ..self.clone() }
    }

    /// Returns the cached state of `source`, if it was read with the same configuration.
    #[must_use]
    pub fn of(&self, source: &SourceConfig) -> Option<Arc<Kept>> {
        let kept = self.lock().get(&source.name)?.kept.clone()?;
        (kept.asked == *source).then_some(kept)
    }

    /// Returns the cached state of `source`, if pushed changes keep it up to date.
    #[must_use]
    pub fn live(&self, source: &SourceConfig) -> Option<Arc<Kept>> {
        let is_live = self.lock().get(&source.name)?.live;
        self.of(source).filter(|_| is_live)
    }

    /// Records what the ledger knows about a source's servers, and returns everything that is known about them.
    #[must_use]
    pub fn know(&self, source: &str, LastRead { server, marks, now }: LastRead) -> ServerHistory {
        let mut slots = self.lock();
        let slot = slots.entry(source.to_owned()).or_default();
        slot.servers.marks = marks;
        slot.servers.answered = server;
        slot.servers.now = now;
        slot.is_known = true;
        ServerHistory { counters: self.counters.clone(), ..slot.servers.clone() }
    }

    /// Returns what is known about a source's servers; `None` before [`Self::know`]. Before that call, a server that is
    /// behind cannot be recognized.
    #[must_use]
    pub fn servers(&self, source: &str) -> Option<ServerHistory> {
        self.lock().get(source).filter(|slot| slot.is_known).map(|slot| slot.servers.clone())
    }

    /// Records the replication state of the server that pushes changes.
    pub fn shown(&self, source: &str, marks: Marks) {
        self.lock().entry(source.to_owned()).or_default().shown = Some(marks);
    }

    /// Returns the replication state of the server that pushes changes, if it was asked since it began to push.
    #[must_use]
    pub fn last_shown(&self, source: &str) -> Option<Marks> {
        self.lock().get(source)?.shown.clone()
    }

    /// Lets each server be tried again at once, because an administrator says that the password is correct now.
    pub fn forget_refusals(&self) {
        self.lock().values().for_each(|slot| slot.servers.refusals.forget());
    }

    /// Stores `next`, the result of a read. It is ignored while the server pushes changes, because the pushed state is
    /// newer.
    pub fn keep(&self, source: &str, next: Arc<Kept>) {
        let mut slots = self.lock();
        let slot = slots.entry(source.to_owned()).or_default();
        if !slot.live {
            slot.kept = Some(next);
        }
    }

    /// Drops the cached entries of `source`, because they are wrong. The next read is a full one, and the task that
    /// follows the server starts again. States that are pushed after the error was found descend from the wrong entries
    /// and are dropped, too.
    pub fn forget(&self, source: &str) {
        let mut slots = self.lock();
        let slot = slots.entry(source.to_owned()).or_default();
        let (servers, is_known) = (slot.servers.clone(), slot.is_known);
        *slot = Slot { servers, is_known, found_wrong: slot.found_wrong + 1, ..Slot::default() };
    }

    /// Returns how often the entries of `source` were found wrong.
    #[must_use]
    pub fn found_wrong(&self, source: &str) -> u64 {
        self.lock().get(source).map_or(0, |slot| slot.found_wrong)
    }

    /// Stores `next`, which is up to date; later states from the same server are up to date too. Returns `false` and
    /// stores nothing if the entries were found wrong since [`SyncCache::found_wrong`] returned `found_wrong`.
    #[must_use]
    pub fn follow(&self, source: &str, next: Arc<Kept>, found_wrong: u64) -> bool {
        let mut slots = self.lock();
        let slot = slots.entry(source.to_owned()).or_default();
        if slot.found_wrong != found_wrong {
            return false;
        }
        slot.kept = Some(next);
        slot.live = true;
        true
    }

    /// Records that the server no longer pushes changes.
    pub fn stop_following(&self, source: &str) {
        self.lock().entry(source.to_owned()).or_default().live = false;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        // Each value is replaced in one step, so it is consistent even if a thread panicked while it held the lock.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
