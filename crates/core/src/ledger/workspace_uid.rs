//! Assigns each workspace a uid: the next uid in its class's range. The uid is recorded before anything runs with it,
//! and never reused.
//!
//! Files outlive the workspace that wrote them. Gaps are therefore not filled: the next uid is above every uid that a
//! workspace ever had, according to an account or to a cluster.

use std::collections::BTreeSet;

use serde_json::json;

use super::change::{Change, Event};
use super::{Account, LedgerState};
use crate::identity::{AccountKind, PosixIdentity, Uid};
use crate::policy::{Class, Policy, UidRange};

/// Assigns a uid to each of `groups`, which are workspaces without one. If a group has no gid, or the range of its
/// class is used up, the group gets no uid; [`why_none`] returns the reason.
#[must_use]
pub fn assign(ledger: &LedgerState, groups: &[(&Account, &Class, UidRange)]) -> (Vec<Change>, Vec<Event>) {
    let (mut changes, mut events) = (Vec::new(), Vec::new());
    let mut given = if groups.is_empty() { BTreeSet::new() } else { given(ledger) };
    for (group, class, range) in groups {
        let Some((gid, uid)) = group.gid.zip(next(ledger, &given, *range)) else { continue };
        given.insert(uid);
        let posix = Some(PosixIdentity { uid, gid, groups: BTreeSet::new() });
        changes.push(Change::Account(Account { posix, ..(*group).clone() }.into()));
        changes.push(Change::Uid(uid, group.id.clone()));
        let reason = format!("from uid_range {range} of class {}", class.name);
        events.push(Event::new("uid given", reason, json!({"uid": uid, "gid": gid})).about(group));
    }
    (changes, events)
}

/// Returns why a group of `class` has no uid, with the remedy; `None` if the group has a uid or needs none.
#[must_use]
pub fn why_none(group: &Account, class: &Class) -> Option<String> {
    let range = class.workspace()?.uid_range.filter(|_| group.posix.is_none())?;
    Some(if group.gid.is_none() {
        format!(
            "gets no uid, so no workspace: the group has no gid, and its pods would need one; give its entry a \
             gidNumber, or remove class.{}.uid_range",
            class.name
        )
    } else {
        format!(
            "gets no uid, so no workspace: uid_range {range} of class {} is used up, and no uid is reused; give the \
             class a longer range",
            class.name
        )
    })
}

/// Returns the uids that a cluster's mark keeps in case the ledger is lost: the highest uid of each range, and every
/// uid outside the ranges. The result is empty if no class has a range.
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

/// Returns every uid that a workspace ever had.
fn given(ledger: &LedgerState) -> BTreeSet<Uid> {
    let is_group = |id| ledger.accounts.get(id).is_some_and(|account| account.kind == AccountKind::Group);
    let recorded = ledger.uid_history.iter().filter(|(_, holder)| is_group(*holder)).map(|(uid, _)| *uid);
    recorded.chain(ledger.used_uids.keys().copied()).collect()
}

/// Returns the lowest uid of `range` that is above the uids in `given` and that no account has.
fn next(ledger: &LedgerState, given: &BTreeSet<Uid>, range: UidRange) -> Option<Uid> {
    let above = given.range(range.first..=range.last).next_back().map(|uid| uid.get() + 1);
    let candidates = above.unwrap_or(range.first.get())..=range.last.get();
    let mut uids = candidates.filter_map(|uid| Uid::try_from(i64::from(uid)).ok());
    uids.find(|uid| !ledger.uid_history.contains_key(uid))
}

#[cfg(test)]
#[path = "workspace_uid_tests.rs"]
mod tests;
