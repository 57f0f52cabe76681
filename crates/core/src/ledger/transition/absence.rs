//! Counts how long each account has been missing, and how long each suspended account has waited for its end. Only
//! complete reads count. Before a suspension is due, the source's servers are asked about this single account.

use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashSet;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Memory;
use super::import::Imported;
use crate::identity::{AccountId, DirectoryId};
use crate::ledger::change::Change;
use crate::ledger::doubt::{Doubt, DoubtKey, Question};
use crate::ledger::{Absence, Account, Ending, LedgerState, Lifecycle, Suspension, gaps};
use crate::policy::Policy;
use crate::snapshot::proof::{Due, Proof, Verdict};
use crate::snapshot::{Completeness, DirectorySnapshot, SourceRead};

/// An absence is recorded at most this often (seconds), unless it becomes due. Otherwise an absent account would cause
/// a new row each minute for 40 days.
const COUNT_EVERY: i64 = 300;
/// Like [`COUNT_EVERY`], but for the time that leads to an archive, for which minutes do not matter. This interval is
/// less than [`gaps::LONGEST_GAP`], because a longer gap would not count completely.
const RETENTION_EVERY: i64 = 1800;

/// Returns the accounts, by source, whose suspension `snapshot` would make due. Before the snapshot is recorded, the
/// servers must be asked about each of these accounts.
#[must_use]
pub fn due(
    ledger: &LedgerState,
    snapshot: &DirectorySnapshot,
    policy: &Policy,
    now: Timestamp,
) -> BTreeMap<String, Vec<Due>> {
    let memory = Memory::of(ledger, snapshot, policy, now);
    let mut all = BTreeMap::new();
    for read in snapshot.reads.iter().filter(|read| memory.proved(read) == Completeness::Complete) {
        let entries = read.entries.iter().map(|entry| &entry.id);
        let present: BTreeSet<&DirectoryId> =
            entries.chain(read.rejected.iter().filter_map(|entry| entry.id.as_ref())).collect();
        let due = ledger.accounts.values().filter(|account| {
            account.source == read.source
                && read.kinds.contains(&account.kind)
                && !present.contains(&account.directory_id)
                && memory.is_due(account)
        });
        let due =
            due.map(|account| Due { id: account.directory_id.clone(), kind: account.kind, dn: account.dn.clone() });
        let due: Vec<Due> = due.collect();
        if !due.is_empty() {
            all.insert(read.source.clone(), due);
        }
    }
    all
}

