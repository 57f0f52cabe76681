//! What will be done, and why: the difference between what should be and what is, as a value that leaves nothing to
//! decide while executing. PURE: no runtime, no client, no file system, no clock.

pub mod action;

use serde::Serialize;

pub use action::{Action, Reason};

use crate::desired::{Regeneration, Transition};
use crate::identity::{AccountId, AccountName, PosixIdentity};
use crate::ledger::Note;

/// Everything that is to be done, tenant by tenant, and what is odd.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Plan {
    /// Accounts with something to do, sorted by name.
    pub accounts: Vec<AccountPlan>,
    /// Accounts that are as they should be.
    pub unchanged: u64,
    /// What an administrator should know, and nobody can do by planning: foreign objects, failing tenants.
    pub notices: Vec<Notice>,
}

/// What is to be done for one account.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccountPlan {
    /// The ledger's id.
    pub id: AccountId,
    /// `tool:foo`.
    pub account: AccountName,
    /// For the text.
    pub posix: Option<PosixIdentity>,
    /// The class that counts for limits.
    pub class: String,
    /// The change of its life.
    pub transition: Option<Transition>,
    /// The generation after this.
    pub generation: u64,
    /// Why the generation is a new one.
    pub regenerated: Option<Regeneration>,
    /// Shown, not touched.
    pub held: Option<Note>,
    /// Orders that this carries out.
    pub orders: Vec<i64>,
    /// In this order; a failure ends what is left of this account's cluster, and nobody else's.
    pub actions: Vec<Action>,
}

/// Something odd or blocked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Notice {
    /// Whom it is about.
    pub account: AccountName,
    /// For people, with the cure.
    pub text: String,
}
