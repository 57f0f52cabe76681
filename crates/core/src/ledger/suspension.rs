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

/// Why an account is or should be suspended.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "cause")]
pub enum Suspension {
    /// Complete reads no longer show the account.
    Absent,
    /// The directory marks the account as disabled.
    Disabled {
        /// `attribute: value`.
        mark: String,
    },
    /// An administrator ordered the suspension. It ends by `resume`, or at `until`.
    Ordered {
        /// The actor, the time and the reason of the order.
        #[serde(flatten)]
        note: Note,
        /// The end; `None` if only `resume` ends the suspension.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        until: Option<Timestamp>,
        /// The observed time since the order, which counts towards `until`; `None` if nothing was counted yet.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        proved: Option<Proved>,
    },
    /// An administrator ordered the suspension because an intruder had the account's credentials. It ends only by
    /// `resume`, which starts the workloads that the administrator names.
    Evicted {
        /// The actor, the time and the reason of the order.
        note: Note,
        /// Since when changes of objects in the account's namespaces are listed.
        since: Option<Timestamp>,
    },
    /// Nothing ran in its namespaces for too long, and nobody asked for the account. The suspension ends by `resume` or
    /// `ensure`.
    Idle {
        /// Since when nothing ran in the namespaces.
        since: Timestamp,
    },
    /// No class takes the account any more: the account left a group, or the configuration changed.
    Left,
}

impl Suspension {
    /// Returns an ordered suspension that only `resume` ends.
    #[must_use]
    pub const fn by(note: Note) -> Self {
        Self::Ordered { note, until: None, proved: None }
    }

    /// Returns the word that names the cause.
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

    /// Returns the order, or `None` if nobody ordered the suspension.
    #[must_use]
    pub const fn ordered(&self) -> Option<&Note> {
        match self {
            Self::Ordered { note, .. } | Self::Evicted { note, .. } => Some(note),
            Self::Absent | Self::Disabled { .. } | Self::Idle { .. } | Self::Left => None,
        }
    }

    /// Whether there is a suspension and an administrator ordered it.
    #[must_use]
    pub fn is_ordered(suspension: Option<&Self>) -> bool {
        suspension.and_then(Self::ordered).is_some()
    }

    /// Returns the term of a suspension that was ordered with an end.
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

    /// Whether the suspension was ordered with an end, and this end has come.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.term().is_some_and(|term| !term.is_running())
    }

    /// Returns ` until 2027-01-01`, or nothing if there is no end.
    #[must_use]
    pub fn end(&self) -> String {
        let until = self.term().and_then(|term| term.until);
        until.map(|until| format!(" until {}", day(until))).unwrap_or_default()
    }

    /// Returns the suspension with a new count of its observed time.
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
pub struct TemporarySuspension {
    /// The account that is suspended.
    pub account: AccountName,
    /// The end that was ordered.
    pub until: Timestamp,
    /// When the account resumes, if the daemon runs until then; `None` if the next cycle resumes it.
    pub due: Option<Timestamp>,
    /// The actor, the time and the reason of the order.
    pub note: Note,
}

impl TemporarySuspension {
    /// Returns all suspensions with an end, sorted by account.
    #[must_use]
    pub fn of(ledger: &LedgerState) -> Vec<Self> {
        let ends = ledger.accounts.values().filter(|account| account.state == Lifecycle::Suspended);
        let mut all: Vec<Self> = ends
            .filter_map(|account| {
                let suspension = account.suspension.as_deref()?;
                let (term, note) = (suspension.term()?, suspension.ordered()?.clone());
                Some(Self { account: account.account_name(), until: term.until?, due: term.due(), note })
            })
            .collect();
        all.sort_by(|one, other| one.account.cmp(&other.account));
        all
    }
}

impl fmt::Display for TemporarySuspension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { account: AccountName { kind, name }, until, due, note } = self;
        let late = due.filter(|due| due > until).map(|due| format!(" (in fact {due:.0}, because the daemon was off)"));
        let (late, until) = (late.unwrap_or_default(), day(*until));
        write!(f, "suspended: {kind} {name} until {until}{late}, ordered by {}: {}", note.actor, note.reason)
    }
}

impl LedgerState {
    pub(super) fn count_suspensions(&self, now: Timestamp) -> Vec<Change> {
        let counted = self.accounts.values().filter_map(|account| {
            let suspension = account.suspension.as_deref()?;
            let proved = suspension.term()?.counted(now)?;
            let suspension = Some(Box::new(suspension.clone().proved(proved)));
            Some(Change::Account(Account { suspension, ..account.clone() }.into()))
        });
        counted.collect()
    }
}
