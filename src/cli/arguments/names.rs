//! `names`, which the completions of shells ask.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};

use crate::identity::AccountKind;

/// What a completion asks the names of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// Accounts.
    Account(AccountKind),
    /// Classes of the configuration.
    Class,
    /// Clusters of the configuration.
    Cluster,
}

pub(super) fn name_kind() -> impl clap::builder::TypedValueParser<Value = NameKind> {
    PossibleValuesParser::new(["tool", "user", "group", "class", "cluster"]).try_map(|kind| match kind.as_str() {
        "class" => Ok(NameKind::Class),
        "cluster" => Ok(NameKind::Cluster),
        account => account.parse::<AccountKind>().map(NameKind::Account),
    })
}
