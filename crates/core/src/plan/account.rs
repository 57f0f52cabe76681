//! The plan of one account.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use serde::Serialize;

use super::Action;
use super::loss::Losses;
use super::quota::Adoption;
use super::subjects::Standing;
use crate::desired::{AccountIntent, Transition};
use crate::identity::{AccountId, ClusterName};
use crate::kinds::ObjectKey;
use crate::ledger::{Account, Failure, ObjectRecord, Tenant};
use crate::packed_text::DigestText;

/// The steps for one account. Copies share the large parts until they change them, because a cycle keeps its plan
/// beside the approved plan. Values by cluster are lists, because a map with one entry needs half a kilobyte.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AccountPlan {
    /// The account's id in the ledger.
    pub id: AccountId,
    /// Whether no account of the ledger has the role bindings that the plan removes. In this case, `id` and `before` are
    /// placeholders.
    #[serde(skip)]
    pub ownerless: bool,
    #[serde(flatten)]
    pub intent: Arc<AccountIntent>,
    /// Steps that remove access ([`super::Side::Narrowing`]). They are executed before the `actions` of any account,
    /// and each is tried even if others fail.
    pub narrowing: Arc<Vec<Action>>,
    /// All other steps, in this order. A failure ends the remaining steps of this account in that cluster only.
    pub actions: Arc<Vec<Action>>,
    /// Edits of the account's quotas that become overrides.
    pub adopted: Vec<Adoption>,
    /// The account's own namespaces. Any other namespace with objects of the account is a foreign one.
    #[serde(skip)]
    pub namespaces: Vec<String>,
    /// Whether the account itself changed: its name, ids, home or an override.
    #[serde(skip)]
    pub is_own: bool,
    /// Indexes in [`AccountPlan::steps`] of the steps that only a change of the policy causes.
    #[serde(skip)]
    pub paced: BTreeSet<usize>,
    /// Steps that remove access only because the configuration or a label changed, by their index in
    /// [`AccountPlan::steps`].
    #[serde(skip)]
    pub losses: Losses,
    /// Whether all groups in `rests_on` have recorded the account as a leaving member.
    #[serde(skip)]
    pub left: bool,
    /// The new value of [`crate::ledger::LedgerState::settled`] for each cluster, once all steps there are done.
    #[serde(skip)]
    pub settles: Vec<(ClusterName, DigestText)>,
    /// The present subjects of the bindings that this plan writes.
    #[serde(skip)]
    pub standing: Standing,
    /// New ledger rows of the account's tenants, or rows that get a namespace.
    #[serde(skip)]
    pub places: Vec<(ClusterName, Tenant)>,
    /// Objects that no longer exist and are removed from the ledger.
    #[serde(skip)]
    pub forgotten: Vec<ObjectKey>,
    /// Records of namespaces to which the class is added, because an older version did not record it.
    #[serde(skip)]
    pub labelled: Vec<(ObjectKey, ObjectRecord)>,
    /// Failure records that are stored before the steps begin. They let a restarted daemon find an unfinished
    /// suspension. A change of the lifecycle state also resets an earlier failure, so that its step is retried at once.
    #[serde(skip)]
    pub begun: BTreeMap<ClusterName, Failure>,
    /// The account in the ledger before this plan.
    #[serde(skip)]
    pub before: Arc<Account>,
    /// The plan that is executed instead if the guard refuses the removal in this plan, or if the account is held.
    /// `None` if nothing is to be done in that case.
    #[serde(skip)]
    pub otherwise: Option<Box<AccountPlan>>,
}

impl Deref for AccountPlan {
    type Target = AccountIntent;

    fn deref(&self) -> &AccountIntent {
        &self.intent
    }
}

impl DerefMut for AccountPlan {
    fn deref_mut(&mut self) -> &mut AccountIntent {
        Arc::make_mut(&mut self.intent)
    }
}

