//! The arguments that name an account; without them, the caller's own.

use clap::Args;

use super::{Account, kind};
use crate::identity::{AccountKind, AccountName};

/// An account; without it: your own.
#[derive(Debug, Clone, Args)]
pub struct Own {
    /// What it is; without it: you
    #[arg(value_parser = kind(), requires = "name")]
    pub kind: Option<AccountKind>,
    /// Its name in the directory
    pub name: Option<String>,
}

impl Own {
    /// The account that is named.
    #[must_use]
    pub fn account(&self) -> Option<Account> {
        Some(Account { kind: self.kind?, name: self.name.clone()? })
    }
}

impl Account {
    /// `tool:foo`.
    #[must_use]
    pub fn to_name(&self) -> AccountName {
        AccountName { kind: self.kind, name: self.name.clone() }
    }
}
