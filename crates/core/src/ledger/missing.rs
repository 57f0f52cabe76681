//! Active accounts that their directory no longer shows, until their suspension is due.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{LedgerState, Lifecycle};
use crate::identity::AccountKind;

/// The missing accounts of one kind, and when the first of them may be suspended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub kind: AccountKind,
    /// The number of missing accounts.
    pub count: u64,
    /// When a complete read first did not show one of these accounts.
    pub since: Timestamp,
    /// When the first of these accounts is due, if every read until then is complete.
    pub due: Timestamp,
}

impl Missing {
    /// Returns all missing accounts that are not due yet, by kind. Accounts that are due are in the plan, or refused by
    /// the guard.
    #[must_use]
    pub fn of(ledger: &LedgerState) -> Vec<Self> {
        let active = ledger.accounts.values().filter(|account| account.state == Lifecycle::Active);
        let waiting = active.filter_map(|account| {
            let absence = account.absence.filter(|absence| absence.due > absence.counted_at)?;
            Some(Self { kind: account.kind, count: 1, since: absence.since, due: absence.due })
        });
        let mut kinds: BTreeMap<AccountKind, Self> = BTreeMap::new();
        for one in waiting {
            let all = kinds.entry(one.kind).or_insert_with(|| Self { count: 0, ..one.clone() });
            all.count += 1;
            all.since = all.since.min(one.since);
            all.due = all.due.min(one.due);
        }
        kinds.into_values().collect()
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, count, since, due } = self;
        let plural = if *count == 1 { "" } else { "s" };
        write!(f, "{count} {kind}{plural} missing since {since:.0}; suspension from {due:.0}, then within limits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::Absence;
    use crate::plan::testing::World;

    #[test]
    fn a_missing_account_is_shown_until_its_suspension_is_due() {
        let mut world = World::new();
        let ids = ["foo", "bar"].map(|name| world.add(AccountKind::Tool, name, Some(52503)));
        world.cycle();
        assert_eq!(Missing::of(&world.ledger), Vec::new());
        let at = |second| Timestamp::from_second(second).expect("the time is valid");
        for (id, since) in ids.iter().zip([3600, 7200]) {
            let absence = Absence { since: at(since), counted_at: at(7200), seconds: 0, due: at(since + 86400) };
            world.account(id).absence = Some(absence);
        }
        let told: Vec<String> = Missing::of(&world.ledger).iter().map(ToString::to_string).collect();
        let expected =
            "2 tools missing since 1970-01-01T01:00:00Z; suspension from 1970-01-02T01:00:00Z, then within limits";
        assert_eq!(told, [expected]);
        let due = Absence { since: at(0), counted_at: at(86400), seconds: 86400, due: at(86400) };
        world.account(&ids[0]).absence = Some(due);
        assert_eq!(Missing::of(&world.ledger)[0].count, 1, "an account that is due is in the plan");
    }
}