impl AccountPlan {
    /// Returns the plan for the account `before` that has these steps and records nothing.
    #[must_use]
    pub fn new(before: Arc<Account>, intent: AccountIntent, narrowing: Vec<Action>, actions: Vec<Action>) -> Self {
        Self {
            id: before.id.clone(),
            ownerless: false,
            intent: Arc::new(intent),
            narrowing: Arc::new(narrowing),
            actions: Arc::new(actions),
            adopted: Vec::new(),
            namespaces: Vec::new(),
            is_own: false,
            paced: BTreeSet::new(),
            losses: Losses::new(),
            left: false,
            settles: Vec::new(),
            standing: Standing::new(),
            places: Vec::new(),
            forgotten: Vec::new(),
            labelled: Vec::new(),
            begun: BTreeMap::new(),
            before,
            otherwise: None,
        }
    }

    /// Returns all steps, in the order in which they begin.
    pub fn steps(&self) -> impl Iterator<Item = &Action> {
        self.narrowing.iter().chain(self.actions.iter())
    }

    /// Replaces the steps for which `by` returns one. Its argument is the index in [`AccountPlan::steps`].
    pub(super) fn replace_steps<'a>(&mut self, by: impl Fn(usize) -> Option<&'a Action>) {
        let narrowing = self.narrowing.len();
        for index in 0..narrowing + self.actions.len() {
            if let Some(new) = by(index) {
                let old = match index.checked_sub(narrowing) {
                    None => &mut Arc::make_mut(&mut self.narrowing)[index],
                    Some(index) => &mut Arc::make_mut(&mut self.actions)[index],
                };
                old.clone_from(new);
            }
        }
    }

    /// Keeps the steps for which `keeps` returns `true`. Its argument is the index in [`AccountPlan::steps`].
    pub(super) fn retain_steps(&mut self, keeps: impl Fn(usize, &Action) -> bool) {
        if self.steps().enumerate().all(|(index, action)| keeps(index, action)) {
            return;
        }
        let (mut index, mut places) = (0, BTreeMap::new());
        for steps in [&mut self.narrowing, &mut self.actions].map(Arc::make_mut) {
            steps.retain(|action| {
                let kept = keeps(index, action);
                if kept {
                    places.insert(index, places.len());
                }
                index += 1;
                kept
            });
        }
        self.paced = self.paced.iter().filter_map(|place| places.get(place).copied()).collect();
        let losses = std::mem::take(&mut self.losses).into_iter();
        self.losses = losses.filter_map(|(place, instead)| Some((*places.get(&place)?, instead))).collect();
    }

    /// Returns the account's id in the ledger; `None` if the plan is not that of an account in the ledger.
    #[must_use]
    pub fn known_id(&self) -> Option<AccountId> {
        (!self.ownerless).then(|| self.id.clone())
    }

    /// Returns the plan that is executed if the guard refuses nothing. For a held account, this is the part that is
    /// carried out in spite of the hold.
    #[must_use]
    pub fn done(&self) -> Option<&Self> {
        if self.held.is_some() { self.otherwise.as_deref() } else { Some(self) }
    }

    /// Whether there is anything to do other than to check homes.
    #[must_use]
    pub fn changes_something(&self) -> bool {
        self.transition.is_some()
            || self.regenerated.is_some()
            || !self.orders.is_empty()
            || !self.leaving.is_empty()
            || !self.places.is_empty()
            || !self.adopted.is_empty()
            || self.steps().any(|action| !action.is_look())
    }

    /// Whether the plan is executed before plans that only create or repair objects. It is if it removes or restores
    /// access, or if its cause concerns this account alone, such as an order.
    #[must_use]
    pub fn is_urgent(&self) -> bool {
        let life = matches!(self.transition, Some(Transition::Suspend(_) | Transition::Resume));
        life || self.regenerated.is_some()
            || !self.orders.is_empty()
            || !self.leaving.is_empty()
            || self.is_own
            || self.awaited
    }

    /// Whether the namespace is one of the account's own.
    #[must_use]
    pub fn owns(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|own| own == namespace)
    }

    /// Whether there is nothing to do and nothing to record.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let records_nothing = self.forgotten.is_empty() && self.labelled.is_empty();
        self.steps().next().is_none() && records_nothing && !self.changes_something()
    }
}
