//! Notices a directory that was imported again: many accounts are missing, and new entries have their names and uids.

use std::collections::BTreeMap;

use foldhash::HashSet;

use super::Memory;
use crate::identity::{AccountId, AccountKind, DirectoryId, PosixIdentity, Uid, kubernetes_name};
use crate::ledger::change::Change;
use crate::ledger::doubt::{Doubt, DoubtKey, Question};
use crate::ledger::{Account, Lifecycle, OrderKind};
use crate::snapshot::SourceRead;

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
        let uid = |posix: &Option<PosixIdentity>| posix.as_ref().map(|posix| posix.uid);
        let valid = read.entries.iter().filter(|entry| entry.kind == kind);
        let valid = valid.map(|entry| (&entry.id, &entry.name, uid(&entry.posix)));
        // If several entries have a name or uid, only one of them is valid, and it may be the wrong one.
        let rejected = read.rejected.iter().filter(|entry| entry.kind == kind);
        let rejected = rejected.filter_map(|entry| {
            let uid = read.held.get(&entry.dn).and_then(|held| held.uid);
            Some((entry.id.as_ref()?, entry.name.as_ref()?, uid))
        });
        let mut strangers: BTreeMap<String, Vec<(&DirectoryId, Option<Uid>)>> = BTreeMap::new();
        let shown = valid.chain(rejected);
        for (id, name, uid) in shown.filter(|(id, _, _)| !self.known.contains_key(&(read.source.as_str(), *id))) {
            strangers.entry(kubernetes_name(name)).or_default().push((id, uid));
        }
        let again = missing.iter().filter_map(|account| {
            // No directory has the uids of workspaces, so groups are compared by name only.
            let same = |shown: Option<Uid>| kind == AccountKind::Group || shown == uid(&account.posix);
            let (id, _) = strangers.get(&account.kubernetes_name)?.iter().find(|(_, uid)| same(*uid))?;
            let old = Old { account: account.id.clone(), id: account.directory_id.clone() };
            Some(((*id).clone(), old))
        });
        again.collect()
    }
}
