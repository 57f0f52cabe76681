//! Which accounts a class takes, asked the same way of a snapshot and of the ledger.

use crate::identity::AccountKind;
use crate::policy::{Class, When};
use crate::snapshot::dn::Dn;

/// Whether `class` is made from an account of this kind, at this DN, in these groups.
///
/// `in_group` says whether the account belongs to the directory group of that name, nested groups included.
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
