//! Decides which accounts a class selects, in the same way for a snapshot and for the ledger.

use crate::identity::AccountKind;
use crate::policy::{Class, When};
use crate::snapshot::dn::Dn;

/// Whether `class` selects an account of this kind, at this DN, in these groups.
///
/// `in_group` returns whether the account is a member of the directory group with this name, nested groups included.
#[must_use]
pub fn selects(class: &Class, kind: AccountKind, dn: &str, in_group: impl Fn(&str) -> bool) -> bool {
    class.from.account_kind() == Some(kind) && admits(class, dn, in_group)
}

/// Whether `when` of `class` allows an account at this DN, in these groups.
#[must_use]
pub fn admits(class: &Class, dn: &str, in_group: impl Fn(&str) -> bool) -> bool {
    match &class.when {
        None => true,
        Some(When::Group(group)) => in_group(group),
        Some(When::Base(base)) => Dn::parse(dn).is_within(&Dn::parse(base)),
    }
}
