//! Why an entry is not taken as it says: its name or its uid is somebody's.

use super::Memory;
use crate::identity::AccountId;
use crate::ledger::Account;
use crate::snapshot::Entry;

impl Memory<'_> {
    pub(super) fn name_taken(&self, entry: &Entry, owner: &AccountId) -> String {
        let held = self.ledger.accounts.get(owner);
        match held {
            Some(held) => format!(
                "the name belongs to {} (directory id {}), and this entry has another id ({}); if it is to get what that \
                 one has: bursar adopt account {} {}",
                held.account_name(),
                held.directory_id,
                entry.id,
                held.kind,
                held.name
            ),
            None => "another new entry has a name that Kubernetes cannot tell from it".to_owned(),
        }
    }

    pub(super) fn uid_moved(account: &Account, entry: &Entry) -> Option<String> {
        let (before, after) = (account.posix.as_ref()?.uid, entry.posix.as_ref()?.uid);
        (before != after).then(|| {
            format!(
                "uid changed from {before} to {after}; {} keeps {before} until: bursar adopt uid {} {}",
                account.account_name(),
                account.kind,
                entry.name
            )
        })
    }

    pub(super) fn uid_taken(&self, entry: &Entry, account: Option<&Account>) -> Option<String> {
        let uid = entry.posix.as_ref()?.uid;
        if let Some((class, range)) = self.policy.uid_ranges().find(|(_, range)| range.contains(uid)) {
            return Some(format!(
                "uid {uid} is in uid_range {range} of class {}, which is for workspaces: give the entry another uid, or the \
                 class another range",
                class.name
            ));
        }
        let holder = self.uids.get(&uid).filter(|holder| account.is_none_or(|account| account.id != **holder))?;
        let name =
            self.ledger.accounts.get(holder).map_or_else(|| "another".to_owned(), |a| a.account_name().to_string());
        Some(format!("uid {uid} belongs, or once belonged, to {name}"))
    }
}
