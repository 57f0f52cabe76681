//! What people order, who they are, and why.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::Suspension;
use crate::identity::AccountId;

/// Who asked for something, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Note {
    /// Login name, or `bursar`.
    pub actor: String,
    /// In their words.
    pub reason: String,
    /// Their ticket.
    pub ticket: Option<String>,
    /// When.
    pub at: Timestamp,
}

/// What an administrator ordered. `Hold`, `Release` and `Approve` take effect when they are written down; these
/// need a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Row id.
    pub id: i64,
    /// Whom.
    pub account: AccountId,
    /// What.
    pub what: OrderKind,
    /// Who and why.
    pub note: Note,
    /// The class whose revocation it is a part of; absent: it was given alone.
    pub bulk: Option<String>,
    /// The object of [`OrderKind::AdoptObject`], as [`ObjectKey::said`](crate::kinds::ObjectKey::said) gives it; of
    /// [`OrderKind::Evict`] the time from which on changes are listed, of [`OrderKind::Suspend`] its end.
    pub object: Option<String>,
}

impl Order {
    /// The suspension that it orders, if it orders one.
    #[must_use]
    pub fn suspends(&self) -> Option<Suspension> {
        match self.what {
            OrderKind::Suspend => {
                Some(Suspension::Ordered { note: self.note.clone(), until: self.moment(), proved: None })
            }
            OrderKind::Evict => Some(Suspension::Evicted { note: self.note.clone(), since: self.moment() }),
            OrderKind::Resume
            | OrderKind::Revoke
            | OrderKind::AdoptUid
            | OrderKind::AdoptAccount
            | OrderKind::AdoptObject => None,
        }
    }

    fn moment(&self) -> Option<Timestamp> {
        self.object.as_deref()?.parse().ok()
    }
}

/// The kinds of [`Order`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderKind {
    /// Suspend until resumed, or until its end.
    Suspend,
    /// End an ordered suspension.
    Resume,
    /// A new generation: every older certificate is worth nothing.
    Revoke,
    /// Suspend, and remove what somebody may have left in the namespace: tokens and what runs.
    Evict,
    /// The uid that the directory has now becomes the account's. The next read carries it out.
    #[serde(rename = "adopt uid")]
    AdoptUid,
    /// Another entry of the directory, which has the account's name, is the account's from now on. The next read carries
    /// it out.
    #[serde(rename = "adopt account")]
    AdoptAccount,
    /// An object that somebody else made where one of the account's should be becomes the account's, this once.
    #[serde(rename = "adopt object")]
    AdoptObject,
}

impl OrderKind {
    /// It is about what a directory says, so a read carries it out; all others need a plan.
    #[must_use]
    pub const fn is_of_reads(self) -> bool {
        matches!(self, Self::AdoptUid | Self::AdoptAccount)
    }

    /// It takes access away, or keeps it from coming back.
    #[must_use]
    pub const fn takes_access(self) -> bool {
        match self {
            Self::Suspend | Self::Revoke | Self::Evict => true,
            Self::Resume | Self::AdoptUid | Self::AdoptAccount | Self::AdoptObject => false,
        }
    }

    /// It takes access away or gives it back, in homes too.
    #[must_use]
    pub const fn is_of_access(self) -> bool {
        match self {
            Self::Suspend | Self::Resume | Self::Revoke | Self::Evict => true,
            Self::AdoptUid | Self::AdoptAccount | Self::AdoptObject => false,
        }
    }
}
