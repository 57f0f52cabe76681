//! The uid of each workspace: the next of its class's range, recorded before anything runs as it, and never given again.
//!
//! Files outlive the workspace that wrote them. So gaps are not filled: the next uid is above every one that a workspace
//! ever had, whether an account, or only a cluster, still says so.

use std::collections::BTreeSet;

use serde_json::json;

use super::change::{Change, Event};
use super::{Account, LedgerState};
use crate::identity::{AccountKind, PosixIdentity, Uid};
use crate::policy::{Class, Policy, UidRange};

/// Gives a uid to each of `groups`, workspaces of these classes that have none. A group without a gid, or whose class's
/// range is used up, gets none: [`why_none`] says why.
#[must_use]
pub fn assign(ledger: &LedgerState, groups: &[(&Account, &Class, UidRange)]) -> (Vec<Change>, Vec<Event>) {
    let (mut changes, mut events) = (Vec::new(), Vec::new());
    let mut given = if groups.is_empty() { BTreeSet::new() } else { given(ledger) };
    for (group, class, range) in groups {
        let Some((gid, uid)) = group.gid.zip(next(ledger, &given, *range)) else { continue };
        given.insert(uid);
        let posix = Some(PosixIdentity { uid, gid, groups: BTreeSet::new() });
        changes.push(Change::Account(Box::new(Account { posix, ..(*group).clone() })));
        changes.push(Change::Uid(uid, group.id.clone()));
        let reason = format!("from uid_range {range} of class {}", class.name);
        events.push(Event::new("uid given", reason, json!({"uid": uid, "gid": gid})).about(group));
    }
    (changes, events)
}

/// Why a group of `class` has no uid, with the remedy; `None` if it has one, or needs none.
#[must_use]
pub fn why_none(group: &Account, class: &Class) -> Option<String> {
    let range = class.workspace()?.uid_range.filter(|_| group.posix.is_none())?;
    Some(if group.gid.is_none() {
        format!(
            "gets no uid, so no workspace: the group has no gid, and its pods would need one; give its entry a gidNumber, or \
             remove class.{}.uid_range",
            class.name
        )
    } else {
        format!(
            "gets no uid, so no workspace: uid_range {range} of class {} is used up, and no uid is used twice; give the class \
             a longer range",
            class.name
        )
    })
}

/// What a cluster's mark keeps for a ledger that is lost: the highest uid of each range, and each that is in none. Empty if
/// no class has a range.
#[must_use]
pub fn highest(ledger: &LedgerState, policy: &Policy) -> BTreeSet<Uid> {
    if policy.uid_ranges().next().is_none() {
        return BTreeSet::new();
    }
    let mut highest = given(ledger);
    for (_, range) in policy.uid_ranges() {
        let last = highest.range(range.first..=range.last).next_back().copied();
        highest.retain(|uid| !range.contains(*uid) || Some(*uid) == last);
    }
    highest
}

/// Every uid that a workspace ever had.
fn given(ledger: &LedgerState) -> BTreeSet<Uid> {
    let is_group = |id| ledger.accounts.get(id).is_some_and(|account| account.kind == AccountKind::Group);
    let recorded = ledger.uid_history.iter().filter(|(_, holder)| is_group(*holder)).map(|(uid, _)| *uid);
    recorded.chain(ledger.used_uids.keys().copied()).collect()
}

/// The lowest uid of `range` above those that were given, which is nobody's.
fn next(ledger: &LedgerState, given: &BTreeSet<Uid>, range: UidRange) -> Option<Uid> {
    let above = given.range(range.first..=range.last).next_back().map(|uid| uid.get() + 1);
    let candidates = above.unwrap_or(range.first.get())..=range.last.get();
    let mut uids = candidates.filter_map(|uid| Uid::try_from(i64::from(uid)).ok());
    uids.find(|uid| !ledger.uid_history.contains_key(uid))
}

#[cfg(test)]
#[path = "workspace_uid_tests.rs"]
mod tests;
