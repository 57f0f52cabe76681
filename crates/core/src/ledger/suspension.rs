//! Why an account is suspended, and until when.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::gaps::Proved;
use super::quota::day;
use super::term::Term;
use super::{Account, LedgerState, Lifecycle, Note};
use crate::identity::AccountName;

/// Why an account is, or is to be, suspended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "cause")]
pub enum Suspension {
    /// Missing from complete reads.
    Absent,
    /// Marked in the directory.
    Disabled {
        /// `attribute: value`.
        mark: String,
    },
    /// By an administrator; ends by `resume`, or at its end.
    Ordered {
        /// Who ordered it, and why.
        #[serde(flatten)]
        note: Note,
        /// Its end; absent: only `resume` ends it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// The time since the order that counts towards `until`; absent: nothing was counted yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proved: Option<Proved>,
    },
    /// By an administrator, because of somebody who had its credentials; ends only by `resume`, which starts what the
    /// administrator names.
    Evicted {
        /// Who ordered it, and why.
        note: Note,
        /// What was changed in its namespaces since then is listed.
        since: Option<Timestamp>,
    },
    /// Nothing ran in its namespaces for too long, and nobody asked for it. Ends by `resume`, or by `ensure`.
    Idle {
        /// Since then.
        since: Timestamp,
    },
    /// No class takes it any more: it left the group, or the configuration changed.
    Left,
}

impl Suspension {
    /// One that ends by `resume` alone.
    #[must_use]
    pub const fn by(note: Note) -> Self {
        Self::Ordered { note, until: None, proved: None }
    }

    /// One word for it.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Disabled { .. } => "disabled",
            Self::Ordered { .. } => "ordered",
            Self::Evicted { .. } => "evicted",
            Self::Idle { .. } => "idle",
            Self::Left => "left",
        }
    }

    /// Who ordered it, and why; `None`: nobody did.
    #[must_use]
    pub const fn ordered(&self) -> Option<&Note> {
        match self {
            Self::Ordered { note, .. } | Self::Evicted { note, .. } => Some(note),
            Self::Absent | Self::Disabled { .. } | Self::Idle { .. } | Self::Left => None,
        }
    }

    /// Whether an administrator ordered `suspension`, if it is one.
    #[must_use]
    pub fn is_ordered(suspension: Option<&Self>) -> bool {
        suspension.and_then(Self::ordered).is_some()
    }

    /// How long it lasts, if it was ordered with an end.
    #[must_use]
    pub const fn term(&self) -> Option<Term> {
        match self {
            Self::Ordered { note, until: Some(until), proved } => {
                Some(Term { from: note.at, until: Some(*until), proved: *proved })
            }
            Self::Ordered { .. }
            | Self::Absent
            | Self::Disabled { .. }
            | Self::Evicted { .. }
            | Self::Idle { .. }
            | Self::Left => None,
        }
    }

    /// Whether it was ordered with an end that has come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.term().is_some_and(|term| !term.is_running())
    }

    /// ` until 2027-01-01`, or nothing.
    #[must_use]
    pub fn end(&self) -> String {
        let until = self.term().and_then(|term| term.until);
        until.map(|until| format!(" until {}", day(until))).unwrap_or_default()
    }

    /// With this much of its term proved.
    #[must_use]
    pub fn proved(mut self, after: Proved) -> Self {
        if let Self::Ordered { proved, .. } = &mut self {
            *proved = Some(after);
        }
        self
    }
}

/// A suspension with an end, as `status` shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// Who is suspended.
    pub account: AccountName,
    /// Its end, as it was ordered.
    pub until: Timestamp,
    /// When the account resumes if the daemon runs until then; absent: in the next cycle that may.
    pub due: Option<Timestamp>,
    /// Who ordered it, and why.
    pub note: Note,
}

impl Ending {
    /// All suspensions with an end, by account.
    #[must_use]
    pub fn of(ledger: &LedgerState) -> Vec<Self> {
        let ends = ledger.accounts.values().filter(|account| account.state == Lifecycle::Suspended);
        let mut all: Vec<Self> = ends
            .filter_map(|account| {
                let suspension = account.suspension.as_ref()?;
                let (term, note) = (suspension.term()?, suspension.ordered()?.clone());
                Some(Self { account: account.account_name(), until: term.until?, due: term.due(), note })
            })
            .collect();
        all.sort_by(|one, other| one.account.cmp(&other.account));
        all
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account: AccountName { kind, name }, until, due, note } = self;
        let late = due.filter(|due| due > until).map(|due| format!(" (from {due:.0}: the daemon was off)"));
        let (late, until) = (late.unwrap_or_default(), day(*until));
        write!(f, "suspended: {kind} {name} until {until}{late}, ordered by {}: {}", note.actor, note.reason)
    }
}

impl LedgerState {
    pub(super) fn count_suspensions(&self, now: Timestamp) -> Vec<Change> {
        let counted = self.accounts.values().filter_map(|account| {
            let suspension = account.suspension.as_ref()?;
            let proved = suspension.term()?.counted(now)?;
            let suspension = Some(suspension.clone().proved(proved));
            Some(Change::Account(Box::new(Account { suspension, ..account.clone() })))
        });
        counted.collect()
    }
}
