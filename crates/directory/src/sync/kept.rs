//! What is kept of a source between two reads, in memory alone: after a restart everything is read again, so that no
//! second copy of the directory lies anywhere. PURE: no runtime, no client, no file system, no clock.
//!
//! The entries and the server's mark up to which they are told are one value, which is only ever replaced as a whole:
//! they cannot disagree.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bursar_core::identity::AccountKind;
use bursar_core::snapshot::freshness::{Behind, Marks};

use crate::fetch::LastRead;
use crate::ldap::refusals::Refusals;
use crate::source::SourceConfig;
use crate::sync::mirror::Mirror;

/// Entries, and what to ask the server for next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// What was asked for, and as whom: another question has another answer.
    pub asked: SourceConfig,
    /// The server that answered. Another server's marks may mean something else.
    pub server: String,
    /// How far the server was, in its own words.
    pub marks: Marks,
    /// Servers that were passed over because they are behind.
    pub behind: Vec<(String, Behind)>,
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
pub struct SyncCache {
    slots: Arc<Mutex<BTreeMap<String, Slot>>>,
    steps: Option<Arc<AtomicU64>>,
}

#[derive(Debug, Clone, Default)]
struct Slot {
    kept: Option<Arc<Kept>>,
    /// The server tells each change of `kept` by itself.
    live: bool,
    /// What is known of the source's servers, whatever is kept of its entries.
    servers: ServerHistory,
    /// How far the server was when it was last asked that tells each change by itself.
    shown: Option<Marks>,
}

/// What is known of the servers of a source before one is connected to.
#[derive(Debug, Clone, Default)]
pub struct ServerHistory {
    /// The one that answered last.
    pub answered: String,
    /// How far they were: one that is behind that is not used.
    pub marks: Arc<Marks>,
    /// Binds that were refused.
    pub refusals: Refusals,
    /// Counts pages.
    pub steps: Option<Arc<AtomicU64>>,
}

impl ServerHistory {
    /// What the ledger knows of them.
    #[must_use]
    pub fn after(LastRead { server, marks }: LastRead) -> Self {
        Self { answered: server, marks, ..Self::default() }
    }
}

impl SyncCache {
    /// One that counts each page of its reads in `steps`.
    #[must_use]
    pub fn counting(steps: Arc<AtomicU64>) -> Self {
        Self { steps: Some(steps), ..Self::default() }
    }

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

    /// Notes what the ledger knows of a source's servers, and gives all that is known of them.
    #[must_use]
    pub fn know(&self, source: &str, LastRead { server, marks }: LastRead) -> ServerHistory {
        let mut slots = self.lock();
        let slot = slots.entry(source.to_owned()).or_default();
        slot.servers.marks = marks;
        slot.servers.answered = server;
        ServerHistory { steps: self.steps.clone(), ..slot.servers.clone() }
    }

    /// What is known of a source's servers.
    #[must_use]
    pub fn servers(&self, source: &str) -> ServerHistory {
        self.lock().entry(source.to_owned()).or_default().servers.clone()
    }

    /// Notes how far the server is that tells each change by itself.
    pub fn shown(&self, source: &str, marks: Marks) {
        self.lock().entry(source.to_owned()).or_default().shown = Some(marks);
    }

    /// How far the server is that tells each change by itself, if it was asked since it began.
    #[must_use]
    pub fn last_shown(&self, source: &str) -> Option<Marks> {
        self.lock().get(source)?.shown.clone()
    }

    /// Lets each server be bound to again at once: somebody says that the password is right now.
    pub fn forget_refusals(&self) {
        self.lock().values().for_each(|slot| slot.servers.refusals.forget());
    }

    /// Keeps `next`, which a read made. Not while the server tells each change by itself: that is newer.
    pub fn keep(&self, source: &str, next: Arc<Kept>) {
        let mut slots = self.lock();
        let slot = slots.entry(source.to_owned()).or_default();
        if !slot.live {
            slot.kept = Some(next);
        }
    }

    /// Forgets `wrong`, if that is what is kept of `source`: the next read starts again, and so does following.
    pub fn forget(&self, source: &str, wrong: &Arc<Kept>) {
        if self.holds(source, wrong) {
            let mut slots = self.lock();
            let slot = slots.entry(source.to_owned()).or_default();
            *slot = Slot { servers: slot.servers.clone(), ..Slot::default() };
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
        let mut slots = self.lock();
        let slot = slots.entry(source.to_owned()).or_default();
        slot.kept = Some(next);
        slot.live = true;
    }

    /// The server no longer tells.
    pub fn stop_following(&self, source: &str) {
        self.lock().entry(source.to_owned()).or_default().live = false;
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Slot>> {
        // A value is replaced in one step: who panicked beside it left it whole.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
