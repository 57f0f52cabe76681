//! The input of the derivation for one account: the account, with all facts that decide what it should have.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::adopted::Adopted;
use super::class::Taken;
use super::workspace::{Holder, Holders};
use crate::identity::{AccountKind, ClusterName, NamespaceName};
use crate::ledger::exception::ExceptionKey;
use crate::ledger::quota::{OverrideKey, QuotaOverride};
use crate::ledger::{Account, Note, Order, Tenant};
use crate::policy::Class;

#[derive(Clone)]
pub(super) struct Subject<'a> {
    pub(super) account: &'a Account,
    pub(super) held: Option<&'a Note>,
    pub(super) tenants: Vec<(&'a ClusterName, &'a Tenant)>,
    pub(super) orders: Vec<&'a Order>,
    pub(super) taken: Taken<'a>,
    pub(super) awaited: bool,
    /// When the account was last asked for.
    pub(super) asked: Option<Timestamp>,
    pub(super) idle: Idle,
    /// Overrides that are in force.
    pub(super) overrides: Vec<(&'a OverrideKey, &'a QuotaOverride)>,
    /// Exceptions that are in force.
    pub(super) exceptions: Vec<&'a ExceptionKey>,
    /// The amounts of the class's quota that workspaces change.
    pub(super) granted: BTreeMap<String, String>,
    /// The people of a workspace; empty for other accounts.
    pub(super) holders: Holders,
    /// The adopted namespaces that the account owns.
    pub(super) adopted: Vec<Adopted<'a>>,
}

impl<'a> Subject<'a> {
    /// Returns the account's namespaces, each with the cluster.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = (&'a ClusterName, &'a NamespaceName)> {
        self.tenants.iter().filter_map(|(cluster, tenant)| Some((*cluster, tenant.namespace.as_ref()?)))
    }

    /// Whether members leave a workspace from which the guard may refuse to remove other people.
    pub(super) fn may_keep_people(&self) -> bool {
        !self.account.leaving.is_empty() && !self.holders.rests_on.is_empty()
    }

    /// Returns the account's tenant in `cluster`, as the ledger has it.
    pub(super) fn remembered(&self, cluster: &ClusterName) -> Option<&'a Tenant> {
        self.tenants.iter().find(|(known, _)| *known == cluster).map(|(_, tenant)| *tenant)
    }

    pub(super) fn is_workspace(&self) -> bool {
        let classes = self.taken.now.iter().chain(&self.taken.before);
        self.account.kind == AccountKind::Group && (!self.tenants.is_empty() || classes.count() > 0)
    }

    /// Returns the classes and people that remain if all removals are allowed.
    pub(super) fn side(&self) -> Side<'_> {
        Side { classes: &self.taken.now, holders: &self.holders.now, leaves: true }
    }
}

/// The classes and people that a state is derived from.
#[derive(Clone, Copy)]
pub(super) struct Side<'a> {
    pub(super) classes: &'a [&'a Class],
    pub(super) holders: &'a [Holder],
    /// Whether the account loses its place in a cluster that no class covers. If not, everything there stays.
    pub(super) leaves: bool,
}

/// The inputs that determine what an account should have while nothing is due for it.
#[derive(Debug, PartialEq)]
pub(super) struct Inputs {
    account: Account,
    held: Option<Note>,
    tenants: Vec<(ClusterName, Tenant)>,
    classes: Vec<String>,
    overrides: Vec<(OverrideKey, QuotaOverride)>,
    exceptions: Vec<ExceptionKey>,
    awaited: bool,
    asked: Option<Timestamp>,
    idle: Idle,
    granted: BTreeMap<String, String>,
    holders: Holders,
    adopted: Vec<(ClusterName, NamespaceName, String)>,
}

/// How long nothing has run in an account's namespaces.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Idle {
    /// Since when nothing has run in any of the namespaces; `None` unless all of them are due for suspension.
    pub(super) due: Option<Timestamp>,
    /// The clusters in which people were warned, with the time when the suspension is due.
    pub(super) warned: BTreeMap<ClusterName, Timestamp>,
}

impl Inputs {
    pub(super) fn of(subject: &Subject<'_>) -> Self {
        Self {
            account: subject.account.clone(),
            held: subject.held.cloned(),
            tenants: subject.tenants.iter().map(|(cluster, tenant)| ((*cluster).clone(), (*tenant).clone())).collect(),
            classes: subject.taken.now.iter().map(|class| class.name.clone()).collect(),
            overrides: subject.overrides.iter().map(|(key, given)| ((*key).clone(), (*given).clone())).collect(),
            exceptions: subject.exceptions.iter().copied().cloned().collect(),
            awaited: subject.awaited,
            asked: subject.asked,
            idle: subject.idle.clone(),
            granted: subject.granted.clone(),
            holders: subject.holders.clone(),
            adopted: subject.adopted.iter().map(owned).collect(),
        }
    }

    pub(super) fn still(&self, subject: &Subject<'_>) -> bool {
        let Self {
            account,
            held,
            tenants,
            classes,
            overrides,
            exceptions,
            awaited,
            asked,
            idle,
            granted,
            holders,
            adopted,
        } = self;
        account == subject.account
            && *awaited == subject.awaited
            && *asked == subject.asked
            && *idle == subject.idle
            && *granted == subject.granted
            && *holders == subject.holders
            && adopted.iter().cloned().eq(subject.adopted.iter().map(owned))
            && held.as_ref() == subject.held
            && tenants.iter().map(|(cluster, tenant)| (cluster, tenant)).eq(subject.tenants.iter().copied())
            && classes.iter().eq(subject.taken.now.iter().map(|class| &class.name))
            && overrides.iter().map(|(key, given)| (key, given)).eq(subject.overrides.iter().copied())
            && exceptions.iter().eq(subject.exceptions.iter().copied())
            && subject.orders.is_empty()
            && subject.taken.rests_on.is_empty()
    }
}

fn owned((cluster, namespace, class): &Adopted<'_>) -> (ClusterName, NamespaceName, String) {
    ((*cluster).clone(), (*namespace).clone(), class.name.clone())
}
