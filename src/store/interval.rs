//! Intervals with a beginning and an end: memberships, names and activity of accounts. Memory holds only the intervals
//! that are open now, without their beginnings. The rows are therefore not a copy of memory: a change ends the open row
//! and begins another one.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde_json::json;
use sqlx::SqliteConnection;

use super::table::arrays;
use crate::identity::DirectoryId;
use crate::ledger::{Account, Lifecycle};
use crate::snapshot::Role;

/// Parameters of all statements: `?1` is the rows, `?2` the current time, `?3` the open end.
const END_MEMBERSHIP: &str = "UPDATE membership SET at_end = ?2 FROM json_each(?1) AS given
     WHERE account_id = given.value ->> 'account_id' AND member = given.value ->> 'member' AND at_end = ?3";
const BEGIN_MEMBERSHIP: &str = "INSERT INTO membership (account_id, member, role, leaving_since, at_start, at_end)
     SELECT value ->> 'account_id', value ->> 'member', value ->> 'role',
            CASE value ->> 'leaving' WHEN 1 THEN ?2 END, ?2, ?3
     FROM json_each(?1) WHERE true
     ON CONFLICT (account_id, member, at_start, role)
     DO UPDATE SET at_end = excluded.at_end, leaving_since = excluded.leaving_since";
const MARK_MEMBERSHIP: &str = "UPDATE membership
     SET leaving_since = CASE given.value ->> 'leaving' WHEN 1 THEN coalesce(leaving_since, ?2) END
     FROM json_each(?1) AS given
     WHERE account_id = given.value ->> 'account_id' AND member = given.value ->> 'member' AND at_end = ?3";
const END_NAME: &str = "UPDATE account_name SET at_end = ?2 FROM json_each(?1) AS given
     WHERE account_id = given.value ->> 'account_id' AND at_end = ?3";
const BEGIN_NAME: &str = "INSERT INTO account_name (account_id, name, at_start, at_end)
     SELECT value ->> 'account_id', value ->> 'name', ?2, ?3 FROM json_each(?1) WHERE true
     ON CONFLICT (account_id, at_start) DO UPDATE SET name = excluded.name, at_end = excluded.at_end";
const END_ACTIVITY: &str = "UPDATE activity SET at_end = ?2 FROM json_each(?1) AS given
     WHERE account_id = given.value ->> 'account_id' AND at_end = ?3";
const BEGIN_ACTIVITY: &str = "INSERT INTO activity (account_id, at_start, at_end)
     SELECT value ->> 'account_id', value ->> 'since', ?3 FROM json_each(?1) WHERE ?2 IS NOT NULL
     ON CONFLICT (account_id, at_start) DO UPDATE SET at_end = excluded.at_end";

/// The end of an interval that is still open. It is text, because it is later than `jiff`'s last timestamp.
pub const OPEN_END: &str = "9999-12-31T23:59:59Z";

/// The rows that one transaction ends, begins and marks, as JSON texts.
#[derive(Default)]
pub struct Intervals {
    memberships_ended: Vec<Box<str>>,
    memberships_begun: Vec<Box<str>>,
    memberships_marked: Vec<Box<str>>,
    names_ended: Vec<Box<str>>,
    names_begun: Vec<Box<str>>,
    activities_ended: Vec<Box<str>>,
    activities_begun: Vec<Box<str>>,
}

impl Intervals {
    /// Adds the difference between the account in the file and its new value.
    pub fn add(&mut self, before: Option<&Account>, after: &Account) {
        let account = json!({"account_id": after.id, "name": after.name, "since": format!("{:.0}", after.since)});
        let account = account.to_string().into_boxed_str();
        if before.is_none_or(|before| before.name != after.name) {
            self.names_ended.extend(before.map(|_| account.clone()));
            self.names_begun.push(account.clone());
        }
        let was = before.filter(|before| before.state == Lifecycle::Active).map(|before| before.since);
        let is = Some(after).filter(|after| after.state == Lifecycle::Active).map(|after| after.since);
        if was != is {
            self.activities_ended.extend(was.map(|_| account.clone()));
            self.activities_begun.extend(is.map(|_| account));
        }
        self.add_members(before, after);
    }

    fn add_members(&mut self, before: Option<&Account>, after: &Account) {
        let members = before.into_iter().flat_map(|before| before.members.keys()).chain(after.members.keys());
        for member in members.collect::<BTreeSet<_>>() {
            let was = before.and_then(|before| standing(before, member));
            let is = standing(after, member);
            if was == is {
                continue;
            }
            let membership = |role: Option<Role>, leaving: bool| {
                let row = json!({"account_id": after.id, "member": member, "role": role, "leaving": u8::from(leaving)});
                row.to_string().into_boxed_str()
            };
            match (was, is) {
                (Some((old, _)), Some((new, leaving))) if old == new => {
                    self.memberships_marked.push(membership(None, leaving));
                }
                (was, Some((role, leaving))) => {
                    self.memberships_ended.extend(was.map(|_| membership(None, false)));
                    self.memberships_begun.push(membership(Some(role), leaving));
                }
                (_, None) => self.memberships_ended.push(membership(None, false)),
            }
        }
    }

    /// Writes the rows. Open rows are ended before others begin, so that there are never two open ones.
    pub async fn write(self, connection: &mut SqliteConnection, now: Timestamp) -> sqlx::Result<()> {
        let statements = [
            (END_MEMBERSHIP, self.memberships_ended),
            (BEGIN_MEMBERSHIP, self.memberships_begun),
            (MARK_MEMBERSHIP, self.memberships_marked),
            (END_NAME, self.names_ended),
            (BEGIN_NAME, self.names_begun),
            (END_ACTIVITY, self.activities_ended),
            (BEGIN_ACTIVITY, self.activities_begun),
        ];
        for (statement, rows) in statements {
            for array in arrays(&rows) {
                sqlx::query(statement)
                    .bind(array)
                    .bind(format!("{now:.0}"))
                    .bind(OPEN_END)
                    .execute(&mut *connection)
                    .await?;
            }
        }
        Ok(())
    }
}

/// A member's role, and whether it is leaving.
fn standing(account: &Account, member: &DirectoryId) -> Option<(Role, bool)> {
    account.members.get(member).map(|role| (*role, account.leaving.contains(member)))
}