impl Memory<'_> {
    /// Whether a complete read without the account makes its absence due, and this has a consequence for the account.
    fn is_due(&self, account: &Account) -> bool {
        let limit = self.policy.lifecycle.absent_for.as_secs();
        let is_open = account.absence.is_none_or(|absence| absence.seconds < limit);
        let has_effect = match account.state {
            Lifecycle::Active => true,
            // A new account is not suspended. Without this condition, the servers would be asked at each read forever.
            Lifecycle::New => is_open,
            // The absence may become the cause of the suspension, and then leads to the archive.
            Lifecycle::Suspended => match account.suspension.as_deref() {
                Some(
                    Suspension::Ordered { .. }
                    | Suspension::Evicted { .. }
                    | Suspension::Idle { .. }
                    | Suspension::Left,
                ) => is_open,
                None | Some(Suspension::Absent | Suspension::Disabled { .. }) => false,
            },
            Lifecycle::Archived | Lifecycle::Deleted => false,
        };
        let after = self.absence(account).or(account.absence);
        has_effect && (after.is_none_or(|absence| absence.seconds >= limit) || limit == 0)
    }

    /// Returns the absence after this read, if the servers confirm it.
    fn proved_absence(&mut self, read: &SourceRead, account: &Account) -> Option<Absence> {
        let key = DoubtKey {
            source: read.source.clone(),
            kind: account.kind,
            question: Question::Absence(account.id.clone()),
        };
        let Some(proofs) = read.proofs.as_ref().filter(|_| self.is_due(account)) else {
            self.believe(key);
            return self.absence(account);
        };
        if read.unanswered.contains(&account.directory_id) {
            return self.not_due(account);
        }
        let nobody = Proof::default();
        let proof = proofs.get(&account.directory_id).unwrap_or(&nobody);
        // If a limit refuses the suspension, the decision of the freshest server stands as long as the others disagree.
        let mut stands = false;
        let gone = match proof.verdict() {
            // The next read asks again.
            Verdict::Unknown => {
                let counted = self.ledger.doubts.get(&key).and_then(|known| known.counted);
                self.doubt_absence(key, account, None, counted);
                return self.not_due(account);
            }
            Verdict::There => false,
            Verdict::Gone => true,
            Verdict::Disagreement { freshest_has_it } => {
                stands = !freshest_has_it;
                let limit = self.policy.lifecycle.absent_for.as_secs();
                let counted = self.ledger.doubts.get(&key).and_then(|known| known.counted);
                let counted = self.counted(counted.as_ref(), limit, COUNT_EVERY).or(counted);
                let is_open = counted.is_none_or(|counted| counted.seconds < limit);
                if is_open || stands {
                    self.doubt_absence(key.clone(), account, Some(proof.to_string()), counted);
                }
                if is_open {
                    return self.not_due(account);
                }
                stands
            }
        };
        if !stands {
            self.believe(key);
        }
        let detail = json!({ "servers": proof.by_server() });
        if !gone {
            self.event(
                account,
                "present after all",
                "its servers have the entry, but the read did not show it",
                detail,
            );
            return None;
        }
        let limit = self.policy.lifecycle.absent_for.as_secs();
        if account.absence.is_none_or(|absence| absence.seconds < limit) {
            self.event(account, "absence proved", &proof.to_string(), detail);
        }
        self.absence(account)
    }

    /// Returns the absence, shortened so that it is not due, because this read does not prove it. If a limit refused
    /// the suspension, an earlier read has made the absence due already. The next read asks the servers again.
    fn not_due(&self, account: &Account) -> Option<Absence> {
        if account.state != Lifecycle::Active {
            return account.absence;
        }
        let most = self.policy.lifecycle.absent_for.as_secs().checked_sub(1)?;
        account.absence.map(|absence| Absence { seconds: absence.seconds.min(most), ..absence })
    }

    /// Records a doubt about the absence. `proof` has the servers' answers, if a server could be asked.
    fn doubt_absence(&mut self, key: DoubtKey, account: &Account, proof: Option<String>, counted: Option<Absence>) {
        let known = self.ledger.doubts.get(&key);
        let since = known.map_or(self.now, |known| known.since);
        let doubt = Doubt { since, before: 1, now: 0, accounts: [account.id.clone()].into(), proof, counted };
        if known != Some(&doubt) {
            self.result.changes.push(Change::Doubt(key, Some(doubt)));
        }
    }

    pub(super) fn count_absences(&mut self, read: &SourceRead, present: &HashSet<&DirectoryId>, imported: &Imported) {
        let (source, adopted) = (&read.source, self.adopted.clone());
        let again: BTreeSet<&AccountId> = imported.values().map(|old| &old.account).collect();
        let absent = |account: &&Account| {
            account.source == *source
                && read.kinds.contains(&account.kind)
                && !present.contains(&account.directory_id)
                && !adopted.contains(&account.id)
        };
        for account in self.ledger.accounts.values().filter(absent) {
            let absence = if again.contains(&account.id) {
                // It is not known yet whether these accounts are gone. A suspended account stays suspended.
                account.absence.filter(|_| matches!(account.state, Lifecycle::Suspended | Lifecycle::Archived))
            } else {
                self.proved_absence(read, account)
            };
            if account.absence.is_none() && absence.is_some() && account.state != Lifecycle::Deleted {
                self.event(account, "missing", &format!("not in a complete read of {source}"), Value::Null);
            }
            let after = Account { absence, ending: self.ending(account, true), ..account.clone() };
            if after != *account {
                self.result.changes.push(Change::Account(after.into()));
            }
        }
    }

    /// Returns the absence after this read. After the suspension, [`Self::ending`] counts instead.
    pub(super) fn absence(&self, account: &Account) -> Option<Absence> {
        let limit = self.policy.lifecycle.absent_for.as_secs();
        let ends = account.state != Lifecycle::Active;
        if ends && account.absence.is_some_and(|absence| absence.seconds >= limit) {
            return account.absence;
        }
        self.counted(account.absence.as_ref(), limit, COUNT_EVERY).or(account.absence)
    }

    /// Returns the progress towards the end after this read. Suspensions by order or for idleness have no end. A
    /// suspension because of a group or class may depend on any source, so all sources must be complete.
    pub(super) fn ending(&self, account: &Account, complete: bool) -> Option<Ending> {
        let limit = match (account.state, account.suspension.as_deref()) {
            (_, None | Some(Suspension::Ordered { .. } | Suspension::Evicted { .. } | Suspension::Idle { .. }))
            | (Lifecycle::New | Lifecycle::Active | Lifecycle::Deleted, _) => {
                return account.ending;
            }
            (Lifecycle::Suspended, _) => self.policy.lifecycle.retention.as_secs(),
            (Lifecycle::Archived, _) => self.policy.lifecycle.delete_after.as_secs(),
        };
        let proved = complete && (self.all_proved() || account.suspension.as_deref() != Some(&Suspension::Left));
        if !proved || matches!(account.ending, Some(Ending::Deletion { .. })) {
            return account.ending;
        }
        let known = account.ending.as_ref().and_then(Ending::counted);
        self.counted(known, limit, RETENTION_EVERY).map(Ending::Waits).or(account.ending)
    }

    /// Returns the sum after this read; `None` if it need not be recorded yet.
    pub(super) fn counted(&self, known: Option<&Absence>, limit: u64, every: i64) -> Option<Absence> {
        let (since, counted, gap) = match known {
            None => (self.now, 0, 0),
            Some(known) => {
                let gap = self.now.as_second() - known.counted_at.as_second();
                let becomes_due = known.seconds < limit && known.seconds + gaps::counted(gap) >= limit;
                if gap < every && !becomes_due && gap >= 0 {
                    return None;
                }
                (known.since, known.seconds, gaps::counted(gap))
            }
        };
        let seconds = counted + gap;
        let left = i64::try_from(limit.saturating_sub(seconds)).unwrap_or(i64::MAX);
        let due = Timestamp::from_second(self.now.as_second().saturating_add(left)).unwrap_or(Timestamp::MAX);
        Some(Absence { since, counted_at: self.now, seconds, due })
    }
}
