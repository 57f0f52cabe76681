//! Notices a directory that was imported again: many accounts are missing, and new entries have their names and uids.

use std::collections::BTreeMap;

use foldhash::HashSet;

use super::Memory;
use crate::identity::{AccountId, AccountKind, DirectoryId, PosixIdentity, kubernetes_name};
use crate::ledger::change::Change;
use crate::ledger::doubt::{Doubt, DoubtKey, Question};
use crate::ledger::{Account, Lifecycle, OrderKind};
use crate::snapshot::{Entry, SourceRead};

/// If fewer accounts of a kind are missing, the entries were probably recreated one by one.
const ENOUGH: usize = 5;

/// Accounts that were probably imported again, by the ids of the entries that have their names and uids.
pub(super) type Imported = BTreeMap<DirectoryId, Old>;

/// The account whose name and uid an entry has.
pub(super) struct Old {
    pub(super) account: AccountId,
    /// The id by which groups knew the account.
    pub(super) id: DirectoryId,
}

impl Memory<'_> {
    /// Returns the missing accounts whose names and uids the read shows under other ids, if there are many. None of
    /// them is suspended or adopted before an administrator decides.
    pub(super) fn imported(&mut self, read: &SourceRead, present: &HashSet<&DirectoryId>) -> Imported {
        let mut all = Imported::new();
        for kind in [AccountKind::Tool, AccountKind::User, AccountKind::Group] {
            let key = DoubtKey { source: read.source.clone(), kind, question: Question::Import };
            let known = self.ledger.doubts.get(&key);
            let mut again = self.again(read, kind, present, if known.is_some() { 1 } else { ENOUGH });
            if again.len() < ENOUGH {
                // The administrator has decided about the other accounts of the import, but not yet about these.
                again.retain(|_, old| known.is_some_and(|known| known.accounts.contains(&old.account)));
            }
            if again.is_empty() {
                self.believe(key);
                continue;
            }
            let count = again.len() as u64;
            let since = known.map_or(self.now, |known| known.since);
            let accounts = again.values().map(|old| old.account.clone()).collect();
            let doubt = Doubt { since, before: count, now: 0, accounts, proof: None, counted: None };
            if known != Some(&doubt) {
                self.result.changes.push(Change::Doubt(key, Some(doubt)));
            }
            all.extend(again);
        }
        all
    }

    /// Returns none if fewer than `least` accounts are missing.
    fn again(&self, read: &SourceRead, kind: AccountKind, present: &HashSet<&DirectoryId>, least: usize) -> Imported {
        let missing = |account: &&Account| {
            account.source == read.source
                && account.kind == kind
                && account.state != Lifecycle::Deleted
                && !present.contains(&account.directory_id)
                && self.order(&account.id, OrderKind::AdoptAccount).is_none()
        };
        let missing: Vec<&Account> = self.ledger.accounts.values().filter(missing).collect();
        if missing.len() < least {
            return Imported::new();
        }
        let strangers = read
            .entries
            .iter()
            .filter(|entry| entry.kind == kind && !self.known.contains_key(&(read.source.as_str(), &entry.id)));
        let strangers: BTreeMap<String, &Entry> =
            strangers.map(|entry| (kubernetes_name(&entry.name), entry)).collect();
        let uid = |posix: &Option<PosixIdentity>| posix.as_ref().map(|posix| posix.uid);
        let again = missing.iter().filter_map(|account| {
            let entry = strangers.get(&account.kubernetes_name)?;
            // No directory has the uids of workspaces, so groups are compared by name only.
            let same = kind == AccountKind::Group || uid(&entry.posix) == uid(&account.posix);
            let old = Old { account: account.id.clone(), id: account.directory_id.clone() };
            same.then(|| (entry.id.clone(), old))
        });
        again.collect()
    }
}
