//! The arguments of the hidden command `names`, which shell completions call.

use clap::builder::{PossibleValuesParser, TypedValueParser as _};

use crate::identity::AccountKind;

/// The kind of names that a shell completion needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// Accounts of one kind.
    Account(AccountKind),
    /// Classes of the configuration.
    Class,
    /// Clusters of the configuration.
    Cluster,
    /// Sources of the configuration.
    Source,
    /// The hashes of the refusals in the last cycle.
    Refusal,
    /// Archives in the ledger.
    Archive,
}

pub(super) fn name_kind() -> impl clap::builder::TypedValueParser<Value = NameKind> {
    PossibleValuesParser::new(["tool", "user", "group", "class", "cluster", "source", "refusal", "archive"]).try_map(
        |kind| match kind.as_str() {
            "class" => Ok(NameKind::Class),
            "cluster" => Ok(NameKind::Cluster),
            "source" => Ok(NameKind::Source),
            "refusal" => Ok(NameKind::Refusal),
            "archive" => Ok(NameKind::Archive),
            account => account.parse::<AccountKind>().map(NameKind::Account),
        },
    )
}
