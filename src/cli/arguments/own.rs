//! Optional arguments that name an account. If they are omitted, the caller's own account is meant.

use clap::Args;

use super::{Account, kind};
use crate::identity::{AccountKind, AccountName};

/// An account, or the caller's own account.
#[derive(Debug, Clone, Args)]
pub struct Own {
    /// Kind of account; if omitted, your own account is shown
    #[arg(value_parser = kind(), requires = "name")]
    pub kind: Option<AccountKind>,
    /// Name in the directory
    pub name: Option<String>,
}

impl Own {
    /// Returns the account that the arguments name; `None` if they are omitted.
    #[must_use]
    pub fn account(&self) -> Option<Account> {
        Some(Account { kind: self.kind?, name: self.name.clone()? })
    }
}

impl Account {
    /// Returns the full name, such as `tool:foo`.
    #[must_use]
    pub fn to_name(&self) -> AccountName {
        AccountName { kind: self.kind, name: self.name.clone() }
    }
}
