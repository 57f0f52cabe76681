//! Rejections of entries whose name or uid belongs to another account.

use std::collections::{BTreeMap, BTreeSet};

use super::{Judged, Memory};
use crate::identity::{AccountId, AccountKind, shell_word};
use crate::ledger::{Account, Lifecycle};
use crate::snapshot::{Entry, Rejection};

/// Accounts by their current names.
pub(super) type Bearers<'a> = BTreeMap<(AccountKind, &'a str), Vec<&'a Account>>;

impl<'a> Memory<'a> {
    /// Returns another account that has this name and keeps it. Accounts of sources that are not asked now count too,
    /// because two accounts with one name would share their access.
    pub(super) fn bearer(&self, kind: AccountKind, name: &str, account: Option<&AccountId>) -> Option<&'a Account> {
        self.bearer_beside(kind, name, account, &mut BTreeSet::new())
    }

    fn bearer_beside(
        &self,
        kind: AccountKind,
        name: &str,
        account: Option<&AccountId>,
        asked: &mut BTreeSet<&'a AccountId>,
    ) -> Option<&'a Account> {
        let bearers = self.bearers.get_or_init(|| {
            let mut bearers = Bearers::new();
            for known in self.ledger.accounts.values().filter(|known| known.state != Lifecycle::Deleted) {
                bearers.entry((known.kind, known.name.as_str())).or_default().push(known);
            }
            bearers
        });
        let bearers = bearers.get(&(kind, name))?.iter().copied();
        let mut others = bearers.filter(|known| Some(&known.id) != account);
        others.find(|known| !self.gives_its_name_up(known, asked))
    }

    /// Whether this read gives the account another name. If accounts exchange their names, each of them gets another
    /// name.
    fn gives_its_name_up(&self, account: &'a Account, asked: &mut BTreeSet<&'a AccountId>) -> bool {
        if !asked.insert(&account.id) {
            return true;
        }
        if self.judged.get(account.source.as_str()).is_some_and(Judged::holds) {
            return false;
        }
        let mut reads = self.snapshot.reads.iter().filter(|read| read.source == account.source);
        let entry = reads.find_map(|read| read.entries.iter().find(|entry| entry.id == account.directory_id));
        entry
            .filter(|entry| entry.kind == account.kind && entry.name != account.name)
            .is_some_and(|entry| self.bearer_beside(account.kind, &entry.name, Some(&account.id), asked).is_none())
    }

    pub(super) fn rename_refused(entry: &Entry, account: &Account, owner: &Account) -> String {
        format!(
            "{} was renamed to {}, but source {} already has {}: it keeps its name until that account \
             is renamed or deleted",
            account.account_name(),
            entry.name,
            owner.source,
            owner.account_name()
        )
    }

    pub(super) fn name_taken(&self, entry: &Entry, owner: &AccountId) -> (String, Rejection) {
        let Some(held) = self.ledger.accounts.get(owner) else {
            let why = "another new entry has a name that is the same in Kubernetes";
            return (why.to_owned(), Rejection::NameTaken);
        };
        let why = format!(
            "the name belongs to {} (directory id {}), and this entry has another id ({}); to give that account to \
             this entry, run: bursar adopt account {}",
            held.account_name(),
            held.directory_id,
            entry.id,
            held.account_name().words()
        );
        (why, Rejection::OfAccount { account: owner.clone() })
    }

    pub(super) fn uid_moved(account: &Account, entry: &Entry) -> Option<String> {
        let (before, after) = (account.posix.as_ref()?.uid, entry.posix.as_ref()?.uid);
        (before != after).then(|| {
            format!(
                "uid changed from {before} to {after}; {} keeps {before}; to accept the new uid, run: bursar adopt \
                 uid {} {}",
                account.account_name(),
                account.kind,
                shell_word(&entry.name)
            )
        })
    }

    pub(super) fn uid_taken(&self, entry: &Entry, account: Option<&Account>) -> Option<String> {
        let uid = entry.posix.as_ref()?.uid;
        if let Some((class, range)) = self.policy.uid_ranges().find(|(_, range)| range.contains(uid)) {
            return Some(format!(
                "uid {uid} is in uid_range {range} of class {}, which is for workspaces: give the entry another uid, or \
                 the class another range",
                class.name
            ));
        }
        let holder = self.uids.get(&uid).filter(|holder| account.is_none_or(|account| account.id != **holder))?;
        let name =
            self.ledger.accounts.get(holder).map_or_else(|| "another".to_owned(), |a| a.account_name().to_string());
        Some(format!("uid {uid} belongs, or once belonged, to {name}"))
    }
}
